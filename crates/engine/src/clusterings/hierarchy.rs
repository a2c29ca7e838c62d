//! Hierarchical balanced clustering: rows are divided into a few groups of nearly equal size, and each group again,
//! until groups are as small as asked for (Liu et al., AISTATS 2018; SPANN §3.2, FusionANNS §4.1).
//!
//! Finding c centroids of n rows directly takes n × c distances a round; here it takes n × log c times a constant.

use stratann_storage::{Progress, Result};

use super::balanced::Balanced;
use super::{CHUNK, kmeans};

use crate::parallel;

/// Groups that one is divided into, at most.
const BRANCHES: usize = 16;
/// Rounds of k-means at each division.
const ROUNDS: usize = 6;
/// Rows that the centres of a division are found from, for each of them.
const SAMPLE_PER_GROUP: usize = 256;
/// Size that a group may reach, over the mean.
const ROOM: f64 = 1.3;

/// Bytes that a row takes while its group is divided: in its group and in the next smaller one, with its distances.
pub(crate) const fn row_bytes(dim: usize) -> u64 {
    2 * (4 * dim as u64 + 8) + 4 * BRANCHES as u64
}

/// Centroids of `leaves` groups of the rows of `points` (n × `dim`, row-major), or of fewer where rows are equal or
/// few. Those of groups that were divided together follow each other.
///
/// # Errors
/// An interruption.
pub(crate) fn centroids(
    points: &[f32],
    dim: usize,
    leaves: usize,
    seed: u64,
    progress: &dyn Progress,
) -> Result<Vec<f32>> {
    progress.check_interrupted()?;
    let rows = points.len() / dim;
    if rows == 0 {
        return Ok(Vec::new());
    }
    if leaves <= 1 || rows == 1 {
        let mut mean = vec![0f32; dim];
        kmeans::mean(points.chunks_exact(dim), &mut mean);
        progress.advance(rows as u64);
        return Ok(mean);
    }
    let groups = divide(points, dim, BRANCHES.min(leaves).min(rows), seed, progress)?;
    let sizes: Vec<usize> = groups.iter().map(|group| group.len() / dim).collect();
    if sizes.iter().filter(|&&size| size > 0).count() <= 1 {
        // Equal rows cannot be told apart.
        return centroids(points, dim, 1, seed, progress);
    }
    let shares = shares(&sizes, leaves);
    let parts = parallel::try_map(groups.into_iter().zip(&shares).enumerate(), |(at, (group, &leaves))| {
        let seed = seed.wrapping_mul(31).wrapping_add(at as u64 + 1);
        centroids(&group, dim, leaves, seed, progress)
    })?;
    Ok(parts.concat())
}

/// The rows of each of `count` groups of nearly equal size.
fn divide(
    points: &[f32],
    dim: usize,
    count: usize,
    seed: u64,
    progress: &dyn Progress,
) -> Result<Vec<Vec<f32>>> {
    let rows = points.len() / dim;
    let step = rows.div_ceil(SAMPLE_PER_GROUP * count).max(1);
    let sample: Vec<f32> = points.chunks_exact(dim).step_by(step).flatten().copied().collect();
    let mut balanced = Balanced::train(&sample, dim, count, ROUNDS, seed, progress)?;
    drop(sample);
    let room = (rows as f64 / count as f64 * ROOM).ceil() as u64;
    let mut groups: Vec<Vec<f32>> = vec![Vec::new(); count];
    for rows in points.chunks(CHUNK * dim) {
        let mut each = rows.chunks_exact(dim);
        balanced.assign(rows, room, |group| {
            if let Some(row) = each.next() {
                groups[group].extend_from_slice(row);
            }
        });
    }
    Ok(groups)
}

/// Divides `leaves` among groups in proportion to their rows: one at least for each that has any, and no more than it
/// has rows.
pub(crate) fn shares(sizes: &[usize], leaves: usize) -> Vec<usize> {
    let total: usize = sizes.iter().sum();
    let mut shares: Vec<usize> =
        sizes.iter().map(|&size| (leaves * size / total.max(1)).clamp(usize::from(size > 0), size)).collect();
    // The minimum of one may have brought too many: they are taken where a leaf has the fewest rows.
    while shares.iter().sum::<usize>() > leaves {
        let sparse =
            |a: &usize, b: &usize| (sizes[*a] * shares[*b]).cmp(&(sizes[*b] * shares[*a])).then(a.cmp(b));
        let Some(at) = (0..sizes.len()).filter(|&at| shares[at] > 1).min_by(sparse) else { break };
        shares[at] -= 1;
    }
    let mut left = leaves.saturating_sub(shares.iter().sum());
    while left > 0 {
        // The group with most rows for each of its leaves.
        let crowded = |a: &usize, b: &usize| {
            (sizes[*a] * (shares[*b] + 1)).cmp(&(sizes[*b] * (shares[*a] + 1))).then(b.cmp(a))
        };
        let Some(at) = (0..sizes.len()).filter(|&at| shares[at] < sizes[at]).max_by(crowded) else { break };
        shares[at] += 1;
        left -= 1;
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;
    use stratann_core::build::hash;
    use stratann_storage::progress::Quiet;

    fn points(n: usize, dim: usize) -> Vec<f32> {
        (0..n * dim).map(|i| (hash(5, 0, i as u64) >> 40) as f32 / (1 << 24) as f32).collect()
    }

    #[test]
    fn as_many_groups_as_asked_for_of_nearly_equal_size() {
        let data = points(4000, 3);
        let found = centroids(&data, 3, 400, 1, &Quiet).unwrap();
        assert_eq!(found.len(), 3 * 400);
        let mut sizes = vec![0; 400];
        kmeans::assign(&data, 3, &found).iter().for_each(|&c| sizes[c as usize] += 1);
        // Nearest centroids, not the groups themselves: of no fixed size, and none far from the mean of 10.
        let largest = sizes.iter().max().unwrap();
        assert!((10..=40).contains(largest), "{largest}");
        assert!(sizes.iter().filter(|&&s| s == 0).count() < 4);
    }

    #[test]
    fn few_and_equal_rows_have_fewer_groups() {
        assert!(centroids(&[], 2, 5, 1, &Quiet).unwrap().is_empty());
        assert_eq!(centroids(&[1.0, 2.0], 2, 5, 1, &Quiet).unwrap(), [1.0, 2.0]);
        assert_eq!(centroids(&[3.0; 2000], 2, 100, 1, &Quiet).unwrap()[..2], [3.0, 3.0]);
        let mut two = centroids(&[1.0, 9.0], 1, 2, 1, &Quiet).unwrap();
        two.sort_by(f32::total_cmp);
        assert_eq!(two, [1.0, 9.0]);
    }

    #[test]
    fn the_number_of_threads_changes_nothing() {
        let data = points(3000, 4);
        let with = |threads| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| centroids(&data, 4, 300, 7, &Quiet).unwrap())
        };
        assert_eq!(with(1), with(3));
    }

    #[test]
    fn shares_add_up_and_no_group_gets_more_than_its_rows() {
        assert_eq!(shares(&[10, 0, 30], 8), [2, 0, 6]);
        assert_eq!(shares(&[1, 1, 100], 50), [1, 1, 48]);
        assert_eq!(shares(&[2, 2], 9), [2, 2]);
    }
}
