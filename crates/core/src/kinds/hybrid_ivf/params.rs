//! Parameters of a `hybrid-ivf` query.

use crate::exact::Bounds;
use crate::search::ScoringMode;

/// Longest beam in a cluster that is a graph.
pub const MAX_LOCAL_LIST: u32 = 65_536;

/// Order in which clusters are visited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Order {
    /// By the distance to the centroid, reduced where the navigation found near members of the cluster.
    #[default]
    Evidence = 0,
    /// By the number of sample hits: members among the nearest that the navigation found (OrchANN §5.3).
    SampleHits = 1,
    /// By the distance to the centroid.
    Centroid = 2,
    /// By the number of members to expect within the threshold, from the cluster's size and spread.
    Expected = 3,
}

impl Order {
    /// All orders.
    pub const ALL: [Order; 4] = [Order::Evidence, Order::SampleHits, Order::Centroid, Order::Expected];

    /// The one of this name.
    pub fn from_name(name: &str) -> Option<Order> {
        Order::ALL.into_iter().find(|o| o.name() == name)
    }

    /// The name used on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Order::Evidence => "evidence",
            Order::SampleHits => "votes",
            Order::Centroid => "centroid",
            Order::Expected => "expected",
        }
    }
}

/// The parameters of one query; plain data that travels with it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Params {
    /// Most clusters that are visited (M in OrchANN).
    pub nprobe: u32,
    /// Length of the navigation's beam of sampled members, whose hits rank their clusters.
    pub sample_hits: u32,
    /// Order in which clusters are visited.
    pub order: Order,
    /// Stop after this share of the clusters in a row was fruitless (ρ); infinity turns the rule off.
    pub early_stop: f32,
    /// Whether a fruitless cluster counts by how unlikely its members were, instead of 1.
    pub weighed: bool,
    /// Lists scanned of a divided cluster; 0 for the number in its plan.
    pub local_lists: u32,
    /// Length of the beam in a cluster that is a graph; at least k.
    pub local_list: u32,
    /// Bounds that prune.
    pub bounds: Bounds,
    /// Visit every list of every cluster, whatever the numbers above: with strict bounds, the exact answer.
    pub exact: bool,
    /// Use of lists and vectors of other servers.
    pub remote: ScoringMode,
    /// Bounds hold within this many standard errors of a code distance; infinity makes them strict.
    pub bound_slack: f32,
}

/// Default of [`Params::sample_hits`].
const SAMPLE_HITS: u32 = 64;
/// Default of [`Params::local_list`].
const LOCAL_LIST: u32 = 32;
/// Most clusters that a query can visit, and most sample hits.
pub const MAX_PROBES: u32 = 65_536;

impl Params {
    /// A number of clusters to visit, and the defaults of everything else.
    pub fn new(nprobe: u32) -> Params {
        let nprobe = nprobe.clamp(1, MAX_PROBES);
        Params {
            nprobe,
            sample_hits: SAMPLE_HITS,
            order: Order::Evidence,
            early_stop: f32::INFINITY,
            weighed: true,
            local_lists: 0,
            local_list: LOCAL_LIST,
            bounds: Bounds::Both,
            exact: false,
            remote: ScoringMode::HandOver,
            bound_slack: f32::INFINITY,
        }
    }

    /// Most of `clusters` clusters that are visited.
    pub fn visits_max(&self, clusters: u32) -> u32 {
        if self.exact { clusters } else { self.nprobe.min(clusters) }
    }

    /// Whether lists and vectors of other servers are scored there.
    pub fn scores_remotely(&self) -> bool {
        self.remote != ScoringMode::HandOver
    }

    /// True when every number is within its limit.
    pub fn is_valid(&self) -> bool {
        (1..=MAX_PROBES).contains(&self.nprobe)
            && (1..=MAX_PROBES).contains(&self.sample_hits)
            && (1..=MAX_LOCAL_LIST).contains(&self.local_list)
            && self.early_stop > 0.0
            && self.bound_slack >= -16.0
    }

    /// The weight of fruitless clusters in a row that ends the visits: ⌈ρM⌉ of M (OrchANN §5.3); ρM where they are
    /// weighed.
    pub fn fruitless_limit(&self, clusters: usize) -> f32 {
        let share = self.early_stop * clusters as f32;
        // More than all cannot be fruitless.
        if self.weighed || !share.is_finite() || share >= clusters as f32 {
            return share;
        }
        // A ceiling without std; the product is small.
        (share as u32 + u32::from(share > share as u32 as f32)).max(1) as f32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_share_of_any_number_of_clusters_has_a_limit() {
        let limit = |early_stop, weighed, clusters| {
            Params { early_stop, weighed, ..Params::new(10) }.fruitless_limit(clusters)
        };
        assert_eq!((limit(0.25, false, 10), limit(0.25, true, 10)), (3.0, 2.5));
        assert_eq!((limit(1e-9, false, 10), limit(1.0, false, 10)), (1.0, 10.0));
        for weighed in [false, true] {
            assert!(limit(f32::MAX, weighed, 10) > 10.0 && limit(f32::INFINITY, weighed, 10) > 10.0);
        }
    }

    #[test]
    fn servers_that_forward_no_jobs_read_that_they_score() {
        let written = |remote, version| {
            let params = Params { remote, ..Params::new(10) };
            let mut bytes = alloc::vec![];
            super::super::wire::encode_params(&params, version, &mut crate::codec::Writer(&mut bytes));
            bytes
        };
        let read = |bytes: &[u8]| {
            super::super::wire::decode_params(&mut crate::codec::Reader(bytes)).map(|params| params.remote)
        };
        for remote in [ScoringMode::HandOver, ScoringMode::Score, ScoringMode::Forward] {
            assert_eq!(read(&written(remote, 11)), Ok(remote));
        }
        assert_eq!(written(ScoringMode::Forward, 10), written(ScoringMode::Score, 10));
        let mut wrong = written(ScoringMode::HandOver, 11);
        *wrong.last_mut().unwrap() |= 1 << 3;
        assert!(read(&wrong).is_err(), "it forwards and does not score");
        *wrong.last_mut().unwrap() |= 1 << 4;
        assert!(read(&wrong).is_err());
    }
}
