//! Savings of the cache of clusters, against an exact LRU of as many bytes and against none: the clusters that batches
//! want are recorded, and replayed. Exact counters.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use stratann_core::hash::hash;
use stratann_engine::exec::BatchOptions;
use stratann_engine::index::{Index, OpenOptions};
use stratann_engine::search::{RecordedBatch, SearchOptions};
use stratann_storage::cache::ExtentCache;
use stratann_storage::{Error, Progress, Result};

use super::Bench;

/// Queries of short batches, besides the usual length.
const LENGTHS: [usize; 2] = [16, 128];
/// Short batches that are counted, after as many that fill the cache.
const SHORT_BATCHES: usize = 16;
/// The same for batches of the usual length.
const LONG_BATCHES: usize = 4;
const SEED: u64 = 1;

/// Which queries come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Stream {
    /// All are as likely.
    Uniform,
    /// Those with one nearest cluster are a topic; that of rank r comes with a share of 1 / r.
    Skewed,
}

/// One stream in batches of one length. Loads are those of a query.
#[derive(Clone, Debug, Serialize)]
pub(super) struct AtStream {
    stream: Stream,
    pub(super) batch: usize,
    /// Batches that were counted.
    batches: usize,
    /// Clusters that a batch wants.
    pub(super) wanted: f64,
    pub(super) loads_without: f64,
    pub(super) loads_lru: f64,
    pub(super) loads: f64,
}

impl AtStream {
    pub(super) fn name(&self) -> &'static str {
        match self.stream {
            Stream::Uniform => "uniform",
            Stream::Skewed => "skewed",
        }
    }
}

/// Clusters in the order of their last use, within a budget.
struct Lru {
    budget_bytes: u64,
    used_bytes: u64,
    turn: u64,
    /// Last use of each cluster; and the reverse.
    last: BTreeMap<u32, u64>,
    by_turn: BTreeMap<u64, u32>,
}

impl Lru {
    fn new(budget_bytes: u64) -> Lru {
        Lru { budget_bytes, used_bytes: 0, turn: 0, last: BTreeMap::new(), by_turn: BTreeMap::new() }
    }

    fn touch(&mut self, cluster: u32) {
        if let Some(before) = self.last.insert(cluster, self.turn) {
            self.by_turn.remove(&before);
        }
        self.by_turn.insert(self.turn, cluster);
        self.turn += 1;
    }

    /// Keeps a cluster and evicts those that were not used for longest.
    fn put(&mut self, cluster: u32, bytes: &dyn Fn(u32) -> u64) {
        if bytes(cluster) > self.budget_bytes {
            return;
        }
        self.touch(cluster);
        self.used_bytes += bytes(cluster);
        while self.used_bytes > self.budget_bytes
            && let Some((_, oldest)) = self.by_turn.pop_first()
        {
            self.last.remove(&oldest);
            self.used_bytes -= bytes(oldest);
        }
    }

    /// Loads of a batch that wants these clusters: what is there is used first, as in a search.
    fn batch(&mut self, wanted: &BTreeSet<u32>, bytes: &dyn Fn(u32) -> u64) -> usize {
        let (there, loaded): (Vec<u32>, Vec<u32>) =
            wanted.iter().partition(|&cluster| self.last.contains_key(cluster));
        there.into_iter().for_each(|cluster| self.touch(cluster));
        loaded.iter().for_each(|&cluster| self.put(cluster, bytes));
        loaded.len()
    }
}

/// The clusters that a batch wanted, and the loads that it made.
fn wanted(batch: &RecordedBatch) -> (BTreeSet<u32>, usize) {
    let all = || batch.doorbells.iter().flatten();
    (all().map(|load| load.cluster).collect(), all().filter(|load| load.bytes > 0).count())
}

/// Draws queries.
struct Draw {
    /// Queries by topic, and the sums of the shares of topics so far.
    topics: Vec<Vec<usize>>,
    sums: Vec<f64>,
}

impl Draw {
    /// Topics are in an order that does not depend on their numbers.
    fn new(nearest: &[u32], stream: Stream) -> Draw {
        let mut by_topic: BTreeMap<(u64, u32), Vec<usize>> = BTreeMap::new();
        for (query, &cluster) in nearest.iter().enumerate() {
            let topic = match stream {
                Stream::Uniform => (0, 0),
                Stream::Skewed => (hash(SEED, 61, cluster.into()), cluster),
            };
            by_topic.entry(topic).or_default().push(query);
        }
        let mut sum = 0.0;
        let sums = (1..=by_topic.len()).map(|rank| {
            sum += 1.0 / rank as f64;
            sum
        });
        Draw { sums: sums.collect(), topics: by_topic.into_values().collect() }
    }

    fn query(&self, number: usize) -> usize {
        let share = hash(SEED, 62, number as u64) as f64 / u64::MAX as f64;
        let aim = share * self.sums.last().copied().unwrap_or(0.0);
        let topic = self.sums.partition_point(|&sum| sum < aim).min(self.topics.len().saturating_sub(1));
        let queries = &self.topics[topic];
        queries[(hash(SEED, 63, number as u64) % queries.len() as u64) as usize]
    }
}

