//! Encodes and decodes vectors.

use super::layout::{Layout, Plane, Segment};
use super::{Scaling, bound, factor, point};
use crate::distance::dot_f32;
use crate::isa::for_each_isa;

/// Steps of the levels that are tried, as multiples of the one that is best for normally distributed components.
const TRIED: [f32; 15] = [0.5, 0.6, 0.68, 0.76, 0.84, 0.9, 0.95, 1.0, 1.05, 1.1, 1.16, 1.24, 1.34, 1.48, 1.7];
/// The best step for normally distributed components of variance 1, by bits (Max, Quantizing for Minimum Distortion,
/// 1960, table II, and its continuation).
pub(super) const BEST_STEP: [f32; 9] = [1.0, 1.596, 0.9957, 0.586, 0.3352, 0.1881, 0.1041, 0.0569, 0.0308];

/// Encodes the residual of a placed vector to a centroid, which is empty for the centre itself. `step` is relative to
/// the root mean square of the dimensions that have bits.
pub(super) fn encode(
    layout: &Layout,
    (step, scaling): (f32, Scaling),
    (placed, centroid): (&[f32], &[f32]),
    code: &mut [u8],
) {
    let squared = dot_f32(placed, bytemuck::cast_slice(placed));
    let placed = &placed[..layout.coded().min(placed.len())];
    let squared_coded = dot_f32(placed, bytemuck::cast_slice(placed));
    let usual = (squared_coded / placed.len().max(1) as f32).sqrt() * step;
    let step = best_step(layout, placed, usual);
    let mut levels = [0u8; super::DIM_MAX];
    let (mut of_centroid, mut sum) = (0.0, 0.0);
    for (segment, range) in layout.ranges() {
        let (levels, centroid) =
            (&mut levels[range.clone()], centroid.get(range.clone()).unwrap_or_default());
        quantise(&placed[range], &segment, step, levels);
        let each_e = || levels.iter().map(|&level| e(&segment, level));
        of_centroid += centroid.iter().zip(each_e()).map(|(c, e)| c * e).sum::<f32>();
        // A sum of whole numbers below 2²⁴ is exact.
        sum += each_e().map(f32::abs).sum::<f32>();
    }
    let Sums { product, squared: length } = Sums::of(layout, placed, step);
    match scaling {
        Scaling::Unbiased => {
            let counted = if layout.extras().spread { squared } else { squared_coded };
            write_factors(layout, Lengths { squared, counted, product, of_centroid }, code);
        }
        Scaling::Nearest => bound::write_factors(layout, (product, length, sum), code),
        Scaling::Point => point::write_factors(layout, (product, length), code),
    }
    for (plane, segment) in layout.planes_of_segments() {
        write_plane(plane, segment.shift, &levels, code);
    }
    let used = layout.planes().last().map_or(0, |last| last.first + last.bytes);
    code[used..].fill(0);
}

/// The whole number that a level of a dimension stands for.
fn e(segment: &Segment, level: u8) -> f32 {
    ((i32::from(level) << (segment.shift + 1)) - segment.offset()) as f32
}

/// What factors are made of.
struct Lengths {
    /// ‖o‖².
    squared: f32,
    /// The same over the dimensions that have bits, or over all where these stand for them.
    counted: f32,
    /// ⟨o, e⟩.
    product: f32,
    /// ⟨c, e⟩.
    of_centroid: f32,
}

/// Writes the norm and s.
fn write_factors(layout: &Layout, of: Lengths, code: &mut [u8]) {
    let bytes = layout.factor_bytes();
    let exact = if of.product > 0.0 { of.counted / of.product } else { 0.0 };
    let scale = factor::round(exact, bytes);
    // The estimate for a query equal to the vector, ‖o‖² + norm − 2 s ⟨c + o, e⟩, is right whatever s was rounded to:
    // 0, and twice what the dimensions without bits have.
    let norm = match of.product > 0.0 {
        true => 2.0 * scale * (of.product + of.of_centroid) + (of.squared - 2.0 * of.counted),
        false => of.squared,
    };
    factor::write_signed(norm, &mut code[..bytes]);
    factor::write(scale, &mut code[bytes..2 * bytes]);
}

