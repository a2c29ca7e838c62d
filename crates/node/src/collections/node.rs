//! A data folder with its collections.

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};

use stratann_storage::budget::Account;
use stratann_storage::ledger::{Ledger, Part, PartUse};
use stratann_storage::{ErrorKind, Progress};

use super::budget::Memory;
use super::catalogue::{self, Catalogue, Entry};
use super::collection::Collection;
use super::error::{Error, Kind, Result};
use super::limits::MemoryLimits;
use super::live::{Job, Jobs, Shared, Slot};
use super::options::SegmentOptions;
use super::salvage;
use super::sieves::Sieves;
use super::spec::{Specs, check_name};
use super::verify::{self, Verified};
use crate::rows::{self, Batch, Key, Outcome, Rows};
use crate::segments::Left;

/// Folder of all segments in a data folder.
const SEGMENTS: &str = "s";

/// How a node is opened.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Options of its rows.
    pub rows: rows::Options,
    /// Memory of the points of all open collections.
    pub deltas_bytes: u64,
    /// How segments are made and kept.
    pub segments: SegmentOptions,
    /// Memory of all of it; `None` for no limit. Open segments have what the others leave.
    pub ram_budget: Option<u64>,
}

impl Options {
    /// Divides the memory of a data folder: a quarter for the rows and a quarter for points that are in no segment,
    /// each at most its default; half of the rest is for builds, and segments have what is left.
    pub fn of_budget(ram_budget: Option<u64>) -> Options {
        let usual = Options::default();
        let Some(budget) = ram_budget else { return usual };
        let memory_bytes = usual.rows.memory_bytes.min(budget / 4);
        let deltas_bytes = usual.deltas_bytes.min(budget / 4);
        let left = budget - memory_bytes - deltas_bytes;
        // A merge has its memory beside the segments that are searched meanwhile.
        let segments = SegmentOptions { build_bytes: Some(left / 2), ..usual.segments };
        let rows = rows::Options { memory_bytes, ..usual.rows };
        Options { rows, deltas_bytes, segments, ram_budget }
    }
}

impl Default for Options {
    fn default() -> Options {
        let (rows, segments) = (rows::Options::default(), SegmentOptions::default());
        Options { rows, deltas_bytes: 256 << 20, segments, ram_budget: None }
    }
}

/// A collection in a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Info {
    /// Its name.
    pub name: String,
    /// Its vectors, or why it cannot be used.
    pub specs: Result<Specs>,
}

/// What became of a dropped collection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dropped {
    /// Rows that were removed.
    pub rows: u64,
    /// Why others are still there; they are removed when the node is opened again.
    pub unfinished: Option<Error>,
}

/// Collections of a data folder. The folder stays locked while the node or one of its collections is held.
pub struct Node {
    shared: Arc<Shared>,
    catalogue: Mutex<Catalogue>,
}

impl Node {
    /// Opens a data folder, or makes one, and removes what earlier drops left. Collections are opened at their first
    /// use. Where the storage engine is damaged, segments that a checkpoint or a merge left are searched, and nothing
    /// is written; [`Node::why_read_only`] tells.
    ///
    /// # Errors
    /// As [`Rows::open`]; `Corrupt` for a damaged catalogue.
    pub fn open(folder: &Path, options: &Options, progress: &dyn Progress) -> Result<Node> {
        let (rows, salvaged) = match Rows::open(folder, &options.rows, progress) {
            Err(e) if e.kind == ErrorKind::Corrupt => {
                salvage::open(folder, &folder.join(SEGMENTS), e, (&options.rows, progress))?
            }
            rows => (rows?, Left::new()),
        };
        Node::on((rows, salvaged), folder, options, progress)
    }

