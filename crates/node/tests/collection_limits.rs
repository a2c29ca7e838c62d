//! Quotas and minima of the memory of collections, and jobs that are asked for.

mod common;

use std::time::{Duration, Instant};

use common::points::{SMALL, busy_options, filled, number, open, options};
use stratann_node::collections::{
    Collection, Error, Kind, MemoryLimits, Node, Options, Result, Spec, Upserted,
};
use stratann_node::rows::{Batch, Key, RowKind, Rows};
use stratann_params::IndexKind;
use stratann_storage::{ErrorKind, Progress, Quiet};

/// Memory that is set aside for the program.
const PROGRAM: u64 = 15 << 20;

const BAD_INPUT: Kind = Kind::Other(ErrorKind::BadInput);

fn place() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

fn quota(bytes: u64) -> MemoryLimits {
    MemoryLimits { quota_bytes: Some(bytes), minimum_bytes: 0 }
}

fn minimum(minimum_bytes: u64) -> MemoryLimits {
    MemoryLimits { quota_bytes: None, minimum_bytes }
}

fn write(points: &Collection, from: u64, count: u64) -> Result<Upserted> {
    let ids: Vec<_> = (from..from + count).map(number).collect();
    points.upsert(&ids, &filled(1).repeat(count as usize))
}

/// Writes points until one write is refused. Returns how many there are, and why there are no more.
fn fill(points: &Collection) -> (u64, Error) {
    let from = points.count().unwrap();
    let refused =
        (0..200).find_map(|step| Some((from + 100 * step, write(points, from + 100 * step, 100).err()?)));
    refused.expect("a limit")
}

fn bytes(points: &Collection) -> u64 {
    points.facts().unwrap().memory_bytes
}

#[track_caller]
fn refused<T>(what: Result<T>, kind: Kind, text: &str) {
    let error = what.map(|_| ()).unwrap_err();
    assert!(error.kind == kind && error.message.contains(text), "{error:?}");
}

#[test]
fn a_collection_at_its_quota_is_busy_and_others_go_on() {
    let place = place();
    let node = open(place.path()).unwrap();
    let other = node.create_collection("other", SMALL).unwrap();
    write(&other, 0, 1000).unwrap();
    let flat = Spec { kind: Some(IndexKind::Flat), ..SMALL };
    let points = node.create_limited("points", flat, quota(1 << 20)).unwrap();
    let (count, error) = fill(&points);
    assert!(error.kind == Kind::Busy && error.message.contains("memory quota of 1.0 MiB"), "{error}");
    let facts = points.facts().unwrap();
    assert!(count > 1000 && facts.points == count && facts.memory_bytes <= 1 << 20, "{facts:?}");
    assert_eq!(facts.limits, quota(1 << 20));
    assert_eq!(node.deltas_bytes(), facts.memory_bytes + bytes(&other), "nobody was closed for it");
    write(&other, 1000, 1000).unwrap();
    // Points in segments take less, and what is there can be replaced and deleted.
    points.delete(&[number(3)]).unwrap();
    points.compact(&Quiet).unwrap();
    assert!(bytes(&points) <= 1 << 20);
    write(&points, 0, 100).unwrap();
    node.set_limits("points", MemoryLimits::default()).unwrap();
    write(&points, count, 3000).unwrap();
    points.compact(&Quiet).unwrap();
    assert!(bytes(&points) > 1000);
    // One that needs more than its quota is not opened, until the quota is larger.
    node.set_limits("points", quota(1000)).unwrap();
    let error = points.count().unwrap_err();
    assert!(error.kind == Kind::Other(ErrorKind::Budget), "{error}");
    assert!(error.message.contains("quota is 1000 B; give it a quota of 1MiB or more"), "{error}");
    assert_eq!(node.change_limits("points", |own| own.quota_bytes = Some(1 << 20)).unwrap(), quota(1 << 20));
    assert_eq!(points.count().unwrap(), count + 3000);
}

#[test]
fn what_is_kept_for_a_collection_is_not_taken_by_others() {
    let place = place();
    let rows = options().rows;
    let small = Options {
        deltas_bytes: 1 << 20,
        ram_budget: Some(rows.memory_bytes + PROGRAM + (5 << 20)),
        ..options()
    };
    let node = Node::open(place.path(), &small, &Quiet).unwrap();
    let kept = node.create_limited("kept", SMALL, minimum(9 << 19)).unwrap();
    let other = node.create_collection("other", SMALL).unwrap();
    refused(
        node.set_limits("other", minimum(1 << 20)),
        BAD_INPUT,
        "minima of 4.5 MiB and all of them share 5.0 MiB",
    );
    refused(node.create_limited("third", SMALL, minimum(1 << 20)), BAD_INPUT, "smaller one");
    refused(node.set_limits("other", quota(0)), BAD_INPUT, "quota of 0");
    let crossed = MemoryLimits { quota_bytes: Some(1), minimum_bytes: 2 };
    refused(node.set_limits("other", crossed), BAD_INPUT, "more than the quota");
    refused(node.set_limits("third", quota(1)), Kind::Missing, "third");
    let (count, error) = fill(&other);
    assert!(error.message.contains("4.5 MiB are kept for the minima"), "{error}");
    assert!(bytes(&other) <= 1 << 19);
    // It has all of it for its points, also beyond what is set aside for points.
    write(&kept, 0, 10_000).unwrap();
    assert!(bytes(&kept) > 1 << 20);
    node.set_limits("kept", MemoryLimits::default()).unwrap();
    assert_eq!(kept.count().unwrap(), 10_000);
    assert_eq!(node.close_idle(), 0);
    assert_eq!(node.close_idle(), 2);
    let more = fill(&other).0;
    assert!(more > count, "{more} after {count}");
    // Limits of a larger minimum close what others have in its place.
    node.set_limits("kept", minimum(9 << 19)).unwrap();
    assert_eq!(node.deltas_bytes(), 0);
}

