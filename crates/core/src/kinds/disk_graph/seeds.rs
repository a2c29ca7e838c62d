//! The walk among the rows that a query may return. Where the nodes nearest to the query have too few of them, they lie
//! beyond, and a walk that follows the nearest nodes does not come there.
//!
//! It begins at those that the walk before it met, and at some from all parts of the index (Lance samples 16), and
//! follows no other rows. It comes after a walk that followed all nodes, whatever the sieve holds, and never instead.

use super::{Codes, DiskGraph, Sieving, forget_visited};
use crate::kinds::kind::StepContext;
use crate::search::Progress;

/// Rows that a walk begins at, unless another number was asked for.
pub const SEEDS: u32 = 16;

/// Begins the walk, once. Returns false where there is none.
pub(super) fn begin(cx: &mut StepContext<'_, DiskGraph>) -> bool {
    let Sieving { seeds, seed_list, .. } = cx.params.sieving;
    let Codes::All(codes) = cx.view.codes else { return false };
    if seeds == 0 || cx.own.among > 0 || cx.own.gave_way {
        return false;
    }
    let mut ids = core::mem::take(&mut cx.scratch.ids);
    ids.clear();
    ids.extend(cx.own.beam.entries().iter().map(|candidate| candidate.id).filter(|&id| cx.may_return(id)));
    let met = ids.len();
    // Where half of them lie near, the others are neighbours of theirs, and the usual beam is enough.
    let list = if 2 * met >= super::wanted(cx) as usize { cx.params.search_list } else { seed_list };
    if list == 0 {
        cx.scratch.ids = ids;
        return false;
    }
    let from = |seed: u32| (u64::from(cx.base.nodes) * u64::from(2 * seed + 1) / u64::from(2 * seeds)) as u32;
    ids.extend((0..seeds).filter_map(|seed| cx.next_returnable(from(seed))).filter(|&id| cx.may_return(id)));
    forget_visited(cx.base, cx.scratch);
    cx.scratch.visited.keep_new(&mut ids);
    cx.q.stats.seeds += ids.len().saturating_sub(met) as u64;
    cx.q.stats.code_comparisons += ids.len() as u64;
    let scratch = &mut *cx.scratch;
    scratch.query.coded.distances(codes, &ids, &mut scratch.distances);
    cx.q.top.reported_distances.clear();
    cx.own.among = list.max(cx.q.top.k);
    cx.own.beam.reset(cx.own.among as usize);
    for (&id, &distance) in ids.iter().zip(&scratch.distances) {
        cx.own.beam.offer(distance, id, Progress::Fresh);
    }
    scratch.ids = ids;
    (cx.own.walk.has_ended, cx.own.reads_without_change) = (false, 0);
    true
}
