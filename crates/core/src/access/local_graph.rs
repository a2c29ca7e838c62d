//! A walk through a cluster that is a graph of its own: by codes, which lie in RAM, along edges, which are read (OrchANN §5.1, §5.3).
//!
//! Where the walk goes depends on codes and edges alone, so that no bound changes it: a member that a bound discards is never read, but its
//! edges are followed like those of any other.

use super::lists::{bring, drop_hopeless, weigh};
use crate::format::edges::Edges;
use crate::format::inverted_list::ListCodes;
use crate::plan::{ClusterView, IndexView};
use crate::query::{Candidate, Mode, Progress, QueryState, Reading, Scratch, Survivor, Walk};
use crate::route::{order_key, to_centroid};
use crate::verify::bounds::{Ruler, Span};

/// Length of the beam where all that is met lies farther than what other clusters have: so much of the whole beam, and no less than this.
const LEAD_SHARE: usize = 8;
const LEAD_LEAST: usize = 8;

/// Nothing is known of the way to a member.
const ANY_LENGTH: (f32, f32) = (0.0, f32::INFINITY);

/// What became of a walk.
pub(crate) enum Next {
    /// Edges were asked for.
    Asked,
    /// It goes on when what is under way has come.
    Waits,
    /// No member of the beam is left whose edges were not followed.
    Ended,
}

/// Whether a cluster has edges, and all of its codes are at hand.
pub(crate) fn can_walk(clusters: &ClusterView<'_>, cluster: u32) -> bool {
    clusters.directory.has_edges(cluster)
        && clusters.directory.lists_of(cluster).all(|list| clusters.resident_head(list).is_some())
}

/// Begins at the members that the navigation found, and at the cluster's entry.
pub(crate) fn begin(
    state: &mut QueryState,
    view: &IndexView<'_>,
    clusters: &ClusterView<'_>,
    scratch: &mut Scratch,
    cluster: u32,
) -> Option<()> {
    let members = clusters.directory.members_of(cluster);
    let list = state.params.probe.local_list.max(state.params.k);
    state.probing.walk.begin(cluster, members.len() as u32, list as usize);
    if members.is_empty() {
        return Some(());
    }
    let walk = Walking::new(state, view, clusters, scratch, cluster);
    let known = &state.probing.known;
    let known =
        known.partition_point(|&id| id < members.start)..known.partition_point(|&id| id < members.end);
    for at in known {
        // What it says of all was noted when it was found.
        let number = state.probing.known[at] - members.start;
        let span = walk.span(clusters, scratch, number)?.0;
        state.probing.walk.meet(number)?;
        offer(state, number, span.estimate);
        state.stats.code_comparisons += 1;
        scratch.note_met(cluster, 1, 0, false);
    }
    let mut entry = clusters.directory.entries[cluster as usize];
    if members.start + entry == state.params.exclude {
        entry = (entry + 1) % members.len() as u32;
    }
    scratch.edges.clear();
    if state.probing.walk.meet(entry)? {
        scratch.edges.push((entry, ANY_LENGTH));
    }
    walk.score(state, clusters, scratch, None)
}

/// Asks for the edges of the nearest members whose edges were not followed, with those of others of the beam that lie in the same pages.
pub(crate) fn choose(
    state: &mut QueryState,
    view: &IndexView<'_>,
    clusters: &ClusterView<'_>,
) -> Option<Next> {
    let room = match state.params.mode {
        // What else is under way must not decide where the walk goes.
        Mode::Barrier if !state.outstanding.is_empty() => 0,
        _ => (state.params.width as usize).saturating_sub(state.outstanding.len()),
    };
    let cluster = state.probing.walk.cluster;
    let mut asked = false;
    for _ in 0..room {
        let Some(at) = state.probing.walk.beam.next_fresh(0) else { break };
        if !is_worthwhile(&state.probing.walk, at) {
            break;
        }
        let page_of = |number: u32| clusters.directory.edges_at(cluster, number).first;
        let walk = &mut state.probing.walk;
        let page = page_of(walk.beam.entries()[at].id);
        for at in at..walk.beam.entries().len() {
            let entry = walk.beam.entries()[at];
            if entry.progress == Progress::Fresh && page_of(entry.id) == page && is_worthwhile(walk, at) {
                walk.beam.mark(at, Progress::Awaited);
            }
        }
        state.fetch_as(view, page, 1, Reading::Edges)?;
        asked = true;
    }
    let waits = room == 0 || state.outstanding.iter().any(|o| o.reading == Reading::Edges);
    Some(match (asked, waits) {
        (true, _) => Next::Asked,
        (false, true) => Next::Waits,
        (false, false) => {
            state.probing.walk.is_on = false;
            Next::Ended
        }
    })
}

