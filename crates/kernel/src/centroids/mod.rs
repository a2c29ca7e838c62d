//! The nearest centroid of each of many rows: integer products find the few that it can be, exact distances choose.
//!
//! Rows and centroids are moved by the mean of the centroids, scaled so that the longest centroid has a length of 2¹⁴,
//! and rounded to 16 bits. Sums of their products are exact. What rounding does to a product is bounded (Cauchy and
//! Schwarz), as is what the exact distance itself loses to floats. So a centroid that the bounds exclude is not the
//! nearest by exact distances either, and results have the bits of a comparison with all centroids.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod rounding;
mod scores;
#[cfg(test)]
mod tests;

use crate::distance::{block_dot_f32, dot_f32};
use rounding::{Rounded, Rounding};
use scores::{GROUP, Scorer, TILE};

/// Centroids and dimensions from which on integers are faster.
const LEAST_CENTROIDS: usize = 32;
const LEAST_DIM: usize = 24;
/// Centroids whose scores are kept at a time, a multiple of [`GROUP`].
const CHUNK: usize = 512;
/// Rows that are scored at a time at most, and their bytes as integers.
const PANEL: usize = 64;
const PANEL_BYTES: usize = 128 << 10;
/// Products of a tile of floats that stay in a level-2 cache.
const PRODUCTS: usize = 100_000;
/// One centroid in so many may be the nearest of a row before all are compared at once, which takes less a centroid.
const SHARE: usize = 8;

/// No centroid.
pub const NONE: u32 = u32::MAX;

/// A nearest centroid.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Nearest {
    /// Its number; of equally near ones the smallest.
    pub number: u32,
    /// Squared distance, computed as ‖x‖² + (‖c‖² − 2⟨x, c⟩).
    pub distance: f32,
}

/// Centroids, prepared for many rows.
pub struct CentroidTable<'a> {
    centroids: &'a [f32],
    dim: usize,
    /// Squared length of each.
    norms: Vec<f32>,
    /// None where floats are faster, or where integers would tell too little.
    integers: Option<Integers>,
}

/// Centroids as integers.
struct Integers {
    rounding: Rounding,
    scorer: Scorer,
    /// Groups of [`GROUP`] centroids: their components two by two, those of all centroids of a group beside each other.
    groups: Vec<i16>,
    /// Half of the squared length of each centroid. It is so large where a group has no centroid that none is found.
    halves: Vec<i32>,
}

/// Buffers of one thread.
#[derive(Default)]
pub struct Scratch {
    rows: Vec<i16>,
    rounded: Vec<Rounded>,
    scores: Vec<i32>,
    products: Vec<f32>,
    /// Candidates of each row of a panel.
    candidates: Vec<Vec<(i32, u32)>>,
    /// Those of a row, with exact distances.
    scored: Vec<(f32, u32)>,
}

