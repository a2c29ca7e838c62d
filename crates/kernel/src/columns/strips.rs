//! Sums of a group of components for four queries at a time, so that each component is loaded once for all of them.
//!
//! A *strip* is a group of components of 16 vectors, as floats, component by component. Sums have the bits of
//! [`add_columns`](super::add_columns) or of [`add_rows_of`](super::add_rows_of).

use std::ops::Range;

use super::{GROUP_MAX, LANES, Sums, Term, in_units, minus_product, square};
use crate::element::{DType, widen};
use crate::isa::{self, Isa};

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "aarch64")]
mod neon;
mod registers;

/// Vectors of a strip.
pub const STRIP: usize = 16;
/// Queries that are compared at a time.
pub const FOUR: usize = 4;

/// Order in which the terms of a group are added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// One after another, as in a group that is stored component by component.
    Columns,
    /// In 16 sums that are folded, as in a group that is stored vector by vector.
    Rows,
}

/// A group of components of four queries, and how its sums are made.
#[derive(Clone, Copy, Debug)]
pub struct FourGroups<'a> {
    /// The term that is summed.
    pub term: Term,
    /// The order of the terms.
    pub order: Order,
    /// The components of each query, equally many.
    pub queries: [&'a [f32]; FOUR],
    /// Units of a sum of 1, of each query.
    pub scales: [f32; FOUR],
}

/// A group of components of a block, as it is stored.
#[derive(Clone, Copy, Debug)]
pub struct StoredGroup<'a> {
    /// How it is stored.
    pub order: Order,
    /// The type of the components.
    pub dtype: DType,
    /// Components of the group, at most [`GROUP_MAX`].
    pub width: usize,
    /// All of its components.
    pub bytes: &'a [u8],
    /// Lanes of the block.
    pub stride: usize,
    /// A factor for each lane's components; empty for 1.
    pub factors: &'a [f32],
}

/// A form of [`add_strips`] of an instruction set. Unsafe: the machine must have it.
type Form = unsafe fn(&FourGroups<'_>, &[f32], &mut [Sums; FOUR]);

/// Adds the sums of a group of up to four strips, one after another, to those of each query.
///
/// # Panics
/// Where queries differ in their number of components, or more strips come than [`Sums`] have lanes for.
pub fn add_strips(groups: &FourGroups<'_>, strips: &[f32], sums: &mut [Sums; FOUR]) {
    let width = groups.queries[0].len();
    let count = strips.len().checked_div(STRIP * width).unwrap_or(0);
    assert!(groups.queries.iter().all(|query| query.len() == width) && count * STRIP <= LANES);
    // SAFETY: `form` names a form that this machine can run.
    unsafe { form(isa::current())(groups, strips, sums) }
}

/// The form of an instruction set.
fn form(isa: Isa) -> Form {
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => avx512::add,
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => avx2::add,
        #[cfg(target_arch = "aarch64")]
        Isa::Neon => neon::add,
        _ => scalar,
    }
}

/// The definition.
fn scalar(groups: &FourGroups<'_>, strips: &[f32], sums: &mut [Sums; FOUR]) {
    let add = match groups.term {
        Term::Square => square,
        Term::MinusProduct => minus_product,
    };
    let apart = match groups.order {
        Order::Columns => 1,
        Order::Rows => STRIP,
    };
    for ((query, &scale), sums) in groups.queries.iter().zip(&groups.scales).zip(sums) {
        let strips = strips.chunks_exact((STRIP * query.len()).max(1));
        for (strip, sums) in strips.zip(sums.as_chunks_mut::<STRIP>().0) {
            let mut parts = [[0f32; STRIP]; STRIP];
            for (c, (&q, lanes)) in query.iter().zip(strip.as_chunks::<STRIP>().0).enumerate() {
                parts[c % apart].iter_mut().zip(lanes).for_each(|(sum, &x)| *sum = add(*sum, q, x));
            }
            let mut half = apart / 2;
            while half > 0 {
                let (low, high) = parts.split_at_mut(half);
                for (low, high) in low.iter_mut().zip(high) {
                    low.iter_mut().zip(high).for_each(|(low, high)| *low += *high);
                }
                half /= 2;
            }
            sums.iter_mut().zip(parts[0]).for_each(|(sums, sum)| *sums += in_units(sum, scale));
        }
    }
}

