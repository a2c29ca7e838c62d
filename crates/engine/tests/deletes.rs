//! Deletes of an index in a folder: no search finds what is deleted, whatever is done with the index afterwards, and a
//! delete can be taken back.

mod common;

use std::path::Path;

use common::{Built, Set, clustered, hits, nearest, queries, quick};
use stratann_engine::build::{IndexKind, SourceIndex, build};
use stratann_engine::deletes::{Deleted, UNDO_MAX, delete, undo};
use stratann_engine::index::{Index, OpenOptions};
use stratann_engine::manifest::Manifest;
use stratann_engine::recall::tune::{TuneOptions, tune};
use stratann_engine::search::{Answers, Effort, Filters, Naming, SearchOptions, Together};
use stratann_engine::verify::verify;
use stratann_engine::{DType, Metric};
use stratann_storage::{ErrorKind, Quiet};

const ROWS: usize = 3000;
const DIM: usize = 24;
const KINDS: [IndexKind; 6] = IndexKind::ALL;

fn set() -> Set {
    Set::new(DType::F32, DIM, &clustered(ROWS, DIM, 12, 1))
}

fn calibrated(kind: IndexKind) -> Built {
    let mut options = quick(kind, Metric::L2);
    options.calibration_queries = 200;
    Built::new(set(), &options)
}

fn options(k: usize, recall: f64) -> SearchOptions {
    SearchOptions { k, effort: Effort::Recall(recall), threads: 2, ..SearchOptions::default() }
}

fn open(folder: &Path) -> Index {
    Index::open(folder, OpenOptions::default()).unwrap()
}

fn search(index: &Index, asked: &Set, options: &SearchOptions) -> Answers {
    let answers = index.search(&asked.bytes, options, &Quiet).unwrap();
    assert!(answers.failed.is_empty(), "{:?}", answers.failed);
    answers
}

/// A fifth of the rows.
fn fifth() -> Vec<u64> {
    (0..ROWS as u64).filter(|id| id % 5 == 2).collect()
}

/// Recall of answers among the rows that are not deleted, none of which may be there.
fn recall(set: &Set, asked: &Set, answers: &Answers, deleted: &[u64]) -> f64 {
    let k = answers.k;
    let found = |query: usize| &answers.ids[query * k..query * k + answers.counts[query] as usize];
    let hits: usize = (0..asked.len())
        .map(|query| {
            let found = found(query);
            assert!(found.iter().all(|id| !deleted.contains(id)), "a deleted row is found");
            hits(found, &nearest(set, Metric::L2, asked.row(query), k, |row| deleted.contains(&(row as u64))))
        })
        .sum();
    hits as f64 / (k * asked.len()) as f64
}

#[test]
fn no_search_finds_a_deleted_row_and_recall_is_that_asked_for() {
    let (asked, deleted) = (queries(60, DIM), fifth());
    for kind in KINDS {
        let built = calibrated(kind);
        let done = delete(built.dir.path(), &deleted, None, &Quiet).unwrap();
        let left = ROWS as u64 - deleted.len() as u64;
        assert_eq!((done.changed, done.deleted, done.left), (600, 600, left));
        let mut index = open(built.dir.path());
        for in_memory in [false, true] {
            if in_memory {
                index.set_cache_budget(1 << 30);
                index.make_resident(&Quiet).unwrap();
            }
            for wanted in [0.9, 0.98, 1.0] {
                let answers = search(&index, &asked, &options(10, wanted));
                let reached = recall(&built.set, &asked, &answers, &deleted);
                assert!(reached >= wanted - 0.02, "{kind:?}, in memory {in_memory}: {reached} for {wanted}");
                assert_eq!(answers.short, 0);
            }
        }
        let together = Together::new([&index]).unwrap();
        assert_eq!(together.rows(), left);
        let answers = together.search(&asked.bytes, &options(10, 0.95), false, &Quiet).unwrap();
        recall(&built.set, &asked, &answers, &deleted);
        assert_eq!(verify(built.dir.path(), &Quiet).unwrap().violations_found, 0);
    }
}

