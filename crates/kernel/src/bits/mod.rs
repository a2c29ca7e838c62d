//! Compressed vectors: some bits a dimension after a rotation, without a codebook.
//!
//! A vector is rotated, and a centroid near it is subtracted: `o = P x − c`. A code has the number of the centroid,
//! approximates the direction of o by integers eᵢ, each of a few levels around zero, and keeps two factors. The inner
//! product with a rotated query q is estimated without bias by `⟨q, o⟩ ≈ s ⟨q, e⟩` with `s = ‖o‖² / ⟨o, e⟩` (RaBitQ,
//! Gao and Long, SIGMOD 2024, §3.2; for several bits: Gao et al., SIGMOD 2025). The scale of the levels is the one
//! whose e is nearest to the direction of o. So the squared distance is
//!
//! `‖q − c‖² + ‖o‖² + 2 s ⟨c, e⟩ − 2 s ⟨q, e⟩`:
//!
//! a term of the centroid, which is computed once for a query, a norm of the code, and a product. Under inner product
//! it is `−⟨q, c⟩ − s ⟨q, e⟩`. All are relative to the centre of the vectors, which keeps the numbers small.
//!
//! The rotation is one of two. That of a seed makes all dimensions vary alike, and costs `d log d`. A basis of the
//! directions in which residuals vary most costs `d²`, and lets an [`Allocation`] give more bits to the first ones: few
//! bits then rank much better. Within each segment of equally many bits it is followed by a rotation of a seed.
//! (Segments of dimensions after PCA: Li et al., SAQ, SIGMOD 2026.)
//!
//! Codes of residuals in inverted lists have a scale of their own ([`Scaling::Nearest`]): s e is then the nearest to o,
//! and the error of an inner product with it has a bound (`bound.rs`). Codes can also stand for the points s e
//! themselves, with exact distances between them and whole numbers of a query ([`Scaling::Point`], `point.rs`).
//!
//! | bytes | content | when |
//! |---|---|---|
//! | 2 or 4 | the norm, so rounded that a query equal to x has the right distance; of residuals Σ |s eᵢ|, of points ‖s e‖² | always |
//! | 2 or 4 | s | always |
//! | 1 | number of the centroid | there are several |
//! | rest | planes of bits: of each segment, from the most significant ones to the least | always |
//!
//! Coarse codes have factors of 16 bits. A plane has 1, 2, 4 or 8 bits of each of its dimensions, which are divided
//! into as many groups as a byte has room for: byte j has dimension j of every group. So a plane is unpacked by
//! shifts and masks, and each group meets consecutive components of the query.
//!
//! Queries have components of 8 bits, and ⟨q, e⟩ is a sum of integers: equal on every instruction set and in any
//! order. The distance that follows is an f32 of fixed operations, and its key a `u32` in the same order.

mod allocation;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod bound;
mod encode;
mod factor;
mod lanes;
mod layout;
#[cfg(target_arch = "aarch64")]
mod neon;
mod point;
mod query;
#[cfg(target_arch = "x86_64")]
mod registers;
mod rotation;
mod scalar;
mod terms;

pub use allocation::Allocation;
pub use lanes::LaneCodes;
pub use layout::{Extras, Layout, Plane, Segment};
pub use point::{radius, within_reach, write_radius};
pub use query::BitQuery;
pub use rotation::Rotation;

use std::sync::Arc;

use crate::distance::block_dot_f32;

/// Most bits of a dimension.
pub const BITS_MAX: usize = 8;
/// Most dimensions of a vector.
pub const DIM_MAX: usize = 4096;
/// Most bits of all dimensions at which factors have 16 bits: their error is small beside that of the code.
pub const SHORT_BITS: usize = 3;
/// Most centroids.
pub const CENTROIDS_MAX: usize = 256;

