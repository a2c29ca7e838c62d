//! The graph of a set that does not fit in the budget: many overlapping cells, each built in RAM, their edges merged.
//!
//! After DiskANN (NeurIPS 2019, §3.3), with three changes. Rows are first assigned to many small k-means cells, which are then chained into
//! cells of equal size, so that no cell outgrows the budget. A row is built into a further cell only when that one holds one of the small
//! cells nearest to it: rows deep inside a cell are built once, rows near a border several times, and it is they that join the cells. And
//! the lists of such a row are pruned together (`merge`), where DiskANN draws from them at random.

use std::fs::File;
use std::io::{BufWriter, Read, Write};
use std::path::PathBuf;

use rayon::prelude::*;
use stratann_core::build::Lists;
use stratann_kernel::distance::{block_l2_f32, l2_f32};

use super::graph_stage::{self, GraphFacts};
use super::space::Space;
use super::stages::Build;
use super::{kmeans, merge, vamana};
use crate::{Error, Result};

/// Small cells per cell: enough for cells of nearly equal size.
const SMALL_PER_CELL: usize = 24;
/// Small cells that a row considers; a further cell must own one of them.
const NEAREST: usize = 8;
/// Cells that a row is built in, at most.
const MEMBERSHIPS: usize = 3;
/// Share of a cell's room that is kept for rows of other cells.
const OVERLAP: f64 = 0.5;
const NONE: u16 = u16::MAX;
/// Rows whose nearest small cells are in memory at a time.
const NEAREST_ROWS: usize = 1 << 16;
const NEAREST_FILE: &str = "nearest.tmp";

/// Which cells each live row is built in; the first is its home.
pub(super) struct Assignment {
    members: Vec<[u16; MEMBERSHIPS]>,
    pub(super) cells: usize,
}

impl Assignment {
    /// Indices of the live rows whose home is `cell`, ascending.
    pub(super) fn residents(&self, cell: usize) -> impl Iterator<Item = usize> + '_ {
        self.members.iter().enumerate().filter(move |(_, m)| usize::from(m[0]) == cell).map(|(i, _)| i)
    }

    fn len(&self) -> usize {
        self.members.iter().flatten().filter(|&&c| c != NONE).count()
    }
}

pub(super) fn run(build: &mut Build<'_>, space: &Space, live: &[u32]) -> Result<GraphFacts> {
    let plan = build.plan;
    let point = space.point_bytes() as u64 + vamana::Graph::bytes(1, build.options.degree) + 12;
    let room = (plan.points_per_cell * plan.point_bytes / point).max(1000) as usize;
    let assignment = assign(build, space, live, room)?;
    build.progress.stage("graph", assignment.len() as u64, "points");
    for cell in 0..assignment.cells {
        build_cell(build, space, live, &assignment, cell)?;
    }
    merge::run(build, space, live, &assignment)
}

/// Chooses the cells of every row.
fn assign(build: &Build<'_>, space: &Space, live: &[u32], room: usize) -> Result<Assignment> {
    let dim = space.point_dim();
    let share = ((room as f64 * (1.0 - OVERLAP)) as usize).max(1);
    let small = (SMALL_PER_CELL * live.len().div_ceil(share)).clamp(SMALL_PER_CELL, 4096);
    let sample_rows = (build.plan.codebook_sample * 2).min(64 * small).min(live.len());
    build.progress.stage("dividing into cells", live.len() as u64, "rows");
    let sample = sample_floats(build, space, live, sample_rows)?;
    let centroids = kmeans::kmeans(&sample, dim, small, 10, build.options.seed);
    drop(sample);
    let small = centroids.len() / dim;
    let sizes = nearest_small(build, space, live, &centroids)?;
    let cell_of_small = chain(&sizes, &centroids, dim, share);
    let cells = cell_of_small.cells;
    if cells >= usize::from(NONE) {
        return Err(Error::budget(format!(
            "the graph would be built in {cells} parts, {NONE} at most can be joined; raise --ram-budget"
        )));
    }
    let mut filled = vec![0usize; cells];
    let mut seen = vec![0u32; small];
    let mut members = vec![[NONE; MEMBERSHIPS]; live.len()];
    for_each_nearest(build, &mut members, |near, member| {
        // A small cell larger than a cell is cut into several, row by row.
        let first = usize::from(near[0]);
        let home = cell_of_small.cell(first, seen[first], share);
        seen[first] += 1;
        filled[home] += 1;
        member[0] = home as u16;
    })?;
    for further in 1..MEMBERSHIPS {
        for_each_nearest(build, &mut members, |near, member| {
            let others = near[1..].iter().filter(|&&s| s != NONE);
            let mut cells = others.map(|&s| cell_of_small.cell(usize::from(s), 0, share));
            if let Some(c) = cells.find(|&c| !member.contains(&(c as u16)) && filled[c] < room) {
                filled[c] += 1;
                member[further] = c as u16;
            }
        })?;
    }
    let path = build.partial.path(NEAREST_FILE);
    std::fs::remove_file(&path).map_err(|e| Error::io("removing", &path, &e))?;
    Ok(Assignment { members, cells })
}

