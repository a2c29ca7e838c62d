//! Compressed vectors without training: some bits a dimension after a random rotation.
//!
//! A vector is rotated by a seed, and a centroid near it is subtracted: `o = P x − c`. A code has the number of the
//! centroid, approximates the direction of o by integers eᵢ, each of a few levels around zero, and keeps two factors.
//! The inner product with a rotated query q is estimated without bias by `⟨q, o⟩ ≈ s ⟨q, e⟩` with `s = ‖o‖² / ⟨o, e⟩`
//! (RaBitQ, Gao and Long, SIGMOD 2024, §3.2; for several bits: Gao et al., SIGMOD 2025). The scale of the levels is
//! the one whose e is nearest to the direction of o. So the squared distance is
//!
//! `‖q − c‖² + ‖o‖² + 2 s ⟨c, e⟩ − 2 s ⟨q, e⟩`:
//!
//! a term of the centroid, which is computed once for a query, a norm of the code, and a product. Under inner product
//! it is
//! `−⟨q, c⟩ − s ⟨q, e⟩`. All are relative to the centre of the vectors, which keeps the numbers small.
//!
//! Codes of residuals in inverted lists have a scale of their own ([`Scaling::Nearest`]): s e is then the nearest to o,
//! and the error of an inner product with it has a bound (`bound.rs`).
//!
//! | bytes | content | when |
//! |---|---|---|
//! | 2 or 4 | the norm, so rounded that a query equal to x has the right distance; of residuals Σ ‖s eᵢ‖ | always |
//! | 2 or 4 | s | always |
//! | 1 | number of the centroid | there are several |
//! | rest | planes of bits, from the most significant ones to the least | always |
//!
//! Codes of up to [`SHORT_BITS`] bits have factors of 16 bits. A [`Plane`] has 1, 2, 4 or 8 bits of each of its
//! dimensions, which are divided into as many groups as a byte has room for: byte j has dimension j of every group.
//! So a plane is unpacked by shifts and masks, and each group meets consecutive components of the query.
//!
//! Queries have components of 8 bits, and ⟨q, e⟩ is a sum of integers: equal on every instruction set and in any
//! order. The distance that follows is an f32 of fixed operations, and its key a `u32` in the same order.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod bound;
mod encode;
mod factor;
#[cfg(target_arch = "aarch64")]
mod neon;
mod query;
mod rotation;
mod scalar;

pub use query::BitQuery;
pub use rotation::Rotation;

/// Most bits of a dimension.
pub const BITS_MAX: usize = 8;
/// Most dimensions of a vector.
pub const DIM_MAX: usize = 4096;
/// Most bits of a dimension at which the factors of a code have 16 bits: their error is small beside that of the code.
pub const SHORT_BITS: usize = 3;
/// Most centroids.
pub const CENTROIDS_MAX: usize = 256;
/// Most planes of a code.
const PLANES_MAX: usize = 4;

/// Bits of a code, and their places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    dim: usize,
    // Dimensions that have bits: the first ones after the rotation.
    coded: usize,
    bits: usize,
    // Whether a code has the number of a centroid.
    numbered: bool,
    // Dimensions, from the first on, that have one bit more.
    finer: usize,
    planes: [Plane; PLANES_MAX],
    count: usize,
}

/// Bits of equal weight of a prefix of the dimensions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Plane {
    /// Bits of each dimension: 1, 2, 4 or 8.
    width: u32,
    /// The unit of these bits within a level: they count `1 << shift` each.
    shift: u32,
    /// Dimensions.
    dims: usize,
    /// First byte within a code.
    first: usize,
    /// Bytes.
    bytes: usize,
}

impl Layout {
    /// The layout of `bits` bits for each of `dim` dimensions, and one bit more for the first `finer` of them.
    /// `numbered` codes have the number of a centroid.
    ///
    /// `None` for 0 dimensions or bits, more than [`DIM_MAX`] or [`BITS_MAX`], or `finer` dimensions without room for
    /// another bit.
    pub fn new(dim: usize, bits: usize, finer: usize, numbered: bool) -> Option<Layout> {
        let is_valid = (1..=DIM_MAX).contains(&dim)
            && (1..=BITS_MAX).contains(&bits)
            && finer < dim
            && (finer == 0 || bits < BITS_MAX);
        if !is_valid {
            return None;
        }
        let planes = [Plane::default(); PLANES_MAX];
        let mut layout = Layout { dim, coded: dim, bits, numbered, finer, planes, count: 0 };
        let mut left = bits as u32;
        for width in [8, 4, 2, 1] {
            if left >= width {
                left -= width;
                layout.push(width, left + u32::from(finer > 0), dim);
            }
        }
        if finer > 0 {
            layout.push(1, 0, finer);
        }
        Some(layout)
    }

