//! The first candidates of a search: those nearest in the head graph, by code distance (BatANN §4.2).

use super::{Codes, DiskGraph, Scratch, forget_visited};
use crate::kinds::kind::StepContext;
use crate::search::{Beam, Progress, key};

/// Fills the beam of a query that begins.
pub(super) fn enter(cx: &mut StepContext<'_, DiskGraph>) {
    let mut beam = core::mem::take(&mut cx.scratch.head_beam);
    beam.reset(if cx.params.head { cx.params.head_list as usize } else { 1 });
    // Candidates are numbered by head node here, not by node.
    cx.scratch.head_nodes.clear();
    cx.scratch.head_nodes.push(0);
    loop {
        score_head_nodes(cx, &mut beam);
        if !cx.params.head {
            break;
        }
        let Some(at) = beam.next_fresh(0) else { break };
        beam.mark(at, Progress::Expanded);
        cx.scratch.head_nodes.clear();
        cx.scratch.head_nodes.extend_from_slice(cx.view.head.list(beam.entries()[at].id));
    }
    // From here on the set holds nodes, not head nodes.
    forget_visited(cx.base, cx.scratch);
    for candidate in beam.entries() {
        let Some(&id) = cx.view.head.ids.get(candidate.id as usize) else { continue };
        if cx.q.exists(id) {
            cx.own.beam.offer(candidate.distance, id, Progress::Fresh);
        }
    }
    cx.scratch.head_beam = beam;
}

fn score_head_nodes(cx: &mut StepContext<'_, DiskGraph>, beam: &mut Beam) {
    let Scratch { head_nodes, ids, query, distances, visited, keys, moved, .. } = &mut *cx.scratch;
    cx.q.stats.repeats += visited.keep_new(head_nodes) as u64;
    let graph = cx.view;
    match graph.codes {
        Codes::All(codes) => {
            ids.clear();
            let id = |&h: &u32| graph.head.ids.get(h as usize).copied().unwrap_or(u32::MAX);
            ids.extend(head_nodes.iter().map(id));
            query.coded.distances(codes, ids, distances);
        }
        Codes::Head(codes) => query.coded.distances(codes, head_nodes, distances),
    }
    cx.q.stats.code_comparisons += head_nodes.len() as u64;
    if cx.params.rerank > 0 {
        let threshold = beam.threshold();
        let pairs = head_nodes.iter().zip(distances.iter()).filter(|(_, distance)| **distance < threshold);
        keys.clear();
        keys.extend(pairs.map(|(&head, &distance)| key(distance, head)));
        beam.offer_all(keys, moved);
        return keys.clear();
    }
    for (&head, &distance) in head_nodes.iter().zip(distances.iter()) {
        if distance < beam.threshold() {
            beam.offer(distance, head, Progress::Fresh);
        }
    }
}
