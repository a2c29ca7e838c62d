//! Builds whose tasks are done by others: in any order, more than once, in several sittings.

mod common;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::AtomicU64;
use stratann_params::choices::CodePlace;

use common::{Impatient, Set, clustered, graph_options, quick};
use stratann_core::build::hash;
use stratann_engine::build::{BuildOptions, IndexKind, build, run_task};
use stratann_engine::kinds::split::Split;
use stratann_engine::kinds::split::tasks::{Done, Task};
use stratann_engine::{DType, Metric};
use stratann_storage::Quiet;

const DIM: usize = 12;

fn set(dtype: DType, rows: usize) -> Set {
    Set::new(dtype, DIM, &clustered(rows, DIM, 40, 1))
}

fn options(metric: Metric, cells: Option<usize>) -> BuildOptions {
    let quick = quick(IndexKind::DiskGraph, metric);
    let own = graph_options(quick, |own| (own.degree, own.build_list, own.cells) = (12, 24, cells));
    BuildOptions { calibration_queries: 40, ..own }
}

fn files(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = std::fs::read_dir(folder).unwrap().flatten().filter(|e| e.path().is_file());
    entries.map(|e| (e.file_name().into_string().unwrap(), std::fs::read(e.path()).unwrap())).collect()
}

/// Output of `stratann build`.
fn whole(set: &Set, options: &BuildOptions) -> BTreeMap<String, Vec<u8>> {
    let dir = tempfile::tempdir().unwrap();
    build(&set.reader(), dir.path(), options, &Quiet).unwrap();
    files(dir.path())
}

/// Does one task as another process would: from the folder and the job alone.
fn run(set: &Set, out: &Path, options: &BuildOptions, split: &Split, name: &str) -> Done {
    let job = serde_json::from_str(&serde_json::to_string(&split.job()).unwrap()).unwrap();
    let task: Task = name.parse().unwrap();
    run_task(&set.reader(), out, options, (job, task), &Quiet).unwrap_or_else(|e| panic!("{name}: {e}"))
}

/// Does all tasks of all phases, in an order that `seed` shuffles; each two times under an even one.
fn finish(mut split: Split, set: &Set, out: &Path, options: &BuildOptions, seed: u64) -> Vec<String> {
    let mut names = Vec::new();
    while let Some(phase) = split.phase().unwrap() {
        let mut tasks: Vec<String> = phase.tasks.into_iter().map(|t| t.0).collect();
        tasks.sort_by_key(|name| name.bytes().fold(seed, |h, b| hash(h, 1, b.into())));
        let mut done = BTreeMap::new();
        for name in &tasks {
            let first = run(set, out, options, &split, name);
            if seed.is_multiple_of(2) {
                // Its worker was lost when it had written everything, but not said so.
                std::fs::remove_file(out.join(format!("partial/task-{name}.json"))).unwrap();
                assert_eq!(run(set, out, options, &split, name).facts, first.facts, "{name}");
            }
            done.insert(name.clone(), first);
        }
        split.complete(done, 1.0).unwrap();
        names.extend(tasks);
    }
    let report = split.publish().unwrap();
    assert_eq!(report.rows + report.skipped_rows, set.shape.rows);
    assert!(report.index_bytes > 0 && report.stages.values().all(|&seconds| seconds >= 1.0));
    names
}

fn split_up(set: &Set, options: &BuildOptions, seed: u64) -> (BTreeMap<String, Vec<u8>>, Vec<String>) {
    let dir = tempfile::tempdir().unwrap();
    let split = Split::begin(set.reader(), dir.path(), options.clone()).unwrap();
    let names = finish(split, set, dir.path(), options, seed);
    assert!(!dir.path().join("partial").exists());
    (files(dir.path()), names)
}

#[test]
fn tasks_in_any_order_give_the_bytes_of_one_process() {
    // More rows than a part holds, so that there are two.
    let cases =
        [(DType::F32, Metric::L2, 20_000), (DType::U8, Metric::Cosine, 3000), (DType::F16, Metric::Ip, 3000)];
    for (seed, (dtype, metric, rows)) in cases.into_iter().enumerate() {
        let set = set(dtype, rows);
        let options = options(metric, Some(4));
        let (made, names) = split_up(&set, &options, seed as u64);
        assert!(made == whole(&set, &options), "{dtype:?} {metric:?}");
        let count = |start: &str| names.iter().filter(|n| n.starts_with(start)).count();
        assert!(count("cell-") >= 4 && count("merge-") >= 4 && count("blocks-") >= 4, "{names:?}");
        assert_eq!(count("scan-"), rows.div_ceil(16_384));
        let one_thread = BuildOptions { threads: 1, ..options };
        assert!(split_up(&set, &one_thread, 7).0 == made);
    }
}

#[test]
fn blocks_that_carry_codes_are_the_same() {
    let set = set(DType::F32, 3000);
    for cells in [None, Some(4)] {
        let options = graph_options(options(Metric::L2, cells), |own| own.codes = CodePlace::Disk);
        let (made, names) = split_up(&set, &options, 6);
        assert!(made == whole(&set, &options), "{cells:?}");
        assert!(!made.contains_key("v1-codes.bin"));
        let at = |start: &str| names.iter().position(|n| n.starts_with(start)).unwrap();
        assert!(at("codes") < at("blocks-") && at("number") < at("codes"), "{names:?}");
    }
}

#[test]
fn what_is_not_divided_works_too() {
    let set = set(DType::F32, 2000);
    let in_one = options(Metric::L2, None);
    let (made, names) = split_up(&set, &in_one, 2);
    assert!(made == whole(&set, &in_one));
    assert!(names.contains(&"graph".into()) && !names.iter().any(|n| n.starts_with("cell-")), "{names:?}");
    let flat = BuildOptions { kind: IndexKind::Flat.into(), ..in_one };
    assert!(split_up(&set, &flat, 3).0 == whole(&set, &flat));
}

