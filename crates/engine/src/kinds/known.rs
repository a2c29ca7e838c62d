//! The constants of every kind that this program knows.

use stratann_params::IndexKind;

use super::disk_graph::facts as disk_graph;
use super::facts::KindFacts;
use super::flat::facts as flat;
use super::gpu_ivf::facts as gpu_ivf;
use super::grid_ivf::facts as grid_ivf;
use super::hybrid_ivf::facts as hybrid_ivf;
use super::remote_hnsw::facts as remote_hnsw;

/// Kinds whose vectors are on disk, among which `--kind auto` chooses.
pub const ON_DISK: [IndexKind; 3] = [IndexKind::DiskGraph, IndexKind::HybridIvf, IndexKind::Flat];

/// The constants of a kind.
pub const fn facts(kind: IndexKind) -> &'static KindFacts {
    match kind {
        IndexKind::DiskGraph => &disk_graph::FACTS,
        IndexKind::HybridIvf => &hybrid_ivf::FACTS,
        IndexKind::GridIvf => &grid_ivf::FACTS,
        IndexKind::GpuIvf => &gpu_ivf::FACTS,
        IndexKind::RemoteHnsw => &remote_hnsw::FACTS,
        IndexKind::Flat => &flat::FACTS,
    }
}
