//! Refused frames and abandoned queries; functions that the tests of this folder share.

use super::filters::{FIXED_BYTES, KEY_BYTES};
use super::*;
use crate::query::wire::{Carry, Results};
use crate::query::{Budget, Params, Progress, Step};
use crate::sieve::Sieve;
use alloc::sync::Arc;
use alloc::vec;
use message::Refused;

pub(super) const VECTOR_BYTES: usize = 64;
const BUILD: u64 = 7;
/// Number of `disk-graph` on the wire.
const DISK_GRAPH: u8 = 1;

pub(super) fn served(carry: Carry, results: Results) -> Served {
    Served {
        build: BUILD,
        kind: DISK_GRAPH,
        vector_bytes: VECTOR_BYTES,
        size: IndexSize { nodes: 1000, units: 100, clusters: 0 },
        carry,
        results,
        rescores: true,
        jobs_have_queries: false,
        parts: crate::place::Parts::ONE,
    }
}

fn peer(server: u8) -> Peer {
    Peer::new(server, 1, served(Carry::Ids, Results::Along), 0b11, Limits::default())
}

/// Submits a query for the best 3.
pub(super) fn submit(peer: &mut Peer, number: u64, time_us: u64, out: &mut Vec<Action>) {
    let what = (Params::disk_graph(3, 4), Budget::default());
    let query = peer.codec().new_query(number, what, (&[7; VECTOR_BYTES], None), time_us);
    peer.submit(0, query, out);
}

/// The frames among a peer's actions.
pub(super) fn frames(peer: &Peer, out: Vec<Action>) -> Vec<(u8, Vec<u8>)> {
    let mut pool = BufferPool::default();
    let frame = |action| match action {
        Action::Send { to, message } => Some((to, peer.codec().frame(message, &mut pool))),
        _ => None,
    };
    out.into_iter().filter_map(frame).collect()
}

/// Delivers one frame.
pub(super) fn receive(peer: &mut Peer, from: u8, frame: &[u8]) -> Result<Vec<Action>, Refused> {
    let mut out = vec![];
    let received = peer.codec().decode(frame, &mut BufferPool::default())?;
    peer.received(0, from, received, &mut out);
    Ok(out)
}

fn started(out: &mut Vec<Action>) -> (Run, Box<QueryState>) {
    match out.pop() {
        Some(Action::Start { run, state }) => (run, state),
        other => panic!("{other:?}, a state should start"),
    }
}

fn baton(state: &[u8], vector: &[u8], build: u64) -> Vec<u8> {
    let run = Run { query: QueryId { origin: 1, incarnation: 1, number: 0 }, attempt: 0, job: None };
    let mut frame = vec![];
    Message::Baton { run, visited: 2, left_us: 9, vector, state }.encode(build, 0, &mut frame);
    frame
}

fn encoded(carry: Carry, candidates: u32) -> Vec<u8> {
    let mut state = QueryState::new(Params::disk_graph(1, 4), Budget::default());
    (0..candidates).for_each(|id| assert!(state.beam_mut().offer(9, 400 * id, Progress::Fresh)));
    let mut bytes = vec![];
    wire::encode(&state, carry, &mut bytes);
    bytes
}

#[test]
fn a_baton_without_distances_is_refused_where_they_cannot_be_computed() {
    let taken = |rescores, carry, candidates| {
        let served = Served { rescores, ..served(Carry::Distances, Results::Along) };
        let mut peer = Peer::new(0, 1, served, 3, Limits::default());
        receive(&mut peer, 1, &baton(&encoded(carry, candidates), &[0; VECTOR_BYTES], BUILD))
            .map(|out| out.len())
    };
    assert_eq!(taken(false, Carry::Ids, 2), Err(Refused::Content));
    // A query that has not begun has no distances to compute.
    for (rescores, carry, candidates) in
        [(true, Carry::Ids, 2), (false, Carry::Distances, 2), (false, Carry::Ids, 0)]
    {
        assert_eq!(taken(rescores, carry, candidates), Ok(1));
    }
}

