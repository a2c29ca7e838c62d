//! Scans lists, group of components by group of components (HARMONY §4.3, algorithm 1).
//!
//! The threshold is the distance of the k-th best of all finished vectors: each is a vector of a probed list, with all
//! of its components. Sums of l2 and of cosine, as the squared distance of unit vectors, only grow. A sum of products
//! may still fall, by at most the product of both norms in each group that is missing (Cauchy–Schwarz).

use alloc::vec::Vec;
use core::ops::Range;

use stratann_kernel::columns::{
    Group, LANES, Sums, Term, add_columns, add_columns_of, add_rows_of, count_within, keep_within,
};
use stratann_kernel::{DType, Metric, prefetch};

use super::codes::CodedQuery;
use super::fine::{coarse_below, slack};
use super::sums::{self, TurnedQuery, factors, has_factors, term};
use super::trace::{ScannedList, Trace};
use super::{Axes, GridIvf, Scratch, View};
use crate::format::grid::{GridLayout, List, PILOT_GROUP};
use crate::kinds::kind::StepContext;
use crate::search::Query;
use crate::sieve::Sieve;

/// Below this share of a block its vectors go on one by one: a block's cost is that of all its lanes.
const FEW: usize = 8;
/// Most groups of a slice that are visited in an order of their own.
const ORDERED_MAX: usize = 256;
/// Bytes of what is compared next that are fetched meanwhile: the rest of a long run follows by itself.
const AHEAD: usize = 1024;
/// Groups of which the components of single vectors are fetched ahead: each is a line of its own.
const GROUPS_AHEAD: usize = 4;

/// Sums that only grow never fall.
const NOTHING: Sums = [0.0; LANES];

/// Makes room for what a scan keeps.
pub(super) fn begin(cx: &mut StepContext<'_, GridIvf>) {
    if cx.base.metric == Metric::Ip {
        // What the query before has left may be no number.
        cx.scratch.rests.clear();
        cx.scratch.rests.resize(cx.view.layout.groups() + 1, NOTHING);
    }
    if let Some(trace) = &mut cx.scratch.trace {
        trace.after_group.resize(cx.view.layout.groups(), 0);
    }
}

/// Scans one list that is here and not divided. `prewarmed` of its members were scored before. Where the threshold does
/// not fall, `first_limit` is the largest sum.
pub(super) fn scan_list(
    cx: &mut StepContext<'_, GridIvf>,
    (distance, number): (f32, u32),
    prewarmed: usize,
    first_limit: f64,
) -> Option<()> {
    let list = cx.view.list(number)?;
    let members = list.members() as u32;
    let (pruned, is_bounded) = (cx.q.stats.pruned, cx.q.is_limit_smaller());
    let mut scanner = Scanner::new(cx, number, list, first_limit, (true, true));
    let (finished, components) = (scanner.q.stats.full_comparisons, scanner.q.stats.components);
    if scanner.q.stats.lists == 0 {
        scanner.bound_by_codes();
    }
    scanner.blocks(prewarmed);
    let stats = &scanner.q.stats;
    let bounded = if is_bounded { stats.pruned - pruned } else { 0 };
    let scanned = ScannedList {
        list: number,
        centroid_distance: distance,
        members,
        finished: (stats.full_comparisons - finished) as u32,
        components: stats.components - components,
    };
    if let Some(trace) = &mut cx.scratch.trace {
        trace.lists.push(scanned);
    }
    cx.q.stats.bounded += bounded;
    count_list(cx, number);
    Some(())
}

/// Counts a list that was scanned.
pub(super) fn count_list(cx: &mut StepContext<'_, GridIvf>, list: u32) {
    // The lists of a centroid count as one.
    let count = u64::from(list.is_multiple_of(cx.view.stripes.max(1)));
    cx.q.stats.lists += count;
    cx.q.stats.clusters += count;
    cx.q.stats.components_unpruned += (cx.view.members(list) * cx.base.dim) as u64;
}

