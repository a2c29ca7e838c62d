//! Ascending ids as a bit stream of gaps, for lists whose ids come in dense groups that lie far apart.
//!
//! | bits | content |
//! |---|---|
//! | 6 | parameter r |
//! | … | for each id the gap to the id after the one before it, or to 0: see below |
//!
//! A gap g is written as g + 2^r: its bits beyond r + 1 are counted in unary (zeros, then a one), and then all of its
//! bits but the first follow. Short gaps take 1 + r bits, each doubling two more (exponential Golomb code). No number
//! of ids is stored: bytes end after the last one, and unused bits are zero. A list without ids has no bytes.

use alloc::vec::Vec;

const PARAMETER_BITS: u32 = 6;
/// Largest parameter: all gaps of 32 bits take 33 bits then.
const PARAMETER_MAX: u32 = 31;

fn gaps(sorted: &[u32]) -> impl Iterator<Item = u64> + '_ {
    let before = core::iter::once(0).chain(sorted.iter().map(|&id| u64::from(id) + 1));
    sorted.iter().zip(before).map(|(&id, before)| u64::from(id) - before)
}

/// Bits of a gap with this parameter.
fn cost(gap: u64, r: u32) -> u32 {
    let more = (gap + (1 << r)).ilog2() - r;
    2 * more + 1 + r
}

/// The parameter that takes the fewest bits, and these.
fn best_parameter(sorted: &[u32]) -> (u32, u64) {
    let total = |r: u32| gaps(sorted).map(|gap| u64::from(cost(gap, r))).sum::<u64>();
    let costs = (0..=PARAMETER_MAX).map(|r| (r, total(r)));
    costs.min_by_key(|&(r, bits)| (bits, r)).unwrap_or((0, 0))
}

/// Appends a list. `sorted` is strictly ascending.
pub fn encode(sorted: &[u32], out: &mut Vec<u8>) {
    debug_assert!(sorted.windows(2).all(|w| w[0] < w[1]));
    if sorted.is_empty() {
        return;
    }
    let (r, _) = best_parameter(sorted);
    let (mut held, mut bits) = (0u64, 0u32);
    let mut put = |value: u64, width: u32| {
        held |= value << bits;
        bits += width;
        while bits >= 8 {
            out.push(held as u8);
            held >>= 8;
            bits -= 8;
        }
        (held, bits)
    };
    put(r.into(), PARAMETER_BITS);
    for gap in gaps(sorted) {
        let number = gap + (1 << r);
        let more = number.ilog2() - r;
        put(1 << more, more + 1);
        let width = r + more;
        let rest = number & ((1 << width) - 1);
        put(rest & 0xffff, width.min(16));
        if width > 16 {
            put(rest >> 16, width - 16);
        }
    }
    let (_, left) = put(0, 0);
    if left > 0 {
        put(0, 8 - left);
    }
}

/// Appends the ids of the list that `bytes` (all of them) hold. `None` when they are invalid; a part may have been
/// appended then.
pub fn decode(bytes: &[u8], out: &mut Vec<u32>) -> Option<()> {
    if bytes.is_empty() {
        return Some(());
    }
    let mut bits = Bits { bytes, held: 0, count: 0 };
    bits.fill();
    let r = bits.take(PARAMETER_BITS)? as u32;
    if r > PARAMETER_MAX {
        return None;
    }
    let mut next = 0u64;
    loop {
        bits.fill();
        // What is left may be the padding of the last byte.
        if bits.held == 0 {
            return (bits.bytes.is_empty() && bits.count < 8).then_some(());
        }
        let more = bits.held.trailing_zeros();
        if more > 33 {
            return None;
        }
        bits.take(more + 1)?;
        let width = r + more;
        if width > 33 {
            return None;
        }
        bits.fill();
        let gap = (bits.take(width)? | 1 << width) - (1 << r);
        let id = u32::try_from(next + gap).ok()?;
        out.push(id);
        next = u64::from(id) + 1;
    }
}

struct Bits<'a> {
    bytes: &'a [u8],
    held: u64,
    count: u32,
}

impl Bits<'_> {
    /// Holds at least 56 bits, or all that are left.
    #[inline]
    fn fill(&mut self) {
        if let Some(word) = self.bytes.first_chunk::<8>().filter(|_| self.count < 56) {
            let bytes = (63 - self.count) / 8;
            let mask = u64::MAX >> (64 - 8 * bytes);
            self.held |= (u64::from_le_bytes(*word) & mask) << self.count;
            self.bytes = &self.bytes[bytes as usize..];
            self.count += 8 * bytes;
            return;
        }
        while let Some((&byte, rest)) = self.bytes.split_first().filter(|_| self.count <= 56) {
            self.held |= u64::from(byte) << self.count;
            self.count += 8;
            self.bytes = rest;
        }
    }

    #[inline]
    fn take(&mut self, width: u32) -> Option<u64> {
        self.count = self.count.checked_sub(width)?;
        let taken = self.held & ((1u64 << width) - 1);
        self.held >>= width;
        Some(taken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use proptest::prelude::*;

    #[test]
    fn extremes_come_back() {
        let lists: [&[u32]; 6] =
            [&[], &[0], &[u32::MAX], &[0, u32::MAX], &[u32::MAX - 1, u32::MAX], &[0, 1, 2, 3, 1 << 31]];
        for list in lists {
            let (mut bytes, mut back) = (vec![], vec![]);
            encode(list, &mut bytes);
            assert_eq!(decode(&bytes, &mut back), Some(()), "{list:?}");
            assert_eq!(back, list);
        }
    }

    proptest! {
        #[test]
        fn lists_come_back(
            groups in prop::collection::vec((any::<u32>(), 0u32..40, 1u32..9), 0..30), narrow: bool,
        ) {
            let mut ids: Vec<u32> = groups
                .iter()
                .flat_map(|&(at, count, step)| (0..count).map(move |i| (at >> if narrow { 16 } else { 0 }).wrapping_add(i * step)))
                .collect();
            ids.sort_unstable();
            ids.dedup();
            let (mut bytes, mut back) = (vec![], vec![]);
            encode(&ids, &mut bytes);
            prop_assert_eq!(decode(&bytes, &mut back), Some(()));
            prop_assert_eq!(&back, &ids);
            let bits = if ids.is_empty() { 0 } else { best_parameter(&ids).1 + u64::from(PARAMETER_BITS) };
            prop_assert_eq!(bytes.len() as u64, bits.div_ceil(8));
        }

        #[test]
        fn any_bytes_are_refused_or_ascend(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            let mut ids = vec![];
            if decode(&bytes, &mut ids).is_some() {
                prop_assert!(ids.windows(2).all(|w| w[0] < w[1]));
            }
        }
    }
}
