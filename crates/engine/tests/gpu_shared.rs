//! Indexes on one GPU. A test of its own: it counts the threads of the process.

mod common;

use common::{Set, clustered, quick};
use stratann_engine::build::{BuildOptions, IndexKind, KindOptions, build};
use stratann_engine::exec::scorer::{EmulatedFault, GpuReport, ScorerChoice, ScorerOptions};
use stratann_engine::index::{Index, OpenOptions};
use stratann_engine::search::{Answers, Effort, SearchOptions};
use stratann_engine::{DType, Metric};
use stratann_params::build::GpuOptions;
use stratann_storage::Quiet;
use stratann_testing::{Need, leave_out};
use tempfile::TempDir;

/// An index, its queries, and their answers by the processor.
struct Case {
    dir: TempDir,
    asked: Set,
    wanted: Answers,
}

impl Case {
    fn new(dtype: DType, metric: Metric, dim: usize, code_bytes: usize) -> Case {
        let set = Set::new(dtype, dim, &clustered(900, dim, 20, 3));
        let own = GpuOptions { code_bytes: Some(code_bytes), ..GpuOptions::default() };
        let options = BuildOptions { kind: KindOptions::GpuIvf(own), ..quick(IndexKind::GpuIvf, metric) };
        let dir = tempfile::tempdir().unwrap();
        build(&set.reader(), dir.path(), &options, &Quiet).unwrap();
        let asked = Set::new(dtype, dim, &clustered(30, dim, 20, 3));
        let wanted = search(&Index::open(dir.path(), OpenOptions::default()).unwrap(), &asked);
        Case { dir, asked, wanted }
    }

    fn open(&self, fault: EmulatedFault) -> Index {
        let scorer = ScorerOptions { choice: ScorerChoice::Emulated(fault), ..ScorerOptions::default() };
        Index::open(self.dir.path(), OpenOptions { scorer, ..OpenOptions::default() }).unwrap()
    }

    fn check(&self, index: &Index) {
        let (got, wanted) = (search(index, &self.asked), &self.wanted);
        assert_eq!((&got.ids, &got.distances, got.stats), (&wanted.ids, &wanted.distances, wanted.stats));
    }
}

fn search(index: &Index, asked: &Set) -> Answers {
    let effort = Effort::Nprobe(8, None, None);
    let options = SearchOptions { effort, threads: 2, ..SearchOptions::default() };
    let answers = index.search(&asked.bytes, &options, &Quiet).unwrap();
    assert!(answers.failed.is_empty(), "{:?}", answers.failed);
    answers
}

fn gpu(index: &Index) -> GpuReport {
    index.scorer_report().unwrap().gpu.unwrap()
}

/// Devices of this process: each has one thread of this name.
fn devices() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.unwrap().path().join("comm")).ok());
    names.filter(|name| name.trim_end() == "gpu-batcher").count()
}

/// Waits until there are so many. A thread that was joined is listed a moment longer.
fn wait_for_devices(count: usize) {
    let start = std::time::Instant::now();
    while devices() != count {
        assert!(start.elapsed() < std::time::Duration::from_secs(60), "{} devices, not {count}", devices());
        std::thread::yield_now();
    }
}

#[test]
fn indexes_share_a_device() {
    let compiler = std::env::var("CXX").unwrap_or_else(|_| "c++".into());
    let run = std::process::Command::new(&compiler).arg("--version").output();
    if !run.is_ok_and(|run| run.status.success()) {
        return leave_out(Need::Compiler, &format!("{compiler} is not installed"));
    }
    let cases = [
        Case::new(DType::U8, Metric::L2, 12, 6),
        Case::new(DType::F32, Metric::Ip, 20, 14),
        Case::new(DType::F16, Metric::Cosine, 16, 10),
    ];
    // Threads that open indexes at once get one device.
    let opened: Vec<Index> = std::thread::scope(|scope| {
        let opening = cases.each_ref().map(|case| scope.spawn(|| case.open(EmulatedFault::None)));
        opening.map(|thread| thread.join().unwrap()).into()
    });
    assert_eq!(devices(), 1);
    std::thread::scope(|scope| {
        for (case, index) in cases.iter().zip(&opened) {
            scope.spawn(|| (0..3).for_each(|_| case.check(index)));
        }
    });
    // Each reports its own jobs.
    for index in &opened {
        let gpu = gpu(index);
        assert_eq!((gpu.codes, gpu.jobs, gpu.ranked_here, &gpu.lost), (900, 90, 0, &None));
        assert!(gpu.batches <= 90 && gpu.bytes_to_device > 0 && gpu.bytes_from_device > 0, "{gpu:?}");
    }
    // One that has a fault, and so a device of its own.
    let faulty = cases[0].open(EmulatedFault::FailAt(0));
    assert_eq!(devices(), 2);
    cases[0].check(&faulty);
    assert!(gpu(&faulty).lost.is_some());
    drop(faulty);
    wait_for_devices(1);
    let [first, second, third] = <[Index; 3]>::try_from(opened).map_err(drop).unwrap();
    drop(first);
    assert_eq!(devices(), 1);
    cases[1].check(&second);
    // A version that takes the place of another.
    let next = cases[2].open(EmulatedFault::None);
    drop(third);
    assert_eq!(devices(), 1);
    cases[2].check(&next);
    assert_eq!((gpu(&next).ranked_here, gpu(&second).lost), (0, None));
    drop((second, next));
    wait_for_devices(0);
    let again = cases[0].open(EmulatedFault::None);
    cases[0].check(&again);
    assert_eq!((devices(), gpu(&again).jobs), (1, 30));
}
