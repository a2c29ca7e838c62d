//! The manifest: what an index folder holds, in JSON that a person can read.
//!
//! A folder may hold several, `manifest-1.json`, `manifest-2.json`, …: the highest number counts. Data files are
//! written and synced first; a version is published by creating its manifest under a name that must not exist yet.
//! Its own checksum is over its canonical JSON (keys sorted, no spaces) without the field `checksum`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use stratann_core::PAGE;
use stratann_storage::budget::Account;
use stratann_storage::data_file::{FileEntry, failed, open_file};
use stratann_storage::durable::{seal, sync_folder, unseal, write_synced};
use stratann_storage::names::{BuildId, FileName};
use stratann_storage::{Error, ErrorKind, Result, input};
use xxhash_rust::xxh3::xxh3_64;

use crate::curve::Curve;
use crate::kinds::facts::KindFacts;
use crate::kinds::known::facts;
use crate::kinds::section::Section;
use crate::{DType, Metric, files};
use stratann_params::IndexKind;

pub(crate) mod deletes;
mod format;
pub(crate) mod points;

use self::deletes::DeleteFacts;
pub(crate) use self::format::format_of;
pub use self::format::{FORMAT_VERSION, FORMAT_WHOLE};
pub use self::points::PointFacts;

/// Shape that all blocks share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockShape {
    /// Number of blocks.
    pub count: u32,
    /// Bytes of each.
    pub bytes: usize,
    /// Bytes of an external id.
    pub id_bytes: usize,
    /// Bytes of a code, where blocks carry those of their neighbours; absent (0) where codes have a file of their own
    /// and lie in RAM.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub code_bytes: usize,
    /// Seed of the checksums of blocks, lists, records and edges, which binds them to one build. Absent (0) before
    /// format version 4.
    #[serde(default, skip_serializing_if = "is_unseeded")]
    pub checksum_seed: u64,
}

impl BlockShape {
    /// The pages of a file of lists of so many bytes.
    pub(crate) fn of_pages(bytes: u64, id_bytes: usize, checksum_seed: u64) -> BlockShape {
        let count = bytes.div_ceil(PAGE as u64) as u32;
        BlockShape { count, bytes: PAGE, id_bytes, code_bytes: 0, checksum_seed }
    }
}

fn is_zero(bytes: &usize) -> bool {
    *bytes == 0
}

fn is_unseeded(seed: &u64) -> bool {
    *seed == 0
}

/// Partition of an index over servers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SpreadFacts {
    /// Number of servers.
    pub servers: usize,
    /// Servers that hold each block or list, at least.
    pub replicas: usize,
    /// Share of the blocks that were copied to one server more.
    pub overlap: f64,
    /// Method of the division.
    pub method: String,
    /// Seed of that.
    pub seed: u64,
    /// `build_id` of the index that was spread.
    pub source: BuildId,
    /// Number of blocks, or of inverted lists, that each server holds.
    pub held: Vec<u32>,
    /// Share of the edges that leave their block that leads to one without a common server; of inverted lists that of
    /// the edges of the navigation graph that leave their cluster.
    pub cut_share: f64,
    /// First group of components of each slice of a `grid-ivf`, and the number of groups.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub slices: Vec<u32>,
    /// Prices that a `grid-ivf` was divided by. They are timed, so they do not identify the partition.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prices: Option<MessagePrices>,
}

/// Prices of messages between servers, both sides together.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct MessagePrices {
    /// Nanoseconds of a short message.
    pub message_ns: f64,
    /// Nanoseconds of each byte more.
    pub byte_ns: f64,
}

