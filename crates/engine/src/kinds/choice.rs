//! Chooses the kind of index for a set of vectors, the RAM of the build and the RAM of later searches.
//!
//! A kind whose build or whose searches do not fit is left out before any work. Of the others the cheapest wins, by a
//! model of a query's reads and computations; `decisions/0033` has its figures. The intrinsic dimension of the vectors
//! matters: a graph search takes more steps in more dimensions.

use stratann_core::build::hash;
use stratann_kernel::Metric;
use stratann_kernel::distance::l2_f32;
use stratann_params::choices::CodePlace;
use stratann_storage::budget::{PROGRAM_BYTES, size};
use stratann_storage::{Error, ErrorKind, Progress, Result};

use crate::dataset::{Reader, Shape};
use crate::kinds::options::OptionsByKind;
use crate::parallel;
use crate::stages::options::BuildOptions;
use crate::stages::space::code_floats;
use stratann_params::IndexKind;

mod cost;

use cost::{Rates, Sizes};

/// Rows of the sample, and the bytes that they may take.
const SAMPLE: u64 = 20_000;
const SAMPLE_BYTES: u64 = 32 << 20;
/// Rows of the sample whose neighbours are searched, and the number of neighbours.
const QUERIES: usize = 300;
const NEIGHBOURS: usize = 20;
/// Memory of graph searches that does not grow with the rows, and memory per node of the head graph.
const GRAPH_BYTES: u64 = PROGRAM_BYTES + (9 << 20);
const HEAD_NODE_BYTES: f64 = 80.0;
/// Id and norm of a row.
const ROW_EXTRA_BYTES: u64 = 8;
/// Memory of scans.
const FLAT_BYTES: u64 = PROGRAM_BYTES + (4 << 20);

/// A kind and the reason for it.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    /// The kind.
    pub kind: IndexKind,
    /// Reason.
    pub why: String,
}

/// A kind that fits in its budgets.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    kind: IndexKind,
    /// Predicted time of a query on one thread, microseconds.
    us: f64,
    /// Whether that is in memory.
    is_resident: bool,
    /// Predicted time of the build, seconds.
    build_s: f64,
}

/// Of kinds whose predicted times are so close, the one that is built sooner is taken.
const EQUAL_WITHIN: f64 = 1.1;

impl Candidate {
    /// Time by which candidates are compared. Inverted lists must be a fifth faster than a graph: their build measures
    /// the disk, and the model of their searches is coarser.
    fn rank(&self) -> f64 {
        if self.kind == IndexKind::HybridIvf { 1.25 * self.us } else { self.us }
    }
}

/// Chooses a kind for `base`, one of `among`, by the options of each; `common` has those that all kinds share. Reads a
/// sample of the rows, drawn by the seed.
///
/// # Errors
/// Options out of range; rows that cannot be read; budgets in which no kind fits; `ErrorKind::Interrupted`.
pub fn choose(
    base: &Reader,
    among: &[IndexKind],
    by_kind: &OptionsByKind,
    common: &BuildOptions,
    progress: &dyn Progress,
) -> Result<Choice> {
    let dimensions = || intrinsic_dimensions(base, common.metric, common.seed, progress);
    pick(base, among, by_kind, common, dimensions)
}

/// As [`choose`], with the intrinsic dimension of the vectors computed by `dimensions`.
fn pick(
    base: &Reader,
    among: &[IndexKind],
    by_kind: &OptionsByKind,
    common: &BuildOptions,
    dimensions: impl FnOnce() -> Result<f64>,
) -> Result<Choice> {
    let mut refused = Vec::new();
    let mut fitting = Vec::new();
    for &kind in among {
        match fits(base, by_kind, common, kind) {
            Ok(build_s) => fitting.push((kind, build_s)),
            Err(e) if e.kind == ErrorKind::Budget => refused.push((kind, e)),
            Err(e) => return Err(e),
        }
    }
    if fitting.is_empty() {
        // A scan needs least.
        let last = refused.pop().map(|refused| refused.1);
        return Err(last.unwrap_or_else(|| Error::budget("no kind of index fits in the budgets; raise them")));
    }
    let dimensions = dimensions()?;
    let sizes = sizes(base.shape(), by_kind, common.metric, dimensions);
    let rates = Rates::of(common.profile.as_ref());
    let mut candidates: Vec<Candidate> =
        fitting.into_iter().map(|(kind, build_s)| sizes.candidate((kind, build_s), &rates)).collect();
    candidates.sort_by(|a, b| a.rank().total_cmp(&b.rank()));
    let most = EQUAL_WITHIN * candidates[0].rank();
    let as_good = candidates.iter().take_while(|c| c.rank() <= most);
    let soonest = as_good.min_by(|a, b| a.build_s.total_cmp(&b.build_s)).map(|c| c.kind);
    candidates.sort_by_key(|c| Some(c.kind) != soonest);
    if sizes.scan_reads() <= 1.0 {
        // No search takes less than one read, and a scan finds everything.
        candidates.sort_by_key(|c| c.kind != IndexKind::Flat);
    }
    Ok(Choice { kind: candidates[0].kind, why: why(&candidates, &refused, dimensions) })
}

