//! Reads a whole index and says everything that is wrong with it.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use serde::Serialize;
use stratann_core::PAGE;
use stratann_core::check::{Checker, Violation};
use stratann_core::format::block::{BlockLayout, Damage};
use stratann_core::plan::IndexView;
use stratann_kernel::{DType, Metric};
use xxhash_rust::xxh3::Xxh3;

use crate::index::{Index, OpenOptions};
use crate::manifest::{self, FileEntry, Manifest, hex};
use crate::{Error, Kind, Progress, Result, files, spread};

/// One thing that must not be.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Name of the file in the index folder.
    pub file: String,
    /// The block, where one can be named.
    pub block: Option<u32>,
    /// The posting list, where one can be named.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub list: Option<u32>,
    /// Where in the file it begins, bytes.
    pub offset: Option<u64>,
    /// What is wrong.
    pub what: String,
}

/// What a verification found.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    /// Number of the manifest.
    pub version: u64,
    /// Files that were read.
    pub files: usize,
    /// Their bytes.
    pub bytes: u64,
    /// Blocks that were checked.
    pub blocks: u32,
    /// Posting lists that were checked, of a `hybrid-ivf`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lists: Option<u32>,
    /// Nodes in them.
    pub nodes: u64,
    /// Edges between nodes.
    pub edges: u64,
    /// Nodes in blocks that no head node lies in and no list of another block leads to: no search finds them. A few are tolerable.
    pub unreachable: u64,
    /// What is wrong; empty for a sound index. At most [`FINDINGS_MAX`] are listed.
    pub violations: Vec<Finding>,
    /// How many there are in all.
    pub violations_found: u64,
}

/// Findings that are listed one by one.
pub const FINDINGS_MAX: usize = 1000;

impl Report {
    pub(crate) fn found(&mut self, finding: Finding) {
        self.violations_found += 1;
        if self.violations.len() < FINDINGS_MAX {
            self.violations.push(finding);
        }
    }
}

/// Checks the newest version in `folder`: the manifest, every file against it, every block, and what must hold between blocks.
/// Takes three bytes of memory per block besides what opening takes, and four per vector where blocks carry codes; of a `hybrid-ivf` one per
/// vector, and twice 8 MiB or the vectors of its largest graph.
///
/// # Errors
/// When there is no index to check, or it is of a newer format. Damage is no error but a finding.
pub fn verify(folder: &Path, progress: &dyn Progress) -> Result<Report> {
    let mut report = Report::default();
    let (number, manifest) = match Manifest::read(folder) {
        Ok(read) => read,
        Err(e) if e.kind == Kind::Corrupt => {
            let number = manifest::newest(folder)?.unwrap_or(0);
            report.version = number;
            let file = format!("manifest-{number}.json");
            report.found(Finding { file, what: e.message, ..Finding::default() });
            return Ok(report);
        }
        Err(e) => return Err(e),
    };
    report.version = number;
    let again = files::find(&manifest, files::LISTS).map_or(0, |lists| lists.1.bytes);
    let total = again + manifest.files.values().map(|f| f.bytes).sum::<u64>();
    progress.stage("verifying", total, "bytes");
    let is_blocks = |name: &str| matches!(files::role(name), Some(files::BLOCKS | files::PARTS));
    for (name, entry) in manifest.files.iter().filter(|(name, _)| !is_blocks(name)) {
        check_file(folder, name, entry, &mut |_| {}, progress, &mut report)?;
    }
    if manifest.clusters.is_some() {
        crate::kinds::hybrid_ivf::verify::check(folder, number, &manifest, progress, &mut report)?;
        return Ok(report);
    }
    if let Some(cluster) = &manifest.cluster {
        spread::check(folder, &manifest, cluster, progress, &mut report)?;
        return Ok(report);
    }
    match files::find(&manifest, files::BLOCKS) {
        Ok((name, _)) => check_blocks(folder, name, number, &manifest, progress, &mut report)?,
        Err(e) => {
            let file = format!("manifest-{number}.json");
            report.found(Finding { file, what: e.message, ..Finding::default() });
        }
    }
    Ok(report)
}

