//! The index of a server: a whole one, a shard, or that of its part of the cluster.

use std::collections::BTreeSet;
use std::path::Path;

use stratann_core::format::checksum;
use stratann_core::kinds::IndexView;
use stratann_core::place::Parts;
use stratann_core::query::Extent;
use stratann_core::query::wire::Carry;
use stratann_storage::budget::Account;
use stratann_storage::cache::ExtentCache;
use stratann_storage::names::BuildId;
use stratann_storage::tier::FileIds;
use stratann_storage::{Error, Quiet, Result};

use super::ServeOptions;
use crate::exec::Segment;
use crate::exec::scorer::Scorer;
use crate::index::{Index, OpenOptions};
use crate::manifest::Manifest;
use crate::spread::Shard;
use crate::spread::scatter::{self, Description, PartIndex};

/// Vectors of other servers' queries that are kept for each query of own clients, where queries are handed over.
const HOSTED_PER_QUERY: usize = 4;

/// An open index.
pub(super) struct ServedIndex {
    held: PartIndex,
    // Of a cluster with several parts.
    description: Option<Description>,
    server: u8,
}

impl ServedIndex {
    /// Opens an index. `used` bytes of the budget are taken already, by the version beside it.
    pub(super) fn open(
        options: &ServeOptions,
        used: u64,
        previous_version: Option<&ServedIndex>,
    ) -> Result<ServedIndex> {
        let ram_budget = options.ram_budget.map(|budget| budget.saturating_sub(used));
        let open = OpenOptions {
            ram_budget,
            cache_budget: options.cache_budget,
            // To and from another version, which is served meanwhile.
            lends_cache: true,
            // Memory of queries is not known yet: see `ServedIndex::load_resident`.
            head_budget: ram_budget.map(|_| 0),
            learning: options.learning,
            scorer: options.scorer,
            ..OpenOptions::default()
        };
        if let Some(memory) = &options.memory {
            if options.server.is_some() {
                return Err(Error::bad_input(
                    "an index in memory nodes is not divided over servers; leave server out, and start as many servers \
                     as you need",
                ));
            }
            let index = Index::open_memory(&memory.addresses, &memory.credentials, open)?;
            let held = PartIndex::Whole(Box::new(index));
            return Ok(ServedIndex { held, description: None, server: 0 });
        }
        let folder = &options.index;
        let (held, description) = match options.server {
            Some(server) if scatter::is_apart(folder) => {
                let (description, held) = scatter::open_part(folder, server.into(), open)?;
                (held, Some(description))
            }
            None if scatter::is_apart(folder) => {
                return Err(Error::bad_input(format!(
                    "{} holds an index for each of several servers; set server, its number among them",
                    folder.display()
                )));
            }
            Some(server) => {
                let open = (open, previous_version.map(ServedIndex::index));
                (PartIndex::Shard(Box::new(Shard::open_beside(folder, server.into(), open)?)), None)
            }
            None => {
                let mut index = Index::open(folder, beside_points(open, folder)?)?;
                index.make_resident(&Quiet)?;
                (PartIndex::Whole(Box::new(index)), None)
            }
        };
        Ok(ServedIndex { held, description, server: options.server.unwrap_or(0) })
    }

    /// Stops learning from queries.
    pub(super) fn stop_learning(&mut self) {
        match &mut self.held {
            PartIndex::Whole(index) => index.stop_learning(),
            PartIndex::Shard(shard) => shard.stop_learning(),
        }
    }

    /// Loads list codes into RAM, and then records, within `budget` bytes.
    ///
    /// # Errors
    /// Lists that cannot be read, or are damaged.
    pub(super) fn load_resident(&mut self, budget: u64) -> Result<()> {
        match &mut self.held {
            PartIndex::Whole(index) => index.fill_memory(budget),
            PartIndex::Shard(shard) => shard.fill_memory(budget),
        }
    }

    pub(super) fn index(&self) -> &Index {
        match &self.held {
            PartIndex::Whole(index) => index,
            PartIndex::Shard(shard) => shard.index(),
        }
    }

