//! The effort of a search: a recall, or a number in the unit of a kind.

use stratann_core::kinds::hybrid_ivf::MAX_PROBES;
use stratann_core::query::{MAX_SEARCH_LIST, Params};
use stratann_storage::{Error, Result};

use stratann_params::search::SearchSettings;

use super::facts::EffortUnit;
use super::known::facts;
use crate::curve::RECALL_USUAL;
use stratann_params::IndexKind;

/// Effort of a search.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Effort {
    /// Mean recall@k wanted; the index' curve picks the parameters.
    Recall(f64),
    /// Length of the beam, and the slack of the adaptive stop (`None` turns it off).
    SearchList(u32, Option<f32>),
    /// Clusters visited at most (nprobe), the slack of bounds (`None` for bounds that hold), and the share of
    /// fruitless clusters in a row that end the visits (`None` for all).
    Nprobe(u32, Option<f32>, Option<f32>),
}

impl Effort {
    /// Reads what a user gave for one run.
    pub fn read(settings: &SearchSettings) -> Effort {
        match (settings.search_list, settings.nprobe) {
            (Some(list), _) => Effort::SearchList(list, settings.stop_slack),
            (None, Some(nprobe)) => Effort::Nprobe(nprobe, settings.stop_slack, settings.early_stop),
            (None, None) => Effort::Recall(settings.recall.unwrap_or(RECALL_USUAL)),
        }
    }

    /// A moderate effort without a curve, for searches that compare and do not measure.
    pub(crate) fn moderate(kind: IndexKind) -> Effort {
        match facts(kind).effort {
            EffortUnit::Clusters => Effort::Nprobe(16, None, None),
            EffortUnit::Beam => Effort::SearchList(64, None),
        }
    }

    /// Effort of parameters so many times, without their stop rules for a beam.
    pub fn times(params: &Params, times: u32) -> Effort {
        let setting = super::setting(params);
        let most = |effort: u32, limit| effort.saturating_mul(times).min(limit);
        match setting.nprobe {
            Some(nprobe) => Effort::Nprobe(most(nprobe, MAX_PROBES), setting.slack, setting.early_stop),
            None => Effort::SearchList(most(setting.search_list, MAX_SEARCH_LIST), None),
        }
    }

    /// The length of the beam, where it is given.
    pub(crate) fn beam(&self) -> Option<u64> {
        match *self {
            Effort::SearchList(list, _) => Some(u64::from(list)),
            Effort::Recall(_) | Effort::Nprobe(..) => None,
        }
    }

    /// The parameters for k results on an index of this kind. `by_recall` gives those that reach a recall.
    ///
    /// # Errors
    /// A number out of range, or in the unit of another kind.
    pub(crate) fn params(
        &self,
        kind: IndexKind,
        k: u32,
        by_recall: impl FnOnce(f64) -> Result<Params>,
    ) -> Result<Params> {
        let bad = |why: String| Err(Error::bad_input(why));
        let (own, name) = (super::kind(kind), kind.name());
        match (*self, facts(kind).effort) {
            (Effort::Recall(recall), _) => by_recall(recall),
            (Effort::SearchList(list, _), _) if list == 0 || list > MAX_SEARCH_LIST => {
                bad(format!("search list is {list}; use {k} to {MAX_SEARCH_LIST}"))
            }
            (Effort::Nprobe(nprobe, ..), _) if nprobe == 0 || nprobe > MAX_PROBES => {
                bad(format!("--nprobe is {nprobe}; use 1 to {MAX_PROBES}"))
            }
            (Effort::SearchList(list, slack), EffortUnit::Beam) => Ok(own.params(k, list, (slack, None))),
            (Effort::Nprobe(nprobe, slack, early_stop), EffortUnit::Clusters) => {
                Ok(own.params(k, nprobe, (slack, early_stop)))
            }
            (Effort::SearchList(..), EffortUnit::Clusters) => bad(format!(
                "--search-list is the beam of a graph, this index is a {name}; give --nprobe or --recall"
            )),
            (Effort::Nprobe(..), EffortUnit::Beam) => bad(format!(
                "--nprobe is a number of clusters, this index is a {name}; give --search-list or --recall"
            )),
        }
    }
}
