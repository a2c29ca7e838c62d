//! Builds the graph of one cluster, or of all representatives.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use stratann_core::build::Points;
use stratann_core::build::hnsw::{Hnsw, HnswOptions, HnswScratch};
use stratann_core::format::hnsw::{HnswMember, HnswName, write};
use stratann_kernel::distance::{inverse_norm, l2_f32, l2_i8, l2_u8};
use stratann_kernel::{DType, Metric};
use stratann_storage::{Progress, Result};

use crate::kinds::remote_hnsw::open::layout;
use crate::stages::space::Space;

/// Nodes between two reports of progress, at which a rebuild also yields its processor.
const NODES: usize = 4;

/// Vectors as a graph compares them: integers under l2 as they are, all others as floats of the space.
enum ClusterPoints<'a> {
    Floats(usize, Vec<f32>),
    Unsigned(usize, &'a [u8]),
    Signed(usize, &'a [u8]),
}

impl<'a> ClusterPoints<'a> {
    fn new(space: &Space, (metric, dtype): (Metric, DType), vectors: &'a [u8], vector_bytes: usize) -> Self {
        match (metric, dtype) {
            (Metric::L2, DType::U8) => ClusterPoints::Unsigned(vector_bytes, vectors),
            (Metric::L2, DType::I8) => ClusterPoints::Signed(vector_bytes, vectors),
            _ => {
                let dim = space.point_dim();
                let mut floats = vec![0f32; vectors.len() / vector_bytes * dim];
                let points = floats.chunks_exact_mut(dim).zip(vectors.chunks_exact(vector_bytes));
                points.for_each(|(point, vector)| space.floats(vector, point));
                ClusterPoints::Floats(dim, floats)
            }
        }
    }
}

fn row<T>(rows: &[T], size: usize, number: u32) -> &[T] {
    &rows[number as usize * size..(number as usize + 1) * size]
}

impl Points for ClusterPoints<'_> {
    fn len(&self) -> usize {
        match self {
            ClusterPoints::Floats(size, rows) => rows.len() / size,
            ClusterPoints::Unsigned(size, rows) | ClusterPoints::Signed(size, rows) => rows.len() / size,
        }
    }

    #[inline]
    fn distance(&self, a: u32, b: u32) -> f32 {
        match self {
            ClusterPoints::Floats(size, rows) => {
                l2_f32(row(rows, *size, a), bytemuck::cast_slice(row(rows, *size, b)))
            }
            ClusterPoints::Unsigned(size, rows) => l2_u8(row(rows, *size, a), row(rows, *size, b)) as f32,
            ClusterPoints::Signed(size, rows) => l2_i8(row(rows, *size, a), row(rows, *size, b)) as f32,
        }
    }

    #[inline]
    fn prefetch(&self, a: u32) {
        match self {
            ClusterPoints::Floats(size, rows) => {
                stratann_kernel::prefetch(bytemuck::cast_slice(row(rows, *size, a)));
            }
            ClusterPoints::Unsigned(size, rows) | ClusterPoints::Signed(size, rows) => {
                stratann_kernel::prefetch(row(rows, *size, a));
            }
        }
    }
}

/// Vectors that become one sub-HNSW, with the users' ids.
pub(crate) struct Cluster<'a> {
    pub(crate) vectors: &'a [u8],
    pub(crate) vector_bytes: usize,
    pub(crate) ids: &'a [u64],
    /// Bytes of an id.
    pub(crate) id_bytes: usize,
    pub(crate) name: HnswName,
}

/// The bytes of the sub-HNSW of a cluster. `progress` advances by one for each vector.
///
/// # Errors
/// An interruption.
pub(crate) fn sub_hnsw(
    space: &Space,
    (metric, dtype): (Metric, DType),
    own: &Cluster<'_>,
    options: &HnswOptions,
    progress: &dyn Progress,
) -> Result<Vec<u8>> {
    let points = ClusterPoints::new(space, (metric, dtype), own.vectors, own.vector_bytes);
    let mut graph = Hnsw::new(points.len(), options);
    let mut scratch = HnswScratch::default();
    for from in (0..points.len()).step_by(NODES) {
        progress.check_interrupted()?;
        let nodes = from..(from + NODES).min(points.len());
        progress.advance(nodes.len() as u64);
        nodes.for_each(|node| graph.insert(&points, node as u32, options, &mut scratch));
    }
    graph.finish(&points, options, &mut scratch);
    drop(points);
    Ok(to_bytes((metric, dtype), own, &graph))
}

/// The bytes of a graph over the first vectors of a cluster.
fn to_bytes((metric, dtype): (Metric, DType), own: &Cluster<'_>, graph: &Hnsw) -> Vec<u8> {
    let layout = layout(metric, own.vector_bytes);
    let norm = |vector: &[u8]| if layout.norms { inverse_norm(dtype, vector) } else { 1.0 };
    let vectors = own.vectors.chunks_exact(own.vector_bytes);
    let members = vectors.zip(own.ids).map(|(vector, &external_id)| HnswMember {
        external_id,
        inverse_norm: norm(vector),
        vector,
    });
    let mut bytes = Vec::new();
    write(&layout, &own.name, own.id_bytes, graph, members, &mut bytes);
    bytes
}

/// A sub-HNSW of the first vectors of a cluster.
pub(crate) struct Grown {
    pub(crate) bytes: Vec<u8>,
    /// Distances that the insertions of all its vectors have computed.
    pub(crate) comparisons: u64,
}

/// Points that count their distances.
struct Counted<'a> {
    points: ClusterPoints<'a>,
    comparisons: AtomicU64,
}

impl Points for Counted<'_> {
    fn len(&self) -> usize {
        self.points.len()
    }

    fn distance(&self, a: u32, b: u32) -> f32 {
        self.comparisons.fetch_add(1, Ordering::Relaxed);
        self.points.distance(a, b)
    }
}

/// The sub-HNSWs of the first `sizes` vectors of a cluster, ascending numbers, as one graph grows through them.
pub(crate) fn grown(
    space: &Space,
    (metric, dtype): (Metric, DType),
    own: &Cluster<'_>,
    options: &HnswOptions,
    sizes: &[u32],
) -> BTreeMap<u32, Grown> {
    let points = ClusterPoints::new(space, (metric, dtype), own.vectors, own.vector_bytes);
    let points = Counted { points, comparisons: AtomicU64::new(0) };
    let mut graph = Hnsw::new(points.len(), options);
    let mut scratch = HnswScratch::default();
    let (mut from, mut all) = (0, BTreeMap::new());
    for &size in sizes.iter().filter(|&&size| size as usize <= points.len()) {
        (from..size).for_each(|node| graph.insert(&points, node, options, &mut scratch));
        from = size;
        let comparisons = points.comparisons.load(Ordering::Relaxed);
        let mut finished = graph.clone();
        finished.finish(&points.points, options, &mut scratch);
        all.insert(size, Grown { bytes: to_bytes((metric, dtype), own, &finished), comparisons });
    }
    all
}
