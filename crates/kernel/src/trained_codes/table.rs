//! Look-up tables of a query over a codebook, and the scoring of codes with them.

use super::{CENTROIDS, Codebook};
use crate::distance::{block_dot_f32, block_l2_f32, dot_f32};

/// Distance in ids at which codes are prefetched.
const PREFETCH_AHEAD: usize = 8;

/// Limit of the sum of the entries, of the coarse term and of the correction, so that their total fits a `u32`.
const TERM_LIMIT: f32 = (1u32 << 30) as f32;

/// Integer look-up tables of one query. Can be rebuilt from the query and the codebook, bit for bit, on any machine.
///
/// Entries are 16 bits over their subspace's minimum; the step is common to all and is the finest at which the widest
/// subspace still fits 16 bits.
#[derive(Clone, Debug, Default)]
pub struct Table {
    // For every byte from the third on (from the first on when there are no stages), 256 entries.
    entries: Vec<u16>,
    // One entry per value of the first byte; all zero when there are no stages.
    coarse: Vec<u32>,
    // One entry per value of the second byte; all zero when codes carry no correction.
    correction: Vec<u32>,
    // Bytes of a code, and how many of them (0 or 2) precede those that `entries` is for.
    code_bytes: usize,
    wide: usize,
    scale: f32,
    offset: f32,
    // Scratch of `set`: the entries before they are quantised.
    floats: Vec<f32>,
}

impl Table {
    /// Fills the tables for `query` (`dim` floats, not rotated). `rotated` is scratch.
    pub fn set(&mut self, codebook: &Codebook, query: &[f32], rotated: &mut Vec<f32>) {
        rotated.clear();
        rotated.resize(codebook.dim, 0.0);
        codebook.rotate(query, rotated);
        self.code_bytes = codebook.code_bytes();
        self.wide = if codebook.stages() > 0 { 2 } else { 0 };
        let coarse = self.coarse_terms(codebook, rotated);
        let correction = self.correction_terms(codebook);
        // Without stages there is one centroid, and the entries contain the whole distance to it.
        let constant = if codebook.ip && self.wide == 0 { -dot(rotated, &codebook.coarse) } else { 0.0 };
        if !codebook.ip {
            rotated.iter_mut().zip(&codebook.coarse).for_each(|(q, o)| *q -= o);
        }
        let spans = self.fill(codebook, rotated);

        // One step for all subspaces.
        let (coarse_low, coarse_range) = low_and_range(&coarse);
        let (correction_low, correction_range) = low_and_range(&correction);
        let widest = spans.iter().fold(0f32, |w, s| w.max(s.1));
        let total: f32 = spans.iter().map(|s| s.1).sum();
        let step = (widest / 65_535.0)
            .max(total / TERM_LIMIT)
            .max(coarse_range / TERM_LIMIT)
            .max(correction_range / TERM_LIMIT);
        self.scale = if step.is_normal() { step } else { 1.0 };
        self.offset = constant + spans.iter().map(|s| s.0).sum::<f32>() + coarse_low + correction_low;
        let inverse = 1.0 / self.scale;
        self.entries.resize(self.floats.len(), 0);
        for (i, &(low, _)) in spans.iter().enumerate() {
            let at = i * CENTROIDS..(i + 1) * CENTROIDS;
            quantise(&self.floats[at.clone()], low, inverse, &mut self.entries[at]);
        }
        quantise_wide(&coarse, coarse_low, inverse, &mut self.coarse);
        quantise_wide(&correction, correction_low, inverse, &mut self.correction);
        // A table lives as long as its query, and many queries are in flight: only the integers are kept.
        self.floats = Vec::new();
    }

    /// Fills `floats` and returns the minimum and range of every subspace. `q` is the rotated query, less the origin
    /// for l2.
    fn fill(&mut self, codebook: &Codebook, q: &[f32]) -> Vec<(f32, f32)> {
        let term = match (codebook.ip, self.wide) {
            (true, _) => Term::MinusDot,
            (false, 0) => Term::Squared,
            (false, _) => Term::Residual,
        };
        self.floats.resize((self.code_bytes - self.wide) * CENTROIDS, 0.0);
        let mut blocks = self.floats.chunks_exact_mut(CENTROIDS);
        let weight = if codebook.ip { -1.0 } else { -2.0 };
        for (stage, block) in codebook.coarse.chunks(CENTROIDS * codebook.dim).skip(1).zip(&mut blocks) {
            block_dot_f32(q, stage, codebook.dim, block);
            block.iter_mut().for_each(|x| *x *= weight);
        }
        for (j, (block, border)) in blocks.zip(codebook.starts.windows(2)).enumerate() {
            term.fill(&q[border[0] as usize..border[1] as usize], codebook.subspace(j), block);
        }
        self.floats.chunks_exact(CENTROIDS).map(low_and_range_of_entries).collect()
    }

    /// The coarse term by first byte of a code; bytes without a centroid stand for the last one.
    fn coarse_terms(&self, codebook: &Codebook, q: &[f32]) -> [f32; 256] {
        let mut terms = [0f32; 256];
        if self.wide > 0 {
            let count = codebook.coarse_count().min(CENTROIDS);
            let rows = &codebook.coarse[..count * codebook.dim];
            let (known, surplus) = terms.split_at_mut(count);
            if codebook.ip {
                block_dot_f32(q, rows, codebook.dim, known);
                known.iter_mut().for_each(|t| *t = -*t);
            } else {
                block_l2_f32(q, rows, codebook.dim, known);
            }
            surplus.fill(known.last().copied().unwrap_or(0.0));
        }
        terms
    }