#[test]
fn a_write_makes_others_give_way_the_least_recently_used_first() {
    let place = place();
    let small = Options { deltas_bytes: 1 << 20, ..options() };
    let node = Node::open(place.path(), &small, &Quiet).unwrap();
    let [one, two, three] = ["one", "two", "three"].map(|name| node.create_collection(name, SMALL).unwrap());
    write(&two, 0, 1000).unwrap();
    write(&one, 0, 200).unwrap();
    write(&three, 0, 100).unwrap();
    two.count().unwrap();
    let used = [&one, &two, &three].map(bytes);
    let left = (1 << 20) - used.iter().sum::<u64>();
    two.count().unwrap();
    let mut count = 100;
    while bytes(&three) < left + used[2] {
        write(&three, count, 50).unwrap();
        count += 50;
    }
    assert_eq!(node.deltas_bytes(), bytes(&three) + used[1], "one was closed, and two was not");
    let (count, error) = fill(&three);
    assert!(error.kind == Kind::Busy && error.message.contains("close collections"), "{error}");
    assert_eq!(node.deltas_bytes(), bytes(&three), "both were closed");
    assert_eq!((one.count().unwrap(), two.count().unwrap(), three.count().unwrap()), (200, 1000, count));
}

#[test]
fn limits_last_until_the_collection_is_dropped() {
    let place = place();
    let both = MemoryLimits { quota_bytes: Some(5 << 20), minimum_bytes: 3 << 20 };
    let node = open(place.path()).unwrap();
    node.create_limited("a", SMALL, both).unwrap();
    node.create_collection("b", SMALL).unwrap();
    node.set_limits("b", minimum(7)).unwrap();
    node.set_limits("b", MemoryLimits::default()).unwrap();
    drop(node);
    let node = open(place.path()).unwrap();
    let limits = |node: &Node, name| node.collection(name).unwrap().facts().unwrap().limits;
    assert_eq!((limits(&node, "a"), limits(&node, "b")), (both, MemoryLimits::default()));
    node.drop_collection("a").unwrap();
    let again = node.create_collection("a", SMALL).unwrap();
    assert_eq!(again.facts().unwrap().limits, MemoryLimits::default());
    node.set_limits("a", minimum(1 << 40)).unwrap();
    drop((node, again));
    // With a budget that has no room for minima none is kept, and it is said.
    struct Said(std::sync::Mutex<String>);
    impl Progress for Said {
        fn stage(&self, _: &str, _: u64, _: &str) {}
        fn advance(&self, _: u64) {}
        fn interrupted(&self) -> bool {
            false
        }
        fn note(&self, text: &str) {
            *self.0.lock().unwrap() += text;
        }
    }
    let said = Said(Default::default());
    let small = Options { ram_budget: Some(options().rows.memory_bytes + (80 << 20)), ..options() };
    let node = Node::open(place.path(), &small, &said).unwrap();
    assert!(said.0.lock().unwrap().contains("none is kept"), "{:?}", said.0.lock());
    write(&node.collection("b").unwrap(), 0, 100).unwrap();
    node.set_limits("a", minimum(1 << 20)).unwrap();
}

#[test]
fn a_damaged_row_of_limits_stops_its_collection_alone() {
    let place = place();
    let node = open(place.path()).unwrap();
    for name in ["a", "b"] {
        write(&node.create_limited(name, SMALL, quota(1 << 20)).unwrap(), 0, 10).unwrap();
    }
    drop(node);
    let rows = Rows::open(place.path(), &options().rows, &Quiet).unwrap();
    let mut batch = Batch::new();
    batch.put(Key::first(0, RowKind::Catalogue).bytes(b"l").number(1), &[1, 2, 3]);
    rows.write(batch).durable().unwrap();
    drop(rows);
    let node = open(place.path()).unwrap();
    refused(node.collection("a"), Kind::Other(ErrorKind::Corrupt), "set them again");
    assert_eq!(node.collection("b").unwrap().count().unwrap(), 10);
    node.set_limits("a", quota(2 << 20)).unwrap();
    assert_eq!(node.collection("a").unwrap().facts().unwrap().limits, quota(2 << 20));
    assert_eq!(node.collection("a").unwrap().count().unwrap(), 10);
    assert_eq!(node.drop_collection("a").unwrap().rows, 11);
    drop(node);
    assert_eq!(open(place.path()).unwrap().collections().unwrap().len(), 1);
}

#[test]
fn a_compaction_that_is_asked_for_is_done_in_the_background() {
    let place = place();
    let node = Node::open(place.path(), &busy_options(), &Quiet).unwrap();
    let points = node.create_collection("points", SMALL).unwrap();
    for from in 0..50 {
        write(&points, 10 * from, 10).unwrap();
    }
    points.compact_later().unwrap();
    let begun = Instant::now();
    let facts = loop {
        let facts = points.facts().unwrap();
        assert!(
            facts.jobs.iter().all(|job| ["checkpoint", "minor_merge", "merge"].contains(job)),
            "{facts:?}"
        );
        if facts.jobs.is_empty() {
            break facts;
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "{facts:?}");
        std::thread::sleep(Duration::from_millis(5));
    };
    assert_eq!((facts.segments.len(), facts.delta_points, facts.points), (1, 0, 500), "{facts:?}");
    assert_eq!(facts.trouble, None);
    drop((points, node));
    let node = open(place.path()).unwrap();
    refused(node.collection("points").unwrap().compact_later(), BAD_INPUT, "no thread");
    assert_eq!(node.collection("points").unwrap().facts().unwrap().jobs, Vec::<&str>::new());
}
