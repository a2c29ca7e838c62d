//! Scans lists, group of components by group of components (HARMONY §4.3, algorithm 1 on one machine).
//!
//! The threshold is the distance of the k-th best of all finished vectors: each is a vector of a probed list, with all
//! of its components. Sums of l2 and of cosine, as the squared distance of unit vectors, only grow. A sum of products
//! may still fall, by at most the product of both norms in each group that is missing (Cauchy–Schwarz).

use alloc::vec::Vec;

use stratann_kernel::columns::{
    Group, LANES, Sums, Term, add_columns, add_columns_of, add_rows_of, count_within, keep_within,
};
use stratann_kernel::{DType, Metric, prefetch};

use super::{Marker, Scratch, View};
use crate::format::grid::{List, PILOT_GROUP};
use crate::plan::Cx;
use crate::search::{Query, TopK};

/// Of each list, one member in so many is scored first.
const PREWARMED_PART: usize = 100;
/// Below this share of a block its vectors go on one by one: a block's cost is that of all its lanes.
const FEW: usize = 8;
/// Bytes of what is compared next that are fetched meanwhile: the rest of a long run follows by itself.
const AHEAD: usize = 1024;

/// How a list was scanned.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ScannedList {
    /// Its number.
    pub list: u32,
    /// Distance of its centroid to the query.
    pub centroid_distance: f32,
    /// Members.
    pub members: u32,
    /// Members that were compared in all components.
    pub finished: u32,
    /// Components that were compared.
    pub components: u64,
}

/// What a query has scanned. Vectors that were scored first are not among those that are left.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Trace {
    /// The lists in their order.
    pub lists: Vec<ScannedList>,
    /// Vectors that their pilot did not exclude.
    pub after_pilot: u64,
    /// Vectors that were left after each group of components.
    pub after_group: Vec<u64>,
}

/// Scans the lists that were ranked.
pub(super) fn scan(cx: &mut Cx<'_, Marker>) {
    let ranked = core::mem::take(&mut cx.scratch.ranked);
    cx.scratch.rests.clear();
    cx.scratch.rests.resize(cx.view.layout.groups() + 1, [0.0; LANES]);
    if let Some(trace) = &mut cx.scratch.trace {
        trace.after_group.resize(cx.view.layout.groups(), 0);
    }
    let warm = if cx.params.prewarm && cx.params.prune_dimension { prewarm(cx, &ranked) } else { 0 };
    let first_limit = limit(&cx.q.top, cx.base.metric, cx.view.scale);
    for (rank, &(distance, number)) in ranked.iter().enumerate() {
        let Some(list) = cx.view.list(number) else { continue };
        let is_fixed = !(cx.params.prune_vector && cx.params.prune_dimension);
        let fixed = if cx.params.prune_dimension { first_limit } else { f64::INFINITY };
        let prewarmed = if rank < warm { prewarmed(list.members()) } else { 0 };
        let mut scanner = Scanner::new(cx, number, list, fixed, prewarmed, false);
        let (finished, components) = (scanner.q.stats.full_comparisons, scanner.q.stats.components);
        scanner.blocks(is_fixed);
        let stats = &scanner.q.stats;
        let scanned = ScannedList {
            list: number,
            centroid_distance: distance,
            members: list.members() as u32,
            finished: (stats.full_comparisons - finished) as u32,
            components: stats.components - components,
        };
        if let Some(trace) = &mut cx.scratch.trace {
            trace.lists.push(scanned);
        }
        cx.q.stats.lists += 1;
        cx.q.stats.clusters += 1;
        cx.q.stats.components_unpruned += (list.members() * cx.base.dim) as u64;
    }
    cx.scratch.ranked = ranked;
}

/// Scores the first members of the nearest lists, whole, until there are k. Returns the number of these lists.
fn prewarm(cx: &mut Cx<'_, Marker>, ranked: &[(f32, u32)]) -> usize {
    for (rank, &(_, number)) in ranked.iter().enumerate() {
        if cx.q.top.is_full() {
            return rank;
        }
        let Some(list) = cx.view.list(number) else { continue };
        Scanner::new(cx, number, list, f64::INFINITY, prewarmed(list.members()), true).prewarm();
    }
    ranked.len()
}

