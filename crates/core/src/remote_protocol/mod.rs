//! Concurrent changes of groups in remote memory by compute nodes, without a server (d-HNSW §3.2).
//!
//! Each machine here is one task of one compute node. It asks for operations on remote memory, gets their results, and
//! ends with an outcome. There is no I/O and no clock: a counter that does not move shows that its
//! owner has stopped.
//!
//! | machine | what it does |
//! |---|---|
//! | [`Headers`] | announces a batch and reads what changed: [`Groups`] is the snapshot of the batch |
//! | [`Recheck`] | tells whether what a batch read was still there |
//! | [`Insert`], [`Delete`] | publish a record, a tombstone, or both |
//! | [`Rebuild`] | replaces a group by a new version with the fresh records in its sub-HNSWs |
//! | [`Fold`] | marks what tombstones delete, and frees them; or counts the rows that are left |
//! | [`Truncate`] | frees tombstones that all groups have folded in |
//!
//! **Records and tombstones.** A slot is reserved, its body is written, and a compare-and-swap of its first word from 0
//! publishes it. A rebuilder decides each slot that is not published by a compare-and-swap of the same word to
//! [`KILLED`](crate::format::fresh::KILLED). So exactly one of them wins: a record that was acknowledged is in the
//! rebuilt group, and one that was killed is inserted again.
//!
//! **Clocks.** The clock is the number of reserved tombstones. A rebuild decides all tombstones before its clock, so
//! a later one deletes members of the group exactly if its clock is higher than that of the descriptor. A record is
//! only written where its clock is not below that of the descriptor: tombstones that could delete it are still there,
//! or among the marks of the group.
//!
//! **Space.** What a replaced group leaves is reused once all announced readers began later. Each page of a node has a
//! bit, so that spaces that lie side by side are one. It is never reused where
//! somebody may still write: after a slot was killed, or after a rebuilder was replaced. Readers whose line was taken
//! from them find out by [`Recheck`].

use alloc::vec;
use alloc::vec::Vec;
use core::fmt;

use crate::format::region::{Address, Superblock};

mod announce;
mod fold;
mod groups;
mod insert;
mod rebuild;
mod tombstones;

pub use announce::{Announced, Line, Standstill};
pub use fold::{Fold, Freed, MemberIds};
pub use groups::{GroupState, Groups, Headers, Recheck, Seen};
pub use insert::{Insert, Inserted, NewVector};
pub use rebuild::{Contents, NewGroup, Rebuild, RebuildLimits, Rebuilt, Record};
pub use tombstones::{Delete, Deleted, Truncate};

/// One operation on remote memory. Those of a request are executed in order on each node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// Reads bytes.
    Read {
        /// Address of the first byte.
        at: Address,
        /// Number of bytes.
        bytes: u64,
    },
    /// Writes bytes.
    Write {
        /// Address of the first byte.
        at: Address,
        /// Bytes to write.
        bytes: Vec<u8>,
    },
    /// Adds to a word and returns what it was.
    FetchAdd {
        /// A multiple of 8.
        at: Address,
        /// Number to add.
        add: u64,
    },
    /// Sets a word that is as expected, and returns what it was.
    CompareSwap {
        /// A multiple of 8.
        at: Address,
        /// Value that the word must have.
        expect: u64,
        /// New value of the word.
        new: u64,
    },
}

impl Op {
    /// Address of the operation.
    pub fn at(&self) -> Address {
        match self {
            Op::Read { at, .. } | Op::Write { at, .. } => *at,
            Op::FetchAdd { at, .. } | Op::CompareSwap { at, .. } => *at,
        }
    }
}

/// The result of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Bytes of a read.
    Bytes(Vec<u8>),
    /// A write is done.
    Written,
    /// Value of a word before an atomic operation.
    Word(u64),
    /// The node with this number does not answer.
    Lost(u8),
}

