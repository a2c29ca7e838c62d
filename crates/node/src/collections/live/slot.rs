//! A collection in this process: whether it is open, and whose turn it is to change it.

use std::collections::{BTreeSet, VecDeque};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, RwLock, Weak};

use super::jobs::{Job, Jobs, StageOfJob};
use super::pace::{MergeRest, Pace};
use crate::collections::budget::{Memory, Reserved};
use crate::collections::delta::Delta;
use crate::collections::error::{Error, Result};
use crate::collections::options::SegmentOptions;
use crate::collections::sieves::Sieves;
use crate::collections::spec::Specs;
use crate::collections::work::{Done, Work};
use crate::rows::Rows;
use crate::segments::Left;
use stratann_storage::Quiet;

/// What all collections of a node share.
pub(crate) struct Shared {
    pub(crate) own: Weak<Shared>,
    pub(crate) rows: Rows,
    pub(crate) memory: Arc<Memory>,
    /// Rows of segments that match filters.
    pub(crate) sieves: Sieves,
    pub(crate) options: SegmentOptions,
    /// Memory of newer payloads of a segment from which on they are written into it.
    pub(crate) overlay_bytes_max: u64,
    /// Folder with a folder for each collection.
    pub(crate) folder: PathBuf,
    pub(crate) jobs: Jobs,
    pub(crate) pace: Pace,
    /// Rows that are left of segments, where the rows that say so are damaged.
    pub(crate) salvaged: Left,
    /// Held while what the rows say of segments is copied.
    pub(crate) copying: Mutex<()>,
    /// Held by each merge where memory of builds is short.
    pub(crate) merging: Mutex<()>,
    /// Collections that were opened, some of which are closed again.
    pub(crate) opened: Mutex<Vec<Weak<Slot>>>,
    /// Counts uses, so that collections have an order of them.
    pub(crate) uses: AtomicU64,
}

impl Shared {
    /// Folder of the segments of a collection.
    pub(crate) fn folder_of(&self, collection: u64) -> PathBuf {
        self.folder.join(format!("{collection:016x}"))
    }

    /// Refuses changes of rows that cannot be written.
    pub(crate) fn check_writable(&self) -> Result<()> {
        self.rows.why_read_only().map_or(Ok(()), |why| Err(Error::read_only(why)))
    }

    /// Closes collections that were not used since the last call. Returns how many.
    pub(crate) fn close_idle(&self) -> u64 {
        let opened: Vec<Arc<Slot>> = {
            let opened = self.opened.lock().unwrap_or_else(|e| e.into_inner());
            opened.iter().filter_map(Weak::upgrade).collect()
        };
        opened.iter().map(|slot| u64::from(slot.close_if_idle())).sum()
    }

    /// Closes another collection after a collection got no memory. Returns false when there is none, or when that
    /// would not help: the collection's own quota is too small, or there is never that much.
    pub(crate) fn make_room(&self, collection: u64) -> bool {
        !self.memory.account(collection).is_at_limit && self.evict(collection)
    }

    /// Closes the collection that was used least recently of those that nobody changes now, but for one. Returns
    /// whether there was any. It waits for nothing, so that whoever has a turn may call it.
    pub(crate) fn evict(&self, except: u64) -> bool {
        let mut opened = self.opened.lock().unwrap_or_else(|e| e.into_inner());
        opened.retain(|slot| slot.upgrade().is_some_and(|slot| slot.opened().is_some()));
        let mut others: Vec<Arc<Slot>> = opened.iter().filter_map(Weak::upgrade).collect();
        drop(opened);
        others.retain(|slot| slot.id != except);
        others.sort_by_key(|slot| slot.last_use.load(Ordering::Relaxed));
        others.iter().any(|slot| slot.close_if_free())
    }

    /// Opens the rows again where they stand still.
    ///
    /// # Errors
    /// As [`Rows::reopen`].
    pub(crate) fn wake(&self) -> Result<()> {
        if self.rows.stand_still() {
            self.rows.reopen(&Quiet)?;
        }
        Ok(())
    }
}

/// A change that waits, and where its caller waits.
pub(crate) struct Waiting {
    pub(crate) work: Work,
    pub(crate) reply: SyncSender<Result<Done>>,
}

/// Changes that wait, in the order in which they will be made.
#[derive(Default)]
pub(crate) struct Queue {
    pub(crate) waiting: VecDeque<Waiting>,
    /// Whether one of the callers makes changes. The others wait for answers.
    pub(crate) is_led: bool,
}

/// The points of an open collection, and their memory.
pub(crate) struct Live {
    pub(crate) delta: Delta,
    pub(crate) reserved: Mutex<Reserved>,
}