    fn correction_terms(&self, codebook: &Codebook) -> [f32; 256] {
        let mut terms = [0f32; 256];
        if self.wide > 0 && !codebook.ip {
            for (b, t) in terms.iter_mut().enumerate() {
                *t = codebook.correction_of(b as u8);
            }
        }
        terms
    }

    /// Bytes of a code of the codebook that the tables are for.
    pub fn code_bytes(&self) -> usize {
        self.code_bytes
    }

    /// The integer distance of one code; `u32::MAX` when `code` is shorter than a code.
    pub fn distance(&self, code: &[u8]) -> u32 {
        match code.get(..self.code_bytes) {
            Some(code) => self.sum(code),
            None => u32::MAX,
        }
    }

    /// The integer distances of the codes numbered `ids` in `codes` (`code_bytes` each), in their order.
    /// An id beyond the end of `codes` gets `u32::MAX`. `out` is cleared first.
    pub fn distances(&self, codes: &[u8], ids: &[u32], out: &mut Vec<u32>) {
        let stride = self.code_bytes;
        let count = codes.len().checked_div(stride).unwrap_or(0);
        out.clear();
        for &id in ids.iter().take(PREFETCH_AHEAD) {
            prefetch(codes, id as usize, stride);
        }
        out.extend(ids.iter().enumerate().map(|(i, &id)| {
            if let Some(&ahead) = ids.get(i + PREFETCH_AHEAD) {
                prefetch(codes, ahead as usize, stride);
            }
            let id = id as usize;
            if id < count { self.sum(&codes[id * stride..(id + 1) * stride]) } else { u32::MAX }
        }));
    }

    /// `code` has `code_bytes` bytes.
    #[inline(always)]
    fn sum(&self, code: &[u8]) -> u32 {
        let mut total = 0;
        if self.wide > 0 {
            total = self.coarse[usize::from(code[0])] + self.correction[usize::from(code[1])];
        }
        let blocks = self.entries.as_chunks::<CENTROIDS>().0.iter().zip(&code[self.wide..]);
        total + blocks.map(|(block, &byte)| u32::from(block[usize::from(byte)])).sum::<u32>()
    }

    /// Upper bound of the error of [`to_float`](Self::to_float) of a sum, against the sum of the terms before they
    /// became integers.
    pub fn error_max(&self) -> f32 {
        // Half a step each, and as much again for the rounding of the floats.
        (self.code_bytes + 2) as f32 * self.scale
    }

    /// Converts to a distance of the metric (squared l2, or minus the inner product).
    pub fn to_float(&self, distance: u32) -> f32 {
        distance as f32 * self.scale + self.offset
    }
}

/// Table entry of centroid r of a subspace, for the query's part q.
#[derive(Clone, Copy)]
pub(super) enum Term {
    /// `‖q − r‖²`
    Squared,
    /// `‖r‖² − 2⟨q, r⟩`
    Residual,
    /// `−⟨q, r⟩`
    MinusDot,
}

impl Term {
    /// Fills in the terms of 256 centroids, component by component, so that any machine gives the same bits.
    pub(super) fn fill(self, q: &[f32], centroids: &[f32], out: &mut [f32]) {
        out.fill(0.0);
        for (&x, row) in q.iter().zip(centroids.chunks_exact(CENTROIDS)) {
            let pairs = out.iter_mut().zip(row);
            match self {
                Term::Squared => pairs.for_each(|(out, r)| *out += (x - r) * (x - r)),
                Term::Residual => pairs.for_each(|(out, r)| *out += (r - 2.0 * x) * r),
                Term::MinusDot => pairs.for_each(|(out, r)| *out += -x * r),
            }
        }
    }
}

/// `out[k] = (terms[k] − low) × inverse`, rounded. NaN becomes 0.
fn quantise(terms: &[f32], low: f32, inverse: f32, out: &mut [u16]) {
    // From 2²³ on a float's last bit is worth 1: the addition rounds, and the low bits are the integer.
    const ROUND: f32 = (1u32 << 23) as f32;
    for (o, t) in out.iter_mut().zip(terms) {
        let x = (t - low) * inverse;
        let x = if x > 0.0 { x } else { 0.0 };
        let x = if x < 65_535.0 { x } else { 65_535.0 };
        *o = (x + ROUND).to_bits() as u16;
    }
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    dot_f32(a, bytemuck::cast_slice(b))
}

/// The smallest term of a subspace, and how far the largest is from it.
fn low_and_range_of_entries(terms: &[f32]) -> (f32, f32) {
    let low = terms.iter().copied().min_by(f32::total_cmp).unwrap_or(0.0);
    (low, terms.iter().copied().max_by(f32::total_cmp).unwrap_or(0.0) - low)
}

fn low_and_range(terms: &[f32; 256]) -> (f32, f32) {
    let (low, high) =
        terms.iter().fold((f32::INFINITY, f32::NEG_INFINITY), |(l, h), &t| (l.min(t), h.max(t)));
    (low, high - low)
}

/// At most `TERM_LIMIT` up to rounding, by the choice of the step; NaN becomes 0.
fn quantise_wide(terms: &[f32; 256], low: f32, inverse: f32, out: &mut Vec<u32>) {
    out.clear();
    out.extend(terms.iter().map(|t| ((t - low) * inverse + 0.5).min(TERM_LIMIT) as u32));
}

#[inline]
fn prefetch(codes: &[u8], id: usize, stride: usize) {
    if let Some(code) = id.checked_mul(stride).and_then(|at| codes.get(at..at + stride)) {
        crate::prefetch(code);
    }
}
