//! Merges the graphs of overlapping cells: the lists that several cells found for a row are pruned together.

use std::collections::HashSet;
use std::fs::File;
use std::io::{BufReader, ErrorKind, Read, Seek, SeekFrom, Take};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use stratann_params::build::GraphOptions;

use stratann_core::build::Points;
use stratann_core::build::prune::{Near, PruneScratch, robust_prune};
use stratann_storage::{Error, Result, input};

use super::cells::lists_path;
use super::divide::Division;
use super::graph_stage::{self, GraphFacts};
use crate::parallel;
use crate::stages::blocks::graph_file::{self, GraphWriter};
use crate::stages::build::Build;
use crate::stages::space::Space;
use crate::stages::vamana::VamanaOptions;

/// Merges cell by cell.
pub(crate) fn run(
    build: &Build<'_>,
    own: &GraphOptions,
    space: &Space,
    division: &Division,
) -> Result<GraphFacts> {
    let rows = division.cells.last().map_or(0, |c| c.end);
    build.progress.stage("merging cells", rows.into(), "nodes");
    let mut edges = 0;
    for home in 0..division.cells.len() {
        edges += merge_cell(build, own, space, division, home)?;
    }
    Ok(GraphFacts::new(division.cells.clone(), edges))
}

/// Writes the graph of the rows that a cell owns, in their order. Returns the number of its edges.
pub(crate) fn merge_cell(
    build: &Build<'_>,
    own: &GraphOptions,
    space: &Space,
    division: &Division,
    home: usize,
) -> Result<u64> {
    let rows = division.read_residents(build, home)?;
    let mut merge = Merge {
        build,
        space,
        options: graph_stage::vamana_options(build, own),
        limits: MergeLimits::new(build, space),
        writer: GraphWriter::create(&build.partial.path(&graph_file::name(home)), own.degree)?,
        edges: 0,
    };
    merge.cell(home, division.cells.len(), &rows)?;
    merge.writer.finish()?;
    Ok(merge.edges)
}

/// Rows that may be in memory at a time, within the memory of a cell.
struct MergeLimits {
    points: usize,
    candidates: usize,
}

impl MergeLimits {
    fn new(build: &Build<'_>, space: &Space) -> MergeLimits {
        let bytes = (build.plan.points_per_cell * build.plan.point_bytes) as usize;
        // A point, its row, and its position in the set that gathers rows.
        let point = space.point_bytes() + 4 + 16;
        MergeLimits { points: (bytes / 2 / point).max(1000), candidates: (bytes / 4 / 4).max(10_000) }
    }
}

struct Merge<'a, 'b> {
    build: &'a Build<'b>,
    space: &'a Space,
    options: VamanaOptions,
    limits: MergeLimits,
    writer: GraphWriter,
    edges: u64,
}

/// All candidate neighbours of a row.
struct Found {
    row: u32,
    near: Vec<u32>,
    lists: usize,
}

impl Merge<'_, '_> {
    fn cell(&mut self, home: usize, cells: usize, rows: &[u32]) -> Result<()> {
        let open = |from| Part::open(lists_path(self.build, from), home).transpose();
        let mut parts: Vec<Part> = (0..cells).filter_map(open).collect::<Result<_>>()?;
        let (mut batch, mut needed, mut candidates) = (Vec::new(), HashSet::new(), 0);
        for &row in rows {
            let mut found = Found { row, near: Vec::new(), lists: 0 };
            for part in &mut parts {
                found.lists += usize::from(part.take(row, &mut found.near)?);
            }
            if found.lists == 0 {
                let folder = self.build.partial.folder().display();
                return Err(Error::corrupt(format!(
                    "{folder} has lost lists of its cells; start the build again"
                )));
            }
            if found.lists > 1 {
                needed.insert(row);
                needed.extend(&found.near);
            }
            candidates += found.near.len();
            batch.push(found);
            if needed.len() >= self.limits.points || candidates >= self.limits.candidates {
                self.write(&mut batch, &mut needed)?;
                candidates = 0;
            }
        }
        self.write(&mut batch, &mut needed)
    }

