//! Servers of a `grid-ivf`: which slices of which lists each of them holds (HARMONY §4.1).
//!
//! The lists are divided into rows and their components into slices; a server has one slice of one row. The head of a
//! list, which is its ids and what its bounds need, is on all servers of its row.

mod plan;
mod workload;

use std::io::Write;
use std::path::Path;

use serde::{Deserialize, Serialize};
use stratann_core::place::Placement;
use stratann_core::plan::grid_ivf::View;

pub use self::plan::{Candidate, GridPlan};
use self::workload::Workload;
use super::{PartitionOptions, parts};
use crate::base::Base;
use crate::budget::{Account, THREAD_BYTES};
use crate::dataset::AtomicFile;
use crate::files::{self, FileEntry};
use crate::kinds::grid_ivf::open::GridIndex;
use crate::kinds::grid_ivf::units::{Places, SLICES_MAX};
use crate::manifest::Manifest;
use crate::{Error, Progress, Result};

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

/// The memory of a partition, from the manifest alone.
pub(super) fn account(manifest: &Manifest, options: &PartitionOptions) -> Account {
    let mut account = manifest.planned_account(0);
    account.add("threads", options.threads as u64 * THREAD_BYTES);
    let (lists, servers) = (u64::from(manifest.units()), options.servers as u64);
    let units = lists * (SLICES_MAX as u64 + 1).min(servers + 1);
    account.add("placement", 3 * 8 * units);
    account.add("files under way", servers * 2 * parts::BUFFER_BYTES as u64);
    account
}

/// A grid that is divided.
pub(super) struct Divided {
    pub(super) plan: GridPlan,
    pub(super) placement: Placement,
    pub(super) places: Places,
    grid: GridIndex,
}

/// Divides an index over servers.
///
/// # Errors
/// Queries of another shape, an interruption, damage.
pub(super) fn divide(
    index: &Path,
    (number, manifest): (u64, &Manifest),
    options: &PartitionOptions,
    progress: &dyn Progress,
) -> Result<Divided> {
    let base = Base::open(index, number, manifest.clone(), files::GRID)?;
    let grid = GridIndex::open(&base, None)?;
    let (plan, placement) = place(&base, &grid, options, progress)?;
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
    options: &PartitionOptions,
    progress: &dyn Progress,
) -> Result<(GridPlan, Placement)> {
    let workload = Workload::measure(base, grid, &options.grid, progress)?;
    let plan = GridPlan::choose(&workload, &grid.layout, options)?;
    let placement = plan.placement(options)?;
    Ok((plan, placement))
}

impl Divided {
    /// Writes the first members of all lists, which every server holds.
    pub(super) fn write_firsts(&self, path: &Path) -> Result<FileEntry> {
        let file = AtomicFile::create(path)?;
        let view: View<'_> = self.grid.view();
        let mut out = std::io::BufWriter::new(file.file());
        let mut bytes = Vec::new();
        for list in 0..view.lists() {
            bytes.clear();
            if let Some(members) = view.list(list) {
                let count = stratann_core::plan::grid_ivf::prewarmed(members.members());
                members.write_first(count, &mut bytes);
            }
            out.write_all(&bytes).map_err(|e| Error::io("writing", path, &e))?;
        }
        out.flush().map_err(|e| Error::io("writing", path, &e))?;
        drop(out);
        file.commit()?;
        files::entry(path)
    }
}
