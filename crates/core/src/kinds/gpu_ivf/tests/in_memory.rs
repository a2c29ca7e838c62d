//! Searches with all vectors in memory against the same searches that read them.

use alloc::vec;

use proptest::prelude::*;
use stratann_kernel::{DType, Metric};

use super::{Index, params, settings};
use crate::exact::ResidentRows;
use crate::format::block::Block;
use crate::kinds::gpu_ivf::{Params as Own, Resident, Rule};
use crate::kinds::{IndexView, KindView};
use crate::query::{Params, QueryState, Scratch};
use crate::search::{Arrival, Arrived, Budget, Outcome, QueryStats};

/// All rows of an index.
fn rows(index: &Index) -> ResidentRows {
    let view = index.view();
    let KindView::GpuIvf(own) = view.kind else { unreachable!() };
    let mut rows = ResidentRows::with_room(own.map.nodes() as usize, own.block);
    for block in 0..own.blocks {
        let at = crate::access::blocks::extent(own.block, block);
        rows.push(&Block::open(own.block, index.read(at)).unwrap());
    }
    rows
}

fn in_memory<'a>(index: &'a Index, rows: &'a ResidentRows, step_comparisons: u64) -> IndexView<'a> {
    let mut view = index.view();
    let KindView::GpuIvf(own) = &mut view.kind else { unreachable!() };
    own.resident = Some(Resident { rows, step_comparisons });
    #[cfg(feature = "lab")]
    {
        own.baselines = None;
    }
    view
}

/// Counters of a search but for those of its reads.
fn without_reads(stats: &QueryStats) -> QueryStats {
    QueryStats { reads: 0, pages_read: 0, bytes_read: 0, record_reads: 0, ..*stats }
}

prop_compose! {
    fn techniques()(
        exact in prop::bool::weighted(0.2),
        rule in prop::sample::select(Rule::ALL.to_vec()),
        batch in 1u32..40, candidates in 40u32..400, beta in 0u32..3, margin in -1f32..2.0,
        merge: bool, reuse: bool, whole_blocks: bool, width in 1u32..9,
    ) -> (Own, u32) {
        let own = Own {
            exact, rule, batch, candidates, beta, margin, merge, reuse, whole_blocks, epsilon: 0.2,
            ..Own::new(1, 5)
        };
        (own, width)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn vectors_in_memory_change_no_answer_and_no_counter_but_those_of_reads(
        (metric, dtype, seed, k) in settings(),
        (techniques, width) in techniques(),
        step_comparisons in prop::sample::select(vec![0, 1, 40, 2048, u64::MAX]),
        limits in prop::option::weighted(0.5, (0u32..12, 0u32..40)),
    ) {
        let index = Index::new(metric, dtype, seed);
        let (query, rows) = (index.query(seed), rows(&index));
        let asked = params(k, |own| *own = Own { candidates: techniques.candidates.max(k), ..techniques });
        let asked = Params { width, ..asked };
        let usual = index.view().budget();
        let budget = limits.map_or(usual, |(hops, reads)| Budget { hops, reads, ..usual });
        let run = |view: &IndexView<'_>| index.run_on(view, &query, QueryState::new(asked, budget), seed);
        let (read, here) = (run(&index.view()), run(&in_memory(&index, &rows, step_comparisons)));
        prop_assert_eq!(here.outcome(), read.outcome());
        prop_assert_eq!(here.results(), read.results());
        prop_assert_eq!(here.stats().reads + here.stats().pages_read + here.stats().record_reads, 0);
        prop_assert_eq!(without_reads(here.stats()), without_reads(read.stats()));
    }
}

#[test]
fn a_step_in_memory_ends_after_so_many_comparisons() {
    let index = Index::new(Metric::L2, DType::F32, 7);
    let (query, rows) = (index.query(7), rows(&index));
    let steps = |exact, step_comparisons| {
        let view = in_memory(&index, &rows, step_comparisons);
        let asked = params(10, |own| (own.exact, own.batch) = (exact, 10));
        let mut state = QueryState::new(asked, view.budget());
        let mut scratch = Scratch::default();
        scratch.prepare(&view, &query);
        let mut steps = 0;
        while state.outcome() == Outcome::Running {
            steps += 1;
            let tag = state.code_wants().next();
            let ranking = tag.map(|_| scratch.rank_codes(&view));
            let arrival = tag.zip(ranking.as_ref());
            let arrival = arrival.map(|(tag, own)| Arrival { tag, what: Arrived::Ranked(own.ranked()) });
            state.step(&view, &mut scratch, arrival.as_slice());
        }
        steps
    };
    for exact in [true, false] {
        // A step asks the scorer of codes, or for the first blocks.
        assert!(steps(exact, u64::MAX) <= 2 && steps(exact, 1) >= 8, "{exact}");
    }
}
