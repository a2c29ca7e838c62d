//! `hybrid-ivf`: OrchANN (Huan et al.): clusters of vectors on disk under a small memory budget.
//!
//! A *cluster* here is a k-means cell, as in the paper. It has one inverted list, several when it is divided, or a
//! graph of its own. Members are its vectors; a *record* is a vector with its id.
//!
//! route = [`crate::route::NavGraph`], in [`navigate`] · access = [`visit`] and [`scan`] for list codes,
//! [`local_graph`] for clusters that are graphs · verify = [`crate::exact::BoundEstimator`] before vectors are read,
//! [`rerank`] after

mod batch;
pub mod check;
pub mod learn;
mod likelihood;
mod local_graph;
mod navigate;
mod params;
mod rerank;
mod scan;
mod state;
mod trace;
mod view;
mod visit;
mod wire;

use alloc::vec::Vec;

use crate::access::CodedQuery;
use crate::codec::{Reader, Refused, Writer};
use crate::exact::{BoundEstimator, Bounds};
use crate::kinds::kind::{Carry, Kind, Ordered, StepContext};
use crate::search::{
    Beam, Budget, Candidate, IndexSize, Loss, Outcome, QueryStats, Read, ScoringMode, StoreId, Tag, Visited,
};
use crate::view::Base;

pub(crate) use batch::{Batch, Job};
pub use params::{MAX_LOCAL_LIST, MAX_PROBES, Order, Params};
pub use state::State;
pub(crate) use state::{LocalCodes, LocalSearch, QueuedLists, ReadKind, Scored, Unread, Visit};
pub use trace::{RankedCluster, ReadPurpose, ScannedList, Trace};
pub use view::{Pinned, Resident, SubLists, View};
pub use visit::CANDIDATES_MAX;

/// The store of all lists, records and adjacency lists: one file.
pub(crate) const FILE: StoreId = StoreId(0);

/// The kind itself.
pub(crate) struct HybridIvf;

/// Code distances of the query, and reusable buffers.
#[derive(Clone, Debug, Default)]
pub struct Scratch {
    query: CodedQuery,
    visited: Visited,
    ids: Vec<u32>,
    distances: Vec<u32>,
    /// Nodes that the navigation scores, and its beams of centroids and of sampled members.
    nav_nodes: Vec<u32>,
    centroid_beam: Beam,
    member_beam: Beam,
    /// Clusters with their sample hits and their rank, smaller first.
    ranking: Vec<RankedCluster>,
    /// The lists of a divided cluster, by the distance to their centroids.
    nearest_lists: Vec<(u32, u32)>,
    /// Edges of the expanded member of a local graph, to members not visited before.
    edges: Vec<local_graph::Edge>,
    /// Lists that are to be read next and are on other servers, best first.
    elsewhere: Vec<u32>,
    /// Candidates of one read of the re-ranking. Over servers: those that the round has not taken, those of it that can
    /// be read here, and those that are to be scored elsewhere.
    group: Vec<Unread>,
    left: Vec<Unread>,
    here: Vec<Unread>,
    remote: Vec<Unread>,
    /// Servers with the lists or members that they score; and what one has replied.
    targets: Vec<(u8, u32)>,
    scored: Vec<Scored>,
    /// The lists scanned, where a trace is kept.
    scanned: Option<Vec<ScannedList>>,
}

impl Kind for HybridIvf {
    type View<'a> = View<'a>;
    type Params = Params;
    type State = State;
    type Scratch = Scratch;

    fn is_valid(params: &Params, _: u32) -> bool {
        params.is_valid()
    }

    fn reset(state: &mut State, _: &Params, k: u32) {
        state.reset(k);
    }

    fn budget(view: &View<'_>) -> Budget {
        // An exact search may read every list, and every vector on its own.
        let most =
            view.directory.ids.last().copied().unwrap_or(0).saturating_add(view.directory.list_count());
        let usual = Budget::default();
        Budget { hops: usual.hops.max(most), reads: usual.reads.max(most), ..usual }
    }

    fn prepare(base: &Base<'_>, view: &View<'_>, query: &[u8], scratch: &mut Scratch) {
        scratch.query.set(base, view.coder, query);
    }

    fn step(cx: &mut StepContext<'_, Self>, arrived: Ordered<'_>) {
        if !cx.q.started {
            cx.q.started = true;
            navigate::navigate(cx);
        }
        cx.take_in(arrived, |cx, pending, bytes| match ReadKind::of(&pending.read)? {
            ReadKind::Lists { first, count } if cx.own.batch.awaits(pending.tag) => {
                batch::take(cx, pending.tag, (first, count), bytes)
            }
            ReadKind::Lists { first, count } => visit::take(cx, pending.tag, (first, count), bytes),
            ReadKind::Records { .. } => rerank::take(cx, pending, bytes),
            ReadKind::Run { first, count } => scan::take_run(cx, (first, count), bytes),
            ReadKind::Edges { .. } => local_graph::take(cx, pending.read.at.offset, bytes),
        });
        if cx.q.outcome != Outcome::Running {
            return;
        }
        let is_broken = core::mem::take(&mut cx.own.is_broken);
        if cx.own.batch.job != Job::None {
            return batch::choose_job(cx);
        }
        // A list of a batch is asked for again on its own.
        if is_broken && cx.own.batch.lists.is_empty() {
            begin_again(cx);
        }
        choose(cx);
    }

    /// Begins the query again after a lost read, whose lists are not known one by one.
    fn requeue(state: &mut State, _: &View<'_>, _: u32) -> bool {
        state.is_broken = true;
        true
    }

