//! The navigation graph: centroids and sampled members in RAM, each of which knows its cluster (OrchANN §5.2). The nodes nearest to a
//! query vote for the clusters to visit.
//!
//! A sampled member costs its code alone: like the codes of the lists, it is of what the member's centroid leaves, so that the distance to it is
//! that to the centroid, plus what the code adds.

use alloc::vec::Vec;

use stratann_kernel::Metric;
use stratann_kernel::distance::{dot_f16, l2_f16};

use crate::access::lists::drop_hopeless;
use crate::likelihood;
use crate::order::{from_order_key, order_key};
use crate::plan::{ClusterView, IndexView};
use crate::query::{Beam, Order, Progress, QueryState, Scratch, Survivor};
use crate::verify::bounds::Ruler;

/// Stands for no node, and for the member that a centroid is not.
pub const NONE: u32 = u32::MAX;

/// One version of the graph; never changed, but replaced as a whole.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NavGraph {
    /// The cluster of each node. The first nodes are the centroids, in their order.
    pub cluster_of: Vec<u32>,
    /// The member that each node is; [`NONE`] for a centroid.
    pub ids: Vec<u32>,
    /// What is added to the distance from the centroid: a code's ‖r̂‖² + 2⟨c, r̂⟩, for a centroid what its members lie from it, by the mean of
    /// the squares.
    pub terms: Vec<f32>,
    /// How far at most a node lies from what its code stands for.
    pub radii: Vec<f32>,
    /// The codes of the nodes that are members, in their order.
    pub codes: Vec<u8>,
    /// Most neighbours of a node.
    pub degree: u32,
    /// `degree` for each node, [`NONE`] from the last neighbour on.
    pub neighbours: Vec<u32>,
    /// Where walks begin.
    pub entry: u32,
    /// Nodes that no refresh removes: the first so many.
    pub bootstrap: u32,
    /// How hot each of the others is.
    pub scores: Vec<u32>,
}

impl NavGraph {
    /// Number of nodes.
    pub fn nodes(&self) -> u32 {
        self.ids.len() as u32
    }

    /// The neighbours of a node.
    pub fn list(&self, node: u32) -> &[u32] {
        let (at, degree) = (node as usize * self.degree as usize, self.degree as usize);
        let list = self.neighbours.get(at..at + degree).unwrap_or(&[]);
        &list[..list.iter().position(|&n| n == NONE).unwrap_or(degree)]
    }

    /// True when all numbers are within their ranges for `clusters` clusters of `members` members and codes of `code_bytes`; a graph from a file must
    /// be checked before use.
    pub fn is_consistent(&self, clusters: u32, members: u32, code_bytes: usize) -> bool {
        let n = self.ids.len();
        let c = clusters as usize;
        n >= c
            && c > 0
            && self.cluster_of.len() == n
            && self.terms.len() == n
            && self.radii.len() == n
            && self.codes.len() == (n - c) * code_bytes
            && Some(self.neighbours.len()) == n.checked_mul(self.degree as usize)
            && (self.entry as usize) < n
            && (c..=n).contains(&(self.bootstrap as usize))
            && self.scores.len() == n - self.bootstrap as usize
            && self.cluster_of[..c].iter().zip(0..).all(|(&cluster, i)| cluster == i)
            && self.cluster_of.iter().all(|&cluster| cluster < clusters)
            && self.ids[..c].iter().all(|&id| id == NONE)
            && self.ids[c..].iter().all(|&id| id < members)
            && self.neighbours.iter().all(|&m| m == NONE || (m as usize) < n)
            && self.terms.iter().chain(&self.radii).all(|x| x.is_finite())
    }

    /// Bytes held in memory.
    pub fn bytes(&self) -> usize {
        4 * (4 * self.ids.len() + self.neighbours.len() + self.scores.len()) + self.codes.len()
    }
}

/// The distance from the query to a centroid, on the scale of codes: squared l2 or minus the inner product.
pub(crate) fn to_centroid(metric: Metric, wide: &[f32], centroid: &[u8]) -> f32 {
    match metric {
        Metric::Ip => -dot_f16(wide, centroid),
        Metric::L2 | Metric::Cosine => l2_f16(wide, centroid),
    }
}

/// How much nearer a cluster is taken to be for each unit that its nearest member found is nearer than the farthest member found. On mixtures and on text
/// a quarter orders best; see `decisions/`.
const EVIDENCE_WEIGHT: f32 = 0.25;

