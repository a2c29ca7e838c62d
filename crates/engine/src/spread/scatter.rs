//! The other way to spread an index, to compare with: each server gets its own index of its own rows, and every query
//! is asked of all of them (scatter-gather, BatANN §3.1 and §6).
//!
//! The rows are divided as their blocks would be by [`super::partition`] with one replica each, and every part is built
//! with the parameters that the manifest of the source tells, but not calibrated. External ids are those of the
//! source. A folder of such parts holds `server-00`, `server-01`, …, each an index like any other, and
//! [`DESCRIPTION`]. It appears whole or not at all.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

use serde::{Deserialize, Serialize};
use stratann_core::format::block::{Block, BlockLayout};
use stratann_core::place::{Placement, SERVERS_MAX};
use xxhash_rust::xxh3::xxh3_64;

use super::placing::Placing;
use super::plan::SpreadPlan;
use super::source::Source;
use super::{PartitionOptions, pool};
use crate::budget;
use crate::build::{self, BuildOptions, CodeKind, CodePlace, GraphOptions, KindOptions, check_disk};
use crate::dataset::{OnBadRow, Reader};
use crate::durable::{hex, sync_folder, write_synced};
use crate::index::{Index, OpenOptions};
use crate::kinds::kind::Kind;
use crate::manifest::Manifest;
use crate::{DType, Error, Progress, Result};

/// The file that says what the folder is.
pub const DESCRIPTION: &str = "scatter-gather.json";
/// Bytes gathered for each of a server's two files before they are written.
const BUFFER_BYTES: usize = 128 << 10;

/// What a folder of separate indexes was made from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Description {
    /// Number of servers.
    pub servers: usize,
    /// How the rows were divided.
    pub method: String,
    /// Seed of that.
    pub seed: u64,
    /// `build_id` of the index that was divided.
    pub source: String,
    /// Rows of each server.
    pub rows: Vec<u64>,
    /// `build_id` of each server's index.
    #[serde(default)]
    pub builds: Vec<String>,
}

impl Description {
    /// Identifies all the indexes together, as the `build_id` of one index does.
    pub fn build_id(&self) -> String {
        hex(xxh3_64(serde_json::json!(self).to_string().as_bytes()))
    }
}

/// What [`scatter`] did.
#[derive(Clone, Debug, Serialize)]
pub struct ScatterReport {
    /// What was made.
    #[serde(flatten)]
    pub description: Description,
    /// Wall-clock seconds.
    pub seconds: f64,
    /// Largest resident set of the process.
    pub peak_rss_bytes: u64,
    /// Bytes of each server's index.
    pub index_bytes: Vec<u64>,
    /// Seconds that each took to build.
    pub build_seconds: Vec<f64>,
}

/// The folder of a server's index.
pub fn server_folder(folder: &Path, server: usize) -> PathBuf {
    folder.join(format!("server-{server:02}"))
}

/// Divides the rows of the newest version in `index` among servers, and builds an index for each in the folder `out`.
///
/// # Errors
/// As [`super::partition`]; copies of blocks were asked for; `out` holds something else. What `out` held before is
/// never harmed.
pub fn scatter(
    index: &Path,
    out: &Path,
    options: &PartitionOptions,
    progress: &dyn Progress,
) -> Result<ScatterReport> {
    let started = Instant::now();
    let (_, manifest) = Manifest::read(index)?;
    options.check(index, &manifest)?;
    if !manifest.kind().is_some_and(Kind::has_adjacency_in_blocks) {
        return Err(Error::bad_input(format!(
            "{} is of kind {}; only {} can be divided into separate indexes",
            index.display(),
            manifest.kind,
            Kind::DiskGraph.name()
        )));
    }
    if options.replicas > 1 || options.overlap > 0.0 {
        return Err(Error::bad_input(
            "separate indexes hold every row once; give --scatter-gather without --replicas and --overlap",
        ));
    }
    check_target(out, options.force)?;
    let job = Job { index, options, progress, building: building(index, &manifest, options)? };
    let aside = aside(out, "partial")?;
    let _ = std::fs::remove_dir_all(&aside);
    let made = job.make(manifest, &aside).and_then(|report| {
        publish(&aside, out)?;
        Ok(report)
    });
    if made.is_err() {
        let _ = std::fs::remove_dir_all(&aside);
    }
    let mut report = made?;
    report.seconds = started.elapsed().as_secs_f64();
    report.peak_rss_bytes = budget::process().peak_rss_bytes;
    Ok(report)
}

