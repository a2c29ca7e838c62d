//! Whole inverted lists, as systems read them that this kind is compared with: lists of vectors on disk (SPANN) or in
//! RAM (RUMMY), or lists of codes whose nearest members are re-ranked (FusionANNS §2.3, figure 4).

use super::Source;
use crate::format::posting_file::PostingList;
use crate::kinds::gpu_ivf::{GpuIvf, Scratch, Stage, Turn, code_job, rerank};
use crate::kinds::kind::StepContext;

/// Reads the next lists, `width` at a time. When all are taken in, results are complete, or candidates are re-ranked.
pub(in crate::kinds::gpu_ivf) fn choose(cx: &mut StepContext<'_, GpuIvf>) -> Option<Turn> {
    let is_codes = cx.params.compared.source == Source::CodeLists;
    if cx.own.next == 0 && cx.params.compared.copies {
        let of_vectors = 4 * cx.base.dim as u64;
        cx.q.stats.gpu_bytes += if is_codes { code_job(cx.scratch).query_bytes() } else { of_vectors };
    }
    while cx.q.io.pending.len() < cx.q.width as usize {
        let Some(&list) = cx.own.lists.get(cx.own.next as usize) else { break };
        cx.own.next += 1;
        cx.q.stats.lists += 1;
        let Some(at) = cx.view.baselines.and_then(|own| own.list_extent(list, is_codes)) else { continue };
        if cx.params.compared.source == Source::ResidentLists {
            let resident = cx.view.baselines.map_or(&[][..], |own| own.resident);
            let start = usize::try_from(at.offset).ok()?;
            take(cx, resident.get(start..start.checked_add(at.bytes as usize)?)?)?;
            continue;
        }
        if cx.q.budget.hops == 0 {
            return None;
        }
        cx.fetch(at, list, 0)?;
    }
    if cx.q.io.pending.is_empty() && cx.own.next as usize >= cx.own.lists.len() && is_codes {
        keep_nearest(cx);
        cx.own.stage = Stage::Rerank;
        cx.q.stats.gpu_bytes +=
            if cx.params.compared.copies { 8 * cx.own.candidates.len() as u64 } else { 0 };
        return rerank::choose(cx);
    }
    Some(Turn::Ends)
}

/// Scores the members of a list that was read.
pub(in crate::kinds::gpu_ivf) fn take(cx: &mut StepContext<'_, GpuIvf>, bytes: &[u8]) -> Option<()> {
    let own = cx.view.baselines?;
    let is_codes = cx.params.compared.source == Source::CodeLists;
    let list = PostingList::open(if is_codes { &own.code_list } else { &own.list }, bytes)?;
    if cx.params.compared.copies {
        // Ids, and vectors or codes.
        cx.q.stats.gpu_bytes += 4 * list.count() as u64 + list.entries().len() as u64;
    }
    if is_codes {
        take_codes(cx, &list);
    } else {
        take_vectors(cx, &list);
    }
    Some(())
}

fn take_codes(cx: &mut StepContext<'_, GpuIvf>, list: &PostingList<'_>) {
    let Scratch { query, ids, distances, .. } = &mut *cx.scratch;
    ids.clear();
    ids.extend(0..list.count() as u32);
    query.coded.distances(list.entries(), ids, distances);
    cx.q.stats.code_comparisons += list.count() as u64;
    for (member, &distance) in distances.iter().enumerate() {
        let id = list.id(member);
        if cx.q.exists(id) && id < cx.base.nodes {
            cx.own.candidates.push((distance, id));
        }
    }
    if cx.own.candidates.len() >= 4 * cx.params.candidates as usize {
        keep_nearest(cx);
    }
}

/// Keeps the nearest candidates, each once.
fn keep_nearest(cx: &mut StepContext<'_, GpuIvf>) {
    let count = cx.own.candidates.len();
    cx.own.candidates.sort_unstable();
    cx.own.candidates.dedup();
    cx.q.stats.duplicates += (count - cx.own.candidates.len()) as u64;
    cx.own.candidates.truncate(cx.params.candidates as usize);
}

fn take_vectors(cx: &mut StepContext<'_, GpuIvf>, list: &PostingList<'_>) {
    let Scratch { exact, norms, .. } = &mut *cx.scratch;
    norms.clear();
    norms.extend((0..list.count()).map(|member| list.inverse_norm(member)));
    cx.exact.distances(list.entries(), norms, exact);
    for (member, &distance) in exact.iter().enumerate() {
        if cx.q.exists(list.id(member)) {
            cx.q.stats.full_comparisons += 1;
            // A vector that an earlier list had is refused.
            cx.q.top.offer(distance, || list.external_id(member));
        }
    }
}
