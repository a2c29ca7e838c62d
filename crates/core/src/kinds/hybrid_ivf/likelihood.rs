//! Likelihood that a cluster holds a member within a threshold, from the distance to its centroid and the mean distance
//! of its members to that.
//!
//! Of a member at distance s from the centroid the direction is unknown. It lies within the threshold when the angle
//! between the ways from the centroid to it and to the query is small enough; the cosine that this takes says how far
//! the cluster is out of reach. In many dimensions such cosines are nearly normal around 0.

use stratann_kernel::{Metric, sqrt};

use crate::exact::BoundEstimator;

/// The cosine that a member of a cluster must have to lie within the threshold; all on the scale of codes. `base` is
/// the distance of the query to the centroid, `spread` the mean squared distance of the members to it.
pub(crate) fn cosine(estimator: &BoundEstimator, base: f32, spread: f32, threshold: f32) -> f32 {
    match estimator.metric() {
        Metric::Ip => cosine_ip(base, estimator.query_norm(), spread, threshold),
        Metric::L2 | Metric::Cosine => cosine_l2(base, spread, threshold),
    }
}

/// Cosines beyond this are alike: no member can be that near.
const COSINE_MAX: f32 = 2.0;

/// The cosine that a member must have, for squared l2: `base` is that of the query to the centroid, `spread` the mean
/// of the members', `threshold` what they must stay below.
fn cosine_l2(base: f32, spread: f32, threshold: f32) -> f32 {
    let reach = 2.0 * sqrt((base * spread).max(0.0));
    let gap = base + spread - threshold;
    if gap < -reach { -1.0 } else { quotient(gap, reach) }
}

/// Cosine for minus the inner product: `base` is that of query and centroid.
fn cosine_ip(base: f32, query_norm: f32, spread: f32, threshold: f32) -> f32 {
    quotient(base - threshold, query_norm * sqrt(spread.max(0.0)))
}

/// Quotient of gap and reach. Where members do not differ from the centroid, they are within or they are not.
fn quotient(gap: f32, reach: f32) -> f32 {
    if gap <= 0.0 {
        return (gap / reach.max(f32::MIN_POSITIVE)).max(-1.0);
    }
    (gap / reach.max(f32::MIN_POSITIVE)).min(COSINE_MAX)
}

/// Dimensions in which directions differ, half of them: the cosine's distribution falls as exp(−c² ·
/// HALF_DIMENSIONS). On texts 30 to 75 order alike; see `decisions/`.
const HALF_DIMENSIONS: f32 = 50.0;

/// The logarithm of how many of `members` to expect within the threshold, but for a constant; more is likelier.
pub(crate) fn log_expected(members: u32, cosine: f32) -> f32 {
    let beyond = cosine.max(0.0);
    ln(members.max(1) as f32) - HALF_DIMENSIONS * beyond * beyond
}

/// A cosine that counts as one fruitless cluster, and the steepness around it. Steepnesses from 6 to 20 do alike on
/// mixtures, photographs and texts; see `decisions/`.
const COSINE_OF_ONE: f32 = 0.5;
const STEEPNESS: f32 = 10.0;

/// The most that one fruitless cluster counts. A cluster of one member is out of reach wherever the query is not at
/// it, which tells nothing of others.
const FRUITLESS_MAX: f32 = 8.0;

/// Weight of a cluster that brought nothing: small where something was to be expected there no less than in others
/// before, large where it was out of reach.
pub(crate) fn fruitless_weight(cosine: f32) -> f32 {
    exp2(core::f32::consts::LOG2_E * STEEPNESS * (cosine - COSINE_OF_ONE)).min(FRUITLESS_MAX)
}

/// 2^x within 2e-4 for x from −126 to 127, the same on every machine.
fn exp2(x: f32) -> f32 {
    let x = x.clamp(-126.0, 127.0);
    let whole = (x + 127.0) as u32;
    let rest = x + 127.0 - whole as f32;
    let mantissa = 1.0 + rest * (0.695_556_9 + rest * (0.226_173_13 + rest * 0.078_270_01));
    f32::from_bits(whole << 23) * mantissa
}

/// ln x within 1e-3 for x from 1 up.
fn ln(x: f32) -> f32 {
    let bits = x.to_bits();
    let exponent = (bits >> 23) as i32 - 127;
    let mantissa = f32::from_bits((bits & 0x007f_ffff) | 0x3f80_0000);
    // ln m = 2 atanh y.
    let y = (mantissa - 1.0) / (mantissa + 1.0);
    let square = y * y;
    2.0 * y * (1.0 + square * (1.0 / 3.0 + square * 0.2 + square * square / 7.0))
        + exponent as f32 * core::f32::consts::LN_2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn powers_and_logarithms() {
        for (x, expected) in [(0.0, 1.0), (1.0, 2.0), (0.5, core::f32::consts::SQRT_2), (-3.25, 0.105_112_05)]
        {
            assert!((exp2(x) / expected - 1.0f32).abs() < 2e-4, "{x}");
        }
        for (x, expected) in
            [(1.0, 0.0), (2.0, core::f32::consts::LN_2), (10.0, core::f32::consts::LN_10), (1e6, 13.815_511)]
        {
            assert!((ln(x) - expected).abs() < 1e-3, "{x}");
        }
        assert!(exp2(f32::NEG_INFINITY) > 0.0 && exp2(1e9).is_finite());
    }

    #[test]
    fn cosines_say_who_is_out_of_reach() {
        // Query at distance 3 of the centroid, members at 2: the nearest may be at 1, the farthest at 5.
        assert!((cosine_l2(9.0, 4.0, 1.0) - 1.0).abs() < 1e-6);
        assert!((cosine_l2(9.0, 4.0, 25.0) + 1.0).abs() < 1e-6);
        assert_eq!(cosine_l2(9.0, 4.0, 13.0), 0.0);
        assert_eq!(cosine_l2(9.0, 4.0, 1e9), -1.0);
        assert_eq!((cosine_l2(9.0, 0.0, 1.0), cosine_l2(9.0, 0.0, 10.0)), (COSINE_MAX, -1.0));
        assert_eq!(cosine_ip(-4.0, 2.0, 4.0, -6.0), 0.5);
        assert!(
            fruitless_weight(0.5) > 0.99
                && fruitless_weight(COSINE_MAX) <= FRUITLESS_MAX
                && fruitless_weight(0.1) < 0.05
        );
        assert!(
            log_expected(100, 0.3) > log_expected(10, 0.3) && log_expected(10, 0.1) > log_expected(10, 0.3)
        );
    }
}
