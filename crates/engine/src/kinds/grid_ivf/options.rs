//! Options of a `grid-ivf`.

use stratann_params::Group;
use stratann_params::build::GridOptions;
use stratann_storage::{Error, Result, data_file};

use crate::record::{Record, recorded};

/// Checks the values.
pub(crate) fn check(own: &GridOptions) -> Result<()> {
    own.check_ranges()?;
    match (own.lists, &own.centroids) {
        (Some(_), Some(_)) => {
            Err(Error::bad_input("--centroids gives the number of lists; leave out --lists or --centroids"))
        }
        _ => Ok(()),
    }
}

/// The options that the content of an index depends on, as its manifest records them.
pub(crate) fn record(own: &GridOptions) -> Record {
    let mut all = recorded(own);
    // A file that cannot be read is refused by the build.
    let given = own.centroids.as_ref().and_then(|path| data_file::entry(path).ok());
    all.insert("centroids", given.map(|entry| entry.xxh3).into());
    all
}

/// Techniques of a `grid-ivf` that may be switched (HARMONY §4.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GridSwitches {
    /// Drop a vector as soon as its first components exceed the threshold.
    pub prune_dimension: bool,
    /// Let the threshold fall from list to list.
    pub prune_vector: bool,
    /// Score some members of every probed list first.
    pub prewarm: bool,
    /// Rows that are visited at the same time, 1 to 64, where lists are divided over servers.
    pub fan_out: u8,
    /// Let slices on busy servers come last.
    pub busy_last: bool,
    /// Let loads of servers count at all: of replicas, the least busy one scores.
    pub balance: bool,
    /// Let a row visit its slices one after another, each pruning for those that follow. Otherwise all are scored at
    /// once, and their sums are added where the query is.
    pub pipeline: bool,
}

impl Default for GridSwitches {
    fn default() -> Self {
        GridSwitches {
            prune_dimension: true,
            prune_vector: true,
            prewarm: true,
            fan_out: 1,
            busy_last: true,
            balance: true,
            pipeline: true,
        }
    }
}