    /// The collections of rows that are open.
    pub(super) fn on(
        (rows, salvaged): (Rows, Left),
        folder: &Path,
        options: &Options,
        progress: &dyn Progress,
    ) -> Result<Node> {
        let merges = options.segments.build_bytes.unwrap_or(0);
        let ledger = Ledger::new(options.ram_budget);
        let parts = [
            (Part::Fixed, Account::new().total()),
            (Part::Engine, options.rows.memory_bytes),
            (Part::Deltas, options.deltas_bytes),
            (Part::Merges, merges),
        ];
        let memory = Memory::new(ledger, &parts)?;
        let in_background = options.segments.in_background && rows.why_read_only().is_none();
        let segments = SegmentOptions { in_background, ..options.segments };
        let shared = Arc::new_cyclic(|own| Shared {
            own: own.clone(),
            rows,
            sieves: Sieves::new(&memory),
            memory,
            options: segments,
            overlay_bytes_max: options.deltas_bytes / 4,
            folder: folder.join(SEGMENTS),
            jobs: Jobs::default(),
            pace: Default::default(),
            salvaged,
            copying: Mutex::default(),
            merging: Mutex::default(),
            opened: Mutex::default(),
            uses: 0.into(),
        });
        let catalogue = Catalogue::read(&shared.rows, &Catalogue::default())?;
        for entry in catalogue.entries.values() {
            shared.memory.set_limits(entry.id, entry.limits);
            if let Err(e) = &entry.slot {
                progress.note(&e.message);
            }
        }
        if !shared.memory.has_room_for_minima() {
            progress.note(
                "the memory minima of the collections have no room, and none is kept; give a larger --ram-budget, or \
                 smaller minima",
            );
        }
        let dropped = catalogue.dropped.clone();
        let node = Node { shared, catalogue: Mutex::new(catalogue) };
        if !dropped.is_empty() {
            progress.stage("removing dropped collections", dropped.len() as u64, "collections");
        }
        if node.why_read_only().is_none() {
            node.remove_unknown_folders();
        }
        for id in dropped {
            if let Some(e) = node.remove_rows(id).unfinished {
                progress.note(&format!("a dropped collection is not wholly removed: {e}"));
            }
            progress.advance(1);
        }
        node.shared.jobs.start(&node.shared, Job::Checkpoint);
        Ok(node)
    }

    /// Makes an empty collection, of points with one [`Spec`](super::Spec) of vectors or with [`Specs`] by name.
    ///
    /// # Errors
    /// `BadInput` for a name that is taken, empty, longer than 255 bytes, or has control characters or `/`, and for
    /// dimensions beyond 1 to 4,096; `Unknown`; `ReadOnly`, `Corrupt` and `Io` of the rows.
    pub fn create_collection(&self, name: &str, vectors: impl Into<Specs>) -> Result<Collection> {
        self.create_limited(name, vectors, MemoryLimits::default())
    }

    /// The same with limits of its memory.
    ///
    /// # Errors
    /// As [`Node::create_collection`] and [`Node::set_limits`].
    pub fn create_limited(
        &self,
        name: &str,
        vectors: impl Into<Specs>,
        limits: MemoryLimits,
    ) -> Result<Collection> {
        let specs = vectors.into();
        check_name(name)?;
        specs.check()?;
        let mut catalogue = self.catalogue()?;
        if catalogue.entries.contains_key(name) {
            return Err(Error::bad_input(format!(
                "there is a collection \"{name}\" already; give another name"
            )));
        }
        let id = catalogue.next_id;
        self.shared.memory.check_limits(id, &limits)?;
        let creation = catalogue::creation(name, id, &specs, &limits);
        self.change(&mut catalogue, creation, |now| now.has(name, id))?;
        // A catalogue that was read again has it, and never gives the number twice.
        catalogue.next_id = catalogue.next_id.max(id.saturating_add(1));
        let entry = catalogue.entries.entry(name.to_string());
        let entry =
            entry.or_insert_with(|| Entry { id, slot: Ok(Arc::new(Slot::new(id, name, specs))), limits });
        let slot = entry.slot.clone()?;
        drop(catalogue);
        self.apply_limits(&slot, limits);
        Ok(Collection { shared: self.shared.clone(), slot })
    }

    /// Sets the limits of the memory of a collection. A smaller quota shrinks the caches of its segments, and a larger
    /// one lets them grow when the collection is opened the next time.
    ///
    /// # Errors
    /// `BadInput` for a quota of 0 or below the minimum, and for a minimum when those of all collections have no room;
    /// `Missing`; `Unknown`; `ReadOnly`, `Corrupt` and `Io` of the rows.
    pub fn set_limits(&self, name: &str, limits: MemoryLimits) -> Result<()> {
        self.change_limits(name, |own| *own = limits).map(drop)
    }

