//! How an index that a planner slices is divided over servers: the kinds' one answer to each question.

use std::path::Path;

use stratann_core::place::Placement;
use stratann_storage::budget::Account;
use stratann_storage::{Progress, Result};

use super::grid_ivf;
pub use super::grid_ivf::divide::{Candidate, GridPartition, GridPlan, Mode};
use super::{Adapted, Divided, Over};
use crate::manifest::Manifest;

/// Where the units of lists in slices are, and the lists themselves where these are striped.
pub(crate) type SlicedLists = (grid_ivf::units::Places, Option<grid_ivf::stripes::Striped>);

/// The memory of dividing an index that a planner slices, from the manifest alone; `None` for another kind.
pub(crate) fn division_account(manifest: &Manifest, servers: usize, mode: Mode) -> Option<Account> {
    let is_sliced = manifest.facts().is_sliced;
    is_sliced.then(|| grid_ivf::divide::account(manifest, servers, mode == Mode::Striped))
}

/// Divides an index that a planner slices.
///
/// # Errors
/// Queries of another shape, an interruption, damage.
pub(crate) fn divide(
    folder: &Path,
    source: (u64, &Manifest),
    over: Over<'_>,
    progress: &dyn Progress,
) -> Result<Divided> {
    grid_ivf::divide::divide(folder, source, over, progress)
}

/// Plans a partition again by the lists that queries visit, and divides the index by the next step where there is one.
///
/// # Errors
/// As [`divide`]; too few queries, a partition of another index.
pub(crate) fn adapt(
    folder: &Path,
    source: (u64, &Manifest),
    running: (&Manifest, &Placement),
    seen: (&[Vec<u32>], Over<'_>),
    progress: &dyn Progress,
) -> Result<(Adapted, Option<Divided>)> {
    grid_ivf::divide::adapt(folder, source, running, seen, progress)
}
