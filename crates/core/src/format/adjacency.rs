//! Adjacency lists: sorted ids as a bit stream of gaps in Rice code.
//!
//! | bits | content |
//! |---|---|
//! | 8 or 16 | number of ids, c |
//! | 5 | Rice parameter, r |
//! | 32 | the smallest id (absent when c = 0, and among [`RANKS`]) |
//! | (c − 1) × | gap − 1 to the id before: quotient by 2^r in unary (zeros, then a one), then r low bits |
//!
//! Bits fill bytes from the lowest; the last byte is padded with zeros. With c ids spread evenly over n this takes
//! about `2 + log2(n / c)` bits per id, and less where neighbours have close ids. Ranks start near 0, so their first
//! value is coded as a gap after −1.

use alloc::vec::Vec;

/// Length of the longest adjacency list.
pub const MAX_LEN: usize = 255;
const PARAMETER_BITS: u32 = 5;

/// Coding of one kind of list: the widths of its first fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdCoding {
    count_bits: u32,
    first_bits: u32,
}

/// Coding of an adjacency list of ids: up to [`MAX_LEN`].
pub const NEIGHBOURS: IdCoding = IdCoding { count_bits: 8, first_bits: 32 };
/// Coding of an adjacency list of ranks among the nodes whose codes a block carries: up to [`MAX_LEN`].
pub const RANKS: IdCoding = IdCoding { count_bits: 8, first_bits: 0 };
/// Coding of the ids of these nodes: up to 65,535.
pub const IDS: IdCoding = IdCoding { count_bits: 16, first_bits: 32 };

impl IdCoding {
    /// Bytes that [`IdCoding::encode`] appends for `sorted`.
    pub fn encoded_len(self, sorted: &[u32]) -> usize {
        let prefix = self.count_bits + PARAMETER_BITS;
        let bits = match sorted.len() {
            0 => prefix as usize,
            _ => {
                (prefix + self.first_bits) as usize
                    + self.best_parameter(sorted).1
                    + self.gaps(sorted).count()
            }
        };
        bits.div_ceil(8)
    }

    /// Computes the Rice parameter with the fewest bits, and these bits without the stop bit of each gap.
    fn best_parameter(self, sorted: &[u32]) -> (u32, usize) {
        let cost = |r: u32| -> usize { self.gaps(sorted).map(|g| (g >> r) as usize + r as usize).sum() };
        let (mut best, mut best_cost) = (0, cost(0));
        for r in 1..32 {
            let c = cost(r);
            if c < best_cost {
                (best, best_cost) = (r, c);
            }
        }
        (best, best_cost)
    }

    fn gaps(self, sorted: &[u32]) -> impl Iterator<Item = u32> + '_ {
        let first = sorted.first().copied().filter(|_| self.first_bits == 0);
        first.into_iter().chain(sorted.windows(2).map(|w| w[1] - w[0] - 1))
    }

    /// Appends a list. `sorted` is strictly ascending and not longer than the coding allows.
    pub fn encode(self, sorted: &[u32], out: &mut Vec<u8>) {
        debug_assert!(sorted.len() >> self.count_bits == 0 && sorted.windows(2).all(|w| w[0] < w[1]));
        let mut bits = BitWriter { out, held: 0, count: 0 };
        let (r, _) = self.best_parameter(sorted);
        bits.put(sorted.len() as u64, self.count_bits);
        bits.put(u64::from(r), PARAMETER_BITS);
        if let Some(&first) = sorted.first().filter(|_| self.first_bits > 0) {
            bits.put(u64::from(first), self.first_bits);
        }
        for gap in self.gaps(sorted) {
            let mut quotient = gap >> r;
            while quotient >= 32 {
                bits.put(0, 32);
                quotient -= 32;
            }
            bits.put(1 << quotient, quotient + 1);
            bits.put(u64::from(gap) & ((1u64 << r) - 1), r);
        }
        bits.finish();
    }

    /// Appends the ids of the list at the start of `bytes` to `out`. `None` when the bytes are invalid; `out` may then
    /// hold a part.
    #[inline]
    pub fn decode(self, bytes: &[u8], out: &mut Vec<u32>) -> Option<()> {
        let mut bits = BitReader { bytes, position: 0 };
        let count = bits.take(self.count_bits as usize)?;
        let r = bits.take(PARAMETER_BITS as usize)? as u32;
        if count == 0 {
            return Some(());
        }
        let mut id = match self.first_bits {
            0 => bits.rice(r)?,
            width => bits.take(width as usize)? as u32,
        };
        out.push(id);
        for _ in 1..count {
            let gap = bits.rice(r)?;
            id = id.checked_add(gap)?.checked_add(1)?;
            out.push(id);
        }
        Some(())
    }
}

