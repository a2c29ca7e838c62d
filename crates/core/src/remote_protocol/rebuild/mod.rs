//! Replaces one group by a new version of it.

use alloc::vec;
use alloc::vec::Vec;
use core::mem;

use super::groups::{SlotState, log_ranges, slot_state};
use super::{
    Answer, Answers, Fault, GroupState, Groups, Op, Places, Standstill, Step, first_word, read, swap,
};
use crate::format::fresh::{FreshRecord, GIVEN_UP, KILLED, seed};
use crate::format::region::{
    Address, CONTROL_BYTES, ClusterPlace, ControlWords, DESCRIPTOR_BYTES, Descriptor, FreeSpan, GROUP_ALIGN,
    GROUP_WORDS_BYTES, GroupWords, Owner, Reservations, Span, TOMBSTONE_BYTES, Version,
};

mod contents;
pub(super) mod slots;
mod space;

pub use contents::{Contents, Record};
use slots::Decide;
use space::{Allocate, free};

/// Bytes of a group that are written by one operation.
const WRITE_BYTES: usize = 8 << 20;

/// Limits of a rebuild.
#[derive(Clone, Copy, Debug)]
pub struct RebuildLimits {
    /// The number of the compute node, which is not 0 and its own.
    pub rebuilder: u16,
    /// Rounds after which what stands still counts as stopped.
    pub patience: u32,
    /// Bytes that the new group may have at most. They are taken before anything else is done.
    pub group_bytes: u64,
}

/// A new version of a group, built of [`Contents`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NewGroup {
    /// The sub-HNSWs of A and B.
    pub clusters: [Vec<u8>; 2],
    /// Vectors in each.
    pub members: [u32; 2],
    /// Fresh records to have room for.
    pub capacity: u32,
}

/// End of a rebuild.
#[derive(Clone, Debug, PartialEq)]
pub enum Rebuilt {
    /// These contents are to be built: give them to [`Rebuild::built`], then go on without answers.
    Build(Contents),
    /// The new version counts.
    Published {
        /// The version.
        version: Version,
        /// Bytes of the old space if it is not used again until the index is loaded, because somebody may still write.
        lost_bytes: u64,
        /// Records that did not match their checksums, and are not in the group any more.
        damaged: u32,
    },
    /// Somebody else published a version.
    Replaced,
    /// The node has no space for the group. Nothing was changed.
    NoSpace,
    /// The new group has so many bytes, more than its limit. It takes no records until it is rebuilt.
    TooLarge {
        /// Bytes that it needs.
        group_bytes: u64,
    },
}

enum Phase {
    Look,
    Looking,
    Taking(Owner),
    Allocating,
    Sealing(Reservations),
    Slots(Decide),
    Log,
    Tombstones(Decide),
    Doubt,
    Base,
    Building,
    Writing,
    Emptying(Option<Reservations>),
    Publishing,
    Releasing,
    Aborting,
    GivingSpace { next: u32 },
}

/// Rebuilds a group: takes it, seals its reservations, decides all slots, and publishes by one compare-and-swap. Each
/// request beats its heart too. Queries go on in the old version, and inserts wait for the new one.
pub struct Rebuild {
    limits: RebuildLimits,
    group: u32,
    old: GroupState,
    allocate: Allocate,
    owner: Owner,
    still: Standstill,
    space: Option<Span>,
    free_span: Option<FreeSpan>,
    /// Records of the slots, in the order of `disjoint`.
    slots: Vec<Option<Record>>,
    disjoint: [u32; 2],
    /// The first tombstone that the marks may lack, and the clock of the new version.
    from: u64,
    clock: u64,
    killed: u32,
    damaged: u32,
    contents: Contents,
    built: NewGroup,
    next: Version,
    outcome: Option<Rebuilt>,
    phase: Phase,
}

type Next = Step<Result<Rebuilt, Fault>>;

