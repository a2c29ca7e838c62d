//! Segments of collections: what they are made of, how they are merged, and what their damage stops.

mod common;

use std::path::{Path, PathBuf};

use common::Noise;
use common::points::{SMALL, busy_options, filled, number, open, options};
use stratann_kernel::{DType, Metric};
use stratann_node::collections::{
    Collection, Kind, MemoryLimits, Node, Options, SearchOptions, SegmentOptions, Spec,
};
use stratann_node::rows::ExternalId;
use stratann_params::IndexKind;
use stratann_storage::{ErrorKind, Progress, Quiet};

const CORRUPT: Kind = Kind::Other(ErrorKind::Corrupt);

fn place() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

/// Random vectors of a shape.
fn vectors(spec: &Spec, seed: u64, count: usize) -> Vec<u8> {
    let mut noise = Noise(seed);
    let values: Vec<f32> = (0..count * spec.dim).map(|_| noise.below(200) as f32 + 1.0).collect();
    common::points::components(spec.dtype, &values)
}

fn fill(points: &Collection, ids: std::ops::Range<u64>) {
    let spec = points.spec().unwrap();
    for first in ids.clone().step_by(1000) {
        let some: Vec<_> = (first..ids.end.min(first + 1000)).map(number).collect();
        points.upsert(&some, &vectors(&spec, first, some.len())).unwrap();
    }
}

/// All files of segments.
fn files_of_segments(folder: &Path) -> Vec<PathBuf> {
    common::files(&folder.join("s")).into_iter().filter(|file| !file.ends_with("copy.bin")).collect()
}

/// Share of the nearest that a search finds, against the distances to all points.
fn recall(points: &Collection, recall: f64) -> f64 {
    let spec = points.spec().unwrap();
    let all = points.scroll(None, 16_000).unwrap().points;
    assert_eq!(all.len() as u64, points.count().unwrap());
    let (mut exact, mut found) = (stratann_kernel::distance::Exact::default(), 0);
    for seed in 0..50 {
        let query = vectors(&spec, 1_000_000 + seed, 1);
        exact.set(spec.metric, spec.dtype, spec.dim, &query);
        let norm = |vector: &[u8]| stratann_kernel::distance::inverse_norm(spec.dtype, vector);
        let mut distances: Vec<f32> =
            all.iter().map(|point| exact.distance(point.vector(), norm(point.vector()))).collect();
        distances.sort_by(f32::total_cmp);
        let options = SearchOptions { recall, ..SearchOptions::default() };
        let hits = &points.search_with(&query, &options).unwrap().hits[0];
        assert_eq!(hits.len(), 10);
        let slack = distances[9].abs() * 1e-5;
        found += hits.iter().filter(|hit| hit.distance <= distances[9] + slack).count();
    }
    found as f64 / 500.0
}

#[test]
fn segments_of_every_kind_keep_vectors_and_recall() {
    for kind in [
        IndexKind::DiskGraph,
        IndexKind::HybridIvf,
        IndexKind::GridIvf,
        IndexKind::GpuIvf,
        IndexKind::RemoteHnsw,
        IndexKind::Flat,
    ] {
        for (metric, dtype) in [(Metric::L2, DType::F32), (Metric::Cosine, DType::U8)] {
            let place = place();
            let node = open(place.path()).unwrap();
            let spec = Spec { dim: 8, metric, dtype, kind: Some(kind) };
            let points = node.create_collection("points", spec).unwrap();
            fill(&points, 0..5000);
            let given = points.get(&[number(4321), number(17)]).unwrap();
            points.compact(&Quiet).unwrap();
            let facts = points.facts().unwrap();
            assert_eq!((facts.segments[0].kind, facts.segments[0].rows), (Some(kind), 5000));
            assert_eq!(points.get(&[number(4321), number(17)]).unwrap(), given, "{kind:?}");
            // A half changes its place, and some go.
            fill(&points, 0..2000);
            points.delete(&(2000..2300).map(number).collect::<Vec<_>>()).unwrap();
            assert_eq!(points.facts().unwrap().segments[0].dead, 2300);
            assert_eq!(points.count().unwrap(), 4700);
            let found = recall(&points, 0.9);
            assert!(found >= 0.88, "{kind:?}: {found}");
            points.checkpoint(&Quiet).unwrap();
            let found = recall(&points, 0.9);
            assert!(found >= 0.88, "{kind:?} with a checkpoint: {found}");
            assert_eq!(node.verify("points").unwrap().points, 4700);
            points.compact(&Quiet).unwrap();
            assert_eq!(points.facts().unwrap().segments.len(), 1);
            assert_eq!(points.get(&[number(4321)]).unwrap(), given[..1], "{kind:?}");
            assert_eq!(node.verify("points").unwrap().points, 4700);
            drop((points, node));
            let node = open(place.path()).unwrap();
            assert!(recall(&node.collection("points").unwrap(), 0.9) >= 0.88, "{kind:?}");
        }
    }
}

