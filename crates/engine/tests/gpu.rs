//! `gpu-ivf`: exact answers where all is re-ranked, equal bytes and answers under any number of threads, budget and
//! scorer, and damage that is never an answer. The laboratory runs the same tests with the baselines.

mod common;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use stratann_params::build::GpuOptions;
use stratann_params::choices::RuleName;
use stratann_params::search::GpuSwitches;

use common::{Impatient, Set, clustered, normal, quick};
use stratann_engine::build::{BuildOptions, IndexKind, KindOptions, build, plan};
use stratann_engine::exec::scorer::{EmulatedFault, ScorerChoice, ScorerOptions, conformance};
use stratann_engine::groundtruth;
use stratann_engine::index::{Index, OpenOptions, ScoredCodes};
use stratann_engine::search::{Answers, Effort, SearchOptions};
use stratann_engine::{DType, Metric, verify};
#[cfg(feature = "lab")]
use stratann_engine::{index::OpenBaselines, kinds::options::Baseline};
use stratann_storage::{ErrorKind, Quiet};
use stratann_testing::{Need, leave_out};
use tempfile::TempDir;

/// Queries near rows of a set.
fn queries_of(set: &Set, count: usize) -> Set {
    let dim = set.shape.dim;
    let near = |q: usize| set.wide(q * 13 % set.len()).into_iter().map(|x| x as f32);
    // Integers are 20 times as large, and are centred.
    let scale = |x: f32| match set.shape.dtype {
        DType::F32 | DType::F16 => x,
        DType::U8 => (x - 128.0) / 20.0,
        DType::I8 => x / 20.0,
    };
    let values = (0..count)
        .flat_map(|q| near(q).enumerate().map(move |(i, x)| scale(x) + 0.3 * normal(9, q as u64, i as u64)));
    Set::new(set.shape.dtype, dim, &values.collect::<Vec<f32>>())
}

fn options(metric: Metric, own: GpuOptions) -> BuildOptions {
    BuildOptions { kind: KindOptions::GpuIvf(own), ..quick(IndexKind::GpuIvf, metric) }
}

fn small() -> GpuOptions {
    GpuOptions { code_bytes: Some(6), ..GpuOptions::default() }
}

fn built(set: &Set, options: &BuildOptions) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    build(&set.reader(), dir.path(), options, &Quiet).unwrap_or_else(|e| panic!("{options:?}: {e}"));
    dir
}

fn open(dir: &TempDir) -> Index {
    Index::open(dir.path(), OpenOptions::default()).unwrap()
}

fn search(index: &Index, asked: &[u8], nprobe: u32, switches: GpuSwitches) -> Answers {
    let effort = Effort::Nprobe(nprobe, None, None);
    let options = SearchOptions { effort, switches: switches.into(), threads: 2, ..SearchOptions::default() };
    let answers = index.search(asked, &options, &Quiet).unwrap();
    assert!(answers.failed.is_empty(), "{switches:?}: {:?}", answers.failed);
    answers
}

fn recall(answers: &Answers, truth: &[u32], truth_k: usize) -> f64 {
    let truth: Vec<u64> = truth.iter().map(|&id| u64::from(id)).collect();
    answers.recall(&truth, truth_k)
}

fn everything() -> GpuSwitches {
    GpuSwitches { rule: Some(RuleName::Static), candidates: Some(60_000), ..GpuSwitches::default() }
}

