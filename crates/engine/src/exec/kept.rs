//! What a thread keeps between calls, a ring and memory of queries: one query alone would spend more time on new ones
//! than on its search.
//!
//! A ring reads files of any index. It is kept where few reads can be under way in it: larger ones are those of long
//! batches. Memory of a query is kept while its index is open.

use std::cell::RefCell;
use std::io;
use std::sync::{Arc, Weak};

use stratann_storage::threads;
use stratann_storage::tier::{self, IoChoice, Tier};

use super::slot::QueryMemory;

/// The most reads under way in a ring that is kept, and the most indexes whose memory of a query a thread keeps.
const ROOM_MAX: usize = 128;
const MEMORIES_MAX: usize = 4;

thread_local! {
    static KEPT: RefCell<Kept> = const { RefCell::new(Kept { process: 0, ring: None, memories: Vec::new() }) };
}

struct Kept {
    process: u32,
    ring: Option<Ring>,
    // The longest unused first.
    memories: Vec<(Weak<()>, Box<QueryMemory>)>,
}

impl Kept {
    /// What this process has kept. After a fork the ring of the parent is left alone: the kernel's side is still its
    /// own.
    fn own(&mut self) -> &mut Kept {
        let process = std::process::id();
        if self.process != process {
            self.process = process;
            std::mem::forget(self.ring.take());
        }
        self
    }

    fn forget_closed(&mut self) {
        self.memories.retain(|(owner, _)| owner.strong_count() > 0);
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.own();
    }
}

/// An open index as the memory of its queries knows it. What this thread has kept is freed with it, and what threads
/// have that wait for a task; that of others when they next search.
#[derive(Default)]
pub(crate) struct MemoryOwner(Arc<()>);

impl Drop for MemoryOwner {
    fn drop(&mut self) {
        let own = std::mem::take(&mut self.0);
        let is_own = |owner: &Weak<()>| owner.as_ptr() == Arc::as_ptr(&own);
        // A thread that ends has freed its own already.
        let _ = KEPT.try_with(|kept| kept.borrow_mut().own().memories.retain(|(owner, _)| !is_own(owner)));
        let has_others = Arc::weak_count(&own) > 0;
        drop(own);
        if has_others {
            threads::on_waiting(|| KEPT.with(|kept| kept.borrow_mut().own().forget_closed()));
        }
    }
}

impl MemoryOwner {
    /// Memory of a query of this index that has ended on this thread.
    pub(crate) fn take(&self) -> Option<Box<QueryMemory>> {
        KEPT.with(|kept| {
            let mut kept = kept.borrow_mut();
            let memories = &mut kept.own().memories;
            let at = memories.iter().position(|(owner, _)| owner.as_ptr() == Arc::as_ptr(&self.0))?;
            Some(memories.remove(at).1)
        })
    }

    /// Keeps memory of a query for the next one on this thread.
    pub(crate) fn keep(&self, memory: Box<QueryMemory>) {
        KEPT.with(|kept| {
            let mut kept = kept.borrow_mut();
            let kept = kept.own();
            kept.forget_closed();
            kept.memories.retain(|(owner, _)| owner.as_ptr() != Arc::as_ptr(&self.0));
            if kept.memories.len() == MEMORIES_MAX {
                kept.memories.remove(0);
            }
            kept.memories.push((Arc::downgrade(&self.0), memory));
        });
    }
}

/// The shape of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RingShape {
    /// Reads under way.
    pub(crate) depth: usize,
    /// Bytes of a usual read.
    pub(crate) bytes: usize,
    pub(crate) io: IoChoice,
}

/// A tier of this thread in use, to be kept or dropped afterwards.
pub(crate) struct Ring {
    /// For one driver at a time.
    pub(crate) tier: Box<dyn Tier>,
    shape: RingShape,
    // Reads that it had room for at first.
    room: usize,
}

impl Ring {
    /// Takes the ring of this shape that this thread has kept, or makes one. One of another shape is closed: the
    /// account of a search has room for one.
    ///
    /// # Errors
    /// io_uring was asked for, and the kernel refuses it.
    pub(crate) fn take(shape: RingShape) -> io::Result<Ring> {
        let kept = KEPT.with(|kept| kept.borrow_mut().own().ring.take());
        match kept.filter(|ring| ring.shape == shape) {
            Some(ring) => Ok(ring),
            None => {
                let tier = tier::open(shape.depth, shape.bytes, shape.io)?;
                Ok(Ring { room: tier.room(), shape, tier })
            }
        }
    }

    /// Keeps the ring for the next call, where it has no read under way. The files of this call are not its own then.
    pub(crate) fn keep(mut self) {
        let is_small = self.tier.name() == "io_uring" && self.room <= ROOM_MAX;
        if is_small && self.tier.room() == self.room {
            self.tier.set_files(&[]);
            KEPT.with(|kept| kept.borrow_mut().own().ring = Some(self));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stratann_core::PAGE;

    fn shape(depth: usize) -> RingShape {
        RingShape { depth, bytes: PAGE, io: IoChoice::Auto }
    }

    fn kept_depth() -> Option<usize> {
        KEPT.with(|kept| kept.borrow_mut().own().ring.as_ref().map(|ring| ring.shape.depth))
    }

    #[test]
    fn a_small_ring_is_kept_for_the_next_call() {
        if tier::uring_refusal().is_some() {
            return;
        }
        Ring::take(shape(4)).unwrap().keep();
        assert_eq!(kept_depth(), Some(4));
        let ring = Ring::take(shape(4)).unwrap();
        assert_eq!(kept_depth(), None);
        ring.keep();
        // Another one takes its place, a long one does not stay.
        Ring::take(shape(8)).unwrap().keep();
        assert_eq!(kept_depth(), Some(8));
        Ring::take(shape(256)).unwrap().keep();
        assert_eq!(kept_depth(), None);
        Ring::take(RingShape { io: IoChoice::Pread, ..shape(3) }).unwrap().keep();
        assert_eq!(kept_depth(), None);
    }

    #[test]
    fn memory_of_queries_is_kept_while_their_index_is_open() {
        let count = || KEPT.with(|kept| kept.borrow_mut().own().memories.len());
        let owners: Vec<MemoryOwner> = (0..2 * MEMORIES_MAX).map(|_| MemoryOwner::default()).collect();
        owners.iter().for_each(|owner| owner.keep(Box::default()));
        assert_eq!(count(), MEMORIES_MAX);
        assert!(owners[0].take().is_none(), "the longest unused one has gone");
        let last = owners.last().unwrap();
        last.keep(Box::default());
        assert_eq!(count(), MEMORIES_MAX, "one of each index");
        assert!(last.take().is_some() && last.take().is_none());
        drop(owners);
        assert_eq!(count(), 0);
    }
}
