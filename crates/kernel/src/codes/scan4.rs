//! Product codes of 4 bits per subspace, scored 32 at a time with tables that stay in registers (André et al., "Cache
//! locality is not enough", VLDB 2015; the layout is that of "Quick ADC", ICMR 2017, with two subspaces a 32-byte row).
//!
//! For full scans of lists. A block holds 32 codes, subspace after subspace: byte i of the 16 of a subspace
//! has code i in its low half and code 16 + i in its high half. The number of subspaces is rounded up to even.

use super::lanes::{self, Term};
use crate::isa::{self, Isa};

/// Codes of one block.
pub const BLOCK: usize = 32;

/// Centroids of a subspace.
pub const CENTROIDS: usize = 16;

/// Bytes that a subspace takes in a block.
const ROW: usize = BLOCK / 2;

/// Bytes of a block of codes of `subspaces` subspaces.
pub const fn block_bytes(subspaces: usize) -> usize {
    subspaces.next_multiple_of(2) * ROW
}

/// Centroids for 4-bit codes. Plain data. Vectors are centred and rotated by the caller.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Codebook4 {
    /// True for inner-product search.
    pub ip: bool,
    /// The m + 1 borders of the subspaces: subspace j holds components `starts[j]..starts[j + 1]`.
    pub starts: Vec<u32>,
    /// Subspace after subspace, `width × 16` each: component by component.
    pub centroids: Vec<f32>,
}

impl Codebook4 {
    /// Number of subspaces, m.
    pub fn subspaces(&self) -> usize {
        self.starts.len().saturating_sub(1)
    }

    /// Returns whether all lengths agree with each other. A codebook from a file must be checked before use.
    pub fn is_consistent(&self) -> bool {
        self.starts.first() == Some(&0)
            && self.starts.windows(2).all(|w| w[0] < w[1])
            && self.centroids.len() == CENTROIDS * self.starts.last().map_or(0, |&d| d as usize)
            && self.centroids.iter().all(|x| x.is_finite())
    }

    fn terms(&self, term: Term, x: &[f32], mut each: impl FnMut(usize, &[f32; CENTROIDS])) {
        for (j, border) in self.starts.windows(2).enumerate() {
            let (start, end) = (border[0] as usize, border[1] as usize);
            let mut terms = [0f32; CENTROIDS];
            lanes::terms_body(term, &x[start..end], &self.centroids[CENTROIDS * start..], &mut terms);
            each(j, &terms);
        }
    }

    /// Writes the nearest centroid for each subspace of `x`, one per byte (below 16); ties go to the smaller number.
    pub fn encode(&self, x: &[f32], out: &mut [u8]) {
        self.terms(Term::Squared, x, |j, terms| {
            let closer = |best: usize, k: usize| if terms[k] < terms[best] { k } else { best };
            out[j] = (0..CENTROIDS).fold(0, closer) as u8;
        });
    }
}

/// Packs `codes` (n × `subspaces`, one per byte, in its low 4 bits) into blocks, appended to `out`. The last
/// block is filled up with code 0.
pub fn pack(codes: &[u8], subspaces: usize, out: &mut Vec<u8>) {
    for codes in codes.chunks(BLOCK * subspaces.max(1)) {
        let start = out.len();
        out.resize(start + block_bytes(subspaces), 0);
        for (i, code) in codes.chunks_exact(subspaces).enumerate() {
            let shift = if i < ROW { 0 } else { 4 };
            for (j, &k) in code.iter().enumerate() {
                out[start + j * ROW + i % ROW] |= (k & 15) << shift;
            }
        }
    }
}

/// Tables of a query with one byte per entry. Distances are sums of entries, in 16 bits.
#[derive(Clone, Debug, Default)]
pub struct Table4 {
    // 16 entries per subspace, for an even number of subspaces.
    entries: Vec<u8>,
    scale: f32,
    offset: f32,
}

