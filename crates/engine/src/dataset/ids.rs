//! External ids: one u64 per row.

use std::path::Path;

use rayon::prelude::*;
use stratann_storage::{Error, Result};

use super::source::Source;
use super::{bin, npy};

/// Reads one id per row from a `.u64bin` (u32 rows, u32 1, ids) or a `.npy` of `<u8` or non-negative `<i8`.
///
/// Takes 12 bytes of memory per row.
///
/// # Errors
///
/// `BadInput` when the count is not `rows`, when an id is negative, or when two rows have the same id.
pub fn read_ids(path: &Path, rows: u64) -> Result<Vec<u64>> {
    let ids = load_ids(path, rows)?;
    refuse_duplicates(path, &ids)?;
    Ok(ids)
}

/// Reads all ids of a file, however many: also of a `.txt` with one on each line. Equal ones are allowed.
///
/// # Errors
/// As [`read_ids`]; a line that is no id.
pub fn read_all_ids(path: &Path) -> Result<Vec<u64>> {
    if super::suffix(path) == "txt" { read_lines(path) } else { load(path, None) }
}

fn read_lines(path: &Path) -> Result<Vec<u64>> {
    let text = stratann_storage::input::read_text(path)?;
    let id = |(at, line): (usize, &str)| match line.trim() {
        "" => None,
        line => Some(line.parse().map_err(|_| {
            let (name, at) = (path.display(), at + 1);
            Error::bad_input(format!(
                "{name}: line {at} is no id: {line:?}; write one number from 0 to 2^64 - 1 a line"
            ))
        })),
    };
    text.lines().enumerate().filter_map(id).collect()
}

/// As [`read_ids`], for a file whose ids are known to be distinct. Takes 8 bytes of memory per row.
pub(crate) fn load_ids(path: &Path, rows: u64) -> Result<Vec<u64>> {
    load(path, Some(rows))
}

fn load(path: &Path, rows: Option<u64>) -> Result<Vec<u64>> {
    let source = Source::open(path)?;
    let name = path.display();
    let Header { ids: found, start, signed } = match super::suffix(path).as_str() {
        "u64bin" => bin_header(path, &source)?,
        "npy" => npy_header(path, &source)?,
        other => {
            let message =
                format!("{name}: unknown format {other:?} of ids; use .u64bin or .npy, or .txt for a filter");
            return Err(Error::bad_input(message));
        }
    };
    let expected = u128::from(start) + u128::from(found) * 8;
    if expected != u128::from(source.len()) {
        let message = format!(
            "{name}: its header says {found} ids, {expected} bytes, but it has {}; copy it again",
            source.len()
        );
        return Err(Error::bad_input(message));
    }
    let rows = rows.unwrap_or(found);
    if found != rows {
        let message = format!("{name} has {found} ids for {rows} rows; give one for each row");
        return Err(Error::bad_input(message));
    }
    if rows > u64::from(u32::MAX) {
        let message =
            format!("{name}: more than {} rows in one index are not possible; split the set", u32::MAX);
        return Err(Error::bad_input(message));
    }
    let mut ids = vec![0u64; rows as usize];
    source.read_at(path, start, bytemuck::cast_slice_mut(&mut ids))?;
    if signed && let Some(row) = ids.iter().position(|&id| id > i64::MAX as u64) {
        let message = format!("{name}: row {row} has the negative id {}; ids start at 0", ids[row] as i64);
        return Err(Error::bad_input(message));
    }
    Ok(ids)
}

/// Facts of a file of ids, from its header.
struct Header {
    ids: u64,
    /// Offset of the first id.
    start: u64,
    /// Whether ids are signed numbers.
    signed: bool,
}

fn bin_header(path: &Path, source: &Source) -> Result<Header> {
    let (rows, width) = bin::header(path, source)?;
    if width != 1 {
        let message = format!("{}: its header says {width} ids a row; 1 is needed", path.display());
        return Err(Error::bad_input(message));
    }
    Ok(Header { ids: rows.into(), start: bin::HEADER, signed: false })
}

fn npy_header(path: &Path, source: &Source) -> Result<Header> {
    let header = npy::header(path, source)?;
    let signed = match header.descr.as_str() {
        "<u8" => false,
        "<i8" => true,
        other => {
            let message = format!(
                "{}: ids of type {other:?} are not supported; save array.astype(\"uint64\")",
                path.display()
            );
            return Err(Error::bad_input(message));
        }
    };
    match header.shape.as_slice() {
        &[ids] | &[ids, 1] => Ok(Header { ids, start: header.start, signed }),
        other => {
            let message = format!(
                "{}: ids of shape {other:?}; a plain list is needed, save array.ravel()",
                path.display()
            );
            Err(Error::bad_input(message))
        }
    }
}

fn refuse_duplicates(path: &Path, ids: &[u64]) -> Result<()> {
    let mut order: Vec<u32> = (0..ids.len() as u32).collect();
    order.par_sort_unstable_by_key(|&row| (ids[row as usize], row));
    match order.windows(2).find(|w| ids[w[0] as usize] == ids[w[1] as usize]) {
        None => Ok(()),
        Some(pair) => {
            let message = format!(
                "{}: rows {} and {} have the same id {}; ids must differ",
                path.display(),
                pair[0],
                pair[1],
                ids[pair[0] as usize]
            );
            Err(Error::bad_input(message))
        }
    }
}
