//! The stages in their order. Each is skipped when an earlier, unfinished build has left its result.

use std::path::Path;
use std::time::Instant;

use serde::{Deserialize, Serialize};
use stratann_core::PAGE;
use stratann_core::build::hash;
use stratann_core::format::block::Shape;
use stratann_kernel::Metric;
use stratann_kernel::codes::Codebook;
use stratann_kernel::distance::l2_f32;

use super::codebook::{self, CodebookOptions};
use super::graph_file::{Cell, GraphReader};
use super::graph_stage::{self, GraphFacts};
use super::layout::{BlockJob, Density, Packing, Placement, place};
use super::options::{BuildOptions, Kind};
use super::plan::{BuildPlan, CODEBOOK_SAMPLE, check_disk};
use super::space::Space;
use super::state::Partial;
use super::{BuildReport, calibrate, head};
use crate::calibration::Curve;
use crate::dataset::{self, Reader, Scan};
use crate::manifest::{BlockShape, FORMAT_VERSION, Manifest, sync_folder, write_synced};
use crate::{Error, Progress, Result, budget, files};

/// Everything that the stages share.
pub(super) struct Build<'a> {
    pub(super) base: &'a Reader,
    pub(super) options: &'a BuildOptions,
    pub(super) plan: &'a BuildPlan,
    pub(super) progress: &'a dyn Progress,
    pub(super) partial: Partial,
    pub(super) number: u64,
    pub(super) report: BuildReport,
    pub(super) external: Option<Vec<u64>>,
}

/// Facts that the scan leaves.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct ScanFacts {
    skipped: Vec<u64>,
    max_squared_norm: f64,
}

/// Facts that the layout leaves.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct LayoutFacts {
    blocks: BlockShape,
    nodes_per_block: usize,
    mean_list: f64,
    cut_share: f64,
    bits_per_neighbour: f64,
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
    let partial = Partial::open(out, made_with(base, number, options), options.resume)?;
    let external = options.ids.as_ref().map(|path| dataset::read_ids(path, base.shape().rows)).transpose()?;
    let mut build =
        Build { base, options, plan, progress, partial, number, report: BuildReport::default(), external };
    let scan = build.scan()?;
    let manifest = match options.kind {
        Kind::DiskGraph => build.disk_graph(&scan)?,
        Kind::Flat => build.flat(&scan)?,
    };
    build.publish(out, manifest)
}

/// What a resumed build must agree with.
fn made_with(
    base: &Reader,
    number: u64,
    options: &BuildOptions,
) -> std::collections::BTreeMap<String, serde_json::Value> {
    let shape = base.shape();
    let mut all = options.recorded(shape.dim);
    all.insert("base".into(), format!("{} rows of {} {}", shape.rows, shape.dim, shape.dtype.name()).into());
    all.insert("kind".into(), options.kind.name().into());
    all.insert("metric".into(), options.metric.name().into());
    all.insert("ram_budget".into(), options.ram_budget.into());
    all.insert("version".into(), number.into());
    all
}

