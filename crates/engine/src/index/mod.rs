//! An index that is open for search.

use std::collections::{HashMap, HashSet};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use stratann_core::check::Blocks;
use stratann_core::format::block;
use stratann_core::kinds::IndexView;
use stratann_core::query::wire::Carry;
use stratann_core::query::{Extent, Loss, StoreId};
use stratann_kernel::coder::Coder;
use stratann_storage::budget::{Account, release_freed};
use stratann_storage::cache::ExtentCache;
use stratann_storage::remote_memory::{Credentials, RemoteSource};
use stratann_storage::tier::{Buffer, FileIds, Files};
use stratann_storage::{Error, ErrorKind, Progress, Result};

mod cache_budget;
mod given;
mod live;
mod parts;
mod row_ids;
mod segment;
mod updates;

pub use crate::base::{OpenOptions, Reserve};
#[cfg(feature = "lab")]
pub use crate::kinds::options::OpenBaselines;
pub use crate::kinds::{Acknowledged, PLACE, Unfinished, UpdateOptions};
pub use cache_budget::CacheBudget;
pub use parts::{LeftRows, Row};
pub(crate) use row_ids::RowIds;

use crate::base::Base;
use crate::exec::MemoryOwner;
use crate::exec::scorer::{Scorer, ScorerReport};
use crate::files;
use crate::kinds::live_plans::LivePlans;
use crate::kinds::questions::MovesIntoMemory;
use crate::kinds::{KindIndex, Learning, LearningFacts, ListIndex};
use crate::manifest::{Manifest, open_newest};
use crate::units::Held;

/// An open index. Searches may run on it from any number of threads.
pub struct Index {
    pub(crate) base: Base,
    pub(crate) kind: KindIndex,
    pub(crate) cache: Option<ExtentCache>,
    // What its queries read; `None` where memory nodes have it.
    pub(crate) files: Option<Arc<Files>>,
    pub(crate) query_memory: MemoryOwner,
    pub(crate) ram_budget: Option<u64>,
    // For what is resident, and the block cache.
    cache_budget: u64,
    lends_cache: bool,
    // Of a query of the usual size: computed from all curves, and needed at each call.
    pub(crate) usual_state_bytes: OnceLock<u64>,
    // Read when the first filter comes.
    row_ids: OnceLock<RowIds>,
    pub(crate) live_plans: LivePlans,
    warnings: Vec<String>,
}

impl std::fmt::Debug for Index {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Index({}, {} rows)", self.base.folder.display(), self.base.manifest.rows)
    }
}

/// Codes in memory that a scorer ranks.
#[derive(Clone, Copy)]
pub struct ScoredCodes<'a> {
    /// How they encode vectors.
    pub coder: &'a Coder,
    /// The codes, one after another.
    pub codes: &'a [u8],
    /// The scorer that has them.
    pub scorer: &'a dyn Scorer,
}

impl Index {
    /// Opens the newest version in `folder`. All files that lie in RAM are read and checked.
    ///
    /// # Errors
    /// No index, a newer format, a damaged or missing file, a budget too small.
    pub fn open(folder: &Path, options: OpenOptions) -> Result<Index> {
        open_newest(folder, |number, manifest| Index::from_manifest(folder, number, manifest, options))
    }

    /// Opens an index that memory nodes hold. No folder is needed.
    ///
    /// # Errors
    /// Nodes that do not answer, or hold no index or parts of several; damage; a budget too small.
    pub fn open_memory(
        addresses: &[String],
        credentials: &Credentials,
        options: OpenOptions,
    ) -> Result<Index> {
        Index::of_memory(RemoteSource::new(addresses, credentials)?, options)
    }

    fn of_memory(source: RemoteSource, options: OpenOptions) -> Result<Index> {
        let source = Arc::new(source);
        let held = KindIndex::of_memory(&source)?;
        let base = Base::of_memory(held.manifest, source)?;
        let kind = (held.open)(&base)?;
        Index::new(base, kind, &options, Vec::new())
    }

    fn new(base: Base, kind: KindIndex, options: &OpenOptions, warnings: Vec<String>) -> Result<Index> {
        let files = match base.memory_nodes() {
            Some(_) => None,
            None => {
                let stores = [&[base.blocks_file()?.clone()], kind.stores()].concat();
                let files = Files::new(&stores, FileIds::take());
                Some(files.map_err(|e| Error::io("opening", &base.blocks_path, &e))?)
            }
        };
        let OpenOptions { ram_budget, cache_budget, lends_cache, .. } = *options;
        let mut index = Index {
            base,
            kind,
            cache: None,
            files,
            query_memory: MemoryOwner::default(),
            ram_budget,
            cache_budget,
            lends_cache,
            usual_state_bytes: OnceLock::new(),
            row_ids: OnceLock::new(),
            live_plans: LivePlans::default(),
            warnings,
        };
        index.open_cache();
        Ok(index)
    }