#[test]
fn frames_and_states_of_another_build_version_or_kind_are_refused_with_the_reason() {
    let good = encoded(Carry::Ids, 2);
    let refused = |frame: &[u8]| {
        let mut peer = peer(0);
        let refused = receive(&mut peer, 1, frame).expect_err("it is refused");
        assert_eq!(peer.held(), (0, 0), "a refused frame changes nothing");
        refused
    };
    let vector = [0; VECTOR_BYTES];
    assert!(receive(&mut peer(0), 1, &baton(&good, &vector, BUILD)).is_ok());
    assert_eq!(refused(&baton(&good, &vector, 8)), Refused::Build(8));
    let mut old = baton(&good, &vector, BUILD);
    old[0] = message::VERSION as u8 - 1;
    assert_eq!(refused(&old), Refused::Version(message::VERSION - 1));
    // A good frame around a state of another version.
    let mut state = good.clone();
    state[0] = wire::VERSION as u8 + 1;
    assert_eq!(refused(&baton(&state, &vector, BUILD)), Refused::Version(wire::VERSION + 1));
    // One of the previous version is read; a server of that version reads no newer one.
    let state = QueryState::new(Params::disk_graph(1, 4), Budget::default());
    let mut previous = vec![];
    wire::Encoder::default().encode(&state, Carry::Ids, wire::OLDEST_VERSION, &mut previous);
    assert!(receive(&mut peer(0), 1, &baton(&previous, &vector, BUILD)).is_ok());
    let mut old = peer(0);
    old.read_up_to(wire::OLDEST_VERSION);
    assert!(receive(&mut old, 1, &baton(&previous, &vector, BUILD)).is_ok());
    let newest = receive(&mut old, 1, &baton(&good, &vector, BUILD)).expect_err("it is refused");
    assert_eq!(newest, Refused::Version(wire::VERSION));
    // A state of another kind of index, in a baton and in an answer.
    let mut flat = vec![];
    wire::encode(&QueryState::new(Params::flat(1), Budget::default()), Carry::Ids, &mut flat);
    assert_eq!(refused(&baton(&flat, &vector, BUILD)), Refused::Kind(0));
    let run = Run { query: QueryId { origin: 0, incarnation: 1, number: 0 }, attempt: 0, job: None };
    let mut answer = vec![];
    Message::Answer { run, visited: 2, state: flat }.encode(BUILD, 0, &mut answer);
    assert_eq!(refused(&answer), Refused::Kind(0));
    // A vector of another length; a node that the index does not have.
    assert_eq!(refused(&baton(&good, &vector[1..], BUILD)), Refused::Content);
    assert_eq!(refused(&baton(&encoded(Carry::Ids, 4), &vector, BUILD)), Refused::Content);
    assert_eq!(refused(&[]), Refused::Length);
}

#[test]
fn a_query_past_its_deadline_is_not_begun_and_a_running_one_is_abandoned() {
    let (mut peer, mut out) = (peer(0), vec![]);
    submit(&mut peer, 1, 0, &mut out);
    let (late, _) = started(&mut out);
    assert_eq!(peer.begin(0, &late), None);
    submit(&mut peer, 2, 100, &mut out);
    let (run, _) = started(&mut out);
    assert_eq!(peer.begin(99, &run).map(|begun| begun.expires_at_us), Some(100));
    assert!(peer.is_wanted(99, &run) && !peer.is_wanted(100, &run));
    peer.dropped(100, &run, &mut out);
    assert!(matches!(out.pop(), Some(Action::Fail { number: 2, why: Failure::Expired })));
    assert!(out.is_empty(), "{out:?}");
    // The one that waits fails with the next tick.
    peer.tick(100, &mut out);
    assert!(matches!(out.pop(), Some(Action::Fail { number: 1, why: Failure::Expired })));
    assert_eq!(peer.held(), (0, 0));
}

