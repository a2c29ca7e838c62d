//! Loads: queries as they are given, and drawn so that one server of whole lists has most of the work.

use std::collections::{BTreeMap, HashSet};
use std::path::PathBuf;
use stratann_params::search::GridSwitches;

use serde::Serialize;
use stratann_cli::queries::Queries;
use stratann_core::hash::hash;
use stratann_engine::DType;
use stratann_engine::dataset::{Shape, write_bin};
use stratann_engine::explain::explain;
use stratann_engine::trace::Scans;
use stratann_storage::output::OutputPath;
use stratann_storage::{Progress, Result};

use super::Bench;

/// Queries of which skewed loads are drawn, at most.
const POOL: usize = 2000;
/// Largest exponent of the weights.
const STEEPEST: f64 = 200.0;
const SEED: u64 = 7;
/// Exponent of a Zipf load, and the stream of the order of its lists.
const ZIPF: f64 = 1.1;
const ZIPF_STREAM: u64 = 3;

/// Queries of a load, and others of the same load, which a planner may see.
pub(super) struct Load {
    pub(super) name: String,
    pub(super) queries: Queries,
    pub(super) sample: PathBuf,
}

/// Origin of a skewed load.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Skew {
    pub(super) load: String,
    /// Servers whose load is skewed.
    pub(super) servers: usize,
    /// The share of one server of whole lists that was asked for, and what the draw is expected to have; `None` of a
    /// Zipf load.
    pub(super) asked: Option<f64>,
    pub(super) expected: Option<f64>,
    pub(super) nprobe: u32,
    /// The recall that these lists reach with the given queries.
    pub(super) recall: f64,
    /// Different queries in the load.
    pub(super) distinct_queries: usize,
}

impl Skew {
    /// Lists of a query, and the recall.
    pub(super) fn probes(&self) -> (u32, f64) {
        (self.nprobe, self.recall)
    }
}

/// Weights of queries with which their nearest lists are visited by Zipf's law, in the order of a hash.
fn zipf_weights(nearest: &[u32]) -> Vec<f64> {
    let mut queries_of: BTreeMap<u32, usize> = BTreeMap::new();
    nearest.iter().for_each(|&list| *queries_of.entry(list).or_default() += 1);
    let mut ranked: Vec<u32> = queries_of.keys().copied().collect();
    ranked.sort_by_key(|&list| hash(SEED, ZIPF_STREAM, u64::from(list)));
    let weight_of: BTreeMap<u32, f64> = ranked
        .iter()
        .enumerate()
        .map(|(rank, &list)| (list, (rank as f64 + 1.0).powf(-ZIPF) / queries_of[&list] as f64))
        .collect();
    nearest.iter().map(|list| weight_of[list]).collect()
}

/// Components that each query compares in each row of lists.
pub(super) struct Visits {
    work: Vec<Vec<f64>>,
    rows: usize,
}

impl Visits {
    /// The row that some queries crowd into most, by the 20th part of the queries with the largest share of it.
    fn hottest(&self) -> usize {
        let crowded = |row: usize| {
            let mut shares: Vec<f64> = self.work.iter().map(|work| share_of(work, row)).collect();
            shares.sort_by(|a, b| b.total_cmp(a));
            shares.get(shares.len() / 20).copied().unwrap_or(0.0)
        };
        (0..self.rows).max_by(|&a, &b| crowded(a).total_cmp(&crowded(b))).unwrap_or(0)
    }

    /// Weights of the queries, which grow exponentially with their share of a row.
    fn weights(&self, row: usize, steepness: f64) -> Vec<f64> {
        let largest = self.work.iter().map(|work| share_of(work, row)).fold(0.0, f64::max);
        self.work.iter().map(|work| (steepness * (share_of(work, row) - largest)).exp()).collect()
    }

    /// The share of a row of all work of weighted queries.
    fn share(&self, row: usize, weights: &[f64]) -> f64 {
        let sum = |of: &dyn Fn(&Vec<f64>) -> f64| -> f64 {
            self.work.iter().zip(weights).map(|(work, weight)| weight * of(work)).sum()
        };
        sum(&|work| work[row]) / sum(&|work| work.iter().sum()).max(f64::MIN_POSITIVE)
    }

    /// The least steep weights with which one row has this share of the work, or the steepest ones; and their share.
    pub(super) fn skewed(&self, wanted: f64) -> (Vec<f64>, f64) {
        let row = self.hottest();
        let (mut low, mut high) = (0.0, STEEPEST);
        for _ in 0..40 {
            let middle = (low + high) / 2.0;
            if self.share(row, &self.weights(row, middle)) < wanted { low = middle } else { high = middle }
        }
        let weights = self.weights(row, high);
        let share = self.share(row, &weights);
        (weights, share)
    }
}

fn share_of(work: &[f64], row: usize) -> f64 {
    work[row] / work.iter().sum::<f64>().max(f64::MIN_POSITIVE)
}

