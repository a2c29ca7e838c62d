//! Chooses the representatives, and gives every row to the nearest of them, exactly.

use stratann_params::build::RemoteOptions;
use stratann_params::choices::Representatives;
use stratann_storage::Result;

use super::REPRESENTATIVES;
use crate::clusterings::{drawn, evenly, kmeans, sample_of};
use crate::dataset::Scan;
use crate::stages::build::Build;
use crate::stages::cells::{self, ROUNDS, SAMPLE_PER_CELL};
use crate::stages::space::Space;
use crate::stages::tables::write_table;

/// Number of clusters.
pub(super) fn run(build: &Build<'_>, own: &RemoteOptions, space: &Space, scan: &Scan) -> Result<u32> {
    let wanted = own.count(scan.rows);
    let mut rows = match own.representatives {
        Representatives::Sample => drawn(build.each_live_row(scan), wanted, (build.options.seed, 17)),
        Representatives::Kmeans => nearest_to_centroids(build, space, scan, wanted)?,
    };
    let load = |rows: &[u32], out: &mut [f32]| space.load_floats(build.base, rows, out);
    let points = sample_of(space.point_dim(), &rows, load)?;
    let mut of_row = cells::assign(build, space, scan, &points)?;
    leave_out_empty(&mut rows, &mut of_row);
    write_table(&build.partial.path(REPRESENTATIVES), &rows)?;
    write_table(&build.partial.path(cells::OF_ROW), &of_row)?;
    Ok(rows.len() as u32)
}

/// Rows of a sample nearest to each centroid of k-means; ascending.
fn nearest_to_centroids(build: &Build<'_>, space: &Space, scan: &Scan, wanted: usize) -> Result<Vec<u32>> {
    let (dim, live) = (space.point_dim(), build.live_rows(scan));
    let count = (SAMPLE_PER_CELL * wanted).min(live.len()).min(build.plan.lists().sample.max(wanted));
    let sampled = evenly(&live, count);
    drop(live);
    let load = |rows: &[u32], out: &mut [f32]| space.load_floats(build.base, rows, out);
    let sample = sample_of(dim, &sampled, load)?;
    let centroids = kmeans::kmeans_stage(&sample, dim, wanted, ROUNDS, build.options.seed, build.progress)?;
    let nearest = kmeans::assign_until(&centroids, dim, &sample, build.progress)?;
    let mut rows: Vec<u32> = nearest.into_iter().map(|at| sampled[at as usize]).collect();
    rows.sort_unstable();
    rows.dedup();
    Ok(rows)
}

/// Leaves out representatives without a row: their vector is that of another one.
fn leave_out_empty(rows: &mut Vec<u32>, of_row: &mut [u32]) {
    let mut numbers = vec![u32::MAX; rows.len()];
    of_row.iter().filter(|&&c| c != u32::MAX).for_each(|&c| numbers[c as usize] = 0);
    numbers.iter_mut().filter(|number| **number == 0).zip(0..).for_each(|(number, new)| *number = new);
    of_row.iter_mut().filter(|c| **c != u32::MAX).for_each(|c| *c = numbers[*c as usize]);
    let mut kept = numbers.iter();
    rows.retain(|_| kept.next().is_some_and(|&number| number != u32::MAX));
}
