//! Finds the clusters to visit: searches the navigation graph, then ranks the clusters of what it found (OrchANN
//! §5.2, §5.3).

use alloc::vec::Vec;

use super::scan::{estimate_limit, prune_candidates};
use super::{HybridIvf, Order, RankedCluster, Scratch, Unread, bound_estimator, likelihood};
use crate::exact::BoundEstimator;
use crate::kinds::kind::StepContext;
use crate::order::{from_order_key, order_key};
use crate::route::{lists_to_visit, to_centroid, walk};
use crate::search::{Beam, Progress};

/// The weight of sample hits in the ranking of clusters: the share of the distance between the nearest member found
/// in a cluster and the farthest member found that is taken off the distance to its centroid. A quarter ranks best on
/// mixtures and on text; see `decisions/`.
const EVIDENCE_WEIGHT: f32 = 0.25;

/// Centroids found for each cluster to visit, when clusters are ranked by expectation.
const EXPECTED_REACH: u32 = 2;

/// Searches the graph and ranks the clusters to visit, of which some members may be returned.
///
/// Centroids and members have a beam each: members lie farther from a query than centroids do, and would be crowded
/// out.
pub(super) fn navigate(cx: &mut StepContext<'_, HybridIvf>) {
    let mut beams =
        [core::mem::take(&mut cx.scratch.centroid_beam), core::mem::take(&mut cx.scratch.member_beam)];
    // The likeliest clusters have near centroids, but not the nearest of all.
    let reach = if cx.params.order == Order::Expected { EXPECTED_REACH } else { 1 };
    let clusters = cx.view.directory.clusters();
    let wanted = cx.params.visits_max(clusters).saturating_mul(reach).min(clusters);
    beams[0].reset(wanted as usize);
    beams[1].reset(cx.params.sample_hits as usize);
    cx.scratch.visited.clear(cx.view.nav.nodes());
    let mut nodes = core::mem::take(&mut cx.scratch.nav_nodes);
    let estimator = bound_estimator(cx);
    let mut visits = cx.params.visits_max(clusters);
    if has_few_clusters(cx, visits, &mut nodes) {
        score(cx, &estimator, &mut nodes, &mut beams);
    } else {
        walk(cx.view.nav, &mut nodes, &mut beams, |nodes, beams| score(cx, &estimator, nodes, beams));
        visits = complete(cx, &estimator, (visits, wanted), (&mut nodes, &mut beams));
    }
    cx.scratch.nav_nodes = nodes;
    keep_members(cx, &estimator, &beams[1]);
    rank_clusters(cx, (&estimator, visits), &beams);
    [cx.scratch.centroid_beam, cx.scratch.member_beam] = beams;
}

/// Keeps what may be returned of what the graph was searched for, and adds clusters until there are `wanted`. Returns
/// how many of them are visited.
fn complete(
    cx: &mut StepContext<'_, HybridIvf>,
    estimator: &BoundEstimator,
    (mut visits, mut wanted): (u32, u32),
    (nodes, beams): (&mut Vec<u32>, &mut [Beam; 2]),
) -> u32 {
    let clusters = cx.view.directory.clusters();
    let mut are_all_ranked = false;
    if let Some(sieve) = cx.base.sieve {
        let (directory, nprobe, k) = (cx.view.directory, (visits, cx.q.far_tenths), cx.q.top.k);
        let to_visit = |beam: &Beam| {
            let nearest = beam.entries().iter().map(|entry| directory.members_of(entry.id));
            lists_to_visit(sieve, nprobe, k, nearest)
        };
        let mut of_sieve = to_visit(&beams[0]);
        if of_sieve.is_none() {
            // Only the order of all clusters tells how far away the rows are.
            beams[0].reset(clusters as usize);
            rank_again(cx, estimator, (&mut *nodes, &mut *beams), |_, _| true);
            (of_sieve, are_all_ranked) = (to_visit(&beams[0]), true);
        }
        visits = visits.max(of_sieve.unwrap_or(u32::MAX)).min(clusters);
        wanted = wanted.max(visits);
        beams[0].retain(|cluster| has_rows(cx, cluster));
        beams[1].retain(|node| cx.may_return(cx.view.nav.ids[node as usize]));
    }
    if beams[0].entries().len() < wanted as usize && !are_all_ranked {
        // Some centroids cannot be reached in the graph, or have no member that may be returned.
        if cx.base.sieve.is_some() {
            beams[0].reset(wanted as usize);
            let sieved = |cluster: &u32, cx: &StepContext<'_, HybridIvf>| has_rows(cx, *cluster);
            rank_again(cx, estimator, (nodes, beams), sieved);
        } else {
            nodes.clear();
            nodes.extend(0..clusters);
            score(cx, estimator, nodes, beams);
        }
    }
    visits
}