impl Bench<'_> {
    /// The given queries.
    pub(super) fn even_load(&self) -> Result<Load> {
        let count = self.args.sample.clamp(1, self.queries.count());
        let first: Vec<usize> = (0..count).collect();
        // Where there are enough, the planner sees others.
        let others: Vec<usize> = (0..count).map(|i| (count + i) % self.queries.count()).collect();
        self.load("even", &first, &others)
    }

    /// Queries that are drawn by weights, with replacement, and how many of them differ.
    pub(super) fn drawn_load(&self, name: &str, weights: &[f64]) -> Result<(Load, usize)> {
        let count = self.args.sample.max(1);
        let queries = draw(weights, count, 1);
        let distinct = queries.iter().collect::<HashSet<_>>().len();
        Ok((self.load(name, &queries, &draw(weights, count, 2))?, distinct))
    }

    /// Work of queries on one server, by rows of lists.
    pub(super) fn visits(&self, nprobe: u32, row_of_list: &[u32]) -> Result<Visits> {
        let rows = row_of_list.iter().copied().max().map_or(1, |row| row as usize + 1);
        let mut work = Vec::new();
        self.scans(nprobe, |scans| {
            let mut own = vec![0.0; rows];
            for scan in &scans.lists {
                own[row_of_list[scan.list as usize] as usize] += scan.components as f64;
            }
            work.push(own);
        })?;
        Ok(Visits { work, rows })
    }

    /// Weights of a Zipf load.
    pub(super) fn zipf(&self, nprobe: u32) -> Result<Vec<f64>> {
        let mut nearest = Vec::new();
        self.scans(nprobe, |scans| nearest.push(scans.lists.first().map_or(0, |scan| scan.list)))?;
        Ok(zipf_weights(&nearest))
    }

    /// Scans of lists of each query of the pool.
    fn scans(&self, nprobe: u32, mut each: impl FnMut(&Scans)) -> Result<()> {
        let options = self.options(nprobe, GridSwitches::default());
        let mut vectors = Vec::new();
        self.queries.read(0, self.queries.count().min(POOL), &mut vectors)?;
        for vector in vectors.chunks_exact(self.queries.row_bytes()) {
            self.printer.check_interrupted()?;
            if let Some(scans) = explain(&self.index, vector, &options)?.event() {
                each(scans);
            }
        }
        Ok(())
    }

    fn load(&self, name: &str, queries: &[usize], sample: &[usize]) -> Result<Load> {
        let path = self.write(&format!("load-{name}"), queries)?;
        let sample = self.write(&format!("load-{name}-sample"), sample)?;
        let queries = Queries::open(&path, self.index.manifest(), self.output)?;
        Ok(Load { name: name.into(), queries, sample })
    }

    /// Writes some queries, in the type of the index.
    fn write(&self, name: &str, numbers: &[usize]) -> Result<PathBuf> {
        let wanted = self.queries.wanted();
        let suffix = match wanted.dtype {
            DType::F32 => "fbin",
            DType::F16 => "f16bin",
            DType::U8 => "u8bin",
            DType::I8 => "i8bin",
        };
        let path = self.args.folder().join(format!("{name}.{suffix}"));
        let shape = Shape { rows: numbers.len() as u64, dim: wanted.dim, dtype: wanted.dtype };
        let row = |&number: &usize| {
            let mut row = Vec::new();
            self.queries.read(number, 1, &mut row).map(|()| row)
        };
        write_bin(&OutputPath::check(&path, true, &[])?, shape, numbers.iter().map(row))?;
        Ok(path)
    }
}

/// Numbers of queries, drawn by their weights with replacement.
fn draw(weights: &[f64], count: usize, stream: u64) -> Vec<usize> {
    let mut sums = Vec::with_capacity(weights.len());
    let mut sum = 0.0;
    for weight in weights {
        sum += weight;
        sums.push(sum);
    }
    let one = |i: usize| {
        let uniform = (hash(SEED, stream, i as u64) >> 11) as f64 / (1u64 << 53) as f64;
        sums.partition_point(|&below| below <= uniform * sum).min(weights.len().saturating_sub(1))
    };
    (0..count).map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_follow_weights() {
        let drawn = draw(&[1.0, 0.0, 3.0], 4000, 1);
        let times = |number| drawn.iter().filter(|&&one| one == number).count();
        assert_eq!(times(1), 0);
        assert!((2900..3100).contains(&times(2)), "{}", times(2));
        assert_ne!(drawn, draw(&[1.0, 0.0, 3.0], 4000, 2));
    }

    #[test]
    fn the_hottest_list_of_a_zipf_load_has_its_share() {
        // Ten queries of one list count as much as one of another.
        let weights = zipf_weights(&[5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 8, 9]);
        let of = [weights[..10].iter().sum::<f64>(), weights[10], weights[11]];
        let mut sorted = of;
        sorted.sort_by(|a, b| b.total_cmp(a));
        let expected = [1.0, 0.5f64.powf(ZIPF), (1.0f64 / 3.0).powf(ZIPF)];
        assert!(sorted.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-9), "{of:?}");
    }

    #[test]
    fn skewed_loads_have_the_share_that_queries_allow() {
        // Shares of the first row from 1 down to 0.1.
        let work = (0..10).map(|i| vec![10.0 - f64::from(i), f64::from(i)]).collect();
        let visits = Visits { work, rows: 2 };
        let (weights, share) = visits.skewed(0.7);
        assert!((share - 0.7).abs() < 1e-6, "{share}");
        assert!(weights.iter().all(|weight| *weight > 0.0));
        let (_, most) = visits.skewed(1.0);
        assert!((most - 1.0).abs() < 1e-6, "{most}");
        assert!((visits.skewed(0.1).1 - 0.55).abs() < 1e-6, "no load is made less skewed than it is");
    }
}
