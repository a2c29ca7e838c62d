//! Steps of one query over a file in memory.

use stratann_core::kinds::{IndexView, KindView};
use stratann_core::place::{LocalShard, Others, Placement};
use stratann_core::query::{
    Arrival, Arrived, Budget, Loss, Outcome, Params, QueryState, Read, Scratch, Step, Tag,
};
use stratann_core::score::Ranking;

/// Steps after which a query of such small indexes must have ended.
const STEPS_MAX: usize = 20_000;

/// A query vector.
pub fn query() -> Vec<u8> {
    crate::place::rows(1, 2)
}

/// Parameters of a query that visits all of a small index of this kind.
pub fn params(view: &IndexView<'_>) -> Params {
    match view.kind {
        KindView::Flat(_) => Params::flat(5),
        KindView::DiskGraph(_) => Params::disk_graph(5, 30),
        KindView::HybridIvf(_) => Params::hybrid_ivf(5, 6),
        KindView::GridIvf(_) => Params::grid_ivf(5, 6),
        KindView::GpuIvf(_) => Params::gpu_ivf(5, 12),
        KindView::RemoteHnsw(_) => Params::remote_hnsw(5, 6),
    }
}

/// Arrival of a read: verified bytes of `file`, or nothing.
pub fn arrival<'a>(view: &IndexView<'_>, file: &'a [u8], read: &Read) -> Arrived<'a> {
    let start = usize::try_from(read.at.offset).unwrap_or(usize::MAX);
    let end = start.saturating_add(read.at.bytes as usize);
    let Some(bytes) = file.get(start..end) else { return Arrived::Lost(Loss::Short) };
    match view.check_read(read, bytes) {
        Ok(()) => Arrived::Bytes(bytes),
        Err(loss) => Arrived::Lost(loss),
    }
}

/// The reads that the last step asked for.
pub fn wanted(state: &QueryState) -> Vec<(Tag, Read)> {
    let read = |tag| state.read_of(tag).expect("a pending read");
    state.fetches().map(|(tag, _)| (tag, read(tag))).collect()
}

/// Steps `state` until it ends, hands over, or waits for reads that were asked for elsewhere.
pub fn step(state: &mut QueryState, view: &IndexView<'_>, scratch: &mut Scratch, file: &[u8]) -> Step {
    let mut asked: Vec<(Tag, Read)> = Vec::new();
    let mut ranked: Vec<(Tag, Ranking)> = Vec::new();
    for _ in 0..STEPS_MAX {
        let reads = asked.iter().map(|(tag, read)| Arrival { tag: *tag, what: arrival(view, file, read) });
        let rankings = ranked.iter().map(|(tag, r)| Arrival { tag: *tag, what: Arrived::Ranked(r.ranked()) });
        let arrivals: Vec<Arrival<'_>> = reads.chain(rankings).collect();
        let step = state.step(view, scratch, &arrivals);
        asked = wanted(state);
        ranked = state.code_wants().map(|tag| (tag, scratch.rank_codes(view))).collect();
        if step != Step::Wait || (asked.is_empty() && ranked.is_empty()) {
            assert!(step != Step::Done || state.outcome() != Outcome::Running);
            return step;
        }
    }
    panic!("the query does not end");
}

/// Searches once.
pub fn search(view: &IndexView<'_>, file: &[u8]) -> QueryState {
    let (query, mut scratch) = (query(), Scratch::default());
    let mut state = QueryState::new(params(view), Budget::default());
    scratch.prepare(view, &query);
    step(&mut state, view, &mut scratch, file);
    state
}

/// A shard that holds the blocks of the placement's server 0, all servers alive.
pub fn shard(placement: &Placement) -> LocalShard<'_> {
    LocalShard { placement, server: 0, others: Others::live(u64::MAX) }
}