#[test]
fn all_candidates_of_all_lists_are_the_exact_answer() {
    for (dtype, metric) in [
        (DType::F32, Metric::L2),
        (DType::F32, Metric::Ip),
        (DType::F16, Metric::Cosine),
        (DType::U8, Metric::L2),
        (DType::I8, Metric::Ip),
    ] {
        let set = Set::new(dtype, 12, &clustered(1500, 12, 20, 3));
        let asked = queries_of(&set, 20);
        let dir = built(&set, &options(metric, GpuOptions { baselines: cfg!(feature = "lab"), ..small() }));
        let report = verify::verify(dir.path(), &Quiet).unwrap();
        assert_eq!((report.violations.as_slice(), report.nodes), (&[][..], 1500), "{dtype:?} {metric:?}");
        let truth = groundtruth::exact(&set.reader(), &asked.reader(), metric, 10, 1 << 30, &Quiet).unwrap();
        let opened = OpenOptions {
            #[cfg(feature = "lab")]
            baselines: OpenBaselines::Resident,
            ..OpenOptions::default()
        };
        let index = Index::open(dir.path(), opened).unwrap();
        let plain = search(&index, &asked.bytes, 2000, everything());
        assert!(recall(&plain, &truth.ids, truth.k) > 0.999, "{dtype:?} {metric:?}");
        #[cfg(feature = "lab")]
        for baseline in Baseline::ALL {
            // Some score all members of the lists, and have no candidates.
            let has_candidates = !matches!(baseline.name(), "spann" | "hi+gpu" | "rummy-like");
            let usual = if has_candidates { everything() } else { GpuSwitches::default() };
            let switches = GpuSwitches { rule: None, baseline: Some(baseline.into()), ..usual };
            let answers = search(&index, &asked.bytes, 2000, switches);
            if baseline.name() == "no-dedup" || baseline.name() == "no-layout" {
                assert!(recall(&answers, &truth.ids, truth.k) > 0.5, "{}", baseline.name());
            } else {
                assert_eq!(answers.ids, plain.ids, "{} of {dtype:?} {metric:?}", baseline.name());
            }
        }
        let usual = search(&index, &asked.bytes, 40, GpuSwitches::default());
        assert!(recall(&usual, &truth.ids, truth.k) > 0.6, "{dtype:?} {metric:?}");
    }
}

/// The content of every data file.
fn contents(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let files = std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().path());
    let named = files.filter(|p| p.is_file() && p.extension().is_some_and(|e| e == "bin"));
    named.map(|p| (p.file_name().unwrap().to_string_lossy().into(), std::fs::read(&p).unwrap())).collect()
}

#[test]
fn threads_do_not_change_a_byte_and_an_interrupted_build_goes_on() {
    let set = Set::new(DType::U8, 16, &clustered(6000, 16, 40, 5));
    let mut plain = options(Metric::L2, GpuOptions { baselines: cfg!(feature = "lab"), ..small() });
    plain.calibration_queries = 20;
    let whole = contents(built(&set, &plain).path());
    assert_eq!(whole.len(), if cfg!(feature = "lab") { 11 } else { 7 });
    for threads in [1, 3] {
        assert!(
            contents(built(&set, &BuildOptions { threads, ..plain.clone() }).path()) == whole,
            "{threads}"
        );
    }
    let dir = tempfile::tempdir().unwrap();
    let (mut patience, mut interruptions) = (1, 0);
    loop {
        let impatient = Impatient { asked: AtomicU64::new(0), patience };
        let resumed = BuildOptions { resume: interruptions > 0, ..plain.clone() };
        match build(&set.reader(), dir.path(), &resumed, &impatient) {
            Ok(_) => break,
            Err(e) => assert_eq!(e.kind, ErrorKind::Interrupted, "{e}"),
        }
        (interruptions, patience) = (interruptions + 1, 1 + impatient.asked.load(Ordering::Relaxed) * 3 / 2);
    }
    assert!(interruptions > 3, "{interruptions}");
    assert!(contents(dir.path()) == whole);
}