impl Rebuild {
    /// Rebuilds the version of a group that a batch saw.
    pub fn new(limits: RebuildLimits, group: u32, seen: &Groups) -> Rebuild {
        let old = seen.groups.get(group as usize).copied().unwrap_or_default();
        Rebuild {
            allocate: Allocate::new(limits.group_bytes + GROUP_ALIGN, &old, seen),
            limits,
            group,
            old,
            owner: Owner::default(),
            still: Standstill::default(),
            space: None,
            free_span: None,
            slots: Vec::new(),
            disjoint: [0; 2],
            from: 0,
            clock: 0,
            killed: 0,
            damaged: 0,
            contents: Contents::default(),
            built: NewGroup::default(),
            next: Version::default(),
            outcome: None,
            phase: Phase::Look,
        }
    }

    /// Takes what [`Rebuilt::Build`] asked for.
    pub fn built(&mut self, group: NewGroup) {
        self.built = group;
    }

    /// Shows that the rebuilder lives while it builds; the answer does not matter.
    pub fn beat(&self, places: &Places) -> Op {
        Op::FetchAdd { at: places.word(self.group, GroupWords::HEARTBEAT), add: 1 }
    }

    /// The next step.
    pub fn step(&mut self, places: &Places, answers: Vec<Answer>) -> Next {
        let answers = match Answers::new(answers) {
            Ok(answers) => answers,
            Err(lost) => return Step::Done(Err(lost)),
        };
        match self.take(places, answers) {
            Step::Ask(mut ops) => {
                if self.owner.holder() != 0 {
                    // Its answer comes last, and nobody takes it.
                    ops.push(self.beat(places));
                }
                Step::Ask(ops)
            }
            step => step,
        }
    }

    fn take(&mut self, places: &Places, mut answers: Answers) -> Next {
        match mem::replace(&mut self.phase, Phase::Look) {
            Phase::Look => {
                self.phase = Phase::Looking;
                Step::Ask(vec![read(places.word(self.group, 0), GROUP_WORDS_BYTES)])
            }
            Phase::Looking => self.take_words(places, &answers.bytes()),
            Phase::Taking(expect) => self.take_owner(places, expect, answers),
            Phase::Allocating => self.allocate(places, answers),
            Phase::Sealing(expect) => self.take_seal(places, expect, answers),
            Phase::Slots(decide) => self.decide_slots(places, decide, answers),
            Phase::Log => self.take_control(places, answers),
            Phase::Tombstones(decide) => self.decide_tombstones(places, decide, answers),
            Phase::Doubt => {
                let control = ControlWords::decode(&answers.bytes()).unwrap_or_default();
                if control.first_tombstone > self.from {
                    return self.abort(places, Rebuilt::Replaced);
                }
                Step::Done(Err(Fault::Damaged(places.tombstone(self.from))))
            }
            Phase::Base => self.take_base(answers),
            Phase::Building => self.write(places),
            Phase::Writing => self.empty(places, None),
            Phase::Emptying(expect) => self.take_emptied(places, expect, answers),
            Phase::Publishing if answers.word() == self.old.version.0 => self.release(places),
            Phase::Publishing => self.abort(places, Rebuilt::Replaced),
            Phase::Releasing => self.take_release(places, answers),
            Phase::Aborting => self.end(),
            Phase::GivingSpace { .. } if answers.word() == 0 => self.end(),
            Phase::GivingSpace { next } => self.give_space(places, next),
        }
    }

    fn take_words(&mut self, places: &Places, bytes: &[u8]) -> Next {
        let words = GroupWords::decode(bytes).unwrap_or_default();
        if words.version != self.old.version {
            return Step::Done(Ok(Rebuilt::Replaced));
        }
        let beats = words.heartbeat.rotate_left(32) ^ words.owner.0;
        if words.owner.holder() != 0 && self.still.observe(beats) < self.limits.patience {
            self.phase = Phase::Look;
            return Step::Pause;
        }
        self.phase = Phase::Taking(words.owner);
        let taken = words.owner.taken_by(self.limits.rebuilder);
        let at = places.word(self.group, GroupWords::OWNER);
        Step::Ask(vec![swap(at, words.owner.0, taken.0), read(places.word(self.group, 0), GROUP_WORDS_BYTES)])
    }