#[test]
fn a_cancelled_query_is_abandoned_on_every_server() {
    let (mut origin, mut host, mut out) = (peer(0), peer(1), vec![]);
    submit(&mut origin, 1, 1000, &mut out);
    let (run, mut state) = started(&mut out);
    assert!(origin.begin(0, &run).is_some());
    state.q.stats.hand_overs = 1;
    let departure = origin
        .codec()
        .departure(run, Step::HandOver(1), &state, &mut BufferPool::default())
        .expect("it leaves");
    origin.stepped(0, departure, &mut out);
    let sent = frames(&origin, core::mem::take(&mut out));
    let mut there = receive(&mut host, 0, &sent[0].1).expect("a good frame");
    let (run, _) = started(&mut there);
    assert!(host.begin(0, &run).is_some() && host.abandoned() == 0);

    origin.cancel(1, &mut out);
    assert_eq!((origin.held(), origin.abandoned()), ((0, 0), 0), "it does not run here");
    let released = frames(&origin, core::mem::take(&mut out));
    let [(1, release)] = released.as_slice() else { panic!("{released:?}") };
    receive(&mut host, 0, release).expect("a good frame");
    assert!(!host.is_wanted(0, &run) && host.abandoned() == 1);
    host.dropped(0, &run, &mut out);
    assert_eq!((host.held(), out.len()), ((0, 0), 0));
    // Cancelled while it waits for a slot.
    submit(&mut origin, 2, 1000, &mut out);
    let (run, _) = started(&mut out);
    origin.cancel(2, &mut out);
    assert!(origin.begin(0, &run).is_none() && origin.abandoned() == 1);
    origin.cancel(2, &mut out);
    assert!(out.is_empty(), "a second time changes nothing");
}

#[test]
fn states_are_written_as_all_live_servers_read_them() {
    let mut peer = peer(0);
    let written = |peer: &Peer| peer.states_version();
    assert_eq!(written(&peer), wire::VERSION);
    peer.agree(1, wire::OLDEST_VERSION);
    assert_eq!(written(&peer), wire::OLDEST_VERSION);
    let mut out = vec![];
    peer.down(0, 1, &mut out);
    assert_eq!(written(&peer), wire::VERSION, "it is gone");
    peer.up(1, &mut out);
    assert_eq!(written(&peer), wire::OLDEST_VERSION);
    peer.agree(1, wire::VERSION);
    assert_eq!(written(&peer), wire::VERSION, "it came back upgraded");
    peer.agree(77, 0);
    assert_eq!(written(&peer), wire::VERSION, "no such server");
}

/// The bytes of a filter, with a key that stands for their digest.
fn keyed(filter: &Sieve) -> (FilterKey, Arc<[u8]>) {
    let mut bytes = vec![];
    filter.encode(&mut bytes);
    ([filter.count() as u8; 32], bytes.into())
}

fn submit_with(peer: &mut Peer, number: u64, filter: &Sieve, out: &mut Vec<Action>) {
    let what = (Params::disk_graph(3, 4), Budget::default());
    let query = peer.codec().new_query(number, what, (&[7; VECTOR_BYTES], Some(keyed(filter))), 1000);
    peer.submit(0, query, out);
}

/// The rows that a run may return.
fn rows(peer: &mut Peer, run: &Run) -> Sieve {
    let begun = peer.begin(0, run).expect("it is wanted");
    assert_eq!(begun.vector, [7; VECTOR_BYTES]);
    Sieve::decode(1000, begun.filter).expect("a filter")
}

/// Hands a state over to server `to`. Returns the frame.
fn handed_over(peer: &mut Peer, run: Run, mut state: Box<QueryState>, to: u8) -> Vec<u8> {
    state.q.stats.hand_overs += 1;
    let departure = peer.codec().departure(run, Step::HandOver(to), &state, &mut BufferPool::default());
    let mut out = vec![];
    peer.stepped(0, departure.expect("it leaves"), &mut out);
    frames(peer, out).pop().expect("a baton").1
}

