//! Memory of the collections of a node, all of it from one ledger.
//!
//! Points have what is set aside for them, segments the rest. A collection has at most its quota. From what is left of
//! both, other collections never take what is unused of its minimum, and it may take that for either purpose.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use stratann_engine::index::CacheBudget;
use stratann_storage::budget::{size, size_up};
use stratann_storage::ledger::{Guarantee, Ledger, Part, Reservation};

use super::error::{Error, Result};
use super::limits::{Account, Accounts, MemoryLimits};
use crate::segments::{SegmentMemory, TakenMemory};

/// Parts of the ledger that collections use.
const PARTS: [Part; 2] = [Part::Deltas, Part::Segments];

/// What is set aside for a node from its opening on.
pub(super) struct Memory {
    ledger: Arc<Ledger>,
    _guaranteed: Vec<Guarantee>,
    accounts: Mutex<Accounts>,
}

/// Why memory was refused.
enum Lack {
    /// The collection would have more than its quota.
    Quota { quota: u64, used: u64 },
    /// There is not that much; `kept` bytes are kept for other collections.
    Node { kept: u64 },
}

impl Memory {
    /// Sets memory aside for parts: the program, the storage engine, points in memory and builds. Segments have the
    /// rest.
    ///
    /// # Errors
    /// `Budget` where the ledger has no room for them.
    pub(super) fn new(ledger: Arc<Ledger>, parts: &[(Part, u64)]) -> Result<Arc<Memory>> {
        let guaranteed = parts.iter().map(|(part, bytes)| ledger.guarantee(*part, *bytes));
        let guaranteed = guaranteed.collect::<stratann_storage::Result<Vec<_>>>()?;
        Ok(Arc::new(Memory { ledger, _guaranteed: guaranteed, accounts: Mutex::default() }))
    }

    /// The ledger.
    pub(super) fn ledger(&self) -> &Arc<Ledger> {
        &self.ledger
    }

    /// Bytes of a part that are used.
    pub(super) fn used(&self, part: Part) -> u64 {
        let parts = self.ledger.parts();
        parts.iter().find(|own| own.part == part.name()).map_or(0, |own| own.used_bytes)
    }

    fn accounts(&self) -> MutexGuard<'_, Accounts> {
        self.accounts.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Limits and use of a collection.
    pub(super) fn account(&self, collection: u64) -> Account {
        self.accounts().of(collection)
    }

    /// Memory of points and segments together.
    fn capacity(&self) -> u64 {
        PARTS.iter().fold(0, |sum: u64, part| sum.saturating_add(self.ledger.most(*part)))
    }

    fn free(&self, part: Part) -> u64 {
        self.ledger.most(part).saturating_sub(self.used(part))
    }

    fn all_free(&self) -> u64 {
        PARTS.iter().fold(0, |sum: u64, part| sum.saturating_add(self.free(*part)))
    }

    /// Checks limits that a collection may get.
    ///
    /// # Errors
    /// `BadInput` for a quota below the minimum, and for a larger minimum when there is no room for all of them.
    pub(super) fn check_limits(&self, collection: u64, limits: &MemoryLimits) -> Result<()> {
        limits.check()?;
        let (accounts, capacity) = (self.accounts(), self.capacity());
        let others = accounts.other_minima(collection);
        let is_more = limits.minimum_bytes > accounts.of(collection).limits.minimum_bytes;
        if is_more && others + u128::from(limits.minimum_bytes) > u128::from(capacity) {
            return Err(Error::bad_input(format!(
                "a memory minimum of {}, when other collections have minima of {} and all of them share {}; give a \
                 smaller one, or a larger RAM budget",
                size(limits.minimum_bytes),
                size(u64::try_from(others).unwrap_or(u64::MAX)),
                size(capacity)
            )));
        }
        Ok(())
    }

    /// Sets the limits of a collection, whatever it uses.
    pub(super) fn set_limits(&self, collection: u64, limits: MemoryLimits) {
        self.accounts().change(collection, |own| (own.limits, own.is_at_limit) = (limits, false));
    }

    /// Whether there is room for the minima of all collections. Where there is not, none is kept.
    pub(super) fn has_room_for_minima(&self) -> bool {
        self.accounts().fit(self.capacity())
    }

    /// Whether collections use what is kept for others.
    pub(super) fn lacks_minima(&self) -> bool {
        self.accounts().kept(self.capacity()) > self.all_free()
    }