/// Clusters that are looked at for each that is wanted, when the likeliest are.
const EXPECTED_REACH: u32 = 2;

/// Walks the graph and lists the clusters to visit, in order.
///
/// Centroids and members are kept apart on the way: members lie farther from a query than centroids do, and would be crowded out.
pub(crate) fn navigate(
    state: &mut QueryState,
    view: &IndexView<'_>,
    clusters: &ClusterView<'_>,
    scratch: &mut Scratch,
) {
    let mut walks = [core::mem::take(&mut scratch.head_beam), core::mem::take(&mut scratch.member_beam)];
    // The likeliest clusters are among those with near centroids, but not the nearest of all.
    let reach = if state.params.probe.order == Order::Expected { EXPECTED_REACH } else { 1 };
    let wanted = (state.params.probe.clusters * reach).min(clusters.directory.clusters());
    walks[0].reset(wanted as usize);
    walks[1].reset(state.params.probe.votes as usize);
    scratch.seen.clear(clusters.nav.nodes());
    scratch.heads.clear();
    scratch.heads.push(clusters.nav.entry);
    let ruler = Ruler::new(state, view, scratch);
    loop {
        score(state, view, clusters, scratch, &ruler, &mut walks);
        let mut fresh = None;
        for walk in &mut walks {
            if let Some(at) = walk.next_fresh(0) {
                walk.mark(at, Progress::Expanded);
                fresh = Some(walk.entries()[at].id);
                break;
            }
        }
        let Some(node) = fresh else { break };
        scratch.heads.clear();
        scratch.heads.extend_from_slice(clusters.nav.list(node));
    }
    let count = clusters.directory.clusters();
    if walks[0].entries().len() < wanted as usize {
        // Some that are wanted cannot be reached.
        scratch.heads.clear();
        scratch.heads.extend(0..count);
        score(state, view, clusters, scratch, &ruler, &mut walks);
    }
    keep_members(state, view, clusters, scratch, &ruler, &walks[1]);
    order_clusters(state, view, clusters, scratch, &ruler, &walks);
    [scratch.head_beam, scratch.member_beam] = walks;
}

fn score(
    state: &mut QueryState,
    view: &IndexView<'_>,
    clusters: &ClusterView<'_>,
    scratch: &mut Scratch,
    ruler: &Ruler,
    walks: &mut [Beam; 2],
) {
    let nav = clusters.nav;
    let count = clusters.directory.clusters();
    state.stats.repeats += scratch.seen.keep_new(&mut scratch.heads) as u64;
    let Scratch { heads, ids, table, distances, wide, .. } = scratch;
    // Centroids have no code; the table answers nonsense for them, which is not looked at.
    ids.clear();
    ids.extend(heads.iter().map(|&node| node.wrapping_sub(count)));
    table.distances(&nav.codes, ids, distances);
    state.stats.code_comparisons += heads.len() as u64;
    for (&node, &code_distance) in heads.iter().zip(distances.iter()) {
        let at = node as usize;
        let base = to_centroid(view.metric, wide, clusters.centroid(nav.cluster_of[at]));
        let (walk, distance) = if node < count {
            (&mut walks[0], base)
        } else {
            let span = ruler.by_code(base, nav.terms[at], table.to_float(code_distance), nav.radii[at]);
            if nav.ids[at] == state.params.exclude {
                continue;
            }
            (&mut walks[1], ruler.code_scale(span.estimate))
        };
        let key = order_key(distance);
        if key < walk.threshold() {
            walk.offer(key, node, Progress::Fresh);
        }
    }
}

