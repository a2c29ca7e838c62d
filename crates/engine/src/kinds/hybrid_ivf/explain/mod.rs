//! The trace of one `hybrid-ivf` query, for `explain`: the clusters that it visited, the reads, and what they changed.

pub mod plan;

use std::collections::HashMap;
use std::sync::Arc;

use serde::Serialize;
use stratann_core::PAGE;
use stratann_core::format::directory::LocalKind;
use stratann_core::plan::hybrid_ivf::{self, RankedCluster, ReadPurpose, View};
use stratann_core::plan::{IndexView, KindView};
use stratann_core::query::{
    Arrival, Loss, Outcome, Params, QueryState, QueryStats, Read, Scratch, Step, Tag, outcome,
};
use stratann_kernel::Metric;

use super::open::ListIndex;
use super::snapshot::Snapshot;
use crate::base::Base;
use crate::exec::failure;

/// One cluster that was visited.
#[derive(Clone, Debug, Default, Serialize)]
pub struct VisitTrace {
    /// Its number.
    pub cluster: u32,
    /// Its local index: `flat`, `graph` or `ivf`.
    pub kind: &'static str,
    /// Its members.
    pub members: u64,
    /// Its lists.
    pub lists: usize,
    /// From the query to its centroid, on the scale of exact distances.
    pub centroid_distance: f32,
    /// How near it was taken to be: that, less what members found by the navigation say for it.
    pub ranked_distance: f32,
    /// Members found that were counted for it.
    #[serde(rename = "votes")]
    pub sample_hits: u32,
    /// Lists that were looked through.
    pub lists_scanned: u32,
    /// Of them, those whose codes lay in RAM.
    pub lists_in_ram: u32,
    /// Members looked at.
    pub scanned: u64,
    /// Of them, those that no bound discarded at once.
    pub kept: u64,
    /// Reads for it, those of candidates not counted.
    pub reads: u64,
    /// Pages of 4 KiB in them.
    pub pages: u64,
    /// Whether it had a member among the best so far, by the codes.
    pub fruitful: bool,
    /// Results that are its members; `None` without bounds, where the members that were read are not recorded.
    pub results: Option<usize>,
}

/// What a read was for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ReadFor {
    /// Codes of lists, with their vectors where these follow.
    Lists {
        /// Their cluster.
        cluster: u32,
        /// How many.
        lists: u32,
    },
    /// Edges of the graph of a cluster.
    Edges {
        /// The cluster.
        cluster: u32,
    },
    /// Vectors that no bound discarded.
    #[serde(rename = "survivors")]
    Candidates {
        /// How many.
        vectors: u32,
    },
    /// Vectors of a list one after another, because bounds are off.
    Run {
        /// Their cluster.
        cluster: u32,
        /// How many.
        vectors: u32,
    },
    /// Anything else.
    Other,
}

/// One read.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct PageRead {
    /// Where it begins in the file of lists, bytes.
    pub offset: u64,
    /// Pages of 4 KiB.
    pub pages: u32,
    /// What for.
    #[serde(rename = "what")]
    pub purpose: ReadFor,
}

/// One round: its reads, and what they changed.
#[derive(Clone, Debug, Serialize)]
pub struct Round {
    /// What was asked for together.
    pub reads: Vec<PageRead>,
    /// Clusters whose visits had begun by then.
    pub clusters: usize,
    /// Codes compared.
    pub code_comparisons: u64,
    /// Vectors compared in full.
    pub scored: u64,
    /// Vectors discarded by a bound.
    pub pruned: u64,
    /// Vectors that may still be among the best and have not been read.
    #[serde(rename = "survivors")]
    pub candidates: usize,
    /// Results so far.
    pub results: usize,
    /// Distance of the k-th result; `None` as long as there are fewer.
    pub kth_distance: Option<f32>,
}

/// Reads of one sort.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ReadSum {
    /// Reads.
    pub reads: u64,
    /// Pages of 4 KiB in them.
    pub pages: u64,
}

