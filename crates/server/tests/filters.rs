//! `only` and `without` of requests: answers, refusals, and memory.
#![allow(missing_docs)]

mod common;

use std::sync::Arc;
use std::time::{Duration, Instant};

use common::*;
use serde_json::{Value, json};
use stratann_core::query::QueryStats;
use stratann_engine::exec::Width;
use stratann_engine::index::{Index, OpenOptions};
use stratann_engine::search::{Answers, Effort, Filter, Filters, Naming, SearchOptions};
use stratann_params::IndexKind;
use stratann_server::Limits;
use stratann_server::wire::{Answered, FilterReports, Reply};
use stratann_storage::Quiet;
use stratann_storage::ledger::{Ledger, Part};

const K: usize = 5;

fn options(recall: f64) -> SearchOptions {
    let effort = Effort::Recall(recall);
    SearchOptions { k: K, effort, width: Width::Fixed(1), ..SearchOptions::default() }
}

fn body(asked: &[u8], recall: f64) -> Value {
    json!({ "queries": numbers(asked), "k": K, "recall": recall, "width": 1 })
}

fn with(mut body: Value, name: &str, ids: impl Into<Value>) -> Value {
    body[name] = ids.into();
    body
}

/// Every so manyth row.
fn every(step: u64, first: u64) -> Vec<u64> {
    (0..ROWS).filter(|id| id % step == first).collect()
}

fn answered(place: &Place, body: &Value) -> Reply {
    let (status, _, reply) = place.post(body);
    assert_eq!(status, 200, "{reply}");
    serde_json::from_str(&reply.to_string()).unwrap()
}

/// Compares answers with those of a search, and their counters.
fn check(reply: &Reply, expected: &Answers) {
    let mut sum = QueryStats::default();
    for (query, answer) in reply.answers.iter().enumerate() {
        let Answered::Found(found) = answer else { panic!("{answer:?}") };
        let wanted: Vec<(u64, f32)> = expected.results(query).collect();
        let found_here: Vec<(u64, f32)> =
            found.ids.iter().copied().zip(found.distances.iter().copied()).collect();
        assert_eq!(found_here, wanted, "query {query}");
        sum.add(&found.per_query.0);
    }
    assert_eq!((reply.answers.len(), sum), (expected.counts.len(), expected.stats));
}

#[test]
fn answers_are_those_of_the_index_with_these_filters() {
    for kind in [graph(), IndexKind::HybridIvf.into()] {
        let place = Place::within(built(kind, None), Limits::default(), Ledger::new(None));
        let index = Index::open(place.folder.path(), OpenOptions::default()).unwrap();
        let asked = rows(20, 2);
        for (step, recall) in [(2, 0.95), (100, 0.95), (7, 1.0)] {
            let (ids, options) = (every(step, 1), options(recall));
            let own = index.filter(&ids, Naming::Only, &options, &Quiet).unwrap();
            let expected = index.search_filtered(&asked, Filters::Shared(&own), &options, &Quiet).unwrap();
            let as_text: Vec<String> = ids.iter().rev().map(u64::to_string).collect();
            let others: Vec<u64> = (0..ROWS).filter(|id| id % step != 1).collect();
            for (name, ids) in [("only", json!(ids)), ("only", json!(as_text)), ("without", json!(others))] {
                let reply = answered(&place, &with(body(&asked, recall), name, ids));
                check(&reply, &expected);
                assert_eq!(reply.filter, Some(FilterReports::Shared(own.report())), "{name}");
            }
            let of_url: Vec<String> = ids.iter().map(u64::to_string).collect();
            let url = format!("/v1/search?k={K}&recall={recall}&width=1&only={}", of_url.join(","));
            let (status, _, reply) = place.ask("POST", &url, "application/octet-stream", &asked);
            assert_eq!(status, 200, "{reply}");
            check(&serde_json::from_str(&reply.to_string()).unwrap(), &expected);
        }
        // Without a filter nothing is said of one, and all rows are searched.
        let expected = index.search(&asked, &options(0.95), &Quiet).unwrap();
        for reply in [answered(&place, &body(&asked, 0.95)), {
            answered(&place, &with(body(&asked, 0.95), "only", Value::Null))
        }] {
            check(&reply, &expected);
            assert_eq!(reply.filter, None);
        }
    }
}

