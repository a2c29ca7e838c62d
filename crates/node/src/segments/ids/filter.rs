//! A Bloom filter over ids (Bloom, 1970): nine bits and six places an id, so one unknown id in seventy seems known.

use xxhash_rust::xxh3::xxh3_128;

/// Bits of an id.
const BITS: u64 = 9;
/// Places of an id.
const PLACES: u64 = 6;

/// Which ids a table may have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Filter {
    words: Vec<u64>,
}

impl Filter {
    /// Words of a filter for so many ids.
    pub(super) fn words_for(ids: u64) -> u64 {
        (ids.saturating_mul(BITS)).div_ceil(64).max(1)
    }

    /// A filter without ids.
    pub(super) fn empty(ids: u64) -> Filter {
        Filter { words: vec![0; Filter::words_for(ids) as usize] }
    }

    /// The filter that these bytes are.
    pub(super) fn from_bytes(bytes: &[u8]) -> Filter {
        Filter { words: bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect() }
    }

    pub(super) fn to_bytes(&self) -> Vec<u8> {
        self.words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    /// Memory, bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.words.len() as u64 * 8
    }

    /// Takes an id in.
    pub(super) fn insert(&mut self, id: &[u8]) {
        for bit in self.places(id) {
            if let Some(word) = self.words.get_mut((bit / 64) as usize) {
                *word |= 1 << (bit % 64);
            }
        }
    }

    /// Whether an id may be there. One that was taken in always may.
    pub(super) fn may_have(&self, id: &[u8]) -> bool {
        self.places(id)
            .all(|bit| self.words.get((bit / 64) as usize).is_some_and(|word| word >> (bit % 64) & 1 == 1))
    }

    fn places(&self, id: &[u8]) -> impl Iterator<Item = u64> + use<> {
        let bits = (self.words.len() as u64 * 64).max(1);
        let hash = xxh3_128(id);
        let (first, step) = (hash as u64, (hash >> 64) as u64 | 1);
        (0..PLACES).map(move |place| first.wrapping_add(step.wrapping_mul(place)) % bits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_that_were_taken_in_may_be_there_and_few_others() {
        let mut filter = Filter::empty(10_000);
        let id = |number: u64| number.to_be_bytes();
        (0..10_000).for_each(|number| filter.insert(&id(number)));
        assert!((0..10_000).all(|number| filter.may_have(&id(number))));
        let wrong = (10_000..110_000).filter(|number| filter.may_have(&id(*number))).count();
        assert!(wrong < 2_500, "{wrong} of 100000");
        assert_eq!(Filter::from_bytes(&filter.to_bytes()), filter);
    }
}