/// The members found may be among the best themselves: they are looked at whether their clusters are visited or not, and give a first threshold before
/// the first read.
fn keep_members(
    state: &mut QueryState,
    view: &IndexView<'_>,
    clusters: &ClusterView<'_>,
    scratch: &mut Scratch,
    ruler: &Ruler,
    members: &Beam,
) {
    let nav = clusters.nav;
    let first = clusters.directory.clusters();
    let Scratch { ids, table, distances, wide, .. } = scratch;
    ids.clear();
    ids.extend(members.entries().iter().map(|entry| entry.id - first));
    table.distances(&nav.codes, ids, distances);
    for (entry, &code_distance) in members.entries().iter().zip(distances.iter()) {
        let at = entry.id as usize;
        let base = to_centroid(view.metric, wide, clusters.centroid(nav.cluster_of[at]));
        let span = ruler.by_code(base, nav.terms[at], table.to_float(code_distance), nav.radii[at]);
        state.probing.estimates.offer(span.estimate);
        let floor = if ruler.uses_codes() {
            state.probing.ceilings.offer(span.ceiling);
            span.floor
        } else {
            f32::NEG_INFINITY
        };
        let id = nav.ids[at];
        state.probing.known.push(id);
        state.probing.survivors.push(Survivor { estimate: span.estimate, bound: floor, id });
    }
    state.probing.known.sort_unstable();
    drop_hopeless(state);
}

/// Lists clusters by the distance to their centroids, less what the members found say for them; or by the number of these (the evidence CP in OrchANN
/// §5.3), or by the centroids alone.
fn order_clusters(
    state: &mut QueryState,
    view: &IndexView<'_>,
    clusters: &ClusterView<'_>,
    scratch: &mut Scratch,
    ruler: &Ruler,
    [centroids, members]: &[Beam; 2],
) {
    let order = state.params.probe.order;
    let threshold = ruler.code_scale(state.probing.estimates.kth());
    if order == Order::Expected && threshold < f32::INFINITY {
        return order_by_expectation(
            state,
            view,
            clusters,
            scratch,
            (ruler, threshold),
            [centroids, members],
        );
    }
    let votes = &mut scratch.votes;
    votes.clear();
    for entry in centroids.entries() {
        if !clusters.directory.lists_of(entry.id).is_empty() {
            votes.push((entry.id, 0, from_order_key(entry.distance)));
        }
    }
    if order != Order::Centroid {
        let far = members.entries().last().map_or(0.0, |last| from_order_key(last.distance));
        let beyond = votes.last().map_or(f32::INFINITY, |last| last.2);
        for entry in members.entries() {
            let cluster = clusters.nav.cluster_of[entry.id as usize];
            let nearer = EVIDENCE_WEIGHT * (far - from_order_key(entry.distance)).max(0.0);
            match votes.iter_mut().find(|v| v.0 == cluster) {
                Some(vote) if vote.1 == 0 && order != Order::Votes => {
                    (vote.1, vote.2) = (1, vote.2 - nearer);
                }
                Some(vote) => vote.1 += 1,
                None => votes.push((cluster, 1, beyond - if order == Order::Votes { 0.0 } else { nearer })),
            }
        }
    }
    votes.sort_unstable_by(|a, b| {
        let by_votes = if order == Order::Votes { b.1.cmp(&a.1) } else { core::cmp::Ordering::Equal };
        by_votes.then(a.2.total_cmp(&b.2)).then(a.0.cmp(&b.0))
    });
    votes.truncate(state.params.probe.clusters as usize);
    state.probing.clusters.extend(votes.iter().map(|v| v.0));
}

/// Lists clusters by how many of their members are to be expected within what the k-th of the members found needs.
fn order_by_expectation(
    state: &mut QueryState,
    view: &IndexView<'_>,
    clusters: &ClusterView<'_>,
    scratch: &mut Scratch,
    (ruler, threshold): (&Ruler, f32),
    [centroids, members]: [&Beam; 2],
) {
    let Scratch { votes, wide, .. } = scratch;
    votes.clear();
    let mut expect = |cluster: u32, base: f32| {
        let count = clusters.directory.members_of(cluster).len() as u32;
        if count > 0 {
            let cosine = ruler.cosine(base, clusters.spread(cluster), threshold);
            votes.push((cluster, 0, -likelihood::log_expected(count, cosine)));
        }
    };
    for entry in centroids.entries() {
        expect(entry.id, from_order_key(entry.distance));
    }
    for entry in members.entries() {
        let cluster = clusters.nav.cluster_of[entry.id as usize];
        if centroids.entries().iter().all(|e| e.id != cluster) {
            expect(cluster, to_centroid(view.metric, wide, clusters.centroid(cluster)));
        }
    }
    votes.sort_unstable_by(|a, b| a.2.total_cmp(&b.2).then(a.0.cmp(&b.0)));
    votes.dedup_by_key(|v| v.0);
    votes.truncate(state.params.probe.clusters as usize);
    state.probing.clusters.extend(votes.iter().map(|v| v.0));
}
