//! Dividing the rows of a set into overlapping cells, each small enough for the budget.
//!
//! | step | leaves in `partial/` |
//! |---|---|
//! | [`centroids`] | `centroids.tmp`: f32, centroids of many small cells |
//! | [`nearest`], for each part of the rows | `nearest-P.tmp`: for each of its live rows 8 u16, the nearest small cells, nearest first |
//! | [`divide`] | `order.tmp`: rows by home, u32; `members.tmp`: all rows of each cell, two u32: row and home |

use std::io::Read;
use std::path::PathBuf;
use stratann_params::build::GraphOptions;

use serde::{Deserialize, Serialize};
use stratann_kernel::centroids::{CentroidTable, Scratch};
use stratann_storage::output::AtomicFile;
use stratann_storage::{Error, Result, input};

use crate::clusterings::balanced::{Chained, chain};
use crate::clusterings::{evenly_of, kmeans, sample_of};
use crate::dataset::Scan;
use crate::kinds::blocks::plan::{OVERLAP, points_of_cell};
use crate::parallel;
use crate::stages::blocks::graph_file::Cell;
use crate::stages::blocks::layout::ORDER;
use crate::stages::build::Build;
use crate::stages::regions::Regions;
use crate::stages::space::Space;
use crate::stages::tables::{read_entries, read_table, write_table};
use crate::stages::vamana;

/// Small cells per cell: enough for cells of nearly equal size.
const SMALL_PER_CELL: usize = 24;
/// Small cells that a row considers; a further cell must own one of them.
const NEAREST: usize = 8;
/// Cells that a row is built in, at most.
const MEMBERSHIPS: usize = 3;
const NONE: u16 = u16::MAX;
/// Rows whose nearest small cells are in memory at a time.
const NEAREST_ROWS: usize = 1 << 16;
/// Rows of cells that wait to be written.
const WAITING_BYTES: u64 = 2 << 20;
const CENTROIDS: &str = "centroids.tmp";
const MEMBERS: &str = "members.tmp";

type Near = [u16; NEAREST];
type Memberships = [u16; MEMBERSHIPS];

/// A row of a cell, and the cell that it is at home in.
#[derive(Clone, Copy, bytemuck::Zeroable, bytemuck::Pod)]
#[repr(C)]
pub(crate) struct Member {
    pub(crate) row: u32,
    pub(crate) home: u32,
}

/// Division of the rows into cells.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Division {
    /// The residents of each cell, as places in the order.
    pub(crate) cells: Vec<Cell>,
    /// Start of the members of each cell, residents and guests, and the end of the last.
    starts: Vec<u64>,
}

impl Division {
    /// Members of all cells.
    pub(crate) fn members(&self) -> u64 {
        self.starts.last().copied().unwrap_or(0)
    }

    /// Members of a cell.
    pub(crate) fn members_of(&self, cell: usize) -> u64 {
        self.starts[cell + 1] - self.starts[cell]
    }

    /// Reads the members of a cell, ascending by row.
    pub(crate) fn read_members(&self, build: &Build<'_>, cell: usize) -> Result<Vec<Member>> {
        read_entries(&build.partial.path(MEMBERS), self.starts[cell], self.starts[cell + 1])
    }

    /// Reads the rows at home in a cell, ascending.
    pub(crate) fn read_residents(&self, build: &Build<'_>, cell: usize) -> Result<Vec<u32>> {
        let Cell { start, end } = self.cells[cell];
        read_entries(&build.partial.path(ORDER), start.into(), end.into())
    }
}

pub(crate) fn run(build: &Build<'_>, own: &GraphOptions, space: &Space, scan: &Scan) -> Result<Division> {
    centroids(build, own, space, scan)?;
    build.progress.stage("dividing into cells", scan.rows, "rows");
    (0..build.parts().count()).try_for_each(|part| nearest(build, space, scan, part))?;
    divide(build, own, space, scan)
}

/// Number of rows that a cell has room for, and of those that are at home there.
fn room(build: &Build<'_>, own: &GraphOptions, space: &Space, live: usize) -> (usize, usize) {
    let point = space.point_bytes() as u64 + vamana::Graph::bytes(1, own.degree) + 12;
    let fits = build.options.ram_budget.map_or(u64::MAX, |_| (build.plan.cell_bytes / point).max(1000));
    let wanted = own.cells.map_or(u64::MAX, |cells| points_of_cell(live as u64, cells));
    let room = fits.min(wanted) as usize;
    (room, ((room as f64 * (1.0 - OVERLAP)) as usize).max(1))
}

