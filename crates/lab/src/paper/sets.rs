//! Vectors of a study: made from a seed, or the user's own.

use std::path::{Path, PathBuf};

use serde::Serialize;
use stratann_cli::options;
use stratann_engine::DType;
use stratann_engine::dataset::{Reader, Shape, write_bin};
use stratann_params::choices::MetricName;
use stratann_storage::output::OutputPath;
use stratann_storage::{Error, Result};

use super::study::Study;

/// Distributions of `bench generate`.
const SHAPES: [&str; 3] = ["gaussian", "series", "skewed"];
/// Rows that are copied at a time.
const COPIED: u64 = 4096;

/// Vectors that `bench generate` makes.
#[derive(Clone, Copy, Debug)]
pub(super) struct MadeSet {
    /// Distribution of `bench generate`.
    pub(super) shape: &'static str,
    pub(super) dim: u32,
    pub(super) clusters: u32,
    pub(super) rows: u32,
    pub(super) queries: u32,
    pub(super) seed: u64,
}

/// Vectors of a study.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Vectors")]
pub(super) struct SetArgs {
    /// Vectors of your own [default: made ones, like those of the paper but fewer]
    #[arg(long, value_name = "FILE", requires = "queries")]
    base: Option<PathBuf>,
    /// Queries of your own
    #[arg(long, value_name = "FILE", requires = "base")]
    queries: Option<PathBuf>,
    /// Distance of your vectors [default: l2]
    #[arg(long, requires = "base", value_parser = options::choice::<MetricName>())]
    metric: Option<MetricName>,
    /// Made vectors: distribution, as `bench generate` names it
    #[arg(long, value_name = "SHAPE", conflicts_with = "base", value_parser = SHAPES)]
    shape: Option<String>,
    /// Made vectors: components
    #[arg(long, value_name = "D", conflicts_with = "base", value_parser = clap::value_parser!(u32).range(1..=4096))]
    dim: Option<u32>,
    /// Made vectors: number
    #[arg(long, value_name = "N", conflicts_with = "base", value_parser = clap::value_parser!(u32).range(100..))]
    rows: Option<u32>,
    /// Made vectors: number of queries
    #[arg(long, value_name = "N", conflicts_with = "base", value_parser = clap::value_parser!(u32).range(10..))]
    query_count: Option<u32>,
    /// Made vectors: clusters that they are drawn from
    #[arg(long, value_name = "N", conflicts_with = "base", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    clusters: Option<u32>,
    /// Made vectors: seed
    #[arg(long, value_name = "N", conflicts_with = "base", default_value_t = 1)]
    seed: u64,
}

/// A base, its queries and their ground truth.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Set {
    /// What the vectors are, in a line.
    pub(super) name: String,
    pub(super) base: String,
    pub(super) queries: String,
    pub(super) groundtruth: String,
    pub(super) metric: &'static str,
    pub(super) rows: u64,
    pub(super) dim: usize,
    /// Bytes of a vector.
    pub(super) row_bytes: usize,
}

impl Set {
    /// The first rows of the set, with the same queries.
    ///
    /// # Errors
    /// When they cannot be copied.
    pub(super) fn first(&self, study: &mut Study, rows: u64) -> Result<Set> {
        if rows >= self.rows {
            return Ok(self.clone());
        }
        let reader = Reader::open(Path::new(&self.base))?;
        let shape = Shape { rows, ..reader.shape() };
        let suffix = if shape.dtype == DType::F32 { "f" } else { shape.dtype.name() };
        let name = format!("first-{rows}.{suffix}bin");
        let path = OutputPath::check(&study.path(&name), true, &[])?;
        let chunk = |first: u64| {
            let mut bytes = Vec::new();
            reader.read_rows(first, COPIED.min(rows - first) as usize, &mut bytes)?;
            Ok(bytes)
        };
        write_bin(&path, shape, (0..rows).step_by(COPIED as usize).map(chunk))?;
        let base = text(path.path())?;
        let name = format!("the first {rows} of {}", self.name);
        with_truth(Set { name, base, rows, ..self.clone() }, &format!("truth-{rows}"), study)
    }
}

