//! Several indexes open in one process: what happens to the disk of one is nothing to the others.

mod common;

use std::collections::BTreeSet;
use std::ffi::OsString;

use common::{Built, Set, clustered, graph_set, list_options, queries, quick};
use stratann_core::query::QueryStats;
use stratann_engine::build::{BuildOptions, IndexKind};
use stratann_engine::index::{Index, OpenOptions};
use stratann_engine::manifest::Manifest;
use stratann_engine::search::{Answers, Effort, SearchOptions, Together};
use stratann_engine::serve::{ServeOptions, Server};
use stratann_engine::{DType, Metric};
use stratann_params::choices::PartsName;
use stratann_storage::Quiet;
use stratann_storage::cache::ExtentCache;

fn open(built: &Built) -> Index {
    let cached = OpenOptions { cache_budget: 1 << 20, head_budget: Some(0), ..OpenOptions::default() };
    Index::open(built.dir.path(), cached).unwrap()
}

fn search(index: &Index, asked: &Set, effort: Effort) -> Answers {
    let options = SearchOptions { k: 10, effort, threads: 2, ..SearchOptions::default() };
    index.search(&asked.bytes, &options, &Quiet).unwrap()
}

#[test]
fn an_index_whose_disk_fails_does_not_touch_the_others() {
    let asked = queries(60, 24);
    let lists = list_options(quick(IndexKind::HybridIvf, Metric::L2), |own| own.clusters = Some(20));
    let flat = Set::new(DType::F32, 24, &clustered(2000, 24, 12, 3));
    let built = [
        (Built::new(graph_set(), &quick(IndexKind::DiskGraph, Metric::L2)), Effort::SearchList(40, None)),
        (Built::new(graph_set(), &lists), Effort::Nprobe(8, None, None)),
        (Built::new(flat, &quick(IndexKind::Flat, Metric::L2)), Effort::SearchList(10, None)),
    ];
    let sound: Vec<Answers> =
        built.iter().map(|(built, effort)| search(&open(built), &asked, *effort)).collect();
    let path =
        |at: usize| built[at].0.dir.path().join(["v1-blocks.bin", "v1-lists.bin", "v1-blocks.bin"][at]);
    for failing in 0..built.len() {
        let indexes: Vec<Index> = built.iter().map(|(built, _)| open(built)).collect();
        let whole = std::fs::read(path(failing)).unwrap();
        // Reads beyond the new end come back empty.
        let file = std::fs::File::options().write(true).open(path(failing)).unwrap();
        file.set_len(4096).unwrap();
        std::thread::scope(|scope| {
            for (at, index) in indexes.iter().enumerate() {
                let (asked, sound, effort) = (&asked, &sound[at], built[at].1);
                scope.spawn(move || {
                    for _ in 0..3 {
                        let found = search(index, asked, effort);
                        if at == failing {
                            assert!(found.failed.len() > 30, "only {} queries failed", found.failed.len());
                        } else {
                            assert!(found.failed.is_empty(), "index {at}: {:?}", found.failed);
                            assert_eq!((&found.ids, &found.distances), (&sound.ids, &sound.distances));
                        }
                    }
                });
            }
        });
        std::fs::write(path(failing), whole).unwrap();
    }
}

/// Open indexes that the process has room for, up to 1,000: each keeps a file open.
fn indexes_max() -> usize {
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap();
    let files = limits.lines().find_map(|line| line.strip_prefix("Max open files")).unwrap();
    let soft = files.split_whitespace().next().unwrap().parse().unwrap_or(usize::MAX);
    (soft.saturating_sub(200) / 2).min(1000)
}

/// The threads of this process, by the system's numbers. Those that the kernel runs for a ring come and go as it likes.
fn threads() -> BTreeSet<OsString> {
    let is_own = |thread: &std::fs::DirEntry| {
        std::fs::read_to_string(thread.path().join("comm")).is_ok_and(|name| !name.starts_with("iou-"))
    };
    let all = std::fs::read_dir("/proc/self/task").unwrap().map(Result::unwrap);
    all.filter(is_own).map(|thread| thread.file_name()).collect()
}

