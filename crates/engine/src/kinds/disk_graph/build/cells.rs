//! The graph of a set that does not fit in the budget: many overlapping cells, each built in RAM, their edges merged.
//!
//! After DiskANN (NeurIPS 2019, §3.3), with three changes. Rows are first assigned to many small k-means cells, which
//! are then chained into cells of equal size, so that no cell exceeds the budget ([`divide`]). A row is built into a
//! further cell only when that cell holds one of the small cells nearest to the row: rows deep inside a cell are built
//! once, rows near a border several times and join the cells. The lists of such a row are pruned together ([`merge`]),
//! where DiskANN draws from them at random.

use std::path::{Path, PathBuf};
use stratann_params::build::GraphOptions;

use stratann_core::build::Lists;
use stratann_storage::Result;
use stratann_storage::output::AtomicFile;

use super::divide::{self, Division, Member};
use super::graph_stage::{self, GraphFacts};
use super::merge;
use crate::dataset::Scan;
use crate::stages::build::Build;
use crate::stages::space::Space;
use crate::stages::tables::write_table;
use crate::stages::vamana;

pub(crate) fn run(
    build: &mut Build<'_>,
    own: &GraphOptions,
    space: &Space,
    scan: &Scan,
) -> Result<GraphFacts> {
    let division = build.stage(super::DIVIDE, |b| divide::run(b, own, space, scan))?;
    divide::remove_nearest(build);
    build.progress.stage("graph", division.members(), "points");
    (0..division.cells.len()).try_for_each(|cell| build_cell(build, own, space, &division, cell))?;
    merge::run(build, own, space, &division)
}

/// File of a cell's lists: for each owning cell one u64, where the lists of its rows start in the file, and where the
/// last ones end; then the lists by owning cell, ascending by row: row, length, rows of the neighbours, closest first,
/// all u32.
pub(crate) fn lists_path(build: &Build<'_>, cell: usize) -> PathBuf {
    build.partial.path(&format!("cell-{cell}.tmp"))
}

/// Builds one cell and writes the lists of its rows. A cell that an interrupted build has finished is kept.
pub(crate) fn build_cell(
    build: &Build<'_>,
    own: &GraphOptions,
    space: &Space,
    division: &Division,
    cell: usize,
) -> Result<()> {
    let path = lists_path(build, cell);
    if path.exists() {
        build.progress.advance(division.members_of(cell));
        return Ok(());
    }
    let members = division.read_members(build, cell)?;
    if members.is_empty() {
        let empty = vec![8 * (division.cells.len() as u64 + 1); division.cells.len() + 1];
        return write_table(&path, &empty);
    }
    let rows: Vec<u32> = members.iter().map(|m| m.row).collect();
    let held = space.load(build.base, &rows, &stratann_storage::Quiet)?;
    drop(rows);
    let options = graph_stage::vamana_options(build, own);
    let graph = vamana::build(&held, held.medoid(), &options, build.progress)?;
    drop(held);
    write_lists(&path, division.cells.len(), &members, &graph)
}

/// Writes the file of a cell, atomically.
fn write_lists(path: &Path, cells: usize, members: &[Member], graph: &vamana::Graph) -> Result<()> {
    let mut homes = vec![0u64; cells + 1];
    homes[0] = 8 * homes.len() as u64;
    let mut order: Vec<u32> = (0..members.len() as u32).collect();
    order.sort_by_key(|&local| members[local as usize].home);
    let home = |local: u32| -> usize { members[local as usize].home as usize };
    for local in 0..members.len() as u32 {
        homes[home(local) + 1] += 4 * (2 + graph.list(local).len() as u64);
    }
    (1..homes.len()).for_each(|h| homes[h] += homes[h - 1]);
    let mut out = AtomicFile::create(path)?;
    out.write(bytemuck::cast_slice(&homes))?;
    let mut record = Vec::new();
    for &local in &order {
        let list = graph.list(local);
        record.clear();
        record.extend([members[local as usize].row, list.len() as u32]);
        record.extend(list.iter().map(|&l| members[l as usize].row));
        out.write(bytemuck::cast_slice(&record))?;
    }
    out.commit()
}
