//! What an open data folder has, and the work of its log thread.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};

use stratann_storage::budget::size;
use stratann_storage::{Error, ErrorKind, Progress, Quiet, Result, durable};

use super::batch::{self, Batch};
use super::counters::{Counts, add};
use super::engine::{Engine, EngineKind, Trouble, Written};
use super::fjall::FJALL;
use super::folder::Folder;
use super::key::{Key, RowKind};
use super::log::{Outcome, Queue, Waiting, merged};
use super::memory::Memory;
use super::options::Options;
use super::read_only::ReadOnly;
use super::tip::Tip;

/// Free disk below which nothing but removals is admitted, besides room for the tables in memory and a merge of them.
const HEADROOM_BYTES: u64 = 32 << 20;
/// Free disk below which not even removals are.
const REMOVALS_BYTES: u64 = 4 << 20;

/// What was found when rows were opened again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reopened {
    /// Number of the last group that is there.
    pub last_group: u64,
}

pub(super) struct Core {
    pub(super) memory: Memory,
    pub(super) queue: Queue,
    pub(super) counts: Counts,
    /// Why nothing is written; `None` for rows that are whole.
    pub(super) why_read_only: Option<Error>,
    folder: Folder,
    /// `None` where nothing is written.
    tip: Option<Tip>,
    kind: &'static EngineKind,
    log_bytes_kept: u64,
    state: RwLock<State>,
    /// Number of the last group that was begun in this process.
    begun: AtomicU64,
    process: u32,
}

/// The engine, and whether it stands still.
pub(super) struct State {
    engine: Option<Box<dyn Engine>>,
    stopped: Option<String>,
    last_group: AtomicU64,
    /// Groups that were begun in this process and were not there afterwards.
    lost_groups: Vec<u64>,
}

impl State {
    /// The engine.
    ///
    /// # Errors
    /// `Io` while it stands still.
    pub(super) fn engine(&self) -> Result<&dyn Engine> {
        match (&self.engine, &self.stopped) {
            (Some(engine), None) => Ok(&**engine),
            (_, why) => Err(Error {
                kind: ErrorKind::Io,
                message: format!(
                    "the rows stand still until they are opened again, since {}",
                    why.as_deref().unwrap_or("opening them failed")
                ),
            }),
        }
    }

    /// Whether a group of this process is there.
    pub(super) fn has_group(&self, group: u64) -> bool {
        group <= self.last_group.load(Ordering::Acquire) && !self.lost_groups.contains(&group)
    }
}

impl Core {
    pub(super) fn open(
        path: &Path,
        options: &Options,
        kind: &'static EngineKind,
        progress: &dyn Progress,
    ) -> Result<Core> {
        let memory = Memory::of(options.memory_bytes)?;
        let folder = Folder::lock(path, options.reserve_bytes)?;
        let is_new = !folder.engine().exists();
        let (tip, named) = Tip::open(path)?;
        if named.is_none() && !is_new {
            progress.note(&format!("{}: no file says which batches were acknowledged", path.display()));
        }
        let process = std::process::id();
        let state = State { engine: None, stopped: None, last_group: 0.into(), lost_groups: Vec::new() };
        let (queue, counts, state) = (Queue::default(), Counts::default(), RwLock::new(state));
        let core = Core {
            memory,
            queue,
            counts,
            why_read_only: None,
            folder,
            tip: Some(tip),
            kind,
            log_bytes_kept: options.log_bytes_kept,
            state,
            begun: 0.into(),
            process,
        };
        if is_new {
            core.create_engine()?;
        }
        core.open_engine(&mut core.write_state(), named.unwrap_or(0), progress)?;
        core.folder.keep_reserve(core.headroom(), progress);
        Ok(core)
    }

    /// Rows that are read and never written.
    pub(super) fn read_only(path: &Path, options: &Options, rows: Batch, why: Error) -> Result<Core> {
        let rows = rows.changes.into_iter().filter_map(|(key, value)| Some((key, value?)));
        let engine: Box<dyn Engine> = Box::new(ReadOnly(rows.collect()));
        let state =
            State { engine: Some(engine), stopped: None, last_group: 0.into(), lost_groups: Vec::new() };
        Ok(Core {
            memory: Memory::of(options.memory_bytes)?,
            queue: Queue::default(),
            counts: Counts::default(),
            why_read_only: Some(why),
            folder: Folder::lock(path, options.reserve_bytes)?,
            tip: None,
            kind: &FJALL,
            log_bytes_kept: 0,
            state: RwLock::new(state),
            begun: 0.into(),
            process: std::process::id(),
        })
    }

    /// Refuses a forked child: the threads that write are not there, and the folder is its parent's.
    pub(super) fn check_process(&self) -> Result<()> {
        let process = std::process::id();
        if process == self.process {
            return Ok(());
        }
        Err(Error::bad_input(format!(
            "process {} opened the data folder {}, and this is process {process}, which it forked; ask the \
             process that opened it",
            self.process,
            self.folder.path().display()
        )))
    }

    pub(super) fn read_state(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().unwrap_or_else(|e| e.into_inner())
    }

