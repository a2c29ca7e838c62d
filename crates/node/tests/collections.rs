//! Collections in one process: what is refused, readers beside writers, drops, and two that open one folder.

mod common;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use common::points::{FULL, SMALL, components, filled, number, open, options};
use common::{Notes, job, job_command, notes, run, setting};
use stratann_kernel::{DType, Metric};
use stratann_node::collections::{Collection, Error, Kind, LIMIT_MAX, Node, Options, SearchOptions, Spec};
use stratann_node::rows::{Batch, CHUNK_BYTES, ExternalId, Key, RowKind, Rows};
use stratann_storage::{ErrorKind, Quiet};

/// Tells readers to end, however the writer does.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

fn place() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

const BAD_INPUT: Kind = Kind::Other(ErrorKind::BadInput);

#[track_caller]
fn refused<T>(what: Result<T, Error>, kind: Kind, text: &str) {
    let error = what.map(|_| ()).unwrap_err();
    assert!(error.kind == kind && error.message.contains(text), "{error:?}");
}

#[test]
fn collections_are_made_listed_and_dropped() {
    let place = place();
    let node = open(place.path()).unwrap();
    for name in ["", "a/b", "a\tb", &"é".repeat(128)] {
        refused(node.create_collection(name, SMALL), BAD_INPUT, "255 bytes");
    }
    for dim in [0, 4097] {
        refused(node.create_collection("a", Spec { dim, ..SMALL }), BAD_INPUT, "1 to 4096");
    }
    refused(node.collection("a"), Kind::Missing, "\"a\"");
    refused(node.drop_collection("a"), Kind::Missing, "\"a\"");
    refused(node.verify("a"), Kind::Missing, "\"a\"");
    assert_eq!(node.collections().unwrap(), []);
    let other = Spec { dim: 4096, metric: Metric::Cosine, dtype: DType::F16, kind: None };
    let longest = "é".repeat(127);
    node.create_collection("b", other).unwrap();
    node.create_collection(&longest, SMALL).unwrap().upsert(&[number(1)], &filled(1)).unwrap();
    refused(node.create_collection("b", SMALL), BAD_INPUT, "already");
    assert_eq!(node.drop_collection(&longest).unwrap().rows, 2);
    node.create_collection("a", SMALL).unwrap();
    drop(node);
    let node = open(place.path()).unwrap();
    let listed = node.collections().unwrap();
    let listed: Vec<_> =
        listed.into_iter().map(|info| (info.name, *info.specs.unwrap().only().unwrap())).collect();
    assert_eq!(listed, [("a".to_string(), SMALL), ("b".to_string(), other)]);
    assert_eq!(node.collection("b").unwrap().spec(), Ok(other));
    // A number is not given twice, though no row of its first collection is left.
    node.drop_collection("a").unwrap();
    drop(node);
    let node = open(place.path()).unwrap();
    node.create_collection("a", SMALL).unwrap().upsert(&[number(1)], &filled(1)).unwrap();
    drop(node);
    assert_eq!(collections_with_rows(place.path()), [0, 4]);
}

#[test]
fn the_largest_batch_is_written() {
    let place = place();
    let node = open(place.path()).unwrap();
    let points = node.create_collection("points", Spec { dim: 1024, ..SMALL }).unwrap();
    let id = |row: usize| ExternalId::text(&format!("{row:0>255}")).unwrap();
    let write = |count: usize| {
        let ids: Vec<_> = (0..count).map(id).collect();
        points.upsert(&ids, &filled(1).repeat(256 * count))
    };
    let largest = (1..).find(|step| write(1790 - step).is_ok()).map(|step| 1790 - step).unwrap();
    assert_eq!(write(largest).unwrap().replaced, largest as u64, "two keys more for each");
    refused(write(largest + 1), BAD_INPUT, "at most 8388608");
    assert_eq!(node.verify("points").unwrap().points, largest as u64);
}

