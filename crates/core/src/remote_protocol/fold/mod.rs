//! Frees the log of tombstones: what they delete is marked in the groups, and no group is rebuilt.
//!
//! One compute node at a time does it, which a word of its own tells. The others wait and look again. One that stops is
//! replaced, and its successor does all of it again: a mark that is set twice is set.
//!
//! A mark stays for the life of a version, so it is set by compare-and-swap of its word. Before the first one, the word
//! [`GroupWords::FOLDED`] says up to which clock there may be marks, and after the last one that there are. A rebuilder
//! that has stopped could still publish a version without the tombstones that are freed: the word of the version is
//! changed when its group is taken from it.

use alloc::vec;
use alloc::vec::Vec;
use core::mem;

use super::groups::{SlotState, log_ranges, slot_state};
use super::rebuild::slots::Decide;
use super::{
    Answer, Answers, Fault, GroupState, Groups, Op, Places, Standstill, Step, Truncate, first_word, read,
    swap,
};
use crate::format::fresh::{FreshRecord, GIVEN_UP, KILLED, Tombstone, seed};
use crate::format::region::{
    CONTROL_BYTES, ClusterPlace, ControlWords, DESCRIPTOR_BYTES, Descriptor, GROUP_WORDS_BYTES, GroupWords,
    Owner, Span, TOMBSTONE_BYTES, count_bits,
};

mod ids;
mod work;

pub use ids::MemberIds;
use work::{Work, release};

/// Groups whose ids are read at a time.
const GROUPS_AT_ONCE: usize = 64;
/// Repeated reads after which a descriptor counts as damaged.
const TRIES_MAX: u32 = 64;

/// End of a freeing of tombstones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Freed {
    /// The log has room: of this compute node or another one.
    Room,
    /// Nothing was written.
    Counted {
        /// Vectors that are not deleted.
        rows: u64,
        /// Whether a change was under way.
        is_busy: bool,
    },
}

enum Phase {
    Look,
    Looking,
    Electing(Owner),
    Log(Decide),
    Doubt,
    Words,
    Descriptors,
    Taking,
    Fencing(Vec<Op>),
    Heads,
    Ids,
    Slots(Decide),
    Intending,
    Marking,
    Ending,
    Truncating(Truncate),
    Leaving,
}

/// See the module.
pub struct Fold {
    holder: u16,
    patience: u32,
    /// Groups that are left, those under way, and all that are done.
    left: Vec<Work>,
    now: Vec<Work>,
    /// Last content of the word that elects.
    freer: Owner,
    still: Standstill,
    /// Whether the log is freed although it has room.
    is_forced: bool,
    is_count: bool,
    is_replaced: bool,
    rows: u64,
    is_busy: bool,
    control: ControlWords,
    tombstones: Vec<Tombstone>,
    phase: Phase,
}

type Next = Step<Result<Freed, Fault>>;

impl Fold {
    /// Frees the log where it is full; with `is_forced` in any case. The holder is the number of a compute node, and
    /// the patience is that of a rebuild.
    pub fn new(holder: u16, patience: u32, is_forced: bool, seen: &Groups) -> Fold {
        let work = |(group, state): (u32, &GroupState)| Work { group, state: *state, ..Work::default() };
        Fold {
            holder,
            patience,
            left: (0..).zip(&seen.groups).map(work).collect(),
            now: Vec::new(),
            freer: Owner::default(),
            still: Standstill::default(),
            is_forced,
            is_count: false,
            is_replaced: false,
            rows: 0,
            is_busy: false,
            control: ControlWords::default(),
            tombstones: Vec::new(),
            phase: Phase::Look,
        }
    }

    /// Counts the rows that are not deleted, and writes nothing. The number is exact where nobody changes the index
    /// meanwhile.
    pub fn count(seen: &Groups) -> Fold {
        Fold { is_count: true, ..Fold::new(0, 0, true, seen) }
    }

