//! Fresh records: scanned, or linked into the graph of their cluster when it is loaded. Exact counters.

use serde::Serialize;
use stratann_engine::index::{Index, OpenOptions};
use stratann_engine::kinds::{ClusterCost, Linking, LinkingOptions};
use stratann_storage::{Progress, Result};

use super::measure::Measured;
use super::{Bench, TABLE_EF};

/// Fresh records of a cluster, as far as there is room for them.
const FRESH: [u32; 4] = [8, 32, 128, 512];

/// One number of fresh records.
#[derive(Clone, Debug, Serialize)]
pub(super) struct AtFresh {
    pub(super) fresh: u32,
    /// Clusters and queries that were measured.
    pub(super) clusters: usize,
    pub(super) queries: usize,
    /// Vectors of a cluster, with its fresh records.
    pub(super) members: f64,
    /// Distances of a query in a cluster, and the share of its k nearest vectors there that it finds.
    pub(super) scanned_comparisons: f64,
    pub(super) scanned_recall: f64,
    pub(super) linked_comparisons: f64,
    pub(super) linked_recall: f64,
    /// Distances that linking computes when a cluster is loaded.
    pub(super) link_comparisons: f64,
    /// Queries of one load from which on linking computes fewer distances; absent where it never does.
    pub(super) pays_after_queries: Option<f64>,
}

/// All numbers.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Fresh {
    /// Queries that a load of a cluster serves, with batches as they were measured.
    pub(super) queries_per_load: f64,
    pub(super) numbers: Vec<AtFresh>,
}

impl AtFresh {
    fn of(own: &Linking) -> AtFresh {
        let (ClusterCost { comparisons: scan, .. }, ClusterCost { comparisons: linked, .. }) =
            (own.scanned, own.linked);
        let saved = scan - linked;
        AtFresh {
            fresh: own.fresh,
            clusters: own.clusters,
            queries: own.queries,
            members: own.members,
            scanned_comparisons: scan,
            scanned_recall: own.scanned.recall,
            linked_comparisons: linked,
            linked_recall: own.linked.recall,
            link_comparisons: own.link_comparisons,
            pays_after_queries: (saved > 0.0).then(|| own.link_comparisons / saved),
        }
    }
}

impl Bench<'_> {
    /// Measures them on sub-HNSWs of the folder. `own` is a search whose cache is filled.
    pub(super) fn fresh(&self, own: &Measured) -> Result<Fresh> {
        self.printer.stage("fresh records", 1, "measurements");
        let index = Index::open(&self.args.base, OpenOptions::default())?;
        let mut fresh = FRESH.to_vec();
        fresh.push(self.facts.capacity);
        fresh.sort_unstable();
        fresh.dedup();
        let options = LinkingOptions {
            queries: self.batch_rows(),
            nprobe: self.nprobe,
            ef: TABLE_EF,
            k: self.args.k,
            fresh: &fresh,
        };
        let found = index.measure_linking(&options, self.printer)?;
        let loaded = own.needs - own.cache_hits;
        Ok(Fresh {
            queries_per_load: if own.loads > 0.0 { loaded / own.loads } else { 0.0 },
            numbers: found.iter().map(AtFresh::of).collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn linking_pays_once_it_has_saved_what_it_costs() {
        let cost = |comparisons| ClusterCost { comparisons, recall: 1.0 };
        let own = Linking {
            scanned: cost(300.0),
            linked: cost(250.0),
            link_comparisons: 5000.0,
            ..Linking::default()
        };
        assert_eq!(AtFresh::of(&own).pays_after_queries, Some(100.0));
        let worse = Linking { scanned: cost(250.0), ..own };
        assert_eq!(AtFresh::of(&worse).pays_after_queries, None);
    }
}
