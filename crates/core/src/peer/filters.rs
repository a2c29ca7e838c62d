//! Filters of queries, by their content. A filter goes to another server once; queries after that bring its key. It is
//! kept when no query has it, as long as there is room, and the one that was used longest ago goes first.
//!
//! A server that has lost a filter, because it started again or needed the room, does not take what comes with the key
//! alone: it says so, and gets the bytes with the next attempt. So no query runs with another filter, or without one.

use alloc::collections::btree_map::{BTreeMap, Entry};
use alloc::sync::Arc;
use alloc::vec::Vec;

use super::message::{Message, QueryId};
use super::{Action, Peer, Run};
use crate::hash::seeded_checksum;
use crate::place::bit;
use crate::query::wire::KEYS_VERSION;

/// The digest of a filter's bytes, which tells it from all others.
pub type FilterKey = [u8; 32];

/// A filter by its key, and its bytes.
pub type KeyedFilter = (FilterKey, Arc<[u8]>);

/// Bytes of a key.
pub(super) const KEY_BYTES: usize = size_of::<FilterKey>();
/// Bytes of a filter beside its content.
pub(super) const FIXED_BYTES: u64 = 160;

/// What comes with the vector of a query that has a filter.
pub(super) struct Arrived<'a> {
    pub(super) key: FilterKey,
    // Empty where this server is thought to have it.
    bytes: &'a [u8],
    is_keyed: bool,
}

/// Why a filter is not kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unkept {
    /// It came as its key alone, and is not here.
    Missing,
    /// There is no room.
    Full,
}

pub(super) struct KeptFilter {
    bytes: Arc<[u8]>,
    // Whether the key is a digest; otherwise it came from a server that sends none.
    is_keyed: bool,
    // Queries that are hosted here.
    queries: u32,
    // A bit for each server that has it, as far as is known.
    sent: u64,
    used: u64,
}

/// The filters of one server.
#[derive(Default)]
pub(super) struct Filters {
    pub(super) all: BTreeMap<FilterKey, KeptFilter>,
    // Those without a query, by when they were used last.
    pub(super) unused: BTreeMap<u64, FilterKey>,
    bytes: u64,
    clock: u64,
    // Filters that were sent, and keys that were sent in their place.
    counts: (u64, u64),
}

impl Filters {
    /// Whether one more of so many bytes would find room, among those that no query has.
    fn make_room(&mut self, bytes: u64, most: u64) -> bool {
        while self.bytes + bytes > most {
            let Some((_, key)) = self.unused.pop_first() else { return false };
            if let Some(gone) = self.all.remove(&key) {
                self.bytes -= gone.bytes.len() as u64 + FIXED_BYTES;
            }
        }
        true
    }

    /// Keeps a filter for one query more.
    pub(super) fn keep(
        &mut self,
        (key, is_keyed): (FilterKey, bool),
        bytes: Option<Arc<[u8]>>,
        most: u64,
    ) -> Result<(), Unkept> {
        if let Entry::Occupied(mut known) = self.all.entry(key) {
            let known = known.get_mut();
            known.queries += 1;
            self.unused.remove(&known.used);
            return Ok(());
        }
        let bytes = bytes.ok_or(Unkept::Missing)?;
        let own = bytes.len() as u64 + FIXED_BYTES;
        if !self.make_room(own, most) {
            return Err(Unkept::Full);
        }
        self.bytes += own;
        self.all.insert(key, KeptFilter { bytes, is_keyed, queries: 1, sent: 0, used: 0 });
        Ok(())
    }

    /// Keeps what came with a query.
    pub(super) fn keep_arrived(&mut self, arrived: &Arrived<'_>, most: u64) -> Result<(), Unkept> {
        let bytes = (!arrived.bytes.is_empty()).then(|| Arc::from(arrived.bytes));
        self.keep((arrived.key, arrived.is_keyed), bytes, most)
    }

    /// A query no longer has it.
    pub(super) fn leave(&mut self, key: &FilterKey) {
        let Some(known) = self.all.get_mut(key) else { return };
        known.queries = known.queries.saturating_sub(1);
        if known.queries == 0 {
            self.clock += 1;
            known.used = self.clock;
            self.unused.insert(self.clock, *key);
        }
    }

    /// The bytes, and the key where it is a digest.
    pub(super) fn get(&self, key: &FilterKey) -> (&[u8], Option<FilterKey>) {
        match self.all.get(key) {
            Some(known) => (&known.bytes, known.is_keyed.then_some(*key)),
            None => (&[], None),
        }
    }

