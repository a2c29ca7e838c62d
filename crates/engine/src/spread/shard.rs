//! One server's view of an index that is partitioned over several: what all servers hold, and its own units.

use std::io;
use std::path::Path;

use stratann_core::kinds::IndexView;
use stratann_core::place::{LocalShard, Others, Placement};
use stratann_core::query::{Extent, StoreId};
use stratann_storage::budget::Account;
use stratann_storage::data_file::read_file;
use stratann_storage::tier::{FileIds, IoChoice, Tier};
use stratann_storage::{Error, Result};

use crate::exec::Segment;
use crate::files;
use crate::index::{Index, OpenOptions};
use crate::kinds::blocks;
use crate::manifest::{BLOCKS_PER_RANK, Manifest, SpreadFacts, open_newest, placement_bytes};
use crate::units::Held;

/// The only store of an index.
const DATA: StoreId = StoreId(0);

/// Most landmarks of a server, and their bytes: so many save what a client saves that knows the entry (decision 95).
const LANDMARKS_MAX: usize = 128;
pub(crate) const LANDMARK_BYTES_MAX: usize = 1 << 18;

/// Ranks of held blocks among the blocks that a server holds, which are their places in its file. One count is kept for
/// 64 blocks; within these the placement is counted.
#[derive(Clone, Debug)]
struct Ranks {
    server: usize,
    /// Held blocks before each group.
    before: Vec<u32>,
    held: u32,
}

impl Ranks {
    fn new(placement: &Placement, server: usize) -> Ranks {
        let mut held = 0u32;
        let count = |holders: &[u64]| holders.iter().filter(|&&h| h >> server & 1 == 1).count() as u32;
        let running = placement.all().chunks(BLOCKS_PER_RANK).map(|holders| {
            held += count(holders);
            held - count(holders)
        });
        let before = running.collect();
        Ranks { server, before, held }
    }

    /// `None` for a block that the server does not hold.
    fn of(&self, placement: &Placement, block: u32) -> Option<u32> {
        let held = |holders: u64| holders >> self.server & 1 == 1;
        let at = block as usize;
        let group = at / BLOCKS_PER_RANK;
        let holders = &placement.all().get(group * BLOCKS_PER_RANK..=at)?;
        let (own, earlier) = holders.split_last()?;
        held(*own).then(|| self.before[group] + earlier.iter().filter(|&&h| held(h)).count() as u32)
    }
}

/// An open index with the units of one server: blocks, or inverted lists.
#[derive(Debug)]
pub struct Shard {
    index: Index,
    placement: Placement,
    server: usize,
    /// Ranks of the blocks, of an index of blocks. The kind knows where other units are.
    ranks: Option<Ranks>,
}

impl Shard {
    /// Opens what `server` (from 0) needs of the newest version in `folder`: its own units and what all servers hold.
    /// The files of other servers need not be there. What it learns from queries is in a file of its own.
    ///
    /// # Errors
    /// As [`Index::open`]; an index that is not partitioned over servers, or over fewer.
    pub fn open(folder: &Path, server: usize, options: OpenOptions) -> Result<Shard> {
        Shard::open_beside(folder, server, (options, None))
    }

    /// As [`Shard::open`], beside another version of the index: units that both have may be in memory once.
    ///
    /// # Errors
    /// As [`Shard::open`].
    pub(crate) fn open_beside(
        folder: &Path,
        server: usize,
        options: (OpenOptions, Option<&Index>),
    ) -> Result<Shard> {
        open_newest(folder, |number, manifest| {
            Shard::from_manifest(folder, (number, manifest), server, options)
        })
    }

    fn from_manifest(
        folder: &Path,
        (number, manifest): (u64, Manifest),
        server: usize,
        (options, previous_version): (OpenOptions, Option<&Index>),
    ) -> Result<Shard> {
        let Some(spread) = &manifest.spread else {
            return Err(Error::bad_input(format!(
                "{} is not partitioned over servers; run `stratann cluster partition` on it",
                folder.display()
            )));
        };
        if server >= spread.servers {
            return Err(Error::bad_input(format!(
                "{} has servers 0 to {}, there is no server {server}",
                folder.display(),
                spread.servers.saturating_sub(1)
            )));
        }
        // The budget is checked before anything large is read; what is shared is known by the placement alone.
        let planned = planned_account(&manifest, server, options.cache_budget)?;
        if previous_version.is_none() {
            planned.check(options.ram_budget, "open this index")?;
        }
        let placement = read_placement(folder, &manifest, spread)?;
        let held = Held { placement: &placement, server };
        let sliced =
            previous_version.filter(|_| manifest.facts().is_sliced).and_then(|other| other.kind.sliced());
        let shared = sliced.map_or(Ok(0), |own| own.shareable_bytes(folder, &manifest, held))?;
        let budget = options.ram_budget.map(|budget| budget.saturating_add(shared));
        planned.check(budget, "open this index")?;
        let index = Index::from_units(folder, number, manifest, Some(held), (options, previous_version))?;
        let ranks = index.kind.held_ranges().is_none().then(|| Ranks::new(&placement, server));
        let shard = Shard { index, placement, server, ranks };
        let manifest = shard.index.manifest();
        let (name, entry) = manifest.file(&manifest.part_role(server))?;
        let expected = shard.part_bytes();
        if entry.bytes != expected {
            return Err(Error::corrupt(format!(
                "{} has {} bytes, the placement says {expected}; spread the index again",
                folder.join(name).display(),
                entry.bytes
            )));
        }
        Ok(shard)
    }

    fn block_bytes(&self) -> u64 {
        self.index.base.block.block_bytes as u64
    }