fn sample_floats(build: &Build<'_>, space: &Space, live: &[u32], count: usize) -> Result<Vec<f32>> {
    let dim = space.point_dim();
    let stride = live.len() as f64 / count as f64;
    let mut out = vec![0f32; count * dim];
    let mut row = Vec::new();
    for (i, point) in out.chunks_exact_mut(dim).enumerate() {
        build.base.read_rows(u64::from(live[(i as f64 * stride) as usize]), 1, &mut row)?;
        space.floats(&row, point);
    }
    Ok(out)
}

/// Writes the nearest small cells of every live row, nearest first, to a file: for many rows they would take more memory than there is.
/// Returns how many rows each small cell is the nearest of.
fn nearest_small(build: &Build<'_>, space: &Space, live: &[u32], centroids: &[f32]) -> Result<Vec<usize>> {
    const CHUNK: usize = 512;
    let dim = space.point_dim();
    let mut sizes = vec![0usize; centroids.len() / dim];
    let path = build.partial.path(NEAREST_FILE);
    let failed = |e: std::io::Error| Error::io("writing", &path, &e);
    let mut file = File::create(&path).map_err(failed)?;
    let mut nearest = vec![[NONE; NEAREST]; NEAREST_ROWS.min(live.len())];
    for rows in live.chunks(NEAREST_ROWS) {
        let nearest = &mut nearest[..rows.len()];
        nearest.par_chunks_mut(CHUNK).zip(rows.par_chunks(CHUNK)).try_for_each(|(out, rows)| {
            if build.progress.interrupted() {
                return Err(Error::interrupted());
            }
            let mut floats = vec![0f32; rows.len() * dim];
            space.load_floats(build.base, rows, &mut floats)?;
            nearest_of(&floats, centroids, dim, out);
            build.progress.advance(rows.len() as u64);
            Ok(())
        })?;
        nearest.iter().for_each(|near| sizes[usize::from(near[0])] += 1);
        file.write_all(bytemuck::cast_slice(nearest)).map_err(failed)?;
    }
    Ok(sizes)
}

fn nearest_of(rows: &[f32], centroids: &[f32], dim: usize, out: &mut [[u16; NEAREST]]) {
    let mut distances = vec![0f32; centroids.len() / dim];
    let mut order: Vec<(f32, u16)> = Vec::with_capacity(distances.len());
    for (near, row) in out.iter_mut().zip(rows.chunks_exact(dim)) {
        block_l2_f32(row, centroids, dim, &mut distances);
        order.clear();
        order.extend(distances.iter().enumerate().map(|(s, &d)| (d, s as u16)));
        let keep = NEAREST.min(order.len());
        let by = |a: &(f32, u16), b: &(f32, u16)| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1));
        order.select_nth_unstable_by(keep - 1, by);
        order[..keep].sort_unstable_by(by);
        *near = [NONE; NEAREST];
        near.iter_mut().zip(&order[..keep]).for_each(|(n, o)| *n = o.1);
    }
}

/// Gives every row's nearest small cells, and its memberships, to `visit`.
fn for_each_nearest(
    build: &Build<'_>,
    members: &mut [[u16; MEMBERSHIPS]],
    mut visit: impl FnMut(&[u16; NEAREST], &mut [u16; MEMBERSHIPS]),
) -> Result<()> {
    let path = build.partial.path(NEAREST_FILE);
    let failed = |e: std::io::Error| Error::io("reading", &path, &e);
    let mut file = File::open(&path).map_err(failed)?;
    let mut nearest = vec![[NONE; NEAREST]; NEAREST_ROWS.min(members.len())];
    for members in members.chunks_mut(NEAREST_ROWS) {
        let nearest = &mut nearest[..members.len()];
        file.read_exact(bytemuck::cast_slice_mut(nearest)).map_err(failed)?;
        nearest.iter().zip(members).for_each(|(near, member)| visit(near, member));
    }
    Ok(())
}

/// The cells that each small cell belongs to: one, or several in a row when it is larger than a cell.
struct Chained {
    first: Vec<usize>,
    parts: Vec<usize>,
    cells: usize,
}

