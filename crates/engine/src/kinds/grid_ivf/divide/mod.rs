//! Servers of a `grid-ivf`: which slices of which lists each of them holds (HARMONY §4.1).
//!
//! The lists are divided into rows and their components into slices; a server has one slice of one row. The head of a
//! list, which is its ids and what its bounds need, is on all servers of its row.

mod adapt;
mod plan;
mod workload;

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use serde::{Deserialize, Serialize};
use stratann_core::format::grid::{Copies, List};
use stratann_core::kinds::grid_ivf::View;
use stratann_core::place::Placement;
use stratann_params::choices::DivisionName;
use stratann_params::partition::DivisionSettings;
use stratann_storage::budget::Account;
use stratann_storage::data_file::FileEntry;
use stratann_storage::{Error, Progress, Result, data_file};

pub(crate) use self::adapt::Adapted;
use self::adapt::Current;
pub use self::plan::{Candidate, GridPlan};
use self::workload::Workload;
use super::facts::GridSection;
use super::open::GridIndex;
use super::stripes::Striped;
use super::units::{Places, SLICES_MAX};
use crate::base::Base;
use crate::files;
use crate::kinds::section::Section;
use crate::manifest::Manifest;
use crate::stages::tables::write_table;

/// Ways to divide the lists of a grid.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// The way that the planner finds cheapest (HARMONY §4.2).
    #[default]
    Harmony,
    /// Whole lists on each server.
    Vector,
    /// A slice of every list on each server.
    Dimension,
    /// An equal share of the members of every list on each server, whole. Not in the paper.
    Striped,
}

impl Mode {
    /// Name on the command line and in manifests.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Harmony => "harmony",
            Mode::Vector => "vector",
            Mode::Dimension => "dimension",
            Mode::Striped => "striped",
        }
    }
}

impl From<DivisionName> for Mode {
    fn from(name: DivisionName) -> Mode {
        match name {
            DivisionName::Harmony => Mode::Harmony,
            DivisionName::Vector => Mode::Vector,
            DivisionName::Dimension => Mode::Dimension,
            DivisionName::Striped => Mode::Striped,
        }
    }
}

/// Figures for the planner. What is not given is measured.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GridPartition {
    /// Way to divide the lists.
    pub mode: Mode,
    /// Number of slices, to compare; the planner's choice by default.
    pub slices: Option<usize>,
    /// Queries of the index' type and dimension, as they will come; vectors of the index where there are none.
    pub queries: Option<std::path::PathBuf>,
    /// Lists that a query visits; the calibrated number for `recall`, or 16 where none is given or calibrated.
    pub nprobe: Option<u32>,
    /// The recall that queries ask for; 0.95 by default.
    pub recall: Option<f64>,
    /// Nanoseconds of a component; timed by default.
    pub component_ns: Option<f64>,
    /// Nanoseconds that the origin takes to prepare a query; timed by default.
    pub prepare_ns: Option<f64>,
    /// Nanoseconds of a step of a query or a job besides its components; those of half a message by default.
    pub step_ns: Option<f64>,
    /// Weight of the imbalance, α in the paper; the number of servers by default, which makes an idle server as dear as
    /// a busy one.
    pub alpha: Option<f64>,
    /// Nanoseconds of a message, for both servers.
    pub message_ns: Option<f64>,
    /// Nanoseconds of a byte in a message.
    pub byte_ns: Option<f64>,
}

impl GridPartition {
    /// Reads what a user gave, but for the file of prices.
    pub fn read(settings: &DivisionSettings) -> GridPartition {
        GridPartition {
            mode: settings.mode.into(),
            queries: settings.queries.clone(),
            nprobe: settings.nprobe,
            recall: settings.recall,
            alpha: settings.alpha,
            message_ns: settings.message_us.map(|us| 1e3 * us),
            byte_ns: settings.byte_ns,
            ..GridPartition::default()
        }
    }
}

/// Servers that an index is divided over, and figures for the planner.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Over<'a> {
    /// Servers.
    pub(crate) servers: usize,
    /// Servers of each slice.
    pub(crate) replicas: usize,
    /// Figures for the planner.
    pub(crate) grid: &'a GridPartition,
    /// Whether there is memory for striped lists beside those of the index.
    pub(crate) may_stripe: bool,
}

/// The memory of a partition but for threads and files, from the manifest alone. Lists that are striped are in memory
/// twice.
pub(crate) fn account(manifest: &Manifest, servers: usize, may_stripe: bool) -> Account {
    let mut account = manifest.planned_account(0);
    let units = u64::from(manifest.units()) * (SLICES_MAX as u64 + 1).min(servers as u64 + 1);
    account.add("placement", 3 * 8 * units);
    if may_stripe {
        account.add("lists a second time", u64::from(manifest.blocks.count) * manifest.blocks.bytes as u64);
    }
    account
}

