//! The residency policy: which list codes, and then which records, are resident. Those come first that save most for
//! their bytes. An index that learns rebalances them from epoch to epoch.

use std::collections::HashSet;
use std::sync::Arc;

use stratann_core::build::costs::{LocalIndex, VisitCostModel};
use stratann_core::format::directory::{Directory, LocalKind};
use stratann_storage::Result;
use stratann_storage::budget::Account;

use crate::kinds::hybrid_ivf::lists::ListReader;
use crate::kinds::hybrid_ivf::tables::ListTables;

/// Bytes of a resident list besides its own: reference counts, and the allocator's own.
pub(crate) const LIST_BYTES: usize = 32;
/// A cluster replaces a resident one when it saves so many times as much for its bytes: counts of visits vary by
/// chance.
const HYSTERESIS: f64 = 2.0;
/// One in so many resident bytes may be evicted in one epoch: they stay unused until the next.
const EVICTION_SHARE: u64 = 8;

/// One part of the resident lists.
#[derive(Clone, Default)]
struct ResidentPart {
    lists: Vec<Option<Arc<[u8]>>>,
    bytes: u64,
}

impl ResidentPart {
    fn memory_bytes(&self) -> u64 {
        self.bytes + table_bytes(self.lists.len())
    }

    /// Loads a list.
    fn load(&mut self, part: ListPart, reader: &mut ListReader<'_>, list: u32) -> Result<()> {
        if self.lists.is_empty() {
            self.lists = vec![None; reader.tables().directory.list_count() as usize];
        }
        let bytes = match part {
            ListPart::Codes => reader.codes(list)?,
            ListPart::Records => reader.records(list)?,
        };
        self.bytes += (bytes.len() + LIST_BYTES) as u64;
        self.lists[list as usize] = Some(Arc::from(bytes));
        Ok(())
    }

    fn has(&self, tables: &ListTables, cluster: u32) -> bool {
        let mut lists = tables.directory.lists_of(cluster);
        lists.all(|l| self.lists.get(l as usize).is_some_and(Option::is_some))
    }
}

/// Bytes of the table of one part of so many lists.
pub(crate) fn table_bytes(lists: usize) -> u64 {
    (lists * size_of::<Option<Arc<[u8]>>>()) as u64
}

/// Bytes that resident lists may take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ResidencyBudget {
    /// For list codes.
    pub(crate) codes_bytes: u64,
    /// For records, less what list codes take.
    pub(crate) records_bytes: u64,
}

/// The resident lists. Never changed: the next version shares what stays.
#[derive(Clone, Default)]
pub(crate) struct ResidentLists {
    codes: ResidentPart,
    records: ResidentPart,
}

/// Savings of a resident cluster.
pub(crate) struct CostModel<'a> {
    pub(crate) model: &'a VisitCostModel,
    /// Visits of each cluster; empty, or all 0, when none were counted.
    pub(crate) visits: &'a [u32],
}

/// Clusters that are resident, and those that would be instead. Both ascend, and are empty where all are resident.
#[derive(Default)]
pub(crate) struct Choice {
    pub(crate) resident: Vec<u32>,
    pub(crate) wanted: Vec<u32>,
}

/// The two parts of a list.
#[derive(Clone, Copy)]
enum ListPart {
    Codes,
    Records,
}

impl ResidentLists {
    pub(crate) fn codes(&self) -> &[Option<Arc<[u8]>>] {
        &self.codes.lists
    }

    pub(crate) fn records(&self) -> &[Option<Arc<[u8]>>] {
        &self.records.lists
    }

    /// Share of the lists whose codes are resident.
    pub(crate) fn share_of(&self, directory: &Directory) -> f64 {
        let resident = self.codes.lists.iter().flatten().count();
        resident as f64 / f64::from(directory.list_count().max(1))
    }

    /// Adds its memory, by component.
    pub(crate) fn account(&self, account: &mut Account) {
        account.add("codes in RAM", self.codes.memory_bytes());
        account.add("vectors in RAM", self.records.memory_bytes());
    }

    /// Loads list codes as long as they fit, and then, in the same order, records.
    ///
    /// # Errors
    /// A list that cannot be read, or whose codes are damaged.
    pub(crate) fn load(
        reader: &mut ListReader<'_>,
        budget: ResidencyBudget,
        costs: &CostModel<'_>,
    ) -> Result<ResidentLists> {
        let tables = reader.tables();
        let order = order(&tables.savings(costs));
        let mut lists = ResidentLists::default();
        for part in [ListPart::Codes, ListPart::Records] {
            let chosen = tables.choose(part, &order, lists.budget_of(part, budget));
            let resident = lists.part_mut(part);
            // In the order of the file.
            for list in lists_of(tables, &chosen) {
                resident.load(part, reader, list)?;
            }
        }
        Ok(lists)
    }

