//! Codes that older versions trained: product quantisation after a learned rotation (OPQ), of the residuals of one or
//! more coarse stages. Nothing trains them any more. Indexes that have them are searched as before, and lists that are
//! laid out again keep them. Answers are those of the version that built the index, to the bit; speed is not looked
//! after.
//!
//! A vector x is first rotated, `y = R x`. A coarse stage subtracts the nearest of its centroids and passes the
//! residual to the next stage (residual quantisation, Chen et al., Sensors 2010); the subspaces encode the last
//! residual. A code is
//!
//! | bytes | content | when |
//! |---|---|---|
//! | 1 | number of the first stage's centroid c | `stages() ≥ 1` |
//! | 1 | correction `s`, quantised | `stages() ≥ 1` |
//! | stages − 1 | numbers of the further stages' centroids c₂, c₃ … | `stages() ≥ 2` |
//! | m | for each of the m subspaces the nearest of 256 centroids | always |
//!
//! With r the subspaces' centroids and v = c₂ + c₃ + … + r, the decoded vector is c + v. Its squared distance to a
//! rotated query q is, for any origin o,
//!
//! `‖q − c‖² − 2 Σᵢ ⟨q − o, cᵢ⟩ + Σₘ (‖rₘ‖² − 2⟨(q − o)ₘ, rₘ⟩) + 2⟨c − o, v⟩ + ‖v‖² − ‖r‖²`:
//!
//! one table look-up per byte, and a rest that depends on the code only. That rest is the correction, plus half of ‖y −
//! (c + v)‖², the part of the distance that quantisation loses. (All of it would be right for a query that is
//! independent of y, none of it for a query equal to y; half ranks best in between.) The origin is the first coarse
//! centroid; it keeps the correction small when all vectors are far from zero.
//!
//! Distances in a [`Table`] are integers, so that their sum does not depend on the order of additions.

mod table;

pub use table::Table;

use crate::distance::{block_dot_f32, dot_f32};
use crate::nearest::{nearest, smallest};

/// Centroids of every subspace and of every coarse stage, except for a single coarse centroid.
pub const CENTROIDS: usize = 256;

/// Most coarse stages.
pub const STAGES_MAX: usize = 8;

/// Share of the quantisation loss that the correction restores.
const LOST_WEIGHT: f32 = 0.5;

/// Everything needed to score codes, and to encode vectors. Plain data.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Codebook {
    /// Components of a vector.
    pub dim: usize,
    /// True for inner-product search: tables then hold `−⟨q, c + r⟩` and no correction is stored.
    pub ip: bool,
    /// `dim × dim`, row-major, orthonormal; empty stands for the identity.
    pub rotation: Vec<f32>,
    /// `k × dim` coarse centroids in rotated space. k = 1 is the mean, and takes no byte in a code; up to 256 are one
    /// stage; more are stages of 256 each, one after the other.
    pub coarse: Vec<f32>,
    /// The m + 1 borders of the subspaces: subspace j holds components `starts[j]..starts[j + 1]`.
    pub starts: Vec<u32>,
    /// Subspace after subspace, `width × 256` each: component by component, so that loops over the centroids are
    /// contiguous.
    pub centroids: Vec<f32>,
    /// The correction is `correction_low + correction_step × byte`.
    pub correction_low: f32,
    /// See `correction_low`.
    pub correction_step: f32,
}

impl Codebook {
    /// Number of subspaces, m.
    pub fn subspaces(&self) -> usize {
        self.starts.len().saturating_sub(1)
    }

    /// Number of coarse centroids, over all stages.
    pub fn coarse_count(&self) -> usize {
        self.coarse.len().checked_div(self.dim).unwrap_or(0)
    }

    /// Number of coarse stages that take a byte in a code.
    pub fn stages(&self) -> usize {
        match self.coarse_count() {
            0 | 1 => 0,
            k => k.div_ceil(CENTROIDS),
        }
    }

    /// Bytes that precede the subspaces' bytes in a code: 0, or one more than there are stages.
    pub fn prefix(&self) -> usize {
        match self.stages() {
            0 => 0,
            stages => stages + 1,
        }
    }

    /// Bytes of one code.
    pub fn code_bytes(&self) -> usize {
        self.prefix() + self.subspaces()
    }

    /// The centroids of subspace `j`, `width × 256`: component i of centroid k is at `256 i + k`.
    pub fn subspace(&self, j: usize) -> &[f32] {
        let (start, end) = (self.starts[j] as usize, self.starts[j + 1] as usize);
        &self.centroids[CENTROIDS * start..CENTROIDS * end]
    }

    /// Returns whether all lengths agree with each other. A codebook from a file must be checked before use.
    pub fn is_consistent(&self) -> bool {
        let d = self.dim;
        d > 0
            && (self.rotation.is_empty() || self.rotation.len() == d * d)
            && self.coarse.len().is_multiple_of(d)
            && self.has_whole_stages()
            && self.starts.first() == Some(&0)
            && self.starts.last() == Some(&(d as u32))
            && self.starts.windows(2).all(|w| w[0] < w[1])
            && self.centroids.len() == CENTROIDS * d
            && [&self.rotation, &self.coarse, &self.centroids].into_iter().flatten().all(|x| x.is_finite())
            && self.correction_low.is_finite()
            && self.correction_step.is_finite()
    }

