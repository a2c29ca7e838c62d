//! Inserts a vector into the overflow of its group.

use alloc::vec;
use alloc::vec::Vec;

use super::tombstones::{Entomb, Entombed};
use super::{Answer, Answers, Fault, GroupState, Groups, Op, Places, Step, publish, read, swap};
use crate::format::fresh::{FreshRecord, GIVEN_UP, seed};
use crate::format::region::{
    Address, CONTROL_BYTES, ControlWords, DESCRIPTOR_BYTES, Descriptor, GROUP_WORDS_BYTES, GroupWords,
    Reservations, Version,
};

/// Repeated reads after which a descriptor counts as damaged.
const TRIES_MAX: u32 = 64;

/// A vector to insert.
#[derive(Clone, Debug, PartialEq)]
pub struct NewVector {
    /// The user's id.
    pub id: u64,
    /// Cluster of the vector.
    pub cluster: u32,
    /// The group of the cluster.
    pub group: u32,
    /// Whether the cluster is A (0) or B (1) of the group.
    pub side: usize,
    /// Factor that makes the vector a unit vector; 1 but under cosine.
    pub inverse_norm: f32,
    /// Components.
    pub vector: Vec<u8>,
    /// The caller promises that the id was never inserted. Else the insert replaces what is under the id.
    pub is_new: bool,
}

/// End of an insert.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inserted {
    /// Every batch that begins now finds the vector, and nothing that was under the id before.
    Done {
        /// The clock of the record.
        clock: u64,
    },
    /// The overflow is full: the group must be rebuilt. A further step tries again.
    Full {
        /// The version that is full.
        version: Version,
    },
    /// The group is being rebuilt. A further step tries again.
    Sealed {
        /// The version that ends.
        version: Version,
    },
    /// The log of tombstones is full, which a known id needs: groups must be rebuilt, and tombstones be freed. A
    /// further step tries again.
    LogFull,
}

#[derive(Clone, Copy, Debug)]
enum Phase {
    Reserve,
    Reserving,
    Words,
    Descriptor,
    Entombing,
    GivingUp,
    Publishing,
    Ending,
}

/// Reserves a slot, writes the record, and publishes it. A known id is replaced: the record is published first, then a
/// tombstone for what was inserted before it. So whoever dies in between loses nothing.
#[derive(Debug)]
pub struct Insert {
    new: NewVector,
    group: GroupState,
    words: GroupWords,
    control: ControlWords,
    tombstone: Entomb,
    /// The tombstone that is reserved and not published.
    reserved: Option<u64>,
    slot: u32,
    clock: u64,
    phase: Phase,
    tries: u32,
    others: u64,
}

impl Insert {
    /// Inserts a vector. The groups may be those of an old batch.
    pub fn new(new: NewVector, seen: &Groups) -> Insert {
        Insert::after(new, seen, 0)
    }

    /// An insert where `others` take the same steps in the same requests, each before this one. All of them reserve
    /// their tombstones at once then.
    pub fn after(new: NewVector, seen: &Groups, others: u64) -> Insert {
        Insert {
            group: seen.groups.get(new.group as usize).copied().unwrap_or_default(),
            words: GroupWords::default(),
            control: seen.control,
            tombstone: Entomb::new(new.id, seen.control, others),
            others,
            reserved: None,
            slot: 0,
            clock: 0,
            phase: Phase::Reserve,
            tries: 0,
            new,
        }
    }

    /// The group of the vector.
    pub fn group(&self) -> u32 {
        self.new.group
    }

    /// The next step.
    pub fn step(&mut self, places: &Places, answers: Vec<Answer>) -> Step<Result<Inserted, Fault>> {
        let mut answers = match Answers::new(answers) {
            Ok(answers) => answers,
            Err(lost) => return Step::Done(Err(lost)),
        };
        match self.phase {
            Phase::Reserve => self.reserve(places),
            Phase::Reserving => self.take_reservation(places, answers),
            Phase::Words => self.take_words(places, answers),
            Phase::Descriptor => self.take_descriptor(places, &answers.bytes()),
            Phase::Entombing => self.entomb(places, answers),
            Phase::GivingUp => self.later(Inserted::LogFull),
            Phase::Publishing => {
                answers.skip();
                if answers.word() != 0 {
                    return self.refresh(places);
                }
                self.end(places, &mut answers)
            }
            Phase::Ending => self.end(places, &mut answers),
        }
    }

    fn later(&mut self, outcome: Inserted) -> Step<Result<Inserted, Fault>> {
        self.phase = Phase::Reserve;
        // It goes on alone.
        self.others = 0;
        // The next step reads the words of the group first.
        self.group.descriptor.capacity = 0;
        Step::Done(Ok(outcome))
    }

    fn reserve(&mut self, places: &Places) -> Step<Result<Inserted, Fault>> {
        if !self.group.reservations.admits(self.group.descriptor.capacity) {
            return self.refresh(places);
        }
        self.phase = Phase::Reserving;
        let number = self.group.version.number();
        let at = places.word(self.new.group, GroupWords::reserved_at(number));
        let add = Reservations::STEPS[self.new.side & 1];
        Step::Ask(vec![Op::FetchAdd { at, add }, read(places.control(0), CONTROL_BYTES)])
    }