    /// Refuses a collection that needs more than its quota when it is opened.
    ///
    /// # Errors
    /// `Budget`.
    pub(super) fn check_quota(&self, collection: u64, needed: u64) -> Result<()> {
        let mut accounts = self.accounts();
        match accounts.of(collection).limits.quota_bytes {
            Some(quota) if quota < needed => {
                accounts.change(collection, |own| own.is_at_limit = true);
                let (quota, needed) = (size(quota), size_up(needed));
                Err(stratann_storage::Error::budget(format!(
                    "to open it takes {needed}, and its memory quota is {quota}; give it a quota of {needed} or more"
                ))
                .into())
            }
            _ => Ok(()),
        }
    }

    /// The most that a collection could take for a purpose if all others were closed, but for its quota.
    fn room_alone(&self, accounts: &Accounts, taken: &Taken) -> u64 {
        let (capacity, account) = (self.capacity(), accounts.of(taken.collection));
        let all = capacity.saturating_sub(account.used);
        let own = self.ledger.most(taken.purpose).saturating_sub(taken.bytes_of(taken.purpose));
        match accounts.fit(capacity) {
            true => {
                let minima = u64::try_from(accounts.other_minima(taken.collection)).unwrap_or(u64::MAX);
                own.min(all.saturating_sub(minima)).max(account.unused().min(all))
            }
            false => own.min(all),
        }
    }

    /// The most that a collection may take for a purpose, but for its quota.
    fn room(&self, accounts: &Accounts, collection: u64, part: Part) -> u64 {
        let (capacity, all) = (self.capacity(), self.all_free());
        let left = all.saturating_sub(accounts.kept_from(collection, capacity));
        let own = if accounts.fit(capacity) { accounts.of(collection).unused() } else { 0 };
        self.free(part).min(left).max(own.min(all))
    }
}

/// Memory of a collection for one purpose, which goes back when it is dropped.
struct Taken {
    memory: Arc<Memory>,
    collection: u64,
    purpose: Part,
    /// What it has of each part of the ledger.
    parts: [Option<Reservation>; 2],
}

impl Taken {
    fn none(memory: &Arc<Memory>, collection: u64, purpose: Part) -> Taken {
        Taken { memory: memory.clone(), collection, purpose, parts: [None, None] }
    }

    fn bytes(&self) -> u64 {
        self.parts.iter().flatten().map(Reservation::bytes).sum()
    }

    /// Bytes that it has of a part of the ledger.
    fn bytes_of(&self, part: Part) -> u64 {
        let own = PARTS.iter().zip(&self.parts).find(|(known, _)| **known == part);
        own.and_then(|(_, reserved)| reserved.as_ref()).map_or(0, Reservation::bytes)
    }

    /// Takes more. `replaces` bytes of the collection go back soon, and do not count for its quota.
    fn grow(&mut self, more: u64, replaces: u64) -> std::result::Result<(), Lack> {
        let memory = self.memory.clone();
        let mut accounts = memory.accounts();
        let account = accounts.of(self.collection);
        let quota = account.limits.quota_bytes;
        let after = account.used.saturating_sub(replaces).saturating_add(more);
        if let Some(quota) = quota.filter(|quota| after > *quota) {
            accounts.change(self.collection, |own| own.is_at_limit = true);
            return Err(Lack::Quota { quota, used: account.used });
        }
        let is_at_limit = more > memory.room_alone(&accounts, self);
        let before = self.bytes();
        let fits = more <= memory.room(&accounts, self.collection, self.purpose) && self.grow_parts(more);
        if !fits {
            self.shrink_parts(before);
        }
        accounts.change(self.collection, |own| {
            own.used = own.used.saturating_add(if fits { more } else { 0 });
            own.is_at_limit = !fits && is_at_limit;
        });
        match fits {
            true => Ok(()),
            false => Err(Lack::Node { kept: accounts.kept_from(self.collection, memory.capacity()) }),
        }
    }

    /// Takes bytes of the own part of the ledger, and of the other one what it lacks.
    fn grow_parts(&mut self, more: u64) -> bool {
        let own = more.min(self.memory.free(self.purpose));
        let mut parts = PARTS.iter().zip(&mut self.parts);
        parts.all(|(part, reserved)| {
            let bytes = if *part == self.purpose { own } else { more - own };
            match reserved {
                _ if bytes == 0 => true,
                Some(reserved) => reserved.grow(bytes),
                none => {
                    *none = self.memory.ledger.reserve(*part, bytes);
                    none.is_some()
                }
            }
        })
    }