/// The whole way of one query.
#[derive(Clone, Debug, Serialize)]
pub struct ListTrace {
    /// Results wanted.
    pub k: u32,
    /// Clusters that may be visited.
    pub nprobe: u32,
    /// Share of them, one after another without a gain, that ends the visits; `None` when that is off.
    pub early_stop: Option<f32>,
    /// How many that is.
    pub patience: Option<f32>,
    /// Slack of the bounds, standard errors; `None` for bounds that hold for certain.
    pub stop_slack: Option<f32>,
    /// What decides which cluster comes first.
    pub order: &'static str,
    /// Bounds that discard vectors before they are read.
    pub bounds: &'static str,
    /// Lists that are scanned of a divided cluster, at most.
    pub local_lists: u32,
    /// Nodes of the navigation graph that was used.
    pub nav_nodes: u32,
    /// Of them, those that were learned from queries.
    #[serde(rename = "nav_learnt")]
    pub nav_learned: u32,
    /// Codes and centroids compared on the way through it.
    pub nav_comparisons: u64,
    /// The clusters that were visited, in their order.
    pub visits: Vec<VisitTrace>,
    /// Reads of codes, and of edges of graphs.
    pub list_reads: ReadSum,
    /// Reads of vectors that no bound discarded.
    #[serde(rename = "survivor_reads")]
    pub candidate_reads: ReadSum,
    /// Results that the navigation found and whose clusters were not visited.
    #[serde(rename = "results_elsewhere")]
    pub results_unvisited: Option<usize>,
    /// The rounds.
    pub rounds: Vec<Round>,
    /// Why it ended.
    pub stop: String,
    /// Whether the results are what was asked for.
    pub complete: bool,
    /// External ids, closest first.
    pub ids: Vec<u64>,
    /// Exact distances.
    pub distances: Vec<f32>,
    /// Sums over the query.
    #[serde(skip)]
    pub stats: QueryStats,
}

/// Runs `query` on its own, and records it. Of learned state the newest is used. A read that fails ends the trace,
/// which names it.
pub(crate) fn explain(base: &Base, lists: &ListIndex, query: &[u8], params: Params) -> ListTrace {
    let snapshot = lists.learning.newest();
    let base_view = view(base, lists, &snapshot);
    let state = QueryState::new(params, base_view.budget());
    let mut scratch = Scratch::default();
    scratch.prepare(&base_view, query);
    scratch.trace_lists();
    let tracer = Tracer { base, lists, snapshot: snapshot.clone(), state, scratch, sums: Sums::default() };
    tracer.run(&params)
}

/// Reads by what they were for.
#[derive(Default)]
struct Sums {
    lists: ReadSum,
    candidates: ReadSum,
    of_cluster: HashMap<u32, ReadSum>,
}

impl Sums {
    fn add(&mut self, read: &PageRead) {
        let add = |sum: &mut ReadSum| {
            sum.reads += 1;
            sum.pages += u64::from(read.pages);
        };
        match read.purpose {
            ReadFor::Lists { cluster, .. } | ReadFor::Run { cluster, .. } | ReadFor::Edges { cluster } => {
                add(&mut self.lists);
                add(self.of_cluster.entry(cluster).or_default());
            }
            ReadFor::Candidates { .. } | ReadFor::Other => add(&mut self.candidates),
        }
    }
}

/// Runs one query, round by round.
struct Tracer<'a> {
    base: &'a Base,
    lists: &'a ListIndex,
    snapshot: Arc<Snapshot>,
    state: QueryState,
    scratch: Scratch,
    sums: Sums,
}