/// The recall curves of the only segment.
fn curves(folder: &Path) -> serde_json::Value {
    let files = files_of_segments(folder).into_iter();
    let mut manifests = files.filter(|file| file.to_string_lossy().contains("manifest"));
    let (path, others) = (manifests.next().unwrap(), manifests.count());
    assert_eq!(others, 0);
    let manifest: serde_json::Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    manifest["curves"].clone()
}

#[test]
fn a_merged_segment_has_the_recall_curves_of_the_largest_until_it_is_half_as_large_again() {
    let place = place();
    let node = open(place.path()).unwrap();
    let spec = Spec { dim: 8, metric: Metric::L2, dtype: DType::U8, kind: Some(IndexKind::DiskGraph) };
    let points = node.create_collection("points", spec).unwrap();
    let mut all = Vec::new();
    for ids in [0..5000, 5000..6000, 6000..7400, 7400..7700] {
        fill(&points, ids);
        points.compact(&Quiet).unwrap();
        assert_eq!(points.facts().unwrap().segments.len(), 1);
        all.push(curves(place.path()));
        assert!(recall(&points, 0.9) >= 0.88);
    }
    assert!(!all[0].as_array().unwrap().is_empty());
    assert_eq!(all[0], all[1]);
    assert_eq!(all[1], all[2]);
    assert_ne!(all[2], all[3], "it has more than 7,500 rows");
}