/// Scores the first members of the nearest lists, whole, until there are k. Returns the number of these lists.
pub(super) fn prewarm(cx: &mut StepContext<'_, GridIvf>, ranked: &[(f32, u32)]) -> usize {
    for (rank, &(_, number)) in ranked.iter().enumerate() {
        // A bound is a threshold already.
        if cx.q.limit().is_some() {
            return rank;
        }
        let Some((list, members)) = cx.view.firsts(number) else { continue };
        // They are compared in all groups, and are left whatever their components.
        Scanner::new(cx, number, list, f64::INFINITY, (false, false)).prewarm(members);
    }
    ranked.len()
}

/// The largest sum, in units, of a vector that may be among the results.
pub(super) fn limit(q: &Query, layout: &GridLayout, scale: f32) -> f64 {
    sums::limit(q.limit(), layout, scale)
}

/// The scan of one list, or of a slice of it.
pub(super) struct Scanner<'s> {
    pub(super) q: &'s mut Query,
    view: &'s View<'s>,
    list: List<'s>,
    number: u32,
    first_id: u32,
    sieve: Option<&'s Sieve>,
    query: &'s [f32],
    norms: &'s [f32],
    pilot: &'s [f32],
    coded: &'s mut CodedQuery,
    // Whether codes are compared, where the list has them.
    uses_codes: bool,
    length: f32,
    scale: f32,
    // Sums, or products of norms, below this have too few digits.
    coarse_below: f64,
    rests: &'s mut [Sums],
    metric: Metric,
    // The largest sum of a vector that may be among the results.
    limit: f64,
    // Whether results lower it.
    is_fixed: bool,
    // A bit for each other slice that is still missing.
    missing: u64,
    // Whether other slices are scored elsewhere meanwhile. Their query counts the vectors then.
    is_part: bool,
    // The groups of this slice in the order of their visit, counted from its first one.
    order: [u8; ORDERED_MAX],
    trace: Option<&'s mut Trace>,
}