/// Returns the step of the levels whose e is nearest to the direction of the vector. Ties go to the first that is
/// tried.
fn best_step(layout: &Layout, placed: &[f32], usual: f32) -> f32 {
    if layout.segments().iter().all(|segment| segment.bits == 1) {
        return usual;
    }
    // The widest levels that clip nothing: for vectors unlike normally distributed ones.
    let mut unclipped = 0f32;
    for (segment, range) in layout.ranges() {
        let largest = placed[range].iter().fold(0f32, |most, x| most.max(x.abs()));
        let reach = ((1 << (segment.bits - 1)) as f32 - 0.5) * (1 << segment.shift) as f32;
        unclipped = unclipped.max(largest / reach);
    }
    let mut best = (f32::NEG_INFINITY, usual);
    for step in TRIED.iter().map(|tried| tried * usual).chain([unclipped]) {
        let sums = Sums::of(layout, placed, step);
        let nearness = sums.product / sums.squared.max(1.0).sqrt();
        if nearness > best.0 {
            best = (nearness, step);
        }
    }
    best.1
}

/// ⟨o, e⟩ and ‖e‖² for a step of the levels.
#[derive(Clone, Copy)]
struct Sums {
    product: f32,
    squared: f32,
}

impl Sums {
    fn of(layout: &Layout, placed: &[f32], step: f32) -> Sums {
        let mut all = Sums { product: 0.0, squared: 0.0 };
        for (segment, range) in layout.ranges() {
            let unit = (1 << segment.shift) as f32;
            let (product, squared) = sums(&placed[range], inverse(unit * step), (1 << segment.bits) - 1);
            all.product += unit * product;
            all.squared += unit * unit * squared;
        }
        all
    }
}

fn inverse(step: f32) -> f32 {
    let inverse = 1.0 / step;
    if inverse.is_finite() { inverse } else { 0.0 }
}

for_each_isa! {
    /// ⟨o, e⟩ and ‖e‖² for levels up to `most`, from which e are `2 level − most`.
    fn sums(placed: &[f32], inverse: f32, most: u32) -> (f32, f32) = sums_body
}

#[inline(always)]
fn sums_body(placed: &[f32], inverse: f32, most: u32) -> (f32, f32) {
    const LANES: usize = 16;
    let (mut products, mut squares) = ([0f32; LANES], [0f32; LANES]);
    let most = most as f32;
    let (whole, rest) = placed.as_chunks::<LANES>();
    let mut last = [0f32; LANES];
    last[..rest.len()].copy_from_slice(rest);
    for x in whole {
        for i in 0..LANES {
            let e = 2.0 * level(x[i], inverse, most) - most;
            products[i] += x[i] * e;
            squares[i] += e * e;
        }
    }
    for i in 0..rest.len() {
        let e = 2.0 * level(last[i], inverse, most) - most;
        products[i] += last[i] * e;
        squares[i] += e * e;
    }
    (folded(products), folded(squares))
}

fn folded(mut lanes: [f32; 16]) -> f32 {
    for half in [8, 4, 2, 1] {
        for i in 0..half {
            lanes[i] += lanes[i + half];
        }
    }
    lanes[0]
}

/// The level of a component, a whole number from 0 to `most`.
#[inline(always)]
fn level(x: f32, inverse: f32, most: f32) -> f32 {
    (x * inverse + 0.5 * (most + 1.0)).floor().clamp(0.0, most)
}

/// Sets the levels of the dimensions of a segment.
fn quantise(placed: &[f32], segment: &Segment, step: f32, levels: &mut [u8]) {
    let inverse = inverse((1 << segment.shift) as f32 * step);
    let most = ((1u32 << segment.bits) - 1) as f32;
    levels.iter_mut().zip(placed).for_each(|(out, &x)| *out = level(x, inverse, most) as u8);
}

/// Writes the bits of a plane.
fn write_plane(plane: &Plane, shift: u32, levels: &[u8], code: &mut [u8]) {
    code[plane.first..plane.first + plane.bytes].fill(0);
    let mask = ((1u32 << plane.width) - 1) as u8;
    for (dimension, level) in levels.iter().enumerate().skip(plane.start).take(plane.dims) {
        let (byte, below) = plane.place(dimension);
        code[byte] |= (level >> (plane.shift - shift) & mask) << below;
    }
}

/// Decodes to `s e`.
pub(super) fn decode(layout: &Layout, code: &[u8], out: &mut [f32]) {
    let bytes = layout.factor_bytes();
    let scale = factor::read(&code[bytes..2 * bytes]);
    out.fill(0.0);
    for (segment, range) in layout.ranges() {
        for (dimension, out) in range.clone().zip(&mut out[range.clone()]) {
            let mut whole = 0i32;
            for plane in layout.planes().iter().filter(|plane| plane.start == range.start) {
                let (byte, below) = plane.place(dimension);
                let bits = code[byte] >> below & ((1u32 << plane.width) - 1) as u8;
                whole += i32::from(bits) << plane.shift;
            }
            *out = scale * (2 * whole - segment.offset()) as f32;
        }
    }
}