impl SetArgs {
    /// The vectors; made ones are written into the study's folder.
    ///
    /// # Errors
    /// When vectors cannot be read or made.
    pub(super) fn set(&self, like: MadeSet, study: &mut Study) -> Result<Set> {
        let (Some(base), Some(queries)) = (&self.base, &self.queries) else {
            return made(self.like(like), "vectors", study);
        };
        with_truth(self.own(base, queries)?, "truth", study)
    }

    fn own(&self, base: &Path, queries: &Path) -> Result<Set> {
        let shape = Reader::open(base)?.shape();
        let metric = self.metric.unwrap_or(MetricName::L2).name();
        let name = base.parent().and_then(Path::file_name).unwrap_or(base.as_os_str()).to_string_lossy();
        Ok(Set {
            name: format!("{name}, {} × {} {}, {metric}", shape.rows, shape.dim, shape.dtype.name()),
            base: text(base)?,
            queries: text(queries)?,
            groundtruth: String::new(),
            metric,
            rows: shape.rows,
            dim: shape.dim,
            row_bytes: shape.row_bytes(),
        })
    }

    /// The made set with what options change.
    fn like(&self, like: MadeSet) -> MadeSet {
        let shape = SHAPES.into_iter().find(|shape| self.shape.as_deref() == Some(shape));
        MadeSet {
            shape: shape.unwrap_or(like.shape),
            dim: self.dim.unwrap_or(like.dim),
            rows: self.rows.unwrap_or(like.rows),
            queries: self.query_count.unwrap_or(like.queries),
            clusters: self.clusters.unwrap_or(like.clusters),
            seed: self.seed,
        }
    }
}

/// Made vectors in a folder of the study.
///
/// # Errors
/// When they cannot be made.
pub(super) fn made(like: MadeSet, name: &str, study: &mut Study) -> Result<Set> {
    let MadeSet { shape, dim, clusters, rows, queries: count, seed } = like;
    let folder = study.path(name);
    let (base, queries) = (folder.join("base.fbin"), folder.join("query.fbin"));
    let (seed, folder) = (seed.to_string(), text(&folder)?);
    let numbers = [dim, rows, count, clusters].map(|n| n.to_string());
    let mut args = vec!["bench", "generate", shape, "-o", &folder, "--seed", &seed, "--force"];
    let names = ["--dim", "--rows", "--queries", "--clusters"];
    args.extend(names.iter().zip(&numbers).flat_map(|(name, number)| [*name, number.as_str()]));
    study.make(&args, Some(&base))?;
    let set = Set {
        name: format!("made ({shape}), {rows} × {dim} f32 in {clusters} clusters, l2"),
        base: text(&base)?,
        queries: text(&queries)?,
        groundtruth: String::new(),
        metric: MetricName::L2.name(),
        rows: rows.into(),
        dim: dim as usize,
        row_bytes: 4 * dim as usize,
    };
    with_truth(set, &format!("truth-of-{name}"), study)
}

/// Computes the ground truth of a set.
fn with_truth(mut set: Set, name: &str, study: &mut Study) -> Result<Set> {
    let truth = study.path(&format!("{name}-{}.ibin", set.metric));
    set.groundtruth = text(&truth)?;
    let (base, queries) = (&set.base, &set.queries);
    let args = ["groundtruth", base, queries, "-k", "100", "--metric", set.metric];
    study.make(&[&args[..], &["-o", &set.groundtruth, "--force"]].concat(), Some(&truth))?;
    Ok(set)
}

/// A path as a word of a command.
pub(super) fn text(path: &Path) -> Result<String> {
    path.to_str().map(String::from).ok_or_else(|| {
        Error::bad_input(format!(
            "{} is no UTF-8; commands cannot name it, give another path",
            path.display()
        ))
    })
}
