//! A recall curve: what recall costs, and the parameters that reach it. Plain data, kept in the manifest.

use crate::{Error, Result};
use serde::{Deserialize, Serialize};
use stratann_core::query::MAX_SEARCH_LIST;
use stratann_kernel::Metric;

/// When a search stops before its whole effort is spent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StopRule {
    /// Standard errors by which a distance may exceed its estimate; `null` turns the rule off.
    pub slack: Option<f32>,
    /// The share of the effort that may bring nothing, in a row; 0 turns the rule off.
    #[serde(rename = "patience_share")]
    pub share: f32,
}

/// One measured setting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// The effort, in the unit of the kind: the length of a beam, or the clusters visited.
    #[serde(rename = "search_list")]
    pub effort: u32,
    /// When to stop before.
    pub stop: StopRule,
    /// Mean recall@k.
    pub recall: f64,
    /// Mean reads per query.
    pub reads: f64,
}

/// What recall costs for one k: several efforts for each of several stop rules.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Curve {
    /// Results asked for.
    pub k: u32,
    /// Queries it was measured on.
    pub queries: usize,
    /// Where they came from: `rows` or `queries`.
    pub source: String,
    /// Median distance of these rows to the k-th of their neighbours; unknown for queries, and in indexes of before
    /// it was kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kth_distance: Option<f32>,
    /// The variant of the kind that it was measured with; absent for a kind without variants.
    #[serde(rename = "order", default, skip_serializing_if = "Option::is_none")]
    pub variant: Option<String>,
    /// The points, by effort.
    pub points: Vec<Point>,
}

impl Curve {
    /// The cheapest setting that reaches `recall`, over all stop rules; between two measured points of a rule the
    /// effort is interpolated.
    ///
    /// `Err` holds the highest recall of the curve when none reaches it.
    pub fn setting(&self, recall: f64) -> std::result::Result<Point, f64> {
        let mut rules: Vec<StopRule> = Vec::new();
        self.points.iter().for_each(|p| {
            if !rules.contains(&p.stop) {
                rules.push(p.stop)
            }
        });
        let reached = rules.iter().filter_map(|&rule| self.setting_of(rule, recall));
        let best = reached.min_by(|a, b| a.reads.total_cmp(&b.reads).then(a.effort.cmp(&b.effort)));
        best.ok_or_else(|| self.points.iter().map(|p| p.recall).fold(0.0, f64::max))
    }

    fn setting_of(&self, rule: StopRule, recall: f64) -> Option<Point> {
        let mut points = self.points.iter().filter(|p| p.stop == rule);
        let mut below: Option<&Point> = None;
        let above = points.find(|p| {
            let reaches = p.recall >= recall;
            if !reaches {
                below = Some(p);
            }
            reaches
        })?;
        let Some(below) = below else { return Some(*above) };
        // Misses, not hits, shrink evenly as the effort grows.
        let misses = |r: f64| (1.0 - r).max(1e-4).ln();
        let share = (misses(below.recall) - misses(recall)) / (misses(below.recall) - misses(above.recall));
        let mix = |a: f64, b: f64| a + share.clamp(0.0, 1.0) * (b - a);
        Some(Point {
            effort: mix(f64::from(below.effort), f64::from(above.effort)).ceil() as u32,
            stop: rule,
            recall,
            reads: mix(below.reads, above.reads),
        })
    }

    /// The points that no other point beats in both cost and recall.
    pub fn frontier(&self) -> Vec<Point> {
        let mut points = self.points.clone();
        points.sort_by(|a, b| a.reads.total_cmp(&b.reads).then(b.recall.total_cmp(&a.recall)));
        let mut best = f64::NEG_INFINITY;
        points.retain(|p| {
            let keep = p.recall > best;
            best = best.max(p.recall);
            keep
        });
        points
    }
}

/// The setting for `k` results at `recall`, from the curve of the nearest k that is not smaller, or else the largest.
pub fn choose(curves: &[Curve], k: u32, recall: f64) -> Option<std::result::Result<Point, f64>> {
    let curve = curves
        .iter()
        .filter(|c| c.k >= k)
        .min_by_key(|c| c.k)
        .or_else(|| curves.iter().max_by_key(|c| c.k))?;
    let share = if curve.source == FROM_ROWS { MISSES_AIMED_ROWS } else { MISSES_AIMED };
    let aimed = curve.setting(1.0 - (1.0 - recall) * share).or_else(|_| curve.setting(recall));
    Some(aimed.map(|mut point| {
        if curve.k < k {
            // A longer answer needs an effort larger in proportion.
            point.effort = (u64::from(point.effort) * u64::from(k) / u64::from(curve.k.max(1)))
                .min(u64::from(MAX_SEARCH_LIST)) as u32;
        }
        point
    }))
}

/// The variant of the curve for `k`; `None` where no curve has one.
pub fn variant(curves: &[Curve], k: u32) -> Option<&str> {
    let nearest = curves.iter().filter(|c| c.variant.is_some()).min_by_key(|c| c.k.abs_diff(k));
    nearest?.variant.as_deref()
}

