//! Which segments are merged next.
//!
//! A checkpoint is a segment of level 0, which is scanned. Level 1 is between: three checkpoints become one, or one
//! that has too many rows to be scanned; those of similar size become a larger one. Level 2 is one segment that holds
//! most rows. So each row is written a bounded number of times, and a query has few parts. Minor merges are those into
//! level 1. They go on while the largest segment is merged, which takes long.

use std::ops::RangeInclusive;

use super::layout::LARGEST;

/// Level of a checkpoint.
const CHECKPOINT: u8 = 0;
/// Level between.
const BETWEEN: u8 = 1;
/// Segments of a level before they are merged, unless they have enough rows.
const SEGMENTS_MAX: usize = 3;
/// Segments that are scanned, and together too large for it, before they become one that is not.
const SCANNED_MAX: usize = 6;
/// The upper levels go into the largest segment when they have one in so many of its rows.
const LARGEST_TIMES: u64 = 6;
/// A segment is made again when one in so many of its rows is dead.
const DEAD_SHARE: u64 = 5;

/// A segment as this decides about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sized {
    /// Its level.
    pub(crate) level: u8,
    /// Rows that are left.
    pub(crate) left: u64,
    /// Dead rows.
    pub(crate) dead: u64,
    /// Whether no merge has it now.
    pub(crate) is_free: bool,
}

/// Segments that are merged, and the level of what they become.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Level {
    /// Their places among those that were given.
    pub(crate) segments: Vec<usize>,
    /// Level of the new one.
    pub(crate) level: u8,
}

/// The merge into the largest segment that is due; `None` while none is. `rows_min` is the number of rows from which on
/// a collection has a largest segment.
pub(crate) fn next_merge(all: &[Sized], rows_min: u64) -> Option<Level> {
    let (largest, upper) = (free(all, LARGEST..=LARGEST), free(all, CHECKPOINT..=BETWEEN));
    let is_due = match &largest[..] {
        [] if all.iter().any(|own| own.level == LARGEST) => false,
        [] => left(all, &upper) >= rows_min || upper.len() > SEGMENTS_MAX,
        [one] if is_worn(&all[*one]) => true,
        [one] => upper.len() >= SEGMENTS_MAX && left(all, &upper) * LARGEST_TIMES >= all[*one].left,
        _ => true,
    };
    is_due.then(|| Level { segments: free(all, CHECKPOINT..=LARGEST), level: LARGEST })
}

/// The merge of segments other than the largest that is due; `None` while none is. Checkpoints with more rows
/// than `scanned_max` do not wait for others.
pub(crate) fn next_minor_merge(all: &[Sized], rows_min: u64, scanned_max: u64) -> Option<Level> {
    if next_merge(all, rows_min).is_some() {
        return None;
    }
    let checkpoints = free(all, CHECKPOINT..=CHECKPOINT);
    let are_enough = checkpoints.len() >= SEGMENTS_MAX || left(all, &checkpoints) > scanned_max;
    // Without a larger one, or one that is being made, they wait to become it.
    let is_first = all.iter().all(|own| own.is_free && own.level < LARGEST);
    if are_enough && !is_first {
        return Some(Level { segments: checkpoints, level: BETWEEN });
    }
    let upper = free(all, CHECKPOINT..=BETWEEN);
    if let Some(worn) = upper.into_iter().find(|at| is_worn(&all[*at])) {
        return Some(Level { segments: vec![worn], level: BETWEEN });
    }
    let similar = similar(all);
    let is_scanned = left(all, &similar[..similar.len().min(1)]) <= scanned_max;
    let becomes_graph = is_scanned && left(all, &similar) > scanned_max;
    let count_min = if becomes_graph { SCANNED_MAX } else { SEGMENTS_MAX };
    (similar.len() >= count_min).then_some(Level { segments: similar, level: BETWEEN })
}

/// The smallest segments between of similar size: the next one has no more rows than those before it together, or than
/// twice the smallest.
fn similar(all: &[Sized]) -> Vec<usize> {
    let mut between = free(all, BETWEEN..=BETWEEN);
    between.sort_by_key(|at| all[*at].left);
    let smallest = between.first().map_or(0, |at| all[*at].left);
    let mut rows = 0;
    let is_larger = |at: &usize| {
        let (own, before) = (all[*at].left, rows);
        rows += own;
        own > before.max(2 * smallest)
    };
    let end = between.iter().position(is_larger).unwrap_or(between.len());
    between.truncate(end);
    between
}

fn free(all: &[Sized], levels: RangeInclusive<u8>) -> Vec<usize> {
    (0..all.len()).filter(|at| all[*at].is_free && levels.contains(&all[*at].level)).collect()
}

fn left(all: &[Sized], places: &[usize]) -> u64 {
    places.iter().map(|at| all[*at].left).sum()
}

