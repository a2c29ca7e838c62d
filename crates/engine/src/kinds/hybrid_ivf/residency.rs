//! Which lists lie in RAM: their codes, and then their vectors, those first that save most for their bytes. On an index that learns they follow the queries
//! from epoch to epoch.

use std::collections::HashSet;
use std::sync::Arc;

use stratann_core::build::costs::{LocalIndex, VisitCostModel};
use stratann_core::format::directory::{Directory, LocalKind};

use crate::Result;
use crate::budget::Account;
use crate::kinds::hybrid_ivf::lists::{ClusterParts, ListReader, weights};

/// What a list in RAM takes besides its bytes: counts of who holds it, and the allocator's own.
pub(crate) const LIST_BYTES: usize = 32;
/// A cluster comes in for another when it saves so many times as much for its bytes: counts of visits vary by chance.
const WORTH_A_MOVE: f64 = 2.0;
/// Of what lies in RAM, one in so many bytes may go in one epoch: they stay unused until the next.
const STEP: u64 = 8;

/// A part of each of some lists.
#[derive(Clone, Default)]
struct Kept {
    lists: Vec<Option<Arc<[u8]>>>,
    bytes: u64,
}

impl Kept {
    fn memory_bytes(&self) -> u64 {
        self.bytes + table_bytes(self.lists.len())
    }

    /// Takes in a list.
    fn bring(&mut self, part: Part, reader: &mut ListReader<'_>, list: u32) -> Result<()> {
        if self.lists.is_empty() {
            self.lists = vec![None; reader.parts().directory.list_count() as usize];
        }
        let bytes = match part {
            Part::Heads => reader.head(list)?,
            Part::Records => reader.records(list)?,
        };
        self.bytes += (bytes.len() + LIST_BYTES) as u64;
        self.lists[list as usize] = Some(Arc::from(bytes));
        Ok(())
    }

    fn has(&self, parts: &ClusterParts, cluster: u32) -> bool {
        let mut lists = parts.directory.lists_of(cluster);
        lists.all(|l| self.lists.get(l as usize).is_some_and(Option::is_some))
    }
}

/// Bytes of the table of one part of so many lists.
pub(crate) fn table_bytes(lists: usize) -> u64 {
    (lists * size_of::<Option<Arc<[u8]>>>()) as u64
}

/// Bytes that lists in RAM may take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Room {
    /// By their codes.
    pub(crate) heads: u64,
    /// By their vectors, less what their codes take.
    pub(crate) records: u64,
}

/// What lies in RAM of the lists. Never changed: the next one shares what stays.
#[derive(Clone, Default)]
pub(crate) struct Residency {
    heads: Kept,
    records: Kept,
}

/// What is known of how much a cluster in RAM is worth.
pub(crate) struct Worth<'a> {
    pub(crate) model: &'a VisitCostModel,
    /// Of each cluster; empty, or all 0, when none were counted.
    pub(crate) visits: &'a [u32],
}

/// The two parts of a list.
#[derive(Clone, Copy)]
enum Part {
    Heads,
    Records,
}

impl Residency {
    pub(crate) fn heads(&self) -> &[Option<Arc<[u8]>>] {
        &self.heads.lists
    }

    pub(crate) fn records(&self) -> &[Option<Arc<[u8]>>] {
        &self.records.lists
    }

    /// Of the lists, those whose codes need not be read.
    pub(crate) fn share_of(&self, directory: &Directory) -> f64 {
        let held = self.heads.lists.iter().flatten().count();
        held as f64 / f64::from(directory.list_count().max(1))
    }

    /// Adds what lies in RAM.
    pub(crate) fn account(&self, account: &mut Account) {
        account.add("codes in RAM", self.heads.memory_bytes());
        account.add("vectors in RAM", self.records.memory_bytes());
    }

    /// Brings codes into RAM as long as they fit, and then, in the same order, vectors.
    ///
    /// # Errors
    /// A list that cannot be read, or whose codes are damaged.
    pub(crate) fn load(reader: &mut ListReader<'_>, room: Room, worth: &Worth<'_>) -> Result<Residency> {
        let parts = reader.parts();
        let order = order(&parts.savings(worth));
        let mut residency = Residency::default();
        for part in [Part::Heads, Part::Records] {
            let chosen = parts.choose(part, &order, residency.budget_of(part, room));
            let kept = residency.part_mut(part);
            // In the order of the file.
            for list in lists_of(parts, &chosen) {
                kept.bring(part, reader, list)?;
            }
        }
        Ok(residency)
    }

    /// The next one: clusters that are worth much less than some on disk go; those come in for which there was room already, as what goes lies in RAM until
    /// the last query of this version has ended. So both versions together never take more than `room`.
    pub(crate) fn follow(&self, reader: &mut ListReader<'_>, room: Room, worth: &Worth<'_>) -> Residency {
        let parts = reader.parts();
        let savings = parts.savings(worth);
        let mut next = self.clone();
        let mut gone = 0;
        for part in [Part::Heads, Part::Records] {
            let old = self.part(part);
            let favoured = |(c, &s): (u32, &f64)| if old.has(parts, c) { WORTH_A_MOVE * s } else { s };
            let order = order(&(0..).zip(&savings).map(favoured).collect::<Vec<_>>());
            let budget = next.budget_of(part, room).saturating_sub(gone);
            let wanted = parts.choose(part, &order, budget);
            let waiting = next.take_in(part, reader, &wanted, budget);
            let wanted: HashSet<u32> = wanted.into_iter().collect();
            let coldest = order.iter().rev().copied().filter(|&c| !wanted.contains(&c) && old.has(parts, c));
            let most = waiting.min(old.bytes / STEP);
            let before = gone;
            for cluster in coldest {
                let bytes = parts.part_bytes(part, cluster);
                if waiting == 0 || gone > before && gone - before + bytes > most {
                    break;
                }
                gone += bytes;
                next.drop_cluster(parts, part, cluster);
            }
        }
        next
    }

