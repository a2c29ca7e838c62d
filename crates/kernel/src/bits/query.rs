//! Queries prepared for codes, and the scoring of codes.

use super::bound::Errors;
use super::layout::{Layout, Segment};
use super::point::Rounded;
use super::terms::Terms;
use super::{BitCoder, factor, scalar};
use crate::distance::dot_f32;
use crate::isa::{self, Isa, for_each_isa};

/// Distance in ids at which codes are prefetched.
const PREFETCH_AHEAD: usize = 16;
/// Components behind those of a query that kernels may read; zero.
pub(super) const PADDING: usize = 64;
/// The largest component of a query.
pub(super) const LARGEST: f32 = 127.0;

/// A query of whole numbers. It is made of the query and the coder alone, bit for bit, on any machine.
#[derive(Clone, Debug)]
pub struct BitQuery {
    // Components as multiples of `unit`, and padding.
    components: Vec<i8>,
    layout: Layout,
    unit: f32,
    // Σ of components times offset of their levels.
    offset: i32,
    terms: Terms,
    // All bits where norms count, under l2 alone; otherwise none.
    counted: u32,
    // Of s and a product in a distance.
    weight: f32,
    errors: Errors,
}

/// The form of an instruction set: the keys of the codes with these ids, or of all codes. An id beyond their end gets
/// `u32::MAX`.
pub(super) type Score = unsafe fn(query: &BitQuery, codes: &[u8], ids: Option<&[u32]>, out: &mut Vec<u32>);

fn score(isa: Isa) -> Score {
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => super::avx2::score,
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => super::avx512::score,
        #[cfg(target_arch = "aarch64")]
        Isa::Neon => super::neon::score,
        _ => scalar::score,
    }
}

impl Default for BitQuery {
    fn default() -> BitQuery {
        BitQuery {
            components: vec![0; 1 + PADDING],
            layout: Layout::LEAST,
            unit: 0.0,
            offset: 0,
            terms: Terms::default(),
            counted: 0,
            weight: 0.0,
            errors: Errors::UNKNOWN,
        }
    }
}

for_each_isa! {
    /// Sets `out` to multiples of `x`, rounded.
    fn round(x: &[f32], inverse: f32, out: &mut [i8]) = round_body
}

#[inline(always)]
fn round_body(x: &[f32], inverse: f32, out: &mut [i8]) {
    out.iter_mut().zip(x).for_each(|(out, x)| *out = (x * inverse).round_ties_even() as i8);
}

impl BitQuery {
    /// Prepares for `query` (`dim` floats, not rotated). `placed` is scratch.
    pub fn set(&mut self, coder: &BitCoder, query: &[f32], placed: &mut Vec<f32>) {
        placed.clear();
        placed.extend_from_slice(query);
        let centred = if coder.ip {
            coder.rotate(placed);
            -dot_f32(placed, bytemuck::cast_slice(&coder.centre))
        } else {
            coder.place(placed);
            0.0
        };
        let squared = dot_f32(placed, bytemuck::cast_slice(placed));
        let largest = placed.iter().fold(0f32, |most, x| most.max(x.abs()));
        self.unit = largest / LARGEST;
        let inverse = 1.0 / self.unit;
        let inverse = if inverse.is_finite() { inverse } else { 0.0 };
        self.components.clear();
        self.components.resize(placed.len(), 0);
        round(placed, inverse, &mut self.components);
        self.fit(coder);
        self.terms.set(coder, placed, if coder.ip { centred } else { squared });
        self.errors = Errors::of(coder, (largest, self.unit, squared.sqrt()));
    }

    /// Sets all that follows from components, unit and coder.
    fn fit(&mut self, coder: &BitCoder) {
        let of = |(segment, range): (Segment, std::ops::Range<usize>)| {
            segment.offset() * self.components[range].iter().map(|&x| i32::from(x)).sum::<i32>()
        };
        self.offset = coder.layout.ranges().map(of).sum();
        self.components.resize(coder.layout.dim() + PADDING, 0);
        self.layout = coder.layout;
        (self.counted, self.weight) = if coder.ip { (0, self.unit) } else { (u32::MAX, 2.0 * self.unit) };
    }

