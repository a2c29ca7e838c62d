//! Runs queries once in the real engine, as each compute node would, and keeps what its batches did.

use std::collections::HashMap;

use serde::Serialize;
use stratann_core::hash::hash;
use stratann_engine::dataset::GroundTruth;
use stratann_engine::exec::BatchOptions;
use stratann_engine::index::Index;
use stratann_engine::search::{Answers, RecordedBatch, SearchOptions, TrafficOptions};
use stratann_sim::{BatchLoad, BatchTrace};
use stratann_storage::{Error, Progress, Result};

use super::prices::RecordedWork;

/// Compute nodes of which each has queries in an order of its own. More nodes have the batches of these.
const STREAMS_MAX: usize = 8;
/// Batches of a compute node that are kept, after as many that fill its cache.
const BATCHES_MAX: usize = 4;
/// Queries of a baseline that reads for each of them.
const SINGLES_MAX: usize = 256;

/// A way to load the clusters of batches.
#[derive(Clone, Copy, Debug)]
pub struct LoadWay {
    /// The name in reports.
    pub name: &'static str,
    pub batch_options: BatchOptions,
    /// Each query loads for itself, without a cache, and knows the offsets of clusters.
    pub is_for_each: bool,
}

/// The searches that are recorded, and the way to do it.
pub struct Recorder<'a> {
    pub index: &'a mut Index,
    pub rows: &'a [u8],
    pub row_bytes: usize,
    pub truth: Option<&'a GroundTruth>,
    /// Options of the search, without the way to load.
    pub search: SearchOptions,
    pub cache_share: f64,
    pub memory_nodes: usize,
    pub seed: u64,
    pub progress: &'a dyn Progress,
}

/// Means of a query, the same on any machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Counters {
    /// Doorbells and reads of headers, one for each memory node that has a part.
    pub round_trips: f64,
    pub bytes: f64,
    pub loads: f64,
    /// Clusters that were searched.
    pub needs: f64,
    /// Clusters that were in the cache.
    pub cache_hits: f64,
    pub comparisons: f64,
}

/// The batches of one way to load clusters.
pub struct Recorded {
    pub way: LoadWay,
    /// Batches by compute node.
    pub streams: Vec<Vec<BatchTrace>>,
    pub overlaps: bool,
    pub recall: Option<f64>,
    pub counters: Counters,
    /// Work of the first compute node.
    pub work: RecordedWork,
}

/// Turns batches into traces.
struct Tracer {
    /// Memory nodes by cluster.
    nodes: Vec<u8>,
    headers_bytes: u32,
}