impl Bench<'_> {
    /// Measures all streams and lengths.
    pub(super) fn caches(&self) -> Result<Vec<AtStream>> {
        let mut index = Index::open(&self.args.base, OpenOptions::default())?;
        let usual = self.args.remote.batch();
        let mut lengths: Vec<usize> = LENGTHS.into_iter().filter(|&short| short < usual).collect();
        lengths.push(usual);
        let nearest = self.nearest(&mut index)?;
        let mut found = Vec::new();
        for stream in [Stream::Uniform, Stream::Skewed] {
            let draw = Draw::new(&nearest, stream);
            for &batch in &lengths {
                found.push(self.at_stream(&mut index, (stream, &draw), (batch, batch == usual))?);
            }
        }
        Ok(found)
    }

    /// Options that decide the clusters of a query; all else is as short as it can be.
    fn recorded_options(&self, batch: usize) -> SearchOptions {
        self.options(1, 1, BatchOptions { batch, ..BatchOptions::default() })
    }

    /// The nearest cluster of each query.
    fn nearest(&self, index: &mut Index) -> Result<Vec<u32>> {
        index.set_cache_budget(0);
        let (_, batches) = index.search_recorded(
            &self.rows,
            &self.recorded_options(self.args.remote.batch()),
            self.printer,
        )?;
        let mut nearest = vec![0; self.rows.len() / self.row_bytes];
        for query in batches.iter().flat_map(|batch| &batch.queries) {
            if let (Some(own), Some(visit)) = (nearest.get_mut(query.number), query.visits.first()) {
                *own = visit.cluster;
            }
        }
        Ok(nearest)
    }

    fn at_stream(
        &self,
        index: &mut Index,
        (stream, draw): (Stream, &Draw),
        (batch, is_usual): (usize, bool),
    ) -> Result<AtStream> {
        let batches = if is_usual { LONG_BATCHES } else { SHORT_BATCHES };
        let count = 2 * batches * batch;
        self.printer.stage("caches", count as u64, "queries");
        let size = self.row_bytes;
        let row = |number| {
            let at = draw.query(number) * size;
            &self.rows[at..at + size]
        };
        let rows: Vec<u8> = (0..count).flat_map(row).copied().collect();
        let budget_bytes = (self.facts.cluster_bytes as f64 * self.args.remote.share()) as u64;
        index.set_cache_budget(budget_bytes);
        let (answers, recorded) =
            index.search_recorded(&rows, &self.recorded_options(batch), self.printer)?;
        if let Some((_, why)) = answers.failed.first() {
            return Err(Error::corrupt(format!("a query failed: {why}; run `stratann verify`")));
        }
        let sizes = index.cluster_bytes();
        let overhead = ExtentCache::bytes_of_blocks(1, 0);
        let bytes = |cluster: u32| sizes.get(cluster as usize).map_or(0, |&own| u64::from(own) + overhead);
        let mut lru = Lru::new(budget_bytes);
        let (mut all, mut by_lru, mut own) = (0, 0, 0);
        for (number, of) in recorded.iter().enumerate() {
            let (wanted, loads) = wanted(of);
            let replayed = lru.batch(&wanted, &bytes);
            if number >= batches {
                (all, by_lru, own) = (all + wanted.len(), by_lru + replayed, own + loads);
            }
        }
        let counted = recorded.len().saturating_sub(batches);
        let each = |sum: usize| sum as f64 / (counted * batch).max(1) as f64;
        Ok(AtStream {
            stream,
            batch,
            batches: counted,
            wanted: all as f64 / counted.max(1) as f64,
            loads_without: each(all),
            loads_lru: each(by_lru),
            loads: each(own),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_used_last_stays() {
        let bytes = |_: u32| 10;
        let mut lru = Lru::new(25);
        let mut loads = |clusters: &[u32]| lru.batch(&clusters.iter().copied().collect(), &bytes);
        assert_eq!([loads(&[1, 2]), loads(&[1]), loads(&[3])], [2, 0, 1], "2 is evicted");
        assert_eq!([loads(&[1, 3]), loads(&[2]), loads(&[1])], [0, 1, 1]);
        let mut small = Lru::new(5);
        assert_eq!([1, 1].map(|cluster| small.batch(&BTreeSet::from([cluster]), &bytes)), [1, 1]);
    }

    #[test]
    fn skewed_queries_have_few_topics() {
        let nearest: Vec<u32> = (0..1000).map(|query| query % 50).collect();
        let most = |stream| {
            let draw = Draw::new(&nearest, stream);
            let mut counts = [0; 50];
            (0..10_000).for_each(|number| counts[nearest[draw.query(number)] as usize] += 1);
            counts.into_iter().max().unwrap()
        };
        assert!(most(Stream::Uniform) < 300);
        // The first of 50 topics has 1 of 4.5 shares.
        assert!((2000..2500).contains(&most(Stream::Skewed)));
    }
}
