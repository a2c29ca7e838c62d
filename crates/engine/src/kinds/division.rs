//! Division over servers of an index that a planner slices: the kinds' one answer to each question.

use stratann_storage::budget::Account;

use super::grid_ivf;
pub use super::grid_ivf::divide::{Candidate, GridPartition, GridPlan, Mode};
use crate::manifest::Manifest;

/// Places of the units of lists in slices, and the lists themselves where these are striped.
pub(crate) type SlicedLists = (grid_ivf::units::Places, Option<grid_ivf::stripes::Striped>);

/// The memory of dividing an index that a planner slices, from the manifest alone; `None` for another kind.
pub(crate) fn division_account(manifest: &Manifest, servers: usize, mode: Mode) -> Option<Account> {
    let is_sliced = manifest.facts().is_sliced;
    is_sliced.then(|| grid_ivf::divide::account(manifest, servers, mode == Mode::Striped))
}