    /// The next step.
    pub fn step(&mut self, places: &Places, ids: &dyn MemberIds, answers: Vec<Answer>) -> Next {
        let answers = match Answers::new(answers) {
            Ok(answers) => answers,
            Err(lost) => return Step::Done(Err(lost)),
        };
        match self.take(places, ids, answers) {
            Step::Ask(mut ops) => {
                // Answers to the beats come last, and nobody takes them.
                ops.extend(self.beats(places));
                Step::Ask(ops)
            }
            step => step,
        }
    }

    /// Shows that it lives: in its own word, and in those of the groups that it has taken.
    fn beats(&mut self, places: &Places) -> Vec<Op> {
        if self.freer.holder() == 0 {
            return Vec::new();
        }
        self.freer = self.freer.beat();
        let own = Op::FetchAdd { at: places.control(ControlWords::FREER), add: Owner::BEAT };
        let beat = |work: &Work| Op::FetchAdd { at: places.word(work.group, GroupWords::HEARTBEAT), add: 1 };
        [own].into_iter().chain(self.now.iter().filter(|work| work.is_taken).map(beat)).collect()
    }

    fn take(&mut self, places: &Places, ids: &dyn MemberIds, mut answers: Answers) -> Next {
        match mem::replace(&mut self.phase, Phase::Look) {
            Phase::Look => self.then(Phase::Looking, vec![read(places.control(0), CONTROL_BYTES)]),
            Phase::Looking => self.look(places, &answers.bytes()),
            Phase::Electing(expect) if answers.word() == expect.0 => self.elected(places, expect),
            Phase::Electing(_) => Step::Pause,
            Phase::Log(decide) => self.decide_log(places, decide, answers),
            Phase::Doubt => {
                let now = ControlWords::decode(&answers.bytes()).unwrap_or_default();
                let from = self.control.first_tombstone;
                if now.first_tombstone > from {
                    return self.leave(places);
                }
                Step::Done(Err(Fault::Damaged(places.tombstone(from))))
            }
            Phase::Words => self.take_words(places, answers),
            Phase::Descriptors => self.take_descriptors(places, answers),
            Phase::Taking => self.take_owners(places, ids, answers),
            Phase::Fencing(released) => self.fence(places, ids, released, answers),
            Phase::Heads => self.take_heads(places, ids, answers),
            Phase::Ids => self.take_ids(places, ids, answers),
            Phase::Slots(decide) => self.decide_slots(places, decide, answers),
            Phase::Intending => self.mark(places, answers),
            Phase::Marking => self.marked(places, answers),
            Phase::Ending => self.ended(places, answers),
            Phase::Truncating(truncate) => self.truncate(places, truncate, answers.rest()),
            Phase::Leaving => Step::Done(Ok(Freed::Room)),
        }
    }

    fn then(&mut self, phase: Phase, ops: Vec<Op>) -> Next {
        self.phase = phase;
        Step::Ask(ops)
    }

    fn look(&mut self, places: &Places, bytes: &[u8]) -> Next {
        self.control = ControlWords::decode(bytes).unwrap_or_default();
        let ControlWords { tombstones, held_tombstone, freer, .. } = self.control;
        if self.is_count {
            return self.read_log(places);
        }
        if tombstones - held_tombstone.min(tombstones) < places.first().tombstones && !self.is_forced {
            return Step::Done(Ok(Freed::Room));
        }
        if freer.holder() != 0 && self.still.observe(freer.0) < self.patience {
            return Step::Pause;
        }
        let taken = freer.taken_by(self.holder);
        self.then(Phase::Electing(freer), vec![swap(places.control(ControlWords::FREER), freer.0, taken.0)])
    }

    fn elected(&mut self, places: &Places, expect: Owner) -> Next {
        self.freer = expect.taken_by(self.holder);
        self.read_log(places)
    }

    fn read_log(&mut self, places: &Places) -> Next {
        let ControlWords { tombstones, first_tombstone, .. } = self.control;
        let ranges = log_ranges(places, first_tombstone, tombstones);
        self.decide_log(places, Decide::new(ranges, TOMBSTONE_BYTES), Answers::none())
    }

