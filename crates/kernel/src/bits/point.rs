//! Codes as points, and queries as the points that their whole numbers stand for.
//!
//! A code stands for the point s e, a query for ĝ, whole multiples of a unit. The distance between the two is exact but
//! for the floats of its last step. With the distance of a vector to its point, its *radius*, and that of the query to
//! ĝ, the triangle inequality bounds the distance of both: ‖g − o‖ ≥ ‖ĝ − s e‖ − ‖g − ĝ‖ − ‖o − s e‖.

use super::layout::Layout;
use super::query::to_float;
use super::{BitCoder, CoderParts, Scaling, even_step, factor};
use crate::isa::for_each_isa;

/// Bytes of a radius.
const RADIUS_BYTES: usize = 2;
/// Relative roundings of sums over thousands of components stay below this.
const ROUNDING: f32 = 1e-5;
/// Lengths of which the squares are no normal floats are below this.
const TINY: f32 = 1e-16;

impl BitCoder {
    /// A coder for residuals, which lie around zero and are rotated by `seed`: its codes stand for the nearest `s e`.
    /// With `ip`, distances are negative inner products, otherwise squared l2. Numbers of centroids are not used.
    ///
    /// # Panics
    /// Where the layout has more than two segments.
    pub fn of_points(layout: Layout, seed: u64, ip: bool) -> BitCoder {
        let bare = CoderParts::bare(layout, even_step(&layout), seed, ip);
        BitCoder::around(CoderParts { scaling: Scaling::Point, ..bare }, &vec![0.0; layout.dim()], &[])
    }

    /// The length of the point that a code stands for, rounded up; infinite for what is shorter than a code.
    pub fn length(&self, code: &[u8]) -> f32 {
        let squared = code.get(..self.layout.factor_bytes()).map_or(f32::INFINITY, factor::read_signed);
        // Norms of 16 bits are rounded down by less than a hundredth.
        (squared * 1.01).sqrt()
    }
}

/// Writes ‖s e‖², rounded down, and s, for ⟨o, e⟩ = `product` and ‖e‖² = `squared`.
pub(super) fn write_factors(layout: &Layout, (product, squared): (f32, f32), code: &mut [u8]) {
    let bytes = layout.factor_bytes();
    let exact = product / squared;
    let scale = factor::round(if exact.is_finite() { exact } else { 0.0 }, bytes);
    let scale = if scale.is_finite() { scale } else { 0.0 };
    let norm = scale * scale * squared * (1.0 - 1e-6);
    factor::write_down(if norm.is_finite() { norm } else { 0.0 }, &mut code[..bytes]);
    factor::write(scale, &mut code[bytes..2 * bytes]);
}

/// Appends a radius, rounded up.
pub fn write_radius(radius: f32, out: &mut Vec<u8>) {
    let mut bytes = [0; RADIUS_BYTES];
    factor::write_up(radius, &mut bytes);
    out.extend_from_slice(&bytes);
}

/// A radius that [`write_radius`] wrote at this place; infinite behind the last.
pub fn radius(radii: &[u8], at: usize) -> f32 {
    radii.get(RADIUS_BYTES * at..RADIUS_BYTES * (at + 1)).map_or(f32::INFINITY, factor::read_signed)
}

/// A query as whole multiples of a unit.
pub(super) struct Rounded {
    pub(super) unit: f32,
    /// The square of its length.
    pub(super) squared: f32,
    /// How far it is from the query at most.
    pub(super) error: f32,
}

impl Rounded {
    /// Rounds a query so that its largest component becomes `most` units.
    pub(super) fn of(query: &[f32], most: f32, components: &mut Vec<i8>) -> Rounded {
        let unit = largest(query) / most;
        let inverse = 1.0 / unit;
        let inverse = if inverse.is_finite() { inverse } else { 0.0 };
        components.clear();
        components.resize(query.len(), 0);
        let (squared, lost) = round(query, (unit, inverse), components);
        let squared = unit * unit * squared as f32;
        let error = lost.sqrt() * (1.0 + ROUNDING) + ROUNDING * 0.1 * squared.sqrt() + TINY;
        Rounded { unit, squared, error }
    }
}

for_each_isa! {
    /// The largest absolute value.
    fn largest(x: &[f32]) -> f32 = largest_body
}

#[inline(always)]
fn largest_body(x: &[f32]) -> f32 {
    let mut lanes = [0f32; 16];
    let (whole, rest) = x.as_chunks::<16>();
    for x in whole {
        lanes = std::array::from_fn(|i| if x[i].abs() > lanes[i] { x[i].abs() } else { lanes[i] });
    }
    lanes.iter().chain(rest).fold(0f32, |most, x| most.max(x.abs()))
}

for_each_isa! {
    /// Rounds components to whole numbers of a unit. Returns the sum of their squares, and that of the squares of what
    /// is lost.
    fn round(x: &[f32], unit: (f32, f32), out: &mut [i8]) -> (i64, f32) = round_body
}

/// A float of which the lowest bit of the mantissa counts 1: a small number that is added to it becomes whole, with
/// ties to even.
const WHOLE: f32 = 12_582_912.0;

