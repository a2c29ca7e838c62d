//! The graph over the centroids, and the lists that each row is in: that of the nearest centroid, and those of
//! centroids that are nearly as near (FusionANNS, equation 2).

use std::fs::File;
use std::os::unix::fs::FileExt;
use stratann_params::build::GpuOptions;

use stratann_core::build::prune::Near;
use stratann_core::build::walk::{WalkScratch, each, greedy_walk};
use stratann_core::build::{Lists, Points};
use stratann_core::format::posting_lists::LISTS_PER_VECTOR;
use stratann_core::route::NONE;
use stratann_storage::{Error, Result};

use super::clusters::{self, squared};
use crate::clusterings::CHUNK;
use crate::dataset::Scan;
use crate::parallel;
use crate::stages::build::Build;
use crate::stages::points::Floats;
use crate::stages::space::Space;
use crate::stages::tables::{read_table, write_table};
use crate::stages::vamana::{self, VamanaOptions};

/// Neighbours of a centroid in the graph. 64 in FusionANNS §4.1; half of them find as many lists.
pub(super) const DEGREE: usize = 32;
/// Length of the beam that finds them.
const LIST: usize = 64;
/// Length of the beam that finds the lists of a row.
const MEMBER_LIST: usize = 24;

/// The graph: its entry, then `DEGREE` words for each centroid.
const NAVIGATION: &str = "navigation.tmp";
/// File of [`LISTS_PER_VECTOR`] lists for each row, the nearest first, and `u32::MAX` from the last on.
const NEAR: &str = "near.tmp";

/// Builds the graph over the centroids.
pub(super) fn connect(build: &Build<'_>, space: &Space) -> Result<()> {
    let points = Floats { rows: clusters::read(build)?, dim: space.point_dim() };
    build.progress.stage("navigation graph", points.len() as u64, "nodes");
    let entry = points.medoid();
    let options =
        VamanaOptions { degree: DEGREE, list: LIST, alpha: 1.2, passes: 1, seed: build.options.seed };
    let graph = vamana::build(&points, entry, &options, build.progress)?;
    let mut words = Vec::with_capacity(1 + points.len() * DEGREE);
    words.push(entry);
    for node in 0..points.len() as u32 {
        words.extend_from_slice(graph.list(node));
        words.resize(1 + (node as usize + 1) * DEGREE, NONE);
    }
    write_table(&build.partial.path(NAVIGATION), &words)
}

/// The graph over the centroids.
pub(super) struct Navigation {
    pub(super) entry: u32,
    pub(super) neighbours: Vec<u32>,
}

impl Navigation {
    pub(super) fn read(build: &Build<'_>) -> Result<Navigation> {
        let mut neighbours: Vec<u32> = read_table(&build.partial.path(NAVIGATION))?;
        if neighbours.is_empty() {
            return Err(Error::corrupt("the unfinished build makes no sense; build again without --resume"));
        }
        let entry = neighbours.remove(0);
        Ok(Navigation { entry, neighbours })
    }
}

impl Lists for Navigation {
    fn list(&self, node: u32) -> &[u32] {
        let list = &self.neighbours[node as usize * DEGREE..][..DEGREE];
        &list[..list.iter().position(|&n| n == NONE).unwrap_or(DEGREE)]
    }
}

/// Finds the lists of every row.
pub(super) fn run(build: &Build<'_>, own: &GpuOptions, space: &Space, scan: &Scan) -> Result<()> {
    let dim = space.point_dim();
    let centroids = Floats { rows: clusters::read(build)?, dim };
    let graph = Navigation::read(build)?;
    let path = build.partial.path(NEAR);
    let file = File::create(&path).map_err(|e| Error::io("creating", &path, &e))?;
    let rows = build.base.shape().rows;
    build.progress.stage("assigning rows", rows, "rows");
    // Of distances that are squared.
    let reach = (1.0 + own.epsilon) * (1.0 + own.epsilon);
    parallel::try_map_with(0..rows.div_ceil(CHUNK as u64), WalkScratch::default, |scratch, chunk| {
        build.progress.check_interrupted()?;
        let first = chunk * CHUNK as u64;
        let count = (CHUNK as u64).min(rows - first);
        let live: Vec<u32> = build.live(scan, first..first + count).map(|row| row as u32).collect();
        let mut points = vec![0f32; live.len() * dim];
        space.load_floats(build.base, &live, &mut points)?;
        let mut out = vec![NONE; count as usize * LISTS_PER_VECTOR];
        let mut near: Vec<Near> = Vec::new();
        for (&row, point) in live.iter().zip(points.chunks_exact(dim)) {
            near.clear();
            let distance = |id: u32| squared(point, centroids.row(id));
            greedy_walk(&centroids, &graph, graph.entry, each(distance), MEMBER_LIST, scratch, &mut near);
            near.sort_unstable_by(Near::order);
            let farthest = near.first().map_or(0.0, |nearest| nearest.distance * reach);
            let lists = near.iter().take_while(|n| n.distance <= farthest).take(LISTS_PER_VECTOR);
            let at = (u64::from(row) - first) as usize * LISTS_PER_VECTOR;
            out[at..at + LISTS_PER_VECTOR].iter_mut().zip(lists).for_each(|(to, n)| *to = n.id);
        }
        let offset = first * (4 * LISTS_PER_VECTOR) as u64;
        file.write_all_at(bytemuck::cast_slice(&out), offset).map_err(|e| Error::io("writing", &path, &e))?;
        build.progress.advance(count);
        Ok::<_, Error>(())
    })?;
    file.sync_data().map_err(|e| Error::io("writing", &path, &e))
}

/// Shows the lists of every row, in the order of rows, to `see`.
pub(super) fn for_each(build: &Build<'_>, mut see: impl FnMut(u32, &[u32])) -> Result<()> {
    const ROWS: u64 = 16_384;
    let path = build.partial.path(NEAR);
    let rows = build.base.shape().rows;
    let words = LISTS_PER_VECTOR as u64;
    for first in (0..rows).step_by(ROWS as usize) {
        let end = (first + ROWS).min(rows);
        let table: Vec<u32> = crate::stages::tables::read_entries(&path, first * words, end * words)?;
        for (row, lists) in (first as u32..).zip(table.chunks_exact(LISTS_PER_VECTOR)) {
            see(row, &lists[..lists.iter().position(|&list| list == NONE).unwrap_or(LISTS_PER_VECTOR)]);
        }
    }
    Ok(())
}