    fn take_owner(&mut self, places: &Places, expect: Owner, mut answers: Answers) -> Next {
        if answers.word() != expect.0 {
            return Step::Pause;
        }
        self.owner = expect.taken_by(self.limits.rebuilder);
        let words = GroupWords::decode(&answers.bytes()).unwrap_or_default();
        if words.version != self.old.version {
            return self.abort(places, Rebuilt::Replaced);
        }
        (self.old.reservations, self.old.folded) = (words.reservations(), words.folded);
        self.allocate(places, Answers::none())
    }

    fn allocate(&mut self, places: &Places, mut answers: Answers) -> Next {
        self.phase = Phase::Allocating;
        match self.allocate.step(places, self.limits.patience, &mut answers) {
            Step::Ask(ops) => Step::Ask(ops),
            Step::Pause => Step::Pause,
            Step::Done(None) => self.abort(places, Rebuilt::NoSpace),
            Step::Done(space) => {
                self.space = space;
                self.seal(places, self.old.reservations)
            }
        }
    }

    fn seal(&mut self, places: &Places, expect: Reservations) -> Next {
        let number = self.old.version.number();
        if !expect.is_of(number) {
            return self.abort(places, Rebuilt::Replaced);
        }
        self.phase = Phase::Sealing(expect);
        let at = places.word(self.group, GroupWords::reserved_at(number));
        Step::Ask(vec![swap(at, expect.0, expect.0 | Reservations::SEAL)])
    }

    fn take_seal(&mut self, places: &Places, expect: Reservations, mut answers: Answers) -> Next {
        let was = Reservations(answers.word());
        if was != expect {
            return self.seal(places, was);
        }
        let Descriptor { capacity, at, .. } = self.old.descriptor;
        let bytes = places.record_bytes();
        self.disjoint = was.disjoint(capacity);
        let [a, b] = self.disjoint;
        let range = |side, used: u32| {
            let span = self.old.descriptor.fresh(side, used, bytes);
            (Address::new(at.node(), span.offset), u64::from(used))
        };
        let ranges = [range(0, a), range(1, b)].into_iter().filter(|range| range.1 > 0);
        self.decide_slots(places, Decide::new(ranges.collect(), bytes), Answers::none())
    }

    fn decide_slots(&mut self, places: &Places, mut decide: Decide, mut answers: Answers) -> Next {
        let seed = seed(places.build(), self.group, self.old.version.number());
        let is_decided = |_: usize, slot: &[u8]| {
            [KILLED, GIVEN_UP].contains(&first_word(slot))
                || FreshRecord::decode(seed, places.vector_bytes, slot).is_some()
        };
        match decide.step(self.limits.patience, is_decided, &mut answers) {
            Step::Done(decided) => {
                (self.killed, self.damaged) = (decided.killed, decided.damaged);
                let record =
                    |slot: &Vec<u8>| FreshRecord::decode(seed, places.vector_bytes, slot).map(Record::from);
                self.slots = decided.slots.iter().map(record).collect();
                self.phase = Phase::Log;
                Step::Ask(vec![read(places.control(0), CONTROL_BYTES)])
            }
            Step::Ask(ops) => self.then(Phase::Slots(decide), Step::Ask(ops)),
            Step::Pause => self.then(Phase::Slots(decide), Step::Pause),
        }
    }

    fn then(&mut self, phase: Phase, step: Next) -> Next {
        self.phase = phase;
        step
    }

    fn take_control(&mut self, places: &Places, mut answers: Answers) -> Next {
        let control = ControlWords::decode(&answers.bytes()).unwrap_or_default();
        // Those before are among the marks, or in all groups.
        self.from = self.old.clock().max(control.first_tombstone);
        self.clock = control.tombstones;
        let ranges = log_ranges(places, self.from, control.tombstones);
        self.decide_tombstones(places, Decide::new(ranges, TOMBSTONE_BYTES), Answers::none())
    }

