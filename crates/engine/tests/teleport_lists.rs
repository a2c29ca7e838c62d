//! A query over inverted lists survives as bytes at every step, whatever the local indexes of its clusters.

mod common;

use std::sync::OnceLock;

use common::{Built, Set, clustered, list_options, quick, run, run_plain, with_lists};
use proptest::prelude::*;
use stratann_core::codec::Refused;
use stratann_core::exact::Bounds;
use stratann_core::format::directory::LocalKind;
use stratann_core::query::wire::{self, Carry, decode, encode};
use stratann_core::query::{Budget, Mode, Outcome, Params, QueryState, QueryStats, Scratch};
use stratann_engine::build::{IndexKind, LocalPlan};
use stratann_engine::{DType, Metric};

const DIM: usize = 16;

struct Place {
    built: Built,
    file: Vec<u8>,
}

fn place(local: LocalKind, metric: Metric) -> Place {
    let set = Set::new(DType::F32, DIM, &clustered(1500, DIM, 12, 1));
    let local_plan = LocalPlan::Uniform(local);
    let built = Built::new(
        set,
        &list_options(quick(IndexKind::HybridIvf, metric), |own| {
            (own.clusters, own.plan) = (Some(12), local_plan.into());
        }),
    );
    let file = std::fs::read(built.dir.path().join("v1-lists.bin")).unwrap();
    Place { built, file }
}

/// Runs a query that is encoded, forgotten and decoded after every step. Returns it, and how often it was.
fn teleported(place: &Place, query: &[u8], params: Params, budget: Budget) -> (QueryState, usize) {
    let (view, mut times) = (place.built.index.view(), 0);
    let state = run(&view, &place.file, query, QueryState::new(params, budget), 1, |state, scratch, _| {
        let mut bytes = Vec::new();
        encode(&state, Carry::Ids, &mut bytes);
        *scratch = Scratch::default();
        scratch.prepare(&view, query);
        let decoded = decode(&bytes).unwrap();
        let mut again = Vec::new();
        encode(&decoded, Carry::Ids, &mut again);
        assert_eq!(again, bytes);
        times += 1;
        decoded
    });
    (state, times)
}

#[test]
fn a_query_ends_alike_wherever_it_goes() {
    let asked = clustered(4, DIM, 12, 2);
    let mut moved = 0;
    for local in LocalKind::ALL {
        for metric in [Metric::L2, Metric::Cosine, Metric::Ip] {
            let place = place(local, metric);
            let asked = Set::new(DType::F32, DIM, &asked);
            for (width, mode) in [(1, Mode::Barrier), (3, Mode::Barrier), (2, Mode::Eager), (8, Mode::Eager)]
            {
                for bounds in [Bounds::Off, Bounds::Centroid, Bounds::Code, Bounds::Both] {
                    for q in 0..asked.len() {
                        let params = Params { width, mode, ..Params::hybrid_ivf(10, 6) };
                        let params = with_lists(params, |own| own.bounds = bounds);
                        for budget in [Budget::default(), Budget { hops: 3, reads: 5, ..Budget::default() }] {
                            let view = place.built.index.view();
                            let stayed = run_plain(&view, &place.file, asked.row(q), params, budget, 1);
                            let (travelled, times) = teleported(&place, asked.row(q), params, budget);
                            moved += times;
                            let what =
                                format!("{local:?} {metric:?} width {width} {mode:?} {bounds:?} query {q}");
                            assert_eq!(stayed.outcome(), travelled.outcome(), "{what}");
                            assert_eq!(stayed.results(), travelled.results(), "{what}");
                            // Members visited before are forgotten on the way, so some are scored again.
                            let QueryStats { repeats, code_comparisons, .. } = *travelled.stats();
                            let stats = QueryStats { repeats, code_comparisons, ..*stayed.stats() };
                            assert_eq!(stats, *travelled.stats(), "{what}");
                        }
                    }
                }
            }
        }
    }
    assert!(moved > 1000, "only {moved} moves");
}

/// Writes length and checksum again, as a malicious sender would.
fn reseal(bytes: &mut [u8]) {
    let length = (bytes.len() - 16) as u32;
    let sum = wire::seal(wire::VERSION, &bytes[16..]);
    bytes[4..8].copy_from_slice(&length.to_le_bytes());
    bytes[8..16].copy_from_slice(&sum.to_le_bytes());
}

/// A state in the middle of a query, as bytes.
fn midway(place: &Place) -> Vec<u8> {
    let asked = Set::new(DType::F32, DIM, &clustered(1, DIM, 12, 2));
    let (view, mut best) = (place.built.index.view(), Vec::new());
    let state = QueryState::new(Params::hybrid_ivf(10, 6), Budget::default());
    run(&view, &place.file, asked.row(0), state, 1, |state, _, _| {
        let mut bytes = Vec::new();
        encode(&state, Carry::Ids, &mut bytes);
        if bytes.len() > best.len() {
            best = bytes;
        }
        state
    });
    best
}

#[test]
fn every_shorter_state_is_refused_and_an_odd_one_before_memory_is_taken() {
    for local in LocalKind::ALL {
        let bytes = midway(&place(local, Metric::L2));
        assert_eq!(decode(&bytes).unwrap().outcome(), Outcome::Running);
        for end in 0..bytes.len() {
            assert!(decode(&bytes[..end]).is_err(), "{local:?}: {end} of {} bytes", bytes.len());
        }
        // With every byte changed and the checksum made right again, decoding ends: in a state or an error.
        let mut decoded = 0;
        for at in 16..bytes.len() {
            for change in [0x01, 0x80, 0xff] {
                let mut changed = bytes.clone();
                changed[at] ^= change;
                reseal(&mut changed);
                decoded += usize::from(decode(&changed).is_ok());
            }
        }
        assert!(decoded > 0);
    }
}

proptest! {
    #[test]
    fn any_section_of_this_kind_is_a_state_or_refused(
        keep in 17usize..400, section in prop::collection::vec(any::<u8>(), 0..400),
    ) {
        static GOOD: OnceLock<Vec<u8>> = OnceLock::new();
        let good = GOOD.get_or_init(|| midway(&place(LocalKind::Flat, Metric::L2)));
        let mut bytes = good[..keep.min(good.len())].to_vec();
        bytes.extend(section);
        reseal(&mut bytes);
        let _: Result<QueryState, Refused> = decode(&bytes);
    }
}
