//! Codes of sixteen rows side by side, so that one register has the same dimensions of all of them.
//!
//! Four bytes of the plane of each of sixteen codes lie together. A row is compared by as many instructions as it has
//! dimensions, divided by 26, and nothing is summed across a register. (The idea of "fast scan": André, Kermarrec, Le
//! Scouarnec, Cache locality is not enough, VLDB 2015.) Keys have the bits that [`BitQuery::rows`] gives them.

use super::layout::{Layout, Plane};
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

/// Codes of four bits a dimension, to which others are added.
#[derive(Clone, Debug, Default)]
pub struct LaneCodes {
    norms: Vec<f32>,
    scales: Vec<f32>,
    bits: Vec<u8>,
}

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
        self.norms.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.norms.is_empty()
    }

    /// Most memory of so many codes, bytes.
    pub fn bytes(layout: &Layout, codes: usize) -> usize {
        codes.next_multiple_of(LANES) * plane_of(layout).map_or(0, padded) + codes * 2 * FACTOR
    }

    /// Adds a code of a layout that [`can_have`](Self::can_have) lanes. Others, and what is shorter than a code, become
    /// zeros.
    pub fn push(&mut self, layout: &Layout, code: &[u8]) {
        let (at, plane) = (self.len(), plane_of(layout));
        let factor = |first: usize| {
            let bytes = code.get(first..first + FACTOR).and_then(|bytes| bytes.try_into().ok());
            bytes.map_or(0.0, f32::from_le_bytes)
        };
        self.norms.push(factor(0));
        self.scales.push(factor(FACTOR));
        let Some(plane) = plane else { return };
        let bytes = padded(plane);
        if at.is_multiple_of(LANES) {
            self.bits.resize(self.bits.len() + LANES * bytes, 0);
        }
        let own = code.get(plane.first..plane.first + plane.bytes).unwrap_or_default();
        let group = &mut self.bits[at / LANES * LANES * bytes..];
        for (piece, own) in own.chunks(PIECE).enumerate() {
            let place = (piece * LANES + at % LANES) * PIECE;
            group[place..place + own.len()].copy_from_slice(own);
        }
    }

    /// Adds a code of others of the same layout.
    pub fn push_from(&mut self, layout: &Layout, others: &LaneCodes, at: usize) {
        let mut code = vec![0; layout.code_bytes()];
        others.read(layout, at, &mut code);
        self.push(layout, &code);
    }

    /// Reads a code, which must be there, into as many bytes as it has.
    fn read(&self, layout: &Layout, at: usize, code: &mut [u8]) {
        code[..FACTOR].copy_from_slice(&self.norms[at].to_le_bytes());
        code[FACTOR..2 * FACTOR].copy_from_slice(&self.scales[at].to_le_bytes());
        let Some(plane) = plane_of(layout) else { return };
        let group = &self.bits[at / LANES * LANES * padded(plane)..];
        for (piece, own) in code[plane.first..plane.first + plane.bytes].chunks_mut(PIECE).enumerate() {
            let place = (piece * LANES + at % LANES) * PIECE;
            own.copy_from_slice(&group[place..place + own.len()]);
        }
    }
}

/// Bytes of a plane in whole pieces.
fn padded(plane: &Plane) -> usize {
    plane.bytes.next_multiple_of(PIECE)
}

impl BitQuery {
    /// The keys of all codes, in their order. `out` is cleared first. Codes of another layout have the largest key.
    pub fn lanes(&self, codes: &LaneCodes, out: &mut Vec<u32>) {
        self.lanes_by(isa::current(), codes, out);
    }