/// Reads what a folder of separate indexes was made from.
///
/// # Errors
/// No such folder, or a damaged description.
pub fn describe(folder: &Path) -> Result<Description> {
    let path = folder.join(DESCRIPTION);
    let bytes = std::fs::read(&path).map_err(|e| match e.kind() {
        std::io::ErrorKind::NotFound => Error::bad_input(format!(
            "{} holds no separate indexes; make them with `stratann cluster partition INDEX -o DIR --servers N \
             --scatter-gather`",
            folder.display()
        )),
        _ => Error::io("reading", &path, &e),
    })?;
    let damaged =
        |e: String| Error::corrupt(format!("{} is damaged ({e}); make the folder again", path.display()));
    let description: Description = serde_json::from_slice(&bytes).map_err(|e| damaged(e.to_string()))?;
    let is_sane = (1..=SERVERS_MAX).contains(&description.servers);
    if !is_sane || description.rows.len() != description.servers {
        return Err(damaged("its numbers cannot be".into()));
    }
    Ok(description)
}

/// Opens all indexes of a folder that was made from the index of `source`.
///
/// # Errors
/// As [`describe`] and [`Index::open`]; a folder that was made from another index.
pub fn open(folder: &Path, source: &Manifest) -> Result<(Description, Vec<Index>)> {
    let description = describe(folder)?;
    if description.source != source.build_id {
        return Err(Error::bad_input(format!(
            "{} was made from another index ({}, not {}); make it again from this one",
            folder.display(),
            description.source,
            source.build_id
        )));
    }
    let open = |server| Index::open(&server_folder(folder, server), OpenOptions::default());
    let indexes = (0..description.servers).map(open).collect::<Result<_>>()?;
    Ok((description, indexes))
}

/// Whether a folder holds separate indexes.
pub fn is_apart(folder: &Path) -> bool {
    folder.join(DESCRIPTION).is_file()
}

/// Opens one server's index of a folder, to serve it beside the others.
///
/// # Errors
/// As [`describe`] and [`Index::open`]; no such server; an index that is not the one that the folder was made with.
pub fn open_part(folder: &Path, server: usize, options: OpenOptions) -> Result<(Description, Index)> {
    let description = describe(folder)?;
    if server >= description.servers {
        return Err(Error::bad_input(format!(
            "{} has servers 0 to {}, there is no server {server}",
            folder.display(),
            description.servers - 1
        )));
    }
    let index = Index::open(&server_folder(folder, server), options)?;
    let (rows, build) = (index.manifest().rows, &index.manifest().build_id);
    if description.rows[server] != rows || description.builds.get(server) != Some(build) {
        return Err(Error::bad_input(format!(
            "{} is not the index that {} was made with; make the folder again",
            server_folder(folder, server).display(),
            folder.display()
        )));
    }
    Ok((description, index))
}

/// Refuses a place that holds something, unless it is to be replaced and is of this kind.
fn check_target(out: &Path, force: bool) -> Result<()> {
    let wrong = |what: &str| Err(Error::bad_input(format!("{} {what}", out.display())));
    crate::output::check_folder(out)?;
    let Ok(mut entries) = std::fs::read_dir(out) else { return Ok(()) };
    match (entries.next().is_some(), out.join(DESCRIPTION).exists()) {
        (false, _) => Ok(()),
        (true, true) if force => refuse_other_files(out),
        (true, true) => {
            wrong("holds separate indexes already; give --force to replace them, or another folder")
        }
        (true, false) => wrong("holds something else; name a new folder"),
    }
}

/// Refuses a folder of separate indexes that holds other files, which a replacement would remove.
fn refuse_other_files(out: &Path) -> Result<()> {
    let servers: Vec<PathBuf> = (0..SERVERS_MAX).map(|server| server_folder(out, server)).collect();
    let entries = std::fs::read_dir(out).map_err(|e| Error::io("opening", out, &e))?;
    for path in entries.flatten().map(|entry| entry.path()) {
        if servers.contains(&path) && path.is_dir() {
            crate::build::refuse_other_files(&path)?;
        } else if path.file_name().is_none_or(|name| name != DESCRIPTION) {
            return Err(Error::bad_input(format!(
                "{} holds other files, such as {}; name a new folder",
                out.display(),
                path.display()
            )));
        }
    }
    Ok(())
}

/// A hidden neighbour of `out`, on the same disk.
fn aside(out: &Path, what: &str) -> Result<PathBuf> {
    let Some(name) = out.file_name() else {
        return Err(Error::bad_input(format!("{} names no folder; give a name", out.display())));
    };
    Ok(out.with_file_name(format!(".{}.{}.{what}", name.to_string_lossy(), std::process::id())))
}

