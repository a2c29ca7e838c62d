//! Chooses the kind of index for a set of vectors and a RAM budget of searches.
//!
//! A graph needs a code of every vector in RAM, inverted lists very little. Where RAM suffices for either, the
//! intrinsic dimension of the vectors matters: a graph search takes more steps in more dimensions, a visit of a list
//! does not.

use rayon::prelude::*;
use stratann_core::build::hash;
use stratann_kernel::Metric;
use stratann_kernel::distance::l2_f32;

use super::kind::Kind;
use super::options::OptionsByKind;
use crate::budget::{PROGRAM_BYTES, size};
use crate::build::space::code_floats;
use crate::dataset::Reader;
use crate::{Error, Progress, Result};

/// Largest set for a full scan.
const FLAT_ROWS: u64 = 10_000;
/// Rows of the sample, and the bytes that they may take.
const SAMPLE: u64 = 20_000;
const SAMPLE_BYTES: u64 = 32 << 20;
/// Rows of the sample whose neighbours are searched, and the number of neighbours.
const QUERIES: usize = 300;
const NEIGHBOURS: usize = 20;
/// Intrinsic dimension from which inverted lists are faster than a graph; the measurements are in `decisions/`.
const DIMENSIONS: f64 = 22.0;
/// Memory of graph searches that does not grow with the rows, and memory per node of the head graph.
const GRAPH_BYTES: u64 = PROGRAM_BYTES + (9 << 20);
const HEAD_NODE_BYTES: f64 = 80.0;

/// A kind and the reason for it.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    /// The kind.
    pub kind: Kind,
    /// Reason.
    pub why: String,
}

/// Chooses a kind for `base` among those with these options. Reads a sample of the rows, drawn by `seed`.
///
/// # Errors
/// Rows that cannot be read; `ErrorKind::Interrupted`.
pub fn choose(
    base: &Reader,
    metric: Metric,
    seed: u64,
    options: &OptionsByKind,
    progress: &dyn Progress,
) -> Result<Choice> {
    let shape = base.shape();
    if shape.rows <= FLAT_ROWS {
        let why = format!("{} vectors are scanned faster than any index is searched", shape.rows);
        return Ok(Choice { kind: Kind::Flat, why });
    }
    let own = &options.disk_graph;
    let per_row = own.code_bytes(shape.dim) as f64 + own.head_share * HEAD_NODE_BYTES + 0.15;
    let graph = GRAPH_BYTES + (shape.rows as f64 * per_row) as u64;
    if let Some(budget) = options.hybrid_ivf.search_budget.filter(|&b| b < graph) {
        let why =
            format!("searches of a disk-graph take {} of RAM, they will have {}", size(graph), size(budget));
        return Ok(Choice { kind: Kind::HybridIvf, why });
    }
    let dimensions = intrinsic_dimensions(base, metric, seed, progress)?;
    let (kind, than) = match dimensions >= DIMENSIONS {
        true => (Kind::HybridIvf, "no less"),
        false => (Kind::DiskGraph, "less"),
    };
    let why = format!(
        "its vectors spread in about {dimensions:.0} dimensions around each other, {than} than {DIMENSIONS}"
    );
    Ok(Choice { kind, why })
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
        if progress.interrupted() {
            return Err(Error::interrupted());
        }
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
    let mut found: Vec<f64> = queries.into_par_iter().filter_map(of_row).collect();
    found.sort_unstable_by(f64::total_cmp);
    Ok(found.get(found.len() / 2).copied().unwrap_or(0.0))
}

#[cfg(test)]
mod tests {
    use stratann_kernel::DType;

    use super::*;
    use crate::Quiet;
    use crate::dataset::Shape;

    fn set(rows: usize, dim: usize, free: usize) -> Reader {
        let value = |row: usize, i: usize| {
            let at = |j: usize| (hash(3, row as u64, j as u64) >> 40) as f32 / (1u64 << 24) as f32 - 0.5;
            if i < free { at(i) } else { at(i % free) * 0.5 }
        };
        let bytes: Vec<u8> = (0..rows * dim).flat_map(|n| value(n / dim, n % dim).to_le_bytes()).collect();
        Reader::from_memory(Shape { rows: rows as u64, dim, dtype: DType::F32 }, bytes).unwrap()
    }

    #[test]
    fn kinds_are_chosen_by_size_memory_and_dimensions() {
        let mut options = OptionsByKind::default();
        let choose = |rows, free, options: &OptionsByKind| {
            choose(&set(rows, 48, free), Metric::L2, 1, options, &Quiet).unwrap().kind
        };
        assert_eq!(choose(100, 3, &options), Kind::Flat);
        assert_eq!(choose(12_000, 4, &options), Kind::DiskGraph);
        assert_eq!(choose(12_000, 48, &options), Kind::HybridIvf);
        options.hybrid_ivf.search_budget = Some(12 << 20);
        assert_eq!(choose(12_000, 4, &options), Kind::HybridIvf);
    }
}