/// Ranks clusters by their centroids, past the graph.
fn rank_again(
    cx: &mut StepContext<'_, HybridIvf>,
    estimator: &BoundEstimator,
    (nodes, beams): (&mut Vec<u32>, &mut [Beam; 2]),
    is_ranked: impl Fn(&u32, &StepContext<'_, HybridIvf>) -> bool,
) {
    nodes.clear();
    nodes.extend((0..cx.view.directory.clusters()).filter(|cluster| is_ranked(cluster, cx)));
    cx.scratch.visited.clear(cx.view.nav.nodes());
    score(cx, estimator, nodes, beams);
}

/// Whether all clusters with a row of the sieve are visited in any case. Collects them then: nothing is searched to
/// find them. An exact search of more rows than the graph has nodes is better off with the threshold that members give.
fn has_few_clusters(cx: &StepContext<'_, HybridIvf>, visits: u32, clusters: &mut Vec<u32>) -> bool {
    clusters.clear();
    let (Some(sieve), directory) = (cx.base.sieve, cx.view.directory) else { return false };
    if cx.params.exact && sieve.count() > cx.view.nav.nodes() {
        return false;
    }
    let mut next = sieve.next(0);
    while let Some(row) = next.filter(|_| clusters.len() <= visits as usize) {
        let cluster = directory.cluster_of(directory.list_of(row));
        next = sieve.next(directory.members_of(cluster).end.max(row.saturating_add(1)));
        clusters.push(cluster);
    }
    clusters.len() <= visits as usize
}

/// Whether some member of a cluster may be returned.
fn has_rows(cx: &StepContext<'_, HybridIvf>, cluster: u32) -> bool {
    cx.may_return_any(&cx.view.directory.members_of(cluster))
}

fn score(
    cx: &mut StepContext<'_, HybridIvf>,
    estimator: &BoundEstimator,
    nav_nodes: &mut Vec<u32>,
    beams: &mut [Beam; 2],
) {
    let (nav, size) = (cx.view.nav, cx.view.shape.code_bytes);
    let count = cx.view.directory.clusters();
    let Scratch { ids, query, distances, visited, .. } = &mut *cx.scratch;
    let (coded, wide) = (&query.coded, &query.wide);
    cx.q.stats.repeats += visited.keep_new(nav_nodes) as u64;
    // Centroids have no code; what the table returns for them is not used.
    ids.clear();
    ids.extend(nav_nodes.iter().map(|&node| node.wrapping_sub(count)));
    coded.distances(&nav.codes, ids, distances);
    cx.q.stats.code_comparisons += nav_nodes.len() as u64;
    for (&node, &key) in nav_nodes.iter().zip(distances.iter()) {
        let at = node as usize;
        let base = to_centroid(cx.base.metric, wide, cx.view.centroid(nav.cluster_of[at]));
        let (beam, distance) = if node < count {
            (&mut beams[0], base)
        } else {
            let cross = estimator.product(coded, key, nav.code(node - count, size));
            let bounds = estimator.by_code(base, nav.terms[at], cross, nav.radii[at]);
            if !cx.q.exists(nav.ids[at]) {
                continue;
            }
            (&mut beams[1], estimator.code_scale(bounds.estimate))
        };
        let order = order_key(distance);
        if order < beam.threshold() {
            beam.offer(order, node, Progress::Fresh);
        }
    }
}

/// Keeps the members found as candidates, whether their clusters are visited or not. They give a threshold before the
/// first read.
fn keep_members(cx: &mut StepContext<'_, HybridIvf>, estimator: &BoundEstimator, members: &Beam) {
    let (nav, size) = (cx.view.nav, cx.view.shape.code_bytes);
    let first = cx.view.directory.clusters();
    let Scratch { ids, query, distances, .. } = &mut *cx.scratch;
    let (coded, wide) = (&query.coded, &query.wide);
    ids.clear();
    ids.extend(members.entries().iter().map(|entry| entry.id - first));
    coded.distances(&nav.codes, ids, distances);
    for (entry, &key) in members.entries().iter().zip(distances.iter()) {
        let at = entry.id as usize;
        let base = to_centroid(cx.base.metric, wide, cx.view.centroid(nav.cluster_of[at]));
        let cross = estimator.product(coded, key, nav.code(entry.id - first, size));
        let bounds = estimator.by_code(base, nav.terms[at], cross, nav.radii[at]);
        cx.own.estimates.offer(bounds.estimate);
        let lower = if estimator.uses_codes() {
            cx.own.upper_bounds.offer(bounds.upper);
            bounds.lower
        } else {
            f32::NEG_INFINITY
        };
        let id = nav.ids[at];
        cx.own.navigated.push(id);
        cx.own.candidates.push(Unread { estimate: bounds.estimate, lower, id });
    }
    cx.own.navigated.sort_unstable();
    prune_candidates(cx);
}

/// Ranks clusters by [`Order`]. The number of sample hits is the evidence CP in OrchANN §5.3.
fn rank_clusters(
    cx: &mut StepContext<'_, HybridIvf>,
    (estimator, visits): (&BoundEstimator, u32),
    [centroids, members]: &[Beam; 2],
) {
    let order = cx.params.order;
    let threshold = estimator.code_scale(estimate_limit(cx));
    if order == Order::Expected && threshold < f32::INFINITY {
        return rank_by_expectation(cx, (estimator, threshold, visits), [centroids, members]);
    }
    let Scratch { ranking, query, .. } = &mut *cx.scratch;
    ranking.clear();
    for entry in centroids.entries() {
        if !cx.view.directory.lists_of(entry.id).is_empty() {
            let distance = from_order_key(entry.distance);
            ranking.push(RankedCluster { cluster: entry.id, sample_hits: 0, distance });
        }
    }
    if order != Order::Centroid {
        let far = members.entries().last().map_or(0.0, |last| from_order_key(last.distance));
        let beyond = ranking.last().map_or(f32::INFINITY, |last| last.distance);
        for entry in members.entries() {
            let cluster = cx.view.nav.cluster_of[entry.id as usize];
            let nearer = EVIDENCE_WEIGHT * (far - from_order_key(entry.distance)).max(0.0);
            match ranking.iter_mut().find(|v| v.cluster == cluster) {
                Some(entry) if entry.sample_hits == 0 && order != Order::SampleHits => {
                    (entry.sample_hits, entry.distance) = (1, entry.distance - nearer);
                }
                Some(entry) => entry.sample_hits += 1,
                None if order == Order::SampleHits => {
                    ranking.push(RankedCluster { cluster, sample_hits: 1, distance: beyond });
                }
                None => {
                    let base = to_centroid(cx.base.metric, &query.wide, cx.view.centroid(cluster));
                    ranking.push(RankedCluster { cluster, sample_hits: 1, distance: base - nearer });
                }
            }
        }
    }
    ranking.sort_unstable_by(|a, b| {
        let hits = b.sample_hits.cmp(&a.sample_hits);
        let by_hits = if order == Order::SampleHits { hits } else { core::cmp::Ordering::Equal };
        by_hits.then(a.distance.total_cmp(&b.distance)).then(a.cluster.cmp(&b.cluster))
    });
    ranking.truncate(visits as usize);
    cx.own.ranked.extend(ranking.iter().map(|v| v.cluster));
}

/// Ranks clusters by the number of members to expect nearer than the k-th of the members found.
fn rank_by_expectation(
    cx: &mut StepContext<'_, HybridIvf>,
    (estimator, threshold, visits): (&BoundEstimator, f32, u32),
    [centroids, members]: [&Beam; 2],
) {
    let Scratch { ranking, query, .. } = &mut *cx.scratch;
    ranking.clear();
    let mut expect = |cluster: u32, base: f32| {
        let count = cx.view.directory.members_of(cluster).len() as u32;
        if count > 0 {
            let cosine = likelihood::cosine(estimator, base, cx.view.spread(cluster), threshold);
            let distance = -likelihood::log_expected(count, cosine);
            ranking.push(RankedCluster { cluster, sample_hits: 0, distance });
        }
    };
    for entry in centroids.entries() {
        expect(entry.id, from_order_key(entry.distance));
    }
    for entry in members.entries() {
        let cluster = cx.view.nav.cluster_of[entry.id as usize];
        if centroids.entries().iter().all(|e| e.id != cluster) {
            expect(cluster, to_centroid(cx.base.metric, &query.wide, cx.view.centroid(cluster)));
        }
    }
    ranking.sort_unstable_by(|a, b| a.distance.total_cmp(&b.distance).then(a.cluster.cmp(&b.cluster)));
    ranking.dedup_by_key(|v| v.cluster);
    ranking.truncate(visits as usize);
    cx.own.ranked.extend(ranking.iter().map(|v| v.cluster));
}