    /// Opens a block cache of what the budget leaves, in place of the one before.
    fn open_cache(&mut self) {
        self.cache = None;
        let cache = self.kind.cache(&self.base, self.block_cache_bytes());
        // With what a cache keeps beside each extent. The numbers come from the manifest.
        let files = self.base.manifest.files.iter().filter(|(name, _)| !files::is_of_points(name));
        let bytes = files.map(|(_, file)| file.bytes.saturating_add(file.bytes / 8));
        let usable_bytes = bytes.fold(0, u64::saturating_add);
        let cache = match self.base.memory_nodes() {
            None => cache.map(|cache| cache.of_usable(usable_bytes)),
            Some(_) => cache,
        };
        self.cache = if self.lends_cache { cache.map(ExtentCache::lending) } else { cache };
    }

    /// Opens what a manifest describes, published or not.
    pub(crate) fn from_manifest(
        folder: &Path,
        number: u64,
        manifest: Manifest,
        options: OpenOptions,
    ) -> Result<Index> {
        if let Some(spread) = &manifest.spread {
            return Err(Error::bad_input(format!(
                "{} is partitioned over {} servers, none of which holds all of its {}; search the index that it \
                 was made from, or run its servers",
                folder.display(),
                spread.servers,
                manifest.facts().unit_names.1
            )));
        }
        Index::from_units(folder, number, manifest, None, (options, None))
    }

    /// Opens what a manifest describes, with all of its units or with those of one server.
    pub(crate) fn from_units(
        folder: &Path,
        number: u64,
        manifest: Manifest,
        held: Option<Held<'_>>,
        (options, previous_version): (OpenOptions, Option<&Index>),
    ) -> Result<Index> {
        manifest.planned_account(options.cache_budget).check(options.ram_budget, "open this index")?;
        let role = held.map_or_else(|| manifest.data_role().into(), |held| manifest.part_role(held.server));
        let base = Base::open(folder, number, manifest, &role)?;
        if !base.facts().has_scorer {
            options.scorer.choice.refuse_device(base.kind.name())?;
        }
        let notes = base.manifest.damaged_note(number).into_iter().chain(base.manifest.curves_note());
        let mut warnings: Vec<String> = notes.collect();
        let previous_version = previous_version.map(|other| &other.kind);
        let kind = KindIndex::open(&base, held, (&options, previous_version), &mut warnings)?;
        let index = Index::new(base, kind, &options, warnings)?;
        // Reading the files has left freed memory.
        release_freed();
        Ok(index)
    }

    /// Bytes that are in memory once for this version and for the one beside which it was opened.
    pub(crate) fn shared_bytes(&self) -> u64 {
        self.kind.sliced().map_or(0, |own| own.shared_bytes())
    }

    /// Loads what its kind can keep in RAM beyond its tables, as much as `budget_bytes` has room for.
    ///
    /// # Errors
    /// A file that cannot be read, or is damaged.
    pub(crate) fn fill_memory(&mut self, budget_bytes: u64) -> Result<()> {
        self.kind.lists_mut().map_or(Ok(()), |lists| lists.fill_memory(&self.base, budget_bytes))
    }

    /// State of learning from queries since the index was opened, when all epochs that have ended are learned from;
    /// `None` where it does not learn.
    pub fn learning_facts(&self) -> Option<LearningFacts> {
        let learning = self.kind.learning()?;
        learning.settle();
        learning.facts()
    }

    /// Stops learning from queries, and frees the memory of it.
    pub(crate) fn stop_learning(&mut self) {
        if let Some(lists) = self.kind.lists_mut() {
            lists.learning.stop();
        }
    }

    /// Queries in flight per thread that has so few of them, so that each may use a larger width; `None` for the
    /// default.
    pub fn in_flight_of_few(&self, queries: usize) -> Option<usize> {
        self.kind.in_flight_of_few(queries)
    }

    /// Replaces the block cache by one of `budget_bytes`; 0 removes it. Parts of the index that are in memory stay
    /// where the budget has room for them, and leave the cache the rest.
    pub fn set_cache_budget(&mut self, budget_bytes: u64) {
        if let Some(own) = self.kind.residency_mut() {
            own.shrink(budget_bytes);
        }
        self.cache_budget = budget_bytes;
        self.open_cache();
    }

