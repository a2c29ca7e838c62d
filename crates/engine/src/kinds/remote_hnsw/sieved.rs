//! How a query finds the rows of a filter: in the nearest clusters that have some, or in all of them.

use std::sync::Arc;

use stratann_core::kinds::remote_hnsw::{self, MAX_PROBES};
use stratann_core::kinds::{IndexView, KindParams, KindView};
use stratann_core::query::Params;
use stratann_core::sieve::IdSieve;

use super::open::RemoteIndex;
use crate::exec::Snapshot;
use crate::kinds::answers::{SievePlan, SievedQuery};
use crate::kinds::questions::grown;
use crate::kinds::sieved_lists::SievedLists;
use crate::sieve_ways::SieveWay;

/// Bytes of a cluster in the state of a query, with its reads and what it holds, and among those that it ranks.
const CLUSTER_BYTES: u64 = 4 + 8 + 2 * 128;
/// See [`CLUSTER_BYTES`].
const RANKED_BYTES: u64 = 8;
/// All matches of clusters that are visited anyway are compared where that costs at most so many times as much as the
/// cheaper of that and their graphs.
const EXACT_TIMES: u64 = 2;

/// The way to the rows of a sieve, of an index whose members have numbers.
pub(super) fn plan(index: &RemoteIndex, query: &SievedQuery<'_>) -> Option<SievePlan> {
    let own = query.usual.kind.remote_hnsw()?;
    let lists = || index.first.windows(2).map(|ends| ends[0]..ends[1]);
    let clusters =
        lists().map(|rows| (u64::from(query.sieve.count_in(rows.clone())), u64::from(rows.end - rows.start)));
    let visited = SievedLists::new(query, own.nprobe, lists());
    let is_cheap = query.only == Some(SieveWay::Exact) || is_scan_cheap(index, own, clusters);
    let plan = plan_of(index, &query.usual, visited.nprobe(), is_cheap);
    Some(SievePlan { prices: Some(visited.prices_of_exact()), ..plan })
}

/// The way to the ids of a sieve, of an index whose members have no numbers: which clusters have some is known when
/// they have been read. `effort_times` is as of [`SievedQuery`].
pub(crate) fn plan_ids(index: &RemoteIndex, usual: &Params, effort_times: f64, ids: &IdSieve) -> SievePlan {
    let clusters = u64::from(index.facts.clusters()).max(1);
    let usual_nprobe = usual.kind.remote_hnsw().map_or(1, |own| own.nprobe);
    let nprobe = (f64::from(usual_nprobe) * effort_times).ceil().clamp(1.0, MAX_PROBES.into()) as u32;
    // Matches that lie anywhere leave some clusters without one. Reads after the first are those of a query alone, so
    // half of the clusters cost no less than all of them, which a batch reads once.
    let with_match = 1.0 - (-(ids.matches() as f64) / clusters as f64).exp();
    let nprobe = Some(nprobe).filter(|&nprobe| 2.0 * f64::from(nprobe) < clusters as f64 * with_match);
    let alike = (ids.matches().div_ceil(clusters), ids.rows().div_ceil(clusters));
    let is_cheap = usual
        .kind
        .remote_hnsw()
        .is_none_or(|own| is_scan_cheap(index, own, std::iter::repeat_n(alike, clusters as usize)));
    plan_of(index, usual, nprobe, is_cheap)
}

fn plan_of(index: &RemoteIndex, usual: &Params, nprobe: Option<u32>, is_scan_cheap: bool) -> SievePlan {
    let clusters = index.facts.clusters();
    let mut plan = SievePlan { way: SieveWay::Exact, params: *usual, more_bytes: 0, prices: None };
    let KindParams::RemoteHnsw(own) = &mut plan.params.kind else { return plan };
    if !own.exact {
        match nprobe {
            Some(nprobe) => (plan.way, own.nprobe) = (SieveWay::Search, nprobe),
            None if is_scan_cheap => own.exact = true,
            // Graphs of many matches tell more cheaply which are near.
            None => (plan.way, own.nprobe) = (SieveWay::Search, clusters.clamp(1, MAX_PROBES)),
        }
    }
    let most = grown(clusters.into(), CLUSTER_BYTES) + grown(clusters.into(), RANKED_BYTES);
    plan.more_bytes = most.saturating_sub(grown(own.nprobe.into(), CLUSTER_BYTES));
    plan
}

/// Whether all matches of clusters are compared at about the cost of a search of these. Each cluster is a number of
/// matches and of members.
fn is_scan_cheap(
    index: &RemoteIndex,
    own: &remote_hnsw::Params,
    clusters: impl Iterator<Item = (u64, u64)>,
) -> bool {
    let shape = (index.layout.vector_bytes as u64, index.facts.m.into());
    let prices = clusters.filter(|&(matches, _)| matches > 0).map(|size| own.prices(size, shape));
    let (scans, cheapest) =
        prices.fold((0, 0), |(scans, all), (scan, walk)| (scans + scan, all + scan.min(walk)));
    scans <= EXACT_TIMES * cheapest
}

/// What a query sees that returns the ids of a sieve alone.
struct Sieved {
    seen: Arc<dyn Snapshot>,
    ids: Arc<IdSieve>,
}

/// The part of the index that a query with a filter sees of what its batch does.
pub(crate) fn sieved(seen: Arc<dyn Snapshot>, ids: Arc<IdSieve>) -> Arc<dyn Snapshot> {
    Arc::new(Sieved { seen, ids })
}

impl Snapshot for Sieved {
    fn apply<'a>(&'a self, view: &mut IndexView<'a>) {
        self.seen.apply(view);
        if let KindView::RemoteHnsw(own) = &mut view.kind {
            own.id_sieve = Some(&self.ids);
        }
    }
}