/// Relation between s and the vector.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scaling {
    /// ‖o‖² / ⟨o, e⟩: an inner product with a vector is estimated without bias.
    #[default]
    Unbiased,
    /// ⟨o, e⟩ / ‖e‖²: s e is the multiple of e nearest to o, and what is between them is orthogonal to it.
    Nearest,
    /// As `Nearest`. The norm is that of s e, so that a distance is the one to this point.
    Point,
}

/// How vectors are rotated.
#[derive(Clone, Debug, PartialEq)]
enum Turn {
    /// By a seed: all dimensions vary alike afterwards.
    Seeded(Rotation),
    /// By an orthonormal basis of `dim` rows: the first dimensions vary most.
    Basis(Vec<f32>),
}

impl Turn {
    /// Rotates vectors in place, `dim` components each.
    fn apply(&self, vectors: &mut [f32], dim: usize) {
        match self {
            Turn::Seeded(rotation) => vectors.chunks_exact_mut(dim).for_each(|vector| rotation.apply(vector)),
            Turn::Basis(basis) => {
                let before = vectors.to_vec();
                block_dot_f32(&before, basis, dim, vectors);
            }
        }
    }
}

/// All that is needed to encode vectors and to score codes.
#[derive(Clone, Debug, PartialEq)]
pub struct BitCoder {
    layout: Layout,
    // Of the levels, relative to the root mean square of the dimensions that have bits.
    step: f32,
    seed: u64,
    turn: Turn,
    // The centre of the vectors, rotated.
    centre: Vec<f32>,
    // The centroids less the centre, rotated, `dim` components each; empty for the centre alone.
    centroids: Arc<[f32]>,
    ip: bool,
    scaling: Scaling,
}

/// The parts of a coder as a file has them.
#[derive(Clone, Debug)]
pub struct CoderParts {
    /// Bits of a code.
    pub layout: Layout,
    /// Step of the levels, relative to the root mean square of the dimensions that have bits.
    pub step: f32,
    /// Seed of the rotation.
    pub seed: u64,
    /// An orthonormal basis, `dim` rows of `dim` components, or nothing: the rotation is that of the seed.
    pub basis: Vec<f32>,
    /// The centre of the vectors, rotated: `dim` components.
    pub centre: Vec<f32>,
    /// The centroids less the centre, rotated: `dim` components each.
    pub centroids: Vec<f32>,
    /// Whether distances are negative inner products.
    pub ip: bool,
    /// Relation between s and the vector.
    pub scaling: Scaling,
}

impl CoderParts {
    /// Parts without a centre, centroids and a basis.
    fn bare(layout: Layout, step: f32, seed: u64, ip: bool) -> CoderParts {
        let (basis, centre, centroids) = (Vec::new(), Vec::new(), Vec::new());
        CoderParts { layout, step, seed, basis, centre, centroids, ip, scaling: Scaling::Unbiased }
    }
}

impl BitCoder {
    /// A coder for vectors around `centre` (`dim` components, not rotated) and `centroids` (as many each), rotated by
    /// `seed`. With `ip`, distances are negative inner products, otherwise squared l2.
    ///
    /// # Panics
    /// As [`of_parts`](Self::of_parts), or where the layout has more than two segments.
    pub fn new(layout: Layout, seed: u64, centre: &[f32], centroids: &[f32], ip: bool) -> BitCoder {
        BitCoder::around(CoderParts::bare(layout, even_step(&layout), seed, ip), centre, centroids)
    }

    /// As [`new`](Self::new), rotated by a basis whose rows are directions in which the residuals vary less and less
    /// (`dim` rows of `dim` components). Within each segment of `allocation` they are rotated by the seed, so that its
    /// dimensions vary alike.
    ///
    /// # Panics
    /// As [`of_parts`](Self::of_parts).
    pub fn of_basis(
        allocation: &Allocation,
        seed: u64,
        mut basis: Vec<f32>,
        (centre, centroids): (&[f32], &[f32]),
        ip: bool,
    ) -> BitCoder {
        rotate_segments(&allocation.layout, seed, &mut basis);
        let parts = CoderParts { basis, ..CoderParts::bare(allocation.layout, allocation.step, seed, ip) };
        BitCoder::around(parts, centre, centroids)
    }

