//! Blocks that a search uses whole: as they were read, or from rows and lists in memory.
//!
//! A block in memory is asked for as a read is. It counts for the budget and for the rules that stop a search, and the
//! blocks that are asked for together are used in that order before others are chosen. So answers do not depend on what
//! is in memory.

use alloc::vec::Vec;

use super::resident::ResidentLists;
use super::{Codes, DiskGraph, View};
use crate::access::blocks;
use crate::exact::{BlockRows, ResidentBlock, ResidentRows};
use crate::format::block::Block;
use crate::kinds::kind::StepContext;
use crate::search::{Outcome, Visited};

/// The rows and adjacency lists of a block, wherever they lie.
pub(super) trait Source: BlockRows {
    /// Appends the neighbours of `slot` that were not met before to `new`, which is empty. Returns how many were met;
    /// `None` when the adjacency list is inconsistent.
    fn new_neighbours(&self, slot: usize, visited: &mut Visited, new: &mut Vec<u32>) -> Option<usize>;

    /// The block as it was read; `None` in memory, where blocks carry no codes.
    fn as_read(&self) -> Option<&Block<'_>>;
}

impl Source for Block<'_> {
    fn new_neighbours(&self, slot: usize, visited: &mut Visited, new: &mut Vec<u32>) -> Option<usize> {
        self.neighbours(slot, new)?;
        Some(visited.keep_new(new))
    }

    fn as_read(&self) -> Option<&Block<'_>> {
        Some(self)
    }
}

/// A block whose rows and lists are in memory.
pub(super) struct ResidentNodes<'a> {
    lists: &'a ResidentLists,
    rows: ResidentBlock<'a>,
}

impl<'a> ResidentNodes<'a> {
    /// Those of a block; `None` where memory does not have its rows.
    fn of(view: &View<'a>, block: u32) -> Option<ResidentNodes<'a>> {
        let lists = view.resident?.lists;
        let rows = view.resident?.rows?.block(&view.map.nodes_of(block))?;
        Some(ResidentNodes { lists, rows })
    }
}

impl BlockRows for ResidentNodes<'_> {
    fn count(&self) -> usize {
        self.rows.count()
    }

    fn first_id(&self) -> u32 {
        self.rows.first_id()
    }

    fn vectors(&self) -> &[u8] {
        self.rows.vectors()
    }

    fn inverse_norms<'n>(&'n self, room: &'n mut Vec<f32>) -> &'n [f32] {
        self.rows.inverse_norms(room)
    }

    fn row(&self, slot: usize) -> (&[u8], f32) {
        self.rows.row(slot)
    }

    fn external_id(&self, slot: usize) -> u64 {
        self.rows.external_id(slot)
    }
}

impl Source for ResidentNodes<'_> {
    fn new_neighbours(&self, slot: usize, visited: &mut Visited, new: &mut Vec<u32>) -> Option<usize> {
        let list = self.lists.of(self.rows.id(slot));
        visited.append_new(list, new);
        Some(list.len() - new.len())
    }

    fn as_read(&self) -> Option<&Block<'_>> {
        None
    }
}

/// All rows, where blocks need not be read. A read that is under way already is waited for.
pub(super) fn in_memory<'a>(cx: &StepContext<'a, DiskGraph>) -> Option<&'a ResidentRows> {
    let is_whole = cx.base.here.is_none() && matches!(cx.view.codes, Codes::All(_));
    cx.view.resident?.rows.filter(|_| is_whole && cx.q.io.pending.is_empty())
}

/// Blocks that were asked for and are not used yet.
pub(super) fn asked(cx: &StepContext<'_, DiskGraph>) -> usize {
    cx.q.io.pending.len() + cx.scratch.round.len()
}

/// Whether this block is one of [`asked`].
pub(super) fn is_asked(cx: &StepContext<'_, DiskGraph>, block: u32) -> bool {
    cx.q.io.is_pending(block) || cx.scratch.round.contains(&block)
}

/// Asks for a block, in memory or by a read. Returns false where the budget allows no more.
pub(super) fn ask(cx: &mut StepContext<'_, DiskGraph>, block: u32) -> bool {
    if in_memory(cx).is_none() {
        return read(cx, block);
    }
    let is_asked = take_block(cx);
    if is_asked {
        cx.scratch.round.push(block);
    }
    is_asked
}

/// Counts a block in memory as if it were read. Returns false where the budget allows no more.
pub(super) fn take_block(cx: &mut StepContext<'_, DiskGraph>) -> bool {
    if cx.q.budget.hops == 0 || cx.q.budget.reads == 0 {
        return false;
    }
    cx.q.budget.reads -= 1;
    cx.own.blocks_in_memory = cx.own.blocks_in_memory.saturating_add(1);
    true
}

/// Asks for a read of a block. Returns false where the budget allows no more.
pub(super) fn read(cx: &mut StepContext<'_, DiskGraph>, block: u32) -> bool {
    cx.q.budget.hops > 0 && cx.fetch(blocks::extent(cx.view.block, block), block, 0).is_some()
}

/// Ends a choice of blocks, as [`StepContext::end_round`] does.
pub(super) fn end_round(cx: &mut StepContext<'_, DiskGraph>, remote_blocks: &[u32]) {
    if cx.scratch.round.is_empty() {
        return cx.end_round(remote_blocks);
    }
    cx.q.count_hop();
}

/// Comparisons after which a step ends with nothing to wait for.
pub(super) fn step_comparisons(cx: &StepContext<'_, DiskGraph>) -> u64 {
    cx.view.resident.map_or(0, |resident| resident.step_comparisons)
}

/// Has blocks chosen until the query waits for reads, has ended, or the step is long enough. Those in memory are used
/// at once, round by round.
pub(super) fn go_on<'a>(
    cx: &mut StepContext<'a, DiskGraph>,
    choose: impl Fn(&mut StepContext<'a, DiskGraph>),
    use_block: impl Fn(&mut StepContext<'a, DiskGraph>, &ResidentNodes<'a>),
) {
    let compared = |cx: &StepContext<'_, DiskGraph>| {
        cx.q.stats.code_comparisons.saturating_add(cx.q.stats.full_comparisons)
    };
    let until = compared(cx).saturating_add(step_comparisons(cx));
    while cx.q.outcome == Outcome::Running {
        choose(cx);
        let mut round = core::mem::take(&mut cx.scratch.round);
        let is_used = !round.is_empty() && cx.q.outcome == Outcome::Running;
        if is_used {
            let in_memory = round.iter().filter_map(|&block| ResidentNodes::of(cx.view, block));
            in_memory.for_each(|block| use_block(cx, &block));
        }
        // Another way, to which this one may give way, begins with none.
        round.clear();
        cx.scratch.round = round;
        if !is_used || compared(cx) >= until {
            break;
        }
    }
}
