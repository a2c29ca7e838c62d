//! Lloyd's k-means, parallel and reproducible for a seed with any number of threads: rows are assigned independently,
//! and every centroid sums its rows in their order.

use stratann_core::build::hash;
use stratann_kernel::centroids::{CentroidTable, Nearest, Scratch};
use stratann_storage::{Progress, Quiet, Result};

use crate::parallel;

/// Computes `k` centroids of the rows of `data` (n × `width`, row-major), as `k × width`.
///
/// Starts from a sample of the rows. A centroid that loses all its rows moves to a row of the cell with the largest
/// squared error. With `k` rows or fewer, the rows themselves are the centroids, repeated as needed.
///
/// # Errors
/// An interruption, within the time that the threads take for a tile of rows.
pub(crate) fn kmeans(
    data: &[f32],
    width: usize,
    k: usize,
    iterations: usize,
    seed: u64,
    progress: &dyn Progress,
) -> Result<Vec<f32>> {
    lloyd(data, width, (k, iterations, seed), progress, &mut || {})
}

/// As [`kmeans`], in a stage of its own whose units are rounds: `progress` advances by `iterations` in all.
///
/// # Errors
/// An interruption.
pub(crate) fn kmeans_stage(
    data: &[f32],
    width: usize,
    k: usize,
    iterations: usize,
    seed: u64,
    progress: &dyn Progress,
) -> Result<Vec<f32>> {
    progress.stage("clustering", iterations as u64, "rounds");
    let mut rounds = 0;
    let centroids = lloyd(data, width, (k, iterations, seed), progress, &mut || {
        rounds += 1;
        progress.advance(1);
    })?;
    progress.advance(iterations as u64 - rounds);
    Ok(centroids)
}

/// As [`kmeans`]; calls `after_round` for each round but one that changes nothing.
fn lloyd(
    data: &[f32],
    width: usize,
    (k, iterations, seed): (usize, usize, u64),
    progress: &dyn Progress,
    after_round: &mut dyn FnMut(),
) -> Result<Vec<f32>> {
    let n = data.len().checked_div(width).unwrap_or(0);
    let row = |i: u32| &data[i as usize * width..(i as usize + 1) * width];
    if n == 0 {
        return Ok(vec![0.0; k * width]);
    }
    let mut centroids: Vec<f32> = spread(n, k, seed).into_iter().flat_map(row).copied().collect();
    if n <= k {
        return Ok(centroids);
    }
    let mut before = Vec::new();
    for round in 0..iterations {
        let nearest = nearest(data, width, &CentroidTable::new(&centroids, width), progress)?;
        let members = Members::new(nearest.iter().map(|nearest| nearest.number), k);
        let errors = members.errors(&nearest);
        parallel::for_each(centroids.chunks_exact_mut(width).enumerate(), |(c, centroid)| {
            mean(members.of(c).iter().map(|&i| row(i)), centroid);
        });
        for (c, from) in members.refill(errors, hash(seed, 1, round as u64)) {
            centroids[c * width..(c + 1) * width].copy_from_slice(row(from));
        }
        if before == nearest {
            break;
        }
        before = nearest;
        after_round();
    }
    Ok(centroids)
}

/// Returns the number of the nearest centroid of every row; ties go to the smaller number.
///
/// `data` is n × `width`, `centroids` k × `width`, both row-major. All zero without centroids.
pub(crate) fn assign(data: &[f32], width: usize, centroids: &[f32]) -> Vec<u32> {
    // Without progress nothing interrupts it.
    assign_until(data, width, centroids, &Quiet).unwrap_or_default()
}

/// As [`assign`], for work that takes long.
///
/// # Errors
/// An interruption.
pub(crate) fn assign_until(
    data: &[f32],
    width: usize,
    centroids: &[f32],
    progress: &dyn Progress,
) -> Result<Vec<u32>> {
    let nearest = nearest(data, width, &CentroidTable::new(centroids, width), progress)?;
    Ok(nearest.into_iter().map(|nearest| nearest.number).collect())
}

/// The nearest centroid of every row.
///
/// # Errors
/// An interruption, within the time that a thread takes for a panel of rows.
pub(super) fn nearest(
    data: &[f32],
    width: usize,
    table: &CentroidTable<'_>,
    progress: &dyn Progress,
) -> Result<Vec<Nearest>> {
    let mut out = vec![Nearest { number: 0, distance: 0.0 }; data.len().checked_div(width).unwrap_or(0)];
    let panels = out.chunks_mut(table.panel()).zip(data.chunks(table.panel() * width));
    parallel::map_with(panels, Scratch::default, |scratch, (out, rows)| {
        if !progress.interrupted() {
            table.nearest(rows, scratch, out);
        }
    });
    progress.check_interrupted().map(|()| out)
}

/// Draws `k` of `n` row numbers, distinct as long as there are enough.
pub(crate) fn spread(n: usize, k: usize, seed: u64) -> Vec<u32> {
    let mut order: Vec<(u64, u32)> = (0..n as u32).map(|i| (hash(seed, 0, u64::from(i)), i)).collect();
    if k < n {
        order.select_nth_unstable(k);
        order.truncate(k);
    }
    order.sort_unstable();
    order.iter().map(|x| x.1).cycle().take(k).collect()
}

/// Writes the mean of `rows` to `out`, summed in their order; leaves `out` unchanged without rows.
pub(crate) fn mean<'a>(rows: impl ExactSizeIterator<Item = &'a [f32]>, out: &mut [f32]) {
    let count = rows.len();
    if count == 0 {
        return;
    }
    let mut sums = vec![0f64; out.len()];
    for row in rows {
        sums.iter_mut().zip(row).for_each(|(s, &x)| *s += f64::from(x));
    }
    out.iter_mut().zip(&sums).for_each(|(o, s)| *o = (s / count as f64) as f32);
}

