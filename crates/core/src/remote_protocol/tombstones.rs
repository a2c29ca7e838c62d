//! The log of tombstones: reserving, publishing and freeing.

use alloc::vec;
use alloc::vec::Vec;

use super::{Answer, Answers, Fault, Groups, Places, Step, first_word, publish, read, swap};
use crate::format::fresh::{GIVEN_UP, Tombstone};
use crate::format::region::{CONTROL_BYTES, ControlWords, TOMBSTONE_BYTES};
use crate::remote_protocol::groups::{SlotState, log_bytes, log_reads, slot_state};

/// End of a deletion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deleted {
    /// Every batch that begins now misses what was inserted under the id before.
    Done {
        /// The clock of the tombstone.
        clock: u64,
    },
    /// The log has no room: all groups must be rebuilt, and tombstones be freed.
    LogFull,
}

#[derive(Clone, Copy, Debug)]
enum Phase {
    Idle,
    Reserving,
    Publishing,
}

/// End of a reserved tombstone.
pub(crate) enum Entombed {
    Published,
    /// A rebuilder decided the slot before.
    Killed,
}

/// Reserves a place in the log, then publishes a tombstone in it.
#[derive(Debug)]
pub(crate) struct Entomb {
    id: u64,
    control: ControlWords,
    is_fresh: bool,
    slot: u64,
    phase: Phase,
    /// Others that reserve a place before it in the same requests, as far as is known.
    ahead: u64,
    tries: u32,
}

/// Tries in which others in the same requests are counted on. After that some have their places.
const TRIES_IN_STEP: u32 = 2;

impl Entomb {
    pub(crate) fn new(id: u64, control: ControlWords, ahead: u64) -> Entomb {
        Entomb { id, control, is_fresh: false, slot: 0, phase: Phase::Idle, ahead, tries: 0 }
    }

    /// Reserves a slot: `Done(None)` where there is none.
    pub(crate) fn reserve(&mut self, places: &Places, answers: &mut Answers) -> Step<Option<u64>> {
        if let Phase::Reserving = self.phase {
            let was = answers.word();
            self.control = ControlWords::decode(&answers.bytes()).unwrap_or_default();
            self.is_fresh = true;
            if was == self.slot {
                self.phase = Phase::Idle;
                return Step::Done(Some(self.slot));
            }
        }
        let ahead = if self.tries < TRIES_IN_STEP { self.ahead } else { 0 };
        self.tries += 1;
        let next = self.control.tombstones + ahead;
        let is_full = next - self.control.held_tombstone.min(next) >= places.first().tombstones;
        if is_full && self.is_fresh {
            self.phase = Phase::Idle;
            return Step::Done(None);
        }
        // A swap that cannot succeed still reads the words.
        self.slot = if is_full { u64::MAX } else { next };
        let new = if is_full { u64::MAX } else { next + 1 };
        self.phase = Phase::Reserving;
        let at = places.control(ControlWords::TOMBSTONES);
        Step::Ask(vec![swap(at, self.slot, new), read(places.control(0), CONTROL_BYTES)])
    }

    /// Publishes the tombstone in the slot that was reserved.
    pub(crate) fn publish(&mut self, places: &Places, answers: &mut Answers) -> Step<Entombed> {
        if let Phase::Publishing = self.phase {
            answers.skip();
            let is_published = answers.word() == 0;
            self.phase = Phase::Idle;
            return Step::Done(if is_published { Entombed::Published } else { Entombed::Killed });
        }
        let bytes = Tombstone { id: self.id, clock: self.slot + 1 }.encode(places.build());
        self.phase = Phase::Publishing;
        Step::Ask(publish(places.tombstone(self.slot), &bytes).to_vec())
    }
}

/// Deletes an id.
#[derive(Debug)]
pub struct Delete {
    tombstone: Entomb,
    is_reserved: bool,
}

impl Delete {
    /// Deletes what was inserted under the id before now. The words are those of the last headers, or older.
    pub fn new(id: u64, seen: &Groups) -> Delete {
        Delete::after(id, seen, 0)
    }

    /// A delete where `others` take the same steps in the same requests, each before this one. All of them reserve
    /// their tombstones at once then.
    pub fn after(id: u64, seen: &Groups, others: u64) -> Delete {
        Delete { tombstone: Entomb::new(id, seen.control, others), is_reserved: false }
    }

