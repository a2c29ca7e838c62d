//! `stratann bench generate`: seeded vectors with queries of the same distribution.

use std::f64::consts::TAU;
use std::path::PathBuf;

use clap::ValueEnum;
use stratann_core::hash::hash;
use stratann_engine::DType;
use stratann_engine::dataset::{Shape, write_bin};
use stratann_storage::output::OutputPath;
use stratann_storage::{Error, Result};

use crate::Verdict;
use crate::output::{Named, Output, count};

/// Generate vectors for measurements, with queries of the same distribution
///
/// Writes base.fbin and query.fbin. Equal options give equal files, whatever the number of rows of the other file.
#[derive(clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Args {
    /// Distribution
    #[arg(value_enum)]
    shape: ShapeName,
    /// Folder for base.fbin and query.fbin
    #[arg(short, long, value_name = "DIR")]
    output: PathBuf,
    /// Components of a vector
    #[arg(long, value_name = "D", value_parser = clap::value_parser!(u32).range(1..=4096))]
    dim: u32,
    /// Vectors
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    rows: u32,
    /// Queries
    #[arg(long, default_value_t = 1000, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    queries: u32,
    /// Clusters that rows are drawn from
    #[arg(long, default_value_t = 100, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    clusters: u32,
    /// Seed of all numbers
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Replace existing files
    #[arg(long)]
    force: bool,
}

const EXAMPLES: &str = "\
Examples:
  stratann bench generate gaussian -o g256 --dim 256 --rows 100000
  stratann bench generate series -o stars --dim 1024 --rows 20000
  stratann groundtruth stars/base.fbin stars/query.fbin -o stars/truth.ibin";

/// Distributions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ShapeName {
    /// Independent normal components around the centres of the clusters.
    Gaussian,
    /// As gaussian; sizes of the clusters, and their shares of the queries, follow Zipf's law.
    Skewed,
    /// Long smooth series: sums of slow sinusoids, whose phases and amplitudes vary within a cluster, and some noise.
    Series,
}

/// Standard deviation of a component around its centre; centres have 1.
const SPREAD: f64 = 0.6;
/// Sinusoids of a series, and the largest number of periods that one has.
const WAVES: usize = 8;
const PERIODS: f64 = 12.0;
/// Standard deviations within a cluster of series: of a phase, of an amplitude (as a share of it), of the noise.
const PHASE: f64 = 0.4;
const AMPLITUDE: f64 = 0.2;
const NOISE: f64 = 0.05;
/// Streams of random numbers.
const CENTRES: u64 = 1;
const BASE: u64 = 2;
const QUERIES: u64 = 3;

/// Runs `stratann bench generate`.
pub(crate) fn run(args: &Args, output: Output) -> Result<Verdict> {
    std::fs::create_dir_all(&args.output).map_err(|e| Error::io("creating", &args.output, &e))?;
    let files = [("base.fbin", BASE, args.rows), ("query.fbin", QUERIES, args.queries)];
    let paths: Vec<OutputPath> = files
        .iter()
        .map(|file| OutputPath::check(&args.output.join(file.0), args.force, &[]))
        .collect::<Result<_>>()?;
    for (path, (_, stream, rows)) in paths.iter().zip(files) {
        let shape = Shape { rows: u64::from(rows), dim: args.dim as usize, dtype: DType::F32 };
        let row = |number: u32| {
            let row = args.row(&mut Random::of(args.seed, stream, number));
            Ok(row.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>())
        };
        write_bin(path, shape, (0..rows).map(row))?;
    }
    let document = serde_json::json!({
        "base": Named(paths[0].path()), "queries": Named(paths[1].path()), "rows": args.rows, "dim": args.dim,
        "seed": args.seed,
    });
    output.result(&document, || {
        let (rows, queries) = (count(args.rows.into()), count(args.queries.into()));
        format!("{}: {rows} rows of {} f32 and {queries} queries\n", args.output.display(), args.dim)
    })?;
    Ok(Verdict::Fine)
}

