//! Divides the rows of one cluster into lists of bounded length.

use stratann_kernel::centroids::CentroidTable;
use stratann_storage::{Progress, Result};

use super::{CHUNK, kmeans, nearest_of};

/// Rows of a divided cluster that its centroids are found from, for each of them.
const SAMPLE_PER_LIST: usize = 48;
const ROUNDS: usize = 8;

/// The lists of a cluster.
pub(crate) struct Divided {
    /// Rows and the list of each, numbered within the cluster.
    pub(crate) rows: Vec<(u32, u32)>,
    pub(crate) lists: u32,
    /// One for each list of a divided cluster, as a point.
    pub(crate) centroids: Vec<f32>,
}

/// Divides rows in their order into lists of at most `capacity`, of nearly equal length.
pub(crate) fn in_order(rows: &[u32], capacity: usize) -> Divided {
    let lists = rows.len().div_ceil(capacity).max(1);
    let each = rows.len().div_ceil(lists).max(1);
    let rows: Vec<(u32, u32)> = rows.iter().enumerate().map(|(i, &row)| (row, (i / each) as u32)).collect();
    Divided { rows, lists: lists as u32, centroids: Vec::new() }
}

/// A list for each of `k` centroids; those of more than `capacity` rows become several with the same centroid.
/// `load` gives rows as points of `dim` components; centroids are found from `sample_max` of them at most.
pub(crate) fn by_centroids(
    dim: usize,
    rows: &[u32],
    k: usize,
    (capacity, sample_max): (usize, usize),
    (seed, progress): (u64, &dyn Progress),
    load: impl Fn(&[u32], &mut [f32]) -> Result<()>,
) -> Result<Divided> {
    let step = rows.len().div_ceil((k * SAMPLE_PER_LIST).min(sample_max.max(k))).max(1);
    let drawn: Vec<u32> = rows.iter().copied().step_by(step).collect();
    let mut sample = vec![0f32; drawn.len() * dim];
    load(&drawn, &mut sample)?;
    let centroids = kmeans::kmeans(&sample, dim, k, ROUNDS, seed, progress)?;
    drop(sample);
    let table = CentroidTable::new(&centroids, dim);
    let mut nearest: Vec<(u32, u32)> = Vec::with_capacity(rows.len());
    for rows in rows.chunks(CHUNK) {
        nearest.extend(rows.iter().copied().zip(nearest_of(dim, rows, &table, &load)?));
    }
    drop(table);
    let mut sizes = vec![0usize; k];
    nearest.iter().for_each(|n| sizes[n.1 as usize] += 1);
    let mut out = Divided { rows: Vec::new(), lists: 0, centroids: Vec::new() };
    // The first list of each centroid, and how many of its rows have gone by.
    let mut first = vec![0u32; k];
    for (c, &size) in sizes.iter().enumerate() {
        first[c] = out.lists;
        for _ in 0..size.div_ceil(capacity) {
            out.lists += 1;
            out.centroids.extend_from_slice(&centroids[c * dim..(c + 1) * dim]);
        }
    }
    let mut seen = vec![0usize; k];
    for (row, c) in nearest {
        let c = c as usize;
        let each = sizes[c].div_ceil(sizes[c].div_ceil(capacity));
        out.rows.push((row, first[c] + (seen[c] / each) as u32));
        seen[c] += 1;
    }
    Ok(out)
}