#[test]
fn what_cannot_be_written_is_refused_before() {
    let place = place();
    let node = open(place.path()).unwrap();
    let points = node.create_collection("points", SMALL).unwrap();
    let batches = node.counters().batches;
    let one = [number(1)];
    let with = |x: f32| components(DType::F32, &[0.0, 0.0, x, 0.0]);
    for x in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        refused(points.upsert(&one, &with(x)), BAD_INPUT, "component 2 of vector 0");
        refused(points.search(&with(x), 1), BAD_INPUT, "component 2 of query 0");
    }
    refused(points.upsert(&one, &[0; 15]), BAD_INPUT, "4 dimensions of f32");
    refused(points.upsert(&one, &[0; 20]), BAD_INPUT, "4 dimensions of f32");
    refused(points.upsert(&one, &[0; 32]), BAD_INPUT, "1 ids and 2 vectors");
    refused(points.upsert(&[], &[]), BAD_INPUT, "no id");
    refused(points.upsert(&one, &[]), BAD_INPUT, "no vector");
    refused(points.delete(&[]), BAD_INPUT, "no id");
    let long = [ExternalId::Text("x".repeat(256))];
    refused(points.upsert(&long, &filled(1)), BAD_INPUT, "256 bytes");
    refused(points.delete(&long), BAD_INPUT, "256 bytes");
    refused(points.get(&long), BAD_INPUT, "256 bytes");
    refused(points.scroll(Some(&long[0]), 1), BAD_INPUT, "256 bytes");
    refused(points.search(&filled(1), 0), BAD_INPUT, "1 to 16384");
    refused(points.search(&filled(1), LIMIT_MAX + 1), BAD_INPUT, "1 to 16384");
    refused(points.search(&[], 1), BAD_INPUT, "no vector");
    refused(points.scroll(None, 0), BAD_INPUT, "1 to 16384");
    let many: Vec<_> = (0..70_000).map(number).collect();
    refused(points.upsert(&many, &filled(1).repeat(70_000)), BAD_INPUT, "8388608");
    refused(points.search(&filled(1).repeat(600_000), 1), BAD_INPUT, "8388608");
    assert_eq!((points.count().unwrap(), points.seq().unwrap()), (0, 0));
    assert_eq!(points.delete(&many[..9]).unwrap().unknown, 9);
    assert_eq!(node.counters().batches, batches, "something was written");
    assert_eq!(points.upsert(&one, &filled(1)).unwrap().seq, 1);
}

#[test]
fn a_full_collection_takes_what_replaces_points() {
    let place = place();
    let node = open(place.path()).unwrap();
    let points = node.create_collection("points", SMALL).unwrap();
    let ids: Vec<_> = (0..FULL).map(number).collect();
    for some in ids.chunks(1000) {
        points.upsert(some, &filled(1).repeat(some.len())).unwrap();
    }
    refused(points.upsert(&[number(5), number(FULL)], &filled(2).repeat(2)), Kind::Busy, "at most 16000");
    assert_eq!(points.upsert(&ids[..100], &filled(3).repeat(100)).unwrap().replaced, 100);
    points.delete(&[number(7)]).unwrap();
    assert_eq!(points.upsert(&[number(FULL)], &filled(2)).unwrap().new, 1);
    assert_eq!(points.count().unwrap(), FULL);
    assert_eq!(
        points.search(&filled(3), 100).unwrap().hits[0].iter().filter(|hit| hit.distance == 0.0).count(),
        99
    );
    assert_eq!(node.verify("points").unwrap().points, FULL);
    drop((points, node));
    let node = open(place.path()).unwrap();
    assert_eq!(node.verify("points").unwrap().points, FULL);
    assert_eq!(node.collection("points").unwrap().count().unwrap(), FULL);
}

