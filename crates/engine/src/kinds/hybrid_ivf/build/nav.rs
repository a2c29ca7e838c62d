//! The navigation graph of a build: all centroids, and members drawn by hash (OrchANN §5.2, Bootstrap).

use stratann_core::build::{Lists, Points, hash};
use stratann_core::route::{NONE, NavGraph};
use stratann_kernel::coder::Coder;
use stratann_params::build::ListOptions;
use stratann_storage::Result;

use super::{clusters, lists, read_centroids};
use crate::clusterings::drawn;
use crate::dataset::Scan;
use crate::files;
use crate::kinds::hybrid_ivf::residual::Encoder;
use crate::stages::build::{Build, read_coder};
use crate::stages::points::Floats;
use crate::stages::space::Space;
use crate::stages::tables::{read_table, write_table};
use crate::stages::vamana::{self, VamanaOptions};

/// Neighbours of a node.
pub(crate) const DEGREE: usize = 16;
pub(crate) const LIST: usize = 64;

/// Returns the number of nodes.
pub(crate) fn run(
    build: &Build<'_>,
    own: &ListOptions,
    space: &Space,
    scan: &Scan,
    id_of_row: &[u32],
) -> Result<u32> {
    let shape = build.base.shape();
    let (_, centroids) = read_centroids(build, shape.dim)?;
    let cluster_of = clusters::read(build)?;
    let count = centroids.len() / shape.dim;
    let rows = draw(build, scan, &cluster_of, count, (count as f64 * own.nav_samples) as usize);
    build.progress.stage("navigation graph", (count + rows.len()) as u64, "nodes");
    let coder = Coder::Bits(read_coder(&build.file(files::CODEBOOK))?);
    let mut nav = NavGraph {
        cluster_of: (0..count as u32).collect(),
        ids: vec![NONE; count],
        terms: read_table(&build.partial.path(lists::SPREADS))?,
        radii: vec![0.0; count],
        degree: DEGREE as u32,
        ..NavGraph::default()
    };
    let dim = space.point_dim();
    let mut points = Floats { rows: Vec::with_capacity((count + rows.len()) * dim), dim };
    for centroid in centroids.chunks_exact(shape.dim) {
        points.rows.extend_from_slice(centroid);
        points.rows.resize(points.rows.len().next_multiple_of(points.dim), 0.0);
    }
    let mut encoder = Encoder::new(&coder, build.options.metric);
    let (mut point, mut vector) = (vec![0f32; points.dim], vec![0f32; shape.dim]);
    let mut code = vec![0u8; coder.code_bytes()];
    let mut at = rows.iter();
    build.base.for_each(&rows, |bytes| {
        let Some(&row) = at.next() else { return };
        space.floats(bytes, &mut point);
        points.rows.extend_from_slice(&point);
        space.code_floats(bytes, &mut vector);
        let cluster = cluster_of[row as usize];
        let centroid = &centroids[cluster as usize * shape.dim..][..shape.dim];
        encoder.set_centroid(centroid);
        let member = encoder.encode(&vector, centroid, &mut code);
        nav.cluster_of.push(cluster);
        nav.ids.push(id_of_row[row as usize]);
        nav.terms.push(member.term);
        nav.radii.push(member.radius);
        nav.codes.extend_from_slice(&code);
    })?;
    connect(build, &mut nav, &points)?;
    nav.bootstrap = nav.nodes();
    write_table(&build.file(files::NAV), &files::encode_nav(&nav))?;
    Ok(nav.nodes())
}

/// Draws at least one row of every list, and `wanted` in all, the smallest by hash.
fn draw(build: &Build<'_>, scan: &Scan, cluster_of: &[u32], clusters: usize, wanted: usize) -> Vec<u32> {
    let key = |row: u32| (hash(build.options.seed, 7, u64::from(row)), row);
    let mut first = vec![(u64::MAX, u32::MAX); clusters];
    build.each_live_row(scan).for_each(|row| {
        let least = &mut first[cluster_of[row as usize] as usize];
        *least = key(row).min(*least);
    });
    let mut rows = drawn(build.each_live_row(scan), wanted, (build.options.seed, 7));
    rows.extend(first.into_iter().map(|key| key.1).filter(|&row| row != u32::MAX));
    rows.sort_unstable();
    rows.dedup();
    rows
}

fn connect(build: &Build<'_>, nav: &mut NavGraph, points: &Floats) -> Result<()> {
    nav.entry = points.medoid();
    let options =
        VamanaOptions { degree: DEGREE, list: LIST, alpha: 1.2, passes: 1, seed: build.options.seed };
    let graph = vamana::build(points, nav.entry, &options, build.progress)?;
    for node in 0..points.len() as u32 {
        let list = graph.list(node);
        nav.neighbours.extend_from_slice(list);
        nav.neighbours.resize((node as usize + 1) * DEGREE, NONE);
    }
    Ok(())
}