/// A published version of an index.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// See [`FORMAT_VERSION`].
    pub format_version: u32,
    /// `disk-graph`, `hybrid-ivf` or `flat`.
    pub kind: String,
    /// Name of the metric.
    pub metric: String,
    /// Name of the element type.
    pub dtype: String,
    /// Vectors in the index.
    pub rows: u64,
    /// Components of a vector.
    pub dim: usize,
    /// Layout of the blocks.
    pub blocks: BlockShape,
    /// Mean squared error of the codes, in their own space; 0 without codes.
    pub code_error: f32,
    /// Parameters of the build.
    pub build: BTreeMap<String, serde_json::Value>,
    /// Hash over the content of all data files and the parameters.
    pub build_id: BuildId,
    /// Data files by name.
    pub files: BTreeMap<FileName, FileEntry>,
    /// Cost of recall, for several k.
    pub curves: Vec<Curve>,
    /// The part of its kind.
    #[serde(flatten)]
    pub section: Section,
    /// Present when blocks or lists lie in one file for each server.
    #[serde(rename = "cluster", default, skip_serializing_if = "Option::is_none")]
    pub spread: Option<SpreadFacts>,
    /// Present when rows are deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deletes: Option<DeleteFacts>,
    /// Present when the index has ids of any form, and payloads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub points: Option<PointFacts>,
    /// Rows that were left when the recall curves were measured, where the deletes before that were taken back; absent
    /// where the curves are those of all rows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub curve_rows: Option<u64>,
    /// Manifests of newer versions in the folder that are damaged: this version is used in their place.
    #[serde(skip)]
    pub damaged_newer: Vec<DamagedManifest>,
}

/// A manifest that was passed over.
#[derive(Clone, Debug, PartialEq)]
pub struct DamagedManifest {
    /// Number of the version.
    pub number: u64,
    /// Fault of the manifest, in one line.
    pub why: String,
}

/// Warning of damaged versions newer than version `number`; `None` when there are none.
pub fn damaged_note(newer: &[DamagedManifest], number: u64) -> Option<String> {
    (!newer.is_empty()).then(|| {
        let why: Vec<&str> = newer.iter().map(|damaged| damaged.why.as_str()).collect();
        format!("{}; version {number} is used, the newest that is sound", why.join("; "))
    })
}

impl Manifest {
    /// Warning of newer versions that are damaged; `None` when there are none.
    pub fn damaged_note(&self, number: u64) -> Option<String> {
        damaged_note(&self.damaged_newer, number)
    }

    /// Refuses to write beside a newer version that is damaged: its number is taken, and it may be restored.
    ///
    /// # Errors
    /// When there is one.
    pub fn check_newest(&self) -> Result<()> {
        match self.damaged_newer.first() {
            None => Ok(()),
            Some(DamagedManifest { why, .. }) => {
                Err(Error::corrupt(format!("{why}, or delete it to go on from the version before")))
            }
        }
    }

    /// Dimension, element type and distance, in words.
    pub fn vectors(&self) -> String {
        format!("{} × {}, {}", self.dim, self.dtype, self.metric)
    }

    /// Kind, when known to this program.
    pub fn kind(&self) -> Option<IndexKind> {
        IndexKind::parse(&self.kind)
    }

