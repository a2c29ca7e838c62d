//! The ledger of a process: memory is reserved here before it is allocated, and released when it is freed.
//!
//! Each [`Part`] has guaranteed bytes, which are set aside when a server starts. What a part uses beyond them comes
//! from the rest of the limit, which all parts share. So a few large requests never take the memory of the usual ones.

use std::sync::{Arc, Mutex, MutexGuard};

use serde::Serialize;

use crate::budget::size;
use crate::{Error, Result};

/// A purpose of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The program, the parts of the index in RAM, caches, learning, threads and links: constant while a server runs.
    Fixed,
    /// Slots of queries: states, look-up tables and read buffers of usual queries.
    Slots,
    /// Memory of queries in flight beyond a usual slot: long candidate queues, many results, wide rounds of reads.
    LargeQueries,
    /// Queries of clients from their arrival to their answer.
    Waiting,
    /// Frames from other servers that are decoded, and large states that wait for a slot.
    Batons,
    /// Open connections of clients.
    Connections,
    /// Bodies and answers of small requests.
    Requests,
    /// Bodies and answers of large requests.
    LargeRequests,
    /// The storage engine of live collections, from the moment on when their folder is opened.
    Engine,
    /// Points of live collections that are in no segment.
    Deltas,
    /// Builds of segments.
    Merges,
    /// Open segments: their tables, and what of them is in memory.
    Segments,
}

impl Part {
    /// All parts, in the order of their numbers.
    pub const ALL: [Part; PARTS] = [
        Part::Fixed,
        Part::Slots,
        Part::LargeQueries,
        Part::Waiting,
        Part::Batons,
        Part::Connections,
        Part::Requests,
        Part::LargeRequests,
        Part::Engine,
        Part::Deltas,
        Part::Merges,
        Part::Segments,
    ];

    /// The name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Part::Fixed => "fixed",
            Part::Slots => "slots",
            Part::LargeQueries => "large_queries",
            Part::Waiting => "waiting_queries",
            Part::Batons => "batons",
            Part::Connections => "connections",
            Part::Requests => "requests",
            Part::LargeRequests => "large_requests",
            Part::Engine => "engine",
            Part::Deltas => "deltas",
            Part::Merges => "merges",
            Part::Segments => "segments",
        }
    }

    /// The part of the shared bytes that it may take: one of so many equal parts; 0 for none.
    const fn share(self) -> u64 {
        match self {
            Part::Fixed | Part::Slots | Part::Connections => 0,
            Part::Engine | Part::Deltas | Part::Merges => 0,
            Part::LargeQueries | Part::Segments => 1,
            Part::Batons | Part::LargeRequests => 2,
            Part::Waiting | Part::Requests => 4,
        }
    }
}

const PARTS: usize = 12;

/// All memory of a process, by part.
#[derive(Debug)]
pub struct Ledger {
    limit: Option<u64>,
    entries: Mutex<[Entry; PARTS]>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    guaranteed: u64,
    used: u64,
    most: u64,
    refused: u64,
    // The most that it may use whatever is free; `None` for no such limit.
    cap: Option<u64>,
}

impl Entry {
    /// Bytes that come from those that all parts share.
    fn shared(&self) -> u64 {
        self.used.saturating_sub(self.guaranteed)
    }
}

/// One part of a ledger, for reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct PartUse {
    /// Name of the part.
    pub part: &'static str,
    /// Bytes set aside for it.
    pub guaranteed_bytes: u64,
    /// Bytes that it uses now.
    pub used_bytes: u64,
    /// The most that it has used.
    pub most_bytes: u64,
    /// Reservations that were refused.
    pub refused: u64,
}

impl Ledger {
    /// A ledger of `limit` bytes; `None` for no limit.
    pub fn new(limit: Option<u64>) -> Arc<Ledger> {
        Arc::new(Ledger { limit, entries: Mutex::default() })
    }

