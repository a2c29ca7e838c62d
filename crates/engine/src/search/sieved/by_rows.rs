//! Filters of rows that others have found.

use std::sync::Arc;

use stratann_core::sieve::Sieve;
use stratann_storage::{Error, Progress, Result};

use super::{Filter, Matches};
use crate::index::Index;
use crate::search::SearchOptions;

impl Index {
    /// A filter of these rows, by their numbers in the index, for searches with these options. Those that are deleted
    /// are left out of it.
    ///
    /// # Errors
    /// `BadInput` for rows of another index, and bad options.
    pub fn filter_of_rows(&self, rows: &Sieve, options: &SearchOptions) -> Result<Filter> {
        if u64::from(rows.rows()) != self.base.manifest.rows || self.is_in_memory_nodes() {
            return Err(Error::bad_input("a filter has rows of another index; make it of this one"));
        }
        let live = self.base.live.as_deref();
        let sieve = Arc::new(live.map_or_else(|| rows.clone(), |live| rows.intersection(live)));
        let plan = self.plan_sieve(&sieve, options)?;
        Ok(Filter { matches: Matches::Rows(sieve), plan, unknown: Some(0), repeated: 0 })
    }

    /// Reads the external ids of all rows, by which [`Index::matches`] compares.
    ///
    /// # Errors
    /// A RAM budget without room for them; rows that cannot be read; an interruption.
    pub fn read_ids(&self, progress: &dyn Progress) -> Result<()> {
        self.row_ids(progress).map(drop)
    }
}
