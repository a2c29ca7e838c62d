//! What becomes of each cluster: its local index, and the list of each of its rows.

use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use stratann_core::build::costs::VisitCostModel;
use stratann_core::format::directory::LocalKind;

use super::memory::DIVIDE_BYTES;
use super::plan;
use super::{ReadSizes, clusters, posting_shape};
use crate::build::kmeans;
use crate::build::space::Space;
use crate::build::stages::Build;
use crate::build::tables::{read_table, write_table};
use crate::dataset::Scan;
use crate::kinds::hybrid_ivf::facts::PlanReport;
use crate::profile::Profile;
use crate::{Error, Result};

/// The list of every row, u32; `u32::MAX` for rows that are left out.
pub(crate) const LISTS: &str = "list-of-row.tmp";
/// The centroids of lists of divided clusters, f32, in the order of their lists.
pub(crate) const SUB_CENTROIDS: &str = "sub-centroids.tmp";

/// What became of the clusters.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Plan {
    /// The local index of each cluster, by its number.
    pub(crate) kinds: Vec<u8>,
    /// The first list of each, and the end of the last.
    pub(crate) lists: Vec<u32>,
    /// For divided clusters their first entry among the sub-centroids.
    pub(crate) sub_first: Vec<u32>,
    /// How long reads are.
    pub(crate) reads: ReadSizes,
    /// Why.
    pub(crate) report: PlanReport,
}

/// Rows of a divided cluster that its centroids are found from, for each of them.
const SAMPLE_PER_LIST: usize = 48;
const ROUNDS: usize = 8;

pub(crate) fn run(build: &Build<'_>, space: &Space, scan: &Scan, profile: &Profile) -> Result<Plan> {
    let cluster_of = clusters::read(build)?;
    let count = 1 + cluster_of.iter().filter(|&&c| c != u32::MAX).max().map_or(0, |&c| c as usize);
    let mut sizes = vec![0u64; count];
    cluster_of.iter().filter(|&&c| c != u32::MAX).for_each(|&c| sizes[c as usize] += 1);
    let mut members: Vec<Vec<u32>> = sizes.iter().map(|&n| Vec::with_capacity(n as usize)).collect();
    for row in build.live(scan, 0..build.base.shape().rows) {
        members[cluster_of[row as usize] as usize].push(row as u32);
    }
    drop(cluster_of);
    let reads = ReadSizes::of(profile);
    let (kinds, report) = plan::run(build, space, scan, profile, &sizes)?;
    build.progress.stage("dividing large clusters", count as u64, "clusters");
    let capacity = posting_shape(build)?.members_in(reads.most as usize);
    let budget = build.options.ram_budget;
    let sample_max = budget.map_or(usize::MAX, |_| DIVIDE_BYTES / (4 * space.point_dim()));
    let divided: Vec<Divided> = members
        .into_par_iter()
        .zip(&kinds)
        .enumerate()
        .map(|(cluster, (rows, kind))| {
            if build.progress.interrupted() {
                return Err(Error::interrupted());
            }
            build.progress.advance(1);
            match kind {
                LocalKind::Ivf => {
                    let load = |rows: &[u32], out: &mut [f32]| space.load_floats(build.base, rows, out);
                    let seed = build.options.seed.wrapping_add(cluster as u64);
                    by_centroids(space.point_dim(), &rows, (capacity, sample_max), seed, load)
                }
                LocalKind::Flat | LocalKind::Graph => Ok(in_order(&rows, capacity)),
            }
        })
        .collect::<Result<_>>()?;
    write(build, kinds, divided, reads, report)
}

/// The lists of a cluster.
pub(crate) struct Divided {
    /// Rows and the list of each, numbered within the cluster.
    pub(crate) rows: Vec<(u32, u32)>,
    pub(crate) lists: u32,
    /// One for each list of a divided cluster, as a point.
    pub(crate) centroids: Vec<f32>,
}

/// Lists of as many rows as one read brings.
pub(crate) fn in_order(rows: &[u32], capacity: usize) -> Divided {
    let lists = rows.len().div_ceil(capacity).max(1);
    let each = rows.len().div_ceil(lists).max(1);
    let rows: Vec<(u32, u32)> = rows.iter().enumerate().map(|(i, &row)| (row, (i / each) as u32)).collect();
    Divided { rows, lists: lists as u32, centroids: Vec::new() }
}

/// A list for each of √N centroids; those too long for one read become several with the same centroid.
/// `load` gives rows as points of `dim` components; centroids are found from `sample_max` of them at most.
pub(crate) fn by_centroids(
    dim: usize,
    rows: &[u32],
    (capacity, sample_max): (usize, usize),
    seed: u64,
    load: impl Fn(&[u32], &mut [f32]) -> Result<()>,
) -> Result<Divided> {
    const CHUNK: usize = 1024;
    let k = VisitCostModel::lists_in(rows.len() as u64) as usize;
    let step = rows.len().div_ceil((k * SAMPLE_PER_LIST).min(sample_max.max(k))).max(1);
    let drawn: Vec<u32> = rows.iter().copied().step_by(step).collect();
    let mut sample = vec![0f32; drawn.len() * dim];
    load(&drawn, &mut sample)?;
    let centroids = kmeans::kmeans(&sample, dim, k, ROUNDS, seed);
    drop(sample);
    let mut nearest: Vec<(u32, u32)> = Vec::with_capacity(rows.len());
    for rows in rows.chunks(CHUNK) {
        let mut floats = vec![0f32; rows.len() * dim];
        load(rows, &mut floats)?;
        nearest.extend(rows.iter().copied().zip(kmeans::assign(&floats, dim, &centroids)));
    }
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

fn write(
    build: &Build<'_>,
    kinds: Vec<LocalKind>,
    divided: Vec<Divided>,
    reads: ReadSizes,
    report: PlanReport,
) -> Result<Plan> {
    let dim = build.base.shape().dim;
    let mut list_of_row = vec![u32::MAX; build.base.shape().rows as usize];
    let (mut lists, mut sub_first, mut subs) = (vec![0u32], Vec::new(), Vec::new());
    let mut entries = 0u32;
    for cluster in divided {
        let first = lists.last().copied().unwrap_or(0);
        cluster.rows.iter().for_each(|&(row, list)| list_of_row[row as usize] = first + list);
        lists.push(first + cluster.lists);
        sub_first.push(entries);
        if !cluster.centroids.is_empty() {
            entries += cluster.lists;
            // Of an inner product's space the last component is not one of the vectors'.
            let wide = cluster.centroids.len() / cluster.lists as usize;
            cluster.centroids.chunks_exact(wide).for_each(|c| subs.extend_from_slice(&c[..dim]));
        }
    }
    write_table(&build.partial.path(LISTS), &list_of_row)?;
    write_table(&build.partial.path(SUB_CENTROIDS), &subs)?;
    Ok(Plan { kinds: kinds.iter().map(|&k| k as u8).collect(), lists, sub_first, reads, report })
}

/// The list of every row.
pub(crate) fn read_lists(build: &Build<'_>) -> Result<Vec<u32>> {
    read_table(&build.partial.path(LISTS))
}