/// A grid that is divided.
pub(crate) struct Divided {
    pub(crate) plan: GridPlan,
    pub(crate) placement: Placement,
    pub(crate) places: Places,
    // Of striped lists, which are not those of the index that is divided.
    sizes: Option<Vec<u32>>,
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
    let grid = GridIndex::open(&base, None, None)?;
    let Placed { plan, placement, striped, .. } = place(&base, &grid, over, progress)?;
    let sizes = striped.as_ref().map(|striped| striped.sizes.clone());
    let grid = match striped {
        Some(striped) => grid.with_lists(striped),
        None => grid,
    };
    let places = grid.places().divided(&grid.layout, plan.slices.clone());
    Ok(Divided { plan, placement, places, sizes, grid })
}

/// Plans a partition again by the lists that queries visit. Returns the index divided by the next step, where there is
/// one.
///
/// # Errors
/// As [`divide`]; too few queries, a partition of another index.
pub(crate) fn adapt(
    index: &Path,
    (number, manifest): (u64, &Manifest),
    (running, placement): (&Manifest, &Placement),
    (visits, over): (&[Vec<u32>], Over<'_>),
    progress: &dyn Progress,
) -> Result<(Adapted, Option<Divided>)> {
    let base = Base::open(index, number, manifest.clone(), files::GRID)?;
    let grid = GridIndex::open(&base, None, None)?;
    let workload = Workload::measure(&base, &grid, over.grid, progress)?.observed(visits);
    let slices = running.spread.as_ref().map_or(&[][..], |spread| &spread.slices);
    let stripes = running.own(index, Section::grid)?.facts.stripes;
    let adapted = adapt::adapt(workload, &grid.layout, Current { placement, slices, stripes }, over)?;
    let Some(plan) = adapted.step.clone() else { return Ok((adapted, None)) };
    let placement = plan.placement(over)?;
    let places = grid.places().divided(&grid.layout, plan.slices.clone());
    Ok((adapted, Some(Divided { plan, placement, places, sizes: None, grid })))
}

/// A plan, where its units are, and the lists where these are striped.
pub(crate) struct Placed {
    pub(crate) plan: GridPlan,
    pub(crate) placement: Placement,
    pub(crate) places: Places,
    pub(crate) striped: Option<Striped>,
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
) -> Result<Placed> {
    let workload = Workload::measure(base, grid, over.grid, progress)?;
    let plan = GridPlan::choose(&workload, &grid.layout, over)?;
    let placement = plan.placement(over)?;
    let striped = (plan.stripes > 1).then(|| grid.stripe(plan.stripes, progress)).transpose()?;
    let places = striped.as_ref().map_or(grid.places(), |striped| &striped.places);
    let places = places.divided(&grid.layout, plan.slices.clone());
    Ok(Placed { plan, placement, places, striped })
}

/// Files of striped lists.
pub(crate) struct StripedFiles {
    /// Manifest of an index with these lists.
    pub(crate) manifest: Manifest,
    /// Entry of the data file.
    pub(crate) data: FileEntry,
    /// Entry of the file of sizes.
    pub(crate) sizes: FileEntry,
}

impl Divided {
    /// Writes the lists where they are striped, in place of those of the index that is divided: the data file, and the
    /// sizes, once `make_room` has removed what is there. `None` where lists are those of the index.
    pub(crate) fn write_lists(
        &self,
        source: &Manifest,
        (data, sizes): (&Path, &Path),
        make_room: impl FnOnce() -> Result<()>,
    ) -> Result<Option<StripedFiles>> {
        let Some(own) = &self.sizes else { return Ok(None) };
        make_room()?;
        let bytes = self.grid.data();
        write_table::<u8>(data, bytes)?;
        write_table(sizes, own)?;
        let section = Section::from(GridSection { facts: self.grid.facts.clone() });
        let mut manifest = Manifest { section, ..source.clone() };
        manifest.blocks.count = (bytes.len() / manifest.blocks.bytes) as u32;
        Ok(Some(StripedFiles { manifest, data: data_file::entry(data)?, sizes: data_file::entry(sizes)? }))
    }

    /// Writes the first members of all lists, which every server holds.
    pub(crate) fn write_firsts(&self, path: &Path) -> Result<FileEntry> {
        let view: View<'_> = self.grid.view();
        let mut copies = Copies::default();
        for list in (0..view.lists()).filter_map(|list| Some((list, view.list(list)?))) {
            copies.take(&list.1, view.prewarmed(list.0));
        }
        let mut bytes = Vec::new();
        copies.write(&self.grid.layout, &mut bytes);
        write_table(path, &bytes)?;
        data_file::entry(path)
    }

    /// Writes the ids that users know of all rows, by the internal ids of the partition: members of striped lists have
    /// others than in the index that is divided.
    pub(crate) fn write_row_ids(&self, path: &Path) -> Result<FileEntry> {
        let view: View<'_> = self.grid.view();
        let of_list = |list: List<'_>| (0..list.members()).map(|m| list.external_id(m)).collect::<Vec<u64>>();
        let lists = (0..view.lists()).filter_map(|list| view.list(list));
        let write = || {
            let mut file = BufWriter::new(File::create(path)?);
            for id in lists.flat_map(of_list) {
                file.write_all(&id.to_le_bytes())?;
            }
            file.into_inner()?.sync_all()
        };
        write().map_err(|e| Error::io("writing", path, &e))?;
        data_file::entry(path)
    }
}
