//! The state of a query on the wire: decoded, encoded again, and stepped over a small index.
#![no_main]

use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;
use stratann_core::kinds::{IndexView, KindParams};
use stratann_core::place::Placement;
use stratann_core::query::wire::{Carry, Encoder, OLDEST_VERSION, decode, encode};
use stratann_core::query::{QueryState, Scratch, Step};
use stratann_fuzz::place::{Place, Which, place};
use stratann_fuzz::{edits, run, seal};

fuzz_target!(|data: &[u8]| {
    let (choice, body) = edits::first(data);
    let Ok(state) = decode(&seal::state(body)) else { return };
    let own = encoded(&state, Carry::Distances);
    let again = decode(&own).expect("what was encoded");
    assert_eq!(encoded(&again, Carry::Distances), own);
    let ids = encoded(&state, Carry::Ids);
    let again = decode(&ids).expect("what was encoded");
    assert_eq!(encoded(&again, Carry::Ids), ids);

    let previous = older(&state);
    let again = decode(&previous).expect("what was encoded for a server of the previous version");
    assert_eq!(older(&again), previous);

    let place = match (state.params().kind, choice & 1) {
        (KindParams::Flat(_), _) => place(Which::Flat),
        (KindParams::DiskGraph(_), 0) => place(Which::Graph),
        (KindParams::DiskGraph(_), _) => place(Which::CodedGraph),
        (KindParams::HybridIvf(_), 0) => place(Which::Graphs),
        (KindParams::HybridIvf(_), _) => place(Which::Divided),
        (KindParams::GridIvf(_), _) => place(Which::Grid),
        (KindParams::GpuIvf(_), _) => place(Which::Gpu),
        (KindParams::RemoteHnsw(_), _) => place(Which::Remote),
    };
    step(state, place, choice);
});

fn encoded(state: &QueryState, carry: Carry) -> Vec<u8> {
    let mut out = Vec::new();
    encode(state, carry, &mut out);
    out
}

fn older(state: &QueryState) -> Vec<u8> {
    let mut out = Vec::new();
    Encoder::default().encode(state, Carry::Distances, OLDEST_VERSION, &mut out);
    out
}

/// Steps the state as a server does that received it. A server accepts batons alone; one without distances only where
/// all codes are in RAM.
fn step(mut state: QueryState, place: &Place, choice: u8) {
    static PLACEMENT: OnceLock<Placement> = OnceLock::new();
    let mut view: IndexView<'_> = place.index().view();
    if !state.is_baton(&view.size()) || !(view.rescores() || state.has_distances()) {
        return;
    }
    let blocks = place.manifest.blocks.count;
    if choice & 6 == 6 && choice & 1 == 0 && view.kind.disk_graph().is_some() {
        let replicas = || (0..blocks).map(|block| 1 + u64::from(block % 7)).collect();
        let placement = PLACEMENT.get_or_init(|| Placement::new(3, replicas()).expect("a placement"));
        view.base.here = Some(run::shard(placement));
    }
    let (query, mut scratch) = (run::query(), Scratch::default());
    scratch.prepare(&view, &query);
    if let Step::HandOver(to) = run::step(&mut state, &view, &mut scratch, place.data()) {
        assert!((1..3).contains(&to));
        decode(&encoded(&state, Carry::Distances)).expect("what was encoded");
    }
}