    pub(super) fn lanes_by(&self, isa: Isa, codes: &LaneCodes, out: &mut Vec<u32>) {
        out.clear();
        out.resize(codes.len(), u32::MAX);
        let Some(plane) = plane_of(self.layout()) else { return };
        let bytes = padded(plane);
        if codes.bits.len() != codes.len().next_multiple_of(LANES) * bytes {
            return;
        }
        let (low, high) = self.halves(plane);
        let group = |at: usize| &codes.bits[at * bytes * LANES..][..bytes * LANES];
        let numbers = (self.offset(), self.weight(), self.term(), self.counted());
        for (at, out) in out.chunks_mut(LANES).enumerate() {
            let sums = sums(isa, group(at), low, high);
            let factors = (&codes.norms[at * LANES..], &codes.scales[at * LANES..]);
            keys(&sums, factors, numbers, out);
        }
    }

    /// Components of the dimensions in the low and in the high halves of bytes.
    fn halves(&self, plane: &Plane) -> (&[i8], &[i8]) {
        let components = &self.components()[plane.start..];
        // Zeros follow the last component, and levels of dimensions that do not exist are zero.
        (&components[..padded(plane)], &components[plane.bytes..][..padded(plane)])
    }
}

/// Σ of levels times components, of sixteen codes.
fn sums(isa: Isa, group: &[u8], low: &[i8], high: &[i8]) -> [i32; LANES] {
    assert!(group.len() == LANES * low.len() && low.len() == high.len() && low.len().is_multiple_of(PIECE));
    match isa {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: `isa` is one that this machine has, and the lengths are as they must be.
        Isa::Avx512 => unsafe { sums_avx512(group, low, high) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        Isa::Avx2 => unsafe { sums_avx2(group, low, high) },
        _ => sums_scalar(group, low, high),
    }
}

fn sums_scalar(group: &[u8], low: &[i8], high: &[i8]) -> [i32; LANES] {
    let mut sums = [0i32; LANES];
    let halves = low.chunks_exact(PIECE).zip(high.chunks_exact(PIECE));
    for (piece, (low, high)) in group.chunks_exact(LANES * PIECE).zip(halves) {
        for (sum, bytes) in sums.iter_mut().zip(piece.chunks_exact(PIECE)) {
            for i in 0..PIECE {
                let products = i32::from(bytes[i] & 15) * i32::from(low[i]);
                *sum += products + i32::from(bytes[i] >> 4) * i32::from(high[i]);
            }
        }
    }
    sums
}

/// A piece of components in all lanes.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn piece_of(components: &[i8], piece: usize) -> i32 {
    let bytes = components[PIECE * piece..].first_chunk().copied().unwrap_or_default();
    i32::from_le_bytes(bytes.map(|x: i8| x as u8))
}

/// # Safety
/// `group` has 64 bytes for each four of `low` and `high`, which are equally long.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
unsafe fn sums_avx512(group: &[u8], low: &[i8], high: &[i8]) -> [i32; LANES] {
    use std::arch::x86_64::*;
    let mask = _mm512_set1_epi8(15);
    let (mut of_low, mut of_high) = (_mm512_setzero_si512(), _mm512_setzero_si512());
    for piece in 0..low.len() / PIECE {
        // SAFETY: the group has 64 bytes for each piece; alignment is not required.
        let packed = unsafe { _mm512_loadu_si512(group.as_ptr().add(piece * LANES * PIECE).cast()) };
        let levels = _mm512_and_si512(packed, mask);
        of_low = _mm512_dpbusd_epi32(of_low, levels, _mm512_set1_epi32(piece_of(low, piece)));
        let levels = _mm512_and_si512(_mm512_srli_epi16::<4>(packed), mask);
        of_high = _mm512_dpbusd_epi32(of_high, levels, _mm512_set1_epi32(piece_of(high, piece)));
    }
    let mut sums = [0i32; LANES];
    // SAFETY: `sums` has 64 bytes; alignment is not required.
    unsafe { _mm512_storeu_si512(sums.as_mut_ptr().cast(), _mm512_add_epi32(of_low, of_high)) };
    sums
}