/// Next step of a machine.
#[derive(Clone, Debug, PartialEq)]
pub enum Step<T> {
    /// These operations as one request for each node, then a step with an answer for each.
    Ask(Vec<Op>),
    /// A step without answers a moment later: somebody else has to go on first.
    Pause,
    /// The end.
    Done(T),
}

/// Reason why a machine could not end well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The node with this number does not answer. What was asked of it may be done or not.
    Lost(u8),
    /// Content that must be here is missing, however often it is read.
    Damaged(Address),
    /// Content was moved between its read and its use, again and again.
    Moved,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Lost(node) => {
                write!(
                    f,
                    "memory node {node} does not answer; if it has ended, start it and load the index again"
                )
            }
            Fault::Damaged(at) => write!(
                f,
                "memory node {}: what is at byte {} does not match its checksum; load the index again",
                at.node(),
                at.offset()
            ),
            Fault::Moved => {
                write!(f, "groups are rebuilt faster than they are read; try again, or make overflows larger")
            }
        }
    }
}

/// Superblocks of all nodes, which say where things are.
#[derive(Clone, Debug, Default)]
pub struct Places {
    /// Superblocks by number. The first one has all words.
    pub nodes: Vec<Superblock>,
    /// Bytes of a vector.
    pub vector_bytes: usize,
}

impl Places {
    pub(crate) fn first(&self) -> Superblock {
        self.nodes.first().copied().unwrap_or_default()
    }

    pub(crate) fn control(&self, word: u64) -> Address {
        Address::new(0, self.first().control_at + word)
    }

    pub(crate) fn word(&self, group: u32, word: u64) -> Address {
        Address::new(0, self.first().words_at(group) + word)
    }

    pub(crate) fn tombstone(&self, tombstone: u64) -> Address {
        Address::new(0, self.first().tombstone_at(tombstone))
    }

    pub(crate) fn build(&self) -> u64 {
        self.first().build
    }

    pub(crate) fn record_bytes(&self) -> u64 {
        self.first().record_bytes
    }
}

/// The answers to a request, taken in order.
pub(crate) struct Answers(vec::IntoIter<Answer>);

impl Answers {
    pub(crate) fn new(answers: Vec<Answer>) -> Result<Answers, Fault> {
        let lost = answers.iter().find_map(|answer| match answer {
            Answer::Lost(node) => Some(Fault::Lost(*node)),
            _ => None,
        });
        lost.map_or(Ok(Answers(answers.into_iter())), Err)
    }

    pub(crate) fn none() -> Answers {
        Answers(Vec::new().into_iter())
    }

    pub(crate) fn word(&mut self) -> u64 {
        match self.0.next() {
            Some(Answer::Word(word)) => word,
            _ => 0,
        }
    }

    pub(crate) fn bytes(&mut self) -> Vec<u8> {
        match self.0.next() {
            Some(Answer::Bytes(bytes)) => bytes,
            _ => Vec::new(),
        }
    }

    pub(crate) fn skip(&mut self) {
        self.0.next();
    }

    pub(crate) fn rest(self) -> Vec<Answer> {
        self.0.collect()
    }
}

pub(crate) fn read(at: Address, bytes: u64) -> Op {
    Op::Read { at, bytes }
}

pub(crate) fn swap(at: Address, expect: u64, new: u64) -> Op {
    Op::CompareSwap { at, expect, new }
}

/// Writes the body of a slot, and publishes it where nobody decided it before.
pub(crate) fn publish(at: Address, slot: &[u8]) -> [Op; 2] {
    let (word, body) = slot.split_at(8);
    let body = Op::Write { at: Address(at.0 + 8), bytes: body.to_vec() };
    [body, swap(at, 0, first_word(word))]
}

/// The first word of a slot.
pub(crate) fn first_word(slot: &[u8]) -> u64 {
    slot.first_chunk().copied().map_or(0, u64::from_le_bytes)
}