/// Sequence numbers of a collection in this process.
#[derive(Debug, Default)]
pub(crate) struct Turn {
    /// The newest one that is known to be durable.
    pub(crate) last: u64,
    /// The newest one that was given to a change. Those of lost changes are not given again.
    pub(crate) given: u64,
    /// Changes of which it is not known whether they are there. Delta and rows may differ then.
    pub(crate) unknown: Option<RangeInclusive<u64>>,
    /// Changes that were not there afterwards.
    pub(crate) lost: Vec<RangeInclusive<u64>>,
    /// Whether memory may differ from what the rows say of segments.
    pub(crate) is_stale: bool,
    /// Number of the next segment.
    pub(crate) next_segment: u64,
    /// Segments that are being made.
    pub(crate) building: BTreeSet<u64>,
    /// Segments that a job replaces now. No other one takes them.
    pub(crate) taken: BTreeSet<u64>,
    /// A segment that was begun, and that the next merge goes on with.
    pub(crate) begun: Option<u64>,
}

/// A collection in this process.
pub(crate) struct Slot {
    pub(crate) id: u64,
    pub(crate) name: String,
    pub(crate) specs: Specs,
    pub(crate) queue: Mutex<Queue>,
    /// Tells callers that wait of a group that was answered.
    pub(crate) answered: Condvar,
    /// Locked by whoever changes the collection, or opens or closes it.
    turn: Mutex<Turn>,
    live: RwLock<Option<Arc<Live>>>,
    is_dropped: AtomicBool,
    /// Whether it was used since idle collections were closed last.
    is_used: AtomicBool,
    /// Whether a change was refused for want of room, which a checkpoint makes.
    pub(crate) is_full: AtomicBool,
    /// Whether killed jobs may have left rows or segments that nobody names.
    pub(crate) is_unswept: AtomicBool,
    /// Number of its last use among those of all collections.
    last_use: AtomicU64,
    /// Held while a job of its kind runs.
    pub(crate) running: [Mutex<()>; Job::KINDS],
    /// Whether a job of its kind waits.
    pub(crate) is_asked: [AtomicBool; Job::KINDS],
    /// Whether the thread of the kind works for it.
    pub(crate) is_at_work: [AtomicBool; Job::KINDS],
    /// Stage of the job of its kind, while the thread of the kind works for it.
    pub(crate) stages: [StageOfJob; Job::KINDS],
    /// Whether the next merge makes one segment of all points.
    pub(crate) is_to_compact: AtomicBool,
    /// Indexes that checkpoints and merges built, and segments whose payloads alone were written again.
    pub(crate) indexes_built: AtomicU64,
    pub(crate) payloads_folded: AtomicU64,
    /// Rows whose neighbours in a graph were taken over by merges.
    pub(crate) rows_taken_over: AtomicU64,
    /// Whether jobs of its kind rest for want of memory.
    pub(crate) rests: [MergeRest; Job::KINDS],
    /// Why the last job of its kind failed, if it did.
    pub(crate) trouble: Mutex<[Option<Error>; Job::KINDS]>,
}

impl Slot {
    pub(crate) fn new(id: u64, name: &str, specs: Specs) -> Slot {
        Slot {
            id,
            name: name.to_string(),
            specs,
            queue: Mutex::default(),
            answered: Condvar::new(),
            turn: Mutex::default(),
            rests: Default::default(),
            indexes_built: 0.into(),
            payloads_folded: 0.into(),
            rows_taken_over: 0.into(),
            live: RwLock::default(),
            is_dropped: false.into(),
            is_used: false.into(),
            is_full: false.into(),
            is_unswept: false.into(),
            last_use: 0.into(),
            running: Default::default(),
            is_asked: Default::default(),
            is_at_work: Default::default(),
            is_to_compact: false.into(),
            stages: Default::default(),
            trouble: Mutex::default(),
        }
    }

    /// The changes that wait.
    pub(crate) fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// The right to change the collection.
    pub(crate) fn turn(&self) -> MutexGuard<'_, Turn> {
        self.turn.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// The points, opened at the first use.
    ///
    /// # Errors
    /// `Missing` once it was dropped; `Busy` when there is no memory for its points; `Corrupt` and `Io` of its rows.
    pub(crate) fn live(self: &Arc<Slot>, shared: &Shared) -> Result<Arc<Live>> {
        shared.rows.check_process()?;
        self.check_dropped()?;
        self.note_use(shared);
        match self.opened() {
            Some(live) => Ok(live),
            None => self.live_in_turn(shared, &mut self.turn()),
        }
    }

