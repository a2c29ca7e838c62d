//! Exact distances of many queries to all vectors, list after list, without pruning.
//!
//! Sums of groups are whole units and have the bits of a scan for one query, which only leaves out vectors that are not
//! among the results. So both have the same results.

use alloc::vec::Vec;
use core::array;
use core::ops::Range;

use stratann_kernel::columns::strips::{FOUR, FourGroups, Order, STRIP, StoredGroup, add_strips};
use stratann_kernel::columns::{LANES, Sums, count_within};
use stratann_kernel::topk::{Scored, TopK};

use super::fine::coarse_below;
use super::rotated_query;
use super::sums::{TurnedQuery, factors, has_factors, limit, term};
use super::{Scratch, View};
use crate::format::grid::{GridLayout, List};
use crate::view::Base;

/// Most vectors of a panel.
pub const PANEL: usize = LANES;

/// Queries in the axes of an index.
#[derive(Clone, Debug, Default)]
pub struct PassQueries {
    // Of one query after another.
    components: Vec<f32>,
    lengths: Vec<f32>,
    scales: Vec<f32>,
}

/// Consecutive vectors of an index, in strips.
#[derive(Debug, Default)]
pub struct Panel<'a> {
    first: u32,
    count: usize,
    pieces: Vec<Piece<'a>>,
    // The strips of each group.
    strips: Vec<f32>,
    // Of a tile.
    sums: Vec<[Sums; FOUR]>,
}

/// Vectors of a panel that are in one block, and in one strip.
#[derive(Debug)]
struct Piece<'a> {
    list: List<'a>,
    block: usize,
    lanes: Range<usize>,
    // The lane of the panel that the first of them has.
    at: usize,
}

/// Memory of a panel, with the sums of a tile of queries, bytes.
pub fn panel_bytes(dim: usize, tile: usize) -> usize {
    let strips = PANEL * dim * size_of::<f32>();
    // Vectors double while they grow.
    strips + 2 * PANEL * size_of::<Piece<'_>>() + tile.div_ceil(FOUR) * size_of::<[Sums; FOUR]>()
}

/// How a group is stored.
fn order_of(layout: &GridLayout, group: usize) -> Order {
    if group < layout.columns { Order::Columns } else { Order::Rows }
}

impl PassQueries {
    /// Adds a query: a vector as the index stores its rows.
    pub fn push(&mut self, base: &Base<'_>, view: &View<'_>, vector: &[u8], scratch: &mut Scratch) {
        rotated_query::prepare(base, view, vector, scratch);
        self.components.extend_from_slice(&scratch.query);
        self.lengths.push(scratch.length);
        self.scales.push(scratch.scale);
    }

    /// Adds queries behind these.
    pub fn append(&mut self, mut others: PassQueries) {
        self.components.append(&mut others.components);
        self.lengths.append(&mut others.lengths);
        self.scales.append(&mut others.scales);
    }

    fn one<'q>(&'q self, view: &'q View<'q>, number: usize) -> TurnedQuery<'q> {
        let dim = view.layout.dim();
        TurnedQuery {
            view,
            components: &self.components[number * dim..(number + 1) * dim],
            length: self.lengths[number],
            scale: self.scales[number],
            coarse_below: coarse_below(view.layout),
        }
    }
}

impl<'a> Panel<'a> {
    /// Takes the vectors with these numbers, at most [`PANEL`]. `None` where one is not in memory.
    pub fn fill(&mut self, view: &View<'a>, rows: Range<u32>) -> Option<()> {
        self.pieces.clear();
        self.strips.resize(PANEL * view.layout.dim(), 0.0);
        self.first = rows.start;
        self.count = rows.len().min(PANEL);
        let mut at = 0;
        while at < self.count {
            let row = rows.start + at as u32;
            let number = view.first.partition_point(|&first| first <= row).checked_sub(1)?;
            let list = view.list(number as u32)?;
            let member = (row - view.first[number]) as usize;
            let (block, lane) = (member / LANES, member % LANES);
            let room = (self.count - at).min(STRIP - at % STRIP);
            let lanes = lane..list.members_of(block).min(lane + room);
            if lanes.is_empty() {
                return None;
            }
            let count = lanes.len();
            let piece = Piece { list, block, lanes, at };
            self.put(view.layout, &piece);
            self.pieces.push(piece);
            at += count;
        }
        Some(())
    }