    fn decide_log(&mut self, places: &Places, mut decide: Decide, mut answers: Answers) -> Next {
        let (build, from, is_count) = (places.build(), self.control.first_tombstone, self.is_count);
        let is_decided = |slot: usize, bytes: &[u8]| {
            is_count || !matches!(slot_state(build, from + slot as u64, bytes), SlotState::Undecided)
        };
        match decide.step(self.patience, is_decided, &mut answers) {
            Step::Ask(ops) => self.then(Phase::Log(decide), ops),
            Step::Pause => {
                self.phase = Phase::Log(decide);
                Step::Pause
            }
            Step::Done(decided) if decided.damaged > 0 => {
                // Where they were freed since, the places may hold later tombstones.
                self.then(Phase::Doubt, vec![read(places.control(0), CONTROL_BYTES)])
            }
            Step::Done(decided) => {
                let slots = decided.slots.iter().zip(from..);
                for (bytes, number) in slots {
                    match slot_state(build, number, bytes) {
                        SlotState::Published(tombstone) => self.tombstones.push(tombstone),
                        SlotState::Empty => {}
                        SlotState::Undecided => self.is_busy = true,
                    }
                }
                // Of each id the latest one.
                self.tombstones.sort_unstable_by_key(|own| (own.id, core::cmp::Reverse(own.clock)));
                self.tombstones.dedup_by_key(|own| own.id);
                self.next_groups(places)
            }
        }
    }

    fn is_deleted(&self, id: u64, clock: u64) -> bool {
        let at = self.tombstones.binary_search_by_key(&id, |own| own.id);
        at.is_ok_and(|at| self.tombstones[at].clock > clock)
    }

    /// Reads the words of the next groups. After the last ones the log is freed.
    fn next_groups(&mut self, places: &Places) -> Next {
        self.now.clear();
        if self.left.is_empty() {
            return match self.is_count {
                true => Step::Done(Ok(Freed::Counted { rows: self.rows, is_busy: self.is_busy })),
                false => {
                    self.truncate(places, Truncate::until(self.control.tombstones, &self.control), Vec::new())
                }
            };
        }
        let from = self.left.len().saturating_sub(GROUPS_AT_ONCE);
        self.now = self.left.split_off(from);
        let words = self.now.iter().map(|work| read(places.word(work.group, 0), GROUP_WORDS_BYTES));
        let words = words.collect();
        self.then(Phase::Words, words)
    }

    fn take_words(&mut self, places: &Places, mut answers: Answers) -> Next {
        self.now
            .iter_mut()
            .for_each(|work| work.put(&GroupWords::decode(&answers.bytes()).unwrap_or_default()));
        let new = self.now.iter().filter(|work| work.is_new());
        let at = |work: &Work| places.first().descriptor_of(work.group, work.state.version);
        let ops: Vec<Op> = new.map(|work| read(at(work), DESCRIPTOR_BYTES)).collect();
        if ops.is_empty() { self.take_groups(places) } else { self.then(Phase::Descriptors, ops) }
    }

    /// Groups that were rebuilt since they were seen have other descriptors.
    fn take_descriptors(&mut self, places: &Places, mut answers: Answers) -> Next {
        for work in self.now.iter_mut().filter(|work| work.is_new()) {
            let version = work.state.version.number();
            match Descriptor::decode(places.build(), work.group, version, &answers.bytes()) {
                Some(descriptor) => work.state.descriptor = descriptor,
                None => work.tries += 1,
            }
            if work.tries > TRIES_MAX {
                let at = places.first().descriptor_of(work.group, work.state.version);
                return Step::Done(Err(Fault::Damaged(at)));
            }
        }
        self.take_groups(places)
    }

