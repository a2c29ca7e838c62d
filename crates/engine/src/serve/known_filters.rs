//! Filters as other servers send them. Each is made once, and kept for queries that bring it again.
//!
//! On servers of a partition a filter is the set of rows that was made of the whole index. Of a cluster whose servers
//! have an index each it goes to all of them as the ids that were named: each finds the rows that it has of these, and
//! plans for their number.
//!
//! | bytes | content |
//! |---|---|
//! | 1 | 0 for rows that may be returned, 1 for rows that may not |
//! | 8 | the recall that was asked for, as a double; not a number for none |
//! | … | how many ids there are, and for each the difference to the one before, less 1 but for the first: varints |

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use stratann_core::peer::Begun;
use stratann_core::peer::message::Refused;
use stratann_core::query::{Params, QueryState};
use stratann_core::sieve::Sieve;
use stratann_storage::digest::{Digest, digest};

use super::lock;
use super::state::ServerState;
use crate::index::Index;
use crate::search::Naming;

/// Ids that a filter names.
#[derive(Debug, PartialEq)]
pub(super) struct NamedIds {
    pub(super) naming: Naming,
    pub(super) recall: Option<f64>,
    // Ascending, each once.
    pub(super) ids: Vec<u64>,
}

impl NamedIds {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = vec![u8::from(self.naming == Naming::Without)];
        out.extend_from_slice(&self.recall.unwrap_or(f64::NAN).to_le_bytes());
        put_varint(self.ids.len() as u64, &mut out);
        let mut next = 0u64;
        for &id in &self.ids {
            put_varint(id - next, &mut out);
            next = id.saturating_add(1);
        }
        out
    }

    /// `None` for what is no filter.
    pub(super) fn decode(mut bytes: &[u8]) -> Option<NamedIds> {
        let naming = match bytes.split_off_first()? {
            0 => Naming::Only,
            1 => Naming::Without,
            _ => return None,
        };
        let recall = f64::from_le_bytes(*bytes.split_off(..8)?.first_chunk()?);
        let count = usize::try_from(take_varint(&mut bytes)?).ok()?;
        // Each takes a byte at least.
        let mut ids = Vec::with_capacity(Some(count).filter(|&count| count <= bytes.len())?);
        let mut next = Some(0u64);
        for _ in 0..count {
            let id = next?.checked_add(take_varint(&mut bytes)?)?;
            ids.push(id);
            next = id.checked_add(1);
        }
        let recall = Some(recall).filter(|recall| !recall.is_nan());
        bytes.is_empty().then_some(NamedIds { naming, recall, ids })
    }
}

/// Most bytes of ids in a message.
pub(super) const ID_BYTES_MAX: u64 = 10;

fn put_varint(mut x: u64, out: &mut Vec<u8>) {
    while x >= 0x80 {
        out.push(x as u8 | 0x80);
        x >>= 7;
    }
    out.push(x as u8);
}

fn take_varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut x = 0u64;
    for shift in (0..64).step_by(7) {
        let byte = *bytes.split_off_first()?;
        let part = u64::from(byte & 0x7F);
        if part << shift >> shift != part {
            return None;
        }
        x |= part << shift;
        if byte < 0x80 {
            return Some(x);
        }
    }
    None
}

/// The rows of this server's index that a filter lets its queries return.
#[derive(Debug)]
pub(super) struct KnownFilter {
    pub(super) rows: Arc<Sieve>,
    // Of a cluster of indexes.
    pub(super) recall: Option<f64>,
}

/// Filters of other servers as this one has made them, by what came: those that were used last.
#[derive(Debug, Default)]
pub(super) struct KnownFilters {
    all: BTreeMap<Digest, (u64, Arc<KnownFilter>)>,
    // By when they were used last.
    order: BTreeMap<u64, Digest>,
    clock: u64,
    bytes: u64,
}

impl KnownFilters {
    fn get(&mut self, key: &Digest) -> Option<Arc<KnownFilter>> {
        let (used, filter) = self.all.get_mut(key)?;
        self.order.remove(used);
        self.clock += 1;
        *used = self.clock;
        self.order.insert(self.clock, *key);
        Some(filter.clone())
    }

    /// Keeps one more, within so many bytes, unless it is here.
    fn put(&mut self, key: Digest, filter: Arc<KnownFilter>, bytes_max: u64) {
        if self.get(&key).is_some() {
            return;
        }
        self.bytes += filter.bytes();
        self.clock += 1;
        self.all.insert(key, (self.clock, filter));
        self.order.insert(self.clock, key);
        while self.bytes > bytes_max {
            let Some((_, oldest)) = self.order.pop_first() else { return };
            self.bytes -= self.all.remove(&oldest).map_or(0, |gone| gone.1.bytes());
        }
    }
}

impl KnownFilter {
    fn bytes(&self) -> u64 {
        // With its places in the two maps.
        const FIXED_BYTES: u64 = 192;
        self.rows.bytes() as u64 + FIXED_BYTES
    }
}

/// The filter of a query of another server, as a run that begins has it.
pub(super) enum ArrivedFilter {
    /// Every row may be returned.
    None,
    /// It has been made.
    Known(Arc<KnownFilter>),
    /// Its bytes, and their digest where they came with one.
    Bytes(Vec<u8>, Option<Digest>),
}

