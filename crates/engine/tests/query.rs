//! One query at a time, stepped by hand: budgets, hidden nodes, and that no block is read twice.

mod common;

use std::collections::HashSet;
use std::sync::{Arc, OnceLock};

use common::{Built, Set, clustered, graph_set, hits, nearest, queries, quick, run, run_plain, with_graph};
use proptest::prelude::*;
use stratann_core::query::{Budget, MAX_K, MAX_SEARCH_LIST, MAX_WIDTH, Mode, Outcome, Params, QueryState};
use stratann_engine::build::IndexKind;
use stratann_engine::{DType, Metric};

struct Place {
    built: Built,
    blocks: Arc<Vec<u8>>,
}

impl Place {
    fn ask(&self, query: &[u8], params: Params, budget: Budget, seed: u64) -> QueryState {
        run_plain(&self.built.index.view(), &self.blocks, query, params, budget, seed)
    }

    fn block_count(&self) -> u64 {
        let view = self.built.index.view();
        let graph = view.kind.disk_graph().map(|view| view.blocks);
        u64::from(graph.or_else(|| view.kind.flat().map(|view| view.blocks)).unwrap())
    }
}

fn place(cell: &'static OnceLock<Place>, kind: IndexKind) -> &'static Place {
    cell.get_or_init(|| {
        let set = match kind {
            IndexKind::DiskGraph => graph_set(),
            _ => Set::new(DType::F32, 24, &clustered(8000, 24, 12, 1)),
        };
        let built = Built::new(set, &quick(kind, Metric::L2));
        let blocks = built.blocks();
        Place { built, blocks }
    })
}

fn graph() -> &'static Place {
    static PLACE: OnceLock<Place> = OnceLock::new();
    place(&PLACE, IndexKind::DiskGraph)
}

fn flat() -> &'static Place {
    static PLACE: OnceLock<Place> = OnceLock::new();
    place(&PLACE, IndexKind::Flat)
}

#[test]
fn an_empty_allowance_ends_a_query_before_it_reads() {
    let asked = queries(1, 24);
    for place in [graph(), flat()] {
        for budget in [
            Budget { hops: 0, reads: 0, ..Budget::default() },
            Budget { hops: 0, reads: 9, ..Budget::default() },
            Budget { hops: 9, reads: 0, ..Budget::default() },
        ] {
            let state = place.ask(asked.row(0), Params::disk_graph(10, 40), budget, 1);
            assert_eq!((state.outcome(), state.stats().reads), (Outcome::OutOfBudget, 0));
            assert!(state.results().is_empty());
        }
    }
}

#[test]
fn a_small_allowance_is_never_exceeded() {
    let asked = queries(4, 24);
    for place in [graph(), flat()] {
        for (hops, reads) in [(1, 1), (1, 100), (2, 100), (100, 1), (100, 3)] {
            for mode in [Mode::Barrier, Mode::Eager] {
                // So long a beam that no query ends by itself.
                let params = Params { width: 4, approach_width: 4, mode, ..Params::disk_graph(10, 200) };
                for q in 0..asked.len() {
                    let state = place.ask(
                        asked.row(q),
                        params,
                        Budget { hops, reads, ..Budget::default() },
                        q as u64,
                    );
                    assert_eq!(state.outcome(), Outcome::OutOfBudget, "{hops} hops, {reads} reads");
                    assert!(state.stats().reads <= u64::from(reads) && state.stats().hops <= u64::from(hops));
                }
            }
        }
    }
}

/// With as much as it needs a query completes, with one read less it does not.
#[test]
fn the_allowance_is_counted_to_the_read() {
    let asked = queries(3, 24);
    for place in [graph(), flat()] {
        for q in 0..asked.len() {
            let params = Params::disk_graph(10, 40);
            let free = place.ask(asked.row(q), params, Budget::default(), 1);
            let (hops, reads) = (free.stats().hops as u32, free.stats().reads as u32);
            let same = place.ask(asked.row(q), params, Budget { hops, reads, ..Budget::default() }, 1);
            assert_eq!((same.outcome(), same.results()), (Outcome::Complete, free.results()));
            for less in [
                Budget { hops: hops - 1, reads, ..Budget::default() },
                Budget { hops, reads: reads - 1, ..Budget::default() },
            ] {
                assert_eq!(place.ask(asked.row(q), params, less, 1).outcome(), Outcome::OutOfBudget);
            }
        }
    }
}