#[test]
fn the_background_keeps_segments_few_while_points_change() {
    let place = place();
    let segments = SegmentOptions { checkpoint_rows: 300, first_rows: 200, ..busy_options().segments };
    let node = Node::open(place.path(), &Options { segments, ..options() }, &Quiet).unwrap();
    let points = node.create_collection("points", SMALL).unwrap();
    let mut noise = Noise(5);
    let mut value_of = std::collections::BTreeMap::new();
    let mut most = 0;
    for step in 0..600 {
        let ids: Vec<_> = (0..20).map(|_| number(noise.below(3000))).collect();
        let values: Vec<u64> = ids.iter().map(|_| noise.below(100)).collect();
        points.upsert(&ids, &values.iter().flat_map(|value| filled(*value)).collect::<Vec<_>>()).unwrap();
        value_of.extend(ids.iter().cloned().zip(values));
        if step % 7 == 0 {
            points.delete(&ids[..3]).unwrap();
            ids[..3].iter().for_each(|id| _ = value_of.remove(id));
        }
        let near = value_of.values().map(|value| (*value as f32 - 50.0).abs()).fold(f32::MAX, f32::min);
        let hit = &points.search(&filled(50), 1).unwrap().hits[0][0];
        assert_eq!(hit.distance, 4.0 * near * near, "step {step}");
        // On a busy machine the background falls behind.
        let begin = std::time::Instant::now();
        while step % 100 == 99 && !points.facts().unwrap().jobs.is_empty() {
            assert!(begin.elapsed().as_secs() < 120, "{:?}", points.facts());
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        most = most.max(points.facts().unwrap().segments.len());
    }
    assert!((2..30).contains(&most), "{most} segments");
    let facts = points.facts().unwrap();
    assert!(facts.trouble.is_none() && facts.points == value_of.len() as u64, "{facts:?}");
    node.verify("points").unwrap();
    drop((points, node));
    let node = open(place.path()).unwrap();
    let points = node.collection("points").unwrap();
    let found = points.scroll(None, 16_000).unwrap().points;
    let expected: Vec<_> = value_of.iter().map(|(id, value)| (id.clone(), filled(*value))).collect();
    assert_eq!(
        found.into_iter().map(|point| (point.id.clone(), point.vector().to_vec())).collect::<Vec<_>>(),
        expected
    );
}

fn wait_for_jobs(points: &Collection) {
    let begin = std::time::Instant::now();
    while !points.facts().unwrap().jobs.is_empty() {
        assert!(begin.elapsed().as_secs() < 120, "{:?}", points.facts());
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

#[test]
fn segments_between_are_scanned_by_codes_that_are_made_again_beside_the_first_searches() {
    let spec = Spec { dim: 8, metric: Metric::L2, dtype: DType::U8, kind: Some(IndexKind::DiskGraph) };
    let place = place();
    let segments = SegmentOptions {
        checkpoint_rows: 300,
        first_rows: 200,
        scanned_rows: 1000,
        ..busy_options().segments
    };
    let options = Options { segments, ..options() };
    let node = Node::open(place.path(), &options, &Quiet).unwrap();
    let points = node.create_collection("points", spec).unwrap();
    fill(&points, 0..8_000);
    points.compact(&Quiet).unwrap();
    for first in [8_000, 8_300, 8_600] {
        fill(&points, first..first + 300);
        wait_for_jobs(&points);
    }
    let facts = points.facts().unwrap();
    let kinds: Vec<_> = facts.segments.iter().map(|own| (own.kind.unwrap(), own.rows)).collect();
    assert_eq!(kinds, [(IndexKind::DiskGraph, 8_000), (IndexKind::Flat, 900)]);
    assert!(recall(&points, 0.9) >= 0.88);
    let search = |points: &Collection| points.search(&vectors(&spec, 9, 1), 10).unwrap();
    let before = search(&points);
    assert!(before.delta.codes > 0);
    drop((points, node));
    let node = Node::open(place.path(), &options, &Quiet).unwrap();
    let points = node.collection("points").unwrap();
    assert_eq!(search(&points).hits, before.hits);
    wait_for_jobs(&points);
    let found = search(&points);
    assert_eq!((found.hits, found.delta.codes), (before.hits, before.delta.codes));
    points.delete(&(0..8_890).map(number).collect::<Vec<_>>()).unwrap();
    let found = search(&points);
    assert_eq!((found.hits[0].len(), found.delta.codes), (10, 0), "few are left");
    node.verify("points").unwrap();
}

#[test]
fn a_collection_whose_memory_is_full_makes_room_by_a_checkpoint() {
    let place = place();
    // The memory is full long before there are as many points as a checkpoint usually has.
    let segments = SegmentOptions { in_background: true, ..SegmentOptions::default() };
    let small = Options { deltas_bytes: 1 << 20, segments, ..options() };
    let node = Node::open(place.path(), &small, &Quiet).unwrap();
    let points = node.create_collection("points", SMALL).unwrap();
    let (mut refused, begin) = (0, std::time::Instant::now());
    for first in (0..12_000).step_by(500) {
        let ids: Vec<_> = (first..first + 500).map(number).collect();
        while let Err(e) = points.upsert(&ids, &filled(first).repeat(500)) {
            assert!(e.kind == Kind::Busy && e.retry_after_s() == Some(1), "{e}");
            assert!(begin.elapsed() < std::time::Duration::from_secs(100), "no room is made");
            refused += 1;
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }
    assert!(refused > 0 && points.count().unwrap() == 12_000);
    assert!(!points.facts().unwrap().segments.is_empty());
    node.verify("points").unwrap();
}

#[test]
fn a_folder_that_is_copied_while_it_is_open_is_whole_or_refused() {
    let place = place();
    let folder = place.path().join("data");
    let node = Node::open(&folder, &busy_options(), &Quiet).unwrap();
    let points = node.create_collection("points", SMALL).unwrap();
    let end = std::sync::atomic::AtomicBool::new(false);
    let mut whole = 0;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0..u64::MAX {
                if end.load(std::sync::atomic::Ordering::Relaxed) {
                    break;
                }
                let ids: Vec<_> = (0..10).map(|at| number((round * 7 + at) % 300)).collect();
                points.upsert(&ids, &filled(round).repeat(10)).unwrap();
            }
        });
        let _ends = Ends(&end);
        for time in 0..6 {
            std::thread::sleep(std::time::Duration::from_millis(50));
            let copy = place.path().join(format!("copy {time}"));
            // A file may go while it is copied.
            let copied = std::process::Command::new("cp").arg("-r").arg(&folder).arg(&copy).output().unwrap();
            let opened = open(&copy).and_then(|node| node.verify("points").map(|verified| verified.points));
            match opened {
                Ok(points) => whole += u64::from(points <= 300),
                Err(e) => assert_eq!(e.kind, CORRUPT, "{e} ({copied:?})"),
            }
        }
    });
    eprintln!("{whole} of 6 copies are whole");
    assert!(node.verify("points").is_ok());
}

