//! The set of nodes that a query has scored.

use alloc::vec::Vec;

/// A set of node ids that may forget, but never claims an id that was not inserted: it keeps the last id for each
/// hash value.
///
/// The beam is its own visited set, so meeting a node twice changes nothing; this only spares the code distance,
/// which half of the neighbours of a walk would otherwise be given again. What is forgotten is scored again, so the
/// set needs no room for all.
#[derive(Clone, Debug, Default)]
pub(crate) struct Visited {
    // By the upper bits of the hash, its lower 15 bits, or `EMPTY`.
    tags: Vec<u16>,
    // Bits of an id that matter.
    id_bits: u32,
}

const TAG_BITS: u32 = 15;
const EMPTY: u16 = u16::MAX;

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
        self.tags.clear();
        self.tags.resize(1 << (self.id_bits - TAG_BITS), EMPTY);
    }

    /// Remembers `id`; whether it is new, as far as is remembered.
    #[inline]
    pub(crate) fn insert(&mut self, id: u32) -> bool {
        let hash = id.wrapping_mul(MIX) & (u32::MAX >> (u32::BITS - self.id_bits));
        let tag = hash as u16 & ((1 << TAG_BITS) - 1);
        match self.tags.get_mut((hash >> TAG_BITS) as usize) {
            Some(place) => core::mem::replace(place, tag) != tag,
            None => true,
        }
    }

    /// Remembers all of `ids` and keeps those that are new, in their order. Returns how many are not.
    pub(crate) fn keep_new(&mut self, ids: &mut Vec<u32>) -> usize {
        self.keep(ids, |id| id)
    }

    /// Remembers all of `ids`, and appends those that are new to `new`, in their order.
    pub(crate) fn append_new(&mut self, ids: &[u32], new: &mut Vec<u32>) {
        let mut kept = new.len();
        new.resize(kept + ids.len(), 0);
        for &id in ids {
            new[kept] = id;
            kept += usize::from(self.insert(id));
        }
        new.truncate(kept);
    }

    /// Keeps new ids of a table of ids, by their places in it.
    pub(crate) fn keep_new_of(&mut self, table: &[u32], places: &mut Vec<u32>) -> usize {
        self.keep(places, |place| table[place as usize])
    }

    #[inline(always)]
    fn keep(&mut self, numbers: &mut Vec<u32>, id_of: impl Fn(u32) -> u32) -> usize {
        // Without branches: which ids are new cannot be foreseen, and the look-ups wait for memory.
        let mut kept = 0;
        for i in 0..numbers.len() {
            let number = numbers[i];
            numbers[kept] = number;
            kept += usize::from(self.insert(id_of(number)));
        }
        let repeats = numbers.len() - kept;
        numbers.truncate(kept);
        repeats
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeSet;
    use alloc::vec;
    use proptest::prelude::*;

    #[test]
    fn what_was_just_met_is_known_and_order_is_kept() {
        let mut visited = Visited::default();
        visited.clear(1000);
        let mut ids = vec![5, 9, 5, 7, 9, 1];
        assert_eq!(visited.keep_new(&mut ids), 2);
        assert_eq!(ids, [5, 9, 7, 1]);
        visited.clear(1000);
        assert!(visited.insert(5));
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
            visited.clear(nodes);
            assert_eq!(visited.tags.len(), places, "{nodes}");
            assert_eq!(bytes(u64::from(nodes)), 2 * places as u64);
        }
    }

    proptest! {
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
                prop_assert!(visited.insert(id) || !is_new);
            }
        }
    }
}
