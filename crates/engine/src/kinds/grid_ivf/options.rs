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
