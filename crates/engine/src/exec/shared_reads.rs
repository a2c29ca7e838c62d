//! Reads under way of the process: equal reads of its driver threads are made once.
//!
//! The first thread that asks for an extent makes the read; queries that ask for it meanwhile, on any thread, join
//! it. When the read completes its thread verifies the bytes once and delivers them, or the loss, to each. A read
//! goes on when its first query ends.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use stratann_core::query::{Extent, Loss, Read, Tag};
use stratann_storage::process::PerProcess;
use stratann_storage::tier::{FileId, Waker};

use super::batch_loads::LoadDelivery;

/// A query's want, as its thread knows it: its slot, the number of the query in that slot, and the tag of the want.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Asker {
    pub(super) slot: u32,
    pub(super) generation: u32,
    pub(super) tag: Tag,
}

/// Result of a read that was joined.
pub(super) struct Delivery {
    pub(super) to: Asker,
    pub(super) read: Read,
    pub(super) result: Result<Arc<[u8]>, Loss>,
}

/// Deliveries to one driver thread.
pub(super) struct Mailbox {
    number: u64,
    deliveries: Mutex<Vec<Delivery>>,
    loads: Mutex<Vec<LoadDelivery>>,
    has_deliveries: AtomicBool,
    is_closed: AtomicBool,
    is_waiting: AtomicBool,
    // Without a waker the thread joins its own reads alone.
    waker: Option<Waker>,
}

impl Mailbox {
    pub(super) fn deliver(&self, delivery: Delivery) {
        lock(&self.deliveries).push(delivery);
        self.note_delivery();
    }

    /// Delivers a load of a batch.
    pub(super) fn deliver_load(&self, delivery: LoadDelivery) {
        let mut loads = lock(&self.loads);
        if !self.is_closed.load(Ordering::SeqCst) {
            loads.push(delivery);
        }
        drop(loads);
        self.note_delivery();
    }

    /// Takes no more gathered loads, and drops those that are here: their doorbells must not wait for a thread that has
    /// ended.
    pub(super) fn close(&self) {
        self.is_closed.store(true, Ordering::SeqCst);
        let left = std::mem::take(&mut *lock(&self.loads));
        drop(left);
    }

    fn note_delivery(&self) {
        self.has_deliveries.store(true, Ordering::SeqCst);
        if self.is_waiting.swap(false, Ordering::SeqCst)
            && let Some(waker) = &self.waker
        {
            waker.wake();
        }
    }

    /// Notes that the thread is about to wait. Returns false when it must not, because something was delivered. From
    /// then on a delivery wakes it.
    pub(super) fn may_wait(&self) -> bool {
        self.is_waiting.store(true, Ordering::SeqCst);
        let may = !self.has_deliveries.load(Ordering::SeqCst);
        if !may {
            self.end_wait();
        }
        may
    }

    /// Notes that the thread waits no longer.
    pub(super) fn end_wait(&self) {
        self.is_waiting.store(false, Ordering::SeqCst);
    }

    /// Moves all deliveries to `out`, which is empty. Those of gathered loads go to `load`.
    pub(super) fn take(&self, out: &mut Vec<Delivery>, load: impl FnMut(LoadDelivery)) {
        // What comes after the note is taken down is noted again.
        if self.has_deliveries.swap(false, Ordering::SeqCst) {
            std::mem::swap(&mut *lock(&self.deliveries), out);
            lock(&self.loads).drain(..).for_each(load);
        }
    }
}

/// A query that joined a read.
struct Joined {
    mailbox: Arc<Mailbox>,
    asker: Asker,
    read: Read,
}

struct ReadUnderWay {
    // The mailbox of the thread that makes it.
    reader: u64,
    joined: Vec<Joined>,
}

/// Part of a thread in the read of an extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Share {
    /// The thread makes the read, and delivers the result when it completes.
    Read,
    /// The thread makes the read for itself.
    ReadAlone,
    /// The thread waits for the delivery.
    Join,
}

/// A range of bytes in the process: the extent of an index, in the file of its store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Place {
    pub(super) file: FileId,
    pub(super) at: Extent,
}

type Table = HashMap<Place, ReadUnderWay, BuildHasherDefault<PlaceHasher>>;

/// Shards of the table. Each has a lock of its own, held for one look-up.
const SHARDS: usize = 64;