/// Gives the finished folder its name; what had it before goes when that is done.
fn publish(made: &Path, out: &Path) -> Result<()> {
    let failed = |e: std::io::Error| Error::io("publishing", out, &e);
    sync_folder(made)?;
    let old = aside(out, "old")?;
    let is_replaced = out.exists();
    if is_replaced {
        std::fs::rename(out, &old).map_err(failed)?;
    }
    if let Err(e) = std::fs::rename(made, out) {
        if is_replaced {
            let _ = std::fs::rename(&old, out);
        }
        return Err(failed(e));
    }
    if is_replaced {
        let _ = std::fs::remove_dir_all(&old);
    }
    match out.parent().filter(|p| !p.as_os_str().is_empty()) {
        Some(parent) => sync_folder(parent),
        None => sync_folder(Path::new(".")),
    }
}

/// The options that the index was built with.
fn building(index: &Path, manifest: &Manifest, options: &PartitionOptions) -> Result<BuildOptions> {
    let metric = crate::base::shape(index, manifest)?.1;
    let missing = |key: &str| {
        Error::corrupt(format!(
            "{}: the manifest does not tell {key}; build the index again",
            index.display()
        ))
    };
    let value = |key: &str| manifest.build.get(key).ok_or_else(|| missing(key));
    let count = |key: &str| value(key)?.as_u64().map(|n| n as usize).ok_or_else(|| missing(key));
    let share = |key: &str| value(key)?.as_f64().ok_or_else(|| missing(key));
    let flag = |key: &str| value(key)?.as_bool().ok_or_else(|| missing(key));
    let given = |key: &str| manifest.build.get(key).and_then(|n| n.as_u64()).map(|n| n as usize);
    let kinds = [CodeKind::Pq, CodeKind::Opq, CodeKind::ResidualOpq];
    let code_kind = value("code_kind")?.as_str().unwrap_or("");
    let named = |kind: &&CodeKind| format!("{kind:?}").to_lowercase() == code_kind;
    let own = GraphOptions {
        degree: count("degree")?,
        build_list: count("build_list")?,
        alpha: share("alpha")? as f32,
        passes: count("passes")?,
        code_bytes: Some(count("code_bytes")?),
        code_kind: *kinds.iter().find(named).ok_or_else(|| missing("code_kind"))?,
        head_share: share("head_share")?,
        pack: flag("pack")?,
        compress: flag("compress")?,
        codes: if manifest.blocks.code_bytes > 0 { CodePlace::Disk } else { CodePlace::Ram },
        nodes_per_block: given("nodes_per_block"),
        pages_per_block: given("pages_per_block"),
        exact_points: flag("exact_points")?,
        ..GraphOptions::default()
    };
    Ok(BuildOptions {
        ram_budget: options.ram_budget,
        threads: options.threads,
        seed: count("seed")? as u64,
        on_bad_row: OnBadRow::Fail,
        // What a part finds of its own rows says nothing of what all find together.
        calibration_queries: 0,
        ..BuildOptions::new(KindOptions::DiskGraph(own), metric)
    })
}

struct Job<'a> {
    index: &'a Path,
    options: &'a PartitionOptions,
    progress: &'a dyn Progress,
    building: BuildOptions,
}

impl Job<'_> {
    fn make(&self, manifest: Manifest, folder: &Path) -> Result<ScatterReport> {
        let plan = SpreadPlan::new(&manifest, self.options)?;
        let (_, _, dtype, shape) = crate::base::shape(self.index, &manifest)?;
        std::fs::create_dir_all(folder).map_err(|e| Error::io("creating", folder, &e))?;
        // The rows, and beside them the indexes.
        let blocks = u64::from(manifest.blocks.count) * manifest.blocks.bytes as u64;
        check_disk(folder, blocks.saturating_mul(2))?;
        let source = Source::open(self.index, manifest, shape, self.progress)?;
        let rows = pool(self.options)?.install(|| {
            let placement = Placing::new(self.options, plan, self.progress).run(&source)?;
            divide(&source, &placement, &shape, dtype, folder)
        })?;
        let mut report = ScatterReport {
            description: Description {
                servers: self.options.servers,
                method: self.options.method.name().into(),
                seed: self.options.seed,
                source: source.manifest.build_id.clone(),
                rows,
                builds: Vec::new(),
            },
            seconds: 0.0,
            peak_rss_bytes: 0,
            index_bytes: Vec::new(),
            build_seconds: Vec::new(),
        };
        drop(source);
        for server in 0..self.options.servers {
            let built = self.build(folder, server, dtype)?;
            report.index_bytes.push(built.index_bytes);
            report.build_seconds.push(built.seconds);
            let (_, manifest) = Manifest::read(&server_folder(folder, server))?;
            report.description.builds.push(manifest.build_id);
        }
        let path = folder.join(DESCRIPTION);
        let text = serde_json::to_string_pretty(&report.description)
            .map_err(|e| Error::bad_input(format!("{DESCRIPTION}: {e}")))?
            + "\n";
        write_synced(&path, text.as_bytes()).map_err(|e| Error::io("writing", &path, &e))?;
        Ok(report)
    }

    fn build(&self, folder: &Path, server: usize, dtype: DType) -> Result<build::BuildReport> {
        let (rows, ids) = (rows_path(folder, server, dtype), ids_path(folder, server));
        let options = BuildOptions { ids: Some(ids.clone()), ..self.building.clone() };
        let progress = OfServer {
            inner: self.progress,
            of: format!("server {} of {}", server + 1, self.options.servers),
        };
        let out = server_folder(folder, server);
        let built = build::build(&Reader::open(&rows)?, &out, &options, &progress).map_err(|e| {
            // Nothing is kept here, so nothing can be resumed.
            let message = e.message.split("; run the same command with --resume").next().unwrap_or("").into();
            Error { message, ..e }
        })?;
        for path in [rows, ids] {
            std::fs::remove_file(&path).map_err(|e| Error::io("removing", &path, &e))?;
        }
        Ok(built)
    }
}

