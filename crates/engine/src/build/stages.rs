//! The stages in their order. Each is skipped when an earlier, unfinished build has left its result.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Instant;

use serde::{Deserialize, Serialize};
use stratann_core::PAGE;
use stratann_core::build::hash;
use stratann_kernel::Metric;
use stratann_kernel::codes::Codebook;

use super::codebook::{self, CodebookOptions};
use super::graph_stage::{self, GraphFacts, read_table, write_table};
use super::layout_stage::{self, LayoutFacts};
use super::options::{BuildOptions, CodePlace, Kind};
use super::plan::{BuildPlan, CODEBOOK_SAMPLE, check_disk};
use super::space::Space;
use super::state::Partial;
use super::{BuildReport, calibrate, codes, head, merge, publish};
use crate::calibration::Curve;
use crate::dataset::{self, Reader, Scan};
use crate::manifest::Manifest;
use crate::{Error, Progress, Result, budget, files};

/// A set's rows in parts, for work that takes row by row. They depend on the set alone, since sums of floats depend on them.
#[derive(Clone, Copy)]
pub(super) struct Parts {
    /// Rows of the set.
    pub(super) rows: u64,
}

impl Parts {
    const ROWS_MIN: u64 = 16_384;
    const MAX: u64 = 1024;

    fn size(self) -> u64 {
        self.rows.div_ceil(Self::MAX).max(Self::ROWS_MIN)
    }

    pub(super) fn count(self) -> usize {
        self.rows.div_ceil(self.size()) as usize
    }

    /// The rows of a part.
    pub(super) fn rows_of(self, part: usize) -> Range<u64> {
        let first = part as u64 * self.size();
        first..(first + self.size()).min(self.rows)
    }
}

/// Everything that the stages share.
pub(super) struct Build<'a> {
    pub(super) base: &'a Reader,
    pub(super) options: &'a BuildOptions,
    pub(super) plan: &'a BuildPlan,
    pub(super) progress: &'a dyn Progress,
    pub(super) partial: &'a mut Partial,
    pub(super) number: u64,
    pub(super) report: BuildReport,
    /// Ids that the user gave, by row.
    pub(super) external: Option<Vec<u64>>,
    /// The largest id, known after the scan.
    pub(super) largest_id: u64,
    /// Rows that will calibrate, ascending; known after the scan.
    pub(super) drawn: Vec<u32>,
}

/// Facts that the scan leaves.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct ScanFacts {
    pub(super) skipped: Vec<u64>,
    pub(super) max_squared_norm: f64,
    pub(super) largest_id: u64,
    pub(super) drawn: Vec<u32>,
}

pub(super) fn run(
    base: &Reader,
    out: &Path,
    number: u64,
    options: &BuildOptions,
    plan: &BuildPlan,
    progress: &dyn Progress,
) -> Result<BuildReport> {
    check_disk(out, plan.disk_bytes)?;
    let mut partial = Partial::open(out, made_with(base, number, options), options.resume)?;
    let external = options.ids.as_ref().map(|path| dataset::read_ids(path, base.shape().rows)).transpose()?;
    let mut build = Build::new(base, options, plan, &mut partial, number, progress);
    build.external = external;
    let scan = build.scan()?;
    let manifest = match options.kind {
        Kind::DiskGraph => build.disk_graph(&scan)?,
        Kind::HybridIvf => build.hybrid_ivf(&scan)?,
        Kind::Flat => build.flat(&scan)?,
    };
    publish::publish(build, out, &manifest)
}

/// What a resumed build must agree with.
pub(super) fn made_with(
    base: &Reader,
    number: u64,
    options: &BuildOptions,
) -> BTreeMap<String, serde_json::Value> {
    let shape = base.shape();
    let mut all = options.recorded(shape.dim);
    all.insert("base".into(), format!("{} rows of {} {}", shape.rows, shape.dim, shape.dtype.name()).into());
    all.insert("kind".into(), options.kind.name().into());
    all.insert("metric".into(), options.metric.name().into());
    all.insert("ram_budget".into(), options.ram_budget.into());
    all.insert("version".into(), number.into());
    all
}

