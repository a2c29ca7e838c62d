//! Builds whose points do not fit in the budget: cell by cell, joined again.

mod common;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::SystemTime;
use stratann_params::choices::CodePlace;

use common::{Set, clustered, graph_options, hits, nearest, quick};
use stratann_engine::build::{BuildOptions, BuildReport, IndexKind, build, plan};
use stratann_engine::index::{Index, OpenOptions};
use stratann_engine::search::{Effort, SearchOptions};
use stratann_engine::{DType, Metric, verify};
use stratann_storage::{Progress, Quiet};
use tempfile::TempDir;

const ROWS: usize = 40_000;
const DIM: usize = 16;

fn set() -> &'static Set {
    static SET: OnceLock<Set> = OnceLock::new();
    SET.get_or_init(|| Set::new(DType::F32, DIM, &clustered(ROWS, DIM, 40, 1)))
}

fn options(threads: usize, ram_budget: Option<u64>) -> BuildOptions {
    let quick = quick(IndexKind::DiskGraph, Metric::L2);
    let own = graph_options(quick, |own| (own.degree, own.build_list) = (16, 32));
    BuildOptions { threads, ram_budget, ..own }
}

/// A budget that leaves room for a part of the points.
fn tight() -> u64 {
    static TIGHT: OnceLock<u64> = OnceLock::new();
    *TIGHT.get_or_init(|| (least_mib(&options(2, Some(1 << 20))) + 1) << 20)
}

/// The smallest budget that is named to whoever gives too little.
fn least_mib(too_little: &BuildOptions) -> u64 {
    let refused = plan(&set().reader(), too_little).unwrap_err().message;
    let named = refused.split("--ram-budget ").nth(1).unwrap();
    named.split("MiB").next().unwrap().parse().unwrap()
}

struct Made {
    dir: TempDir,
    report: BuildReport,
}

impl Made {
    fn new(options: &BuildOptions) -> Made {
        let dir = tempfile::tempdir().unwrap();
        let report = build(&set().reader(), dir.path(), options, &Quiet).unwrap();
        Made { dir, report }
    }

    fn cells(&self) -> u64 {
        self.report.facts["cells"].as_u64().unwrap()
    }

    fn recall(&self, search_list: u32) -> f64 {
        const ASKED: usize = 400;
        let asked = Set::new(DType::F32, DIM, &clustered(ASKED, DIM, 40, 2));
        let index = Index::open(self.dir.path(), OpenOptions::default()).unwrap();
        let options = SearchOptions {
            effort: Effort::SearchList(search_list, None),
            threads: 2,
            ..SearchOptions::default()
        };
        let answers = index.search(&asked.bytes, &options, &Quiet).unwrap();
        let found: usize = (0..ASKED)
            .map(|q| {
                hits(
                    &answers.ids[q * 10..(q + 1) * 10],
                    &nearest(set(), Metric::L2, asked.row(q), 10, |_| false),
                )
            })
            .sum();
        found as f64 / (10 * ASKED) as f64
    }

    fn files(&self) -> BTreeMap<String, Vec<u8>> {
        files(self.dir.path())
    }
}

fn files(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = std::fs::read_dir(folder).unwrap().flatten().filter(|e| e.path().is_file());
    entries.map(|e| (e.file_name().into_string().unwrap(), std::fs::read(e.path()).unwrap())).collect()
}

fn in_cells() -> &'static Made {
    static MADE: OnceLock<Made> = OnceLock::new();
    MADE.get_or_init(|| Made::new(&options(2, Some(tight()))))
}

fn in_one() -> &'static Made {
    static MADE: OnceLock<Made> = OnceLock::new();
    MADE.get_or_init(|| Made::new(&options(2, None)))
}

#[test]
fn the_plan_says_so() {
    let plan = plan(&set().reader(), &options(2, Some(tight()))).unwrap();
    assert!(!plan.in_ram && plan.ram_bytes <= tight());
    assert!(plan.describe().contains("out of core"));
    assert!(in_cells().cells() >= 3, "{} cells", in_cells().cells());
}

/// Every row is in the blocks exactly once, and what must hold between blocks holds.
#[test]
fn no_row_is_lost_or_doubled() {
    let report = verify::verify(in_cells().dir.path(), &Quiet).unwrap();
    assert_eq!(report.violations_found, 0, "{:?}", report.violations);
    let index = Index::open(in_cells().dir.path(), OpenOptions::default()).unwrap();
    let view = index.view();
    let mut seen = vec![false; ROWS];
    for bytes in
        std::fs::read(common::blocks_path(in_cells().dir.path())).unwrap().chunks_exact(index.block_bytes())
    {
        let block =
            stratann_core::format::block::Block::open(view.kind.disk_graph().unwrap().block, bytes).unwrap();
        for slot in 0..block.count() {
            let row = block.external_id(slot) as usize;
            assert!(!std::mem::replace(&mut seen[row], true), "row {row} twice");
            assert_eq!(block.vector(slot), set().row(row));
        }
    }
    assert!(seen.iter().all(|&s| s));
    // Pruning several lists together may drop the one edge that leads to a block.
    let whole = verify::verify(in_one().dir.path(), &Quiet).unwrap().unreachable;
    let few = whole + ROWS as u64 / 1000;
    assert!(report.unreachable <= few, "{} unreachable nodes, {whole} in one piece", report.unreachable);
}