    /// Prepares for the point of whole multiples of a unit that is nearest to a `placed` query. Distances are those of
    /// this point, under inner product with `term` added. Returns how far it is from the query at most.
    pub fn set_point(&mut self, coder: &BitCoder, placed: &[f32], term: f32) -> f32 {
        let rounded = Rounded::of(placed, LARGEST, &mut self.components);
        self.unit = rounded.unit;
        self.fit(coder);
        self.terms.set_all(if coder.ip { term } else { rounded.squared }, coder.layout.is_numbered());
        self.errors = Errors::UNKNOWN;
        rounded.error
    }

    /// Bytes of a code of the coder that the query is for.
    pub fn code_bytes(&self) -> usize {
        self.layout.code_bytes()
    }

    /// The key of the distance of one code; `u32::MAX` when `code` is shorter than a code.
    pub fn distance(&self, code: &[u8]) -> u32 {
        let mut out = Vec::with_capacity(1);
        match code.get(..self.code_bytes()).filter(|code| !code.is_empty()) {
            Some(code) => self.rows(code, &mut out),
            None => return u32::MAX,
        }
        out.first().copied().unwrap_or(u32::MAX)
    }

    /// The keys of the codes numbered `ids` in `codes` (`code_bytes` each), in their order. An id beyond the end of
    /// `codes` gets `u32::MAX`. `out` is cleared first.
    pub fn distances(&self, codes: &[u8], ids: &[u32], out: &mut Vec<u32>) {
        self.distances_by(isa::current(), codes, ids, out);
    }

    /// The keys of all codes in `codes`, in their order. `out` is cleared first.
    pub fn rows(&self, codes: &[u8], out: &mut Vec<u32>) {
        self.rows_by(isa::current(), codes, out);
    }

    pub(super) fn distances_by(&self, isa: Isa, codes: &[u8], ids: &[u32], out: &mut Vec<u32>) {
        out.clear();
        // SAFETY: `isa` is one that this machine has.
        unsafe { score(isa)(self, codes, Some(ids), out) }
    }

    pub(super) fn rows_by(&self, isa: Isa, codes: &[u8], out: &mut Vec<u32>) {
        out.clear();
        // SAFETY: `isa` is one that this machine has.
        unsafe { score(isa)(self, codes, None, out) }
    }

    /// Converts a key to a distance of the metric (squared l2, or minus the inner product).
    pub fn to_float(&self, key: u32) -> f32 {
        to_float(key)
    }

    /// Upper bound of the difference between the distance of one code and minus the inner product of the query and what
    /// the code decodes to, for every code that a coder of residuals made. Infinite for other coders, and for a `code`
    /// that is shorter than one.
    pub fn error_max(&self, code: &[u8]) -> f32 {
        self.errors.most(&self.layout, code)
    }

    /// Standard error of the same, after a random rotation.
    pub fn error_deviation(&self, code: &[u8]) -> f32 {
        self.errors.deviation(&self.layout, code)
    }

    /// The length of what a code of a coder of residuals decodes to, as usual for the sum of its magnitudes; 0 for
    /// other coders.
    pub fn code_length(&self, code: &[u8]) -> f32 {
        self.errors.length(&self.layout, code)
    }

    /// Upper bound of the relative rounding of s in codes, unless s is below the normal floats.
    pub fn scale_rounding(&self) -> f32 {
        if self.layout.factor_bytes() == 2 { 1.0 / 256.0 } else { 1e-6 }
    }

    /// Upper bound of the difference between ⟨q, e⟩ of the query and of its whole numbers, for any e of this length.
    #[cfg(test)]
    pub(super) fn error_of_products(&self, length: f32) -> f32 {
        let components = self.components.len().saturating_sub(PADDING) as f32;
        let squared: f32 = self.components.iter().map(|&x| f32::from(x).powi(2)).sum();
        // Half a unit for each component, and the rounding of the floats.
        length * self.unit * (0.5 * components.sqrt() + 1e-6 * squared.sqrt())
    }

