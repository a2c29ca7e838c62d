//! Codes of sixteen rows side by side, so that one register has the same dimensions of all of them.
//!
//! Four bytes of the plane of each of sixteen codes lie together. A row is compared by as many instructions as it has
//! dimensions, divided by 26, and nothing is summed across a register. (The idea of "fast scan": André, Kermarrec, Le
//! Scouarnec, Cache locality is not enough, VLDB 2015.) Keys have the bits that [`BitQuery::rows`] gives them.

use super::layout::{Layout, Plane};
use super::point::is_within;
use super::query::{BitQuery, to_key};
use crate::isa::{self, Isa, for_each_isa};

/// Codes that lie together.
const LANES: usize = 16;
/// Bytes of each that do.
const PIECE: usize = 4;
/// Bits of a dimension.
const WIDTH: u32 = 4;
/// Bytes of a factor.
const FACTOR: usize = 4;

/// A number of four bytes of each code of a group: the lines of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C, align(64))]
struct Line([u32; LANES]);

/// Codes of four bits a dimension with their radii, to which others are added. Norms, scales, radii and pieces of a
/// group follow one another, so that a query reads memory from front to end.
#[derive(Clone, Debug, Default)]
pub struct LaneCodes {
    codes: usize,
    groups: Vec<Line>,
}

/// Lines before the pieces of a group: norms, scales and radii.
const NORMS: usize = 0;
const SCALES: usize = 1;
const RADII: usize = 2;
const HEAD: usize = 3;

/// The plane of a layout whose codes can lie side by side.
fn plane_of(layout: &Layout) -> Option<&Plane> {
    let is_whole = !layout.is_numbered() && layout.factor_bytes() == FACTOR;
    match layout.planes() {
        [plane] if is_whole && (plane.width, plane.shift) == (WIDTH, 0) => Some(plane),
        _ => None,
    }
}

impl LaneCodes {
    /// Whether codes of a layout can lie side by side: those of four bits for each dimension without a number.
    pub fn can_have(layout: &Layout) -> bool {
        plane_of(layout).is_some()
    }

    /// Number of codes.
    pub fn len(&self) -> usize {
        self.codes
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.codes == 0
    }

    /// Most memory of so many codes, bytes.
    pub fn bytes(layout: &Layout, codes: usize) -> usize {
        codes.div_ceil(LANES) * lines_of(layout) * size_of::<Line>()
    }

    /// Adds a code of a layout that [`can_have`](Self::can_have) lanes, and the radius of its vector. Others, and what
    /// is shorter than a code, become zeros.
    pub fn push(&mut self, layout: &Layout, code: &[u8], radius: f32) {
        let lane = self.begin(layout);
        let Some(group) = self.last_group(layout) else { return };
        let word = |first: usize| code.get(first..first + FACTOR).and_then(|bytes| bytes.first_chunk());
        let factor = |first: usize| word(first).map_or(0, |bytes| u32::from_le_bytes(*bytes));
        group[NORMS].0[lane] = factor(0);
        group[SCALES].0[lane] = factor(FACTOR);
        group[RADII].0[lane] = radius.to_bits();
        let Some(plane) = plane_of(layout) else { return };
        let own = code.get(plane.first..plane.first + plane.bytes).unwrap_or_default();
        for (line, own) in group[HEAD..].iter_mut().zip(own.chunks(PIECE)) {
            let mut piece = [0; PIECE];
            piece[..own.len()].copy_from_slice(own);
            line.0[lane] = u32::from_le_bytes(piece);
        }
    }

    /// Adds a code of others of the same layout.
    pub fn push_from(&mut self, layout: &Layout, others: &LaneCodes, at: usize) {
        let lane = self.begin(layout);
        let lines = lines_of(layout);
        let theirs = others.groups.get(at / LANES * lines..(at / LANES + 1) * lines).unwrap_or_default();
        let Some(group) = self.last_group(layout) else { return };
        group.iter_mut().zip(theirs).for_each(|(line, theirs)| line.0[lane] = theirs.0[at % LANES]);
    }

    /// Makes room for so many codes more, and for no others.
    pub fn reserve_exact(&mut self, layout: &Layout, codes: usize) {
        let lines = (self.codes + codes).div_ceil(LANES) * lines_of(layout);
        self.groups.reserve_exact(lines.saturating_sub(self.groups.len()));
    }

    /// The radius of a vector; infinite behind the last.
    pub fn radius(&self, layout: &Layout, at: usize) -> f32 {
        let line = (at < self.codes).then(|| self.groups.get(at / LANES * lines_of(layout) + RADII));
        line.flatten().map_or(f32::INFINITY, |line| f32::from_bits(line.0[at % LANES]))
    }