    /// Prunes and writes a batch.
    fn write(&mut self, batch: &mut Vec<Found>, needed: &mut HashSet<u32>) -> Result<()> {
        self.build.progress.check_interrupted()?;
        let mut rows: Vec<u32> = needed.drain().collect();
        rows.sort_unstable();
        let points = self.space.load(self.build.base, &rows, &stratann_storage::Quiet)?;
        let VamanaOptions { degree, alpha, .. } = self.options;
        let scratch = || (PruneScratch::default(), Vec::new(), Vec::new());
        parallel::map_with(
            batch.iter_mut().filter(|found| found.lists > 1),
            scratch,
            |(scratch, near, kept), found| {
                // Every row of the batch is among `rows`.
                let local = |row: u32| rows.binary_search(&row).unwrap_or_default() as u32;
                let node = local(found.row);
                near.clear();
                near.extend(
                    found
                        .near
                        .iter()
                        .map(|&row| local(row))
                        .map(|id| Near { distance: points.distance(node, id), id }),
                );
                robust_prune(&points, node, near, degree, alpha, scratch, kept);
                near.retain(|c| kept.contains(&c.id));
                found.near.clear();
                found.near.extend(near.iter().map(|c| rows[c.id as usize]));
            },
        );
        for found in batch.drain(..) {
            self.edges += found.near.len() as u64;
            self.writer.write(found.near.iter().copied())?;
            self.build.progress.advance(1);
        }
        Ok(())
    }
}

/// Lists of the rows of one owning cell, as another cell found them, read in the order of rows.
struct Part {
    path: PathBuf,
    input: BufReader<Take<File>>,
    row: Option<u32>,
}

impl Part {
    /// Opens the lists of an owning cell in the file of a cell; `None` when it has no such row.
    fn open(path: PathBuf, home: usize) -> Result<Option<Part>> {
        let failed = |e: std::io::Error| Error::io("reading", &path, &e);
        let mut file = input::open(&path)?;
        let mut range = [0u64; 2];
        file.read_exact_at(bytemuck::cast_slice_mut(&mut range), 8 * home as u64).map_err(failed)?;
        if range[0] >= range[1] {
            return Ok(None);
        }
        file.seek(SeekFrom::Start(range[0])).map_err(failed)?;
        let input = BufReader::with_capacity(16 << 10, file.take(range[1] - range[0]));
        let mut part = Part { input, path, row: None };
        part.advance()?;
        Ok(Some(part))
    }

    fn advance(&mut self) -> Result<()> {
        let mut row = 0u32;
        self.row = match self.input.read_exact(bytemuck::bytes_of_mut(&mut row)) {
            Ok(()) => Some(row),
            Err(e) if e.kind() == ErrorKind::UnexpectedEof => None,
            Err(e) => return Err(Error::io("reading", &self.path, &e)),
        };
        Ok(())
    }

    /// Appends the list of `row` when it is the next. Returns whether it was.
    fn take(&mut self, row: u32, near: &mut Vec<u32>) -> Result<bool> {
        if self.row != Some(row) {
            return Ok(false);
        }
        let failed = |e| Error::io("reading", &self.path, &e);
        let mut count = 0u32;
        self.input.read_exact(bytemuck::bytes_of_mut(&mut count)).map_err(failed)?;
        let at = near.len();
        near.resize(at + count as usize, 0);
        self.input.read_exact(bytemuck::cast_slice_mut(&mut near[at..])).map_err(failed)?;
        self.advance()?;
        Ok(true)
    }
}

/// Removes the inputs of the merge, once its result is recorded.
pub(crate) fn remove_lists(build: &Build<'_>, cells: usize) {
    for cell in 0..cells {
        // A remainder is deleted with the folder.
        let _ = std::fs::remove_file(lists_path(build, cell));
    }
}
