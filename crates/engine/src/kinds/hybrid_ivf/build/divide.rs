//! Division of the clusters: the local index of each, and the list of each of its rows.

use serde::{Deserialize, Serialize};
use stratann_core::build::costs::VisitCostModel;
use stratann_core::format::directory::LocalKind;
use stratann_params::build::ListOptions;
use stratann_storage::Result;
use stratann_storage::profile::Profile;

use super::memory::DIVIDE_BYTES;
use super::plan;
use super::{ReadSizes, clusters, list_layout};
use crate::clusterings::divide::{Divided, by_centroids, in_order};
use crate::dataset::Scan;
use crate::kinds::hybrid_ivf::facts::PlanReport;
use crate::parallel;
use crate::stages::build::Build;
use crate::stages::space::Space;
use crate::stages::tables::{read_table, write_table};

/// The list of every row, u32; `u32::MAX` for rows that are left out.
pub(crate) const LISTS: &str = "list-of-row.tmp";
/// The centroids of lists of divided clusters, f32, in the order of their lists.
pub(crate) const SUB_CENTROIDS: &str = "sub-centroids.tmp";

/// Local indexes and lists of the clusters.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Plan {
    /// The local index of each cluster, by its number.
    pub(crate) kinds: Vec<u8>,
    /// The first list of each, and the end of the last.
    pub(crate) lists: Vec<u32>,
    /// For divided clusters their first entry among the sub-centroids.
    pub(crate) sub_first: Vec<u32>,
    /// Lengths of reads.
    pub(crate) reads: ReadSizes,
    /// Why.
    pub(crate) report: PlanReport,
}

pub(crate) fn run(
    build: &Build<'_>,
    own: &ListOptions,
    space: &Space,
    scan: &Scan,
    profile: &Profile,
) -> Result<Plan> {
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
    let (kinds, report) = plan::run(build, own, space, scan, profile, &sizes)?;
    build.progress.stage("dividing large clusters", count as u64, "clusters");
    let capacity = list_layout(build, own)?.members_in(reads.most as usize);
    let budget = build.options.ram_budget;
    let sample_max = budget.map_or(usize::MAX, |_| DIVIDE_BYTES / (4 * space.point_dim()));
    let divided =
        parallel::try_map(members.into_iter().zip(&kinds).enumerate(), |(cluster, (rows, kind))| {
            build.progress.check_interrupted()?;
            build.progress.advance(1);
            match kind {
                LocalKind::Ivf => {
                    let load = |rows: &[u32], out: &mut [f32]| space.load_floats(build.base, rows, out);
                    let seed = build.options.seed.wrapping_add(cluster as u64);
                    let lists = VisitCostModel::lists_in(rows.len() as u64) as usize;
                    by_centroids(
                        space.point_dim(),
                        &rows,
                        lists,
                        (capacity, sample_max),
                        (seed, build.progress),
                        load,
                    )
                }
                LocalKind::Flat | LocalKind::Graph => Ok(in_order(&rows, capacity)),
            }
        })?;
    write(build, kinds, divided, reads, report)
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
