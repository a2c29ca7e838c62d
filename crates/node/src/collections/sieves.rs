//! Rows of segments that match filters, and a cache of them.
//!
//! A sieve of a filter has the rows of a segment that match, dead ones included; segments never change, so it stays
//! right. Newer payloads of some rows are decided over it. What is left of it in a state is kept, too, with the plans
//! of searches among these rows.

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::hash::{Hash, Hasher};
use std::sync::{Arc, Mutex, MutexGuard};

use stratann_core::sieve::Sieve;
use stratann_engine::index::LeftRows;
use stratann_payload::index::{RowFacts, Unindexed, sieve_of};
use stratann_payload::{IdValue, Payload, PointFacts, Predicate};
use stratann_storage::ledger::{Part, Reservation};

use super::budget::Memory;
use super::delta::{Matches, SegmentState, State};
use super::error::{Error, Result};
use super::spec::Specs;
use crate::segments::Segment;

/// Most bytes of sieves that are kept.
const BYTES_MAX: u64 = 64 << 20;
/// Part of the memory of segments that sieves may have.
const PART_OF_SEGMENTS: u64 = 16;
/// Most sieves that are kept: each is looked at when one has to make room.
const SIEVES_MAX: usize = 1024;
/// Bytes of a sieve besides its rows and its predicate.
const FIXED_BYTES: u64 = 256;

/// What a filter cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FilterStats {
    /// Points in segments that match.
    pub rows: u64,
    /// Segments whose matching rows were known from an earlier search.
    pub cached: u64,
    /// Segments whose matching rows were found out.
    pub evaluated: u64,
    /// Payloads that were read to decide, in segments and in memory.
    pub payloads: u64,
}

/// The rows of a segment that match.
struct Matching {
    rows: Arc<Sieve>,
    unindexed: BTreeSet<Unindexed>,
    /// What was left of the segment at the last search, and of it the rows that match.
    last: Mutex<Option<(Arc<Sieve>, LeftRows)>>,
    /// Rows of an index at the last search of its name, and of which rows of the segment they are.
    of_index: Mutex<Option<(usize, Arc<Sieve>, LeftRows)>>,
    has_names: bool,
}

/// What a sieve is of.
#[derive(Clone, Debug, PartialEq, Eq)]
struct SieveKey {
    collection: u64,
    segment: u64,
    /// Which index of its payloads was asked: it says for which conditions payloads were read.
    generation: u32,
    /// Version of the newer payloads over the segment; 0 without any.
    overlay: u64,
    predicate: Arc<Predicate>,
}

impl Hash for SieveKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.collection, self.segment, self.overlay, self.predicate.key()).hash(state);
    }
}

struct Entry {
    matching: Arc<Matching>,
    bytes: u64,
    used: u64,
}

#[derive(Default)]
struct Kept {
    entries: HashMap<SieveKey, Entry>,
    uses: u64,
    bytes: u64,
    reserved: Option<Reservation>,
}

/// The cache of all collections of a node. The sieve that was used least recently makes room.
pub(super) struct Sieves {
    memory: Arc<Memory>,
    bytes_max: u64,
    kept: Mutex<Kept>,
}

impl Matching {
    fn new(rows: Arc<Sieve>, unindexed: BTreeSet<Unindexed>, has_names: bool) -> Matching {
        Matching { rows, unindexed, last: Mutex::default(), of_index: Mutex::default(), has_names }
    }

    /// Its rows among those that are left.
    fn among(&self, left: &LeftRows) -> LeftRows {
        let mut last = self.last.lock().unwrap_or_else(|e| e.into_inner());
        if let Some((of, rows)) = last.as_ref()
            && Arc::ptr_eq(of, left.rows())
        {
            return rows.clone();
        }
        let rows = LeftRows::new(self.rows.intersection(left.rows()));
        *last = Some((left.rows().clone(), rows.clone()));
        rows
    }

    /// Rows of the index of a name among those of the segment that are left; `None` where they are the same.
    fn in_index(&self, own: &SegmentState, name: usize, left: &LeftRows) -> Option<LeftRows> {
        let mut last = self.of_index.lock().unwrap_or_else(|e| e.into_inner());
        if let Some((known, of, rows)) = last.as_ref()
            && *known == name
            && Arc::ptr_eq(of, left.rows())
        {
            return Some(rows.clone());
        }
        let rows = own.segment.index(name)?.left_of(left.rows())?;
        *last = Some((name, left.rows().clone(), rows.clone()));
        Some(rows)
    }

    /// Memory, bytes, with the rows of the last searches.
    fn bytes(&self) -> u64 {
        (2 + u64::from(self.has_names)) * self.rows.bytes() as u64 + FIXED_BYTES
    }
}