#[test]
fn each_query_of_a_request_has_rows_of_its_own() {
    let place = Place::new(1000, Limits::default());
    let index = Index::open(place.folder.path(), OpenOptions::default()).unwrap();
    let (asked, options) = (rows(20, 2), options(0.95));
    let mut ids: Vec<Vec<u64>> = (0..20).map(|query| every(query + 2, query % 2)).collect();
    (ids[3], ids[4], ids[5]) = (vec![], vec![7, 7, ROWS], vec![ROWS, u64::MAX]);
    let each: Vec<&[u64]> = ids.iter().map(Vec::as_slice).collect();
    for (name, naming) in [("only", Naming::Only), ("without", Naming::Without)] {
        let own = index.filters(&each, naming, &options, &Quiet).unwrap();
        let expected = index.search_filtered(&asked, Filters::Each(&own), &options, &Quiet).unwrap();
        let reply = answered(&place, &with(body(&asked, 0.95), name, json!(ids)));
        check(&reply, &expected);
        assert_eq!(reply.filter, Some(FilterReports::Each(own.iter().map(Filter::report).collect())));
    }
    let (_, _, reply) = place.post(&with(body(&asked, 0.95), "only", json!(ids)));
    let filter = &reply["filter"][4];
    assert_eq!((&filter["matches"], &filter["unknown_ids"]), (&json!(1), &json!(1)), "{filter}");
    assert_eq!((&filter["repeated_ids"], &filter["way"]), (&json!(1), &json!("exact")), "{filter}");
    assert!(filter["prices"]["exact"].is_f64() && filter["prices"]["unit"] == "us", "{filter}");
    assert_eq!(reply["filter"][3]["matches"], 0);
    assert_eq!(reply["answers"][3]["ids"], json!([]), "no row matches");
    assert_eq!(reply["answers"][4]["ids"], json!(["7"]), "one row matches");
}

#[test]
fn all_rows_left_out_is_an_answer_without_results() {
    let place = Place::new(1000, Limits::default());
    let asked = rows(3, 2);
    let all: Vec<u64> = (0..ROWS).collect();
    for (name, ids) in [("without", json!(all)), ("only", json!([])), ("only", json!(["1500"]))] {
        let (status, _, reply) = place.post(&with(body(&asked, 0.95), name, ids));
        assert_eq!((status, &reply["filter"]["matches"]), (200, &json!(0)), "{reply}");
        let answers = reply["answers"].as_array().unwrap();
        assert!(answers.len() == 3 && answers.iter().all(|answer| answer["ids"] == json!([])), "{reply}");
    }
}

#[test]
fn ids_beyond_2_to_the_53_are_exact() {
    let first = (1u64 << 53) + 1;
    let file = tempfile::Builder::new().suffix(".u64bin").tempfile().unwrap();
    let ids = (0..ROWS).flat_map(|row| (first + row).to_le_bytes());
    let head = [ROWS as u32, 1].map(u32::to_le_bytes).concat();
    std::fs::write(file.path(), head.into_iter().chain(ids).collect::<Vec<u8>>()).unwrap();
    let place = Place::within(built(graph(), Some(file.path())), Limits::default(), Ledger::new(None));
    let asked = rows(3, 2);
    let text = [(first + 6).to_string(), (first + 7).to_string(), u64::MAX.to_string()];
    for ids in [json!([first + 6, first + 7, u64::MAX]), json!(text)] {
        let (status, _, reply) = place.post(&with(body(&asked, 0.95), "only", ids));
        assert_eq!(status, 200, "{reply}");
        assert_eq!((&reply["filter"]["matches"], &reply["filter"]["unknown_ids"]), (&json!(2), &json!(1)));
        let mut found: Vec<&str> =
            reply["answers"][0]["ids"].as_array().unwrap().iter().map(|id| id.as_str().unwrap()).collect();
        found.sort_unstable();
        assert_eq!(found, [&text[0], &text[1]]);
    }
}

/// A request that is refused in one line.
fn refused(place: &Place, body: &Value, status: u16, said: &[&str]) {
    let (found, _, reply) = place.post(body);
    let error = reply["error"].as_str().unwrap_or_default();
    assert!(found == status && !error.contains('\n'), "{found}: {reply}");
    assert!(said.iter().all(|said| error.contains(said)), "{said:?}: {error}");
}

#[test]
fn bad_filters_are_refused_in_one_line() {
    let place = Place::new(1000, Limits::default());
    let asked = body(&rows(2, 2), 0.95);
    let bad = |name: &str, ids: Value, said: &[&str]| {
        refused(&place, &with(asked.clone(), name, ids), 400, said);
    };
    bad("only", json!([[1]]), &["1 lists", "2 queries"]);
    bad("without", json!([[1], [2], [3]]), &["3 lists", "2 queries"]);
    bad("only", json!([-1]), &["only: -1 is no id"]);
    bad("only", json!([1, 2.5]), &["2.5 is no id"]);
    bad("without", json!([[1], ["-3"]]), &["without of query 1", "-3"]);
    bad("only", json!(7), &["no list of ids"]);
    bad("only", json!([1, [2]]), &["ids beside lists"]);
    refused(
        &place,
        &with(with(asked.clone(), "only", json!([1])), "without", json!([2])),
        400,
        &["both given"],
    );
    let remote = Place::within(built(IndexKind::RemoteHnsw, None), Limits::default(), Ledger::new(None));
    let (status, _, reply) = remote.post(&with(asked.clone(), "only", json!([1])));
    assert_eq!((status, &reply["answers"][0]["ids"]), (200, &json!(["1"])), "{reply}");
}

