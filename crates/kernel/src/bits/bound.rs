//! Errors of inner products with codes of residuals.
//!
//! Each component of a query differs from its whole number of units by half a unit at most. So `⟨q, s e⟩` differs from
//! what the whole numbers give by half a unit times Σ |s eᵢ| at most, which a code stores in the place of a norm. The
//! scale is used as it is stored, so that its 16 bits cost nothing. What floats add is a thousandth of a unit, and the
//! rounding of the rotation of the query, which is in proportion to its length.
//!
//! After a random rotation these errors are independent and uniformly distributed: a twelfth of a squared unit each.
//! The standard error of their sum is then √(1/12) of a unit times ‖s e‖ (Gao and Long, RaBitQ, SIGMOD 2024, §3.3,
//! have such queries of whole numbers).

use super::layout::{Layout, Segment};
use super::{BitCoder, Rotation, Scaling, Turn, encode, factor};

/// Units by which the floats of a scaled component, of a sum and of a distance can be off: some 2⁻²⁰ of 127.
const OF_FLOATS: f32 = 1e-3;
/// Larger errors are as good as none: distances that may be as far off can overflow.
const LARGEST: f32 = 1e36;
/// Absolute error of products below the smallest normal float: 2⁻¹⁴⁹ for a unit, times the largest sum.
const OF_TINY: f32 = 1e-35;
/// √(1/12).
const UNIFORM: f32 = 0.2887;

/// Mean and root mean square of what the best levels make of normally distributed components, by bits.
const MEANS: [f32; 9] = [0.0, 0.798, 0.8159, 0.8074, 0.8017, 0.7992, 0.7983, 0.798, 0.7979];
const ROOT_MEAN_SQUARES: [f32; 9] = [0.0, 0.798, 0.9387, 0.9811, 0.9942, 0.9982, 0.9995, 0.9999, 1.0];

/// Errors of one query, for codes with Σ |s eᵢ| = 1.
#[derive(Clone, Copy, Debug)]
pub(super) struct Errors {
    most: f32,
    // For codes of length 1.
    deviation: f32,
    // The usual length of codes.
    length: f32,
}

impl Errors {
    /// Those of a query for codes that do not say how long they are.
    pub(super) const UNKNOWN: Errors = Errors { most: f32::INFINITY, deviation: f32::INFINITY, length: 0.0 };

    /// Those of a query whose rotated components are at most `largest`, of this unit and length.
    pub(super) fn of(coder: &BitCoder, (largest, unit, norm): (f32, f32, f32)) -> Errors {
        if coder.scaling != Scaling::Nearest || !norm.is_finite() {
            return Errors::UNKNOWN;
        }
        let layout = &coder.layout;
        let root = |dimensions: usize| (dimensions as f32).sqrt();
        // Without an inverse of the unit all whole numbers are zero.
        let half = if (1.0 / unit).is_finite() { (0.5 + OF_FLOATS) * unit } else { largest };
        let of_rotation = match &coder.turn {
            Turn::Seeded(_) => Rotation::rounding(layout.dim()) * root(layout.dim()) * largest,
            Turn::Basis(_) => product_rounding(layout.dim()) * norm,
        };
        Errors {
            most: (half + of_rotation) * 1.000_01 + f32::MIN_POSITIVE,
            deviation: 2.0 * half * UNIFORM,
            length: length_of_sum(layout),
        }
    }

    /// The largest possible error of a code.
    pub(super) fn most(self, layout: &Layout, code: &[u8]) -> f32 {
        known(self.most * sum(layout, code) + OF_TINY)
    }

    /// The standard error of a code.
    pub(super) fn deviation(self, layout: &Layout, code: &[u8]) -> f32 {
        known(self.deviation * self.length(layout, code))
    }

    /// The length of what a code decodes to, as usual for its Σ |s eᵢ|.
    pub(super) fn length(self, layout: &Layout, code: &[u8]) -> f32 {
        self.length * sum(layout, code)
    }
}

/// An error, or infinity for what is none.
fn known(error: f32) -> f32 {
    if (0.0..LARGEST).contains(&error) { error } else { f32::INFINITY }
}

/// Upper bound of the rounding of a component of a vector of length 1 that is a product with a row of a basis: of
/// sums in 16 lanes, and of their fold.
fn product_rounding(dim: usize) -> f32 {
    (dim as f32 / 16.0 + 8.0) * f32::EPSILON
}

/// ‖e‖ over Σ |eᵢ| of normally distributed components, which vary in each segment as its bits are best for.
fn length_of_sum(layout: &Layout) -> f32 {
    let deviation = |s: &Segment| (1u32 << s.shift) as f32 / encode::BEST_STEP[s.bits];
    let over = |of: fn(f32) -> f32, table: &[f32; 9]| {
        layout.segments().iter().map(|s| s.dims as f32 * of(deviation(s) * table[s.bits])).sum::<f32>()
    };
    over(|x| x * x, &ROOT_MEAN_SQUARES).sqrt() / over(|x| x, &MEANS)
}

/// Σ |s eᵢ| of a code, rounded up.
fn sum(layout: &Layout, code: &[u8]) -> f32 {
    code.get(..layout.factor_bytes()).map_or(f32::INFINITY, factor::read_signed)
}

/// Writes the scale of the nearest multiple of e, for ⟨o, e⟩ = `product`, ‖e‖² = `squared` and Σ |eᵢ| = `sum`, and
/// Σ |s eᵢ|.
pub(super) fn write_factors(layout: &Layout, (product, squared, sum): (f32, f32, f32), code: &mut [u8]) {
    let bytes = layout.factor_bytes();
    let exact = product / squared;
    let scale = factor::round(if exact.is_finite() { exact } else { 0.0 }, bytes);
    let scale = if scale.is_finite() { scale } else { 0.0 };
    factor::write_up(scale * sum * 1.000_001, &mut code[..bytes]);
    factor::write(scale, &mut code[bytes..2 * bytes]);
}

#[cfg(test)]
mod tests;
