//! Learning: what hot queries cost, what a restart keeps, and that equal queries teach the same, whoever runs them.

mod common;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::OnceLock;
use stratann_params::choices::Learn;

use common::{Set, clustered, list_options, nearest, normal, quick};
use stratann_core::format::directory::LocalKind;
use stratann_core::query::QueryStats;
use stratann_engine::build::{IndexKind, LocalPlan, build};
use stratann_engine::exec::Width;
use stratann_engine::index::{Index, OpenOptions};
use stratann_engine::kinds::hybrid_ivf::learning::describe;
use stratann_engine::kinds::options::LearnOptions;
use stratann_engine::manifest::Manifest;
use stratann_engine::search::{Answers, Effort, Reserve, SearchOptions};
use stratann_engine::{DType, Metric};
use stratann_storage::Quiet;
use tempfile::TempDir;

const DIM: usize = 16;
const EPOCH: u32 = 100;

fn set() -> &'static Set {
    static SET: OnceLock<Set> = OnceLock::new();
    SET.get_or_init(|| Set::new(DType::F32, DIM, &clustered(4000, DIM, 12, 1)))
}

/// A folder with a copy of one index, that has learnt nothing.
fn copy() -> TempDir {
    static BUILT: OnceLock<TempDir> = OnceLock::new();
    let built = BUILT.get_or_init(|| {
        let dir = tempfile::tempdir().unwrap();
        let options = list_options(quick(IndexKind::HybridIvf, Metric::L2), |own| {
            (own.clusters, own.plan) = (Some(60), LocalPlan::Uniform(LocalKind::Flat).into());
        });
        build(&set().reader(), dir.path(), &options, &Quiet).unwrap();
        dir
    });
    let dir = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(built.path()).unwrap().flatten().filter(|e| e.path().is_file()) {
        std::fs::copy(entry.path(), dir.path().join(entry.file_name())).unwrap();
    }
    dir
}

fn open(folder: &Path, learn: Learn) -> Index {
    let learning = LearnOptions { learn, epoch_queries: EPOCH, hot: Some(48) };
    Index::open(folder, OpenOptions { head_budget: Some(0), learning, ..OpenOptions::default() }).unwrap()
}

/// Queries near the neighbours of one row.
fn hot_spot(row: usize, count: usize, seed: u64) -> Vec<u8> {
    let around = nearest(set(), Metric::L2, set().row(row), 6, |_| false);
    let near = |i: usize| {
        let row = set().wide(around[i % around.len()] as usize);
        (0..DIM).map(move |d| row[d] as f32 + 0.2 * normal(seed, i as u64, d as u64)).collect::<Vec<f32>>()
    };
    (0..count).flat_map(near).flat_map(f32::to_le_bytes).collect()
}

fn search(index: &Index, asked: &[u8], threads: usize) -> Answers {
    let options = SearchOptions {
        effort: Effort::Nprobe(16, Some(1.0), Some(0.2)),
        threads,
        // By load it would depend on how many others there are.
        width: Width::Fixed(1),
        ..SearchOptions::default()
    };
    let answers = index.search(asked, &options, &Quiet).unwrap();
    assert!(answers.failed.is_empty(), "{:?}", answers.failed);
    answers
}

fn precision(stats: &QueryStats) -> f64 {
    stats.result_clusters as f64 / stats.clusters as f64
}