impl Sieves {
    pub(super) fn new(memory: &Arc<Memory>) -> Sieves {
        let bytes_max = BYTES_MAX.min(memory.ledger().most(Part::Segments) / PART_OF_SEGMENTS);
        Sieves { memory: memory.clone(), bytes_max, kept: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Bytes of the sieves that are kept.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> u64 {
        self.lock().bytes
    }

    fn get(&self, key: &SieveKey) -> Option<Arc<Matching>> {
        let mut kept = self.lock();
        kept.uses += 1;
        let uses = kept.uses;
        let own = kept.entries.get_mut(key)?;
        own.used = uses;
        Some(own.matching.clone())
    }

    /// Keeps a sieve where there is room for it.
    fn keep(&self, key: SieveKey, matching: Arc<Matching>) {
        let bytes = matching.bytes() + key.predicate.bytes() as u64;
        let mut kept = self.lock();
        if bytes > self.bytes_max || kept.entries.contains_key(&key) {
            return;
        }
        while kept.bytes + bytes > self.bytes_max || kept.entries.len() >= SIEVES_MAX {
            let oldest = kept.entries.iter().min_by_key(|(_, own)| own.used).map(|(key, _)| key.clone());
            let Some(gone) = oldest.and_then(|key| kept.entries.remove(&key)) else { break };
            kept.bytes -= gone.bytes;
        }
        let all = kept.bytes + bytes;
        if kept.reserve(&self.memory, all) {
            kept.bytes = all;
            let used = kept.uses;
            kept.entries.insert(key, Entry { matching, bytes, used });
        }
    }

    /// The rows of a segment that match, and how many payloads were read for that; `None` of a kept sieve.
    fn matching(&self, own: &SegmentState, key: SieveKey) -> Result<(Arc<Matching>, Option<u64>)> {
        if let Some(known) = self.get(&key) {
            return Ok((known, None));
        }
        if key.overlay > 0 {
            // What the files say stays right for other rows.
            let (base, reads) = self.matching(own, SieveKey { overlay: 0, ..key.clone() })?;
            let rows = Arc::new(overlaid(own, &base.rows, &key.predicate)?);
            let unindexed = base.unindexed.clone();
            let matching = Arc::new(Matching::new(rows, unindexed, own.segment.has_names()));
            self.keep(key, matching.clone());
            return Ok((matching, Some(reads.unwrap_or(0) + own.overlay.count())));
        }
        let (found, reads) = own.segment.matching(&key.predicate)?;
        let rows = sieve_of(found.rows, &found.sure)
            .ok_or_else(|| Error::corrupt("an index of payloads has a row beyond its segment"))?;
        let (rows, unindexed) = (Arc::new(rows), found.unindexed);
        let matching = Arc::new(Matching::new(rows, unindexed, own.segment.has_names()));
        self.keep(key, matching.clone());
        Ok((matching, Some(reads)))
    }
}

/// What a filter may ask about a row of a segment. The ids that it names are looked up once.
struct FactsOfRow<'a> {
    segment: &'a Segment,
    row: u32,
    rows: &'a RefCell<Rows>,
}

/// Rows of ids, and the first error of looking them up.
#[derive(Default)]
struct Rows {
    known: HashMap<IdValue, Option<u32>>,
    failed: Option<stratann_storage::Error>,
}

impl PointFacts for FactsOfRow<'_> {
    fn has_id(&self, id: &IdValue) -> bool {
        let mut rows = self.rows.borrow_mut();
        let known = rows.known.get(id).copied();
        let row = known.unwrap_or_else(|| {
            let row = self.segment.row_of(id).unwrap_or_else(|e| {
                rows.failed.get_or_insert(e);
                None
            });
            rows.known.insert(id.clone(), row);
            row
        });
        row == Some(self.row)
    }

    fn has_vector(&self, name: &str) -> bool {
        self.segment.has_vector(self.row, name)
    }
}

/// Whether a row matches with this payload.
fn is_match(predicate: &Predicate, payload: Option<&[u8]>, facts: &FactsOfRow<'_>) -> Result<bool> {
    let payload = payload.map_or_else(|| Ok(Payload::new()), Payload::from_stored);
    let payload =
        payload.map_err(|why| Error::corrupt(format!("a payload in memory is no JSON object: {why}")))?;
    Ok(predicate.matches(&payload, facts))
}

/// Whether a row of a segment matches with this payload.
///
/// # Errors
/// `Corrupt` and `Io` of its ids.
pub(super) fn holds_in(
    segment: &Segment,
    (row, payload): (u32, Option<&[u8]>),
    predicate: &Predicate,
) -> Result<bool> {
    let rows = RefCell::new(Rows::default());
    let holds = is_match(predicate, payload, &FactsOfRow { segment, row, rows: &rows })?;
    rows.into_inner().failed.map_or(Ok(holds), |e| Err(Error::from(e)))
}

