//! Time and exact counters of a scheme.

use serde::Serialize;
use stratann_core::query::QueryStats;
use stratann_engine::exec::BatchOptions;
use stratann_engine::kinds::remote_hnsw::baseline::LoadScheme;
use stratann_engine::search::{Answers, Effort, Latency, SearchOptions};
use stratann_params::search::RemoteSwitches;
use stratann_storage::{Error, Progress, Result};

use super::Bench;

/// Runs of a batch after the one that fills the cache; the median counts.
const ROUNDS: usize = 3;

/// A scheme with one setting, for each query.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Measured {
    pub(super) scheme: &'static str,
    pub(super) k: usize,
    pub(super) ef: u32,
    pub(super) recall: f64,
    pub(super) queries: usize,
    /// Time of all threads for the batch, divided by its queries.
    pub(super) time_us: f64,
    /// Time that is neither of the next two: waiting for loads, checking them, and the driver.
    pub(super) network_us: f64,
    pub(super) sub_hnsw_us: f64,
    pub(super) meta_hnsw_us: f64,
    /// Time from the admission of a query to its answer, which comes late in its batch.
    pub(super) latency_us: Latency,
    /// Exact: the same on any machine. Reads of headers count too.
    pub(super) round_trips: f64,
    pub(super) bytes: f64,
    pub(super) loads: f64,
    pub(super) cache_hits: f64,
    pub(super) needs: f64,
    pub(super) comparisons: f64,
    /// Ratio of the times of `naive` to those of this scheme; absent where naive was not measured.
    pub(super) speedup: Option<f64>,
    pub(super) round_trips_of_naive: Option<f64>,
    pub(super) bytes_of_naive: Option<f64>,
    pub(super) loads_of_naive: Option<f64>,
}

impl Measured {
    fn of(
        (scheme, k, ef): (LoadScheme, usize, u32),
        answers: &Answers,
        threads: usize,
        recall: f64,
    ) -> Measured {
        let queries = answers.latency_ns.len();
        let each = |sum: u64| sum as f64 / queries.max(1) as f64;
        let us = |ns: u64| each(ns) / 1000.0;
        let time_us = answers.seconds * 1e6 * threads as f64 / queries.max(1) as f64;
        let (meta, sub) = (us(answers.times.route), us(answers.times.verify));
        let stats: &QueryStats = &answers.stats;
        Measured {
            scheme: scheme.name(),
            k,
            ef,
            recall,
            queries,
            time_us,
            network_us: (time_us - meta - sub).max(0.0),
            sub_hnsw_us: sub,
            meta_hnsw_us: meta,
            latency_us: Latency::of(&answers.latency_ns),
            round_trips: each(stats.round_trips),
            bytes: each(stats.bytes_read),
            loads: each(stats.reads),
            cache_hits: each(stats.cache_hits),
            needs: each(stats.clusters),
            comparisons: each(stats.full_comparisons),
            speedup: None,
            round_trips_of_naive: None,
            bytes_of_naive: None,
            loads_of_naive: None,
        }
    }

    /// Compares it with naive.
    fn compare(&mut self, naive: &Measured) {
        let of = |own: f64, naive: f64| (naive > 0.0).then(|| own / naive);
        self.speedup = of(naive.time_us, self.time_us);
        self.round_trips_of_naive = of(self.round_trips, naive.round_trips);
        self.bytes_of_naive = of(self.bytes, naive.bytes);
        self.loads_of_naive = of(self.loads, naive.loads);
    }
}

