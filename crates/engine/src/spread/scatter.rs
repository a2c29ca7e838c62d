//! The other way to spread an index: separate indexes, each of its own rows, and every query is asked of all of them
//! (scatter-gather, BatANN §3.1 and §6).
//!
//! The rows are divided as their blocks would be by [`super::partition`] with one replica each, and every part is built
//! with the parameters that the manifest of the source tells, but not calibrated. External ids are those of the source.
//! A part is on one server, or is partitioned over several itself. A folder of such parts holds `server-00`,
//! `server-01`, …, each an index like any other; or `part-00`, `part-01`, …, each a partitioned index; and
//! [`DESCRIPTION`]. It appears whole or not at all.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;
use stratann_params::build::GraphOptions;
use stratann_params::choices::{CodePlace, OnBadRow};

use serde::Serialize;
use stratann_core::format::block::{Block, BlockLayout};
use stratann_core::place::{Placement, SERVERS_MAX};
use stratann_storage::durable::{sync_folder, write_synced};
use stratann_storage::{Error, Progress, Result, budget, input};

pub use super::description::{DESCRIPTION, Description, server_folder};
use super::placing::Placing;

use super::description::part_folder;
use super::plan::SpreadPlan;
use super::source::Source;
use super::{PartitionOptions, Shard, pool};
use crate::codebook::bits;
use crate::dataset::{Reader, bin_suffix};
use crate::index::{Index, OpenOptions};
use crate::kinds::options::KindOptions;
use crate::manifest::Manifest;
use crate::stages::options::BuildOptions;
use crate::stages::plan::check_disk;
use crate::{DType, build};
use stratann_params::IndexKind;

/// Bytes gathered for each of a server's two files before they are written.
const BUFFER_BYTES: usize = 128 << 10;

