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

/// Lists of ids, one after the other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IdLists {
    ids: Vec<u64>,
    // The end of each list.
    ends: Vec<usize>,
}

impl IdLists {
    /// No lists, with room for so many and for so many ids.
    pub fn with_capacity(lists: usize, ids: usize) -> IdLists {
        IdLists { ids: Vec::with_capacity(ids), ends: Vec::with_capacity(lists) }
    }

    /// Adds an id to the list that [`IdLists::end`] ends.
    pub fn push(&mut self, id: u64) {
        self.ids.push(id);
    }

    /// Ends a list.
    pub fn end(&mut self) {
        self.ends.push(self.ids.len());
    }

    /// Number of lists.
    pub fn count(&self) -> usize {
        self.ends.len()
    }

    /// The lists, in their order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &[u64]> {
        (0..self.ends.len()).map(|list| {
            let start = if list == 0 { 0 } else { self.ends[list - 1] };
            &self.ids[start..self.ends[list]]
        })
    }

    /// Memory, bytes.
    pub fn bytes(&self) -> u64 {
        (self.ids.capacity() * size_of::<u64>() + self.ends.capacity() * size_of::<usize>()) as u64
    }
}

impl From<Vec<u64>> for IdLists {
    /// One list.
    fn from(ids: Vec<u64>) -> IdLists {
        IdLists { ends: vec![ids.len()], ids }
    }
}

/// Reads a list of ids for each query, of any length: a `.txt` with a line for each, of ids with spaces or commas
/// between them, or a `.npy` of `<u8` or non-negative `<i8` with a row for each.
///
/// # Errors
/// As [`read_ids`]; a line with something that is no id.
pub fn read_id_lists(path: &Path) -> Result<IdLists> {
    match super::suffix(path).as_str() {
        "txt" => read_line_lists(path),
        "npy" => {
            let source = Source::open(path)?;
            let (header, width) = npy_table(path, &source)?;
            let ids = load_from(path, &source, &header)?;
            let ends = (width..=header.ids).step_by(width as usize).map(|end| end as usize).collect();
            Ok(IdLists { ids, ends })
        }
        other => Err(Error::bad_input(format!(
            "{}: unknown format {other:?} of a list of ids for each query; use .txt with a line for each, or .npy",
            path.display()
        ))),
    }
}

fn read_line_lists(path: &Path) -> Result<IdLists> {
    let text = stratann_storage::input::read_text(path)?;
    let mut lists = IdLists::default();
    for (at, line) in text.lines().enumerate() {
        for word in line.split([',', ' ', '\t']).filter(|word| !word.is_empty()) {
            lists.ids.push(word.parse().map_err(|_| not_an_id(path, at, word))?);
        }
        lists.ends.push(lists.ids.len());
    }
    lists.ids.shrink_to_fit();
    lists.ends.shrink_to_fit();
    Ok(lists)
}

fn read_lines(path: &Path) -> Result<Vec<u64>> {
    let text = stratann_storage::input::read_text(path)?;
    let id = |(at, line): (usize, &str)| match line.trim() {
        "" => None,
        line => Some(line.parse().map_err(|_| not_an_id(path, at, line))),
    };
    text.lines().enumerate().filter_map(id).collect()
}

/// The error of a line with a word that is no id.
fn not_an_id(path: &Path, line: usize, word: &str) -> Error {
    const QUOTED_MAX: usize = 40;
    let (name, line) = (path.display(), line + 1);
    let quoted: String = word.chars().take(QUOTED_MAX).collect();
    let more = if quoted.len() < word.len() { "…" } else { "" };
    Error::bad_input(format!(
        "{name}: line {line} has {quoted:?}{more}, which is no id; write numbers from 0 to 2^64 - 1, one a line for \
         all queries"
    ))
}

/// As [`read_ids`], for a file whose ids are known to be distinct. Takes 8 bytes of memory per row.
pub(crate) fn load_ids(path: &Path, rows: u64) -> Result<Vec<u64>> {
    load(path, Some(rows))
}

fn load(path: &Path, rows: Option<u64>) -> Result<Vec<u64>> {
    let source = Source::open(path)?;
    let name = path.display();
    let header = match super::suffix(path).as_str() {
        "u64bin" => bin_header(path, &source)?,
        "npy" => npy_header(path, &source)?,
        other => {
            let message =
                format!("{name}: unknown format {other:?} of ids; use .u64bin or .npy, or .txt for a filter");
            return Err(Error::bad_input(message));
        }
    };
    check_length(path, &source, &header)?;
    let (found, rows) = (header.ids, rows.unwrap_or(header.ids));
    if found != rows {
        let message = format!("{name} has {found} ids for {rows} rows; give one for each row");
        return Err(Error::bad_input(message));
    }
    if rows > u64::from(u32::MAX) {
        let message =
            format!("{name}: more than {} rows in one index are not possible; split the set", u32::MAX);
        return Err(Error::bad_input(message));
    }
    load_from(path, &source, &header)
}

/// Refuses a file that is longer or shorter than its header says.
fn check_length(path: &Path, source: &Source, header: &Header) -> Result<()> {
    let expected = u128::from(header.start) + u128::from(header.ids) * 8;
    if expected == u128::from(source.len()) {
        return Ok(());
    }
    Err(Error::bad_input(format!(
        "{}: its header says {} ids, {expected} bytes, but it has {}; copy it again",
        path.display(),
        header.ids,
        source.len()
    )))
}

/// Reads all ids of a file of this header, which has as many.
fn load_from(path: &Path, source: &Source, header: &Header) -> Result<Vec<u64>> {
    check_length(path, source, header)?;
    let name = path.display();
    let mut ids = vec![0u64; header.ids as usize];
    source.read_at(path, header.start, bytemuck::cast_slice_mut(&mut ids))?;
    if header.signed
        && let Some(row) = ids.iter().position(|&id| id > i64::MAX as u64)
    {
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

/// Whether ids of this NumPy type are signed.
fn is_signed(path: &Path, descr: &str) -> Result<bool> {
    match descr {
        "<u8" => Ok(false),
        "<i8" => Ok(true),
        other => Err(Error::bad_input(format!(
            "{}: ids of type {other:?} are not supported; save array.astype(\"uint64\")",
            path.display()
        ))),
    }
}

/// The header of a table with a row for each query, and its width.
fn npy_table(path: &Path, source: &Source) -> Result<(Header, u64)> {
    let header = npy::header(path, source)?;
    if header.is_fortran {
        let name = path.display();
        return Err(Error::bad_input(format!(
            "{name} is in Fortran order, in which ids of a query are apart; save numpy.ascontiguousarray(array)"
        )));
    }
    let signed = is_signed(path, &header.descr)?;
    let table = match header.shape.as_slice() {
        // What has no ids would be of any number of rows.
        &[rows, width] if width > 0 => rows.checked_mul(width).map(|ids| (ids, width)),
        _ => None,
    };
    let (ids, width) = table.ok_or_else(|| {
        Error::bad_input(format!(
            "{}: ids of shape {:?}; a row of ids for each query is needed, or a .txt with a line for each",
            path.display(),
            header.shape
        ))
    })?;
    Ok((Header { ids, start: header.start, signed }, width))
}

fn npy_header(path: &Path, source: &Source) -> Result<Header> {
    let header = npy::header(path, source)?;
    let signed = is_signed(path, &header.descr)?;
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
