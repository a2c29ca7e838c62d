//! From options to the parameters of a query.

use stratann_core::plan::hybrid_ivf::MAX_PROBES;
use stratann_core::query::{MAX_K, MAX_SEARCH_LIST, Params};

use super::{Effort, SearchOptions};
use crate::index::Index;
use crate::kinds::{self, nprobe_params};
use crate::recall::curve;
use crate::{Error, Result};

impl Index {
    /// The parameters that `options` come to on this index.
    ///
    /// # Errors
    /// Values out of range, a recall that the curve does not reach, an index without a curve.
    pub fn params(&self, options: &SearchOptions) -> Result<Params> {
        if options.k == 0 || options.k > MAX_K as usize {
            return Err(Error::bad_input(format!("k is {}; ask for 1 to {MAX_K} results", options.k)));
        }
        let k = options.k.min(self.base.manifest.rows as usize) as u32;
        let mut params = match options.effort {
            Effort::List(list, slack) => {
                if list == 0 || list > MAX_SEARCH_LIST {
                    return Err(Error::bad_input(format!(
                        "search list is {list}; use {k} to {MAX_SEARCH_LIST}"
                    )));
                }
                kinds::beam_params(self.base.kind, k, list, slack)
            }
            Effort::Clusters(clusters, slack, early_stop) => {
                if clusters == 0 || clusters > MAX_PROBES {
                    return Err(Error::bad_input(format!("--nprobe is {clusters}; use 1 to {MAX_PROBES}")));
                }
                nprobe_params(k, clusters, slack, early_stop)
            }
            Effort::Recall(recall) => self.params_for_recall(k, recall)?,
        };
        self.check_effort(options)?;
        params.mode = options.mode;
        let variant = curve::variant(&self.base.manifest.curves, k);
        kinds::apply_switches(&mut params, &options.switches, variant)?;
        Ok(params)
    }

    /// Refuses an effort in the unit of another kind.
    fn check_effort(&self, options: &SearchOptions) -> Result<()> {
        let kind = &self.base.manifest.kind;
        match (options.effort, self.base.kind.effort_option()) {
            (Effort::List(..), "--nprobe") => Err(Error::bad_input(format!(
                "--search-list is the beam of a graph, this index is a {kind}; give --nprobe or --recall"
            ))),
            (Effort::Clusters(..), "--search-list") => Err(Error::bad_input(format!(
                "--nprobe is a number of clusters, this index is a {kind}; give --search-list or --recall"
            ))),
            _ => Ok(()),
        }
    }

    fn params_for_recall(&self, k: u32, recall: f64) -> Result<Params> {
        if !(recall > 0.0 && recall <= 1.0) {
            return Err(Error::bad_input(format!("recall is {recall}; give a share above 0 and up to 1")));
        }
        let kind = self.base.kind;
        if !kind.has_curve() {
            return Ok(Params::flat(k));
        }
        let instead = kind.effort_option();
        let curves = &self.base.manifest.curves;
        match curve::choose(curves, k, recall) {
            Some(Ok(point)) => Ok(kinds::params_at(kind, k, &point, curve::variant(curves, k))),
            Some(Err(best)) => Err(Error::bad_input(format!(
                "recall {recall} is beyond this index' curve, which ends at {best:.4}; ask for less, or give {instead}"
            ))),
            None => Err(Error::bad_input(format!(
                "this index has no recall curve; run `stratann tune`, or give {instead}"
            ))),
        }
    }
}
