//! First server of every block: by hash, by balanced k-means, or from cells.

use stratann_core::build::hash;
use stratann_storage::Result;

use super::source::{Source, means_per_chunk};
use crate::clusterings::balanced::Balanced;
use crate::clusterings::memory::{KmeansMemory, PRODUCT_BYTES};

/// Rounds of k-means.
const ITERATIONS: usize = 12;

/// Most blocks on a server when `copies` replicas are placed: 1.05 × the mean, and at least the mean rounded up.
pub(super) fn capacity(copies: u64, servers: usize) -> u64 {
    let servers = servers as u64;
    (copies * 21 / (20 * servers)).max(copies.div_ceil(servers))
}

/// Assigns by hash, as a baseline.
pub(super) fn random(blocks: usize, servers: usize, seed: u64) -> Vec<u8> {
    let room = capacity(blocks as u64, servers);
    let mut sizes = vec![0u64; servers];
    let draw = |block: usize, turn: u64| (hash(seed, 31 + turn, block as u64) % servers as u64) as usize;
    (0..blocks)
        .map(|block| {
            // For a full server another one is drawn, then the next with capacity is taken.
            let drawn = (0..8).map(|turn| draw(block, turn)).find(|&s| sizes[s] < room);
            let first = draw(block, 0);
            let next = || (0..servers).map(|i| (first + i) % servers).find(|&s| sizes[s] < room);
            let server = drawn.or_else(next).unwrap_or(first);
            sizes[server] += 1;
            server as u8
        })
        .collect()
}

/// Balanced k-means with one centre per server (like CoTra, BatANN §4.3). A price on each centre, adjusted on the
/// sample, makes large cells costlier until all have nearly the same size; the remaining blocks go to the next nearest.
pub(super) fn balanced_kmeans(
    source: &Source<'_>,
    servers: usize,
    sample: usize,
    seed: u64,
) -> Result<Vec<u8>> {
    let dim = source.coder.dim();
    let sample = source.sample(sample)?;
    let mut groups = Balanced::train(&sample, dim, servers, ITERATIONS, seed, source.progress)?;
    drop(sample);
    let room = capacity(source.len() as u64, servers);
    let mut owner = Vec::with_capacity(source.len());
    source.for_each_mean("nearest centres", |_, means| {
        groups.assign(means, room, |server| owner.push(server as u8));
        Ok(())
    })?;
    Ok(owner)
}

/// Bytes of the sample, its distances, and a chunk of means.
pub(super) fn kmeans_bytes(sample: usize, dim: usize, centres: usize, threads: usize) -> u64 {
    let kmeans = KmeansMemory { dim: dim as u64 };
    let chunk = means_per_chunk(dim) as u64 * (4 * dim as u64 + 16);
    sample as u64 * (kmeans.row_bytes() + 16)
        + chunk
        + kmeans.centroid_bytes() * centres as u64
        + threads as u64 * PRODUCT_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    fn largest(owner: &[u8], servers: usize) -> u64 {
        let mut sizes = vec![0u64; servers];
        owner.iter().for_each(|&s| sizes[usize::from(s)] += 1);
        sizes.into_iter().max().unwrap()
    }

    #[test]
    fn hashing_is_balanced_whatever_the_numbers() {
        for (blocks, servers) in [(1, 1), (64, 64), (65, 64), (1000, 3), (5000, 17), (10_000, 64)] {
            let owner = random(blocks, servers, 7);
            assert!(largest(&owner, servers) <= capacity(blocks as u64, servers), "{blocks} on {servers}");
        }
        assert_ne!(random(1000, 4, 1), random(1000, 4, 2));
    }
}