    /// The next step.
    pub fn step(&mut self, places: &Places, answers: Vec<Answer>) -> Step<Result<Deleted, Fault>> {
        let mut answers = match Answers::new(answers) {
            Ok(answers) => answers,
            Err(lost) => return Step::Done(Err(lost)),
        };
        loop {
            if !self.is_reserved {
                match self.tombstone.reserve(places, &mut answers) {
                    Step::Done(Some(_)) => self.is_reserved = true,
                    Step::Done(None) => return Step::Done(Ok(Deleted::LogFull)),
                    Step::Ask(ops) => return Step::Ask(ops),
                    Step::Pause => return Step::Pause,
                }
            }
            match self.tombstone.publish(places, &mut answers) {
                Step::Done(Entombed::Published) => {
                    return Step::Done(Ok(Deleted::Done { clock: self.tombstone.slot + 1 }));
                }
                Step::Done(Entombed::Killed) => self.is_reserved = false,
                Step::Ask(ops) => return Step::Ask(ops),
                Step::Pause => return Step::Pause,
            }
        }
    }
}

enum Freeing {
    Start,
    Advancing,
    Reading,
    Clearing,
    Ending,
}

/// Frees the places of tombstones that all groups have folded in. Machines of several compute nodes may run at once.
pub struct Truncate {
    until: u64,
    from: u64,
    held: u64,
    phase: Freeing,
}

impl Truncate {
    /// Frees what every group of this snapshot has folded in.
    pub fn new(seen: &Groups) -> Truncate {
        Truncate::until(seen.folded().min(seen.control.tombstones), &seen.control)
    }

    /// Frees those before this one, which every group has folded in.
    pub(super) fn until(until: u64, control: &ControlWords) -> Truncate {
        Truncate { until, from: control.first_tombstone, held: 0, phase: Freeing::Start }
    }

    /// The next step; it ends with the number of places that were freed.
    pub fn step(&mut self, places: &Places, answers: Vec<Answer>) -> Step<Result<u64, Fault>> {
        let mut answers = match Answers::new(answers) {
            Ok(answers) => answers,
            Err(lost) => return Step::Done(Err(lost)),
        };
        match self.phase {
            Freeing::Start => self.advance(places),
            Freeing::Advancing => {
                let was = answers.word();
                let control = ControlWords::decode(&answers.bytes()).unwrap_or_default();
                if was != self.from && was < self.until {
                    self.from = was;
                    return self.advance(places);
                }
                // Others may have advanced further, or not freed yet what they advanced over.
                (self.held, self.until) = (control.held_tombstone, control.first_tombstone);
                if self.held >= self.until {
                    return Step::Done(Ok(0));
                }
                self.phase = Freeing::Reading;
                Step::Ask(log_reads(places, self.held, self.until))
            }
            Freeing::Reading => {
                let (log, _) = log_bytes(places, self.held, self.until, &mut answers);
                let slots = log.chunks_exact(TOMBSTONE_BYTES as usize).zip(self.held..);
                // A tombstone of a later turn of the ring stays. The writer of a killed slot may still write there, so
                // its place is lost.
                let old = slots.filter(|(slot, number)| {
                    first_word(slot) == GIVEN_UP
                        || matches!(slot_state(places.build(), *number, slot), SlotState::Published(_))
                });
                let ops: Vec<_> =
                    old.map(|(slot, number)| swap(places.tombstone(number), first_word(slot), 0)).collect();
                self.phase = Freeing::Clearing;
                if ops.is_empty() { self.end(places) } else { Step::Ask(ops) }
            }
            Freeing::Clearing => self.end(places),
            Freeing::Ending => {
                let freed = if answers.word() == self.held { self.until - self.held } else { 0 };
                Step::Done(Ok(freed))
            }
        }
    }

    fn advance(&mut self, places: &Places) -> Step<Result<u64, Fault>> {
        self.phase = Freeing::Advancing;
        let at = places.control(ControlWords::FIRST_TOMBSTONE);
        let until = self.until.max(self.from);
        Step::Ask(vec![swap(at, self.from, until), read(places.control(0), CONTROL_BYTES)])
    }

    fn end(&mut self, places: &Places) -> Step<Result<u64, Fault>> {
        self.phase = Freeing::Ending;
        Step::Ask(vec![swap(places.control(ControlWords::HELD_TOMBSTONE), self.held, self.until)])
    }
}