fn open_files() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// The rings of this process.
fn rings() -> usize {
    let files = std::fs::read_dir("/proc/self/fd").unwrap();
    let targets = files.filter_map(|file| std::fs::read_link(file.ok()?.path()).ok());
    targets.filter(|target| target.to_string_lossy().contains("io_uring")).count()
}

#[test]
fn a_thousand_open_indexes_have_the_threads_of_one() {
    // Alone in its process, so that other tests start no threads meanwhile.
    if std::env::var_os("STRATANN_MANY_INDEXES").is_none() {
        let mut alone = std::process::Command::new(std::env::current_exe().unwrap());
        alone.args(["a_thousand_open_indexes_have_the_threads_of_one", "--exact"]);
        assert!(alone.env("STRATANN_MANY_INDEXES", "1").status().unwrap().success());
        return;
    }
    let built = Built::new(graph_set(), &quick(IndexKind::DiskGraph, Metric::L2));
    let asked = queries(5, 24);
    let effort = Effort::SearchList(20, None);
    let one = open(&built);
    let sound = search(&one, &asked, effort).ids;
    let before = (threads(), open_files());
    let mut indexes: Vec<Index> = (0..indexes_max()).map(|_| open(&built)).collect();
    for (at, index) in indexes.iter_mut().enumerate() {
        if at % 2 == 0 {
            assert!(index.make_resident(&Quiet).unwrap());
        }
        assert_eq!(search(index, &asked, effort).ids, sound);
    }
    assert_eq!(threads(), before.0, "searches have started threads, or ended some");
    assert!(rings() <= 2, "{} rings for two threads", rings());
    assert!(open_files() <= before.1 + indexes.len(), "{} files", open_files());
    drop(indexes);
    assert!(open_files() <= before.1, "{} files", open_files());
    // A served index that changes starts threads once: those of its first version serve the third one.
    let served = || ServeOptions { index: built.dir.path().into(), threads: 2, ..ServeOptions::default() };
    let mut server = Server::start(served()).unwrap();
    let mut seen = BTreeSet::new();
    for change in 0..4 {
        let next = server.start_beside(served()).unwrap();
        std::mem::replace(&mut server, next).stop();
        if change > 0 {
            assert_eq!(threads(), seen, "change {change} has started threads, or ended some");
        }
        seen = threads();
    }
}

#[test]
fn indexes_that_are_searched_as_one_share_their_drivers() {
    let asked = queries(90, 24);
    let small = Set::new(DType::F32, 24, &clustered(300, 24, 5, 9));
    let calibrated = |kind| BuildOptions { calibration_queries: 40, ..quick(kind, Metric::L2) };
    let built = [
        Built::new(graph_set(), &calibrated(IndexKind::DiskGraph)),
        Built::new(
            graph_set(),
            &list_options(calibrated(IndexKind::HybridIvf), |own| own.clusters = Some(20)),
        ),
        Built::new(small, &calibrated(IndexKind::DiskGraph)),
        Built::new(graph_set(), &calibrated(IndexKind::GpuIvf)),
    ];
    let without_cache = || OpenOptions { head_budget: Some(0), ..OpenOptions::default() };
    let indexes = built.each_ref().map(|built| Index::open(built.dir.path(), without_cache()).unwrap());
    let together = Together::new(&indexes).unwrap();
    let sum = |counter: fn(&QueryStats) -> u64, all: &[Answers]| -> u64 {
        all.iter().map(|answers| counter(&answers.stats)).sum()
    };
    let mut first = None;
    for (threads, in_flight) in [(1, 1), (1, 7), (2, 64), (3, 9)] {
        let (effort, parts) = (Effort::Recall(0.9), PartsName::Each);
        let options = SearchOptions {
            k: 10,
            effort,
            threads,
            in_flight: Some(in_flight),
            parts,
            ..SearchOptions::default()
        };
        let alone: Vec<Answers> =
            indexes.iter().map(|index| index.search(&asked.bytes, &options, &Quiet).unwrap()).collect();
        let answers = together.search(&asked.bytes, &options, false, &Quiet).unwrap();
        assert!(answers.failed.is_empty(), "{:?}", answers.failed);
        for query in 0..asked.len() {
            let mut nearest: Vec<(f32, u64)> =
                alone.iter().flat_map(|own| own.results(query)).map(|(id, d)| (d, id)).collect();
            nearest.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
            nearest.dedup_by_key(|hit| hit.1);
            let found: Vec<(f32, u64)> = answers.results(query).map(|(id, d)| (d, id)).collect();
            assert_eq!(found, nearest[..10]);
        }
        let counters: [fn(&QueryStats) -> u64; 4] =
            [|s| s.reads, |s| s.pages_read, |s| s.full_comparisons, |s| s.hops];
        for counter in counters {
            assert_eq!(counter(&answers.stats), sum(counter, &alone));
        }
        assert!(answers.latency_ns.iter().all(|&ns| ns > 0));
        // The threads are there once.
        let account = |name: &str| answers.account.components.iter().filter(|c| c.0 == name).count();
        assert_eq!(account("threads"), 1);
        let found = (answers.ids, answers.distances.iter().map(|d| d.to_bits()).collect::<Vec<u32>>());
        assert_eq!(first.get_or_insert_with(|| found.clone()), &found);
    }
}