/// Reads a file in pieces, gives them to `each`, and compares length and checksum with the manifest.
fn check_file(
    folder: &Path,
    name: &str,
    entry: &FileEntry,
    each: &mut dyn FnMut(&[u8]),
    progress: &dyn Progress,
    report: &mut Report,
) -> Result<()> {
    let path = folder.join(name);
    let finding = |what: String| Finding { file: name.into(), what, ..Finding::default() };
    let mut file = match File::open(&path) {
        Ok(file) => file,
        Err(e) => {
            report.found(finding(format!("it cannot be opened: {e}")));
            return Ok(());
        }
    };
    let (mut hash, mut bytes, mut buffer) = (Xxh3::new(), 0u64, vec![0u8; 1 << 20]);
    loop {
        if progress.interrupted() {
            return Err(Error::interrupted());
        }
        let have = match fill(&mut file, &mut buffer) {
            Ok(have) => have,
            Err(e) => {
                let what = format!("reading it failed: {e}");
                report.found(Finding { offset: Some(bytes), ..finding(what) });
                return Ok(());
            }
        };
        hash.update(&buffer[..have]);
        each(&buffer[..have]);
        bytes += have as u64;
        progress.advance(have as u64);
        if have < buffer.len() {
            break;
        }
    }
    report.files += 1;
    report.bytes += bytes;
    if bytes != entry.bytes {
        report.found(finding(format!("it has {bytes} bytes, the manifest says {}", entry.bytes)));
    } else if hex(hash.digest()) != entry.xxh3 {
        report.found(finding("its checksum does not match the manifest".into()));
    }
    Ok(())
}

fn fill(file: &mut File, buffer: &mut [u8]) -> std::io::Result<usize> {
    let mut have = 0;
    while have < buffer.len() {
        match file.read(&mut buffer[have..]) {
            Ok(0) => break,
            Ok(n) => have += n,
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(have)
}

/// Checks the file of blocks as a whole, and block by block while it streams by.
fn check_blocks(
    folder: &Path,
    name: &str,
    number: u64,
    manifest: &Manifest,
    progress: &dyn Progress,
    report: &mut Report,
) -> Result<()> {
    let opened = Index::from_manifest(folder, number, manifest.clone(), OpenOptions::default());
    let plain = plain_view(manifest);
    let view = match (&opened, &plain) {
        (Ok(index), _) => Some(index.view()),
        (Err(e), view) => {
            // Mostly a damaged file again; without it blocks are checked one by one, not against each other.
            let (file, what) = (file_in(&e.message, manifest), e.message.clone());
            report.found(Finding { file, what, ..Finding::default() });
            *view
        }
    };
    let mut blocks = Blocks {
        view,
        checker: view.map(|v| Checker::new(&v)),
        next: 0,
        rest: Vec::new(),
        found: Vec::new(),
    };
    check_file(folder, name, &manifest.files[name], &mut |bytes| blocks.take(bytes), progress, report)?;
    let Some(view) = view else { return Ok(()) };
    let Blocks { checker, next, mut found, .. } = blocks;
    report.blocks = next;
    report.nodes = manifest.rows;
    if let Some(checker) = checker {
        let done = checker.finish(&view, &mut found);
        report.edges = done.edges;
        // Without the head graph nobody can say what is reachable.
        report.unreachable = if opened.is_ok() && view.graph.is_some() { done.unreachable } else { 0 };
    }
    for violation in found {
        report.found(finding(name, &violation, &view));
    }
    Ok(())
}

/// Cuts a stream of bytes into blocks.
struct Blocks<'a> {
    view: Option<IndexView<'a>>,
    checker: Option<Checker>,
    next: u32,
    rest: Vec<u8>,
    found: Vec<Violation>,
}

impl Blocks<'_> {
    fn take(&mut self, bytes: &[u8]) {
        let (Some(view), Some(checker)) = (&self.view, &mut self.checker) else { return };
        self.rest.extend_from_slice(bytes);
        let size = view.block.block_bytes;
        let whole = self.rest.len() / size * size;
        for block in self.rest[..whole].chunks_exact(size) {
            if self.next < view.blocks {
                checker.block(view, self.next, block, &mut self.found);
            }
            self.next += 1;
        }
        self.rest.drain(..whole);
    }
}

