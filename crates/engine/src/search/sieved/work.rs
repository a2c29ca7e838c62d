//! The work of a search that passes over rows, and how much wider it is than one that may return all.

use stratann_core::query::Params;
use stratann_storage::Result;

use crate::curve::{self, Aim, Point};
use crate::index::Index;
use crate::kinds;
use crate::kinds::answers::SearchWork;
use crate::search::SearchOptions;

/// Codes that a search compares for each candidate of its beam, about.
const COMPARISONS_PER_EFFORT: f64 = 20.0;
/// Work grows at least with this power of the number of results.
const POWER_MIN: f64 = 0.4;

impl Index {
    /// The work of a search that aims so, and its effort over that of `usual`.
    pub(super) fn aimed_work(
        &self,
        usual: &Params,
        recall: Option<f64>,
        times: f64,
        aim: Option<Aim>,
    ) -> (SearchWork, f64) {
        let Some(aim) = aim else { return self.expected_work(usual, recall, times) };
        let work = SearchWork { reads: aim.reads, comparisons: aim.comparisons };
        let effort_times = match aim.effort {
            Some(effort) => {
                let usual_effort = f64::from(kinds::setting(usual).effort.max(1));
                effort / usual_effort * self.expected_work(usual, recall, aim.fewer).1
            }
            None => self.expected_work(usual, recall, times).1,
        };
        (work, effort_times)
    }

    /// Lists that a search visits by rule that passes over so many rows for each that it may return.
    ///
    /// # Errors
    /// As [`Index::params`].
    pub(crate) fn effort_by_rule(&self, options: &SearchOptions, times: f64) -> Result<f64> {
        let usual = self.params(options)?;
        Ok(f64::from(kinds::setting(&usual).effort) * self.expected_work(&usual, options.recall(), times).1)
    }

    /// The work of a search for `times` as many results as `usual` has, and its effort over the usual one. Curves of
    /// two numbers of results tell how they grow; without curves the beam does.
    fn expected_work(&self, usual: &Params, recall: Option<f64>, times: f64) -> (SearchWork, f64) {
        let curves = &self.base.manifest.curves;
        let family = self.curve_family();
        let at = |k: u32| curve::choose_of(curves, family, k, recall?).filter(|point| !point.is_exact());
        let most = curves.iter().filter(|curve| curve.family.as_deref() == family).map(|curve| curve.k).max();
        let (k, most) = (usual.k, most.unwrap_or(usual.k));
        let Some(few) = at(k) else {
            let effort = f64::from(kinds::setting(usual).effort) * times;
            return (SearchWork { reads: effort, comparisons: effort * COMPARISONS_PER_EFFORT }, times);
        };
        let many = at(most).filter(|_| most > k);
        let grown = |of: &dyn Fn(&Point) -> f64| {
            let power = many.map_or(1.0, |many| {
                (of(&many) / of(&few).max(1e-9)).ln() / (f64::from(most) / f64::from(k)).ln()
            });
            times.powf(power.clamp(POWER_MIN, 1.0))
        };
        let comparisons = |point: &Point| point.comparisons.unwrap_or(0.0);
        let work = SearchWork {
            reads: few.reads * grown(&|point| point.reads),
            comparisons: comparisons(&few) * grown(&comparisons),
        };
        (work, grown(&|point| point.effort.into()))
    }
}
