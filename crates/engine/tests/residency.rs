//! A search that uses whole blocks ends alike wherever rows and adjacency lists are: only reads tell.

mod common;

use common::{Built, Set, clustered, queries, quick, run_plain, with_graph};
use proptest::prelude::*;
use proptest::sample::select;
use stratann_core::kinds::{IndexView, KindView};
use stratann_core::query::{Budget, Mode, Outcome, Params, QueryState, QueryStats};
use stratann_engine::build::IndexKind;
use stratann_engine::{DType, Metric};
use stratann_storage::Quiet;

/// The rules that stop a search: patience, margin with the share of idle reads, slack.
type Rules = (u32, (f32, f32), f32);
const NO_RULES: Rules = (0, (f32::INFINITY, 0.0), f32::INFINITY);

const WIDTHS: [u32; 3] = [1, 2, 8];

/// Whole blocks, an entry by the head graph, and scans.
const FORMS: [(bool, bool, bool); 4] =
    [(true, true, false), (false, true, false), (true, false, false), (true, true, true)];

fn resident(set: Set, metric: Metric) -> Built {
    let mut built = Built::new(set, &quick(IndexKind::DiskGraph, metric));
    built.index.set_cache_budget(1 << 30);
    assert!(built.index.make_resident(&Quiet).unwrap());
    built
}

fn params((k, list): (u32, u32), width: u32, (patience, margin, slack): Rules) -> Params {
    let params = Params { width, approach_width: width.div_ceil(2), ..Params::disk_graph(k, list) };
    with_graph(params, |own| {
        own.patience = patience;
        (own.stop_margin, own.idle_share) = margin;
        own.stop_slack = slack;
    })
}

/// The index as if nothing but codes were in memory.
fn on_disk<'a>(view: &IndexView<'a>) -> IndexView<'a> {
    let mut view = *view;
    let KindView::DiskGraph(own) = &mut view.kind else { panic!("not disk-graph") };
    own.resident = None;
    view
}

/// The index in memory, with steps that end after so many comparisons.
fn in_memory<'a>(view: &IndexView<'a>, comparisons: u64) -> IndexView<'a> {
    let mut view = *view;
    let KindView::DiskGraph(own) = &mut view.kind else { panic!("not disk-graph") };
    own.resident.as_mut().unwrap().step_comparisons = comparisons;
    view
}

/// All that an answer and its way have, but reads.
fn way(state: &QueryState) -> impl PartialEq + std::fmt::Debug {
    let hits: Vec<(u32, u64)> =
        state.results().iter().map(|hit| (hit.distance.to_bits(), hit.external_id)).collect();
    let stats = QueryStats { reads: 0, pages_read: 0, bytes_read: 0, ..*state.stats() };
    let beam = state.disk_graph().map(|own| own.beam().entries().to_vec());
    (state.outcome(), state.budget(), hits, stats, beam)
}

/// Runs a query from disk and from memory, in short steps and in long ones. Returns the one from disk.
fn same_way(view: &IndexView<'_>, blocks: &[u8], query: &[u8], params: Params, budget: Budget) -> QueryState {
    let end = |view: &IndexView<'_>| run_plain(view, blocks, query, params, budget, 3);
    let disk = end(&on_disk(view));
    for comparisons in [0, 1, 100, 2048, u64::MAX] {
        let memory = end(&in_memory(view, comparisons));
        assert_eq!(way(&memory), way(&disk), "{params:?}");
        let QueryStats { reads, pages_read, bytes_read, cache_hits, round_trips, .. } = *memory.stats();
        assert_eq!([reads, pages_read, bytes_read, cache_hits, round_trips], [0; 5]);
    }
    disk
}