    /// The next version: clusters that save much less than some on disk are evicted; others are loaded into memory
    /// that is free already, since what is evicted stays in RAM until the last query of this version has ended. So
    /// both versions together never exceed `budget`.
    pub(crate) fn rebalance(
        &self,
        reader: &mut ListReader<'_>,
        budget: ResidencyBudget,
        costs: &CostModel<'_>,
    ) -> ResidentLists {
        let tables = reader.tables();
        let mut next = self.clone();
        let mut evicted = 0;
        for part in [ListPart::Codes, ListPart::Records] {
            let old = self.part(part);
            let order = self.favoured(tables, part, costs);
            let part_budget = next.budget_of(part, budget).saturating_sub(evicted);
            let wanted = tables.choose(part, &order, part_budget);
            let waiting = next.load_wanted(part, reader, &wanted, part_budget);
            let wanted: HashSet<u32> = wanted.into_iter().collect();
            let coldest = order.iter().rev().copied().filter(|&c| !wanted.contains(&c) && old.has(tables, c));
            let most = waiting.min(old.bytes / EVICTION_SHARE);
            let before = evicted;
            for cluster in coldest {
                let bytes = tables.part_bytes(part, cluster);
                if waiting == 0 || evicted > before && evicted - before + bytes > most {
                    break;
                }
                evicted += bytes;
                next.evict(tables, part, cluster);
            }
        }
        next
    }

    /// What rebalances lead to, of codes, or of records where all codes are resident.
    pub(crate) fn choice(
        &self,
        tables: &ListTables,
        budget: ResidencyBudget,
        costs: &CostModel<'_>,
    ) -> Choice {
        let held = (0..tables.directory.clusters()).filter(|&c| tables.holds(c)).collect::<Vec<_>>();
        let has = |part| held.iter().copied().filter(|&c| self.part(part).has(tables, c)).collect::<Vec<_>>();
        let codes = has(ListPart::Codes);
        let (part, resident) = match codes.len() == held.len() {
            true => (ListPart::Records, has(ListPart::Records)),
            false => (ListPart::Codes, codes),
        };
        let mut wanted =
            tables.choose(part, &self.favoured(tables, part, costs), self.budget_of(part, budget));
        wanted.sort_unstable();
        match wanted.len() == held.len() {
            true => Choice::default(),
            false => Choice { resident, wanted },
        }
    }

    /// All clusters, those first that save most. Those that are resident come before others that save little more.
    fn favoured(&self, tables: &ListTables, part: ListPart, costs: &CostModel<'_>) -> Vec<u32> {
        let savings = tables.savings(costs);
        let own = self.part(part);
        let favoured = |(c, &s): (u32, &f64)| if own.has(tables, c) { HYSTERESIS * s } else { s };
        order(&(0..).zip(&savings).map(favoured).collect::<Vec<_>>())
    }

    /// Loads wanted clusters that fit in what `budget` leaves. Returns the bytes of those that do not.
    fn load_wanted(
        &mut self,
        part: ListPart,
        reader: &mut ListReader<'_>,
        wanted: &[u32],
        budget: u64,
    ) -> u64 {
        let tables = reader.tables();
        let own = self.part(part);
        let table =
            if own.lists.is_empty() { table_bytes(tables.directory.list_count() as usize) } else { 0 };
        let mut left = budget.saturating_sub(own.memory_bytes() + table);
        let mut waiting = 0;
        for &cluster in wanted {
            if self.part(part).has(tables, cluster) {
                continue;
            }
            let bytes = tables.part_bytes(part, cluster);
            if bytes <= left && self.load_cluster(part, reader, cluster) {
                left -= bytes;
            } else {
                waiting += bytes;
            }
        }
        waiting
    }

    fn part(&self, part: ListPart) -> &ResidentPart {
        match part {
            ListPart::Codes => &self.codes,
            ListPart::Records => &self.records,
        }
    }

    fn part_mut(&mut self, part: ListPart) -> &mut ResidentPart {
        match part {
            ListPart::Codes => &mut self.codes,
            ListPart::Records => &mut self.records,
        }
    }

    fn budget_of(&self, part: ListPart, budget: ResidencyBudget) -> u64 {
        match part {
            ListPart::Codes => budget.codes_bytes,
            ListPart::Records => budget.records_bytes.saturating_sub(self.codes.memory_bytes()),
        }
    }

    /// Loads a cluster; returns whether all of it could be read. One that cannot stays on disk, where searches report
    /// it.
    fn load_cluster(&mut self, part: ListPart, reader: &mut ListReader<'_>, cluster: u32) -> bool {
        let tables = reader.tables();
        let resident = self.part_mut(part);
        let all = tables.directory.lists_of(cluster).all(|list| resident.load(part, reader, list).is_ok());
        if !all {
            self.evict(tables, part, cluster);
        }
        all
    }

