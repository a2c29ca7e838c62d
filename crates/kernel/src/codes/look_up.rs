//! Sums of table entries that the bytes of a code select: the hottest loop of a search.
//!
//! Plain loads, without a SIMD form: gather instructions took 1.2 to 1.6 times as long where they are microcoded (AMD),
//! and are slower still where a processor is protected against data sampling. Processors whose gathers are fast were
//! not measured. Permutations of registers for 32 codes at once (AVX-512) spared a walk 4 % of its time and a scan of
//! lists nothing: the codes themselves come from distant caches.

use super::CENTROIDS;

/// Bytes of a code whose entries are added in one piece.
const PIECE: usize = 32;

/// Σ over the bytes of `code` of the entry that the byte selects among its 256. `entries` has 256 for each byte; 0 when
/// it has fewer.
#[inline(always)]
pub(super) fn sum(entries: &[u16], code: &[u8]) -> u32 {
    if entries.len() < code.len() * CENTROIDS {
        return 0;
    }
    let (pieces, rest) = code.as_chunks::<PIECE>();
    let (blocks, _) = entries.as_chunks::<{ PIECE * CENTROIDS }>();
    let whole: u32 = pieces.iter().zip(blocks).map(|(piece, block)| sum_piece(block, piece)).sum();
    if rest.is_empty() {
        return whole;
    }
    let tail = entries[pieces.len() * PIECE * CENTROIDS..].chunks_exact(CENTROIDS);
    whole + rest.iter().zip(tail).map(|(&byte, block)| u32::from(block[usize::from(byte)])).sum::<u32>()
}

/// A function of its own, so that every entry has an address of one register and a constant: inlined in a loop, each
/// takes one more instruction.
#[inline(never)]
fn sum_piece(entries: &[u16; PIECE * CENTROIDS], bytes: &[u8; PIECE]) -> u32 {
    let mut sums = [0u32; 4];
    for (i, word) in bytes.as_chunks::<8>().0.iter().enumerate() {
        let word = u64::from_le_bytes(*word);
        for j in 0..8 {
            sums[j % 4] += u32::from(entries[(8 * i + j) * CENTROIDS + usize::from((word >> (8 * j)) as u8)]);
        }
    }
    sums.iter().sum()
}