    /// Moves into memory what queries would read, in a form that they use as it is, as far as the budget of the cache
    /// has room; the block cache has the rest. Returns whether queries need no reads then. Only a disk-graph with codes
    /// in RAM and a gpu-ivf have such a form. A disk-graph without recall curves for memory, which an earlier version
    /// built, stays where it is.
    ///
    /// A block that cannot be read or is damaged leaves it on disk, with a warning.
    ///
    /// # Errors
    /// An interruption.
    pub fn make_resident(&mut self, progress: &dyn Progress) -> Result<bool> {
        let is_calibrated = self.kind.residency().is_some_and(|own| own.is_calibrated(&self.base));
        if is_calibrated { self.move_into_memory(progress) } else { Ok(false) }
    }

    /// As [`Index::make_resident`], of an index of an earlier version as well.
    pub(crate) fn move_into_memory(&mut self, progress: &dyn Progress) -> Result<bool> {
        let is_apart = self.base.manifest.spread.is_some();
        let Some(own) = self.kind.residency_mut().filter(|_| !is_apart) else { return Ok(false) };
        // What the cache has would be in memory twice meanwhile.
        self.cache = None;
        let moved = own.make_resident(&self.base, self.cache_budget, progress);
        self.open_cache();
        match moved {
            // Only queries that meet the block fail then.
            Err(e) if matches!(e.kind, ErrorKind::Corrupt | ErrorKind::Io) => {
                self.warnings
                    .push(format!("the index stays on disk and is not moved into memory: {}", e.message));
                Ok(false)
            }
            moved => moved.map(|()| self.is_resident()),
        }
    }

    /// Plans of searches among the rows that are left that were made since it was opened; searches with equal options
    /// share one.
    pub fn live_plans_made(&self) -> u64 {
        self.live_plans.made()
    }

    /// Bytes for what is in memory beside the tables of its kind: resident parts, and the block cache.
    pub fn cache_budget(&self) -> u64 {
        self.cache_budget
    }

    /// Whether queries need no reads: what they use is in memory as they use it.
    pub fn is_resident(&self) -> bool {
        self.kind.residency().is_some_and(MovesIntoMemory::is_resident)
    }

    /// The part of the cache budget that blocks have.
    pub fn block_cache_bytes(&self) -> u64 {
        let resident = self.kind.residency().map_or(0, MovesIntoMemory::resident_bytes);
        self.cache_budget.saturating_sub(resident)
    }

    /// Bytes of blocks that are cached now; more than [`Index::block_cache_bytes`] where other indexes lend theirs.
    pub fn cached_bytes(&self) -> u64 {
        self.cache.as_ref().map_or(0, ExtentCache::used_bytes)
    }

    /// Reads all blocks into the cache, when it has a place for each; returns whether it has.
    ///
    /// # Errors
    /// A block that cannot be read or is damaged; an interruption.
    pub fn preload(&self, progress: &dyn Progress) -> Result<bool> {
        const CHUNK_BYTES: usize = 1 << 20;
        let cache =
            self.cache.as_ref().filter(|cache| cache.holds_all() && self.base.manifest.spread.is_none());
        let Some(cache) = cache else { return Ok(false) };
        let (count, size) = (self.base.manifest.blocks.count, self.base.block.block_bytes);
        progress.stage("loading blocks", u64::from(count), "blocks");
        let mut buffer = Buffer::new((CHUNK_BYTES / size).max(1) * size);
        for first in (0..count).step_by(buffer.bytes().len() / size) {
            progress.check_interrupted()?;
            let blocks = (buffer.bytes().len() / size).min((count - first) as usize);
            let (bytes, offset) = (&mut buffer.bytes_mut()[..blocks * size], u64::from(first) * size as u64);
            let failed = |e| Error::io("reading", &self.base.blocks_path, &e);
            self.base.blocks_file()?.read_exact_at(bytes, offset).map_err(failed)?;
            for (number, bytes) in (first..).zip(bytes.chunks_exact(size)) {
                if block::verify(&self.base.block, number, bytes).is_err() {
                    let path = self.base.blocks_path.display();
                    return Err(Error::corrupt(format!(
                        "block {number} of {path} is damaged; run `stratann verify`, then restore the file"
                    )));
                }
                let offset = u64::from(number) * size as u64;
                cache.put(Extent { store: StoreId(0), offset, bytes: size as u32 }, bytes);
            }
            progress.advance(blocks as u64);
        }
        Ok(true)
    }

    /// Work and memory of its scorer of codes; `None` of a kind without.
    pub fn scorer_report(&self) -> Option<ScorerReport> {
        self.kind.scorer().map(Scorer::report)
    }

