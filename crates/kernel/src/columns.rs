//! Sums over a few components of up to 64 vectors, whose components are stored one after another (PDX, Kuffo et al.,
//! SIGMOD 2025), and the choice of the vectors whose sums are still small enough.
//!
//! A *lane* is a vector of a block, a *group* a range of consecutive components. The sum of a group is rounded once to
//! a multiple of a unit, so that sums of groups can be added in any order: below 2⁵³ units the result has the same
//! bits. Where components are stored one after another, a group's sum runs in their order, with a fused multiply-add.

mod bytes;
pub mod strips;

use core::array;

use crate::isa::for_each_isa;
use crate::{DType, distance};

/// Vectors of a block.
pub const LANES: usize = 64;
/// A block of fewer vectors is filled up to a multiple of these.
pub const LANE_STEP: usize = 8;
/// Most components of a group.
pub const GROUP_MAX: usize = 64;

/// Term of a sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Term {
    /// (q − x)²
    Square,
    /// −q · x
    MinusProduct,
}

/// One group of components of a query, and how its sum is made.
#[derive(Clone, Copy, Debug)]
pub struct Group<'a> {
    /// The term that is summed.
    pub term: Term,
    /// The type of the stored components.
    pub dtype: DType,
    /// The query's components, at most [`GROUP_MAX`].
    pub query: &'a [f32],
    /// Units of a sum of 1.
    pub scale: f32,
    /// A factor for each lane's components; empty for 1.
    pub factors: &'a [f32],
}

/// The sums of a block, in units.
pub type Sums = [f64; LANES];

/// Adds the sums of a group that is stored component by component: `stride` lanes of the first component, of the
/// second, and so on. `stride` is a multiple of [`LANE_STEP`], at most [`LANES`].
///
/// # Panics
/// Where `columns` is shorter than the group, or `factors` than the lanes.
#[inline]
pub fn add_columns(group: &Group<'_>, columns: &[u8], stride: usize, sums: &mut Sums) {
    match group.dtype {
        DType::F32 => columns_f32(group, columns, stride, sums),
        DType::U8 => columns_u8(group, columns, stride, sums),
        DType::I8 => columns_i8(group, columns, stride, sums),
        DType::F16 => {
            let mut wide = [0f32; GROUP_MAX * LANES];
            let wide = &mut wide[..group.query.len() * stride];
            distance::widen_f16(&columns[..2 * wide.len()], wide);
            columns_f32(group, bytemuck::cast_slice(wide), stride, sums);
        }
    }
}

/// As [`add_columns`], for some lanes alone.
///
/// # Panics
/// As [`add_columns`], and where a lane is not below `stride`.
pub fn add_columns_of(group: &Group<'_>, columns: &[u8], stride: usize, lanes: &[u8], sums: &mut Sums) {
    let size = group.dtype.size();
    let mut gathered = [0u8; 4 * GROUP_MAX * LANE_STEP];
    let gathered = &mut gathered[..size * LANE_STEP * group.query.len()];
    for lanes in lanes.chunks(LANE_STEP) {
        match size {
            4 => gather::<4>(columns, stride, lanes, gathered),
            2 => gather::<2>(columns, stride, lanes, gathered),
            _ => gather::<1>(columns, stride, lanes, gathered),
        }
        let mut factors = [1f32; LANE_STEP];
        if !group.factors.is_empty() {
            factors.iter_mut().zip(lanes).for_each(|(f, &lane)| *f = group.factors[usize::from(lane)]);
        }
        let few = Group { factors: if group.factors.is_empty() { &[] } else { &factors }, ..*group };
        let mut few_sums = [0.0; LANES];
        add_columns(&few, gathered, LANE_STEP, &mut few_sums);
        lanes.iter().zip(&few_sums).for_each(|(&lane, sum)| sums[usize::from(lane)] += sum);
    }
}

/// Copies up to eight lanes of columns of `SIZE` bytes a component.
fn gather<const SIZE: usize>(columns: &[u8], stride: usize, lanes: &[u8], out: &mut [u8]) {
    let columns = columns.as_chunks::<SIZE>().0.chunks_exact(stride);
    for (out, column) in out.as_chunks_mut::<SIZE>().0.chunks_exact_mut(LANE_STEP).zip(columns) {
        out.iter_mut().zip(lanes).for_each(|(out, &lane)| *out = column[usize::from(lane)]);
    }
}