    fn evict(&mut self, tables: &ListTables, part: ListPart, cluster: u32) {
        let resident = self.part_mut(part);
        for list in tables.directory.lists_of(cluster) {
            if let Some(bytes) = resident.lists.get_mut(list as usize).and_then(Option::take) {
                resident.bytes -= (bytes.len() + LIST_BYTES) as u64;
            }
        }
    }
}

impl ListTables {
    /// Savings of a resident cluster, a visit, over its bytes; by the model that the plan was made by.
    fn savings(&self, costs: &CostModel<'_>) -> Vec<f64> {
        let clusters = 0..self.directory.clusters();
        let members =
            |c: u32| self.directory.lists_of(c).map(|l| u64::from(self.directory.members(l))).sum::<u64>();
        let weights = weights(clusters.clone().map(members), costs.visits).0;
        let density = |c: u32| {
            // The codes of a graph are read as a whole, like those of a flat cluster; the search is the same.
            let kind = match self.directory.kinds[c as usize] {
                LocalKind::Graph => LocalKind::Flat,
                kind => kind,
            };
            let members = members(c);
            let cost = |in_ram| costs.model.visit_us(LocalIndex { kind, in_ram }, members);
            let saved = (cost(false) - cost(true)).max(0.0);
            weights[c as usize] * saved / self.part_bytes(ListPart::Codes, c).max(1) as f64
        };
        clusters.map(density).collect()
    }

    /// The codes of the largest graph that have to be read before it is searched.
    pub(crate) fn local_codes_bytes(&self, resident: &ResidentLists) -> u64 {
        let graphs = (0..self.directory.clusters()).filter(|&c| self.directory.has_edges(c) && self.holds(c));
        let on_disk = graphs.filter(|&c| !resident.codes.has(self, c));
        on_disk.map(|c| self.part_bytes(ListPart::Codes, c)).max().unwrap_or(0)
    }

    /// Bytes of the codes of all clusters that the file has.
    pub(crate) fn all_codes_bytes(&self) -> u64 {
        let clusters = (0..self.directory.clusters()).filter(|&c| self.holds(c));
        let codes: u64 = clusters.map(|c| self.part_bytes(ListPart::Codes, c)).sum();
        codes + table_bytes(self.directory.list_count() as usize)
    }

    /// The first clusters that fit, of those that the file has.
    fn choose(&self, part: ListPart, order: &[u32], budget_bytes: u64) -> Vec<u32> {
        let Some(mut left) = budget_bytes.checked_sub(table_bytes(self.directory.list_count() as usize))
        else {
            return Vec::new();
        };
        let fits = |&cluster: &u32| {
            let bytes = self.part_bytes(part, cluster);
            let fits = bytes <= left;
            left -= if fits { bytes } else { 0 };
            fits
        };
        order.iter().copied().filter(|&c| self.holds(c)).filter(fits).collect()
    }

    fn part_bytes(&self, part: ListPart, cluster: u32) -> u64 {
        let of_list = |l: u32| {
            let members = self.directory.members(l) as usize;
            let bytes = match part {
                ListPart::Codes => self.shape.list_codes_bytes(members),
                ListPart::Records => members * self.shape.record_bytes(),
            };
            (bytes + LIST_BYTES) as u64
        };
        self.directory.lists_of(cluster).map(of_list).sum()
    }
}

/// Frequencies of visits to clusters with so many members each, relative to each other; and whether `visits` say so.
pub(crate) fn weights(members: impl Iterator<Item = u64>, visits: &[u32]) -> (Vec<f64>, bool) {
    let observed = visits.iter().any(|&v| v > 0);
    let members: Vec<u64> = members.collect();
    let mean = members.iter().sum::<u64>() as f64 / members.len().max(1) as f64;
    // Queries come where vectors are, as long as nothing else is known; afterwards that counts as much as one visit.
    let weight = |(cluster, members): (usize, u64)| match visits.get(cluster) {
        Some(&v) if observed => f64::from(v) + members as f64 / mean.max(1.0),
        _ => members as f64,
    };
    (members.into_iter().enumerate().map(weight).collect(), observed)
}

/// The clusters, those first that save most.
fn order(savings: &[f64]) -> Vec<u32> {
    let mut order: Vec<u32> = (0..savings.len() as u32).collect();
    order.sort_by(|&a, &b| savings[b as usize].total_cmp(&savings[a as usize]).then(a.cmp(&b)));
    order
}

fn lists_of(tables: &ListTables, clusters: &[u32]) -> Vec<u32> {
    let mut lists: Vec<u32> = clusters.iter().flat_map(|&c| tables.directory.lists_of(c)).collect();
    lists.sort_unstable();
    lists
}
