//! The log thread: it writes the batches that wait as one group, with one sync.

use std::collections::{BTreeMap, VecDeque};
use std::sync::mpsc::SyncSender;
use std::sync::{Condvar, Mutex, MutexGuard};

use super::batch::{BATCH_BYTES_MAX, Batch};
use super::key::Key;
use stratann_storage::Error;

/// Result of writing a batch.
#[derive(Clone, Debug)]
#[must_use]
pub enum Outcome {
    /// It is durable, in the group of this number.
    Durable(u64),
    /// Nothing of it was written.
    NotWritten(Error),
    /// Nothing of it was written, because the disk is full. Removals are admitted.
    NoRoom(Error),
    /// Writing or syncing failed midway: whether it is there is known after the rows were opened again.
    Unknown {
        /// Number of its group.
        group: u64,
        /// What failed.
        error: Error,
    },
}

impl Outcome {
    /// Number of the group of a durable batch.
    ///
    /// # Errors
    /// That of a batch that is not known to be durable.
    pub fn durable(self) -> Result<u64, Error> {
        match self {
            Outcome::Durable(group) => Ok(group),
            Outcome::NotWritten(error) | Outcome::NoRoom(error) | Outcome::Unknown { error, .. } => {
                Err(error)
            }
        }
    }
}

pub(super) struct Waiting {
    pub(super) batch: Batch,
    pub(super) reply: SyncSender<Outcome>,
}

/// Batches that wait for the log thread.
#[derive(Default)]
pub(super) struct Queue {
    inner: Mutex<Inner>,
    changed: Condvar,
}

#[derive(Default)]
struct Inner {
    waiting: VecDeque<Waiting>,
    is_closed: bool,
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(|e| e.into_inner())
    }

    pub(super) fn push(&self, waiting: Waiting) {
        self.lock().waiting.push_back(waiting);
        self.changed.notify_one();
    }

    pub(super) fn close(&self) {
        self.lock().is_closed = true;
        self.changed.notify_one();
    }

    /// Waits for batches, and takes as many as one group may have. None are left once the queue is closed.
    pub(super) fn take_group(&self) -> Vec<Waiting> {
        let mut inner = self.lock();
        while inner.waiting.is_empty() && !inner.is_closed {
            inner = self.changed.wait(inner).unwrap_or_else(|e| e.into_inner());
        }
        let (mut group, mut bytes) = (Vec::new(), 0);
        while let Some(next) = inner.waiting.front() {
            bytes += next.batch.memory_bytes();
            if !group.is_empty() && bytes > BATCH_BYTES_MAX {
                break;
            }
            group.extend(inner.waiting.pop_front());
        }
        group
    }
}

/// All changes of a group, the last one of each key.
pub(super) fn merged<'a>(batches: impl Iterator<Item = &'a mut Batch>) -> BTreeMap<Key, Option<Vec<u8>>> {
    let mut changes = BTreeMap::new();
    for batch in batches {
        // Later batches replace what earlier ones say of a key.
        changes.append(&mut batch.changes);
    }
    changes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rows::RowKind;

    #[test]
    fn the_last_change_of_a_key_counts() {
        let key = |row| Key::first(1, RowKind::Tail).number(row);
        let (mut first, mut second) = (Batch::new(), Batch::new());
        first.put(key(1), b"older");
        first.put(key(2), b"removed");
        first.remove(key(3));
        second.put(key(1), b"newer");
        second.remove(key(2));
        second.put(key(3), b"back");
        let expected = second.changes.clone();
        assert_eq!(merged([&mut first, &mut second].into_iter()), expected);
    }

    #[test]
    fn a_group_ends_before_it_is_too_large_and_a_closed_queue_is_emptied() {
        let queue = Queue::default();
        let (reply, _outcome) = std::sync::mpsc::sync_channel(9);
        for bytes in [5 << 20, 5 << 20, 1 << 10, 1 << 10] {
            let mut batch = Batch::new();
            batch.put(Key::first(1, RowKind::Tail), &vec![0; bytes]);
            queue.push(Waiting { batch, reply: reply.clone() });
        }
        assert_eq!(queue.take_group().len(), 1);
        queue.close();
        assert_eq!(queue.take_group().len(), 3);
        assert!(queue.take_group().is_empty());
    }
}
