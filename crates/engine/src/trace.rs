//! The trace of one query: what happened, as a list of typed events, and what was found.

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use stratann_core::kinds::IndexView;
use stratann_core::query::{Outcome, Params, QueryState, QueryStats, Scratch};

use crate::sieve_ways::FilterReport;

/// The trace of one query. Its JSON has k, the fields of the events in their order, whether it is complete, and the
/// results.
#[derive(Clone, Debug)]
pub struct Trace {
    /// Results wanted.
    pub k: u32,
    /// Events, in their order.
    pub events: Vec<Event>,
    /// Whether the results are those that were wanted.
    pub complete: bool,
    /// The reason when it is not.
    pub failure: String,
    /// Results, closest first.
    pub results: Results,
    /// Sums over the query.
    pub stats: QueryStats,
}

/// Results of a traced query.
#[derive(Clone, Debug)]
pub enum Results {
    /// Written as a list of ids and one of distances.
    Columns(Vec<FoundResult>),
    /// Written one by one.
    Rows(Vec<FoundResult>),
}

impl Results {
    /// All results, closest first.
    pub fn all(&self) -> &[FoundResult] {
        match self {
            Results::Columns(results) | Results::Rows(results) => results,
        }
    }
}

/// A result.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct FoundResult {
    /// External id.
    pub id: u64,
    /// Exact distance.
    pub distance: f32,
    /// The candidate and the mini-batch that found it, of a query that re-ranks in mini-batches.
    #[serde(flatten)]
    pub found: Option<FoundBy>,
}

/// The mini-batch that found a result.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct FoundBy {
    /// Place among the candidates of the scorer; absent for a vector that was in a block with one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub candidate: Option<u32>,
    /// Number of the mini-batch.
    pub batch: Option<u32>,
}

impl Serialize for Trace {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("k", &self.k)?;
        self.events.iter().try_for_each(|event| event.entries(&mut map))?;
        map.serialize_entry("complete", &self.complete)?;
        match &self.results {
            Results::Columns(results) => {
                map.serialize_entry("ids", &results.iter().map(|r| r.id).collect::<Vec<_>>())?;
                map.serialize_entry("distances", &results.iter().map(|r| r.distance).collect::<Vec<_>>())?;
            }
            Results::Rows(results) => map.serialize_entry("results", results)?,
        }
        map.end()
    }
}

impl Trace {
    /// The first event of a type.
    pub fn event<T: OneEvent>(&self) -> Option<&T> {
        self.events.iter().find_map(T::of)
    }

    /// The trace of a query that has ended. `failure` is the reason of a loss.
    pub(crate) fn of(state: &QueryState, events: Vec<Event>, failure: impl Into<String>) -> Trace {
        let result = |hit: &stratann_core::query::Hit| FoundResult {
            id: hit.external_id,
            distance: hit.distance,
            found: None,
        };
        Trace {
            k: state.params().k,
            events,
            complete: state.outcome() == Outcome::Complete,
            failure: failure.into(),
            results: Results::Columns(state.results().iter().map(result).collect()),
            stats: *state.stats(),
        }
    }
}

/// Prepares a query that keeps a trace.
pub(crate) fn traced(view: &IndexView<'_>, query: &[u8], params: Params) -> (QueryState, Scratch) {
    let mut scratch = Scratch::default();
    scratch.prepare(view, query);
    scratch.trace_lists();
    (QueryState::new(params, view.budget()), scratch)
}

/// An event's type.
pub trait OneEvent {
    /// The event, where it is of this type.
    fn of(event: &Event) -> Option<&Self>;
}