/// The rows that match, with newer payloads in place of those of the files.
fn overlaid(own: &SegmentState, base: &Sieve, predicate: &Predicate) -> Result<Sieve> {
    let (mut added, mut removed) = (Vec::new(), Vec::new());
    let rows = RefCell::new(Rows::default());
    for (row, newer) in own.overlay.iter() {
        let facts = FactsOfRow { segment: &own.segment, row, rows: &rows };
        match (base.has(row), is_match(predicate, newer.payload.as_deref(), &facts)?) {
            (false, true) => added.push(row),
            (true, false) => removed.push(row),
            _ => {}
        }
    }
    rows.into_inner().failed.map_or(Ok(()), |e| Err(Error::from(e)))?;
    Ok(base.without(&removed).complement().without(&added).complement())
}

impl Kept {
    /// Has so many bytes reserved; false where there is no room for them.
    fn reserve(&mut self, memory: &Memory, bytes: u64) -> bool {
        match &mut self.reserved {
            Some(own) if own.bytes() >= bytes => {
                own.shrink_to(bytes);
                true
            }
            Some(own) => own.grow(bytes - own.bytes()),
            none => {
                *none = memory.ledger().reserve(Part::Segments, bytes);
                none.is_some()
            }
        }
    }
}

/// A state as a filter leaves it.
pub(super) struct Filtered {
    /// Segments in which some point matches, with the rows that are left and match.
    pub(super) segments: Vec<SegmentState>,
    /// Points in memory that match.
    pub(super) matches: Matches,
    /// Conditions for which payloads are read, for want of an index.
    pub(super) unindexed: BTreeSet<Unindexed>,
    stats: FilterStats,
}

impl Filtered {
    /// Evaluates a filter on the segments of a state, to search vectors of a name where there is one.
    ///
    /// # Errors
    /// `Corrupt` and `Io` of a segment.
    pub(super) fn new(
        sieves: &Sieves,
        collection: u64,
        (state, specs): (&State, &Specs),
        (predicate, name): (&Arc<Predicate>, Option<usize>),
    ) -> Result<Filtered> {
        let matches = state.matches(specs, predicate);
        let (segments, unindexed, stats) = (Vec::new(), BTreeSet::new(), FilterStats::default());
        let mut filtered = Filtered { segments, matches, unindexed, stats };
        for own in state.segments.iter().filter(|own| own.left.rows().count() > 0) {
            let segment = own.segment.entry.number;
            let overlay = own.overlay.version();
            let generation = own.segment.entry.payloads.as_ref().map_or(0, |files| files.generation);
            let key = SieveKey { collection, segment, generation, overlay, predicate: predicate.clone() };
            let (matching, reads) = sieves.matching(own, key)?;
            let stats = &mut filtered.stats;
            match reads {
                None => stats.cached += 1,
                Some(reads) => {
                    stats.evaluated += 1;
                    stats.payloads += reads;
                }
            }
            filtered.unindexed.extend(matching.unindexed.iter().cloned());
            let left = matching.among(&own.left);
            stats.rows += u64::from(left.rows().count());
            if left.rows().count() > 0 {
                filtered.segments.push(match name {
                    Some(name) => {
                        let of_index = matching.in_index(own, name, &left);
                        own.among(name, left, of_index)
                    }
                    None => own.counted(left),
                });
            }
        }
        Ok(filtered)
    }

    /// What it cost so far.
    pub(super) fn stats(&self) -> FilterStats {
        FilterStats { payloads: self.stats.payloads + self.matches.reads(), ..self.stats }
    }
}

#[cfg(test)]
mod tests {
    use stratann_payload::Filter;
    use stratann_storage::ledger::Ledger;

    use super::*;

    #[test]
    fn sieves_are_kept_within_their_part_of_the_memory() {
        let memory = Memory::new(Ledger::new(Some(160_000)), &[]).unwrap();
        let sieves = Sieves::new(&memory);
        assert_eq!(sieves.bytes_max, 10_000);
        let key = |number: u64| {
            let text = format!("n = {}", number % 2);
            let predicate = Arc::new(Filter::from_where(&text).unwrap().compile());
            SieveKey { collection: 1, segment: number, generation: 1, overlay: 0, predicate }
        };
        let rows = Arc::new(Sieve::from_sorted(1000, &[1, 500]).unwrap());
        for number in 0..100 {
            let matching = Matching::new(rows.clone(), BTreeSet::new(), false);
            sieves.keep(key(number), Arc::new(matching));
            assert!(sieves.get(&key(number)).is_some() && sieves.get(&key(1)).is_some() == (number > 0));
            assert!(sieves.bytes() <= 10_000 && memory.used(Part::Segments) >= sieves.bytes());
        }
        assert!(sieves.get(&key(2)).is_none() && sieves.get(&key(98)).is_some());
        assert!(sieves.get(&SieveKey { predicate: key(1).predicate, ..key(98) }).is_none());
        let (one, all) = (Sieve::all(1000).without(&[1]), sieves.get(&key(99)).unwrap());
        let left = LeftRows::new(one);
        assert_eq!(all.among(&left).rows().iter().collect::<Vec<_>>(), [500]);
        assert!(Arc::ptr_eq(all.among(&left).rows(), all.among(&left).rows()));
    }
}