#[test]
fn more_ids_than_the_front_has_memory_for_are_refused_with_sizes() {
    let limits = Limits { large_bytes: 200 << 10, body_bytes: 1 << 20, ..Limits::default() };
    let place = Place::within(built(graph(), None), limits, Ledger::new(None));
    let asked = body(&rows(1, 2), 0.95);
    let many: Vec<u64> = (0..20_000).collect();
    refused(
        &place,
        &with(asked.clone(), "only", json!(many)),
        400,
        &["only has 20000 ids", "KiB", "--http-memory"],
    );
    // Ids that have room, and sets of rows that do not.
    let most: Vec<u64> = (0..14_000).collect();
    refused(&place, &with(asked.clone(), "only", json!(most)), 400, &["the filters", "KiB", "--http-memory"]);
    let few = answered(&place, &with(asked.clone(), "only", json!([1, 2])));
    assert!(few.filter.is_some());
    // While others have the memory.
    let held = place.ledger.reserve(Part::LargeRequests, 195 << 10).unwrap();
    let some: Vec<u64> = (0..4800).collect();
    let (status, head, reply) = place.post(&with(asked.clone(), "without", json!(some)));
    assert!(status == 503 && head.contains("retry-after"), "{reply}");
    assert!(reply["error"].as_str().unwrap().contains("the filters of this request take up to"), "{reply}");
    drop(held);
    answered(&place, &with(asked, "without", json!(some)));
}

fn used(ledger: &Ledger, name: &str) -> (u64, u64) {
    let part = ledger.parts().into_iter().find(|part| part.part == name).unwrap();
    (part.used_bytes, part.most_bytes)
}

#[test]
fn a_thousand_filters_in_flight_stay_within_the_budget() {
    let ledger = Ledger::new(Some(256 << 20));
    let limits = Limits::within(ledger.limit());
    let place = Place::within(built(graph(), None), limits, ledger.clone());
    let index = Index::open(place.folder.path(), OpenOptions::default()).unwrap();
    let (asked, options) = (rows(1000, 2), options(0.95));
    let ids: Vec<Vec<u64>> =
        (0..1000).map(|q| (0..ROWS).filter(|id| (id * 7 + q) % 97 == 0).collect()).collect();
    let each: Vec<&[u64]> = ids.iter().map(Vec::as_slice).collect();
    let own = index.filters(&each, Naming::Only, &options, &Quiet).unwrap();
    let expected = index.search_filtered(&asked, Filters::Each(&own), &options, &Quiet).unwrap();
    let reply = answered(&place, &with(body(&asked, 0.95), "only", json!(ids)));
    check(&reply, &expected);
    // All of them were there at a time, and accounted; now none is.
    let bytes: u64 = own.iter().map(Filter::bytes).sum();
    let (_, most) = used(&ledger, "large_requests");
    assert!(most >= bytes && most <= limits.large_bytes as u64, "{bytes} of {most}");
    assert!(ledger.committed() <= 256 << 20);
    waits_until(|| used(&ledger, "large_requests").0 == 0);
    // A smaller front refuses them, with both sizes, and goes on.
    let small = Limits { large_bytes: 400 << 10, body_bytes: 1 << 20, ..limits };
    let place = Place::within(built(graph(), None), small, Ledger::new(None));
    let request =
        with(json!({ "queries": numbers(&asked[..150 * 4 * DIM]), "k": 1 }), "without", json!(ids[..150]));
    refused(&place, &request, 400, &["take up to", "MiB", "--http-memory"]);
    answered(&place, &with(body(&asked[..4 * DIM], 0.95), "only", json!([1])));
}

fn waits_until(is_so: impl Fn() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < Duration::from_secs(20), "it never happens");
        std::thread::yield_now();
    }
}

#[test]
fn the_ids_of_rows_are_read_once_within_the_budget() {
    let place =
        |ledger: &Arc<Ledger>| Place::within(built(graph(), None), Limits::default(), Arc::clone(ledger));
    let free = Ledger::new(None);
    let first = place(&free);
    let status = |place: &Place| place.ask("GET", "/v1/status", "", b"").2;
    let committed = free.committed();
    assert!(status(&first)["memory"]["row_ids_bytes"].is_null(), "no filter yet");
    let asked = with(body(&rows(1, 2), 0.95), "only", json!([1, 2, 3]));
    std::thread::scope(|scope| {
        (0..4).for_each(|_| drop(scope.spawn(|| answered(&first, &asked))));
    });
    // They are numbers: four bytes each.
    assert_eq!(status(&first)["memory"]["row_ids_bytes"], 4 * ROWS);
    waits_until(|| used(&free, "large_requests").0 + used(&free, "requests").0 == 0);
    assert_eq!(free.committed(), committed + 4 * ROWS);

    let tight = Ledger::new(Some(committed + 10 * ROWS));
    let second = place(&tight);
    refused(&second, &asked, 400, &["the ids of all rows", "29.3 KiB", "14.6 KiB", "--ram-budget"]);
    let (code, _, reply) = second.post(&body(&rows(1, 2), 0.95));
    assert_eq!(code, 200, "{reply}");
    assert_eq!(tight.committed(), committed);
}
