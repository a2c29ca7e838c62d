//! Expected loads of each cluster, by which groups are placed on memory nodes.
//!
//! A batch loads a cluster once, however many of its queries need it. So what counts is how likely a batch needs it.

use stratann_core::format::hnsw::{HnswName, SubHnsw};
use stratann_core::kinds::remote_hnsw::Chooser;
use stratann_kernel::{DType, Metric};

use super::open::RemoteIndex;

/// Frequencies of the needs of queries for each cluster.
struct Needs {
    by_cluster: Vec<u64>,
    all: u64,
}

/// Bytes that a batch of so many queries is expected to load of each cluster, where nothing is cached.
///
/// Without `queries` each representative stands for the members of its cluster: it is a vector of the index, and its
/// nearest clusters are about theirs. That reads nothing besides the meta-HNSW.
pub(crate) fn expected_bytes(
    own: &RemoteIndex,
    element: (Metric, DType),
    queries: Option<&[u8]>,
    (nprobe, batch): (u32, usize),
) -> Vec<u64> {
    let needs = needs(own, element, queries, nprobe);
    let all = needs.all.max(1) as f64;
    let expected = |(&count, bytes): (&u64, u32)| {
        let loads = 1.0 - (1.0 - count as f64 / all).powi(i32::try_from(batch).unwrap_or(i32::MAX));
        (loads * f64::from(bytes)).round() as u64
    };
    needs.by_cluster.iter().zip(own.clusters.iter().map(|at| at.base.bytes)).map(expected).collect()
}

fn needs(own: &RemoteIndex, element: (Metric, DType), queries: Option<&[u8]>, nprobe: u32) -> Needs {
    let mut needs = Needs { by_cluster: vec![0; own.clusters.len()], all: 0 };
    let name = HnswName::meta(own.build());
    let Some(mut chooser) = Chooser::open(&own.layout, &name, own.meta()) else { return needs };
    let mut chosen = Vec::new();
    let mut add = |query: &[u8], weight: u64| {
        chosen.clear();
        chooser.choose(element, query, nprobe, &mut chosen);
        needs.all += weight;
        for &cluster in &chosen {
            if let Some(count) = needs.by_cluster.get_mut(cluster as usize) {
                *count += weight;
            }
        }
    };
    match queries {
        Some(queries) => queries.chunks_exact(own.layout.vector_bytes).for_each(|query| add(query, 1)),
        None => {
            let Some(meta) = SubHnsw::open(&own.layout, own.meta()) else { return needs };
            for cluster in 0..meta.members() {
                add(meta.vector(cluster), own.members(cluster));
            }
        }
    }
    needs
}
