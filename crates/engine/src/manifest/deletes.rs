//! The rows of a version that are deleted: what the manifest says of them, and the file that has a bit for each row.

use std::path::Path;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use stratann_core::sieve::Sieve;
use stratann_storage::data_file::{entry_of, read_file};
use stratann_storage::durable::{sync_folder, write_synced};
use stratann_storage::names::FileName;
use stratann_storage::{Error, Result};

use super::Manifest;
use crate::files;

/// Deletes that can be taken back, one after another.
pub const UNDO_MAX: usize = 8;

/// The rows of a version that are deleted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeleteFacts {
    /// One for each delete, the last one last. Never empty.
    pub steps: Vec<DeleteStep>,
    /// Whether there were deletes before these, so that the first cannot be taken back.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_cut: bool,
    /// Rows that were left when the recall curves were measured; absent where that was before any delete.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measured_rows: Option<u64>,
}

/// The rows that were deleted after a delete.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeleteStep {
    /// The file that has a bit for each row.
    pub file: FileName,
    /// Rows that are deleted.
    pub rows: u64,
}

impl DeleteFacts {
    fn none() -> DeleteFacts {
        DeleteFacts { steps: Vec::new(), is_cut: false, measured_rows: None }
    }

    /// These in an index that has the last of them in this file, and cannot take it back.
    pub(crate) fn in_copy(&self, file: FileName) -> DeleteFacts {
        let rows = self.steps.last().map_or(0, |step| step.rows);
        DeleteFacts {
            steps: vec![DeleteStep { file, rows }],
            is_cut: true,
            measured_rows: self.measured_rows,
        }
    }
}

impl Manifest {
    /// Rows that are not deleted.
    pub fn live_rows(&self) -> u64 {
        self.rows - self.deleted_rows().min(self.rows)
    }

    /// Rows that are deleted.
    pub fn deleted_rows(&self) -> u64 {
        self.last_delete().map_or(0, |step| step.rows)
    }

    /// The delete that counts; `None` where no row is deleted.
    pub(crate) fn last_delete(&self) -> Option<&DeleteStep> {
        self.deletes.as_ref().and_then(|deletes| deletes.steps.last())
    }

    /// Rows that were there when the recall curves were measured.
    pub(crate) fn measured_rows(&self) -> u64 {
        let measured = self.deletes.as_ref().and_then(|deletes| deletes.measured_rows);
        measured.or(self.curve_rows).unwrap_or(self.rows)
    }

    /// Warning of recall curves that were measured among deletes and are used for more rows now; `None` of others.
    pub fn curves_note(&self) -> Option<String> {
        let (measured, left) = (self.measured_rows(), self.live_rows());
        (left > measured).then(|| {
            format!(
                "the recall curves were measured on {measured} rows, before deletes were taken back, and there are \
                 {left}: a search may find less than it is asked for; measure them again: `stratann tune`"
            )
        })
    }

    /// This index with the deletes before the last one alone. Curves that were measured among deletes stay.
    pub(crate) fn with_fewer_deletes(&self, deletes: Option<DeleteFacts>) -> Manifest {
        let measured = self.deletes.as_ref().and_then(|deletes| deletes.measured_rows);
        let mut manifest = self.with_deletes(deletes);
        if manifest.deletes.is_none() {
            manifest.curve_rows = measured.or(self.curve_rows).filter(|&measured| measured < self.rows);
        }
        manifest
    }

    /// Follows rows of the version in `folder` to their new ids. Writes which are deleted to `path`, for a file of this
    /// name; deletes before the last one cannot be taken back then.
    ///
    /// # Errors
    /// A damaged file of deleted rows; a disk that fails.
    pub(crate) fn move_deletes(
        &mut self,
        folder: &Path,
        (file, path): (FileName, &Path),
        now: impl Fn(u32) -> u32,
    ) -> Result<()> {
        let Some(live) = read(folder, self)? else { return Ok(()) };
        let mut deleted: Vec<u32> = live.complement().iter().map(now).collect();
        deleted.sort_unstable();
        let deleted = Sieve::from_sorted(live.rows(), &deleted)
            .ok_or_else(|| Error::corrupt(format!("{}: two rows have one place", folder.display())))?;
        let bytes = encode(&deleted);
        write_synced(path, &bytes).map_err(|e| Error::io("writing", path, &e))?;
        self.files.insert(file.clone(), entry_of(&bytes));
        let deletes = self.deletes.as_ref().map(|deletes| deletes.in_copy(file));
        *self = self.with_deletes(deletes);
        Ok(())
    }

