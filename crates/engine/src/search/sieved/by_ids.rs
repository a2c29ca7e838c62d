//! Filters of an index in memory nodes. Others change it, so its rows have no numbers: each is judged by its id when it
//! is read.

use std::sync::Arc;

use stratann_core::sieve::IdSieve;
use stratann_storage::{Error, Result};

use super::{Filter, Matches, Naming, sorted};
use crate::index::Index;
use crate::kinds::answers::SievePlan;
use crate::search::{Effort, SearchOptions};

impl Index {
    /// As [`Index::filter`]. How many rows match is known as far as the ids are those of rows.
    pub(super) fn filter_by_ids(
        &self,
        ids: &[u64],
        naming: Naming,
        options: &SearchOptions,
    ) -> Result<Filter> {
        self.check_room(Self::id_sieve_bytes_max(ids.len()))?;
        let rows = self.rows()?;
        let (ids, repeated) = sorted(ids);
        let sieve = IdSieve::new(&ids, naming == Naming::Only, rows);
        let sieve = Arc::new(sieve.ok_or_else(|| Error::bad_input("the ids of a filter are not sorted"))?);
        let plan = self.plan_ids(&sieve, options)?;
        Ok(Filter { matches: Matches::Ids(sieve), plan, unknown: None, repeated })
    }

    /// How the rows of these ids are found by searches with these options.
    pub(super) fn plan_ids(&self, sieve: &IdSieve, options: &SearchOptions) -> Result<SievePlan> {
        let rows = self.rows()?;
        let times = rows as f64 / sieve.matches().max(1) as f64;
        let aim = self.aim(options, 1.0 / times);
        let aimed =
            aim.map_or(*options, |aim| SearchOptions { effort: Effort::Recall(aim.recall), ..*options });
        let mut usual = self.params_of_search(&aimed)?;
        if let Some(tenths) = aim.and_then(|aim| aim.far_tenths) {
            usual.far_tenths = tenths;
        }
        let (_, effort_times) = self.aimed_work(&usual, aimed.recall(), times, aim);
        let plan = self.kind.plan_ids(&usual, effort_times, sieve);
        plan.ok_or_else(|| Error::bad_input("an index without memory nodes has numbers of rows"))
    }

    /// Most memory of a filter of so many ids of an index in memory nodes while it is made: sorted ids, as numbers, and
    /// a set of them.
    pub fn id_sieve_bytes_max(ids: usize) -> u64 {
        const ID_BYTES: u64 = 8;
        const NUMBER_BYTES: u64 = 4;
        ids as u64 * (2 * ID_BYTES + NUMBER_BYTES)
    }
}