/// Adds the sums of some lanes in a group that is stored vector by vector. Sums within the group have the bits of
/// [`distance::l2_f32`] and [`distance::dot_f32`].
///
/// # Panics
/// Where `rows` is shorter than the lanes, or `factors`.
#[inline]
pub fn add_rows_of(group: &Group<'_>, rows: &[u8], lanes: &[u8], sums: &mut Sums) {
    match group.dtype {
        DType::F32 => rows_f32(group, rows, lanes, sums),
        DType::F16 => rows_f16(group, rows, lanes, sums),
        DType::U8 => rows_u8(group, rows, lanes, sums),
        DType::I8 => rows_i8(group, rows, lanes, sums),
    }
}

/// Keeps those of `lanes` whose sum, less what `rests` says it may still lose, is at most `limit`. Returns how many.
#[inline]
pub fn keep_within(limit: f64, rests: &Sums, sums: &Sums, lanes: &mut [u8]) -> usize {
    let mut kept = 0;
    for i in 0..lanes.len() {
        let lane = lanes[i];
        lanes[kept] = lane;
        let at = usize::from(lane) % LANES;
        kept += usize::from(sums[at] - rests[at] <= limit);
    }
    kept
}

for_each_isa! {
    /// The number of all lanes whose sum, less what `rests` says it may still lose, is at most `limit`.
    pub fn count_within(limit: f64, rests: &Sums, sums: &Sums) -> usize = count_body
}

#[inline(always)]
fn count_body(limit: f64, rests: &Sums, sums: &Sums) -> usize {
    let mut count = 0u64;
    for lane in 0..LANES {
        count += u64::from(sums[lane] - rests[lane] <= limit);
    }
    count as usize
}

