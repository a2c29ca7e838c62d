//! Numbers of candidates that each query needs (figure 5): the smallest number that gives the best recall of its lists.

use rayon::prelude::*;
use serde::Serialize;
use stratann_core::kinds::gpu_ivf::MAX_CANDIDATES;
use stratann_engine::explain::explain;
use stratann_storage::{Progress, Result};

use super::Bench;
use super::settings::{Family, Setting};
use super::ways::Way;

/// Most candidates of a query, for each result.
const CANDIDATES: u32 = 64;
/// Numbers of candidates for each result. The share of queries that are complete with so many is reported.
const TIMES: [u32; 7] = [1, 2, 4, 8, 16, 32, 64];

/// The distribution over queries.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Needed {
    pub(super) nprobe: u32,
    /// Candidates that were looked at.
    pub(super) most: u32,
    pub(super) mean: f64,
    pub(super) standard_deviation: f64,
    pub(super) p5: u32,
    pub(super) p25: u32,
    pub(super) p50: u32,
    pub(super) p75: u32,
    pub(super) p95: u32,
    pub(super) p99: u32,
    pub(super) max: u32,
    /// Candidates, and the share of queries that need no more.
    pub(super) complete: Vec<(u32, f64)>,
}

impl Needed {
    fn of(nprobe: u32, most: u32, k: u32, mut each: Vec<u32>) -> Needed {
        each.sort_unstable();
        let count = each.len().max(1) as f64;
        let mean = each.iter().map(|&n| f64::from(n)).sum::<f64>() / count;
        let variance = each.iter().map(|&n| (f64::from(n) - mean).powi(2)).sum::<f64>() / count;
        let at = |share: f64| {
            let place = (share * count).ceil().max(1.0) as usize - 1;
            each.get(place).copied().unwrap_or(0)
        };
        let share = |n: u32| each.iter().filter(|&&needed| needed <= n).count() as f64 / count;
        Needed {
            nprobe,
            most,
            mean,
            standard_deviation: variance.sqrt(),
            p5: at(0.05),
            p25: at(0.25),
            p50: at(0.5),
            p75: at(0.75),
            p95: at(0.95),
            p99: at(0.99),
            max: at(1.0),
            complete: TIMES.map(|times| (times.saturating_mul(k), share(times.saturating_mul(k)))).to_vec(),
        }
    }
}

impl Bench<'_> {
    /// Candidates that all queries need, with these lists.
    pub(super) fn needed(&self, nprobe: u32) -> Result<Needed> {
        let most = self.k().saturating_mul(CANDIDATES).min(MAX_CANDIDATES);
        let way = Way::of_family(Family::Static);
        let options = self.options(&way, &Setting::fixed(nprobe, most), 1);
        self.printer.stage("candidates that queries need", self.queries.count() as u64, "queries");
        let queries: Vec<&[u8]> = self.rows.chunks_exact(self.queries.row_bytes()).collect();
        let truths: Vec<&[u64]> = self.truth.chunks_exact(self.args.k).collect();
        let each = queries.par_iter().zip(&truths).map(|(query, truth)| {
            let trace = explain(&self.index, query, &options)?;
            self.printer.advance(1);
            let true_ones = trace.results.all().iter().filter(|result| truth.contains(&result.id));
            let last = true_ones.filter_map(|result| result.found?.candidate).max();
            Ok(last.map_or(0, |rank| rank + 1))
        });
        Ok(Needed::of(nprobe, most, self.k(), each.collect::<Result<Vec<u32>>>()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_distribution_is_that_of_the_queries() {
        let needed = Needed::of(4, 1000, 10, vec![10, 20, 30, 300]);
        assert_eq!((needed.p5, needed.p50, needed.p99, needed.max, needed.mean), (10, 20, 300, 300, 90.0));
        assert_eq!(needed.complete[..3], [(10, 0.25), (20, 0.5), (40, 0.75)]);
        assert_eq!(needed.complete.last(), Some(&(640, 1.0)));
    }
}
