//! Search of a sub-HNSW where it lies, with exact distances.

use alloc::vec::Vec;

use stratann_kernel::distance::Exact;
use stratann_kernel::prefetch;

use crate::format::hnsw::SubHnsw;
use crate::order::{from_order_key, order_key};

/// Reusable memory of searches; one for each thread is enough.
#[derive(Clone, Debug, Default)]
pub(crate) struct HnswScratch {
    /// The nearest candidates, ascending: see [`entry`].
    beam: Vec<u64>,
    /// Entries of it that are not deleted.
    live: usize,
    /// A bit for each member.
    visited: Vec<u64>,
    ids: Vec<u32>,
    distances: Vec<f32>,
}

/// Cost of a search.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct HnswCost {
    /// Distances computed.
    pub(crate) comparisons: u64,
    /// Nodes whose neighbours were followed.
    pub(crate) expanded: u64,
    /// Visited members that are deleted.
    pub(crate) dead: u64,
    /// Members that were visited: all that were compared, and deleted ones that a scan passes over.
    pub(crate) visited: u64,
    /// Whether it has ended before its results were sure, because it has cost as much as a scan.
    pub(crate) gave_way: bool,
}

/// Bounds of a search.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Walk {
    /// Length of the beam.
    pub(crate) ef: usize,
    /// A member that no path leads over, unless the search begins at it.
    pub(crate) absent: Option<u32>,
    /// Distances after which it gives way to a scan.
    pub(crate) comparisons_max: u64,
}

impl Walk {
    /// A search by a beam of this length alone.
    pub(crate) fn new(ef: usize) -> Walk {
        Walk { ef, absent: None, comparisons_max: u64::MAX }
    }
}

/// What a distance costs beside the bytes of its vector, in bytes: of a scan the choice of the nearest, of a search the
/// beam, visited members and neighbours.
const SCAN_BYTES: u64 = 512;
/// See [`SCAN_BYTES`].
const WALK_BYTES: u64 = 2048;
/// Members that a search compares: so many for each member of its beam, and for each neighbour on an upper layer.
const WALKED_OF_BEAM: u64 = 8;
/// See [`WALKED_OF_BEAM`].
const WALKED_OF_NEIGHBOUR: u64 = 6;

/// Whether [`HnswScratch::nearest`] of all members takes less time than [`HnswScratch::search`] with a beam of `ef`.
pub(crate) fn is_scan_faster(own: &SubHnsw<'_>, ef: usize) -> bool {
    is_match_scan_faster(own, own.members(), ef)
}

/// As [`is_scan_faster`], where so many members may be results.
pub(crate) fn is_match_scan_faster(own: &SubHnsw<'_>, matches: u32, ef: usize) -> bool {
    let shape = (own.vector_bytes() as u64, own.m().into());
    let (scan, walk) = prices((matches.into(), own.members().into()), shape, ef as u64);
    scan < walk
}

/// As [`is_scan_faster`], of so many vectors of so many bytes each, with M neighbours on upper layers.
pub(crate) fn is_scanned(members: u64, shape: (u64, u64), ef: u64) -> bool {
    let (scan, walk) = prices((members, members), shape, ef);
    scan < walk
}

/// What a scan of `matches` of so many members costs, and a search for `ef` of them, in bytes. It passes over the
/// others, so its beam is longer by members over matches.
pub(crate) fn prices((matches, members): (u64, u64), (vector_bytes, m): (u64, u64), ef: u64) -> (u64, u64) {
    let beam = WALKED_OF_BEAM.saturating_mul(ef).saturating_mul(members).div_ceil(matches.max(1));
    let walked = beam.saturating_add(WALKED_OF_NEIGHBOUR * m).min(members);
    let times = |count: u64, bytes: u64| count.saturating_mul(bytes.saturating_add(vector_bytes));
    (times(matches, SCAN_BYTES), times(walked, WALK_BYTES))
}

/// Distances of a search that cost as much as a scan of so many members.
pub(crate) fn comparisons_of_scan(own: &SubHnsw<'_>, matches: u32) -> u64 {
    let vector_bytes = own.vector_bytes() as u64;
    (u64::from(matches) * (SCAN_BYTES + vector_bytes)).div_ceil(WALK_BYTES + vector_bytes)
}