    /// The layout of one bit for each of the first `coded` of `dim` dimensions. After a random rotation they stand
    /// for all.
    ///
    /// `None` for 0 of either, or more than there are.
    pub fn projected(dim: usize, coded: usize, numbered: bool) -> Option<Layout> {
        let all = Layout::new(coded, 1, 0, numbered)?;
        (coded <= dim && dim <= DIM_MAX).then_some(Layout { dim, ..all })
    }

    /// The layout with the most bits whose codes have at most `bytes` bytes; `None` where one bit of eight
    /// dimensions, or of all where they are fewer, does not fit.
    pub fn within(dim: usize, bytes: usize, numbered: bool) -> Option<Layout> {
        let room = bytes.checked_sub(2 * factor_bytes(1) + usize::from(numbered));
        let mut found = room.and_then(|room| Layout::projected(dim, dim.min(8 * room), numbered));
        for bits in 1..=BITS_MAX {
            let Some(whole) =
                Layout::new(dim, bits, 0, numbered).filter(|layout| layout.code_bytes() <= bytes)
            else {
                break;
            };
            let spare = 8 * (bytes - whole.code_bytes());
            let finer = if bits < BITS_MAX && spare < dim { spare } else { 0 };
            let most = Layout::new(dim, bits, finer, numbered);
            found = most.filter(|layout| layout.code_bytes() <= bytes).or(Some(whole));
        }
        found
    }

    /// The layout of one bit of one dimension, before there is another.
    const LEAST: Layout = Layout {
        dim: 1,
        coded: 1,
        bits: 1,
        numbered: false,
        finer: 0,
        planes: [Plane { width: 1, shift: 0, dims: 1, first: 4, bytes: 1 }; PLANES_MAX],
        count: 1,
    };

    fn push(&mut self, width: u32, shift: u32, dims: usize) {
        let (first, bytes) = (self.code_bytes(), (dims * width as usize).div_ceil(8));
        self.planes[self.count] = Plane { width, shift, dims, first, bytes };
        self.count += 1;
    }

    /// Components of a vector.
    pub fn dim(&self) -> usize {
        self.dim
    }

    /// Dimensions that have bits; the others have none.
    pub fn coded(&self) -> usize {
        self.coded
    }

    /// Bits of most dimensions that have any.
    pub fn bits(&self) -> usize {
        self.bits
    }

    /// Whether a code has the number of a centroid.
    pub fn is_numbered(&self) -> bool {
        self.numbered
    }

    /// Dimensions that have one bit more.
    pub fn finer(&self) -> usize {
        self.finer
    }

    /// Bytes of a code, its factors included.
    pub fn code_bytes(&self) -> usize {
        match self.planes().last() {
            Some(last) => last.first + last.bytes,
            None => 2 * self.factor_bytes() + usize::from(self.numbered),
        }
    }

    /// Bytes of each of the two factors.
    fn factor_bytes(&self) -> usize {
        factor_bytes(self.bits)
    }

    fn planes(&self) -> &[Plane] {
        &self.planes[..self.count]
    }

    /// An eᵢ is twice the level that the bits of dimension i count, less this.
    fn offset(&self, dimension: usize) -> i32 {
        let bits = self.bits as u32;
        match (self.finer > 0, dimension < self.finer) {
            (false, _) => (1 << bits) - 1,
            (true, true) => (2 << bits) - 1,
            (true, false) => 2 * ((1 << bits) - 1),
        }
    }
}

/// Relation between s and the vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scaling {
    /// ‖o‖² / ⟨o, e⟩: an inner product with a vector is estimated without bias.
    Unbiased,
    /// ⟨o, e⟩ / ‖e‖²: s e is the multiple of e nearest to o, and what is between them is orthogonal to it.
    Nearest,
}

/// Bytes of each of the two factors.
const fn factor_bytes(bits: usize) -> usize {
    if bits <= SHORT_BITS { 2 } else { 4 }
}

/// All that is needed to encode vectors and to score codes.
#[derive(Clone, Debug, PartialEq)]
pub struct BitCoder {
    layout: Layout,
    seed: u64,
    rotation: Rotation,
    // The centre of the vectors, rotated.
    centre: Vec<f32>,
    // The centroids less the centre, rotated, `dim` components each; empty for the centre alone.
    centroids: Vec<f32>,
    ip: bool,
    scaling: Scaling,
}

