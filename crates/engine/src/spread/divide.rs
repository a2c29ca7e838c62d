//! First server of every block: by hash, by balanced k-means, or from cells; and how many blocks a server may hold.

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

/// The servers' shares of all blocks.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Shares {
    servers: usize,
    /// Shares that add up to 1; empty where all are equal.
    unequal: Vec<f64>,
}

impl Shares {
    /// Shares in proportion to capacities; equal ones where there are none, or no two differ.
    pub(super) fn new(capacities: &[f64], servers: usize) -> Shares {
        let total: f64 = capacities.iter().sum();
        let is_equal = capacities.windows(2).all(|pair| pair[0] == pair[1]);
        let unequal = if is_equal { Vec::new() } else { capacities.iter().map(|c| c / total).collect() };
        Shares { servers, unequal }
    }

    pub(super) fn servers(&self) -> usize {
        self.servers
    }

    /// Most blocks of each server when `copies` replicas are placed, as [`capacity`].
    pub(super) fn rooms(&self, copies: u64) -> Vec<u64> {
        if self.unequal.is_empty() {
            return vec![capacity(copies, self.servers); self.servers];
        }
        let room = |share: &f64| {
            let mean = copies as f64 * share;
            (mean * 1.05).max(mean.ceil()) as u64
        };
        self.unequal.iter().map(room).collect()
    }

    /// The shares as the partitioner takes them; `None` where all are equal.
    pub(super) fn targets(&self) -> Option<Vec<f32>> {
        (!self.unequal.is_empty()).then(|| self.unequal.iter().map(|&share| share as f32).collect())
    }
}

/// Assigns by hash, as a baseline.
pub(super) fn random(blocks: usize, shares: &Shares, seed: u64) -> Vec<u8> {
    let (servers, rooms) = (shares.servers(), shares.rooms(blocks as u64));
    let mut sizes = vec![0u64; servers];
    let draw = |block: usize, turn: u64| (hash(seed, 31 + turn, block as u64) % servers as u64) as usize;
    (0..blocks)
        .map(|block| {
            // For a full server another one is drawn, then the next with capacity is taken.
            let drawn = (0..8).map(|turn| draw(block, turn)).find(|&s| sizes[s] < rooms[s]);
            let first = draw(block, 0);
            let next = || (0..servers).map(|i| (first + i) % servers).find(|&s| sizes[s] < rooms[s]);
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
            let owner = random(blocks, &Shares::new(&[], servers), 7);
            assert!(largest(&owner, servers) <= capacity(blocks as u64, servers), "{blocks} on {servers}");
        }
        let equal = Shares::new(&[2.0; 4], 4);
        assert_ne!(random(1000, &equal, 1), random(1000, &equal, 2));
    }

    #[test]
    fn servers_get_blocks_in_proportion_to_their_capacity() {
        let shares = Shares::new(&[2.0, 2.0, 1.0], 3);
        assert_eq!(shares.rooms(1000), [420, 420, 210]);
        let owner = random(1000, &shares, 7);
        let of = |server: u8| owner.iter().filter(|&&s| s == server).count();
        assert!(of(0) <= 420 && of(1) <= 420 && of(2) <= 210, "{} {} {}", of(0), of(1), of(2));
        assert_eq!(Shares::new(&[3.0, 3.0], 2), Shares::new(&[], 2));
        assert_eq!(Shares::new(&[], 3).rooms(100), [capacity(100, 3); 3]);
        assert_eq!(Shares::new(&[3.0, 1.0], 2).targets(), Some(vec![0.75, 0.25]));
    }
}