    fn has_whole_stages(&self) -> bool {
        let k = self.coarse_count();
        (1..=CENTROIDS).contains(&k) || (k.is_multiple_of(CENTROIDS) && k <= STAGES_MAX * CENTROIDS && k > 0)
    }

    /// `out = R x`; both have `dim` components.
    pub fn rotate(&self, x: &[f32], out: &mut [f32]) {
        if self.rotation.is_empty() {
            out.copy_from_slice(x);
            return;
        }
        block_dot_f32(x, &self.rotation, self.dim, out);
    }

    /// Encodes a rotated vector. `out` has [`code_bytes`](Self::code_bytes) bytes; `residual` is scratch of `dim`
    /// floats.
    ///
    /// Ties go to the centroid of the smaller number.
    pub fn encode_rotated(&self, y: &[f32], residual: &mut [f32], out: &mut [u8]) {
        residual.copy_from_slice(y);
        if self.stages() == 0 {
            residual.iter_mut().zip(&self.coarse).for_each(|(r, c)| *r -= c);
        }
        for (i, stage) in self.coarse.chunks(CENTROIDS * self.dim).enumerate().take(self.stages()) {
            let (number, _) = nearest(residual, stage, self.dim);
            out[stage_byte(i)] = number as u8;
            residual.iter_mut().zip(&stage[number * self.dim..]).for_each(|(r, c)| *r -= c);
        }
        let lost = self.encode_subspaces(residual, out);
        if self.stages() > 0 {
            out[1] = if self.ip { 0 } else { self.quantise_correction(self.correction(lost, residual, out)) };
        }
    }

    /// Writes the nearest centroid's number for each subspace to `code`, replaces `residual` by these centroids, and
    /// returns the squared distance between the two.
    fn encode_subspaces(&self, residual: &mut [f32], code: &mut [u8]) -> f32 {
        let mut distances = [0f32; CENTROIDS];
        let mut lost = 0f32;
        for (j, byte) in code[self.prefix()..].iter_mut().enumerate().take(self.subspaces()) {
            let subspace = self.subspace(j);
            let part = &mut residual[self.starts[j] as usize..self.starts[j + 1] as usize];
            table::Term::Squared.fill(part, subspace, &mut distances);
            let (best, distance) = smallest(&distances);
            part.iter_mut().zip(subspace.chunks_exact(CENTROIDS)).for_each(|(p, row)| *p = row[best]);
            *byte = best as u8;
            lost += distance;
        }
        lost
    }

    /// The correction of a code before it is quantised; `residual` holds the centroids of its subspaces.
    fn correction(&self, lost: f32, residual: &mut [f32], code: &[u8]) -> f32 {
        let parts = dot_f32(residual, bytemuck::cast_slice(residual));
        for (i, stage) in self.coarse.chunks(CENTROIDS * self.dim).enumerate().skip(1) {
            let centroid = &stage[usize::from(code[stage_byte(i)]) * self.dim..];
            residual.iter_mut().zip(centroid).for_each(|(v, c)| *v += c);
        }
        let v: &[u8] = bytemuck::cast_slice(residual);
        let centre = &self.coarse[usize::from(code[0]) * self.dim..][..self.dim];
        let cross = dot_f32(centre, v) - dot_f32(&self.coarse[..self.dim], v);
        2.0 * cross + (dot_f32(residual, v) - parts) + LOST_WEIGHT * lost
    }

    /// Decodes a code into rotated space.
    pub fn decode_rotated(&self, code: &[u8], out: &mut [f32]) {
        let prefix = self.prefix();
        out.fill(0.0);
        for (i, stage) in self.coarse.chunks(CENTROIDS * self.dim).enumerate() {
            let k = match i {
                _ if prefix == 0 => 0,
                0 => usize::from(code[0]).min(stage.len() / self.dim - 1),
                _ => usize::from(code[stage_byte(i)]),
            };
            out.iter_mut().zip(&stage[k * self.dim..]).for_each(|(o, &x)| *o += x);
        }
        for j in 0..self.subspaces() {
            let part = &mut out[self.starts[j] as usize..self.starts[j + 1] as usize];
            let chosen = self.subspace(j).iter().skip(code[prefix + j] as usize).step_by(CENTROIDS);
            part.iter_mut().zip(chosen).for_each(|(o, &x)| *o += x);
        }
    }

    /// Decodes a stored correction.
    pub fn correction_of(&self, byte: u8) -> f32 {
        self.correction_low + self.correction_step * f32::from(byte)
    }

    fn quantise_correction(&self, s: f32) -> u8 {
        ((s - self.correction_low) / self.correction_step.max(f32::MIN_POSITIVE)).round().clamp(0.0, 255.0)
            as u8
    }
}

/// Position of the byte of stage `i` in a code.
const fn stage_byte(i: usize) -> usize {
    if i == 0 { 0 } else { i + 1 }
}

#[cfg(test)]
mod tests;