/// Report of [`scatter`].
#[derive(Clone, Debug, Serialize)]
pub struct ScatterReport {
    /// Description of the folder.
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

/// Divides the rows of the newest version in `index` into `parts`, and builds an index of each in the folder `out`. A
/// part with several of the servers is partitioned over them, with the replicas and the overlap of `options`.
///
/// # Errors
/// As [`super::partition`]; parts that the servers cannot be divided into; copies of what one server holds; `out` holds
/// something else. What `out` held before is never harmed.
pub fn scatter(
    index: &Path,
    out: &Path,
    (options, parts): (&PartitionOptions, usize),
    progress: &dyn Progress,
) -> Result<ScatterReport> {
    let started = Instant::now();
    let (_, manifest) = Manifest::read(index)?;
    let each = servers_of_part(options, parts)?;
    let among = PartitionOptions { servers: parts, replicas: 1, overlap: 0.0, ..options.clone() };
    among.check(index, &manifest)?;
    if !manifest.facts().has_adjacency_in_blocks {
        return Err(Error::bad_input(format!(
            "{} is of kind {}; only {} can be divided into separate indexes",
            index.display(),
            manifest.kind,
            IndexKind::DiskGraph.name()
        )));
    }
    check_target(out, options.force)?;
    let building = building(index, &manifest, options)?;
    let job = Job { index, options: &among, each: &each, progress, building };
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

/// Options of the partition of each part over its servers.
fn servers_of_part(options: &PartitionOptions, parts: usize) -> Result<PartitionOptions> {
    options.check_numbers()?;
    if !(1..=options.servers).contains(&parts) || !options.servers.is_multiple_of(parts) {
        return Err(Error::bad_input(format!(
            "{} servers cannot have {parts} parts of equal size; use a number of parts that divides the servers",
            options.servers
        )));
    }
    if !options.capacities.is_empty() && parts < options.servers {
        return Err(Error::bad_input(
            "parts of several servers are equal; give --capacities without --parts, or an index for each server",
        ));
    }
    let servers = options.servers / parts;
    let each = PartitionOptions { servers, capacities: Vec::new(), force: false, ..options.clone() };
    if each.servers == 1 && (options.replicas > 1 || options.overlap > 0.0) {
        return Err(Error::bad_input(
            "each server has an index of its own, without copies; give fewer --parts than servers to have \
             --replicas or --overlap within a part",
        ));
    }
    each.check_numbers()?;
    Ok(each)
}

/// Reads what a folder of separate indexes was made from.
///
/// # Errors
/// No such folder, or a damaged description.
pub fn describe(folder: &Path) -> Result<Description> {
    let path = folder.join(DESCRIPTION);
    if !path.exists() {
        return Err(Error::bad_input(format!(
            "{} holds no separate indexes; make them with `stratann cluster partition INDEX -o DIR --servers N \
             --scatter-gather`",
            folder.display()
        )));
    }
    Description::from_text(&input::read_text(&path)?, &path)
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
    if description.servers_each() > 1 {
        return Err(Error::bad_input(format!(
            "{} has parts of {} servers each; only separate indexes of one server each can be opened together",
            folder.display(),
            description.servers_each()
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

/// The index of a part as one of its servers opens it.
pub enum PartIndex {
    /// The part is on one server.
    Whole(Box<Index>),
    /// The part is partitioned over several.
    Shard(Box<Shard>),
}

impl PartIndex {
    fn manifest(&self) -> &Manifest {
        match self {
            PartIndex::Whole(index) => index.manifest(),
            PartIndex::Shard(shard) => shard.index().manifest(),
        }
    }
}

/// Opens one server's index of a folder, to serve it beside the others.
///
/// # Errors
/// As [`describe`], [`Index::open`] and [`Shard::open`]; no such server; an index that is not the one that the folder
/// was made with.
pub fn open_part(folder: &Path, server: usize, options: OpenOptions) -> Result<(Description, PartIndex)> {
    let description = describe(folder)?;
    let (part, local) = description.place(server, folder)?;
    let own = description.folder(folder, part);
    let index = match description.servers_each() {
        1 => PartIndex::Whole(Box::new(Index::open(&own, options)?)),
        _ => PartIndex::Shard(Box::new(Shard::open(&own, local, options)?)),
    };
    let (rows, build) = (index.manifest().rows, &index.manifest().build_id);
    if description.rows[part] != rows || description.builds.get(part) != Some(build) {
        return Err(Error::bad_input(format!(
            "{} is not the index that {} was made with; make the folder again",
            own.display(),
            folder.display()
        )));
    }
    Ok((description, index))
}

/// Refuses a place that holds something, unless it is to be replaced and is of this kind.
fn check_target(out: &Path, force: bool) -> Result<()> {
    let wrong = |what: &str| Err(Error::bad_input(format!("{} {what}", out.display())));
    stratann_storage::output::check_folder(out)?;
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
    let of = |number| [server_folder(out, number), part_folder(out, number)];
    let servers: Vec<PathBuf> = (0..SERVERS_MAX).flat_map(of).collect();
    let entries = std::fs::read_dir(out).map_err(|e| Error::io("opening", out, &e))?;
    for path in entries.flatten().map(|entry| entry.path()) {
        if servers.contains(&path) && path.is_dir() {
            crate::stages::folder::refuse_other_files(&path)?;
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
    let metric = crate::base::shape(index, manifest)?.metric;
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
    // Codes of older indexes may be shorter than any that is built.
    let (least_bytes, most_bytes) = bits::code_bytes(manifest.dim);
    let own = GraphOptions {
        degree: count("degree")?,
        build_list: count("build_list")?,
        alpha: share("alpha")? as f32,
        passes: count("passes")?,
        code_bytes: Some(count("code_bytes")?.clamp(least_bytes, most_bytes)),
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
    // The rows among the parts.
    options: &'a PartitionOptions,
    // A part among its servers.
    each: &'a PartitionOptions,
    progress: &'a dyn Progress,
    building: BuildOptions,
}

impl Job<'_> {
    fn make(&self, manifest: Manifest, folder: &Path) -> Result<ScatterReport> {
        let plan = SpreadPlan::new(&manifest, self.options)?;
        let crate::base::IndexShape { dtype, block: shape, .. } = crate::base::shape(self.index, &manifest)?;
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
                servers: self.options.servers * self.each.servers,
                parts: (self.each.servers > 1).then_some(self.options.servers),
                replicas: (self.each.replicas > 1).then_some(self.each.replicas),
                method: self.options.method.name().into(),
                seed: self.options.seed,
                source: source.manifest.build_id,
                rows,
                builds: Vec::new(),
                version: None,
            },
            seconds: 0.0,
            peak_rss_bytes: 0,
            index_bytes: Vec::new(),
            build_seconds: Vec::new(),
        };
        drop(source);
        for part in 0..self.options.servers {
            let built = self.build(folder, part, dtype)?;
            report.index_bytes.push(built.index_bytes);
            report.build_seconds.push(built.seconds);
            let own = self.spread(folder, part, &report.description)?;
            report.description.builds.push(Manifest::read(&own)?.1.build_id);
        }
        let path = folder.join(DESCRIPTION);
        let text = report.description.to_text()?;
        write_synced(&path, text.as_bytes()).map_err(|e| Error::io("writing", &path, &e))?;
        Ok(report)
    }

    /// Partitions the index of a part over its servers, when it has several. Returns its folder.
    fn spread(&self, folder: &Path, part: usize, description: &Description) -> Result<PathBuf> {
        let (built, own) = (server_folder(folder, part), description.folder(folder, part));
        if built != own {
            super::partition(&built, &own, self.each, self.progress)?;
            std::fs::remove_dir_all(&built).map_err(|e| Error::io("removing", &built, &e))?;
        }
        Ok(own)
    }

    fn build(&self, folder: &Path, server: usize, dtype: DType) -> Result<build::BuildReport> {
        let (rows, ids) = (rows_path(folder, server, dtype), ids_path(folder, server));
        let options = BuildOptions { ids: Some(ids.clone()), ..self.building.clone() };
        let progress =
            OfServer { inner: self.progress, of: format!("part {} of {}", server + 1, self.options.servers) };
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
    folder.join(format!("rows-{server:02}.{}", bin_suffix(dtype)))
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

/// Tells of which part's index the stages are.
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
