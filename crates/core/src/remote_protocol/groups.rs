//! The table of groups as a batch sees it, and how it is kept.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::mem;

use super::{Answer, Answers, Fault, Line, Op, Places, Step, first_word, read};
use crate::format::fresh::{GIVEN_UP, KILLED, Tombstone};
use crate::format::region::{
    Address, CONTROL_BYTES, ControlWords, DESCRIPTOR_BYTES, Descriptor, Folded, GROUP_WORDS_BYTES,
    GroupWords, Reservations, TOMBSTONE_BYTES, Version, count_bits,
};

/// Repeated reads of the headers after which a machine gives up.
const TRIES_MAX: u32 = 64;

/// One group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupState {
    /// The version that counted.
    pub version: Version,
    /// Place of the version.
    pub descriptor: Descriptor,
    /// Records that are reserved in it.
    pub reservations: Reservations,
    /// Tombstones that the marks have.
    pub folded: Folded,
}

impl GroupState {
    /// The clock up to which tombstones are in the sub-HNSWs or in the marks.
    pub fn clock(&self) -> u64 {
        let has_marks = self.folded.is_of(self.version.number()) && !self.folded.is_busy();
        if has_marks { self.folded.clock().max(self.descriptor.clock) } else { self.descriptor.clock }
    }
}

/// All groups, and the tombstones that may delete members of them: the snapshot of a batch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Groups {
    /// The words that all share.
    pub control: ControlWords,
    /// Groups by number.
    pub groups: Vec<GroupState>,
    /// Tombstones by id; of each id the latest one.
    pub tombstones: Vec<Tombstone>,
    /// The marks of each group, by number; no words of one that has none.
    pub marks: Arc<Vec<Vec<u64>>>,
    /// Tombstones before this one are in `tombstones`, were never published, or are folded into all groups.
    next_tombstone: u64,
    is_read: bool,
}

impl Groups {
    /// Slots of a cluster to read.
    pub fn used(&self, group: u32, side: usize) -> u32 {
        let Some(own) = self.groups.get(group as usize) else { return 0 };
        own.reservations.used(side, own.descriptor.capacity)
    }

    /// Whether a tombstone deletes what was inserted under the id at this clock. That of members of a sub-HNSW is the
    /// clock of their descriptor.
    pub fn is_deleted(&self, id: u64, clock: u64) -> bool {
        let at = self.tombstones.binary_search_by_key(&id, |tombstone| tombstone.id);
        at.is_ok_and(|at| self.tombstones[at].clock > clock)
    }

    fn learn(&mut self, new: Tombstone) {
        match self.tombstones.binary_search_by_key(&new.id, |tombstone| tombstone.id) {
            Ok(at) => self.tombstones[at].clock = self.tombstones[at].clock.max(new.clock),
            Err(at) => self.tombstones.insert(at, new),
        }
    }

    /// The clock that all groups have folded in.
    pub(crate) fn folded(&self) -> u64 {
        self.groups.iter().map(GroupState::clock).min().unwrap_or(0)
    }

    /// The marks of a group.
    pub fn marks_of(&self, group: u32) -> &[u64] {
        self.marks.get(group as usize).map_or(&[], |words| words)
    }

    /// Rows of a group that are not deleted, as far as its marks tell.
    pub fn rows(&self, group: u32) -> u64 {
        let Some(own) = self.groups.get(group as usize) else { return 0 };
        let all = own.descriptor.clusters.iter().map(|cluster| u64::from(cluster.members)).sum::<u64>()
            + own.reservations.disjoint(own.descriptor.capacity).into_iter().map(u64::from).sum::<u64>();
        all.saturating_sub(count_bits(self.marks_of(group), 0, u64::MAX))
    }
}

/// A batch may begin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// The snapshot of the batch.
    pub groups: Groups,
    /// Groups that were replaced since the last one.
    pub changed: Vec<u32>,
}

enum Phase {
    Start,
    Words { is_announced: bool },
    Descriptors,
    Marks,
    MarksCheck,
    Tombstones { from: u64 },
}

/// Announces a batch and reads what changed since the last one: the words, which are one range, then descriptors and
/// tombstones that are new.
pub struct Headers {
    groups: Groups,
    changed: Vec<u32>,
    pending: Vec<u32>,
    /// Groups whose marks are new.
    marked: Vec<u32>,
    phase: Phase,
    tries: u32,
}

