//! Groups of nearly equal size: k-means with prices, and chains of small cells.

use stratann_kernel::distance::{block_l2_f32, l2_f32};
use stratann_storage::{Progress, Result};

use super::kmeans;

use crate::parallel;

/// Rounds that adjust the prices.
const PRICE_ROUNDS: usize = 60;

/// Balanced k-means: centres with a price each, which makes large groups costlier until all have nearly the same size.
pub(crate) struct Balanced {
    dim: usize,
    centres: Vec<f32>,
    prices: Vec<f32>,
    /// Rows of each group so far.
    sizes: Vec<u64>,
}

impl Balanced {
    /// Finds centres and prices on a sample (n × `dim`, row-major).
    ///
    /// # Errors
    /// An interruption.
    pub(crate) fn train(
        sample: &[f32],
        dim: usize,
        groups: usize,
        rounds: usize,
        seed: u64,
        progress: &dyn Progress,
    ) -> Result<Balanced> {
        let centres = kmeans::kmeans(sample, dim, groups, rounds, seed, progress)?;
        let prices = prices(&distances(sample, &centres, dim), groups);
        Ok(Balanced { dim, centres, prices, sizes: vec![0; groups] })
    }

    /// Gives the group of each row to `put`, in order: the cheapest with fewer than `room` rows.
    pub(crate) fn assign(&mut self, rows: &[f32], room: u64, mut put: impl FnMut(usize)) {
        let groups = self.prices.len();
        for costs in distances(rows, &self.centres, self.dim).chunks_exact(groups) {
            let cost = |g: usize| costs[g] + self.prices[g];
            let with_room = (0..groups).filter(|&g| self.sizes[g] < room);
            let group = with_room.min_by(|&a, &b| cost(a).total_cmp(&cost(b))).unwrap_or(0);
            self.sizes[group] += 1;
            put(group);
        }
    }
}

/// Computes squared distances of all rows to all centres, row by row.
fn distances(rows: &[f32], centres: &[f32], dim: usize) -> Vec<f32> {
    const TILE: usize = 64;
    let count = centres.len() / dim;
    let mut out = vec![0f32; rows.len() / dim * count];
    let tiles = rows.chunks(TILE * dim).zip(out.chunks_mut(TILE * count));
    parallel::for_each(tiles, |(rows, out)| block_l2_f32(rows, centres, dim, out));
    out
}

/// Computes the price of each centre such that all attract about as many rows: raised where there are too many, lowered
/// where too few.
fn prices(distances: &[f32], groups: usize) -> Vec<f32> {
    let rows = (distances.len() / groups).max(1);
    let scale = distances.iter().map(|&d| f64::from(d)).sum::<f64>() / distances.len().max(1) as f64;
    let mut prices = vec![0f32; groups];
    for round in 0..PRICE_ROUNDS {
        let mut sizes = vec![0u32; groups];
        for row in distances.chunks_exact(groups) {
            let cost = |s: &usize| row[*s] + prices[*s];
            let cheapest = (0..groups).min_by(|a, b| cost(a).total_cmp(&cost(b)));
            sizes[cheapest.unwrap_or(0)] += 1;
        }
        let step = 0.3 * scale / (1.0 + round as f64 / 4.0);
        for (price, size) in prices.iter_mut().zip(sizes) {
            let excess = f64::from(size) * groups as f64 / rows as f64 - 1.0;
            *price += (step * excess.min(2.0)) as f32;
        }
    }
    prices
}

/// The cells that each small cell belongs to: one, or several in a row when it is larger than a cell.
pub(crate) struct Chained {
    /// The first cell of each small cell.
    pub(crate) first: Vec<usize>,
    parts: Vec<usize>,
    /// Number of cells.
    pub(crate) cells: usize,
}

impl Chained {
    /// The cell of the `nth` row of a small cell.
    pub(crate) fn cell(&self, small: usize, nth: u32, share: usize) -> usize {
        self.first[small] + (nth as usize / share).min(self.parts[small] - 1)
    }
}

/// Chains small cells into cells of about `share` rows: always the nearest free one joins, and a full cell is
/// followed by one that begins nearby.
pub(crate) fn chain(sizes: &[usize], centroids: &[f32], dim: usize, share: usize) -> Chained {
    let small = sizes.len();
    let centroid = |s: usize| &centroids[s * dim..(s + 1) * dim];
    let mut chained = Chained { first: vec![0; small], parts: vec![1; small], cells: 0 };
    let mut free: Vec<usize> = (0..small).collect();
    let mut at = 0;
    let (mut anchor, mut held) = (at, 0usize);
    while let Some(place) = free.iter().position(|&s| s == at) {
        free.swap_remove(place);
        if held > 0 && held + sizes[at] > share {
            chained.cells += 1;
            (anchor, held) = (at, 0);
        }
        chained.first[at] = chained.cells;
        if sizes[at] > share {
            chained.parts[at] = sizes[at].div_ceil(share);
            chained.cells += chained.parts[at] - 1;
            held = share;
        } else {
            held += sizes[at];
        }
        let distance = |s: usize| l2_f32(centroid(anchor), bytemuck::cast_slice(centroid(s)));
        let Some(next) =
            free.iter().copied().min_by(|&a, &b| distance(a).total_cmp(&distance(b)).then(a.cmp(&b)))
        else {
            break;
        };
        at = next;
    }
    chained.cells += 1;
    chained
}

#[cfg(test)]
mod tests {
    use super::*;

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
