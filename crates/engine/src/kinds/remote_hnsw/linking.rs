//! Measures what it would cost and save to link fresh records into the graph of a cluster when it is loaded, instead of
//! scanning them.
//!
//! A build inserts the members of a cluster in their order. So the last `f` of them serve as fresh records: the graph
//! that lacks them is the one before they were inserted, and the graph into which they are linked is that of the index.

use std::collections::BTreeMap;

use stratann_core::format::hnsw::{HnswName, SubHnsw};
use stratann_core::kinds::remote_hnsw::{Chooser, ClusterSearch};
use stratann_kernel::{DType, Metric};
use stratann_storage::{Progress, Result};

use super::live::group::GroupBuilder;
use super::members;
use super::open::RemoteIndex;
use crate::base::Base;

/// Clusters that are measured, evenly from all.
const CLUSTERS: usize = 16;
/// Queries of a cluster that are measured.
const QUERIES_MAX: usize = 100;

/// Options of a measurement of linking.
#[derive(Clone, Copy, Debug)]
pub struct LinkingOptions<'a> {
    /// Queries, as bytes.
    pub queries: &'a [u8],
    /// Clusters that a query searches.
    pub nprobe: u32,
    /// Length of the beam in each.
    pub ef: u32,
    /// Results.
    pub k: usize,
    /// Numbers of fresh records. Those that a cluster has no room for, or that are more than half of it, are left out.
    pub fresh: &'a [u32],
}

/// A query in a cluster, in the mean.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ClusterCost {
    /// Distances computed.
    pub comparisons: f64,
    /// Share of the k nearest vectors of the cluster that were found.
    pub recall: f64,
}

/// One number of fresh records.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Linking {
    /// Fresh records of a cluster.
    pub fresh: u32,
    /// Clusters that were measured.
    pub clusters: usize,
    /// Queries of all of them.
    pub queries: usize,
    /// Members of a cluster with its fresh records, in the mean.
    pub members: f64,
    /// The graph is searched and the records are scanned.
    pub scanned: ClusterCost,
    /// The graph is searched, with the records linked into it.
    pub linked: ClusterCost,
    /// Distances that linking them computes, for each load of a cluster.
    pub link_comparisons: f64,
}

/// Sums over queries and clusters.
#[derive(Default)]
struct Sums {
    clusters: usize,
    queries: usize,
    members: u64,
    comparisons: [u64; 2],
    found: [usize; 2],
    wanted: usize,
    linking: u64,
}

/// Measures each number of fresh records that a cluster has room for.
///
/// # Errors
/// An index that does not say how it was built; a cluster that cannot be read; an interruption.
pub(crate) fn measure(
    base: &Base,
    own: &RemoteIndex,
    options: &LinkingOptions<'_>,
    progress: &dyn Progress,
) -> Result<Vec<Linking>> {
    let builder = GroupBuilder::new(base, &own.facts, own.layout)?;
    let element = (base.metric, base.dtype);
    let needed = needed(own, element, options);
    let all = own.clusters.len();
    let mut sums: BTreeMap<u32, Sums> = BTreeMap::new();
    for cluster in (0..all).step_by(all.div_ceil(CLUSTERS).max(1)) {
        progress.check_interrupted()?;
        let mut bytes = Vec::new();
        members::read(base, &own.view(), cluster as u32, &mut bytes)?;
        let whole = SubHnsw::open(&own.layout, &bytes);
        let (Some(whole), Some(queries)) = (whole, needed.get(&(cluster as u32))) else { continue };
        let mut fresh: Vec<u32> = options.fresh.to_vec();
        fresh.retain(|&fresh| fresh > 0 && fresh <= own.facts.capacity.min(whole.members() / 2));
        if fresh.is_empty() {
            continue;
        }
        let queries: Vec<&[u8]> = queries.iter().take(QUERIES_MAX).copied().collect();
        measure_cluster(&builder, (own, element), (&whole, &bytes), (&queries, &fresh), options, &mut sums);
    }
    Ok(sums.into_iter().map(|(fresh, sums)| sums.means(fresh)).collect())
}

