//! The part of an open `hybrid-ivf` that changes while it is searched.

use std::sync::Arc;

use stratann_core::kinds::hybrid_ivf::{Pinned, View};
use stratann_core::kinds::{IndexView, KindView};
use stratann_core::route::NavGraph;

use super::residency::{LIST_BYTES, ResidentLists};
use crate::exec;

/// The navigation graph, the hot members and the resident lists that a query sees. Never changed: a query keeps the
/// one that it began with.
#[derive(Clone)]
pub struct Snapshot {
    pub(crate) nav: Arc<NavGraph>,
    /// Hot members, ascending.
    pub(crate) ids: Vec<u32>,
    /// Records of the members.
    pub(crate) records: Vec<Arc<[u8]>>,
    /// The resident lists, where the index learns which.
    pub(crate) resident: Option<Arc<ResidentLists>>,
    /// Visits of each list, halved with every epoch.
    pub(crate) visits: Vec<u32>,
    /// Epochs that it was learned from, those of earlier sessions included.
    pub(crate) epochs: u64,
    /// Queries in them.
    pub(crate) queries: u64,
}

impl exec::Snapshot for Snapshot {
    fn apply<'a>(&'a self, view: &mut IndexView<'a>) {
        if let KindView::HybridIvf(lists) = &mut view.kind {
            self.apply_to(lists);
        }
    }
}

impl Snapshot {
    /// Puts what this snapshot holds into a view.
    pub(crate) fn apply_to<'a>(&'a self, clusters: &mut View<'a>) {
        clusters.nav = &self.nav;
        clusters.pinned = self.pinned();
        if let Some(lists) = &self.resident {
            (clusters.resident, clusters.resident_records) = (lists.codes(), lists.records());
        }
    }

    fn pinned(&self) -> Pinned<'_> {
        Pinned { ids: &self.ids, records: &self.records }
    }

    /// Bytes in RAM, resident lists excluded.
    pub(crate) fn bytes(&self) -> u64 {
        let records: usize = self.records.iter().map(|r| r.len() + LIST_BYTES + size_of_val(r)).sum();
        (self.nav.bytes() + 4 * self.ids.len() + records + 4 * self.visits.len()) as u64
    }
}