fn any_params() -> impl Strategy<Value = Params> {
    let size =
        (prop_oneof![1u32..30, Just(MAX_K), Just(3000)], prop_oneof![1u32..200, Just(MAX_SEARCH_LIST)]);
    let width = (prop_oneof![1u32..9, Just(MAX_WIDTH)], 1u32..65);
    let stop = (prop_oneof![Just(f32::INFINITY), -16f32..4.0], 0u32..20);
    (size, width, stop, any::<[bool; 3]>(), 1u32..80).prop_map(
        |((k, list), (width, approach), (slack, patience), flags, head_list)| {
            let mode = if flags[0] { Mode::Barrier } else { Mode::Eager };
            let approach_width = approach.min(width);
            let params = Params { width, approach_width, mode, ..Params::disk_graph(k, list) };
            with_graph(params, |own| {
                (own.stop_slack, own.patience, own.head_list) = (slack, patience, head_list);
                (own.whole_blocks, own.head) = (flags[1], flags[2]);
            })
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    /// `run` fails when a query waits for nothing or does not end.
    #[test]
    fn every_query_ends_within_its_allowance(
        params in any_params(),
        hops in prop_oneof![0u32..8, Just(100_000)],
        reads in prop_oneof![0u32..12, Just(1_000_000)],
        seed in any::<u64>(),
    ) {
        prop_assert!(params.is_valid());
        for place in [graph(), flat()] {
            let state = place.ask(queries(1, 24).row(0), params, Budget { hops, reads, ..Budget::default() }, seed);
            prop_assert!(matches!(state.outcome(), Outcome::Complete | Outcome::OutOfBudget));
            prop_assert!(state.stats().hops <= u64::from(hops) && state.stats().reads <= u64::from(reads));
            prop_assert!(state.results().len() <= params.k as usize);
            prop_assert!(state.results().windows(2).all(|w| (w[0].distance, w[0].external_id) < (w[1].distance, w[1].external_id)));
        }
    }

    /// The beam is the visited set of whole blocks, too.
    #[test]
    fn no_block_is_read_twice(params in any_params(), seed in any::<u64>(), q in 0usize..20) {
        let params = with_graph(Params { mode: Mode::Barrier, ..params }, |own| own.whole_blocks = true);
        let place = graph();
        let mut seen = HashSet::new();
        let state = QueryState::new(params, Budget::default());
        let end = run(&place.built.index.view(), &place.blocks, queries(20, 24).row(q), state, seed, |state, _, asked| {
            for &(_, block) in asked {
                assert!(seen.insert(block), "block {block} was asked for twice");
            }
            state
        });
        prop_assert_eq!(end.outcome(), Outcome::Complete);
        prop_assert_eq!(end.stats().reads, seen.len() as u64);
        prop_assert!(end.stats().reads <= place.block_count());
    }

    #[test]
    fn a_hidden_node_never_appears(params in any_params(), seed in any::<u64>(), row in 0usize..3000) {
        let place = graph();
        let query = place.built.set.row(row);
        let view = place.built.index.view();
        let node = node_of_row(row);
        let open = place.ask(query, params, Budget::default(), seed);
        let hidden = Params { exclude: node, ..params };
        let state = run(&view, &place.blocks, query, QueryState::new(hidden, Budget::default()), seed, |state, _, _| {
            assert!(state.disk_graph().unwrap().beam().entries().iter().all(|c| c.id != node));
            state
        });
        prop_assert!(state.results().iter().all(|h| h.external_id != row as u64));
        prop_assert_eq!(open.outcome(), Outcome::Complete);
        prop_assert_eq!(state.outcome(), Outcome::Complete);
    }
}

/// The node that holds a row, looked up in the blocks.
fn node_of_row(row: usize) -> u32 {
    static NODES: OnceLock<Vec<u32>> = OnceLock::new();
    let nodes = NODES.get_or_init(|| {
        let view = graph().built.index.view();
        let mut nodes = vec![u32::MAX; view.base.nodes as usize];
        for bytes in graph().blocks.chunks_exact(view.kind.disk_graph().unwrap().block.block_bytes) {
            let block =
                stratann_core::format::block::Block::open(view.kind.disk_graph().unwrap().block, bytes)
                    .unwrap();
            for slot in 0..block.count() {
                nodes[block.external_id(slot) as usize] = block.first_id() + slot as u32;
            }
        }
        nodes
    });
    nodes[row]
}

#[test]
fn what_is_not_hidden_is_still_found() {
    let place = graph();
    let (mut found, mut wanted) = (0, 0);
    for row in (0..3000).step_by(100) {
        let query = place.built.set.row(row);
        let params = Params { exclude: node_of_row(row), ..Params::disk_graph(10, 80) };
        let state = place.ask(query, params, Budget::default(), 1);
        let truth = nearest(&place.built.set, Metric::L2, query, 10, |i| i == row);
        found += hits(&state.results().iter().map(|h| h.external_id).collect::<Vec<_>>(), &truth);
        wanted += truth.len();
    }
    assert!(found as f64 >= 0.95 * wanted as f64, "{found} of {wanted}");
}

/// A flat index is exact, whatever the width and order.
#[test]
fn flat_is_the_truth() {
    let place = flat();
    let asked = queries(10, 24);
    for q in 0..asked.len() {
        let truth = nearest(&place.built.set, Metric::L2, asked.row(q), 20, |_| false);
        for (width, mode) in [(1, Mode::Barrier), (3, Mode::Eager), (64, Mode::Barrier)] {
            let state = place.ask(
                asked.row(q),
                Params { width, mode, ..Params::disk_graph(20, 20) },
                Budget::default(),
                q as u64,
            );
            assert_eq!(state.results().iter().map(|h| h.external_id).collect::<Vec<_>>(), truth);
            assert_eq!((state.stats().full_comparisons, state.stats().reads), (8000, place.block_count()));
        }
    }
}

/// A beam as long as the set, and k as large as it goes, visit everything that can be reached.
#[test]
fn the_longest_beam_finds_all() {
    let place = graph();
    let params =
        Params { width: MAX_WIDTH, approach_width: MAX_WIDTH, ..Params::disk_graph(MAX_K, MAX_SEARCH_LIST) };
    let state = place.ask(queries(1, 24).row(0), params, Budget::default(), 1);
    assert_eq!((state.outcome(), state.results().len()), (Outcome::Complete, 3000));
    assert_eq!(state.stats().reads, place.block_count());
}