/// Finds the centroids of the small cells.
pub(crate) fn centroids(build: &Build<'_>, own: &GraphOptions, space: &Space, scan: &Scan) -> Result<()> {
    let live = scan.rows as usize;
    let (_, share) = room(build, own, space, live);
    let small = (SMALL_PER_CELL * live.div_ceil(share)).clamp(SMALL_PER_CELL, 4096);
    let count = (build.plan.codebook_sample * 2).min(64 * small).min(live);
    let rows = evenly_of(build.each_live_row(scan), live, count);
    let dim = space.point_dim();
    let sample = sample_of(dim, &rows, |rows, out| space.load_floats(build.base, rows, out))?;
    let centroids = kmeans::kmeans_stage(&sample, dim, small, 10, build.options.seed, build.progress)?;
    write_table(&build.partial.path(CENTROIDS), &centroids)
}

fn nearest_path(build: &Build<'_>, part: usize) -> PathBuf {
    build.partial.path(&format!("nearest-{part}.tmp"))
}

/// Writes the nearest small cells of every live row of a part to a file: for many rows they would take more memory
/// than there is.
pub(crate) fn nearest(build: &Build<'_>, space: &Space, scan: &Scan, part: usize) -> Result<()> {
    const CHUNK: usize = 512;
    let dim = space.point_dim();
    let centroids: Vec<f32> = read_table(&build.partial.path(CENTROIDS))?;
    let table = CentroidTable::new(&centroids, dim);
    let live: Vec<u32> = build.live(scan, build.parts().rows_of(part)).map(|row| row as u32).collect();
    let mut file = AtomicFile::create(&nearest_path(build, part))?;
    let mut nearest: Vec<Near> = vec![[NONE; NEAREST]; NEAREST_ROWS.min(live.len())];
    for rows in live.chunks(NEAREST_ROWS) {
        let nearest = &mut nearest[..rows.len()];
        parallel::try_map(nearest.chunks_mut(CHUNK).zip(rows.chunks(CHUNK)), |(out, rows)| {
            build.progress.check_interrupted()?;
            let mut floats = vec![0f32; rows.len() * dim];
            space.load_floats(build.base, rows, &mut floats)?;
            let mut found = vec![0u32; rows.len() * NEAREST];
            table.nearest_few(&floats, &mut Scratch::default(), &mut found);
            // Numbers of small cells fit 16 bits, and what stands for none becomes the same.
            out.as_flattened_mut().iter_mut().zip(found).for_each(|(out, found)| *out = found as u16);
            build.progress.advance(rows.len() as u64);
            Ok::<_, Error>(())
        })?;
        file.write(bytemuck::cast_slice(nearest))?;
    }
    file.commit()
}

/// Gives the nearest small cells of every live row in turn to `visit`, with the row's place among the live ones.
fn for_each_nearest(build: &Build<'_>, mut visit: impl FnMut(usize, &Near)) -> Result<()> {
    let mut nearest: Vec<Near> = vec![[NONE; NEAREST]; NEAREST_ROWS];
    let mut at = 0;
    for part in 0..build.parts().count() {
        let path = nearest_path(build, part);
        let failed = |e: std::io::Error| Error::io("reading", &path, &e);
        let mut file = input::open(&path)?;
        let mut left = file.metadata().map_err(failed)?.len() as usize / size_of::<Near>();
        while left > 0 {
            let count = left.min(nearest.len());
            file.read_exact(bytemuck::cast_slice_mut(&mut nearest[..count])).map_err(failed)?;
            nearest[..count].iter().enumerate().for_each(|(i, near)| visit(at + i, near));
            left -= count;
            at += count;
        }
    }
    Ok(())
}

