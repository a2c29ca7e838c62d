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

use std::collections::BinaryHeap;

use stratann_core::build::hash;
use stratann_kernel::centroids::CentroidTable;
use stratann_storage::{Quiet, Result};

use crate::parallel;

/// Rows that each thread assigns at a time.
pub(crate) const CHUNK: usize = 1024;

/// Draws `count` rows at even distances.
pub(crate) fn evenly(rows: &[u32], count: usize) -> Vec<u32> {
    evenly_of(rows.iter().copied(), rows.len(), count)
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

/// Draws `count` of `rows`, those of the smallest hashes, so that equal seeds draw equal rows; ascending. Draws with
/// different `stream`s do not depend on each other.
pub(crate) fn drawn(rows: impl Iterator<Item = u32>, count: usize, (seed, stream): (u64, u64)) -> Vec<u32> {
    // The largest of the heap is replaced first.
    let mut held = BinaryHeap::with_capacity(count + 1);
    for row in rows {
        let key = (hash(seed, stream, row.into()), row);
        if held.len() < count || held.peek().is_some_and(|largest| key < *largest) {
            held.push(key);
        }
        if held.len() > count {
            held.pop();
        }
    }
    let mut rows: Vec<u32> = held.into_iter().map(|key| key.1).collect();
    rows.sort_unstable();
    rows
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
        fn rows_are_drawn_at_even_distances(rows in 1usize..3000, share in 0.0f64..1.0) {
            let list: Vec<u32> = (0..rows as u32).map(|row| 3 * row).collect();
            let count = ((rows as f64 * share) as usize).max(1);
            let stride = rows as f64 / count as f64;
            let expected: Vec<u32> = (0..count).map(|i| list[(i as f64 * stride) as usize]).collect();
            prop_assert_eq!(evenly(&list, count), expected);
        }

        #[test]
        fn rows_of_the_smallest_hashes_are_drawn(rows in 1u32..2000, share in 0.0f64..=1.0, seed: u64) {
            let count = (f64::from(rows) * share) as usize;
            let mut all: Vec<(u64, u32)> = (0..rows).map(|row| (hash(seed, 7, row.into()), row)).collect();
            all.sort_unstable();
            let mut expected: Vec<u32> = all[..count].iter().map(|key| key.1).collect();
            expected.sort_unstable();
            prop_assert_eq!(drawn(0..rows, count, (seed, 7)), expected);
        }
    }
}