    /// Brings in what is wanted and fits in what `budget` leaves. Returns the bytes of what has to wait.
    fn take_in(&mut self, part: Part, reader: &mut ListReader<'_>, wanted: &[u32], budget: u64) -> u64 {
        let parts = reader.parts();
        let own = self.part(part);
        let table = if own.lists.is_empty() { table_bytes(parts.directory.list_count() as usize) } else { 0 };
        let mut left = budget.saturating_sub(own.memory_bytes() + table);
        let mut waiting = 0;
        for &cluster in wanted {
            if self.part(part).has(parts, cluster) {
                continue;
            }
            let bytes = parts.part_bytes(part, cluster);
            if bytes <= left && self.bring_cluster(part, reader, cluster) {
                left -= bytes;
            } else {
                waiting += bytes;
            }
        }
        waiting
    }

    fn part(&self, part: Part) -> &Kept {
        match part {
            Part::Heads => &self.heads,
            Part::Records => &self.records,
        }
    }

    fn part_mut(&mut self, part: Part) -> &mut Kept {
        match part {
            Part::Heads => &mut self.heads,
            Part::Records => &mut self.records,
        }
    }

    fn budget_of(&self, part: Part, room: Room) -> u64 {
        match part {
            Part::Heads => room.heads,
            Part::Records => room.records.saturating_sub(self.heads.memory_bytes()),
        }
    }

    /// Whether all of the cluster came. One that cannot be read stays on disk, where searches tell of it.
    fn bring_cluster(&mut self, part: Part, reader: &mut ListReader<'_>, cluster: u32) -> bool {
        let parts = reader.parts();
        let kept = self.part_mut(part);
        let all = parts.directory.lists_of(cluster).all(|list| kept.bring(part, reader, list).is_ok());
        if !all {
            self.drop_cluster(parts, part, cluster);
        }
        all
    }

    fn drop_cluster(&mut self, parts: &ClusterParts, part: Part, cluster: u32) {
        let kept = self.part_mut(part);
        for list in parts.directory.lists_of(cluster) {
            if let Some(bytes) = kept.lists.get_mut(list as usize).and_then(Option::take) {
                kept.bytes -= (bytes.len() + LIST_BYTES) as u64;
            }
        }
    }
}

impl ClusterParts {
    /// What keeping each cluster in RAM saves, a visit, over its bytes there; by the model that the plan was made by.
    fn savings(&self, worth: &Worth<'_>) -> Vec<f64> {
        let clusters = 0..self.directory.clusters();
        let members =
            |c: u32| self.directory.lists_of(c).map(|l| u64::from(self.directory.members(l))).sum::<u64>();
        let weights = weights(clusters.clone().map(members), worth.visits).0;
        let density = |c: u32| {
            let (kind, members) = (self.directory.kinds[c as usize], members(c));
            // A graph of codes on disk is scanned.
            let on_disk = if kind == LocalKind::Graph { LocalKind::Flat } else { kind };
            let cost = |kind, in_ram| worth.model.visit_us(LocalIndex { kind, in_ram }, members);
            let saved = (cost(on_disk, false) - cost(kind, true)).max(0.0);
            weights[c as usize] * saved / self.part_bytes(Part::Heads, c).max(1) as f64
        };
        clusters.map(density).collect()
    }

    /// Room for the codes of all clusters.
    pub(crate) fn all_codes_bytes(&self) -> u64 {
        let clusters = 0..self.directory.clusters();
        let codes: u64 = clusters.map(|c| self.part_bytes(Part::Heads, c)).sum();
        codes + table_bytes(self.directory.list_count() as usize)
    }

    /// The first clusters that fit.
    fn choose(&self, part: Part, order: &[u32], budget_bytes: u64) -> Vec<u32> {
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
        order.iter().copied().filter(fits).collect()
    }

    fn part_bytes(&self, part: Part, cluster: u32) -> u64 {
        let of_list = |l: u32| {
            let members = self.directory.members(l) as usize;
            let bytes = match part {
                Part::Heads => self.shape.list_codes_bytes(members),
                Part::Records => members * self.shape.record_bytes(),
            };
            (bytes + LIST_BYTES) as u64
        };
        self.directory.lists_of(cluster).map(of_list).sum()
    }
}

/// The clusters, those first that save most.
fn order(savings: &[f64]) -> Vec<u32> {
    let mut order: Vec<u32> = (0..savings.len() as u32).collect();
    order.sort_by(|&a, &b| savings[b as usize].total_cmp(&savings[a as usize]).then(a.cmp(&b)));
    order
}

fn lists_of(parts: &ClusterParts, clusters: &[u32]) -> Vec<u32> {
    let mut lists: Vec<u32> = clusters.iter().flat_map(|&c| parts.directory.lists_of(c)).collect();
    lists.sort_unstable();
    lists
}