#[inline(always)]
fn round_body(x: &[f32], (unit, inverse): (f32, f32), out: &mut [i8]) -> (i64, f32) {
    let (mut squares, mut lost) = ([0i32; 16], [0f32; 16]);
    for (x, out) in x.chunks(16).zip(out.chunks_mut(16)) {
        let mut wide = [0f32; 16];
        wide[..x.len()].copy_from_slice(x);
        let (mut whole, mut bytes) = ([0i32; 16], [0i8; 16]);
        for i in 0..16 {
            let sum = wide[i] * inverse + WHOLE;
            whole[i] = (sum.to_bits() as i32).wrapping_sub(WHOLE.to_bits() as i32);
            let off = wide[i] - unit * (sum - WHOLE);
            lost[i] += off * off;
            squares[i] = squares[i].wrapping_add(whole[i].wrapping_mul(whole[i]));
        }
        for i in 0..16 {
            bytes[i] = whole[i] as i8;
        }
        out.copy_from_slice(&bytes[..out.len()]);
    }
    (squares.iter().map(|&sum| i64::from(sum)).sum(), lost.iter().sum())
}

for_each_isa! {
    /// For each key of a distance to a point whether it is not larger than the square of `reach` and the radius of the
    /// vector, and `slack`. One that is no number is not larger.
    pub fn within_reach(keys: &[u32], radii: &[u8], reach: (f32, f32), out: &mut [bool]) = within_body
}

#[inline(always)]
fn within_body(keys: &[u32], radii: &[u8], (reach, slack): (f32, f32), out: &mut [bool]) {
    let radii = radii.as_chunks::<RADIUS_BYTES>().0;
    for ((&key, radius), out) in keys.iter().zip(radii).zip(out) {
        let radius = f32::from_bits(factor::signed_bits(u16::from_le_bytes(*radius)));
        *out = is_within(key, radius, (reach, slack));
    }
}

/// Whether a distance is not larger than the square of `reach` and a radius, and `slack`. One that is no number is not.
#[inline(always)]
pub(super) fn is_within(key: u32, radius: f32, (reach, slack): (f32, f32)) -> bool {
    let both = reach + radius;
    let is_beyond = to_float(key) > both * both * (1.0 + ROUNDING) + slack;
    !is_beyond
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bits::{BitQuery, Rotation};
    use proptest::prelude::*;

    fn length(x: impl Iterator<Item = f64>) -> f64 {
        x.map(|x| x * x).sum::<f64>().sqrt()
    }

    proptest! {
        /// A vector whose distance is within a limit has a code within reach, and distances to points are exact.
        #[test]
        fn codes_within_reach_have_all_near_vectors(
            numbers in prop::collection::vec(-1f32..1.0, 512), dim in 1usize..200, bits in 1usize..=8,
            scale in prop_oneof![Just(1e-12f32), Just(1.0), Just(1e12)], near in 0f32..1.0, ip in any::<bool>(),
        ) {
            let Some(layout) = Layout::even(dim, bits, 0, false) else { return Ok(()) };
            let coder = BitCoder::of_points(layout, 7, ip);
            let residual: Vec<f32> = (0..dim).map(|i| scale * numbers[i]).collect();
            let query: Vec<f32> = (0..dim).map(|i| residual[i] + near * scale * numbers[511 - i]).collect();
            let mut code = vec![0; layout.code_bytes()];
            let mut point = vec![0f32; dim];
            coder.encode(&mut residual.clone(), &mut code);
            coder.decode(&code, &mut point);
            let off = length(residual.iter().zip(&point).map(|(&a, &b)| f64::from(a) - f64::from(b)));
            prop_assert!(f64::from(coder.length(&code)) >= length(point.iter().map(|&x| f64::from(x))) * 0.9999);
            let mut prepared = BitQuery::default();
            let error = prepared.set_point(&coder, &query, 0.0);
            let units: Vec<f64> =
                prepared.components()[..dim].iter().map(|&x| f64::from(x) * f64::from(prepared.unit())).collect();
            let lost = length(query.iter().zip(&units).map(|(&a, b)| f64::from(a) - b));
            let most = 1.01 * lost + 1e-5 * length(units.iter().copied()) + 1e-15;
            prop_assert!((lost..=most).contains(&f64::from(error)));
            let mut radii = vec![];
            write_radius((off * 1.000_01) as f32, &mut radii);
            prop_assert!(f64::from(radius(&radii, 0)) >= off && radius(&radii, 1) == f32::INFINITY);
            let key = prepared.distance(&code);
            let product: f64 = units.iter().zip(&point).map(|(a, &b)| a * f64::from(b)).sum();
            let (a, b) = (length(units.iter().copied()), length(point.iter().map(|&x| f64::from(x))));
            let exact = if ip { -product } else { a * a + b * b - 2.0 * product };
            let found = f64::from(prepared.to_float(key));
            // Norms of 16 bits are rounded down.
            let short = if bits <= 3 && !ip { 0.008 * b * b } else { 0.0 };
            let floats = 2e-6 * (a * a + b * b);
            prop_assert!(found <= exact + floats && found >= exact - floats - short, "{found} {exact}");
            if !ip {
                let distance = length(query.iter().zip(&residual).map(|(&q, &x)| f64::from(q) - f64::from(x)));
                let reach = (distance * 1.000_001) as f32 + error;
                let slack = 4e-6 * (a * a) as f32;
                let mut out = [false];
                within_reach(&[key], &radii, (reach, slack), &mut out);
                prop_assert!(out[0]);
            }
        }
    }

    #[test]
    fn what_is_no_number_stays_within_reach() {
        let mut out = [false; 3];
        let radii = [0u8; 6];
        within_reach(&[u32::MAX, u32::MAX - 1, 1 << 31 | 0x7f00_0000], &radii, (1.0, 0.0), &mut out);
        assert_eq!(out, [true, true, false]);
        let mut query = BitQuery::default();
        let coder = BitCoder::of_points(Layout::even(3, 4, 0, false).unwrap(), 1, false);
        assert!(query.set_point(&coder, &[0.0; 3], 0.0) < 1e-15);
        assert!(Rotation::rounding(1) > 0.0);
    }
}
