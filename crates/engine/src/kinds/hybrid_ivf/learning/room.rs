//! Room for a hot set in an open index.

use stratann_core::build::costs::VisitCostModel;
use stratann_core::kinds::hybrid_ivf::learn::{HotRoom, HotSet};

use crate::kinds::hybrid_ivf::residency::{CostModel, ResidencyBudget};
use crate::kinds::hybrid_ivf::snapshot::Snapshot;
use crate::kinds::hybrid_ivf::tables::ListTables;

/// Room for hot members, and for resident lists.
pub(super) struct Room<'a> {
    pub(super) tables: &'a ListTables,
    /// Most hot members.
    pub(super) hot: usize,
    pub(super) residency: Option<(ResidencyBudget, VisitCostModel)>,
}

impl HotRoom for Room<'_> {
    fn members(&self) -> u64 {
        self.tables.directory.ids.last().map_or(0, |&end| end.into())
    }

    fn capacity(&self) -> usize {
        self.hot
    }

    fn holds(&self, member: u32) -> bool {
        self.tables.holds_record(member)
    }

    fn resident(&self, visits: &[u32]) -> Vec<u32> {
        let Some((budget, model)) = self.residency else { return Vec::new() };
        let mut resident = self.tables.would_be_resident(budget, &CostModel { model: &model, visits });
        resident.sort_unstable();
        resident
    }
}

/// The hot set of what was learned before.
pub(super) fn learned(snapshot: &Snapshot) -> HotSet {
    HotSet { members: snapshot.ids.clone(), clusters: Vec::new() }
}
