//! Measures recall curves.
//!
//! A curve holds measured points: with this beam and this slack, so much recall for so many reads. It is measured on queries whose
//! neighbours are known exactly: rows of the index, each hidden from its own search (build), or the user's own queries (`tune`).

use stratann_core::query::Order;

use super::curve::{Curve, Point, StopRule, clusters_params};
use crate::driver::Width;
use crate::index::Index;
use crate::search::{self, SearchOptions};
use crate::{Error, Progress, Result};

/// Measures a curve on `queries` (rows of the index' type, as bytes), whose true neighbours are `truth` (`truth_k` ids each).
///
/// `hidden` names for each query a node that it must not see; it may be empty.
#[allow(clippy::too_many_arguments)]
pub(crate) fn measure(
    index: &Index,
    queries: &[u8],
    truth: &[u64],
    truth_k: usize,
    hidden: &[u32],
    k: u32,
    source: &str,
    (threads, in_flight): (usize, usize),
    progress: &dyn Progress,
) -> Result<Curve> {
    // Long answers average over more neighbours each, so fewer queries tell as much.
    let count = (queries.len() / index.block.vector_bytes)
        .min(QUERY_NEIGHBOURS.div_ceil(k as usize).max(QUERIES_MIN));
    let queries = &queries[..count * index.block.vector_bytes];
    let (lists, rules) = settings(index, k);
    let settings = |list: u32| rules.iter().filter(move |r| !is_needless(index, list, r));
    let runs: usize = lists.iter().map(|&list| settings(list).count()).sum();
    progress.stage(&format!("calibrating recall@{k}"), (runs * count) as u64, "queries");
    let options = SearchOptions {
        k: k as usize,
        threads,
        width: Width::Fixed(1),
        in_flight: Some(in_flight),
        ..SearchOptions::default()
    };
    let hide = |q: usize| hidden.get(q).copied().unwrap_or(u32::MAX);
    // Lists in RAM count as read: searches may have less of it.
    let in_ram = index.clusters.as_ref().map_or(0.0, |c| index.lists_in_ram().share_of(&c.directory));
    let order = match &index.clusters {
        Some(_) => Some(better_order(index, queries, (truth, truth_k), &hide, &options, progress)?),
        None => None,
    };
    let mut measured = Vec::new();
    for &search_list in &lists {
        let mut best = 0.0;
        for &stop in settings(search_list) {
            let mut point = Point { search_list, stop, recall: 0.0, reads: 0.0 };
            let mut params = if index.clusters.is_some() { point.cluster_params(k) } else { point.params(k) };
            params.probe.order = order.unwrap_or_default();
            let answers = index.search_each(queries, params, &hide, &options, progress)?;
            if let Some((query, why)) = answers.failed.first() {
                return Err(Error::corrupt(format!("calibration query {query}: {why}")));
            }
            point.recall = search::recall(&answers.ids, answers.k, truth, truth_k);
            point.reads = (answers.stats.reads as f64 + in_ram * answers.stats.lists as f64) / count as f64;
            best = f64::max(best, point.recall);
            measured.push(point);
        }
        if best > RECALL_ENOUGH {
            break;
        }
    }
    let order = order.map(|o| o.name().to_string());
    Ok(Curve { k, queries: count, source: source.into(), kth_distance: None, order, points: measured })
}

/// The order in which so many clusters hold most of the true neighbours.
fn better_order(
    index: &Index,
    queries: &[u8],
    (truth, truth_k): (&[u64], usize),
    hide: &(dyn Fn(usize) -> u32 + Sync),
    options: &SearchOptions,
    progress: &dyn Progress,
) -> Result<Order> {
    const CLUSTERS: u32 = 16;
    const SLACK: Option<f32> = Some(1.0);
    let mut best = (f64::NEG_INFINITY, Order::default());
    for order in [Order::Evidence, Order::Expected] {
        let mut params = clusters_params(options.k as u32, CLUSTERS, SLACK, None);
        params.probe.order = order;
        let answers = index.search_each(queries, params, hide, options, progress)?;
        let found = search::recall(&answers.ids, answers.k, truth, truth_k);
        if found > best.0 {
            best = (found, order);
        }
    }
    Ok(best.1)
}

/// What is tried on this index: beams or numbers of clusters, and when to stop before.
fn settings(index: &Index, k: u32) -> (Vec<u32>, &'static [StopRule]) {
    match &index.clusters {
        Some(clusters) => {
            let most = clusters.directory.clusters();
            let mut counts: Vec<u32> = PROBES.iter().map(|&c| c.min(most)).collect();
            counts.dedup();
            (counts, &PROBE_RULES)
        }
        None => {
            let beam = |share: &f64| ((f64::from(k) * share).ceil() as u32 + SPARE).max(k);
            (LISTS.iter().map(beam).collect(), &STOP_RULES)
        }
    }
}

/// Without bounds that may err every vector that might count is read, which many clusters make very many: a rule for few.
fn is_needless(index: &Index, clusters: u32, rule: &StopRule) -> bool {
    const STRICT_MAX: u32 = 64;
    index.clusters.is_some() && rule.slack.is_none() && clusters > STRICT_MAX
}

/// Clusters that are tried.
const PROBES: [u32; 12] = [2, 4, 8, 16, 32, 64, 96, 128, 192, 256, 512, 1024];
/// Slack of bounds, and the share of fruitless clusters that ends the visits.
const PROBE_RULES: [StopRule; 5] = [
    StopRule { slack: None, patience_share: 0.0 },
    StopRule { slack: Some(1.5), patience_share: 0.5 },
    StopRule { slack: Some(1.5), patience_share: 0.15 },
    StopRule { slack: Some(1.0), patience_share: 0.15 },
    StopRule { slack: Some(1.0), patience_share: 0.05 },
];
/// Beam lengths that are tried, as multiples of k, on top of [`SPARE`].
const LISTS: [f64; 10] = [0.2, 0.8, 1.5, 2.4, 3.6, 5.5, 8.5, 14.0, 22.0, 36.0];
const SPARE: u32 = 8;
/// Neighbours looked for by all queries of a point together, at most, but by so many queries at least.
const QUERY_NEIGHBOURS: usize = 10_000;
const QUERIES_MIN: usize = 100;
/// Stop rules that are tried with each. What they bring is in `decisions/`.
const STOP_RULES: [StopRule; 3] = [
    StopRule { slack: None, patience_share: 0.0 },
    StopRule { slack: Some(0.5), patience_share: 0.25 },
    StopRule { slack: Some(0.0), patience_share: 0.2 },
];
/// Queries in flight: the counters do not depend on it, but the longest beams take 100 KB a query.
pub(crate) const IN_FLIGHT: usize = 16;
/// Nobody asks for more than this by recall.
const RECALL_ENOUGH: f64 = 0.995;
