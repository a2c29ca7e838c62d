//! One query of a `hybrid-ivf`, cluster by cluster: which it visited and why, what was read there, and what that brought.

pub mod plan;

use std::collections::HashMap;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use serde::Serialize;
use stratann_core::PAGE;
use stratann_core::format::directory::LocalKind;
use stratann_core::plan::{ClusterView, IndexView};
use stratann_core::query::{
    Arrival, Arrived, Budget, Loss, Outcome, Params, Purpose, QueryState, QueryStats, Ranked, Scratch, Step,
    Tag, Want,
};
use stratann_kernel::Metric;

use crate::driver::{Width, failure};
use crate::index::Index;
use crate::kinds::hybrid_ivf::snapshot::Snapshot;
use crate::search::SearchOptions;
use crate::tier::Buffer;
use crate::{Error, Result};

/// One cluster that was visited.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Visit {
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
    pub votes: u32,
    /// Lists that were looked through.
    pub lists_scanned: u32,
    /// Of them, those whose codes lay in RAM.
    pub lists_in_ram: u32,
    /// Members looked at.
    pub scanned: u64,
    /// Of them, those that no bound discarded at once.
    pub kept: u64,
    /// Reads for it, those of survivors not counted.
    pub reads: u64,
    /// Pages of 4 KiB in them.
    pub pages: u64,
    /// Whether it had a member among the best so far, by the codes.
    pub fruitful: bool,
    /// Results that are its members; `None` without bounds, where nobody keeps whose members were read.
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
    Survivors {
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
    pub what: ReadFor,
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
    pub survivors: usize,
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
pub struct Trace {
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
    /// Of them, those that it has learnt from queries.
    pub nav_learnt: u32,
    /// Codes and centroids compared on the way through it.
    pub nav_comparisons: u64,
    /// The clusters that were visited, in their order.
    pub visits: Vec<Visit>,
    /// Reads of codes, and of edges of graphs.
    pub list_reads: ReadSum,
    /// Reads of vectors that no bound discarded.
    pub survivor_reads: ReadSum,
    /// Results that the navigation found and whose clusters were not visited.
    pub results_elsewhere: Option<usize>,
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

/// Runs `query` (one row of the index' element type) on its own among clusters, and records its way. Of learnt state the newest is used.
///
/// # Errors
/// An index of another kind, bad options, a query of the wrong length. A read that fails ends the trace and is told there.
pub fn explain(index: &Index, query: &[u8], options: &SearchOptions) -> Result<Trace> {
    explain_hidden(index, query, u32::MAX, options)
}

/// Like [`explain`], with a member that the query must not see.
pub(crate) fn explain_hidden(
    index: &Index,
    query: &[u8],
    exclude: u32,
    options: &SearchOptions,
) -> Result<Trace> {
    if index.clusters.is_none() {
        return Err(Error::bad_input(format!("{} has no clusters to explain", index.folder().display())));
    }
    crate::explain::check_length(index, query)?;
    let mut params = Params { exclude, ..index.params(options)? };
    (params.approach_width, params.width) = match options.width {
        Width::Auto => (1, 1),
        Width::Fixed(width) => (width, width),
    };
    let snapshot = index.learning.as_ref().map(|l| l.newest());
    let mut walk = Walk {
        index,
        snapshot,
        state: QueryState::new(params, Budget::default()),
        scratch: Scratch::default(),
        sums: Sums::default(),
    };
    walk.scratch.watch_lists();
    walk.scratch.prepare(&seen(index, walk.snapshot.as_deref()), query);
    Ok(walk.run(&params))
}

/// Reads by what they were for.
#[derive(Default)]
struct Sums {
    lists: ReadSum,
    survivors: ReadSum,
    of_cluster: HashMap<u32, ReadSum>,
}

impl Sums {
    fn add(&mut self, read: &PageRead) {
        let add = |sum: &mut ReadSum| {
            sum.reads += 1;
            sum.pages += u64::from(read.pages);
        };
        match read.what {
            ReadFor::Lists { cluster, .. } | ReadFor::Run { cluster, .. } | ReadFor::Edges { cluster } => {
                add(&mut self.lists);
                add(self.of_cluster.entry(cluster).or_default());
            }
            ReadFor::Survivors { .. } | ReadFor::Other => add(&mut self.survivors),
        }
    }
}

struct Walk<'a> {
    index: &'a Index,
    snapshot: Option<Arc<Snapshot>>,
    state: QueryState,
    scratch: Scratch,
    sums: Sums,
}

impl Walk<'_> {
    fn view(&self) -> IndexView<'_> {
        seen(self.index, self.snapshot.as_deref())
    }

    fn run(mut self, params: &Params) -> Trace {
        let mut step = self.step(&[]);
        let ranked: Vec<Ranked> = self.scratch.ranked().collect();
        let nav_comparisons = self.state.stats().code_comparisons.saturating_sub(self.compared_in_clusters());
        let mut rounds = Vec::new();
        while step == Step::Wait {
            let (round, next) = self.round();
            rounds.push(round);
            step = next;
        }
        let view = self.view();
        let nav = view.clusters.map(|c| (c.nav.nodes(), c.nav.nodes() - c.nav.bootstrap));
        let visits = view.clusters.map_or_else(Vec::new, |c| self.visits(&view, &c, &ranked));
        let probe = &params.probe;
        let patience = probe.patience(self.state.clusters().len());
        let results = self.state.results();
        let known: Option<usize> = visits.iter().map(|v| v.results).sum();
        Trace {
            k: params.k,
            nprobe: probe.clusters,
            early_stop: Some(probe.early_stop).filter(|s| s.is_finite()),
            patience: Some(patience).filter(|p| p.is_finite()),
            stop_slack: Some(params.stop_slack).filter(|s| s.is_finite()),
            order: probe.order.name(),
            bounds: probe.bounds.name(),
            local_lists: probe.local_lists,
            nav_nodes: nav.map_or(0, |n| n.0),
            nav_learnt: nav.map_or(0, |n| n.1),
            nav_comparisons,
            list_reads: self.sums.lists,
            survivor_reads: self.sums.survivors,
            results_elsewhere: known.map(|k| results.len().saturating_sub(k)),
            rounds,
            stop: self.stop(patience),
            complete: self.state.outcome() == Outcome::Complete,
            ids: results.iter().map(|h| h.external_id).collect(),
            distances: results.iter().map(|h| h.distance).collect(),
            stats: *self.state.stats(),
            visits,
        }
    }

    /// Codes compared so far in the clusters visited: members, and centroids of lists.
    fn compared_in_clusters(&self) -> u64 {
        let members: u64 = self.scratch.scanned().iter().map(|s| u64::from(s.members)).sum();
        let Some(clusters) = &self.index.clusters else { return members };
        let lists = |&cluster: &u32| match clusters.directory.kinds[cluster as usize] {
            LocalKind::Ivf => clusters.directory.lists_of(cluster).len() as u64,
            LocalKind::Flat | LocalKind::Graph => 0,
        };
        members + self.state.visited().iter().map(lists).sum::<u64>()
    }

    fn step(&mut self, arrivals: &[Arrival<'_>]) -> Step {
        let view = seen(self.index, self.snapshot.as_deref());
        self.state.step(&view, &mut self.scratch, arrivals)
    }

    /// Reads what the last step asked for, and steps.
    fn round(&mut self) -> (Round, Step) {
        let wants: Vec<Want> = self.state.wants().to_vec();
        let (mut reads, mut held) = (Vec::new(), Vec::new());
        for Want::Fetch { tag, block, count } in wants {
            let read =
                PageRead { offset: u64::from(block) * PAGE as u64, pages: count, what: self.purpose(tag) };
            self.sums.add(&read);
            held.push((tag, self.fetch(&read)));
            reads.push(read);
        }
        let before = *self.state.stats();
        let arrivals: Vec<Arrival<'_>> = held.iter().map(|(tag, held)| arrival(*tag, held)).collect();
        let step = self.step(&arrivals);
        let (after, results) = (self.state.stats(), self.state.results());
        let round = Round {
            reads,
            clusters: self.state.visited().len(),
            code_comparisons: after.code_comparisons - before.code_comparisons,
            scored: after.full_comparisons - before.full_comparisons,
            pruned: after.pruned - before.pruned,
            survivors: self.state.survivors(),
            results: results.len(),
            kth_distance: results.get(self.state.params().k as usize - 1).map(|h| h.distance),
        };
        (round, step)
    }

    fn purpose(&self, tag: Tag) -> ReadFor {
        let Some(clusters) = &self.index.clusters else { return ReadFor::Other };
        let directory = &clusters.directory;
        match self.state.purpose(tag) {
            Purpose::Lists(first, lists) => ReadFor::Lists { cluster: directory.cluster_of(first), lists },
            Purpose::Members(vectors) => ReadFor::Survivors { vectors },
            Purpose::Run(first, vectors) => {
                ReadFor::Run { cluster: directory.cluster_of(directory.list_of(first)), vectors }
            }
            Purpose::Edges(cluster) => ReadFor::Edges { cluster },
            Purpose::Other => ReadFor::Other,
        }
    }

    fn fetch(&self, read: &PageRead) -> std::result::Result<Buffer, Loss> {
        let mut buffer = Buffer::new(read.pages as usize * PAGE);
        match self.index.blocks_file.read_exact_at(buffer.bytes_mut(), read.offset) {
            Ok(()) => Ok(buffer),
            Err(e) if e.kind() == std::io::ErrorKind::UnexpectedEof => Err(Loss::Short),
            Err(_) => Err(Loss::Failed),
        }
    }

    fn visits(&self, view: &IndexView<'_>, clusters: &ClusterView<'_>, ranked: &[Ranked]) -> Vec<Visit> {
        // Codes of unit vectors measure twice the cosine distance.
        let scale = if view.metric == Metric::Cosine { 0.5 } else { 1.0 };
        let worst = self.state.results().last().map_or(f32::NEG_INFINITY, |h| h.distance);
        let of_member = |id: u32| clusters.directory.cluster_of(clusters.directory.list_of(id));
        let of_result: Option<Vec<u32>> = self
            .state
            .read_members()
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
                centroid_distance: scale * self.scratch.centroid_distance(view, clusters, cluster),
                ranked_distance: scale * rank.map_or(0.0, |r| r.distance),
                votes: rank.map_or(0, |r| r.votes),
                reads: reads.reads,
                pages: reads.pages,
                results: of_result.as_ref().map(|of| of.iter().filter(|&&c| c == cluster).count()),
                ..Visit::default()
            };
            for list in self.scratch.scanned().iter().filter(|s| s.cluster == cluster) {
                visit.lists_scanned += u32::from(list.list.is_some());
                visit.lists_in_ram += u32::from(list.list.is_some() && list.in_ram);
                visit.scanned += u64::from(list.members);
                visit.kept += u64::from(list.kept);
                visit.fruitful |= list.fruitful;
            }
            visit
        };
        self.state.visited().iter().map(visit).collect()
    }

    /// Why it ended, in words.
    fn stop(&self, patience: f32) -> String {
        let (visited, all) = (self.state.visited().len(), self.state.clusters().len());
        match self.state.outcome() {
            Outcome::Running => "it still runs".into(),
            Outcome::Partial => "a part of the index lies on servers that do not answer".into(),
            Outcome::OutOfBudget => "its allowance of reads is used up".into(),
            lost @ Outcome::Lost { .. } => failure(lost, &self.index.blocks_path, PAGE)
                .unwrap_or_else(|| "a read brought nothing of use".into()),
            Outcome::Complete if visited < all => format!(
                "early stop: what brought nothing in a row counts {:.1} (patience {patience:.1}); {visited} of {all} were visited",
                self.state.fruitless()
            ),
            Outcome::Complete => format!("all {all} clusters that it may visit have been visited"),
        }
    }
}

/// The index as queries see it that go by this version.
fn seen<'a>(index: &'a Index, snapshot: Option<&'a Snapshot>) -> IndexView<'a> {
    let mut view = index.view();
    if let (Some(clusters), Some(snapshot)) = (&mut view.clusters, snapshot) {
        snapshot.apply(clusters);
    }
    view
}

fn arrival(tag: Tag, held: &std::result::Result<Buffer, Loss>) -> Arrival<'_> {
    let what = held.as_ref().map_or_else(|loss| Arrived::Lost(*loss), |b| Arrived::Bytes(b.bytes()));
    Arrival { tag, what }
}