    fn write_state(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write().unwrap_or_else(|e| e.into_inner())
    }

    fn headroom(&self) -> u64 {
        2 * self.memory.tables + HEADROOM_BYTES
    }

    pub(super) fn reopen(&self, progress: &dyn Progress) -> Result<Reopened> {
        let mut state = self.write_state();
        if state.engine().is_err() {
            state.engine = None;
            state.stopped = Some("opening them again failed".to_string());
            // What was acknowledged in this process counts, whatever became of the file that names it.
            let acknowledged = state.last_group.load(Ordering::Acquire);
            self.open_engine(&mut state, acknowledged, progress)?;
            let (last, begun) =
                (state.last_group.load(Ordering::Acquire), self.begun.load(Ordering::Acquire));
            // At most one group is begun before the rows stand still.
            if begun > last {
                state.lost_groups.push(begun);
            }
            state.stopped = None;
        }
        Ok(Reopened { last_group: state.last_group.load(Ordering::Acquire) })
    }

    /// Makes a new engine under another name first: a half-made one might never open.
    fn create_engine(&self) -> Result<()> {
        let (place, unfinished) = (self.folder.engine(), self.folder.unfinished_engine());
        let failed = |e: std::io::Error| Error::io("making", &place, &e);
        if unfinished.exists() {
            std::fs::remove_dir_all(&unfinished).map_err(failed)?;
        }
        drop((self.kind.open)(&unfinished, &self.memory).map_err(|trouble| engine_error(&place, trouble))?);
        std::fs::rename(&unfinished, &place).map_err(failed)
    }

    fn open_engine(&self, state: &mut State, acknowledged: u64, progress: &dyn Progress) -> Result<()> {
        let place = self.folder.engine();
        if self.folder.free_bytes() < self.headroom() {
            self.folder.release_reserve();
        }
        let bytes = bytes_below(&place);
        progress.stage("opening the storage engine", bytes, "bytes");
        let log_bytes = self.check_log(acknowledged)?;
        let failed = |trouble| engine_error(&place, trouble);
        let mut engine = (self.kind.open)(&place, &self.memory).map_err(failed)?;
        // The engine syncs what is below its folder. The name of the folder, and that of the tip, are synced here.
        durable::sync_folder(self.folder.path())?;
        let key = group_key();
        let last_group = match engine.get(&key).map_err(failed)? {
            Some(stored) => {
                number(batch::unseal(&key, &stored)?).ok_or_else(|| batch::damaged(&key, "no number"))?
            }
            None => 0,
        };
        let said = format!("was cut there, and copied to {} before", self.folder.log_copy().display());
        self.check_tip(acknowledged, last_group, &said)?;
        let _ = std::fs::remove_file(self.folder.log_copy());
        engine.settle().map_err(failed)?;
        if log_bytes > self.log_bytes_kept {
            drop(engine);
            (self.kind.empty_log)(&place).map_err(|e| Error::io("emptying the log in", &place, &e))?;
            engine = (self.kind.open)(&place, &self.memory).map_err(failed)?;
        }
        // A group that was written and never acknowledged is there now.
        self.note_tip(last_group);
        progress.advance(bytes);
        state.last_group.store(last_group, Ordering::Release);
        self.begun.fetch_max(last_group, Ordering::AcqRel);
        state.engine = Some(engine);
        Ok(())
    }

    fn note_tip(&self, group: u64) {
        // An older number is harmless.
        self.tip.iter().for_each(|tip| _ = tip.write(group));
    }

    fn check_tip(&self, acknowledged: u64, last_group: u64, log: &str) -> Result<()> {
        let tip = self.tip.as_ref();
        tip.map_or(Ok(()), |tip| tip.check(acknowledged, last_group, &self.folder.engine(), log))
    }

    /// Checks that the log does not end at damage, behind which acknowledged batches stand, and cuts off a batch that
    /// was being written. Returns the bytes of the others.
    fn check_log(&self, acknowledged: u64) -> Result<u64> {
        let (place, key) = (self.folder.engine(), group_key());
        let read = (self.kind.end_of_log)(&place, &key);
        let end = read.map_err(|e| Error::io("reading the log in", &place, &e))?;
        // A log without a whole batch may just have been begun: the groups before are in files of the engine.
        let last = end.last.as_deref().filter(|_| end.is_cut);
        let last = last.and_then(|stored| batch::unseal(&key, stored).ok()).and_then(number);
        last.map_or(Ok(()), |last| self.check_tip(acknowledged, last, "was left as it is"))?;
        if let Some((log, _)) =
            end.whole.as_ref().filter(|_| end.is_cut && last.is_none() && acknowledged > 0)
        {
            // Whether it is damaged is known once the engine is open.
            std::fs::copy(log, self.folder.log_copy()).map_err(|e| Error::io("copying", log, &e))?;
        }
        (self.kind.cut_log)(&end).map_err(|e| Error::io("cutting the log in", &place, &e))?;
        Ok(end.bytes)
    }