    /// Appends the filter for server `to` to a vector: the key alone where that server has it.
    fn put(&mut self, key: &FilterKey, (to, is_keyed, always): (u8, bool, bool), out: &mut Vec<u8>) {
        let Some(known) = self.all.get_mut(key) else { return };
        let is_keyed = is_keyed && known.is_keyed;
        if is_keyed {
            out.extend_from_slice(key);
        }
        if is_keyed && !always && known.sent & bit(to) != 0 {
            self.counts.1 += 1;
            return;
        }
        known.sent |= bit(to);
        self.counts.0 += 1;
        out.extend_from_slice(&known.bytes);
    }

    /// A server may have lost what it was sent.
    pub(super) fn forget_server(&mut self, server: u8) {
        self.all.values_mut().for_each(|known| known.sent &= !bit(server));
    }

    fn forget_sent(&mut self, key: &FilterKey, server: u8) {
        self.all.get_mut(key).into_iter().for_each(|known| known.sent &= !bit(server));
    }
}

/// Splits what came as a vector, of so many bytes, into the vector and the filter behind it. `is_keyed` says whether
/// the filter begins with its key.
pub(super) fn split(bytes: &[u8], vector_bytes: usize, is_keyed: bool) -> (&[u8], Option<Arrived<'_>>) {
    let (vector, filter) = bytes.split_at(vector_bytes.min(bytes.len()));
    let arrived = match filter.split_first_chunk() {
        _ if filter.is_empty() => None,
        Some((key, bytes)) if is_keyed => Some(Arrived { key: *key, bytes, is_keyed }),
        _ => Some(Arrived { key: key_without_digest(filter), bytes: filter, is_keyed: false }),
    };
    (vector, arrived)
}

/// A key for what a server of an earlier version sends, which has none.
fn key_without_digest(bytes: &[u8]) -> FilterKey {
    let mut key = [0; KEY_BYTES];
    for (seed, part) in (0..).zip(key.chunks_exact_mut(8)) {
        part.copy_from_slice(&seeded_checksum(seed, bytes).to_le_bytes());
    }
    key
}

/// Whether the filter that goes with this state begins with its key.
pub(super) fn is_keyed(state: &[u8]) -> bool {
    state.first_chunk().is_some_and(|version| u32::from_le_bytes(*version) >= KEYS_VERSION)
}

impl Peer {
    /// Filters that were sent to other servers, and keys that were sent instead, because a server had the filter.
    pub fn filters_sent(&self) -> (u64, u64) {
        self.filters.counts
    }

    /// The vector of a hosted query with its filter, as server `to` gets it with this state.
    pub(super) fn vector_for(&mut self, query: &QueryId, to: u8, state: &[u8], always: bool) -> Vec<u8> {
        let Some(hosted) = self.hosted.get(query) else { return Vec::new() };
        let mut vector = self.pool.copy(&hosted.vector);
        if let Some(key) = &hosted.filter {
            self.filters.put(key, (to, is_keyed(state), always), &mut vector);
        }
        vector
    }

    /// Bytes of the filter of a hosted query.
    pub(super) fn filter_bytes_of(&self, query: &QueryId) -> u64 {
        let key = self.hosted.get(query).and_then(|hosted| hosted.filter);
        key.map_or(0, |key| (self.filters.get(&key).0.len() + KEY_BYTES) as u64)
    }

    /// Server `from` did not have the filter of a run, which came as its key alone: it gets the bytes with the next
    /// attempt.
    pub(super) fn filter_is_missing(&mut self, now_us: u64, from: u8, run: Run, out: &mut Vec<Action>) {
        if let Some(key) = self.hosted.get(&run.query).and_then(|hosted| hosted.filter) {
            self.filters.forget_sent(&key, from);
        }
        let number = run.query.number;
        let Some(origin) = self.own(&run.query) else {
            if run.query.origin != self.server {
                self.send(self.toward(run.query.origin), Message::NoFilter { run }, out);
            }
            return;
        };
        if origin.parts.is_some() {
            let part = self.served.parts.of(from);
            if self.is_current_part(number, part, run.attempt) {
                self.ask_again(now_us, number, part, out);
            }
        } else if origin.attempt == run.attempt {
            self.retry_or_expire(now_us, number, out);
        }
    }
}
