//! Counts of events in little memory: a count–min sketch (Cormode and Muthukrishnan, 2005).

use alloc::vec;
use alloc::vec::Vec;

use crate::hash::hash;

/// Rows of counters.
const DEPTH: usize = 3;
/// Counters of a row. An estimate is too high by more than e / width of all that was counted with a chance of
/// e^-depth: 5 %.
const WIDTH: usize = 1 << 14;

/// Counts of ids, never too low until they saturate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sketch {
    counters: Vec<u16>,
}

impl Default for Sketch {
    fn default() -> Self {
        Sketch { counters: vec![0; DEPTH * WIDTH] }
    }
}

impl Sketch {
    /// Bytes that one takes.
    pub const BYTES: usize = DEPTH * WIDTH * 2;

    fn places(id: u32) -> impl Iterator<Item = usize> {
        (0..DEPTH).map(move |row| row * WIDTH + hash(0, 29 + row as u64, id.into()) as usize % WIDTH)
    }

    /// Counts `id` so many times.
    pub fn add(&mut self, id: u32, times: u16) {
        for place in Self::places(id) {
            self.counters[place] = self.counters[place].saturating_add(times);
        }
    }

    /// Number of times that `id` was counted, or a little more.
    pub fn estimate(&self, id: u32) -> u32 {
        Self::places(id).map(|place| self.counters[place]).min().map_or(0, u32::from)
    }

    /// Takes in what another has counted: the same as if one had counted all.
    pub fn merge(&mut self, other: &Sketch) {
        for (mine, theirs) in self.counters.iter_mut().zip(&other.counters) {
            *mine = mine.saturating_add(*theirs);
        }
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.counters.fill(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeMap;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn never_too_low_and_parts_merge_to_the_whole(ids in prop::collection::vec((any::<u32>(), 1u16..40), 0..600)) {
            let (mut whole, mut parts) = (Sketch::default(), [Sketch::default(), Sketch::default()]);
            let mut exact = BTreeMap::<u32, u32>::new();
            for (i, &(id, times)) in ids.iter().enumerate() {
                whole.add(id, times);
                parts[i % 2].add(id, times);
                *exact.entry(id).or_default() += u32::from(times);
            }
            let [mut merged, other] = parts;
            merged.merge(&other);
            prop_assert_eq!(&merged, &whole);
            let all: u32 = exact.values().sum();
            let mut off = 0;
            for (&id, &count) in &exact {
                prop_assert!(whole.estimate(id) >= count);
                off += usize::from(whole.estimate(id) > count + all / 1000);
            }
            prop_assert!(off * 10 <= exact.len() + 10, "{off} of {}", exact.len());
        }
    }

    #[test]
    fn saturates_rather_than_wraps() {
        let mut sketch = Sketch::default();
        (0..5).for_each(|_| sketch.add(7, u16::MAX / 2));
        assert_eq!(sketch.estimate(7), u32::from(u16::MAX));
        sketch.clear();
        assert_eq!(sketch, Sketch::default());
    }
}
