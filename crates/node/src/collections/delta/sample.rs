//! Points of which some stand for the rest.

/// Most payloads that are read of a part.
const SAMPLE: u64 = 256;

/// Points that match for sure, and others of which some were asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Asked {
    /// Those that match for sure.
    pub(crate) sure: u64,
    /// Those of which it is not known, those that were asked included.
    pub(crate) open: u64,
    /// Those that were asked, and how many of them match.
    pub(crate) asked: u64,
    pub(crate) matching: u64,
}

impl Asked {
    /// About how many match, and how many at least and at most.
    pub(crate) fn bounds(&self) -> [u64; 3] {
        let share = self.matching as f64 / self.asked.max(1) as f64;
        let about = self.sure + (self.open as f64 * share).round() as u64;
        [about, self.sure + self.matching, self.sure + self.open - (self.asked - self.matching)]
    }
}

/// At most [`SAMPLE`] of so many, one of each stretch. Which one has no pattern, as what is written may have one.
pub(crate) fn sample<T>(count: u64, all: impl Iterator<Item = T>) -> impl Iterator<Item = T> {
    let step = count.div_ceil(SAMPLE).max(1);
    let is_taken = move |at: u64| {
        let mixed = (at / step + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        at % step == (mixed >> 32) % step
    };
    (0u64..).zip(all).filter(move |(at, _)| is_taken(*at)).map(|(_, own)| own)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_asked_stands_for_the_rest() {
        let asked = Asked { sure: 5, open: 1000, asked: 250, matching: 50 };
        assert_eq!(asked.bounds(), [205, 55, 805]);
        let all = Asked { sure: 0, open: 3, asked: 3, matching: 2 };
        assert_eq!(all.bounds(), [2, 2, 2]);
        assert_eq!(Asked::default().bounds(), [0, 0, 0]);
        for (count, least) in [(0, 0), (1, 1), (256, 256), (257, 128), (1000, 250), (100_000, 255)] {
            let taken: Vec<u64> = sample(count, 0..count).collect();
            assert!((least..=SAMPLE as usize).contains(&taken.len()), "{count}: {}", taken.len());
            // A fifth of what is taken is of any fifth.
            let fifth = taken.iter().filter(|own| *own % 5 == 2).count();
            assert!(count < 1000 || (30..=75).contains(&fifth), "{count}: {fifth}");
        }
    }
}
