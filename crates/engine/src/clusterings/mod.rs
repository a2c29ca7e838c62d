//! Clusterings, for all kinds: k-means, balanced groups, bounded lists, and orders in space.
//!
//! Rows are loaded when they are needed, so that a set need not fit in memory. `load` writes rows, by their numbers,
//! as points.

pub(crate) mod balanced;
pub(crate) mod divide;
pub(crate) mod hierarchy;
pub(crate) mod kmeans;
pub(crate) mod memory;
pub(crate) mod order;
pub(crate) mod sizes;

use stratann_kernel::centroids::CentroidTable;
use stratann_storage::{Quiet, Result};

use crate::parallel;

/// Rows that each thread assigns at a time.
pub(crate) const CHUNK: usize = 1024;

/// Draws `count` rows at even distances.
pub(crate) fn evenly(rows: &[u32], count: usize) -> Vec<u32> {
    let stride = rows.len() as f64 / count as f64;
    (0..count).map(|i| rows[(i as f64 * stride) as usize]).collect()
}

/// As [`evenly`], of `rows` rows that are passed in turn.
pub(crate) fn evenly_of(mut all: impl Iterator<Item = u32>, rows: usize, count: usize) -> Vec<u32> {
    let stride = rows as f64 / count as f64;
    let mut next = 0;
    let places = (0..count).map(|i| (i as f64 * stride) as usize);
    let drawn = places.map(|place| {
        let row = all.nth(place.saturating_sub(next));
        next = place + 1;
        row
    });
    drawn.flatten().collect()
}

/// Loads rows as points of `dim` components, in parallel.
pub(crate) fn sample_of(
    dim: usize,
    rows: &[u32],
    load: impl Fn(&[u32], &mut [f32]) -> Result<()> + Sync,
) -> Result<Vec<f32>> {
    let mut sample = vec![0f32; rows.len() * dim];
    parallel::try_map(sample.chunks_mut(CHUNK * dim).zip(rows.chunks(CHUNK)), |(out, rows)| load(rows, out))?;
    Ok(sample)
}

/// Computes the nearest centroid of each row. All rows are in memory meanwhile.
pub(crate) fn nearest_of(
    dim: usize,
    rows: &[u32],
    table: &CentroidTable<'_>,
    load: impl Fn(&[u32], &mut [f32]) -> Result<()>,
) -> Result<Vec<u32>> {
    let mut floats = vec![0f32; rows.len() * dim];
    load(rows, &mut floats)?;
    let nearest = kmeans::nearest(&floats, dim, table, &Quiet)?;
    Ok(nearest.into_iter().map(|nearest| nearest.number).collect())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn rows_in_turn_are_drawn_as_from_a_list(rows in 1usize..3000, share in 0.0f64..1.0) {
            let list: Vec<u32> = (0..rows as u32).map(|row| 3 * row).collect();
            let count = ((rows as f64 * share) as usize).max(1);
            prop_assert_eq!(evenly_of(list.iter().copied(), rows, count), evenly(&list, count));
        }
    }
}