    /// Counts a code, and returns its lane in the last group, which is there then.
    fn begin(&mut self, layout: &Layout) -> usize {
        let lane = self.codes % LANES;
        if lane == 0 {
            self.groups.resize(self.groups.len() + lines_of(layout), Line([0; LANES]));
        }
        self.codes += 1;
        lane
    }

    fn last_group(&mut self, layout: &Layout) -> Option<&mut [Line]> {
        let first = self.groups.len().checked_sub(lines_of(layout))?;
        Some(&mut self.groups[first..])
    }
}

/// Lines of a group.
fn lines_of(layout: &Layout) -> usize {
    HEAD + plane_of(layout).map_or(0, padded) / PIECE
}

/// Bytes of a plane in whole pieces.
fn padded(plane: &Plane) -> usize {
    plane.bytes.next_multiple_of(PIECE)
}

/// Components of the dimensions in the low and in the high halves of bytes.
type Halves<'a> = (&'a [i8], &'a [i8]);

impl BitQuery {
    /// The keys of all codes, in their order. `out` is cleared first. Codes of another layout have the largest key.
    pub fn lanes(&self, codes: &LaneCodes, out: &mut Vec<u32>) {
        self.lanes_by(isa::current(), codes, out);
    }

    pub(super) fn lanes_by(&self, isa: Isa, codes: &LaneCodes, out: &mut Vec<u32>) {
        out.clear();
        out.resize(codes.len(), u32::MAX);
        let Some((groups, halves)) = self.groups_of(codes) else { return };
        for (group, out) in groups.zip(out.chunks_mut(LANES)) {
            let sums = sums(isa, &group[HEAD..], halves);
            let mut keys = [0; LANES];
            keys_of(&sums, group, self.numbers(), &mut keys);
            out.copy_from_slice(&keys[..out.len()]);
        }
    }

    /// Keys and places of the codes whose distances are not larger than the square of `reach` and the radius of the
    /// vector, and `slack`; those of another layout have none. `out` is cleared first.
    pub fn near_lanes(&self, codes: &LaneCodes, (reach, slack): (f32, f32), out: &mut Vec<(u32, u32)>) {
        self.near_lanes_by(isa::current(), codes, (reach, slack), out);
    }

    fn near_lanes_by(&self, isa: Isa, codes: &LaneCodes, reach: (f32, f32), out: &mut Vec<(u32, u32)>) {
        out.clear();
        let Some((groups, halves)) = self.groups_of(codes) else { return };
        for (group, first) in groups.zip((0..codes.len()).step_by(LANES)) {
            let sums = sums(isa, &group[HEAD..], halves);
            let mut keys = [0; LANES];
            let mut near = near_of(&sums, group, (self.numbers(), reach), &mut keys);
            while near != 0 {
                let lane = near.trailing_zeros() as usize;
                near &= near - 1;
                if first + lane < codes.len() {
                    out.push((keys[lane], (first + lane) as u32));
                }
            }
        }
    }

    /// The groups of codes and the halves of the query, if they are of the same layout.
    fn groups_of<'a>(
        &'a self,
        codes: &'a LaneCodes,
    ) -> Option<(impl Iterator<Item = &'a [Line]>, Halves<'a>)> {
        let plane = plane_of(self.layout())?;
        let lines = lines_of(self.layout());
        let is_same = codes.groups.len() == codes.len().div_ceil(LANES) * lines;
        is_same.then(|| (codes.groups.chunks_exact(lines), self.halves(plane)))
    }

    fn numbers(&self) -> Numbers {
        (self.offset(), self.weight(), self.term(), self.counted())
    }

    /// Components of the dimensions in the low and in the high halves of bytes.
    fn halves(&self, plane: &Plane) -> Halves<'_> {
        let components = &self.components()[plane.start..];
        // Zeros follow the last component, and levels of dimensions that do not exist are zero.
        (&components[..padded(plane)], &components[plane.bytes..][..padded(plane)])
    }
}