impl Headers {
    /// Begins from what the last batch saw.
    pub fn new(last: Groups) -> Headers {
        let (changed, pending, marked) = (Vec::new(), Vec::new(), Vec::new());
        Headers { groups: last, changed, pending, marked, phase: Phase::Start, tries: 0 }
    }

    /// The next step.
    pub fn step(
        &mut self,
        places: &Places,
        line: &mut Line,
        answers: Vec<Answer>,
    ) -> Step<Result<Seen, Fault>> {
        match Answers::new(answers) {
            Ok(answers) => self.take(places, line, answers),
            Err(lost) => Step::Done(Err(lost)),
        }
    }

    fn take(&mut self, places: &Places, line: &mut Line, mut answers: Answers) -> Step<Result<Seen, Fault>> {
        match self.phase {
            Phase::Start => self.ask_words(places, line),
            Phase::Words { is_announced } => {
                if is_announced && !line.answered(answers.word()) {
                    return self.ask_words(places, line);
                }
                self.take_words(places, line, answers)
            }
            Phase::Descriptors => self.take_descriptors(places, line, answers),
            Phase::Marks => self.take_marks(places, answers),
            Phase::MarksCheck => self.check_marks(places, line, answers),
            Phase::Tombstones { from } => self.take_tombstones(places, line, from, answers),
        }
    }

    fn ask_words(&mut self, places: &Places, line: &mut Line) -> Step<Result<Seen, Fault>> {
        let announce = line.beat(places);
        self.phase = Phase::Words { is_announced: announce.is_some() };
        Step::Ask(announce.into_iter().chain(Headers::reads(places)).collect())
    }

    fn again(&mut self, places: &Places, fault: Fault) -> Step<Result<Seen, Fault>> {
        self.tries += 1;
        if self.tries > TRIES_MAX {
            return Step::Done(Err(fault));
        }
        self.phase = Phase::Words { is_announced: false };
        Step::Ask(Headers::reads(places).to_vec())
    }

    /// The control words are read first: the record of an upsert is reserved before its tombstone, so whoever sees the
    /// tombstone sees the record.
    fn reads(places: &Places) -> [Op; 2] {
        let control = places.control(0);
        let words = Address(control.0 + CONTROL_BYTES);
        [read(control, CONTROL_BYTES), read(words, places.first().headers_bytes() - CONTROL_BYTES)]
    }

    fn take_words(
        &mut self,
        places: &Places,
        line: &mut Line,
        mut answers: Answers,
    ) -> Step<Result<Seen, Fault>> {
        let first = places.first();
        let (control, words) = (answers.bytes(), answers.bytes());
        let words = words.chunks_exact(GROUP_WORDS_BYTES as usize);
        let (Some(control), true) = (ControlWords::decode(&control), words.len() as u64 == first.groups)
        else {
            return Step::Done(Err(Fault::Damaged(places.control(0))));
        };
        self.groups.control = control;
        self.groups.groups.resize(first.groups as usize, GroupState::default());
        self.pending.clear();
        self.marked.clear();
        let is_read = mem::replace(&mut self.groups.is_read, true);
        let mut is_torn = false;
        for ((number, own), bytes) in (0..).zip(&mut self.groups.groups).zip(words) {
            let words = GroupWords::decode(bytes).unwrap_or_default();
            if words.version != own.version || !is_read || own.descriptor == Descriptor::default() {
                self.pending.push(number);
            }
            if words.version != own.version || words.folded != own.folded || !is_read {
                self.marked.push(number);
            }
            (own.version, own.folded) = (words.version, words.folded);
            own.reservations = words.reservations();
            // The version was read before it was replaced, and the reservations after.
            is_torn |= !own.reservations.is_of(own.version.number());
        }
        if is_torn {
            self.forget_moved();
            return self.again(places, Fault::Moved);
        }
        if self.pending.is_empty() {
            return self.ask_marks(places, line);
        }
        self.phase = Phase::Descriptors;
        let at = |group: &u32| first.descriptor_of(*group, self.groups.groups[*group as usize].version);
        let ops = self.pending.iter().map(|group| read(at(group), DESCRIPTOR_BYTES));
        Step::Ask(ops.collect())
    }

    /// Descriptors and marks of these groups are still those of before.
    fn forget_moved(&mut self) {
        for group in mem::take(&mut self.pending) {
            self.groups.groups[group as usize].descriptor = Descriptor::default();
        }
        for group in mem::take(&mut self.marked) {
            self.groups.groups[group as usize].folded = Folded::default();
        }
    }

