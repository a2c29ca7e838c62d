//! Ranking of candidates by their codes, as a scorer of codes does it. A GPU and this code give equal answers, because
//! distances of codes are integers (FusionANNS §4.1).

use alloc::vec::Vec;

use stratann_kernel::bits::BitQuery;
use stratann_kernel::coder::CodeQuery;

/// Candidates of one query, for a scorer of codes.
#[derive(Clone, Copy, Debug)]
pub struct CodeJob<'s> {
    /// The query as codes are scored with it.
    pub coded: &'s CodeQuery,
    /// Runs of ids: the first id and the number of ids of each.
    pub ranges: &'s [(u32, u32)],
    /// Single ids. They may repeat, and may be in the ranges.
    pub ids: &'s [u32],
    /// Number of the nearest that are kept.
    pub keep: u32,
    /// An id that is not admitted; `u32::MAX` for none.
    pub exclude: u32,
}

impl CodeJob<'_> {
    /// Bytes that go to a GPU: the query, runs and ids.
    pub fn sent_bytes(&self) -> u64 {
        self.query_bytes() + 4 * (2 * self.ranges.len() + self.ids.len()) as u64
    }

    /// Bytes of the query as it goes to a GPU: a float and an integer, the terms of centroids, and a byte for each
    /// component, with zeros up to a whole word. Trained codes are ranked without a GPU.
    pub fn query_bytes(&self) -> u64 {
        let words = |bits: &BitQuery| 2 + bits.terms().len() + bits.layout().dim().div_ceil(4);
        4 * self.coded.bits().map_or(0, words) as u64
    }

    /// Ids that are sent, with repetitions.
    pub fn count(&self) -> u64 {
        self.ranges.iter().map(|&(_, count)| u64::from(count)).sum::<u64>() + self.ids.len() as u64
    }
}

/// The nearest candidates that a scorer of codes found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ranking {
    /// Code distance and id of each, in this order.
    pub nearest: Vec<(u32, u32)>,
    /// Different ids that were scored.
    pub distinct: u64,
}

impl Ranking {
    /// The ranking as it arrives at a query.
    pub fn ranked(&self) -> Ranked<'_> {
        Ranked { nearest: &self.nearest, distinct: self.distinct }
    }

    /// Adds what another scorer found among other ids.
    pub fn merge(&mut self, other: &Ranking, keep: u32) {
        self.nearest.extend_from_slice(&other.nearest);
        self.nearest.sort_unstable();
        self.nearest.truncate(keep as usize);
        self.distinct += other.distinct;
    }
}

/// [`Ranking`], borrowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ranked<'a> {
    /// Code distance and id of each, in this order.
    pub nearest: &'a [(u32, u32)],
    /// Different ids that were scored.
    pub distinct: u64,
}

/// Bytes of each candidate that comes back: its distance and its id.
pub const RANKED_BYTES: u64 = 8;

/// Reusable buffers of [`rank`].
#[derive(Clone, Debug, Default)]
pub struct RankScratch {
    cells: Cells,
    ids: Vec<u32>,
    distances: Vec<u32>,
    // Distance in the upper half, id in the lower one.
    keys: Vec<u64>,
}

/// Sets `out` to the nearest candidates by code distance and id.
/// `codes` are those of the ids from `first` on; other ids are left out.
pub fn rank(job: &CodeJob<'_>, codes: &[u8], first: u32, scratch: &mut RankScratch, out: &mut Ranking) {
    out.nearest.clear();
    let code_bytes = job.coded.code_bytes().max(1);
    let count = (codes.len() / code_bytes).min((u32::MAX - first) as usize) as u32;
    let RankScratch { cells, ids, distances, keys } = scratch;
    distinct_ids(job, (first, count), cells, ids);
    job.coded.distances(codes, ids, distances);
    select(ids, distances, (first, job.keep as usize), keys, &mut out.nearest);
    out.distinct = ids.len() as u64;
}

/// Sets `ids` to the admitted ids of a job that have codes, each once and less `first`.
fn distinct_ids(job: &CodeJob<'_>, (first, count): (u32, u32), cells: &mut Cells, ids: &mut Vec<u32>) {
    let within = |id: u32| id.clamp(first, first + count) - first;
    let runs = job.ranges.iter().map(|&(id, length)| (within(id), within(id.saturating_add(length))));
    let spans = runs.clone().map(|(start, end)| (end - start) as usize / Cells::WIDTH as usize + 2);
    cells.clear((spans.sum::<usize>() + job.ids.len() + 1).min(count as usize / Cells::WIDTH as usize + 1));
    ids.clear();
    ids.resize(job.ids.len(), 0);
    if (first..first + count).contains(&job.exclude) {
        let excluded = job.exclude - first;
        cells.insert(excluded / Cells::WIDTH, 1 << (excluded % Cells::WIDTH));
    }
    // Without branches that depend on what repeats: it cannot be foretold.
    let mut kept = 0;
    for &id in job.ids {
        let Some(id) = id.checked_sub(first).filter(|&id| id < count) else { continue };
        ids[kept] = id;
        kept += usize::from(cells.insert(id / Cells::WIDTH, 1 << (id % Cells::WIDTH)) != 0);
    }
    ids.truncate(kept);
    for (mut start, end) in runs {
        while start < end {
            let (cell, from) = (start / Cells::WIDTH, start % Cells::WIDTH);
            let length = (Cells::WIDTH - from).min(end - start);
            let mut new = cells.insert(cell, (u32::MAX >> (Cells::WIDTH - length)) << from);
            while new != 0 {
                ids.push(cell * Cells::WIDTH + new.trailing_zeros());
                new &= new - 1;
            }
            start += length;
        }
    }
}