/// Waits until so many epochs were learnt from; gives the bytes of what is kept.
fn kept_after(folder: &Path, epochs: u64) -> Vec<u8> {
    let (_, manifest) = Manifest::read(folder).unwrap();
    for _ in 0..2000 {
        if describe(folder, &manifest).unwrap().is_some_and(|facts| facts.epochs == epochs) {
            return std::fs::read(folder.join("learnt.bin")).unwrap();
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    panic!("{epochs} epochs were never learnt from");
}

#[test]
fn hot_queries_visit_fewer_clusters_in_vain() {
    let dir = copy();
    let asked = hot_spot(17, EPOCH as usize, 3);
    let before = search(&open(dir.path(), Learn::Off), &asked, 2).stats;
    let index = open(dir.path(), Learn::On);
    search(&index, &hot_spot(17, 3000, 4), 2);
    let after = search(&index, &asked, 2).stats;
    assert_eq!(before.pinned_hits, 0);
    assert!(precision(&after) > precision(&before), "{} before, {}", precision(&before), precision(&after));
    // A third of the bytes is saved, and a tenth of the reads.
    assert!(after.bytes_read * 4 <= before.bytes_read * 3, "{before:?}, {after:?}");
    assert!(after.reads * 100 <= before.reads * 93, "{before:?}, {after:?}");
    assert!(after.pinned_hits > 3 * u64::from(EPOCH), "{after:?}");
}

#[test]
fn a_hot_spot_that_moves_is_followed_within_three_epochs() {
    let dir = copy();
    let index = open(dir.path(), Learn::On);
    search(&index, &hot_spot(17, 2000, 3), 2);
    let settled = search(&index, &hot_spot(17, EPOCH as usize, 4), 2).stats.pinned_hits;
    let hits = |seed| search(&index, &hot_spot(2500, EPOCH as usize, seed), 2).stats.pinned_hits;
    let moved: Vec<u64> = (5..10).map(hits).collect();
    assert!(moved[0] < settled / 2 && moved[3] > settled / 2, "{settled}, then {moved:?}");
}

#[test]
fn a_restart_keeps_what_was_learnt_and_frozen_changes_nothing() {
    let dir = copy();
    let index = open(dir.path(), Learn::On);
    search(&index, &hot_spot(17, 1000, 3), 2);
    kept_after(dir.path(), 10);
    drop(index);
    let kept = std::fs::read(dir.path().join("learnt.bin")).unwrap();
    let asked = hot_spot(17, 500, 4);
    let frozen = open(dir.path(), Learn::Frozen);
    let first = search(&frozen, &asked, 2);
    assert!(first.stats.pinned_hits > 1000, "{:?}", first.stats);
    search(&frozen, &hot_spot(2500, 1000, 5), 2);
    let again = search(&frozen, &asked, 2);
    assert_eq!((&first.ids, first.stats), (&again.ids, again.stats));
    drop(frozen);
    assert_eq!(std::fs::read(dir.path().join("learnt.bin")).unwrap(), kept);
    // Those that learn go on from there.
    let index = open(dir.path(), Learn::On);
    assert!(search(&index, &asked, 2).stats.pinned_hits > 1000);
    kept_after(dir.path(), 15);
}

#[test]
fn equal_queries_teach_the_same_on_any_number_of_threads() {
    let asked = [hot_spot(17, 700, 3), hot_spot(2500, 750, 4)].concat();
    let learnt = [1, 1, 2, 5].map(|threads| {
        let dir = copy();
        let index = open(dir.path(), Learn::On);
        let answers = search(&index, &asked, threads);
        (answers.ids, answers.distances, answers.stats, kept_after(dir.path(), 14))
    });
    for other in &learnt[1..] {
        assert_eq!(other.2, learnt[0].2);
        assert!((&other.0, &other.1) == (&learnt[0].0, &learnt[0].1), "other answers");
        assert!(other.3 == learnt[0].3, "something else was learnt");
    }
}

fn names(folder: &Path) -> BTreeSet<String> {
    let entries = std::fs::read_dir(folder).unwrap().flatten();
    entries.map(|e| e.file_name().into_string().unwrap()).collect()
}

#[test]
fn an_index_that_is_dropped_while_it_learns_leaves_whole_files() {
    let dir = copy();
    let mut files = names(dir.path());
    files.insert("learnt.bin".into());
    let mut epochs = 0;
    for round in 0..30 {
        let index = open(dir.path(), Learn::On);
        assert_eq!(index.warnings(), &[] as &[String], "round {round}");
        // The last of three epochs is learnt from while the index goes.
        search(&index, &hot_spot(17 + round, 3 * EPOCH as usize, round as u64), 2);
        drop(index);
        let (_, manifest) = Manifest::read(dir.path()).unwrap();
        let now = describe(dir.path(), &manifest).unwrap().map_or(0, |facts| facts.epochs);
        epochs += 3;
        assert_eq!(now, epochs);
        assert!(names(dir.path()).is_subset(&files), "{:?}", names(dir.path()));
    }
}

#[test]
fn any_damaged_byte_of_what_was_learnt_is_a_warning_and_no_other_answer() {
    let dir = copy();
    let index = open(dir.path(), Learn::On);
    search(&index, &hot_spot(17, 400, 3), 2);
    kept_after(dir.path(), 4);
    drop(index);
    let asked = hot_spot(17, 8, 4);
    let plain = search(&open(dir.path(), Learn::Off), &asked, 1);
    let path = dir.path().join("learnt.bin");
    let good = std::fs::read(&path).unwrap();
    assert!(good.len() > 300);
    for at in 0..good.len() {
        let mut bad = good.clone();
        bad[at] ^= 1 << (at % 8);
        std::fs::write(&path, bad).unwrap();
        let index = open(dir.path(), Learn::Frozen);
        let said = index.warnings();
        assert!(
            said.len() == 1 && said[0].contains("learnt.bin") && said[0].contains("unharmed"),
            "{said:?}"
        );
        let answers = search(&index, &asked, 1);
        assert_eq!((&answers.ids, answers.stats), (&plain.ids, plain.stats), "byte {at}");
    }
}

fn in_ram(index: &Index, what: &str) -> u64 {
    index.account().components.iter().filter(|c| c.0 == what).map(|c| c.1).sum()
}

#[test]
fn what_lies_in_ram_follows_the_queries_and_stays_within_its_room() {
    let dir = copy();
    let asked = hot_spot(17, EPOCH as usize, 3);
    let all = Index::open(dir.path(), OpenOptions::default()).unwrap();
    let room = in_ram(&all, "codes in RAM") / 6;
    let open = |learn| {
        // No hot members, so that lists in RAM alone explain what is not read.
        let learning = LearnOptions { learn, epoch_queries: EPOCH, hot: Some(0) };
        Index::open(dir.path(), OpenOptions { head_budget: Some(room), learning, ..OpenOptions::default() })
            .unwrap()
    };
    let before = search(&open(Learn::Off), &asked, 2);
    let mut counted = Vec::new();
    for threads in [1, 3] {
        let _ = std::fs::remove_file(dir.path().join("learnt.bin"));
        let index = open(Learn::On);
        for epoch in 0..12 {
            search(&index, &hot_spot(17, EPOCH as usize, 20 + epoch), threads);
            assert!(in_ram(&index, "codes in RAM") <= room);
        }
        let after = search(&index, &asked, threads);
        assert_eq!(after.ids, before.ids);
        counted.push(after.stats);
    }
    assert_eq!(counted[0], counted[1]);
    let of_lists = |stats: &QueryStats| stats.reads - stats.record_reads;
    assert!(4 * of_lists(&counted[0]) < of_lists(&before.stats), "{:?}, {counted:?}", before.stats);
}

#[test]
fn learning_yields_to_a_budget_that_has_no_room_for_it() {
    let dir = copy();
    let reader = open(dir.path(), Learn::Off);
    let options = SearchOptions { effort: Effort::Nprobe(16, None, None), ..SearchOptions::default() };
    let least = reader.search_account(&options, EPOCH as usize).total();
    let asked = hot_spot(17, EPOCH as usize, 3);
    let open = |budget: u64| {
        let learning = LearnOptions { learn: Learn::On, epoch_queries: EPOCH, hot: Some(48) };
        let reserve = least - reader.account().total();
        let options = OpenOptions {
            ram_budget: Some(budget),
            search_reserve: Reserve { bytes: reserve, low_memory_bytes: reserve, threads: 1 },
            learning,
            ..OpenOptions::default()
        };
        Index::open(dir.path(), options).unwrap()
    };
    let tight = open(least + 4096);
    assert!(tight.warnings()[0].contains("no room for learning"), "{:?}", tight.warnings());
    let named = tight.warnings()[0].split("--ram-budget ").nth(1).unwrap().split("MiB").next().unwrap();
    let found = tight.search(&asked, &options, &Quiet).unwrap();
    assert_eq!(found.ids, reader.search(&asked, &options, &Quiet).unwrap().ids);
    assert!(!dir.path().join("learnt.bin").exists());
    // Lists come first: there is room for learning, but not beside their codes.
    let learning =
        self::open(dir.path(), Learn::On).search_account(&options, EPOCH as usize).bytes_of("learning");
    assert!(learning > 1 << 20);
    assert!(open(least + learning + 4096).warnings()[0].contains("no room for learning"));
    let wide = open(named.parse::<u64>().unwrap() << 20);
    assert!(wide.warnings().is_empty());
    let all = Index::open(dir.path(), OpenOptions::default()).unwrap();
    assert_eq!(in_ram(&wide, "codes in RAM"), in_ram(&all, "codes in RAM"));
    drop((wide.search(&asked, &options, &Quiet).unwrap(), wide));
    assert!(dir.path().join("learnt.bin").exists());
}