    /// The keys of codes whose sums of levels times components are `sums`; factors have `BYTES` bytes.
    #[inline(always)]
    pub(super) fn keys<const BYTES: usize>(&self, codes: [&[u8]; FOUR], sums: [i32; FOUR]) -> [u32; FOUR] {
        let (mut norms, mut scales, mut numbers) = ([0u32; FOUR], [0u32; FOUR], [0u8; FOUR]);
        let numbered = if self.layout.is_numbered() { u8::MAX } else { 0 };
        for i in 0..FOUR {
            // Factors are followed by a number, or by bits.
            let head = &codes[i][..=2 * BYTES];
            (norms[i], scales[i]) = if BYTES == 2 {
                let both = head.first_chunk().map_or(0, |factors| u32::from_le_bytes(*factors));
                (factor::signed_bits(both as u16), factor::short_bits((both >> 16) as u16))
            } else {
                let both = head.first_chunk().map_or(0, |factors| u64::from_le_bytes(*factors));
                (both as u32, (both >> 32) as u32)
            };
            numbers[i] = head[2 * BYTES] & numbered;
        }
        let terms = self.terms.of(numbers);
        let mut keys = [0u32; FOUR];
        for i in 0..FOUR {
            let product = (2 * sums[i] - self.offset) as f32;
            let (norm, scale) = (f32::from_bits(norms[i] & self.counted), f32::from_bits(scales[i]));
            keys[i] = to_key((terms[i] + norm) - (self.weight * scale) * product);
        }
        keys
    }

    /// Components, and zeros behind them.
    #[inline(always)]
    pub fn components(&self) -> &[i8] {
        &self.components
    }

    /// Bits of the codes that the query is for.
    #[inline(always)]
    pub fn layout(&self) -> &Layout {
        &self.layout
    }
}

/// What a scorer outside of this crate needs besides. With the sum of levels times components of a code, its distance
/// is `(term + norm) − (weight × s) × (2 sum − offset)`, in f32 and in this order; the norm counts under l2 only.
impl BitQuery {
    #[cfg(test)]
    pub(super) fn terms_for_test(&self) -> &Terms {
        &self.terms
    }

    /// The unit of components.
    #[cfg(test)]
    pub(super) fn unit(&self) -> f32 {
        self.unit
    }

    /// The unit of components, twice under l2.
    pub fn weight(&self) -> f32 {
        self.weight
    }

    /// Subtracted from twice the sum of levels times components.
    pub fn offset(&self) -> i32 {
        self.offset
    }

    /// The term of codes without a number.
    pub(super) fn term(&self) -> f32 {
        self.terms.one(0)
    }

    /// All bits where norms count, else none.
    pub(super) fn counted(&self) -> u32 {
        self.counted
    }

    /// The terms of the 256 numbers that a code may have, or the one of codes without a number.
    pub fn terms(&self) -> impl ExactSizeIterator<Item = f32> {
        let last = if self.layout.is_numbered() { u8::MAX } else { 0 };
        (0..usize::from(last) + 1).map(|number| self.terms.one(number as u8))
    }
}

/// Codes that are scored together.
pub(super) const FOUR: usize = 4;

