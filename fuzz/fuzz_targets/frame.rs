//! Frames between servers: decoded, encoded again, taken in by the protocol, and answered.
#![no_main]

use libfuzzer_sys::fuzz_target;
use stratann_core::peer::message::{self, Message};
use stratann_core::peer::{Action, BufferPool, Limits, Peer, Run, Served};
use stratann_core::place::Parts;
use stratann_core::query::wire::{self, Carry, Results};
use stratann_core::query::{Budget, QueryState, Scratch};
use stratann_fuzz::place::{Place, Which, place};
use stratann_fuzz::{edits, run, seal};

const BUILD: u64 = 77;
const OWN: u8 = 1;

fuzz_target!(|data: &[u8]| {
    let (choice, rest) = edits::first(data);
    let place = place([Which::Flat, Which::Graph, Which::CodedGraph, Which::Graphs][usize::from(choice & 3)]);
    let view = place.index().view();
    let served = Served {
        build: BUILD,
        kind: view.kind_number(),
        vector_bytes: place.index().row_bytes(),
        size: view.size(),
        carry: if view.rescores() { Carry::Ids } else { Carry::Distances },
        results: if choice & 4 == 0 { Results::Along } else { Results::Origin },
        rescores: view.rescores(),
        jobs_have_queries: false,
        parts: match choice & 24 {
            24 => Parts::new([1; 3]).expect("three parts"),
            16 => Parts::new([2, 1]).expect("two parts"),
            _ => Parts::ONE,
        },
    };
    let mut peer = Peer::new(OWN, 1, served, 7, Limits::default());
    let (mut pool, mut actions) = (BufferPool::default(), Vec::new());
    let query = run::query();
    if choice & 32 != 0 {
        peer.agree(0, wire::OLDEST_VERSION);
    }
    let new = peer.codec().new_query(1, (run::params(&view), Budget::default()), &query, 1_000_000);
    peer.submit(0, new, &mut actions);
    // Each frame has its length in two bytes before it.
    let mut rest = rest;
    while let Some((length, more)) = rest.split_first_chunk::<2>() {
        let length = usize::from(u16::from_le_bytes(*length)).min(more.len());
        let (body, after) = more.split_at(length);
        receive(&mut peer, body, &mut pool, &mut actions);
        rest = after;
    }
    act(&mut peer, place, actions, &mut pool);
    peer.down(2, 0, &mut Vec::new());
    peer.tick(u64::MAX, &mut Vec::new());
});

/// Takes in the frame of this body, after the build, from server 0. A state in it is sealed too.
fn receive(peer: &mut Peer, body: &[u8], pool: &mut BufferPool, actions: &mut Vec<Action>) {
    let body = [&BUILD.to_le_bytes(), body].concat();
    let frame = seal::frame(&body);
    let Ok((message, load)) = message::decode(&frame, BUILD) else { return };
    let mut again = Vec::new();
    message.encode(BUILD, load, &mut again);
    assert_eq!(again, frame);
    let sealed = match message {
        Message::Baton { run, visited, left_us, vector, state } => {
            let state = &seal::state(state);
            encoded(&Message::Baton { run, visited, left_us, vector, state }, load)
        }
        Message::Answer { run, visited, state } => {
            encoded(&Message::Answer { run, visited, state: &seal::state(state) }, load)
        }
        _ => frame,
    };
    if let Ok(received) = peer.codec().decode(&sealed, pool) {
        peer.received(1, 0, received, actions);
    }
}

fn encoded(message: &Message<&[u8]>, load: u8) -> Vec<u8> {
    let mut out = Vec::new();
    message.encode(BUILD, load, &mut out);
    out
}

/// Does what the peer asks for, until it asks for nothing more.
fn act(peer: &mut Peer, place: &Place, mut actions: Vec<Action>, pool: &mut BufferPool) {
    while let Some(action) = actions.pop() {
        match action {
            Action::Start { run, state } => start(peer, place, (run, state), pool, &mut actions),
            Action::Send { message, .. } => {
                let frame = peer.codec().frame(message, pool);
                message::decode(&frame, BUILD).expect("a frame that was encoded");
            }
            Action::Scored { .. } | Action::Answer { .. } | Action::Fail { .. } => {}
        }
    }
}

fn start(
    peer: &mut Peer,
    place: &Place,
    (run, mut state): (Run, Box<QueryState>),
    pool: &mut BufferPool,
    actions: &mut Vec<Action>,
) {
    let view = place.index().view();
    let Some(begun) = peer.begin(1, &run) else { return peer.dropped(1, &run, actions) };
    assert_eq!(begun.vector.len(), place.index().row_bytes());
    let mut scratch = Scratch::default();
    scratch.prepare(&view, begun.vector);
    let step = run::step(&mut state, &view, &mut scratch, place.data());
    if let Some(departure) = peer.codec().departure(run, step, &state, pool) {
        peer.stepped(1, departure, actions);
    }
}
