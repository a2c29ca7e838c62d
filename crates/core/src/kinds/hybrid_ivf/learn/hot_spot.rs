//! Whether traffic has a hot spot that is worth learning.
//!
//! What learning keeps in RAM is a hot set: the members that were results most often, and the lists that were visited
//! most. It is worth something to other queries than those that it was chosen from, so it is held against others: the
//! set of the first half of a window against the second half says whether the window has a hot spot; the set of the
//! window two before against this one, whether what was learned then has paid, since it is used as late as that.
//!
//! The measure is the excess over chance: of the results that as many members chosen by chance would miss, the share
//! that the hot set holds, less what so few queries may show by chance. It is near 0 for traffic without a hot spot,
//! whatever the room, and near 1 where all lies in it. Of lists it is the excess over those that are resident already:
//! visits differ with the places of lists, too, and that is learned once.

use alloc::vec::Vec;

use stratann_kernel::sqrt;

use super::traffic::{Half, Traffic};

/// Least excess over chance of traffic that is worth learning: traffic without a hot spot stays below a third of it
/// (decision 93).
pub const EXCESS_MIN: f64 = 1.0 / 16.0;

/// Windows with a hot spot that no window before foresaw, after which hot spots are learned no more until one would
/// have paid. A hot spot that comes and stays is foreseen by the third.
pub const MISSES_MAX: u32 = 3;

/// Room for a hot set.
pub trait HotRoom {
    /// Members that can be in a hot set here.
    fn members(&self) -> u64;

    /// Most members of a hot set.
    fn capacity(&self) -> usize;

    /// Whether a member can be in a hot set here.
    fn holds(&self, member: u32) -> bool;

    /// Clusters that are resident now, ascending. None where there is room for all, or for none.
    fn resident(&self) -> Vec<u32>;

    /// Clusters that would be resident after such visits of each, ascending. None where there is room for all, or for
    /// none.
    fn would_be_resident(&self, visits: &[u32]) -> Vec<u32>;
}

/// Members and clusters that some queries would have made resident. Both ascend.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HotSet {
    /// Members.
    pub members: Vec<u32>,
    /// Clusters.
    pub clusters: Vec<u32>,
}

impl HotSet {
    fn of(parts: &[&Half], room: &impl HotRoom) -> HotSet {
        HotSet {
            members: most_frequent(parts, room),
            clusters: room.would_be_resident(&Half::visits_of(parts)),
        }
    }

    /// Excess over chance in these parts of a window; of clusters, over the resident ones.
    fn excess(&self, parts: &[&Half], resident: &[u32], room: &impl HotRoom) -> f64 {
        let results = parts.iter().flat_map(|part| &part.results).filter(|&&id| room.holds(id));
        let (mut all, mut held) = (0u64, 0u64);
        for id in results {
            all += 1;
            held += u64::from(self.members.binary_search(id).is_ok());
        }
        let queries: f64 = parts.iter().map(|part| f64::from(part.queries)).sum();
        let chance = self.members.len() as f64 / room.members().max(1) as f64;
        // A server of a partition has a part of the results: as if of fewer queries.
        let found: u64 = parts.iter().map(|part| part.results.len() as u64).sum();
        let of_members = over_chance(share(held, all), chance, queries * share(all, found));
        let visits = Half::visits_of(parts);
        let total = visits.iter().copied().map(u64::from).sum();
        let visited = |clusters: &[u32]| {
            clusters.iter().filter_map(|&c| visits.get(c as usize)).copied().map(u64::from).sum::<u64>()
        };
        let of_lists =
            over_chance(share(visited(&self.clusters), total), share(visited(resident), total), queries);
        of_members.max(of_lists)
    }
}

fn share(part: u64, whole: u64) -> f64 {
    part as f64 / whole.max(1) as f64
}

/// Results of a query come together, so queries are what is drawn: the share that so many show has a standard deviation
/// of half of 1 / √queries at most, and two of these are taken off.
fn over_chance(share: f64, chance: f64, queries: f64) -> f64 {
    let missed = 1.0 - chance;
    let excess = share - chance - 1.0 / f64::from(sqrt(queries.max(1.0) as f32));
    if missed > 0.0 { (excess / missed).max(0.0) } else { 0.0 }
}

/// The most frequent results, as many as there is room for, ascending.
fn most_frequent(parts: &[&Half], room: &impl HotRoom) -> Vec<u32> {
    let results = parts.iter().flat_map(|part| &part.results).copied();
    let mut results: Vec<u32> = results.filter(|&id| room.holds(id)).collect();
    results.sort_unstable();
    let mut counted: Vec<(u32, u32)> = results
        .chunk_by(|a, b| a == b)
        .filter_map(|same| same.first().map(|&id| (same.len() as u32, id)))
        .collect();
    counted.sort_unstable_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(&b.1)));
    counted.truncate(room.capacity());
    let mut members: Vec<u32> = counted.into_iter().map(|(_, id)| id).collect();
    members.sort_unstable();
    members
}

/// Finding about one window.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Finding {
    /// Excess over chance of the first half's hot set in the second half.
    pub spot: f64,
    /// Excess over chance of the hot set of the window two before.
    pub paid: f64,
    /// Whether the window is worth learning from.
    pub is_worth: bool,
}

/// Watches windows of traffic, in their order.
#[derive(Clone, Debug, Default)]
pub struct HotSpots {
    // Of the window two before, and of the one before.
    before: [HotSet; 2],
    misses: u32,
}

impl HotSpots {
    /// Begins where earlier traffic had this hot set.
    pub fn after(set: HotSet) -> HotSpots {
        HotSpots { before: [set.clone(), set], misses: 0 }
    }

    /// Takes in the next window.
    pub fn observe(&mut self, window: &Traffic, room: &impl HotRoom) -> Finding {
        let resident = room.resident();
        let [first, second] = &window.halves;
        let spot = HotSet::of(&[first], room).excess(&[second], &resident, room);
        let whole = [first, second];
        let paid = self.before[0].excess(&whole, &resident, room);
        self.before.swap(0, 1);
        self.before[1] = HotSet::of(&whole, room);
        let (is_hot, has_paid) = (spot >= EXCESS_MIN, paid >= EXCESS_MIN);
        match has_paid {
            true => self.misses = 0,
            false => self.misses += u32::from(is_hot && self.misses < MISSES_MAX),
        }
        Finding { spot, paid, is_worth: has_paid || is_hot && self.misses < MISSES_MAX }
    }
}

#[cfg(test)]
mod tests;
