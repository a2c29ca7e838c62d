//! The set of nodes that a query has scored.

use alloc::vec::Vec;

/// A set of node ids that may forget, but never claims an id that was not inserted: it keeps the last id for each
/// hash value.
///
/// The beam is its own visited set, so meeting a node twice changes nothing; this only spares the code distance,
/// which half of the neighbours of a walk would otherwise be given again. What is forgotten is scored again, so the
/// set needs no room for all.
///
/// A query that is handed over begins with an empty set on each server, and meets few ids there. So the set of a short
/// visit lies in a small part of the memory, which is soon cleared and does not leave the nearest cache.
#[derive(Clone, Debug, Default)]
pub(crate) struct Visited {
    // Two tags a word: by the upper bits of the hash, its lower 15 bits, or `EMPTY`. Of a short visit whole hashes in
    // the first `FEW` words, with open addressing by their upper bits, or `NONE`.
    words: Vec<u32>,
    is_short: bool,
    // Hashes of a short visit.
    count: usize,
    // Bits of an id that matter.
    id_bits: u32,
}

const TAG_BITS: u32 = 15;
const EMPTY: u16 = u16::MAX;

/// Words of a short visit, and the most hashes in them: more would often be in each other's way.
const FEW: usize = 1 << 10;
const FEW_MAX: usize = FEW / 2;
/// Larger than any hash of a short visit by more than a place.
const NONE: u32 = u32::MAX;
const BOTH_EMPTY: u32 = (EMPTY as u32) << 16 | EMPTY as u32;

/// Places for an index of up to 2^28 nodes: 16 KiB a query. More nodes need more, for a place and a tag name one id.
const PLACE_BITS: u32 = 13;

/// Odd, so that multiplication permutes the ids.
const MIX: u32 = 0x9e37_79b1;

/// Bits of the ids below `nodes`, as far as the set is concerned.
fn id_bits(nodes: u32) -> u32 {
    (u32::BITS - nodes.saturating_sub(1).leading_zeros()).max(PLACE_BITS + TAG_BITS)
}

/// Memory of the visited set of a query over an index of `nodes`, bytes.
pub fn bytes(nodes: u64) -> u64 {
    2 << (id_bits(nodes.min(u64::from(u32::MAX)) as u32) - TAG_BITS)
}

impl Visited {
    /// Forgets everything, and makes room for ids below `nodes`.
    pub(crate) fn clear(&mut self, nodes: u32) {
        self.id_bits = id_bits(nodes);
        self.words.clear();
        self.words.resize(1 << (self.id_bits - TAG_BITS - 1), BOTH_EMPTY);
        self.is_short = false;
    }

    /// As [`Visited::clear`], where few ids will be met. Which ones are remembered does not depend on it.
    pub(crate) fn clear_for_few(&mut self, nodes: u32) {
        if id_bits(nodes) > PLACE_BITS + TAG_BITS {
            return self.clear(nodes);
        }
        self.id_bits = id_bits(nodes);
        self.words.resize(1 << (self.id_bits - TAG_BITS - 1), NONE);
        self.words[..FEW].fill(NONE);
        (self.is_short, self.count) = (true, 0);
    }

    /// Remembers all of `ids` and keeps those that are new, in their order. Returns how many are not.
    pub(crate) fn keep_new(&mut self, ids: &mut Vec<u32>) -> usize {
        self.keep(ids, 0, |id| id)
    }

    /// Remembers all of `ids`, and appends those that are new to `new`, in their order.
    pub(crate) fn append_new(&mut self, ids: &[u32], new: &mut Vec<u32>) {
        let first = new.len();
        new.extend_from_slice(ids);
        self.keep(new, first, |id| id);
    }

    /// Keeps new ids of a table of ids, by their places in it.
    pub(crate) fn keep_new_of(&mut self, table: &[u32], places: &mut Vec<u32>) -> usize {
        self.keep(places, 0, |place| table[place as usize])
    }

    /// Keeps the new ones of `numbers` from `first` on. Returns how many are not.
    #[inline(always)]
    fn keep(&mut self, numbers: &mut Vec<u32>, first: usize, id_of: impl Fn(u32) -> u32) -> usize {
        if self.is_short && self.count + (numbers.len() - first) > FEW_MAX {
            self.lengthen();
        }
        let id_mask = u32::MAX.checked_shr(u32::BITS - self.id_bits).unwrap_or(0);
        let hash = |number| id_of(number).wrapping_mul(MIX) & id_mask;
        let few = if self.is_short { self.words.first_chunk_mut::<FEW>() } else { None };
        let kept = match few {
            Some(few) => {
                let count = &mut self.count;
                compact(&mut numbers[first..], |number| insert_hash(few, count, hash(number)))
            }
            None => {
                let tags = bytemuck::cast_slice_mut(&mut self.words);
                compact(&mut numbers[first..], |number| insert_tag(tags, hash(number)))
            }
        };
        let repeats = numbers.len() - first - kept;
        numbers.truncate(first + kept);
        repeats
    }

    /// Goes on with tags.
    #[cold]
    fn lengthen(&mut self) {
        let mut hashes = [NONE; FEW];
        hashes.copy_from_slice(&self.words[..FEW]);
        self.words.fill(BOTH_EMPTY);
        self.is_short = false;
        let tags = bytemuck::cast_slice_mut(&mut self.words);
        for hash in hashes.into_iter().filter(|&hash| hash != NONE) {
            insert_tag(tags, hash);
        }
    }
}