/// A candidate as a number that has its order: distance, member, and in the lowest bits whether it is deleted, and
/// whether it is expanded.
fn entry(distance: f32, member: u32, is_dead: bool) -> u64 {
    // Both zeros are equally near.
    u64::from(order_key(distance + 0.0)) << 32 | u64::from(member) << 2 | if is_dead { DEAD } else { 0 }
}

const EXPANDED: u64 = 1;
const DEAD: u64 = 2;

/// Distance and member of an entry.
fn candidate(entry: u64) -> (f32, u32) {
    (from_order_key((entry >> 32) as u32), entry as u32 >> 2)
}

/// Whether an entry is no deleted member.
fn is_live(entry: u64) -> bool {
    entry & DEAD == 0
}

impl HnswScratch {
    /// The `ef` nearest members that a beam of that length finds, ascending by distance. Members that may be no
    /// results, because they are deleted or do not match a filter, are walked through and take no place in the beam: it
    /// is as much longer as there are more members than results near the query.
    pub(crate) fn search(
        &mut self,
        own: &SubHnsw<'_>,
        exact: &Exact,
        Walk { ef, absent, comparisons_max }: Walk,
        is_dead: impl Fn(u32) -> bool,
    ) -> (HnswCost, impl Iterator<Item = (f32, u32)> + '_) {
        let mut cost = HnswCost::default();
        let from = self.descend(own, exact, absent, &mut cost);
        self.visited.clear();
        self.visited.resize(own.members().div_ceil(64) as usize, 0);
        self.beam.clear();
        self.live = 0;
        if let Some(absent) = absent.filter(|&absent| from.is_none_or(|from| from.1 != absent)) {
            self.visit(absent);
        }
        if let Some((distance, member)) = from.filter(|&(_, member)| self.visit(member)) {
            self.offer(distance, (member, ef), &is_dead, &mut cost);
        }
        let mut at = 0;
        while let Some(next) = self.beam.get_mut(at) {
            if *next & EXPANDED != 0 {
                at += 1;
                continue;
            }
            if cost.comparisons >= comparisons_max {
                cost.gave_way = true;
                break;
            }
            *next |= EXPANDED;
            let member = candidate(*next).1;
            cost.expanded += 1;
            at = (at + 1).min(self.expand(own, exact, (member, ef), (&is_dead, &mut cost)));
        }
        if cost.dead > 0 && self.live < ef && !cost.gave_way {
            self.take_rest(own, exact, ef, (&is_dead, &mut cost));
        }
        cost.visited = cost.comparisons;
        (cost, self.beam.iter().copied().filter(|&entry| is_live(entry)).map(candidate))
    }

    /// Compares the members that no path has led to: where few are left, none may be missed.
    fn take_rest(
        &mut self,
        own: &SubHnsw<'_>,
        exact: &Exact,
        ef: usize,
        (is_dead, cost): (&impl Fn(u32) -> bool, &mut HnswCost),
    ) {
        for member in 0..own.members() {
            if self.visit(member) && !is_dead(member) {
                cost.comparisons += 1;
                let distance = exact.distance(own.vector(member), own.inverse_norm(member));
                self.offer(distance, (member, ef), is_dead, cost);
            }
        }
    }

    /// The `wanted` nearest of all members that are not deleted, ascending by distance: every one is compared.
    pub(crate) fn nearest(
        &mut self,
        own: &SubHnsw<'_>,
        exact: &Exact,
        wanted: usize,
        is_dead: impl Fn(u32) -> bool,
    ) -> (HnswCost, impl Iterator<Item = (f32, u32)> + '_) {
        self.ids.clear();
        self.ids.extend((0..own.members()).filter(|&member| !is_dead(member)));
        exact.distances_of(own.vectors(), &self.ids, |member| own.inverse_norm(member), &mut self.distances);
        let comparisons = self.ids.len() as u64;
        self.beam.clear();
        let entries = self.ids.iter().zip(&self.distances).map(|(&id, &distance)| entry(distance, id, false));
        self.beam.extend(entries);
        if let Some(last) = wanted.checked_sub(1).filter(|_| wanted < self.beam.len()) {
            self.beam.select_nth_unstable(last);
        }
        self.beam.truncate(wanted);
        self.beam.sort_unstable();
        let visited = u64::from(own.members());
        let cost = HnswCost { comparisons, dead: visited - comparisons, visited, ..HnswCost::default() };
        (cost, self.beam.iter().map(|&entry| candidate(entry)))
    }