#[test]
fn damage_of_a_segment_stops_its_collection_alone_and_names_the_file() {
    let files = {
        let place = place();
        make_two(place.path());
        files_of_segments(place.path()).len()
    };
    for at in 0..files {
        let place = place();
        make_two(place.path());
        let hurt = files_of_segments(place.path())[at].clone();
        let bytes = std::fs::read(&hurt).unwrap();
        let is_first = hurt.components().any(|part| part.as_os_str() == "0000000000000001");
        let (name, other) = if is_first { ("one", "two") } else { ("two", "one") };
        for flip in [bytes.len() / 2, bytes.len() - 1, 0] {
            let mut flipped = bytes.clone();
            flipped[flip] ^= 4;
            std::fs::write(&hurt, flipped).unwrap();
            let node = open(place.path()).unwrap();
            let error = node.verify(name).unwrap_err();
            assert!(error.kind == CORRUPT, "{}: {error}", hurt.display());
            assert!(error.message.contains(name) && error.message.contains("/s/000"), "{error}");
            assert_eq!(node.verify(other).unwrap().points, 6000);
            assert_eq!(node.collection(other).unwrap().search(&filled(3), 5).unwrap().hits[0].len(), 5);
        }
        std::fs::remove_file(&hurt).unwrap();
        let node = open(place.path()).unwrap();
        let error =
            node.collection(name).unwrap().count().map(|_| ()).and_then(|()| node.verify(name).map(|_| ()));
        assert_eq!(error.unwrap_err().kind, CORRUPT, "{} is missing", hurt.display());
        // It can still be dropped, and made again.
        assert!(node.drop_collection(name).unwrap().unfinished.is_none());
        node.create_collection(name, SMALL).unwrap();
        assert_eq!(node.verify(other).unwrap().points, 6000);
    }
}