/// Declares events: a struct for each, the sum of them, and their fields in JSON, with another name after `as`.
macro_rules! events {
    (@name $field:ident) => { stringify!($field) };
    (@name $field:ident $name:literal) => { $name };
    ($(
        #[doc = $doc:literal]
        $event:ident { $(#[doc = $about:literal] $field:ident $(as $name:literal)?: $type:ty,)* }
    )*) => {
        /// An event of a query.
        #[derive(Clone, Debug)]
        pub enum Event {
            $(#[doc = $doc] $event($event),)*
        }

        impl Event {
            /// Writes the fields.
            fn entries<M: SerializeMap>(&self, map: &mut M) -> Result<(), M::Error> {
                match self {
                    $(Event::$event(event) => {
                        $(map.serialize_entry(events!(@name $field $($name)?), &event.$field)?;)*
                    })*
                }
                Ok(())
            }
        }

        $(
            #[doc = $doc]
            #[derive(Clone, Debug)]
            pub struct $event {
                $(#[doc = $about] pub $field: $type,)*
            }

            impl From<$event> for Event {
                fn from(event: $event) -> Event {
                    Event::$event(event)
                }
            }

            impl OneEvent for $event {
                fn of(event: &Event) -> Option<&$event> {
                    if let Event::$event(event) = event { Some(event) } else { None }
                }
            }
        )*
    };
}

events! {
    /// The begin of a search over blocks.
    BlockSearch {
        /// Length of the beam.
        search_list: u32,
        /// Slack of the adaptive stop; `None` when it is off.
        stop_slack: Option<f32>,
        /// Fruitless reads in a row after which it stops; 0 when that is off.
        patience: u32,
    }
    /// The filter of the query: its plan, and what came of it.
    RowFilter {
        /// The filter.
        filter: FilterTrace,
    }
    /// The walk over the head graph.
    HeadWalk {
        /// Candidates that the head graph gave, closest first; empty in a scan.
        head: Vec<Guess>,
        /// Codes compared on the way there.
        head_code_comparisons: u64,
    }
    /// The rounds of reads of blocks.
    BlockRounds {
        /// Rounds, in their order.
        rounds: Vec<BlockRound>,
    }
    /// The begin of a search over inverted lists.
    ListSearch {
        /// Lists that may be visited.
        nprobe: u32,
        /// Share of them, one after another without a gain, that ends the visits; `None` when that is off.
        early_stop: Option<f32>,
        /// Number of lists in that share.
        patience: Option<f32>,
        /// Slack of the bounds, standard errors; `None` for strict bounds.
        stop_slack: Option<f32>,
        /// Order of the visits.
        order: &'static str,
        /// Bounds that discard vectors before they are read.
        bounds: &'static str,
        /// Sub-lists that are scanned of a divided list, at most.
        local_lists: u32,
    }
    /// The walk over the navigation graph.
    Navigation {
        /// Nodes of the navigation graph that was used.
        nav_nodes: u32,
        /// Nodes among them that were learned from queries.
        nav_learned as "nav_learnt": u32,
        /// Codes and centroids compared on the way through it.
        nav_comparisons: u64,
    }
    /// The visits of inverted lists, and their reads.
    Visits {
        /// Visited lists, in their order.
        visits: Vec<Visit>,
        /// Reads of codes, and of edges of graphs.
        list_reads: ReadSum,
        /// Reads of vectors that no bound discarded.
        candidate_reads as "survivor_reads": ReadSum,
        /// Results that the navigation found and whose lists were not visited.
        results_unvisited as "results_elsewhere": Option<usize>,
    }
    /// The rounds of reads of lists.
    ListRounds {
        /// Rounds, in their order.
        rounds: Vec<ListRound>,
    }
    /// The end of a search that reads in rounds.
    Stop {
        /// Reason, in words.
        stop: String,
    }
    /// The scans of lists in memory, component by component.
    Scans {
        /// Lists that were to be visited.
        nprobe: u32,
        /// Components that were compared before the lists, of the vectors that gave the first threshold.
        prewarmed_components: u64,
        /// Scanned lists, in their order.
        lists: Vec<Scan>,
        /// Vectors left after each group of components, and before them after pilot or codes, where there are.
        left: Vec<Left>,
    }
    /// The choice of candidates by a scorer of codes.
    Ranking {
        /// Lists that were visited.
        nprobe: u32,
        /// Candidates that the scorer returned at most.
        candidates: u32,
        /// Rule that ended re-ranking.
        rule: &'static str,
        /// Lists, in the order of their centroids.
        lists: Vec<RankedList>,
        /// Ids that the lists name more than once.
        duplicates: u64,
        /// Bytes to the scorer and back.
        gpu_bytes: u64,
    }
    /// The re-ranking of candidates.
    Reranking {
        /// Mini-batches, in their order.
        batches: Vec<MiniBatch>,
    }
    /// The choice of clusters by their representatives.
    ClusterChoice {
        /// Clusters searched at most.
        nprobe: u32,
        /// Length of the beam in each.
        ef: u32,
        /// Distances to representatives.
        meta_comparisons: u64,
        /// Clusters, the nearest first.
        clusters: Vec<ClusterVisit>,
    }
    /// The loads of whole clusters.
    ClusterLoads {
        /// Reads of clusters and of their fresh records that were made.
        loads: u64,
        /// Bytes of these.
        loaded_bytes: u64,
        /// Most reads of a doorbell.
        doorbell: usize,
        /// Doorbells of reads, a round trip to each node that has some of them; without those of `headers`.
        round_trips: u64,
        /// Reads that the cache had.
        cache_hits: u64,
        /// Cost of reading the headers of an index in memory nodes.
        headers: Option<Headers>,
    }
}

/// The plan of a filter, and what came of it.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct FilterTrace {
    /// The plan.
    #[serde(flatten)]
    pub plan: FilterReport,
    /// Whether a search gave way to another way.
    pub gave_way: bool,
    /// Rows from all parts of the index at which a second walk began, among the rows that match; 0 without one.
    pub seeds: u64,
    /// Blocks that were used and had no row that matches.
    pub vain_blocks: u64,
}

/// A candidate of the beam.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Guess {
    /// Number in the index.
    pub node: u32,
    /// Place in the beam, 0 for the closest.
    pub rank: usize,
    /// Distance by the code, on the scale of exact distances.
    pub code_distance: f32,
}

/// A block that was read.
#[derive(Clone, Debug, Serialize)]
pub struct BlockRead {
    /// Number of the block.
    pub block: u32,
    /// First byte in the file.
    pub offset: u64,
    /// Nodes in it; 0 when it was lost.
    pub nodes: usize,
    /// Candidate that asked for it; `None` in a scan.
    pub asked_by: Option<Guess>,
}

/// A round of reads of blocks, and its effect.
#[derive(Clone, Debug, Serialize)]
pub struct BlockRound {
    /// Blocks that were asked for together.
    pub reads: Vec<BlockRead>,
    /// Vectors compared in full.
    pub scored: u64,
    /// Nodes whose neighbours were followed.
    pub expanded: u64,
    /// Neighbours compared by their codes.
    pub code_comparisons: u64,
    /// Results so far.
    pub results: usize,
    /// Distance of the k-th result; `None` as long as there are fewer.
    pub kth_distance: Option<f32>,
}

/// An inverted list that was visited.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Visit {
    /// Number of the list.
    pub cluster: u32,
    /// Local index: `flat`, `graph` or `ivf`.
    pub kind: &'static str,
    /// Members.
    pub members: u64,
    /// Sub-lists.
    pub lists: usize,
    /// Distance from the query to the centroid, on the scale of exact distances.
    pub centroid_distance: f32,
    /// The distance that ranked it: that to the centroid, less the effect of members found by the navigation.
    pub ranked_distance: f32,
    /// Members found that were counted for it.
    #[serde(rename = "votes")]
    pub sample_hits: u32,
    /// Sub-lists that were scanned.
    pub lists_scanned: u32,
    /// Scanned sub-lists whose codes were resident.
    pub lists_in_ram: u32,
    /// Members scored.
    pub scanned: u64,
    /// Scored members that no bound pruned.
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

/// The purpose of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ReadFor {
    /// Codes of lists, with their vectors where these follow.
    Lists {
        /// Inverted list.
        cluster: u32,
        /// Number of sub-lists.
        lists: u32,
    },
    /// Edges of the graph of a list.
    Edges {
        /// Inverted list.
        cluster: u32,
    },
    /// Vectors that no bound discarded.
    #[serde(rename = "survivors")]
    Candidates {
        /// Number of vectors.
        vectors: u32,
    },
    /// Vectors of a list one after another, because bounds are off.
    Run {
        /// Inverted list.
        cluster: u32,
        /// Number of vectors.
        vectors: u32,
    },
    /// Another purpose.
    Other,
}

/// A read of pages.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct PageRead {
    /// First byte in the file of lists.
    pub offset: u64,
    /// Pages of 4 KiB.
    pub pages: u32,
    /// Purpose.
    #[serde(rename = "what")]
    pub purpose: ReadFor,
}

