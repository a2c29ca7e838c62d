//! The questions about an open index, and the capabilities that some kinds have beside them.

use std::fs::File;
use std::ops::Range;
use std::sync::Arc;

use stratann_core::check::Blocks;
use stratann_core::kinds::{KindView, gpu_ivf};
use stratann_core::query::StoreId;
use stratann_params::search::GpuSwitches;
use stratann_storage::budget::Account;
use stratann_storage::cache::ExtentCache;
use stratann_storage::{Progress, Result};

use super::Members;
use crate::base::Base;
use crate::curve::Grid;
use crate::exec::scorer::Scorer;
use crate::kinds::answers::{ExactCost, SievePlan, SievedQuery};
use crate::kinds::blocks::{self, ResidentRows};
use crate::kinds::shares_loads::SharesLoads;
use crate::units::HeldRanges;

/// Answers of an open index of a kind. Those of blocks of whole vectors, and of a kind that lacks a capability, are
/// here already.
pub(crate) trait OpenKind: Members + Send + Sync {
    /// Returns the part of the view that queries have of the kind.
    fn view<'a>(&'a self, base: &'a Base) -> KindView<'a>;

    /// Adds its memory, by component.
    fn account(&self, account: &mut Account);

    /// Returns a cache of `budget_bytes` for its reads; `None` when not even a few fit.
    fn cache(&self, base: &Base, budget_bytes: u64) -> Option<ExtentCache> {
        blocks::cache(base, budget_bytes)
    }

    /// Returns the queries in flight per thread, by default.
    fn in_flight(&self) -> usize;

    /// Returns the bytes of the longest read.
    fn read_bytes_max(&self, base: &Base) -> usize {
        base.block.block_bytes
    }

    /// Returns the bytes of look-up tables and candidates of one query. `local_beam` is the length of a beam within a
    /// cluster.
    fn query_tables_bytes(&self, base: &Base, local_beam: u64) -> u64;

    /// Returns the work of a query that searches everything.
    fn exact_cost(&self, base: &Base) -> ExactCost {
        blocks::exact_cost(base)
    }

    /// Returns the settings that calibration measures for k results.
    fn grid(&self, base: &Base, k: u32, family: Option<&str>) -> Grid;

    /// Returns the blocks as they are checked; `None` of a kind without blocks of whole vectors.
    fn checked<'a>(&'a self, _base: &'a Base) -> Option<Blocks<'a>> {
        None
    }

    /// Whether its reads are single blocks, which a cache can hold all of.
    fn reads_blocks(&self) -> bool {
        false
    }

    /// Returns the queries in flight per thread that has so few of them; `None` for the default.
    fn in_flight_of_few(&self, _queries: usize) -> Option<usize> {
        None
    }

    /// Returns the ranges of a server's units in its file; `None` of a whole index, and where they are blocks.
    fn held_ranges(&self) -> Option<&HeldRanges> {
        None
    }

    /// Returns the nodes at which a search may enter, each after its block; none of a kind where that is not one node.
    fn entries(&self) -> Box<dyn Iterator<Item = (u32, u32)> + '_> {
        Box::new(std::iter::empty())
    }

    /// The scorer of codes, of a kind that has one.
    fn ranks_codes(&self) -> Option<&dyn RanksCodes> {
        None
    }

    /// What is in memory instead of on disk, of a kind that can move there.
    fn residency(&self) -> Option<&dyn MovesIntoMemory> {
        None
    }

    /// The same, to change it.
    fn residency_mut(&mut self) -> Option<&mut dyn MovesIntoMemory> {
        None
    }

    /// Returns how a query finds the rows of a sieve; `None` of a kind whose queries take none yet.
    fn plan_sieve(&self, _base: &Base, _query: &SievedQuery<'_>) -> Option<SievePlan> {
        None
    }

    /// The block that holds a row, and all rows of it; `None` of a kind whose rows do not lie in blocks in order.
    fn block_with(&self, _base: &Base, _row: u32) -> Option<(u32, Range<u32>)> {
        None
    }

    /// The shared loads, of a kind whose queries do not read for themselves.
    fn shares_loads(&self) -> Option<&dyn SharesLoads> {
        None
    }
}

/// Answers of a kind that can have what queries read in memory, in a form that they use as it is.
pub(crate) trait MovesIntoMemory {
    /// Returns the bytes of what is there.
    fn resident_bytes(&self) -> u64;
    /// Whether queries need no reads.
    fn is_resident(&self) -> bool;
    /// Returns the rows, where they are there.
    fn rows(&self) -> Option<&ResidentRows>;
    /// Whether the index says how to search it there: its curves are those of such searches too.
    fn is_calibrated(&self, base: &Base) -> bool;
    /// Frees what a budget has no room for.
    fn shrink(&mut self, budget_bytes: u64);
    /// Moves there what a budget has room for.
    ///
    /// # Errors
    /// A block that cannot be read or is damaged; an interruption.
    fn make_resident(&mut self, base: &Base, budget_bytes: u64, progress: &dyn Progress) -> Result<()>;
}

/// Answers of a kind that ranks codes by a scorer.
pub(crate) trait RanksCodes {
    /// Returns the scorer.
    fn scorer(&self) -> &dyn Scorer;
    /// Returns the ways to search besides the usual one that have curves of their own.
    fn families(&self) -> &'static [&'static str];
    /// Sets what a search without a curve has by default on this index.
    fn set_defaults(&self, params: &mut gpu_ivf::Params);
    /// Returns the files that queries read besides the blocks, in the order of their stores.
    fn stores(&self) -> &[Arc<File>] {
        &[]
    }
    /// Returns the role of the file of a store besides the blocks.
    fn store_role(&self, _store: StoreId) -> Option<&'static str> {
        None
    }
    /// Refuses techniques whose files are not open.
    ///
    /// # Errors
    /// A baseline that reads such a file.
    fn check_switches(&self, _switches: &GpuSwitches) -> Result<()> {
        Ok(())
    }
}