    /// The codes in memory and their scorer; `None` of a kind without.
    pub fn codes_and_scorer(&self) -> Option<ScoredCodes<'_>> {
        let view = self.view();
        let own = view.kind.gpu_ivf()?;
        Some(ScoredCodes { coder: own.coder, codes: own.codes, scorer: self.kind.scorer()? })
    }

    /// Blocks of the index as they are checked; `None` for a kind without.
    pub(crate) fn checked(&self) -> Option<Blocks<'_>> {
        self.kind.checked(&self.base)
    }

    /// Bytes of a vector, and of a query.
    pub fn row_bytes(&self) -> usize {
        self.base.row_bytes()
    }

    /// Bytes of a block.
    pub fn block_bytes(&self) -> usize {
        self.base.block.block_bytes
    }

    /// The part of the index that queries see.
    pub fn view(&self) -> IndexView<'_> {
        self.kind.view(&self.base)
    }

    /// The part that learns from queries, where the kind does.
    pub(crate) fn learning(&self) -> Option<&Learning> {
        self.kind.learning()
    }

    /// Form of the candidates in batons of this index; `asked` where that was chosen.
    ///
    /// # Errors
    /// Ids alone, where codes are on disk or with the lists: the receiver has none to compute distances from.
    pub fn carry(&self, asked: Option<Carry>) -> Result<Carry> {
        match (self.view().rescores(), asked) {
            (true, asked) => Ok(asked.unwrap_or_default()),
            (false, None | Some(Carry::Distances)) => Ok(Carry::Distances),
            (false, Some(Carry::Ids)) => Err(Error::bad_input(format!(
                "{} keeps its codes on disk, so no server can compute distances that are left out; use --carry \
                 distances{}",
                self.base.folder.display(),
                if self.kind.lists().is_some() { "" } else { ", or build with --codes ram" }
            ))),
        }
    }

    /// The manifest.
    pub fn manifest(&self) -> &Manifest {
        &self.base.manifest
    }

    /// The number of the manifest that was opened.
    pub fn version(&self) -> u64 {
        self.base.number
    }

    /// Harmless faults that were found while opening, to be shown once.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// The index folder.
    pub fn folder(&self) -> &Path {
        &self.base.folder
    }

    /// Inverted lists of the index.
    ///
    /// # Errors
    /// A kind without clusters.
    pub(crate) fn lists(&self) -> Result<&ListIndex> {
        self.kind.lists().ok_or_else(|| {
            let (folder, kind) = (self.base.folder.display(), &self.base.manifest.kind);
            Error::bad_input(format!("{folder} is a {kind} and has no clusters"))
        })
    }

    /// The clusters of the vectors with these ids; reads the whole index.
    ///
    /// # Errors
    /// A kind without clusters; a file that cannot be read, or is damaged.
    pub fn clusters_of(&self, ids: &HashSet<u64>) -> Result<HashMap<u64, u32>> {
        let lists = self.lists()?;
        lists.tables.clusters_of(self.base.blocks_file()?, &self.base.blocks_path, ids)
    }

    /// Replaces `out` by the bytes of an extent of any store, read past any cache and not verified.
    ///
    /// # Errors
    /// Why there are none.
    pub fn read_extent(&self, at: Extent, out: &mut Vec<u8>) -> std::result::Result<(), Loss> {
        self.base.read_extent(self.kind.stores(), at, out)
    }

    /// One block, read past any cache and verified.
    ///
    /// # Errors
    /// Why there is none.
    pub fn read_block(&self, number: u32) -> std::result::Result<Buffer, Loss> {
        self.base.read_block(number)
    }

    /// Bytes of the longest read.
    pub(crate) fn read_bytes_max(&self) -> usize {
        self.kind.read_bytes_max(&self.base)
    }

    /// Memory of the open index by component. Searches add their buffers, see [`Index::search_account`].
    pub fn account(&self) -> Account {
        let mut account = Account::new();
        self.kind.account(&mut account);
        match &self.cache {
            Some(cache) => account.add("block cache", cache.accounted_bytes()),
            // What is in memory has left it no room.
            None if self.is_resident() => account.add("block cache", 0),
            None => {}
        }
        if let Some(ids) = self.row_ids.get() {
            account.add("row ids", ids.bytes());
        }
        account
    }

    /// The rows of external ids, where they have been read.
    pub(crate) fn known_row_ids(&self) -> Option<&RowIds> {
        self.row_ids.get()
    }

    /// The rows of external ids, which are read once.
    ///
    /// # Errors
    /// A RAM budget without room for them; rows that cannot be read; an interruption.
    pub(crate) fn row_ids(&self, progress: &dyn Progress) -> Result<&RowIds> {
        if let Some(ids) = self.row_ids.get() {
            return Ok(ids);
        }
        let mut account = self.account();
        account.add("row ids", RowIds::bytes_max(&self.base.manifest));
        account.check(self.ram_budget, "search this index with a filter")?;
        let ids = RowIds::read(&self.base, &self.kind, progress)?;
        Ok(self.row_ids.get_or_init(|| ids))
    }
}