impl StoredGroup<'_> {
    /// Writes lanes of the block to a strip, the first of them to its lane `at`.
    ///
    /// # Panics
    /// Where the block has no such lanes, or the strip no room for them.
    pub fn put(&self, lanes: Range<usize>, (strip, at): (&mut [f32], usize)) {
        assert!(at + lanes.len() <= STRIP && self.width <= GROUP_MAX);
        let strip = strip.as_chunks_mut::<STRIP>().0;
        match self.order {
            Order::Columns => self.put_columns(lanes, (strip, at)),
            Order::Rows => {
                for first in lanes.clone().step_by(FOUR) {
                    let four = first..lanes.end.min(first + FOUR);
                    self.put_rows(four, (&mut *strip, at + first - lanes.start));
                }
            }
        }
    }

    fn put_columns(&self, lanes: Range<usize>, (strip, at): (&mut [[f32; STRIP]], usize)) {
        let size = self.dtype.size();
        let columns = self.bytes.chunks_exact((size * self.stride).max(1));
        for (strip, column) in strip[..self.width].iter_mut().zip(columns) {
            let strip = &mut strip[at..at + lanes.len()];
            widen(self.dtype, &column[size * lanes.start..size * lanes.end], strip);
            if !self.factors.is_empty() {
                strip.iter_mut().zip(&self.factors[lanes.clone()]).for_each(|(x, factor)| *x *= factor);
            }
        }
    }

    /// Writes up to four rows.
    fn put_rows(&self, lanes: Range<usize>, (strip, at): (&mut [[f32; STRIP]], usize)) {
        let mut wide = [[0f32; GROUP_MAX]; FOUR];
        let bytes = self.dtype.size() * self.width;
        for (lane, wide) in lanes.clone().zip(&mut wide) {
            let wide = &mut wide[..self.width];
            widen(self.dtype, &self.bytes[bytes * lane..][..bytes], wide);
            if let Some(factor) = self.factors.get(lane) {
                wide.iter_mut().for_each(|x| *x *= factor);
            }
        }
        let [a, b, c, d] = &wide;
        let strip = &mut strip[..self.width];
        if lanes.len() == FOUR {
            for ((((strip, a), b), c), d) in strip.iter_mut().zip(a).zip(b).zip(c).zip(d) {
                strip[at..][..FOUR].copy_from_slice(&[*a, *b, *c, *d]);
            }
            return;
        }
        for (lane, wide) in (at..at + lanes.len()).zip(&wide) {
            strip.iter_mut().zip(wide).for_each(|(strip, &x)| strip[lane] = x);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::tests::{encode, value};
    use super::super::{Group, add_columns, add_rows_of};
    use super::*;

    /// The forms that this machine can run.
    fn forms() -> Vec<Form> {
        let all = [Isa::Scalar, Isa::Neon, Isa::Avx2, Isa::Avx512];
        all.into_iter().filter(|&isa| isa::is_available(isa)).map(form).collect()
    }

    proptest! {
        #[test]
        fn strips_give_the_bits_of_blocks(
            dtype in prop::sample::select(DType::ALL.to_vec()),
            order in prop::sample::select(vec![Order::Columns, Order::Rows]),
            square in any::<bool>(),
            with_factors in any::<bool>(),
            whole in any::<bool>(),
            steps in 1..=LANES / super::super::LANE_STEP,
            numbers in prop::collection::vec(-100f32..100.0, GROUP_MAX + LANES),
            width in 1..=GROUP_MAX,
            skipped in 0..STRIP,
        ) {
            let stride = steps * super::super::LANE_STEP;
            let at = |c: usize, lane: usize| encode(dtype, value(dtype, &numbers, (c, lane)));
            let bytes: Vec<u8> = match order {
                Order::Columns => (0..width).flat_map(|c| (0..stride).flat_map(move |lane| at(c, lane))).collect(),
                Order::Rows => (0..stride).flat_map(|lane| (0..width).flat_map(move |c| at(c, lane))).collect(),
            };
            let factors: Vec<f32> =
                if with_factors { (0..stride).map(|lane| 0.1 + lane as f32).collect() } else { vec![] };
            let term = if square { Term::Square } else { Term::MinusProduct };
            let query = |i: usize| -> Vec<f32> {
                let of = numbers[i..i + width].iter();
                of.map(|x| if whole { x.abs().trunc() } else { *x }).collect()
            };
            let queries: Vec<Vec<f32>> = (0..FOUR).map(query).collect();
            let scales = [64.0, 1.0, 4096.0, 0.5];
            let stored = StoredGroup { order, dtype, width, bytes: &bytes, stride, factors: &factors };
            // The first lanes of the block are not asked for.
            let lanes = skipped.min(stride - 1)..stride;
            let mut strips = vec![0f32; LANES * width];
            for (strip, first) in strips.chunks_exact_mut(STRIP * width).zip(lanes.clone().step_by(STRIP)) {
                // In two parts.
                let (middle, end) = ((first + 5).min(lanes.end), (first + STRIP).min(lanes.end));
                stored.put(first..middle, (strip, 0));
                stored.put(middle..end, (strip, middle - first));
            }
            let count = lanes.len().div_ceil(STRIP);
            let groups =
                FourGroups { term, order, queries: std::array::from_fn(|i| &queries[i][..]), scales };
            for form in forms() {
                let mut sums = [[3.0; LANES]; FOUR];
                // SAFETY: only forms that this machine can run are listed.
                unsafe { form(&groups, &strips[..count * STRIP * width], &mut sums) };
                for (i, sums) in sums.iter().enumerate() {
                    let group =
                        Group { term, dtype, query: &queries[i], scale: scales[i], factors: &factors };
                    let mut wanted = [3.0; LANES];
                    let all: Vec<u8> = (0..stride as u8).collect();
                    match order {
                        Order::Columns => add_columns(&group, &bytes, stride, &mut wanted),
                        Order::Rows => add_rows_of(&group, &bytes, &all, &mut wanted),
                    }
                    prop_assert_eq!(&sums[..lanes.len()], &wanted[lanes.clone()]);
                    prop_assert!(sums[count * STRIP..].iter().all(|&sum| sum == 3.0));
                }
            }
        }
    }
}