    /// Gives back what exceeds `bytes`.
    fn shrink_to(&mut self, bytes: u64) {
        let memory = self.memory.clone();
        let mut accounts = memory.accounts();
        let released = self.bytes().saturating_sub(bytes);
        self.shrink_parts(bytes);
        accounts.change(self.collection, |own| own.used = own.used.saturating_sub(released));
    }

    /// Gives back what was taken from the other part first.
    fn shrink_parts(&mut self, bytes: u64) {
        let mut released = self.bytes().saturating_sub(bytes);
        let purpose = self.purpose;
        let mut parts: Vec<_> = PARTS.iter().zip(&mut self.parts).collect();
        parts.sort_by_key(|(part, _)| **part == purpose);
        for reserved in parts.into_iter().filter_map(|(_, reserved)| reserved.as_mut()) {
            let own = released.min(reserved.bytes());
            reserved.shrink_to(reserved.bytes() - own);
            released -= own;
        }
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.shrink_to(0);
    }
}

/// Memory for segments of a collection that are opened.
pub(super) struct SegmentRoom {
    memory: Arc<Memory>,
    collection: u64,
    /// Bytes that go back once the segment takes the place of others.
    replaces: u64,
    /// Bytes that the quota has to leave for segments that are opened later.
    to_come: AtomicU64,
}

impl SegmentRoom {
    /// For a segment in whose place so many bytes of the collection go back.
    pub(super) fn replacing(memory: &Arc<Memory>, collection: u64, replaces: u64) -> SegmentRoom {
        SegmentRoom { memory: memory.clone(), collection, replaces, to_come: 0.into() }
    }

    /// For segments whose tables have so many bytes together.
    pub(super) fn of_tables(memory: &Arc<Memory>, collection: u64, tables: u64) -> SegmentRoom {
        SegmentRoom { memory: memory.clone(), collection, replaces: 0, to_come: tables.into() }
    }

    /// Bytes for a cache: what fits is in memory as a whole; of anything larger others, and points, keep a half.
    fn cache_room(&self) -> u64 {
        let accounts = self.memory.accounts();
        let left = match self.memory.ledger.limit() {
            None => CacheBudget::free_bytes(),
            Some(_) => self.memory.room(&accounts, self.collection, Part::Segments) / 2,
        };
        let own = self.quota_left(&accounts.of(self.collection));
        left.min(own.saturating_sub(self.to_come.load(Ordering::Relaxed)) / 2)
    }

    /// What the quota leaves.
    fn quota_left(&self, account: &Account) -> u64 {
        let used = account.used.saturating_sub(self.replaces);
        account.limits.quota_bytes.map_or(u64::MAX, |quota| quota.saturating_sub(used))
    }

    fn refused(&self, tables: u64, lack: Lack) -> stratann_storage::Error {
        let memory = &self.memory;
        stratann_storage::Error::budget(match lack {
            Lack::Quota { quota, used } => format!(
                "a segment needs {} of memory, and {} of the memory quota of {} are used; raise the quota, or delete \
                 points",
                size(tables),
                size(used),
                size(quota)
            ),
            Lack::Node { kept } => format!(
                "a segment needs {} of memory, and {} of the {} for segments are taken{}; close collections that are \
                 idle, or give a larger --ram-budget",
                size(tables),
                size(memory.used(Part::Segments)),
                size(memory.ledger.most(Part::Segments)),
                kept_text(kept)
            ),
        })
    }
}

/// Memory of a segment.
struct SegmentBytes {
    taken: Taken,
    cache: u64,
}

impl SegmentMemory for SegmentRoom {
    fn take(
        &self,
        tables: u64,
        resident: u64,
        usable: u64,
    ) -> stratann_storage::Result<Box<dyn TakenMemory>> {
        let to_come = self.to_come.load(Ordering::Relaxed).saturating_sub(tables);
        self.to_come.store(to_come, Ordering::Relaxed);
        let mut taken = Taken::none(&self.memory, self.collection, Part::Segments);
        let needed = tables.saturating_add(resident).saturating_add(to_come);
        let fits = needed <= self.quota_left(&self.memory.account(self.collection));
        let (resident, usable) = if fits { (resident, usable) } else { (0, resident + usable) };
        let taking = tables + resident;
        taken.grow(taking, self.replaces).map_err(|lack| self.refused(taking, lack))?;
        let cache = usable.min(self.cache_room());
        let cache = if taken.grow(cache, self.replaces).is_ok() { cache } else { 0 };
        Ok(Box::new(SegmentBytes { taken, cache: resident + cache }))
    }
}

impl TakenMemory for SegmentBytes {
    fn cache_bytes(&self) -> u64 {
        self.cache
    }