    /// Constants of the kind; the usual ones of a kind that this program does not know.
    pub fn facts(&self) -> &'static KindFacts {
        self.kind().map_or(&KindFacts::USUAL, facts)
    }

    /// The seed of the build.
    pub fn seed(&self) -> u64 {
        self.build.get("seed").and_then(|s| s.as_u64()).unwrap_or(1)
    }

    /// The section of its kind, as `read` finds it.
    ///
    /// # Errors
    /// A manifest without one.
    pub(crate) fn own<'a, S>(
        &'a self,
        folder: &Path,
        read: impl FnOnce(&'a Section) -> Option<&'a S>,
    ) -> Result<&'a S> {
        read(&self.section).ok_or_else(|| {
            let (folder, kind) = (folder.display(), &self.kind);
            Error::corrupt(format!(
                "{folder}: the manifest has no section of a {kind}; build the index again"
            ))
        })
    }

    /// The file that has this role.
    pub(crate) fn file(&self, wanted: &str) -> Result<(&str, &FileEntry)> {
        let is_it = |name: &str| name.split_once('-').is_some_and(|(_, role)| role == wanted);
        let found = self.files.iter().find(|(name, _)| is_it(name));
        let (name, entry) = found.ok_or_else(|| {
            Error::corrupt(format!("the manifest names no {wanted}; build the index again"))
        })?;
        Ok((name, entry))
    }

    /// The role of the file that queries read.
    pub(crate) fn data_role(&self) -> &'static str {
        self.facts().data_role
    }

    /// The role of a server's part of that file.
    pub(crate) fn part_role(&self, server: usize) -> String {
        files::part(self.data_role(), server)
    }

    /// The file with the units of one server.
    pub fn part_name(&self, server: usize) -> Option<&str> {
        self.file(&self.part_role(server)).ok().map(|found| found.0)
    }

    /// Number of units that servers hold as a whole: of blocks, or of inverted lists.
    pub fn units(&self) -> u32 {
        let units_of_list = self.spread.as_ref().map_or(1, |spread| spread.slices.len().max(1) as u32);
        let grid = self.section.grid().map(|section| section.facts.lists().saturating_mul(units_of_list));
        let lists = self.section.lists().map(|section| section.facts.lists);
        lists.or(grid).unwrap_or(self.blocks.count)
    }

    /// Number of groups of units that stay together: of blocks, or of the clusters of a `hybrid-ivf`.
    pub(crate) fn groups(&self) -> u32 {
        let lists = self.section.lists().map(|section| section.facts.clusters());
        lists.unwrap_or_else(|| self.units())
    }

    /// Memory that opening will take, from the manifest alone.
    pub fn planned_account(&self, cache_budget: u64) -> Account {
        let mut account = Account::new();
        for (name, entry) in &self.files {
            match files::role(name) {
                Some(files::CODES) => account.add("codes", entry.bytes),
                Some(files::HEAD_CODES) => account.add("head codes", entry.bytes),
                Some(files::HEAD) => account.add("head graph", entry.bytes),
                Some(files::CODEBOOK) => account.add("codebook", entry.bytes),
                Some(files::NAV) => account.add("navigation graph", entry.bytes),
                Some(files::CENTROIDS) => account.add("centroids", entry.bytes),
                Some(files::DIRECTORY) => {
                    account.add("directory of lists", entry.bytes.saturating_add(LIST_CHOICE_BYTES))
                }
                Some(files::SUBLISTS) => account.add("lists of divided clusters", entry.bytes),
                Some(files::GRID) => account.add("vectors", entry.bytes),
                Some(files::AXES) => account.add("axes", entry.bytes),
                Some(files::SIZES) => account.add("sizes of lists", self.grid_places_bytes(entry.bytes / 4)),
                Some(files::FIRSTS) => account.add("first members of lists", entry.bytes),
                Some(files::META) => {
                    account.add("meta-HNSW", entry.bytes);
                    let facts = self.section.remote().map(|section| &section.facts);
                    account.add("table of clusters", facts.map_or(0, |facts| facts.table_bytes()));
                }
                Some(files::POSTINGS) => account.add("ids of lists", entry.bytes),
                Some(files::MAP) => account.add("block map", self.rows / 7 + 64),
                Some(files::PLACEMENT) => {
                    account.add("placement", placement_bytes(self.units()));
                    if let Some(facts) = self.section.lists().map(|section| section.facts) {
                        account.add("ranges of lists", facts.ranges_bytes());
                    }
                }
                _ => {}
            }
        }
        if self.deletes.is_some() {
            account.add("deleted rows", deletes::bytes_max(self.rows));
        }
        if cache_budget > 0 {
            account.add("block cache", cache_budget);
        }
        account
    }

    /// Bytes in RAM of where so many lists of a grid are.
    fn grid_places_bytes(&self, lists: u64) -> u64 {
        let units_of_list = self.spread.as_ref().map_or(2, |spread| spread.slices.len() as u64);
        lists * (8 + 8 * units_of_list) + 16
    }

    /// Element type, when known to this program.
    pub fn dtype(&self) -> Option<DType> {
        DType::from_name(&self.dtype)
    }

    /// Metric, when known to this program.
    pub fn metric(&self) -> Option<Metric> {
        Metric::from_name(&self.metric)
    }

    /// The hash that identifies the content.
    pub fn content_id(&self) -> BuildId {
        let mut parts = serde_json::json!({
            "kind": self.kind, "metric": self.metric, "dtype": self.dtype, "rows": self.rows, "dim": self.dim,
            "blocks": self.blocks, "build": self.build, "files": self.files,
        });
        if let Some(spread) = &self.spread {
            parts["cluster"] = serde_json::json!(SpreadFacts { prices: None, ..spread.clone() });
        }
        if let Some(points) = &self.points {
            parts["points"] = serde_json::json!(points);
        }
        self.section.identify(&mut parts);
        BuildId::of(xxh3_64(parts.to_string().as_bytes()))
    }

    /// The hash of the content without deletes: what was learned from queries holds after them too.
    pub(crate) fn learnt_id(&self) -> BuildId {
        if self.deletes.is_some() { self.without_deletes().content_id() } else { self.build_id }
    }

    /// Reads the newest manifest of the folder that is sound. Gives its number too.
    ///
    /// # Errors
    /// No index there, a damaged manifest, or one of a newer format.
    pub fn read(folder: &Path) -> Result<(u64, Manifest)> {
        open_newest(folder, |number, manifest| Ok((number, manifest)))
    }

    /// The manifest that `text` holds; `origin` is where it comes from, for errors.
    ///
    /// # Errors
    /// A damaged manifest, or one of a newer format.
    pub fn from_text(text: &str, origin: &Path) -> Result<Manifest> {
        parse(text, origin)
    }

    /// The manifest as it is stored, with its own checksum.
    ///
    /// # Errors
    /// When it holds what JSON cannot say.
    pub fn to_text(&self) -> Result<String> {
        let wrong = |e: serde_json::Error| Error::bad_input(format!("manifest: {e}"));
        let mut value = serde_json::to_value(self).map_err(wrong)?;
        seal(&mut value);
        Ok(serde_json::to_string_pretty(&value).map_err(wrong)? + "\n")
    }

    /// The data files that one server of a spread index opens, or all of them.
    ///
    /// # Errors
    /// A server that the index does not have; names that no index has.
    pub fn needed_by(&self, server: Option<usize>) -> Result<Vec<(&str, &FileEntry)>> {
        if let Some(bad) = self.files.keys().find(|name| files::role(name).is_none()) {
            return Err(Error::corrupt(format!(
                "the manifest names {bad}, which no index has; build the index again"
            )));
        }
        let servers = self.spread.as_ref().map_or(0, |c| c.servers);
        if let Some(server) = server.filter(|&s| s >= servers) {
            return Err(Error::bad_input(format!(
                "the index is partitioned over {servers} servers, there is no server {server}"
            )));
        }
        let own = server.map(|server| self.part_role(server));
        let is_needed = |name: &str| {
            let role = name.split_once('-').map(|(_, role)| role);
            own.is_none() || files::role(name) != Some(files::PARTS) || role == own.as_deref()
        };
        Ok(self.files.iter().filter(|(name, _)| is_needed(name)).map(|(name, f)| (&**name, f)).collect())
    }

    /// Compares the files that are in the folder with the lengths here, without reading them. A server has some.
    ///
    /// # Errors
    /// One that is no regular file, cannot be opened, or has another length.
    pub fn check_lengths(&self, folder: &Path) -> Result<()> {
        let files = self.files.iter().map(|(name, entry)| (folder.join(name), entry));
        let mut present = files.filter(|(path, _)| path.symlink_metadata().is_ok());
        present.try_for_each(|(path, entry)| open_file(&path, entry).map(drop))
    }

    /// Publishes this manifest as `number`. The name must be free: of two writers one fails.
    pub fn publish(&self, folder: &Path, number: u64) -> Result<()> {
        let text = self.to_text()?;
        let path = path_of(folder, number);
        // Written aside, then linked: the name appears with its whole content or not at all, and never replaces
        // another.
        let aside = folder.join(format!(".manifest-{number}.{}", std::process::id()));
        let published =
            write_synced(&aside, text.as_bytes()).and_then(|()| std::fs::hard_link(&aside, &path));
        let _ = std::fs::remove_file(&aside);
        published.map_err(|e| Error::io("publishing", &path, &e))?;
        sync_folder(folder)
    }
}