/// Chooses the cells of every row, and writes them.
pub(crate) fn divide(build: &Build<'_>, own: &GraphOptions, space: &Space, scan: &Scan) -> Result<Division> {
    let live = scan.rows as usize;
    let (room, share) = room(build, own, space, live);
    let centroids: Vec<f32> = read_table(&build.partial.path(CENTROIDS))?;
    let dim = space.point_dim();
    let (mut sizes, mut seen) = (vec![0usize; centroids.len() / dim], 0);
    for_each_nearest(build, |_, near| {
        sizes[usize::from(near[0])] += 1;
        seen += 1;
    })?;
    if seen != live {
        let folder = build.partial.folder().display();
        return Err(Error::corrupt(format!("{folder} has lost a part of its rows; start the build again")));
    }
    let chained = chain(&sizes, &centroids, dim, share);
    if chained.cells >= usize::from(NONE) {
        return Err(Error::budget(format!(
            "the graph would be built in {} parts, {NONE} at most can be joined; raise --ram-budget",
            chained.cells
        )));
    }
    let members = memberships(build, &chained, live, room, share)?;
    write(build, build.each_live_row(scan), &members, chained.cells)
}

/// Removes what the rows were divided by, once it is on record how.
pub(crate) fn remove_nearest(build: &Build<'_>) {
    for part in 0..build.parts().count() {
        // What stays behind goes with the folder.
        let _ = std::fs::remove_file(nearest_path(build, part));
    }
}

/// Which cells each live row is built in; the first is its home.
fn memberships(
    build: &Build<'_>,
    chained: &Chained,
    live: usize,
    room: usize,
    share: usize,
) -> Result<Vec<Memberships>> {
    let mut filled = vec![0usize; chained.cells];
    let mut seen = vec![0u32; chained.first.len()];
    let mut members = vec![[NONE; MEMBERSHIPS]; live];
    for_each_nearest(build, |row, near| {
        // A small cell larger than a cell is cut into several, row by row.
        let first = usize::from(near[0]);
        let home = chained.cell(first, seen[first], share);
        seen[first] += 1;
        filled[home] += 1;
        members[row][0] = home as u16;
    })?;
    for further in 1..MEMBERSHIPS {
        for_each_nearest(build, |row, near| {
            let others = near[1..].iter().filter(|&&s| s != NONE);
            let mut cells = others.map(|&s| chained.cell(usize::from(s), 0, share));
            let member = &mut members[row];
            if let Some(c) = cells.find(|&c| !member.contains(&(c as u16)) && filled[c] < room) {
                filled[c] += 1;
                member[further] = c as u16;
            }
        })?;
    }
    Ok(members)
}

/// Writes the rows by home, and the rows of every cell.
fn write(
    build: &Build<'_>,
    live: impl Iterator<Item = u32>,
    memberships: &[Memberships],
    cells: usize,
) -> Result<Division> {
    let (mut residents, mut members) = (vec![0u64; cells + 1], vec![0u64; cells + 1]);
    for m in memberships {
        residents[usize::from(m[0]) + 1] += 1;
        m.iter().filter(|&&c| c != NONE).for_each(|&c| members[usize::from(c) + 1] += 1);
    }
    for cell in 0..cells {
        residents[cell + 1] += residents[cell];
        members[cell + 1] += members[cell];
    }
    let bytes = |starts: &[u64], size: usize| starts[..cells].iter().map(|s| s * size as u64).collect();
    let (order_path, members_path) = (build.partial.path(ORDER), build.partial.path(MEMBERS));
    let (order, all) = (AtomicFile::create(&order_path)?, AtomicFile::create(&members_path)?);
    let mut by_home = Regions::new(order.file(), &order_path, bytes(&residents, 4), 4, WAITING_BYTES);
    let mut by_cell = Regions::new(all.file(), &members_path, bytes(&members, 8), 8, WAITING_BYTES);
    for (row, m) in live.zip(memberships) {
        by_home.put(m[0].into(), &row.to_le_bytes())?;
        let member = Member { row, home: m[0].into() };
        let mut all = m.iter().filter(|&&c| c != NONE);
        all.try_for_each(|&c| by_cell.put(c.into(), bytemuck::bytes_of(&member)))?;
    }
    by_home.finish()?;
    by_cell.finish()?;
    order.commit()?;
    all.commit()?;
    let cell = |w: &[u64]| Cell { start: w[0] as u32, end: w[1] as u32 };
    Ok(Division { cells: residents.windows(2).map(cell).collect(), starts: members })
}