impl Table4 {
    /// Fills the tables for `query`, centred and rotated like the codes were.
    ///
    /// The step is the finest at which an entry fits 8 bits and the sum of the largest entries 16.
    pub fn set(&mut self, codebook: &Codebook4, query: &[f32]) {
        let m = codebook.subspaces();
        let mut floats = vec![[0f32; CENTROIDS]; m];
        let term = if codebook.ip { Term::MinusDot } else { Term::Squared };
        codebook.terms(term, query, |j, terms| floats[j] = *terms);
        let spans: Vec<(f32, f32)> = floats.iter().map(low_and_range).collect();
        let widest = spans.iter().fold(0f32, |w, s| w.max(s.1));
        let total: f32 = spans.iter().map(|s| s.1).sum();
        // Rounding adds up to half a step for every subspace.
        let room = (65_535.0 - m as f32).max(1.0);
        let step = (widest / 255.0).max(total / room);
        self.scale = if step.is_normal() { step } else { 1.0 };
        self.offset = spans.iter().map(|s| s.0).sum();
        self.entries.clear();
        for (terms, (low, _)) in floats.iter().zip(&spans) {
            self.entries.extend(terms.map(|t| ((t - low) / self.scale + 0.5) as u8));
        }
        self.entries.resize(m.next_multiple_of(2) * CENTROIDS, 0);
    }

    /// The distances of all codes of `blocks`, 32 a block; `out` is cleared first. Any bytes are valid codes; those
    /// after the last whole block are left out.
    pub fn scan(&self, blocks: &[u8], out: &mut Vec<u16>) {
        self.scan_with(isa::current(), blocks, out);
    }

    pub(super) fn scan_with(&self, isa: Isa, blocks: &[u8], out: &mut Vec<u16>) {
        out.clear();
        if self.entries.is_empty() {
            return;
        }
        let blocks = blocks.chunks_exact(self.entries.len());
        out.resize(blocks.len() * BLOCK, 0);
        let pairs = blocks.zip(out.as_chunks_mut::<BLOCK>().0);
        #[cfg(target_arch = "x86_64")]
        match isa {
            Isa::Avx512 => {
                // SAFETY: callers name only instruction sets that this machine has.
                return pairs.for_each(|(block, out)| unsafe { x86::avx512(&self.entries, block, out) });
            }
            Isa::Avx2 => {
                // SAFETY: as above.
                return pairs.for_each(|(block, out)| unsafe { x86::avx2(&self.entries, block, out) });
            }
            _ => {}
        }
        let _ = isa;
        pairs.for_each(|(block, out)| scalar(&self.entries, block, out));
    }

    /// Converts to a distance of the metric (squared l2, or minus the inner product).
    pub fn to_float(&self, distance: u16) -> f32 {
        f32::from(distance) * self.scale + self.offset
    }
}

fn low_and_range(terms: &[f32; CENTROIDS]) -> (f32, f32) {
    let (low, high) =
        terms.iter().fold((f32::INFINITY, f32::NEG_INFINITY), |(l, h), &t| (l.min(t), h.max(t)));
    (low, high - low)
}

