//! Jobs: what a query sends to the device, and what comes back.

use crate::layout::{HEADER_BYTES, RESULT_HEADER_BYTES};
use crate::limits::Limits;
use crate::{Failure, bits};
use stratann_kernel::DType;
use stratann_kernel::bits::BitQuery;

/// The candidates of one query.
#[derive(Clone, Debug, Default)]
pub struct Job {
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
    /// Distance and id, ascending. Distances are keys of `BitQuery`; those of [`Rows`] are ordered as their floats.
    pub nearest: Vec<(u32, u32)>,
    /// Distinct admitted ids that were scored; 0 where none was kept.
    pub distinct: u64,
}

/// A query and the vectors to which its exact distances are wanted.
#[derive(Clone, Debug, PartialEq)]
pub struct Rows {
    /// Type of the query's components and of the rows'.
    pub dtype: DType,
    /// True for minus the inner product, false for the squared Euclidean distance.
    pub ip: bool,
    /// The query, `dim` components as little-endian bytes.
    pub query: Vec<u8>,
    /// Rows of `dim` components each.
    pub rows: Vec<u8>,
    /// Most results.
    pub keep: u32,
}

/// Flag of the inner product in a header's `form`, beside the element type.
const INNER_PRODUCT: u32 = 4;

/// A job in the form in which it is sent.
#[derive(Debug)]
pub(crate) struct Prepared {
    query: Vec<u8>,
    // First id of each range, and how many ids the ranges before it have; ascending and disjoint.
    ranges: Vec<[u32; 2]>,
    range_ids: u32,
    others: Others,
    pub(crate) keep: u32,
    exclude: u32,
}

/// Candidates that are no ranges.
#[derive(Debug)]
enum Others {
    Ids(Vec<u32>),
    Rows { bytes: Vec<u8>, count: u32, form: u32 },
}

fn check_size(what: &'static str, given: u64, limit: u32) -> Result<(), Failure> {
    let limit = u64::from(limit);
    if given > limit { Err(Failure::TooLarge { what, given, limit }) } else { Ok(()) }
}

impl Prepared {
    /// Checks a job and merges its ranges. `None` when nothing can be kept.
    pub(crate) fn new(query: &BitQuery, job: Job, limits: &Limits) -> Result<Option<Prepared>, Failure> {
        limits.check_query(query)?;
        check_size("keep", u64::from(job.keep), limits.keep_max)?;
        let Job { ranges, mut ids, keep, exclude } = job;
        let merged = merge(&ranges, limits.codes_count);
        let total: u64 = ids.len() as u64 + merged.iter().map(|&[first, end]| end - first).sum::<u64>();
        check_size("ids", total, limits.ids_max)?;
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
        let query = bits::encode(query);
        Ok(Some(Prepared { query, ranges, range_ids, others: Others::Ids(ids), keep, exclude }))
    }

    /// Checks a job of vectors. `None` when nothing can be kept.
    pub(crate) fn of_rows(job: Rows, limits: &Limits) -> Result<Option<Prepared>, Failure> {
        let Rows { dtype, ip, query, rows, keep } = job;
        check_size("keep", u64::from(keep), limits.keep_max)?;
        let row_bytes = limits.dim * dtype.size();
        if query.len() != row_bytes || !rows.len().is_multiple_of(row_bytes) {
            let what = format!(
                "a query of {} and rows of {} bytes do not have {} components of {}",
                query.len(),
                rows.len(),
                limits.dim,
                dtype.name()
            );
            return Err(Failure::Query { what });
        }
        let count = (rows.len() / row_bytes) as u64;
        check_size("bytes of rows", rows.len() as u64, limits.rows_bytes_max)?;
        check_size("rows", count, limits.ids_max)?;
        if keep == 0 || count == 0 {
            return Ok(None);
        }
        let form = dtype as u32 | if ip { INNER_PRODUCT } else { 0 };
        let query = if dtype.is_float() {
            let mut floats = vec![0.0; limits.dim];
            stratann_kernel::element::widen(dtype, &query, &mut floats);
            bytemuck::cast_slice(&floats).to_vec()
        } else {
            query
        };
        let others = Others::Rows { bytes: rows, count: count as u32, form };
        Ok(Some(Prepared { query, ranges: Vec::new(), range_ids: 0, others, keep, exclude: u32::MAX }))
    }

    /// Whether the candidates are vectors.
    pub(crate) fn has_vectors(&self) -> bool {
        matches!(self.others, Others::Rows { .. })
    }

    /// Number of candidates, duplicates included.
    pub(crate) fn candidates(&self) -> u32 {
        self.range_ids + self.others_count()
    }

    fn others_count(&self) -> u32 {
        match &self.others {
            Others::Ids(ids) => ids.len() as u32,
            Others::Rows { count, .. } => *count,
        }
    }

    /// Query, ranges, and ids or rows, as they are sent behind the header.
    fn parts(&self) -> [&[u8]; 3] {
        let others = match &self.others {
            Others::Ids(ids) => bytemuck::cast_slice(ids),
            Others::Rows { bytes, .. } => bytes,
        };
        [&self.query, bytemuck::cast_slice(&self.ranges), others]
    }

    /// Bytes that are sent.
    pub(crate) fn input_bytes(&self) -> usize {
        HEADER_BYTES + self.parts().iter().map(|part| part.len()).sum::<usize>()
    }

    /// Bytes that come back.
    pub(crate) fn result_bytes(&self) -> usize {
        RESULT_HEADER_BYTES + 8 * self.keep as usize
    }

    /// Places of the hash table of its ids: two for each.
    fn hash_size(&self) -> u32 {
        if self.has_vectors() { 0 } else { 2 * self.others_count() }
    }

    /// Writes what is sent to the start of `out`; false when it does not fit.
    pub(crate) fn encode(&self, out: &mut [u8]) -> bool {
        let parts = self.parts();
        let query_at = HEADER_BYTES;
        let ranges_at = query_at + parts[0].len();
        let others_at = ranges_at + parts[1].len();
        let (count, form) = match &self.others {
            Others::Ids(ids) => (ids.len() as u32, 0),
            Others::Rows { count, form, .. } => (*count, *form),
        };
        let header: [u32; HEADER_BYTES / 4] = [
            self.ranges.len() as u32,
            self.range_ids,
            count,
            self.keep,
            self.exclude,
            self.hash_size(),
            query_at as u32,
            ranges_at as u32,
            others_at as u32,
            form,
            0,
            0,
        ];
        let Some(mut out) = out.get_mut(..self.input_bytes()) else { return false };
        for part in std::iter::once(bytemuck::cast_slice(&header)).chain(parts) {
            let (head, rest) = out.split_at_mut(part.len());
            head.copy_from_slice(part);
            out = rest;
        }
        true
    }
}

impl Ranked {
    /// Converts a distance of an answer to [`Rows`] to the float that the CPU computes.
    pub fn to_float(distance: u32) -> f32 {
        let ordered = (distance ^ (1 << 31)) as i32;
        f32::from_bits((ordered ^ ((ordered >> 31) & i32::MAX)) as u32)
    }

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
