//! The graph of a set that does not fit in the budget: many overlapping cells, each built in RAM, their edges merged.
//!
//! After DiskANN (NeurIPS 2019, §3.3), with two changes. Rows are first assigned to many small k-means cells, which are then chained into cells
//! of equal size, so that no cell outgrows the budget. And a row is built into a second cell only when that one holds one of the small cells
//! nearest to it: rows deep inside a cell are built once, rows near a border twice, and it is they that join the cells.

use std::fs::{File, OpenOptions};
use std::io::{BufReader, BufWriter, Read, Write};
use std::path::PathBuf;

use rayon::prelude::*;
use stratann_core::build::{Lists, Points};
use stratann_kernel::distance::{block_l2_f32, l2_f32};

use super::graph_file::{Cell, GraphWriter};
use super::graph_stage::{self, GraphFacts};
use super::space::{Held, Space};
use super::stages::Build;
use super::{kmeans, vamana};
use crate::{Error, Result};

/// Small cells per cell: enough for cells of nearly equal size.
const SMALL_PER_CELL: usize = 24;
/// Small cells that a row considers; a second cell must own one of them.
const NEAREST: usize = 4;
/// Share of a cell's room that is kept for rows of other cells.
const OVERLAP: f64 = 0.4;
const NONE: u16 = u16::MAX;

/// Which cells each live row is built in.
struct Assignment {
    primary: Vec<u16>,
    secondary: Vec<u16>,
    cells: usize,
}

