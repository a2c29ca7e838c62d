//! First server of every block: by hash, by balanced k-means, or from cells.

use rayon::prelude::*;
use stratann_core::build::hash;
use stratann_kernel::distance::block_l2_f32;

use super::source::{Source, means_per_chunk};
use crate::Result;
use crate::build::kmeans;

/// Rounds that adjust the prices.
const PRICE_ROUNDS: usize = 60;
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
    let dim = source.codebook.dim;
    let sample = source.sample(sample)?;
    let centres = kmeans::kmeans(&sample, dim, servers, ITERATIONS, seed);
    let prices = prices(&distances(&sample, &centres, dim), servers);
    drop(sample);
    let room = capacity(source.len() as u64, servers);
    let mut sizes = vec![0u64; servers];
    let mut owner = Vec::with_capacity(source.len());
    source.for_each_mean("nearest centres", |_, means| {
        for costs in distances(means, &centres, dim).chunks_exact(servers) {
            let cost = |s: usize| costs[s] + prices[s];
            let with_room = (0..servers).filter(|&s| sizes[s] < room);
            let server = with_room.min_by(|&a, &b| cost(a).total_cmp(&cost(b))).unwrap_or(0);
            sizes[server] += 1;
            owner.push(server as u8);
        }
        Ok(())
    })?;
    Ok(owner)
}

/// Computes squared distances of all rows to all centres, row by row.
fn distances(rows: &[f32], centres: &[f32], dim: usize) -> Vec<f32> {
    const TILE: usize = 64;
    let count = centres.len() / dim;
    let mut out = vec![0f32; rows.len() / dim * count];
    let tiles = rows.par_chunks(TILE * dim).zip(out.par_chunks_mut(TILE * count));
    tiles.for_each(|(rows, out)| block_l2_f32(rows, centres, dim, out));
    out
}

/// Computes the price of each centre such that all attract about as many rows: raised where there are too many, lowered
/// where too few.
fn prices(distances: &[f32], servers: usize) -> Vec<f32> {
    let rows = (distances.len() / servers).max(1);
    let scale = distances.iter().map(|&d| f64::from(d)).sum::<f64>() / distances.len().max(1) as f64;
    let mut prices = vec![0f32; servers];
    for round in 0..PRICE_ROUNDS {
        let mut sizes = vec![0u32; servers];
        for row in distances.chunks_exact(servers) {
            let cost = |s: &usize| row[*s] + prices[*s];
            let cheapest = (0..servers).min_by(|a, b| cost(a).total_cmp(&cost(b)));
            sizes[cheapest.unwrap_or(0)] += 1;
        }
        let step = 0.3 * scale / (1.0 + round as f64 / 4.0);
        for (price, size) in prices.iter_mut().zip(sizes) {
            let excess = f64::from(size) * servers as f64 / rows as f64 - 1.0;
            *price += (step * excess.min(2.0)) as f32;
        }
    }
    prices
}

/// Bytes of the sample, its distances, and a chunk of means.
pub(super) fn kmeans_bytes(sample: usize, dim: usize, centres: usize, threads: usize) -> u64 {
    // k-means keeps for each row its nearest centre, now and before, and its position in the order of members.
    let rows = sample as u64 * (4 * dim as u64 + 40);
    let chunk = means_per_chunk(dim) as u64 * (4 * dim as u64 + 16);
    rows + chunk + 3 * (centres * dim) as u64 * 4 + (threads as u64) * (512 << 10)
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

    #[test]
    fn prices_even_out_clusters_of_unequal_size() {
        // 900 rows at 0 to 1, 100 rows at 9 to 10, centres at 0.5 and 9.5: the first attracts nine times as many.
        let rows: Vec<f32> = (0..1000)
            .map(|i| if i < 900 { i as f32 / 900.0 } else { 9.0 + (i - 900) as f32 / 100.0 })
            .collect();
        let distances = distances(&rows, &[0.5, 9.5], 1);
        let prices = prices(&distances, 2);
        let dear = distances.chunks_exact(2).filter(|d| d[0] + prices[0] < d[1] + prices[1]).count();
        let free = distances.chunks_exact(2).filter(|d| d[0] < d[1]).count();
        assert_eq!(free, 900);
        assert!((400..=600).contains(&dear), "{dear}");
    }
}