#[test]
fn a_budget_is_kept_and_the_smallest_is_named() {
    let set = Set::new(DType::F32, 64, &clustered(50_000, 64, 60, 7));
    let free = options(Metric::L2, GpuOptions::default());
    let tight = BuildOptions { ram_budget: Some(1 << 20), ..free.clone() };
    let e = plan(&set.reader(), &tight).map(|_| ()).unwrap_err();
    assert_eq!(e.kind, ErrorKind::Budget);
    let smallest = e.message.split("--ram-budget ").last().unwrap().split(' ').next().unwrap();
    let smallest = stratann_params::parse_size(smallest).unwrap();
    let least = BuildOptions { ram_budget: Some(smallest), threads: 1, ..free.clone() };
    let planned = plan(&set.reader(), &least).unwrap();
    assert!(planned.ram_bytes <= smallest && !planned.in_ram, "{planned:?}");
    // In groups the centroids differ; the answers are as good.
    let asked = queries_of(&set, 50);
    let truth = groundtruth::exact(&set.reader(), &asked.reader(), Metric::L2, 10, 1 << 30, &Quiet).unwrap();
    let found = [free, least].map(|options| {
        let dir = built(&set, &options);
        let index = open(&dir);
        recall(&search(&index, &asked.bytes, 100, GpuSwitches::default()), &truth.ids, truth.k)
    });
    assert!(found[1] > found[0] - 0.03, "{found:?}");
}

#[test]
fn sets_of_odd_shapes_are_indexed() {
    let one = Set::new(DType::F32, 5, &clustered(1, 5, 1, 1));
    let equal = Set::new(DType::U8, 4, &[1.5; 4 * 700]);
    let line = Set::new(DType::F32, 1, &(0..900).map(|i| normal(1, 1, i)).collect::<Vec<f32>>());
    let long = Set::new(DType::F32, 1500, &clustered(60, 1500, 5, 2));
    for (name, set, k) in [("one", &one, 1), ("equal", &equal, 10), ("line", &line, 10), ("long", &long, 10)]
    {
        for share in [0.001, 0.1, 1.0] {
            let dir =
                built(set, &options(Metric::L2, GpuOptions { list_share: share, ..GpuOptions::default() }));
            assert_eq!(
                verify::verify(dir.path(), &Quiet).unwrap().violations.as_slice(),
                &[],
                "{name} {share}"
            );
            let answers = search(&open(&dir), set.row(0), 3, GpuSwitches::default());
            assert_eq!(answers.distances[0], 0.0, "{name} {share}");
            let found = answers.ids.iter().filter(|&&id| id != u64::MAX).count();
            assert!(found >= k.min(set.len()).min(3), "{name} {share}: {found}");
        }
    }
}

#[test]
fn values_out_of_range_are_refused() {
    let set = Set::new(DType::F32, 8, &clustered(300, 8, 4, 1));
    let wrong = [
        GpuOptions { list_share: 0.0, ..small() },
        GpuOptions { list_share: f64::NAN, ..small() },
        GpuOptions { epsilon: -0.1, ..small() },
        GpuOptions { code_bytes: Some(0), ..small() },
    ];
    for own in wrong {
        let e = build(&set.reader(), tempfile::tempdir().unwrap().path(), &options(Metric::L2, own), &Quiet);
        assert_eq!(e.map(|_| ()).unwrap_err().kind, ErrorKind::BadInput);
    }
    let dir = built(&set, &options(Metric::L2, small()));
    let index = open(&dir);
    let effort = Effort::Nprobe(4, None, None);
    let wrong = [
        GpuSwitches { candidates: Some(0), ..GpuSwitches::default() },
        GpuSwitches { batch_size: Some(0), ..GpuSwitches::default() },
        GpuSwitches { epsilon_stop: Some(1.5), ..GpuSwitches::default() },
        GpuSwitches { margin: Some(f32::NAN), ..GpuSwitches::default() },
    ];
    for switches in wrong {
        let options = SearchOptions { effort, switches: switches.into(), ..SearchOptions::default() };
        let e = index.search(set.row(0), &options, &Quiet).map(|_| ()).unwrap_err();
        assert_eq!(e.kind, ErrorKind::BadInput, "{switches:?}");
    }
    // Zero is a value of ε and of β. More results than candidates are as many candidates as results.
    let zero = GpuSwitches {
        rule: Some(RuleName::Changes),
        candidates: Some(5),
        epsilon_stop: Some(0.0),
        beta: Some(0),
        ..GpuSwitches::default()
    };
    let options = SearchOptions { k: 50, effort, switches: zero.into(), ..SearchOptions::default() };
    assert_eq!(index.search(set.row(0), &options, &Quiet).unwrap().k, 50);
    // Files that were not built.
    #[cfg(feature = "lab")]
    {
        let opened = OpenOptions { baselines: OpenBaselines::OnDisk, ..OpenOptions::default() };
        let e = Index::open(dir.path(), opened).map(|_| ()).unwrap_err();
        assert!(e.message.contains("--baselines"), "{e}");
    }
}