impl Build<'_> {
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

    fn fact(&mut self, name: &str, value: impl Into<serde_json::Value>) {
        self.report.facts.insert(name.into(), value.into());
    }

    fn scan(&mut self) -> Result<Scan> {
        let facts: ScanFacts = self.stage("scan", |b| {
            let scan = dataset::scan(b.base, b.options.metric, b.options.on_bad_row, b.progress)?;
            Ok(ScanFacts { skipped: scan.skipped, max_squared_norm: scan.max_squared_norm })
        })?;
        let rows = self.base.shape().rows - facts.skipped.len() as u64;
        self.report.rows = rows;
        self.report.skipped_rows = facts.skipped.len() as u64;
        Ok(Scan { rows, skipped: facts.skipped, max_squared_norm: facts.max_squared_norm, ..Scan::default() })
    }

    /// Rows that are indexed, ascending.
    pub(super) fn live_rows(&self, scan: &Scan) -> Vec<u32> {
        let all = 0..self.base.shape().rows;
        let mut skipped = scan.skipped.iter().peekable();
        let is_live = |row: &u64| skipped.next_if(|s| *s == row).is_none();
        all.filter(is_live).map(|row| row as u32).collect()
    }

    fn disk_graph(&mut self, scan: &Scan) -> Result<Manifest> {
        let space = Space::choose(self.base, self.options.metric, scan, self.options.exact_points)?;
        self.fact("points", serde_json::to_value(space.precision).unwrap_or_default());
        self.stage("codebook", |b| b.train_codebook(&space, scan))?;
        let graph: GraphFacts = self.stage("graph", |b| graph_stage::run(b, &space, scan))?;
        self.fact("cells", graph.cells.len());
        let order = graph_stage::read_order(&self.partial.path(graph_stage::ORDER))?;
        let layout: LayoutFacts = self.stage("layout", |b| b.lay_out(&order, &graph))?;
        self.fact("nodes_per_block", layout.nodes_per_block);
        self.fact("mean_list", layout.mean_list);
        self.fact("cut_share", layout.cut_share);
        self.fact("bits_per_neighbour", layout.bits_per_neighbour);
        let id_of_row = graph_stage::read_order(&self.partial.path(IDS))?;
        let code_error: f32 = self.stage("codes", |b| b.encode(&space, scan, &id_of_row))?;
        self.stage("head", |b| b.head_graph(&space, &order, &id_of_row))?;
        drop(order);
        let mut manifest = self.manifest(scan.rows, layout.blocks, code_error)?;
        let curves: Vec<Curve> =
            self.stage("calibrate", |b| calibrate::run(b, &manifest, scan, &id_of_row))?;
        manifest.curves = curves;
        Ok(manifest)
    }

    fn flat(&mut self, scan: &Scan) -> Result<Manifest> {
        const FLAT_BLOCK: usize = 64 << 10;
        let order = self.live_rows(scan);
        let layout: LayoutFacts = self.stage("layout", |b| {
            let shape = b.shape(FLAT_BLOCK, false);
            let cells = [Cell { start: 0, end: order.len() as u32 }];
            let per_block = (shape.room() / shape.node_bytes()).min(usize::from(u16::MAX));
            let mut placement =
                Placement { id_of_row: vec![u32::MAX; b.base.shape().rows as usize], counts: Vec::new() };
            order.iter().enumerate().for_each(|(id, &row)| placement.id_of_row[row as usize] = id as u32);
            placement.counts = order.chunks(per_block).map(|c| c.len() as u16).collect();
            b.write_blocks(shape, &placement, &order, &cells, None, per_block)
        })?;
        self.manifest(scan.rows, layout.blocks, 0.0)
    }

    fn file(&self, role: &str) -> std::path::PathBuf {
        self.partial.path(&files::name(self.number, role))
    }

    fn shape(&self, block_bytes: usize, lists: bool) -> Shape {
        let shape = self.base.shape();
        let largest_id =
            self.external.as_ref().map_or(shape.rows, |ids| ids.iter().copied().max().unwrap_or(0));
        Shape {
            block_bytes,
            vector_bytes: shape.dim * shape.dtype.size(),
            id_bytes: if largest_id < 1 << 32 { 4 } else { 8 },
            norms: self.options.metric == Metric::Cosine,
            lists,
        }
    }

    fn train_codebook(&mut self, space: &Space, scan: &Scan) -> Result<usize> {
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
        let path = self.file(files::CODEBOOK);
        write_synced(&path, &files::encode_codebook(&trained))
            .map_err(|e| Error::io("writing", &path, &e))?;
        Ok(trained.code_bytes())
    }

    fn lay_out(&mut self, order: &[u32], graph: &GraphFacts) -> Result<LayoutFacts> {
        let reader = GraphReader::open(&self.partial.path(graph_stage::GRAPH), self.options.degree)?;
        let mut density = Density {
            nodes: order.len() as u64,
            mean_list: graph.mean_list,
            compressed: self.options.compress,
            keep: 1.0,
        };
        let pages = density.pages_per_block(&self.shape(PAGE, true));
        let shape = self.shape(pages * PAGE, true);
        density.keep = LIST_KEEP;
        let per_block = self.options.nodes_per_block.unwrap_or_else(|| density.nodes_per_block(&shape));
        let most = (shape.room() / (shape.node_bytes() + 2)).max(1);
        if per_block > most {
            return Err(Error::bad_input(format!(
                "--nodes-per-block is {per_block}; at most {most} fit in {} bytes",
                shape.block_bytes
            )));
        }
        let rows = self.base.shape().rows as usize;
        let apart = draw_rows(order, calibrate::count(self.options, order.len()), self.options.seed);
        let packing = Packing { nodes_per_block: per_block, packed: self.options.pack, apart: &apart };
        let placement = place(&reader, order, &graph.cells, rows, packing, self.progress)?;
        graph_stage::write_order(&self.partial.path(IDS), &placement.id_of_row)?;
        // Packing leaves its memory in pieces, which writing could not use.
        budget::release_freed();
        self.write_blocks(shape, &placement, order, &graph.cells, Some(&reader), per_block)
    }

    fn write_blocks(
        &mut self,
        shape: Shape,
        placement: &Placement,
        order: &[u32],
        cells: &[Cell],
        graph: Option<&GraphReader>,
        nodes_per_block: usize,
    ) -> Result<LayoutFacts> {
        let job = BlockJob {
            reader: self.base,
            metric: self.options.metric,
            shape,
            placement,
            order,
            cells,
            graph,
            external: self.external.as_deref(),
            memory_bytes: self.plan.block_memory_bytes,
            spill: self.partial.folder(),
        };
        let written = job.write(&self.file(files::BLOCKS), self.progress)?;
        if graph.is_some() {
            let path = self.file(files::MAP);
            write_synced(&path, &files::encode_map(&placement.counts))
                .map_err(|e| Error::io("writing", &path, &e))?;
        }
        let edges = written.edges.max(1) as f64;
        Ok(LayoutFacts {
            blocks: BlockShape {
                count: placement.counts.len() as u32,
                bytes: shape.block_bytes,
                id_bytes: shape.id_bytes,
            },
            nodes_per_block,
            mean_list: written.edges as f64 / order.len() as f64,
            cut_share: written.cut as f64 / (edges + written.cut as f64),
            bits_per_neighbour: written.list_bytes as f64 * 8.0 / edges,
        })
    }

    fn encode(&mut self, space: &Space, scan: &Scan, id_of_row: &[u32]) -> Result<f32> {
        let path = self.file(files::CODEBOOK);
        let codebook = read_codebook(&path)?;
        let shape = self.base.shape();
        self.progress.stage("encoding", shape.rows, "rows");
        let size = codebook.code_bytes();
        let mut codes = vec![0u8; scan.rows as usize * size];
        let row_bytes = shape.dim * shape.dtype.size();
        let chunk = ((1 << 20) / (shape.dim * 4)).clamp(1, 4096);
        let (mut bytes, mut wide, mut made) = (Vec::new(), Vec::new(), Vec::new());
        let mut error = CodeError::new(&codebook);
        for first in (0..shape.rows).step_by(chunk) {
            if self.progress.interrupted() {
                return Err(Error::interrupted());
            }
            let count = (chunk as u64).min(shape.rows - first) as usize;
            self.base.read_rows(first, count, &mut bytes)?;
            wide.resize(count * shape.dim, 0f32);
            made.resize(count * size, 0u8);
            bytes
                .chunks_exact(row_bytes)
                .zip(wide.chunks_exact_mut(shape.dim))
                .for_each(|(row, out)| space.code_floats(row, out));
            codebook::encode_rows(&codebook, &wide, &mut made);
            let ids = &id_of_row[first as usize..first as usize + count];
            let live = wide
                .chunks_exact(shape.dim)
                .zip(made.chunks_exact(size))
                .zip(ids)
                .filter(|(_, id)| **id != u32::MAX);
            live.step_by(16).for_each(|((row, code), _)| error.look_at(&codebook, row, code));
            for (i, code) in made.chunks_exact(size).enumerate() {
                let id = id_of_row[first as usize + i];
                if id != u32::MAX {
                    codes[id as usize * size..(id as usize + 1) * size].copy_from_slice(code);
                }
            }
            self.progress.advance(count as u64);
        }
        let path = self.file(files::CODES);
        write_synced(&path, &codes).map_err(|e| Error::io("writing", &path, &e))?;
        Ok(error.mean())
    }

    fn head_graph(&mut self, space: &Space, order: &[u32], id_of_row: &[u32]) -> Result<()> {
        let count = head::head_count(order.len(), self.options.head_share);
        let made = head::build(self.base, space, order, id_of_row, count, self.options.seed, self.progress)?;
        let path = self.file(files::HEAD);
        write_synced(&path, &files::encode_head(&made)).map_err(|e| Error::io("writing", &path, &e))
    }

    /// The manifest of the files so far.
    fn manifest(&mut self, rows: u64, blocks: BlockShape, code_error: f32) -> Result<Manifest> {
        let shape = self.base.shape();
        let mut entries = std::collections::BTreeMap::new();
        for role in [files::BLOCKS, files::CODES, files::CODEBOOK, files::MAP, files::HEAD] {
            let path = self.file(role);
            if path.exists() {
                entries.insert(files::name(self.number, role), files::entry(&path)?);
            }
        }
        let mut manifest = Manifest {
            format_version: FORMAT_VERSION,
            kind: self.options.kind.name().into(),
            metric: self.options.metric.name().into(),
            dtype: shape.dtype.name().into(),
            rows,
            dim: shape.dim,
            blocks,
            code_error,
            build: self.options.recorded(shape.dim),
            build_id: String::new(),
            files: entries,
            curves: Vec::new(),
            cluster: None,
        };
        manifest.build_id = manifest.content_id();
        Ok(manifest)
    }

    /// Moves the files up, creates the manifest, removes what is no longer needed.
    fn publish(mut self, out: &Path, manifest: Manifest) -> Result<BuildReport> {
        for name in manifest.files.keys() {
            let (from, to) = (self.partial.path(name), out.join(name));
            // A build killed while publishing has moved some already.
            if from.exists() {
                std::fs::rename(&from, &to).map_err(|e| Error::io("moving", &to, &e))?;
            }
        }
        sync_folder(out)?;
        manifest.publish(out, self.number)?;
        self.report.index_bytes = manifest.files.values().map(|f| f.bytes).sum();
        let report = std::mem::take(&mut self.report);
        self.partial.remove()?;
        files::remove_older(out, self.number);
        let _ = std::fs::remove_file(out.join("lock"));
        Ok(report)
    }
}