    fn decide_tombstones(&mut self, places: &Places, mut decide: Decide, mut answers: Answers) -> Next {
        let from = self.from;
        let build = places.build();
        let is_decided = |slot: usize, bytes: &[u8]| {
            !matches!(slot_state(build, from + slot as u64, bytes), SlotState::Undecided)
        };
        match decide.step(self.limits.patience, is_decided, &mut answers) {
            Step::Ask(ops) => self.then(Phase::Tombstones(decide), Step::Ask(ops)),
            Step::Pause => self.then(Phase::Tombstones(decide), Step::Pause),
            Step::Done(decided) if decided.damaged > 0 => {
                // Where the group was replaced since, the places may hold later tombstones.
                self.phase = Phase::Doubt;
                Step::Ask(vec![read(places.control(0), CONTROL_BYTES)])
            }
            Step::Done(decided) => {
                let slots = decided.slots.iter().zip(from..);
                let published = slots.filter_map(|(bytes, number)| match slot_state(build, number, bytes) {
                    SlotState::Published(tombstone) => Some(tombstone),
                    _ => None,
                });
                self.contents.version = self.old.version.number() + 1;
                self.contents.old = self.old.descriptor;
                self.contents.tombstones = published.collect();
                self.phase = Phase::Base;
                let (own, bytes) = (&self.old.descriptor, places.record_bytes());
                let spans = [own.cluster(0, bytes), own.cluster(1, bytes), own.marks(bytes)];
                let read = |span: Span| read(Address::new(own.at.node(), span.offset), span.bytes);
                Step::Ask(spans.map(read).to_vec())
            }
        }
    }

    fn take_base(&mut self, mut answers: Answers) -> Next {
        self.contents.clusters = [answers.bytes(), answers.bytes()];
        // They are read after the log: who had the group before may have marked and freed a part of it since.
        self.contents.marks = answers.bytes().chunks_exact(8).map(first_word).collect();
        self.contents.drop_marked(mem::take(&mut self.slots), self.disjoint);
        self.contents.fold();
        self.phase = Phase::Building;
        Step::Done(Ok(Rebuilt::Build(mem::take(&mut self.contents))))
    }

    fn write(&mut self, places: &Places) -> Next {
        let NewGroup { clusters, members, capacity } = mem::take(&mut self.built);
        let [mut bytes, b] = clusters;
        // The words of the slots after it are at multiples of 8.
        bytes.resize(bytes.len().next_multiple_of(8), 0);
        let place = |side: usize, bytes: usize| ClusterPlace { members: members[side], bytes: bytes as u32 };
        let clusters = [place(0, bytes.len()), place(1, b.len())];
        bytes.resize(bytes.len() + capacity as usize * places.record_bytes() as usize, 0);
        bytes.extend_from_slice(&b);
        let record_bytes = places.record_bytes();
        let marks = Descriptor { capacity, clusters, ..Descriptor::default() }.marks(record_bytes);
        bytes.resize(bytes.len() + marks.bytes as usize, 0);
        let mut space = self.space.unwrap_or_default();
        let needed = (bytes.len() as u64 + GROUP_ALIGN).next_multiple_of(GROUP_ALIGN);
        if needed > space.bytes {
            return self.abort(places, Rebuilt::TooLarge { group_bytes: bytes.len() as u64 });
        }
        // Most groups are smaller than they might have been.
        let node = self.old.descriptor.at.node();
        let rest = Span { offset: space.offset + needed, bytes: space.bytes - needed };
        let rest = free(places, node, rest);
        space.bytes = needed;
        self.space = Some(space);
        let at = Address::new(node, space.offset + GROUP_ALIGN);
        self.next = self.old.version.next(at);
        let clock = self.clock;
        let version = self.next.number();
        let descriptor = Descriptor { version, capacity, at, space: space.bytes, clock, clusters };
        let descriptor = descriptor.encode(places.build(), self.group).to_vec();
        self.phase = Phase::Writing;
        let first = Address(at.0 - DESCRIPTOR_BYTES);
        // Parts that a request can carry; the descriptor last.
        let parts = (0..).step_by(WRITE_BYTES).zip(bytes.chunks(WRITE_BYTES));
        let mut ops: Vec<Op> = parts
            .map(|(from, bytes)| Op::Write { at: Address(at.0 + from), bytes: bytes.to_vec() })
            .collect();
        ops.push(Op::Write { at: first, bytes: descriptor });
        ops.extend(rest);
        Step::Ask(ops)
    }