fn scalar(entries: &[u8], block: &[u8], out: &mut [u16; BLOCK]) {
    for (row, entries) in block.as_chunks::<ROW>().0.iter().zip(entries.as_chunks::<CENTROIDS>().0) {
        for (i, byte) in row.iter().enumerate() {
            out[i] = out[i].wrapping_add(u16::from(entries[usize::from(byte & 15)]));
            out[ROW + i] = out[ROW + i].wrapping_add(u16::from(entries[usize::from(byte >> 4)]));
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::BLOCK;
    use std::arch::x86_64::*;

    /// Two subspaces per step, one in each half of a register.
    #[target_feature(enable = "avx2")]
    pub(super) fn avx2(entries: &[u8], block: &[u8], out: &mut [u16; BLOCK]) {
        let nibble = _mm256_set1_epi8(15);
        let mut sums = [_mm256_setzero_si256(); 4];
        for (codes, entries) in block.as_chunks::<32>().0.iter().zip(entries.as_chunks::<32>().0) {
            // SAFETY: both are 32 bytes.
            let (codes, table) = unsafe {
                (_mm256_loadu_si256(codes.as_ptr().cast()), _mm256_loadu_si256(entries.as_ptr().cast()))
            };
            let low = _mm256_shuffle_epi8(table, _mm256_and_si256(codes, nibble));
            let high = _mm256_shuffle_epi8(table, _mm256_and_si256(_mm256_srli_epi16::<4>(codes), nibble));
            // Sums of 16 bits: whole words, from which the odd bytes are subtracted in the end, and the odd bytes.
            for (i, terms) in [low, high].into_iter().enumerate() {
                sums[2 * i] = _mm256_add_epi16(sums[2 * i], terms);
                sums[2 * i + 1] = _mm256_add_epi16(sums[2 * i + 1], _mm256_srli_epi16::<8>(terms));
            }
        }
        store(sums, out);
    }

    /// Four subspaces per step; the last step may have two.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2")]
    pub(super) fn avx512(entries: &[u8], block: &[u8], out: &mut [u16; BLOCK]) {
        let nibble = _mm512_set1_epi8(15);
        let mut sums = [_mm512_setzero_si512(); 4];
        for (codes, entries) in block.chunks(64).zip(entries.chunks(64)) {
            let mask = u64::MAX >> (64 - codes.len().min(entries.len()));
            // SAFETY: the mask has as many bits as the shorter of the two has bytes.
            let (codes, table) = unsafe {
                let codes = _mm512_maskz_loadu_epi8(mask, codes.as_ptr().cast());
                (codes, _mm512_maskz_loadu_epi8(mask, entries.as_ptr().cast()))
            };
            let low = _mm512_shuffle_epi8(table, _mm512_and_si512(codes, nibble));
            let high = _mm512_shuffle_epi8(table, _mm512_and_si512(_mm512_srli_epi16::<4>(codes), nibble));
            for (i, terms) in [low, high].into_iter().enumerate() {
                sums[2 * i] = _mm512_add_epi16(sums[2 * i], terms);
                sums[2 * i + 1] = _mm512_add_epi16(sums[2 * i + 1], _mm512_srli_epi16::<8>(terms));
            }
        }
        let halves =
            sums.map(|s| _mm256_add_epi16(_mm512_castsi512_si256(s), _mm512_extracti64x4_epi64::<1>(s)));
        store(halves, out);
    }

    /// Adds the halves of the sums, and puts even and odd codes back into their order.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn store(sums: [__m256i; 4], out: &mut [u16; BLOCK]) {
        let [low, low_odd, high, high_odd] =
            sums.map(|s| _mm_add_epi16(_mm256_castsi256_si128(s), _mm256_extracti128_si256::<1>(s)));
        for (i, (words, odd)) in [(low, low_odd), (high, high_odd)].into_iter().enumerate() {
            let even = _mm_sub_epi16(words, _mm_slli_epi16::<8>(odd));
            let at = out[16 * i..16 * i + 16].as_mut_ptr();
            // SAFETY: 16 numbers of 16 bits, in two stores of 8.
            unsafe {
                _mm_storeu_si128(at.cast(), _mm_unpacklo_epi16(even, odd));
                _mm_storeu_si128(at.add(8).cast(), _mm_unpackhi_epi16(even, odd));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn codebook(numbers: &[f32], dim: usize, m: usize, ip: bool) -> Codebook4 {
        let centroids = numbers.iter().copied().cycle().take(CENTROIDS * dim).collect();
        let book = Codebook4 { ip, starts: (0..=m).map(|j| (j * dim / m) as u32).collect(), centroids };
        assert!(book.is_consistent());
        book
    }

    /// Component `i` of a decoded vector.
    fn decoded(book: &Codebook4, code: &[u8], i: usize) -> f32 {
        let j = book.starts.iter().rposition(|&s| s as usize <= i).unwrap();
        book.centroids[CENTROIDS * i + usize::from(code[j])]
    }

    proptest! {
        #[test]
        fn every_form_gives_the_sums_of_the_entries(
            entries in prop::collection::vec(any::<u8>(), 16..1000), blocks in prop::collection::vec(any::<u8>(), 0..6000),
        ) {
            let mut table = Table4 { entries, scale: 1.0, offset: 0.0 };
            table.entries.truncate(table.entries.len() / 32 * 32);
            let (mut out, mut want) = (vec![7], Vec::new());
            for block in blocks.chunks_exact(table.entries.len().max(1)).take_while(|_| !table.entries.is_empty()) {
                let code = |i: usize, j: usize| block[j * 16 + i % 16] >> (i / 16 * 4) & 15;
                let entry = |i, j| u16::from(table.entries[j * 16 + usize::from(code(i, j))]);
                want.extend((0..32).map(|i| (0..block.len() / 16).map(|j| entry(i, j)).sum::<u16>()));
            }
            table.scan(&blocks, &mut out);
            prop_assert_eq!(&out, &want);
            for isa in [Isa::Scalar, Isa::Avx2, Isa::Avx512] {
                if isa <= isa::best() {
                    table.scan_with(isa, &blocks, &mut out);
                    prop_assert_eq!(&out, &want);
                }
            }
        }

        #[test]
        fn a_scan_gives_the_distances_to_the_decoded_vectors(
            numbers in prop::collection::vec(-9f32..9.0, 300..400), dim in 1usize..40, part in 1usize..40, ip: bool,
            n in 0usize..80, seed: u32,
        ) {
            let m = part.min(dim);
            let book = codebook(&numbers, dim, m, ip);
            let codes: Vec<u8> = (0..n * m).map(|i| (seed.wrapping_mul(i as u32 * 2 + 1) >> 28) as u8).collect();
            let mut blocks = Vec::new();
            pack(&codes, m, &mut blocks);
            prop_assert_eq!(blocks.len(), n.div_ceil(BLOCK) * block_bytes(m));
            let q = &numbers[200..200 + dim];
            let (mut table, mut out) = (Table4::default(), Vec::new());
            table.set(&book, q);
            table.scan(&blocks, &mut out);
            for (code, &got) in codes.chunks(m).zip(&out) {
                let pairs = (0..dim).map(|i| (q[i], decoded(&book, code, i)));
                let exact: f32 = pairs.map(|(q, x)| if ip { -q * x } else { (q - x) * (q - x) }).sum();
                let slack = 0.51 * m as f32 * table.scale + 1e-3;
                prop_assert!((table.to_float(got) - exact).abs() <= slack, "{} {}", table.to_float(got), exact);
            }
        }

        #[test]
        fn encoding_picks_the_nearest(numbers in prop::collection::vec(-9f32..9.0, 300..400), dim in 1usize..20) {
            let m = dim.div_ceil(3);
            let book = codebook(&numbers, dim, m, false);
            let x = &numbers[100..100 + dim];
            let mut code = vec![0u8; m];
            book.encode(x, &mut code);
            for j in 0..m {
                let distance = |k: u8| -> f32 {
                    let mut other = code.clone();
                    other[j] = k;
                    let range = book.starts[j] as usize..book.starts[j + 1] as usize;
                    range.map(|i| (x[i] - decoded(&book, &other, i)).powi(2)).sum()
                };
                prop_assert!((0..16).all(|k| distance(code[j]) <= distance(k)));
            }
        }
    }

    #[test]
    fn many_subspaces_do_not_overflow() {
        let book = codebook(&[-1.0, 1.0, 0.5], 4000, 4000, false);
        let mut table = Table4::default();
        table.set(&book, &vec![3.0; 4000]);
        let total: u32 = table.entries.chunks(16).map(|e| u32::from(*e.iter().max().unwrap())).sum();
        assert!((60_000..=65_535).contains(&total), "{total}");
    }
}
