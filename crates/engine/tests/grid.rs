//! `grid-ivf`: answers are those of a plain scan of the same lists, equal inputs give equal bytes and counters, damage is
//! never an answer.

mod common;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use stratann_params::build::GridOptions;
use stratann_params::search::GridSwitches;

use common::{Impatient, Set, clustered, normal, queries, quick};
use stratann_engine::build::{BuildOptions, IndexKind, KindOptions, build};
use stratann_engine::groundtruth;
use stratann_engine::index::{Index, OpenOptions};
use stratann_engine::search::{Answers, Effort, SearchOptions};
use stratann_engine::{DType, Metric, verify};
use stratann_storage::{ErrorKind, Quiet};
use tempfile::TempDir;

fn options(metric: Metric, lists: usize) -> BuildOptions {
    let own = GridOptions { lists: Some(lists), centroids: None };
    BuildOptions { kind: KindOptions::GridIvf(own), ..quick(IndexKind::GridIvf, metric) }
}

fn built(set: &Set, options: &BuildOptions) -> (TempDir, Index) {
    let dir = tempfile::tempdir().unwrap();
    build(&set.reader(), dir.path(), options, &Quiet).unwrap_or_else(|e| panic!("{options:?}: {e}"));
    let index = Index::open(dir.path(), OpenOptions::default()).unwrap();
    (dir, index)
}

fn probe(k: usize, nprobe: u32, switches: GridSwitches) -> SearchOptions {
    let effort = Effort::Nprobe(nprobe, None, None);
    SearchOptions { k, effort, switches: switches.into(), ..SearchOptions::default() }
}

fn search(index: &Index, asked: &[u8], options: &SearchOptions) -> Answers {
    let answers = index.search(asked, options, &Quiet).unwrap();
    assert!(answers.failed.is_empty(), "{options:?}: {:?}", answers.failed);
    answers
}

fn all_switches() -> impl Iterator<Item = GridSwitches> {
    (0..16).map(|flags| {
        let [prune_dimension, prune_code, prune_vector, prewarm] = [0, 1, 2, 3].map(|i| flags >> i & 1 == 1);
        GridSwitches { prune_dimension, prune_code, prune_vector, prewarm, ..GridSwitches::default() }
    })
}

/// With all lists visited, the ids of a scan but for neighbours that are as near as rounding tells.
fn assert_exact(set: &Set, asked: &Set, options: &BuildOptions, k: usize) {
    let (dir, index) = built(set, options);
    let report = verify::verify(dir.path(), &Quiet).unwrap();
    assert_eq!((report.violations.as_slice(), report.nodes), (&[][..], set.shape.rows), "{options:?}");
    let truth =
        groundtruth::exact(&set.reader(), &asked.reader(), options.metric, k, 1 << 30, &Quiet).unwrap();
    let plain = GridSwitches {
        prune_dimension: false,
        prune_vector: false,
        prewarm: false,
        ..GridSwitches::default()
    };
    let plain = search(&index, &asked.bytes, &probe(k, u32::from(u16::MAX), plain));
    assert_eq!(plain.stats.components, plain.stats.components_unpruned);
    assert_eq!(plain.stats.components, asked.shape.rows * set.shape.rows * set.shape.dim as u64);
    for (i, (&found, &wanted)) in plain.distances.iter().zip(&truth.distances).enumerate() {
        if wanted.is_finite() {
            let error = (found - wanted).abs();
            assert!(
                error <= 1e-5 * (1.0 + wanted.abs()),
                "{options:?}: result {i} is at {found}, not {wanted}"
            );
        }
    }
    for switches in all_switches() {
        let answers = search(&index, &asked.bytes, &probe(k, u32::from(u16::MAX), switches));
        assert_eq!((&answers.ids, &answers.distances), (&plain.ids, &plain.distances), "{switches:?}");
    }
}

#[test]
fn all_types_and_metrics_find_what_a_scan_finds() {
    let (floats, asked) = (clustered(900, 70, 12, 1), clustered(12, 70, 12, 2));
    for metric in Metric::ALL {
        for dtype in DType::ALL {
            let set = Set::new(dtype, 70, &floats);
            assert_exact(&set, &Set::new(dtype, 70, &asked), &options(metric, 20), 10);
        }
    }
}