/// Memory that choosing the resident lists takes: the plan and the curves of the manifest, and the sorted lists.
pub(crate) const LIST_CHOICE_BYTES: u64 = 256 << 10;

/// Blocks between two counts of the ranks of a placement.
pub(crate) const BLOCKS_PER_RANK: usize = 64;

/// Memory of a placement and its ranks.
pub(crate) fn placement_bytes(units: u32) -> u64 {
    u64::from(units) * 8 + u64::from(units).div_ceil(BLOCKS_PER_RANK as u64) * 4
}

/// Folder of the stages of an unfinished build, inside the index folder.
pub const PARTIAL: &str = "partial";

/// Longest text of a manifest; one of a million clusters has a few MiB.
pub const TEXT_BYTES_MAX: u64 = 64 << 20;

fn damaged(path: &Path, why: &str) -> Error {
    Error::corrupt(format!("{} is damaged ({why}); restore it or build the index again", path.display()))
}

fn parse(text: &str, path: &Path) -> Result<Manifest> {
    let damaged = |why: String| damaged(path, &why);
    let mut value: serde_json::Value = serde_json::from_str(text).map_err(|e| damaged(e.to_string()))?;
    let version = value["format_version"].as_u64().ok_or_else(|| damaged("no format_version".into()))?;
    if version > u64::from(FORMAT_VERSION) {
        return Err(Error::bad_input(format!(
            "{} has format version {version}, this program reads up to {FORMAT_VERSION}; use a newer stratann",
            path.display()
        )));
    }
    if !text.ends_with("}\n") {
        return Err(damaged("its end is missing".into()));
    }
    if !unseal(&mut value) {
        return Err(damaged("its checksum does not match".into()));
    }
    if !fits_f32(&value) {
        return Err(damaged("a number is too large".into()));
    }
    let manifest: Manifest = serde_json::from_value(value).map_err(|e| damaged(e.to_string()))?;
    if manifest.build_id != manifest.content_id() {
        return Err(damaged("its build_id is not that of its content".into()));
    }
    Ok(manifest)
}

