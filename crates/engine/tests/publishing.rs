//! Readers and writers of one folder at the same time: no reader fails, and no writer loses its work.

mod common;

use std::path::Path;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use common::{Set, clustered, graph_options, graph_set, list_options, quick};
use stratann_core::format::directory::LocalKind;
use stratann_engine::build::{BuildOptions, IndexKind, LocalPlan, build};
use stratann_engine::index::{Index, OpenOptions};
use stratann_engine::kinds::hybrid_ivf::replan::{ReplanOptions, replan};
use stratann_engine::manifest::Manifest;
use stratann_engine::recall::tune::{TuneOptions, tune};
use stratann_engine::search::{Effort, SearchOptions};
use stratann_engine::{DType, Metric, verify};
use stratann_storage::Quiet;

/// Work that a reader does again and again with the folder.
type Reading = fn(&Path);

fn opens_and_searches(folder: &Path) {
    let index = Index::open(folder, OpenOptions::default()).unwrap_or_else(|e| panic!("open: {e}"));
    let asked = clustered(2, 12, 8, 2);
    let effort = Effort::Nprobe(4, None, None);
    let options = SearchOptions { k: 5, effort, ..SearchOptions::default() };
    let answers = index.search(&Set::new(DType::F32, 12, &asked).bytes, &options, &Quiet).unwrap();
    assert!(answers.failed.is_empty(), "{:?}", answers.failed);
}

fn verifies(folder: &Path) {
    let report = verify::verify(folder, &Quiet).unwrap_or_else(|e| panic!("verify: {e}"));
    assert!(report.violations.is_empty(), "{:?}", report.violations);
}

fn reads_the_manifest(folder: &Path) {
    Manifest::read(folder).unwrap_or_else(|e| panic!("manifest: {e}"));
}

#[test]
fn readers_open_the_newest_version_while_others_are_published() {
    const VERSIONS: usize = 60;
    let plan = |kind| LocalPlan::Uniform(kind);
    let options = list_options(quick(IndexKind::HybridIvf, Metric::L2), |own| {
        (own.clusters, own.plan) = (Some(8), plan(LocalKind::Flat).into());
    });
    let set = Set::new(DType::F32, 12, &clustered(600, 12, 8, 1));
    let dir = tempfile::tempdir().unwrap();
    build(&set.reader(), dir.path(), &options, &Quiet).unwrap();
    let (ended, readings) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        let all: [Reading; 4] = [opens_and_searches, verifies, reads_the_manifest, opens_and_searches];
        for read in all {
            let (ended, readings, folder) = (&ended, &readings, dir.path());
            scope.spawn(move || {
                while !ended.load(Ordering::Relaxed) {
                    read(folder);
                    readings.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let end = EndsReaders(&ended);
        for version in 0..VERSIONS {
            let kind = if version % 2 == 0 { LocalKind::Ivf } else { LocalKind::Flat };
            let options = ReplanOptions {
                search_budget: 1 << 30,
                local_plan: plan(kind),
                threads: 1,
                ram_budget: None,
            };
            let replanned = replan(dir.path(), &options, &Quiet).unwrap();
            assert!(replanned.rebuilt > 0, "nothing was published");
        }
        drop(end);
    });
    assert!(readings.into_inner() > VERSIONS);
}

/// Ends the readers even where the writer panics.
struct EndsReaders<'a>(&'a AtomicBool);

impl Drop for EndsReaders<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn of_several_writers_each_publishes_or_is_refused_before_it_works() {
    let dir = tempfile::tempdir().unwrap();
    build(&graph_set().reader(), dir.path(), &quick(IndexKind::DiskGraph, Metric::L2), &Quiet).unwrap();
    let options =
        TuneOptions { ks: vec![5], recalls: vec![0.9], sample: 20, seed: 1, threads: 1, ram_budget: None };
    let published = AtomicUsize::new(0);
    const WRITERS: usize = 3;
    const ROUNDS: usize = 8;
    for _ in 0..ROUNDS {
        let start = Barrier::new(WRITERS);
        std::thread::scope(|scope| {
            for _ in 0..WRITERS {
                scope.spawn(|| {
                    start.wait();
                    match tune(dir.path(), None, &options, &Quiet) {
                        Ok(_) => _ = published.fetch_add(1, Ordering::Relaxed),
                        Err(e) => assert!(e.message.contains("another process is writing"), "{e}"),
                    }
                });
            }
        });
    }
    let published = published.into_inner();
    assert!(published >= ROUNDS);
    // Every version that was reported is there: the build published the first.
    assert_eq!(Manifest::read(dir.path()).unwrap().0, 1 + published as u64);
    assert!(!dir.path().join("lock").exists());
}

#[test]
fn a_build_that_another_one_overtook_is_refused_before_it_works() {
    let dir = tempfile::tempdir().unwrap();
    let options = quick(IndexKind::Flat, Metric::L2);
    let (done, refused) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let start = Barrier::new(3);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                start.wait();
                let forced = BuildOptions { force: true, ..options.clone() };
                match build(&graph_set().reader(), dir.path(), &forced, &Quiet) {
                    Ok(_) => _ = done.fetch_add(1, Ordering::Relaxed),
                    Err(e) => {
                        assert!(e.message.contains("another process is writing"), "{e}");
                        refused.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    assert_eq!(Manifest::read(dir.path()).unwrap().0, done.into_inner() as u64);
    assert!(verify::verify(dir.path(), &Quiet).unwrap().violations.is_empty());
    assert!(refused.into_inner() < 3);
}

#[test]
fn a_damaged_newest_manifest_is_passed_over_and_never_overwritten() {
    let options = graph_options(quick(IndexKind::DiskGraph, Metric::L2), |own| own.degree = 16);
    let dir = tempfile::tempdir().unwrap();
    build(&graph_set().reader(), dir.path(), &options, &Quiet).unwrap();
    let tuning =
        TuneOptions { ks: vec![5], recalls: vec![0.9], sample: 40, seed: 1, threads: 1, ram_budget: None };
    tune(dir.path(), None, &tuning, &Quiet).unwrap();
    let newest = dir.path().join("manifest-2.json");
    let good = std::fs::read(&newest).unwrap();
    for bad in [&good[..good.len() / 2], &good[..good.len() - 1], &[][..]] {
        std::fs::write(&newest, bad).unwrap();
        let index = Index::open(dir.path(), OpenOptions::default()).unwrap();
        assert_eq!(Manifest::read(dir.path()).unwrap().0, 1);
        let said = &index.warnings()[0];
        assert!(said.contains("manifest-2.json is damaged") && said.contains("version 1 is used"), "{said}");
        let report = verify::verify(dir.path(), &Quiet).unwrap();
        assert_eq!((report.violations_found, report.version), (1, 1), "{:?}", report.violations);
        assert_eq!(report.violations[0].file, "manifest-2.json");
        let refused = tune(dir.path(), None, &tuning, &Quiet).unwrap_err();
        assert!(
            refused.message.contains("manifest-2.json") && refused.message.contains("delete it"),
            "{refused}"
        );
        assert_eq!(std::fs::read(&newest).unwrap(), bad);
    }
    std::fs::write(&newest, good).unwrap();
    assert!(Index::open(dir.path(), OpenOptions::default()).unwrap().warnings().is_empty());
    // Without any sound version there is nothing to open.
    std::fs::write(&newest, "").unwrap();
    std::fs::remove_file(dir.path().join("manifest-1.json")).unwrap();
    let error = Index::open(dir.path(), OpenOptions::default()).unwrap_err();
    assert!(error.message.contains("manifest-2.json is damaged"), "{error}");
}
