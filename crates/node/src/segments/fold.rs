//! Makes a segment of one whose payloads have changed. The files of its index and of its vectors are those of the older
//! one, under a second name: nothing of them is built or written again.

use std::path::Path;

use stratann_storage::input::open_regular;
use stratann_storage::{Error, Progress, Result};

use super::content::Content;
use super::made::{Built, Making, NewVectors, clear};
use super::merge::{Merged, Source, check_room, content_of, copy_payloads, ids_of, ordinals};
use super::named::Files;

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
    let entries = source.segment.entry.all_indexes();
    for own in &entries {
        let has_names = own.places.is_some();
        let (from, to) = (Files::of(older, own.name, has_names), Files::of(folder, own.name, has_names));
        link_all(&from.index(), &to.index())?;
        if own.vectors.is_some() {
            link(&from.vectors(), &to.vectors())?;
        }
    }
    let payloads = copy_payloads(sources, &ordinals, (folder, rows), progress)?;
    let mut hashes = vec![0u64; rows as usize];
    progress.stage("comparing vectors", rows, "rows");
    for (name, of) in making.vectors.iter().enumerate() {
        source.segment.for_each_vector(name, progress, &mut |row, vector| {
            let ordinal = ordinals.first().and_then(|own| own.get(row as usize)).copied().unwrap_or(u32::MAX);
            if let Some(sum) = hashes.get_mut(ordinal as usize) {
                *sum = sum.wrapping_add(Content::of_named(&of.name, Content::of_vector(vector)));
            }
        })?;
    }
    let before = content_of(sources, &hashes, &payloads)?;
    let mut built = Built::new(folder, rows, making);
    for own in &entries {
        // Rows keep their places, so ordinals are what they were.
        let with_it = source.segment.index(own.name).and_then(|index| index.segment_rows());
        let with_it = with_it.map_or_else(|| (0..rows as u32).collect(), <[u32]>::to_vec);
        built.add(own.name, NewVectors::new(None, with_it), making, progress)?;
    }
    let mut entry = built.finish((ids_of(sources), &payloads), (making, before), progress)?;
    payloads.remove()?;
    // Curves are those that the index had.
    let older = &source.segment.entry;
    entry.measured_rows = older.measured_rows;
    for own in &mut entry.indexes {
        own.measured_rows = older.index_of(own.name).and_then(|older| older.measured_rows);
    }
    Ok(Merged { entry, ordinals, taken_over: 0 })
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