    /// Changes some of the limits of the memory of a collection. Returns those that it has then.
    ///
    /// # Errors
    /// As [`Node::set_limits`].
    pub fn change_limits(&self, name: &str, change: impl FnOnce(&mut MemoryLimits)) -> Result<MemoryLimits> {
        let mut catalogue = self.catalogue()?;
        let entry = catalogue.entries.get(name).ok_or_else(|| Error::missing(name))?;
        let (id, mut limits, is_damaged) = (entry.id, entry.limits, entry.slot.is_err());
        change(&mut limits);
        self.shared.memory.check_limits(id, &limits).map_err(|e| e.of_collection(name))?;
        let batch = catalogue::change_of_limits(id, &limits);
        self.change(&mut catalogue, batch, |now| now.limits(name, id) == Some(limits))?;
        if is_damaged {
            // What was damaged may be the limits alone.
            self.read_again(&mut catalogue)?;
        }
        let slot = catalogue.find(name)?;
        if let Some(entry) = catalogue.entries.get_mut(name) {
            entry.limits = limits;
        }
        drop(catalogue);
        self.apply_limits(&slot, limits);
        Ok(limits)
    }

    /// Has limits hold from now on. Collections that use more close; they are opened again within their limits.
    fn apply_limits(&self, slot: &Arc<Slot>, limits: MemoryLimits) {
        let memory = &self.shared.memory;
        memory.set_limits(slot.id, limits);
        if limits.quota_bytes.is_some_and(|quota| quota < memory.account(slot.id).used) {
            slot.close_if_free();
        }
        while memory.lacks_minima() && self.shared.evict(slot.id) {}
    }

    /// A collection by its name.
    ///
    /// # Errors
    /// `Missing`; `Corrupt` for one whose row in the catalogue is damaged.
    pub fn collection(&self, name: &str) -> Result<Collection> {
        let slot = self.catalogue()?.find(name)?;
        Ok(Collection { shared: self.shared.clone(), slot })
    }

    /// All collections, in the order of their names.
    ///
    /// # Errors
    /// `Corrupt` and `Io` of rows that must be opened again.
    pub fn collections(&self) -> Result<Vec<Info>> {
        let catalogue = self.catalogue()?;
        let info = |(name, entry): (&String, &Entry)| {
            let specs = entry.slot.as_ref().map(|slot| slot.specs.clone()).map_err(Clone::clone);
            Info { name: name.clone(), specs }
        };
        Ok(catalogue.entries.iter().map(info).collect())
    }

    /// Drops a collection and removes its rows. Its changes that wait are refused; searches that run end with what they
    /// began with.
    ///
    /// # Errors
    /// `Missing`; `Unknown`; `Io` of the rows. Once it is out of the catalogue, there is no error.
    pub fn drop_collection(&self, name: &str) -> Result<Dropped> {
        let mut catalogue = self.catalogue()?;
        let entry = catalogue.entries.get(name).ok_or_else(|| Error::missing(name))?;
        let (id, slot) = (entry.id, entry.slot.clone().ok());
        // A change that is being written ends before.
        let turn = slot.as_ref().map(|slot| slot.turn());
        let set_dropped = |is_dropped| slot.iter().for_each(|slot| slot.set_dropped(is_dropped));
        set_dropped(true);
        let changed = self.change(&mut catalogue, catalogue::removal(name, id), |now| !now.has(name, id));
        if let Err(e) = changed {
            // Where it is unknown, the catalogue that is read next says so.
            if !matches!(e.kind, Kind::Unknown { .. }) {
                set_dropped(false);
            }
            return Err(e);
        }
        catalogue.entries.remove(name);
        self.shared.memory.set_limits(id, MemoryLimits::default());
        slot.iter().for_each(|slot| slot.close());
        drop(turn);
        drop(catalogue);
        // What makes a segment is interrupted, and leaves nothing behind the removal.
        slot.iter().for_each(|slot| slot.wait_for_jobs());
        Ok(self.remove_rows(id))
    }

    /// Compares all rows of a collection: tail with places both ways, their numbers, and the shape of each vector.
    ///
    /// # Errors
    /// `Corrupt` at the first difference, with the key of its row; `Missing`; `Busy` and `Io`.
    pub fn verify(&self, name: &str) -> Result<Verified> {
        let slot = self.catalogue()?.find(name)?;
        verify::verify(&self.shared, &slot)
    }

    /// Closes collections that were not used since the last call. Returns how many were closed; they are opened again
    /// at their next use.
    pub fn close_idle(&self) -> u64 {
        if self.shared.rows.check_process().is_err() {
            return 0;
        }
        self.shared.close_idle()
    }

    /// Why collections are searched as they were and nothing is written: the storage engine is damaged. `None` for a
    /// data folder that is whole.
    pub fn why_read_only(&self) -> Option<&str> {
        self.shared.rows.why_read_only().map(|why| &*why.message)
    }

    /// Bytes that are reserved for the points of open collections.
    pub fn deltas_bytes(&self) -> u64 {
        self.shared.memory.used(Part::Deltas)
    }

