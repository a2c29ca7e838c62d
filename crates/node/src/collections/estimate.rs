//! About how many points match a filter: where an index does not decide, payloads of a sample alone are read.

use std::collections::BTreeSet;
use std::sync::Arc;

use roaring::RoaringBitmap;
use stratann_payload::Predicate;
use stratann_payload::index::Unindexed;

use super::collection::Collection;
use super::delta::{Asked, SegmentState, sample};
use super::error::Result;
use super::sieves::holds_in;

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

impl Collection {
    /// About how many points match. Rows that indexes decide are counted; of the others at most 256 payloads are read
    /// in each segment and in memory.
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
            add(state.asked_of_memory(&self.slot.specs, filter)?);
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