#[test]
fn memory_of_points_is_reserved_and_given_back() {
    let place = place();
    let small = Options { deltas_bytes: 600 << 10, ..options() };
    let node = Node::open(place.path(), &small, &Quiet).unwrap();
    let [one, two] = ["one", "two"].map(|name| node.create_collection(name, SMALL).unwrap());
    let fill = |points: &Collection, from: u64| {
        let ids: Vec<_> = (from..from + 100).map(number).collect();
        points.upsert(&ids, &filled(1).repeat(100))
    };
    let (mut from, full) = (
        0,
        loop {
            static FROM: AtomicU64 = AtomicU64::new(0);
            match fill(&one, FROM.fetch_add(100, Ordering::Relaxed)) {
                Ok(_) => {}
                Err(e) => break (FROM.load(Ordering::Relaxed) - 100, e),
            }
        },
    );
    from += full.0;
    assert!(full.1.kind == Kind::Busy && full.1.message.contains("600.0 KiB"), "{}", full.1);
    assert!(from > 500 && one.count().unwrap() == from, "{from}");
    // One that is opened closes another that is idle.
    assert_eq!(two.search(&filled(1), 1).unwrap().hits[0], []);
    assert!(node.deltas_bytes() <= 300 << 10, "{}", node.deltas_bytes());
    // Overwrites at the limit go on only as far as memory for both rows is there; deletes always do.
    one.delete(&(0..from - 100).map(number).collect::<Vec<_>>()).unwrap();
    assert_eq!(two.search(&filled(1), 1).unwrap().hits[0], []);
    fill(&two, 0).unwrap();
    assert_eq!(node.close_idle(), 0, "both were used");
    assert_eq!(two.count().unwrap(), 100);
    assert_eq!(node.close_idle(), 1);
    assert_eq!(node.close_idle(), 1);
    assert_eq!(node.deltas_bytes(), 0);
    assert_eq!((one.count().unwrap(), two.count().unwrap()), (100, 100));
}

#[test]
fn points_in_memory_are_found_by_few_distances_beside_a_segment_and_without() {
    let spec = Spec { dim: 8, ..SMALL };
    let (place, mut noise) = (place(), 1u64);
    let mut vectors = |count: usize| -> Vec<u8> {
        let mut next = || {
            noise = noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (noise >> 40) as f32 / 1e6
        };
        (0..8 * count).flat_map(|_| next().to_le_bytes()).collect()
    };
    let node = open(place.path()).unwrap();
    let points = node.create_collection("points", spec).unwrap();
    let queries = vectors(20);
    let by_codes = SearchOptions { k: 10, recall: 1.0, ..SearchOptions::default() };
    let by_all = SearchOptions { scan_all_in_memory: true, ..by_codes.clone() };
    for from in [0, 4000] {
        let ids: Vec<_> = (from..from + 4000).map(number).collect();
        points.upsert(&ids, &vectors(4000)).unwrap();
        let (found, all) = (
            points.search_with(&queries, &by_codes).unwrap(),
            points.search_with(&queries, &by_all).unwrap(),
        );
        assert_eq!(found.hits, all.hits);
        assert_eq!((all.delta.rows, all.delta.distances, all.delta.codes), (80_000, 80_000, 0));
        let delta = found.delta;
        assert!(delta.lists > 0 && delta.codes > 0 && delta.codes <= delta.rows, "{delta:?}");
        assert!(delta.distances < delta.rows / 20, "{delta:?}");
        if from == 0 {
            points.checkpoint(&Quiet).unwrap();
        }
    }
    drop((points, node));
    let points = open(place.path()).unwrap().collection("points").unwrap();
    let found = points.search_with(&queries, &by_codes).unwrap();
    assert_eq!(found.hits, points.search_with(&queries, &by_all).unwrap().hits);
    assert!(found.delta.lists > 0 && found.delta.distances < found.delta.rows / 20, "{:?}", found.delta);
}

/// Ids of a collection whose points are mostly what is kept beside their vectors.
fn long_ids() -> Vec<ExternalId> {
    (0..FULL).map(|row| ExternalId::text(&format!("{row:0>120}")).unwrap()).collect()
}

