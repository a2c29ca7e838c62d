//! One graph out of the graphs of overlapping cells: what several cells found for a row is pruned together.

use std::collections::HashSet;
use std::fs::File;
use std::io::{BufReader, ErrorKind, Read};
use std::path::PathBuf;

use rayon::prelude::*;
use stratann_core::build::Points;
use stratann_core::build::prune::{Near, PruneScratch, robust_prune};

use super::cells::{Assignment, spool_path};
use super::graph_file::{Cell, GraphWriter};
use super::graph_stage::{self, GraphFacts};
use super::space::Space;
use super::stages::Build;
use super::vamana::VamanaOptions;
use crate::{Error, Result};

/// Merges home cell by home cell; the order of the graph is that of the cells, and inside each that of the rows.
pub(super) fn run(
    build: &mut Build<'_>,
    space: &Space,
    live: &[u32],
    assignment: &Assignment,
) -> Result<GraphFacts> {
    build.progress.stage("merging cells", live.len() as u64, "nodes");
    let mut merge = Merge {
        build,
        space,
        options: graph_stage::vamana_options(build),
        room: Room::new(build, space),
        writer: GraphWriter::create(&build.partial.path(graph_stage::GRAPH), build.options.degree)?,
        edges: 0,
    };
    let mut order: Vec<u32> = Vec::with_capacity(live.len());
    let mut cells = Vec::new();
    for cell in 0..assignment.cells {
        let start = order.len() as u32;
        order.extend(assignment.residents(cell).map(|i| live[i]));
        merge.cell(cell, assignment.cells, &order[start as usize..])?;
        cells.push(Cell { start, end: order.len() as u32 });
    }
    let edges = merge.edges;
    merge.writer.finish()?;
    graph_stage::write_order(&build.partial.path(graph_stage::ORDER), &order)?;
    remove_spools(build, assignment.cells);
    cells.retain(|c| c.start < c.end);
    Ok(GraphFacts { cells, mean_list: edges as f64 / live.len() as f64 })
}

/// What may be in memory at a time, of that which a cell took.
struct Room {
    points: usize,
    candidates: usize,
}

impl Room {
    fn new(build: &Build<'_>, space: &Space) -> Room {
        let bytes = (build.plan.points_per_cell * build.plan.point_bytes) as usize;
        // A point, its row, and its place in the set that gathers rows.
        let point = space.point_bytes() + 4 + 16;
        Room { points: (bytes / 2 / point).max(1000), candidates: (bytes / 4 / 4).max(10_000) }
    }
}

struct Merge<'a, 'b> {
    build: &'a Build<'b>,
    space: &'a Space,
    options: VamanaOptions,
    room: Room,
    writer: GraphWriter,
    edges: u64,
}

/// All that is known of a row's neighbours.
struct Found {
    row: u32,
    near: Vec<u32>,
    lists: usize,
}

impl Merge<'_, '_> {
    fn cell(&mut self, home: usize, cells: usize, rows: &[u32]) -> Result<()> {
        let paths = (0..cells).map(|from| spool_path(self.build, home, from));
        let mut parts: Vec<Part> =
            paths.filter_map(|path| Part::open(path).transpose()).collect::<Result<_>>()?;
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
            if needed.len() >= self.room.points || candidates >= self.room.candidates {
                self.write(&mut batch, &mut needed)?;
                candidates = 0;
            }
        }
        self.write(&mut batch, &mut needed)
    }

    /// Prunes and writes a batch.
    fn write(&mut self, batch: &mut Vec<Found>, needed: &mut HashSet<u32>) -> Result<()> {
        if self.build.progress.interrupted() {
            return Err(Error::interrupted());
        }
        let mut rows: Vec<u32> = needed.drain().collect();
        rows.sort_unstable();
        let points = self.space.load(self.build.base, &rows, &crate::Quiet)?;
        let VamanaOptions { degree, alpha, .. } = self.options;
        let scratch = || (PruneScratch::default(), Vec::new(), Vec::new());
        batch.par_iter_mut().filter(|found| found.lists > 1).for_each_init(
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

/// The lists of one home as one cell found them, read in the order of rows.
struct Part {
    path: PathBuf,
    input: BufReader<File>,
    row: Option<u32>,
}

impl Part {
    fn open(path: PathBuf) -> Result<Option<Part>> {
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(Error::io("opening", &path, &e)),
        };
        let mut part = Part { input: BufReader::with_capacity(16 << 10, file), path, row: None };
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

    /// Appends the list of `row` when it is the next; whether it was.
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

fn remove_spools(build: &Build<'_>, cells: usize) {
    for home in 0..cells {
        for from in 0..cells {
            let _ = std::fs::remove_file(spool_path(build, home, from));
        }
        let _ = std::fs::remove_file(build.partial.path(&format!("cell-{home}.tmp")));
    }
}