/// Whether all numbers fit into an f32. A larger one would be read as infinity, which JSON cannot hold.
fn fits_f32(value: &serde_json::Value) -> bool {
    use serde_json::Value;
    match value {
        Value::Number(number) => number.as_f64().is_none_or(|x| x.abs() <= f64::from(f32::MAX)),
        Value::Array(items) => items.iter().all(fits_f32),
        Value::Object(fields) => fields.values().all(fits_f32),
        Value::Null | Value::Bool(_) | Value::String(_) => true,
    }
}

fn path_of(folder: &Path, number: u64) -> PathBuf {
    folder.join(format!("manifest-{number}.json"))
}

/// Opens the newest version in the folder whose manifest is sound. Publishing removes the files of the version before,
/// so where `open` fails and a newer version was published meanwhile, that one is opened.
///
/// # Errors
/// Those of `open`; no index there, a damaged manifest, or one of a newer format.
pub fn open_newest<T>(folder: &Path, mut open: impl FnMut(u64, Manifest) -> Result<T>) -> Result<T> {
    loop {
        let number = newest(folder)?;
        let opened = match number {
            Some(number) => {
                newest_sound(folder, number).and_then(|(number, manifest)| open(number, manifest))
            }
            None => Err(not_an_index(folder)),
        };
        match opened {
            Err(e) if e.kind != ErrorKind::Interrupted && newest(folder)? > number => {}
            opened => return opened,
        }
    }
}