#[test]
fn recall_is_that_of_one_graph() {
    let whole = in_one();
    assert_eq!(whole.cells(), 1);
    for list in [20, 60] {
        let (one, many) = (whole.recall(list), in_cells().recall(list));
        assert!(many >= one - 0.005, "L = {list}: {many} in cells, {one} in one");
    }
}

#[test]
fn the_number_of_threads_changes_no_byte() {
    let one = Made::new(&options(1, Some(tight())));
    assert_eq!(one.cells(), in_cells().cells());
    assert!(one.files() == in_cells().files());
}

/// Interrupts after so many questions whether to.
struct Impatient {
    asked: AtomicU64,
    patience: u64,
    in_graph: AtomicBool,
}

impl Progress for Impatient {
    fn stage(&self, name: &str, _: u64, _: &str) {
        self.in_graph.store(name == "graph", Ordering::Relaxed);
    }
    fn advance(&self, _: u64) {}
    fn note(&self, _: &str) {}
    fn interrupted(&self) -> bool {
        self.in_graph.load(Ordering::Relaxed) && self.asked.fetch_add(1, Ordering::Relaxed) > self.patience
    }
}

/// Looks at something when all cells are built.
struct AtMerge<'a> {
    look: &'a (dyn Fn() -> Option<SystemTime> + Sync),
    seen: Mutex<Option<SystemTime>>,
}

impl Progress for AtMerge<'_> {
    fn stage(&self, name: &str, _: u64, _: &str) {
        if name == "merging cells" {
            *self.seen.lock().unwrap() = (self.look)();
        }
    }
    fn advance(&self, _: u64) {}
    fn note(&self, _: &str) {}
    fn interrupted(&self) -> bool {
        false
    }
}

/// Files of a build that was stopped among its cells do not count twice.
#[test]
fn a_build_that_was_stopped_between_cells_resumes_to_the_same_bytes() {
    let dir = tempfile::tempdir().unwrap();
    // Some cells' batches in: the first cells' files are there.
    let stop = Impatient { asked: AtomicU64::new(0), patience: 150, in_graph: AtomicBool::new(false) };
    let options = options(2, Some(tight()));
    let error = build(&set().reader(), dir.path(), &options, &stop).unwrap_err();
    assert_eq!(error.kind, stratann_storage::ErrorKind::Interrupted, "{}", error.message);
    let partial = dir.path().join("partial");
    let of_cells = |start: &str| -> Vec<PathBuf> {
        let entries = std::fs::read_dir(&partial).unwrap().flatten();
        entries
            .map(|e| e.path())
            .filter(|p| p.file_name().unwrap().to_string_lossy().starts_with(start))
            .collect()
    };
    let finished = of_cells("cell-").len() as u64;
    assert!(0 < finished && finished < in_cells().cells(), "{finished} cells finished");
    // What a cell that was cut short wrote has another name, and does not count.
    std::fs::write(partial.join(format!(".cell-{finished}.tmp.1.0.tmp")), [1, 2, 3]).unwrap();
    let first = partial.join("cell-0.tmp");
    let written = || first.metadata().and_then(|m| m.modified()).ok();
    let resumed = AtMerge { look: &written, seen: Mutex::default() };
    let before = written();
    build(&set().reader(), dir.path(), &BuildOptions { resume: true, ..options }, &resumed).unwrap();
    assert!(before.is_some() && *resumed.seen.lock().unwrap() == before, "a finished cell was built again");
    assert!(files(dir.path()) == in_cells().files());
}

#[test]
fn blocks_that_carry_codes_are_made_in_cells_too() {
    let options = |threads, ram_budget, cells| {
        graph_options(options(threads, ram_budget), |own| (own.codes, own.cells) = (CodePlace::Disk, cells))
    };
    let tight = (least_mib(&options(2, Some(1 << 20), None)) + 1) << 20;
    let made = Made::new(&options(2, Some(tight), Some(4)));
    assert!(made.cells() >= 3, "{} cells", made.cells());
    let report = verify::verify(made.dir.path(), &Quiet).unwrap();
    assert_eq!((report.violations_found, report.nodes), (0, ROWS as u64), "{:?}", report.violations);
    let (one, many) = (in_one().recall(60), made.recall(60));
    assert!(many >= one - 0.01, "{many} in cells with codes in the blocks, {one} in one");
    let again = Made::new(&options(1, Some(tight), Some(4)));
    assert!(again.files() == made.files());
}