    fn take_descriptors(
        &mut self,
        places: &Places,
        line: &mut Line,
        mut answers: Answers,
    ) -> Step<Result<Seen, Fault>> {
        let mut damaged = None;
        for group in mem::take(&mut self.pending) {
            let own = &mut self.groups.groups[group as usize];
            match Descriptor::decode(places.build(), group, own.version.number(), &answers.bytes()) {
                Some(descriptor) => {
                    own.descriptor = descriptor;
                    if !self.changed.contains(&group) {
                        self.changed.push(group);
                    }
                }
                None => {
                    own.descriptor = Descriptor::default();
                    damaged = Some(places.first().descriptor_of(group, own.version));
                }
            }
        }
        match damaged {
            Some(at) => {
                self.forget_moved();
                self.again(places, Fault::Damaged(at))
            }
            None => self.ask_marks(places, line),
        }
    }

    /// Asks for marks that are new. Those of other groups that have changed are none.
    fn ask_marks(&mut self, places: &Places, line: &mut Line) -> Step<Result<Seen, Fault>> {
        let Groups { groups, marks, .. } = &mut self.groups;
        if !self.marked.is_empty() {
            let marks = Arc::make_mut(marks);
            marks.resize(groups.len(), Vec::new());
            self.marked.iter().for_each(|&group| marks[group as usize] = Vec::new());
        }
        self.marked.retain(|&group| {
            let own = &groups[group as usize];
            own.folded.is_of(own.version.number())
        });
        if self.marked.is_empty() {
            return self.ask_tombstones(places, line);
        }
        self.phase = Phase::Marks;
        let marks = |group: &u32| {
            let own = &groups[*group as usize].descriptor;
            let span = own.marks(places.record_bytes());
            read(Address::new(own.at.node(), span.offset), span.bytes)
        };
        Step::Ask(self.marked.iter().map(marks).collect())
    }

    /// Marks are set before the word says so. Words that are read after them tell whether there may be marks of
    /// tombstones whose records are not among the words that were read before.
    fn take_marks(&mut self, places: &Places, mut answers: Answers) -> Step<Result<Seen, Fault>> {
        let marks = Arc::make_mut(&mut self.groups.marks);
        for &group in &self.marked {
            let bytes = answers.bytes();
            marks[group as usize] = bytes.chunks_exact(8).map(first_word).collect();
        }
        self.phase = Phase::MarksCheck;
        let words = self.marked.iter().map(|group| read(places.word(*group, 0), GROUP_WORDS_BYTES));
        Step::Ask(words.collect())
    }

    fn check_marks(
        &mut self,
        places: &Places,
        line: &mut Line,
        mut answers: Answers,
    ) -> Step<Result<Seen, Fault>> {
        let Groups { control, groups, .. } = &self.groups;
        let is_current = |group: &u32| {
            let now = GroupWords::decode(&answers.bytes()).unwrap_or_default();
            let own = &groups[*group as usize];
            now.version == own.version && now.folded.clock() <= control.tombstones
        };
        let current = self.marked.iter().map(is_current).filter(|is_current| *is_current).count();
        if current < self.marked.len() {
            self.forget_moved();
            return self.again(places, Fault::Moved);
        }
        self.ask_tombstones(places, line)
    }

    fn ask_tombstones(&mut self, places: &Places, line: &mut Line) -> Step<Result<Seen, Fault>> {
        let Groups { control, next_tombstone, .. } = self.groups;
        let capacity = places.first().tombstones;
        if self.groups.groups.iter().any(|group| group.descriptor.clock > control.tombstones) {
            // This group has folded in tombstones whose records are not among the words that were read before.
            return self.again(places, Fault::Moved);
        }
        // Those before the first one are in all groups and their marks, which were read after it.
        let from = next_tombstone.max(control.first_tombstone);
        self.groups.next_tombstone = from;
        if from >= control.tombstones || control.tombstones - control.first_tombstone > capacity {
            return self.finish(line);
        }
        self.phase = Phase::Tombstones { from };
        let mut ops = log_reads(places, from, control.tombstones);
        ops.push(read(places.control(0), CONTROL_BYTES));
        Step::Ask(ops)
    }