impl<'a> CentroidTable<'a> {
    /// Prepares `centroids` (k × `dim`, row-major).
    pub fn new(centroids: &'a [f32], dim: usize) -> CentroidTable<'a> {
        let norms: Vec<f32> = centroids.chunks_exact(dim.max(1)).map(squared).collect();
        let is_large = norms.len() >= LEAST_CENTROIDS && dim >= LEAST_DIM;
        let integers = is_large.then(|| Integers::new(centroids, dim, Scorer::current())).flatten();
        CentroidTable { centroids, dim, norms, integers }
    }

    /// Rows at a time with which [`nearest`](Self::nearest) is fastest.
    pub fn panel(&self) -> usize {
        match self.integers {
            Some(_) => (PANEL_BYTES / (2 * self.dim)).clamp(TILE, PANEL),
            None => (PRODUCTS / self.norms.len().max(1)).clamp(8, 512),
        }
    }

    /// Finds the nearest centroid of each of `rows` (n × `dim`, row-major). Without centroids it is number 0, at an
    /// infinite distance.
    pub fn nearest(&self, rows: &[f32], scratch: &mut Scratch, out: &mut [Nearest]) {
        if self.dim == 0 {
            return;
        }
        for (rows, out) in rows.chunks(self.panel() * self.dim).zip(out.chunks_mut(self.panel())) {
            match &self.integers {
                Some(integers) => self.nearest_by_integers(integers, rows, scratch, out),
                None => self.nearest_by_floats(rows, &mut scratch.products, out),
            }
        }
    }

    /// Finds the `out.len() / n` nearest centroids of each of `rows` (n × `dim`, row-major), nearest first, of equally
    /// near ones the smaller number. [`NONE`] stands where there are no more.
    pub fn nearest_few(&self, rows: &[f32], scratch: &mut Scratch, out: &mut [u32]) {
        let few = out.len() / (rows.len() / self.dim.max(1)).max(1);
        out.fill(NONE);
        if self.dim == 0 || few == 0 {
            return;
        }
        let outs = out.chunks_mut(self.panel() * few);
        for (rows, out) in rows.chunks(self.panel() * self.dim).zip(outs) {
            if let Some(integers) = &self.integers {
                integers.candidates(rows, (self.norms.len(), few), scratch);
            }
            for (at, (row, out)) in rows.chunks_exact(self.dim).zip(out.chunks_exact_mut(few)).enumerate() {
                self.few_of(at, row, scratch, out);
            }
        }
    }

    /// The nearest centroids of one row, the `at`-th of the last panel.
    fn few_of(&self, at: usize, row: &[f32], scratch: &mut Scratch, out: &mut [u32]) {
        let Scratch { rounded, candidates, products, scored, .. } = scratch;
        let is_bounded = self.integers.is_some() && rounded[at].margin.is_some();
        scored.clear();
        if is_bounded && self.is_few(&candidates[at], out.len()) {
            let score = |c: u32| self.norms[c as usize] - 2.0 * dot_f32(row, self.row_bytes(c as usize));
            scored.extend(candidates[at].iter().map(|&(_, c)| (score(c), c)));
        } else {
            products.resize(self.norms.len(), 0.0);
            block_dot_f32(row, self.centroids, self.dim, products);
            let scores = self.norms.iter().zip(products).map(|(norm, product)| norm - 2.0 * *product);
            scored.extend(scores.zip(0..));
        }
        let by = |a: &(f32, u32), b: &(f32, u32)| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1));
        let keep = out.len().min(scored.len());
        if keep < scored.len() {
            scored.select_nth_unstable_by(keep, by);
        }
        scored[..keep].sort_unstable_by(by);
        out.iter_mut().zip(&scored[..keep]).for_each(|(out, scored)| *out = scored.1);
    }

    /// Whether bounds have excluded so many centroids that exact distances of the others take less time than those of
    /// all.
    fn is_few(&self, found: &[(i32, u32)], wanted: usize) -> bool {
        SHARE * (found.len() + 1).saturating_sub(wanted) <= self.norms.len()
    }

    /// Compares all rows with all centroids.
    fn nearest_by_floats(&self, rows: &[f32], products: &mut Vec<f32>, out: &mut [Nearest]) {
        let count = self.norms.len();
        products.resize(out.len() * count, 0.0);
        block_dot_f32(rows, self.centroids, self.dim, products);
        for (at, (row, out)) in rows.chunks_exact(self.dim).zip(out).enumerate() {
            let products = &products[at * count..][..count];
            *out = self.least(row, products.iter().copied().enumerate());
        }
    }

    fn nearest_by_integers(
        &self,
        table: &Integers,
        rows: &[f32],
        scratch: &mut Scratch,
        out: &mut [Nearest],
    ) {
        table.candidates(rows, (self.norms.len(), 1), scratch);
        let rows = rows.chunks_exact(self.dim).zip(&scratch.rounded);
        for (((row, rounded), found), out) in rows.zip(&mut scratch.candidates).zip(out) {
            if rounded.margin.is_none() || !self.is_few(found, 1) {
                self.nearest_by_floats(row, &mut scratch.products, std::slice::from_mut(out));
                continue;
            }
            let product = |&(_, c): &(i32, u32)| (c as usize, dot_f32(row, self.row_bytes(c as usize)));
            *out = self.least(row, found.iter().map(product));
        }
    }

    /// The nearest of the centroids with these numbers, ascending, and products with `row`.
    #[inline]
    fn least(&self, row: &[f32], products: impl Iterator<Item = (usize, f32)>) -> Nearest {
        let mut best = (0, f32::INFINITY);
        for (c, product) in products {
            let score = self.norms[c] - 2.0 * product;
            if score < best.1 {
                best = (c as u32, score);
            }
        }
        Nearest { number: best.0, distance: (best.1 + squared(row)).max(0.0) }
    }

    fn row_bytes(&self, c: usize) -> &[u8] {
        bytemuck::cast_slice(&self.centroids[c * self.dim..][..self.dim])
    }
}