/// What calibration measures on an index.
pub(crate) struct Grid {
    /// The efforts, ascending.
    pub(crate) efforts: Vec<u32>,
    /// The stop rules.
    pub(crate) rules: &'static [StopRule],
    /// Whether a rule is left out at an effort.
    pub(crate) is_needless: fn(u32, &StopRule) -> bool,
}

/// How many times as far queries lie from the k-th of their neighbours as the rows do that the curve for k was
/// measured on, by the medians; `None` where that is not known, or the metric is no distance. Sorts `kth_distances`,
/// one of each query.
pub fn remoteness(curves: &[Curve], metric: Metric, k: u32, kth_distances: &mut [f32]) -> Option<f64> {
    let own = curves.iter().find(|c| c.k == k)?.kth_distance.filter(|&d| d > 0.0 && metric != Metric::Ip)?;
    // Squared, both of them: l2 by definition, cosine as half of the squared l2 of unit vectors.
    median(kth_distances).map(|theirs| f64::from(theirs / own).max(0.0).sqrt())
}

/// From here on queries are of another kind than the rows, and a recall that was measured on these is too much to
/// expect.
pub const REMOTE: f64 = 1.1;

/// Sorts; `None` of nothing.
pub(crate) fn median(values: &mut [f32]) -> Option<f32> {
    values.sort_unstable_by(f32::total_cmp);
    values.get(values.len() / 2).copied()
}

/// Curves measured on rows of the index say so.
pub(crate) const FROM_ROWS: &str = "rows";
/// A curve is a mean over a few hundred queries: aim at a little fewer misses than asked.
const MISSES_AIMED: f64 = 0.95;
/// Rows, even hidden ones, turn out to be a little easier than queries that the index has never seen.
const MISSES_AIMED_ROWS: f64 = 0.82;

/// Queries in flight while a curve is measured: the counters do not depend on it, but the longest beams take 100 KB a
/// query.
pub(crate) const CALIBRATION_IN_FLIGHT: usize = 16;
/// Refuses a slack that is no number of standard errors.
///
/// # Errors
/// A slack out of range.
pub(crate) fn check_slack(slack: f32) -> Result<()> {
    if slack >= -16.0 {
        return Ok(());
    }
    Err(Error::bad_input("the slack of the adaptive stop is a number of standard errors, from -16 up"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FULL: StopRule = StopRule { slack: None, share: 0.0 };
    const EARLY: StopRule = StopRule { slack: Some(0.0), share: 0.2 };

    fn curve(points: &[(u32, StopRule, f64, f64)]) -> Curve {
        let points =
            points.iter().map(|&(effort, stop, recall, reads)| Point { effort, stop, recall, reads });
        Curve {
            k: 10,
            queries: 5,
            source: "rows".into(),
            kth_distance: Some(4.0),
            variant: None,
            points: points.collect(),
        }
    }

    #[test]
    fn the_cheapest_rule_that_reaches_is_taken() {
        let c = curve(&[
            (10, FULL, 0.8, 10.0),
            (10, EARLY, 0.7, 8.0),
            (30, FULL, 0.95, 30.0),
            (30, EARLY, 0.9, 15.0),
        ]);
        assert_eq!(c.setting(0.9).unwrap().stop, EARLY);
        assert_eq!(c.setting(0.95).unwrap(), Point { effort: 30, stop: FULL, recall: 0.95, reads: 30.0 });
        assert_eq!(c.setting(0.99), Err(0.95));
        assert_eq!(c.frontier().iter().map(|p| p.reads).collect::<Vec<_>>(), [8.0, 10.0, 15.0, 30.0]);
    }

    #[test]
    fn beams_are_interpolated_by_misses() {
        let middle = curve(&[(10, FULL, 0.8, 10.0), (30, FULL, 0.95, 30.0)]).setting(0.9).unwrap();
        assert!((19..=21).contains(&middle.effort), "{middle:?}");
        assert_eq!(middle.recall, 0.9);
    }

    #[test]
    fn a_larger_k_takes_a_longer_beam() {
        let curves = [curve(&[(20, FULL, 0.9, 20.0)])];
        assert_eq!(choose(&curves, 100, 0.9).unwrap().unwrap().effort, 200);
        assert_eq!(choose(&curves, 1, 0.9).unwrap().unwrap().effort, 20);
        assert!(choose(&[], 1, 0.9).is_none());
        assert_eq!(remoteness(&curves, Metric::L2, curves[0].k, &mut [25.0, 9.0, 1.0]), Some(1.5));
        for (metric, k) in [(Metric::Ip, curves[0].k), (Metric::L2, 77)] {
            assert_eq!(remoteness(&curves, metric, k, &mut [9.0]), None);
        }
        assert_eq!(remoteness(&curves, Metric::L2, curves[0].k, &mut []), None);
    }
}