    /// Writes groups until the queue is closed.
    pub(super) fn run_log(&self) {
        loop {
            let group = self.queue.take_group();
            if group.is_empty() {
                return;
            }
            self.write_group(group);
        }
    }

    fn write_group(&self, group: Vec<Waiting>) {
        if let Some(why) = &self.why_read_only {
            return self.refuse(group, &Outcome::NotWritten(why.clone()));
        }
        let state = self.read_state();
        let engine = match state.engine() {
            Ok(engine) => engine,
            Err(error) => return self.refuse(group, &Outcome::NotWritten(error)),
        };
        let mut group = self.admit(group);
        if group.is_empty() {
            return;
        }
        let number = self.begun.fetch_add(1, Ordering::AcqRel) + 1;
        let bytes: u64 = group.iter().map(|waiting| waiting.batch.bytes()).sum();
        let mut own = Batch::new();
        own.put(group_key(), &number.to_le_bytes());
        let batches = group.iter_mut().map(|waiting| &mut waiting.batch);
        let changes = merged(batches.chain([&mut own]));
        add(&self.counts.syncs, 1);
        let (trouble, unknown) = match engine.write(&mut changes.into_iter(), bytes) {
            Written::Durable => {
                self.note_tip(number);
                state.last_group.store(number, Ordering::Release);
                add(&self.counts.groups, 1);
                add(&self.counts.batches, group.len() as u64);
                add(&self.counts.written_bytes, bytes);
                return reply(group, &Outcome::Durable(number));
            }
            Written::Nothing(trouble) => (trouble, None),
            Written::Unknown(trouble) => (trouble, Some(number)),
        };
        drop(state);
        self.stop(group, &trouble, unknown);
    }

    /// Stops the rows, before any caller gets a reply.
    fn stop(&self, group: Vec<Waiting>, trouble: &Trouble, unknown: Option<u64>) {
        let error = engine_error(&self.folder.engine(), trouble.clone());
        self.write_state().stopped = Some(trouble.why.clone());
        match unknown {
            None => self.refuse(group, &Outcome::NotWritten(error)),
            Some(number) => {
                add(&self.counts.failed_batches, group.len() as u64);
                reply(group, &Outcome::Unknown { group: number, error });
            }
        }
    }

    fn refuse(&self, group: Vec<Waiting>, outcome: &Outcome) {
        add(&self.counts.failed_batches, group.len() as u64);
        reply(group, outcome);
    }

    /// Refuses what the disk has no room for. Removals are given the reserve.
    fn admit(&self, group: Vec<Waiting>) -> Vec<Waiting> {
        let bytes: u64 = group.iter().map(|waiting| waiting.batch.bytes()).sum();
        let free = self.folder.free_bytes();
        if free >= self.headroom().saturating_add(2 * bytes) {
            self.folder.keep_reserve(2 * self.headroom(), &Quiet);
            return group;
        }
        let (mut removals, others): (Vec<_>, Vec<_>) =
            group.into_iter().partition(|waiting| waiting.batch.only_removes());
        if !removals.is_empty() {
            self.folder.release_reserve();
        }
        let needed = self.headroom().saturating_add(2 * bytes);
        self.refuse(others, &Outcome::NoRoom(disk_full(self.folder.path(), free, needed)));
        let bytes: u64 = removals.iter().map(|waiting| waiting.batch.bytes()).sum();
        let needed = 2 * bytes + REMOVALS_BYTES;
        let free = self.folder.free_bytes();
        if free < needed {
            let full = Outcome::NoRoom(disk_full(self.folder.path(), free, needed));
            self.refuse(std::mem::take(&mut removals), &full);
        }
        removals
    }
}

fn reply(group: Vec<Waiting>, outcome: &Outcome) {
    for waiting in group {
        // A caller that is gone needs no answer.
        let _ = waiting.reply.send(outcome.clone());
    }
}

fn group_key() -> Key {
    Key::first(0, RowKind::Group)
}

fn number(bytes: &[u8]) -> Option<u64> {
    bytes.try_into().ok().map(u64::from_le_bytes)
}

fn disk_full(folder: &Path, free: u64, needed: u64) -> Error {
    let message = format!(
        "the disk of {} has {} left, and this needs {}; nothing was written; remove rows, or make room",
        folder.display(),
        size(free),
        size(needed)
    );
    Error { kind: ErrorKind::Io, message }
}

fn engine_error(place: &Path, trouble: Trouble) -> Error {
    let why = trouble.why;
    if trouble.is_disk {
        let message = format!("the storage engine in {} failed: {why}; check the disk", place.display());
        return Error { kind: ErrorKind::Io, message };
    }
    Error::corrupt(format!(
        "the storage engine in {} is damaged: {why}; restore a snapshot of the data folder",
        place.display()
    ))
}

/// Bytes of the files below a folder; what cannot be read counts as nothing.
fn bytes_below(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let bytes = |entry: std::fs::DirEntry| match entry.metadata() {
        Ok(found) if found.is_dir() => bytes_below(&entry.path()),
        Ok(found) => found.len(),
        Err(_) => 0,
    };
    entries.map(bytes).sum()
}