#[test]
fn odd_sets_find_what_a_scan_finds() {
    let l2 = |lists| options(Metric::L2, lists);
    // One component; fewer rows than results; more lists than rows.
    let one = Set::new(DType::F32, 1, &clustered(300, 1, 5, 1));
    assert_exact(&one, &queries(5, 1), &l2(7), 10);
    let few = Set::new(DType::F32, 24, &clustered(5, 24, 2, 1));
    assert_exact(&few, &queries(5, 24), &l2(50), 10);
    // All vectors equal: no axis has a variance.
    for dtype in DType::ALL {
        let equal = Set::new(dtype, 40, &vec![0.5; 40 * 200]);
        assert_exact(&equal, &Set::new(dtype, 40, &clustered(4, 40, 2, 3)), &l2(9), 10);
    }
    // A component that never changes, and most vectors in one list.
    let lonely = |row: u64, i: u64| match (row, i) {
        (_, 3) => 1.0,
        (0..400, _) => 0.01 * normal(1, row, i),
        _ => 5.0 * normal(2, row, i),
    };
    let values: Vec<f32> = (0..500).flat_map(|row| (0..30).map(move |i| lonely(row, i))).collect();
    assert_exact(&Set::new(DType::F16, 30, &values), &Set::new(DType::F16, 30, &values[..300]), &l2(10), 20);
}

#[test]
fn codes_change_no_answer_whatever_the_vectors() {
    for dim in [1, 2, 3, 96, 100, 256, 300] {
        for rows in [1, 2, 20, 255, 257] {
            let set = Set::new(DType::F32, dim, &clustered(rows, dim, 4, 1));
            assert_exact(&set, &queries(3, dim), &options(Metric::L2, 4), 10);
        }
    }
    let (rows, dim) = (300, 260u64);
    // Zeros among others, one vector that is far from all, and vectors that are far from zero and near each other.
    let value = |case: usize, row: u64, i: u64| match (case, row % 7) {
        (0, 0) => 0.0,
        (1, _) if row == 5 => 1e9 * normal(4, row, i),
        (2, _) => 1e6 + normal(3, row, i),
        _ => normal(3, row, i),
    };
    for (case, dtype) in [(0, DType::F32), (1, DType::F32), (2, DType::F32), (0, DType::F16)] {
        let values: Vec<f32> = (0..rows).flat_map(|row| (0..dim).map(move |i| value(case, row, i))).collect();
        let set = Set::new(dtype, dim as usize, &values);
        let asked = Set::new(dtype, dim as usize, &values[..10 * dim as usize]);
        for metric in [Metric::L2, Metric::Ip] {
            // Products of vectors that are far from zero have few digits.
            if metric == Metric::L2 || case == 0 {
                assert_exact(&set, &asked, &options(metric, 6), 10);
            }
        }
    }
}

#[test]
fn codes_are_compared_before_components() {
    for metric in Metric::ALL {
        let set = Set::new(DType::F32, 256, &clustered(4000, 256, 30, 1));
        let asked = Set::new(DType::F32, 256, &clustered(20, 256, 30, 2));
        let (_dir, index) = built(&set, &options(metric, 40));
        // Blocks of lists are filled up, by 4 % here.
        let plain = 4000 * (4 * 256 + 4) * 104 / 100;
        let vectors = index.account().components.iter().find(|part| part.0 == "vectors").unwrap().1;
        assert!(vectors * 100 <= plain * 115, "{vectors}");
        let [with, without] = [true, false].map(|prune_code| {
            let switches = GridSwitches { prune_code, ..GridSwitches::default() };
            search(&index, &asked.bytes, &probe(10, 40, switches))
        });
        assert_eq!((&with.ids, &with.distances), (&without.ids, &without.distances));
        let centroids = 20 * 40;
        assert_eq!(without.stats.code_comparisons, centroids);
        assert!(with.stats.code_comparisons > centroids + 20 * 3500, "{:?}", with.stats);
        assert!(2 * with.stats.components < without.stats.components, "{metric:?} {:?}", with.stats);
    }
}

#[test]
fn vectors_far_from_zero_keep_their_distances() {
    let far = |seed, rows: u64| -> Vec<f32> {
        (0..rows).flat_map(|row| (0..64).map(move |i| 1000.0 + normal(seed, row, i))).collect()
    };
    let (values, asked) = (far(1, 800), far(2, 12));
    for metric in [Metric::L2, Metric::Cosine] {
        let set = Set::new(DType::F32, 64, &values);
        assert_exact(&set, &Set::new(DType::F32, 64, &asked), &options(metric, 10), 10);
    }
    // Relative to the distance, too.
    let set = Set::new(DType::F32, 64, &values);
    let (_dir, index) = built(&set, &options(Metric::L2, 10));
    let found = search(&index, bytemuck::cast_slice(&asked), &probe(10, 10, GridSwitches::default()));
    for (i, (&id, &distance)) in found.ids.iter().zip(&found.distances).enumerate() {
        let pairs = values[64 * id as usize..].iter().zip(&asked[64 * (i / 10)..]).take(64);
        let exact: f64 = pairs.map(|(&x, &y)| (f64::from(x) - f64::from(y)).powi(2)).sum();
        assert!((f64::from(distance) - exact).abs() <= 1e-5 * exact, "{distance} {exact}");
    }
}