/// Reads manifest `newest`, or the next older one that is not damaged.
fn newest_sound(folder: &Path, newest: u64) -> Result<(u64, Manifest)> {
    let first = match read_numbered(folder, newest) {
        Err(e) if e.kind == ErrorKind::Corrupt => e,
        read => return read.map(|manifest| (newest, manifest)),
    };
    let mut damaged_newer = vec![DamagedManifest { number: newest, why: first.message.clone() }];
    let mut older: Vec<u64> = numbers(folder)?.into_iter().filter(|&number| number < newest).collect();
    older.sort_unstable();
    for number in older.into_iter().rev() {
        match read_numbered(folder, number) {
            Ok(manifest) => return Ok((number, Manifest { damaged_newer, ..manifest })),
            Err(e) => damaged_newer.push(DamagedManifest { number, why: e.message }),
        }
    }
    Err(first)
}

fn read_numbered(folder: &Path, number: u64) -> Result<Manifest> {
    let path = path_of(folder, number);
    let bytes = input::read_up_to(&path, TEXT_BYTES_MAX).map_err(|e| failed("reading", &path, &e))?;
    let text = std::str::from_utf8(&bytes).map_err(|e| damaged(&path, &e.to_string()))?;
    Manifest::from_text(text, &path)
}

fn not_an_index(folder: &Path) -> Error {
    let hint = if folder.join(PARTIAL).exists() {
        "its build was not finished; run the same `stratann build` with --resume"
    } else {
        "it holds no manifest-N.json; build one with `stratann build`"
    };
    Error::bad_input(format!("{} is not an index: {hint}", folder.display()))
}

/// The highest manifest number in the folder.
pub fn newest(folder: &Path) -> Result<Option<u64>> {
    Ok(numbers(folder)?.into_iter().max())
}

fn numbers(folder: &Path) -> Result<Vec<u64>> {
    let entries = match std::fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            return Err(Error::bad_input(format!(
                "{}: no such index; build one with `stratann build`",
                folder.display()
            )));
        }
        Err(e) => return Err(Error::io("opening index", folder, &e)),
    };
    Ok(entries.flatten().filter_map(|entry| number_of(entry.file_name().to_str()?)).collect())
}

/// The number in the name of a manifest.
pub fn number_of(name: &str) -> Option<u64> {
    let digits = name.strip_prefix("manifest-")?.strip_suffix(".json")?;
    // Only as it is written: neither `+1` nor `01` is the name of manifest 1.
    digits.parse::<u64>().ok().filter(|number| number.to_string() == digits)
}

/// The number of the version after `number`; `place` is where they are.
///
/// # Errors
/// There is none.
pub fn number_after(number: u64, place: &Path) -> Result<u64> {
    number.checked_add(1).ok_or_else(|| {
        Error::bad_input(format!(
            "{}: manifest-{number}.json has the largest number, no version can follow; rename it to \
             manifest-1.json if it is sound, else delete it",
            place.display()
        ))
    })
}

/// Removes the files of versions before `number`, now that it is published, but for those that it shares.
pub(crate) fn remove_older(out: &Path, number: u64, manifest: &Manifest) {
    let Ok(entries) = std::fs::read_dir(out) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let Some(name) = name.to_str() else { continue };
        let of_file =
            || files::role(name).and_then(|_| name.strip_prefix('v')?.split_once('-')?.0.parse().ok());
        let is_older = number_of(name).or_else(of_file).is_some_and(|version| version < number);
        if is_older && !manifest.files.contains_key(name) {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}