    /// Takes groups that nobody has. The others are left for later.
    fn take_groups(&mut self, places: &Places) -> Next {
        let (mut now, mut later) = (Vec::new(), Vec::new());
        for mut work in mem::take(&mut self.now) {
            if !self.is_count && !work.is_new() && work.state.clock() >= self.control.tombstones {
                continue;
            }
            let is_held = !self.is_count && work.owner.holder() != 0;
            let is_later = work.is_new() || (is_held && work.still.observe(work.beats) < self.patience);
            if is_later { later.push(work) } else { now.push(work) }
        }
        let is_waiting = now.is_empty() && !later.is_empty();
        self.now = now;
        // Those that wait come last.
        self.left.splice(0..0, later);
        if self.now.is_empty() {
            self.phase = Phase::Ending;
            return if is_waiting { Step::Pause } else { self.next_groups(places) };
        }
        let mut ops = Vec::new();
        for work in &self.now {
            let taken = work.owner.taken_by(self.holder);
            let take = swap(places.word(work.group, GroupWords::OWNER), work.owner.0, taken.0);
            ops.extend((!self.is_count).then_some(take));
            ops.push(read(places.word(work.group, 0), GROUP_WORDS_BYTES));
        }
        self.then(Phase::Taking, ops)
    }

    fn take_owners(&mut self, places: &Places, ids: &dyn MemberIds, mut answers: Answers) -> Next {
        let mut released = Vec::new();
        for mut work in mem::take(&mut self.now) {
            let owner = work.owner;
            let is_taken = !self.is_count && answers.word() == owner.0;
            let words = GroupWords::decode(&answers.bytes()).unwrap_or_default();
            if words.version != work.state.version || !(is_taken || self.is_count) {
                released.extend(is_taken.then(|| release(places, &work, owner.taken_by(self.holder))));
                self.left.insert(0, work);
                continue;
            }
            work.put(&words);
            work.is_fenced = is_taken && (owner.holder() != 0 || owner.is_replaced());
            (work.owner, work.is_taken) = (owner.taken_by(self.holder), is_taken);
            work.disjoint = words.reservations().disjoint(work.state.descriptor.capacity);
            self.now.push(work);
        }
        let fences = self.now.iter().filter(|work| work.is_fenced).map(|work| {
            let version = work.state.version;
            swap(places.word(work.group, GroupWords::VERSION), version.0, version.fenced().0)
        });
        let fences: Vec<Op> = fences.collect();
        if fences.is_empty() {
            return self.ask_heads(places, ids, released);
        }
        self.then(Phase::Fencing(released), fences)
    }

    /// Groups that were published after all are left for later.
    fn fence(
        &mut self,
        places: &Places,
        ids: &dyn MemberIds,
        mut released: Vec<Op>,
        mut answers: Answers,
    ) -> Next {
        for mut work in mem::take(&mut self.now) {
            let version = work.state.version;
            if !work.is_fenced {
                self.now.push(work);
            } else if answers.word() == version.0 {
                work.state.version = version.fenced();
                self.now.push(work);
            } else {
                released.push(release(places, &work, work.owner));
                work.is_taken = false;
                self.left.insert(0, work);
            }
        }
        self.ask_heads(places, ids, released)
    }

    fn ask_heads(&mut self, places: &Places, ids: &dyn MemberIds, released: Vec<Op>) -> Next {
        let head = |work: &Work, (side, cluster): (usize, ClusterPlace)| {
            let at = work.state.descriptor.cluster(side, places.record_bytes()).offset;
            read(work.at(at), ids.head_bytes().min(cluster.bytes.into()))
        };
        let heads = self.now.iter().flat_map(|work| work.sides().map(move |own| head(work, own)));
        let ops = heads.chain(released).collect();
        self.then(Phase::Heads, ops)
    }