    /// A coder for residuals, which lie around zero: the distance of a code is minus the inner product of the query and
    /// the nearest `s e`, and has a bound ([`BitQuery::error_max`]). Numbers of centroids are not used.
    ///
    /// # Panics
    /// Where the layout has more than two segments.
    pub fn of_residuals(layout: Layout, seed: u64) -> BitCoder {
        let bare = CoderParts::bare(layout, even_step(&layout), seed, true);
        BitCoder::around(CoderParts { scaling: Scaling::Nearest, ..bare }, &vec![0.0; layout.dim()], &[])
    }

    /// As [`of_residuals`](Self::of_residuals), with a basis as of [`of_basis`](Self::of_basis).
    ///
    /// # Panics
    /// As [`of_parts`](Self::of_parts).
    pub fn of_residuals_by(allocation: &Allocation, seed: u64, mut basis: Vec<f32>) -> BitCoder {
        let layout = allocation.layout;
        rotate_segments(&layout, seed, &mut basis);
        let bare = CoderParts::bare(layout, allocation.step, seed, true);
        BitCoder::around(
            CoderParts { basis, scaling: Scaling::Nearest, ..bare },
            &vec![0.0; layout.dim()],
            &[],
        )
    }

    /// Rotates centre and centroids.
    fn around(mut parts: CoderParts, centre: &[f32], centroids: &[f32]) -> BitCoder {
        let dim = parts.layout.dim();
        let turn = turn_of(&mut parts);
        (parts.centre, parts.centroids) = (centre.to_vec(), centroids.to_vec());
        turn.apply(&mut parts.centre, dim);
        turn.apply(&mut parts.centroids, dim);
        for centroid in parts.centroids.chunks_exact_mut(dim) {
            centroid.iter_mut().zip(&parts.centre).for_each(|(x, c)| *x -= c);
        }
        BitCoder::with(parts, turn)
    }

    /// The coder of these parts.
    ///
    /// # Panics
    /// Where the centre, a centroid or the basis has another number of components than it should, or there are
    /// centroids and codes have no number, or more than [`CENTROIDS_MAX`].
    pub fn of_parts(mut parts: CoderParts) -> BitCoder {
        let turn = turn_of(&mut parts);
        BitCoder::with(parts, turn)
    }

    fn with(parts: CoderParts, turn: Turn) -> BitCoder {
        let CoderParts { layout, step, seed, centre, centroids, ip, scaling, .. } = parts;
        let dim = layout.dim();
        assert_eq!(centre.len(), dim, "a component of the centre for each dimension");
        let most = if layout.is_numbered() { CENTROIDS_MAX } else { 0 };
        let is_whole = centroids.len().is_multiple_of(dim) && centroids.len() <= most * dim;
        assert!(is_whole, "up to {most} whole centroids");
        if let Turn::Basis(basis) = &turn {
            assert_eq!(basis.len(), dim * dim, "a basis of as many rows as there are dimensions");
        }
        BitCoder { layout, step, seed, turn, centre, centroids: centroids.into(), ip, scaling }
    }

    /// Bits of a code.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Step of the levels, relative to the root mean square of the dimensions that have bits.
    pub fn step(&self) -> f32 {
        self.step
    }

    /// Seed of the rotation.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// The basis, `dim` rows of `dim` components; empty where the rotation is that of the seed.
    pub fn basis(&self) -> &[f32] {
        match &self.turn {
            Turn::Seeded(_) => &[],
            Turn::Basis(basis) => basis,
        }
    }

    /// The centre of the vectors, rotated.
    pub fn centre(&self) -> &[f32] {
        &self.centre
    }