    fn take_reservation(&mut self, places: &Places, mut answers: Answers) -> Step<Result<Inserted, Fault>> {
        let was = Reservations(answers.word());
        self.control = ControlWords::decode(&answers.bytes()).unwrap_or_default();
        let capacity = self.group.descriptor.capacity;
        if !was.is_of(self.group.version.number()) || !was.admits(capacity) {
            return self.refresh(places);
        }
        self.slot = was.count(self.new.side & 1) as u32;
        if self.new.is_new {
            // Every tombstone that may delete the record is reserved after this, and not before the group's clock.
            self.clock = self.control.tombstones;
            return self.write(places);
        }
        self.tombstone = Entomb::new(self.new.id, self.control, self.others);
        self.phase = Phase::Entombing;
        let nothing = Answers::none();
        self.entomb(places, nothing)
    }

    fn entomb(&mut self, places: &Places, mut answers: Answers) -> Step<Result<Inserted, Fault>> {
        match self.tombstone.reserve(places, &mut answers) {
            Step::Done(Some(slot)) => {
                self.reserved = Some(slot);
                self.clock = slot + 1;
                self.write(places)
            }
            Step::Done(None) => {
                self.phase = Phase::GivingUp;
                Step::Ask(vec![swap(self.at(places), 0, GIVEN_UP)])
            }
            Step::Ask(ops) => Step::Ask(ops),
            Step::Pause => Step::Pause,
        }
    }

    fn refresh(&mut self, places: &Places) -> Step<Result<Inserted, Fault>> {
        self.phase = Phase::Words;
        let words = read(places.word(self.new.group, 0), GROUP_WORDS_BYTES);
        // Readers count on it that a record is reserved before its tombstone, so a new record needs a new tombstone.
        let given_up = self.reserved.take().map(|slot| swap(places.tombstone(slot), 0, GIVEN_UP));
        Step::Ask([words].into_iter().chain(given_up).collect())
    }

    fn take_words(&mut self, places: &Places, mut answers: Answers) -> Step<Result<Inserted, Fault>> {
        self.words = GroupWords::decode(&answers.bytes()).unwrap_or_default();
        self.phase = Phase::Descriptor;
        let at = places.first().descriptor_of(self.new.group, self.words.version);
        Step::Ask(vec![read(at, DESCRIPTOR_BYTES)])
    }

    fn take_descriptor(&mut self, places: &Places, bytes: &[u8]) -> Step<Result<Inserted, Fault>> {
        let version = self.words.version;
        let Some(descriptor) = Descriptor::decode(places.build(), self.new.group, version.number(), bytes)
        else {
            self.tries += 1;
            if self.tries > TRIES_MAX {
                return Step::Done(Err(Fault::Damaged(
                    places.first().descriptor_of(self.new.group, version),
                )));
            }
            return self.refresh(places);
        };
        self.tries = 0;
        let (reservations, folded) = (self.words.reservations(), self.words.folded);
        self.group = GroupState { version, descriptor, reservations, folded };
        if self.group.reservations.is_sealed() {
            return self.later(Inserted::Sealed { version });
        }
        if !self.group.reservations.admits(descriptor.capacity) {
            return self.later(Inserted::Full { version });
        }
        self.reserve(places)
    }

    fn at(&self, places: &Places) -> Address {
        let descriptor = &self.group.descriptor;
        let offset = descriptor.slot(self.new.side & 1, self.slot, places.record_bytes());
        Address::new(descriptor.at.node(), offset)
    }

    fn record(&self, places: &Places) -> Vec<u8> {
        let NewVector { id, cluster, inverse_norm, ref vector, .. } = self.new;
        let mut out = Vec::new();
        let record = FreshRecord { id, clock: self.clock, cluster, inverse_norm, vector };
        record.encode(seed(places.build(), self.new.group, self.group.version.number()), &mut out);
        out
    }

    fn write(&mut self, places: &Places) -> Step<Result<Inserted, Fault>> {
        self.phase = Phase::Publishing;
        Step::Ask(publish(self.at(places), &self.record(places)).to_vec())
    }

    fn end(&mut self, places: &Places, answers: &mut Answers) -> Step<Result<Inserted, Fault>> {
        if self.reserved.is_none() {
            return Step::Done(Ok(Inserted::Done { clock: self.clock }));
        }
        self.phase = Phase::Ending;
        match self.tombstone.publish(places, answers) {
            Step::Done(Entombed::Published) => Step::Done(Ok(Inserted::Done { clock: self.clock })),
            Step::Done(Entombed::Killed) => {
                // Its successor deletes the record too.
                self.reserved = None;
                self.refresh(places)
            }
            Step::Ask(ops) => Step::Ask(ops),
            Step::Pause => Step::Pause,
        }
    }
}