    /// Puts neighbours of a member into the beam. Returns the first place that changed.
    fn expand(
        &mut self,
        own: &SubHnsw<'_>,
        exact: &Exact,
        (member, ef): (u32, usize),
        (is_dead, cost): (&impl Fn(u32) -> bool, &mut HnswCost),
    ) -> usize {
        let mut ids = core::mem::take(&mut self.ids);
        ids.clear();
        own.each_neighbour(member, |id| {
            if id < own.members() && self.visit(id) {
                ids.push(id);
            }
        });
        ids.iter().take(2).for_each(|&id| prefetch(own.vector(id)));
        exact.distances_of(own.vectors(), &ids, |member| own.inverse_norm(member), &mut self.distances);
        cost.comparisons += ids.len() as u64;
        let mut first = usize::MAX;
        for (at, &id) in ids.iter().enumerate() {
            first = first.min(self.offer(self.distances[at], (id, ef), is_dead, cost));
        }
        self.ids = ids;
        // What is nearest is expanded next.
        if let Some(&next) = self.beam.get(first) {
            prefetch(own.neighbour_bytes(candidate(next).1));
        }
        first
    }

    /// Offers a member to the beam, which ends with its `ef`-th live member once it has so many. Returns its place.
    #[inline]
    fn offer(
        &mut self,
        distance: f32,
        (member, ef): (u32, usize),
        is_dead: &impl Fn(u32) -> bool,
        cost: &mut HnswCost,
    ) -> usize {
        let is_dead = is_dead(member);
        cost.dead += u64::from(is_dead);
        let new = entry(distance, member, is_dead);
        let is_full = self.live >= ef;
        if is_full && self.beam.last().is_none_or(|&last| new >= last) {
            return usize::MAX;
        }
        if is_full && !is_dead {
            self.beam.pop();
            self.live -= 1;
        }
        let place = self.beam.partition_point(|&other| other < new);
        self.beam.insert(place, new);
        self.live += usize::from(!is_dead);
        while self.live >= ef && self.beam.last().is_some_and(|&last| !is_live(last)) {
            self.beam.pop();
        }
        place
    }

    /// Steps to nearer neighbours on the upper layers. The member where the bottom layer is entered.
    fn descend(
        &mut self,
        own: &SubHnsw<'_>,
        exact: &Exact,
        absent: Option<u32>,
        cost: &mut HnswCost,
    ) -> Option<(f32, u32)> {
        let mut slot = own.entry();
        let distance = |member: u32| exact.distance(own.vector(member), own.inverse_norm(member));
        let mut nearest: Option<(f32, u32)> = None;
        for layer in (1..=own.layers()).rev() {
            loop {
                let node = own.slot(layer, slot)?;
                let from = nearest.map_or_else(|| distance(node.member), |nearest| nearest.0);
                cost.comparisons += u64::from(nearest.is_none());
                let mut best = (from, slot, node.member);
                own.each_slot(&node, |other| {
                    let neighbour = own.slot(layer, other).filter(|node| Some(node.member) != absent);
                    let Some(neighbour) = neighbour else { return };
                    let distance = distance(neighbour.member);
                    cost.comparisons += 1;
                    if distance < best.0 {
                        best = (distance, other, neighbour.member);
                    }
                });
                nearest = Some((best.0, best.2));
                if best.1 == slot {
                    slot = node.below;
                    break;
                }
                slot = best.1;
            }
        }
        if own.layers() == 0 {
            cost.comparisons += 1;
            return Some((distance(slot), slot));
        }
        nearest
    }

    /// Whether a member was not met before, and exists.
    #[inline]
    fn visit(&mut self, member: u32) -> bool {
        let Some(word) = self.visited.get_mut(member as usize / 64) else { return false };
        let bit = 1 << (member % 64);
        let is_new = *word & bit == 0;
        *word |= bit;
        is_new
    }
}
