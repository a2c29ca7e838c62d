//! The line of a compute node in the table of readers, and counters that stand still.

use alloc::vec::Vec;

use super::{Op, Places, swap};
use crate::format::region::{Address, READER_BYTES, READERS_MAX, ReaderEpoch};

/// Counts observations of a number that does not move.
#[derive(Clone, Copy, Debug, Default)]
pub struct Standstill {
    last: Option<u64>,
    rounds: u32,
}

impl Standstill {
    /// Observes the number once more, and returns for how many rounds it stood still.
    pub fn observe(&mut self, number: u64) -> u32 {
        self.rounds = if self.last == Some(number) { self.rounds.saturating_add(1) } else { 0 };
        self.last = Some(number);
        self.rounds
    }
}

/// Whether a compute node has a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Announced {
    /// The node has a line, with this word in it.
    Yes(ReaderEpoch),
    /// All lines are taken. Batches go on, but each of them must be rechecked.
    Full,
}

/// The line of one compute node, which is announced with each batch. Batches of one line follow one another: those that
/// run at once need a line each.
#[derive(Clone, Debug)]
pub struct Line {
    reader: u16,
    next: u64,
    tried: u64,
    word: Option<ReaderEpoch>,
    sent: Option<(u64, ReaderEpoch)>,
    epoch: u64,
}

impl Line {
    /// A line that is not taken yet, for a node with this number, which is not 0 and its own.
    pub fn new(reader: u16) -> Line {
        Line { reader, next: u64::from(reader) % READERS_MAX, tried: 0, word: None, sent: None, epoch: 0 }
    }

    /// A line that is never announced, for changes: they read nothing whose replacement they would not notice.
    pub fn none() -> Line {
        Line::new(0)
    }

    /// Whether the line is announced, as far as is known.
    pub fn announced(&self) -> Announced {
        self.word.map_or(Announced::Full, Announced::Yes)
    }

    pub(crate) fn at(&self, places: &Places) -> Address {
        Address::new(0, places.first().reader_at(self.next))
    }

    /// Announces that what was read before is not needed any more. `None` when no line is free.
    pub(crate) fn beat(&mut self, places: &Places) -> Option<Op> {
        if self.reader == 0 {
            return None;
        }
        let (expect, new) = match self.word {
            Some(word) => (word.0, word.beat(self.epoch)),
            None if self.tried < READERS_MAX => (0, ReaderEpoch::new(self.reader, self.epoch, 0)),
            None => {
                self.tried = 0;
                return None;
            }
        };
        self.sent = Some((expect, new));
        Some(swap(self.at(places), expect, new.0))
    }

    /// Takes the answer to [`Line::beat`]; false when another line must be tried.
    pub(crate) fn answered(&mut self, was: u64) -> bool {
        let Some((expect, new)) = self.sent.take() else { return true };
        if was == expect {
            (self.word, self.tried) = (Some(new), 0);
            return true;
        }
        // Somebody took a line that stood still, or it was never ours.
        self.word = None;
        self.next = (self.next + 1) % READERS_MAX;
        self.tried += 1;
        false
    }

    /// The next batch is announced with this epoch.
    pub(crate) fn knows(&mut self, epoch: u64) {
        self.epoch = self.epoch.max(epoch);
    }

    /// Whether the word of the line is still its own.
    pub(crate) fn holds(&self, word: u64) -> bool {
        self.word.is_some_and(|own| own.0 == word)
    }

    /// Gives the line back. Where the answer to the last announcement is lost, one of two words is in it. The answers
    /// do not matter.
    pub fn leave(&mut self, places: &Places) -> Vec<Op> {
        let at = self.at(places);
        let words = self.word.take().into_iter().chain(self.sent.take().map(|(_, new)| new));
        words.map(|word| swap(at, word.0, 0)).collect()
    }
}

/// Observes all lines: which epoch the earliest reader is of, and which lines stand still.
#[derive(Clone, Debug, Default)]
pub(crate) struct Lines {
    still: Vec<Standstill>,
}

impl Lines {
    /// The earliest epoch of any reader, and the lines that stood still for so many rounds.
    pub(crate) fn observe(&mut self, bytes: &[u8], now: u64, patience: u32) -> (u64, Vec<(u64, u64)>) {
        self.still.resize(READERS_MAX as usize, Standstill::default());
        let mut earliest = now;
        let mut stopped = Vec::new();
        let lines = bytes.chunks_exact(READER_BYTES as usize).zip(&mut self.still);
        for ((line, still), number) in lines.zip(0..) {
            let word = super::first_word(line);
            let rounds = still.observe(word);
            if word != 0 {
                earliest = earliest.min(ReaderEpoch(word).epoch(now));
                if rounds >= patience {
                    stopped.push((number, word));
                }
            }
        }
        (earliest, stopped)
    }
}