#[test]
fn child() {
    let Some(_) = job() else { return };
    let node = open(std::path::Path::new(&setting("ROWS_FOLDER"))).unwrap();
    let names: Vec<_> = node.collections().unwrap().into_iter().map(|info| info.name).collect();
    let before = resident_bytes();
    for name in &names {
        assert_eq!(node.collection(name).unwrap().count().unwrap(), FULL);
    }
    let grown = resident_bytes().saturating_sub(before);
    let mut notes = Notes::new(std::path::Path::new(&setting("ROWS_NOTES")));
    notes.write(&format!("{grown} {}", node.deltas_bytes()));
}

fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
}

#[test]
fn points_take_the_memory_that_was_reserved() {
    /// What the engine caches of the rows that are read.
    const CACHE_BYTES: u64 = 6 << 20;
    let place = place();
    let (folder, noted) = (place.path().join("data"), place.path().join("notes"));
    let node = open(&folder).unwrap();
    for name in ["one", "two", "three"] {
        let points = node.create_collection(name, SMALL).unwrap();
        for ids in long_ids().chunks(8000) {
            points.upsert(ids, &filled(1).repeat(ids.len())).unwrap();
        }
    }
    drop(node);
    let mut command = job_command("open", &folder);
    command.env("ROWS_NOTES", &noted);
    let (status, text) = run(command);
    assert!(status.success(), "{text}");
    let [grown, reserved] = [0, 1].map(|at| notes(&noted)[0][at].parse::<u64>().unwrap());
    eprintln!("{} KiB resident, {} KiB reserved", grown >> 10, reserved >> 10);
    assert!(grown <= reserved + CACHE_BYTES && grown > reserved / 4, "{grown} of {reserved}");
}

#[test]
fn a_search_sees_whole_changes_and_those_that_were_told() {
    const ROWS: u64 = 50;
    let place = place();
    let node = open(place.path()).unwrap();
    let points = node.create_collection("points", SMALL).unwrap();
    let ids: Vec<_> = (0..ROWS).map(number).collect();
    points.upsert(&ids, &filled(0).repeat(ids.len())).unwrap();
    let (told, ends) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let _ends = Ends(&ends);
            for value in 1..=400 {
                let seq = points.upsert(&ids, &filled(value).repeat(ids.len())).unwrap().seq;
                told.store(seq, Ordering::Release);
            }
        });
        for _ in 0..2 {
            scope.spawn(|| {
                while !ends.load(Ordering::Acquire) {
                    let told = told.load(Ordering::Acquire);
                    let found = points.search(&filled(0), 2 * ids.len()).unwrap();
                    assert!(found.seq >= told, "change {told} was told, and {} is seen", found.seq);
                    let hits = &found.hits[0];
                    assert_eq!(hits.len(), ids.len(), "half a change");
                    let expected = 4.0 * ((found.seq - 1) as f32).powi(2);
                    assert!(hits.iter().all(|hit| hit.distance == expected), "half of change {}", found.seq);
                    let got = points.get(&ids).unwrap();
                    let seqs: Vec<_> = got.iter().flatten().map(|point| point.seq).collect();
                    assert!(seqs.len() == ids.len() && seqs.iter().all(|seq| *seq == seqs[0]), "{seqs:?}");
                }
            });
        }
    });
}

#[test]
fn callers_that_wait_at_once_share_a_sync_and_have_an_order() {
    const CALLERS: u64 = 12;
    const EACH: u64 = 30;
    let place = place();
    let node = open(place.path()).unwrap();
    let points = node.create_collection("points", SMALL).unwrap();
    let before = node.counters();
    let of_caller = |caller: u64| {
        let write = |at: u64| {
            // One id of its own, and one that all write.
            let vectors = [filled(at), filled(caller * 1000 + at)].concat();
            (points.upsert(&[number(caller + 1), number(0)], &vectors).unwrap().seq, caller * 1000 + at)
        };
        (0..EACH).map(write).collect::<Vec<_>>()
    };
    let mut told = std::thread::scope(|scope| {
        let of_caller = &of_caller;
        let callers: Vec<_> = (0..CALLERS).map(|caller| scope.spawn(move || of_caller(caller))).collect();
        callers.into_iter().flat_map(|caller| caller.join().unwrap()).collect::<Vec<_>>()
    });
    assert!(told.chunks(EACH as usize).all(|of_one| of_one.is_sorted()), "the order of a caller");
    told.sort();
    let seqs: Vec<_> = told.iter().map(|(seq, _)| *seq).collect();
    assert_eq!(seqs, (1..=CALLERS * EACH).collect::<Vec<_>>());
    let last = points.get(&[number(0)]).unwrap().remove(0).unwrap();
    assert_eq!((last.seq, last.vector()), (CALLERS * EACH, &filled(told.last().unwrap().1)[..]));
    let written = node.counters().groups - before.groups;
    assert!(written < CALLERS * EACH / 2, "{written} groups");
    assert_eq!(points.count().unwrap(), CALLERS + 1);
    node.verify("points").unwrap();
}