/// A set of ids: those of 32 in a row share a place of a hash table with open addressing.
#[derive(Clone, Debug, Default)]
struct Cells {
    // One more than the number of the cell in the upper half, its ids as bits in the lower one; 0 when free.
    places: Vec<u64>,
    shift: u32,
}

impl Cells {
    /// Ids of a cell.
    const WIDTH: u32 = 32;

    /// Empties the set, and makes room for so many cells.
    fn clear(&mut self, cells: usize) {
        let size = (cells + cells / 2).max(2).next_power_of_two();
        self.shift = 32 - size.trailing_zeros().min(31);
        self.places.clear();
        self.places.resize(size, 0);
    }

    /// Adds ids of a cell. Returns those that are new.
    #[inline]
    fn insert(&mut self, cell: u32, bits: u32) -> u32 {
        let mask = self.places.len() - 1;
        let mut at = (cell.wrapping_mul(0x9e37_79b1) >> self.shift) as usize & mask;
        loop {
            let place = self.places[at];
            if (place == 0) | ((place >> 32) as u32 == cell + 1) {
                self.places[at] = place | u64::from(cell + 1) << 32 | u64::from(bits);
                return bits & !(place as u32);
            }
            at = (at + 1) & mask;
        }
    }
}

/// Sets `out` to the nearest `keep` of the ids, which count from `first`.
fn select(
    ids: &[u32],
    distances: &[u32],
    (first, keep): (u32, usize),
    keys: &mut Vec<u64>,
    out: &mut Vec<(u32, u32)>,
) {
    keys.clear();
    if keep == 0 {
        return;
    }
    let room = 2 * keep + 64;
    let mut limit = u64::MAX;
    for (&id, &distance) in ids.iter().zip(distances) {
        let key = u64::from(distance) << 32 | u64::from(id);
        if key >= limit {
            continue;
        }
        keys.push(key);
        if keys.len() == room {
            keys.select_nth_unstable(keep - 1);
            keys.truncate(keep);
            limit = keys[keep - 1];
        }
    }
    if keys.len() > keep {
        keys.select_nth_unstable(keep - 1);
        keys.truncate(keep);
    }
    keys.sort_unstable();
    out.extend(keys.iter().map(|&key| ((key >> 32) as u32, key as u32 + first)));
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeSet;
    use alloc::vec;
    use proptest::prelude::*;
    use stratann_kernel::coder::Coder;
    use stratann_kernel::trained_codes::{CENTROIDS, Codebook};

    fn codebook(ip: bool) -> Codebook {
        let number = |i: usize| (crate::hash::hash(9, ip.into(), i as u64) % 1000) as f32 / 500.0 - 1.0;
        Codebook {
            dim: 6,
            ip,
            rotation: vec![],
            coarse: (0..6).map(number).collect(),
            starts: vec![0, 2, 4, 6],
            centroids: (0..6 * CENTROIDS).map(number).collect(),
            correction_low: 0.0,
            correction_step: 0.0,
        }
    }

    proptest! {
        #[test]
        fn ranks_as_a_plain_sort_does(
            codes in prop::collection::vec(any::<u8>(), 0..900), first in prop_oneof![Just(0u32), 0u32..200],
            ranges in prop::collection::vec((0u32..500, prop_oneof![0u32..40, Just(u32::MAX)]), 0..12),
            ids in prop::collection::vec(prop_oneof![0u32..500, Just(u32::MAX)], 0..300),
            keep in prop_oneof![0u32..5, 0u32..400], exclude in prop_oneof![Just(u32::MAX), 0u32..500], ip: bool,
        ) {
            let mut coded = CodeQuery::default();
            coded.set(&Coder::Trained(codebook(ip)), &[0.3, -0.2, 0.9, 0.1, 0.0, -0.7], &mut vec![]);
            let job = CodeJob { coded: &coded, ranges: &ranges, ids: &ids, keep, exclude };
            let (mut scratch, mut out) = (RankScratch::default(), Ranking { nearest: vec![(7, 7)], distinct: 1 });
            let count = codes.len() as u32 / 3;
            let all: BTreeSet<u32> = ranges
                .iter()
                .flat_map(|&(id, length)| id..id.saturating_add(length).min(1000))
                .chain(ids.iter().copied())
                .filter(|&id| id >= first && id - first < count && id != exclude)
                .collect();
            let mut plain: Vec<(u32, u32)> =
                all.iter().map(|&id| (coded.distance(&codes[3 * (id - first) as usize..]), id)).collect();
            plain.sort_unstable();
            plain.truncate(keep as usize);
            // Twice, with what the first left.
            for _ in 0..2 {
                rank(&job, &codes, first, &mut scratch, &mut out);
                prop_assert_eq!((&out.nearest, out.distinct as usize), (&plain, all.len()));
            }
            // Two scorers that have a part each find the same together.
            let at = 3 * (count as usize / 3);
            let mut other = Ranking::default();
            rank(&job, &codes[..at], first, &mut scratch, &mut out);
            rank(&job, &codes[at..], first + at as u32 / 3, &mut scratch, &mut other);
            out.merge(&other, keep);
            prop_assert_eq!((out.nearest, out.distinct as usize), (plain, all.len()));
        }
    }
}