    fn take_heads(&mut self, places: &Places, ids: &dyn MemberIds, mut answers: Answers) -> Next {
        let mut ops = Vec::new();
        for work in &mut self.now {
            let own = work.state.descriptor;
            for (side, cluster) in work.sides() {
                work.heads[side] = answers.bytes();
                let at = own.cluster(side, places.record_bytes()).offset;
                let place = match ids.place(&work.heads[side], cluster) {
                    // Who only counts may read what was replaced.
                    None if self.is_count => Span::default(),
                    None => return Step::Done(Err(Fault::Damaged(work.at(at)))),
                    Some(place) => place,
                };
                ops.push(read(work.at(at + place.offset), place.bytes));
            }
            let marks = own.marks(places.record_bytes());
            ops.push(read(work.at(marks.offset), marks.bytes));
        }
        self.then(Phase::Ids, ops)
    }

    fn take_ids(&mut self, places: &Places, ids: &dyn MemberIds, mut answers: Answers) -> Next {
        let mut ranges = Vec::new();
        for work in &mut self.now {
            for (side, cluster) in work.sides() {
                work.ids[side] = ids.ids(&mem::take(&mut work.heads[side]), cluster, &answers.bytes());
            }
            work.marks = answers.bytes().chunks_exact(8).map(first_word).collect();
            for (side, used) in (0..).zip(work.disjoint).filter(|(_, used)| *used > 0) {
                let span = work.state.descriptor.fresh(side, used, places.record_bytes());
                ranges.push((work.at(span.offset), u64::from(used)));
            }
        }
        self.decide_slots(places, Decide::new(ranges, places.record_bytes()), Answers::none())
    }

    /// Waits until it is known of every slot whether it has a record: none comes that a tombstone deletes which is
    /// freed now.
    fn decide_slots(&mut self, places: &Places, mut decide: Decide, mut answers: Answers) -> Next {
        let seeds = self.now.iter().flat_map(|work| {
            let own = seed(places.build(), work.group, work.state.version.number());
            (0..work.disjoint[0] + work.disjoint[1]).map(move |_| own)
        });
        let seeds: Vec<u64> = seeds.collect();
        let (is_count, bytes) = (self.is_count, places.vector_bytes);
        let is_decided = |slot: usize, held: &[u8]| {
            is_count
                || [KILLED, GIVEN_UP].contains(&first_word(held))
                || seeds.get(slot).is_none_or(|seed| FreshRecord::decode(*seed, bytes, held).is_some())
        };
        match decide.step(self.patience, is_decided, &mut answers) {
            Step::Ask(ops) => self.then(Phase::Slots(decide), ops),
            Step::Pause => {
                self.phase = Phase::Slots(decide);
                Step::Pause
            }
            Step::Done(decided) => {
                let records = decided.slots.iter().zip(&seeds).map(|(slot, seed)| {
                    let record = FreshRecord::decode(*seed, bytes, slot);
                    record.map(|record| (record.id, record.clock))
                });
                let records: Vec<Option<(u64, u64)>> = records.collect();
                let is_open = |slot: &Vec<u8>| ![KILLED, GIVEN_UP].contains(&first_word(slot));
                let slots = decided.slots.iter().zip(&records);
                self.is_busy |= slots.filter(|(_, record)| record.is_none()).any(|(slot, _)| is_open(slot));
                self.want(&records);
                self.intend(places)
            }
        }
    }

    /// Finds the marks that are to be set: of members and records that are deleted, and of slots without a record.
    fn want(&mut self, records: &[Option<(u64, u64)>]) {
        let mut records = records.iter();
        let mut now = mem::take(&mut self.now);
        for work in &mut now {
            let own = work.state.descriptor;
            work.wanted = work.marks.clone();
            let wanted = &mut work.wanted;
            let mut set = |bit: u64| {
                if let Some(word) = wanted.get_mut((bit / 64) as usize) {
                    *word |= 1 << (bit % 64);
                }
            };
            for (side, ids) in work.ids.iter().enumerate() {
                let marks = (own.member_mark(side)..).zip(ids);
                marks.filter(|(_, id)| self.is_deleted(**id, own.clock)).for_each(|(mark, _)| set(mark));
            }
            for (side, used) in (0..).zip(work.disjoint) {
                let first = own.slot_mark(side, used);
                for (mark, record) in (first..first + u64::from(used)).zip(&mut records) {
                    if record.is_none_or(|(id, clock)| self.is_deleted(id, clock)) {
                        set(mark);
                    }
                }
            }
            let members: u64 = own.clusters.iter().map(|cluster| u64::from(cluster.members)).sum();
            let all = members + work.disjoint.into_iter().map(u64::from).sum::<u64>();
            self.rows += all.saturating_sub(count_bits(&work.wanted, 0, u64::MAX));
        }
        self.now = now;
    }