impl ServerState {
    /// The filter of a run that begins. It is quick, as the protocol waits.
    pub(super) fn arrived(&self, begun: &Begun<'_>) -> ArrivedFilter {
        if begun.filter.is_empty() {
            return ArrivedFilter::None;
        }
        match begun.filter_key.and_then(|key| lock(&self.known_filters).get(&key)) {
            Some(known) => ArrivedFilter::Known(known),
            None => ArrivedFilter::Bytes(begun.filter.to_vec(), begun.filter_key),
        }
    }

    /// The filter of a query of another server, made of the bytes that came unless it is here. Of a cluster of indexes
    /// the ids of all rows are read for the first one.
    ///
    /// # Errors
    /// Bytes that are no filter of this index or that have another key, and ids of rows that cannot be had: then there
    /// is no answer, rather than one with other rows.
    pub(super) fn filter_of_bytes(
        &self,
        bytes: &[u8],
        key: Option<Digest>,
    ) -> Result<Arc<KnownFilter>, Refused> {
        let own = || digest(bytes);
        let (key, is_given) = key.map_or_else(|| (own(), false), |key| (key, true));
        if let Some(known) = lock(&self.known_filters).get(&key) {
            self.counters.filters_reused.fetch_add(1, Ordering::Relaxed);
            return Ok(known);
        }
        if is_given && key != own() {
            (self.options.log)("a filter of another server is refused: its key is that of other bytes");
            return Err(Refused::Content);
        }
        let filter = if self.index.has_parts() {
            let NamedIds { naming, recall, ids } = NamedIds::decode(bytes).ok_or(Refused::Content)?;
            let made = self.read_row_ids().and_then(|()| self.index.index().rows_of_filter(&ids, naming));
            let rows = made.map_err(|why| {
                (self.options.log)(&format!("a filter of another server is refused: {why}"));
                Refused::Content
            })?;
            KnownFilter { rows: Arc::new(rows), recall }
        } else {
            let rows = self.index.index().manifest().rows as u32;
            KnownFilter { rows: Arc::new(Sieve::decode(rows, bytes)?), recall: None }
        };
        self.counters.filters_made.fetch_add(1, Ordering::Relaxed);
        let filter = Arc::new(filter);
        lock(&self.known_filters).put(key, filter.clone(), self.filter_bytes_max());
        Ok(filter)
    }

    /// Plans a query of a cluster of indexes that begins here: for the rows of this server's index.
    pub(super) fn plan_here(&self, filter: &KnownFilter, state: &mut QueryState) {
        if !state.is_new() {
            return;
        }
        let (usual, budget) = (*state.params(), state.budget());
        if let Some(planned) = self.planned(&filter.rows, usual, filter.recall) {
            state.restart(planned, budget);
        }
    }

    /// The parameters of a query for these rows, of those without a filter.
    fn planned(&self, rows: &Sieve, usual: Params, recall: Option<f64>) -> Option<Params> {
        let index: &Index = self.index.index();
        Some(index.plan_for(rows, usual, recall)?.params)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_that_were_used_last_are_kept() {
        let filter = |row| {
            let rows = Arc::new(Sieve::from_sorted(1000, &[row]).unwrap());
            Arc::new(KnownFilter { rows, recall: None })
        };
        let (mut known, room) = (KnownFilters::default(), 3 * filter(0).bytes());
        (0..3).for_each(|row| known.put([row; 32], filter(row.into()), room));
        assert!(known.get(&[0; 32]).is_some_and(|filter| filter.rows.has(0)));
        known.put([3; 32], filter(3), room);
        let is_kept: Vec<bool> = (0..4).map(|row| known.get(&[row; 32]).is_some()).collect();
        assert_eq!((is_kept, known.bytes), (vec![true, false, true, true], room));
        known.put([9; 32], filter(9), 10);
        assert!(known.all.is_empty() && known.order.is_empty() && known.bytes == 0);
    }

    #[test]
    fn ids_survive_their_bytes_and_nothing_else_is_read() {
        for ids in [vec![], vec![0], vec![u64::MAX], vec![0, 1, 2, 300, 1 << 53, (1 << 53) + 1, u64::MAX]] {
            for (naming, recall) in [(Naming::Only, Some(0.9)), (Naming::Without, None)] {
                let named = NamedIds { naming, recall, ids: ids.clone() };
                let bytes = named.encode();
                assert!(bytes.len() as u64 <= 20 + ID_BYTES_MAX * ids.len() as u64);
                assert_eq!(NamedIds::decode(&bytes), Some(named));
                for end in 0..bytes.len() {
                    assert_eq!(NamedIds::decode(&bytes[..end]), None, "cut at {end}");
                }
                assert_eq!(NamedIds::decode(&[&bytes[..], &[0]].concat()), None);
                assert_eq!(NamedIds::decode(&[&[2], &bytes[1..]].concat()), None);
            }
        }
        let beyond = [&[0u8; 9][..], &[2], &[255; 9], &[1, 0]].concat();
        assert_eq!(NamedIds::decode(&beyond), None, "an id beyond the largest");
        let many = [&[0u8; 9][..], &[255, 255, 255, 255, 15], &[0; 8]].concat();
        assert_eq!(NamedIds::decode(&many), None, "more ids than bytes");
    }
}