/// Reads under way that driver threads share.
pub struct SharedReads {
    shards: Vec<Shard>,
    mailboxes: AtomicU64,
    // Queries in flight on all threads that are not in the background.
    usual: AtomicUsize,
}

// A shard does not share its cache line with another.
#[repr(align(64))]
#[derive(Default)]
struct Shard(Mutex<Table>);

impl Default for SharedReads {
    fn default() -> Self {
        SharedReads {
            shards: (0..SHARDS).map(|_| Shard::default()).collect(),
            mailboxes: AtomicU64::new(0),
            usual: AtomicUsize::new(0),
        }
    }
}

impl SharedReads {
    /// The reads under way of this process.
    pub(crate) fn of_process() -> &'static SharedReads {
        static OWN: PerProcess<SharedReads> = PerProcess::new();
        OWN.get(SharedReads::default)
    }

    /// Queries of a thread that are not in the background have begun.
    pub(super) fn usual_begin(&self, count: usize) {
        self.usual.fetch_add(count, Ordering::Relaxed);
    }

    /// Such queries have ended, or are in the background now.
    pub(super) fn usual_end(&self, count: usize) {
        self.usual.fetch_sub(count, Ordering::Relaxed);
    }

    /// Whether such queries are in flight on any thread.
    pub(super) fn has_usual(&self) -> bool {
        self.usual.load(Ordering::Relaxed) > 0
    }

    /// A mailbox for one more driver thread.
    pub(super) fn mailbox(&self, waker: Option<Waker>) -> Arc<Mailbox> {
        Arc::new(Mailbox {
            number: self.mailboxes.fetch_add(1, Ordering::Relaxed),
            deliveries: Mutex::default(),
            loads: Mutex::default(),
            has_deliveries: AtomicBool::new(false),
            is_closed: AtomicBool::new(false),
            is_waiting: AtomicBool::new(false),
            waker,
        })
    }

    /// Joins the read of an extent when one is under way; otherwise notes that `mailbox`'s thread makes it.
    pub(super) fn begin(&self, place: Place, read: Read, mailbox: &Arc<Mailbox>, asker: Asker) -> Share {
        let mut table = self.table(place);
        match table.get_mut(&place) {
            None => {
                table.insert(place, ReadUnderWay { reader: mailbox.number, joined: Vec::new() });
                Share::Read
            }
            Some(under_way) if under_way.reader == mailbox.number || mailbox.waker.is_some() => {
                under_way.joined.push(Joined { mailbox: mailbox.clone(), asker, read });
                Share::Join
            }
            Some(_) => Share::ReadAlone,
        }
    }

    /// Ends a read. Returns the queries that joined it.
    fn end(&self, place: Place) -> Vec<Joined> {
        self.table(place).remove(&place).map_or(Vec::new(), |read| read.joined)
    }

    /// Ends a read and delivers its result to all queries that joined it. `shared` makes shared bytes of the result;
    /// it is called when a query has joined.
    pub(super) fn complete(&self, place: Place, shared: impl FnOnce() -> Result<Arc<[u8]>, Loss>) {
        let joined = self.end(place);
        if joined.is_empty() {
            return;
        }
        let result = shared();
        for Joined { mailbox, asker, read } in joined {
            mailbox.deliver(Delivery { to: asker, read, result: result.clone() });
        }
    }

    fn table(&self, place: Place) -> MutexGuard<'_, Table> {
        // The table itself uses the lowest and the highest bits.
        lock(&self.shards[(hash_of(place) >> 40) as usize % SHARDS].0)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

fn hash_of(place: Place) -> u64 {
    let mut hasher = PlaceHasher::default();
    std::hash::Hash::hash(&place, &mut hasher);
    hasher.finish()
}

/// A fast hash of the few integers of a place. Offsets come from the index, not from outside: no one can choose
/// them to collide.
#[derive(Default)]
struct PlaceHasher(u64);

impl PlaceHasher {
    fn add(&mut self, x: u64) {
        let product = u128::from(self.0 ^ x ^ 0x9E37_79B9_7F4A_7C15) * 0xD6E8_FEB8_6659_FD93;
        self.0 = (product >> 64) as u64 ^ product as u64;
    }
}

impl Hasher for PlaceHasher {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&b| self.add(u64::from(b)));
    }

    fn write_u8(&mut self, x: u8) {
        self.add(u64::from(x));
    }

    fn write_u32(&mut self, x: u32) {
        self.add(u64::from(x));
    }

    fn write_u64(&mut self, x: u64) {
        self.add(x);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}