fn rules() -> impl Strategy<Value = Rules> {
    let margin = prop_oneof![Just((f32::INFINITY, 0.0)), (-0.2f32..0.5, 0.0f32..0.5)];
    let slack = prop_oneof![Just(f32::INFINITY), -1.0f32..2.0];
    (prop_oneof![Just(0u32), 1u32..8], margin, slack)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whole_blocks_in_memory_are_those_that_are_read(
        dtype in select(vec![DType::F32, DType::F16, DType::U8, DType::I8]),
        metric in select(vec![Metric::L2, Metric::Cosine, Metric::Ip]),
        (rows, dim) in (select(vec![1usize, 20, 255, 1200]), 4usize..40),
        (k, list, excluded) in (select(vec![1u32, 10, 40]), 1u32..80, any::<u32>()),
        (rules, hops, reads) in (rules(), 0u32..12, 0u32..20),
    ) {
        let built = resident(Set::new(dtype, dim, &clustered(rows, dim, 12, 1)), metric);
        let (view, blocks) = (built.index.view(), built.blocks());
        let asked = Set::new(dtype, dim, &clustered(3, dim, 12, 2));
        for width in WIDTHS {
            for (q, (whole_blocks, head, scan)) in FORMS.into_iter().enumerate() {
                let params = with_graph(params((k, list), width, rules), |own| {
                    (own.whole_blocks, own.head, own.scan) = (whole_blocks, head, scan);
                });
                let excluding = Params { exclude: excluded % rows as u32, ..params };
                let query = asked.row(q % asked.len());
                for params in [params, excluding] {
                    let usual = same_way(&view, &blocks, query, params, Budget::default());
                    prop_assert_eq!(usual.outcome(), Outcome::Complete);
                    same_way(&view, &blocks, query, params, Budget { hops, ..Budget::default() });
                    same_way(&view, &blocks, query, params, Budget { reads, ..Budget::default() });
                }
            }
        }
    }
}

fn graph() -> (Built, Set) {
    let set = Set::new(DType::F32, 24, &clustered(3000, 24, 12, 1));
    (resident(set, Metric::L2), queries(8, 24))
}

/// Each rule and each limit stops these searches early, so their counts of blocks are compared above.
#[test]
fn rules_and_limits_count_blocks_in_memory() {
    let (built, asked) = graph();
    let (view, blocks) = (built.index.view(), built.blocks());
    let reads = |rules: Rules, budget: Budget, outcome: Outcome| {
        let ends = (0..asked.len()).map(|q| {
            let end = same_way(&view, &blocks, asked.row(q), params((10, 60), 2, rules), budget);
            assert_eq!(end.outcome(), outcome);
            end.stats().reads
        });
        ends.sum::<u64>()
    };
    let whole = Budget::default();
    let most = reads(NO_RULES, whole, Outcome::Complete);
    for rules in [(2, NO_RULES.1, NO_RULES.2), (0, (-0.1, 0.3), NO_RULES.2), (0, NO_RULES.1, -0.5)] {
        let fewer = reads(rules, whole, Outcome::Complete);
        assert!(fewer > 0 && fewer < most, "{rules:?}: {fewer} of {most}");
    }
    // The share of idle reads alone decides here.
    let by_share = [0.1, 0.8].map(|share| reads((0, (-1.0, share), NO_RULES.2), whole, Outcome::Complete));
    assert!(by_share[0] < by_share[1], "{by_share:?}");
    for short in [Budget { hops: 3, ..whole }, Budget { reads: 5, ..whole }] {
        assert!(reads(NO_RULES, short, Outcome::OutOfBudget) < most);
    }
}

/// What arrives first is timing on disk; in memory it is what was asked for first, as in `barrier` mode.
#[test]
fn eager_searches_in_memory_go_the_way_of_barrier_mode() {
    let (built, asked) = graph();
    let (view, blocks) = (in_memory(&built.index.view(), 1), built.blocks());
    for q in 0..asked.len() {
        for width in WIDTHS {
            let end = |mode| {
                let params = Params { mode, ..params((10, 40), width, (6, NO_RULES.1, 0.5)) };
                run_plain(&view, &blocks, asked.row(q), params, Budget::default(), 3)
            };
            let (eager, barrier) = (end(Mode::Eager), end(Mode::Barrier));
            assert_eq!(way(&eager), way(&barrier));
        }
    }
}
