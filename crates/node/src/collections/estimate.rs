//! About how many points match a filter: where an index does not decide, payloads of a sample alone are read.

use std::collections::BTreeSet;
use std::sync::Arc;

use roaring::RoaringBitmap;
use stratann_payload::Predicate;
use stratann_payload::index::Unindexed;

use super::collection::Collection;
use super::delta::SegmentState;
use super::error::Result;
use super::sieves::holds_in;

/// Most payloads that are read of a part.
const SAMPLE: u64 = 256;

/// About how many points match a filter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Estimated {
    /// Sequence number of the newest change that is counted.
    pub seq: u64,
    /// About so many points match.
    pub points: u64,
    /// At least so many do.
    pub least: u64,
    /// At most so many do; as many as at least where indexes decide all.
    pub most: u64,
    /// Conditions without an index.
    pub unindexed: Vec<Unindexed>,
    /// Payloads that were read.
    pub payloads: u64,
}

/// Points that match for sure, and others of which some were asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Asked {
    /// Those that match for sure.
    pub(super) sure: u64,
    /// Those of which it is not known, those that were asked included.
    pub(super) open: u64,
    /// Those that were asked, and how many of them match.
    pub(super) asked: u64,
    pub(super) matching: u64,
}

impl Asked {
    /// About how many match, and how many at least and at most.
    fn bounds(&self) -> [u64; 3] {
        let share = self.matching as f64 / self.asked.max(1) as f64;
        let about = self.sure + (self.open as f64 * share).round() as u64;
        [about, self.sure + self.matching, self.sure + self.open - (self.asked - self.matching)]
    }
}

/// At most [`SAMPLE`] of so many, one of each stretch. Which one has no pattern, as what is written may have one.
pub(super) fn sample<T>(count: u64, all: impl Iterator<Item = T>) -> impl Iterator<Item = T> {
    let step = count.div_ceil(SAMPLE).max(1);
    let is_taken = move |at: u64| {
        let mixed = (at / step + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        at % step == (mixed >> 32) % step
    };
    (0u64..).zip(all).filter(move |(at, _)| is_taken(*at)).map(|(_, own)| own)
}

impl Collection {
    /// About how many points match. Rows that indexes decide are counted; of the others in each segment and in memory at
    /// most 256 payloads are read, spread evenly.
    ///
    /// # Errors
    /// As [`Collection::count_matching`].
    pub fn estimate_matching(&self, filter: &Arc<Predicate>) -> Result<Estimated> {
        let state = self.live()?.delta.state();
        let mut all =
            Estimated { seq: state.seq, points: 0, least: 0, most: 0, unindexed: Vec::new(), payloads: 0 };
        let mut unindexed = BTreeSet::new();
        let mut add = |asked: Asked| {
            let [about, least, most] = asked.bounds();
            all.points += about;
            all.least += least;
            all.most += most;
            all.payloads += asked.asked;
        };
        let mut parts = || -> Result<()> {
            add(state.asked_of_memory(filter)?);
            for own in state.segments.iter().filter(|own| own.left.rows().count() > 0) {
                let (of_files, of_newer) = asked_of(own, filter, &mut unindexed)?;
                add(of_files);
                add(of_newer);
            }
            Ok(())
        };
        parts().map_err(|e| e.of_collection(self.name()))?;
        Ok(Estimated { unindexed: unindexed.into_iter().collect(), ..all })
    }
}

/// Rows of the files of a segment, and those with newer payloads.
fn asked_of(
    own: &SegmentState,
    filter: &Predicate,
    unindexed: &mut BTreeSet<Unindexed>,
) -> Result<(Asked, Asked)> {
    let mut evaluated = own.segment.indexed(filter)?;
    unindexed.extend(evaluated.unindexed.iter().cloned());
    let left = own.left.rows();
    let is_whole = left.count() == left.rows() && own.overlay.count() == 0;
    let is_counted = |row: &u32| left.has(*row) && own.overlay.get(*row).is_none();
    let among = |rows: &RoaringBitmap| match is_whole {
        true => rows.clone(),
        false => rows.iter().filter(is_counted).collect(),
    };
    let (sure, open) = (among(&evaluated.sure), among(&evaluated.open));
    let asked: RoaringBitmap = sample(open.len(), open.iter()).collect();
    let mut of_files = Asked { sure: sure.len(), open: open.len(), asked: asked.len(), matching: 0 };
    if !asked.is_empty() {
        (evaluated.sure, evaluated.open) = (RoaringBitmap::new(), asked);
        of_files.matching = own.segment.decided(evaluated, filter)?.len();
    }
    let newer: Vec<_> = own.overlay.iter().filter(|(row, _)| left.has(*row)).collect();
    let mut of_newer = Asked { open: newer.len() as u64, ..Asked::default() };
    for (row, newer) in sample(of_newer.open, newer.into_iter()) {
        of_newer.asked += 1;
        let is_match = holds_in(&own.segment, (row, newer.payload.as_deref()), filter)?;
        of_newer.matching += u64::from(is_match);
    }
    Ok((of_files, of_newer))
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