    fn lock(&self) -> MutexGuard<'_, [Entry; PARTS]> {
        self.entries.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Limit of the ledger.
    pub fn limit(&self) -> Option<u64> {
        self.limit
    }

    /// Sets the most that a part may use whatever is free.
    pub fn set_cap(&self, part: Part, bytes: u64) {
        self.lock()[part as usize].cap = Some(bytes);
    }

    /// Sets bytes aside for a part until the guarantee is dropped.
    ///
    /// # Errors
    /// `ErrorKind::Budget` when they exceed the limit together with all that is guaranteed or used already.
    pub fn guarantee(self: &Arc<Ledger>, part: Part, bytes: u64) -> Result<Guarantee> {
        let mut entries = self.lock();
        entries[part as usize].guaranteed += bytes;
        let sum = committed(&entries);
        if self.limit.is_some_and(|limit| sum > limit) {
            entries[part as usize].guaranteed -= bytes;
            return Err(Error::budget(format!(
                "the RAM budget has no room for {} more; it would take {}; give a larger --ram-budget",
                size(bytes),
                size(sum)
            )));
        }
        Ok(Guarantee { ledger: self.clone(), part, bytes })
    }

    /// Reserves bytes for a part. `None` when they do not fit; memory must not be allocated then.
    pub fn reserve(self: &Arc<Ledger>, part: Part, bytes: u64) -> Option<Reservation> {
        let mut reservation = Reservation { ledger: self.clone(), part, bytes: 0 };
        reservation.grow(bytes).then_some(reservation)
    }

    /// The most that a part could ever reserve beside all guarantees, when nothing else is reserved.
    pub fn most(&self, part: Part) -> u64 {
        let entries = self.lock();
        let entry = &entries[part as usize];
        let guaranteed: u64 = entries.iter().map(|e| e.guaranteed).sum();
        let shared = self.limit.map_or(u64::MAX, |limit| limit.saturating_sub(guaranteed));
        let most = entry.guaranteed.saturating_add(shared.checked_div(part.share()).unwrap_or(0));
        entry.cap.map_or(most, |cap| cap.min(most))
    }

    /// Bytes that are guaranteed or used.
    pub fn committed(&self) -> u64 {
        committed(&self.lock())
    }

    /// Guarantee and use of each part.
    pub fn parts(&self) -> [PartUse; PARTS] {
        let entries = self.lock();
        Part::ALL.map(|part| {
            let entry = entries[part as usize];
            PartUse {
                part: part.name(),
                guaranteed_bytes: entry.guaranteed,
                used_bytes: entry.used,
                most_bytes: entry.most,
                refused: entry.refused,
            }
        })
    }

    fn grow(&self, part: Part, bytes: u64) -> bool {
        let mut entries = self.lock();
        let guaranteed: u64 = entries.iter().map(|e| e.guaranteed).sum();
        let shared: u64 = entries.iter().map(Entry::shared).sum();
        let entry = &mut entries[part as usize];
        let grown = Entry { used: entry.used.saturating_add(bytes), ..*entry };
        let more = grown.shared() - entry.shared();
        let room = self.limit.map_or(u64::MAX, |limit| limit.saturating_sub(guaranteed));
        let own = room.checked_div(part.share()).unwrap_or(0);
        let fits = more == 0 || (grown.shared() <= own && shared.saturating_add(more) <= room);
        if !fits || entry.cap.is_some_and(|cap| grown.used > cap) {
            entry.refused += 1;
            return false;
        }
        *entry = Entry { most: entry.most.max(grown.used), ..grown };
        true
    }

    fn release(&self, part: Part, bytes: u64) {
        let entry = &mut self.lock()[part as usize];
        entry.used = entry.used.saturating_sub(bytes);
    }
}

fn committed(entries: &[Entry; PARTS]) -> u64 {
    entries.iter().map(|e| e.guaranteed.max(e.used)).sum()
}

/// Bytes set aside for a part. Dropping it gives them back.
#[derive(Debug)]
pub struct Guarantee {
    ledger: Arc<Ledger>,
    part: Part,
    bytes: u64,
}

