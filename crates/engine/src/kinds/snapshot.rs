//! What a query sees of an index that changes while it is searched.

use std::sync::Arc;

use stratann_core::plan::{IndexView, KindView};

use super::hybrid_ivf;

/// The changing part of an open index, as one query sees it from its first step to its last.
#[derive(Clone)]
pub enum Snapshot {
    /// Of a `hybrid-ivf`.
    HybridIvf(Arc<hybrid_ivf::snapshot::Snapshot>),
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
        }
    }
}

impl From<Arc<hybrid_ivf::snapshot::Snapshot>> for Snapshot {
    fn from(snapshot: Arc<hybrid_ivf::snapshot::Snapshot>) -> Snapshot {
        Snapshot::HybridIvf(snapshot)
    }
}
