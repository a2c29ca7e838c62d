//! Deletes rows of an index in a folder: publishes a version that shares all data files, and has a bit for each row.
//!
//! Nothing is taken out of the files. Every search goes by the rows that are left, as by a filter
//! ([`stratann_core::sieve`]), so a walk still goes over deleted rows, and its beam is longer for them.

use std::path::Path;
use std::sync::Arc;

use serde::Serialize;
use stratann_core::sieve::Sieve;
use stratann_storage::{Error, Progress, Result};

use crate::base::OpenOptions;
use crate::index::Index;
pub use crate::manifest::deletes::{DeleteFacts, DeleteStep, UNDO_MAX};
use crate::manifest::deletes::{read, with_step};
use crate::manifest::{Manifest, number_after};
use crate::stages::state::lock as lock_folder;

/// Result of a delete, or of taking one back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Deleted {
    /// Rows that this has deleted, or brought back.
    pub changed: u64,
    /// Rows that are deleted now.
    pub deleted: u64,
    /// Rows that searches can return now.
    pub left: u64,
    /// Ids that no row has; they are ignored.
    pub unknown: usize,
    /// Ids that were named more than once; they count once.
    pub repeated: usize,
    /// Rows that were deleted before.
    pub already: u64,
    /// Number of the version.
    pub version: u64,
}

/// Deletes the rows with these ids, in any order, and publishes that as a version that shares all data files. Nothing
/// is published where all of them are deleted already.
///
/// # Errors
/// A folder whose rows cannot be deleted so; another writer; a budget too small; damage; an interruption.
pub fn delete(
    folder: &Path,
    ids: &[u64],
    ram_budget: Option<u64>,
    progress: &dyn Progress,
) -> Result<Deleted> {
    let (number, manifest) = Manifest::read(folder)?;
    manifest.check_newest()?;
    check_whole(folder, &manifest)?;
    manifest.check_numbered(folder, "a delete")?;
    let _lock = lock_folder(folder)?;
    let index = Index::open(folder, OpenOptions { ram_budget, ..OpenOptions::default() })?;
    if index.version() != number {
        return Err(Error::bad_input(format!(
            "{} got a newer version meanwhile; run this again",
            folder.display()
        )));
    }
    let named = index.named(ids, None, progress)?;
    let live = index.base.live.clone().unwrap_or_else(|| Arc::new(Sieve::all(manifest.rows as u32)));
    let gone = named.rows.intersection(&live);
    let left = live.intersection(&gone.complement());
    let deleted = Deleted {
        changed: gone.count().into(),
        deleted: manifest.rows - u64::from(left.count()),
        left: left.count().into(),
        unknown: named.unknown,
        repeated: named.repeated,
        already: u64::from(named.rows.count() - gone.count()),
        version: number,
    };
    drop(index);
    if deleted.changed == 0 {
        return Ok(deleted);
    }
    progress.check_interrupted()?;
    let version = number_after(number, folder)?;
    let changed = with_step(folder, version, &manifest, &left.complement())?;
    publish(folder, number, &changed)?;
    Ok(Deleted { version, ..deleted })
}

/// Publishes a manifest as the version after `number`. Returns its number.
fn publish(folder: &Path, number: u64, manifest: &Manifest) -> Result<u64> {
    let version = number_after(number, folder)?;
    Manifest { build_id: manifest.content_id(), ..manifest.clone() }.publish(folder, version)?;
    Ok(version)
}

/// Refuses folders whose rows are deleted elsewhere.
fn check_whole(folder: &Path, manifest: &Manifest) -> Result<()> {
    let Some(spread) = &manifest.spread else { return Ok(()) };
    Err(Error::bad_input(format!(
        "{} is partitioned over {} servers; delete in the index that it was made from, and partition that again",
        folder.display(),
        spread.servers
    )))
}

/// Takes the last delete back, and publishes that as a version. The files of deletes before it are kept for as many as
/// [`UNDO_MAX`].
///
/// # Errors
/// Nothing to take back; another writer; damage.
pub fn undo(folder: &Path) -> Result<Deleted> {
    let (_, manifest) = Manifest::read(folder)?;
    manifest.check_newest()?;
    check_whole(folder, &manifest)?;
    let _lock = lock_folder(folder)?;
    // Nobody else publishes from here on.
    let (number, manifest) = Manifest::read(folder)?;
    let before = manifest.deleted_rows();
    let nothing = || Error::bad_input(format!("{}: no delete can be taken back", folder.display()));
    let mut deletes = manifest.deletes.clone().ok_or_else(nothing)?;
    if deletes.steps.len() == 1 && deletes.is_cut {
        return Err(Error::bad_input(format!(
            "{}: only the last {UNDO_MAX} deletes can be taken back, and these were",
            folder.display()
        )));
    }
    deletes.steps.pop();
    let deletes = Some(deletes).filter(|deletes| !deletes.steps.is_empty());
    let restored = manifest.with_fewer_deletes(deletes);
    // A delete that does not count any more must not take away one that cannot be read.
    read(folder, &restored)?;
    let version = publish(folder, number, &restored)?;
    Ok(Deleted {
        changed: before - restored.deleted_rows(),
        deleted: restored.deleted_rows(),
        left: restored.live_rows(),
        unknown: 0,
        repeated: 0,
        already: 0,
        version,
    })
}
