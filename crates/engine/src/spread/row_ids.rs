//! The external ids of all rows, for the servers of a partition: each reads a part of the rows, and a filter names any.

use std::path::Path;

use stratann_storage::budget::size_up;
use stratann_storage::data_file::{FileEntry, entry_of};
use stratann_storage::durable::write_synced;
use stratann_storage::names::FileName;
use stratann_storage::{Error, ErrorKind, Progress, Result};

use crate::files;
use crate::index::{Index, OpenOptions, RowIds};
use crate::manifest::Manifest;

/// Bytes of an id in the file.
const ID_BYTES: u64 = 8;

/// Writes the ids of all rows of `index`, by internal id, to the folder `partial`. `None` for a kind that writes them
/// as it is divided, and where the budget has no room for the open index and the ids.
///
/// # Errors
/// An index that cannot be read or is damaged; a disk that is full; an interruption.
pub(super) fn write(
    (index, manifest): (&Path, &Manifest),
    (partial, number): (&Path, u64),
    ram_budget: Option<u64>,
    progress: &dyn Progress,
) -> Result<Option<(FileName, FileEntry)>> {
    if manifest.facts().is_sliced {
        return Ok(None);
    }
    let options = OpenOptions { ram_budget, head_budget: Some(0), ..OpenOptions::default() };
    let opened = Index::open(index, options).and_then(|index| {
        let mut account = index.account();
        account.add("row ids", RowIds::bytes_max(manifest) + manifest.rows * ID_BYTES);
        account.check(ram_budget, "read the ids of rows").map(|()| index)
    });
    let opened = match opened {
        Err(e) if e.kind == ErrorKind::Budget => {
            progress.note(&format!(
                "note: the servers of this partition will take no filter: their ids of rows take {} and the open index",
                size_up(RowIds::bytes_max(manifest))
            ));
            return Ok(None);
        }
        opened => opened?,
    };
    let bytes = encode(opened.row_ids(progress)?, manifest.rows)
        .ok_or_else(|| Error::corrupt(format!("{}: two rows have one place", index.display())))?;
    let name = files::name(number, files::ROW_IDS);
    let path = partial.join(&*name);
    write_synced(&path, &bytes).map_err(|e| Error::io("writing", &path, &e))?;
    Ok(Some((name, entry_of(&bytes))))
}

/// `None` where a row has no id, or two.
fn encode(ids: &RowIds, rows: u64) -> Option<Vec<u8>> {
    let mut by_row: Vec<Option<u64>> = vec![None; usize::try_from(rows).ok()?];
    for (id, row) in ids.iter() {
        let place = by_row.get_mut(row as usize).filter(|place| place.is_none())?;
        *place = Some(id);
    }
    let mut out = Vec::with_capacity(by_row.len() * ID_BYTES as usize);
    for id in by_row {
        out.extend_from_slice(&id?.to_le_bytes());
    }
    Some(out)
}