    /// The centroids less the centre, rotated.
    pub fn centroids(&self) -> &[f32] {
        &self.centroids
    }

    /// Whether distances are negative inner products.
    pub fn is_ip(&self) -> bool {
        self.ip
    }

    /// Relation between the scale of a code and its vector.
    pub fn scaling(&self) -> Scaling {
        self.scaling
    }

    /// Rotates vectors in place, `dim` components each.
    pub fn rotate(&self, vectors: &mut [f32]) {
        self.turn.apply(vectors, self.layout.dim());
    }

    /// Rotates vectors in place, `dim` components each, and subtracts the centre.
    pub fn place(&self, vectors: &mut [f32]) {
        self.rotate(vectors);
        for vector in vectors.chunks_exact_mut(self.layout.dim()) {
            vector.iter_mut().zip(&self.centre).for_each(|(x, c)| *x -= c);
        }
    }

    /// Encodes a vector that [`place`](Self::place) has placed, which becomes the residual to its centroid. `code` has
    /// [`code_bytes`](Layout::code_bytes) bytes. Ties go to the centroid of the smaller number.
    pub fn encode(&self, placed: &mut [f32], code: &mut [u8]) {
        let (number, centroid) = self.nearest(placed);
        placed.iter_mut().zip(centroid).for_each(|(x, c)| *x -= c);
        if self.layout.is_numbered() {
            code[2 * self.layout.factor_bytes()] = number as u8;
        }
        encode::encode(&self.layout, (self.step, self.scaling), (placed, centroid), code);
    }

    fn nearest(&self, placed: &[f32]) -> (usize, &[f32]) {
        if self.centroids.is_empty() {
            return (0, &[]);
        }
        let (number, _) = crate::nearest::nearest(placed, &self.centroids, self.layout.dim());
        (number, &self.centroids[number * self.layout.dim()..][..self.layout.dim()])
    }

    /// The placed vector that a code stands for: its centroid and `s e`. A number without a centroid stands for the
    /// centre.
    pub fn decode(&self, code: &[u8], out: &mut [f32]) {
        encode::decode(&self.layout, code, out);
        if self.layout.is_numbered() {
            let number = usize::from(code[2 * self.layout.factor_bytes()]);
            if let Some(centroid) = self.centroids.get(number * self.layout.dim()..) {
                out.iter_mut().zip(centroid).for_each(|(x, c)| *x += c);
            }
        }
    }
}

/// The step of levels of dimensions that vary alike.
fn even_step(layout: &Layout) -> f32 {
    assert!(layout.segments().len() <= 2, "dimensions that vary alike have bits in two segments at most");
    // Levels of the last segment are multiples of those of the first, which lie half as far apart.
    let step = |last: &Segment| encode::BEST_STEP[last.bits] / (1u32 << last.shift) as f32;
    layout.segments().last().map_or(1.0, step)
}

/// Rotates the rows of a basis within each segment by a seed.
fn rotate_segments(layout: &Layout, seed: u64, basis: &mut [f32]) {
    let dim = layout.dim();
    for (number, (_, range)) in (0..).zip(layout.ranges()) {
        let rotation = Rotation::new(range.len(), seed.wrapping_add(number));
        let rows = &mut basis[range.start * dim..range.end * dim];
        let mut column = vec![0f32; range.len()];
        for at in 0..dim {
            column.iter_mut().zip(rows.iter().skip(at).step_by(dim)).for_each(|(x, &row)| *x = row);
            rotation.apply(&mut column);
            rows.iter_mut().skip(at).step_by(dim).zip(&column).for_each(|(row, &x)| *row = x);
        }
    }
}

fn turn_of(parts: &mut CoderParts) -> Turn {
    match parts.basis.is_empty() {
        true => Turn::Seeded(Rotation::new(parts.layout.dim(), parts.seed)),
        false => Turn::Basis(std::mem::take(&mut parts.basis)),
    }
}

#[cfg(test)]
mod tests;
