//! The exact answer: every block is read and scored.
//!
//! In a cluster each server scans the blocks that it holds and no server before it has scanned. Then the query goes to
//! a server that holds others, so it is handed over less often than there are servers.

use alloc::vec::Vec;

use super::{DiskGraph, source};
use crate::exact::{BlockRows, ResidentRows, score_block, score_resident};
use crate::format::block::Block;
use crate::kinds::kind::{Ordered, StepContext};
use crate::place::{Reach, bit};
use crate::search::Outcome;
use crate::sieve::Sieve;

/// Rows in memory that are scored together.
const AT_ONCE: usize = 512;

/// Progress of a scan.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Scan {
    /// The next block to look at on this server.
    pub(super) next_block: u32,
    /// A bit for each server that has scanned all of its blocks.
    pub(super) servers: u64,
    /// Of a scan of codes: the next row to compare.
    pub(super) next_row: u32,
}

/// Scores what arrived, and asks for the next blocks.
pub(super) fn step(cx: &mut StepContext<'_, DiskGraph>, arrived: Ordered<'_>) {
    cx.q.started = true;
    let layout = cx.view.block;
    cx.take_in(arrived, |cx, _, bytes| {
        let block = Block::open(layout, bytes).ok()?;
        score(cx, &block);
        Some(())
    });
    match (cx.base.sieve, source::in_memory(cx)) {
        (Some(sieve), Some(rows)) => score_in_memory(cx, sieve, rows),
        _ => source::go_on(cx, choose, score),
    }
}

fn score(cx: &mut StepContext<'_, DiskGraph>, block: &impl BlockRows) {
    score_block(cx.q, cx.exact, cx.base.sieve, &mut cx.scratch.blocks, block);
}

/// Scores the rows of a sieve in memory, some hundreds together. Their blocks count as in [`choose`].
fn score_in_memory(cx: &mut StepContext<'_, DiskGraph>, sieve: &Sieve, rows: &ResidentRows) {
    let until = cx.q.stats.full_comparisons.saturating_add(source::step_comparisons(cx));
    let mut ids = core::mem::take(&mut cx.scratch.ids);
    while cx.q.outcome == Outcome::Running {
        ids.clear();
        collect(cx, sieve, &mut ids);
        if cx.q.outcome == Outcome::Running {
            score_resident(cx.q, cx.exact, &mut cx.scratch.blocks, rows, &ids);
            if cx.own.scan.next_block >= cx.view.blocks {
                source::end_round(cx, &[]);
            }
        }
        if cx.q.stats.full_comparisons >= until {
            break;
        }
    }
    ids.clear();
    cx.scratch.ids = ids;
}

/// Collects rows of a sieve: those of as many blocks as a round has, and of more rounds until they are enough.
fn collect(cx: &mut StepContext<'_, DiskGraph>, sieve: &Sieve, ids: &mut Vec<u32>) {
    let (map, width) = (cx.view.map, cx.q.width.max(1));
    let (mut blocks, mut last) = (0, None);
    for id in sieve.iter_in(map.nodes_of(cx.own.scan.next_block).start..cx.base.nodes) {
        let block = map.block_of(id);
        if last != Some(block) {
            if blocks == width {
                (blocks, cx.own.scan.next_block) = (0, block);
                cx.q.count_hop();
                if ids.len() >= AT_ONCE {
                    return;
                }
            }
            if !source::take_block(cx) {
                return cx.q.finish(Outcome::OutOfBudget);
            }
            (blocks, last) = (blocks + 1, Some(block));
        }
        if cx.q.exists(id) {
            ids.push(id);
        }
    }
    if blocks > 0 {
        cx.q.count_hop();
    }
    cx.own.scan.next_block = cx.view.blocks;
}

/// Whether a server has scanned this block, and could read it.
fn is_scanned(cx: &StepContext<'_, DiskGraph>, block: u32) -> bool {
    cx.base.here.as_ref().is_some_and(|here| {
        here.placement.replicas(block) & cx.own.scan.servers & !cx.q.lost_units.tried(block) != 0
    })
}

/// Keeps `width` reads under way until every block of this server has been asked for. Then hands the query over. Of
/// blocks in memory, as many are a round.
fn choose(cx: &mut StepContext<'_, DiskGraph>) {
    while source::asked(cx) < cx.q.width as usize {
        let block = cx.next_block(cx.view.map, cx.own.scan.next_block);
        cx.own.scan.next_block = block;
        if block >= cx.view.blocks {
            break;
        }
        cx.own.scan.next_block += 1;
        // A walk that gave way may have reads under way.
        if cx.reach(block) != Reach::Here || is_scanned(cx, block) || source::is_asked(cx, block) {
            continue;
        }
        if !source::ask(cx, block) {
            return cx.q.finish(Outcome::OutOfBudget);
        }
    }
    let mut remote_blocks = core::mem::take(&mut cx.scratch.remote_blocks);
    remote_blocks.clear();
    if source::asked(cx) == 0 && cx.own.scan.next_block >= cx.view.blocks {
        find_remote(cx, &mut remote_blocks);
    }
    source::end_round(cx, &remote_blocks);
    cx.scratch.remote_blocks = remote_blocks;
}

/// Ends the scan of this server. Finds a block that is left for another one; where there is none, gives up those that
/// no server can read.
fn find_remote(cx: &mut StepContext<'_, DiskGraph>, remote_blocks: &mut alloc::vec::Vec<u32>) {
    let Some(here) = cx.base.here.as_ref() else { return };
    cx.own.scan.servers |= bit(here.server);
    let left = |cx: &StepContext<'_, DiskGraph>, wanted: Reach| {
        let has_rows = |block| cx.may_return_any(&cx.view.map.nodes_of(block));
        let is_left = |&block: &u32| !is_scanned(cx, block) && cx.reach(block) == wanted && has_rows(block);
        (0..cx.view.blocks).find(is_left)
    };
    match left(cx, Reach::Remote) {
        Some(block) => {
            cx.own.scan.next_block = 0;
            remote_blocks.push(block);
        }
        None => left(cx, Reach::Nowhere).into_iter().for_each(|block| cx.q.give_up(block)),
    }
}
