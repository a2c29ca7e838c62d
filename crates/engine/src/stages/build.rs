//! Stages of a build, in their order. A stage is skipped when an earlier, unfinished build has left its result.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Instant;

use serde::{Deserialize, Serialize};
use stratann_core::format::checksum;
use stratann_kernel::bits::BitCoder;
use stratann_kernel::coder::Coder;
use stratann_storage::data_file::FileEntry;
use stratann_storage::{Error, Progress, Result, budget, data_file, input};

use super::forecast::Forecast;
use super::options::BuildOptions;
use super::plan::BuildPlan;
use super::publish;
use super::report::BuildReport;
use super::space::Space;
use super::stage::{SCAN, Stage};
use super::state::{Partial, STAGES_VERSION};
use crate::clusterings::drawn;
use crate::dataset::{self, Reader, Scan};
use crate::files;
use crate::kinds::section::Section;
use crate::manifest::{BlockShape, FORMAT_WHOLE, Manifest};

/// Partition of a set's rows into parts, for work row by row. It depends on the set only, because sums of floats depend
/// on it.
#[derive(Clone, Copy)]
pub(crate) struct Parts {
    /// Rows of the set.
    pub(crate) rows: u64,
}

impl Parts {
    const ROWS_MIN: u64 = 16_384;
    const MAX: u64 = 1024;

    fn size(self) -> u64 {
        self.rows.div_ceil(Self::MAX).max(Self::ROWS_MIN)
    }

    pub(crate) fn count(self) -> usize {
        self.rows.div_ceil(self.size()) as usize
    }

    /// The rows of a part.
    pub(crate) fn rows_of(self, part: usize) -> Range<u64> {
        let first = part as u64 * self.size();
        first..(first + self.size()).min(self.rows)
    }
}

/// State that the stages share.
pub(crate) struct Build<'a> {
    pub(crate) base: &'a Reader,
    pub(crate) options: &'a BuildOptions,
    pub(crate) plan: &'a BuildPlan,
    pub(crate) progress: &'a dyn Progress,
    pub(crate) partial: &'a mut Partial,
    pub(crate) number: u64,
    pub(crate) report: BuildReport,
    /// Expected times of the stages.
    pub(crate) forecast: Forecast,
    /// Ids of the user, by row.
    pub(crate) external: Option<Vec<u64>>,
    /// The largest id, known after the scan.
    pub(crate) largest_id: u64,
    /// Calibration rows, ascending; known after the scan.
    pub(crate) drawn: Vec<u32>,
    /// Hash of all rows and of the user's ids; known after the scan.
    pub(crate) content: u64,
}

/// Facts of the scan.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ScanFacts {
    pub(crate) skipped: Vec<u64>,
    pub(crate) max_squared_norm: f64,
    pub(crate) largest_id: u64,
    pub(crate) drawn: Vec<u32>,
    pub(crate) content: u64,
}

/// Options that must be equal when a build is resumed.
pub(crate) fn made_with(
    base: &Reader,
    number: u64,
    options: &BuildOptions,
) -> BTreeMap<String, serde_json::Value> {
    let shape = base.shape();
    let mut all = options.record(shape.dim);
    all.insert("base".into(), format!("{} rows of {} {}", shape.rows, shape.dim, shape.dtype.name()).into());
    all.insert("kind".into(), options.kind().name().into());
    all.insert("metric".into(), options.metric.name().into());
    all.insert("ram_budget".into(), options.ram_budget.into());
    all.insert("version".into(), number.into());
    all.insert("format_version".into(), FORMAT_WHOLE.into());
    all.insert(STAGES_VERSION.0.into(), STAGES_VERSION.1.into());
    all
}