    /// Memory of all collections, by purpose.
    pub fn memory(&self) -> Vec<PartUse> {
        let parts = self.shared.memory.ledger().parts();
        let is_used = |own: &PartUse| own.guaranteed_bytes > 0 || own.most_bytes > 0;
        parts.into_iter().filter(is_used).collect()
    }

    /// Time in which checkpoints and merges in the background rested for searches, microseconds.
    pub fn rested_us(&self) -> u64 {
        self.shared.pace.rested_us()
    }

    /// Counters of the rows.
    pub fn counters(&self) -> rows::Counters {
        self.shared.rows.counters()
    }

    /// The catalogue as the rows have it.
    fn catalogue(&self) -> Result<MutexGuard<'_, Catalogue>> {
        self.shared.rows.check_process()?;
        let mut catalogue = self.catalogue.lock().unwrap_or_else(|e| e.into_inner());
        if catalogue.is_stale {
            self.read_again(&mut catalogue)?;
        }
        Ok(catalogue)
    }

    fn read_again(&self, catalogue: &mut Catalogue) -> Result<()> {
        self.shared.wake()?;
        let read = Catalogue::read(&self.shared.rows, catalogue)?;
        for (name, entry) in &catalogue.entries {
            entry.slot.iter().for_each(|slot| slot.set_dropped(!read.has(name, entry.id)));
            self.shared.memory.set_limits(entry.id, MemoryLimits::default());
        }
        for entry in read.entries.values() {
            self.shared.memory.set_limits(entry.id, entry.limits);
        }
        *catalogue = read;
        Ok(())
    }

    /// Writes a change of the catalogue. Where its outcome is unknown, the rows are opened again and tell.
    fn change(
        &self,
        catalogue: &mut Catalogue,
        batch: Batch,
        is_done: impl Fn(&Catalogue) -> bool,
    ) -> Result<()> {
        self.shared.check_writable()?;
        self.shared.wake()?;
        let error = match self.shared.rows.write(batch) {
            Outcome::Durable(_) => return Ok(()),
            Outcome::NotWritten(e) => return Err(e.into()),
            Outcome::NoRoom(e) => return Err(Error::disk_full(&e)),
            Outcome::Unknown { error, .. } => error,
        };
        catalogue.is_stale = true;
        match self.read_again(catalogue) {
            Ok(()) if is_done(catalogue) => Ok(()),
            Ok(()) => Err(Error { kind: Kind::Other(ErrorKind::Io), message: error.message }),
            Err(_) => Err(Error::unknown(0, "the change of the catalogue", &error)),
        }
    }

    /// Removes folders of collections that are not in the catalogue.
    fn remove_unknown_folders(&self) {
        let catalogue = self.catalogue.lock().unwrap_or_else(|e| e.into_inner());
        let known: Vec<_> = catalogue.entries.values().map(|entry| self.shared.folder_of(entry.id)).collect();
        let Ok(folders) = std::fs::read_dir(&self.shared.folder) else { return };
        for folder in folders.flatten().map(|folder| folder.path()) {
            let is_number = |name: &str| name.len() == 16 && u64::from_str_radix(name, 16).is_ok();
            let is_ours = folder.file_name().and_then(|name| name.to_str()).is_some_and(is_number);
            if is_ours && !known.contains(&folder) {
                let _ = std::fs::remove_dir_all(folder);
            }
        }
    }

    /// Removes what a dropped collection left, and then its mark.
    fn remove_rows(&self, id: u64) -> Dropped {
        let (from, end) = (Key::first_of_collection(id), Key::end_of_collection(id));
        let removed = self.shared.wake().and_then(|()| Ok(self.shared.rows.remove_range(&from, &end)?));
        let rows = removed.as_ref().map_or(0, |removed| removed.rows);
        let finished = removed.and_then(|_| {
            remove_folder(&self.shared.folder_of(id))?;
            let mut batch = Batch::new();
            batch.remove(catalogue::dropped_key(id));
            Ok(self.shared.rows.write(batch).durable()?)
        });
        Dropped { rows, unfinished: finished.err() }
    }
}

impl Drop for Node {
    /// Interrupts checkpoints and merges; collections that are still held are searched and changed without.
    fn drop(&mut self) {
        if self.shared.rows.check_process().is_ok() {
            self.shared.jobs.stop();
        }
    }
}

fn remove_folder(folder: &Path) -> Result<()> {
    match std::fs::remove_dir_all(folder) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
            Err(stratann_storage::Error::io("removing", folder, &e).into())
        }
        _ => Ok(()),
    }
}
