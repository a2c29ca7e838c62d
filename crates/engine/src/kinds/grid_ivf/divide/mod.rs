//! Servers of a `grid-ivf`: which slices of which lists each of them holds (HARMONY §4.1).
//!
//! The lists are divided into rows and their components into slices; a server has one slice of one row. The head of a
//! list, which is its ids and what its bounds need, is on all servers of its row.

mod plan;
mod workload;

use std::path::Path;

use serde::{Deserialize, Serialize};
use stratann_core::format::grid::Copies;
use stratann_core::place::Placement;
use stratann_core::plan::grid_ivf::{View, prewarmed};

pub use self::plan::{Candidate, GridPlan};
use self::workload::Workload;
use super::open::GridIndex;
use super::units::{Places, SLICES_MAX};
use crate::base::Base;
use crate::budget::Account;
use crate::build::tables::write_table;
use crate::files::{self, FileEntry};
use crate::manifest::Manifest;
use crate::{Progress, Result};

/// How the lists of a grid are divided.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// As the planner finds it cheapest (HARMONY §4.2).
    #[default]
    Harmony,
    /// Whole lists on each server.
    Vector,
    /// A slice of every list on each server.
    Dimension,
}

impl Mode {
    /// Its name on the command line and in manifests.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Harmony => "harmony",
            Mode::Vector => "vector",
            Mode::Dimension => "dimension",
        }
    }
}

/// What the planner is told. What is not given is measured.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GridPartition {
    /// How lists are divided.
    pub mode: Mode,
    /// Queries of the index' type and dimension, as they will come; vectors of the index where there are none.
    pub queries: Option<std::path::PathBuf>,
    /// Lists that a query visits; the calibrated number for a recall of 0.95, or 16.
    pub nprobe: Option<u32>,
    /// Weight of the imbalance, α in the paper; the number of servers by default, which makes an idle server as dear as
    /// a busy one.
    pub alpha: Option<f64>,
    /// Nanoseconds of a message, for both servers.
    pub message_ns: Option<f64>,
    /// Nanoseconds of a byte in a message.
    pub byte_ns: Option<f64>,
}

/// What an index is divided over.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Over<'a> {
    /// Servers.
    pub(crate) servers: usize,
    /// Servers of each slice.
    pub(crate) replicas: usize,
    /// What the planner is told.
    pub(crate) grid: &'a GridPartition,
}

/// The memory of a partition but for threads and files, from the manifest alone.
pub(crate) fn account(manifest: &Manifest, servers: usize) -> Account {
    let mut account = manifest.planned_account(0);
    let units = u64::from(manifest.units()) * (SLICES_MAX as u64 + 1).min(servers as u64 + 1);
    account.add("placement", 3 * 8 * units);
    account
}

/// A grid that is divided.
pub(crate) struct Divided {
    pub(crate) plan: GridPlan,
    pub(crate) placement: Placement,
    pub(crate) places: Places,
    grid: GridIndex,
}

/// Divides an index over servers.
///
/// # Errors
/// Queries of another shape, an interruption, damage.
pub(crate) fn divide(
    index: &Path,
    (number, manifest): (u64, &Manifest),
    over: Over<'_>,
    progress: &dyn Progress,
) -> Result<Divided> {
    let base = Base::open(index, number, manifest.clone(), files::GRID)?;
    let grid = GridIndex::open(&base, None)?;
    let (plan, placement) = place(&base, &grid, over, progress)?;
    let places = grid.places().divided(&grid.layout, plan.slices.clone());
    Ok(Divided { plan, placement, places, grid })
}

/// Chooses a plan and places all units by it.
///
/// # Errors
/// As [`divide`].
pub(crate) fn place(
    base: &Base,
    grid: &GridIndex,
    over: Over<'_>,
    progress: &dyn Progress,
) -> Result<(GridPlan, Placement)> {
    let workload = Workload::measure(base, grid, over.grid, progress)?;
    let plan = GridPlan::choose(&workload, &grid.layout, over)?;
    let placement = plan.placement(over)?;
    Ok((plan, placement))
}

impl Divided {
    /// Writes the first members of all lists, which every server holds.
    pub(crate) fn write_firsts(&self, path: &Path) -> Result<FileEntry> {
        let view: View<'_> = self.grid.view();
        let mut copies = Copies::default();
        for list in (0..view.lists()).filter_map(|list| view.list(list)) {
            copies.take(&list, prewarmed(list.members()));
        }
        let mut bytes = Vec::new();
        copies.write(&self.grid.layout, &mut bytes);
        write_table(path, &bytes)?;
        files::entry(path)
    }
}