#[test]
fn segments_are_searched_where_the_engine_is_damaged_and_nothing_is_written() {
    let place = place();
    make_two(place.path());
    let node = open(place.path()).unwrap();
    node.create_collection("without segments", SMALL).unwrap();
    let one = node.collection("one").unwrap();
    one.delete(&(0..100).map(number).collect::<Vec<_>>()).unwrap();
    one.checkpoint(&Quiet).unwrap();
    // A delete is nothing for a checkpoint; the next one counts both.
    fill(&one, 7000..7010);
    one.checkpoint(&Quiet).unwrap();
    let known = one.search(&filled(3), 5).unwrap().hits;
    fill(&one, 8000..8020);
    drop((one, node));
    let engine = place.path().join("db");
    let whole = common::files(&engine).into_iter().map(|file| (file.clone(), std::fs::read(&file).unwrap()));
    let whole: Vec<_> = whole.collect();
    let mut salvaged = 0;
    for (hurt, bytes) in &whole {
        let flipped: Vec<u8> = bytes.iter().map(|byte| byte ^ 0x55).collect();
        std::fs::write(hurt, flipped).unwrap();
        let before = common::files(&place.path().join("s"));
        let opened = open(place.path());
        let (node, what) = (opened.unwrap_or_else(|e| panic!("{}: {e}", hurt.display())), hurt.display());
        if let Some(why) = node.why_read_only() {
            salvaged += 1;
            assert!(why.contains("(one, two), and nothing is written"), "{why}");
            assert_eq!(node.collections().unwrap().len(), 2);
            let one = node.collection("one").unwrap();
            assert_eq!(
                (one.count().unwrap(), one.search(&filled(3), 5).unwrap().hits),
                (5910, known.clone())
            );
            assert!(one.get(&[number(99)]).unwrap()[0].is_none(), "a deleted point came back");
            let refused = one.upsert(&[number(1)], &filled(1)).unwrap_err();
            assert!(
                refused.kind == Kind::ReadOnly && refused.message.contains("nothing is written"),
                "{refused}"
            );
            let refused = [
                one.delete(&[number(200)]).map(|_| ()),
                one.compact(&Quiet).map(|_| ()),
                node.create_collection("three", SMALL).map(|_| ()),
                node.drop_collection("two").map(|_| ()),
                one.compact_later(),
                node.set_limits("one", MemoryLimits { quota_bytes: None, minimum_bytes: 1 }),
            ];
            assert!(
                refused.iter().all(|done| done.as_ref().is_err_and(|e| e.kind == Kind::ReadOnly)),
                "{refused:?}"
            );
            assert_eq!(node.verify("two").unwrap().points, 6000);
        }
        drop(node);
        assert_eq!(before, common::files(&place.path().join("s")), "{what}");
        whole.iter().for_each(|(file, bytes)| std::fs::write(file, bytes).unwrap());
    }
    assert!(salvaged > 2, "{salvaged}");
    let node = open(place.path()).unwrap();
    assert!(node.why_read_only().is_none());
    assert_eq!(node.verify("one").unwrap().points, 5930);
}

/// Two collections with a segment each.
fn make_two(folder: &Path) {
    let node = open(folder).unwrap();
    for name in ["one", "two"] {
        let spec = Spec { kind: Some(IndexKind::DiskGraph), ..SMALL };
        let points = node.create_collection(name, spec).unwrap();
        fill(&points, 0..6000);
        points.compact(&Quiet).unwrap();
    }
}

/// Ends the others, also where a test fails.
struct Ends<'a>(&'a std::sync::atomic::AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, std::sync::atomic::Ordering::Relaxed);
    }
}