/// The mean squared error of codes, over an even sample of the rows.
struct CodeError {
    rotated: Vec<f32>,
    decoded: Vec<f32>,
    sum: f64,
    count: u32,
}

impl CodeError {
    fn new(codebook: &Codebook) -> CodeError {
        CodeError { rotated: vec![0.0; codebook.dim], decoded: vec![0.0; codebook.dim], sum: 0.0, count: 0 }
    }

    fn look_at(&mut self, codebook: &Codebook, row: &[f32], code: &[u8]) {
        codebook.rotate(row, &mut self.rotated);
        codebook.decode_rotated(code, &mut self.decoded);
        self.sum += f64::from(l2_f32(&self.rotated, bytemuck::cast_slice(&self.decoded)));
        self.count += 1;
    }

    fn mean(&self) -> f32 {
        (self.sum / f64::from(self.count.max(1))) as f32
    }
}

/// Share of the mean list that a block must have room for; the rest of the longest lists is cut from the far end.
const LIST_KEEP: f64 = 0.9;
pub(super) const IDS: &str = "ids.tmp";

pub(super) fn read_codebook(path: &Path) -> Result<Codebook> {
    let bytes = std::fs::read(path).map_err(|e| Error::io("reading", path, &e))?;
    files::decode_codebook(&bytes).ok_or_else(|| files::senseless(path))
}

/// Rows to calibrate with: drawn by hash, so that equal seeds draw equal rows.
pub(super) fn draw_rows(live: &[u32], count: usize, seed: u64) -> Vec<u32> {
    let mut drawn: Vec<(u64, u32)> = live.iter().map(|&row| (hash(seed, 11, u64::from(row)), row)).collect();
    drawn.sort_unstable();
    drawn.truncate(count);
    let mut rows: Vec<u32> = drawn.into_iter().map(|d| d.1).collect();
    rows.sort_unstable();
    rows
}
