//! Local graphs: a Vamana graph over the members of each list that is searched by a graph, from the written records,
//! with the lengths of its edges.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use stratann_core::PAGE;
use stratann_core::build::{Lists, Points};
use stratann_core::format::directory::Directory;
use stratann_core::format::edges;
use stratann_core::format::inverted_list::{ListLayout, Record};
use stratann_kernel::distance::l2_f32;
use stratann_storage::{Error, Progress, Result};

use super::local_costs::{BUILD_LIST, DEGREE};
use crate::files;
use crate::parallel;
use crate::stages::build::Build;
use crate::stages::points::Floats;
use crate::stages::space::Space;
use crate::stages::vamana::{self, VamanaOptions};

/// Graphs are built concurrently as long as their memory stays below this share of the memory for parts; a larger one
/// is built on its own.
const COPIES: u64 = 2;

/// Writes the edges of all lists with a local graph into the file of lists, and their entry points into the directory.
pub(crate) fn write(
    build: &Build<'_>,
    space: &Space,
    shape: &ListLayout,
    directory: &mut Directory,
    file: &File,
) -> Result<()> {
    let own: Vec<u32> = (0..directory.clusters()).filter(|&c| directory.has_edges(c)).collect();
    let members: u64 = own.iter().map(|&c| directory.members_of(c).len() as u64).sum();
    if own.is_empty() {
        return Ok(());
    }
    build.progress.stage("building local graphs", members, "members");
    for together in batches(build, space, directory, &own) {
        let path = build.file(files::LISTS);
        let (seed, progress) = (build.options.seed, build.progress);
        let graphs = Graphs { space, shape, directory, file, path: &path, seed, progress };
        let entries = parallel::try_map(together, |&cluster| graphs.graph(cluster))?;
        for (&cluster, entry) in together.iter().zip(entries) {
            directory.entries[cluster as usize] = entry;
        }
    }
    Ok(())
}

/// Bytes of a member while the graph of its list is built.
fn member_bytes(space: &Space) -> u64 {
    vamana::Graph::bytes(1, DEGREE) + (4 * space.point_dim() + edges::edge_bytes(DEGREE)) as u64
}

/// Members of the largest list whose graph fits.
pub(crate) fn members_max(build: &Build<'_>, space: &Space) -> u64 {
    build.plan.block_memory_bytes / member_bytes(space)
}

fn batches<'a>(
    build: &Build<'_>,
    space: &Space,
    directory: &Directory,
    clusters: &'a [u32],
) -> Vec<&'a [u32]> {
    let room = build.plan.block_memory_bytes / COPIES;
    let size = |&cluster: &u32| directory.members_of(cluster).len() as u64 * member_bytes(space);
    let (mut out, mut from, mut held) = (Vec::new(), 0, 0);
    for (at, cluster) in clusters.iter().enumerate() {
        if held + size(cluster) > room && at > from {
            out.push(&clusters[from..at]);
            (from, held) = (at, 0);
        }
        held += size(cluster);
    }
    out.push(&clusters[from..]);
    out
}

/// Builds graphs over the records in a file of lists.
pub(crate) struct Graphs<'a> {
    pub(crate) space: &'a Space,
    pub(crate) shape: &'a ListLayout,
    pub(crate) directory: &'a Directory,
    pub(crate) file: &'a File,
    /// Path, for errors.
    pub(crate) path: &'a Path,
    pub(crate) seed: u64,
    pub(crate) progress: &'a dyn Progress,
}

impl Graphs<'_> {
    /// Builds one graph and writes its edges. Returns its entry point.
    pub(crate) fn graph(&self, cluster: u32) -> Result<u32> {
        let points = self.points(cluster)?;
        let (count, first) = (points.len() as u32, self.directory.members_of(cluster).start);
        if count == 0 {
            return Ok(0);
        }
        let options = VamanaOptions {
            // One neighbour is reserved for the next member.
            degree: DEGREE - 1,
            list: BUILD_LIST,
            alpha: 1.2,
            passes: 1,
            seed: self.seed.wrapping_add(u64::from(cluster)),
        };
        let graph = vamana::build(&points, points.medoid(), &options, self.progress)?;
        let start = self.directory.edges[cluster as usize];
        let mut out = vec![0u8; (edges::end_of(DEGREE, start, count) - start) as usize];
        let (mut neighbours, mut bytes) = (Vec::new(), Vec::new());
        for number in 0..count {
            neighbours.clear();
            neighbours.extend_from_slice(graph.list(number));
            // A ring through all members: every member can be reached, also among equal vectors.
            let next = (number + 1) % count;
            if next != number && !neighbours.contains(&next) {
                neighbours.push(next);
            }
            neighbours.sort_unstable();
            let own: Vec<(u32, f32)> =
                neighbours.iter().map(|&n| (n, self.length(&points, number, n))).collect();
            bytes.clear();
            edges::write_edges(DEGREE, self.shape.checksum_seed, first + number, &own, &mut bytes);
            let at = self.directory.edges_at(cluster, number);
            let at = (u64::from(at.first) * PAGE as u64 + u64::from(at.skip) - start) as usize;
            out[at..at + bytes.len()].copy_from_slice(&bytes);
        }
        self.file.write_all_at(&out, start).map_err(|e| Error::io("writing", self.path, &e))?;
        Ok(graph.entry)
    }

    /// Reads the members of a list, in their order.
    fn points(&self, cluster: u32) -> Result<Floats> {
        let dim = self.space.point_dim();
        let mut points = Floats { rows: vec![0f32; self.directory.members_of(cluster).len() * dim], dim };
        let mut out = points.rows.chunks_exact_mut(dim);
        for list in self.directory.lists_of(cluster) {
            self.progress.check_interrupted()?;
            let size = self.shape.record_bytes();
            let mut bytes = vec![0u8; self.directory.members(list) as usize * size];
            self.file
                .read_exact_at(&mut bytes, self.directory.records[list as usize])
                .map_err(|e| Error::io("reading", self.path, &e))?;
            let ids = self.directory.ids[list as usize]..;
            for ((bytes, id), out) in bytes.chunks_exact(size).zip(ids).zip(&mut out) {
                let record = Record::verify(self.shape, id, bytes).ok_or_else(|| {
                    Error::corrupt(format!(
                        "{} is not as it was written; start the build again",
                        self.path.display()
                    ))
                })?;
                self.space.floats(record.vector(), out);
            }
        }
        Ok(points)
    }

    /// Computes the length of an edge between vectors, without the additional component of inner product.
    fn length(&self, points: &Floats, a: u32, b: u32) -> f32 {
        let dim = self.shape.dim;
        l2_f32(&points.row(a)[..dim], bytemuck::cast_slice(&points.row(b)[..dim])).sqrt()
    }
}
