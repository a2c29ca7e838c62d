//! Answers of kinds: settings, costs, members.

use stratann_core::query::Params;
use stratann_core::sieve::Sieve;

use crate::codebook;
use crate::manifest::Manifest;
use crate::record::CODE_KIND;
use crate::sieve_ways::{SievePrices, SieveWay};

/// Setting that a query was run with, for a person.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Setting {
    /// The effort, in the unit of the kind: the length of the beam, or the clusters visited.
    pub effort: u32,
    /// The length of the beam.
    pub search_list: u32,
    /// The slack of the stop rule or of bounds; `None` when it is off.
    pub slack: Option<f32>,
    /// Fruitless reads in a row after which a query stops; 0 for never.
    pub patience: u32,
    /// Clusters visited at most, of a kind that has clusters.
    pub nprobe: Option<u32>,
    /// Share of them, in a row without a gain, that ends the visits; `None` when that is off.
    pub early_stop: Option<f32>,
}

impl Setting {
    /// A search of so many clusters, without rules that end it early. One without a beam gives k as its length.
    pub(crate) fn of_clusters(nprobe: u32, search_list: u32) -> Setting {
        let nothing = Setting::of_beam(search_list);
        Setting { effort: nprobe, nprobe: Some(nprobe), ..nothing }
    }

    /// A search by a beam of this length, without rules that end it early.
    pub(crate) fn of_beam(search_list: u32) -> Setting {
        Setting { effort: search_list, search_list, slack: None, patience: 0, nprobe: None, early_stop: None }
    }
}

/// Blocks, lists or vectors that an exact search goes through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExactCost {
    /// Blocks, inverted lists or vectors.
    pub count: u64,
    /// Name of the unit.
    pub unit: &'static str,
    /// Bytes of all: whole blocks, or the codes of lists.
    pub bytes: u64,
    /// Bytes of vectors that are read besides, unless bounds prune them; 0 where blocks hold them.
    pub vector_bytes_max: u64,
    /// Whether all queries go through them together; otherwise each does.
    pub is_shared: bool,
}

/// A query with a sieve, as a kind plans it.
#[derive(Clone, Copy)]
pub(crate) struct SievedQuery<'a> {
    pub(crate) sieve: &'a Sieve,
    /// The query without a sieve.
    pub(crate) usual: Params,
    /// All rows over those of the sieve: a search passes over so many for each that it may return, where these lie
    /// anywhere.
    pub(crate) times: f64,
    /// How many times the usual effort a search needs that passes over them.
    pub(crate) effort_times: f64,
    /// Work of a search that passes over them, as the curves of the build tell.
    pub(crate) work: SearchWork,
    /// Recall that was asked for; `None` where an effort was.
    pub(crate) recall: Option<f64>,
    /// Of the rows that are far from the query: see [`crate::curve::Widening::far_tenths`]; `None` where nothing was
    /// measured.
    pub(crate) far_tenths: Option<u8>,
    /// Whether it is to be measured what a search finds: it is the way, and never gives way.
    pub(crate) is_measured: bool,
    /// The way that is taken whatever it costs, to compare ways; `None` for the cheapest.
    pub(crate) only: Option<SieveWay>,
}

impl SievedQuery<'_> {
    /// Standard errors within which a share of normal errors lies on one side that is the recall: 1.3 for 0.9, 2.3 for
    /// 0.99. Within 0.2 of the quantile from 0.9 to 0.999. Among rows that lie far from the query, many have nearly the
    /// same distance, so codes must err no more than this.
    pub(crate) fn slack(&self) -> f32 {
        const USUAL: f64 = 0.99;
        let misses = (1.0 - self.recall.unwrap_or(USUAL)).clamp(1e-4, 1.0);
        (0.35 - 0.97 * misses.log10()) as f32
    }
}

/// Work of a search.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SearchWork {
    pub(crate) reads: f64,
    pub(crate) comparisons: f64,
}

/// The way that a kind has chosen, and the parameters of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct SievePlan {
    pub(crate) way: SieveWay,
    pub(crate) params: Params,
    /// Bytes that the state and scratch of a query may take beyond what `params` tell.
    pub(crate) more_bytes: u64,
    /// What the ways were compared by; `None` of a kind with one way.
    pub(crate) prices: Option<SievePrices>,
}

/// A vector of an open index, and what is stored with it.
pub(crate) struct Member<'a> {
    /// Number of the member in the index.
    pub(crate) id: u32,
    pub(crate) vector: &'a [u8],
    /// 1 but under cosine.
    pub(crate) inverse_norm: f32,
    pub(crate) external_id: u64,
}

/// Is shown members, some at a time.
pub(crate) type SeeMembers<'a> = dyn FnMut(&[Member<'_>]) + Send + 'a;

/// Memory and reads of a query on an index that is not open yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlannedQuery {
    /// Queries in flight per thread.
    pub(crate) in_flight: usize,
    /// Bytes of tables and candidates.
    pub(crate) tables_bytes: u64,
    /// Bytes of a read.
    pub(crate) read_bytes: usize,
}

/// Bytes of a query that is prepared for the codes of an index: of look-up tables where an older version trained them.
pub(crate) fn code_query_bytes(manifest: &Manifest, code_bytes: usize) -> u64 {
    let is_bits = manifest.build.get("code_kind").is_some_and(|kind| kind == CODE_KIND);
    if is_bits { codebook::bit_query_bytes(manifest.dim as u64) } else { code_bytes as u64 * 512 + 4096 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slack_is_near_the_normal_quantile() {
        let sieve = Sieve::all(1);
        let (usual, work) = (Params::flat(1), SearchWork { reads: 0.0, comparisons: 0.0 });
        let query = SievedQuery {
            sieve: &sieve,
            usual,
            times: 1.0,
            effort_times: 1.0,
            work,
            recall: None,
            far_tenths: None,
            is_measured: false,
            only: None,
        };
        for (recall, quantile) in [(0.9, 1.28), (0.95, 1.645), (0.98, 2.05), (0.99, 2.33), (0.999, 3.09)] {
            let slack = SievedQuery { recall: Some(recall), ..query }.slack();
            assert!((slack - quantile).abs() < 0.2, "{recall}: {slack}");
        }
    }
}