/// Moves the numbers that are new to the front. Returns how many are.
#[inline(always)]
fn compact(numbers: &mut [u32], mut is_new: impl FnMut(u32) -> bool) -> usize {
    // Without branches: which ids are new cannot be foreseen, and the look-ups wait for memory.
    let mut kept = 0;
    for i in 0..numbers.len() {
        let number = numbers[i];
        numbers[kept] = number;
        kept += usize::from(is_new(number));
    }
    kept
}

/// Puts the tag of a hash into its place; whether another one was there.
#[inline(always)]
fn insert_tag(tags: &mut [u16], hash: u32) -> bool {
    let tag = hash as u16 & ((1 << TAG_BITS) - 1);
    match tags.get_mut((hash >> TAG_BITS) as usize) {
        Some(place) => core::mem::replace(place, tag) != tag,
        None => true,
    }
}

/// Puts a hash where the one with its place is, or none; whether it was not there.
#[inline(always)]
fn insert_hash(few: &mut [u32; FEW], count: &mut usize, hash: u32) -> bool {
    let mut at = (hash >> TAG_BITS) as usize % FEW;
    // One condition, which seldom holds: another place is there. Whether there is none cannot be foreseen.
    while ((few[at] ^ hash) >> TAG_BITS).wrapping_sub(1) < (1 << PLACE_BITS) - 1 {
        at = (at + 1) % FEW;
    }
    let found = core::mem::replace(&mut few[at], hash);
    *count += usize::from(found == NONE);
    found != hash
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeSet;
    use alloc::vec;
    use proptest::prelude::*;

    fn insert(visited: &mut Visited, id: u32) -> bool {
        visited.keep_new(&mut vec![id]) == 0
    }

    #[test]
    fn what_was_just_met_is_known_and_order_is_kept() {
        let mut visited = Visited::default();
        visited.clear(1000);
        let mut ids = vec![5, 9, 5, 7, 9, 1];
        assert_eq!(visited.keep_new(&mut ids), 2);
        assert_eq!(ids, [5, 9, 7, 1]);
        visited.clear(1000);
        let mut ids = vec![9];
        visited.append_new(&[5, 7, 5], &mut ids);
        assert_eq!(ids, [9, 5, 7]);
        visited.clear(1000);
        assert!(insert(&mut visited, 5));
        let mut places = vec![2, 0, 1];
        assert_eq!(visited.keep_new_of(&[5, 6, 7], &mut places), 1);
        assert_eq!(places, [2, 1]);
    }

    #[test]
    fn memory_grows_with_the_index_only_beyond_what_tags_tell_apart() {
        let mut visited = Visited::default();
        for (nodes, places) in
            [(1, 1 << 13), (1 << 28, 1 << 13), ((1 << 28) + 1, 1 << 14), (u32::MAX, 1 << 17)]
        {
            visited.clear_for_few(nodes);
            assert_eq!(visited.is_short, nodes <= 1 << 28, "other hashes could be none");
            assert_eq!(2 * visited.words.len(), places, "{nodes}");
            assert_eq!(bytes(u64::from(nodes)), 2 * places as u64);
        }
    }

    /// The set as a plain table of tags.
    struct Table(Vec<Option<u32>>, u32);

    impl Table {
        fn new(nodes: u32) -> Table {
            let bits = id_bits(nodes);
            Table(vec![None; 1 << (bits - TAG_BITS)], bits)
        }

        fn insert(&mut self, id: u32) -> bool {
            let hash = u64::from(id.wrapping_mul(MIX)) % (1 << self.1);
            let (place, tag) = ((hash >> TAG_BITS) as usize, hash as u32 % (1 << TAG_BITS));
            self.0[place].replace(tag) != Some(tag)
        }
    }

    #[test]
    fn a_visit_becomes_long_where_ids_are_many() {
        let mut visited = Visited::default();
        visited.clear_for_few(100_000);
        let half = FEW_MAX as u32 / 2;
        let mut ids = Vec::new();
        for first in [0, half, 0] {
            visited.append_new(&Vec::from_iter(first..first + half), &mut ids);
        }
        assert!(
            !visited.is_short && ids.len() == FEW_MAX,
            "room for all of a list, whether or not they are new"
        );
        visited.clear_for_few(100_000);
        assert!(visited.is_short && visited.keep_new(&mut ids) == 0);
    }

    proptest! {
        /// The same ids are new in a short visit, in one that becomes long, and whatever was visited before.
        #[test]
        fn ids_are_new_as_in_a_plain_table(
            visits in prop::collection::vec((0..3usize, any::<bool>(), 0..2000u64, any::<u64>()), 1..5),
        ) {
            let mut visited = Visited::default();
            for (size, is_short, count, seed) in visits {
                let nodes = [300, 1 << 28, u32::MAX][size];
                if is_short { visited.clear_for_few(nodes) } else { visited.clear(nodes) };
                let mut table = Table::new(nodes);
                // Most ids come again, soon or in the next visit. Some share a place with another one.
                for i in 0..count {
                    let id = crate::hash::hash(seed % 2, 0, i / 3 + i % 7) as u32 % nodes;
                    prop_assert_eq!(insert(&mut visited, id), table.insert(id));
                }
            }
        }

        /// Never "met" of an id that was not: that would lose a candidate.
        #[test]
        fn no_new_id_is_called_known(ids in prop::collection::vec(any::<u32>(), 0..3000), narrow in any::<bool>()) {
            let mut visited = Visited::default();
            let nodes = if narrow { 40_000 } else { u32::MAX };
            visited.clear(nodes);
            let mut met = BTreeSet::new();
            for id in ids {
                let id = id % nodes;
                let is_new = met.insert(id);
                prop_assert!(insert(&mut visited, id) || !is_new);
            }
        }
    }
}
