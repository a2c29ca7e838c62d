//! The trace of one `gpu-ivf` query, for `explain`: the lists, the mini-batches, and how each result was found.

use stratann_core::kinds::gpu_ivf::{Found, Rule};
use stratann_core::kinds::{IndexView, KindView};
use stratann_core::query::{Params, run};
use stratann_core::sieve::Sieve;
use stratann_core::view;

use super::open::GpuIndex;
use crate::base::Base;
use crate::kinds::questions::RanksCodes;
use crate::trace::{FoundBy, FoundResult, MiniBatch, RankedList, Ranking, Reranking, Results, Trace, traced};

/// Runs `query` on its own, and records it.
pub(crate) fn explain(
    (base, sieve): (&Base, Option<&Sieve>),
    index: &GpuIndex,
    query: &[u8],
    params: Params,
) -> Trace {
    let seen = view::Base { sieve, ..base.view() };
    let view = IndexView { base: seen, kind: KindView::GpuIvf(GpuIndex::view(index, base)) };
    let (mut state, mut scratch) = traced(&view, query, params);
    run(&mut state, &view, &mut scratch, |at| {
        let mut bytes = Vec::new();
        base.read_extent(index.stores(), at, &mut bytes).map(|()| bytes)
    });
    let trace = scratch.gpu_ivf().and_then(|own| own.traced()).cloned().unwrap_or_default();
    let lists = view.kind.gpu_ivf().map(|own| own.lists);
    let own = params.kind.gpu_ivf().copied();
    let visit = |&(list, centroid_distance): &(u32, f32)| {
        let mut ids = Vec::new();
        let (_, count) = lists.map_or((0, 0), |lists| lists.own(list));
        let _ = lists.and_then(|lists| lists.replicas_of(list, &mut ids));
        RankedList { list, centroid_distance, own: count, replicas: ids.len() as u32 }
    };
    let batches = trace.batches.iter().map(|b| MiniBatch {
        candidates: b.candidates,
        reads: b.reads,
        shared: b.shared,
        known: b.known,
        changed: b.changed,
    });
    let stats = state.stats();
    let ranking = Ranking {
        nprobe: own.map_or(0, |own| own.nprobe),
        candidates: own.map_or(0, |own| own.candidates),
        rule: own.map_or(Rule::default(), |own| own.rule).name(),
        lists: trace.lists.iter().map(visit).collect(),
        duplicates: stats.duplicates,
        gpu_bytes: stats.gpu_bytes,
    };
    let reranking = Reranking { batches: batches.collect() };
    let lost = "a block or a list could not be read, or is damaged; run `stratann verify`";
    let all = Trace::of(&state, vec![ranking.into(), reranking.into()], lost);
    let found = |result: &FoundResult| {
        let by = match trace.found.iter().find(|found| found.0 == result.id).map(|found| found.1) {
            Some(Found::Candidate { rank, batch }) => FoundBy { candidate: Some(rank), batch: Some(batch) },
            Some(Found::SameBlock { batch }) => FoundBy { candidate: None, batch: Some(batch) },
            None => FoundBy::default(),
        };
        FoundResult { found: Some(by), ..*result }
    };
    Trace { results: Results::Rows(all.results.all().iter().map(found).collect()), ..all }
}