impl Tracer<'_> {
    fn view(&self) -> IndexView<'_> {
        view(self.base, self.lists, &self.snapshot)
    }

    fn run(mut self, params: &Params) -> ListTrace {
        let mut step = self.step(&[]);
        let ranked: Vec<RankedCluster> =
            self.scratch.hybrid_ivf().map_or_else(Vec::new, |s| s.ranked().collect());
        let nav_comparisons = self.state.stats().code_comparisons.saturating_sub(self.compared_in_clusters());
        let mut rounds = Vec::new();
        while step == Step::Wait {
            let (round, next) = self.round();
            rounds.push(round);
            step = next;
        }
        let view = self.view();
        let nav = view.kind.hybrid_ivf().map(|c| (c.nav.nodes(), c.nav.nodes() - c.nav.bootstrap));
        let visits = view.kind.hybrid_ivf().map_or_else(Vec::new, |c| self.visits(&view, c, &ranked));
        let own = params.kind.hybrid_ivf().copied().unwrap_or_else(|| hybrid_ivf::Params::new(1));
        let patience = own.fruitless_limit(ranked.len());
        let results = self.state.results();
        let known: Option<usize> = visits.iter().map(|v| v.results).sum();
        ListTrace {
            k: params.k,
            nprobe: own.nprobe,
            early_stop: Some(own.early_stop).filter(|s| s.is_finite()),
            patience: Some(patience).filter(|p| p.is_finite()),
            stop_slack: Some(own.bound_slack).filter(|s| s.is_finite()),
            order: own.order.name(),
            bounds: own.bounds.name(),
            local_lists: own.local_lists,
            nav_nodes: nav.map_or(0, |n| n.0),
            nav_learned: nav.map_or(0, |n| n.1),
            nav_comparisons,
            list_reads: self.sums.lists,
            candidate_reads: self.sums.candidates,
            results_unvisited: known.map(|k| results.len().saturating_sub(k)),
            rounds,
            stop: self.stop(patience, ranked.len()),
            complete: self.state.outcome() == Outcome::Complete,
            ids: results.iter().map(|h| h.external_id).collect(),
            distances: results.iter().map(|h| h.distance).collect(),
            stats: *self.state.stats(),
            visits,
        }
    }

    /// Codes compared so far in the clusters visited: members, and centroids of lists.
    fn compared_in_clusters(&self) -> u64 {
        let members: u64 = self.scanned().iter().map(|s| u64::from(s.members)).sum();
        let directory = &self.lists.tables.directory;
        let lists = |&cluster: &u32| match directory.kinds[cluster as usize] {
            LocalKind::Ivf => directory.lists_of(cluster).len() as u64,
            LocalKind::Flat | LocalKind::Graph => 0,
        };
        members + self.visited().iter().map(lists).sum::<u64>()
    }

    fn scanned(&self) -> &[hybrid_ivf::ScannedList] {
        self.scratch.hybrid_ivf().map_or(&[], hybrid_ivf::Scratch::scanned)
    }

    fn visited(&self) -> &[u32] {
        self.state.hybrid_ivf().map_or(&[], |trace| trace.visited())
    }

    fn step(&mut self, arrivals: &[Arrival<'_>]) -> Step {
        let view = view(self.base, self.lists, &self.snapshot);
        self.state.step(&view, &mut self.scratch, arrivals)
    }

    /// Reads what the last step asked for, and steps.
    fn round(&mut self) -> (Round, Step) {
        let wants: Vec<Tag> = self.state.fetches().map(|(tag, _)| tag).collect();
        let (mut reads, mut held) = (Vec::new(), Vec::new());
        for tag in wants {
            let Some(read) = self.state.read_of(tag) else { continue };
            held.push((tag, self.fetch(&read)));
            let (offset, pages) = (read.at.first_page() * PAGE as u64, read.at.pages() as u32);
            let read = PageRead { offset, pages, purpose: self.purpose(tag) };
            self.sums.add(&read);
            reads.push(read);
        }
        let before = *self.state.stats();
        let arrivals: Vec<Arrival<'_>> =
            held.iter().map(|(tag, read)| Arrival { tag: *tag, what: outcome(read) }).collect();
        let step = self.step(&arrivals);
        let (after, results) = (self.state.stats(), self.state.results());
        let round = Round {
            reads,
            clusters: self.visited().len(),
            code_comparisons: after.code_comparisons - before.code_comparisons,
            scored: after.full_comparisons - before.full_comparisons,
            pruned: after.pruned - before.pruned,
            candidates: self.state.hybrid_ivf().map_or(0, |trace| trace.candidates()),
            results: results.len(),
            kth_distance: results.get(self.state.params().k as usize - 1).map(|h| h.distance),
        };
        (round, step)
    }

    fn purpose(&self, tag: Tag) -> ReadFor {
        let directory = &self.lists.tables.directory;
        match self.state.hybrid_ivf().and_then(|trace| trace.purpose(tag)) {
            Some(ReadPurpose::Lists(first, lists)) => {
                ReadFor::Lists { cluster: directory.cluster_of(first), lists }
            }
            Some(ReadPurpose::Candidates(vectors)) => ReadFor::Candidates { vectors },
            Some(ReadPurpose::Run(first, vectors)) => {
                ReadFor::Run { cluster: directory.cluster_of(directory.list_of(first)), vectors }
            }
            Some(ReadPurpose::Edges(cluster)) => ReadFor::Edges { cluster },
            None => ReadFor::Other,
        }
    }

    fn fetch(&self, read: &Read) -> std::result::Result<Vec<u8>, Loss> {
        let mut bytes = Vec::new();
        self.base.read_extent(&[], read.at, &mut bytes)?;
        self.view().verify(read, &bytes).map(|()| bytes)
    }

    fn visits(&self, view: &IndexView<'_>, clusters: &View<'_>, ranked: &[RankedCluster]) -> Vec<VisitTrace> {
        // Codes of unit vectors measure twice the cosine distance.
        let scale = if view.base.metric == Metric::Cosine { 0.5 } else { 1.0 };
        let worst = self.state.results().last().map_or(f32::NEG_INFINITY, |h| h.distance);
        let of_member = |id: u32| clusters.directory.cluster_of(clusters.directory.list_of(id));
        let of_result: Option<Vec<u32>> = self
            .state
            .hybrid_ivf()
            .and_then(|trace| trace.read_members())
            .map(|read| read.iter().filter(|r| r.1 <= worst).map(|r| of_member(r.0)).collect());
        let visit = |&cluster: &u32| {
            let lists = clusters.directory.lists_of(cluster);
            let rank = ranked.iter().find(|r| r.cluster == cluster);
            let reads = self.sums.of_cluster.get(&cluster).copied().unwrap_or_default();
            let mut visit = VisitTrace {
                cluster,
                kind: clusters.directory.kinds[cluster as usize].name(),
                members: lists.clone().map(|l| u64::from(clusters.directory.members(l))).sum(),
                lists: lists.len(),
                centroid_distance: scale * self.centroid_distance(view, clusters, cluster),
                ranked_distance: scale * rank.map_or(0.0, |r| r.distance),
                sample_hits: rank.map_or(0, |r| r.sample_hits),
                reads: reads.reads,
                pages: reads.pages,
                results: of_result.as_ref().map(|of| of.iter().filter(|&&c| c == cluster).count()),
                ..VisitTrace::default()
            };
            for list in self.scanned().iter().filter(|s| s.cluster == cluster) {
                visit.lists_scanned += u32::from(list.list.is_some());
                visit.lists_in_ram += u32::from(list.list.is_some() && list.in_ram);
                visit.scanned += u64::from(list.members);
                visit.kept += u64::from(list.kept);
                visit.fruitful |= list.fruitful;
            }
            visit
        };
        self.visited().iter().map(visit).collect()
    }

    fn centroid_distance(&self, view: &IndexView<'_>, clusters: &View<'_>, cluster: u32) -> f32 {
        self.scratch.hybrid_ivf().map_or(0.0, |s| s.centroid_distance(&view.base, clusters, cluster))
    }

    /// Why it ended, in words. `all` clusters were ranked.
    fn stop(&self, patience: f32, all: usize) -> String {
        let visited = self.visited().len();
        match self.state.outcome() {
            Outcome::Running => "it still runs".into(),
            Outcome::Partial => "a part of the index lies on servers that do not answer".into(),
            Outcome::OutOfBudget => "its allowance of reads is used up".into(),
            lost @ (Outcome::Lost { .. } | Outcome::WrongKind) => failure(lost, &self.base.blocks_path)
                .unwrap_or_else(|| "a read brought nothing of use".into()),
            Outcome::Complete if visited < all => format!(
                "early stop: what brought nothing in a row counts {:.1} (patience {patience:.1}); {visited} of \
                 {all} were visited",
                self.state.hybrid_ivf().map_or(0.0, |trace| trace.fruitless())
            ),
            Outcome::Complete => format!("all {all} clusters that it may visit have been visited"),
        }
    }
}

/// The view of queries that hold this snapshot.
fn view<'a>(base: &'a Base, lists: &'a ListIndex, snapshot: &'a Snapshot) -> IndexView<'a> {
    let mut clusters = lists.view();
    snapshot.apply_to(&mut clusters);
    IndexView { base: base.view(), kind: KindView::HybridIvf(clusters) }
}