#[cfg(not(feature = "lab"))]
#[test]
fn files_of_baselines_are_left_to_the_laboratory() {
    let set = Set::new(DType::F32, 8, &clustered(300, 8, 4, 1));
    let own = GpuOptions { baselines: true, ..small() };
    let dir = tempfile::tempdir().unwrap();
    let e = build(&set.reader(), dir.path(), &options(Metric::L2, own), &Quiet).map(|_| ()).unwrap_err();
    assert!(e.kind == ErrorKind::BadInput && e.message.contains("stratann-lab build"), "{e}");
}

#[test]
fn a_flipped_bit_is_an_error_and_no_answer() {
    let set = Set::new(DType::U8, 12, &clustered(2000, 12, 10, 9));
    let dir = built(&set, &options(Metric::L2, GpuOptions { baselines: cfg!(feature = "lab"), ..small() }));
    let asked = queries_of(&set, 10);
    let right = search(&open(&dir), &asked.bytes, 2000, everything());
    for (name, bytes) in contents(dir.path()) {
        let path = dir.path().join(&name);
        for at in [0, bytes.len() / 3, bytes.len() - 1] {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0x10;
            std::fs::write(&path, &damaged).unwrap();
            let report = verify::verify(dir.path(), &Quiet).unwrap();
            assert!(!report.violations.is_empty(), "{name} at {at}");
            match Index::open(dir.path(), OpenOptions::default()) {
                Err(e) => assert_eq!(e.kind, ErrorKind::Corrupt, "{name}: {e}"),
                Ok(index) => {
                    let effort = Effort::Nprobe(2000, None, None);
                    let options =
                        SearchOptions { effort, switches: everything().into(), ..SearchOptions::default() };
                    let answers = index.search(&asked.bytes, &options, &Quiet).unwrap();
                    let failed: Vec<usize> = answers.failed.iter().map(|f| f.0).collect();
                    for q in (0..10).filter(|q| !failed.contains(q)) {
                        assert_eq!(
                            answers.ids[q * 10..q * 10 + 10],
                            right.ids[q * 10..q * 10 + 10],
                            "{name}"
                        );
                    }
                }
            }
        }
        std::fs::write(&path, &bytes).unwrap();
    }
}

/// Whether kernels can run on this machine's processor.
fn has_compiler() -> bool {
    let compiler = std::env::var("CXX").unwrap_or_else(|_| "c++".into());
    let run = std::process::Command::new(&compiler).arg("--version").output();
    let found = run.is_ok_and(|run| run.status.success());
    if !found {
        leave_out(Need::Compiler, &format!("{compiler} is not installed"));
    }
    found
}

/// A GPU whose kernels run on this machine's processor.
fn on_emulated(fault: EmulatedFault) -> ScorerOptions {
    ScorerOptions { choice: ScorerChoice::Emulated(fault), ..ScorerOptions::default() }
}

fn emulated(dir: &TempDir, scorer: ScorerOptions) -> stratann_storage::Result<Index> {
    Index::open(dir.path(), OpenOptions { scorer, ..OpenOptions::default() })
}

