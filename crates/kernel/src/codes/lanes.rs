//! Loops over the 256 centroids of a subspace.
//!
//! The loops are plain Rust that the compiler vectorises, once per instruction set. A centroid's value is always summed
//! component by component with separate multiplications and additions, so every instruction set gives the same bits.

use super::CENTROIDS;

/// Table entry of centroid r of a subspace, for the query's part q.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Term {
    /// `‖q − r‖²`
    Squared,
    /// `‖r‖² − 2⟨q, r⟩`
    Residual,
    /// `−⟨q, r⟩`
    MinusDot,
}

/// Compiles the function `$body` for each instruction set and calls the best one.
macro_rules! for_each_isa {
    ($(#[$doc:meta])* $vis:vis fn $name:ident($($arg:ident: $type:ty),*) $(-> $out:ty)? = $body:ident) => {
        $(#[$doc])*
        #[inline]
        $vis fn $name($($arg: $type),*) $(-> $out)? {
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx2,fma")]
                fn avx2($($arg: $type),*) $(-> $out)? {
                    $body($($arg),*)
                }
                #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
                fn avx512($($arg: $type),*) $(-> $out)? {
                    $body($($arg),*)
                }
                match $crate::isa::current() {
                    // SAFETY: `current` names only instruction sets that this machine has.
                    $crate::isa::Isa::Avx512 => return unsafe { avx512($($arg),*) },
                    // SAFETY: as above.
                    $crate::isa::Isa::Avx2 => return unsafe { avx2($($arg),*) },
                    _ => {}
                }
            }
            $body($($arg),*)
        }
    };
}
pub(crate) use for_each_isa;

for_each_isa! {
    /// `out[k]` becomes the term of centroid k; `centroids` is `q.len() × 256`, `out` has 256 floats.
    pub(super) fn terms(term: Term, q: &[f32], centroids: &[f32], out: &mut [f32]) = terms_256
}

for_each_isa! {
    /// `out[k] = (terms[k] − low) × inverse`, rounded; 256 of each. NaN becomes 0.
    pub(super) fn quantise(terms: &[f32], low: f32, inverse: f32, out: &mut [u16]) = quantise_body
}

for_each_isa! {
    /// The smallest and the largest of 256 terms.
    pub(super) fn low_and_high(terms: &[f32]) -> (f32, f32) = low_and_high_body
}

#[inline(always)]
fn terms_256(term: Term, q: &[f32], centroids: &[f32], out: &mut [f32]) {
    if let Some(out) = out.first_chunk_mut::<CENTROIDS>() {
        terms_body(term, q, centroids, out);
    }
}

/// As [`terms`], for K centroids.
#[inline(always)]
pub(super) fn terms_body<const K: usize>(term: Term, q: &[f32], centroids: &[f32], out: &mut [f32; K]) {
    out.fill(0.0);
    for (&x, row) in q.iter().zip(centroids.as_chunks::<K>().0) {
        match term {
            Term::Squared => add(out, row, |r| (x - r) * (x - r)),
            Term::Residual => add(out, row, |r| (r - 2.0 * x) * r),
            Term::MinusDot => add(out, row, |r| -x * r),
        }
    }
}

#[inline(always)]
fn add<const K: usize>(out: &mut [f32; K], row: &[f32; K], f: impl Fn(f32) -> f32) {
    for k in 0..K {
        out[k] += f(row[k]);
    }
}

#[inline(always)]
fn quantise_body(terms: &[f32], low: f32, inverse: f32, out: &mut [u16]) {
    // From 2²³ on a float's last bit is worth 1: the addition rounds, and the low bits are the integer.
    const ROUND: f32 = (1u32 << 23) as f32;
    for (o, t) in out.iter_mut().zip(terms) {
        let x = (t - low) * inverse;
        let x = if x > 0.0 { x } else { 0.0 };
        let x = if x < 65_535.0 { x } else { 65_535.0 };
        *o = (x + ROUND).to_bits() as u16;
    }
}

/// Maps a float to an integer of the same order. Reductions run on integers: their order is free, so the compiler
/// vectorises them.
#[inline(always)]
fn ordered(x: f32) -> i32 {
    let bits = x.to_bits() as i32;
    bits ^ ((bits >> 31) & i32::MAX)
}

#[inline(always)]
fn low_and_high_body(terms: &[f32]) -> (f32, f32) {
    let (mut low, mut high) = (i32::MAX, i32::MIN);
    for &t in terms {
        low = low.min(ordered(t));
        high = high.max(ordered(t));
    }
    // `ordered` is its own inverse.
    let back = |i: i32| f32::from_bits(ordered(f32::from_bits(i as u32)) as u32);
    (back(low), back(high))
}

/// Returns the first of the smallest of 256 squared distances, and that distance. NaN is larger than any number.
#[inline(always)]
pub(super) fn smallest(distances: &[f32; CENTROIDS]) -> (usize, f32) {
    // Non-negative numbers have the order of their bits.
    let mut least = u32::MAX;
    for d in distances {
        least = least.min(d.to_bits());
    }
    let mut first = CENTROIDS as u32 - 1;
    for (k, d) in distances.iter().enumerate() {
        first = first.min(if d.to_bits() == least { k as u32 } else { u32::MAX });
    }
    (first as usize, f32::from_bits(least))
}