impl Recorder<'_> {
    /// Records the batches of up to `compute_nodes` compute nodes.
    ///
    /// # Errors
    /// A query that fails; an index of another kind.
    pub fn record(&mut self, way: LoadWay, compute_nodes: usize) -> Result<Recorded> {
        let search = SearchOptions { batch_options: way.batch_options, ..self.search };
        let tracer = self.tracer(way)?;
        let count = self.rows.len() / self.row_bytes;
        let most = match way.is_for_each {
            true => SINGLES_MAX,
            false => BATCHES_MAX.saturating_mul(search.batch_options.batch),
        };
        // Where all queries are one batch it is the same on each node.
        let is_one = count <= search.batch_options.batch || way.is_for_each;
        let streams = if is_one { 1 } else { compute_nodes.clamp(1, STREAMS_MAX) };
        self.progress.stage(
            &format!("recording {}", way.name),
            (2 * streams * count.min(most)) as u64,
            "queries",
        );
        let mut recorded = Recorded {
            way,
            streams: Vec::new(),
            overlaps: search.batch_options.overlap,
            recall: None,
            counters: Counters::default(),
            work: RecordedWork::default(),
        };
        for node in 0..streams {
            let order = order(self.seed, node as u64, count.min(most), count);
            let (answers, batches) = self.record_node(way, &search, &order)?;
            let traces: Vec<BatchTrace> = batches.iter().map(|batch| tracer.trace(batch)).collect();
            if node == 0 {
                recorded.recall = self.recall(&answers, &order);
                recorded.work = work(&answers, &batches);
            }
            recorded.streams.push(traces);
        }
        recorded.counters = counters(&recorded.streams);
        Ok(recorded)
    }

    /// Runs the queries of a compute node, for a second time where it has a cache, which the first fills.
    fn record_node(
        &mut self,
        way: LoadWay,
        search: &SearchOptions,
        order: &[usize],
    ) -> Result<(Answers, Vec<RecordedBatch>)> {
        let size = self.row_bytes;
        let rows: Vec<u8> =
            order.iter().flat_map(|&at| &self.rows[at * size..(at + 1) * size]).copied().collect();
        let is_cached = !way.is_for_each;
        let cluster_bytes = self.cluster_bytes()?;
        let share = if is_cached { self.cache_share } else { 0.0 };
        self.index.set_cache_budget((cluster_bytes as f64 * share) as u64);
        let filled =
            is_cached.then(|| self.index.search_recorded(&rows, search, self.progress)).transpose()?;
        let (mut answers, batches) = self.index.search_recorded(&rows, search, self.progress)?;
        // Other programs make it longer. Both choose the same clusters.
        let route_ns = filled.map_or(u64::MAX, |(filled, _)| filled.times.route);
        answers.times.route = answers.times.route.min(route_ns);
        match answers.failed.first() {
            Some((query, why)) => {
                Err(Error::corrupt(format!("query {} failed: {why}; run `stratann verify`", order[*query])))
            }
            None => Ok((answers, batches)),
        }
    }

    fn cluster_bytes(&self) -> Result<u64> {
        let section = self.index.manifest().section.remote();
        section.map(|section| section.facts.cluster_bytes).ok_or_else(|| {
            Error::bad_input(format!(
                "the index is of kind {}; give a remote-hnsw",
                self.index.manifest().kind
            ))
        })
    }

    /// The offsets of clusters are known to a naive client, as in the paper: it reads no headers.
    fn tracer(&self, way: LoadWay) -> Result<Tracer> {
        self.cluster_bytes()?;
        let section = self.index.manifest().section.remote();
        let bytes = section.map_or(0, |section| section.facts.headers_bytes());
        let headers_bytes = if way.is_for_each { 0 } else { u32::try_from(bytes).unwrap_or(u32::MAX) };
        let nodes = self.index.nodes_of_clusters(self.memory_nodes, &TrafficOptions::default())?;
        Ok(Tracer { nodes, headers_bytes })
    }

    fn recall(&self, answers: &Answers, order: &[usize]) -> Option<f64> {
        let truth = self.truth?;
        let k = answers.k.min(truth.k);
        let wanted = order.iter().flat_map(|&query| truth.ids_of(query)[..k].iter().map(|&id| u64::from(id)));
        Some(answers.recall(&wanted.collect::<Vec<_>>(), k))
    }
}

/// `most` of `count` queries in an order that is a node's own.
fn order(seed: u64, node: u64, most: usize, count: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..count).collect();
    order.sort_by_key(|&query| (hash(seed, 42 + node, query as u64), query));
    order.truncate(most);
    order
}

fn work(answers: &Answers, batches: &[RecordedBatch]) -> RecordedWork {
    let queries = || batches.iter().flat_map(|batch| &batch.queries);
    let loads = batches.iter().flat_map(|batch| batch.doorbells.iter().flatten());
    RecordedWork {
        meta_comparisons: queries().map(|query| query.meta_comparisons).sum(),
        comparisons: queries().flat_map(|query| &query.visits).map(|visit| visit.comparisons).sum(),
        loaded_bytes: loads.map(|load| u64::from(load.bytes)).sum(),
        meta_ns: answers.times.route,
        cpu_ns: answers.cpu_us.saturating_mul(1000),
    }
}

fn counters(streams: &[Vec<BatchTrace>]) -> Counters {
    let (mut sum, mut queries) = (Counters::default(), 0);
    for batch in streams.iter().flatten() {
        queries += batch.queries.len();
        sum.round_trips += f64::from(u8::from(batch.headers_bytes > 0));
        sum.bytes += f64::from(batch.headers_bytes);
        for doorbell in &batch.doorbells {
            let loads = doorbell.iter().filter(|load| load.bytes > 0);
            let mut nodes: Vec<u8> = loads.clone().map(|load| load.node).collect();
            nodes.sort_unstable();
            nodes.dedup();
            sum.round_trips += nodes.len() as f64;
            sum.loads += loads.count() as f64;
        }
        for load in batch.doorbells.iter().flatten() {
            let searches = load.searches.len() as f64;
            sum.bytes += f64::from(load.bytes);
            sum.needs += searches;
            sum.cache_hits += if load.bytes == 0 { searches } else { 0.0 };
            sum.comparisons += load.searches.iter().map(|search| f64::from(search.1)).sum::<f64>();
        }
        sum.comparisons += batch.queries.iter().map(|&comparisons| f64::from(comparisons)).sum::<f64>();
    }
    let each = |sum: f64| sum / queries.max(1) as f64;
    Counters {
        round_trips: each(sum.round_trips),
        bytes: each(sum.bytes),
        loads: each(sum.loads),
        needs: each(sum.needs),
        cache_hits: each(sum.cache_hits),
        comparisons: each(sum.comparisons),
    }
}

