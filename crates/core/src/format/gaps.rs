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
use core::ops::Range;

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
    decode_within(bytes, 0..bytes.len(), out)
}

/// As [`decode`], for a list in the midst of others. `None` also when the range is not within `bytes`.
pub fn decode_within(bytes: &[u8], range: Range<usize>, out: &mut Vec<u32>) -> Option<()> {
    if range.is_empty() {
        return (range.start == range.end && range.end <= bytes.len()).then_some(());
    }
    bytes.get(range.clone())?;
    let mut bits = Bits { bytes, at: 8 * range.start, end: 8 * range.end };
    let r = bits.take(PARAMETER_BITS)? as u32;
    if r > PARAMETER_MAX {
        return None;
    }
    let mut next = 0u64;
    // The next bits, shifted as they are used, and how many of them are there.
    let (mut window, mut left) = (0u64, 0);
    loop {
        let mut more = window.trailing_zeros();
        if 2 * more + 1 + r > left {
            (window, left) = (bits.window(), WINDOW_BITS);
            // What is left may be the padding of the last byte.
            if window == 0 {
                return (bits.end - bits.at < 8).then_some(());
            }
            more = window.trailing_zeros();
        }
        let width = r + more;
        let total = more + 1 + width;
        let rest = if total <= left {
            let rest = window >> (more + 1) & ((1 << width) - 1);
            bits.skip(total)?;
            window = window.checked_shr(total).unwrap_or(0);
            left -= total;
            rest
        } else {
            if width > 33 {
                return None;
            }
            bits.skip(more + 1)?;
            left = 0;
            bits.take(width)?
        };
        let id = u32::try_from(next + (rest | 1 << width) - (1 << r)).ok()?;
        out.push(id);
        next = u64::from(id) + 1;
    }
}

/// Bits that a window has at least, where so many are left.
const WINDOW_BITS: u32 = 57;

/// Bits of a range of bytes, the lowest of each byte first.
struct Bits<'a> {
    bytes: &'a [u8],
    at: usize,
    end: usize,
}

impl Bits<'_> {
    /// The next bits, and zeros behind the end.
    #[inline]
    fn window(&self) -> u64 {
        let bytes = self.bytes.get(self.at / 8..).unwrap_or(&[]);
        let word = match bytes.first_chunk::<8>() {
            Some(word) => u64::from_le_bytes(*word),
            None => (0..).step_by(8).zip(bytes).map(|(shift, &byte)| u64::from(byte) << shift).sum(),
        };
        let left = (self.end - self.at).min(WINDOW_BITS as usize);
        word >> (self.at % 8) & ((1 << left) - 1)
    }

    /// Goes on by so many bits; `None` beyond the end.
    #[inline]
    fn skip(&mut self, width: u32) -> Option<()> {
        self.at += width as usize;
        (self.at <= self.end).then_some(())
    }

    /// The next bits as a number; `None` beyond the end. At most [`WINDOW_BITS`].
    #[inline]
    fn take(&mut self, width: u32) -> Option<u64> {
        let window = self.window();
        self.skip(width)?;
        Some(window & ((1 << width) - 1))
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