/// A round of reads of lists, and its effect.
#[derive(Clone, Debug, Serialize)]
pub struct ListRound {
    /// Reads that were asked for together.
    pub reads: Vec<PageRead>,
    /// Lists whose visits had begun by then.
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
    /// Number of reads.
    pub reads: u64,
    /// Pages of 4 KiB in them.
    pub pages: u64,
}

/// A list in memory that was scanned.
#[derive(Clone, Debug, Serialize)]
pub struct Scan {
    /// Number of the list.
    pub list: u32,
    /// Distance from the query to the centroid: squared l2, of unit vectors under cosine; minus the product under ip.
    pub centroid_distance: f32,
    /// Members.
    pub members: u32,
    /// Members that were compared in all components.
    pub finished: u32,
    /// Components that were compared.
    pub components: u64,
}

/// Vectors left after a group of components.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Left {
    /// Components up to the end of the group; 0 for pilot or codes.
    pub components: u32,
    /// Vectors that were left, those that were scored first excluded.
    pub vectors: u64,
}

/// A list whose members the scorer ranked.
#[derive(Clone, Debug, Serialize)]
pub struct RankedList {
    /// Number of the list.
    pub list: u32,
    /// Distance from the query to the centroid: squared l2, of unit vectors under cosine; minus the product under ip.
    pub centroid_distance: f32,
    /// Members whose nearest centroid is that of this list.
    pub own: u32,
    /// Members whose nearest centroid is another.
    pub replicas: u32,
}