/// Checks that the build of a kind, and searches in its index, fit in their budgets. Returns the seconds that the build
/// is expected to take.
fn fits(base: &Reader, by_kind: &OptionsByKind, common: &BuildOptions, kind: IndexKind) -> Result<f64> {
    let options = BuildOptions { kind: by_kind.clone().of(kind), ..common.clone() };
    let build_s = crate::kinds::checked_plan(base, &options)?.expected_seconds();
    let needed = match kind {
        IndexKind::Flat => FLAT_BYTES,
        IndexKind::DiskGraph => graph_bytes(base.shape(), by_kind),
        // Its plan has compared searches with the budget.
        IndexKind::HybridIvf => return Ok(build_s),
        // It is no candidate.
        IndexKind::GpuIvf | IndexKind::RemoteHnsw => u64::MAX,
        // All vectors are in memory.
        IndexKind::GridIvf => base.shape().rows * base.shape().row_bytes() as u64,
    };
    match by_kind.hybrid_ivf.search_budget.filter(|&budget| budget < needed) {
        Some(budget) => Err(Error::budget(format!(
            "searches of a {} take {} of RAM, --search-budget is {}; raise it",
            kind.name(),
            size(needed),
            size(budget)
        ))),
        None => Ok(build_s),
    }
}

/// Memory of searches in a `disk-graph`.
fn graph_bytes(shape: Shape, by_kind: &OptionsByKind) -> u64 {
    let own = &by_kind.disk_graph;
    let codes = match own.codes {
        CodePlace::Ram => own.code_bytes(shape.dim) as f64,
        CodePlace::Disk => own.head_share * own.code_bytes(shape.dim) as f64,
    };
    GRAPH_BYTES + (shape.rows as f64 * (codes + own.head_share * HEAD_NODE_BYTES + 0.15)) as u64
}

fn sizes(shape: Shape, by_kind: &OptionsByKind, metric: Metric, dimensions: f64) -> Sizes {
    let lists = &by_kind.hybrid_ivf;
    Sizes {
        shape,
        dimensions,
        graph_code_bytes: by_kind.disk_graph.code_bytes(shape.dim),
        list_code_bytes: lists.code_bytes(shape.dim, shape.dtype.is_float()),
        clusters: lists.clusters,
        nav_samples: lists.nav_samples,
        norms: metric == Metric::Cosine,
        search_budget: lists.search_budget,
        scan_bytes: FLAT_BYTES + shape.rows * (shape.row_bytes() as u64 + ROW_EXTRA_BYTES),
        resident_graph_bytes: graph_bytes(shape, by_kind)
            + shape.rows
                * (shape.row_bytes() as u64 + ROW_EXTRA_BYTES + 4 * by_kind.disk_graph.degree as u64),
    }
}

impl Sizes {
    fn candidate(&self, (kind, build_s): (IndexKind, f64), rates: &Rates) -> Candidate {
        Candidate { kind, us: self.query_us(kind, rates), is_resident: self.is_resident(kind), build_s }
    }
}

/// The reason, for a person: what the kinds cost, and which do not fit.
fn why(candidates: &[Candidate], refused: &[(IndexKind, Error)], dimensions: f64) -> String {
    let cost = |c: &Candidate| {
        let place = if c.is_resident { "in memory" } else { "from disk" };
        let (us, build_s) = (c.us.round().max(1.0), c.build_s.ceil().max(1.0));
        format!("{} takes about {us} us per query {place} and {build_s} s to build", c.kind.name())
    };
    let costs: Vec<String> = candidates.iter().map(cost).collect();
    let left_out: Vec<String> = refused.iter().map(|(kind, _)| kind.name().to_string()).collect();
    let left_out = match left_out.is_empty() {
        true => String::new(),
        false => format!("; {} would exceed the RAM given", left_out.join(" and ")),
    };
    format!(
        "{} (predicted, one thread; the vectors have about {dimensions:.0} intrinsic dimensions){left_out}",
        costs.join(", ")
    )
}

/// Computes the median over some rows of the maximum-likelihood estimate by Levina and Bickel (2004), from distances
/// within a sample.
fn intrinsic_dimensions(base: &Reader, metric: Metric, seed: u64, progress: &dyn Progress) -> Result<f64> {
    let shape = base.shape();
    let dim = shape.dim;
    let count = SAMPLE.min(SAMPLE_BYTES / (4 * dim as u64)).min(shape.rows).max(1);
    let mut rows: Vec<u64> = (0..count).map(|i| hash(seed, 41, i) % shape.rows).collect();
    rows.sort_unstable();
    rows.dedup();
    progress.stage("looking at a sample", rows.len() as u64, "rows");
    let (mut floats, mut bytes) = (vec![0f32; rows.len() * dim], Vec::new());
    for (&row, out) in rows.iter().zip(floats.chunks_exact_mut(dim)) {
        progress.check_interrupted()?;
        base.read_rows(row, 1, &mut bytes)?;
        code_floats(metric, shape.dtype, &bytes, out);
        progress.advance(1);
    }
    let step = (rows.len() / QUERIES).max(1);
    let of_row = |query: &[f32]| -> Option<f64> {
        let to = |row: &[f32]| f64::from(l2_f32(query, bytemuck::cast_slice(row)));
        let mut near: Vec<f64> = floats.chunks_exact(dim).map(to).filter(|d| *d > 0.0).collect();
        near.sort_unstable_by(f64::total_cmp);
        let far = *near.get(NEIGHBOURS - 1)?;
        // Distances are squared.
        let sum: f64 = near[..NEIGHBOURS - 1].iter().map(|d| 0.5 * (far / d).ln()).sum();
        (sum > 0.0).then(|| (NEIGHBOURS - 1) as f64 / sum)
    };
    let queries: Vec<&[f32]> = floats.chunks_exact(dim).step_by(step).collect();
    let mut found: Vec<f64> = parallel::map(queries, of_row).into_iter().flatten().collect();
    found.sort_unstable_by(f64::total_cmp);
    Ok(found.get(found.len() / 2).copied().unwrap_or(0.0))
}

#[cfg(test)]
mod tests;
