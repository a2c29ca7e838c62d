//! Answers, and what they cost.

use serde::Serialize;
use stratann_core::query::{Params, QueryStats};
use stratann_storage::budget::Account;

use crate::dataset::GroundTruth;
use crate::exec::{MergedReads, Times};

/// Answers to a batch of queries, and their cost.
#[derive(Debug)]
pub struct Answers {
    /// Results per query: k, or the number of rows when that is less.
    pub k: usize,
    /// `queries × k` external ids, closest first; those past the [`counts`](Answers::counts) mean nothing.
    pub ids: Vec<u64>,
    /// `queries × k` distances; infinite past the counts.
    pub distances: Vec<f32>,
    /// Results of each query, up to k. Every number is an id of some vector, so no id says that there is none.
    pub counts: Vec<u32>,
    /// Nanoseconds from admission to answer, of each query.
    pub latency_ns: Vec<u64>,
    /// Sum over the queries.
    pub stats: QueryStats,
    /// The largest of each counter over the queries.
    pub largest: QueryStats,
    /// Sum over the queries: where their time went.
    pub times: Times,
    /// Sum over the queries: reads that were not made because an equal one was under way.
    pub merged: MergedReads,
    /// Queries that have no answer, and why. They have no results.
    pub failed: Vec<(usize, String)>,
    /// Queries with fewer than k results, because the graph led the search to no more.
    pub short: usize,
    /// Wall-clock seconds.
    pub seconds: f64,
    /// Processor time of the process meanwhile, microseconds.
    pub cpu_us: u64,
    /// The parameters that were used.
    pub params: Params,
    /// Way in which blocks were read.
    pub io_backend: String,
    /// Memory while searching, by component.
    pub account: Account,
}

impl Answers {
    /// Ids and distances of the results of a query.
    pub fn results(&self, query: usize) -> impl Iterator<Item = (u64, f32)> + '_ {
        let row = query * self.k..query * self.k + self.counts[query] as usize;
        self.ids[row.clone()].iter().copied().zip(self.distances[row].iter().copied())
    }

    /// Share of the true first k ids that were found, over all queries. `truth` has `truth_k >= k` ids per query.
    pub fn recall(&self, truth: &[u64], truth_k: usize) -> f64 {
        recall((&self.ids, &self.counts), self.k, truth, truth_k)
    }
}

/// Percentiles of a set of latencies, in microseconds.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Latency {
    /// Mean.
    pub mean: f64,
    /// Median.
    pub p50: f64,
    /// 95th percentile.
    pub p95: f64,
    /// 99th percentile.
    pub p99: f64,
}

impl Latency {
    /// Statistics of nanoseconds, in any order.
    pub fn of(latency_ns: &[u64]) -> Latency {
        let mut sorted = latency_ns.to_vec();
        sorted.sort_unstable();
        let at = |share: f64| {
            let rank = (share * sorted.len() as f64).ceil() as usize;
            sorted.get(rank.saturating_sub(1)).map_or(0.0, |&ns| ns as f64 / 1000.0)
        };
        let mean = sorted.iter().sum::<u64>() as f64 / 1000.0 / sorted.len().max(1) as f64;
        Latency { mean, p50: at(0.5), p95: at(0.95), p99: at(0.99) }
    }
}

/// Share of the true first k ids that were found, over all queries. `truth` has `truth_k >= k` ids per query.
/// Each query has k ids, of which the first `counts` are results.
pub fn recall((ids, counts): (&[u64], &[u32]), k: usize, truth: &[u64], truth_k: usize) -> f64 {
    if k == 0 || ids.is_empty() {
        return 0.0;
    }
    let wanted = k.min(truth_k);
    let found: usize = ids
        .chunks_exact(k)
        .zip(counts)
        .zip(truth.chunks_exact(truth_k))
        .map(|((ids, &count), truth)| {
            let results = &ids[..k.min(count as usize)];
            truth[..wanted].iter().filter(|id| results.contains(id)).count()
        })
        .sum();
    found as f64 / (ids.len() / k * wanted) as f64
}

/// True neighbours among the first k of the queries from number `first` on that were found, and how many there are: of
/// a query that has fewer than k, these alone. Results are those of [`recall`].
pub fn hits((ids, counts): (&[u64], &[u32]), k: usize, truth: &GroundTruth, first: usize) -> (usize, usize) {
    let of_query = |(query, (ids, &count)): (usize, (&[u64], &u32))| {
        let wanted = truth.neighbours_of(query);
        let wanted = &wanted[..k.min(wanted.len())];
        let results = &ids[..k.min(count as usize)];
        (wanted.iter().filter(|&&id| results.contains(&id.into())).count(), wanted.len())
    };
    let queries = (first..).zip(ids.chunks_exact(k.max(1)).zip(counts));
    queries.map(of_query).fold((0, 0), |sum, own| (sum.0 + own.0, sum.1 + own.1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_query_with_few_neighbours_no_more_are_wanted() {
        let fill = GroundTruth::FILL;
        let ids = vec![9, 9, 9, 5, 6, 7, 8, fill, fill, fill, fill, fill];
        let far = f32::INFINITY;
        let distances = vec![1.0, 2.0, 3.0, 1.0, 2.0, 3.0, 1.0, far, far, far, far, far];
        let truth = GroundTruth { k: 3, ids, distances };
        // The second query found two of three, the third its only one, and the fourth has none.
        let found = [5, 7, 1, 8, 0, 0, 0, 0, 0];
        assert_eq!(hits((&found, &[3, 1, 0]), 3, &truth, 1), (3, 4));
        assert_eq!(hits((&[5, 8], &[1, 1]), 1, &truth, 1), (2, 2));
    }

    #[test]
    fn what_fills_a_row_up_is_no_result() {
        // Two queries with k = 3: one has a single result, whose row is filled up with 0, which is a true id as well.
        let ids = [7, 0, 0, 1, 2, 3];
        let truth = [0, 7, 9, 3, 2, 1];
        assert_eq!(recall((&ids, &[1, 3]), 3, &truth, 3), 4.0 / 6.0);
        assert_eq!(recall((&ids, &[0, 3]), 3, &truth, 3), 3.0 / 6.0);
        assert_eq!(recall((&ids, &[9, 9]), 3, &truth, 3), 5.0 / 6.0);
        assert_eq!(recall((&[], &[]), 3, &truth, 3), 0.0);
    }
}