/// A mini-batch of candidates.
#[derive(Clone, Debug, Serialize)]
pub struct MiniBatch {
    /// Candidates.
    pub candidates: u32,
    /// Blocks that were read.
    pub reads: u32,
    /// Candidates whose block was read for another one of the mini-batch.
    pub shared: u32,
    /// Candidates whose block an earlier mini-batch had read.
    pub known: u32,
    /// Results that were new.
    pub changed: u32,
}

/// A cluster that was searched.
#[derive(Clone, Debug, Serialize)]
pub struct ClusterVisit {
    /// Number of the cluster.
    pub cluster: u32,
    /// Group of the cluster.
    pub group: u32,
    /// Distance from the query to the representative of the cluster.
    pub distance: f32,
    /// Vectors in its sub-HNSW.
    pub members: u32,
    /// Bytes of its sub-HNSW.
    pub bytes: u32,
    /// Fresh records that were compared.
    pub fresh: u32,
    /// Bytes of its fresh records.
    pub fresh_bytes: u32,
    /// Distances to its vectors.
    pub comparisons: u64,
    /// Nodes whose neighbours were followed.
    pub expanded: u64,
}

/// The headers of an index in memory nodes, which a batch reads before its first query.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Headers {
    /// Round trips.
    pub round_trips: u64,
    /// Bytes.
    pub bytes: u64,
}