impl<'s> Scanner<'s> {
    /// Groups of components may be visited in an order of the list's own.
    pub(super) fn new(
        cx: &'s mut StepContext<'_, GridIvf>,
        number: u32,
        list: List<'s>,
        limit: f64,
        (is_traced, is_ordered): (bool, bool),
    ) -> Scanner<'s> {
        let Scratch { query, norms, pilot, coded, length, scale, rests, trace, .. } = &mut *cx.scratch;
        let uses_codes = list.has_codes() && cx.params.prune_code;
        // Of vectors that codes leave most are compared whole.
        let is_ordered = is_ordered && cx.base.metric != Metric::Ip && !uses_codes;
        let order = group_order(cx.view, number, &list, query, is_ordered);
        Scanner {
            q: cx.q,
            view: cx.view,
            uses_codes,
            list,
            number,
            first_id: cx.view.first[number as usize],
            sieve: cx.base.sieve,
            query,
            norms,
            pilot,
            coded,
            length: *length,
            scale: *scale,
            coarse_below: coarse_below(cx.view.layout),
            rests,
            metric: cx.base.metric,
            limit,
            is_fixed: !(cx.params.prune_vector && cx.params.prune_dimension),
            missing: 0,
            is_part: false,
            order,
            trace: trace.as_mut().filter(|_| is_traced),
        }
    }

    /// Whether a member may be a result.
    fn may_return(&self, member: usize) -> bool {
        let id = self.first_id.wrapping_add(member as u32);
        self.q.exists(id) && self.sieve.is_none_or(|sieve| sieve.has(id))
    }

    /// The first block from this one on that has a member which may be a result.
    fn next_block(&self, block: usize) -> usize {
        let Some(sieve) = self.sieve else { return block };
        let first = self.first_id.wrapping_add((block * LANES) as u32);
        sieve.next(first).map_or(usize::MAX, |id| (id.wrapping_sub(self.first_id)) as usize / LANES)
    }

    /// Puts those of some lanes of a block first that may be results: ascending. Returns how many.
    fn sift(&self, block: usize, lanes: &mut [u8]) -> usize {
        let (Some(sieve), Some(&from), Some(&last)) = (self.sieve, lanes.first(), lanes.last()) else {
            return lanes.len();
        };
        let first = self.first_id.wrapping_add((block * LANES) as u32);
        let rows = first.wrapping_add(from.into())..first.wrapping_add(u32::from(last) + 1);
        let mut kept = 0;
        for id in sieve.iter_in(rows).filter(|&id| self.q.exists(id)) {
            lanes[kept] = id.wrapping_sub(first) as u8;
            kept += 1;
        }
        kept
    }

    /// The group at a position of the order. Positions begin at the first group of the slice.
    fn group_at(&self, position: usize) -> usize {
        let start = self.list.range().start;
        self.order.get(position - start).map_or(position, |&group| start + usize::from(group))
    }

    /// With these slices missing besides; some of them may be scored elsewhere meanwhile.
    pub(super) fn without(self, missing: u64, is_part: bool) -> Scanner<'s> {
        Scanner { missing, is_part, ..self }
    }

    /// Scores members whole, which are the first of their list.
    fn prewarm(&mut self, members: Range<usize>) {
        self.first_id = self.first_id.wrapping_sub(members.start as u32);
        for block in members.start / LANES..members.end.div_ceil(LANES) {
            let mut lanes = [0; LANES];
            lanes.iter_mut().zip(0..).for_each(|(lane, i)| *lane = i);
            let lane = |member: usize| member.clamp(block * LANES, (block + 1) * LANES) - block * LANES;
            let mut sums = [0.0; LANES];
            let lanes = &mut lanes[lane(members.start)..lane(members.end)];
            let sifted = self.sift(block, lanes);
            let lanes = &mut lanes[..sifted];
            let kept = self.rest_of(0, block, &mut sums, lanes);
            self.offer(block, &sums, &lanes[..kept]);
        }
    }

    /// Scans all blocks but the first `prewarmed` members.
    pub(super) fn blocks(&mut self, prewarmed: usize) {
        let mut next = self.next_block(0);
        while next < self.list.blocks() {
            let block = next;
            next = self.next_block(block + 1);
            self.tighten();
            let mut lanes = [0; LANES];
            lanes.iter_mut().zip(0..).for_each(|(lane, i)| *lane = i);
            let from = if block == 0 { prewarmed } else { 0 };
            let lanes = &mut lanes[from..self.list.members_of(block)];
            let sifted = self.sift(block, lanes);
            let lanes = &mut lanes[..sifted];
            if lanes.is_empty() {
                continue;
            }
            // A lane that is no number is never kept.
            let mut sums = [f64::NAN; LANES];
            lanes.iter().for_each(|&lane| sums[usize::from(lane)] = 0.0);
            let kept = self.add(block, &mut sums, lanes);
            self.offer(block, &sums, &lanes[..kept]);
        }
    }

    /// The largest sum of a vector that may be among the results.
    pub(super) fn limit(&self) -> f64 {
        self.limit
    }

    /// Lowers the limit to what the results that are known allow.
    pub(super) fn tighten(&mut self) {
        if self.is_fixed {
            return;
        }
        self.limit = self.limit.min(limit(self.q, self.view.layout, self.scale));
    }

    /// Adds the groups of this slice to the sums of some lanes; the others are no numbers. Those that stay come first,
    /// and their number is returned.
    pub(super) fn add(&mut self, block: usize, sums: &mut Sums, lanes: &mut [u8]) -> usize {
        let left = if self.uses_codes { self.codes(block, lanes) } else { self.pilot(block, lanes) };
        if left == 0 {
            self.note(0, 0);
            return 0;
        }
        self.missing_products(block);
        if left < lanes.len() {
            let before = core::mem::replace(sums, [f64::NAN; LANES]);
            lanes[..left].iter().for_each(|&lane| sums[usize::from(lane)] = before[usize::from(lane)]);
        }
        let lanes = &mut lanes[..left];
        self.note(0, left);
        let members = self.list.members_of(block);
        let groups = self.list.range();
        let (mut group, mut kept) = (groups.start, left);
        while group < self.view.layout.columns.min(groups.end) && FEW * kept > members {
            self.columns(group, block, sums);
            group += 1;
            kept = count_within(self.limit, self.rest(group), sums);
            self.note(group, kept);
        }
        if group > groups.start {
            kept = keep_within(self.limit, self.rest(group), sums, lanes);
            self.count(group, left, kept);
        }
        self.rest_of(group, block, sums, &mut lanes[..kept])
    }

    /// Keeps lanes whose pilot does not exclude them. Returns how many.
    ///
    /// A vector that is nearer than the limit has a code that is nearer than the limit and the radius together.
    fn pilot(&mut self, block: usize, lanes: &mut [u8]) -> usize {
        const SCALE: f32 = 64.0;
        let is_used = self.list.has_pilot() && self.limit < f64::INFINITY;
        let Some(pilot) = self.view.pilot.filter(|_| is_used) else { return lanes.len() };
        let (radius, _) = self.list.pilot(block, 0);
        let nearest = stratann_kernel::sqrt((self.limit / f64::from(self.scale)).max(0.0) as f32);
        // More than all of this loses by rounding.
        let reach = f64::from((nearest + radius + 1e-5 * self.length) / pilot.step);
        let limit = reach * reach * f64::from(SCALE) * (1.0 + 1e-4) + self.pilot.len() as f64;
        let stride = self.list.places_of(block);
        let (mut sums, mut left) = ([f64::NAN; LANES], lanes.len());
        lanes.iter().for_each(|&lane| sums[usize::from(lane)] = 0.0);
        for (query, from) in self.pilot.chunks(PILOT_GROUP).zip((0..).step_by(PILOT_GROUP)) {
            let (_, codes) = self.list.pilot(block, from);
            let dtype = DType::U8;
            let part = Group { term: Term::Square, dtype, query, scale: SCALE, factors: &[] };
            let compared = if FEW * left > stride {
                add_columns(&part, codes, stride, &mut sums);
                self.list.members_of(block)
            } else {
                add_columns_of(&part, codes, stride, &lanes[..left], &mut sums);
                left
            };
            self.q.stats.components += (compared * query.len()) as u64;
            let kept = keep_within(limit, &NOTHING, &sums, &mut lanes[..left]);
            self.q.stats.pruned += if self.is_part { 0 } else { (left - kept) as u64 };
            left = kept;
            if left == 0 {
                break;
            }
        }
        left
    }

    /// Lowers the limit to the largest sum that the k nearest members of this list can have, by upper bounds of their
    /// distances. Then few members of the first list are compared.
    pub(super) fn bound_by_codes(&mut self) {
        let Some(codes) = self.view.codes.filter(|_| self.uses_codes && !self.is_fixed) else { return };
        self.coded.begin_list(&codes, (self.number, &self.list), (self.metric, self.query));
        let bounds = self.coded.upper_bounds(&codes, &self.list, self.metric).zip(0..);
        let (q, sieve, first) = (&*self.q, self.sieve, self.first_id);
        let may_return = |member: u32| {
            let id = first.wrapping_add(member);
            q.exists(id) && sieve.is_none_or(|sieve| sieve.has(id))
        };
        let mut bounds: Vec<f32> =
            bounds.filter(|&(_, member)| may_return(member)).map(|(bound, _)| bound).collect();
        let compared = self.list.members() as u64;
        self.q.stats.code_comparisons += compared;
        if let Some(trace) = &mut self.trace {
            trace.codes += compared;
        }
        let kth = (self.q.top.k as usize).checked_sub(1).filter(|&kth| kth < bounds.len());
        let Some(kth) = kth else { return };
        let (_, &mut bound, _) = bounds.select_nth_unstable_by(kth, f32::total_cmp);
        // More than sums and their units, and the rounding of equal distances, add.
        let bound = f64::from(bound) + 4e-5 * f64::from(bound.abs());
        let units = bound * f64::from(self.scale) + slack(self.view.layout);
        if units < self.limit {
            self.limit = units;
        }
    }

    /// Keeps lanes whose codes do not exclude them. Returns how many.
    fn codes(&mut self, block: usize, lanes: &mut [u8]) -> usize {
        let is_used = self.limit < f64::INFINITY;
        let Some(codes) = self.view.codes.filter(|_| is_used) else { return lanes.len() };
        self.coded.begin_list(&codes, (self.number, &self.list), (self.metric, self.query));
        // A sum within the limit may be of a distance that is a little larger: floats and half a unit for each group.
        let units = self.limit + self.view.layout.groups() as f64;
        let limit = (units / f64::from(self.scale)) as f32;
        let limit = limit + 1e-5 * limit.abs();
        let (kept, compared) = self.coded.keep(&codes, (&self.list, block), (self.metric, limit), lanes);
        self.q.stats.code_comparisons += compared as u64;
        self.q.stats.pruned += if self.is_part { 0 } else { (lanes.len() - kept) as u64 };
        if let Some(trace) = &mut self.trace {
            trace.codes += compared as u64;
        }
        kept
    }

    /// Adds a group of all lanes of a block.
    fn columns(&mut self, group: usize, block: usize, sums: &mut Sums) {
        let factors = self.factors(block);
        let part = self.part(group, &factors);
        let groups = self.list.range();
        let next = if group + 1 < self.view.layout.columns.min(groups.end) {
            (group + 1, block)
        } else {
            (groups.start, block + 1)
        };
        if next.1 < self.list.blocks() {
            let bytes = self.list.group(next.0, next.1);
            prefetch(&bytes[..bytes.len().min(AHEAD)]);
        }
        add_columns(&part, self.list.group(group, block), self.list.places_of(block), sums);
        self.q.stats.components += (self.list.members_of(block) * part.query.len()) as u64;
    }

    /// Goes on with some lanes of a block from the group at a position on. Those that are left at the end come first,
    /// and their number is returned.
    fn rest_of(&mut self, position: usize, block: usize, sums: &mut Sums, lanes: &mut [u8]) -> usize {
        let factors = self.factors(block);
        let mut left = lanes.len();
        (position..position + GROUPS_AHEAD).for_each(|next| self.fetch(next, block, lanes));
        for position in position..self.list.range().end {
            if left == 0 {
                break;
            }
            let group = self.group_at(position);
            let lanes = &mut lanes[..left];
            let part = self.part(group, &factors);
            let bytes = self.list.group(group, block);
            self.fetch(position + GROUPS_AHEAD, block, lanes);
            if group < self.view.layout.columns {
                add_columns_of(&part, bytes, self.list.places_of(block), lanes, sums);
            } else {
                add_rows_of(&part, bytes, lanes, sums);
            }
            self.q.stats.components += (lanes.len() * part.query.len()) as u64;
            let kept = keep_within(self.limit, self.rest(position + 1), sums, lanes);
            self.note(position + 1, kept);
            self.count(position + 1, left, kept);
            left = kept;
        }
        left
    }

    /// Begins to fetch what some lanes have in the group at a position, where each lane's components lie together.
    fn fetch(&self, position: usize, block: usize, lanes: &[u8]) {
        let group = self.group_at(position);
        if position < self.list.range().end && group >= self.view.layout.columns {
            let bytes = self.list.group(group, block);
            let size = self.view.layout.dtype.size() * self.view.layout.components(group).len();
            lanes.iter().for_each(|&lane| prefetch(&bytes[size * usize::from(lane)..][..size]));
        }
    }

    /// Notes how many lanes of a block are left after so many groups; after none, by their pilot.
    fn note(&mut self, groups: usize, left: usize) {
        let Some(trace) = &mut self.trace else { return };
        match groups.checked_sub(1) {
            None => trace.after_pilot += left as u64,
            Some(last) => trace.after_group[last] += left as u64,
        }
    }

    /// Counts lanes that were compared in all groups before this one, and those of them that are kept.
    fn count(&mut self, group: usize, compared: usize, kept: usize) {
        if self.is_part {
            return;
        }
        if group == self.list.range().end && self.missing == 0 {
            self.q.stats.full_comparisons += compared as u64;
        } else {
            self.q.stats.pruned += (compared - kept) as u64;
        }
    }

    /// Offers lanes of a whole list whose sums are whole.
    fn offer(&mut self, block: usize, sums: &Sums, lanes: &[u8]) {
        for &lane in lanes {
            let distance = self.turned().distance_of(&self.list, (block, lane), sums[usize::from(lane)]);
            self.offer_one((block, lane), distance);
        }
    }

    /// Offers a lane with its distance.
    pub(super) fn offer_one(&mut self, (block, lane): (usize, u8), distance: f32) {
        let member = block * LANES + usize::from(lane);
        if self.may_return(member) {
            self.q.top.offer(distance, || self.list.external_id(member));
        }
    }

    /// The query, which tells distances from sums.
    pub(super) fn turned(&self) -> TurnedQuery<'_> {
        let Scanner { view, query, length, scale, coarse_below, .. } = *self;
        TurnedQuery { view, components: query, length, scale, coarse_below }
    }

    /// The list, or the slice of it.
    pub(super) fn list(&self) -> &List<'s> {
        &self.list
    }

    fn factors(&self, block: usize) -> [f32; LANES] {
        factors(self.view.layout, &self.list, block)
    }

    fn part<'p>(&self, group: usize, factors: &'p [f32; LANES]) -> Group<'p>
    where
        's: 'p,
    {
        let layout = self.view.layout;
        Group {
            term: term(self.metric),
            dtype: layout.dtype,
            query: &self.query[layout.components(group)],
            scale: self.scale,
            factors: if has_factors(layout) { factors } else { &[] },
        }
    }

    /// Amount by which the sums may still fall once the groups before this position are added.
    fn rest(&self, position: usize) -> &Sums {
        if self.metric == Metric::Ip { &self.rests[position] } else { &NOTHING }
    }

    /// Bounds how far sums of products may still fall after each group.
    fn missing_products(&mut self, block: usize) {
        if self.metric != Metric::Ip {
            return;
        }
        let mut rest = [0.0; LANES];
        let others = (0..self.view.slice_count()).filter(|slice| self.missing >> slice & 1 == 1);
        others.flat_map(|slice| self.view.groups(slice)).for_each(|g| self.add_norms(g, block, &mut rest));
        for group in self.list.range().rev() {
            self.rests[group + 1] = rest;
            self.add_norms(group, block, &mut rest);
        }
        self.rests[self.list.range().start] = rest;
    }

    /// Adds what the products of a group can be at most.
    fn add_norms(&self, group: usize, block: usize, rest: &mut Sums) {
        let (largest, codes) = self.list.norms(group, block);
        // More than a product of floats loses by rounding, and half a unit.
        let step = f64::from(self.norms[group]) * f64::from(largest) / 255.0 * f64::from(self.scale);
        for (rest, &code) in rest.iter_mut().zip(codes) {
            *rest += step * (1.0 + 1e-4) * f64::from(code) + 1.0;
        }
    }
}