pub(super) fn run(build: &mut Build<'_>, space: &Space, live: &[u32]) -> Result<GraphFacts> {
    let plan = build.plan;
    let point = space.point_bytes() as u64 + vamana::Graph::bytes(1, build.options.degree) + 12;
    let room = (plan.points_per_cell * plan.point_bytes / point).max(1000) as usize;
    remove_spools(build)?;
    let assignment = assign(build, space, live, room)?;
    let total = assignment.primary.len() + assignment.secondary.iter().filter(|&&s| s != NONE).count();
    build.progress.stage("graph", total as u64, "points");
    for cell in 0..assignment.cells {
        build_cell(build, space, live, &assignment, cell)?;
    }
    merge(build, live, &assignment)
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
    let nearest = nearest_small(build, space, live, &centroids)?;
    let cell_of_small = chain(&nearest, &centroids, dim, small, share);
    let cells = cell_of_small.cells;
    let mut assignment = Assignment {
        primary: Vec::with_capacity(live.len()),
        secondary: Vec::with_capacity(live.len()),
        cells,
    };
    let mut filled = vec![0usize; cells];
    let mut seen = vec![0u32; small];
    for near in &nearest {
        // A small cell larger than a cell is cut into several, row by row.
        let first = usize::from(near[0]);
        let own = cell_of_small.cell(first, seen[first], share);
        seen[first] += 1;
        filled[own] += 1;
        assignment.primary.push(own as u16);
    }
    for (near, &own) in nearest.iter().zip(&assignment.primary) {
        let other =
            near[1..].iter().filter(|&&s| s != NONE).map(|&s| cell_of_small.cell(usize::from(s), 0, share));
        let second = other.into_iter().find(|&c| c != usize::from(own) && filled[c] < room);
        if let Some(c) = second {
            filled[c] += 1;
        }
        assignment.secondary.push(second.map_or(NONE, |c| c as u16));
    }
    Ok(assignment)
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

/// The nearest small cells of every live row, nearest first.
fn nearest_small(
    build: &Build<'_>,
    space: &Space,
    live: &[u32],
    centroids: &[f32],
) -> Result<Vec<[u16; NEAREST]>> {
    const CHUNK: usize = 512;
    let dim = space.point_dim();
    let small = centroids.len() / dim;
    let mut nearest = vec![[NONE; NEAREST]; live.len()];
    nearest.par_chunks_mut(CHUNK).zip(live.par_chunks(CHUNK)).try_for_each(|(out, rows)| {
        if build.progress.interrupted() {
            return Err(Error::interrupted());
        }
        let mut floats = vec![0f32; rows.len() * dim];
        space.load_floats(build.base, rows, &mut floats)?;
        let mut distances = vec![0f32; small];
        for (near, point) in out.iter_mut().zip(floats.chunks_exact(dim)) {
            block_l2_f32(point, centroids, dim, &mut distances);
            let mut order: Vec<(f32, u16)> =
                distances.iter().enumerate().map(|(s, &d)| (d, s as u16)).collect();
            let keep = NEAREST.min(order.len());
            let by = |a: &(f32, u16), b: &(f32, u16)| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1));
            order.select_nth_unstable_by(keep - 1, by);
            order.truncate(keep);
            order.sort_unstable_by(by);
            near.iter_mut().zip(&order).for_each(|(n, o)| *n = o.1);
        }
        build.progress.advance(rows.len() as u64);
        Ok(())
    })?;
    Ok(nearest)
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
fn chain(nearest: &[[u16; NEAREST]], centroids: &[f32], dim: usize, small: usize, share: usize) -> Chained {
    let mut sizes = vec![0usize; small];
    nearest.iter().for_each(|n| sizes[usize::from(n[0])] += 1);
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

/// Removes what a build that was stopped among its cells has left: lists are appended, and would count twice.
fn remove_spools(build: &Build<'_>) -> Result<()> {
    let folder = build.partial.folder();
    let entries = std::fs::read_dir(folder).map_err(|e| Error::io("opening", folder, &e))?;
    for entry in entries.flatten() {
        let name = entry.file_name();
        let is_spool = name.to_str().is_some_and(|n| n.starts_with("own-") || n.starts_with("guests-"));
        if is_spool {
            std::fs::remove_file(entry.path()).map_err(|e| Error::io("removing", &entry.path(), &e))?;
        }
    }
    Ok(())
}

fn path(build: &Build<'_>, kind: &str, cell: usize) -> PathBuf {
    build.partial.path(&format!("{kind}-{cell}.tmp"))
}

/// Builds one cell and writes its lists: those of its own rows to its file, those of its guests to the files of their cells.
fn build_cell(
    build: &Build<'_>,
    space: &Space,
    live: &[u32],
    assignment: &Assignment,
    cell: usize,
) -> Result<()> {
    let c = cell as u16;
    let is_member = |i: &usize| assignment.primary[*i] == c || assignment.secondary[*i] == c;
    let members: Vec<u32> = (0..live.len()).filter(is_member).map(|i| i as u32).collect();
    let rows: Vec<u32> = members.iter().map(|&i| live[i as usize]).collect();
    if rows.is_empty() {
        return Ok(());
    }
    let held = space.load(build.base, &rows, &crate::Quiet)?;
    let options = graph_stage::vamana_options(build);
    let graph = vamana::build(&held, held.medoid(), &options, build.progress)?;
    let mut own = Spool::append(path(build, "own", cell))?;
    let mut guests: Vec<Option<Spool>> = (0..assignment.cells).map(|_| None).collect();
    for (local, &i) in members.iter().enumerate() {
        let home = usize::from(assignment.primary[i as usize]);
        let spool = if home == cell {
            &mut own
        } else {
            if guests[home].is_none() {
                guests[home] = Some(Spool::append(path(build, "guests", home))?);
            }
            guests[home].as_mut().unwrap_or(&mut own)
        };
        spool.write(rows[local], &held, local as u32, graph.list(local as u32), &rows)?;
    }
    guests.into_iter().flatten().chain(std::iter::once(own)).try_for_each(Spool::finish)
}

/// A file of lists: row, length, rows of the neighbours, distances.
struct Spool {
    path: PathBuf,
    out: BufWriter<File>,
}

impl Spool {
    fn append(path: PathBuf) -> Result<Spool> {
        let file = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&path)
            .map_err(|e| Error::io("creating", &path, &e))?;
        Ok(Spool { path, out: BufWriter::with_capacity(16 << 10, file) })
    }

    fn write(&mut self, row: u32, points: &Held, local: u32, list: &[u32], rows: &[u32]) -> Result<()> {
        let mut record = Vec::with_capacity(2 + 2 * list.len());
        record.extend([row, list.len() as u32]);
        record.extend(list.iter().map(|&l| rows[l as usize]));
        record.extend(list.iter().map(|&l| points.distance(local, l).to_bits()));
        self.out.write_all(bytemuck::cast_slice(&record)).map_err(|e| Error::io("writing", &self.path, &e))
    }

    fn finish(mut self) -> Result<()> {
        self.out.flush().map_err(|e| Error::io("writing", &self.path, &e))
    }
}

