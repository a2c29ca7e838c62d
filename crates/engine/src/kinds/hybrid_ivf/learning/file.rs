//! The file of what was learned, beside the index. It may be lost without harm, so a damaged one is a warning.
//!
//! | bytes | content |
//! |---|---|
//! | 8 | checksum of all that follows |
//! | 16 | build id of the index |
//! | 4, 4 | hot members h, clusters c |
//! | 8, 8 | epochs, and queries in them, that were learned from |
//! | h × 8 | member and score |
//! | c × 4 | visits |

use std::fmt;
use std::path::Path;

use serde::Serialize;
use stratann_core::format::checksum;
use stratann_storage::names::BuildId;
use stratann_storage::output::AtomicFile;
use stratann_storage::{Result, input};

use super::{LearningSource, TrafficSummary};
use crate::files::{LEARNT, learnt};
use crate::kinds::hybrid_ivf::snapshot::Snapshot;
use crate::kinds::section::Section;
use crate::manifest::Manifest;

const HEADER: usize = 8 + 16 + 8 + 16;
/// Longer files are of no index: each vector is hot at most once, and few are.
const BYTES_MAX: u64 = 256 << 20;

/// Content of the file of learned state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct LearnedFacts {
    /// Epochs that were learned from.
    pub epochs: u64,
    /// Queries in them.
    pub queries: u64,
    /// Hot vectors.
    pub hot: u64,
    /// Clusters with visits.
    pub visited_clusters: u64,
    /// Length of the file.
    pub bytes: u64,
}

/// Describes what the index in `folder` has learned; `Ok(None)` when nothing, `Err` says why it cannot be used.
///
/// # Errors
/// A file that cannot be read, is damaged, or is of another build.
pub fn describe(folder: &Path, manifest: &Manifest) -> std::result::Result<Option<LearnedFacts>, String> {
    let clusters = manifest.own(folder, Section::lists).map_or(0, |section| section.facts.sizes.count as u32);
    let summary = load(&folder.join(LEARNT), manifest.learnt_id(), clusters)?;
    Ok(summary.map(|summary| LearnedFacts {
        epochs: summary.epochs,
        queries: summary.queries,
        hot: summary.hot.len() as u64,
        visited_clusters: summary.visits.iter().filter(|&&v| v > 0).count() as u64,
        bytes: (HEADER + 8 * summary.hot.len() + 4 * summary.visits.len()) as u64,
    }))
}

/// Reads what was learned before; `Ok(None)` when nothing was, `Err` says why it cannot be used.
pub(crate) fn read(source: &LearningSource) -> std::result::Result<Option<TrafficSummary>, String> {
    load(&source.path, source.build_id, source.tables.directory.clusters())
}

/// Reads the file at `path` for this build; as [`read`].
pub(crate) fn load(
    path: &Path,
    build_id: BuildId,
    clusters: u32,
) -> std::result::Result<Option<TrafficSummary>, String> {
    let bytes = match input::read_up_to(path, BYTES_MAX) {
        Ok(bytes) => bytes,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => {
            return Err(format!("{} cannot be read ({e}); what was learned is not used", path.display()));
        }
    };
    decode(&bytes, build_id, clusters).map(Some).map_err(|why| {
        format!("{} {why}; what was learned is not used, the index itself is unharmed", path.display())
    })
}

/// The names of the files in `folder` that are there and damaged: of all servers, where the index is partitioned. One
/// of another build is sound, and not used.
pub(crate) fn damaged(folder: &Path, manifest: &Manifest, clusters: u32) -> Vec<String> {
    let servers = (0..manifest.spread.as_ref().map_or(0, |spread| spread.servers)).map(Some);
    let is_damaged = |name: &String| match input::read_up_to(&folder.join(name), BYTES_MAX) {
        Ok(bytes) => matches!(decode(&bytes, manifest.learnt_id(), clusters), Err(Unusable::Damaged)),
        Err(e) => e.kind() != std::io::ErrorKind::NotFound,
    };
    std::iter::once(None).chain(servers).map(learnt).filter(is_damaged).collect()
}

/// Why a file cannot be used.
enum Unusable {
    Damaged,
    OtherBuild,
}

impl fmt::Display for Unusable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Unusable::Damaged => "is damaged",
            Unusable::OtherBuild => "is of another build of the index",
        })
    }
}

fn decode(bytes: &[u8], build_id: BuildId, clusters: u32) -> std::result::Result<TrafficSummary, Unusable> {
    let damaged = Unusable::Damaged;
    let Some((head, rest)) = bytes.split_at_checked(HEADER) else { return Err(damaged) };
    if head[..8] != checksum(&bytes[8..]).to_le_bytes() {
        return Err(damaged);
    }
    if &head[8..24] != build_id.to_string().as_bytes() {
        return Err(Unusable::OtherBuild);
    }
    let word = |b: &[u8]| u32::from_le_bytes([b[0], b[1], b[2], b[3]]);
    let long = |b: &[u8]| u64::from(word(b)) | u64::from(word(&b[4..])) << 32;
    let (hot, count) = (word(&head[24..28]) as usize, word(&head[28..32]));
    if count != clusters
        || Some(rest.len()) != hot.checked_mul(8).and_then(|h| h.checked_add(4 * count as usize))
    {
        return Err(damaged);
    }
    let (pairs, visits) = rest.split_at(8 * hot);
    Ok(TrafficSummary {
        hot: pairs.chunks_exact(8).map(|b| (word(b), word(&b[4..]))).collect(),
        visits: visits.chunks_exact(4).map(word).collect(),
        epochs: long(&head[32..40]),
        queries: long(&head[40..48]),
    })
}

fn encode(build_id: BuildId, summary: &TrafficSummary) -> Vec<u8> {
    let mut out = vec![0u8; 8];
    out.extend_from_slice(build_id.to_string().as_bytes());
    out.resize(24, 0);
    let mut put = |word: u32| out.extend_from_slice(&word.to_le_bytes());
    put(summary.hot.len() as u32);
    put(summary.visits.len() as u32);
    for long in [summary.epochs, summary.queries] {
        put(long as u32);
        put((long >> 32) as u32);
    }
    summary.hot.iter().for_each(|&(id, score)| {
        put(id);
        put(score);
    });
    summary.visits.iter().copied().for_each(put);
    let sum = checksum(&out[8..]);
    out[..8].copy_from_slice(&sum.to_le_bytes());
    out
}

/// Writes what this snapshot has learned.
pub(super) fn write(source: &LearningSource, snapshot: &Snapshot) -> Result<()> {
    let first = snapshot.nav.bootstrap as usize;
    let mut hot: Vec<(u32, u32)> =
        snapshot.nav.ids[first..].iter().copied().zip(snapshot.nav.scores.iter().copied()).collect();
    hot.sort_unstable_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(&b.0)));
    let (epochs, queries) = (snapshot.epochs, snapshot.queries);
    let summary = TrafficSummary { hot, visits: snapshot.visits.clone(), epochs, queries };
    save(&source.path, source.build_id, &summary)
}

/// Writes what was learned, for this build.
pub(crate) fn save(path: &Path, build_id: BuildId, summary: &TrafficSummary) -> Result<()> {
    let mut file = AtomicFile::create(path)?;
    file.write(&encode(build_id, summary))?;
    file.commit()
}