    /// Bytes of this server's file, by the placement.
    fn part_bytes(&self) -> u64 {
        match (&self.ranks, self.index.kind.held_ranges()) {
            (Some(ranks), _) => u64::from(ranks.held) * self.block_bytes(),
            (None, ranges) => ranges.map_or(0, |ranges| ranges.file_bytes()),
        }
    }

    /// The part of the index that the queries see. `live` has a bit for every server that answers.
    pub fn view(&self, live: u64) -> IndexView<'_> {
        let others = Others::live(live);
        let here = LocalShard { placement: &self.placement, server: self.server as u8, others };
        let mut view = self.index.view();
        view.base.here = Some(here);
        view
    }

    /// The open index, with this server's units.
    pub(crate) fn index(&self) -> &Index {
        &self.index
    }

    /// Loads what its kind can keep in RAM beyond its tables, as much as `budget_bytes` has room for.
    ///
    /// # Errors
    /// A file that cannot be read, or is damaged.
    pub(crate) fn fill_memory(&mut self, budget_bytes: u64) -> Result<()> {
        self.index.fill_memory(budget_bytes)
    }

    /// Stops learning from queries.
    pub(crate) fn stop_learning(&mut self) {
        self.index.stop_learning();
    }

    /// This server's number.
    pub fn server(&self) -> usize {
        self.server
    }

    /// Blocks or inverted lists that it holds.
    pub fn held(&self) -> u32 {
        self.placement.blocks_of(self.server).count() as u32
    }

    /// Which servers hold what.
    pub fn placement(&self) -> &Placement {
        &self.placement
    }

    /// Manifest of the open index; its data file is this server's, with offsets by [`Shard::locate`].
    pub fn manifest(&self) -> &Manifest {
        self.index.manifest()
    }

    /// Place of bytes of the whole index in this server's file; `None` when it does not have all of them.
    pub fn locate(&self, at: Extent) -> Option<Extent> {
        if at.store != DATA {
            return Some(at);
        }
        let offset = match (&self.ranks, self.index.kind.held_ranges()) {
            (Some(ranks), _) => {
                let size = self.block_bytes();
                let rank = ranks.of(&self.placement, u32::try_from(at.offset / size).ok()?)?;
                let within = at.offset % size;
                (within + u64::from(at.bytes) <= size).then_some(u64::from(rank) * size + within)?
            }
            (None, ranges) => ranges?.locate(at.offset, at.bytes.into())?,
        };
        Some(Extent { offset, ..at })
    }

    /// Vectors of nodes of its own at which a search may enter, spread evenly over all of them, one after the other. A
    /// query that is near one of them begins here without a hand-over. Empty for a kind without such nodes.
    ///
    /// # Errors
    /// A block that cannot be read, or is damaged.
    pub(crate) fn landmarks(&self) -> Result<Vec<u8>> {
        let (base, Some(ranks)) = (&self.index.base, &self.ranks) else { return Ok(Vec::new()) };
        let most = LANDMARKS_MAX.min(LANDMARK_BYTES_MAX / base.row_bytes()).max(1);
        let held = || {
            let entries = self.index.kind.entries();
            entries.filter_map(|(block, node)| Some((block, node, ranks.of(&self.placement, block)?)))
        };
        let step = held().count().div_ceil(most).max(1);
        let mut rows = Vec::with_capacity(most * base.row_bytes());
        for (block, node, rank) in held().step_by(step) {
            let offset = u64::from(rank) * self.block_bytes();
            rows.extend_from_slice(&blocks::member_at(base, block, offset, node)?.1);
        }
        Ok(rows)
    }

    /// Bytes by component, of the open shard alone.
    pub fn account(&self) -> Account {
        let mut account = self.index.account();
        account.add("placement", placement_bytes(self.index.manifest().units()));
        account
    }

    /// A tier over this server's file for the calling thread, with up to `depth` reads under way.
    ///
    /// # Errors
    /// When `choice` names io_uring and the kernel refuses it.
    pub fn tier(&self, depth: usize, choice: IoChoice) -> io::Result<Box<dyn Tier>> {
        self.index.tier(depth, choice, 0)
    }

    /// The numbers of this server's files in the process.
    pub fn file_ids(&self) -> FileIds {
        self.index.file_ids()
    }
}

/// Memory that opening will take, from the manifest alone.
fn planned_account(manifest: &Manifest, server: usize, cache_budget: u64) -> Result<Account> {
    let mut account = manifest.planned_account(cache_budget);
    if manifest.facts().is_resident {
        account.add("vectors", manifest.file(&manifest.part_role(server))?.1.bytes);
    }
    Ok(account)
}

/// Reads the placement and holds it against the manifest.
pub(crate) fn read_placement(folder: &Path, manifest: &Manifest, spread: &SpreadFacts) -> Result<Placement> {
    let (name, entry) = manifest.file(files::PLACEMENT)?;
    let bytes = read_file(folder, name, entry)?;
    files::decode_placement(&bytes)
        .filter(|p| p.servers() == spread.servers && p.all().len() == manifest.units() as usize)
        .ok_or_else(|| files::senseless(&folder.join(name)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn ranks_agree_with_a_plain_count(holders in prop::collection::vec(1u64..8, 0..400)) {
            let placement = Placement::new(3, holders).unwrap();
            for server in 0..3 {
                let ranks = Ranks::new(&placement, server);
                let held: Vec<u32> = placement.blocks_of(server).collect();
                prop_assert_eq!(ranks.held as usize, held.len());
                for block in 0..placement.all().len() as u32 + 70 {
                    let expected = held.iter().position(|&b| b == block).map(|r| r as u32);
                    prop_assert_eq!(ranks.of(&placement, block), expected);
                }
            }
        }
    }
}