/// Whether the edges of a candidate are to be followed: the nearest of a beam always, so that the walk comes to the part of the cluster that is
/// nearest; all others as long as they are among the nearest of all clusters that were walked through.
fn is_worthwhile(walk: &Walk, at: usize) -> bool {
    let is_near = |e: &Candidate| e.distance <= order_key(walk.nearest.kth());
    at < LEAD_LEAST.max(walk.beam.capacity() / LEAD_SHARE) || walk.beam.entries().get(at).is_some_and(is_near)
}

fn offer(state: &mut QueryState, number: u32, estimate: f32) {
    state.probing.walk.nearest.offer(estimate);
    state.probing.walk.beam.offer(order_key(estimate), number, Progress::Fresh);
}

/// Follows the edges of all members of the beam that lie in a page that arrived.
pub(crate) fn take(
    state: &mut QueryState,
    view: &IndexView<'_>,
    clusters: &ClusterView<'_>,
    scratch: &mut Scratch,
    page: u32,
    bytes: &[u8],
) -> Option<()> {
    let cluster = state.probing.walk.cluster;
    let walk = Walking::new(state, view, clusters, scratch, cluster);
    loop {
        let place = |number: u32| clusters.directory.edges_at(cluster, number);
        let is_next = |(at, e): (usize, &Candidate)| {
            let is_due = match e.progress {
                Progress::Fresh => is_worthwhile(&state.probing.walk, at),
                Progress::Awaited => true,
                Progress::Expanded => false,
            };
            is_due && place(e.id).first == page
        };
        let Some(at) = state.probing.walk.beam.entries().iter().enumerate().position(is_next) else { break };
        let number = state.probing.walk.beam.entries()[at].id;
        state.probing.walk.beam.mark(at, Progress::Expanded);
        let own = bytes.get(place(number).skip as usize..)?;
        let edges = Edges::verify(clusters.directory.degree as usize, walk.first + number, own)?;
        state.stats.expanded += 1;
        scratch.edges.clear();
        for edge in edges.neighbours() {
            if state.probing.walk.meet(edge.0)? {
                scratch.edges.push(edge);
            } else {
                state.stats.repeats += 1;
            }
        }
        let pivot =
            if walk.ruler.uses_pivots() { Some(walk.pivot(state, clusters, scratch, number)?) } else { None };
        walk.score(state, clusters, scratch, pivot.as_ref())?;
    }
    drop_hopeless(state);
    Some(())
}

/// What all members of the cluster that is walked through have in common.
struct Walking {
    ruler: Ruler,
    cluster: u32,
    /// Id of the cluster's first member.
    first: u32,
    /// The query's distance to the centroid.
    base: f32,
}

impl Walking {
    fn new(
        state: &QueryState,
        view: &IndexView<'_>,
        clusters: &ClusterView<'_>,
        scratch: &Scratch,
        cluster: u32,
    ) -> Walking {
        Walking {
            ruler: Ruler::new(state, view, scratch),
            cluster,
            first: clusters.directory.members_of(cluster).start,
            base: to_centroid(view.metric, &scratch.wide, clusters.centroid(cluster)),
        }
    }