    /// Sets the reservations of the new version, which may still be added to by writers of the version before the last.
    fn empty(&mut self, places: &Places, expect: Option<Reservations>) -> Next {
        let number = self.next.number();
        let at = places.word(self.group, GroupWords::reserved_at(number));
        self.phase = Phase::Emptying(expect);
        match expect {
            Some(word) if word.is_of(number) => {
                self.phase = Phase::Publishing;
                let version = places.word(self.group, GroupWords::VERSION);
                Step::Ask(vec![swap(version, self.old.version.0, self.next.0)])
            }
            Some(word) if self.is_old(word) => {
                Step::Ask(vec![swap(at, word.0, Reservations::empty(number).0)])
            }
            // Somebody else has published since, and the word may be in use.
            Some(_) => self.abort(places, Rebuilt::Replaced),
            None => Step::Ask(vec![read(at, 8)]),
        }
    }

    /// Whether the word is that of the version before the old one.
    fn is_old(&self, word: Reservations) -> bool {
        match self.old.version.rebuilt_at() {
            Some(_) => word.is_of(self.old.version.number().wrapping_sub(1)),
            None => word.is_of(0),
        }
    }

    fn take_emptied(&mut self, places: &Places, expect: Option<Reservations>, mut answers: Answers) -> Next {
        let held = match expect {
            None => Reservations(first_word(&answers.bytes())),
            Some(expect) => match Reservations(answers.word()) {
                was if was == expect => Reservations::empty(self.next.number()),
                was => was,
            },
        };
        self.empty(places, Some(held))
    }

    fn release(&mut self, places: &Places) -> Next {
        let epoch = places.control(ControlWords::EPOCH);
        let owner = places.word(self.group, GroupWords::OWNER);
        self.phase = Phase::Releasing;
        let released = self.owner.released(true);
        Step::Ask(vec![Op::FetchAdd { at: epoch, add: 1 }, swap(owner, self.owner.0, released.0)])
    }

    fn take_release(&mut self, places: &Places, mut answers: Answers) -> Next {
        let epoch = answers.word() + 1;
        let was_replaced = answers.word() != self.owner.0 || self.owner.is_replaced();
        let old = self.old.version.space(&self.old.descriptor);
        self.owner = Owner::default();
        // Somebody may still write there: another rebuilder, or the writer of a slot that was killed.
        self.free_span = if was_replaced || self.killed > 0 { None } else { FreeSpan::new(old, epoch) };
        let (version, damaged) = (self.next, self.damaged);
        let lost_bytes = if self.free_span.is_none() { old.bytes } else { 0 };
        self.outcome = Some(Rebuilt::Published { version, lost_bytes, damaged });
        self.give_space(places, 0)
    }

    fn abort(&mut self, places: &Places, outcome: Rebuilt) -> Next {
        self.outcome = Some(outcome);
        self.phase = Phase::Aborting;
        let owner = places.word(self.group, GroupWords::OWNER);
        let released = self.owner.released(false);
        let mut ops = vec![swap(owner, mem::take(&mut self.owner).0, released.0)];
        // Nobody else knows of this space.
        let node = self.old.descriptor.at.node();
        ops.extend(self.space.take().into_iter().flat_map(|space| free(places, node, space)));
        Step::Ask(ops)
    }

    /// Puts the old space into the first empty word for free spans, its own first.
    fn give_space(&mut self, places: &Places, word: u32) -> Next {
        let words = 2 * places.first().groups as u32;
        let group = |word: u32| (self.group + word / 2) % (words / 2).max(1);
        let free = (word..words).find(|word| self.allocate.is_near(group(*word)));
        let Some(free_span) = self.free_span else { return self.end() };
        let Some(word) = free else {
            if let Some(Rebuilt::Published { lost_bytes, .. }) = &mut self.outcome {
                *lost_bytes = free_span.space().bytes;
            }
            return self.end();
        };
        self.phase = Phase::GivingSpace { next: word + 1 };
        let at = places.word(group(word), GroupWords::FREE_SPANS + 8 * u64::from(word % 2));
        Step::Ask(vec![swap(at, 0, free_span.0)])
    }

    fn end(&mut self) -> Next {
        Step::Done(Ok(self.outcome.take().unwrap_or(Rebuilt::Replaced)))
    }
}
