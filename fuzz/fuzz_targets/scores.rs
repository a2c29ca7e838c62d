//! Replies to jobs: a query over lists on other servers takes in whatever they send, and ends.
#![no_main]

use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;
use stratann_core::kinds::KindParams;
use stratann_core::place::Placement;
use stratann_core::query::wire::read_scores;
use stratann_core::query::{Arrival, Arrived, Budget, Loss, Outcome, QueryState, Scratch, Step};
use stratann_fuzz::place::{Which, place};
use stratann_fuzz::{edits, run};

/// Rounds after which such a query must have ended.
const ROUNDS_MAX: usize = 2_000;

fuzz_target!(|data: &[u8]| {
    static PLACEMENTS: [OnceLock<Placement>; 2] = [OnceLock::new(), OnceLock::new()];
    let (choice, mut rest) = edits::first(data);
    let which = usize::from(choice & 1);
    let place = place([Which::Graphs, Which::Divided][which]);
    let mut view = place.index().view();
    let units = view.size().units;
    // Lists are on server 0, which is here, on server 1, on both, or on 1 and 2.
    let replicas = || (0..units).map(|unit| [2, 1, 3, 6][unit as usize % 4]).collect();
    let placement = PLACEMENTS[which].get_or_init(|| Placement::new(3, replicas()).expect("a placement"));
    view.base.here = Some(run::shard(placement));
    let mut params = run::params(&view);
    if let KindParams::HybridIvf(own) = &mut params.kind {
        own.remote = stratann_core::query::ScoringMode::Score;
    }
    params.width = 1 + u32::from(choice >> 4);
    let (query, mut scratch) = (run::query(), Scratch::default());
    scratch.prepare(&view, &query);
    let mut state = QueryState::new(params, Budget::default());
    let (mut reads, mut jobs): (Vec<_>, Vec<_>) = Default::default();
    for _ in 0..ROUNDS_MAX {
        let mut arrivals: Vec<Arrival<'_>> = Vec::new();
        for (tag, read) in &reads {
            arrivals.push(Arrival { tag: *tag, what: run::arrival(&view, place.data(), read) });
        }
        for tag in &jobs {
            arrivals.push(Arrival { tag: *tag, what: reply(&mut rest) });
        }
        match state.step(&view, &mut scratch, &arrivals) {
            Step::Wait => {}
            Step::HandOver(to) => return assert!(to < 3),
            Step::Done => return assert!(state.outcome() != Outcome::Running),
        }
        reads = run::wanted(&state);
        jobs = state.jobs().map(|(tag, _)| tag).collect();
    }
    panic!("the query does not end");
});

/// The next reply; lost when none is left or it makes no sense. Each has its length in two bytes before it.
fn reply<'a>(rest: &mut &'a [u8]) -> Arrived<'a> {
    let Some((length, more)) = rest.split_first_chunk::<2>() else { return Arrived::Lost(Loss::Failed) };
    let length = usize::from(u16::from_le_bytes(*length)).min(more.len());
    let (bytes, after) = more.split_at(length);
    *rest = after;
    read_scores(bytes).map_or(Arrived::Lost(Loss::Damaged), Arrived::Scores)
}
