//! The trace of one `hybrid-ivf` query, for `explain`: the clusters that it visited, the reads, and what they changed.

pub mod plan;

use std::collections::HashMap;
use std::sync::Arc;

use stratann_core::PAGE;
use stratann_core::format::directory::LocalKind;
use stratann_core::kinds::hybrid_ivf::{self, RankedCluster, ReadPurpose, View};
use stratann_core::kinds::{IndexView, KindView};
use stratann_core::query::{Arrival, Loss, Outcome, Params, QueryState, Read, Scratch, Step, Tag, outcome};
use stratann_core::sieve::Sieve;
use stratann_core::view;
use stratann_kernel::Metric;

use super::open::ListIndex;
use super::snapshot::Snapshot;
use crate::base::Base;
use crate::exec::failure;
use crate::trace::{
    ListRound, ListRounds, ListSearch, Navigation, PageRead, ReadFor, ReadSum, Stop, Trace, Visit, Visits,
    traced,
};

/// Runs `query` on its own, and records it. Of learned state the newest is used. A read that fails ends the trace,
/// which names it.
pub(crate) fn explain(
    (base, sieve): (&Base, Option<&Sieve>),
    lists: &ListIndex,
    query: &[u8],
    params: Params,
) -> Trace {
    let snapshot = lists.learning.newest();
    let (state, scratch) = traced(&view((base, sieve), lists, &snapshot), query, params);
    let sums = Sums::default();
    let tracer = Tracer { base, sieve, lists, snapshot: snapshot.clone(), state, scratch, sums };
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
    sieve: Option<&'a Sieve>,
    lists: &'a ListIndex,
    snapshot: Arc<Snapshot>,
    state: QueryState,
    scratch: Scratch,
    sums: Sums,
}

impl Tracer<'_> {
    fn view(&self) -> IndexView<'_> {
        view((self.base, self.sieve), self.lists, &self.snapshot)
    }

    fn run(mut self, params: &Params) -> Trace {
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
        let known: Option<usize> = visits.iter().map(|v| v.results).sum();
        let stop = self.stop(patience, ranked.len());
        let events = vec![
            ListSearch {
                nprobe: own.nprobe,
                early_stop: Some(own.early_stop).filter(|s| s.is_finite()),
                patience: Some(patience).filter(|p| p.is_finite()),
                stop_slack: Some(own.bound_slack).filter(|s| s.is_finite()),
                order: own.order.name(),
                bounds: own.bounds.name(),
                local_lists: own.local_lists,
            }
            .into(),
            Navigation {
                nav_nodes: nav.map_or(0, |n| n.0),
                nav_learned: nav.map_or(0, |n| n.1),
                nav_comparisons,
            }
            .into(),
            Visits {
                visits,
                list_reads: self.sums.lists,
                candidate_reads: self.sums.candidates,
                results_unvisited: known.map(|k| self.state.results().len().saturating_sub(k)),
            }
            .into(),
            ListRounds { rounds }.into(),
            Stop { stop: stop.clone() }.into(),
        ];
        Trace::of(&self.state, events, stop)
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
        let view = view((self.base, self.sieve), self.lists, &self.snapshot);
        self.state.step(&view, &mut self.scratch, arrivals)
    }

    /// Reads what the last step asked for, and steps.
    fn round(&mut self) -> (ListRound, Step) {
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
        let round = ListRound {
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
        self.view().check_read(read, &bytes).map(|()| bytes)
    }

    fn visits(&self, view: &IndexView<'_>, clusters: &View<'_>, ranked: &[RankedCluster]) -> Vec<Visit> {
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
            let mut visit = Visit {
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
                ..Visit::default()
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
fn view<'a>(
    (base, sieve): (&'a Base, Option<&'a Sieve>),
    lists: &'a ListIndex,
    snapshot: &'a Snapshot,
) -> IndexView<'a> {
    let mut clusters = lists.view();
    snapshot.apply_to(&mut clusters);
    let seen = view::Base { sieve, ..base.view() };
    IndexView { base: seen, kind: KindView::HybridIvf(clusters) }
}