/// The view as far as the manifest alone tells; `None` when its numbers cannot be.
pub(crate) fn plain_view(manifest: &Manifest) -> Option<IndexView<'static>> {
    let (dtype, metric): (DType, Metric) = (manifest.dtype()?, manifest.metric()?);
    let block = BlockLayout {
        block_bytes: manifest.blocks.bytes,
        vector_bytes: manifest.dim.checked_mul(dtype.size())?,
        id_bytes: manifest.blocks.id_bytes,
        norms: metric == Metric::Cosine,
        adjacency: manifest.kind == crate::build::Kind::DiskGraph.name(),
        code_bytes: manifest.blocks.code_bytes,
    };
    let sane = block.block_bytes >= PAGE
        && block.block_bytes <= 1 << 20
        && (block.id_bytes == 4 || block.id_bytes == 8)
        && block.code_bytes <= block.block_bytes;
    let nodes = u32::try_from(manifest.rows).ok()?;
    let view = IndexView {
        metric,
        dtype,
        dim: manifest.dim,
        nodes,
        blocks: manifest.blocks.count,
        block,
        graph: None,
        clusters: None,
        here: None,
    };
    (sane && (manifest.clusters.is_some() || block.node_bytes() <= block.payload_bytes())).then_some(view)
}

/// The data file that an error speaks of, else the manifest's folder as a whole.
pub(crate) fn file_in(message: &str, manifest: &Manifest) -> String {
    let named = manifest.files.keys().find(|name| message.contains(name.as_str()));
    named.cloned().unwrap_or_else(|| ".".into())
}

pub(crate) fn finding(file: &str, violation: &Violation, view: &IndexView<'_>) -> Finding {
    let block_of = |node: u32| view.graph.map(|g| g.map.block_of(node));
    let (block, what) = match *violation {
        Violation::Block { block, damage } => (Some(block), damage_words(damage).to_string()),
        Violation::Misplaced { block } => (Some(block), "its nodes are not those that the map says".into()),
        Violation::List { node } => {
            (block_of(node), format!("the neighbour list of node {node} makes no sense"))
        }
        Violation::Vector { node } => (block_of(node), format!("the vector of node {node} is not finite")),
        Violation::Code { block, node } => {
            (Some(block), format!("the code of node {node} is not the one that it has elsewhere"))
        }
    };
    let offset = block.map(|b| u64::from(b) * view.block.block_bytes as u64);
    Finding { file: file.into(), block, offset, what, list: None }
}

pub(crate) fn damage_words(damage: Damage) -> &'static str {
    match damage {
        Damage::Short => "the block is cut short",
        Damage::Checksum => "the block's checksum does not match",
        Damage::WrongBlock => "the bytes are another block's",
        Damage::Layout => "the checksum matches but the layout makes no sense",
    }
}

/// Files in the folder that the newest version does not need: what an interrupted build or a crash left.
pub fn left_over(folder: &Path, manifest: &Manifest, number: u64) -> Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(folder).map_err(|e| Error::io("opening index", folder, &e))?;
    let mut names: Vec<String> = entries.flatten().filter_map(|e| e.file_name().into_string().ok()).collect();
    names.sort_unstable();
    let needed = |name: &String| {
        *name == format!("manifest-{number}.json") || manifest.files.contains_key(name) || name == "lock"
    };
    Ok(names.into_iter().filter(|n| !needed(n)).map(|n| folder.join(n)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Quiet;
    use crate::build::{BuildOptions, build};
    use crate::dataset::{Reader, Shape as Rows};

    fn flat_index(folder: &Path) {
        let rows = Rows { rows: 300, dim: 8, dtype: DType::U8 };
        let base = Reader::from_memory(rows, (0..2400u32).map(|i| (i * 37 % 251) as u8).collect::<Vec<u8>>())
            .unwrap();
        build(&base, folder, &BuildOptions::new(crate::build::Kind::Flat, Metric::L2), &Quiet).unwrap();
    }

    #[test]
    fn a_sound_index_has_no_findings_and_a_flipped_bit_has_a_place() {
        let dir = tempfile::tempdir().unwrap();
        flat_index(dir.path());
        let report = verify(dir.path(), &Quiet).unwrap();
        assert_eq!((report.violations_found, report.nodes, report.files), (0, 300, 1));
        let path = dir.path().join("v1-blocks.bin");
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[100] ^= 1;
        std::fs::write(&path, bytes).unwrap();
        let report = verify(dir.path(), &Quiet).unwrap();
        assert!(
            report
                .violations
                .iter()
                .any(|f| f.block == Some(0) && f.offset == Some(0) && f.file == "v1-blocks.bin")
        );
        std::fs::remove_file(&path).unwrap();
        assert!(verify(dir.path(), &Quiet).unwrap().violations_found > 0);
    }
}