fn is_worn(own: &Sized) -> bool {
    own.dead * DEAD_SHARE > own.left + own.dead
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROWS_MIN: u64 = 16_000;

    /// What each row costs over a long time of checkpoints of equal size, and the most parts that there were. A merge of
    /// the largest segment takes as long as so many checkpoints.
    fn run(checkpoints: u64, rows: u64, merge_takes: u64) -> (f64, usize) {
        let mut all: Vec<Sized> = Vec::new();
        let (mut written, mut parts) = (0, 0);
        let mut major: Option<(u64, u64)> = None;
        let sized = |level, left| Sized { level, left, dead: 0, is_free: true };
        for now in 0..checkpoints {
            all.push(sized(CHECKPOINT, rows));
            written += rows;
            if let Some((_, left)) = major.take_if(|(end, _)| *end <= now) {
                all.retain(|own| own.is_free);
                all.push(sized(LARGEST, left));
            }
            if let (None, Some(next)) = (major, next_merge(&all, ROWS_MIN)) {
                let rows = left(&all, &next.segments);
                next.segments.iter().for_each(|at| all[*at].is_free = false);
                (written, major) = (written + rows, Some((now + merge_takes, rows)));
            }
            while let Some(next) = next_minor_merge(&all, ROWS_MIN, ROWS_MIN) {
                let rows = left(&all, &next.segments);
                written += rows;
                let mut at = 0;
                all.retain(|_| (at += 1, !next.segments.contains(&(at - 1))).1);
                all.push(sized(next.level, rows));
            }
            parts = parts.max(all.len());
        }
        (written as f64 / (checkpoints * rows) as f64, parts)
    }

    #[test]
    fn rows_are_written_a_few_times_and_parts_stay_few() {
        for (checkpoints, rows, merge_takes) in
            [(30, 32_000, 1), (100, 10_000, 1), (300, 32_000, 1), (300, 65_000, 8)]
        {
            let (times, parts) = run(checkpoints, rows, merge_takes);
            let parts_max = if merge_takes == 1 { 7 } else { 12 };
            assert!(
                times < 10.0 && parts <= parts_max,
                "{times} times, {parts} parts of {checkpoints} of {rows}"
            );
        }
    }

    #[test]
    fn a_segment_with_many_dead_rows_is_made_again() {
        let sized = |level, left, dead| Sized { level, left, dead, is_free: true };
        assert_eq!(next_merge(&[sized(2, 80_000, 20_000)], ROWS_MIN), None);
        let all = Some(Level { segments: vec![0, 1], level: 2 });
        assert_eq!(next_merge(&[sized(2, 79_000, 21_000), sized(0, 10, 0)], ROWS_MIN), all);
        let worn = [sized(2, 90_000, 0), sized(0, 700, 300)];
        assert_eq!(next_merge(&worn, ROWS_MIN), None);
        let one = Some(Level { segments: vec![1], level: 1 });
        assert_eq!(next_minor_merge(&worn, ROWS_MIN, ROWS_MIN), one);
        assert_eq!(next_merge(&[], ROWS_MIN), None);
        assert_eq!(next_merge(&[sized(0, 15_999, 0)], ROWS_MIN), None);
        assert_eq!(next_minor_merge(&[sized(0, 15_999, 0)], ROWS_MIN, ROWS_MIN), None);
        let first = Some(Level { segments: vec![0], level: 2 });
        assert_eq!(next_merge(&[sized(0, 16_000, 0)], ROWS_MIN), first);
    }

    #[test]
    fn checkpoints_and_segments_of_similar_size_are_merged_beside_the_largest() {
        let sized = |level, left| Sized { level, left, dead: 0, is_free: true };
        let minor = |all: &[Sized]| next_minor_merge(all, ROWS_MIN, ROWS_MIN).map(|next| next.segments);
        let taken = |left| Sized { is_free: false, ..sized(LARGEST, left) };
        assert_eq!(minor(&[sized(2, 900_000), sized(0, 16_000)]), None, "it is scanned");
        assert_eq!(minor(&[sized(2, 900_000), sized(0, 16_001)]), Some(vec![1]));
        let many = [sized(2, 900_000), sized(1, 60_000), sized(1, 60_000), sized(0, 60_000)];
        assert_eq!(minor(&many), None, "they go into the largest");
        let beside = [taken(900_000), sized(1, 60_000), sized(1, 60_000), sized(0, 60_000)];
        assert_eq!(minor(&beside), Some(vec![3]), "which is being merged already");
        let three =
            [taken(9_000_000), sized(1, 70_000), sized(1, 200_000), sized(1, 60_000), sized(1, 50_000)];
        assert_eq!(minor(&three), Some(vec![4, 3, 1]), "a larger one would be written too often");
        let scanned = |count| {
            let mut all = vec![taken(9_000_000)];
            all.extend(std::iter::repeat_n(sized(1, 60_000), count));
            next_minor_merge(&all, ROWS_MIN, 100_000).map(|next| next.segments.len())
        };
        assert_eq!([2, 3, 5, 6].map(scanned), [None, None, None, Some(6)], "a graph is made of many");
        let two = [taken(9_000_000), sized(1, 200_000), sized(1, 60_000), sized(1, 60_000)];
        assert_eq!(minor(&two), None);
    }
}
