//! A random rotation in `d log d` steps.

use crate::isa::for_each_isa;

/// Rounds of signs and transforms.
const ROUNDS: usize = 3;

/// An orthonormal map of `dim` components, made from a seed.
///
/// Each of three rounds flips signs at random and applies a Hadamard transform; where the number of components is no
/// power of two, one to the first and one to the last components, of the largest power that fits each, which overlap.
/// (Three rounds of signs and transforms are close to a random rotation: Andoni et al., Practical and Optimal LSH for
/// Angular Distance, 2015, §3.)
#[derive(Clone, Debug, PartialEq)]
pub struct Rotation {
    dim: usize,
    // One or minus one, for each component in each round.
    signs: Vec<f32>,
}

impl Rotation {
    /// The rotation of a seed.
    pub fn new(dim: usize, seed: u64) -> Rotation {
        let sign = |i: usize| if mixed(seed, i as u64) >> 63 == 0 { 1.0 } else { -1.0 };
        Rotation { dim, signs: (0..ROUNDS * dim).map(sign).collect() }
    }

    /// Upper bound of what roundings change of a rotated vector of `dim` components and length 1: half a last place for
    /// each step of the transforms, which keep lengths, and three times that for their scale, in six transforms.
    pub fn rounding(dim: usize) -> f32 {
        6.0 * (dim.max(1).ilog2() as f32 + 3.0) * 0.5 * f32::EPSILON
    }

    /// Rotates a vector in place. One of another length stays as it is.
    pub fn apply(&self, vector: &mut [f32]) {
        if vector.len() == self.dim {
            apply(&self.signs, vector);
        }
    }
}

/// The number at position `at` of a sequence without pattern (SplitMix64).
fn mixed(seed: u64, at: u64) -> u64 {
    let mut x = seed.wrapping_add(at.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

for_each_isa! {
    /// Applies all rounds; `signs` has as many for each as `x` has components.
    fn apply(signs: &[f32], x: &mut [f32]) = apply_body
}

#[inline(always)]
fn apply_body(signs: &[f32], x: &mut [f32]) {
    let dim = x.len();
    if dim == 0 {
        return;
    }
    let window = 1 << dim.ilog2();
    let scale = 1.0 / (window as f32).sqrt();
    for signs in signs.chunks_exact(dim) {
        x.iter_mut().zip(signs).for_each(|(x, sign)| *x *= sign);
        transform(&mut x[..window], scale);
        if window < dim {
            transform(&mut x[dim - window..], scale);
        }
    }
}

/// Components of a register.
const LANES: usize = 16;
/// So many components side by side.
type Lanes = [f32; LANES];

/// The Hadamard transform of a power of two of components, divided by the root of their number.
#[inline(always)]
fn transform(x: &mut [f32], scale: f32) {
    let (rows, rest) = x.as_chunks_mut::<LANES>();
    if rest.is_empty() {
        rows.iter_mut().for_each(|row| *row = within::<8>(within::<4>(within::<2>(within::<1>(*row)))));
        return across(rows, |row| row.map(|x| x * scale));
    }
    // Fewer than a register has.
    let mut half = 1;
    while half < x.len() {
        for block in x.chunks_exact_mut(2 * half) {
            for i in 0..half {
                (block[i], block[i + half]) = (block[i] + block[i + half], block[i] - block[i + half]);
            }
        }
        half *= 2;
    }
    x.iter_mut().for_each(|x| *x *= scale);
}

/// One step over the pairs of a register that are `HALF` apart: sums and differences.
#[inline(always)]
fn within<const HALF: usize>(x: Lanes) -> Lanes {
    let signed: Lanes = core::array::from_fn(|i| if i & HALF == 0 { x[i] } else { -x[i] });
    core::array::from_fn(|i| x[i ^ HALF] + signed[i])
}

/// The steps over pairs of different rows, two at a time to halve the passes over memory, and `last` for each row.
#[inline(always)]
fn across(rows: &mut [Lanes], last: impl Fn(Lanes) -> Lanes) {
    let mut half = 1;
    while 2 * half < rows.len() {
        let is_last = 4 * half == rows.len();
        for block in rows.chunks_exact_mut(4 * half) {
            for i in 0..half {
                let (a, b, c, d) = (block[i], block[i + half], block[i + 2 * half], block[i + 3 * half]);
                let (s, t, u, v) = (sum(a, b), difference(a, b), sum(c, d), difference(c, d));
                let all = [sum(s, u), sum(t, v), difference(s, u), difference(t, v)];
                for (at, row) in all.into_iter().enumerate() {
                    block[i + at * half] = if is_last { last(row) } else { row };
                }
            }
        }
        half *= 4;
    }
    if half < rows.len() {
        for i in 0..half {
            let (a, b) = (rows[i], rows[i + half]);
            (rows[i], rows[i + half]) = (last(sum(a, b)), last(difference(a, b)));
        }
    } else if rows.len() == 1 {
        rows[0] = last(rows[0]);
    }
}

#[inline(always)]
fn sum(a: Lanes, b: Lanes) -> Lanes {
    core::array::from_fn(|i| a[i] + b[i])
}

#[inline(always)]
fn difference(a: Lanes, b: Lanes) -> Lanes {
    core::array::from_fn(|i| a[i] - b[i])
}
