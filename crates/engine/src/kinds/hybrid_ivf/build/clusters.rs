//! Assigns rows to k-means cells: k-means over a sample, then every row to the nearest centroid, part by part. Sizes
//! follow the data; nothing is moved between cells afterwards (OrchANN §3.2).

use rayon::prelude::*;

use super::list_plan;
use crate::build::space::Space;
use crate::build::stages::Build;
use crate::build::tables::{read_table, write_table};
use crate::clusterings::{CHUNK, evenly, kmeans, nearest_of, order, sample_of};
use crate::dataset::Scan;
use crate::kinds::hybrid_ivf::options::ListOptions;
use crate::{Error, Result, files};

/// The cell of every row, u32; `u32::MAX` for rows that are left out.
pub(crate) const CLUSTERS: &str = "clusters.tmp";
/// Sampled rows per centroid; fewer fit them poorly, more gain little.
pub(crate) const SAMPLE_PER_CLUSTER: usize = 32;
pub(crate) const ROUNDS: usize = 8;

/// Default number of cells: 4·√n, so that neither finding the nearest of them nor scanning one grows faster than √n.
pub(crate) fn count(rows: u64) -> usize {
    ((4.0 * (rows as f64).sqrt()) as usize).clamp(1, rows.max(1) as usize)
}

/// Number of cells with a row.
pub(crate) fn run(build: &Build<'_>, own: &ListOptions, space: &Space, scan: &Scan) -> Result<u32> {
    let dim = space.point_dim();
    let live = build.live_rows(scan);
    let wanted = own.clusters.unwrap_or_else(|| count(scan.rows)).clamp(1, live.len());
    let sample = sample(build, space, &live, wanted)?;
    drop(live);
    build.progress.stage("clustering", ROUNDS as u64, "rounds");
    let centroids = kmeans::kmeans(&sample, dim, wanted, ROUNDS, build.options.seed, build.progress)?;
    drop(sample);
    let centroids = in_order(centroids, dim);
    let cluster_of = assign(build, space, scan, &centroids)?;
    let used = compact(&cluster_of, wanted);
    let renumbered: Vec<u32> =
        cluster_of.iter().map(|&c| if c == u32::MAX { c } else { used.1[c as usize] }).collect();
    write_table(&build.partial.path(CLUSTERS), &renumbered)?;
    let mut halves: Vec<u8> = Vec::new();
    for &c in &used.0 {
        let row = &centroids[c as usize * dim..][..build.base.shape().dim];
        halves.extend(super::to_halves(row));
    }
    write_table(&build.file(files::CENTROIDS), &halves)?;
    Ok(used.0.len() as u32)
}

fn sample(build: &Build<'_>, space: &Space, live: &[u32], clusters: usize) -> Result<Vec<f32>> {
    let dim = space.point_dim();
    let room = list_plan(build).map_or(usize::MAX, |plan| plan.sample);
    let count = (SAMPLE_PER_CLUSTER * clusters).min(live.len()).min(room.max(clusters));
    sample_of(dim, &evenly(live, count), |rows, out| space.load_floats(build.base, rows, out))
}

/// Sorts centroids along a tree of halves, so that near cells are mostly near each other on disk.
fn in_order(centroids: Vec<f32>, dim: usize) -> Vec<f32> {
    let mut order: Vec<u32> = (0..(centroids.len() / dim) as u32).collect();
    order::halve(&centroids, dim, &mut order, 1);
    order.iter().flat_map(|&c| centroids[c as usize * dim..][..dim].iter().copied()).collect()
}

/// Computes the nearest centroid of every row.
fn assign(build: &Build<'_>, space: &Space, scan: &Scan, centroids: &[f32]) -> Result<Vec<u32>> {
    let dim = space.point_dim();
    let rows = build.base.shape().rows;
    let mut cluster_of = vec![u32::MAX; rows as usize];
    build.progress.stage("assigning rows", rows, "rows");
    cluster_of.par_chunks_mut(CHUNK).enumerate().try_for_each(|(chunk, out)| {
        if build.progress.interrupted() {
            return Err(Error::interrupted());
        }
        let first = (chunk * CHUNK) as u64;
        let live: Vec<u32> = build.live(scan, first..first + out.len() as u64).map(|r| r as u32).collect();
        let load = |rows: &[u32], out: &mut [f32]| space.load_floats(build.base, rows, out);
        for (&row, c) in live.iter().zip(nearest_of(dim, &live, centroids, load)?) {
            out[(u64::from(row) - first) as usize] = c;
        }
        build.progress.advance(out.len() as u64);
        Ok(())
    })?;
    Ok(cluster_of)
}

/// Numbers the cells with a row.
fn compact(cluster_of: &[u32], clusters: usize) -> (Vec<u32>, Vec<u32>) {
    let mut numbers = vec![u32::MAX; clusters];
    cluster_of.iter().filter(|&&c| c != u32::MAX).for_each(|&c| numbers[c as usize] = 0);
    let used: Vec<u32> = (0..clusters as u32).filter(|&c| numbers[c as usize] == 0).collect();
    used.iter().zip(0..).for_each(|(&c, i)| numbers[c as usize] = i);
    (used, numbers)
}

/// Reads the cell of every row.
pub(crate) fn read(build: &Build<'_>) -> Result<Vec<u32>> {
    read_table(&build.partial.path(CLUSTERS))
}