/// Returns the order in which the groups of a slice are visited, counted from its first one.
///
/// Groups that are stored component by component come first. The others are sorted by the mean squared difference of
/// query and centroid, the largest first: sums grow sooner, and have the same bits in any order. Groups of rotated
/// components keep their order.
fn group_order(
    view: &View<'_>,
    number: u32,
    list: &List<'_>,
    query: &[f32],
    is_ordered: bool,
) -> [u8; ORDERED_MAX] {
    let mut order = [0; ORDERED_MAX];
    order.iter_mut().zip(0..=u8::MAX).for_each(|(group, i)| *group = i);
    let (groups, columns) = (list.range(), view.layout.columns);
    let dim = view.layout.dim();
    let centroid = view.centroids.chunks_exact(dim).nth((number / view.stripes.max(1)) as usize);
    let (Axes::Ordered(axes), Some(centroid)) = (view.axes, centroid) else { return order };
    if !is_ordered || groups.len() > ORDERED_MAX {
        return order;
    }
    let mut apart = [0f32; ORDERED_MAX];
    for (apart, group) in apart.iter_mut().zip(groups.clone()) {
        let components = view.layout.components(group);
        let width = components.len() as f32;
        let own = axes.get(components.clone()).unwrap_or(&[]).iter().zip(&query[components]);
        let differences = own.map(|(&axis, q)| q - centroid.get(axis as usize).unwrap_or(q));
        *apart = differences.map(|x| x * x).sum::<f32>() / width;
    }
    let first = columns.clamp(groups.start, groups.end) - groups.start;
    order[first..groups.len()].sort_by(|&a, &b| apart[usize::from(b)].total_cmp(&apart[usize::from(a)]));
    order
}