#[test]
fn fewer_lists_are_probed_and_pruning_changes_no_answer() {
    let set = Set::new(DType::F32, 64, &clustered(4000, 64, 30, 1));
    let asked = Set::new(DType::F32, 64, &clustered(30, 64, 30, 2));
    let (_dir, index) = built(&set, &options(Metric::L2, 60));
    let usual = search(&index, &asked.bytes, &probe(10, 6, GridSwitches::default()));
    assert_eq!(usual.stats.lists, 6 * 30);
    for switches in all_switches() {
        let other = search(&index, &asked.bytes, &probe(10, 6, switches));
        assert_eq!((&other.ids, &other.distances), (&usual.ids, &usual.distances), "{switches:?}");
        assert_eq!(other.stats.components_unpruned, usual.stats.components_unpruned);
        // Each technique saves work.
        assert!(
            switches == GridSwitches::default()
                || other.stats.components >= usual.stats.components * 99 / 100
        );
    }
    assert!(2 * usual.stats.components < usual.stats.components_unpruned, "{:?}", usual.stats);
    // More than all lists are all lists, and more results than the lists hold are all members.
    let all = search(&index, &asked.bytes, &probe(5000, 1, GridSwitches::default()));
    assert!(all.ids.len() == 30 * all.k && all.ids.contains(&u64::MAX));
}

/// All files of a folder.
fn files(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = std::fs::read_dir(folder).unwrap().flatten();
    let named =
        |e: std::fs::DirEntry| (e.file_name().into_string().unwrap(), std::fs::read(e.path()).unwrap());
    entries.filter(|e| e.path().is_file()).map(named).filter(|(name, _)| name != "lock").collect()
}

#[test]
fn threads_and_memory_change_no_byte() {
    let set = Set::new(DType::F16, 128, &clustered(20_000, 128, 40, 1));
    let made = |threads: usize, ram_budget: Option<u64>| {
        let dir = tempfile::tempdir().unwrap();
        let options = BuildOptions { threads, ram_budget, ..options(Metric::Cosine, 100) };
        build(&set.reader(), dir.path(), &options, &Quiet).unwrap();
        files(dir.path())
    };
    let wanted = made(1, None);
    assert!(made(3, None) == wanted, "three threads");
    // Vectors are spilled, centroids and axes are found from fewer rows.
    let [little, again] = [made(1, Some(33 << 20)), made(2, Some(33 << 20))];
    assert!(little == again, "a budget, with one and with two threads");
}

#[test]
fn a_build_that_was_stopped_anywhere_resumes_to_the_same_bytes() {
    let set = Set::new(DType::U8, 40, &clustered(3000, 40, 12, 1));
    let options = BuildOptions { calibration_queries: 20, ..options(Metric::L2, 30) };
    let whole = tempfile::tempdir().unwrap();
    build(&set.reader(), whole.path(), &options, &Quiet).unwrap();
    let wanted = files(whole.path());
    let count = Impatient { asked: AtomicU64::new(0), patience: u64::MAX };
    let dir = tempfile::tempdir().unwrap();
    build(&set.reader(), dir.path(), &options, &count).unwrap();
    let questions = count.asked.load(Ordering::Relaxed);
    let mut stopped = 0;
    for patience in (0..questions).step_by((questions / 12).max(1) as usize) {
        let dir = tempfile::tempdir().unwrap();
        let stop = Impatient { asked: AtomicU64::new(0), patience };
        stopped += u32::from(build(&set.reader(), dir.path(), &options, &stop).is_err());
        let resumed = BuildOptions { resume: true, force: true, ..options.clone() };
        build(&set.reader(), dir.path(), &resumed, &Quiet).unwrap();
        let found = files(dir.path());
        if found.contains_key("manifest-1.json") {
            assert!(found == wanted, "stopped after {patience} questions");
        }
    }
    assert!(stopped >= 8, "{stopped} of about 12 were stopped");
}

#[test]
fn every_file_is_checked() {
    let set = Set::new(DType::U8, 40, &clustered(800, 40, 12, 1));
    let (dir, index) = built(&set, &options(Metric::L2, 20));
    drop(index);
    for (name, bytes) in files(dir.path()) {
        let path = dir.path().join(&name);
        for at in [0, bytes.len() / 2, bytes.len() - 1] {
            let mut damaged = bytes.clone();
            damaged[at] ^= 4;
            std::fs::write(&path, &damaged).unwrap();
            let opened = Index::open(dir.path(), OpenOptions::default());
            assert!(opened.is_err(), "{name} with a flipped bit at {at} is opened");
            let found = verify::verify(dir.path(), &Quiet).unwrap().violations;
            assert!(!found.is_empty(), "{name} with a flipped bit at {at} is sound");
        }
        std::fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
        assert!(Index::open(dir.path(), OpenOptions::default()).is_err(), "{name} cut short is opened");
        std::fs::write(&path, &bytes).unwrap();
    }
    assert!(verify::verify(dir.path(), &Quiet).unwrap().violations.is_empty());
}