#[test]
fn indexes_lend_each_other_the_room_of_their_caches() {
    let (asked, others) = (queries(60, 24), Set::new(DType::F32, 24, &clustered(60, 24, 12, 7)));
    let lists = list_options(quick(IndexKind::HybridIvf, Metric::L2), |own| own.clusters = Some(20));
    let built = [
        (Built::new(graph_set(), &quick(IndexKind::DiskGraph, Metric::L2)), Effort::SearchList(40, None)),
        (Built::new(graph_set(), &lists), Effort::Nprobe(8, None, None)),
    ];
    let bytes = built.each_ref().map(|(built, _)| {
        let (_, manifest) = Manifest::read(built.dir.path()).unwrap();
        ExtentCache::bytes_of_blocks(manifest.blocks.count, manifest.blocks.bytes as u64)
    });
    // Half of the graph's blocks, and room for more lists than there are: they lend it while nobody asks for them.
    let budgets = [bytes[0] / 2, 4 * (bytes[0] + bytes[1])];
    let open = |lends_cache| {
        let open_one = |at: usize| {
            let head_budget = Some(0);
            let how =
                OpenOptions { cache_budget: budgets[at], head_budget, lends_cache, ..OpenOptions::default() };
            Index::open(built[at].0.dir.path(), how).unwrap()
        };
        [open_one(0), open_one(1)]
    };
    let used = |indexes: &[Index; 2]| -> u64 { indexes.iter().map(Index::cached_bytes).sum() };
    let again = |index: &Index, asked: &Set, effort: Effort| {
        let passes = [0; 4].map(|_| search(index, asked, effort));
        passes.into_iter().next_back().unwrap()
    };
    let (alone, lending) = (open(false), open(true));
    let expected = again(&alone[0], &asked, built[0].1);
    let found = again(&lending[0], &asked, built[0].1);
    assert_eq!((&found.ids, &found.distances), (&expected.ids, &expected.distances));
    assert!(expected.stats.reads > 100, "{} reads: the cache has room for all", expected.stats.reads);
    assert_eq!(found.stats.reads, 0, "the graph has borrowed room for all of its blocks");
    assert!(lending[0].cached_bytes() > budgets[0]);
    // The account has the shares, whoever uses them.
    let accounted = |at: usize| lending[at].account().bytes_of("block cache");
    assert_eq!([accounted(0), accounted(1)], budgets);

    // The lists get their room back as soon as they are asked, and the graph has what it had alone.
    let (expected, found) = (again(&alone[1], &others, built[1].1), again(&lending[1], &others, built[1].1));
    assert_eq!((&found.ids, &found.distances), (&expected.ids, &expected.distances));
    assert_eq!((found.stats.reads, expected.stats.reads), (0, 0));
    assert!(used(&lending) <= budgets[0] + budgets[1], "{} bytes", used(&lending));
    // An index that is closed takes its room along.
    let [graph, lists] = lending;
    drop(lists);
    assert!(graph.cached_bytes() <= budgets[0]);
    let found = search(&graph, &asked, built[0].1);
    assert_eq!(found.ids, search(&alone[0], &asked, built[0].1).ids);
    assert!(found.stats.reads > 0);
}