#[test]
fn a_filter_goes_to_each_server_once_and_then_its_key() {
    let filter = Sieve::from_sorted(1000, &(0..700).collect::<Vec<u32>>()).unwrap();
    let (mut origin, mut host, mut out) = (peer(0), peer(1), vec![]);
    submit_with(&mut origin, 1, &filter, &mut out);
    let (run, state) = started(&mut out);
    let bytes = filter.encoded_bytes();
    assert_eq!(rows(&mut origin, &run), filter);
    let first = handed_over(&mut origin, run, state, 1);
    let (there, state) = started(&mut receive(&mut host, 0, &first).expect("a good frame"));
    assert_eq!(rows(&mut host, &there), filter);
    let back = handed_over(&mut host, there, state, 0);
    assert!(back.len() + VECTOR_BYTES + bytes <= first.len(), "the origin has both");
    let (again, state) = started(&mut receive(&mut origin, 1, &back).expect("a good frame"));
    let second = handed_over(&mut origin, again, state, 1);
    assert!(second.len() + VECTOR_BYTES + bytes <= first.len(), "so has the other");
    let (there, _) = started(&mut receive(&mut host, 0, &second).expect("a good frame"));
    assert_eq!(rows(&mut host, &there), filter);
    origin.cancel(1, &mut out);
    let released = frames(&origin, core::mem::take(&mut out));
    receive(&mut host, 0, &released[0].1).expect("a good frame");
    // Another query with the same filter brings its key alone, and has all of its rows.
    for number in 2..5 {
        submit_with(&mut origin, number, &filter, &mut out);
        let (run, state) = started(&mut out);
        let next = handed_over(&mut origin, run, state, 1);
        assert!(next.len() + bytes == first.len(), "{} of {}", next.len(), first.len());
        let (there, _) = started(&mut receive(&mut host, 0, &next).expect("a good frame"));
        assert_eq!(rows(&mut host, &there), filter);
    }
    assert_eq!((origin.filters_sent(), host.filters_sent()), ((1, 3), (0, 0)));
    assert_eq!((origin.filters.all.len(), host.filters.all.len()), (1, 1));
}

#[test]
fn a_server_that_has_lost_a_filter_gets_it_again_and_runs_nothing_before() {
    let filter = Sieve::from_sorted(1000, &[1, 7, 900]).unwrap();
    let (mut origin, mut host, mut out) = (peer(0), peer(1), vec![]);
    submit_with(&mut origin, 1, &filter, &mut out);
    let (run, state) = started(&mut out);
    let first = handed_over(&mut origin, run, state, 1);
    started(&mut receive(&mut host, 0, &first).expect("a good frame"));
    // It starts again, and its link was not seen to go down.
    let mut host = peer(1);
    submit_with(&mut origin, 2, &filter, &mut out);
    let (run, state) = started(&mut out);
    let by_key = handed_over(&mut origin, run, state, 1);
    let said = receive(&mut host, 0, &by_key).expect("a good frame");
    assert!(said.iter().all(|action| matches!(action, Action::Send { .. })), "{said:?}");
    let said = frames(&host, said);
    assert_eq!((said.len(), said[0].0, host.held()), (1, 0, (0, 0)));
    let (run, state) = started(&mut receive(&mut origin, 1, &said[0].1).expect("a good frame"));
    assert_eq!(run.attempt, 1, "it begins again at once");
    let again = handed_over(&mut origin, run, state, 1);
    let (there, _) = started(&mut receive(&mut host, 0, &again).expect("a good frame"));
    assert_eq!(rows(&mut host, &there), filter);
    // After a link that was down nothing is taken for granted.
    origin.down(0, 1, &mut out);
    origin.up(1, &mut out);
    out.clear();
    submit_with(&mut origin, 3, &filter, &mut out);
    let (run, state) = started(&mut out);
    let next = handed_over(&mut origin, run, state, 1);
    started(&mut receive(&mut peer(1), 0, &next).expect("a good frame"));
}