/// Makes the form of an instruction set of its sums: `one::<WIDTH, GROUPS>` of codes of a single plane, `several` of
/// any. The loop is compiled once for each width, with all that it calls.
macro_rules! form {
    ($($feature:literal)?) => {
        $(#[target_feature(enable = $feature)])?
        pub(super) fn score(query: &$crate::bits::BitQuery, codes: &[u8], ids: Option<&[u32]>, out: &mut Vec<u32>) {
            $crate::bits::query::by_form!(query, |layout, keys| {
                $crate::bits::query::score_with(layout, codes, ids, out, keys)
            });
        }
    };
}
pub(super) use form;

/// Calls a loop with what makes keys of four codes, for the layout of a query. The layouts of equally many bits of all
/// dimensions have loops of their own.
macro_rules! by_form {
    ($query:ident, |$layout:ident, $keys:ident| $work:expr) => {
        let $layout = $query.layout();
        let (components, bytes) = ($query.components(), $layout.factor_bytes());
        match $layout.planes() {
            [plane] if (plane.width, bytes, plane.shift) == (1, 2, 0) => {
                let $keys = |codes: [&[u8]; $crate::bits::query::FOUR]| {
                    $query.keys::<2>(codes, one::<1, 8>(plane, codes, components))
                };
                $work
            }
            [plane] if (plane.width, bytes, plane.shift) == (2, 2, 0) => {
                let $keys = |codes: [&[u8]; $crate::bits::query::FOUR]| {
                    $query.keys::<2>(codes, one::<2, 4>(plane, codes, components))
                };
                $work
            }
            [plane] if (plane.width, bytes, plane.shift) == (4, 4, 0) => {
                let $keys = |codes: [&[u8]; $crate::bits::query::FOUR]| {
                    $query.keys::<4>(codes, one::<4, 2>(plane, codes, components))
                };
                $work
            }
            [plane] if (plane.width, bytes, plane.shift) == (8, 4, 0) => {
                let $keys = |codes: [&[u8]; $crate::bits::query::FOUR]| {
                    $query.keys::<4>(codes, one::<8, 1>(plane, codes, components))
                };
                $work
            }
            planes if bytes == 2 => {
                let $keys = |codes: [&[u8]; $crate::bits::query::FOUR]| {
                    $query.keys::<2>(codes, several(planes, codes, components))
                };
                $work
            }
            planes => {
                let $keys = |codes: [&[u8]; $crate::bits::query::FOUR]| {
                    $query.keys::<4>(codes, several(planes, codes, components))
                };
                $work
            }
        }
    };
}
pub(super) use by_form;

/// Scores ids or all codes, with a function that makes the keys of four codes, and becomes a part of this loop
/// because it is called at one place. All instruction sets share the loop.
#[inline(always)]
pub(super) fn score_with(
    layout: &Layout,
    codes: &[u8],
    ids: Option<&[u32]>,
    out: &mut Vec<u32>,
    keys: impl Fn([&[u8]; FOUR]) -> [u32; FOUR],
) {
    let size = layout.code_bytes();
    let count = codes.len() / size;
    out.resize(ids.map_or(count, <[u32]>::len), u32::MAX);
    if count == 0 {
        return;
    }
    // SAFETY: `codes` has `count` codes, and is only asked for those.
    let code = |number: usize| unsafe { codes.get_unchecked(number * size..number * size + size) };
    // An id beyond the end is scored as the first code, and then gets no distance.
    let known = |id: u32| if (id as usize) < count { id as usize } else { 0 };
    let ahead = |range: std::ops::Range<usize>| {
        let ids = ids.and_then(|ids| ids.get(range.start..range.end.min(ids.len())));
        ids.into_iter().flatten().for_each(|&id| crate::prefetch(code(known(id))));
    };
    ahead(0..PREFETCH_AHEAD);
    for (step, out) in out.chunks_mut(FOUR).enumerate() {
        let (first, last) = (step * FOUR, step * FOUR + out.len() - 1);
        ahead(first + PREFETCH_AHEAD..first + PREFETCH_AHEAD + FOUR);
        let mut four = [&codes[..size]; FOUR];
        for (i, four) in four.iter_mut().enumerate() {
            let at = (first + i).min(last);
            *four = code(ids.map_or(at, |ids| known(ids[at])));
        }
        let keys = keys(four);
        match <&mut [u32; FOUR]>::try_from(&mut *out) {
            Ok(out) => *out = keys,
            Err(_) => out.iter_mut().zip(keys).for_each(|(out, key)| *out = key),
        }
    }
    for (out, &id) in out.iter_mut().zip(ids.unwrap_or_default()) {
        *out = if (id as usize) < count { *out } else { u32::MAX };
    }
}

/// A number in the order of floats; the largest for what is no number.
#[inline(always)]
pub(super) fn to_key(distance: f32) -> u32 {
    let bits = distance.to_bits();
    // All bits of a negative number turn, of others the sign.
    let key = bits ^ ((bits as i32 >> 31) as u32 | 1 << 31);
    if distance.is_nan() { u32::MAX } else { key }
}

pub(super) fn to_float(key: u32) -> f32 {
    f32::from_bits(if key >> 31 == 1 { key & !(1 << 31) } else { !key })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_in_the_order_of_floats() {
        let all =
            [f32::NEG_INFINITY, -1e30, -2.5, -1e-30, -0.0, 0.0, 1e-40, 1e-30, 1.0, 1.5, 7e37, f32::INFINITY];
        for pair in all.windows(2) {
            assert!(to_key(pair[0]) < to_key(pair[1]), "{pair:?}");
        }
        all.iter().for_each(|&x| assert_eq!(to_float(to_key(x)).to_bits(), x.to_bits()));
        assert_eq!(to_key(f32::NAN), u32::MAX);
    }
}