impl<'a> Build<'a> {
    pub(crate) fn new(
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
            forecast: Forecast::new(plan.stages.clone()),
            external: None,
            largest_id: 0,
            drawn: Vec::new(),
            content: 0,
        }
    }

    /// Runs a stage, or returns the facts that it left before.
    pub(crate) fn stage<T: Serialize + for<'b> Deserialize<'b>>(
        &mut self,
        stage: Stage,
        work: impl FnOnce(&mut Self) -> Result<T>,
    ) -> Result<T> {
        if let Some(facts) = self.partial.facts(stage) {
            self.progress.note(&format!("{}: done before", stage.name));
            return Ok(facts);
        }
        self.progress.expect(self.forecast.left_from(stage));
        let started = Instant::now();
        let facts = work(self)?;
        self.partial.finish(stage, &facts)?;
        budget::release_freed();
        let took_s = started.elapsed().as_secs_f64();
        self.forecast.ended(stage, took_s);
        self.report.stages.insert(stage.reported.into(), took_s);
        Ok(facts)
    }

    pub(crate) fn fact(&mut self, name: &str, value: impl Into<serde_json::Value>) {
        self.report.facts.insert(name.into(), value.into());
    }

    pub(crate) fn scan(&mut self) -> Result<Scan> {
        let facts: ScanFacts = self.stage(SCAN, |b| {
            let scan = dataset::scan(b.base, b.options.metric, b.options.on_bad_row, b.progress)?;
            let rows = b.base.shape().rows;
            let largest_id = b.external.as_ref().map_or(rows, |ids| ids.iter().copied().max().unwrap_or(0));
            let drawn = b.draw(&scan);
            let content = scan.content.wrapping_add(b.external.as_deref().map_or(0, content_of_ids));
            let Scan { skipped, max_squared_norm, .. } = scan;
            Ok(ScanFacts { skipped, max_squared_norm, largest_id, drawn, content })
        })?;
        Ok(self.take_scan(facts))
    }

    /// Stores the results of the scan.
    pub(crate) fn take_scan(&mut self, facts: ScanFacts) -> Scan {
        let rows = self.base.shape().rows - facts.skipped.len() as u64;
        self.report.rows = rows;
        self.report.skipped_rows = facts.skipped.len() as u64;
        self.largest_id = facts.largest_id;
        self.drawn = facts.drawn;
        self.content = facts.content;
        Scan { rows, skipped: facts.skipped, max_squared_norm: facts.max_squared_norm, ..Scan::default() }
    }

    /// Draws calibration rows by hash, so that equal seeds draw equal rows.
    pub(crate) fn draw(&self, scan: &Scan) -> Vec<u32> {
        let count = self.options.calibration_rows(scan.rows as usize);
        drawn(self.each_live_row(scan), count, (self.options.seed, 11))
    }

    /// Returns those of `rows` that are indexed, ascending.
    pub(crate) fn live<'s>(&self, scan: &'s Scan, rows: Range<u64>) -> impl Iterator<Item = u64> + use<'s> {
        let before = scan.skipped.partition_point(|&s| s < rows.start);
        let mut skipped = scan.skipped[before..].iter().peekable();
        rows.filter(move |row| skipped.next_if(|s| *s == row).is_none())
    }

    /// Returns all rows that are indexed, ascending.
    pub(crate) fn live_rows(&self, scan: &Scan) -> Vec<u32> {
        self.each_live_row(scan).collect()
    }

    /// As [`live_rows`](Self::live_rows), one at a time.
    pub(crate) fn each_live_row<'s>(&self, scan: &'s Scan) -> impl Iterator<Item = u32> + use<'s> {
        self.live(scan, 0..self.base.shape().rows).map(|row| row as u32)
    }

    pub(crate) fn parts(&self) -> Parts {
        Parts { rows: self.base.shape().rows }
    }

    /// Returns the space of points. With `exact`, floats stay floats.
    pub(crate) fn space(&self, scan: &Scan, exact: bool) -> Result<Space> {
        Space::choose(self.base, self.options.metric, scan, exact)
    }

    /// Returns the manifest of the finished files. Their checksums are kept, for a build that is killed while files are
    /// renamed.
    pub(crate) fn manifest(
        &mut self,
        scan: &Scan,
        blocks: BlockShape,
        code_error: f32,
        section: Section,
    ) -> Result<Manifest> {
        let manifest = publish::manifest(self, scan.rows, blocks, code_error, section)?;
        self.partial.finish(publish::FILES, &manifest.files)?;
        Ok(manifest)
    }

    /// The seed of the checksums of this build's blocks or lists: a hash of the rows, of the options, and of the files
    /// that decide where each row goes. Units of another build do not match it.
    pub(crate) fn checksum_seed(&self, made_from: &[PathBuf]) -> Result<u64> {
        let shape = self.base.shape();
        let files: Vec<FileEntry> =
            made_from.iter().map(|path| data_file::entry(path)).collect::<Result<_>>()?;
        let all = serde_json::json!({
            "kind": self.options.kind().name(), "metric": self.options.metric.name(), "dtype": shape.dtype.name(),
            "rows": shape.rows, "dim": shape.dim, "build": self.options.record(shape.dim),
            "content": self.content, "files": files,
        });
        // 0 is that of older formats.
        Ok(checksum(all.to_string().as_bytes()).max(1))
    }

    /// Returns the bytes of an id.
    pub(crate) fn id_bytes(&self) -> usize {
        if self.largest_id > u64::from(u32::MAX) { 8 } else { 4 }
    }

    /// Returns the id that the user gave a row, or else its number.
    pub(crate) fn external_id(&self, row: u32) -> u64 {
        self.external.as_ref().map_or(u64::from(row), |ids| ids[row as usize])
    }

    /// Returns the path of the file of this role.
    pub(crate) fn file(&self, role: &str) -> PathBuf {
        self.partial.path(&files::name(self.number, role))
    }
}

/// Hash of the user's ids.
pub(crate) fn content_of_ids(ids: &[u64]) -> u64 {
    checksum(bytemuck::cast_slice(ids))
}

/// New id by row, as u32.
pub(crate) const IDS: &str = "ids.tmp";

/// Longer files hold no codebook: one has a matrix of MAX_DIM × MAX_DIM numbers at most.
const CODEBOOK_BYTES_MAX: u64 = 5 * (stratann_kernel::distance::MAX_DIM as u64).pow(2);

/// The coder that this build has made.
pub(crate) fn read_coder(path: &Path) -> Result<BitCoder> {
    let bytes = input::read_up_to(path, CODEBOOK_BYTES_MAX).map_err(|e| Error::io("reading", path, &e))?;
    match files::decode_coder(&bytes) {
        Some(Coder::Bits(coder)) => Ok(coder),
        _ => Err(files::senseless(path)),
    }
}
