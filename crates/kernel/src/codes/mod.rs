//! Compressed vectors: product quantisation with a learned rotation (OPQ), optionally of the residual to a coarse centroid.
//!
//! A vector x is first rotated, `y = R x`. A code is then
//!
//! | bytes | content | when |
//! |---|---|---|
//! | 1 | number of the coarse centroid c | `coarse.len() > dim` |
//! | 1 | correction `s`, quantised | `coarse.len() > dim` |
//! | m | for each of the m subspaces the nearest of 256 centroids of `y − c` | always |
//!
//! The squared distance of a rotated query q to the reconstruction c + r is
//! `‖q − c‖² + Σₘ (‖rₘ‖² − 2⟨qₘ, rₘ⟩) + 2⟨c, r⟩`: a term per coarse centroid, one table look-up per subspace, and a scalar
//! that depends on the code alone. That scalar plus ‖y − (c + r)‖², the part of the distance that quantisation loses, is the stored correction s.
//!
//! Distances in a [`Table`] are integers, so that their sum does not depend on the order of additions.

mod lanes;
mod look_up;
mod table;

pub use table::Table;

/// Centroids of every subspace.
pub const CENTROIDS: usize = 256;

/// Everything that is needed to encode vectors and to score codes. Plain data; made by the engine's training.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Codebook {
    /// Components of a vector.
    pub dim: usize,
    /// True for inner-product search: tables then hold `−⟨q, c + r⟩` and no correction is stored.
    pub ip: bool,
    /// `dim × dim`, row-major, orthonormal; empty stands for the identity.
    pub rotation: Vec<f32>,
    /// `k × dim` coarse centroids in rotated space; k = 1 is the mean, and takes no byte in a code. At most 256.
    pub coarse: Vec<f32>,
    /// The m + 1 borders of the subspaces: subspace j holds components `starts[j]..starts[j + 1]`.
    pub starts: Vec<u32>,
    /// Subspace after subspace, `width × 256` each: component by component, so that loops over the centroids are contiguous.
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

    /// Number of coarse centroids.
    pub fn coarse_count(&self) -> usize {
        if self.dim == 0 { 0 } else { self.coarse.len() / self.dim }
    }

    /// Bytes that precede the subspaces' bytes in a code: 0 or 2.
    pub fn prefix(&self) -> usize {
        if self.coarse_count() > 1 { 2 } else { 0 }
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

    /// True when all lengths agree with each other; a codebook read from a file must be checked before use.
    pub fn is_consistent(&self) -> bool {
        let d = self.dim;
        d > 0
            && (self.rotation.is_empty() || self.rotation.len() == d * d)
            && self.coarse.len().is_multiple_of(d)
            && (1..=256).contains(&self.coarse_count())
            && self.starts.first() == Some(&0)
            && self.starts.last() == Some(&(d as u32))
            && self.starts.windows(2).all(|w| w[0] < w[1])
            && self.centroids.len() == CENTROIDS * d
            && [&self.rotation, &self.coarse, &self.centroids].into_iter().flatten().all(|x| x.is_finite())
            && self.correction_low.is_finite()
            && self.correction_step.is_finite()
    }

    /// `out = R x`; both have `dim` components.
    pub fn rotate(&self, x: &[f32], out: &mut [f32]) {
        if self.rotation.is_empty() {
            out.copy_from_slice(x);
            return;
        }
        for (o, row) in out.iter_mut().zip(self.rotation.chunks_exact(self.dim)) {
            *o = crate::distance::dot_f32(x, bytemuck::cast_slice(row));
        }
    }

    /// Encodes a rotated vector, and returns the correction s before it is quantised. `out` has
    /// [`code_bytes`](Self::code_bytes) bytes; `residual` is scratch of `dim` floats, left holding the chosen centroids.
    ///
    /// Ties go to the centroid of the smaller number.
    pub fn encode_rotated(&self, y: &[f32], residual: &mut [f32], out: &mut [u8]) -> f32 {
        let (c, centre) = self.nearest_coarse(y);
        residual.iter_mut().zip(y).zip(centre).for_each(|((r, &a), &b)| *r = a - b);
        let prefix = self.prefix();
        let lost = quantise_residual(&self.starts, &self.centroids, residual, &mut out[prefix..]);
        let cross = crate::distance::dot_f32(centre, bytemuck::cast_slice(residual));
        let s = 2.0 * cross + lost;
        if prefix > 0 {
            out[0] = c as u8;
            out[1] = if self.ip { 0 } else { self.quantise_correction(s) };
        }
        s
    }

    /// The vector (in rotated space) that a code stands for.
    pub fn decode_rotated(&self, code: &[u8], out: &mut [f32]) {
        let prefix = self.prefix();
        let c = if prefix > 0 { (code[0] as usize).min(self.coarse_count() - 1) } else { 0 };
        out.copy_from_slice(&self.coarse[c * self.dim..(c + 1) * self.dim]);
        for j in 0..self.subspaces() {
            let part = &mut out[self.starts[j] as usize..self.starts[j + 1] as usize];
            let chosen = self.subspace(j).iter().skip(code[prefix + j] as usize).step_by(CENTROIDS);
            part.iter_mut().zip(chosen).for_each(|(o, &x)| *o += x);
        }
    }

    /// The correction that a stored byte stands for.
    pub fn correction_of(&self, byte: u8) -> f32 {
        self.correction_low + self.correction_step * f32::from(byte)
    }

    fn nearest_coarse(&self, y: &[f32]) -> (usize, &[f32]) {
        let c = if self.coarse_count() > 1 { nearest(y, &self.coarse, self.dim).0 } else { 0 };
        (c, &self.coarse[c * self.dim..(c + 1) * self.dim])
    }

    fn quantise_correction(&self, s: f32) -> u8 {
        ((s - self.correction_low) / self.correction_step.max(f32::MIN_POSITIVE)).round().clamp(0.0, 255.0)
            as u8
    }
}

lanes::for_each_isa! {
    /// Writes the nearest centroid's number for each subspace to `code`, replaces `residual` by these centroids, and
    /// returns the squared distance between the two.
    fn quantise_residual(starts: &[u32], centroids: &[f32], residual: &mut [f32], code: &mut [u8]) -> f32 =
        quantise_residual_body
}

#[inline(always)]
fn quantise_residual_body(starts: &[u32], centroids: &[f32], residual: &mut [f32], code: &mut [u8]) -> f32 {
    let mut distances = [0f32; CENTROIDS];
    let mut lost = 0f32;
    for (border, byte) in starts.windows(2).zip(code) {
        let (start, end) = (border[0] as usize, border[1] as usize);
        let subspace = &centroids[CENTROIDS * start..CENTROIDS * end];
        let part = &mut residual[start..end];
        lanes::terms_body(lanes::Term::Squared, part, subspace, &mut distances);
        let (best, distance) = lanes::smallest(&distances);
        part.iter_mut().zip(subspace.chunks_exact(CENTROIDS)).for_each(|(p, row)| *p = row[best]);
        *byte = best as u8;
        lost += distance;
    }
    lost
}

/// The nearest row of `rows` (each `width` floats) to `x`, and its squared distance; ties go to the smaller number.
pub fn nearest(x: &[f32], rows: &[f32], width: usize) -> (usize, f32) {
    let mut best = (0, f32::INFINITY);
    for (i, row) in rows.chunks_exact(width).enumerate() {
        let distance = crate::distance::l2_f32(x, bytemuck::cast_slice(row));
        if distance < best.1 {
            best = (i, distance);
        }
    }
    best
}

#[cfg(test)]
mod tests;