    /// Says up to which clock there will be marks.
    fn intend(&mut self, places: &Places) -> Next {
        if self.is_count {
            return self.next_groups(places);
        }
        let until = self.control.tombstones;
        let ops = self.now.iter().filter(|work| work.wanted != work.marks).map(|work| {
            let at = places.word(work.group, GroupWords::FOLDED);
            swap(at, work.state.folded.0, work.folded(until, true).0)
        });
        self.then(Phase::Intending, ops.collect())
    }

    fn mark(&mut self, places: &Places, mut answers: Answers) -> Next {
        let until = self.control.tombstones;
        for work in self.now.iter_mut().filter(|work| work.wanted != work.marks) {
            if answers.word() == work.state.folded.0 {
                work.state.folded = work.folded(until, true);
            } else {
                // Its successor has taken the group, and frees the log.
                self.is_replaced = true;
                work.wanted = work.marks.clone();
            }
        }
        self.set_marks(places)
    }

    fn set_marks(&mut self, places: &Places) -> Next {
        let mut ops = Vec::new();
        for work in &self.now {
            let at = work.state.descriptor.marks(places.record_bytes()).offset;
            let words = work.marks.iter().zip(&work.wanted).zip((at..).step_by(8));
            ops.extend(
                words
                    .filter(|((held, wanted), _)| held != wanted)
                    .map(|((held, wanted), at)| swap(work.at(at), *held, *wanted)),
            );
        }
        if ops.is_empty() { self.end_groups(places) } else { self.then(Phase::Marking, ops) }
    }

    fn marked(&mut self, places: &Places, mut answers: Answers) -> Next {
        for work in &mut self.now {
            for (held, wanted) in
                work.marks.iter_mut().zip(&mut work.wanted).filter(|(held, wanted)| held != wanted)
            {
                let was = answers.word();
                *wanted |= was;
                *held = if was == *held { *wanted } else { was };
            }
        }
        self.set_marks(places)
    }

    fn end_groups(&mut self, places: &Places) -> Next {
        let until = self.control.tombstones;
        let ops = self.now.iter().flat_map(|work| {
            let (folded, at) = (work.state.folded.0, places.word(work.group, GroupWords::FOLDED));
            [swap(at, folded, work.folded(until, false).0), release(places, work, work.owner)]
        });
        let ops = ops.collect();
        self.then(Phase::Ending, ops)
    }

    fn ended(&mut self, places: &Places, mut answers: Answers) -> Next {
        for work in &self.now {
            self.is_replaced |= answers.word() != work.state.folded.0;
            answers.skip();
        }
        if self.is_replaced {
            return self.leave(places);
        }
        self.next_groups(places)
    }

    fn leave(&mut self, places: &Places) -> Next {
        self.now.clear();
        let freer = mem::take(&mut self.freer);
        let leave = swap(places.control(ControlWords::FREER), freer.0, freer.released(true).0);
        self.then(Phase::Leaving, vec![leave])
    }

    fn truncate(&mut self, places: &Places, mut truncate: Truncate, answers: Vec<Answer>) -> Next {
        match truncate.step(places, answers) {
            Step::Ask(ops) => self.then(Phase::Truncating(truncate), ops),
            Step::Pause => Step::Pause,
            Step::Done(Err(fault)) => Step::Done(Err(fault)),
            Step::Done(Ok(_)) => self.leave(places),
        }
    }
}