impl BitCoder {
    /// A coder for residuals, which lie around zero: the distance of a code is minus the inner product of the query and
    /// the nearest `s e`, and has a bound ([`BitQuery::error_max`]). Numbers of centroids are not used.
    pub fn of_residuals(layout: Layout, seed: u64) -> BitCoder {
        let zero = vec![0.0; layout.dim];
        BitCoder { scaling: Scaling::Nearest, ..BitCoder::of_rotated(layout, seed, zero, Vec::new(), true) }
    }

    /// A coder for vectors around `centre` (`dim` components, not rotated) and `centroids` (as many each). With `ip`,
    /// distances are negative inner products, otherwise squared l2. Equal seeds give equal rotations.
    ///
    /// # Panics Where `centre` or a centroid has another number of components than the layout, or there are centroids
    /// and codes have no number, or more than [`CENTROIDS_MAX`].
    pub fn new(layout: Layout, seed: u64, centre: &[f32], centroids: &[f32], ip: bool) -> BitCoder {
        let rotation = Rotation::new(layout.dim, seed);
        let mut rotated = centre.to_vec();
        rotation.apply(&mut rotated);
        let mut placed = centroids.to_vec();
        for centroid in placed.chunks_mut(layout.dim) {
            rotation.apply(centroid);
            centroid.iter_mut().zip(&rotated).for_each(|(x, c)| *x -= c);
        }
        BitCoder::of_rotated(layout, seed, rotated, placed, ip)
    }

    /// As [`new`](Self::new), with a centre that is rotated already, and centroids from which it is subtracted.
    ///
    /// # Panics
    /// As [`new`](Self::new).
    pub fn of_rotated(
        layout: Layout,
        seed: u64,
        centre: Vec<f32>,
        centroids: Vec<f32>,
        ip: bool,
    ) -> BitCoder {
        assert_eq!(centre.len(), layout.dim, "a component of the centre for each dimension");
        let most = if layout.numbered { CENTROIDS_MAX } else { 0 };
        let is_whole = centroids.len().is_multiple_of(layout.dim) && centroids.len() <= most * layout.dim;
        assert!(is_whole, "up to {most} whole centroids");
        let (rotation, scaling) = (Rotation::new(layout.dim, seed), Scaling::Unbiased);
        BitCoder { layout, seed, rotation, centre, centroids, ip, scaling }
    }

    /// Bits of a code.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Seed of the rotation.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// The rotation.
    pub fn rotation(&self) -> &Rotation {
        &self.rotation
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

    /// Rotates a vector in place, and subtracts the centre.
    pub fn place(&self, vector: &mut [f32]) {
        self.rotation.apply(vector);
        vector.iter_mut().zip(&self.centre).for_each(|(x, c)| *x -= c);
    }

    /// Encodes a vector that [`place`](Self::place) has placed, which becomes the residual to its centroid. `code` has
    /// [`code_bytes`](Layout::code_bytes) bytes. Ties go to the centroid of the smaller number.
    pub fn encode(&self, placed: &mut [f32], code: &mut [u8]) {
        let (number, centroid) = self.nearest(placed);
        placed.iter_mut().zip(centroid).for_each(|(x, c)| *x -= c);
        if self.layout.numbered {
            code[2 * self.layout.factor_bytes()] = number as u8;
        }
        encode::encode(&self.layout, self.scaling, (placed, centroid), code);
    }

    fn nearest(&self, placed: &[f32]) -> (usize, &[f32]) {
        if self.centroids.is_empty() {
            return (0, &[]);
        }
        let (number, _) = crate::codes::nearest(placed, &self.centroids, self.layout.dim);
        (number, &self.centroids[number * self.layout.dim..][..self.layout.dim])
    }

    /// The placed vector that a code stands for: its centroid and `s e`. A number without a centroid stands for the
    /// centre.
    pub fn decode(&self, code: &[u8], out: &mut [f32]) {
        encode::decode(&self.layout, code, out);
        if self.layout.numbered {
            let number = usize::from(code[2 * self.layout.factor_bytes()]);
            if let Some(centroid) = self.centroids.get(number * self.layout.dim..) {
                out.iter_mut().zip(centroid).for_each(|(x, c)| *x += c);
            }
        }
    }
}

#[cfg(test)]
mod tests;
