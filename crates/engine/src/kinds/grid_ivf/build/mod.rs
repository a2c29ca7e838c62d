//! The stages of `grid-ivf` (HARMONY §4.1): cells, axes, lists.
//!
//! | stage | reads | leaves in `partial/` |
//! |---|---|---|
//! | clusters | a sample, then all rows | `centroids.bin`, `clusters.tmp`: the list of each row |
//! | axes | a sample | `axes.bin` |
//! | lists | all rows | `grid.bin`, `sizes.bin`, `ids.tmp` |

mod axes;
mod lists;
pub(crate) mod memory;

use std::path::Path;
use stratann_params::build::GridOptions;
use stratann_params::choices::OnBadRow;

use stratann_kernel::{DType, Metric};
use stratann_storage::{Error, Result};

use crate::dataset::{Reader, Scan};
use crate::files;
use crate::kinds::grid_ivf::facts::GridSection;
use crate::kinds::questions::BuildsKind;
use crate::manifest::Manifest;
use crate::stages::build::Build;
use crate::stages::cells::{self, Cells};
use crate::stages::options::BuildOptions;
use crate::stages::plan::BuildPlan;
use crate::stages::space::Space;
use crate::stages::stage::{self, Stage};
use crate::stages::tables::write_table;

/// Finds the axes that vectors are turned to.
const AXES: Stage = Stage::named("axes");

impl BuildsKind for GridOptions {
    fn plan(&self, base: &Reader, options: &BuildOptions) -> Result<BuildPlan> {
        memory::plan(base, options, self)
    }

    fn run(&self, build: &mut Build<'_>, scan: &Scan) -> Result<Manifest> {
        // Cells are found among floats, as rows are compared.
        let space = build.space(scan, true)?;
        let count: u32 = build.stage(stage::CLUSTERS, |b| clusters(b, self, &space, scan))?;
        let axes: axes::AxesFacts = build.stage(AXES, |b| axes::run(b, &space, scan, count))?;
        let written: lists::Written =
            build.stage(stage::LISTS, |b| lists::run(b, &space, scan, count, axes))?;
        build.fact("lists", count);
        build.fact("gini", written.facts.sizes.gini);
        build.manifest(scan, written.blocks, 0.0, GridSection { facts: written.facts }.into())
    }
}

/// Finds the cells, or assigns all rows to centroids that were given. Number of lists.
fn clusters(build: &Build<'_>, own: &GridOptions, space: &Space, scan: &Scan) -> Result<u32> {
    let (dim, point_dim) = (build.base.shape().dim, space.point_dim());
    let Cells { centroids, of_row } = match &own.centroids {
        Some(path) => {
            let centroids = given_centroids(path, dim, point_dim)?;
            let of_row = cells::assign(build, space, scan, &centroids)?;
            Cells { centroids, of_row }
        }
        None => cells::find(build, space, scan, own.count(scan.rows), build.plan.lists().sample)?,
    };
    write_table(&build.partial.path(cells::OF_ROW), &of_row)?;
    let rows: Vec<f32> = centroids.chunks_exact(point_dim).flat_map(|row| &row[..dim]).copied().collect();
    write_table(&build.file(files::CENTROIDS), &rows)?;
    Ok((centroids.len() / point_dim) as u32)
}

/// Opens a file of centroids for vectors of `dim` components.
///
/// # Errors
/// A file that cannot be read, or has vectors of another kind.
fn open_centroids(path: &Path, dim: usize) -> Result<Reader> {
    let reader = Reader::open(path)?;
    let shape = reader.shape();
    if shape.dim != dim || shape.dtype != DType::F32 || shape.rows == 0 || shape.rows > u64::from(u32::MAX) {
        return Err(Error::bad_input(format!(
            "{} has {} rows of {} {}; centroids are one or more rows of {dim} f32",
            path.display(),
            shape.rows,
            shape.dim,
            shape.dtype.name()
        )));
    }
    Ok(reader)
}

/// The centroids of a file, as points of the space. An additional component is 0, so that under ip those of equal norm
/// are chosen by their products.
fn given_centroids(path: &Path, dim: usize, point_dim: usize) -> Result<Vec<f32>> {
    let reader = open_centroids(path, dim)?;
    let scan = crate::dataset::scan(&reader, Metric::L2, OnBadRow::Fail, &stratann_storage::Quiet)?;
    let mut centroids = vec![0f32; scan.rows as usize * point_dim];
    let rows: Vec<u32> = (0..scan.rows as u32).collect();
    let mut points = centroids.chunks_exact_mut(point_dim);
    reader.for_each(&rows, |row| {
        if let Some(point) = points.next() {
            stratann_kernel::element::widen(DType::F32, row, &mut point[..dim]);
        }
    })?;
    Ok(centroids)
}