impl Bench<'_> {
    /// Options of a search.
    pub(super) fn options(&self, k: usize, ef: u32, batch_options: BatchOptions) -> SearchOptions {
        SearchOptions {
            k,
            effort: Effort::Nprobe(self.nprobe, None, None),
            threads: self.threads(),
            batch_options,
            switches: RemoteSwitches { ef: Some(ef), ..RemoteSwitches::default() }.into(),
            ..SearchOptions::default()
        }
    }

    /// Runs queries. One that fails is an error.
    pub(super) fn run(&self, rows: &[u8], options: &SearchOptions) -> Result<Answers> {
        let answers = self.index.search(rows, options, self.printer)?;
        match answers.failed.first() {
            Some((query, why)) => Err(Error::corrupt(format!(
                "query {query} of {} failed: {why}; run `stratann verify`",
                self.args.queries.display()
            ))),
            None => Ok(answers),
        }
    }

    /// A cache that has room for the share of clusters that was asked for.
    pub(super) fn usual_cache(&mut self) {
        let bytes = self.facts.cluster_bytes as f64 * self.args.remote.share();
        self.index.set_cache_budget(bytes as u64);
    }

    /// Measures schemes at one setting, each against naive.
    pub(super) fn compare(&mut self, schemes: &[LoadScheme], k: usize, ef: u32) -> Result<Vec<Measured>> {
        let mut found = Vec::new();
        for &scheme in schemes {
            found.push(self.measure(scheme, k, ef)?);
        }
        let naive = found.iter().find(|of| of.scheme == LoadScheme::Naive.name()).cloned();
        if let Some(naive) = naive {
            found.iter_mut().for_each(|of| of.compare(&naive));
        }
        Ok(found)
    }

    /// Measures a scheme. All but naive have a cache that an equal batch has filled.
    pub(super) fn measure(&mut self, scheme: LoadScheme, k: usize, ef: u32) -> Result<Measured> {
        let own = BatchOptions { batch: self.args.remote.batch(), ..BatchOptions::default() };
        let options = self.options(k, ef, scheme.batch_options(own));
        let is_naive = scheme == LoadScheme::Naive;
        if is_naive {
            self.index.set_cache_budget(0);
        } else {
            self.usual_cache();
        }
        let rows = if is_naive { self.sample_rows() } else { self.batch_rows() };
        let passes = if is_naive { 1 } else { 1 + ROUNDS };
        let count = rows.len() / self.row_bytes;
        self.printer.stage(&format!("{}, k {k}, ef {ef}", scheme.name()), (passes * count) as u64, "queries");
        let mut runs = Vec::new();
        for _ in 0..passes {
            runs.push(self.run(rows, &options)?);
        }
        let mut timed = if is_naive { runs } else { runs.split_off(1) };
        timed.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
        let answers = timed.swap_remove(timed.len() / 2);
        let truth: Vec<u64> = (0..count)
            .flat_map(|query| self.truth.ids_of(query)[..k].iter().map(|&id| u64::from(id)))
            .collect();
        let reached = answers.recall(&truth, k);
        // No more threads search than there are queries in flight.
        let threads = if is_naive { 1 } else { self.threads().min(count.max(1)) };
        Ok(Measured::of((scheme, k, ef), &answers, threads, reached))
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A scheme with these round trips, bytes and microseconds of the search.
    pub(in super::super) fn measured(scheme: LoadScheme, [round_trips, bytes, sub]: [f64; 3]) -> Measured {
        let key = (scheme, 10, 48);
        let answers = Answers { latency_ns: vec![1000; 2000], seconds: 0.0, ..empty() };
        let loads = round_trips;
        Measured {
            round_trips,
            bytes,
            loads,
            sub_hnsw_us: sub,
            meta_hnsw_us: 1.0,
            ..Measured::of(key, &answers, 1, 0.9)
        }
    }

    fn empty() -> Answers {
        Answers {
            k: 10,
            ids: Vec::new(),
            distances: Vec::new(),
            counts: Vec::new(),
            latency_ns: Vec::new(),
            stats: QueryStats::default(),
            largest: QueryStats::default(),
            times: stratann_engine::exec::Times::default(),
            merged: stratann_engine::exec::MergedReads::default(),
            failed: Vec::new(),
            short: 0,
            seconds: 0.0,
            cpu_us: 0,
            params: stratann_core::query::Params::remote_hnsw(10, 1),
            io_backend: String::new(),
            account: stratann_storage::budget::Account::new(),
        }
    }

    #[test]
    fn stages_of_a_query_add_up_to_its_time() {
        let mut answers = Answers { latency_ns: vec![9000; 4], seconds: 40e-6, ..empty() };
        (answers.times.route, answers.times.verify) = (4000, 20_000);
        answers.stats = QueryStats { reads: 8, round_trips: 2, bytes_read: 400, ..QueryStats::default() };
        let mut own = Measured::of((LoadScheme::Own, 10, 48), &answers, 2, 0.9);
        assert_eq!((own.time_us, own.meta_hnsw_us, own.sub_hnsw_us, own.network_us), (20.0, 1.0, 5.0, 14.0));
        assert_eq!((own.loads, own.round_trips, own.bytes), (2.0, 0.5, 100.0));
        let naive = Measured { time_us: 200.0, round_trips: 5.0, ..own.clone() };
        own.compare(&naive);
        assert_eq!(
            (own.speedup, own.round_trips_of_naive, own.bytes_of_naive),
            (Some(10.0), Some(0.1), Some(1.0))
        );
    }
}