#[test]
fn a_gpu_gives_the_answers_of_the_processor() {
    if !has_compiler() {
        return;
    }
    for (dtype, metric, code_bytes) in [
        (DType::U8, Metric::L2, 6),
        (DType::F32, Metric::Ip, 8),
        (DType::F16, Metric::Cosine, 10),
        (DType::I8, Metric::L2, 16),
    ] {
        let set = Set::new(dtype, 12, &clustered(1200, 12, 20, 3));
        let asked = queries_of(&set, 24);
        let own = GpuOptions { code_bytes: Some(code_bytes), ..small() };
        let dir = built(&set, &options(metric, own));
        let wanted = search(&open(&dir), &asked.bytes, 12, GpuSwitches::default());
        let usual = on_emulated(EmulatedFault::None);
        let index = emulated(&dir, usual).unwrap();
        let got = search(&index, &asked.bytes, 12, GpuSwitches::default());
        assert_eq!((&got.ids, &got.distances, got.stats), (&wanted.ids, &wanted.distances, wanted.stats));
        let gpu = index.scorer_report().unwrap().gpu.unwrap();
        assert_eq!((gpu.codes, gpu.jobs, gpu.ranked_here, &gpu.lost), (1200, 24, 0, &None));
        // What a query counts has no headers, and an id or a range more than once that is sent once.
        assert!(gpu.bytes_to_device <= wanted.stats.gpu_bytes + 48 * 24);
        // Half of the codes are on the GPU: the same, and what is missing is said where that was not allowed.
        let codes = gpu.memory_bytes["codes"];
        let needed = gpu.memory_bytes.values().sum::<u64>() - gpu.memory_bytes["blocks of queries"] / 8 * 7;
        let budget = Some(needed - codes / 2);
        let half = ScorerOptions { gpu_budget: budget, ..usual };
        let e = emulated(&dir, half).map(|_| ()).unwrap_err();
        assert!(e.kind == ErrorKind::Budget && e.message.contains("--spill"), "{e}");
        let index = emulated(&dir, ScorerOptions { spill: true, ..half }).unwrap();
        let got = search(&index, &asked.bytes, 12, GpuSwitches::default());
        assert_eq!((&got.ids, &got.distances, got.stats), (&wanted.ids, &wanted.distances, wanted.stats));
        let held = index.scorer_report().unwrap().gpu.unwrap().codes;
        assert!((100..1100).contains(&held), "{held}");
        let little = ScorerOptions { gpu_budget: Some(1000), spill: true, ..usual };
        let e = emulated(&dir, little).map(|_| ()).unwrap_err();
        assert!(e.kind == ErrorKind::Budget && e.message.contains("--gpu-budget"), "{e}");
    }
}

#[test]
fn a_gpu_that_fails_is_left_alone_and_every_query_is_answered() {
    if !has_compiler() {
        return;
    }
    let set = Set::new(DType::F32, 12, &clustered(1200, 12, 20, 3));
    let asked = queries_of(&set, 40);
    let dir = built(&set, &options(Metric::L2, small()));
    let wanted = search(&open(&dir), &asked.bytes, 12, GpuSwitches::default());
    let faults = [
        EmulatedFault::FailAt(0),
        EmulatedFault::FailAt(3),
        EmulatedFault::HangAt(0),
        EmulatedFault::HangAt(1),
        EmulatedFault::LoseAt(0),
        EmulatedFault::LoseAt(1),
    ];
    for fault in faults {
        let index = emulated(&dir, on_emulated(fault)).unwrap();
        for _ in 0..2 {
            let got = search(&index, &asked.bytes, 12, GpuSwitches::default());
            assert_eq!((&got.ids, &got.distances, got.stats), (&wanted.ids, &wanted.distances, wanted.stats));
        }
        let gpu = index.scorer_report().unwrap().gpu.unwrap();
        assert!(gpu.ranked_here > 0 && gpu.ranked_here <= 80 && gpu.lost.is_some(), "{fault:?}: {gpu:?}");
    }
    let e = emulated(&dir, on_emulated(EmulatedFault::NoMemory)).map(|_| ()).unwrap_err();
    assert!(e.message.contains("--scorer cpu"), "{e}");
}