    /// This index with all rows.
    pub(crate) fn without_deletes(&self) -> Manifest {
        self.with_deletes(None)
    }

    /// This index with other deletes. Its format is that of a version without where there are none.
    pub(crate) fn with_deletes(&self, deletes: Option<DeleteFacts>) -> Manifest {
        let mut manifest =
            Manifest { format_version: super::format_of(&deletes, &self.points), ..self.clone() };
        manifest.files.retain(|name, _| files::role(name) != Some(files::DELETED));
        for step in deletes.iter().flat_map(|deletes| &deletes.steps) {
            let known = self.files.get(&step.file).cloned();
            manifest.files.extend(known.map(|entry| (step.file.clone(), entry)));
        }
        manifest.deletes = deletes;
        manifest
    }
}

/// The rows of a version that searches can return; `None` where none is deleted.
///
/// # Errors
/// A file that is missing, damaged, or not of this version.
pub(crate) fn read(folder: &Path, manifest: &Manifest) -> Result<Option<Arc<Sieve>>> {
    let Some(step) = manifest.last_delete() else { return Ok(None) };
    let entry = manifest.files.get(&step.file).ok_or_else(|| {
        Error::corrupt(format!("the manifest names no {}, which has its deleted rows", &*step.file))
    })?;
    let bytes = read_file(folder, &step.file, entry)?;
    let deleted = decode(&bytes, manifest.rows, step.rows);
    let deleted = deleted.ok_or_else(|| files::senseless(&folder.join(&*step.file)))?;
    Ok(Some(Arc::new(deleted.complement())))
}

/// Bytes of the file before the bits.
const HEAD_BYTES: usize = 16;

fn encode(deleted: &Sieve) -> Vec<u8> {
    let mut out = Vec::from(u64::from(deleted.rows()).to_le_bytes());
    out.extend(u64::from(deleted.count()).to_le_bytes());
    out.extend(deleted.to_words().iter().flat_map(|word| word.to_le_bytes()));
    out
}

/// The deleted rows; `None` of a file for another number of rows, or of deleted ones.
fn decode(bytes: &[u8], rows: u64, count: u64) -> Option<Sieve> {
    let (head, bits) = bytes.split_at_checked(HEAD_BYTES)?;
    let words = |bytes: &[u8]| -> Vec<u64> {
        bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect()
    };
    if words(head) != [rows, count] || !bits.len().is_multiple_of(8) {
        return None;
    }
    Sieve::from_words(u32::try_from(rows).ok()?, &words(bits)).filter(|own| u64::from(own.count()) == count)
}

/// Bytes of the file of deleted rows, and of the rows that are left in memory, at most.
pub(crate) fn bytes_max(rows: u64) -> u64 {
    rows / 8 + rows / u64::from(stratann_core::sieve::CHUNK_ROWS) * 32 + 64
}

/// Writes the file of the rows that are deleted in a version. Returns the manifest that names it.
pub(crate) fn with_step(
    folder: &Path,
    version: u64,
    manifest: &Manifest,
    deleted: &Sieve,
) -> Result<Manifest> {
    let file = files::name(version, files::DELETED);
    let (path, bytes) = (folder.join(&*file), encode(deleted));
    write_synced(&path, &bytes).map_err(|e| Error::io("writing", &path, &e))?;
    sync_folder(folder)?;
    let mut deletes = manifest.deletes.clone().unwrap_or_else(DeleteFacts::none);
    deletes.steps.push(DeleteStep { file: file.clone(), rows: deleted.count().into() });
    if deletes.steps.len() > UNDO_MAX + usize::from(deletes.is_cut) {
        deletes.steps.remove(0);
        deletes.is_cut = true;
    }
    let mut files = manifest.files.clone();
    files.insert(file, entry_of(&bytes));
    Ok(Manifest { files, ..manifest.clone() }.with_deletes(Some(deletes)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_another_index_is_refused() {
        let deleted = Sieve::from_sorted(100, &[3, 99]).unwrap();
        let bytes = encode(&deleted);
        assert_eq!(decode(&bytes, 100, 2), Some(deleted));
        assert_eq!(
            [decode(&bytes, 101, 2), decode(&bytes, 100, 3), decode(&bytes[..31], 100, 2)],
            [const { None }; 3]
        );
        let mut beyond = bytes.clone();
        beyond[31] = 1 << 5;
        beyond[16] = 0;
        assert_eq!(decode(&beyond, 100, 2), None);
        assert!(bytes.len() as u64 <= bytes_max(100));
    }
}