impl Tracer {
    fn trace(&self, batch: &RecordedBatch) -> BatchTrace {
        let mut places: HashMap<u32, (usize, usize)> = HashMap::new();
        let mut doorbells: Vec<Vec<BatchLoad>> = Vec::new();
        for (number, doorbell) in batch.doorbells.iter().enumerate() {
            let load = |(place, load): (usize, &stratann_engine::search::RecordedLoad)| {
                places.insert(load.cluster, (number, place));
                let node = self.nodes.get(load.cluster as usize).copied().unwrap_or(0);
                BatchLoad { node, bytes: load.bytes, searches: Vec::new() }
            };
            doorbells.push(doorbell.iter().enumerate().map(load).collect());
        }
        let mut queries: Vec<_> = batch.queries.iter().collect();
        queries.sort_by_key(|query| query.number);
        let small = |count: u64| u32::try_from(count).unwrap_or(u32::MAX);
        let mut traced = Vec::with_capacity(queries.len());
        for (number, query) in queries.into_iter().enumerate() {
            for visit in &query.visits {
                if let Some(&(doorbell, place)) = places.get(&visit.cluster) {
                    let searches = &mut doorbells[doorbell][place].searches;
                    searches.push((number as u32, small(visit.comparisons)));
                }
            }
            traced.push(small(query.meta_comparisons));
        }
        BatchTrace { headers_bytes: self.headers_bytes, queries: traced, doorbells }
    }
}

#[cfg(test)]
mod tests {
    use stratann_engine::search::{RecordedLoad, RecordedQuery, RecordedVisit};

    use super::*;

    #[test]
    fn visits_belong_to_the_last_load_of_their_cluster() {
        let visit = |cluster, comparisons| RecordedVisit { cluster, comparisons };
        let query = |number, visits: &[RecordedVisit]| RecordedQuery {
            number,
            meta_comparisons: 500,
            visits: visits.to_vec(),
        };
        let batch = RecordedBatch {
            queries: vec![query(9, &[visit(2, 20), visit(1, 7)]), query(4, &[visit(2, 30), visit(0, 10)])],
            doorbells: vec![
                vec![RecordedLoad { cluster: 1, bytes: 0 }, RecordedLoad { cluster: 2, bytes: 0 }],
                vec![RecordedLoad { cluster: 0, bytes: 100 }, RecordedLoad { cluster: 3, bytes: 50 }],
                vec![RecordedLoad { cluster: 2, bytes: 200 }],
            ],
        };
        let trace = Tracer { nodes: vec![0, 0, 1, 1], headers_bytes: 64 }.trace(&batch);
        let loads = &trace.doorbells;
        assert_eq!((&loads[0][0].searches[..], loads[0][1].searches.len()), (&[(1, 7)][..], 0));
        assert_eq!((loads[1][0].node, &loads[1][0].searches[..]), (0, &[(0, 10)][..]));
        assert_eq!((loads[1][1].node, loads[1][1].searches.len()), (1, 0));
        assert_eq!(loads[2][0].searches, [(0, 30), (1, 20)]);
        let found = counters(&[vec![trace]]);
        assert_eq!((found.round_trips, found.bytes, found.loads), (2.0, 207.0, 1.5));
        assert_eq!((found.needs, found.cache_hits, found.comparisons), (2.0, 0.5, 533.5));
    }

    #[test]
    fn each_node_has_an_order_of_its_own() {
        let (first, second) = (order(1, 0, 50, 50), order(1, 1, 50, 50));
        assert_ne!(first, second);
        let mut sorted = second.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, (0..50).collect::<Vec<_>>());
        assert_eq!(order(1, 0, 20, 50), first[..20]);
    }
}
