//! What was learnt, kept beside the index. It may be lost without harm, so whatever is wrong with it is a warning.
//!
//! | bytes | content |
//! |---|---|
//! | 8 | checksum of all that follows |
//! | 16 | build id of the index |
//! | 4, 4 | hot members h, clusters c |
//! | 8, 8 | epochs, and queries in them, that were learnt from |
//! | h × 8 | member and score |
//! | c × 4 | visits |

use std::path::Path;

use serde::Serialize;
use stratann_core::format::checksum;

use super::{Ground, Learnt};
use crate::Result;
use crate::dataset::AtomicFile;
use crate::kinds::hybrid_ivf::snapshot::Snapshot;
use crate::manifest::Manifest;

/// The name of the file in the index folder.
pub(crate) const NAME: &str = "learnt.bin";
const HEADER: usize = 8 + 16 + 8 + 16;

/// What a file of learnt state says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct LearntFacts {
    /// Epochs that were learnt from.
    pub epochs: u64,
    /// Queries in them.
    pub queries: u64,
    /// Hot vectors.
    pub hot: u64,
    /// Clusters that were visited lately.
    pub visited_clusters: u64,
    /// Length of the file.
    pub bytes: u64,
}

/// What the index in `folder` has learnt; `Ok(None)` when it has learnt nothing, `Err` says why that cannot be used.
///
/// # Errors
/// A file that cannot be read, is damaged, or is of another build.
pub fn describe(folder: &Path, manifest: &Manifest) -> std::result::Result<Option<LearntFacts>, String> {
    let clusters = manifest.clusters.map_or(0, |c| c.sizes.count as u32);
    let learnt = load(&folder.join(NAME), &manifest.build_id, clusters)?;
    Ok(learnt.map(|learnt| LearntFacts {
        epochs: learnt.epochs,
        queries: learnt.queries,
        hot: learnt.hot.len() as u64,
        visited_clusters: learnt.visits.iter().filter(|&&v| v > 0).count() as u64,
        bytes: (HEADER + 8 * learnt.hot.len() + 4 * learnt.visits.len()) as u64,
    }))
}

/// What was learnt before; `Ok(None)` when nothing was, `Err` says why it cannot be used.
pub(crate) fn read(ground: &Ground) -> std::result::Result<Option<Learnt>, String> {
    load(&ground.path, &ground.build_id, ground.parts.directory.clusters())
}

/// What the file at `path` holds for this build; as [`read`].
pub(crate) fn load(
    path: &Path,
    build_id: &str,
    clusters: u32,
) -> std::result::Result<Option<Learnt>, String> {
    let bytes = match std::fs::read(path) {
        Ok(bytes) => bytes,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => {
            return Err(format!("{} cannot be read ({e}); what was learnt is not used", path.display()));
        }
    };
    decode(&bytes, build_id, clusters).map(Some).map_err(|why| {
        format!("{} {why}; what was learnt is not used, the index itself is unharmed", path.display())
    })
}

fn decode(bytes: &[u8], build_id: &str, clusters: u32) -> std::result::Result<Learnt, &'static str> {
    let damaged = "is damaged";
    let (head, rest) = bytes.split_at_checked(HEADER).ok_or(damaged)?;
    if head[..8] != checksum(&bytes[8..]).to_le_bytes() {
        return Err(damaged);
    }
    if &head[8..24] != build_id.as_bytes() {
        return Err("is of another build of the index");
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
    Ok(Learnt {
        hot: pairs.chunks_exact(8).map(|b| (word(b), word(&b[4..]))).collect(),
        visits: visits.chunks_exact(4).map(word).collect(),
        epochs: long(&head[32..40]),
        queries: long(&head[40..48]),
    })
}

fn encode(build_id: &str, learnt: &Learnt) -> Vec<u8> {
    let mut out = vec![0u8; 8];
    out.extend_from_slice(build_id.as_bytes());
    out.resize(24, 0);
    let mut put = |word: u32| out.extend_from_slice(&word.to_le_bytes());
    put(learnt.hot.len() as u32);
    put(learnt.visits.len() as u32);
    for long in [learnt.epochs, learnt.queries] {
        put(long as u32);
        put((long >> 32) as u32);
    }
    learnt.hot.iter().for_each(|&(id, score)| {
        put(id);
        put(score);
    });
    learnt.visits.iter().copied().for_each(put);
    let sum = checksum(&out[8..]);
    out[..8].copy_from_slice(&sum.to_le_bytes());
    out
}

/// Writes what this snapshot has learned.
pub(super) fn write(ground: &Ground, snapshot: &Snapshot) -> Result<()> {
    let first = snapshot.nav.bootstrap as usize;
    let mut hot: Vec<(u32, u32)> =
        snapshot.nav.ids[first..].iter().copied().zip(snapshot.nav.scores.iter().copied()).collect();
    hot.sort_unstable_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(&b.0)));
    let (epochs, queries) = (snapshot.epochs, snapshot.queries);
    let learnt = Learnt { hot, visits: snapshot.visits.clone(), epochs, queries };
    save(&ground.path, &ground.build_id, &learnt)
}

/// Keeps what was learnt, for this build.
pub(crate) fn save(path: &Path, build_id: &str, learnt: &Learnt) -> Result<()> {
    let mut file = AtomicFile::create(path)?;
    file.write(&encode(build_id, learnt))?;
    file.commit()
}
