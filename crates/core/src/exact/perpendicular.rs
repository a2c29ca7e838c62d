//! Bounds by a code whose error is perpendicular to it.
//!
//! With q and o for query and vector less the centroid, and h = s e for what a code of bits stands for: h is the
//! multiple of e nearest to o, so o = a h + w with w ⊥ h, and a is 1 up to the rounding of s. Along h the distance of q
//! and o is known. Across it q has √(‖q‖² − ⟨q, h⟩²/‖h‖²), which is less than ‖q − h‖, and w has r at most:
//!
//! `‖q − o‖² ≥ (‖a h‖ − ⟨q, h⟩/‖h‖)² + (√(‖q‖² − ⟨q, h⟩²/‖h‖²) − r)²`,
//!
//! never less than the (‖q − h‖ − r)² of the triangle inequality. ‖a h‖² is ‖o‖² − ‖w‖², of which lists have both.

use stratann_kernel::sqrt;

use super::bounds::ROUNDING;

/// Shorter codes may have scales of fewer digits.
const LENGTH_MIN: f32 = 1e-14;

/// A member's squared l2, as far as its list and its code tell.
#[derive(Clone, Copy, Debug)]
pub(super) struct Known {
    /// The squared distance of the query to the centroid.
    pub(super) base: f32,
    /// Of the member's distance to the centroid.
    pub(super) from_centroid: (f32, f32),
    /// ‖o − h‖, rounded up.
    pub(super) radius: f32,
    /// How much `radius` is rounded up at most.
    pub(super) radius_slack: f32,
    /// ‖h‖² + 2⟨c, h⟩.
    pub(super) term: f32,
    /// Minus the inner product of the whole query and h, and by how much it can be off.
    pub(super) cross: (f32, f32),
    /// The relative rounding of s.
    pub(super) scale_rounding: f32,
}