/// # Safety
/// As [`sums_avx512`].
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn sums_avx2(group: &[u8], low: &[i8], high: &[i8]) -> [i32; LANES] {
    use std::arch::x86_64::*;
    let (mask, ones) = (_mm256_set1_epi8(15), _mm256_set1_epi16(1));
    let mut all = [_mm256_setzero_si256(); 2];
    for piece in 0..low.len() / PIECE {
        let query = (_mm256_set1_epi32(piece_of(low, piece)), _mm256_set1_epi32(piece_of(high, piece)));
        for (half, all) in all.iter_mut().enumerate() {
            let at = piece * LANES * PIECE + 32 * half;
            // SAFETY: the group has 64 bytes for each piece; alignment is not required.
            let packed = unsafe { _mm256_loadu_si256(group.as_ptr().add(at).cast()) };
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
    /// The keys of codes with these sums and factors.
    fn keys(sums: &[i32; LANES], factors: (&[f32], &[f32]), numbers: Numbers, out: &mut [u32]) = keys_body
}

#[inline(always)]
fn keys_body(
    sums: &[i32; LANES],
    (norms, scales): (&[f32], &[f32]),
    (offset, weight, term, counted): Numbers,
    out: &mut [u32],
) {
    let all = sums.iter().zip(norms.iter().zip(scales)).zip(out);
    for ((sum, (norm, scale)), out) in all {
        let product = (2 * sum - offset) as f32;
        let norm = f32::from_bits(norm.to_bits() & counted);
        *out = to_key((term + norm) - (weight * scale) * product);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bits::BitCoder;
    use crate::isa::is_available;

    #[test]
    fn keys_are_those_of_codes_one_after_another() {
        for (dim, rows) in [(1, 3), (3, 16), (8, 17), (31, 40), (128, 100), (130, 1), (777, 33), (4096, 5)] {
            for ip in [false, true] {
                let layout = Layout::even(dim, 4, 0, false).unwrap();
                assert!(LaneCodes::can_have(&layout));
                let coder = BitCoder::of_points(layout, 5, ip);
                let row = |seed: usize| -> Vec<f32> {
                    (0..dim).map(|i| ((seed * 37 + i * 101) % 199) as f32 / 31.0 - 3.0).collect()
                };
                let (mut codes, mut lanes) = (Vec::new(), LaneCodes::default());
                for seed in 0..rows {
                    let mut code = vec![0; layout.code_bytes()];
                    coder.encode(&mut row(seed), &mut code);
                    lanes.push(&layout, &code);
                    codes.extend(code);
                }
                let mut again = LaneCodes::default();
                (0..rows).for_each(|at| again.push_from(&layout, &lanes, at));
                assert!((again.bits == lanes.bits) && again.len() == rows && !again.is_empty());
                assert!(lanes.bits.len() + 8 * rows <= LaneCodes::bytes(&layout, rows));
                let mut query = BitQuery::default();
                query.set_point(&coder, &row(1000), if ip { 0.25 } else { 0.0 });
                let (mut expected, mut found) = (Vec::new(), Vec::new());
                query.rows(&codes, &mut expected);
                for isa in [Isa::Scalar, Isa::Avx2, Isa::Avx512, Isa::Neon] {
                    if is_available(isa) {
                        query.lanes_by(isa, &lanes, &mut found);
                        assert_eq!(found, expected, "{dim} {rows} {ip} {}", isa.name());
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
            codes.push(&layout, &vec![1; layout.code_bytes()]);
            let mut query = BitQuery::default();
            query.set_point(&BitCoder::of_points(layout, 1, false), &[0.5; 9], 0.0);
            let mut keys = Vec::new();
            query.lanes(&codes, &mut keys);
            assert_eq!(keys, [u32::MAX]);
        }
        let mut codes = LaneCodes::default();
        let layout = Layout::even(9, 4, 0, false).unwrap();
        codes.push(&layout, &[]);
        assert_eq!((codes.len(), codes.norms[0]), (1, 0.0));
    }
}