#[test]
fn filters_of_servers_that_send_no_keys_are_taken() {
    let filter = Sieve::from_sorted(1000, &[1, 7, 900]).unwrap();
    let (mut origin, mut host, mut out) = (peer(0), peer(1), vec![]);
    origin.agree(1, wire::FILTERS_VERSION);
    for number in 1..3 {
        submit_with(&mut origin, number, &filter, &mut out);
        let (run, state) = started(&mut out);
        let frame = handed_over(&mut origin, run, state, 1);
        let (there, _) = started(&mut receive(&mut host, 0, &frame).expect("a good frame"));
        assert_eq!(rows(&mut host, &there), filter);
        assert_eq!(host.begin(0, &there).and_then(|begun| begun.filter_key), None);
    }
    assert_eq!(origin.filters_sent(), (2, 0));
}

#[test]
fn filters_beyond_the_limit_are_refused_and_dropped() {
    let filters = [1, 2, 3].map(|n| Sieve::from_sorted(1000, &[1, 7, 900][..n]).unwrap());
    let bytes = |n: usize| filters[..n].iter().map(|f| f.encoded_bytes() as u64 + FIXED_BYTES).sum::<u64>();
    let limited = |server, filter_bytes| {
        let limits = Limits { filter_bytes, ..Limits::default() };
        Peer::new(server, 1, served(Carry::Ids, Results::Along), 0b11, limits)
    };
    let (mut origin, mut out) = (limited(0, bytes(2)), vec![]);
    (0..3).for_each(|number| submit_with(&mut origin, number, &filters[number as usize], &mut out));
    let refused = |action: &Action| matches!(action, Action::Fail { number: 2, why: Failure::Overloaded });
    assert!(out.len() == 3 && refused(&out[2]), "{out:?}");
    // One that is known needs no more room, and one that no query has makes room for others.
    submit_with(&mut origin, 5, &filters[1], &mut out);
    assert!(matches!(out[3], Action::Start { .. }), "{out:?}");
    origin.cancel(0, &mut vec![]);
    submit_with(&mut origin, 6, &filters[0], &mut out);
    origin.cancel(6, &mut vec![]);
    assert_eq!(origin.filters.all.len(), 2, "kept, for others to come");
    out.clear();
    let Some(smaller) = Sieve::from_sorted(1000, &[]) else { panic!() };
    submit_with(&mut origin, 7, &smaller, &mut out);
    let (run, state) = started(&mut out);
    assert_eq!(origin.filters.all.len(), 2, "the one that was used longest ago has gone");
    let frame = handed_over(&mut origin, run, state, 1);
    let own = smaller.encoded_bytes() as u64 + FIXED_BYTES;
    // A server without room takes no part in the query, and one that has room does, also where it has it already.
    assert!(receive(&mut limited(1, own - 1), 0, &frame).expect("a good frame").is_empty());
    let mut host = limited(1, own);
    assert_eq!(receive(&mut host, 0, &frame).expect("a good frame").len(), 1);
    submit_with(&mut origin, 8, &smaller, &mut out);
    let (run, state) = started(&mut out);
    let next = handed_over(&mut origin, run, state, 1);
    assert_eq!(receive(&mut host, 0, &next).expect("a good frame").len(), 1, "it is here");
    host.tick(u64::MAX, &mut vec![]);
    assert_eq!((host.held(), host.filters.unused.len()), ((0, 0), 1), "it may be used again");
    // Longer than a filter can be.
    let vector = vec![0; VECTOR_BYTES + KEY_BYTES + FILTER_BYTES_MAX + 1];
    let long = receive(&mut peer(0), 1, &baton(&encoded(Carry::Ids, 2), &vector, BUILD));
    assert_eq!(long.unwrap_err(), Refused::Content);
    let cut = receive(&mut peer(0), 1, &baton(&encoded(Carry::Ids, 2), &[0; VECTOR_BYTES + 31], BUILD));
    assert_eq!(cut.unwrap_err(), Refused::Content, "a part of a key");
}