#[test]
fn ids_and_rows_left_out_are_the_same() {
    let mut set = set(DType::F32, 2500);
    for row in [0, 17, 2499] {
        set.bytes[row * DIM * 4..][..4].copy_from_slice(&f32::NAN.to_le_bytes());
    }
    let dir = tempfile::tempdir().unwrap();
    let ids = dir.path().join("ids.u64bin");
    let mut bytes = [2500u32.to_le_bytes(), 1u32.to_le_bytes()].concat();
    (0..2500u64).for_each(|i| bytes.extend(((1 << 40) - i).to_le_bytes()));
    std::fs::write(&ids, bytes).unwrap();
    let mut options = BuildOptions { ids: Some(ids), ..options(Metric::L2, Some(3)) };
    let out = dir.path().join("failing");
    let mut split = Split::begin(set.reader(), &out, options.clone()).unwrap();
    let tasks = split.phase().unwrap().unwrap().tasks;
    let done = tasks.iter().map(|t| (t.0.clone(), run(&set, &out, &options, &split, &t.0))).collect();
    let error = split.complete(done, 0.0).unwrap_err();
    assert!(error.message.contains("row 0 of") && error.message.contains("component 0 is NaN"), "{error}");
    split.abandon();
    assert!(!out.exists());
    options.on_bad_row = stratann_params::choices::OnBadRow::Skip;
    assert!(split_up(&set, &options, 4).0 == whole(&set, &options));
}

/// Does phases until one is called `name`, and half of the tasks of that.
fn stop_in(name: &str, set: &Set, out: &Path, options: &BuildOptions) {
    let mut split = Split::begin(set.reader(), out, options.clone()).unwrap();
    loop {
        let phase = split.phase().unwrap().unwrap();
        let is_last = phase.name == name;
        let count = if is_last { phase.tasks.len().div_ceil(2) } else { phase.tasks.len() };
        let some = phase.tasks[..count].iter();
        let done = some.map(|t| (t.0.clone(), run(set, out, options, &split, &t.0))).collect();
        if is_last {
            return;
        }
        split.complete(done, 0.0).unwrap();
    }
}

#[test]
fn a_build_goes_on_where_it_stopped_in_tasks_or_alone() {
    goes_on(
        CodePlace::Ram,
        &["dividing into cells", "graph", "merging cells", "packing", "writing blocks", "calibrating"],
    );
}

#[test]
fn so_does_one_whose_blocks_carry_codes() {
    goes_on(CodePlace::Disk, &["graph", "packing", "writing blocks", "calibrating"]);
}

fn goes_on(codes: CodePlace, names: &[&str]) {
    let set = set(DType::F32, 3000);
    let options = graph_options(options(Metric::L2, Some(4)), |own| own.codes = codes);
    let expected = whole(&set, &options);
    let resumed = BuildOptions { resume: true, ..options.clone() };
    for &name in names {
        let dir = tempfile::tempdir().unwrap();
        stop_in(name, &set, dir.path(), &options);
        let split = Split::begin(set.reader(), dir.path(), resumed.clone()).unwrap();
        let phase = split.phase().unwrap().unwrap();
        assert_eq!(phase.name, name);
        let left: u64 = phase.tasks.iter().map(|t| t.1).sum();
        assert!(left < phase.total, "{name}: finished tasks are done again");
        finish(split, &set, dir.path(), &options, 5);
        assert!(files(dir.path()) == expected, "{name}");

        let dir = tempfile::tempdir().unwrap();
        stop_in(name, &set, dir.path(), &options);
        build(&set.reader(), dir.path(), &resumed, &Quiet).unwrap();
        assert!(files(dir.path()) == expected, "{name}, alone");
    }
    for patience in [5, 30, 60, 90] {
        let dir = tempfile::tempdir().unwrap();
        let stop = Impatient { asked: AtomicU64::new(0), patience };
        build(&set.reader(), dir.path(), &options, &stop).unwrap_err();
        let split = Split::begin(set.reader(), dir.path(), resumed.clone()).unwrap();
        finish(split, &set, dir.path(), &options, 5);
        assert!(files(dir.path()) == expected, "patience {patience}");
    }
}

#[test]
fn a_task_refuses_what_is_not_its_build() {
    let set = set(DType::F32, 2000);
    let options = options(Metric::L2, Some(3));
    let dir = tempfile::tempdir().unwrap();
    let split = Split::begin(set.reader(), dir.path(), options.clone()).unwrap();
    let ask = |out: &Path, options: &BuildOptions, set: &Set, task| {
        run_task(&set.reader(), out, options, (split.job(), task), &Quiet).unwrap_err().message
    };
    let scan = Task::Scan(0);
    let unseen = ask(&dir.path().join("elsewhere"), &options, &set, scan);
    assert!(unseen.contains("cannot be seen from here"), "{unseen}");
    let other = ask(dir.path(), &BuildOptions { seed: 2, ..options.clone() }, &set, scan);
    assert!(other.contains("another seed"), "{other}");
    let other = ask(dir.path(), &options, &self::set(DType::F32, 1999), scan);
    assert!(other.contains("another base"), "{other}");
    let early = ask(dir.path(), &options, &set, Task::Cell(0));
    assert!(early.contains("does not say what came of scan"), "{early}");
    let locked = Split::begin(set.reader(), dir.path(), options.clone()).map(drop).unwrap_err();
    assert!(locked.message.contains("another process"), "{locked}");
    let early = split.publish().unwrap_err();
    assert!(early.message.contains("checking vectors is not done"), "{early}");
}