/// The largest sum, in units, of a vector that may be among the results.
fn limit(top: &TopK, metric: Metric, scale: f32) -> f64 {
    let Some((worst, _)) = top.worst().filter(|_| top.is_full()) else { return f64::INFINITY };
    // Everything up to the middle between this float and the next one may be rounded to it.
    let next = worst.next_up();
    let middle = f64::from(worst) + (f64::from(next) - f64::from(worst)) / 2.0;
    middle * f64::from(scale) * unit_distance(metric)
}

/// Sums of distance 1: half the squared distance of unit vectors is one minus their cosine.
fn unit_distance(metric: Metric) -> f64 {
    if metric == Metric::Cosine { 2.0 } else { 1.0 }
}

/// The scan of one list.
struct Scanner<'s> {
    q: &'s mut Query,
    view: &'s View<'s>,
    list: List<'s>,
    first_id: u32,
    query: &'s [f32],
    norms: &'s [f32],
    pilot: &'s [f32],
    length: f32,
    rests: &'s mut [Sums],
    metric: Metric,
    limit: f64,
    // Members that were scored before.
    prewarmed: usize,
    trace: Option<&'s mut Trace>,
}

impl<'s> Scanner<'s> {
    fn new(
        cx: &'s mut Cx<'_, Marker>,
        number: u32,
        list: List<'s>,
        limit: f64,
        prewarmed: usize,
        is_first: bool,
    ) -> Scanner<'s> {
        let Scratch { query, norms, pilot, length, rests, trace, .. } = &mut *cx.scratch;
        Scanner {
            q: cx.q,
            view: cx.view,
            list,
            first_id: cx.view.first[number as usize],
            query,
            norms,
            pilot,
            length: *length,
            rests,
            metric: cx.base.metric,
            limit,
            prewarmed,
            // Those that are scored first are left whatever their components.
            trace: trace.as_mut().filter(|_| !is_first),
        }
    }

    /// Scores the first members of the list, whole.
    fn prewarm(&mut self) {
        let mut lanes = [0; LANES];
        lanes.iter_mut().zip(0..).for_each(|(lane, i)| *lane = i);
        let lanes = &mut lanes[..self.prewarmed];
        let mut sums = [0.0; LANES];
        self.rest_of(0, 0, &mut sums, lanes);
    }

    /// Scans all blocks. The limit stays what it was where it is fixed.
    fn blocks(&mut self, is_fixed: bool) {
        for block in 0..self.list.blocks() {
            if !is_fixed {
                self.limit = limit(&self.q.top, self.metric, self.view.scale);
            }
            self.block(block);
        }
    }

    fn block(&mut self, block: usize) {
        self.missing_products(block);
        let mut lanes = [0; LANES];
        lanes.iter_mut().zip(0..).for_each(|(lane, i)| *lane = i);
        let from = if block == 0 { self.prewarmed } else { 0 };
        let members = self.list.members_of(block);
        let left = self.pilot(block, &mut lanes[from..members]);
        self.note(0, left);
        // A lane that is no number is never kept.
        let mut sums = [f64::NAN; LANES];
        let lanes = &mut lanes[from..from + left];
        lanes.iter().for_each(|&lane| sums[usize::from(lane)] = 0.0);
        let (mut group, mut kept) = (0, left);
        while group < self.view.layout.columns && FEW * kept > members {
            self.columns(group, block, &mut sums);
            group += 1;
            kept = count_within(self.limit, &self.rests[group], &sums);
            self.note(group, kept);
        }
        if group > 0 {
            let before = lanes.len();
            kept = keep_within(self.limit, &self.rests[group], &sums, lanes);
            self.count(group, before, kept);
        }
        self.rest_of(group, block, &mut sums, &mut lanes[..kept]);
    }

    /// Keeps lanes whose pilot does not exclude them. Returns how many.
    ///
    /// A vector that is nearer than the limit has a code that is nearer than the limit and the radius together.
    fn pilot(&mut self, block: usize, lanes: &mut [u8]) -> usize {
        const SCALE: f32 = 64.0;
        let Some(pilot) = self.view.pilot.filter(|_| self.limit < f64::INFINITY) else { return lanes.len() };
        let (radius, _) = self.list.pilot(block, 0);
        let nearest = stratann_kernel::sqrt((self.limit / f64::from(self.view.scale)).max(0.0) as f32);
        // More than all of this loses by rounding.
        let reach = f64::from((nearest + radius + 1e-5 * self.length) / pilot.step);
        let limit = reach * reach * f64::from(SCALE) * (1.0 + 1e-4) + self.pilot.len() as f64;
        let (stride, rests) = (self.list.places_of(block), [0.0; LANES]);
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
            let kept = keep_within(limit, &rests, &sums, &mut lanes[..left]);
            self.q.stats.pruned += (left - kept) as u64;
            left = kept;
            if left == 0 {
                break;
            }
        }
        left
    }

    /// Adds a group of all lanes of a block.
    fn columns(&mut self, group: usize, block: usize, sums: &mut Sums) {
        let factors = self.factors(block);
        let part = self.part(group, &factors);
        let next = if group + 1 < self.view.layout.columns { (group + 1, block) } else { (0, block + 1) };
        if next.1 < self.list.blocks() {
            let bytes = self.list.group(next.0, next.1);
            prefetch(&bytes[..bytes.len().min(AHEAD)]);
        }
        add_columns(&part, self.list.group(group, block), self.list.places_of(block), sums);
        self.q.stats.components += (self.list.members_of(block) * part.query.len()) as u64;
    }

    /// Goes on with some lanes of a block from a group on, and offers those that are left at the end.
    fn rest_of(&mut self, group: usize, block: usize, sums: &mut Sums, mut lanes: &mut [u8]) {
        let factors = self.factors(block);
        let groups = self.view.layout.groups();
        for group in group..groups {
            if lanes.is_empty() {
                return;
            }
            let part = self.part(group, &factors);
            let bytes = self.list.group(group, block);
            if group < self.view.layout.columns {
                add_columns_of(&part, bytes, self.list.places_of(block), lanes, sums);
            } else {
                let size = self.view.layout.dtype.size() * part.query.len();
                lanes.iter().for_each(|&lane| prefetch(&bytes[size * usize::from(lane)..][..size]));
                add_rows_of(&part, bytes, lanes, sums);
            }
            self.q.stats.components += (lanes.len() * part.query.len()) as u64;
            let kept = keep_within(self.limit, &self.rests[group + 1], sums, lanes);
            self.note(group + 1, kept);
            self.count(group + 1, lanes.len(), kept);
            lanes = &mut lanes[..kept];
        }
        self.offer(block, sums, lanes);
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
        if group == self.view.layout.groups() {
            self.q.stats.full_comparisons += compared as u64;
        } else {
            self.q.stats.pruned += (compared - kept) as u64;
        }
    }

    fn offer(&mut self, block: usize, sums: &Sums, lanes: &[u8]) {
        let scale = f64::from(self.view.scale) * unit_distance(self.metric);
        for &lane in lanes {
            let member = block * LANES + usize::from(lane);
            if self.q.admits(self.first_id + member as u32) {
                let distance = (sums[usize::from(lane)] / scale) as f32;
                self.q.top.offer(distance, || self.list.external_id(member));
            }
        }
    }

    /// Whether components are multiplied to those of unit vectors. Floats are stored as unit vectors.
    fn has_factors(&self) -> bool {
        self.view.layout.has_factors() && self.view.layout.dtype != DType::F32
    }

    fn factors(&self, block: usize) -> [f32; LANES] {
        let mut factors = [1.0; LANES];
        if self.has_factors() {
            self.list.factors(block, &mut factors);
        }
        factors
    }

    fn part<'p>(&self, group: usize, factors: &'p [f32; LANES]) -> Group<'p>
    where
        's: 'p,
    {
        let layout = self.view.layout;
        let has_factors = self.has_factors();
        Group {
            term: if self.metric == Metric::Ip { Term::MinusProduct } else { Term::Square },
            dtype: layout.dtype,
            query: &self.query[layout.components(group)],
            scale: self.view.scale,
            factors: if has_factors { factors } else { &[] },
        }
    }

    /// By how much the sums may still fall after each group. Stays zero where sums only grow.
    fn missing_products(&mut self, block: usize) {
        if self.metric != Metric::Ip {
            return;
        }
        let mut rest = [0.0; LANES];
        for group in (0..self.view.layout.groups()).rev() {
            self.rests[group + 1] = rest;
            let (largest, codes) = self.list.norms(group, block);
            // More than a product of floats loses by rounding, and half a unit.
            let step = f64::from(self.norms[group]) * f64::from(largest) / 255.0 * f64::from(self.view.scale);
            for (rest, &code) in rest.iter_mut().zip(codes) {
                *rest += step * (1.0 + 1e-4) * f64::from(code) + 1.0;
            }
        }
        self.rests[0] = rest;
    }
}

/// Members of a list that are scored first.
fn prewarmed(members: usize) -> usize {
    (members / PREWARMED_PART).min(LANES)
}