impl Known {
    /// Lower and upper bound of the squared distance; `None` where they are not known.
    pub(super) fn bounds(&self) -> Option<(f32, f32)> {
        let (least, most) = self.from_centroid;
        let (radius, beta) = (self.radius, self.scale_rounding);
        let radius_least = (radius - self.radius_slack).max(0.0);
        // ‖a h‖² and ‖h‖².
        let squared =
            (least * least - radius * radius, (most * most - radius_least * radius_least) * (1.0 + beta));
        let coded = (squared.0 * (1.0 - 3.0 * beta), squared.1 * (1.0 + 3.0 * beta));
        let length = (sqrt(squared.0.max(0.0)), sqrt(squared.1.max(0.0)));
        let coded_length = (sqrt(coded.0.max(0.0)), sqrt(coded.1.max(0.0)));
        if !(coded_length.0 > LENGTH_MIN && coded_length.1 < f32::INFINITY) {
            return None;
        }
        // ⟨q, h⟩ of the query less the centroid.
        let (cross, error) = self.cross;
        let rounding = error + ROUNDING * (self.base + self.term.abs() + 2.0 * cross.abs() + coded.1);
        let product =
            (0.5 * (coded.0 - self.term) - cross - rounding, 0.5 * (coded.1 - self.term) - cross + rounding);
        // What the query has along h: far or near, whatever the length.
        let over = |product: f32, is_low: bool| {
            product / if (product < 0.0) == is_low { coded_length.0 } else { coded_length.1 }
        };
        let along = (over(product.0, true), over(product.1, false));
        let gap = (length.0 - along.1, length.1 - along.0);
        let nearest_along = gap.0.max(-gap.1).max(0.0);
        let farthest_along = gap.0.abs().max(gap.1.abs());
        let largest = along.0.abs().max(along.1.abs());
        let smallest = along.0.max(-along.1).max(0.0);
        let across = |along: f32, base: f32| sqrt((base - along * along).max(0.0));
        let nearest_across = (across(largest, self.base * (1.0 - ROUNDING)) - radius).max(0.0);
        let farthest_across = across(smallest, self.base * (1.0 + ROUNDING)) + radius;
        let square = |x: f32| x * x;
        let (lower, upper) = (
            square(nearest_along) + square(nearest_across),
            square(farthest_along) + square(farthest_across),
        );
        Some((lower * (1.0 - ROUNDING), upper * (1.0 + ROUNDING)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::{vec, vec::Vec};
    use proptest::prelude::*;
    use stratann_kernel::bits::{BitCoder, Layout};
    use stratann_kernel::coder::{CodeQuery, Coder};

    fn sum(parts: impl Iterator<Item = f64>) -> f64 {
        parts.sum()
    }

    fn squared_l2(a: &[f32], b: &[f32]) -> f64 {
        sum(a.iter().zip(b).map(|(&x, &y)| (f64::from(x) - f64::from(y)).powi(2)))
    }

    /// What a list knows of a residual around a centroid at the origin, and the true squared distance of a query.
    fn known(
        coder: &Coder,
        (query, residual): (&[f32], &[f32]),
        (radius_slack, spread): (f32, f32),
    ) -> (Known, f64) {
        let dim = residual.len();
        let (mut rotated, mut scratch, mut decoded) = (vec![0f32; dim], vec![0f32; dim], vec![0f32; dim]);
        let mut code = vec![0u8; coder.code_bytes()];
        coder.rotate(residual, &mut rotated);
        coder.encode_rotated(&rotated, &mut scratch, &mut code);
        coder.decode_rotated(&code, &mut decoded);
        let zeros = vec![0f32; dim];
        let (lost, length) = (squared_l2(&rotated, &decoded).sqrt(), squared_l2(residual, &zeros).sqrt());
        let mut asked = CodeQuery::default();
        asked.set(coder, query, &mut Vec::new());
        let known = Known {
            base: squared_l2(query, &zeros) as f32,
            from_centroid: (length as f32 * (1.0 - spread), length as f32 * (1.0 + spread)),
            radius: (lost + 1e-6 * length) as f32 + 0.5 * radius_slack,
            radius_slack: radius_slack + 4e-6 * length as f32,
            term: squared_l2(&decoded, &zeros) as f32,
            cross: (asked.to_float(asked.distance(&code)), asked.error_max(&code)),
            scale_rounding: asked.scale_rounding().unwrap_or(0.0),
        };
        (known, squared_l2(query, residual))
    }

    proptest! {
        /// No distance is outside of the bounds: near and far queries, residuals of any scale, radii and distances to
        /// the centroid that are known exactly or hardly.
        #[test]
        fn distances_are_within(
            parts in prop::collection::vec(-1f32..1.0, 80), dim in 1usize..40, bits in 1usize..=8, seed in 0u64..4,
            nearness in 0f32..=1.0, scale in prop_oneof![Just(1f32), Just(1e-9), Just(1e9), Just(300.0)],
            slack in prop_oneof![Just(0f32), Just(0.01), Just(0.5)],
            spread in prop_oneof![Just(1e-6f32), Just(0.01), Just(1.0)],
            outlier in prop_oneof![Just(1f32), Just(1e3)], opposite in any::<bool>(),
        ) {
            let coder = Coder::Bits(BitCoder::of_residuals(Layout::even(dim, bits, 0, false).unwrap(), seed));
            let mut residual: Vec<f32> = parts[..dim].iter().map(|x| x * scale).collect();
            residual[0] *= outlier;
            let sign = if opposite { -1.0 } else { 1.0 };
            let mix = |(&r, &x): (&f32, &f32)| sign * nearness * r + (1.0 - nearness) * x * scale;
            let query: Vec<f32> = residual.iter().zip(&parts[40..]).map(mix).collect();
            let (known, truth) = known(&coder, (&query, &residual), (slack * scale, spread));
            if let Some((lower, upper)) = known.bounds() {
                prop_assert!(f64::from(lower) <= truth * (1.0 + 1e-9) && truth <= f64::from(upper) * (1.0 + 1e-9),
                    "{lower} {truth} {upper} {known:?}");
            }
        }
    }

    /// Where lists know lengths well, the bound lies above that of the triangle inequality.
    #[test]
    fn bounds_are_nearer_than_those_of_the_triangle_inequality() {
        let dim = 64;
        let coder = Coder::Bits(BitCoder::of_residuals(Layout::even(dim, 2, 0, false).unwrap(), 3));
        let wave =
            |phase: f32| (0..dim).map(|i| (0.7 * phase * i as f32 + phase).sin()).collect::<Vec<f32>>();
        let (mut nearer, count) = (0.0, 20);
        for at in 0..count {
            let (residual, other) = (wave(1.0 + at as f32), wave(40.5 + at as f32));
            let query: Vec<f32> = residual.iter().zip(&other).map(|(r, x)| 0.6 * r + 0.6 * x).collect();
            let (known, truth) = known(&coder, (&query, &residual), (0.01, 0.003));
            let (lower, upper) = known.bounds().unwrap();
            let squared = f64::from(known.base + known.term + 2.0 * known.cross.0);
            let triangle = (squared.sqrt() - f64::from(known.radius)).powi(2);
            assert!(f64::from(lower) <= truth && truth <= f64::from(upper));
            nearer += (f64::from(lower) - triangle) / (truth - triangle) / f64::from(count);
        }
        assert!(nearer > 0.1, "{nearer}");
    }
}