impl Integers {
    /// `None` where bounds would exclude few centroids: where all are equal, or far from zero.
    fn new(centroids: &[f32], dim: usize, scorer: Scorer) -> Option<Integers> {
        let mut rounding = Rounding::of(centroids, dim)?;
        let width = rounding.width();
        let count = centroids.len() / dim;
        let mut groups = vec![0i16; count.next_multiple_of(GROUP) * width];
        let mut halves = vec![scores::ABSENT; count.next_multiple_of(GROUP)];
        let mut rounded = vec![0i16; width];
        for (c, centroid) in centroids.chunks_exact(dim).enumerate() {
            halves[c] = rounding.round_centroid(centroid, &mut rounded);
            let group = &mut groups[c / GROUP * GROUP * width..][..GROUP * width];
            let pairs = group.chunks_exact_mut(2 * GROUP).zip(rounded.chunks_exact(2));
            pairs.for_each(|(group, pair)| group[c % GROUP * 2..][..2].copy_from_slice(pair));
        }
        Some(Integers { rounding, scorer, groups, halves })
    }

    /// Finds the centroids that may be among the `few` nearest of each row, among the first `count`. They are ascending
    /// where one is looked for.
    fn candidates(&self, rows: &[f32], (count, few): (usize, usize), scratch: &mut Scratch) {
        let (dim, width) = (self.rounding.dim(), self.rounding.width());
        let padded = (rows.len() / dim).next_multiple_of(TILE);
        let Scratch { rows: integers, rounded, scores, candidates, .. } = scratch;
        integers.clear();
        integers.resize(padded * width, 0);
        rounded.clear();
        let moved = rows.chunks_exact(dim).zip(integers.chunks_exact_mut(width));
        rounded.extend(moved.map(|(row, out)| self.rounding.round(row, out)));
        scores.resize(padded * CHUNK, 0);
        candidates.resize(candidates.len().max(rounded.len()), Vec::new());
        candidates.iter_mut().for_each(Vec::clear);
        let mut least = [i32::MAX; PANEL];
        for first in (0..count).step_by(CHUNK) {
            let length = (count - first).min(CHUNK);
            self.score(integers, first, length, scores);
            let each = scores.chunks_exact(CHUNK).zip(rounded.iter()).zip(candidates.iter_mut());
            for (((scores, rounded), found), least) in each.zip(&mut least) {
                if let Some(margin) = rounded.margin {
                    let scores = &scores[..length.next_multiple_of(GROUP)];
                    if few == 1 {
                        *least = scores::smallest(scores).min(*least);
                    }
                    scores::collect(scores, first as u32, least.saturating_add(margin), found);
                    if few > 1 {
                        *least = keep_few(found, (count, few), margin).min(*least);
                    }
                }
            }
        }
        for ((found, rounded), least) in candidates.iter_mut().zip(rounded).zip(least) {
            let most = least.saturating_add(rounded.margin.unwrap_or(0));
            found.retain(|&(score, c)| score <= most && (c as usize) < count);
        }
    }

    /// Scores of all rows for the centroids from `first` on, [`CHUNK`] for each row.
    fn score(&self, rows: &[i16], first: usize, length: usize, scores: &mut [i32]) {
        let width = self.rounding.width();
        for at in (0..length).step_by(GROUP) {
            let group = &self.groups[(first + at) * width..][..GROUP * width];
            let halves: &[i32; GROUP] =
                self.halves[first + at..].first_chunk().unwrap_or(&[scores::ABSENT; GROUP]);
            for (tile, out) in rows.chunks_exact(TILE * width).zip(scores.chunks_exact_mut(TILE * CHUNK)) {
                let results = self.scorer.tile(tile, group, width, halves);
                for (out, results) in out.chunks_exact_mut(CHUNK).zip(&results) {
                    out[at..at + GROUP].copy_from_slice(results);
                }
            }
        }
    }
}

/// Keeps the scores of the first `count` centroids that exceed the `few`-th smallest by `margin` at most. Returns that
/// score; the largest number there is where there are not so many.
fn keep_few(found: &mut Vec<(i32, u32)>, (count, few): (usize, usize), margin: i32) -> i32 {
    found.retain(|&(_, c)| (c as usize) < count);
    if found.len() < few {
        return i32::MAX;
    }
    let least = found.select_nth_unstable(few - 1).1.0;
    found.retain(|&(score, _)| score <= least.saturating_add(margin));
    least
}

/// Squared length.
fn squared(x: &[f32]) -> f32 {
    dot_f32(x, bytemuck::cast_slice(x))
}