#[test]
fn centroids_can_be_given() {
    let set = Set::new(DType::F32, 24, &clustered(1000, 24, 8, 1));
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("centroids.fbin");
    let write = |dim: u32, rows: &[f32]| {
        let mut bytes = (rows.len() as u32 / dim).to_le_bytes().to_vec();
        bytes.extend(dim.to_le_bytes());
        bytes.extend(rows.iter().flat_map(|x| x.to_le_bytes()));
        std::fs::write(&path, bytes).unwrap();
    };
    // One of them is so far from all rows that its list is empty.
    let mut rows = clustered(9, 24, 8, 1);
    rows[8 * 24..].fill(1e6);
    write(24, &rows);
    let own = GridOptions { lists: None, centroids: Some(path.clone()) };
    let given = BuildOptions { kind: KindOptions::GridIvf(own), ..quick(IndexKind::GridIvf, Metric::L2) };
    let (_dir, index) = built(&set, &given);
    let facts = &index.manifest().section.grid().unwrap().facts;
    assert_eq!((facts.lists(), facts.sizes.min), (9, 0));
    let asked = queries(10, 24);
    let found = search(&index, &asked.bytes, &probe(10, 9, GridSwitches::default()));
    let truth = groundtruth::exact(&set.reader(), &asked.reader(), Metric::L2, 10, 1 << 30, &Quiet).unwrap();
    assert_eq!(found.ids, truth.ids.iter().map(|&id| u64::from(id)).collect::<Vec<_>>());
    // Of another dimension, or none at all.
    write(12, &rows[..120]);
    let folder = tempfile::tempdir().unwrap();
    let e = build(&set.reader(), folder.path(), &given, &Quiet).unwrap_err();
    assert!(e.message.contains("rows of 24 f32"), "{e}");
    std::fs::remove_file(&path).unwrap();
    let e = build(&set.reader(), folder.path(), &given, &Quiet).unwrap_err();
    assert!(e.message.contains("centroids.fbin"), "{e}");
}

#[test]
fn budgets_are_kept_or_refused() {
    let set = Set::new(DType::F32, 128, &clustered(8000, 128, 20, 1));
    let (dir, index) = built(&set, &options(Metric::L2, 40));
    let account = index.account();
    let vectors = account.components.iter().find(|part| part.0 == "vectors").unwrap().1;
    let least = 8000 * 128 * 4;
    assert!((least..least * 103 / 100).contains(&vectors), "{vectors}");
    let open = OpenOptions { ram_budget: Some(4 << 20), ..OpenOptions::default() };
    let e = Index::open(dir.path(), open).err().unwrap();
    assert!(e.kind == ErrorKind::Budget && e.message.contains("--ram-budget 20MiB"), "{e}");
    let small = BuildOptions { ram_budget: Some(1 << 20), ..options(Metric::L2, 40) };
    let folder = tempfile::tempdir().unwrap();
    let e = build(&set.reader(), folder.path(), &small, &Quiet).unwrap_err();
    assert_eq!(e.kind, ErrorKind::Budget, "{e}");
}

#[test]
fn recall_is_calibrated() {
    let set = Set::new(DType::F32, 64, &clustered(6000, 64, 60, 1));
    let asked = Set::new(DType::F32, 64, &clustered(60, 64, 60, 2));
    let calibrated = BuildOptions { calibration_queries: 100, ..options(Metric::L2, 77) };
    let (_dir, index) = built(&set, &calibrated);
    let truth = groundtruth::exact(&set.reader(), &asked.reader(), Metric::L2, 10, 1 << 30, &Quiet).unwrap();
    let mut last = 0;
    for wanted in [0.8, 0.95, 1.0] {
        let options = SearchOptions { k: 10, effort: Effort::Recall(wanted), ..SearchOptions::default() };
        let found = search(&index, &asked.bytes, &options);
        let hits = (0..60)
            .flat_map(|q| truth.ids[10 * q..10 * q + 10].iter().map(move |&id| (q, u64::from(id))))
            .filter(|&(q, id)| found.ids[10 * q..10 * q + 10].contains(&id))
            .count();
        assert!(hits as f64 / 600.0 >= wanted - 0.05, "{hits} of 600 for {wanted}");
        assert!(found.stats.lists > last);
        last = found.stats.lists;
    }
    assert_eq!(last, 60 * 77, "recall 1 takes all lists");
}
