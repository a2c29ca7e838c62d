//! Jobs: what a query sends to the device, and what comes back.

use crate::Failure;
use crate::layout::{HEADER_BYTES, Limits, RESULT_HEADER_BYTES};

/// The candidates of one query.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Job {
    /// The query, `dim` floats, not rotated.
    pub query: Vec<f32>,
    /// First id and count of each range of candidates: the vectors of the probed inverted lists. Ranges may overlap.
    pub ranges: Vec<[u32; 2]>,
    /// Further candidates: replicas. They may repeat and may lie in ranges.
    pub ids: Vec<u32>,
    /// Most results.
    pub keep: u32,
    /// The id that is not admitted; `u32::MAX` for none.
    pub exclude: u32,
}

/// The nearest candidates of one query.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ranked {
    /// Distance and id, ascending.
    pub nearest: Vec<(u32, u32)>,
    /// Distinct admitted ids that were scored; 0 where none was kept.
    pub distinct: u64,
}

/// A job in the form in which it is sent.
#[derive(Debug)]
pub(crate) struct Prepared {
    query: Vec<f32>,
    // First id of each range, and how many ids the ranges before it have; ascending and disjoint.
    ranges: Vec<[u32; 2]>,
    range_ids: u32,
    ids: Vec<u32>,
    pub(crate) keep: u32,
    exclude: u32,
}

impl Prepared {
    /// Checks a job and merges its ranges. `None` when nothing can be kept.
    pub(crate) fn new(job: Job, limits: &Limits) -> Result<Option<Prepared>, Failure> {
        if job.keep > limits.keep_max {
            let (given, limit) = (u64::from(job.keep), u64::from(limits.keep_max));
            return Err(Failure::TooLarge { what: "keep", given, limit });
        }
        limits.check_query(&job.query)?;
        let Job { query, ranges, mut ids, keep, exclude } = job;
        let merged = merge(&ranges, limits.codes_count);
        let total: u64 = ids.len() as u64 + merged.iter().map(|&[first, end]| end - first).sum::<u64>();
        if total > u64::from(limits.ids_max) {
            return Err(Failure::TooLarge { what: "ids", given: total, limit: u64::from(limits.ids_max) });
        }
        if keep == 0 || total == 0 {
            return Ok(None);
        }
        let mut ranges = Vec::with_capacity(merged.len());
        let mut range_ids = 0;
        for [first, end] in merged {
            // A range of one id takes more bytes than the id, and would exceed the block.
            if end - first == 1 {
                ids.push(first as u32);
            } else {
                ranges.push([first as u32, range_ids]);
                range_ids += (end - first) as u32;
            }
        }
        Ok(Some(Prepared { query, ranges, range_ids, ids, keep, exclude }))
    }

    /// Number of candidates, duplicates included.
    pub(crate) fn candidates(&self) -> u32 {
        self.range_ids + self.ids.len() as u32
    }

    /// Bytes that are sent.
    pub(crate) fn input_bytes(&self) -> usize {
        HEADER_BYTES + 4 * self.query.len() + 8 * self.ranges.len() + 4 * self.ids.len()
    }

    /// Bytes that come back.
    pub(crate) fn result_bytes(&self) -> usize {
        RESULT_HEADER_BYTES + 8 * self.keep as usize
    }

    /// Writes what is sent to the start of `out`; false when it does not fit.
    pub(crate) fn encode(&self, out: &mut [u8]) -> bool {
        let query_at = HEADER_BYTES;
        let ranges_at = query_at + 4 * self.query.len();
        let ids_at = ranges_at + 8 * self.ranges.len();
        let Some(out) = out.get_mut(..ids_at + 4 * self.ids.len()) else { return false };
        let header: [u32; HEADER_BYTES / 4] = [
            self.ranges.len() as u32,
            self.range_ids,
            self.ids.len() as u32,
            self.keep,
            self.exclude,
            2 * self.ids.len() as u32,
            query_at as u32,
            ranges_at as u32,
            ids_at as u32,
            0,
            0,
            0,
        ];
        out[..query_at].copy_from_slice(bytemuck::cast_slice(&header));
        out[query_at..ranges_at].copy_from_slice(bytemuck::cast_slice(&self.query));
        out[ranges_at..ids_at].copy_from_slice(bytemuck::cast_slice(&self.ranges));
        out[ids_at..].copy_from_slice(bytemuck::cast_slice(&self.ids));
        true
    }
}

impl Ranked {
    /// Decodes what came back for a job that keeps `keep`; `None` when the device wrote something impossible.
    pub(crate) fn decode(bytes: &[u8], keep: u32) -> Option<Ranked> {
        let word = |at: usize| Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?));
        let (count, distinct) = (word(0)?, word(4)?);
        if count != keep.min(distinct) {
            return None;
        }
        let keys = bytes.get(RESULT_HEADER_BYTES..)?.as_chunks::<8>().0.get(..count as usize)?;
        let pair = |key: &[u8; 8]| {
            let key = u64::from_le_bytes(*key);
            ((key >> 32) as u32, key as u32)
        };
        Some(Ranked { nearest: keys.iter().map(pair).collect(), distinct: u64::from(distinct) })
    }
}

/// Returns first id and end of disjoint ascending ranges with the ids of `ranges` below `count`.
fn merge(ranges: &[[u32; 2]], count: u32) -> Vec<[u64; 2]> {
    let clip = |&[first, length]: &[u32; 2]| {
        let end = (u64::from(first) + u64::from(length)).min(u64::from(count));
        (u64::from(first) < end).then_some([u64::from(first), end])
    };
    let mut sorted: Vec<[u64; 2]> = ranges.iter().filter_map(clip).collect();
    sorted.sort_unstable();
    let mut merged: Vec<[u64; 2]> = Vec::with_capacity(sorted.len());
    for [first, end] in sorted {
        match merged.last_mut() {
            Some(last) if first <= last[1] => last[1] = last[1].max(end),
            _ => merged.push([first, end]),
        }
    }
    merged
}

#[cfg(test)]
mod tests {
    use super::merge;

    #[test]
    fn ranges_are_clipped_sorted_and_merged() {
        let ranges =
            [[8, 2], [0, 3], [2, 4], [6, 0], [u32::MAX, u32::MAX], [9, 100], [20, 1], [10, u32::MAX]];
        assert_eq!(merge(&ranges, 15), [[0, 6], [8, 15]]);
        assert_eq!(merge(&ranges, 0), Vec::<[u64; 2]>::new());
    }
}