    /// Consequence of a failed read, for the log.
    pub(super) fn without_a_unit(&self) -> &'static str {
        match (&self.held, &self.description) {
            (PartIndex::Shard(_), _) => "queries go on at another server that holds it",
            (PartIndex::Whole(_), None) => "queries that need it fail",
            (PartIndex::Whole(_), Some(_)) => "answers lack what this server has",
        }
    }

    /// Form of the candidates in batons; `choice` is the user's.
    ///
    /// # Errors
    /// Ids alone where blocks carry the codes: no server can compute distances from ids then.
    pub(super) fn carry(&self, choice: Option<Carry>) -> Result<Carry> {
        self.index().carry(choice)
    }

    /// Number of servers of the cluster.
    pub(super) fn servers(&self) -> usize {
        match &self.description {
            Some(description) => description.servers,
            None => self.index().manifest().spread.as_ref().map_or(1, |c| c.servers),
        }
    }

    /// The parts of the cluster.
    pub(super) fn parts(&self) -> Parts {
        self.description.as_ref().map_or(Parts::ONE, Description::cluster_parts)
    }

    /// Number of vectors on all servers.
    pub(super) fn rows(&self) -> u64 {
        match &self.description {
            Some(description) => description.rows.iter().sum(),
            None => self.index().manifest().rows,
        }
    }

    /// Identifies the index of all servers.
    pub(super) fn build_id(&self) -> BuildId {
        match &self.description {
            Some(description) => description.build_id(),
            None => self.index().manifest().build_id,
        }
    }

    /// The build, as frames carry it.
    pub(super) fn build(&self) -> u64 {
        checksum(self.build_id().to_string().as_bytes())
    }

    /// Vectors of other servers' queries that are kept for each query of own clients. A part is asked by the servers of
    /// all others.
    pub(super) fn hosted_per_query(&self) -> usize {
        let others = self.description.as_ref().map_or(0, |description| description.servers - 1);
        match &self.held {
            PartIndex::Whole(_) if self.description.is_some() => others,
            _ => others.max(HOSTED_PER_QUERY),
        }
    }

    pub(super) fn account(&self) -> Account {
        let mut account = match &self.held {
            PartIndex::Whole(index) => index.account(),
            PartIndex::Shard(shard) => shard.account(),
        };
        // The front opens them.
        match self.index().manifest().points_bytes() {
            0 => {}
            bytes => account.add("ids and payloads", bytes),
        }
        account
    }

    /// See [`Shard::landmarks`]; empty for an index that is not divided.
    pub(super) fn landmarks(&self) -> Result<Vec<u8>> {
        match &self.held {
            PartIndex::Whole(_) => Ok(Vec::new()),
            PartIndex::Shard(shard) => shard.landmarks(),
        }
    }

    /// The sets of servers that hold the same units.
    pub(super) fn replica_sets(&self) -> Vec<u64> {
        let own = match &self.held {
            PartIndex::Whole(_) => BTreeSet::new(),
            PartIndex::Shard(shard) => shard.placement().all().iter().copied().collect::<BTreeSet<u64>>(),
        };
        let Some(description) = &self.description else { return own.into_iter().collect() };
        let parts = self.parts();
        let part = parts.of(self.server);
        let here = own.iter().map(|set| set << parts.first(part));
        let others = (0..parts.count()).filter(|&other| own.is_empty() || other != part);
        here.chain(others.flat_map(|other| description.replica_sets(parts.servers(other)))).collect()
    }
}

/// The options of an index whose ids and payloads are in memory, too.
///
/// # Errors
/// A folder without an index.
fn beside_points(open: OpenOptions, folder: &Path) -> Result<OpenOptions> {
    let Some(budget) = open.ram_budget else { return Ok(open) };
    let taken = Manifest::read(folder)?.1.points_bytes();
    Ok(OpenOptions { ram_budget: Some(budget.saturating_sub(taken)), ..open })
}

impl Segment for ServedIndex {
    fn view(&self) -> IndexView<'_> {
        match &self.held {
            PartIndex::Whole(index) => index.view(),
            PartIndex::Shard(shard) => shard.view(u64::MAX),
        }
    }

    fn cache(&self) -> Option<&ExtentCache> {
        self.index().cache.as_ref()
    }

    fn file_ids(&self) -> FileIds {
        self.index().file_ids()
    }

    fn locate(&self, at: Extent) -> Option<Extent> {
        match &self.held {
            PartIndex::Whole(index) => index.locate(at),
            PartIndex::Shard(shard) => shard.locate(at),
        }
    }

    fn scorer(&self) -> Option<&dyn Scorer> {
        self.index().kind.scorer()
    }
}
