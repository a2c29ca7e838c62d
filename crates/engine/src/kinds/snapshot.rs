//! What a query sees of an index that changes while it is searched.

use std::sync::Arc;

use stratann_core::plan::{IndexView, KindView};

use super::{hybrid_ivf, remote_hnsw};

/// The changing part of an open index, as one query sees it from its first step to its last.
#[derive(Clone)]
pub enum Snapshot {
    /// Of a `hybrid-ivf`.
    HybridIvf(Arc<hybrid_ivf::snapshot::Snapshot>),
    /// Of a `remote-hnsw` in memory nodes.
    RemoteHnsw(Arc<remote_hnsw::live::Clusters>),
}

impl Snapshot {
    /// Puts what this snapshot holds into a view of its index.
    pub fn apply<'a>(&'a self, view: &mut IndexView<'a>) {
        match self {
            Snapshot::HybridIvf(snapshot) => {
                if let KindView::HybridIvf(lists) = &mut view.kind {
                    snapshot.apply(lists);
                }
            }
            Snapshot::RemoteHnsw(clusters) => {
                if let KindView::RemoteHnsw(own) = &mut view.kind {
                    clusters.apply(own);
                }
            }
        }
    }
}

impl From<Arc<hybrid_ivf::snapshot::Snapshot>> for Snapshot {
    fn from(snapshot: Arc<hybrid_ivf::snapshot::Snapshot>) -> Snapshot {
        Snapshot::HybridIvf(snapshot)
    }
}

impl From<Arc<remote_hnsw::live::Clusters>> for Snapshot {
    fn from(clusters: Arc<remote_hnsw::live::Clusters>) -> Snapshot {
        Snapshot::RemoteHnsw(clusters)
    }
}
