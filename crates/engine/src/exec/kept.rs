//! What a thread keeps between calls, a ring and memory of a query: one query alone would spend more time on new ones
//! than on its search.
//!
//! A ring belongs to the thread that made it. It is kept while its index is open, where few reads can be under way in
//! it: larger ones are those of long batches.

use std::cell::RefCell;
use std::io;
use std::sync::{Arc, Weak};

use stratann_storage::threads;
use stratann_storage::tier::{IoChoice, Tier};

use super::slot::QueryMemory;

/// The most reads under way in a ring that is kept, and the most rings of a thread.
const ROOM_MAX: usize = 128;
const RINGS_MAX: usize = 4;

thread_local! {
    static KEPT: RefCell<Kept> = const { RefCell::new(Kept { process: 0, rings: Vec::new() }) };
}

/// Rings of a thread that are not in use, the longest unused first.
struct Kept {
    process: u32,
    rings: Vec<Ring>,
}

impl Kept {
    /// The rings of this process. After a fork, those of the parent are left alone: the kernel's side is still its own.
    fn own(&mut self) -> &mut Vec<Ring> {
        let process = std::process::id();
        if self.process != process {
            self.process = process;
            std::mem::forget(std::mem::take(&mut self.rings));
        }
        &mut self.rings
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.own();
    }
}

/// An open index as its rings know it. This thread's are closed with it, and those of threads that wait for a task;
/// those of others when they next search.
#[derive(Default)]
pub(crate) struct RingOwner(Arc<()>);

impl Drop for RingOwner {
    fn drop(&mut self) {
        let own = std::mem::take(&mut self.0);
        let is_own = |ring: &Ring| ring.owner.as_ptr() == Arc::as_ptr(&own);
        // A thread that ends has closed its rings already.
        let _ = KEPT.try_with(|kept| kept.borrow_mut().own().retain(|ring| !is_own(ring)));
        let has_others = Arc::weak_count(&own) > 0;
        drop(own);
        if has_others {
            threads::on_waiting(close_unused);
        }
    }
}

/// Closes this thread's rings of indexes that are no longer open.
fn close_unused() {
    KEPT.with(|kept| kept.borrow_mut().own().retain(|ring| ring.owner.strong_count() > 0));
}

/// A tier in use, to be kept or dropped afterwards.
pub(crate) struct Ring {
    /// For one driver at a time.
    pub(crate) tier: Box<dyn Tier>,
    owner: Weak<()>,
    of: (usize, IoChoice),
    // Reads that it had room for at first.
    room: usize,
    /// Memory of a query that has ended.
    pub(crate) query: Option<Box<QueryMemory>>,
}

impl Ring {
    /// Takes the ring that this thread has kept for so many reads of an index, or makes one.
    pub(crate) fn take(
        owner: &RingOwner,
        depth: usize,
        io: IoChoice,
        make: impl FnOnce() -> io::Result<Box<dyn Tier>>,
    ) -> io::Result<Ring> {
        let (owner, of) = (Arc::downgrade(&owner.0), (depth, io));
        let kept = KEPT.with(|kept| {
            let mut kept = kept.borrow_mut();
            let rings = kept.own();
            rings.retain(|ring| ring.owner.strong_count() > 0);
            let at = rings.iter().position(|ring| ring.of == of && ring.owner.ptr_eq(&owner));
            at.map(|at| rings.remove(at))
        });
        kept.map_or_else(|| make().map(|tier| Ring { owner, of, room: tier.room(), query: None, tier }), Ok)
    }

    /// Keeps the ring for the next call, where it has no read under way. It takes the place of another one of its
    /// index: the account of a search has room for one.
    pub(crate) fn keep(self) {
        let is_small = self.tier.name() == "io_uring" && self.room <= ROOM_MAX;
        if is_small && self.tier.room() == self.room {
            KEPT.with(|kept| {
                let mut kept = kept.borrow_mut();
                let rings = kept.own();
                rings.retain(|ring| !ring.owner.ptr_eq(&self.owner));
                if rings.len() == RINGS_MAX {
                    rings.remove(0);
                }
                rings.push(self);
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stratann_storage::tier::{self, MemoryTier};

    /// Rings that this thread keeps for any index.
    fn kept() -> usize {
        KEPT.with(|kept| kept.borrow_mut().own().len())
    }

    fn take(owner: &RingOwner, depth: usize, file: &Arc<std::fs::File>) -> Ring {
        let make = || tier::open(file, depth, stratann_core::PAGE, IoChoice::Auto);
        Ring::take(owner, depth, IoChoice::Auto, make).unwrap()
    }

    #[test]
    fn small_rings_are_kept_while_their_index_is_open() {
        if tier::uring_refusal().is_some() {
            return;
        }
        let file = Arc::new(tempfile::tempfile().unwrap());
        let (one, other) = (RingOwner::default(), RingOwner::default());
        take(&one, 4, &file).keep();
        take(&other, 4, &file).keep();
        assert_eq!(kept(), 2);
        // Of the same index and size alone.
        let make = || -> io::Result<Box<dyn Tier>> { Err(io::ErrorKind::Other.into()) };
        assert!(Ring::take(&one, 8, IoChoice::Auto, make).is_err());
        let ring = Ring::take(&one, 4, IoChoice::Auto, make).unwrap();
        assert_eq!(kept(), 1);
        ring.keep();
        drop(other);
        assert_eq!(kept(), 1);
        // Long ones, and those of no ring, are not.
        take(&one, 256, &file).keep();
        let memory = || -> io::Result<Box<dyn Tier>> { Ok(Box::new(MemoryTier::new(Arc::default(), 1, 1))) };
        Ring::take(&one, 3, IoChoice::Auto, memory).unwrap().keep();
        assert_eq!(kept(), 1);
        take(&one, 8, &file).keep();
        assert_eq!(kept(), 1, "one of each index");
        let others: Vec<RingOwner> = (0..2 * RINGS_MAX).map(|_| RingOwner::default()).collect();
        others.iter().for_each(|owner| take(owner, 4, &file).keep());
        assert_eq!(kept(), RINGS_MAX);
        drop((one, others));
        assert_eq!(kept(), 0);
    }
}