#[test]
fn scorers_agree_about_all_jobs() {
    let set = Set::new(DType::F32, 12, &clustered(1200, 12, 20, 3));
    // Fewer bits than dimensions, one and a bit more, several planes, and eight.
    for (code_bytes, metric) in
        [(6, Metric::L2), (8, Metric::Ip), (10, Metric::Cosine), (14, Metric::L2), (21, Metric::Ip)]
    {
        let dir = built(&set, &options(metric, GpuOptions { code_bytes: Some(code_bytes), ..small() }));
        let check = |index: &Index| {
            let on_cpu = open(&dir);
            let ScoredCodes { coder, codes, .. } = on_cpu.codes_and_scorer().unwrap();
            conformance::check(index.codes_and_scorer().unwrap().scorer, coder, codes, 120);
        };
        check(&open(&dir));
        if has_compiler() {
            check(&emulated(&dir, on_emulated(EmulatedFault::None)).unwrap());
        }
    }
}

#[test]
fn a_real_gpu_gives_the_answers_of_the_processor() {
    if !stratann_engine::exec::scorer::probe().is_usable() {
        return leave_out(Need::Gpu, "`stratann doctor` says what is missing");
    }
    // All of them share the GPU.
    let mut opened = Vec::new();
    for (dtype, metric, code_bytes) in [
        (DType::F32, Metric::L2, 9),
        (DType::U8, Metric::Ip, 13),
        (DType::F16, Metric::Cosine, 21),
        (DType::U8, Metric::L2, 40),
    ] {
        let set = Set::new(dtype, 32, &clustered(5000, 32, 50, 3));
        let asked = queries_of(&set, 200);
        let dir = built(&set, &options(metric, GpuOptions { code_bytes: Some(code_bytes), ..small() }));
        let wanted = search(&open(&dir), &asked.bytes, 40, GpuSwitches::default());
        let scorer = ScorerOptions { choice: ScorerChoice::Cuda { device: 0 }, ..ScorerOptions::default() };
        let index = Index::open(dir.path(), OpenOptions { scorer, ..OpenOptions::default() }).unwrap();
        let got = search(&index, &asked.bytes, 40, GpuSwitches::default());
        assert_eq!((&got.ids, &got.distances, got.stats), (&wanted.ids, &wanted.distances, wanted.stats));
        let gpu = index.scorer_report().unwrap().gpu.unwrap();
        assert_eq!((gpu.ranked_here, gpu.lost), (0, None));
        let on_cpu = open(&dir);
        let ScoredCodes { coder, codes, .. } = on_cpu.codes_and_scorer().unwrap();
        conformance::check(index.codes_and_scorer().unwrap().scorer, coder, codes, 200);
        opened.push(index);
    }
}

/// A machine without a GPU: what is missing is named, and without being asked for one nothing is said.
#[test]
fn without_a_gpu_the_processor_ranks() {
    if stratann_engine::exec::scorer::probe().is_usable() {
        return;
    }
    let set = Set::new(DType::F32, 12, &clustered(600, 12, 20, 3));
    let dir = built(&set, &options(Metric::L2, small()));
    let open = |choice| {
        let scorer = ScorerOptions { choice, ..ScorerOptions::default() };
        Index::open(dir.path(), OpenOptions { scorer, ..OpenOptions::default() })
    };
    let e = open(ScorerChoice::Cuda { device: 0 }).map(|_| ()).unwrap_err();
    assert!(e.message.contains("install") && e.message.contains("--scorer cpu"), "{e}");
    let index = open(ScorerChoice::Auto).unwrap();
    assert_eq!((index.scorer_report().unwrap().name.as_str(), index.warnings()), ("cpu", &[][..]));
}
