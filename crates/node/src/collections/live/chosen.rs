//! Segments that become one: several that are merged, or one whose payloads alone are written again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use stratann_core::sieve::Sieve;

use super::slot::{Shared, Turn};
use crate::collections::delta::{SegmentState, State};
use crate::segments::{LARGEST, Layout, Level, Merged, Newer, Sized, Source};

/// The payloads of a segment are written again when those of one in so many rows have changed.
const FOLDED_SHARE: u64 = 20;

/// Numbers of segments that a job replaces now.
pub(super) type Taken = BTreeSet<u64>;

/// Segments that become one.
pub(super) struct Chosen {
    pub(super) segments: Vec<SegmentState>,
    pub(super) level: u8,
    /// Whether it is one whose payloads alone are written again.
    pub(super) is_fold: bool,
}

impl Chosen {
    pub(super) fn fold(own: &SegmentState) -> Chosen {
        Chosen { segments: vec![own.clone()], level: own.segment.entry.level, is_fold: true }
    }

    /// Those that a policy has chosen of a state.
    pub(super) fn level(next: Level, state: &State) -> Chosen {
        let segments = next.segments.iter().map(|&at| state.segments[at].clone());
        Chosen { segments: segments.collect(), level: next.level, is_fold: false }
    }

    /// All that are not taken, for the largest level; `None` where there are none.
    pub(super) fn all(all: &[SegmentState], taken: &Taken) -> Option<Chosen> {
        let free = all.iter().filter(|own| !taken.contains(&own.segment.entry.number));
        let segments: Vec<SegmentState> = free.cloned().collect();
        (!segments.is_empty()).then_some(Chosen { segments, level: LARGEST, is_fold: false })
    }

    pub(super) fn sources(self) -> Vec<Source> {
        let is_fold = self.is_fold;
        let of = |own: SegmentState| {
            // Rows keep their places in a fold, so dead ones have one.
            let all = is_fold.then(|| Arc::new(own.segment.all_rows()));
            let left = all.unwrap_or_else(|| own.left.rows().clone());
            Source { left, segment: own.segment, overlay: own.overlay }
        };
        self.segments.into_iter().map(of).collect()
    }
}

/// A segment whose payloads are to be written again: those of one in twenty rows have changed, or newer ones take a
/// quarter of the memory that there is for points.
pub(super) fn to_fold<'a>(shared: &Shared, state: &'a State, taken: &Taken) -> Option<&'a SegmentState> {
    let mut free = state.segments.iter().filter(|own| !taken.contains(&own.segment.entry.number));
    free.find(|own| {
        let count = own.overlay.count();
        let are_many = count >= shared.options.fold_payloads && count * FOLDED_SHARE > own.segment.rows();
        are_many || own.overlay.bytes() > shared.overlay_bytes_max
    })
}

/// Places in a merged segment of rows that died while it was made, ascending.
pub(super) fn died(sources: &[&Source], merged: &Merged, state: &State) -> Vec<u32> {
    let mut dead = Vec::new();
    for (source, ordinals) in sources.iter().zip(&merged.ordinals) {
        let gone = match state.segment(source.segment.entry.number) {
            Some(now) => source.left.intersection(&now.left.rows().complement()),
            None => Sieve::clone(&source.left),
        };
        dead.extend(gone.iter().filter_map(|row| ordinals.get(row as usize).copied()));
    }
    dead.sort_unstable();
    dead
}

/// Payloads of rows of a merged segment that changed while it was made, by ordinal.
pub(super) fn changed(sources: &[&Source], merged: &Merged, state: &State) -> BTreeMap<u32, Newer> {
    let mut newer = BTreeMap::new();
    for (source, ordinals) in sources.iter().zip(&merged.ordinals) {
        let Some(now) = state.segment(source.segment.entry.number) else { continue };
        for (row, own) in now.overlay.iter().filter(|(row, own)| source.overlay.get(*row) != Some(*own)) {
            if let Some(ordinal) = ordinals.get(row as usize).copied().filter(|own| *own != u32::MAX) {
                newer.insert(ordinal, Newer { ordinal, ..own.clone() });
            }
        }
    }
    newer
}

/// A segment as the order of merges sees it.
pub(super) fn sized(own: &SegmentState) -> Sized {
    let left = u64::from(own.left.rows().count());
    Sized { level: own.segment.entry.level, left, dead: own.segment.rows() - left, is_free: true }
}

impl Turn {
    /// A number for a segment that is made now.
    pub(super) fn begin_segment(&mut self) -> u64 {
        let number = self.next_segment.max(1);
        self.next_segment = number + 1;
        self.building.insert(number);
        number
    }

    /// The same for one that takes the place of others.
    pub(super) fn begin_segment_of(&mut self, sources: &[Source]) -> u64 {
        self.take(sources);
        self.begin_segment()
    }

    /// Keeps other jobs from segments.
    pub(super) fn take(&mut self, sources: &[Source]) {
        self.taken.extend(sources.iter().map(|own| own.segment.entry.number));
    }

    /// What the rows will say of the segments of a state, which hold everything up to `watermark`.
    pub(super) fn layout(&self, state: &State, watermark: u64) -> Layout {
        Layout::new(watermark, self.next_segment, state.entries())
    }
}
