//! Learning: what hot queries cost, what a restart keeps, and that equal queries teach the same, whoever runs them.

mod common;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::AtomicU64;
use stratann_params::choices::Learn;

use common::{Impatient, Set, clustered, list_options, nearest, normal, quick};
use stratann_core::build::hash;
use stratann_core::format::directory::LocalKind;
use stratann_core::query::QueryStats;
use stratann_engine::build::{IndexKind, LocalPlan, build};
use stratann_engine::exec::Width;
use stratann_engine::index::{Index, OpenOptions};
use stratann_engine::kinds::LearningFacts;
use stratann_engine::kinds::hybrid_ivf::learning::describe;
use stratann_engine::kinds::options::LearnOptions;
use stratann_engine::manifest::Manifest;
use stratann_engine::search::{Answers, Effort, Reserve, SearchOptions};
use stratann_engine::{DType, Metric};
use stratann_storage::{ErrorKind, Quiet};
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

/// Queries that come where rows are, each another.
fn uniform(count: usize, seed: u64) -> Vec<u8> {
    let near = |i: u64| {
        let row = set().wide((hash(seed, 3, i) % set().len() as u64) as usize);
        (0..DIM).map(move |d| row[d] as f32 + 0.3 * normal(seed, i, d as u64)).collect::<Vec<f32>>()
    };
    (0..count as u64).flat_map(near).flat_map(f32::to_le_bytes).collect()
}

/// An epoch of queries at a spot; of none at spot 0.
fn epoch_at(spot: usize, seed: u64) -> Vec<u8> {
    match spot {
        0 => uniform(EPOCH as usize, seed),
        spot => hot_spot(spot_row(spot), EPOCH as usize, seed),
    }
}

/// State of learning after each epoch of queries at these spots, their counters, and their answers.
fn watched(index: &Index, spots: &[usize], threads: usize) -> Vec<(LearningFacts, QueryStats, Vec<u64>)> {
    let after = |(at, &spot): (usize, &usize)| {
        let answers = search(index, &epoch_at(spot, 70 + at as u64), threads);
        let facts = LearningFacts { waits: 0, ..index.learning_facts().unwrap() };
        (facts, answers.stats, answers.ids)
    };
    spots.iter().enumerate().map(after).collect()
}

fn learned_epochs(seen: &[(LearningFacts, QueryStats, Vec<u64>)]) -> Vec<usize> {
    (0..seen.len()).filter(|&at| seen[at].0.is_on).collect()
}

#[test]
fn without_a_hot_spot_nothing_is_learnt_and_nothing_written() {
    let dir = copy();
    let plain = open(dir.path(), Learn::Off);
    let index = open(dir.path(), Learn::On);
    let seen = watched(&index, &[0; 6], 2);
    for (at, (facts, stats, ids)) in seen.iter().enumerate() {
        assert!(facts.hot_spot.max(facts.foreseen) < facts.threshold / 2.0, "{facts:?}");
        assert_eq!((facts.is_on, facts.learned_epochs, facts.skipped_epochs), (false, 0, at as u64 + 1));
        let without = search(&plain, &epoch_at(0, 70 + at as u64), 2);
        assert_eq!((&without.stats, &without.ids), (stats, ids));
    }
    drop(index);
    assert!(!dir.path().join("learnt.bin").exists());
    // Otherwise every epoch is learned from.
    let index = open(dir.path(), Learn::Always);
    let facts = watched(&index, &[0; 6], 2)[5].0;
    assert_eq!((facts.is_on, facts.learned_epochs, facts.skipped_epochs), (true, 6, 0));
    kept_after(dir.path(), 6);
}

#[test]
fn learning_goes_on_and_off_with_the_hot_spot_on_any_number_of_threads() {
    let spots = [0, 0, 0, 1, 1, 1, 1, 0, 0, 0, 0, 2, 2, 2, 1, 1];
    let all = [1, 4].map(|threads| {
        let dir = copy();
        let index = open(dir.path(), Learn::On);
        let seen = watched(&index, &spots, threads);
        // What was learned is written, and no more.
        let learned = learned_epochs(&seen).len() as u64;
        (seen, kept_after(dir.path(), learned))
    });
    assert!(all[0] == all[1], "threads change what is learnt");
    let seen = &all[0].0;
    assert_eq!(learned_epochs(seen), [3, 4, 5, 6, 11, 12, 13, 14, 15]);
    let hits = |at: usize| seen[at].1.pinned_hits;
    // Used from the next epoch but one on; what is kept serves a spot that comes back at once.
    assert!(hits(4) == 0 && hits(5) > 200 && hits(6) > 200, "{} {} {}", hits(4), hits(5), hits(6));
    assert!(hits(12) < 50 && hits(13) > 200, "{} {}", hits(12), hits(13));
    assert!(hits(14) > 200, "{}", hits(14));
}

/// The row of a spot.
fn spot_row(spot: usize) -> usize {
    hash(11, 4, spot as u64) as usize % set().len()
}

