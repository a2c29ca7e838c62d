//! Filters that a user names: files of ids.

use std::path::{Path, PathBuf};

use serde::Serialize;
use stratann_engine::dataset::read_all_ids;
use stratann_engine::search::{Filter, Naming, SieveWay};
use stratann_storage::Result;

use crate::output::count;

/// Options of a filter.
#[derive(clap::Args)]
pub(crate) struct FilterArgs {
    /// Return only rows with these ids: a .npy, .u64bin or .txt file, in any order
    ///
    /// Ids are those of the index (--ids at build), else row numbers. Ids that no row has are ignored and counted.
    /// Recall is then that among these rows.
    #[arg(long, value_name = "IDS", conflicts_with = "without", help_heading = "Filter")]
    only: Option<PathBuf>,
    /// Return no row with these ids: a file as that of --only
    #[arg(long, value_name = "IDS", help_heading = "Filter")]
    without: Option<PathBuf>,
}

impl FilterArgs {
    /// The file and its meaning; `None` without a filter.
    pub(crate) fn named(&self) -> Option<(&Path, Naming)> {
        let only = self.only.as_deref().map(|path| (path, Naming::Only));
        only.or(self.without.as_deref().map(|path| (path, Naming::Without)))
    }

    /// Reads the ids.
    ///
    /// # Errors
    /// A file that cannot be read, or is no file of ids.
    pub(crate) fn read(&self) -> Result<Option<(Vec<u64>, Naming)>> {
        self.named().map(|(path, naming)| Ok((read_all_ids(path)?, naming))).transpose()
    }
}

/// A filter in a report.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct FilterReport {
    /// Rows that may be returned.
    pub(crate) matches: u32,
    /// How they were found.
    pub(crate) way: SieveWay,
    /// Named ids that no row has.
    pub(crate) unknown_ids: usize,
    /// Named ids that were named before.
    pub(crate) repeated_ids: usize,
}

impl FilterReport {
    pub(crate) fn of(filter: &Filter) -> FilterReport {
        FilterReport {
            matches: filter.matches(),
            way: filter.way(),
            unknown_ids: filter.unknown(),
            repeated_ids: filter.repeated(),
        }
    }

    /// A line for a person.
    pub(crate) fn text(&self) -> String {
        let way = match self.way {
            SieveWay::Exact => "all of them were looked at",
            SieveWay::Codes => "the codes of all of them were compared",
            SieveWay::Search => "by the usual search with more effort",
        };
        let mut line = format!("filter: {} rows match; {way}", count(self.matches.into()));
        for (ids, what) in [(self.unknown_ids, "no row has"), (self.repeated_ids, "were named twice")] {
            if ids > 0 {
                line += &format!("; {} ids {what}", count(ids as u64));
            }
        }
        line + "\n"
    }
}
