//! Sums of table entries that the bytes of a code select: the hottest loop of a search.
//!
//! Plain loads, without a SIMD form: gather instructions took 1.2 to 1.6 times as long where they are microcoded (AMD),
//! and are slower still where a processor is protected against data sampling. Processors whose gathers are fast were
//! not measured. Permutations of registers for 32 codes at once (AVX-512) spared a walk 4 % of its time and a scan of
//! lists nothing: the codes themselves come from distant caches.

use super::CENTROIDS;

/// Σ over the bytes of `code` of the entry that the byte selects among its 256. `entries` has 256 for each byte; 0 when
/// it has fewer.
#[inline(always)]
pub(super) fn sum(entries: &[u16], code: &[u8]) -> u32 {
    if entries.len() < code.len() * CENTROIDS {
        return 0;
    }
    const STEP: usize = 8;
    let (words, rest) = code.as_chunks::<STEP>();
    let (blocks, _) = entries.as_chunks::<{ STEP * CENTROIDS }>();
    let mut sums = [0u32; 4];
    for (word, block) in words.iter().zip(blocks) {
        for i in 0..STEP {
            sums[i % 4] += u32::from(block[i * CENTROIDS + usize::from(word[i])]);
        }
    }
    let tail = entries[words.len() * STEP * CENTROIDS..].chunks_exact(CENTROIDS);
    let tail: u32 = rest.iter().zip(tail).map(|(&byte, block)| u32::from(block[usize::from(byte)])).sum();
    tail + sums.iter().sum::<u32>()
}