/// Σ of levels times components, of sixteen codes.
fn sums(isa: Isa, pieces: &[Line], (low, high): Halves<'_>) -> [i32; LANES] {
    match isa {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: `isa` is one that this machine has.
        Isa::Avx512 => unsafe { sums_avx512(pieces, low, high) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        Isa::Avx2 => unsafe { sums_avx2(pieces, low, high) },
        _ => sums_scalar(pieces, low, high),
    }
}

fn sums_scalar(pieces: &[Line], low: &[i8], high: &[i8]) -> [i32; LANES] {
    let mut sums = [0i32; LANES];
    for (piece, (low, high)) in pieces.iter().zip(pieces_of(low).iter().zip(pieces_of(high))) {
        for (sum, word) in sums.iter_mut().zip(piece.0) {
            let bytes = word.to_le_bytes();
            for i in 0..PIECE {
                let products = i32::from(bytes[i] & 15) * i32::from(low[i]);
                *sum += products + i32::from(bytes[i] >> 4) * i32::from(high[i]);
            }
        }
    }
    sums
}

/// Components in pieces.
fn pieces_of(components: &[i8]) -> &[[i8; PIECE]] {
    components.as_chunks().0
}

/// A piece of components in all lanes.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn word_of(piece: &[i8; PIECE]) -> i32 {
    i32::from_le_bytes(piece.map(|x| x as u8))
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn sums_avx512(pieces: &[Line], low: &[i8], high: &[i8]) -> [i32; LANES] {
    use std::arch::x86_64::*;
    let mask = _mm512_set1_epi8(15);
    // A sum waits for the one before, so four of them are computed at once.
    let (mut of_low, mut of_high) = ([_mm512_setzero_si512(); 2], [_mm512_setzero_si512(); 2]);
    let halves = pieces_of(low).chunks(2).zip(pieces_of(high).chunks(2));
    for (lines, (low, high)) in pieces.chunks(2).zip(halves) {
        for (at, ((line, low), high)) in lines.iter().zip(low).zip(high).enumerate() {
            // SAFETY: a line has 64 bytes and begins at a multiple of 64.
            let packed = unsafe { _mm512_load_si512(line.0.as_ptr().cast()) };
            let levels = _mm512_and_si512(packed, mask);
            of_low[at] = _mm512_dpbusd_epi32(of_low[at], levels, _mm512_set1_epi32(word_of(low)));
            let levels = _mm512_and_si512(_mm512_srli_epi16::<4>(packed), mask);
            of_high[at] = _mm512_dpbusd_epi32(of_high[at], levels, _mm512_set1_epi32(word_of(high)));
        }
    }
    let [of_low, of_high] = [of_low, of_high].map(|[one, two]| _mm512_add_epi32(one, two));
    let mut sums = [0i32; LANES];
    // SAFETY: `sums` has 64 bytes; alignment is not required.
    unsafe { _mm512_storeu_si512(sums.as_mut_ptr().cast(), _mm512_add_epi32(of_low, of_high)) };
    sums
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn sums_avx2(pieces: &[Line], low: &[i8], high: &[i8]) -> [i32; LANES] {
    use std::arch::x86_64::*;
    let (mask, ones) = (_mm256_set1_epi8(15), _mm256_set1_epi16(1));
    let mut all = [_mm256_setzero_si256(); 2];
    for (line, (low, high)) in pieces.iter().zip(pieces_of(low).iter().zip(pieces_of(high))) {
        let query = (_mm256_set1_epi32(word_of(low)), _mm256_set1_epi32(word_of(high)));
        for (half, all) in all.iter_mut().enumerate() {
            // SAFETY: a line has 64 bytes, and each half begins at a multiple of 32.
            let packed = unsafe { _mm256_load_si256(line.0.as_ptr().add(8 * half).cast()) };
            let of_low = _mm256_maddubs_epi16(_mm256_and_si256(packed, mask), query.0);
            let levels = _mm256_and_si256(_mm256_srli_epi16::<4>(packed), mask);
            // Four products of 15 × 127 fit 16 bits.
            let pairs = _mm256_add_epi16(of_low, _mm256_maddubs_epi16(levels, query.1));
            *all = _mm256_add_epi32(*all, _mm256_madd_epi16(pairs, ones));
        }
    }
    let mut sums = [0i32; LANES];
    for (half, all) in all.into_iter().enumerate() {
        // SAFETY: `sums` has 32 bytes for each half; alignment is not required.
        unsafe { _mm256_storeu_si256(sums.as_mut_ptr().add(8 * half).cast(), all) };
    }
    sums
}

/// Offset, weight and term of a query, and which bits of norms count.
type Numbers = (i32, f32, f32, u32);

for_each_isa! {
    /// The keys of a group of codes with these sums.
    fn keys_of(sums: &[i32; LANES], group: &[Line], numbers: Numbers, keys: &mut [u32; LANES]) = keys_body
}

#[inline(always)]
fn keys_body(
    sums: &[i32; LANES],
    group: &[Line],
    (offset, weight, term, counted): Numbers,
    keys: &mut [u32; LANES],
) {
    let (norms, scales) = (&group[NORMS].0, &group[SCALES].0);
    for (lane, key) in keys.iter_mut().enumerate() {
        let product = (2 * sums[lane] - offset) as f32;
        let norm = f32::from_bits(norms[lane] & counted);
        *key = to_key((term + norm) - (weight * f32::from_bits(scales[lane])) * product);
    }
}

for_each_isa! {
    /// The same, and a bit for each code that is near.
    fn near_of(
        sums: &[i32; LANES],
        group: &[Line],
        query: (Numbers, (f32, f32)),
        keys: &mut [u32; LANES]
    ) -> u32 = near_body
}

#[inline(always)]
fn near_body(
    sums: &[i32; LANES],
    group: &[Line],
    (numbers, (reach, slack)): (Numbers, (f32, f32)),
    keys: &mut [u32; LANES],
) -> u32 {
    keys_body(sums, group, numbers, keys);
    let radii = &group[RADII].0;
    let mut near = 0;
    for lane in 0..LANES {
        let is_near = is_within(keys[lane], f32::from_bits(radii[lane]), (reach, slack));
        near |= u32::from(is_near) << lane;
    }
    near
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bits::{BitCoder, within_reach, write_radius};
    use crate::isa::is_available;

    #[test]
    fn keys_are_those_of_codes_one_after_another() {
        for (dim, rows) in [(1, 2), (3, 16), (8, 17), (31, 40), (128, 100), (130, 2), (777, 33), (4096, 5)] {
            for ip in [false, true] {
                let layout = Layout::even(dim, 4, 0, false).unwrap();
                assert!(LaneCodes::can_have(&layout));
                let coder = BitCoder::of_points(layout, 5, ip);
                let row = |seed: usize| -> Vec<f32> {
                    (0..dim).map(|i| ((seed * 37 + i * 101) % 199) as f32 / 31.0 - 3.0).collect()
                };
                let (mut codes, mut radii, mut lanes) = (Vec::new(), Vec::new(), LaneCodes::default());
                for seed in 0..rows {
                    let mut code = vec![0; layout.code_bytes()];
                    coder.encode(&mut row(seed), &mut code);
                    let radius = (seed % 3) as f32;
                    lanes.push(&layout, &code, radius);
                    write_radius(radius, &mut radii);
                    codes.extend(code);
                }
                let mut again = LaneCodes::default();
                (0..rows).for_each(|at| again.push_from(&layout, &lanes, at));
                assert!((again.groups == lanes.groups) && again.len() == rows && !again.is_empty());
                assert_eq!(64 * lanes.groups.len(), LaneCodes::bytes(&layout, rows));
                assert_eq!([0, 1, rows].map(|at| lanes.radius(&layout, at)), [0.0, 1.0, f32::INFINITY]);
                let mut query = BitQuery::default();
                query.set_point(&coder, &row(1000), if ip { 0.25 } else { 0.0 });
                let (mut expected, mut found) = (Vec::new(), Vec::new());
                query.rows(&codes, &mut expected);
                let mean = expected.iter().map(|key| query.to_float(*key)).sum::<f32>() / rows as f32;
                let reach = (mean.abs().sqrt(), 0.5);
                let mut is_near = vec![false; rows];
                within_reach(&expected, &radii, reach, &mut is_near);
                let near = (0..rows).filter(|at| is_near[*at]).map(|at| (expected[at], at as u32));
                let (near, mut found_near): (Vec<_>, _) = (near.collect(), Vec::new());
                for isa in [Isa::Scalar, Isa::Avx2, Isa::Avx512, Isa::Neon] {
                    if is_available(isa) {
                        query.lanes_by(isa, &lanes, &mut found);
                        assert_eq!(found, expected, "{dim} {rows} {ip} {}", isa.name());
                        query.near_lanes_by(isa, &lanes, reach, &mut found_near);
                        assert_eq!(found_near, near, "{dim} {rows} {ip} {}", isa.name());
                    }
                }
            }
        }
    }

    #[test]
    fn codes_of_other_layouts_have_no_distance() {
        for layout in
            [Layout::even(9, 3, 0, false), Layout::even(9, 4, 2, false), Layout::even(9, 4, 0, true)]
        {
            let layout = layout.unwrap();
            assert!(!LaneCodes::can_have(&layout));
            let mut codes = LaneCodes::default();
            codes.push(&layout, &vec![1; layout.code_bytes()], 1.0);
            let mut query = BitQuery::default();
            query.set_point(&BitCoder::of_points(layout, 1, false), &[0.5; 9], 0.0);
            let mut keys = Vec::new();
            query.lanes(&codes, &mut keys);
            assert_eq!(keys, [u32::MAX]);
            let mut near = vec![(1, 1)];
            query.near_lanes(&codes, (f32::INFINITY, 0.0), &mut near);
            assert_eq!(near, []);
        }
        let mut codes = LaneCodes::default();
        let layout = Layout::even(9, 4, 0, false).unwrap();
        codes.push(&layout, &[], 1.0);
        assert_eq!((codes.len(), codes.groups[NORMS].0[0]), (1, 0));
    }
}
