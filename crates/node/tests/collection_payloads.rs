//! Payloads of collections: what is refused, what changes, and what their damage stops.

mod common;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use common::points::{SMALL, filled, number, open, options};
use stratann_kernel::{DType, Metric};
use stratann_node::collections::{
    Chosen, Collection, Condition, Kind, Node, Options, SearchOptions, SegmentOptions, Spec,
};
use stratann_node::rows::{CHUNK_BYTES, ExternalId, Key, RowKind};
use stratann_params::IndexKind as VectorIndex;
use stratann_payload::{Filter, IndexKind, Path as Field, Predicate, Schema};
use stratann_storage::{ErrorKind, Progress, Quiet};

const CORRUPT: Kind = Kind::Other(ErrorKind::Corrupt);
const BAD_INPUT: Kind = Kind::Other(ErrorKind::BadInput);

fn where_of(text: &str) -> Arc<Predicate> {
    Arc::new(Filter::from_where(text).unwrap().compile())
}

fn count(points: &Collection, text: &str) -> u64 {
    points.count_matching(&where_of(text)).unwrap().points
}

/// Points `n` with this number and a text in their payloads.
fn fill(points: &Collection, ids: std::ops::Range<u64>) {
    let json: Vec<String> = ids.clone().map(|n| format!(r#"{{"n":{n},"text":"point {n}"}}"#)).collect();
    let payloads: Vec<_> = json.iter().map(|json| Some(json.as_bytes())).collect();
    let vectors: Vec<u8> = ids.clone().flat_map(filled).collect();
    points.upsert_points(&ids.map(number).collect::<Vec<_>>(), &vectors, &payloads).unwrap();
}

fn indexed(points: &Collection) {
    let mut schema = Schema::new();
    schema.add(Field::parse("n").unwrap(), IndexKind::Float).unwrap();
    points.set_schema(&schema).unwrap();
}

/// The file of a segment with this name.
fn file(folder: &Path, name: &str) -> PathBuf {
    let found = common::files(&folder.join("s"));
    found.into_iter().find(|file| file.ends_with(name)).unwrap_or_else(|| panic!("no {name}"))
}

#[test]
fn what_is_no_payload_is_refused_and_named() {
    let place = tempfile::tempdir().unwrap();
    let node = open(place.path()).unwrap();
    let points = node.create_collection("points", SMALL).unwrap();
    let deep = format!(r#"{{"a":{}1{}}}"#, "[".repeat(1000), "]".repeat(1000));
    let long = format!(r#"{{"a":"{}"}}"#, "x".repeat(10_000_000));
    let fields: Vec<String> = (0..100_000).map(|n| format!(r#""f{n}":{n}"#)).collect();
    let wide = format!("{{{}}}", fields.join(","));
    for (json, why) in [
        (long.as_bytes(), "10000008 bytes"),
        (deep.as_bytes(), "nests deeper than 100 levels"),
        (wide.as_bytes(), "at most 1048576 bytes"),
        (br#"{"a":NaN}"#, "not JSON"),
        (br#"{"a":1e400}"#, "not JSON"),
        (b"{\"a\":\"\xff\"}", "not UTF-8 at byte 6"),
        (b"[1]", "an array"),
        (b"", "not JSON"),
    ] {
        let given = [Some(&b"{}"[..]), Some(json)];
        let error = points.upsert_points(&[number(1), number(2)], &filled(1).repeat(2), &given).unwrap_err();
        assert_eq!(error.kind, BAD_INPUT);
        assert!(error.message.contains("point 1: ") && error.message.contains(why), "{error}");
        assert!(points.set_payload(Chosen::Ids(&[number(1)]), json, None).is_err());
    }
    let error = points.upsert_points(&[number(1)], &filled(1), &[None, None]).unwrap_err();
    assert!(error.message.contains("1 ids and 2 payloads"), "{error}");
    assert_eq!((points.count().unwrap(), points.seq().unwrap()), (0, 0));
    // What is at a limit is stored as it is.
    let text = "x".repeat((1 << 20) - 8);
    for json in [format!(r#"{{"a":"{text}"}}"#), r#"{"a":["\u0000",18446744073709551615,-0.5,null]}"#.into()]
    {
        points.upsert_points(&[number(1)], &filled(1), &[Some(json.as_bytes())]).unwrap();
        let found = points.get(&[number(1)]).unwrap().remove(0).unwrap();
        assert_eq!(found.payload.as_deref(), Some(json.as_bytes()));
        points.checkpoint(&Quiet).unwrap();
        assert_eq!(points.get(&[number(1)]).unwrap(), [Some(found)]);
    }
    // An update may not make it longer, and then changes nothing.
    points
        .upsert_points(&[number(2)], &filled(2), &[Some(format!(r#"{{"a":"{text}"}}"#).as_bytes())])
        .unwrap();
    for _ in 0..2 {
        let (before, ids) = (points.seq().unwrap(), [number(1), number(2)]);
        let error = points.set_payload(Chosen::Ids(&ids), br#"{"b":1}"#, None).unwrap_err();
        assert!(error.kind == BAD_INPUT && error.message.contains("point 2: the payload has"), "{error}");
        assert_eq!(points.seq().unwrap(), before);
        points.checkpoint(&Quiet).unwrap();
    }
}

#[test]
fn strange_filters_have_answers() {
    let place = tempfile::tempdir().unwrap();
    let node = open(place.path()).unwrap();
    let points = node.create_collection("points", SMALL).unwrap();
    indexed(&points);
    fill(&points, 0..300);
    points.checkpoint(&Quiet).unwrap();
    fill(&points, 300..400);
    let any: Vec<String> = (0..10_000).map(|n| format!(r#"{{"key":"n","match":{{"value":{n}}}}}"#)).collect();
    let wide = Filter::from_json(format!(r#"{{"should":[{}]}}"#, any.join(",")).as_bytes()).unwrap();
    assert_eq!(points.count_matching(&Arc::new(wide.compile())).unwrap().points, 400);
    let deep =
        format!(r#"{}{{"key":"n","range":{{"lt":310}}}}{}"#, r#"{"must":["#.repeat(100), "]}".repeat(100));
    let deep = Filter::from_json(deep.as_bytes()).unwrap();
    assert_eq!(points.count_matching(&Arc::new(deep.compile())).unwrap().points, 310);
    let counted = points.count_matching(&where_of("no.such = 1")).unwrap();
    assert_eq!((counted.points, counted.unindexed.len()), (0, 1));
    assert_eq!(count(&points, "not (no.such = 1)"), 400);
    assert_eq!(count(&points, "n = 'text' or text = 5"), 0);
    let nothing = SearchOptions { filter: Some(where_of("n < 0")), ..SearchOptions::default() };
    assert_eq!(points.search_with(&filled(1), &nothing).unwrap().hits, [vec![]]);
}

/// Rows of newer payloads in a data folder.
fn overlay_rows(folder: &Path) -> usize {
    let rows = common::open(folder).unwrap();
    let (from, end) = (Key::first(1, RowKind::Overlay), Key::end(1, RowKind::Overlay));
    let chunk = rows.scan(&from, &end, 64 * CHUNK_BYTES).unwrap();
    assert!(chunk.next.is_none());
    chunk.rows.len()
}

#[test]
fn changed_payloads_make_no_segment_until_they_are_merged() {
    let place = tempfile::tempdir().unwrap();
    let node = open(place.path()).unwrap();
    let points = node.create_collection("points", SMALL).unwrap();
    indexed(&points);
    for first in (0..10_000).step_by(1000) {
        fill(&points, first..first + 1000);
    }
    points.compact(&Quiet).unwrap();
    // A first change, so that what is reserved is what is used.
    points.set_payload(Chosen::Ids(&[number(9999)]), br#"{"x":1}"#, None).unwrap();
    let before = (points.facts().unwrap().segments, node.deltas_bytes());
    let done = points.set_payload(Chosen::Matching(&where_of("n < 1000")), br#"{"n":-1}"#, None).unwrap();
    assert_eq!((done.changed, done.unchanged, done.unknown, done.changes), (1000, 0, 0, 1));
    let again = points.set_payload(Chosen::Matching(&where_of("n = -1")), br#"{"n":-1}"#, None).unwrap();
    assert_eq!((again.seq, again.changed, again.unchanged), (done.seq, 0, 1000));
    assert_eq!(points.facts().unwrap().segments, before.0, "no segment is made");
    assert_eq!(points.facts().unwrap().delta_points, 0);
    assert!(node.deltas_bytes() >= before.1 + 100_000, "newer payloads are accounted");
    let check = |points: &Collection| {
        assert_eq!((count(points, "n = -1"), count(points, "n >= 0")), (1000, 9000));
        assert_eq!(count(points, "n = -1 and text = 'point 7'"), 1);
        let found = points.get(&[number(7)]).unwrap().remove(0).unwrap();
        assert_eq!((found.seq, found.vector()), (done.seq, &filled(7)[..]));
        assert_eq!(found.payload.as_deref(), Some(&br#"{"n":-1,"text":"point 7"}"#[..]));
    };
    check(&points);
    drop((points, node));
    let node = open(place.path()).unwrap();
    let points = node.collection("points").unwrap();
    check(&points);
    points.delete(&[number(3)]).unwrap();
    fill(&points, 3..4);
    points.set_payload(Chosen::Ids(&[number(3), number(3), number(90_000)]), br#"{"n":-1}"#, None).unwrap();
    check(&points);
    node.verify("points").unwrap();
    drop((points, node));
    assert_eq!(overlay_rows(place.path()), 1001);
    let node = open(place.path()).unwrap();
    let points = node.collection("points").unwrap();
    // One vector was written, so all of them are.
    points.compact(&Quiet).unwrap();
    assert_ne!(points.facts().unwrap().segments, before.0);
    check(&points);
    // Now payloads alone have changed.
    points.set_payload(Chosen::Matching(&where_of("n = -1")), br#"{"m":5}"#, None).unwrap();
    points
        .set_payload(Chosen::Matching(&where_of("m = 5 and text = 'point 8'")), br#"{"m":6}"#, None)
        .unwrap();
    points.delete(&[number(9998)]).unwrap();
    fill(&points, 9998..9999);
    points.checkpoint(&Quiet).unwrap();
    points.compact(&Quiet).unwrap();
    points.set_payload(Chosen::Ids(&[number(9)]), br#"{"m":7}"#, None).unwrap();
    let built = points.facts().unwrap();
    points.compact(&Quiet).unwrap();
    let folded = points.facts().unwrap();
    assert_eq!((folded.indexes_built, folded.payloads_folded), (built.indexes_built, 1));
    assert_eq!((folded.segments.len(), folded.segments[0].rows), (1, 10_000));
    assert_eq!((count(&points, "m = 5"), count(&points, "m = 6"), count(&points, "m = 7")), (998, 1, 1));
    assert_eq!(points.get(&[number(7)]).unwrap()[0].as_ref().unwrap().vector(), filled(7));
    let hits = points.search_with(
        &filled(500),
        &SearchOptions { filter: Some(where_of("n = -1")), recall: 1.0, ..SearchOptions::default() },
    );
    assert_eq!(hits.unwrap().hits[0][0].id, number(500));
    node.verify("points").unwrap();
    drop((points, node));
    assert_eq!(overlay_rows(place.path()), 0);
}

#[test]
fn pages_of_long_payloads_are_short() {
    let place = tempfile::tempdir().unwrap();
    let node = open(place.path()).unwrap();
    let points = node.create_collection("points", SMALL).unwrap();
    let text = "x".repeat(1_000_000);
    for n in 0..70 {
        let json = format!(r#"{{"a":"{text}","n":{n}}}"#);
        points.upsert_points(&[number(n)], &filled(n), &[Some(json.as_bytes())]).unwrap();
        if n % 20 == 19 {
            points.checkpoint(&Quiet).unwrap();
        }
    }
    let (mut after, mut found, filter) = (None::<ExternalId>, 0, where_of("a like 'x%'"));
    loop {
        let page = points.scroll(after.as_ref(), 1000).unwrap();
        assert_eq!(points.scroll_matching(after.as_ref(), 1000, &filter).unwrap().points, page.points);
        assert!(page.points.len() <= 9);
        found += page.points.len();
        match page.next {
            Some(next) => after = Some(next),
            None => break,
        }
    }
    assert_eq!(found, 70);
    let ids: Vec<_> = (0..70).map(number).collect();
    assert!(points.get(&ids[..60]).unwrap().iter().all(Option::is_some));
    let error = points.get(&ids).unwrap_err();
    assert!(error.message.contains("ask for fewer at once"), "{error}");
    let options = |k| SearchOptions { k, with_payload: true, ..SearchOptions::default() };
    let found = points.search_with(&filled(3), &options(60)).unwrap();
    assert!(found.hits[0].iter().all(|hit| hit.payload.as_ref().is_some_and(|json| json.len() > 1_000_000)));
    let error = points.search_with(&filled(3), &options(70)).unwrap_err();
    assert!(error.message.contains("ask for fewer results"), "{error}");
    // A change by a filter is divided until each part can be written.
    let some = where_of("n < 20 or n >= 65");
    let done = points.set_payload(Chosen::Matching(&some), br#"{"b":1}"#, None).unwrap();
    assert!(done.changed == 25 && done.changes >= 4, "{done:?}");
    let error = points.set_payload(Chosen::Ids(&ids), br#"{"b":2}"#, None).unwrap_err();
    assert!(error.message.contains("give at most 8388608 at once"), "{error}");
    assert_eq!(count(&points, "b = 1"), 25);
    // There is an end to what is in memory.
    let error = points.set_payload(Chosen::Matching(&filter), br#"{"b":1}"#, None).unwrap_err();
    assert_eq!(error.kind, Kind::Busy);
    points.compact(&Quiet).unwrap();
    let rest = points.set_payload(Chosen::Matching(&where_of("b is null")), br#"{"b":1}"#, None).unwrap();
    assert!(rest.changed > 0 && count(&points, "b = 1") == 70, "{rest:?}");
    assert_eq!(points.delete_matching(&filter).unwrap().deleted, 70);
    assert_eq!(points.count().unwrap(), 0);
}

fn two_collections(place: &Path) -> Node {
    let node = open(place).unwrap();
    let points = node.create_collection("points", SMALL).unwrap();
    indexed(&points);
    fill(&points, 0..2000);
    points.checkpoint(&Quiet).unwrap();
    let other = node.create_collection("other", SMALL).unwrap();
    fill(&other, 0..10);
    node
}

#[test]
fn a_damaged_file_of_payloads_stops_its_collection() {
    for name in ["payload-1.rows", "payload-1.index"] {
        let place = tempfile::tempdir().unwrap();
        drop(two_collections(place.path()));
        let path = file(place.path(), name);
        let whole = std::fs::read(&path).unwrap();
        for at in [0, 16, whole.len() / 3, whole.len() / 2, whole.len() - 30, whole.len() - 1] {
            let mut flipped = whole.clone();
            flipped[at] ^= 16;
            std::fs::write(&path, &flipped).unwrap();
            let node = open(place.path()).unwrap();
            assert_eq!(count(&node.collection("other").unwrap(), "n < 5"), 5);
            let points = node.collection("points").unwrap();
            let named = |e: &stratann_node::collections::Error| {
                assert_eq!(e.kind, CORRUPT, "{e}");
                let is_named = e.message.contains("collection \"points\"") && e.message.contains(name);
                assert!(is_named, "{name} {at}: {e}");
            };
            named(&node.verify("points").unwrap_err());
            // What is not damaged is right.
            for n in [0, 999, 1999] {
                match points.get(&[number(n)]) {
                    Ok(found) => {
                        let json = format!(r#"{{"n":{n},"text":"point {n}"}}"#);
                        assert_eq!(found[0].as_ref().unwrap().payload.as_deref(), Some(json.as_bytes()));
                    }
                    Err(e) => named(&e),
                }
                let text = format!("n = {n}");
                points
                    .count_matching(&where_of(&text))
                    .map_or_else(|e| named(&e), |own| assert_eq!(own.points, 1));
            }
        }
        for damage in [&whole[..whole.len() - 1], &[]] {
            std::fs::write(&path, damage).unwrap();
            let node = open(place.path()).unwrap();
            let error = node.collection("points").unwrap().count().unwrap_err();
            assert!(error.kind == CORRUPT && error.message.contains(name), "{error}");
        }
        std::fs::remove_file(&path).unwrap();
        let node = open(place.path()).unwrap();
        let error = node.collection("points").unwrap().count().unwrap_err();
        assert!(error.kind == CORRUPT && error.message.contains(name), "{error}");
        assert_eq!(node.collection("other").unwrap().count().unwrap(), 10);
    }
}

#[test]
fn points_are_written_where_a_condition_holds() {
    let place = tempfile::tempdir().unwrap();
    let node = open(place.path()).unwrap();
    let points = node.create_collection("points", SMALL).unwrap();
    let ids: Vec<_> = (0..6).map(number).collect();
    let vectors = |value: u64| filled(value).repeat(6);
    points.upsert(&ids[..2], &filled(1).repeat(2)).unwrap();
    points.checkpoint(&Quiet).unwrap();
    points.upsert(&ids[2..4], &filled(2).repeat(2)).unwrap();
    points.set_payload(Chosen::Ids(&ids[1..2]), br#"{"a":1}"#, None).unwrap();
    assert_eq!(points.seq().unwrap(), 3);
    let done = points.upsert_if(&ids[..5], &filled(3).repeat(5), &[], Condition::IfAbsent).unwrap();
    assert_eq!((done.seq, done.new, done.replaced, done.skipped.len()), (4, 1, 0, 4));
    let none = points.upsert_if(&ids[..5], &filled(4).repeat(5), &[], Condition::IfAbsent).unwrap();
    assert_eq!((none.seq, none.new, none.replaced, none.skipped.as_slice()), (4, 0, 0, &ids[..5]));
    // Of the changes 1, 3, 2, 2, 4 and none.
    let done = points
        .upsert_if(&ids, &vectors(5), &[Some(&br#"{"b":1}"#[..]); 6], Condition::IfNotNewer(2))
        .unwrap();
    assert_eq!((done.seq, done.new, done.replaced, done.skipped.len()), (5, 1, 3, 2));
    let found = points.get(&ids).unwrap();
    let seqs: Vec<u64> = found.iter().flatten().map(|point| point.seq).collect();
    assert_eq!(seqs, [5, 3, 5, 5, 4, 5]);
    let values: Vec<_> = found.iter().flatten().map(|point| point.vector().to_vec()).collect();
    assert_eq!(values, [5, 1, 5, 5, 3, 5].map(filled));
    assert_eq!((count(&points, "b = 1"), count(&points, "a = 1"), points.count().unwrap()), (4, 1, 6));
    node.verify("points").unwrap();
}

/// Changes payloads and points once, while a segment is made.
struct Meddler {
    points: Collection,
    stages: std::sync::Mutex<Vec<String>>,
}

impl Progress for Meddler {
    fn stage(&self, what: &str, _: u64, _: &str) {
        let mut stages = self.stages.lock().unwrap();
        let is_first = !stages.iter().any(|earlier| earlier == what);
        stages.push(what.into());
        if !is_first {
            return;
        }
        let ids = |range: std::ops::Range<u64>| range.map(number).collect::<Vec<_>>();
        let points = &self.points;
        if what == "copying vectors" {
            points.set_payload(Chosen::Ids(&ids(0..50)), br#"{"n":-1}"#, None).unwrap();
            points.delete(&ids(40..60)).unwrap();
        } else if what == "writing payloads" {
            points.set_payload(Chosen::Ids(&ids(20..45)), br#"{"n":-2}"#, None).unwrap();
            points.clear_payload(Chosen::Ids(&ids(100..105))).unwrap();
            points.upsert(&ids(30..32), &filled(9).repeat(2)).unwrap();
        }
    }
    fn advance(&self, _: u64) {}
    fn note(&self, _: &str) {}
    fn interrupted(&self) -> bool {
        false
    }
}

#[test]
fn payloads_that_change_while_a_segment_is_made_are_those_of_the_segment() {
    let place = tempfile::tempdir().unwrap();
    let node = open(place.path()).unwrap();
    let points = node.create_collection("points", SMALL).unwrap();
    indexed(&points);
    fill(&points, 0..200);
    points.checkpoint(&Quiet).unwrap();
    fill(&points, 200..300);
    points.checkpoint(&Quiet).unwrap();
    points.set_payload(Chosen::Ids(&[number(0), number(250)]), br#"{"n":-3}"#, None).unwrap();
    let meddler = Meddler { points: points.clone(), stages: Default::default() };
    points.compact(&meddler).unwrap();
    let Meddler { points: held, stages } = meddler;
    let stages = stages.into_inner().unwrap();
    drop(held);
    // What changed meanwhile is folded in by a second merge.
    assert_eq!(stages.iter().filter(|stage| *stage == "writing payloads").count(), 2, "{stages:?}");
    assert_eq!(points.facts().unwrap().segments.len(), 1);
    let check = |points: &Collection| {
        let found = ["n = -1", "n = -2", "n = -3", "n is null", "n >= 0"].map(|text| count(points, text));
        // 0 to 19 once, 20 to 39 twice but for two that were written, 250 before, and five that were cleared.
        assert_eq!((found, points.count().unwrap()), ([20, 18, 1, 7, 234], 280));
        for (id, n) in [(0, -1), (19, -1), (20, -2), (39, -2), (250, -3), (60, 60)] {
            let json = format!(r#"{{"n":{n},"text":"point {id}"}}"#);
            let found = points.get(&[number(id)]).unwrap().remove(0).unwrap();
            assert_eq!(found.payload.as_deref(), Some(json.as_bytes()));
        }
    };
    check(&points);
    node.verify("points").unwrap();
    drop((points, node));
    let node = open(place.path()).unwrap();
    let points = node.collection("points").unwrap();
    check(&points);
    points.compact(&Quiet).unwrap();
    check(&points);
    node.verify("points").unwrap();
    drop((points, node));
    assert_eq!(overlay_rows(place.path()), 0);
}

#[test]
fn payloads_are_written_again_in_the_background_and_indexes_stay() {
    for (kind, dtype) in [(VectorIndex::DiskGraph, DType::U8), (VectorIndex::GridIvf, DType::F32)] {
        let place = tempfile::tempdir().unwrap();
        let segments = SegmentOptions { in_background: true, ..options().segments };
        let background = Options { segments, ..options() };
        let node = Node::open(place.path(), &background, &Quiet).unwrap();
        let spec = Spec { dim: 8, metric: Metric::L2, dtype, kind: Some(kind) };
        let points = node.create_collection("points", spec).unwrap();
        let vector = |id: u64| -> Vec<u8> {
            let own = (0..8).map(|at| (id.wrapping_mul(2 * at + 3) >> at) as u8);
            match dtype {
                DType::U8 => own.collect(),
                _ => own.flat_map(|x| f32::from(x).to_le_bytes()).collect(),
            }
        };
        for first in (0..4400).step_by(400) {
            let ids: Vec<_> = (first..first + 400).map(number).collect();
            let json: Vec<String> = (first..first + 400).map(|id| format!(r#"{{"n":{id}}}"#)).collect();
            let payloads: Vec<_> = json.iter().map(|json| Some(json.as_bytes())).collect();
            let vectors: Vec<u8> = (first..first + 400).flat_map(vector).collect();
            points.upsert_points(&ids, &vectors, &payloads).unwrap();
        }
        points.compact(&Quiet).unwrap();
        points.delete(&[number(4000)]).unwrap();
        let before = (points.facts().unwrap(), points.search(&vector(77), 10).unwrap());
        assert_eq!((before.0.segments[0].kind, before.0.segments.len()), (Some(kind), 1));
        // One in twenty is not enough.
        points.set_payload(Chosen::Matching(&where_of("n < 220")), br#"{"m":1}"#, None).unwrap();
        points.set_payload(Chosen::Matching(&where_of("n < 500")), br#"{"m":2}"#, None).unwrap();
        let begin = std::time::Instant::now();
        while points.facts().unwrap().payloads_folded == 0 {
            assert!(begin.elapsed().as_secs() < 60, "{:?}", points.facts().unwrap());
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        points.compact(&Quiet).unwrap();
        let check = |points: &Collection| {
            let found = (count(points, "m = 2"), count(points, "m = 1"), points.count().unwrap());
            assert_eq!(found, (500, 0, 4399), "{kind:?}");
            assert_eq!(points.search(&vector(77), 10).unwrap().hits, before.1.hits);
            assert_eq!(points.get(&[number(300)]).unwrap()[0].as_ref().unwrap().vector(), vector(300));
        };
        check(&points);
        let after = points.facts().unwrap();
        // A deleted point makes a compaction build an index, a changed payload does not.
        assert_eq!(after.indexes_built, before.0.indexes_built + 1);
        node.verify("points").unwrap();
        drop((points, node));
        assert_eq!(overlay_rows(place.path()), 0);
        let node = open(place.path()).unwrap();
        check(&node.collection("points").unwrap());
        node.verify("points").unwrap();
    }
}

#[test]
fn vectors_of_results_are_those_that_the_search_saw() {
    let place = tempfile::tempdir().unwrap();
    let node = open(place.path()).unwrap();
    let points = node.create_collection("points", SMALL).unwrap();
    fill(&points, 0..6);
    points.checkpoint(&Quiet).unwrap();
    fill(&points, 4..8);
    let options = SearchOptions { k: 8, recall: 1.0, with_vectors: true, ..SearchOptions::default() };
    let found = points.search_with(&filled(2).repeat(2), &options).unwrap();
    for hit in found.hits.iter().flatten() {
        let ExternalId::Number(value) = &hit.id else { panic!("{} is no number", hit.id) };
        assert_eq!(hit.vector, Some(filled(*value)));
    }
    assert!(points.search(&filled(2), 4).unwrap().hits[0].iter().all(|hit| hit.vector.is_none()));
    // Beside a writer, distances are those of the vectors, and no vector is missing.
    std::thread::scope(|threads| {
        threads.spawn(|| {
            for value in 0..300 {
                points.upsert(&[number(value % 8)], &filled(value)).unwrap();
                if value % 100 == 50 {
                    points.checkpoint(&Quiet).unwrap();
                }
            }
        });
        for _ in 0..300 {
            let hits = points.search_with(&filled(0), &options).unwrap().hits.remove(0);
            assert_eq!(hits.len(), 8);
            for hit in hits {
                let vector = hit.vector.unwrap();
                let value = f32::from_le_bytes(vector[..4].try_into().unwrap());
                assert_eq!(hit.distance, 4.0 * value * value);
            }
        }
    });
}