#[test]
fn a_way_to_the_rows_that_are_left_is_planned_once_for_equal_searches() {
    let asked = queries(5, DIM);
    for kind in KINDS {
        let built = calibrated(kind);
        assert_eq!(
            (search(&built.index, &asked, &options(10, 0.9)).short, built.index.live_plans_made()),
            (0, 0)
        );
        delete(built.dir.path(), &fifth(), None, &Quiet).unwrap();
        let mut index = open(built.dir.path());
        let first = search(&index, &asked, &options(10, 0.9));
        for _ in 0..3 {
            let again = search(&index, &asked, &options(10, 0.9));
            assert_eq!((&again.ids, &again.params), (&first.ids, &first.params));
        }
        let together = Together::new([&index]).unwrap();
        together.search(&asked.bytes, &options(10, 0.9), false, &Quiet).unwrap();
        assert_eq!(index.live_plans_made(), 1, "{kind:?}");
        // Other options, and another place of the index, have plans of their own.
        let other = search(&index, &asked, &options(5, 0.9));
        assert_eq!((other.params.k, index.live_plans_made()), (5, 2));
        index.set_cache_budget(1 << 30);
        index.make_resident(&Quiet).unwrap();
        search(&index, &asked, &options(10, 0.9));
        assert_eq!(index.live_plans_made(), 2 + u64::from(index.is_resident()), "{kind:?}");
        let fresh = open(built.dir.path());
        assert_eq!((search(&fresh, &asked, &options(10, 0.9)).ids, fresh.live_plans_made()), (first.ids, 1));
    }
}

#[test]
fn a_filter_of_deleted_rows_has_none() {
    let built = calibrated(IndexKind::DiskGraph);
    delete(built.dir.path(), &fifth(), None, &Quiet).unwrap();
    let index = open(built.dir.path());
    let options = options(10, 0.95);
    let only = index.filter(&[2, 3, 7, 8], Naming::Only, &options, &Quiet).unwrap();
    assert_eq!((only.matches(), only.unknown()), (2, Some(2)));
    let without = index.filter(&[2, 3], Naming::Without, &options, &Quiet).unwrap();
    assert_eq!((without.matches(), without.unknown()), (2399, Some(1)));
    let asked = queries(5, DIM);
    let answers = index.search_filtered(&asked.bytes, Filters::Shared(&only), &options, &Quiet).unwrap();
    assert!(answers.counts.iter().all(|&count| count == 2) && answers.short == 0);
    assert_eq!(index.first_deleted([1, 3, 7, 9].into_iter(), &Quiet).unwrap(), Some(7));
}

#[test]
fn deletes_add_up_and_are_taken_back_one_by_one() {
    let built = calibrated(IndexKind::DiskGraph);
    let (folder, asked) = (built.dir.path(), queries(20, DIM));
    let before = search(&built.index, &asked, &options(10, 0.95));
    let first = delete(folder, &[1, 2, 2, 9999], None, &Quiet).unwrap();
    let expected =
        Deleted { changed: 2, deleted: 2, left: 2998, unknown: 1, repeated: 1, already: 0, version: 2 };
    assert_eq!(first, expected);
    let again = delete(folder, &[2, 1], None, &Quiet).unwrap();
    assert_eq!((again.changed, again.already, again.version), (0, 2, 2), "nothing is published");
    let second = delete(folder, &[2, 3], None, &Quiet).unwrap();
    assert_eq!((second.changed, second.deleted, second.already, second.version), (1, 3, 1, 3));
    assert_eq!(Manifest::read(folder).unwrap().1.format_version, 5, "an older program must refuse it");
    let back = undo(folder).unwrap();
    assert_eq!((back.changed, back.deleted, back.version), (1, 2, 4));
    assert_eq!(open(folder).first_deleted([3, 1].into_iter(), &Quiet).unwrap(), Some(1));
    assert_eq!(undo(folder).unwrap().left, ROWS as u64);
    let (_, manifest) = Manifest::read(folder).unwrap();
    let whole = built.index.manifest();
    assert_eq!((&manifest.build_id, &manifest.files), (&whole.build_id, &whole.files));
    assert_eq!((manifest.format_version, manifest.deletes), (4, None));
    let after = search(&open(folder), &asked, &options(10, 0.95));
    assert_eq!((before.ids, before.stats), (after.ids, after.stats));
    assert_eq!(undo(folder).unwrap_err().kind, ErrorKind::BadInput);
    assert_eq!(verify(folder, &Quiet).unwrap().violations_found, 0);
}