struct BitWriter<'a> {
    out: &'a mut Vec<u8>,
    held: u64,
    count: u32,
}

impl BitWriter<'_> {
    /// Appends the lowest `width` (at most 32 + 1) bits of `value`; higher bits must be zero.
    fn put(&mut self, value: u64, width: u32) {
        self.held |= value << self.count;
        self.count += width;
        while self.count >= 8 {
            self.out.push(self.held as u8);
            self.held >>= 8;
            self.count -= 8;
        }
    }

    fn finish(self) {
        if self.count > 0 {
            self.out.push(self.held as u8);
        }
    }
}

struct BitReader<'a> {
    bytes: &'a [u8],
    position: usize,
}

impl BitReader<'_> {
    /// The next 57 bits or more, zero beyond the end.
    #[inline]
    fn window(&self) -> u64 {
        let at = self.position / 8;
        let word = match self.bytes.get(at..at + 8) {
            Some(b) => u64::from_le_bytes([b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]]),
            None => self.bytes.iter().skip(at).take(8).rev().fold(0, |word, &b| word << 8 | u64::from(b)),
        };
        word >> (self.position % 8)
    }

    fn take(&mut self, width: usize) -> Option<u64> {
        let value = self.window() & ((1 << width) - 1);
        self.position += width;
        (self.position <= self.bytes.len() * 8).then_some(value)
    }

    #[inline]
    fn rice(&mut self, r: u32) -> Option<u32> {
        let window = self.window();
        let zeros = window.trailing_zeros();
        // Common case: the whole code lies in the window.
        if zeros + 1 + r <= 57 {
            let low = (window >> zeros >> 1) & ((1u64 << r) - 1);
            self.position += (zeros + 1 + r) as usize;
            let gap = u64::from(zeros) << r | low;
            return (self.position <= self.bytes.len() * 8).then_some(u32::try_from(gap).ok()?);
        }
        self.rice_long(r)
    }

    #[cold]
    fn rice_long(&mut self, r: u32) -> Option<u32> {
        let mut quotient = 0u64;
        while self.take(1)? == 0 {
            quotient += 1;
        }
        let gap = quotient.checked_shl(r)? | self.take(r as usize)?;
        u32::try_from(gap).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sorted_ids() -> impl Strategy<Value = Vec<u32>> {
        let any = prop::collection::btree_set(any::<u32>(), 0..MAX_LEN);
        let near = (0u32..1_000_000, prop::collection::btree_set(0u32..3000, 0..MAX_LEN))
            .prop_map(|(base, set)| set.into_iter().map(|x| x + base).collect());
        prop_oneof![any, near].prop_map(|set| set.into_iter().collect())
    }

    const CODINGS: [IdCoding; 3] = [NEIGHBOURS, RANKS, IDS];

    proptest! {
        #[test]
        fn a_list_round_trips(ids in sorted_ids(), tail in prop::collection::vec(any::<u8>(), 0..9)) {
            // Ranks are small: a first one of 2^32 would take as many bits at parameter 0.
            let base = ids.first().copied().unwrap_or(0) & !0xFFF;
            for coding in CODINGS {
                let base = if coding == RANKS { base } else { 0 };
                let ids: Vec<u32> = ids.iter().map(|id| id - base).collect();
                let mut bytes = Vec::new();
                coding.encode(&ids, &mut bytes);
                prop_assert_eq!(bytes.len(), coding.encoded_len(&ids));
                bytes.extend(&tail);
                let mut back = Vec::new();
                prop_assert_eq!(coding.decode(&bytes, &mut back), Some(()));
                prop_assert_eq!(back, ids);
            }
        }

        #[test]
        fn any_bytes_decode_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            for coding in CODINGS {
                let mut out = Vec::new();
                let _ = coding.decode(&bytes, &mut out);
                prop_assert!(out.len() >> coding.count_bits == 0);
            }
        }

        #[test]
        fn a_cut_list_is_refused(ids in sorted_ids(), cut in 1usize..4) {
            for coding in [NEIGHBOURS, IDS] {
                let mut bytes = Vec::new();
                coding.encode(&ids, &mut bytes);
                bytes.truncate(bytes.len().saturating_sub(cut));
                prop_assert_eq!(coding.decode(&bytes, &mut Vec::new()), None);
            }
        }
    }

    #[test]
    fn long_lists_of_ids_round_trip() {
        let ids: Vec<u32> = (0..65_535).map(|i| i * 7 + 1_000_000).collect();
        let (mut bytes, mut back) = (Vec::new(), Vec::new());
        IDS.encode(&ids, &mut bytes);
        assert_eq!((IDS.decode(&bytes, &mut back), bytes.len()), (Some(()), IDS.encoded_len(&ids)));
        assert_eq!(back, ids);
    }
}
