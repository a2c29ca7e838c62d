//! From options to the parameters of a query.

use stratann_core::query::{MAX_K, Params};
use stratann_storage::{Error, Result};

use super::waves;
use super::{Effort, ExactCost, SearchOptions};
use crate::curve::{self, UnreachedRecall};
use crate::index::Index;
use crate::kinds;
use crate::kinds::known::facts;
use crate::kinds::{own, own_mut};

impl Index {
    /// Cost of `queries` queries that search everything: at recall 1, and where the curve ends below the recall. `None`
    /// for other searches.
    ///
    /// # Errors
    /// As [`Index::params`].
    pub fn exact_cost(&self, options: &SearchOptions, queries: usize) -> Result<Option<ExactCost>> {
        let params = self.params(options)?;
        let is_exact = own(&params.kind).is_exact() || options.effort == Effort::Recall(1.0);
        Ok(is_exact.then(|| {
            let each = self.kind.exact_cost(&self.base);
            self.scan_cost(options, queries).unwrap_or(each)
        }))
    }

    /// The recall that a search asks for and the curve does not reach, so that it is exact.
    ///
    /// # Errors
    /// As [`Index::params`].
    pub fn unreached_recall(&self, options: &SearchOptions) -> Result<Option<UnreachedRecall>> {
        let (Effort::Recall(recall), params) = (options.effort, self.params(options)?) else {
            return Ok(None);
        };
        let unreached = curve::unreached(&self.base.manifest.curves, params.k, recall);
        Ok(unreached.filter(|_| own(&params.kind).is_exact()))
    }

    /// The parameters that `options` come to on this index.
    ///
    /// # Errors
    /// Values out of range, a recall below 1 of an index without a curve.
    pub fn params(&self, options: &SearchOptions) -> Result<Params> {
        if options.k == 0 || options.k > MAX_K as usize {
            return Err(Error::bad_input(format!("k is {}; ask for 1 to {MAX_K} results", options.k)));
        }
        self.kind.check_switches(&options.switches)?;
        let k = options.k.min(self.base.manifest.rows as usize) as u32;
        let aim = |recall| (waves::effort_k(k, options.share), recall);
        let families = |recall| match self.kind.graph() {
            Some(graph) => graph.families(&options.switches.own(), &self.base.manifest.curves, aim(recall)),
            None => options.switches.families(),
        };
        let by_recall = |recall| {
            let mut params = self.params_for_recall(k, (recall, aim(recall)), &families(recall))?;
            if options.share < 1.0 {
                own_mut(&mut params.kind).search_part();
            }
            Ok(params)
        };
        let mut params = options.effort.params(self.base.kind, k, by_recall)?;
        params.mode = options.mode;
        if matches!(options.effort, Effort::Nprobe(..)) {
            self.kind.set_defaults(&mut params.kind);
        }
        if let (Effort::SearchList(_, None), Some(graph)) = (options.effort, self.kind.graph()) {
            graph.set_defaults(&mut params);
        }
        let variant = curve::variant(&self.base.manifest.curves, k);
        own_mut(&mut params.kind).apply_switches(params.k, &options.switches, variant)?;
        Ok(params)
    }

    /// The cheapest parameters of these ways to search; `None` is the usual one.
    fn params_for_recall(
        &self,
        k: u32,
        (recall, aim): (f64, (u32, f64)),
        families: &[Option<&str>],
    ) -> Result<Params> {
        if !(recall > 0.0 && recall <= 1.0) {
            return Err(Error::bad_input(format!(
                "recall is {recall}; give a share above 0 and up to 1, such as 0.95"
            )));
        }
        let kind = self.base.kind;
        if !facts(kind).has_curve {
            return Ok(Params::flat(k));
        }
        let instead = facts(kind).effort.option();
        let curves = &self.base.manifest.curves;
        match curve::cheapest(curves, families, aim.0, aim.1) {
            Some((family, point)) => {
                Ok(kinds::params_at(kind, k, &point, family.or(curve::variant(curves, k))))
            }
            None if !families.contains(&None) => Err(Error::bad_input(format!(
                "this index has no recall curve for this way to search; build it with --baselines, or give {instead}"
            ))),
            None => Err(Error::bad_input(format!(
                "this index has no recall curve; run `stratann tune`, or give {instead}"
            ))),
        }
    }
}