impl Args {
    /// A row near the centre of a cluster.
    fn row(&self, random: &mut Random) -> Vec<f32> {
        let drawn = random.uniform();
        let cluster = match self.shape {
            ShapeName::Skewed => zipf(drawn, self.clusters),
            _ => (drawn * f64::from(self.clusters)) as u32,
        };
        let mut centre = Random::of(self.seed, CENTRES, cluster.min(self.clusters - 1));
        match self.shape {
            ShapeName::Gaussian | ShapeName::Skewed => {
                (0..self.dim).map(|_| (centre.normal() + SPREAD * random.normal()) as f32).collect()
            }
            ShapeName::Series => series(self.dim as usize, &mut centre, random),
        }
    }
}

/// The cluster of a number from 0 up to 1, where cluster i has a share of 1/(i + 1).
///
/// The sum of these shares is nearly the integral of 1/x from 1/2 on, whose inverse is an exponential.
fn zipf(drawn: f64, clusters: u32) -> u32 {
    let all = (2.0 * f64::from(clusters) + 1.0).ln();
    (((all * drawn).exp() - 1.0) / 2.0) as u32
}

/// A sum of sinusoids like those of its cluster.
fn series(dim: usize, centre: &mut Random, random: &mut Random) -> Vec<f32> {
    let mut row: Vec<f64> = (0..dim).map(|_| NOISE * random.normal()).collect();
    for wave in 1..=WAVES {
        let periods = 0.5 + centre.uniform() * PERIODS;
        let phase = TAU * centre.uniform() + PHASE * random.normal();
        let amplitude = centre.normal() / (wave as f64).sqrt() * (1.0 + AMPLITUDE * random.normal());
        for (at, x) in row.iter_mut().enumerate() {
            *x += amplitude * (TAU * periods * at as f64 / dim as f64 + phase).sin();
        }
    }
    row.into_iter().map(|x| x as f32).collect()
}

/// Random numbers of one row or centre, which depend on nothing else.
struct Random {
    seed: u64,
    drawn: u64,
}

impl Random {
    fn of(seed: u64, stream: u64, number: u32) -> Random {
        Random { seed: hash(seed, stream, u64::from(number)), drawn: 0 }
    }

    /// A number from 0 up to 1.
    fn uniform(&mut self) -> f64 {
        self.drawn += 1;
        (hash(self.seed, 0, self.drawn) >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Standard normal (Box and Muller).
    fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.uniform()).ln()).sqrt();
        radius * (TAU * self.uniform()).cos()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(shape: ShapeName) -> Args {
        let output = PathBuf::new();
        Args { shape, output, dim: 256, rows: 100, queries: 10, clusters: 5, seed: 3, force: false }
    }

    #[test]
    fn normal_numbers_have_their_mean_and_deviation() {
        let mut random = Random::of(1, 2, 3);
        let drawn: Vec<f64> = (0..20_000).map(|_| random.normal()).collect();
        let mean = drawn.iter().sum::<f64>() / drawn.len() as f64;
        let variance = drawn.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / drawn.len() as f64;
        assert!(mean.abs() < 0.03 && (variance - 1.0).abs() < 0.05, "{mean} {variance}");
    }

    #[test]
    fn series_are_smooth_and_gaussians_are_not() {
        for (shape, is_smooth) in [(ShapeName::Series, true), (ShapeName::Gaussian, false)] {
            let args = args(shape);
            let (mut steps, mut values) = (0.0, 0.0);
            for number in 0..20 {
                let row = args.row(&mut Random::of(args.seed, BASE, number));
                assert_eq!(row, args.row(&mut Random::of(args.seed, BASE, number)));
                steps += row.windows(2).map(|w| f64::from(w[1] - w[0]).powi(2)).sum::<f64>();
                values += row.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>();
            }
            assert_eq!(steps < 0.1 * values, is_smooth, "{steps} {values}");
        }
    }
}