#[test]
fn a_collection_is_dropped_and_made_again_under_searches() {
    let place = place();
    let node = Node::open(place.path(), &busy_options(), &Quiet).unwrap();
    let end = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !end.load(std::sync::atomic::Ordering::Relaxed) {
                    std::thread::sleep(std::time::Duration::from_micros(200));
                    let Ok(points) = node.collection("points") else { continue };
                    match points.search(&filled(1), 5) {
                        Ok(found) => assert!(found.hits[0].iter().all(|hit| hit.distance == 0.0)),
                        Err(e) => assert_eq!(e.kind, Kind::Missing, "{e}"),
                    }
                }
            });
        }
        let _ends = Ends(&end);
        for _ in 0..15 {
            let points = node.create_collection("points", SMALL).unwrap();
            for batch in 0..8 {
                let ids: Vec<_> = (batch * 10..batch * 10 + 15).map(number).collect();
                points.upsert(&ids, &filled(1).repeat(15)).unwrap();
            }
            let dropped = node.drop_collection("points").unwrap();
            assert!(dropped.unfinished.is_none(), "{dropped:?}");
        }
    });
    drop(node);
    drop(open(place.path()).unwrap());
    assert_eq!(files_of_segments(place.path()), Vec::<PathBuf>::new());
}

/// Interrupts after some questions.
struct Impatient(std::sync::atomic::AtomicI64);

impl Progress for Impatient {
    fn stage(&self, _: &str, _: u64, _: &str) {}
    fn advance(&self, _: u64) {}
    fn note(&self, _: &str) {}
    fn interrupted(&self) -> bool {
        self.0.fetch_sub(1, std::sync::atomic::Ordering::Relaxed) <= 0
    }
}

#[test]
fn a_merge_that_is_interrupted_leaves_everything_as_it_was() {
    let place = place();
    let node = open(place.path()).unwrap();
    let spec = Spec { kind: Some(IndexKind::DiskGraph), ..SMALL };
    let points = node.create_collection("points", spec).unwrap();
    fill(&points, 0..5000);
    points.checkpoint(&Quiet).unwrap();
    fill(&points, 4000..6000);
    let before = points.facts().unwrap();
    for patience in [0, 1, 3, 10, 30] {
        let stopped = points.compact(&Impatient(patience.into())).map_err(|e| e.kind);
        assert_eq!(stopped, Err(Kind::Other(ErrorKind::Interrupted)), "{patience}");
        assert_eq!(points.count().unwrap(), before.points);
        node.verify("points").unwrap();
    }
    // What was begun is gone on with by the next process, and rows that died meanwhile are dead in it.
    let begun: Vec<_> =
        files_of_segments(place.path()).into_iter().filter(|file| file.ends_with("merge.bin")).collect();
    assert_eq!(begun.len(), 1, "{begun:?}");
    points.delete(&[number(17), number(4500)]).unwrap();
    drop((points, node));
    let node = open(place.path()).unwrap();
    let points = node.collection("points").unwrap();
    points.compact(&Quiet).unwrap();
    let facts = points.facts().unwrap();
    let folder = begun[0].parent().unwrap().file_name().unwrap().to_str().unwrap();
    assert!(facts.segments.len() == 1 && facts.segments[0].number >= folder.parse().unwrap(), "{facts:?}");
    assert!(files_of_segments(place.path()).iter().all(|file| !file.ends_with("merge.bin")));
    assert_eq!(points.count().unwrap(), 5998);
    assert_eq!(node.verify("points").unwrap().points, 5998);
    // Ids beyond what a float has, and strings.
    let ids =
        [ExternalId::Number(u64::MAX), ExternalId::Number((1 << 53) + 1), ExternalId::text("é").unwrap()];
    points.upsert(&ids, &filled(7).repeat(3)).unwrap();
    points.compact(&Quiet).unwrap();
    assert!(points.get(&ids).unwrap().iter().all(Option::is_some));
}