/// Rows of every cell, ascending.
pub(crate) struct Members {
    starts: Vec<u32>,
    rows: Vec<u32>,
}

impl Members {
    /// `clusters` is each row's cell, below `k`.
    pub(crate) fn new(clusters: impl Iterator<Item = u32> + Clone, k: usize) -> Members {
        let mut starts = vec![0u32; k + 1];
        clusters.clone().for_each(|c| starts[c as usize + 1] += 1);
        for c in 0..k {
            starts[c + 1] += starts[c];
        }
        let mut next = starts.clone();
        let mut rows = vec![0u32; starts[k] as usize];
        for (i, c) in clusters.enumerate() {
            rows[next[c as usize] as usize] = i as u32;
            next[c as usize] += 1;
        }
        Members { starts, rows }
    }

    pub(crate) fn of(&self, cluster: usize) -> &[u32] {
        &self.rows[self.starts[cluster] as usize..self.starts[cluster + 1] as usize]
    }

    fn errors(&self, nearest: &[Nearest]) -> Vec<f64> {
        let error = |c| self.of(c).iter().map(|&i| f64::from(nearest[i as usize].distance)).sum();
        (0..self.starts.len() - 1).map(error).collect()
    }

    /// Returns a new starting row for every empty cell: one of the cell whose error, halved at each choice, is largest.
    pub(crate) fn refill(&self, mut errors: Vec<f64>, seed: u64) -> Vec<(usize, u32)> {
        let mut chosen = Vec::new();
        for c in (0..errors.len()).filter(|&c| self.of(c).is_empty()) {
            let largest = |a: &usize, b: &usize| errors[*a].total_cmp(&errors[*b]).then(b.cmp(a));
            let Some(donor) = (0..errors.len()).max_by(largest).filter(|&d| errors[d] > 0.0) else { break };
            let rows = self.of(donor);
            errors[donor] /= 2.0;
            chosen.push((c, rows[(hash(seed, 2, c as u64) % rows.len() as u64) as usize]));
        }
        chosen
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn points(n: usize, width: usize) -> Vec<f32> {
        (0..n * width).map(|i| (hash(5, 0, i as u64) >> 40) as f32 / (1 << 24) as f32).collect()
    }

    fn error(data: &[f32], width: usize, centroids: &[f32]) -> f64 {
        let table = CentroidTable::new(centroids, width);
        nearest(data, width, &table, &Quiet).unwrap().iter().map(|x| f64::from(x.distance)).sum()
    }

    #[test]
    fn finds_separate_clusters() {
        // 40 clusters of vectors in a cube's grid, 30 rows each, with little noise.
        let noise = points(1200, 3);
        let grid = |i: usize, axis: usize| [(i % 4) as f32, (i / 4 % 4) as f32, (i / 16) as f32][axis];
        let data: Vec<f32> = (0..3600).map(|j| 10.0 * grid(j / 3 % 40, j % 3) + 0.1 * noise[j]).collect();
        let errors: Vec<f64> = [0, 1, 2, 5, 30]
            .iter()
            .map(|&rounds| error(&data, 3, &kmeans(&data, 3, 40, rounds, 1, &Quiet).unwrap()))
            .collect();
        assert!(errors.is_sorted_by(|a, b| a >= b), "{errors:?}");
        // A local minimum may merge a few of them, not most.
        assert!(errors[4] / 1200.0 < 12.0 && errors[4] < errors[0] * 0.6, "{errors:?}");
    }

    #[test]
    fn assigns_as_a_naive_search_does() {
        let (data, centroids) = (points(700, 5), points(33, 5));
        for (x, got) in data.chunks(5).zip(assign(&data, 5, &centroids)) {
            let distance = |c: &[f32]| -> f32 { c.iter().zip(x).map(|(a, b)| (a - b) * (a - b)).sum() };
            let best = centroids.chunks(5).map(distance).fold(f32::INFINITY, f32::min);
            assert!(distance(&centroids[got as usize * 5..][..5]) <= best + 1e-5);
        }
    }

    #[test]
    fn repeated_rows_leave_no_cluster_behind() {
        // Nearly all rows are equal; the few others must get their own centroids.
        let mut data = vec![0f32; 2000];
        (0..20).for_each(|i| data[i * 100] = 1.0 + i as f32);
        let centroids = kmeans(&data, 1, 32, 40, 3, &Quiet).unwrap();
        assert!(error(&data, 1, &centroids) < 1e-6, "{}", error(&data, 1, &centroids));
    }

    #[test]
    fn few_rows_are_their_own_centroids() {
        let mut centroids = kmeans(&[3.0, 1.0, 2.0], 1, 5, 10, 7, &Quiet).unwrap();
        centroids[..3].sort_by(f32::total_cmp);
        assert_eq!(centroids[..3], [1.0, 2.0, 3.0]);
        assert_eq!(centroids.len(), 5);
        assert_eq!(kmeans(&[], 2, 3, 10, 7, &Quiet).unwrap(), [0.0; 6]);
    }

    #[test]
    fn the_number_of_threads_changes_nothing() {
        let data = points(5000, 6);
        let with = |threads| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| kmeans(&data, 6, 100, 8, 11, &Quiet).unwrap())
        };
        let one = with(1);
        assert_eq!(one, with(2));
        assert_eq!(one, with(3));
    }
}
