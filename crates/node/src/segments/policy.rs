//! Which segments are merged next.
//!
//! A checkpoint is a segment of level 0. Level 1 is between, and level 2 is one segment that holds most rows. So each
//! row is written a bounded number of times, and a query has few parts.

/// Level of a checkpoint.
const CHECKPOINT: u8 = 0;
/// Level between.
const BETWEEN: u8 = 1;
/// Level of the largest segment.
const LARGEST: u8 = 2;
/// Segments of a level before they are merged.
const SEGMENTS_MAX: usize = 3;
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
}

/// Segments that are merged, and the level of what they become.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Level {
    /// Their places among those that were given.
    pub(crate) segments: Vec<usize>,
    /// Level of the new one.
    pub(crate) level: u8,
}

/// The next merge of these segments; `None` while none is due. `rows_min` is the number of rows from which on a
/// collection has a largest segment.
pub(crate) fn next_merge(all: &[Sized], rows_min: u64) -> Option<Level> {
    let of = |level: u8| (0..all.len()).filter(move |&at| all[at].level == level).collect::<Vec<_>>();
    let left = |places: &[usize]| places.iter().map(|&at| all[at].left).sum::<u64>();
    let (checkpoints, between, largest) = (of(CHECKPOINT), of(BETWEEN), of(LARGEST));
    let upper = [&checkpoints[..], &between].concat();
    let everything = || Some(Level { segments: (0..all.len()).collect(), level: LARGEST });
    if largest.is_empty() {
        return if left(&upper) >= rows_min || upper.len() > SEGMENTS_MAX {
            everything()
        } else {
            rewritten(all)
        };
    }
    if largest.len() > 1 {
        return everything();
    }
    if checkpoints.len() < SEGMENTS_MAX {
        return rewritten(all);
    }
    if left(&upper) * LARGEST_TIMES >= left(&largest) {
        return everything();
    }
    let segments = if between.len() >= SEGMENTS_MAX { upper } else { checkpoints };
    Some(Level { segments, level: BETWEEN })
}

/// The first segment with too many dead rows.
fn rewritten(all: &[Sized]) -> Option<Level> {
    let is_worn = |own: &Sized| own.dead * DEAD_SHARE > own.left + own.dead;
    let at = all.iter().position(is_worn)?;
    match all[at].level {
        LARGEST => Some(Level { segments: (0..all.len()).collect(), level: LARGEST }),
        level => Some(Level { segments: vec![at], level: level.max(BETWEEN) }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROWS_MIN: u64 = 16_000;

    /// What each row costs over a long time of checkpoints of equal size, and the most parts that there were.
    fn run(checkpoints: u64, rows: u64) -> (f64, usize) {
        let mut all: Vec<Sized> = Vec::new();
        let (mut written, mut parts) = (0, 0);
        for _ in 0..checkpoints {
            all.push(Sized { level: CHECKPOINT, left: rows, dead: 0 });
            written += rows;
            while let Some(next) = next_merge(&all, ROWS_MIN) {
                let left = next.segments.iter().map(|&at| all[at].left).sum();
                written += left;
                let mut at = 0;
                all.retain(|_| (at += 1, !next.segments.contains(&(at - 1))).1);
                all.push(Sized { level: next.level, left, dead: 0 });
            }
            parts = parts.max(all.len());
        }
        (written as f64 / (checkpoints * rows) as f64, parts)
    }

    #[test]
    fn rows_are_written_a_few_times_and_parts_stay_few() {
        for (checkpoints, rows) in [(30, 32_000), (100, 10_000), (300, 32_000)] {
            let (times, parts) = run(checkpoints, rows);
            assert!(times < 10.0 && parts <= 7, "{times} times, {parts} parts of {checkpoints} of {rows}");
        }
    }

    #[test]
    fn a_segment_with_many_dead_rows_is_made_again() {
        let sized = |level, left, dead| Sized { level, left, dead };
        assert_eq!(next_merge(&[sized(2, 80_000, 20_000)], ROWS_MIN), None);
        let all = Some(Level { segments: vec![0, 1], level: 2 });
        assert_eq!(next_merge(&[sized(2, 79_000, 21_000), sized(0, 10, 0)], ROWS_MIN), all);
        let one = Some(Level { segments: vec![1], level: 1 });
        assert_eq!(next_merge(&[sized(2, 90_000, 0), sized(0, 700, 300)], ROWS_MIN), one);
        assert_eq!(next_merge(&[], ROWS_MIN), None);
        assert_eq!(next_merge(&[sized(0, 15_999, 0)], ROWS_MIN), None);
        let first = Some(Level { segments: vec![0], level: 2 });
        assert_eq!(next_merge(&[sized(0, 16_000, 0)], ROWS_MIN), first);
    }
}
