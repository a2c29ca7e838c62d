//! `sorted`: vectors in the order of their first component. Only tests have it: it is the smallest kind that routes,
//! stops early and hands over, and shows what a new kind has to bring.
//!
//! route = the block in whose range the query's first component lies · access = outward from there, the nearer side
//! first, until that component alone is too far · verify = [`crate::exact`]

use alloc::vec::Vec;

use stratann_kernel::Metric;

use crate::access::blocks;
use crate::codec::{Reader, Refused, Writer};
use crate::exact::{BlockScratch, score_block};
use crate::format::block::{Block, BlockLayout};
use crate::kinds::kind::{Carry, Kind, Ordered, StepContext};
use crate::place::Reach;
use crate::search::{Budget, Candidate, IndexSize, LOST_UNITS_MAX, Outcome, Read};
use crate::view::Base;

/// Most blocks that wait to be read: those of a round, and lost ones that another replica may have.
const WANTED_MAX: u32 = 64 + LOST_UNITS_MAX as u32;

/// The kind itself.
pub(crate) struct Sorted;

/// Part of a `sorted` index in RAM.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// The layout of all blocks.
    pub block: &'a BlockLayout,
    /// The first component of each block's first vector, ascending.
    pub first: &'a [f32],
}

impl View<'_> {
    /// A lower bound of the squared l2 distance between a block's vectors and a query that begins with `start`.
    fn bound(&self, block: u32, start: f32) -> f32 {
        let at = block as usize;
        let below = self.first.get(at).map_or(0.0, |&low| low - start);
        let above = self.first.get(at + 1).map_or(0.0, |&high| start - high);
        let gap = below.max(above).max(0.0);
        gap * gap
    }
}

/// The parameters of one query.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Params {
    /// Whether blocks that cannot hold a result are left out.
    pub stops: bool,
}

/// The range of blocks that were chosen, and those of them that are not being read yet.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct State {
    low: u32,
    high: u32,
    wanted: Vec<u32>,
}

/// The query's first component, and reusable buffers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Scratch {
    start: f32,
    blocks: BlockScratch,
}

impl Kind for Sorted {
    type View<'a> = View<'a>;
    type Params = Params;
    type State = State;
    type Scratch = Scratch;

    fn is_valid(_: &Params, _: u32) -> bool {
        true
    }

    fn reset(state: &mut State, _: &Params, _: u32) {
        (state.low, state.high) = (0, 0);
        state.wanted.clear();
    }

    fn budget(_: &View<'_>) -> Budget {
        Budget::default()
    }

    fn size(base: &Base<'_>, view: &View<'_>) -> IndexSize {
        IndexSize { nodes: base.nodes, units: view.first.len() as u32, clusters: 0 }
    }

    fn prepare(base: &Base<'_>, _: &View<'_>, query: &[u8], scratch: &mut Scratch) {
        let mut start = [0.0];
        let component = query.get(..base.dtype.size()).unwrap_or_default();
        stratann_kernel::element::widen(base.dtype, component, &mut start);
        scratch.start = start[0];
    }

    fn step(cx: &mut StepContext<'_, Self>, arrived: Ordered<'_>) {
        if !cx.q.started {
            cx.q.started = true;
            let at = cx.view.first.partition_point(|&first| first <= cx.scratch.start) as u32;
            (cx.own.low, cx.own.high) = (at, at);
        }
        let layout = cx.view.block;
        cx.take_in(arrived, |cx, _, bytes| {
            let block = Block::open(layout, bytes).ok()?;
            score_block(cx.q, cx.exact, cx.base.sieve, &mut cx.scratch.blocks, &block);
            Some(())
        });
        if cx.q.outcome == Outcome::Running {
            choose(cx);
        }
    }

    fn requeue(state: &mut State, _: &View<'_>, unit: u32) -> bool {
        state.wanted.push(unit);
        true
    }

    fn check_read(_: &Base<'_>, view: &View<'_>, read: &Read, bytes: &[u8]) -> bool {
        blocks::verify(view.block, view.first.len() as u32, read.at, bytes)
    }

    fn fits(state: &State, size: &IndexSize) -> bool {
        state.high <= size.units && state.wanted.iter().all(|&block| block < size.units)
    }

    fn encode_params(params: &Params, _: u32, w: &mut Writer<'_>) {
        w.u8(u8::from(params.stops));
    }

    fn decode_params(r: &mut Reader<'_>) -> Result<Params, Refused> {
        match r.u8()? {
            flag @ 0..2 => Ok(Params { stops: flag == 1 }),
            _ => Err(Refused::Content),
        }
    }

    fn encode(state: &State, _: (Carry, u32), w: &mut Writer<'_>, _: &mut Vec<Candidate>) {
        w.u32(state.low);
        w.u32(state.high);
        w.varint(state.wanted.len() as u64);
        state.wanted.iter().for_each(|&block| w.u32(block));
    }

    fn decode(state: &mut State, _: &Params, _: u32, r: &mut Reader<'_>) -> Result<(), Refused> {
        (state.low, state.high) = (r.u32()?, r.u32()?);
        for _ in 0..r.count(WANTED_MAX)? {
            state.wanted.push(r.u32()?);
        }
        if state.low <= state.high { Ok(()) } else { Err(Refused::Content) }
    }

    fn memory_bytes(state: &State) -> usize {
        4 * state.wanted.capacity()
    }
}

/// The nearer of the next blocks on both sides, unless it cannot hold a result.
fn next(cx: &StepContext<'_, Sorted>) -> Option<u32> {
    let bound = |block: &u32| cx.view.bound(*block, cx.scratch.start);
    let above = Some(cx.own.high).filter(|&block| (block as usize) < cx.view.first.len());
    let nearest =
        cx.own.low.checked_sub(1).into_iter().chain(above).min_by(|a, b| bound(a).total_cmp(&bound(b)))?;
    let is_bounded = cx.params.stops && cx.base.metric == Metric::L2;
    let limit = if is_bounded { cx.q.limit() } else { None };
    limit.is_none_or(|limit| bound(&nearest) <= limit).then_some(nearest)
}

/// Chooses blocks up to the width and reads those that are here. Hands the query over when all others are on other
/// servers.
fn choose(cx: &mut StepContext<'_, Sorted>) {
    while cx.q.io.pending.len() + cx.own.wanted.len() < cx.q.width as usize {
        let Some(block) = next(cx) else { break };
        cx.own.wanted.push(block);
        cx.own.low = cx.own.low.min(block);
        cx.own.high = cx.own.high.max(block + 1);
    }
    let mut wanted = core::mem::take(&mut cx.own.wanted);
    wanted.retain(|&block| match cx.reach(block) {
        _ if cx.q.outcome != Outcome::Running => false,
        Reach::Remote => true,
        Reach::Nowhere => {
            cx.q.give_up(block);
            false
        }
        Reach::Here => {
            if cx.q.budget.hops == 0 || cx.fetch(blocks::extent(cx.view.block, block), block, 0).is_none() {
                cx.q.finish(Outcome::OutOfBudget);
            }
            false
        }
    });
    if cx.q.outcome == Outcome::Running {
        cx.end_round(&wanted);
    }
    cx.own.wanted = wanted;
}