impl Guarantee {
    /// Gives back what exceeds `bytes`.
    pub fn shrink_to(&mut self, bytes: u64) {
        let released = self.bytes.saturating_sub(bytes);
        self.ledger.lock()[self.part as usize].guaranteed -= released;
        self.bytes -= released;
    }
}

impl Drop for Guarantee {
    fn drop(&mut self) {
        self.ledger.lock()[self.part as usize].guaranteed -= self.bytes;
    }
}

/// Reserved bytes. Dropping it releases them.
#[derive(Debug)]
pub struct Reservation {
    ledger: Arc<Ledger>,
    part: Part,
    bytes: u64,
}

impl Reservation {
    /// The reserved bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Reserves more. Returns false when they do not fit; nothing has changed then.
    pub fn grow(&mut self, bytes: u64) -> bool {
        let fits = self.ledger.grow(self.part, bytes);
        self.bytes += if fits { bytes } else { 0 };
        fits
    }

    /// Releases what exceeds `bytes`.
    pub fn shrink_to(&mut self, bytes: u64) {
        let released = self.bytes.saturating_sub(bytes);
        self.ledger.release(self.part, released);
        self.bytes -= released;
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.shrink_to(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_has_its_guarantee_whatever_the_others_take() {
        let ledger = Ledger::new(Some(1000));
        let _waiting = ledger.guarantee(Part::Waiting, 300).unwrap();
        let all = ledger.reserve(Part::LargeQueries, 700).expect("all that is shared");
        assert!(ledger.reserve(Part::LargeQueries, 1).is_none());
        let own = ledger.reserve(Part::Waiting, 300).expect("its own");
        assert!(ledger.reserve(Part::Waiting, 1).is_none(), "nothing is shared any more");
        assert_eq!(ledger.committed(), 1000);
        drop(all);
        let more = ledger.reserve(Part::Waiting, 175).expect("a quarter of what is shared");
        assert!(ledger.reserve(Part::Waiting, 1).is_none());
        drop((own, more));
        assert_eq!(ledger.committed(), 300);
        let refused: u64 = ledger.parts().iter().map(|p| p.refused).sum();
        assert_eq!(refused, 3);
    }

    #[test]
    fn guarantees_beyond_the_limit_are_refused() {
        let ledger = Ledger::new(Some(1000));
        let first = ledger.guarantee(Part::Fixed, 900).unwrap();
        let error = ledger.guarantee(Part::Slots, 101).unwrap_err();
        assert!(error.message.contains("--ram-budget"), "{error}");
        let held = ledger.reserve(Part::LargeQueries, 60).unwrap();
        assert!(ledger.guarantee(Part::Slots, 41).is_err(), "the rest is in use");
        drop((first, held));
        assert_eq!(ledger.committed(), 0);
        assert_eq!(ledger.most(Part::LargeRequests), 500);
    }

    #[test]
    fn a_guarantee_gives_back_what_it_does_not_need() {
        let ledger = Ledger::new(Some(100));
        let mut own = ledger.guarantee(Part::Fixed, 90).unwrap();
        own.shrink_to(30);
        own.shrink_to(50);
        assert_eq!(ledger.committed(), 30);
        let rest = ledger.guarantee(Part::Slots, 70).unwrap();
        drop((own, rest));
        assert_eq!(ledger.committed(), 0);
    }

    #[test]
    fn reservations_grow_and_shrink() {
        let ledger = Ledger::new(Some(100));
        let mut body = ledger.reserve(Part::LargeRequests, 10).unwrap();
        assert!(body.grow(40) && !body.grow(1));
        assert_eq!(body.bytes(), 50);
        body.shrink_to(20);
        assert!(body.grow(30));
        drop(body);
        ledger.set_cap(Part::LargeRequests, 5);
        assert!(ledger.reserve(Part::LargeRequests, 6).is_none());
        assert!(Ledger::new(None).reserve(Part::LargeQueries, 1 << 50).is_some());
    }
}