#[test]
fn so_many_deletes_can_be_taken_back_and_no_more() {
    let built = Built::new(set(), &quick(IndexKind::Flat, Metric::L2));
    let folder = built.dir.path();
    for id in 0..UNDO_MAX as u64 + 2 {
        delete(folder, &[id], None, &Quiet).unwrap();
    }
    for back in 0..UNDO_MAX as u64 {
        assert_eq!(undo(folder).unwrap().deleted, UNDO_MAX as u64 + 1 - back);
    }
    assert_eq!(undo(folder).unwrap_err().kind, ErrorKind::BadInput);
    let index = open(folder);
    assert_eq!(index.manifest().deleted_rows(), 2);
    assert!(index.filter(&[0, 1], Naming::Only, &options(10, 1.0), &Quiet).unwrap().matches() == 0);
}

#[test]
fn all_rows_but_one_and_all_can_be_deleted() {
    for kind in KINDS {
        let built = calibrated(kind);
        let (folder, asked) = (built.dir.path(), queries(5, DIM));
        let all: Vec<u64> = (0..ROWS as u64).collect();
        delete(folder, &all[1..], None, &Quiet).unwrap();
        let answers = search(&open(folder), &asked, &options(10, 0.95));
        assert!(answers.counts.iter().all(|&count| count == 1) && answers.short == 0, "{kind:?}");
        assert!(answers.ids.chunks(10).all(|found| found[0] == 0));
        delete(folder, &all, None, &Quiet).unwrap();
        let answers = search(&open(folder), &asked, &options(10, 0.95));
        assert!(answers.counts.iter().all(|&count| count == 0) && answers.short == 0, "{kind:?}");
        assert_eq!(answers.stats.reads_asked(), 0);
    }
}

#[test]
fn a_damaged_file_of_deleted_rows_is_refused_by_its_name() {
    let built = calibrated(IndexKind::DiskGraph);
    let folder = built.dir.path();
    delete(folder, &fifth(), None, &Quiet).unwrap();
    let path = folder.join("v2-deleted.bin");
    let sound = std::fs::read(&path).unwrap();
    let refused = || {
        let refused = Index::open(folder, OpenOptions::default()).unwrap_err();
        assert_ne!(refused.kind, ErrorKind::Io);
        assert!(refused.message.contains("v2-deleted.bin"), "{refused}");
        let report = verify(folder, &Quiet).unwrap();
        assert!(report.violations.iter().any(|found| found.file == "v2-deleted.bin"));
        assert!(delete(folder, &[1], None, &Quiet).is_err() && Manifest::read(folder).unwrap().0 == 2);
    };
    for at in [0, 9, 16, sound.len() - 1] {
        let mut bytes = sound.clone();
        bytes[at] ^= 4;
        std::fs::write(&path, bytes).unwrap();
        refused();
    }
    std::fs::write(&path, &sound[..100]).unwrap();
    refused();
    std::fs::remove_file(&path).unwrap();
    refused();
    std::fs::write(&path, sound).unwrap();
    assert_eq!(open(folder).manifest().deleted_rows(), 600);
}

#[test]
fn curves_are_measured_on_the_rows_that_are_left() {
    let built = calibrated(IndexKind::DiskGraph);
    let (folder, deleted) = (built.dir.path(), (0..1500).map(|id| id * 2).collect::<Vec<u64>>());
    delete(folder, &deleted, None, &Quiet).unwrap();
    let tuning =
        TuneOptions { ks: vec![10], recalls: vec![0.95], sample: 400, seed: 1, threads: 2, ram_budget: None };
    let (asked, options) = (queries(60, DIM), options(10, 0.95));
    let guessed = search(&open(folder), &asked, &options);
    let tuned = tune(folder, None, &tuning, &Quiet).unwrap();
    assert!(tuned.checks[0].measured.unwrap() >= 0.93, "{:?}", tuned.checks);
    let index = open(folder);
    assert_eq!(index.manifest().deletes.as_ref().unwrap().measured_rows, Some(1500));
    let measured = search(&index, &asked, &options);
    for answers in [&guessed, &measured] {
        assert!(recall(&built.set, &asked, answers, &deleted) >= 0.93);
    }
    // Deletes that follow are passed over once more.
    let more: Vec<u64> = (0..300).map(|id| id * 10 + 1).collect();
    delete(folder, &more, None, &Quiet).unwrap();
    let index = open(folder);
    assert_eq!(index.manifest().deletes.as_ref().unwrap().measured_rows, Some(1500));
    let all = [&deleted[..], &more].concat();
    assert!(recall(&built.set, &asked, &search(&index, &asked, &options), &all) >= 0.93);
}

