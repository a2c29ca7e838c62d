//! One server: what pruning is worth at a recall, and how many vectors are left after each quarter of the components.

use serde::Serialize;
use stratann_core::kinds::KindView;
use stratann_engine::explain::explain;
use stratann_engine::search::Answers;
use stratann_engine::trace::Scans;
use stratann_params::search::GridSwitches;
use stratann_storage::{Error, Progress, Result};

use super::Bench;

/// The name of what has all techniques.
pub(super) const ALL: &str = "all";
/// Runs of each setting; the median counts.
const ROUNDS: usize = 3;
/// Quarters, as in table 3.
const SLICES: usize = 4;

/// A setting at the least number of lists that reaches a recall.
#[derive(Clone, Debug, Serialize)]
pub(super) struct AtRecall {
    pub(super) name: &'static str,
    /// The recall that was asked for.
    pub(super) asked: f64,
    pub(super) recall: f64,
    pub(super) nprobe: u32,
    pub(super) qps: f64,
    /// Components of a query that were compared, those for a first threshold and of pilots included.
    pub(super) components: f64,
    /// Share of the components of the same lists that were not compared.
    pub(super) skipped: f64,
}

/// Shares of the vectors of visited lists.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Survival {
    pub(super) nprobe: u32,
    /// Dropped before each quarter of the components, those of the largest variance first.
    pub(super) dropped_before: Vec<f64>,
    /// Mean of the shares.
    pub(super) mean: f64,
    /// Components, and the share of vectors that is left after so many.
    pub(super) left: Vec<(u32, f64)>,
}

/// Variation over queries of the share of components that a query skips (§3.1).
#[derive(Clone, Debug, Serialize)]
pub(super) struct Stability {
    pub(super) nprobe: u32,
    pub(super) mean: f64,
    pub(super) standard_deviation: f64,
    pub(super) least: f64,
    /// One query in twenty skips no more.
    pub(super) p5: f64,
    pub(super) median: f64,
    pub(super) p95: f64,
    pub(super) most: f64,
}

impl Stability {
    fn of(nprobe: u32, mut skipped: Vec<f64>) -> Stability {
        skipped.sort_by(f64::total_cmp);
        let count = skipped.len().max(1) as f64;
        let mean = skipped.iter().sum::<f64>() / count;
        let variance = skipped.iter().map(|share| (share - mean).powi(2)).sum::<f64>() / count;
        let at = |part: f64| {
            let place = (part * count).ceil().max(1.0) as usize - 1;
            skipped.get(place).copied().unwrap_or(0.0)
        };
        Stability {
            nprobe,
            mean,
            standard_deviation: variance.sqrt(),
            least: at(0.0),
            p5: at(0.05),
            median: at(0.5),
            p95: at(0.95),
            most: at(1.0),
        }
    }
}