#[test]
fn nothing_of_a_dropped_collection_is_in_the_next_of_its_name() {
    let place = place();
    let node = open(place.path()).unwrap();
    let ends = AtomicBool::new(false);
    let current = AtomicU64::new(0);
    let of_others = number(1 << 40);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !ends.load(Ordering::Acquire) {
                    let least = current.load(Ordering::Acquire);
                    let Ok(points) = node.collection("points") else { continue };
                    // Its ids are those of one time that it was made, and of none before that it was asked for.
                    match points.search(&filled(0), 100) {
                        Ok(found) => {
                            let ids = found.hits[0].iter().map(|hit| &hit.id).filter(|id| **id != of_others);
                            let times: Vec<_> = ids.map(time_of).collect();
                            assert!(
                                times.iter().all(|time| *time == times[0] && *time >= least),
                                "{times:?}"
                            );
                            assert!([0, 20].contains(&times.len()), "{times:?}");
                        }
                        Err(e) => assert_eq!(e.kind, Kind::Missing, "{e}"),
                    }
                    let written = points.upsert(std::slice::from_ref(&of_others), &filled(9));
                    assert!(written.is_ok() || written.is_err_and(|e| e.kind == Kind::Missing));
                    let _ = points.delete(std::slice::from_ref(&of_others));
                }
            });
        }
        let _ends = Ends(&ends);
        for time in 1..=40 {
            let points = node.create_collection("points", SMALL).unwrap();
            current.store(time, Ordering::Release);
            let ids: Vec<_> = (0..20).map(|row| number(time * 100 + row)).collect();
            points.upsert(&ids, &filled(time).repeat(20)).unwrap();
            let dropped = node.drop_collection("points").unwrap();
            assert!(dropped.unfinished.is_none() && dropped.rows >= 21, "{dropped:?}");
            refused(points.count(), Kind::Missing, "was dropped");
            refused(points.upsert(&ids, &filled(1).repeat(20)), Kind::Missing, "was dropped");
        }
    });
    assert_eq!(node.collections().unwrap(), []);
    drop(node);
    assert_eq!(collections_with_rows(place.path()), [0]);
}

/// The time at which a point was written, which its id tells.
fn time_of(id: &ExternalId) -> u64 {
    match id {
        ExternalId::Number(number) => number / 100,
        _ => 0,
    }
}

/// Numbers of collections that have rows, in a folder that nobody has open.
fn collections_with_rows(folder: &std::path::Path) -> Vec<u64> {
    let rows = common::open(folder).unwrap();
    let (mut from, end) = (Key::first_of_collection(0), Key::end_of_collection(u64::MAX));
    let mut found = Vec::new();
    loop {
        let chunk = rows.scan(&from, &end, CHUNK_BYTES).unwrap();
        found.extend(chunk.rows.iter().map(|(key, _)| key.collection()));
        found.dedup();
        let Some(next) = chunk.next else { return found };
        from = next;
    }
}

