//! Vectors of a `hybrid-ivf`, read past any search: for those who look at an index rather than search it.

use std::os::unix::fs::FileExt;

use stratann_core::PAGE;
use stratann_core::build::hash;
use stratann_core::format::directory::Pages;
use stratann_core::format::inverted_list::Record;

use crate::index::Index;
use crate::kinds::hybrid_ivf::lists::ClusterParts;
use crate::tier::Buffer;
use crate::{Error, Progress, Result};

/// Bytes that are read at a time.
const RUN_BYTES: usize = 1 << 20;

/// Draws members of an index, `sample` of them or half of all where that is less; equal seeds draw the same ones.
pub(crate) fn draw(rows: u32, sample: usize, seed: u64) -> Vec<u32> {
    let mut drawn: Vec<(u64, u32)> = (0..rows).map(|id| (hash(seed, 13, u64::from(id)), id)).collect();
    drawn.sort_unstable();
    drawn.truncate(sample.min(rows as usize / 2));
    drawn.into_iter().map(|d| d.1).collect()
}

/// The vector of one member.
///
/// # Errors
/// A disk that fails, a damaged record.
pub(crate) fn vector(index: &Index, clusters: &ClusterParts, id: u32) -> Result<Vec<u8>> {
    let mut vector = Vec::new();
    run(index, clusters, id, 1, &mut |run| {
        run.iter().for_each(|(_, r)| vector.extend_from_slice(r.vector()))
    })?;
    Ok(vector)
}

/// Members of one list that follow each other.
type Run<'a> = [(u32, Record<'a>)];

/// Shows every member to `see`, run by run.
///
/// # Errors
/// As [`vector`]; an interruption.
pub(crate) fn each(
    index: &Index,
    clusters: &ClusterParts,
    progress: &dyn Progress,
    see: &mut (dyn FnMut(&Run<'_>) + Send),
) -> Result<()> {
    let at_once = (RUN_BYTES / clusters.shape.record_bytes()).max(1);
    for list in 0..clusters.directory.list_count() as usize {
        let ids = clusters.directory.ids[list]..clusters.directory.ids[list + 1];
        for first in ids.clone().step_by(at_once) {
            if progress.interrupted() {
                return Err(Error::interrupted());
            }
            let count = (at_once as u32).min(ids.end - first);
            run(index, clusters, first, count, see)?;
            progress.advance(u64::from(count));
        }
    }
    Ok(())
}

/// Shows members of one list that follow each other.
fn run(
    index: &Index,
    clusters: &ClusterParts,
    first: u32,
    count: u32,
    see: &mut (dyn FnMut(&Run<'_>) + Send),
) -> Result<()> {
    let (shape, size) = (&clusters.shape, clusters.shape.record_bytes());
    let at = clusters.directory.record_at(shape, first);
    let pages = Pages::of(at, u64::from(count) * size as u64);
    let mut buffer = Buffer::new(pages.count as usize * PAGE);
    index
        .blocks_file
        .read_exact_at(buffer.bytes_mut(), u64::from(pages.first) * PAGE as u64)
        .map_err(|e| Error::io("reading", &index.blocks_path, &e))?;
    let records = buffer.bytes()[pages.skip as usize..].chunks_exact(size);
    let mut members = Vec::with_capacity(count as usize);
    for (id, bytes) in (first..first + count).zip(records) {
        let record = Record::verify(shape, id, bytes).ok_or_else(|| {
            Error::corrupt(format!(
                "the record of vector {id} at offset {} of {} is damaged; run `stratann verify`, then restore the file or build the index again",
                at + u64::from(id - first) * size as u64,
                index.blocks_path.display()
            ))
        })?;
        members.push((id, record));
    }
    see(&members);
    Ok(())
}