    /// Notes that the collection is used now.
    pub(crate) fn note_use(&self, shared: &Shared) {
        self.is_used.store(true, Ordering::Release);
        self.last_use.store(shared.uses.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
    }

    /// As [`Slot::live`], for whoever has the turn.
    pub(crate) fn live_in_turn(self: &Arc<Slot>, shared: &Shared, turn: &mut Turn) -> Result<Arc<Live>> {
        self.check_dropped()?;
        if let Some(live) = self.opened().filter(|_| turn.unknown.is_none() && !turn.is_stale) {
            return Ok(live);
        }
        loop {
            match self.open(shared, turn) {
                // Others that are idle make room.
                Err(e) if e.lacks_memory() && shared.make_room(self.id) => {}
                opened => return opened.map_err(|e| e.of_collection(&self.name)),
            }
        }
    }

    /// Builds the delta from the rows, and learns what became of unknown changes.
    fn open(self: &Arc<Slot>, shared: &Shared, turn: &mut Turn) -> Result<Arc<Live>> {
        shared.wake()?;
        // A delta that is built again takes over the memory of the earlier one.
        let earlier = self.opened();
        let earlier_is_none = earlier.is_none();
        let reserved =
            earlier.as_ref().map(|live| std::mem::replace(&mut *live.lock(), self.no_memory(shared)));
        let mut reserved = reserved.unwrap_or_else(|| self.no_memory(shared));
        let state = earlier.as_ref().map(|live| live.delta.state());
        let built = super::opening::build(shared, self, (state.as_deref(), turn), &mut reserved);
        let built = built.and_then(|delta| turn.settle(delta.state().seq).map(|()| delta));
        if let (Ok(delta), true) = (&built, earlier_is_none) {
            self.find_begun(shared, turn, &delta.state());
        }
        let delta = match built {
            Ok(delta) => delta,
            Err(e) => {
                if let Some(earlier) = earlier {
                    *earlier.lock() = reserved;
                }
                return Err(e);
            }
        };
        let live = Arc::new(Live { delta, reserved: Mutex::new(reserved) });
        turn.is_stale = false;
        *self.live.write().unwrap_or_else(|e| e.into_inner()) = Some(live.clone());
        let mut opened = shared.opened.lock().unwrap_or_else(|e| e.into_inner());
        if !opened.iter().any(|known| std::ptr::eq(known.as_ptr(), Arc::as_ptr(self))) {
            opened.push(Arc::downgrade(self));
        }
        drop(opened);
        if earlier_is_none {
            self.ask_after_opening(shared, turn.begun.is_some(), &live.delta.state());
        }
        Ok(live)
    }

    fn no_memory(&self, shared: &Shared) -> Reserved {
        Reserved::none(&shared.memory, self.id)
    }

    pub(crate) fn opened(&self) -> Option<Arc<Live>> {
        self.live.read().unwrap_or_else(|e| e.into_inner()).clone()
    }

    pub(crate) fn check_dropped(&self) -> Result<()> {
        if self.is_dropped.load(Ordering::Acquire) { Err(Error::dropped(&self.name)) } else { Ok(()) }
    }

    /// Says whether the collection is gone from the catalogue.
    pub(crate) fn set_dropped(&self, is_dropped: bool) {
        self.is_dropped.store(is_dropped, Ordering::Release);
    }

    /// Forgets the points; searches that run keep theirs.
    pub(crate) fn close(&self) {
        *self.live.write().unwrap_or_else(|e| e.into_inner()) = None;
    }

    /// Closes the collection unless it was used since the last call, or is being changed. Returns whether it was open
    /// and is not any more.
    pub(crate) fn close_if_idle(&self) -> bool {
        let was_used = self.is_used.swap(false, Ordering::AcqRel);
        !was_used && self.close_if_free()
    }

    /// Closes the collection unless it is being changed.
    pub(crate) fn close_if_free(&self) -> bool {
        // Whoever has the turn uses it.
        let Ok(turn) = self.turn.try_lock() else { return false };
        let is_free = turn.unknown.is_none() && !turn.is_stale && turn.building.is_empty();
        let was_open = self.opened().is_some() && is_free;
        if was_open {
            self.close();
        }
        was_open
    }
}

impl Live {
    /// The memory of the points.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Reserved> {
        self.reserved.lock().unwrap_or_else(|e| e.into_inner())
    }
}

impl Turn {
    /// Compares with the newest change that the rows have.
    ///
    /// # Errors
    /// `Corrupt` when acknowledged changes are missing.
    fn settle(&mut self, newest: u64) -> Result<()> {
        if newest < self.last {
            return Err(Error::corrupt(format!(
                "change {} was acknowledged, and the rows end with {newest}; restore a snapshot of the data folder",
                self.last
            )));
        }
        // A group of changes is there as a whole, or nothing of it is.
        if let Some(unknown) = self.unknown.take().filter(|unknown| newest < *unknown.start()) {
            self.lost.push(unknown);
        }
        self.last = newest;
        self.given = self.given.max(newest);
        Ok(())
    }

    /// Whether a change is there. None is unknown.
    pub(crate) fn has(&self, seq: u64) -> bool {
        (1..=self.last).contains(&seq) && !self.lost.iter().any(|lost| lost.contains(&seq))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_change_is_there_or_lost_and_its_number_is_not_given_again() {
        let mut turn = Turn { last: 4, given: 7, unknown: Some(5..=7), ..Turn::default() };
        turn.settle(4).unwrap();
        assert_eq!((turn.last, turn.given, turn.unknown.clone()), (4, 7, None));
        turn.last = 8;
        turn.given = 9;
        turn.unknown = Some(9..=9);
        turn.settle(9).unwrap();
        let there: Vec<u64> = (0..12).filter(|seq| turn.has(*seq)).collect();
        assert_eq!(there, [1, 2, 3, 4, 8, 9]);
        assert!(turn.settle(8).is_err(), "an acknowledged change is missing");
    }
}