/// Spots whose surroundings do not meet.
fn spots_apart(count: usize) -> Vec<usize> {
    let (mut spots, mut taken) = (Vec::new(), BTreeSet::new());
    for spot in 1..500 {
        let around = nearest(set(), Metric::L2, set().row(spot_row(spot)), 30, |_| false);
        if spots.len() < count && around.iter().all(|id| !taken.contains(id)) {
            taken.extend(around);
            spots.push(spot);
        }
    }
    assert_eq!(spots.len(), count);
    spots
}

fn recall(ids: &[Vec<u64>], spots: &[usize]) -> f64 {
    let k = SearchOptions::default().k;
    let (mut found, mut all) = (0, 0);
    for ((at, &spot), ids) in spots.iter().enumerate().zip(ids) {
        let asked = epoch_at(spot, 70 + at as u64);
        for (row, ids) in asked.chunks(4 * DIM).zip(ids.chunks(k)).step_by(10) {
            let truth = nearest(set(), Metric::L2, row, k, |_| false);
            found += truth.iter().filter(|id| ids.contains(id)).count();
            all += truth.len();
        }
    }
    found as f64 / all as f64
}

#[test]
fn a_hot_spot_that_moves_with_every_epoch_is_not_worth_learning() {
    let spots = spots_apart(12);
    let run = |learn| {
        let dir = copy();
        let index = open(dir.path(), learn);
        let run = |(at, &spot): (usize, &usize)| {
            let answers = search(&index, &epoch_at(spot, 70 + at as u64), 2);
            (answers.stats, answers.ids, index.learning_facts())
        };
        let epochs: Vec<_> = spots.iter().enumerate().map(run).collect();
        let facts = epochs.iter().map(|epoch| epoch.2).collect::<Vec<_>>();
        let mut stats = QueryStats::default();
        epochs.iter().for_each(|epoch| stats.add(&epoch.0));
        let ids: Vec<Vec<u64>> = epochs.into_iter().map(|epoch| epoch.1).collect();
        (stats, recall(&ids, &spots), facts)
    };
    let (off, on, always) = (run(Learn::Off), run(Learn::On), run(Learn::Always));
    let is_on: Vec<usize> = (0..12).filter(|&at| on.2[at].unwrap().is_on).collect();
    assert_eq!(is_on, [0, 1]);
    let last = on.2[11].unwrap();
    assert!(last.hot_spot > 2.0 * last.threshold && last.foreseen < last.threshold / 2.0, "{last:?}");
    assert!(on.1 >= off.1 - 0.002, "recall {} without, {}", off.1, on.1);
    // Learning from all of them finds hardly anything in RAM, and routes through more nodes.
    assert!(always.0.pinned_hits * 20 < always.0.full_comparisons, "{:?}", always.0);
    assert!(on.0.reads <= off.0.reads * 101 / 100, "{:?} without, {:?}", off.0, on.0);
}

#[test]
fn a_restart_goes_on_from_what_was_learnt() {
    let dir = copy();
    let index = open(dir.path(), Learn::On);
    let seen = watched(&index, &[1, 1, 1, 1], 2);
    assert_eq!(learned_epochs(&seen), [0, 1, 2, 3]);
    drop(index);
    let kept = kept_after(dir.path(), 4);
    let index = open(dir.path(), Learn::On);
    // Its first epoch was foreseen; others leave the file as it is.
    let seen = watched(&index, &[1, 0, 0, 0], 2);
    assert!(seen[0].0.foreseen > seen[0].0.threshold && seen[0].1.pinned_hits > 200, "{:?}", seen[0]);
    assert_eq!(learned_epochs(&seen), [0]);
    drop(index);
    assert!(kept_after(dir.path(), 5) != kept);
}

#[test]
fn an_interrupted_search_holds_up_no_later_one() {
    for patience in [0, 1, 3, 10] {
        let dir = copy();
        let index = open(dir.path(), Learn::On);
        // Longer than the epochs that run at a time.
        let asked = hot_spot(17, 9 * EPOCH as usize / 2, 3);
        let effort = Effort::Nprobe(16, Some(1.0), Some(0.2));
        let options =
            SearchOptions { effort, threads: 2, width: Width::Fixed(1), ..SearchOptions::default() };
        let impatient = Impatient { asked: AtomicU64::new(1), patience };
        let stopped = index.search(&asked, &options, &impatient);
        assert!(stopped.is_err_and(|e| e.kind == ErrorKind::Interrupted), "{patience}");
        // The epoch that it left ends with the first half of these.
        search(&index, &hot_spot(17, 4 * EPOCH as usize + EPOCH as usize / 2, 4), 2);
        let facts = index.learning_facts().unwrap();
        let epochs = facts.learned_epochs + facts.skipped_epochs;
        assert!(facts.is_on && facts.learned_epochs >= 4 && epochs <= 9, "{patience}: {facts:?}");
        let hits = search(&index, &hot_spot(17, EPOCH as usize, 5), 2).stats.pinned_hits;
        assert!(hits > 200, "{patience}: {hits}");
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