for_each_isa! {
    fn columns_f32(group: &Group<'_>, columns: &[u8], stride: usize, sums: &mut Sums) = f32_body
}
for_each_isa! {
    fn columns_u8(group: &Group<'_>, columns: &[u8], stride: usize, sums: &mut Sums) = u8_body
}
for_each_isa! {
    fn columns_i8(group: &Group<'_>, columns: &[u8], stride: usize, sums: &mut Sums) = i8_body
}

for_each_isa! {
    fn rows_f32(group: &Group<'_>, rows: &[u8], lanes: &[u8], sums: &mut Sums) = rows_f32_body
}
for_each_isa! {
    fn rows_f16(group: &Group<'_>, rows: &[u8], lanes: &[u8], sums: &mut Sums) = rows_f16_body
}
for_each_isa! {
    fn rows_u8(group: &Group<'_>, rows: &[u8], lanes: &[u8], sums: &mut Sums) = rows_u8_body
}
for_each_isa! {
    fn rows_i8(group: &Group<'_>, rows: &[u8], lanes: &[u8], sums: &mut Sums) = rows_i8_body
}

#[inline(always)]
fn rows_f32_body(group: &Group<'_>, rows: &[u8], lanes: &[u8], sums: &mut Sums) {
    all_rows(group, rows.as_chunks::<4>().0, lanes, sums, |bytes| f32::from_le_bytes(*bytes));
}

#[inline(always)]
fn rows_f16_body(group: &Group<'_>, rows: &[u8], lanes: &[u8], sums: &mut Sums) {
    let width = group.query.len();
    let mut wide = [0f32; ROWS * GROUP_MAX];
    let numbers = [0, 1, 2, 3];
    for lanes in lanes.chunks(ROWS) {
        for (&lane, wide) in lanes.iter().zip(wide.chunks_exact_mut(width)) {
            distance::widen_f16(&rows[2 * width * usize::from(lane)..][..2 * width], wide);
        }
        some_rows(group, &wide, (&numbers[..lanes.len()], lanes), sums, |x| *x);
    }
}

#[inline(always)]
fn rows_u8_body(group: &Group<'_>, rows: &[u8], lanes: &[u8], sums: &mut Sums) {
    if !bytes::add_rows::<false>(group, rows, lanes, sums) {
        all_rows(group, rows, lanes, sums, |&byte| f32::from(byte));
    }
}

#[inline(always)]
fn rows_i8_body(group: &Group<'_>, rows: &[u8], lanes: &[u8], sums: &mut Sums) {
    if !bytes::add_rows::<true>(group, rows, lanes, sums) {
        all_rows(group, rows, lanes, sums, |&byte| f32::from(byte as i8));
    }
}

#[inline(always)]
fn all_rows<T>(group: &Group<'_>, rows: &[T], lanes: &[u8], sums: &mut Sums, float: impl Fn(&T) -> f32) {
    for lanes in lanes.chunks(ROWS) {
        some_rows(group, rows, (lanes, lanes), sums, &float);
    }
}

/// Rows that are folded together.
const ROWS: usize = 4;

/// Adds the sums of up to four lanes, each in the row of its number.
#[inline(always)]
fn some_rows<T>(
    group: &Group<'_>,
    rows: &[T],
    of: (&[u8], &[u8]),
    sums: &mut Sums,
    float: impl Fn(&T) -> f32,
) {
    match (group.term, group.factors.is_empty()) {
        (Term::Square, true) => four_rows(group, rows, of, sums, |x, _| float(x), square),
        (Term::Square, false) => four_rows(group, rows, of, sums, |x, factor| float(x) * factor, square),
        (Term::MinusProduct, true) => four_rows(group, rows, of, sums, |x, _| float(x), minus_product),
        (Term::MinusProduct, false) => {
            four_rows(group, rows, of, sums, |x, factor| float(x) * factor, minus_product);
        }
    }
}

#[inline(always)]
fn four_rows<T>(
    group: &Group<'_>,
    rows: &[T],
    (numbers, lanes): (&[u8], &[u8]),
    sums: &mut Sums,
    float: impl Fn(&T, f32) -> f32,
    add: impl Fn(f32, f32, f32) -> f32,
) {
    let width = group.query.len();
    let mut fours = [[0f32; 4]; ROWS];
    for ((four, &number), &lane) in fours.iter_mut().zip(numbers).zip(lanes) {
        let row = &rows[width * usize::from(number)..][..width];
        let factor = group.factors.get(usize::from(lane)).copied().unwrap_or(1.0);
        *four = folded(group.query, row, |x| float(x, factor), &add);
    }
    let mut units = [0f64; ROWS];
    for (unit, four) in units.iter_mut().zip(&fours) {
        *unit = in_units((four[0] + four[2]) + (four[1] + four[3]), group.scale);
    }
    for (&lane, unit) in lanes.iter().zip(units) {
        sums[usize::from(lane) % LANES] += unit;
    }
}

/// Sums products in 16 sums, which are folded in one order, as all kernels do; to four.
#[inline(always)]
fn folded<T>(
    query: &[f32],
    row: &[T],
    float: impl Fn(&T) -> f32,
    add: impl Fn(f32, f32, f32) -> f32,
) -> [f32; 4] {
    let mut sums = [0f32; 16];
    let (queries, query_rest) = query.as_chunks::<16>();
    let (rows, row_rest) = row.as_chunks::<16>();
    for (query, row) in queries.iter().zip(rows) {
        // All are floats before they are added: so compilers use whole registers.
        let floats: [f32; 16] = array::from_fn(|i| float(&row[i]));
        sums = array::from_fn(|i| add(sums[i], query[i], floats[i]));
    }
    for ((&q, x), sum) in query_rest.iter().zip(row_rest).zip(&mut sums) {
        *sum = add(*sum, q, float(x));
    }
    let eight: [f32; 8] = array::from_fn(|i| sums[i] + sums[i + 8]);
    array::from_fn(|i| eight[i] + eight[i + 4])
}

#[inline(always)]
fn f32_body(group: &Group<'_>, columns: &[u8], stride: usize, sums: &mut Sums) {
    block(group, columns.as_chunks::<4>().0, stride, sums, |bytes| f32::from_le_bytes(*bytes));
}

#[inline(always)]
fn u8_body(group: &Group<'_>, columns: &[u8], stride: usize, sums: &mut Sums) {
    block(group, columns, stride, sums, |&byte| f32::from(byte));
}

#[inline(always)]
fn i8_body(group: &Group<'_>, columns: &[u8], stride: usize, sums: &mut Sums) {
    block(group, columns, stride, sums, |&byte| f32::from(byte as i8));
}

#[inline(always)]
fn block<T>(group: &Group<'_>, columns: &[T], stride: usize, sums: &mut Sums, float: impl Fn(&T) -> f32) {
    match (group.term, group.factors.is_empty()) {
        (Term::Square, true) => strips(group, columns, stride, sums, |x, _| float(x), square),
        (Term::Square, false) => strips(group, columns, stride, sums, |x, factor| float(x) * factor, square),
        (Term::MinusProduct, true) => strips(group, columns, stride, sums, |x, _| float(x), minus_product),
        (Term::MinusProduct, false) => {
            strips(group, columns, stride, sums, |x, factor| float(x) * factor, minus_product);
        }
    }
}

/// A sum and the square of a difference.
#[inline(always)]
fn square(sum: f32, q: f32, x: f32) -> f32 {
    (q - x).mul_add(q - x, sum)
}

/// A sum less a product.
#[inline(always)]
fn minus_product(sum: f32, q: f32, x: f32) -> f32 {
    (-q).mul_add(x, sum)
}

/// All lanes at once where there are 64, else eight at a time.
#[inline(always)]
fn strips<T>(
    group: &Group<'_>,
    columns: &[T],
    stride: usize,
    sums: &mut Sums,
    float: impl Fn(&T, f32) -> f32,
    add: impl Fn(f32, f32, f32) -> f32,
) {
    if stride == LANES {
        return strip::<T, LANES>(group, columns, stride, 0, sums, (&float, &add));
    }
    for first in (0..stride).step_by(LANE_STEP) {
        strip::<T, LANE_STEP>(group, columns, stride, first, sums, (&float, &add));
    }
}

#[inline(always)]
fn strip<T, const N: usize>(
    group: &Group<'_>,
    columns: &[T],
    stride: usize,
    first: usize,
    sums: &mut Sums,
    (float, add): (&impl Fn(&T, f32) -> f32, &impl Fn(f32, f32, f32) -> f32),
) {
    let mut factors = [1f32; N];
    if !group.factors.is_empty() {
        factors.copy_from_slice(&group.factors[first..first + N]);
    }
    let mut sum = [0f32; N];
    for (&q, column) in group.query.iter().zip(columns[..group.query.len() * stride].chunks_exact(stride)) {
        let column = &column[first..first + N];
        let floats: [f32; N] = array::from_fn(|lane| float(&column[lane], factors[lane]));
        sum = array::from_fn(|lane| add(sum[lane], q, floats[lane]));
    }
    for lane in 0..N {
        sums[first + lane] += in_units(sum[lane], group.scale);
    }
}

#[inline(always)]
fn in_units(sum: f32, scale: f32) -> f64 {
    f64::from((sum * scale).round_ties_even())
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::f16;
    use proptest::prelude::*;

    /// The bytes of a component.
    pub(super) fn encode(dtype: DType, x: f32) -> Vec<u8> {
        match dtype {
            DType::F32 => x.to_le_bytes().to_vec(),
            DType::F16 => f16::from_f32(x).to_le_bytes().to_vec(),
            DType::U8 => vec![x as u8],
            DType::I8 => vec![x as i8 as u8],
        }
    }

    /// Component `c` of a lane.
    pub(super) fn value(dtype: DType, numbers: &[f32], (c, lane): (usize, usize)) -> f32 {
        let x = numbers[(7 * c + 13 * lane) % numbers.len()];
        if dtype == DType::U8 { x.abs() } else { x }
    }

    fn decode(dtype: DType, bytes: &[u8]) -> f32 {
        let mut out = [0.0];
        crate::element::widen(dtype, bytes, &mut out);
        out[0]
    }

    /// The sum of one lane, step by step.
    fn expected(group: &Group<'_>, components: &[f32], lane: usize) -> f64 {
        let factor = group.factors.get(lane).copied().unwrap_or(1.0);
        let sum = group.query.iter().zip(components).fold(0f32, |sum, (&q, &x)| match group.term {
            Term::Square => (q - x * factor).mul_add(q - x * factor, sum),
            Term::MinusProduct => (-q).mul_add(x * factor, sum),
        });
        f64::from((sum * group.scale).round_ties_even())
    }

    proptest! {
        #[test]
        fn all_forms_give_the_bits_of_single_steps(
            dtype in prop::sample::select(DType::ALL.to_vec()),
            square in any::<bool>(),
            with_factors in any::<bool>(),
            whole in any::<bool>(),
            steps in 1..=LANES / LANE_STEP,
            numbers in prop::collection::vec(-100f32..100.0, GROUP_MAX + LANES),
            width in 1..=GROUP_MAX,
        ) {
            let stride = steps * LANE_STEP;
            let bytes = |c, lane| encode(dtype, value(dtype, &numbers, (c, lane)));
            let columns: Vec<u8> =
                (0..width).flat_map(|c| (0..stride).flat_map(move |lane| bytes(c, lane))).collect();
            let rows: Vec<u8> =
                (0..stride).flat_map(|lane| (0..width).flat_map(move |c| bytes(c, lane))).collect();
            let factors: Vec<f32> =
                if with_factors { (0..stride).map(|lane| 0.1 + lane as f32).collect() } else { vec![] };
            let term = if square { Term::Square } else { Term::MinusProduct };
            // Whole numbers meet the form by integers where components are bytes.
            let query: Vec<f32> =
                numbers[..width].iter().map(|x| if whole { x.abs().trunc() } else { *x }).collect();
            let group = Group { term, dtype, query: &query, scale: 64.0, factors: &factors };
            let wanted: Vec<f64> = (0..stride).map(|lane| {
                let components: Vec<f32> = (0..width).map(|c| decode(dtype, &bytes(c, lane))).collect();
                3.0 + expected(&group, &components, lane)
            }).collect();
            let mut sums = [3.0; LANES];
            add_columns(&group, &columns, stride, &mut sums);
            prop_assert_eq!(&sums[..stride], &wanted[..]);
            prop_assert!(sums[stride..].iter().all(|&sum| sum == 3.0));
            let lanes: Vec<u8> = (0..stride as u8).filter(|lane| lane % 3 != 1).collect();
            let (mut by_column, mut by_row) = ([3.0; LANES], [3.0; LANES]);
            add_columns_of(&group, &columns, stride, &lanes, &mut by_column);
            add_rows_of(&group, &rows, &lanes, &mut by_row);
            for lane in 0..LANES {
                let wanted = if lanes.contains(&(lane as u8)) { wanted[lane] } else { 3.0 };
                prop_assert_eq!(by_column[lane], wanted);
                // In another order.
                let bound = 1.0 + 1e-6 * 64.0 * 64.0 * (200.0 * 200.0 * if with_factors { 4096.0 } else { 1.0 });
                prop_assert!((by_row[lane] - wanted).abs() <= bound, "{} {wanted}", by_row[lane]);
                if dtype == DType::F32 && !with_factors && lanes.contains(&(lane as u8)) {
                    let row = &rows[4 * width * lane..][..4 * width];
                    let l2 = distance::l2_f32(group.query, row);
                    let sum = if square { l2 } else { -distance::dot_f32(group.query, row) };
                    prop_assert_eq!(by_row[lane], 3.0 + in_units(sum, group.scale));
                }
            }
        }
    }

    #[test]
    fn lanes_beyond_the_limit_are_dropped() {
        let mut sums = [5.0; LANES];
        (sums[2], sums[9], sums[10]) = (4.0, f64::NAN, 7.0);
        let mut rests = [0.0; LANES];
        rests[10] = 2.5;
        let mut lanes: Vec<u8> = (0..12).collect();
        let kept = keep_within(4.5, &rests, &sums, &mut lanes);
        assert_eq!(lanes[..kept], [2, 10]);
        assert_eq!(count_within(4.5, &rests, &sums), 2);
        assert_eq!(
            count_within(f64::INFINITY, &rests, &sums),
            LANES - 1,
            "a sum that is no number is never kept"
        );
    }
}