#[test]
fn a_drop_that_was_interrupted_is_ended_at_the_next_opening() {
    let place = place();
    let node = open(place.path()).unwrap();
    let kept = node.create_collection("kept", SMALL).unwrap();
    kept.upsert(&[number(1)], &filled(1)).unwrap();
    drop((kept, node));
    let rows = common::open(place.path()).unwrap();
    for first in 0..5 {
        let mut batch = Batch::new();
        (0..500)
            .for_each(|row| batch.put(Key::first(77, RowKind::Tail).number(first).number(row), &[1; 600]));
        rows.write(batch).durable().unwrap();
    }
    let mut batch = Batch::new();
    batch.put(Key::first(0, RowKind::Catalogue).bytes(b"d").number(77), &[]);
    rows.write(batch).durable().unwrap();
    drop(rows);
    assert_eq!(collections_with_rows(place.path()), [0, 1, 77]);
    let node = open(place.path()).unwrap();
    node.create_collection("new", SMALL).unwrap();
    assert_eq!(node.collection("kept").unwrap().count().unwrap(), 1);
    drop(node);
    assert_eq!(collections_with_rows(place.path()), [0, 1]);
}

#[test]
fn one_folder_is_open_once() {
    let place = place();
    let node = open(place.path()).unwrap();
    let points = node.create_collection("points", SMALL).unwrap();
    refused(open(place.path()), BAD_INPUT, &format!("process {}", std::process::id()));
    drop(node);
    points.upsert(&[number(1)], &filled(1)).unwrap();
    refused(open(place.path()), BAD_INPUT, "has the data folder");
    drop(points);
    assert_eq!(open(place.path()).unwrap().collection("points").unwrap().count().unwrap(), 1);
}

/// Writes rows beneath a node that is closed.
fn beneath(folder: &std::path::Path, change: impl FnOnce(&Rows, &mut Batch)) {
    let rows = common::open(folder).unwrap();
    let mut batch = Batch::new();
    change(&rows, &mut batch);
    rows.write(batch).durable().unwrap();
}

fn rows_of(rows: &Rows, collection: u64, kind: RowKind) -> Vec<(Key, Vec<u8>)> {
    rows.scan(&Key::first(collection, kind), &Key::end(collection, kind), CHUNK_BYTES).unwrap().rows
}

/// Changes a row of the first collection, and returns what opening, and what comparing says. The other goes on.
fn with_changed_rows(change: impl FnOnce(&Rows, &mut Batch)) -> (Option<Error>, Error) {
    let place = place();
    let node = open(place.path()).unwrap();
    for name in ["hurt", "whole"] {
        let points = node.create_collection(name, SMALL).unwrap();
        (1..9).for_each(|id| _ = points.upsert(&[number(id)], &filled(id)).unwrap());
    }
    drop(node);
    beneath(place.path(), change);
    let node = open(place.path()).unwrap();
    let hurt = node.collection("hurt").unwrap();
    let opened = hurt.count().err();
    if let Some(error) = &opened {
        refused(hurt.search(&filled(1), 1), error.kind, "collection \"hurt\": collection 1, ");
        refused(hurt.upsert(&[number(50)], &filled(1)), error.kind, "is damaged");
    }
    let verified = node.verify("hurt").unwrap_err();
    assert_eq!(verified.kind, Kind::Other(ErrorKind::Corrupt));
    let whole = node.collection("whole").unwrap();
    assert_eq!(whole.upsert(&[number(50)], &filled(50)).unwrap().new, 1);
    assert_eq!((whole.search(&filled(50), 1).unwrap().hits[0][0].distance, whole.count().unwrap()), (0.0, 9));
    node.verify("whole").unwrap();
    assert!(node.drop_collection("hurt").unwrap().unfinished.is_none());
    node.create_collection("hurt", SMALL).unwrap();
    assert_eq!(node.verify("hurt").unwrap().points, 0);
    (opened, verified)
}

