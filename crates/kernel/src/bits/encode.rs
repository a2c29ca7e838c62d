//! Encodes and decodes vectors.

use super::{Layout, Plane, Scaling, bound, factor};
use crate::codes::for_each_isa;
use crate::distance::dot_f32;

/// Steps of the levels that are tried, as multiples of the one that is best for normally distributed components.
const TRIED: [f32; 15] = [0.5, 0.6, 0.68, 0.76, 0.84, 0.9, 0.95, 1.0, 1.05, 1.1, 1.16, 1.24, 1.34, 1.48, 1.7];
/// The best step for normally distributed components of variance 1, by bits (Max, Quantizing for Minimum Distortion,
/// 1960, table II, and its continuation).
const BEST_STEP: [f32; 9] = [1.0, 1.596, 0.9957, 0.586, 0.3352, 0.1881, 0.1041, 0.0569, 0.0308];

/// Encodes the residual of a placed vector to a centroid, which is empty for the centre itself.
pub(super) fn encode(
    layout: &Layout,
    scaling: Scaling,
    (placed, centroid): (&[f32], &[f32]),
    code: &mut [u8],
) {
    let squared = dot_f32(placed, bytemuck::cast_slice(placed));
    let placed = &placed[..layout.coded.min(placed.len())];
    let step = best_step(layout, placed);
    let mut levels = [0u8; super::DIM_MAX];
    let levels = &mut levels[..placed.len()];
    let (finer, rest) = placed.split_at(layout.finer);
    quantise(finer, (0.5 * step, layout.bits as u32 + 1), &mut levels[..layout.finer]);
    quantise(rest, (step, layout.bits as u32), &mut levels[layout.finer..]);
    let sums = Sums::of(layout, placed, step);
    let each_e = || levels.iter().enumerate().map(|(i, &level)| e(layout, i, level));
    match scaling {
        Scaling::Unbiased => {
            let of_centroid: f32 = centroid.iter().zip(each_e()).map(|(c, e)| c * e).sum();
            write_factors(layout, (squared, sums.product, of_centroid), code);
        }
        Scaling::Nearest => bound::write_factors(layout, (sums.product, sums.squared), each_e(), code),
    }
    for plane in layout.planes() {
        write_plane(layout, plane, levels, &mut code[plane.first..plane.first + plane.bytes]);
    }
}

/// The whole number that a level of a dimension stands for.
fn e(layout: &Layout, dimension: usize, level: u8) -> f32 {
    let coarse = layout.finer > 0 && dimension >= layout.finer;
    let whole = i32::from(level) << u32::from(coarse);
    (2 * whole - layout.offset(dimension)) as f32
}

/// Writes the norm and s, for ‖o‖² = `squared`, ⟨o, e⟩ = `product` and ⟨c, e⟩ = `of_centroid`.
fn write_factors(layout: &Layout, (squared, product, of_centroid): (f32, f32, f32), code: &mut [u8]) {
    let bytes = layout.factor_bytes();
    let exact = if product > 0.0 { squared / product } else { 0.0 };
    let scale = factor::round(exact, bytes);
    // The estimate for a query equal to the vector, ‖o‖² + norm − 2 s ⟨c + o, e⟩, is 0 whatever s was rounded to.
    let norm = if product > 0.0 { 2.0 * scale * (product + of_centroid) - squared } else { squared };
    factor::write_signed(norm, &mut code[..bytes]);
    factor::write(scale, &mut code[bytes..2 * bytes]);
}

/// Returns the step of the levels whose e is nearest to the direction of the vector. Ties go to the first that is
/// tried.
fn best_step(layout: &Layout, placed: &[f32]) -> f32 {
    let squared = dot_f32(placed, bytemuck::cast_slice(placed));
    let deviation = (squared / placed.len().max(1) as f32).sqrt();
    let usual = deviation * BEST_STEP[layout.bits];
    if layout.bits == 1 && layout.finer == 0 {
        return usual;
    }
    let largest = placed.iter().fold(0f32, |most, x| most.max(x.abs()));
    // The widest levels that clip nothing: for vectors unlike normally distributed ones.
    let unclipped = largest / ((1 << (layout.bits - 1)) as f32 - 0.5);
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
        let bits = layout.bits as u32;
        let (finer, rest) = placed.split_at(layout.finer);
        // Levels of most dimensions are odd where no dimension is finer, otherwise even.
        let unit = if layout.finer > 0 { 2.0 } else { 1.0 };
        let (mut product, mut squared) = sums(rest, inverse(step), (1 << bits) - 1);
        (product, squared) = (unit * product, unit * unit * squared);
        if !finer.is_empty() {
            let more = sums(finer, inverse(0.5 * step), (2 << bits) - 1);
            (product, squared) = (product + more.0, squared + more.1);
        }
        Sums { product, squared }
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

/// Sets the levels of some dimensions, for a step and a number of bits.
fn quantise(placed: &[f32], (step, bits): (f32, u32), levels: &mut [u8]) {
    let (inverse, most) = (inverse(step), ((1u32 << bits) - 1) as f32);
    levels.iter_mut().zip(placed).for_each(|(out, &x)| *out = level(x, inverse, most) as u8);
}

/// Writes the bits of a plane.
fn write_plane(layout: &Layout, plane: &Plane, levels: &[u8], out: &mut [u8]) {
    out.fill(0);
    let mask = ((1u32 << plane.width) - 1) as u8;
    for (dimension, &level) in levels.iter().enumerate().take(plane.dims) {
        let (group, byte) = (dimension / plane.bytes, dimension % plane.bytes);
        // Levels of dimensions without the last bit begin one place higher.
        let has_last = layout.finer > 0 && dimension < layout.finer;
        let lacks = u32::from(layout.finer > 0 && !has_last);
        let bits = (u32::from(level) << lacks >> plane.shift) as u8 & mask;
        out[byte] |= bits << (group as u32 * plane.width);
    }
}

/// Decodes to `s e`.
pub(super) fn decode(layout: &Layout, code: &[u8], out: &mut [f32]) {
    let bytes = layout.factor_bytes();
    let scale = factor::read(&code[bytes..2 * bytes]);
    out.fill(0.0);
    for (dimension, out) in out.iter_mut().enumerate().take(layout.coded) {
        let mut level = 0i32;
        for plane in layout.planes().iter().filter(|plane| dimension < plane.dims) {
            let (group, byte) = (dimension / plane.bytes, dimension % plane.bytes);
            let bits = code[plane.first + byte] >> (group as u32 * plane.width);
            level += i32::from(bits & ((1u32 << plane.width) - 1) as u8) << plane.shift;
        }
        *out = scale * (2 * level - layout.offset(dimension)) as f32;
    }
}
