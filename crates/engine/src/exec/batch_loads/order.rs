//! The order in which the loads of a batch are made.

use std::cmp::Reverse;
use std::collections::VecDeque;

use stratann_storage::cache::ExtentCache;

use super::{BatchOptions, CACHED, DOORBELL_BYTES_MAX, Load, READ_EDGES_BYTES};

/// The loads of a batch in the order in which they are made: those that the cache has, then doorbells of equal bytes.
pub(super) fn in_order(
    loads: impl Iterator<Item = Load>,
    cache: Option<&ExtentCache>,
    options: &BatchOptions,
) -> VecDeque<Load> {
    let (mut queue, mut reads): (VecDeque<Load>, Vec<Vec<Load>>) = Default::default();
    for mut load in loads {
        if cache.is_some_and(|cache| cache.has(load.read.at)) {
            load.doorbell = CACHED;
            queue.push_back(load);
            continue;
        }
        match reads.last_mut() {
            Some(read) if read.last().is_some_and(|last| last.is_beside(&load)) => read.push(load),
            _ => reads.push(vec![load]),
        }
    }
    let bytes = |read: &Vec<Load>| read.iter().map(|load| u64::from(load.read.at.bytes)).sum();
    let bytes: Vec<u64> = reads.iter().map(bytes).collect();
    // A part is left free: the doorbells are not quite equal.
    let usual_bytes = options.doorbell_bytes.min(DOORBELL_BYTES_MAX) / 10 * 9;
    let by_bytes =
        bytes.iter().map(|bytes| bytes + READ_EDGES_BYTES).sum::<u64>().div_ceil(usual_bytes.max(1));
    let count = reads.len().div_ceil(options.doorbell).max(by_bytes as usize).min(reads.len());
    let numbers = of_equal_bytes(&bytes, count);
    let mut loads: Vec<Load> = Vec::new();
    for (read, number) in reads.into_iter().zip(numbers) {
        loads.extend(read.into_iter().map(|load| Load { doorbell: CACHED + 1 + number, ..load }));
    }
    loads.sort_by_key(|load| load.doorbell);
    queue.extend(loads);
    queue
}

/// Divides reads of so many bytes over doorbells: the number of that of each read. The largest are dealt out first, to
/// and fro.
fn of_equal_bytes(bytes: &[u64], count: usize) -> Vec<usize> {
    let mut by_bytes: Vec<usize> = (0..bytes.len()).collect();
    by_bytes.sort_by_key(|&read| Reverse(bytes[read]));
    let mut numbers = vec![0; bytes.len()];
    for (dealt, read) in by_bytes.into_iter().enumerate() {
        let (round, place) = (dealt / count, dealt % count);
        numbers[read] = if round % 2 == 0 { place } else { count - 1 - place };
    }
    numbers
}

#[cfg(test)]
mod tests {
    use super::of_equal_bytes;

    /// Clusters lie in the order of their sizes, so that doorbells in the order of addresses would be very uneven.
    #[test]
    fn doorbells_of_a_batch_have_about_the_same_bytes() {
        let sizes: Vec<u64> = (1..=100).rev().map(|size| size * 1000).collect();
        let numbers = of_equal_bytes(&sizes, 7);
        let mean = sizes.iter().sum::<u64>() as f64 / 7.0;
        for doorbell in 0..7 {
            let own = || numbers.iter().zip(&sizes).filter(|own| *own.0 == doorbell).map(|own| own.1);
            assert!((14..=16).contains(&own().count()));
            let bytes = own().sum::<u64>() as f64;
            assert!((0.95..1.05).contains(&(bytes / mean)), "doorbell {doorbell}: {bytes} bytes of {mean}");
        }
        assert!(numbers.iter().all(|&number| number < 7));
        assert!(of_equal_bytes(&[], 0).is_empty());
        assert_eq!(of_equal_bytes(&[5, 9], 2), [1, 0]);
    }
}