#[test]
fn curves_of_fewer_rows_than_there_are_say_so() {
    let built = calibrated(IndexKind::HybridIvf);
    let (folder, deleted) = (built.dir.path(), (0..1000).map(|id| id * 3).collect::<Vec<u64>>());
    let measured = |wanted: Option<u64>| {
        let (_, manifest) = Manifest::read(folder).unwrap();
        assert_eq!(manifest.curve_rows, wanted);
        let note = manifest.curves_note();
        assert_eq!(open(folder).warnings(), note.as_slice());
        note
    };
    let tune = || {
        let (ks, recalls) = (vec![10], vec![0.95]);
        let tuning = TuneOptions { ks, recalls, sample: 200, seed: 1, threads: 2, ram_budget: None };
        tune(folder, None, &tuning, &Quiet).unwrap();
    };
    delete(folder, &deleted, None, &Quiet).unwrap();
    undo(folder).unwrap();
    assert_eq!(measured(None), None, "the curves are those of the build");
    delete(folder, &deleted, None, &Quiet).unwrap();
    tune();
    assert_eq!(measured(None), None);
    delete(folder, &[1], None, &Quiet).unwrap();
    undo(folder).unwrap();
    assert_eq!(measured(None), None, "as many as were measured");
    undo(folder).unwrap();
    assert!(measured(Some(2000)).unwrap().contains("2000 rows"), "fewer were measured");
    // Deletes that follow count from what was measured.
    delete(folder, &deleted[..500], None, &Quiet).unwrap();
    assert!(measured(Some(2000)).unwrap().contains("there are 2500"));
    undo(folder).unwrap();
    tune();
    assert_eq!(measured(None), None);
}

#[test]
fn an_index_that_is_built_from_this_one_lacks_what_is_deleted() {
    for kind in [IndexKind::DiskGraph, IndexKind::HybridIvf] {
        let built = calibrated(kind);
        let deleted = fifth();
        delete(built.dir.path(), &deleted, None, &Quiet).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("fresh");
        let rows = SourceIndex::open(built.dir.path(), &out).unwrap().write_rows(&out, None, &Quiet).unwrap();
        assert_eq!(rows.reader.shape().rows, 2400);
        let mut fresh = quick(kind, Metric::L2);
        fresh.calibration_queries = 200;
        fresh.ids = rows.ids.clone();
        build(&rows.reader, &out, &fresh, &Quiet).unwrap();
        let asked = queries(60, DIM);
        let answers = search(&open(&out), &asked, &options(10, 0.95));
        let of_fresh = recall(&built.set, &asked, &answers, &deleted);
        let answers = search(&open(built.dir.path()), &asked, &options(10, 0.95));
        assert!(recall(&built.set, &asked, &answers, &deleted) >= of_fresh - 0.02, "{kind:?}");
    }
}

#[test]
fn a_search_that_is_under_way_keeps_its_version() {
    let built = calibrated(IndexKind::DiskGraph);
    let (folder, asked) = (built.dir.path(), queries(20, DIM));
    let before = search(&built.index, &asked, &options(10, 0.95));
    delete(folder, &fifth(), None, &Quiet).unwrap();
    assert_eq!(search(&built.index, &asked, &options(10, 0.95)).ids, before.ids);
}

#[test]
fn a_budget_without_room_and_another_writer_change_nothing() {
    let built = calibrated(IndexKind::DiskGraph);
    let folder = built.dir.path();
    let taken = built.index.account().total();
    let small = delete(folder, &[1], Some(taken + 100), &Quiet).unwrap_err();
    assert_eq!(small.kind, ErrorKind::Budget);
    let lock = std::fs::File::create(folder.join("lock")).unwrap();
    lock.try_lock().unwrap();
    for refused in [delete(folder, &[1], None, &Quiet), undo(folder)] {
        let error = refused.unwrap_err();
        assert!(error.message.contains("another process is writing"), "{error}");
    }
    drop(lock);
    assert_eq!(Manifest::read(folder).unwrap().0, 1);
    let enough = Some(taken + 64 * ROWS as u64 + (1 << 20));
    assert_eq!(delete(folder, &[1], enough, &Quiet).unwrap().changed, 1);
}
