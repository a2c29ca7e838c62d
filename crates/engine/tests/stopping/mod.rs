//! Servers that stop: what still runs is answered or dropped.

use stratann_engine::serve::{ServeOptions, Server, Unanswered};

use super::common::queries;
use super::{DIM, PATIENCE, Said, ask, ask_with, check, expected, long_search, options, source, waits_until};

/// A server that stops answers what runs, and all usual queries.
#[test]
fn heavy_queries_without_a_slot_are_refused_when_asked_to() {
    let (asked, said) = (queries(50, DIM), Said::default());
    let narrow = ServeOptions { in_flight: Some(2), ..options(source().dir.path(), &said) };
    let server = Server::start(narrow).unwrap();
    let heavy: Vec<_> =
        (0..200).map(|i| ask_with(&server, &long_search(), asked.row(i % 50), false, PATIENCE).1).collect();
    let usual: Vec<_> = (0..50).map(|i| ask(&server, asked.row(i), false, PATIENCE)).collect();
    server.refuse_waiting();
    let expected = expected(&asked);
    for (i, answer) in usual.iter().enumerate() {
        check(&asked, &expected, i, &answer.recv_timeout(PATIENCE).unwrap().unwrap());
    }
    let got: Vec<_> = heavy.iter().map(|answer| answer.recv_timeout(PATIENCE).unwrap()).collect();
    let is_refused = |g: &&Result<_, _>| matches!(g, Err(Unanswered::Failed(why)) if why.contains("stops"));
    let refused = got.iter().filter(is_refused).count() as u64;
    let answered = got.iter().filter(|g| g.is_ok()).count() as u64;
    assert!(refused > 100 && refused + answered == 200, "{refused} refused, {answered} answered");
    waits_until("the slots are free", || server.status().in_flight == 0);
    assert_eq!(server.status().waits.heavy.begun, answered);
    assert_eq!((server.held(), server.status().waiting), ((0, 0), 0));
}

#[test]
fn a_server_that_stops_drops_what_runs() {
    let (asked, said) = (queries(50, DIM), Said::default());
    let server = Server::start(options(source().dir.path(), &said)).unwrap();
    let search = long_search();
    let running: Vec<_> =
        (0..400).map(|i| ask_with(&server, &search, asked.row(i % 50), false, PATIENCE).1).collect();
    drop(server);
    let got: Vec<_> = running.iter().map(|answer| answer.recv_timeout(PATIENCE).unwrap()).collect();
    let stopped = got.iter().filter(|g| matches!(g, Err(Unanswered::Failed(why)) if why.contains("stops")));
    assert!(stopped.count() > 300);
}
