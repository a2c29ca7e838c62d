//! The index of a server: a whole one, a shard, or one of several for scatter-gather.

use std::collections::BTreeSet;

use stratann_core::format::checksum;
use stratann_core::place::Parts;
use stratann_core::plan::IndexView;
use stratann_core::query::wire::Carry;

use super::ServeOptions;
use crate::budget::Account;
use crate::index::{Index, OpenOptions};
use crate::spread::Shard;
use crate::spread::scatter::{self, Description};
use crate::tier::{self, IoChoice, Tier};
use crate::{Error, Result};

/// Vectors of other servers' queries that are kept for each query of own clients, where queries are handed over.
const HOSTED_PER_QUERY: usize = 4;

/// An open index.
pub(super) enum ServedIndex {
    /// A plain index.
    Whole(Index),
    /// One server's shard of an index.
    Shard(Shard),
    /// One of several indexes with rows of their own.
    ScatterGather(Index, Description),
}

impl ServedIndex {
    /// Opens an index. `used` bytes of the budget are taken already.
    pub(super) fn open(options: &ServeOptions, used: u64) -> Result<ServedIndex> {
        let ram_budget = options.ram_budget.map(|budget| budget.saturating_sub(used));
        let open = OpenOptions {
            ram_budget,
            cache_budget: options.cache_budget,
            // Memory of queries is not known yet: see `ServedIndex::load_resident`.
            head_budget: ram_budget.map(|_| 0),
            learning: options.learning,
            ..OpenOptions::default()
        };
        let folder = &options.index;
        match options.server {
            Some(server) if scatter::is_apart(folder) => {
                let (description, index) = scatter::open_part(folder, server.into(), open)?;
                Ok(ServedIndex::ScatterGather(index, description))
            }
            None if scatter::is_apart(folder) => Err(Error::bad_input(format!(
                "{} holds an index for each of several servers; set server, its number among them",
                folder.display()
            ))),
            Some(server) => Shard::open(folder, server.into(), open).map(ServedIndex::Shard),
            None => Index::open(folder, open).map(ServedIndex::Whole),
        }
    }

    /// Loads list codes into RAM, and then records, within `budget` bytes.
    ///
    /// # Errors
    /// Lists that cannot be read, or are damaged.
    pub(super) fn load_resident(&mut self, budget: u64) -> Result<()> {
        match self {
            ServedIndex::Whole(index) | ServedIndex::ScatterGather(index, _) => index.fill_memory(budget),
            ServedIndex::Shard(shard) => shard.fill_memory(budget),
        }
    }

    pub(super) fn index(&self) -> &Index {
        match self {
            ServedIndex::Whole(index) | ServedIndex::ScatterGather(index, _) => index,
            ServedIndex::Shard(shard) => shard.index(),
        }
    }

    pub(super) fn view(&self, live: u64) -> IndexView<'_> {
        match self {
            ServedIndex::Whole(index) | ServedIndex::ScatterGather(index, _) => index.view(),
            ServedIndex::Shard(shard) => shard.view(live),
        }
    }

    pub(super) fn tier(&self, depth: usize, io: IoChoice) -> std::io::Result<Box<dyn Tier + '_>> {
        match self {
            ServedIndex::Whole(index) | ServedIndex::ScatterGather(index, _) => {
                let tier = tier::open(&index.base.blocks_file, depth, index.base.block.block_bytes, io)?;
                Ok(tier)
            }
            ServedIndex::Shard(shard) => shard.tier(depth, io),
        }
    }

    /// How batons carry their candidates; `choice` is the user's.
    ///
    /// # Errors
    /// Ids alone where blocks carry the codes: no server can compute distances from ids then.
    pub(super) fn carry(&self, choice: Option<Carry>) -> Result<Carry> {
        self.index().carry(choice)
    }

    /// Number of servers of the cluster.
    pub(super) fn servers(&self) -> usize {
        match self {
            ServedIndex::ScatterGather(_, description) => description.servers,
            _ => self.index().manifest().spread.as_ref().map_or(1, |c| c.servers),
        }
    }

    /// The parts of the cluster.
    pub(super) fn parts(&self) -> Parts {
        match self {
            ServedIndex::ScatterGather(_, description) => {
                Parts::new(vec![1; description.servers]).unwrap_or(Parts::ONE)
            }
            _ => Parts::ONE,
        }
    }

    /// Number of vectors on all servers.
    pub(super) fn rows(&self) -> u64 {
        match self {
            ServedIndex::ScatterGather(_, description) => description.rows.iter().sum(),
            _ => self.index().manifest().rows,
        }
    }

    /// Identifies the index of all servers.
    pub(super) fn build_id(&self) -> String {
        match self {
            ServedIndex::ScatterGather(_, description) => description.build_id(),
            _ => self.index().manifest().build_id.clone(),
        }
    }

    /// The build, as frames carry it.
    pub(super) fn build(&self) -> u64 {
        checksum(self.build_id().as_bytes())
    }

    /// Vectors of other servers' queries that are kept for each query of own clients. With scatter-gather all others
    /// ask this server.
    pub(super) fn hosted_per_query(&self) -> usize {
        match self {
            ServedIndex::ScatterGather(_, description) => description.servers.saturating_sub(1),
            _ => HOSTED_PER_QUERY,
        }
    }

    pub(super) fn account(&self) -> Account {
        match self {
            ServedIndex::Whole(index) | ServedIndex::ScatterGather(index, _) => index.account(),
            ServedIndex::Shard(shard) => shard.account(),
        }
    }

    /// The sets of servers that hold the same units.
    pub(super) fn replica_sets(&self) -> Vec<u64> {
        match self {
            ServedIndex::Whole(_) => Vec::new(),
            ServedIndex::ScatterGather(_, description) => (0..description.servers).map(|s| 1 << s).collect(),
            ServedIndex::Shard(shard) => {
                shard.placement().all().iter().copied().collect::<BTreeSet<u64>>().into_iter().collect()
            }
        }
    }
}