    fn take_tombstones(
        &mut self,
        places: &Places,
        line: &mut Line,
        from: u64,
        mut answers: Answers,
    ) -> Step<Result<Seen, Fault>> {
        let (log, until) = log_bytes(places, from, self.groups.control.tombstones, &mut answers);
        let mut next = until;
        for (slot, number) in log.chunks_exact(TOMBSTONE_BYTES as usize).zip(from..) {
            match slot_state(places.build(), number, slot) {
                SlotState::Published(tombstone) => self.groups.learn(tombstone),
                SlotState::Empty => {}
                SlotState::Undecided => next = next.min(number),
            }
        }
        // What looks undecided may have been freed since the words were read; then groups were replaced too.
        let now = ControlWords::decode(&answers.bytes()).unwrap_or_default();
        if next < until && now.first_tombstone > next {
            return self.again(places, Fault::Moved);
        }
        self.groups.next_tombstone = next;
        self.finish(line)
    }

    fn finish(&mut self, line: &mut Line) -> Step<Result<Seen, Fault>> {
        line.knows(self.groups.control.epoch);
        let folded = self.groups.folded().max(self.groups.control.first_tombstone);
        self.groups.tombstones.retain(|tombstone| tombstone.clock > folded);
        let (groups, changed) = (mem::take(&mut self.groups), mem::take(&mut self.changed));
        Step::Done(Ok(Seen { groups, changed }))
    }
}

/// State of the place of a tombstone.
pub(crate) enum SlotState {
    Published(Tombstone),
    /// There will be none.
    Empty,
    Undecided,
}

pub(crate) fn slot_state(build: u64, number: u64, slot: &[u8]) -> SlotState {
    match Tombstone::decode(build, slot) {
        Some(tombstone) if tombstone.clock == number + 1 => SlotState::Published(tombstone),
        _ if [KILLED, GIVEN_UP].contains(&first_word(slot)) => SlotState::Empty,
        _ => SlotState::Undecided,
    }
}

/// Places and numbers of slots of a part of the log, which is a ring.
pub(crate) fn log_ranges(places: &Places, from: u64, until: u64) -> Vec<(Address, u64)> {
    let capacity = places.first().tombstones.max(1);
    let count = until.saturating_sub(from).min(capacity);
    let whole = count.min(capacity - from % capacity);
    let parts = [(from, whole), (from + whole, count - whole)];
    let parts = parts.into_iter().filter(|part| part.1 > 0);
    parts.map(|(from, count)| (places.tombstone(from), count)).collect()
}

pub(crate) fn log_reads(places: &Places, from: u64, until: u64) -> Vec<Op> {
    let ranges = log_ranges(places, from, until).into_iter();
    ranges.map(|(at, count)| read(at, count * TOMBSTONE_BYTES)).collect()
}

/// Returns the bytes that [`log_reads`] read, and the number where they end.
pub(crate) fn log_bytes(places: &Places, from: u64, until: u64, answers: &mut Answers) -> (Vec<u8>, u64) {
    let mut log = Vec::new();
    for _ in log_reads(places, from, until) {
        log.extend_from_slice(&answers.bytes());
    }
    (log, until)
}

/// Tells after the loads of a batch whether what it read was still there. It is needed where a checksum did not match,
/// where a slot had no record, or where the batch could not be announced.
pub struct Recheck {
    read: Vec<(u32, Version)>,
    is_asked: bool,
}

impl Recheck {
    /// Checks these groups as a batch saw them.
    pub fn new(seen: &Groups, groups: &[u32]) -> Recheck {
        let state = |group: &u32| seen.groups.get(*group as usize).map(|own| (*group, own.version));
        Recheck { read: groups.iter().filter_map(state).collect(), is_asked: false }
    }

    /// The next step. It ends with [`Fault::Moved`] where the batch must read headers and groups again.
    pub fn step(&mut self, places: &Places, line: &Line, answers: Vec<Answer>) -> Step<Result<(), Fault>> {
        let mut answers = match Answers::new(answers) {
            Ok(answers) => answers,
            Err(lost) => return Step::Done(Err(lost)),
        };
        if !mem::replace(&mut self.is_asked, true) {
            let versions =
                self.read.iter().map(|(group, _)| read(places.word(*group, GroupWords::VERSION), 8));
            return Step::Ask(versions.chain([read(line.at(places), 8)]).collect());
        }
        let is_current =
            self.read.iter().filter(|(_, version)| first_word(&answers.bytes()) == version.0).count();
        let is_held = line.holds(first_word(&answers.bytes()));
        let is_there = is_held || is_current == self.read.len();
        Step::Done(if is_there { Ok(()) } else { Err(Fault::Moved) })
    }
}
