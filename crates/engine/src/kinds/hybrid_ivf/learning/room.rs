//! Room for a hot set in an open index.

use stratann_core::build::costs::VisitCostModel;
use stratann_core::kinds::hybrid_ivf::learn::{HotRoom, HotSet};

use crate::kinds::hybrid_ivf::residency::{Choice, CostModel, ResidencyBudget, ResidentLists};
use crate::kinds::hybrid_ivf::snapshot::Snapshot;
use crate::kinds::hybrid_ivf::tables::ListTables;

/// Room for hot members, and for resident lists.
pub(super) struct Room<'a> {
    pub(super) tables: &'a ListTables,
    /// Most hot members.
    pub(super) hot: usize,
    /// Budget of resident lists, and the cost model.
    pub(super) residency: Option<(ResidencyBudget, VisitCostModel)>,
    /// Members whose vectors are here: of a server of a partition, a part.
    pub(super) members: u64,
    /// The lists that are resident now.
    pub(super) lists: Option<&'a ResidentLists>,
}

impl Room<'_> {
    fn choice(&self, visits: &[u32]) -> Choice {
        let Some(((budget, model), lists)) = self.residency.zip(self.lists) else { return Choice::default() };
        lists.choice(self.tables, budget, &CostModel { model: &model, visits })
    }
}

impl HotRoom for Room<'_> {
    fn members(&self) -> u64 {
        self.members
    }

    fn capacity(&self) -> usize {
        self.hot
    }

    fn holds(&self, member: u32) -> bool {
        self.tables.holds_record(member)
    }

    fn resident(&self) -> Vec<u32> {
        self.choice(&[]).resident
    }

    fn would_be_resident(&self, visits: &[u32]) -> Vec<u32> {
        self.choice(visits).wanted
    }
}

/// Members whose vectors are here. Those of a cluster are on the same servers.
pub(super) fn held_members(tables: &ListTables) -> u64 {
    let of_clusters = tables.directory.ids.windows(2);
    let held = of_clusters.filter(|range| range[0] < range[1] && tables.holds_record(range[0]));
    held.map(|range| u64::from(range[1] - range[0])).sum()
}

/// The hot set of what was learned before.
pub(super) fn learned(snapshot: &Snapshot) -> HotSet {
    HotSet { members: snapshot.ids.clone(), clusters: Vec::new() }
}