    fn job(state: &State, view: &View<'_>, tag: Tag, job: &mut State) {
        batch::job(state, view, tag, job);
    }

    fn forwards_jobs(params: &Params) -> bool {
        params.remote == ScoringMode::Forward
    }

    fn forward_jobs(params: &mut Params) {
        params.remote = ScoringMode::Forward;
    }

    fn is_job(state: &State) -> bool {
        state.batch.job != Job::None
    }

    fn uses_codes(state: &State) -> bool {
        state.batch.job != Job::Records
    }

    fn encode_scores(state: &State, w: &mut Writer<'_>) {
        batch::encode_scores(state, w);
    }

    fn take_scores(
        cx: &mut StepContext<'_, Self>,
        (tag, scorer): (Tag, u8),
        scores: Result<&mut Reader<'_>, Loss>,
    ) -> Result<(), Refused> {
        match scores {
            Ok(r) => batch::take_scores(cx, (tag, scorer), r),
            Err(loss) => {
                batch::lose_scores(cx, (tag, scorer), loss, false);
                Ok(())
            }
        }
    }

    fn check_read(_: &Base<'_>, view: &View<'_>, read: &Read, bytes: &[u8]) -> bool {
        view.check_read(read, bytes)
    }

    fn read_counter<'s>(stats: &'s mut QueryStats, read: &Read) -> Option<&'s mut u64> {
        match ReadKind::of(read)? {
            ReadKind::Edges { .. } => Some(&mut stats.edge_reads),
            ReadKind::Records { .. } | ReadKind::Run { .. } => Some(&mut stats.record_reads),
            ReadKind::Lists { .. } => None,
        }
    }

    fn size(base: &Base<'_>, view: &View<'_>) -> IndexSize {
        let directory = view.directory;
        IndexSize { nodes: base.nodes, units: directory.list_count(), clusters: directory.clusters() }
    }

    fn fits(state: &State, size: &IndexSize) -> bool {
        state.fits(size)
    }

    fn encode_params(params: &Params, version: u32, w: &mut Writer<'_>) {
        wire::encode_params(params, version, w);
    }

    fn decode_params(r: &mut Reader<'_>) -> Result<Params, Refused> {
        wire::decode_params(r)
    }

    fn encode(state: &State, _: (Carry, u32), w: &mut Writer<'_>, _: &mut Vec<Candidate>) {
        wire::encode(state, w);
    }

    fn decode(state: &mut State, params: &Params, k: u32, r: &mut Reader<'_>) -> Result<(), Refused> {
        wire::decode(state, params, k, r)
    }

    fn memory_bytes(state: &State) -> usize {
        state.memory_bytes()
    }
}

/// Begins a query again; its budget, its counters and the lists that were lost stay.
fn begin_again(cx: &mut StepContext<'_, HybridIvf>) {
    cx.q.io.clear();
    cx.q.top.hits.clear();
    cx.q.top.reported_distances.clear();
    cx.own.reset(cx.q.top.k);
    navigate::navigate(cx);
}

/// The bounds of one query.
fn bound_estimator(cx: &StepContext<'_, HybridIvf>) -> BoundEstimator {
    BoundEstimator::new(cx.base, &cx.scratch.query, cx.params.bounds, cx.params.bound_slack)
}

/// Scans while lists are left, then re-ranks the candidates; ends the query when none is left.
fn choose(cx: &mut StepContext<'_, HybridIvf>) {
    cx.scratch.elsewhere.clear();
    let kept = rerank::keep_round(cx);
    let chosen = kept.and_then(|()| {
        loop {
            let chosen = visit::choose(cx).and_then(|()| {
                // Without bounds a visit ends when its members are asked for. They decide whether the visits go on.
                let has_members = cx.params.bounds != Bounds::Off || cx.q.io.pending.is_empty();
                let has_scanned = !visit::is_scanning(cx) && cx.own.visits.is_empty() && has_members;
                let at_most = if has_scanned { 0 } else { visit::CANDIDATES_MAX };
                let may_read = has_scanned || cx.own.candidates.len() > at_most;
                if may_read { rerank::choose(cx, at_most) } else { Some(()) }
            });
            // All candidates may have been pruned, or be in RAM, before all lists are scanned.
            let waits = !cx.q.io.pending.is_empty() || !cx.scratch.elsewhere.is_empty();
            if chosen.is_none() || waits || !visit::is_scanning(cx) {
                break chosen;
            }
        }
    });
    if chosen.is_none() || (!cx.q.io.wants.is_empty() && cx.q.budget.hops == 0) {
        return cx.q.finish(Outcome::OutOfBudget);
    }
    let elsewhere = core::mem::take(&mut cx.scratch.elsewhere);
    if cx.q.io.pending.is_empty() && elsewhere.is_empty() {
        count_result_clusters(cx);
    }
    cx.end_round(&elsewhere);
    cx.scratch.elsewhere = elsewhere;
}

/// Counts the visited clusters that hold a result: those that a perfect choice would have visited.
fn count_result_clusters(cx: &mut StepContext<'_, HybridIvf>) {
    rerank::keep_results(cx);
    let directory = cx.view.directory;
    let found = &mut cx.scratch.ids;
    found.clear();
    found.extend(cx.own.results.iter().map(|result| directory.cluster_of(directory.list_of(result.id))));
    found.sort_unstable();
    found.dedup();
    let visited = cx.own.visited();
    found.retain(|cluster| visited.contains(cluster));
    cx.q.stats.result_clusters += found.len() as u64;
}