/// The queries that need each cluster.
fn needed<'a>(
    own: &RemoteIndex,
    element: (Metric, DType),
    options: &LinkingOptions<'a>,
) -> BTreeMap<u32, Vec<&'a [u8]>> {
    let mut needed: BTreeMap<u32, Vec<&[u8]>> = BTreeMap::new();
    let name = HnswName::meta(own.build());
    let Some(mut chooser) = Chooser::open(&own.layout, &name, own.meta()) else { return needed };
    let mut chosen = Vec::new();
    for query in options.queries.chunks_exact(own.layout.vector_bytes) {
        chosen.clear();
        chooser.choose(element, query, options.nprobe, &mut chosen);
        chosen.iter().for_each(|&cluster| needed.entry(cluster).or_default().push(query));
    }
    needed
}

/// Adds one cluster to the sums of each number of fresh records.
fn measure_cluster(
    builder: &GroupBuilder,
    (own, element): (&RemoteIndex, (Metric, DType)),
    (whole, bytes): (&SubHnsw<'_>, &[u8]),
    (queries, fresh): (&[&[u8]], &[u32]),
    options: &LinkingOptions<'_>,
    sums: &mut BTreeMap<u32, Sums>,
) {
    let all = whole.members();
    let mut sizes: Vec<u32> = fresh.iter().map(|fresh| all - fresh).chain([all]).collect();
    sizes.sort_unstable();
    sizes.dedup();
    let grown = builder.grown(whole, &sizes);
    debug_assert!(
        grown.get(&all).is_some_and(|grown| grown.bytes == bytes),
        "the graph is that of the index"
    );
    let inserted = |size: u32| grown.get(&size).map_or(0, |grown| grown.comparisons);
    let mut search = ClusterSearch::default();
    let (mut linked, mut scanned) = (Vec::new(), Vec::new());
    for &fresh in fresh {
        let before = grown.get(&(all - fresh)).and_then(|grown| SubHnsw::open(&own.layout, &grown.bytes));
        let Some(before) = before else { continue };
        let sum = sums.entry(fresh).or_default();
        sum.clusters += 1;
        sum.members += u64::from(all);
        sum.linking += inserted(all) - inserted(all - fresh);
        for query in queries {
            search.set(element, query);
            let by_order = |a: &(f32, u32), b: &(f32, u32)| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1));
            let mut nearest: Vec<(f32, u32)> =
                (0..all).map(|member| (search.distance(whole, member), member)).collect();
            nearest.sort_by(by_order);
            nearest.truncate(options.k);
            let beam = (options.ef as usize, options.k);
            sum.comparisons[1] += search.search(whole, beam, &mut linked);
            sum.comparisons[0] += search.search(&before, beam, &mut scanned) + u64::from(fresh);
            scanned.extend((all - fresh..all).map(|member| (search.distance(whole, member), member)));
            scanned.sort_by(by_order);
            scanned.truncate(options.k);
            sum.queries += 1;
            sum.wanted += nearest.len();
            for (found, of) in sum.found.iter_mut().zip([&scanned, &linked]) {
                *found += nearest.iter().filter(|near| of.iter().any(|found| found.1 == near.1)).count();
            }
        }
    }
}

impl Sums {
    fn means(&self, fresh: u32) -> Linking {
        let cost = |way: usize| ClusterCost {
            comparisons: self.comparisons[way] as f64 / self.queries.max(1) as f64,
            recall: self.found[way] as f64 / self.wanted.max(1) as f64,
        };
        let each = |sum: u64| sum as f64 / self.clusters.max(1) as f64;
        Linking {
            fresh,
            clusters: self.clusters,
            queries: self.queries,
            members: each(self.members),
            scanned: cost(0),
            linked: cost(1),
            link_comparisons: each(self.linking),
        }
    }
}