/// The neighbours of one row as a cell found them, closest first.
struct Found {
    row: u32,
    near: Vec<(f32, u32)>,
}

fn read_found(input: &mut impl Read) -> std::io::Result<Option<Found>> {
    let mut head = [0u32; 2];
    match input.read_exact(bytemuck::cast_slice_mut(&mut head)) {
        Ok(()) => {}
        Err(e) if e.kind() == std::io::ErrorKind::UnexpectedEof => return Ok(None),
        Err(e) => return Err(e),
    }
    let count = head[1] as usize;
    let mut words = vec![0u32; 2 * count];
    input.read_exact(bytemuck::cast_slice_mut(&mut words))?;
    let near = (0..count).map(|i| (f32::from_bits(words[count + i]), words[i])).collect();
    Ok(Some(Found { row: head[0], near }))
}

/// Joins the lists of both cells of each row, in the order of cells.
fn merge(build: &mut Build<'_>, live: &[u32], assignment: &Assignment) -> Result<GraphFacts> {
    build.progress.stage("merging cells", live.len() as u64, "nodes");
    let mut writer = GraphWriter::create(&build.partial.path(graph_stage::GRAPH), build.options.degree)?;
    let mut order: Vec<u32> = Vec::with_capacity(live.len());
    let (mut cells, mut edges) = (Vec::new(), 0u64);
    for cell in 0..assignment.cells {
        if build.progress.interrupted() {
            return Err(Error::interrupted());
        }
        let start = order.len() as u32;
        let guests = read_guests(build, cell)?;
        let own_path = path(build, "own", cell);
        let Ok(file) = File::open(&own_path) else { continue };
        let mut input = BufReader::with_capacity(1 << 18, file);
        while let Some(mut found) = read_found(&mut input).map_err(|e| Error::io("reading", &own_path, &e))? {
            if let Ok(at) = guests.binary_search_by_key(&found.row, |g| g.row) {
                join(&mut found.near, &guests[at].near, build.options.degree);
            }
            edges += found.near.len() as u64;
            writer.write(found.near.iter().map(|n| n.1))?;
            order.push(found.row);
        }
        cells.push(Cell { start, end: order.len() as u32 });
        build.progress.advance(u64::from(order.len() as u32 - start));
        let _ = std::fs::remove_file(&own_path);
        let _ = std::fs::remove_file(path(build, "guests", cell));
    }
    if order.len() != live.len() {
        let folder = build.partial.folder().display();
        return Err(Error::corrupt(format!("{folder} has lost files of its cells; start the build again")));
    }
    writer.finish()?;
    graph_stage::write_order(&build.partial.path(graph_stage::ORDER), &order)?;
    cells.retain(|c| c.start < c.end);
    Ok(GraphFacts { cells, mean_list: edges as f64 / live.len() as f64 })
}

fn read_guests(build: &Build<'_>, cell: usize) -> Result<Vec<Found>> {
    let path = path(build, "guests", cell);
    let Ok(file) = File::open(&path) else { return Ok(Vec::new()) };
    let mut input = BufReader::with_capacity(1 << 18, file);
    let mut guests = Vec::new();
    while let Some(found) = read_found(&mut input).map_err(|e| Error::io("reading", &path, &e))? {
        guests.push(found);
    }
    guests.sort_unstable_by_key(|g| g.row);
    Ok(guests)
}

/// The closest `degree` of both lists.
fn join(near: &mut Vec<(f32, u32)>, other: &[(f32, u32)], degree: usize) {
    near.extend_from_slice(other);
    near.sort_unstable_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    near.dedup_by_key(|n| n.1);
    near.truncate(degree);
}