/// A technique that is switched off.
pub(super) type Variant = (&'static str, GridSwitches);

impl Bench<'_> {
    /// Techniques that are switched off, one by one. Codes are one where the index has them.
    pub(super) fn variants(&self) -> Vec<Variant> {
        let on = GridSwitches::default();
        let codes = ("no pruning by codes", GridSwitches { prune_code: false, ..on });
        let has_codes =
            matches!(self.index.view().kind, KindView::GridIvf(view) if view.layout.code.is_some());
        let all = [
            (ALL, on),
            ("no pruning by vectors", GridSwitches { prune_vector: false, ..on }),
            ("no pruning by dimensions", GridSwitches { prune_dimension: false, ..on }),
            ("no pruning", GridSwitches { prune_vector: false, prune_dimension: false, ..on }),
            ("no prewarming", GridSwitches { prewarm: false, ..on }),
        ];
        all.into_iter().chain(has_codes.then_some(codes)).collect()
    }

    /// All variants at all recalls. Rounds are interleaved, so that a disturbance affects all.
    pub(super) fn one_server(&self) -> Result<Vec<AtRecall>> {
        let rows = self.sample()?;
        let mut found = Vec::new();
        let variants = self.variants();
        for &asked in &self.args.recall {
            let nprobe = self.probes(&rows, asked)?;
            self.printer.stage(
                &format!("one server at a recall of {asked}"),
                (ROUNDS * variants.len() * rows.len() / self.queries.row_bytes()) as u64,
                "queries",
            );
            let mut runs: Vec<Vec<Answers>> = variants.iter().map(|_| Vec::new()).collect();
            for _ in 0..ROUNDS {
                for (runs, &(_, switches)) in runs.iter_mut().zip(&variants) {
                    runs.push(self.index.search(&rows, &self.options(nprobe, switches), self.printer)?);
                }
            }
            let named = runs.into_iter().zip(&variants);
            found.extend(named.map(|(runs, &(name, _))| self.at(name, (asked, nprobe), runs)));
        }
        Ok(found)
    }

    fn at(&self, name: &'static str, (asked, nprobe): (f64, u32), mut runs: Vec<Answers>) -> AtRecall {
        runs.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
        let run = &runs[runs.len() / 2];
        let queries = run.latency_ns.len().max(1) as f64;
        let unpruned = run.stats.components_unpruned.max(1) as f64;
        AtRecall {
            name,
            asked,
            recall: self.recall(run),
            nprobe,
            qps: queries / run.seconds.max(1e-9),
            components: run.stats.components as f64 / queries,
            skipped: 1.0 - run.stats.components as f64 / unpruned,
        }
    }

    fn recall(&self, answers: &Answers) -> f64 {
        let queries = answers.latency_ns.len();
        let of = |q: usize| self.truth.ids_of(q)[..self.args.k].iter().map(|&id| u64::from(id));
        let truth: Vec<u64> = (0..queries).flat_map(of).collect();
        answers.recall(&truth, self.args.k)
    }

    /// The least number of lists that reaches a recall.
    fn probes(&self, rows: &[u8], asked: f64) -> Result<u32> {
        let lists = self.lists().max(1);
        let is_enough = |nprobe: u32| -> Result<bool> {
            let options = self.options(nprobe, GridSwitches::default());
            Ok(self.recall(&self.index.search(rows, &options, self.printer)?) >= asked)
        };
        let (mut low, mut high) = (1, 1);
        while !is_enough(high)? {
            if high >= lists {
                return Err(Error::bad_input(format!(
                    "all {lists} lists do not reach a recall of {asked}; give a lower --recall"
                )));
            }
            (low, high) = (high + 1, (2 * high).min(lists));
        }
        while low < high {
            let middle = low + (high - low) / 2;
            if is_enough(middle)? {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        Ok(high)
    }

    /// Numbers of vectors that are left after each group of components, and the share that each query skips.
    pub(super) fn survival(&self, nprobe: u32) -> Result<(Survival, Stability)> {
        let rows = self.sample()?;
        let options = self.options(nprobe, GridSwitches::default());
        let (mut left, mut members): (Vec<(u32, f64)>, f64) = (Vec::new(), 0.0);
        let mut skipped = Vec::new();
        for row in rows.chunks_exact(self.queries.row_bytes()) {
            let trace = explain(&self.index, row, &options)?;
            let Some(scans) = trace.event::<Scans>() else { continue };
            left.resize(scans.left.len(), (0, 0.0));
            for (sum, own) in left.iter_mut().zip(&scans.left) {
                *sum = (own.components, sum.1 + own.vectors as f64);
            }
            let stats = &trace.stats;
            skipped.push(1.0 - stats.components as f64 / stats.components_unpruned.max(1) as f64);
            members += scans.lists.iter().map(|list| f64::from(list.members)).sum::<f64>();
            self.printer.check_interrupted()?;
        }
        left.iter_mut().for_each(|point| point.1 /= members.max(1.0));
        let dim = self.index.manifest().dim;
        let before = |slice: usize| {
            let at = (slice * dim / SLICES) as u32;
            let known = left.iter().rfind(|point| point.0 <= at && point.0 > 0);
            if slice == 0 { 0.0 } else { 1.0 - known.map_or(1.0, |point| point.1) }
        };
        let dropped_before: Vec<f64> = (0..SLICES).map(before).collect();
        let mean = dropped_before.iter().sum::<f64>() / SLICES as f64;
        Ok((Survival { nprobe, dropped_before, mean, left }, Stability::of(nprobe, skipped)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stability_is_that_of_the_queries() {
        let found = Stability::of(4, vec![0.5, 0.7, 0.9, 0.7]);
        assert!((found.mean - 0.7).abs() < 1e-9 && (found.standard_deviation - 0.02f64.sqrt()).abs() < 1e-9);
        assert_eq!((found.least, found.p5, found.median, found.p95, found.most), (0.5, 0.5, 0.7, 0.9, 0.9));
    }
}