#[test]
fn what_a_killed_process_left_is_done_at_the_next_opening_without_a_change() {
    let place = place();
    let node = open(place.path()).unwrap();
    let points =
        node.create_collection("points", Spec { kind: Some(IndexKind::DiskGraph), ..SMALL }).unwrap();
    fill(&points, 0..5000);
    points.checkpoint(&Quiet).unwrap();
    fill(&points, 4000..6000);
    assert!(points.compact(&Impatient(30.into())).is_err());
    let is_begun = |file: &PathBuf| file.ends_with("merge.bin");
    assert!(files_of_segments(place.path()).iter().any(is_begun));
    drop((points, node));
    let of_collection = std::fs::read_dir(place.path().join("s")).unwrap().next().unwrap().unwrap().path();
    let left = of_collection.join("900");
    std::fs::create_dir(&left).unwrap();
    let segments = SegmentOptions { checkpoint_rows: 1_000_000, ..busy_options().segments };
    let node = Node::open(place.path(), &Options { segments, ..options() }, &Quiet).unwrap();
    let points = node.collection("points").unwrap();
    assert_eq!(points.count().unwrap(), 6000);
    let begin = std::time::Instant::now();
    while left.exists() || files_of_segments(place.path()).iter().any(is_begun) {
        assert!(begin.elapsed().as_secs() < 60, "{:?}", points.facts());
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    assert_eq!(node.verify("points").unwrap().points, 6000);
}

#[test]
fn collections_that_were_not_used_for_longest_make_room() {
    const SEGMENTS: u64 = 4 << 20;
    let place = place();
    let names = ["a", "b", "c", "d"];
    let node = open(place.path()).unwrap();
    for name in names {
        let points =
            node.create_collection(name, Spec { kind: Some(IndexKind::DiskGraph), ..SMALL }).unwrap();
        fill(&points, 0..5000);
        points.compact(&Quiet).unwrap();
    }
    drop(node);
    // Not all of four open segments fit, beside 15 MiB for the program.
    let rows = common::options();
    let budget = rows.memory_bytes + (4 << 20) + (15 << 20) + SEGMENTS;
    let segments = SegmentOptions { build_bytes: Some(1 << 20), ..options().segments };
    let tight = Options { rows, deltas_bytes: 3 << 20, segments, ram_budget: Some(budget) };
    let node = Node::open(place.path(), &tight, &Quiet).unwrap();
    let used = || node.memory().iter().find(|own| own.part == "segments").map_or(0, |own| own.used_bytes);
    let mut most = 0;
    for round in 0..3 {
        for name in names {
            let points = node.collection(name).unwrap();
            assert_eq!(points.search(&filled(round), 5).unwrap().hits[0].len(), 5);
            most = most.max(used());
            assert!(
                node.memory().iter().map(|own| own.used_bytes.max(own.guaranteed_bytes)).sum::<u64>()
                    <= budget
            );
        }
    }
    assert!(most > 0 && most <= SEGMENTS, "{most}");
    let open = node.close_idle() + node.close_idle();
    assert!((1..4).contains(&open), "{open} are open");
    let engine = node.memory().into_iter().find(|own| own.part == "engine").unwrap();
    assert_eq!(engine.guaranteed_bytes, rows.memory_bytes);
}

#[test]
fn a_merged_segment_without_room_beside_the_older_ones_takes_their_place() {
    let place = place();
    let spec = Spec { dim: 16, metric: Metric::L2, dtype: DType::F32, kind: Some(IndexKind::DiskGraph) };
    let used = |node: &Node| {
        let parts = node.memory();
        parts.iter().find(|own| own.part == "segments").map_or(0, |own| own.used_bytes)
    };
    let node = open(place.path()).unwrap();
    let points = node.create_collection("points", spec).unwrap();
    fill(&points, 0..10_000);
    points.checkpoint(&Quiet).unwrap();
    fill(&points, 10_000..15_000);
    points.compact(&Quiet).unwrap();
    let one = used(&node);
    assert!(one > 3 << 20, "{one}");
    drop((points, node));
    let rows = common::options();
    let budget = rows.memory_bytes + (15 << 20) + (1 << 20) + one * 3 / 2;
    let tight = Options { rows, deltas_bytes: 1 << 20, ram_budget: Some(budget), ..options() };
    let node = Node::open(place.path(), &tight, &Quiet).unwrap();
    let points = node.collection("points").unwrap();
    fill(&points, 14_900..15_100);
    points.delete(&[number(3), number(15_050)]).unwrap();
    points.compact(&Quiet).unwrap();
    let facts = points.facts().unwrap();
    assert_eq!((facts.segments.len(), facts.segments[0].rows, facts.points), (1, 15_098, 15_098));
    assert!(used(&node) <= one * 3 / 2 + (1 << 20));
    assert!(recall(&points, 0.9) >= 0.88);
    points.upsert(&[number(3)], &vectors(&spec, 3, 1)).unwrap();
    assert_eq!(points.count().unwrap(), 15_099);
    assert_eq!(node.verify("points").unwrap().points, 15_099);
    drop((points, node));
    let node = open(place.path()).unwrap();
    assert_eq!(node.verify("points").unwrap().points, 15_099);
    let folders = std::fs::read_dir(place.path().join("s")).unwrap().flatten().next().unwrap();
    let segments = std::fs::read_dir(folders.path()).unwrap().flatten();
    assert_eq!(segments.filter(|own| own.path().is_dir()).count(), 1, "older ones are gone");
}

#[test]
fn a_checkpoint_without_room_for_its_rows_is_scanned_from_the_disk() {
    let place = place();
    let rows = common::options();
    // A checkpoint of 4,000 rows takes some 2.7 MiB.
    let budget = rows.memory_bytes + (15 << 20) + (8 << 20) + (2 << 20);
    let tight = Options { rows, deltas_bytes: 8 << 20, ram_budget: Some(budget), ..options() };
    let node = Node::open(place.path(), &tight, &Quiet).unwrap();
    let spec = Spec { dim: 128, metric: Metric::L2, dtype: DType::F32, kind: None };
    let points = node.create_collection("points", spec).unwrap();
    for first in [0, 4000] {
        fill(&points, first..first + 4000);
        points.checkpoint(&Quiet).unwrap();
    }
    let used = || node.memory().iter().map(|own| own.used_bytes.max(own.guaranteed_bytes)).sum::<u64>();
    assert!(used() <= budget);
    let found = points.search(&vectors(&spec, 1000, 1), 3).unwrap();
    assert_eq!(found.hits[0][0].id, number(1000));
    assert!(recall(&points, 0.9) >= 0.88);
    assert_eq!(points.facts().unwrap().segments.len(), 2);
    drop((points, node));
    let node = Node::open(place.path(), &tight, &Quiet).unwrap();
    let points = node.collection("points").unwrap();
    assert!(recall(&points, 0.9) >= 0.88);
    assert_eq!(node.verify("points").unwrap().points, 8000);
}

fn rss_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

#[test]
#[ignore = "a minute; make test-rows"]
fn ten_thousand_idle_collections_take_little() {
    const COLLECTIONS: u64 = 10_000;
    let place = place();
    let node = open(place.path()).unwrap();
    for name in 0..COLLECTIONS {
        let points = node.create_collection(&format!("collection {name}"), SMALL).unwrap();
        points.upsert(&[number(name)], &filled(name)).unwrap();
        if name % 100 == 0 {
            node.close_idle();
        }
    }
    drop(node);
    let threads = || std::fs::read_dir("/proc/self/task").unwrap().count();
    let files = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let before = (threads(), files(), rss_bytes());
    let begin = std::time::Instant::now();
    let node = open(place.path()).unwrap();
    let ready = begin.elapsed();
    let points = node.collection("collection 7777").unwrap();
    assert_eq!(points.search(&filled(7777), 1).unwrap().hits[0][0].distance, 0.0);
    let rss = rss_bytes().saturating_sub(before.2);
    eprintln!(
        "ready in {ready:?}, {} threads and {} files more, {} MiB more",
        threads() - before.0,
        files() - before.1,
        rss >> 20
    );
    assert!(files() - before.1 <= 200 && rss < 1 << 30);
    assert_eq!(node.collections().unwrap().len() as u64, COLLECTIONS);
}
