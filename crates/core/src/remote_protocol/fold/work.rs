//! One group while its marks are set.

use alloc::vec::Vec;

use crate::format::region::{Address, ClusterPlace, Folded, GroupWords, Owner};
use crate::remote_protocol::{GroupState, Op, Places, Standstill, swap};

/// A group whose marks are set.
#[derive(Default)]
pub(super) struct Work {
    pub(super) group: u32,
    pub(super) state: GroupState,
    pub(super) owner: Owner,
    pub(super) is_taken: bool,
    /// Whether somebody who has stopped may still publish.
    pub(super) is_fenced: bool,
    /// The word for the owner and the heartbeat, to see whether somebody else stands still.
    pub(super) beats: u64,
    pub(super) still: Standstill,
    pub(super) tries: u32,
    pub(super) heads: [Vec<u8>; 2],
    pub(super) ids: [Vec<u64>; 2],
    pub(super) disjoint: [u32; 2],
    pub(super) marks: Vec<u64>,
    /// The marks that are to be set.
    pub(super) wanted: Vec<u64>,
}

impl Work {
    pub(super) fn put(&mut self, words: &GroupWords) {
        (self.state.version, self.state.folded) = (words.version, words.folded);
        self.state.reservations = words.reservations();
        (self.owner, self.beats) = (words.owner, words.heartbeat.rotate_left(32) ^ words.owner.0);
    }

    /// Whether the descriptor is that of a version before.
    pub(super) fn is_new(&self) -> bool {
        self.state.descriptor.version != self.state.version.number()
    }

    pub(super) fn at(&self, offset: u64) -> Address {
        Address::new(self.state.descriptor.at.node(), offset)
    }

    /// The sides that have members.
    pub(super) fn sides(&self) -> impl Iterator<Item = (usize, ClusterPlace)> + use<> {
        (0..).zip(self.state.descriptor.clusters).filter(|(_, cluster)| cluster.members > 0)
    }

    pub(super) fn folded(&self, clock: u64, is_busy: bool) -> Folded {
        Folded::new(self.state.version.number(), clock, is_busy)
    }
}

/// Gives a group back.
pub(super) fn release(places: &Places, work: &Work, owner: Owner) -> Op {
    swap(places.word(work.group, GroupWords::OWNER), owner.0, owner.released(false).0)
}