    /// Writes all groups of a piece to their strips.
    fn put(&mut self, layout: &GridLayout, piece: &Piece<'_>) {
        let Piece { list, block, lanes, at } = piece;
        let factors = factors(layout, list, *block);
        for group in 0..layout.groups() {
            let components = layout.components(group);
            let width = components.len();
            let stored = StoredGroup {
                order: order_of(layout, group),
                dtype: layout.dtype,
                width,
                bytes: list.group(group, *block),
                stride: list.places_of(*block),
                factors: if has_factors(layout) { &factors } else { &[] },
            };
            let start = PANEL * components.start + at / STRIP * STRIP * width;
            stored.put(lanes.clone(), (&mut self.strips[start..][..STRIP * width], at % STRIP));
        }
    }

    /// Scores all vectors against a tile of queries, each with its best so far and the number of a vector that it must
    /// not see. The first of the tile has the number `first`.
    pub fn score(
        &mut self,
        view: &View<'_>,
        (queries, first): (&PassQueries, usize),
        exclude: &[u32],
        tops: &mut [TopK],
    ) {
        let all = first..first + tops.len();
        let mut sums = core::mem::take(&mut self.sums);
        sums.clear();
        sums.resize(all.len().div_ceil(FOUR), [[0.0; LANES]; FOUR]);
        for group in 0..view.layout.groups() {
            self.add(view, (queries, all.clone()), group, &mut sums);
        }
        for ((number, top), (sums, &exclude)) in all.zip(tops).zip(sums.as_flattened().iter().zip(exclude)) {
            self.offer(queries.one(view, number), sums, exclude, top);
        }
        self.sums = sums;
    }

    /// Adds a group of all vectors to the sums of queries.
    fn add(
        &self,
        view: &View<'_>,
        (queries, all): (&PassQueries, Range<usize>),
        group: usize,
        sums: &mut [[Sums; FOUR]],
    ) {
        let layout = view.layout;
        let components = layout.components(group);
        let bytes = STRIP * components.len() * self.count.div_ceil(STRIP);
        let strips = &self.strips[PANEL * components.start..][..bytes];
        for (first, sums) in all.clone().step_by(FOUR).zip(sums) {
            // The last query stands for those that are missing among four.
            let numbers: [usize; FOUR] = array::from_fn(|i| (first + i).min(all.end - 1));
            let start = |number: usize| number * layout.dim() + components.start;
            let groups = FourGroups {
                term: term(layout.metric),
                order: order_of(layout, group),
                queries: numbers.map(|number| &queries.components[start(number)..][..components.len()]),
                scales: numbers.map(|number| queries.scales[number]),
            };
            add_strips(&groups, strips, sums);
        }
    }

    /// Offers vectors whose sums are whole.
    fn offer(&self, query: TurnedQuery<'_>, sums: &Sums, exclude: u32, top: &mut TopK) {
        let worst = Some(top.threshold()).filter(|worst| worst.is_finite());
        let limit = limit(worst, query.view.layout, query.scale);
        if count_within(limit, &[0.0; LANES], sums) == 0 {
            return;
        }
        for piece in &self.pieces {
            for (at, lane) in (piece.at..).zip(piece.lanes.clone()) {
                // A sum that is no number is never within the limit.
                if sums[at] <= limit && self.first + at as u32 != exclude {
                    let distance = query.distance_of(&piece.list, (piece.block, lane as u8), sums[at]);
                    let id = piece.list.external_id(piece.block * LANES + lane);
                    top.push(Scored { distance, id });
                }
            }
        }
    }
}
