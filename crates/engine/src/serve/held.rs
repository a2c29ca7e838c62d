//! What a server holds of an index.

use std::collections::BTreeSet;

use stratann_core::format::checksum;
use stratann_core::plan::IndexView;
use stratann_core::query::wire::Carry;

use super::{HOSTED_PER_QUERY, ServeOptions};
use crate::budget::Account;
use crate::index::{Index, OpenOptions};
use crate::spread::Shard;
use crate::spread::scatter::{self, Description};
use crate::tier::{self, IoChoice, Tier};
use crate::{Error, Result};

/// What is open: all of an index, one server's share, or one of several separate indexes.
pub(super) enum Held {
    Whole(Index),
    Part(Shard),
    Apart(Index, Description),
}

impl Held {
    /// Opens it within what `used` bytes leave of the budget.
    pub(super) fn open(options: &ServeOptions, used: u64) -> Result<Held> {
        let ram_budget = options.ram_budget.map(|budget| budget.saturating_sub(used));
        let open = OpenOptions {
            ram_budget,
            cache_budget: options.cache_budget,
            // What queries will take is not known yet: see `Held::bring_codes`.
            head_budget: ram_budget.map(|_| 0),
            learning: options.learning,
            ..OpenOptions::default()
        };
        let folder = &options.index;
        match options.server {
            Some(server) if scatter::is_apart(folder) => {
                let (description, index) = scatter::open_part(folder, server.into(), open)?;
                Ok(Held::Apart(index, description))
            }
            None if scatter::is_apart(folder) => Err(Error::bad_input(format!(
                "{} holds an index for each of several servers; set server, its number among them",
                folder.display()
            ))),
            Some(server) => Shard::open(folder, server.into(), open).map(Held::Part),
            None => Index::open(folder, open).map(Held::Whole),
        }
    }

    /// Brings codes of clusters into RAM, and then vectors, as far as `budget` bytes allow.
    ///
    /// # Errors
    /// Lists that cannot be read, or are damaged.
    pub(super) fn bring_codes(&mut self, budget: u64) -> Result<()> {
        match self {
            Held::Whole(index) | Held::Apart(index, _) => index.bring(budget, budget),
            // What is spread over servers has no clusters.
            Held::Part(_) => Ok(()),
        }
    }

    pub(super) fn index(&self) -> &Index {
        match self {
            Held::Whole(index) | Held::Apart(index, _) => index,
            Held::Part(shard) => shard.index(),
        }
    }

    pub(super) fn view(&self, live: u64) -> IndexView<'_> {
        match self {
            Held::Whole(index) | Held::Apart(index, _) => index.view(),
            Held::Part(shard) => shard.view(live),
        }
    }

    pub(super) fn tier(&self, depth: usize, io: IoChoice) -> std::io::Result<Box<dyn Tier + '_>> {
        match self {
            Held::Whole(index) | Held::Apart(index, _) => {
                let tier = tier::open(&index.blocks_file, depth, index.block.block_bytes, io)?;
                Ok(tier)
            }
            Held::Part(shard) => shard.tier(depth, io),
        }
    }

    /// What batons say of their candidates, when this was asked for.
    ///
    /// # Errors
    /// Ids alone, from which nobody can tell distances where blocks carry the codes.
    pub(super) fn carry(&self, asked: Option<Carry>) -> Result<Carry> {
        self.index().carry(asked)
    }

    /// Servers of the cluster.
    pub(super) fn servers(&self) -> usize {
        match self {
            Held::Apart(_, description) => description.servers,
            _ => self.index().manifest().cluster.as_ref().map_or(1, |c| c.servers),
        }
    }

    /// Vectors on all servers.
    pub(super) fn rows(&self) -> u64 {
        match self {
            Held::Apart(_, description) => description.rows.iter().sum(),
            _ => self.index().manifest().rows,
        }
    }

    /// Identifies what all servers serve.
    pub(super) fn build_id(&self) -> String {
        match self {
            Held::Apart(_, description) => description.build_id(),
            _ => self.index().manifest().build_id.clone(),
        }
    }

    /// The build as frames name it.
    pub(super) fn build(&self) -> u64 {
        checksum(self.build_id().as_bytes())
    }

    /// Vectors of other servers' queries that are kept, for each query of own clients: all others ask this server when all are asked.
    pub(super) fn hosted_per_query(&self) -> usize {
        match self {
            Held::Apart(_, description) => description.servers.saturating_sub(1),
            _ => HOSTED_PER_QUERY,
        }
    }

    pub(super) fn account(&self) -> Account {
        match self {
            Held::Whole(index) | Held::Apart(index, _) => index.account(),
            Held::Part(shard) => shard.account(),
        }
    }

    /// The sets of servers that hold the same blocks.
    pub(super) fn homes(&self) -> Vec<u64> {
        match self {
            Held::Whole(_) => Vec::new(),
            Held::Apart(_, description) => (0..description.servers).map(|s| 1 << s).collect(),
            Held::Part(shard) => {
                shard.placement().all().iter().copied().collect::<BTreeSet<u64>>().into_iter().collect()
            }
        }
    }
}