    /// The head with a member, and its slot there.
    fn head<'a>(&self, clusters: &ClusterView<'a>, number: u32) -> Option<(ListCodes<'a>, usize)> {
        let id = self.first + number;
        let list = clusters.directory.list_of(id);
        let head = ListCodes::open(&clusters.shape, list, clusters.resident_head(list)?)?;
        Some((head, (id - clusters.directory.ids[list as usize]) as usize))
    }

    /// What the code of a member says of its distance, and the range of its distance to the centroid.
    fn span(&self, clusters: &ClusterView<'_>, scratch: &Scratch, number: u32) -> Option<(Span, (f32, f32))> {
        let (head, slot) = self.head(clusters, number)?;
        let size = clusters.shape.code_bytes;
        let (term, radius, from_centroid) = head.member(slot)?;
        let code = scratch.table.distance(head.codes().get(slot * size..(slot + 1) * size)?);
        Some((self.ruler.by_code(self.base, term, scratch.table.to_float(code), radius), from_centroid))
    }

    /// The distance of a member whose edges are followed, as far as it is known: exactly where it is a result or was one. What lies in RAM must not
    /// change it.
    fn pivot(
        &self,
        state: &mut QueryState,
        clusters: &ClusterView<'_>,
        scratch: &Scratch,
        number: u32,
    ) -> Option<Span> {
        let id = self.first + number;
        if let Some(&(_, distance)) = state.probing.read.iter().find(|r| r.0 == id) {
            return Some(self.ruler.exactly(self.base, distance));
        }
        self.span(clusters, scratch, number).map(|s| s.0)
    }

    /// Looks at the codes of the members in `scratch.edges`, met from one whose distance is within `pivot`. All come into the beam; those that
    /// may be among the best become survivors.
    fn score(
        &self,
        state: &mut QueryState,
        clusters: &ClusterView<'_>,
        scratch: &mut Scratch,
        pivot: Option<&Span>,
    ) -> Option<()> {
        let Scratch { edges, ids, table, distances, .. } = scratch;
        let (met, before, mut fruitful) = (edges.len() as u32, state.probing.survivors.len(), false);
        state.stats.code_comparisons += u64::from(met);
        let mut rest = edges.as_slice();
        while let Some(&(number, _)) = rest.first() {
            // Those of one list at once; neighbours ascend.
            let (head, slot) = self.head(clusters, number)?;
            let start = self.first + number - slot as u32;
            let slots = rest.iter().map(|e| (self.first + e.0).wrapping_sub(start));
            ids.clear();
            ids.extend(slots.take_while(|&slot| (slot as usize) < head.count()));
            table.distances(head.codes(), ids, distances);
            let (run, others) = rest.split_at_checked(ids.len().max(1))?;
            for ((edge, &slot), &code) in run.iter().zip(ids.iter()).zip(distances.iter()) {
                let (term, radius, from_centroid) = head.member(slot as usize)?;
                let span = self.ruler.by_code(self.base, term, table.to_float(code), radius);
                fruitful |= self.meet(state, edge, &span, from_centroid, pivot);
            }
            rest = others;
        }
        let kept = state.probing.survivors.len() - before;
        scratch.note_met(self.cluster, met, kept as u32, fruitful);
        Some(())
    }

    /// Whether it is among the best so far.
    fn meet(
        &self,
        state: &mut QueryState,
        &(number, length): &(u32, (f32, f32)),
        span: &Span,
        from_centroid: (f32, f32),
        pivot: Option<&Span>,
    ) -> bool {
        let id = self.first + number;
        if id == state.params.exclude {
            return false;
        }
        offer(state, number, span.estimate);
        let mut by_pivot = f32::NEG_INFINITY;
        if self.ruler.uses_pivots() {
            by_pivot = self.ruler.by_centroid(self.base, from_centroid);
            by_pivot = pivot.map_or(by_pivot, |pivot| by_pivot.max(self.ruler.by_edge(pivot, length)));
        }
        let (is_among_best, floor) = weigh(state, &self.ruler, span, by_pivot);
        if is_among_best {
            bring(state, self.cluster);
        }
        if let Some(bound) = floor {
            state.probing.survivors.push(Survivor { estimate: span.estimate, bound, id });
        }
        is_among_best
    }
}
