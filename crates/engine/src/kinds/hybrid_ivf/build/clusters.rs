//! The clusters of a `hybrid-ivf`: k-means cells.

use crate::dataset::Scan;
use crate::files;
use crate::stages::build::Build;
use crate::stages::cells;
use crate::stages::space::Space;
use crate::stages::tables::{read_table, write_table};
use stratann_params::build::ListOptions;
use stratann_storage::Result;

/// Default number of cells: 4·√n, so that neither finding the nearest of them nor scanning one grows faster than √n.
pub(crate) fn count(rows: u64) -> usize {
    ((4.0 * (rows as f64).sqrt()) as usize).clamp(1, rows.max(1) as usize)
}

/// Number of cells with a row.
pub(crate) fn run(build: &Build<'_>, own: &ListOptions, space: &Space, scan: &Scan) -> Result<u32> {
    let dim = space.point_dim();
    let wanted = own.clusters.unwrap_or_else(|| count(scan.rows));
    let found = cells::find(build, space, scan, wanted, build.plan.lists().sample)?;
    write_table(&build.partial.path(cells::OF_ROW), &found.of_row)?;
    let rows = found.centroids.chunks_exact(dim).map(|row| &row[..build.base.shape().dim]);
    let halves: Vec<u8> = rows.flat_map(super::to_halves).collect();
    write_table(&build.file(files::CENTROIDS), &halves)?;
    Ok((found.centroids.len() / dim) as u32)
}

/// Reads the cell of every row.
pub(crate) fn read(build: &Build<'_>) -> Result<Vec<u32>> {
    read_table(&build.partial.path(cells::OF_ROW))
}
