//! Makes a segment of one whose payloads have changed. The files of its index and of its vectors are those of the older
//! one, under a second name: nothing of them is built or written again.

use std::path::Path;

use stratann_storage::input::open_regular;
use stratann_storage::{Error, Progress, Result};

use super::content::Content;
use super::layout::SegmentEntry;
use super::made::{Making, clear, write};
use super::merge::{Merged, Source, check_room, content_of, copy_payloads, ids_of, ordinals};
use super::segment::{INDEX, VECTORS};

/// Makes a segment with all rows of another one, of which dead ones have to be left as well, and with its newer
/// payloads. Rows keep their places.
///
/// # Errors
/// Damage; a disk that is full or fails; an interruption. What was written is removed.
pub(crate) fn fold(
    source: &Source,
    folder: &Path,
    making: &Making,
    progress: &dyn Progress,
) -> Result<Merged> {
    let rows = source.segment.rows();
    let raw = source.segment.payloads.as_ref().map_or(0, |own| 2 * own.raw_bytes());
    check_room(folder, 64 * rows + raw + source.overlay.bytes())?;
    clear(folder)?;
    let folded = folded(source, folder, (making, rows), progress);
    if folded.is_err() {
        let _ = std::fs::remove_dir_all(folder);
    }
    folded
}

fn folded(
    source: &Source,
    folder: &Path,
    (making, rows): (&Making, u64),
    progress: &dyn Progress,
) -> Result<Merged> {
    let sources = &[source];
    let ordinals = ordinals(sources, progress)?;
    let older = source.segment.folder();
    link_all(&older.join(INDEX), &folder.join(INDEX))?;
    if source.segment.entry.vectors.is_some() {
        link(&older.join(VECTORS), &folder.join(VECTORS))?;
    }
    let payloads = copy_payloads(sources, &ordinals, (folder, rows), progress)?;
    let mut hashes = vec![0; rows as usize];
    progress.stage("comparing vectors", rows, "rows");
    source.segment.for_each_vector(progress, &mut |row, vector| {
        let ordinal = ordinals.first().and_then(|own| own.get(row as usize)).copied().unwrap_or(u32::MAX);
        let hash = hashes.get_mut(ordinal as usize);
        hash.into_iter().for_each(|hash| *hash = Content::of_vector(vector));
    })?;
    let before = content_of(sources, &hashes, &payloads)?;
    let entry = write(folder, None, (ids_of(sources), &payloads), (making, before), progress)?;
    payloads.remove()?;
    let measured_rows = source.segment.entry.measured_rows;
    Ok(Merged { entry: SegmentEntry { measured_rows, ..entry }, ordinals })
}

/// Gives all files of a folder a second name in another one, which is made.
fn link_all(from: &Path, to: &Path) -> Result<()> {
    let failed = |e: std::io::Error| Error::io("reading", from, &e);
    std::fs::create_dir_all(to).map_err(|e| Error::io("creating", to, &e))?;
    for entry in std::fs::read_dir(from).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let (path, new) = (entry.path(), to.join(entry.file_name()));
        match entry.file_type().map_err(failed)?.is_dir() {
            true => link_all(&path, &new)?,
            false => link(&path, &new)?,
        }
    }
    Ok(())
}

/// Gives a file a second name, or copies it where the file system has no such names.
fn link(from: &Path, to: &Path) -> Result<()> {
    if std::fs::hard_link(from, to).is_ok() {
        return Ok(());
    }
    let copied = std::fs::copy(from, to).and_then(|_| open_regular(to, 0)?.sync_all());
    copied.map_err(|e| Error::io("copying a file to", to, &e))
}