    fn bytes(&self) -> u64 {
        self.taken.bytes()
    }
}

fn kept_text(kept: u64) -> String {
    match kept {
        0 => String::new(),
        kept => format!(", and {} are kept for the minima of other collections", size(kept)),
    }
}

/// Memory of the points of a collection, which goes back when it is dropped.
pub(super) struct Reserved {
    taken: Taken,
}

impl Reserved {
    pub(super) fn none(memory: &Arc<Memory>, collection: u64) -> Reserved {
        Reserved { taken: Taken::none(memory, collection, Part::Deltas) }
    }

    /// Bytes of the part.
    pub(super) fn bytes(&self) -> u64 {
        self.taken.bytes()
    }

    /// Changes the part to so many bytes. One that becomes smaller never fails.
    ///
    /// # Errors
    /// `Busy` when there is not that much, or the quota of the collection is less; then the part stays as it is.
    pub(super) fn resize(&mut self, bytes: u64) -> Result<()> {
        let more = bytes.saturating_sub(self.bytes());
        if more == 0 {
            self.taken.shrink_to(bytes);
            return Ok(());
        }
        let memory = self.taken.memory.clone();
        self.taken.grow(more, 0).map_err(|lack| {
            Error::busy(match lack {
                Lack::Quota { quota, used } => format!(
                    "its points need {} more memory, and {} of its memory quota of {} are used; delete points, compact \
                     it, or raise the quota",
                    size(more),
                    size(used),
                    size(quota)
                ),
                Lack::Node { kept } => format!(
                    "its points need {} of memory, and {} of the {} for points are taken by other collections{}; close \
                     collections that are idle, remove points, or raise the budget",
                    size(bytes),
                    size(memory.used(Part::Deltas).saturating_sub(self.bytes())),
                    size(memory.ledger.most(Part::Deltas)),
                    kept_text(kept)
                ),
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARTS_SET_ASIDE: [(Part, u64); 3] = [(Part::Engine, 300), (Part::Deltas, 100), (Part::Merges, 200)];

    fn minimum(minimum_bytes: u64) -> MemoryLimits {
        MemoryLimits { quota_bytes: None, minimum_bytes }
    }

    fn quota(bytes: u64) -> MemoryLimits {
        MemoryLimits { quota_bytes: Some(bytes), minimum_bytes: 0 }
    }

    /// 100 bytes for points and 400 for segments.
    fn memory() -> Arc<Memory> {
        Memory::new(Ledger::new(Some(1000)), &PARTS_SET_ASIDE).unwrap()
    }

    fn segment(memory: &Arc<Memory>, collection: u64) -> SegmentRoom {
        SegmentRoom::replacing(memory, collection, 0)
    }

    #[test]
    fn points_get_what_is_set_aside_and_segments_the_rest() {
        let memory = memory();
        let (mut one, mut two) = (Reserved::none(&memory, 1), Reserved::none(&memory, 2));
        one.resize(60).unwrap();
        two.resize(40).unwrap();
        assert!(two.resize(41).is_err() && one.resize(61).is_err());
        assert!(!memory.account(1).is_at_limit, "it would fit if the other were closed");
        assert!(one.resize(101).is_err() && memory.account(1).is_at_limit, "it never fits");
        assert_eq!(memory.used(Part::Deltas), 100);
        one.resize(10).unwrap();
        two.resize(90).unwrap();
        drop(two);
        assert_eq!((memory.used(Part::Deltas), one.bytes()), (10, 10));
        let room = segment(&memory, 1);
        let taken = room.take(100, 0, 1000).unwrap();
        assert_eq!((taken.cache_bytes(), taken.bytes(), memory.used(Part::Segments)), (150, 250, 250));
        assert_eq!(memory.account(1).used, 260);
        assert!(room.take(200, 0, 0).is_err_and(|e| e.message.contains("--ram-budget")));
        drop(taken);
        assert_eq!(room.take(400, 0, 0).unwrap().cache_bytes(), 0);
        assert_eq!(memory.account(1).used, 10);
        assert!(Memory::new(Ledger::new(Some(500)), &PARTS_SET_ASIDE).is_err());
    }

    #[test]
    fn a_quota_counts_points_and_segments_with_and_without_a_budget() {
        for memory in [memory(), Memory::new(Ledger::new(None), &PARTS_SET_ASIDE).unwrap()] {
            memory.set_limits(1, quota(80));
            let mut points = Reserved::none(&memory, 1);
            points.resize(30).unwrap();
            let room = segment(&memory, 1);
            let whole = room.take(20, 30, 0).unwrap();
            assert_eq!((whole.cache_bytes(), whole.bytes()), (30, 50), "it fits");
            drop(whole);
            let taken = room.take(20, 31, 0).unwrap();
            assert_eq!(taken.cache_bytes(), 15, "points keep a half of what the quota leaves");
            let error = points.resize(46).unwrap_err();
            assert!(error.message.contains("65 B of its memory quota of 80 B"), "{error}");
            assert!(memory.account(1).is_at_limit);
            points.resize(45).unwrap();
            assert!(!memory.account(1).is_at_limit);
            assert!(segment(&memory, 1).take(1, 0, 0).is_err_and(|e| e.message.contains("quota of 80 B")));
            // What takes the place of 20 bytes may have as many.
            let replacing = SegmentRoom::replacing(&memory, 1, 20);
            assert_eq!(replacing.take(20, 0, 0).unwrap().bytes(), 20);
            assert!(replacing.take(21, 0, 0).is_err());
            Reserved::none(&memory, 2).resize(55).unwrap();
            assert!(memory.check_quota(1, 80).is_ok() && memory.check_quota(2, 1 << 40).is_ok());
            assert!(memory.check_quota(1, 81).is_err_and(|e| e.message.contains("a quota of 1MiB")));
        }
    }

    #[test]
    fn the_cache_leaves_room_for_tables_that_come() {
        let memory = memory();
        memory.set_limits(1, quota(100));
        let room = SegmentRoom::of_tables(&memory, 1, 90);
        let taken = [30, 30, 30].map(|tables| room.take(tables, 0, 1000).unwrap());
        assert_eq!(taken.iter().map(|own| own.cache_bytes()).collect::<Vec<_>>(), [5, 2, 1]);
    }

    #[test]
    fn a_minimum_is_never_taken_by_others_and_serves_both_purposes() {
        let memory = memory();
        memory.check_limits(1, &minimum(300)).unwrap();
        memory.set_limits(1, minimum(300));
        // Others: 200 of 500 bytes.
        let mut other = Reserved::none(&memory, 2);
        other.resize(100).unwrap();
        let room = segment(&memory, 2);
        let error = room.take(101, 0, 0).err().unwrap();
        assert!(error.message.contains("300 B are kept for the minima"), "{error}");
        let taken = room.take(100, 0, 0).unwrap();
        assert!(room.take(1, 0, 0).is_err() && memory.account(2).is_at_limit);
        // Its points have more than is left for points.
        let mut points = Reserved::none(&memory, 1);
        points.resize(120).unwrap();
        let own = segment(&memory, 1).take(180, 0, 0).unwrap();
        assert_eq!((memory.used(Part::Deltas), memory.used(Part::Segments)), (100, 400));
        assert!(points.resize(121).is_err() && !memory.lacks_minima());
        drop(taken);
        assert!(points.resize(121).is_err(), "beyond the minimum points have what is set aside for points");
        drop(other);
        points.resize(60).unwrap();
        drop(own);
        points.resize(150).unwrap();
        assert_eq!((memory.used(Part::Deltas), memory.used(Part::Segments)), (90, 60));
        points.resize(90).unwrap();
        assert_eq!(memory.used(Part::Segments), 0, "what was taken of the other part goes back first");
        drop(points);
        assert_eq!((memory.used(Part::Deltas), memory.account(1).used), (0, 0));
    }

    #[test]
    fn minima_that_have_no_room_are_refused_or_not_kept() {
        let memory = memory();
        memory.set_limits(1, minimum(300));
        let error = memory.check_limits(2, &minimum(201)).unwrap_err();
        assert!(error.message.contains("minima of 300 B and all of them share 500 B"), "{error}");
        memory.check_limits(2, &minimum(200)).unwrap();
        memory.check_limits(1, &minimum(500)).unwrap();
        assert!(memory.check_limits(3, &MemoryLimits { quota_bytes: Some(5), minimum_bytes: 6 }).is_err());
        // Another budget than the one that they were set with.
        memory.set_limits(2, minimum(201));
        assert!(!memory.has_room_for_minima());
        memory.check_limits(2, &minimum(100)).unwrap();
        let taken = segment(&memory, 3).take(400, 0, 0).unwrap();
        assert!(!memory.lacks_minima());
        memory.set_limits(2, minimum(200));
        assert!(memory.has_room_for_minima() && memory.lacks_minima());
        drop(taken);
        assert!(!memory.lacks_minima());
    }
}