fn rows_path(folder: &Path, server: usize, dtype: DType) -> PathBuf {
    let suffix = match dtype {
        DType::F32 => "fbin",
        DType::F16 => "f16bin",
        DType::U8 => "u8bin",
        DType::I8 => "i8bin",
    };
    folder.join(format!("rows-{server:02}.{suffix}"))
}

fn ids_path(folder: &Path, server: usize) -> PathBuf {
    folder.join(format!("ids-{server:02}.u64bin"))
}

/// One server's rows and their external ids, as files on their way.
struct Share {
    rows: BufWriter<File>,
    ids: BufWriter<File>,
}

impl Share {
    fn create(folder: &Path, server: usize, dtype: DType, rows: u64, dim: usize) -> Result<Share> {
        let open = |path: PathBuf, width: u32| {
            let begun = File::create(&path).and_then(|file| {
                let mut file = BufWriter::with_capacity(BUFFER_BYTES, file);
                file.write_all(&(rows as u32).to_le_bytes())?;
                file.write_all(&width.to_le_bytes())?;
                Ok(file)
            });
            begun.map_err(|e| Error::io("creating", &path, &e))
        };
        Ok(Share {
            rows: open(rows_path(folder, server, dtype), dim as u32)?,
            ids: open(ids_path(folder, server), 1)?,
        })
    }

    fn take(&mut self, block: &Block<'_>) -> std::io::Result<()> {
        for slot in 0..block.count() {
            self.rows.write_all(block.vector(slot))?;
            self.ids.write_all(&block.external_id(slot).to_le_bytes())?;
        }
        Ok(())
    }

    fn finish(mut self) -> std::io::Result<()> {
        self.rows.flush()?;
        self.ids.flush()
    }
}

/// Writes the rows of each block to the files of its server; gives the number of rows by server.
fn divide(
    source: &Source<'_>,
    placement: &Placement,
    shape: &BlockLayout,
    dtype: DType,
    folder: &Path,
) -> Result<Vec<u64>> {
    let home = |block: usize| placement.replicas(block as u32).trailing_zeros() as usize;
    let mut rows = vec![0u64; placement.servers()];
    source.counts.iter().enumerate().for_each(|(block, &count)| rows[home(block)] += u64::from(count));
    if let Some(server) = rows.iter().position(|&n| n == 0) {
        return Err(Error::bad_input(format!("server {server} would get no rows; use fewer servers")));
    }
    let dim = source.manifest.dim;
    let create = |(server, &rows): (usize, &u64)| Share::create(folder, server, dtype, rows, dim);
    let mut shares = rows.iter().enumerate().map(create).collect::<Result<Vec<Share>>>()?;
    let failed = |e: std::io::Error| Error::io("writing rows in", folder, &e);
    source.stream("dividing rows", |first, _, bytes| {
        for (i, bytes) in bytes.chunks_exact(shape.block_bytes).enumerate() {
            let block = Block::open(shape, bytes).map_err(|_| {
                Error::corrupt(format!("block {} is damaged; run `stratann verify`", first + i))
            })?;
            shares[home(first + i)].take(&block).map_err(failed)?;
        }
        Ok(())
    })?;
    shares.into_iter().try_for_each(Share::finish).map_err(failed)?;
    Ok(rows)
}

/// Tells of which server's index the stages are.
struct OfServer<'a> {
    inner: &'a dyn Progress,
    of: String,
}

impl Progress for OfServer<'_> {
    fn stage(&self, name: &str, total: u64, unit: &str) {
        self.inner.stage(&format!("{}: {name}", self.of), total, unit);
    }

    fn advance(&self, count: u64) {
        self.inner.advance(count);
    }

    fn note(&self, line: &str) {
        self.inner.note(line);
    }

    fn interrupted(&self) -> bool {
        self.inner.interrupted()
    }
}
