//! Divides all rows into k-means cells: k-means over a sample, then every row to the nearest centroid, part by part.
//! Sizes follow the data; nothing is moved between cells afterwards (OrchANN §3.2).

use stratann_kernel::centroids::CentroidTable;
use stratann_storage::{Error, Result};

use crate::clusterings::memory::{KmeansMemory, PRODUCT_BYTES};
use crate::clusterings::{CHUNK, evenly, kmeans, nearest_of, order, sample_of};
use crate::dataset::Scan;
use crate::parallel;
use crate::stages::build::Build;
use crate::stages::space::Space;

/// The file of the cell of every row, u32; `u32::MAX` for rows that are left out.
pub(crate) const OF_ROW: &str = "clusters.tmp";
/// Sampled rows per centroid; fewer fit them poorly, more gain little.
pub(crate) const SAMPLE_PER_CELL: usize = 32;
pub(crate) const ROUNDS: usize = 8;

/// Rows that k-means has for each centroid, at least.
const SAMPLE_LEAST: u64 = 8;

/// The memory of finding cells of a set.
#[derive(Clone, Copy)]
pub(crate) struct CellsMemory {
    pub(crate) rows: u64,
    pub(crate) cells: u64,
    pub(crate) kmeans: KmeansMemory,
}

impl CellsMemory {
    /// Centroids as they are found, in their order, and as integers; sizes and errors of cells beside them.
    pub(crate) fn centroid_bytes(self) -> u64 {
        self.cells * (self.kmeans.centroid_bytes() + 48)
    }

    /// Centroids and so many rows of the sample that they are found from.
    pub(crate) fn bytes(self, sample: u64) -> u64 {
        sample * self.kmeans.row_bytes() + self.centroid_bytes()
    }

    /// The least that finding cells takes.
    pub(crate) fn least_bytes(self) -> u64 {
        self.bytes(self.rows.min(SAMPLE_LEAST * self.cells))
    }

    /// Rows of the sample that `free` bytes have room for.
    pub(crate) fn sample(self, free: u64) -> u64 {
        let room = free.saturating_sub(self.centroid_bytes()) / self.kmeans.row_bytes();
        (SAMPLE_PER_CELL as u64 * self.cells).min(self.rows).min(room.max(1))
    }

    /// Rows of so many bytes that a thread assigns.
    pub(crate) fn assigned_bytes(self, row_bytes: u64) -> u64 {
        CHUNK as u64 * (4 * self.kmeans.dim + row_bytes) + PRODUCT_BYTES
    }
}

/// The cells of a set.
pub(crate) struct Cells {
    /// Centroids of the cells, as points of the space.
    pub(crate) centroids: Vec<f32>,
    /// Cell of every row; `u32::MAX` for rows that are left out.
    pub(crate) of_row: Vec<u32>,
}

/// Finds at most `wanted` cells, none of them empty, from a sample of at most `sample_most` rows. Cells that are near
/// each other mostly have near numbers.
///
/// # Errors
/// Rows that cannot be read; an interruption.
pub(crate) fn find(
    build: &Build<'_>,
    space: &Space,
    scan: &Scan,
    wanted: usize,
    sample_most: usize,
) -> Result<Cells> {
    let dim = space.point_dim();
    let live = build.live_rows(scan);
    let wanted = wanted.clamp(1, live.len());
    let count = (SAMPLE_PER_CELL * wanted).min(live.len()).min(sample_most.max(wanted));
    let load = |rows: &[u32], out: &mut [f32]| space.load_floats(build.base, rows, out);
    let sample = sample_of(dim, &evenly(&live, count), load)?;
    drop(live);
    let centroids = kmeans::kmeans_stage(&sample, dim, wanted, ROUNDS, build.options.seed, build.progress)?;
    drop(sample);
    let centroids = in_order(centroids, dim);
    let of_row = assign(build, space, scan, &centroids)?;
    Ok(without_empty(Cells { centroids, of_row }, dim))
}

/// Sorts centroids along a tree of halves, so that near cells are mostly near each other on disk.
fn in_order(centroids: Vec<f32>, dim: usize) -> Vec<f32> {
    let mut order: Vec<u32> = (0..(centroids.len() / dim) as u32).collect();
    order::halve(&centroids, dim, &mut order, 1);
    order.iter().flat_map(|&c| centroids[c as usize * dim..][..dim].iter().copied()).collect()
}

/// Computes the nearest centroid of every row; `u32::MAX` for rows that are left out.
///
/// # Errors
/// Rows that cannot be read; an interruption.
pub(crate) fn assign(build: &Build<'_>, space: &Space, scan: &Scan, centroids: &[f32]) -> Result<Vec<u32>> {
    let dim = space.point_dim();
    let rows = build.base.shape().rows;
    let mut cluster_of = vec![u32::MAX; rows as usize];
    build.progress.stage("assigning rows", rows, "rows");
    let table = CentroidTable::new(centroids, dim);
    parallel::try_map(cluster_of.chunks_mut(CHUNK).enumerate(), |(chunk, out)| {
        build.progress.check_interrupted()?;
        let first = (chunk * CHUNK) as u64;
        let live: Vec<u32> = build.live(scan, first..first + out.len() as u64).map(|r| r as u32).collect();
        let load = |rows: &[u32], out: &mut [f32]| space.load_floats(build.base, rows, out);
        for (&row, c) in live.iter().zip(nearest_of(dim, &live, &table, load)?) {
            out[(u64::from(row) - first) as usize] = c;
        }
        build.progress.advance(out.len() as u64);
        Ok::<_, Error>(())
    })?;
    Ok(cluster_of)
}

/// Leaves out cells without a row.
fn without_empty(cells: Cells, dim: usize) -> Cells {
    let mut numbers = vec![u32::MAX; cells.centroids.len() / dim];
    cells.of_row.iter().filter(|&&c| c != u32::MAX).for_each(|&c| numbers[c as usize] = 0);
    let used: Vec<usize> = (0..numbers.len()).filter(|&c| numbers[c] == 0).collect();
    used.iter().zip(0..).for_each(|(&c, i)| numbers[c] = i);
    Cells {
        centroids: used.iter().flat_map(|&c| &cells.centroids[c * dim..(c + 1) * dim]).copied().collect(),
        of_row: cells.of_row.iter().map(|&c| if c == u32::MAX { c } else { numbers[c as usize] }).collect(),
    }
}