#[test]
fn damage_stops_one_collection_and_names_its_row() {
    let (opened, verified) = with_changed_rows(|rows, batch| {
        let (key, value) = rows_of(rows, 1, RowKind::Tail).remove(3);
        batch.put(key, &value[..value.len() - 4]);
    });
    assert!(opened.unwrap().message.contains("its vector has 12 bytes of 16"));
    assert!(verified.message.contains("collection 1, tail row 0000000000000004"), "{verified}");
    let (opened, _) = with_changed_rows(|rows, batch| {
        let (key, mut value) = rows_of(rows, 1, RowKind::Tail).remove(0);
        let at = value.len() - 4;
        value[at..].copy_from_slice(&f32::NAN.to_le_bytes());
        batch.put(key, &value);
    });
    assert!(opened.unwrap().message.contains("component 3 is NaN"));
    let (opened, _) =
        with_changed_rows(|rows, batch| batch.remove(rows_of(rows, 1, RowKind::Tail).remove(2).0));
    assert!(opened.unwrap().message.contains("counts 8 points, 8 of them in the tail; there are 7 and 7"));
    let (opened, _) = with_changed_rows(|rows, batch| {
        let (key, value) = rows_of(rows, 1, RowKind::Tail).remove(0);
        batch.put(key.number(0), &value);
    });
    assert!(opened.unwrap().message.contains("names no place"));
    let (opened, _) = with_changed_rows(|_, batch| batch.put(Key::first(1, RowKind::Manifest), b"other"));
    assert!(opened.unwrap().message.contains("manifest row"));
}

#[test]
fn a_damaged_row_of_the_catalogue_is_that_of_one_collection() {
    let place = place();
    let node = open(place.path()).unwrap();
    for name in ["hurt", "whole"] {
        node.create_collection(name, SMALL).unwrap();
    }
    drop(node);
    beneath(place.path(), |rows, batch| {
        let found = rows_of(rows, 0, RowKind::Catalogue);
        let (key, _) = found.into_iter().find(|(key, _)| key.rest().starts_with(b"nhurt")).unwrap();
        batch.put(key, b"something");
    });
    let node = open(place.path()).unwrap();
    refused(node.collection("hurt"), Kind::Other(ErrorKind::Corrupt), "collection \"hurt\"");
    refused(node.create_collection("hurt", SMALL), BAD_INPUT, "already");
    assert!(node.collections().unwrap()[0].specs.is_err());
    node.collection("whole").unwrap().upsert(&[number(1)], &filled(1)).unwrap();
    node.drop_collection("hurt").unwrap();
    node.create_collection("hurt", SMALL).unwrap();
    assert_eq!(node.collections().unwrap().len(), 2);
}

#[test]
fn bytes_of_files_that_are_flipped_stop_one_collection() {
    const MARK: u64 = 1_234_567;
    let place = place();
    let node = open(place.path()).unwrap();
    let wide = Spec { dim: 4096, ..SMALL };
    for (name, value) in [("hurt", MARK), ("whole", 7)] {
        let points = node.create_collection(name, wide).unwrap();
        let vector = filled(value).repeat(1024);
        (0..8).for_each(|id| _ = points.upsert(&[number(id)], &vector).unwrap());
    }
    drop(node);
    // What only the log has is written into files when the rows are opened.
    drop(open(place.path()).unwrap());
    let pattern = filled(MARK).repeat(100);
    let mut flipped = 0;
    for file in common::files(&place.path().join("db/keyspaces")) {
        let mut bytes = std::fs::read(&file).unwrap();
        // In the midst: the first and the last vector may share a block with rows of others.
        let found = bytes.windows(pattern.len()).enumerate().filter(|(_, window)| *window == pattern);
        let found: Vec<_> = found.map(|(at, _)| at).collect();
        if let Some(at) = found.get(found.len() / 2) {
            bytes[at + 200] ^= 4;
            std::fs::write(&file, bytes).unwrap();
            flipped += 1;
        }
    }
    assert!(flipped > 0, "no file has the vectors");
    let node = open(place.path()).unwrap();
    let hurt = node.collection("hurt").unwrap();
    refused(hurt.count(), Kind::Other(ErrorKind::Corrupt), "collection \"hurt\": collection 1, tail row");
    refused(node.verify("hurt"), Kind::Other(ErrorKind::Corrupt), "is damaged");
    assert_eq!(node.collection("whole").unwrap().count().unwrap(), 8);
    assert_eq!(node.verify("whole").unwrap().points, 8);
}
