//! Options of a `grid-ivf`.

use stratann_params::Group;
pub use stratann_params::build::GridOptions as Options;
pub use stratann_params::search::GridSwitches as Switches;
use stratann_storage::{Error, Result, data_file};

use crate::record::{Record, Recorded, recorded};

impl Recorded for Options {
    fn check(&self, _: usize) -> Result<()> {
        self.check_ranges()?;
        match (self.lists, &self.centroids) {
            (Some(_), Some(_)) => Err(Error::bad_input(
                "--centroids gives the number of lists; leave out --lists or --centroids",
            )),
            _ => Ok(()),
        }
    }

    fn record(&self, _: usize) -> Record {
        let mut all = recorded(self);
        // A file that cannot be read is refused by the build.
        let given = self.centroids.as_ref().and_then(|path| data_file::entry(path).ok());
        all.insert("centroids", given.map(|entry| entry.xxh3).into());
        all
    }
}