impl<'a> Build<'a> {
    pub(super) fn new(
        base: &'a Reader,
        options: &'a BuildOptions,
        plan: &'a BuildPlan,
        partial: &'a mut Partial,
        number: u64,
        progress: &'a dyn Progress,
    ) -> Build<'a> {
        Build {
            base,
            options,
            plan,
            progress,
            partial,
            number,
            report: BuildReport::default(),
            external: None,
            largest_id: 0,
            drawn: Vec::new(),
        }
    }

    /// Runs a stage, or takes the facts it left before.
    pub(super) fn stage<T: Serialize + for<'b> Deserialize<'b>>(
        &mut self,
        name: &str,
        work: impl FnOnce(&mut Self) -> Result<T>,
    ) -> Result<T> {
        if let Some(facts) = self.partial.facts(name) {
            self.progress.note(&format!("{name}: done before"));
            return Ok(facts);
        }
        let started = Instant::now();
        let facts = work(self)?;
        self.partial.finish(name, &facts)?;
        budget::release_freed();
        self.report.stages.insert(name.into(), started.elapsed().as_secs_f64());
        Ok(facts)
    }

    pub(super) fn fact(&mut self, name: &str, value: impl Into<serde_json::Value>) {
        self.report.facts.insert(name.into(), value.into());
    }

    fn scan(&mut self) -> Result<Scan> {
        let facts: ScanFacts = self.stage("scan", |b| {
            let scan = dataset::scan(b.base, b.options.metric, b.options.on_bad_row, b.progress)?;
            let rows = b.base.shape().rows;
            let largest_id = b.external.as_ref().map_or(rows, |ids| ids.iter().copied().max().unwrap_or(0));
            let drawn = b.draw(&scan);
            let Scan { skipped, max_squared_norm, .. } = scan;
            Ok(ScanFacts { skipped, max_squared_norm, largest_id, drawn })
        })?;
        Ok(self.take_scan(facts))
    }

    /// Remembers what the scan found.
    pub(super) fn take_scan(&mut self, facts: ScanFacts) -> Scan {
        let rows = self.base.shape().rows - facts.skipped.len() as u64;
        self.report.rows = rows;
        self.report.skipped_rows = facts.skipped.len() as u64;
        self.largest_id = facts.largest_id;
        self.drawn = facts.drawn;
        Scan { rows, skipped: facts.skipped, max_squared_norm: facts.max_squared_norm, ..Scan::default() }
    }

    /// Rows to calibrate with: drawn by hash, so that equal seeds draw equal rows.
    pub(super) fn draw(&self, scan: &Scan) -> Vec<u32> {
        let count = calibrate::count(self.options, scan.rows as usize);
        // The largest of those held goes first.
        let mut held = std::collections::BinaryHeap::with_capacity(count + 1);
        for row in self.live(scan, 0..self.base.shape().rows) {
            held.push((hash(self.options.seed, 11, row), row as u32));
            if held.len() > count {
                held.pop();
            }
        }
        let mut rows: Vec<u32> = held.into_iter().map(|d| d.1).collect();
        rows.sort_unstable();
        rows
    }

    /// Those of `rows` that are indexed, ascending.
    pub(super) fn live<'s>(&self, scan: &'s Scan, rows: Range<u64>) -> impl Iterator<Item = u64> + use<'s> {
        let before = scan.skipped.partition_point(|&s| s < rows.start);
        let mut skipped = scan.skipped[before..].iter().peekable();
        rows.filter(move |row| skipped.next_if(|s| *s == row).is_none())
    }

    /// All rows that are indexed, ascending.
    pub(super) fn live_rows(&self, scan: &Scan) -> Vec<u32> {
        self.live(scan, 0..self.base.shape().rows).map(|row| row as u32).collect()
    }

    pub(super) fn parts(&self) -> Parts {
        Parts { rows: self.base.shape().rows }
    }

    /// How rows become points.
    pub(super) fn space(&self, scan: &Scan) -> Result<Space> {
        Space::choose(self.base, self.options.metric, scan, self.options.exact_points)
    }

    /// Tells what the layout decided.
    pub(super) fn tell(&mut self, space: &Space, graph: &GraphFacts, layout: &LayoutFacts) {
        self.fact("points", serde_json::to_value(space.precision).unwrap_or_default());
        self.fact("cells", graph.cells_in_use());
        self.fact("nodes_per_block", layout.nodes_per_block);
        if layout.blocks.bytes > PAGE {
            self.fact("pages_per_block", layout.blocks.bytes / PAGE);
        }
        self.fact("mean_list", layout.mean_list);
        self.fact("cut_share", layout.cut_share);
        self.fact("bits_per_neighbour", layout.bits_per_neighbour);
    }

    fn disk_graph(&mut self, scan: &Scan) -> Result<Manifest> {
        let space = self.space(scan)?;
        self.stage("codebook", |b| b.train_codebook(&space, scan))?;
        let graph: GraphFacts = self.stage("graph", |b| graph_stage::run(b, &space, scan))?;
        merge::remove_lists(self, graph.cells.len());
        let (layout, code_error) = match self.options.codes {
            CodePlace::Ram => {
                let layout: LayoutFacts = self.stage("layout", |b| layout_stage::run(b, scan, &graph))?;
                (layout, self.stage("codes", |b| b.encode(&space, scan))?)
            }
            CodePlace::Disk => {
                // As the tasks of a build that is divided call it.
                self.stage("numbered", |b| layout_stage::place(b, scan, &graph).map(|_| ()))?;
                if let Some(seconds) = self.report.stages.remove("numbered") {
                    self.report.stages.insert("packing".into(), seconds);
                }
                let code_error = self.stage("codes", |b| b.encode(&space, scan))?;
                (self.stage("layout", |b| layout_stage::write(b, scan, &graph))?, code_error)
            }
        };
        self.tell(&space, &graph, &layout);
        let id_of_row = read_table(&self.partial.path(IDS))?;
        self.stage("head", |b| b.head_graph(&space, scan, &id_of_row))?;
        let mut manifest = self.manifest(scan, &layout, code_error)?;
        let curves: Vec<Curve> =
            self.stage("calibrate", |b| calibrate::run(b, &manifest, scan, &id_of_row))?;
        manifest.curves = curves;
        Ok(manifest)
    }

    fn encode(&self, space: &Space, scan: &Scan) -> Result<f32> {
        codes::run(self, space, scan, &read_table::<u32>(&self.partial.path(IDS))?)
    }

    fn flat(&mut self, scan: &Scan) -> Result<Manifest> {
        let layout: LayoutFacts = self.stage("layout", |b| layout_stage::run_flat(b, scan))?;
        self.manifest(scan, &layout, 0.0)
    }

    /// The manifest of the finished files, whose checksums are kept: a build that is killed while they move up finds them there.
    fn manifest(&mut self, scan: &Scan, layout: &LayoutFacts, code_error: f32) -> Result<Manifest> {
        let manifest = publish::manifest(self, scan.rows, layout.blocks, code_error)?;
        self.partial.finish(publish::FILES, &manifest.files)?;
        Ok(manifest)
    }

    pub(super) fn file(&self, role: &str) -> PathBuf {
        self.partial.path(&files::name(self.number, role))
    }

    pub(super) fn train_codebook(&self, space: &Space, scan: &Scan) -> Result<usize> {
        const ITERATIONS: usize = 12;
        let shape = self.base.shape();
        let wanted = self.plan.codebook_sample.min(CODEBOOK_SAMPLE);
        self.progress.stage("training the codebook", 100, "%");
        let sample = space.code_sample(self.base, scan, wanted, self.options.seed)?;
        let told = std::cell::Cell::new(0u64);
        let tell = |share: f32| {
            let now = (share * 100.0) as u64;
            self.progress.advance(now.saturating_sub(told.get()));
            told.set(told.get().max(now));
            !self.progress.interrupted()
        };
        let options = CodebookOptions {
            code_bytes: self.options.code_bytes(shape.dim),
            kind: self.options.code_kind,
            iterations: ITERATIONS,
            seed: self.options.seed,
        };
        let ip = self.options.metric == Metric::Ip;
        let trained =
            codebook::train(sample, shape.dim, ip, &options, &tell).ok_or_else(Error::interrupted)?;
        write_table(&self.file(files::CODEBOOK), &files::encode_codebook(&trained))?;
        Ok(trained.code_bytes())
    }

    pub(super) fn head_graph(&self, space: &Space, scan: &Scan, id_of_row: &[u32]) -> Result<()> {
        let live = self.live_rows(scan);
        let count = head::head_count(live.len(), self.options.head_share);
        let made = head::build(self.base, space, &live, id_of_row, count, self.options.seed, self.progress)?;
        write_table(&self.file(files::HEAD), &files::encode_head(&made))?;
        match layout_stage::code_file(self)? {
            Some(codes) => {
                write_table(&self.file(files::HEAD_CODES), &codes.read(made.ids.clone())?.of(&made.ids))
            }
            None => Ok(()),
        }
    }
}

/// New id by row, as u32.
pub(super) const IDS: &str = "ids.tmp";

pub(super) fn read_codebook(path: &Path) -> Result<Codebook> {
    let bytes = std::fs::read(path).map_err(|e| Error::io("reading", path, &e))?;
    files::decode_codebook(&bytes).ok_or_else(|| files::senseless(path))
}
