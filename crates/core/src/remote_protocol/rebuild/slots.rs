//! Decides slots of which it is not known whether their writers still come.

use alloc::vec::Vec;
use core::mem;

use crate::format::fresh::KILLED;
use crate::format::region::Address;
use crate::remote_protocol::{Answers, Op, Step, first_word, read, swap};

/// Repeated reads of a slot whose first word says that it is published, and whose checksum does not match.
const READS_MAX: u32 = 64;

enum Phase {
    Start,
    Reading,
    Waiting,
    Again,
    Killing,
}

/// All slots, each of them published or never to be.
#[derive(Debug, Default)]
pub(crate) struct Decided {
    pub(crate) slots: Vec<Vec<u8>>,
    /// Slots that were killed, before or now: their writers may still write there.
    pub(crate) killed: u32,
    /// Slots whose checksum does not match.
    pub(crate) damaged: u32,
}

/// Reads slots, waits for those that are not published, then kills them.
pub(crate) struct Decide {
    ranges: Vec<(Address, u64)>,
    slot_bytes: u64,
    places: Vec<Address>,
    pending: Vec<usize>,
    decided: Decided,
    rounds: u32,
    phase: Phase,
}

impl Decide {
    /// Ranges of so many slots each.
    pub(crate) fn new(ranges: Vec<(Address, u64)>, slot_bytes: u64) -> Decide {
        let range =
            |(at, count): (Address, u64)| (0..count).map(move |slot| Address(at.0 + slot * slot_bytes));
        let places: Vec<Address> = ranges.iter().copied().flat_map(range).collect();
        let decided = Decided { slots: places.iter().map(|_| Vec::new()).collect(), ..Decided::default() };
        Decide { ranges, slot_bytes, places, pending: Vec::new(), decided, rounds: 0, phase: Phase::Start }
    }

    /// The next step. A slot is decided where the caller says so of its number and bytes.
    pub(crate) fn step(
        &mut self,
        patience: u32,
        is_decided: impl Fn(usize, &[u8]) -> bool,
        answers: &mut Answers,
    ) -> Step<Decided> {
        match self.phase {
            Phase::Start if self.places.is_empty() => return Step::Done(mem::take(&mut self.decided)),
            Phase::Start => {
                self.phase = Phase::Reading;
                let reads = self.ranges.iter().map(|(at, count)| read(*at, count * self.slot_bytes));
                return Step::Ask(reads.collect());
            }
            Phase::Reading => {
                let mut slots = self.decided.slots.iter_mut();
                for _ in &self.ranges {
                    let bytes = answers.bytes();
                    for (slot, own) in bytes.chunks_exact(self.slot_bytes as usize).zip(&mut slots) {
                        *own = slot.to_vec();
                    }
                }
                self.pending = (0..self.places.len()).collect();
            }
            Phase::Waiting => return self.read_again(),
            Phase::Again => {
                for &slot in &self.pending {
                    self.decided.slots[slot] = answers.bytes();
                }
            }
            Phase::Killing => {
                for slot in mem::take(&mut self.pending) {
                    if answers.word() == 0 {
                        self.decided.slots[slot] = KILLED.to_le_bytes().to_vec();
                        self.decided.killed += 1;
                    } else {
                        self.pending.push(slot);
                    }
                }
                if !self.pending.is_empty() {
                    return self.read_again();
                }
            }
        }
        self.decide(patience, is_decided)
    }

    fn read_again(&mut self) -> Step<Decided> {
        self.phase = Phase::Again;
        Step::Ask(self.pending.iter().map(|&slot| read(self.places[slot], self.slot_bytes)).collect())
    }

    fn decide(&mut self, patience: u32, is_decided: impl Fn(usize, &[u8]) -> bool) -> Step<Decided> {
        self.rounds += 1;
        let mut pending = mem::take(&mut self.pending);
        pending.retain(|&slot| {
            let bytes = &self.decided.slots[slot];
            self.decided.killed += u32::from(first_word(bytes) == KILLED);
            !is_decided(slot, bytes)
        });
        if pending.is_empty() {
            return Step::Done(mem::take(&mut self.decided));
        }
        self.pending = pending;
        if self.rounds <= patience {
            self.phase = Phase::Waiting;
            return Step::Pause;
        }
        if self.rounds > patience.saturating_add(READS_MAX) {
            self.decided.damaged = self.pending.len() as u32;
            return Step::Done(mem::take(&mut self.decided));
        }
        self.phase = Phase::Killing;
        let kill = |&slot: &usize| -> Op { swap(self.places[slot], 0, KILLED) };
        Step::Ask(self.pending.iter().map(kill).collect())
    }
}
