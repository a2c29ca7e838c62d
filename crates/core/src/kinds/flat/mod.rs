//! `flat`: every vector is read and scored. Exact; for small sets, and the ground truth of all other kinds.
//!
//! route = none · access = all blocks in order · verify = [`crate::exact`]

use alloc::vec::Vec;
use core::ops::Range;

use crate::access::blocks;
use crate::check::Blocks;
use crate::codec::{Reader, Refused, Writer};
use crate::exact::{BlockScratch, score_block};
use crate::format::block::{self, Block};
use crate::kinds::kind::{Carry, Kind, Ordered, StepContext};
use crate::search::{Budget, Candidate, IndexSize, Outcome, Read};
use crate::view::Base;

/// The kind itself.
pub(crate) struct Flat;

/// Part of a `flat` index in RAM.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// The layout of all blocks.
    pub block: &'a block::BlockLayout,
    /// Number of blocks.
    pub blocks: u32,
}

impl<'a> View<'a> {
    /// The block that holds a row: rows are in order, as many in each block as fit.
    pub fn block_of(&self, row: u32) -> u32 {
        row / self.block_rows()
    }

    /// The rows that a block has room for.
    pub fn rows_of(&self, block: u32) -> Range<u32> {
        let first = block.saturating_mul(self.block_rows());
        first..first.saturating_add(self.block_rows())
    }

    fn block_rows(&self) -> u32 {
        (self.block.payload_bytes() / self.block.node_bytes()).clamp(1, usize::from(u16::MAX)) as u32
    }

    /// The index as it is checked.
    pub fn checked(&self, base: Base<'a>) -> Blocks<'a> {
        Blocks { base, layout: self.block, count: self.blocks, links: None }
    }
}

/// `flat` has no parameters of its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Params;

/// The next block to ask for.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct State {
    next_block: u32,
}

/// Reusable buffers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Scratch {
    blocks: BlockScratch,
}

impl Kind for Flat {
    type View<'a> = View<'a>;
    type Params = Params;
    type State = State;
    type Scratch = Scratch;

    fn is_valid(_: &Params, _: u32) -> bool {
        true
    }

    fn reset(state: &mut State, _: &Params, _: u32) {
        state.next_block = 0;
    }

    fn budget(view: &View<'_>) -> Budget {
        let usual = Budget::default();
        Budget { hops: usual.hops.max(view.blocks), reads: usual.reads.max(view.blocks), ..usual }
    }

    fn prepare(_: &Base<'_>, _: &View<'_>, _: &[u8], _: &mut Scratch) {}

    fn step(cx: &mut StepContext<'_, Self>, arrived: Ordered<'_>) {
        cx.q.started = true;
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

    fn check_read(_: &Base<'_>, view: &View<'_>, read: &Read, bytes: &[u8]) -> bool {
        blocks::verify(view.block, view.blocks, read.at, bytes)
    }

    fn size(base: &Base<'_>, view: &View<'_>) -> IndexSize {
        IndexSize { nodes: base.nodes, units: view.blocks, clusters: 0 }
    }

    fn fits(state: &State, size: &IndexSize) -> bool {
        state.next_block <= size.units
    }

    fn encode_params(_: &Params, _: u32, _: &mut Writer<'_>) {}

    fn decode_params(_: &mut Reader<'_>) -> Result<Params, Refused> {
        Ok(Params)
    }

    fn encode(state: &State, _: (Carry, u32), w: &mut Writer<'_>, _: &mut Vec<Candidate>) {
        w.u32(state.next_block);
    }

    fn decode(state: &mut State, _: &Params, _: u32, r: &mut Reader<'_>) -> Result<(), Refused> {
        state.next_block = r.u32()?;
        Ok(())
    }

    fn memory_bytes(_: &State) -> usize {
        0
    }
}

/// Keeps `width` reads under way until every block that may have a result has been asked for.
fn choose(cx: &mut StepContext<'_, Flat>) {
    while cx.q.io.pending.len() < cx.q.width as usize && skip(cx) < cx.view.blocks {
        let at = blocks::extent(cx.view.block, cx.own.next_block);
        if cx.q.budget.hops == 0 || cx.fetch(at, cx.own.next_block, 0).is_none() {
            return cx.q.finish(Outcome::OutOfBudget);
        }
        cx.own.next_block += 1;
    }
    cx.end_round(&[]);
}

/// Skips blocks without a row that may be returned. Returns the next block.
fn skip(cx: &mut StepContext<'_, Flat>) -> u32 {
    if cx.base.sieve.is_some() {
        let first = cx.own.next_block.saturating_mul(cx.view.block_rows());
        cx.own.next_block = cx.next_returnable(first).map_or(cx.view.blocks, |row| cx.view.block_of(row));
    }
    cx.own.next_block
}
