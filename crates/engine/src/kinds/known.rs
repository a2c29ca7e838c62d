//! The constants of every kind that this program knows.

use stratann_params::IndexKind;

use super::facts::KindFacts;
use super::{disk_graph, flat, gpu_ivf, grid_ivf, hybrid_ivf, remote_hnsw};

/// Kinds whose vectors are on disk, among which `--kind auto` chooses.
pub const ON_DISK: [IndexKind; 3] = [IndexKind::DiskGraph, IndexKind::HybridIvf, IndexKind::Flat];

/// The constants of a kind.
pub const fn facts(kind: IndexKind) -> &'static KindFacts {
    match kind {
        IndexKind::DiskGraph => &disk_graph::facts::FACTS,
        IndexKind::HybridIvf => &hybrid_ivf::facts::FACTS,
        IndexKind::GridIvf => &grid_ivf::facts::FACTS,
        IndexKind::GpuIvf => &gpu_ivf::facts::FACTS,
        IndexKind::RemoteHnsw => &remote_hnsw::facts::FACTS,
        IndexKind::Flat => &flat::facts::FACTS,
    }
}