impl Chained {
    /// The cell of the `nth` row of a small cell.
    fn cell(&self, small: usize, nth: u32, share: usize) -> usize {
        self.first[small] + (nth as usize / share).min(self.parts[small] - 1)
    }
}

/// Chains small cells into cells of about `share` rows: always the nearest free one joins, and a full cell is followed by one that begins nearby.
fn chain(sizes: &[usize], centroids: &[f32], dim: usize, share: usize) -> Chained {
    let small = sizes.len();
    let centroid = |s: usize| &centroids[s * dim..(s + 1) * dim];
    let mut chained = Chained { first: vec![0; small], parts: vec![1; small], cells: 0 };
    let mut free: Vec<usize> = (0..small).collect();
    let mut at = 0;
    let (mut anchor, mut held) = (at, 0usize);
    while let Some(place) = free.iter().position(|&s| s == at) {
        free.swap_remove(place);
        if held > 0 && held + sizes[at] > share {
            chained.cells += 1;
            (anchor, held) = (at, 0);
        }
        chained.first[at] = chained.cells;
        if sizes[at] > share {
            chained.parts[at] = sizes[at].div_ceil(share);
            chained.cells += chained.parts[at] - 1;
            held = share;
        } else {
            held += sizes[at];
        }
        let distance = |s: usize| l2_f32(centroid(anchor), bytemuck::cast_slice(centroid(s)));
        let Some(next) =
            free.iter().copied().min_by(|&a, &b| distance(a).total_cmp(&distance(b)).then(a.cmp(&b)))
        else {
            break;
        };
        at = next;
    }
    chained.cells += 1;
    chained
}

/// Lists that cell `from` found for the rows at home in `home`.
pub(super) fn spool_path(build: &Build<'_>, home: usize, from: usize) -> PathBuf {
    build.partial.path(&format!("lists-{home}-{from}.tmp"))
}

/// Builds one cell and writes the lists of its rows, each to the file of the row's home. A cell that an interrupted build has finished is
/// left as it is.
fn build_cell(
    build: &Build<'_>,
    space: &Space,
    live: &[u32],
    assignment: &Assignment,
    cell: usize,
) -> Result<()> {
    let is_member = |i: &usize| assignment.members[*i].contains(&(cell as u16));
    let members: Vec<u32> = (0..live.len()).filter(is_member).map(|i| i as u32).collect();
    let done = build.partial.path(&format!("cell-{cell}.tmp"));
    if members.is_empty() || done.exists() {
        build.progress.advance(members.len() as u64);
        return Ok(());
    }
    let rows: Vec<u32> = members.iter().map(|&i| live[i as usize]).collect();
    let held = space.load(build.base, &rows, &crate::Quiet)?;
    let options = graph_stage::vamana_options(build);
    let graph = vamana::build(&held, held.medoid(), &options, build.progress)?;
    let mut spools: Vec<Option<Spool>> = (0..assignment.cells).map(|_| None).collect();
    for (local, &i) in members.iter().enumerate() {
        let home = usize::from(assignment.members[i as usize][0]);
        let spool = match &mut spools[home] {
            Some(spool) => spool,
            none => none.insert(Spool::create(spool_path(build, home, cell))?),
        };
        spool.write(rows[local], graph.list(local as u32).iter().map(|&l| rows[l as usize]))?;
    }
    spools.into_iter().flatten().try_for_each(Spool::finish)?;
    crate::manifest::write_synced(&done, &[]).map_err(|e| Error::io("writing", &done, &e))
}

/// A file of lists, in the order of their rows: row, length, rows of the neighbours, closest first.
struct Spool {
    path: PathBuf,
    out: BufWriter<File>,
}

impl Spool {
    fn create(path: PathBuf) -> Result<Spool> {
        let file = File::create(&path).map_err(|e| Error::io("creating", &path, &e))?;
        Ok(Spool { path, out: BufWriter::with_capacity(8 << 10, file) })
    }

    fn write(&mut self, row: u32, list: impl ExactSizeIterator<Item = u32>) -> Result<()> {
        let mut record = Vec::with_capacity(2 + list.len());
        record.extend([row, list.len() as u32]);
        record.extend(list);
        self.out.write_all(bytemuck::cast_slice(&record)).map_err(|e| Error::io("writing", &self.path, &e))
    }

    fn finish(self) -> Result<()> {
        let synced = self.out.into_inner().map_err(|e| e.into_error()).and_then(|f| f.sync_data());
        synced.map_err(|e| Error::io("writing", &self.path, &e))
    }
}
