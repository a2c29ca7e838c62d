//! A data folder with collections, and the ids of points that a user names.

use std::ops::Range;
use std::path::{Path, PathBuf};

use stratann_engine::dataset::read_all_ids;
use stratann_node::collections::{self, Kind, Node, Options, Spec};
use stratann_node::rows::{ExternalId, MEMORY_BYTES_MIN};
use stratann_storage::budget::size;
use stratann_storage::{Error, ErrorKind, Progress, Result, input};

use crate::queries::Wanted;

/// Most bytes of a batch with its keys; a data folder takes twice as many.
const BATCH_BYTES: usize = 4 << 20;
/// Bytes that a data folder takes for a point beside its vector and twice its id.
const POINT_BYTES: usize = 128;

/// Opens a data folder.
///
/// # Errors
/// One that another process has open; a budget that is too small; damage.
pub(crate) fn open_or_make(folder: &Path, ram_budget: Option<u64>, progress: &dyn Progress) -> Result<Node> {
    let node = Node::open(folder, &Options::of_budget(ram_budget), progress);
    node.map_err(|e| match (e.kind, ram_budget) {
        (Kind::Other(ErrorKind::Budget), Some(budget)) => Error::budget(format!(
            "a data folder cannot be opened with {}: {}; give --ram-budget {}MiB",
            size(budget),
            e.message,
            least_budget() >> 20
        )),
        _ => plain(e),
    })
}

/// The smallest RAM budget of a data folder, in steps of 8 MiB.
pub(crate) fn least_budget() -> u64 {
    const STEP: u64 = 8 << 20;
    let is_enough =
        |steps: &u64| Options::of_budget(Some(steps * STEP)).rows.memory_bytes >= MEMORY_BYTES_MIN;
    (1..1024).find(is_enough).unwrap_or(1024) * STEP
}

/// Opens a data folder that is there.
///
/// # Errors
/// A folder that is not there; as [`open_or_make`].
pub(crate) fn open(folder: &Path, ram_budget: Option<u64>, progress: &dyn Progress) -> Result<Node> {
    // A misspelt name would make a folder.
    if !folder.exists() {
        return Err(Error::bad_input(format!(
            "there is no data folder {}; `stratann collection create` makes one",
            folder.display()
        )));
    }
    open_or_make(folder, ram_budget, progress)
}

/// An error of a collection as this program reports it: its kind is that of the remedy.
pub(crate) fn plain(error: collections::Error) -> Error {
    let kind = match error.kind {
        Kind::Missing => ErrorKind::BadInput,
        Kind::ReadOnly => ErrorKind::Corrupt,
        Kind::Busy => ErrorKind::Budget,
        Kind::Unknown { .. } | Kind::DiskFull => ErrorKind::Io,
        Kind::Other(kind) => kind,
    };
    Error { kind, message: error.message }
}

/// What files of vectors must be for a collection.
pub(crate) fn wanted(spec: &Spec) -> Wanted {
    Wanted { dim: spec.dim, dtype: spec.dtype, metric: spec.metric }
}

/// Ids of points, one for each row.
pub(crate) enum Ids {
    /// Numbers from the first one on.
    From(u64, usize),
    /// Numbers.
    Numbers(Vec<u64>),
    /// Any ids.
    Any(Vec<ExternalId>),
}

impl Ids {
    /// Reads a file: a `.u64bin` or `.npy`, and any other as a text with an id on each line.
    ///
    /// # Errors
    /// A file that cannot be read; a line that is no id.
    pub(crate) fn read(path: &Path) -> Result<Ids> {
        let suffix = path.extension().map(|suffix| suffix.to_string_lossy().to_ascii_lowercase());
        if matches!(suffix.as_deref(), Some("u64bin" | "npy")) {
            return read_all_ids(path).map(Ids::Numbers);
        }
        let text = input::read_text(path)?;
        let lines = (1..).zip(text.lines().map(str::trim)).filter(|(_, line)| !line.is_empty());
        let id = |(number, line): (u64, &str)| {
            ExternalId::of_token(line)
                .map_err(|e| Error::bad_input(format!("{}, line {number}: {}", path.display(), e.message)))
        };
        lines.map(id).collect::<Result<_>>().map(Ids::Any)
    }

    /// Numbers from `first` on.
    ///
    /// # Errors
    /// When the last one is beyond 64 bits.
    pub(crate) fn from_number(first: u64, rows: usize) -> Result<Ids> {
        match first.checked_add(rows as u64) {
            Some(_) => Ok(Ids::From(first, rows)),
            None => Err(Error::bad_input(format!(
                "--first-id is {first}, and the ids of {rows} rows would end beyond 2^64 - 1; give a smaller number"
            ))),
        }
    }

    /// Refuses another number of ids than of rows.
    ///
    /// # Errors
    /// Names the file.
    pub(crate) fn check_rows(self, rows: usize, path: &Path) -> Result<Ids> {
        match self.len() {
            found if found == rows => Ok(self),
            found => Err(Error::bad_input(format!(
                "{} has {found} ids for {rows} rows; give one for each row",
                path.display()
            ))),
        }
    }

    /// Number of ids.
    pub(crate) fn len(&self) -> usize {
        match self {
            Ids::From(_, rows) => *rows,
            Ids::Numbers(ids) => ids.len(),
            Ids::Any(ids) => ids.len(),
        }
    }

    /// The ids of some rows.
    pub(crate) fn of(&self, rows: Range<usize>) -> Vec<ExternalId> {
        match self {
            Ids::From(first, _) => rows.map(|row| ExternalId::Number(first + row as u64)).collect(),
            Ids::Numbers(ids) => ids[rows].iter().map(|&id| ExternalId::Number(id)).collect(),
            Ids::Any(ids) => ids[rows].to_vec(),
        }
    }

    /// Rows of each batch, when a row has so many bytes beside its id.
    pub(crate) fn batches(&self, row_bytes: usize) -> Vec<Range<usize>> {
        self.batches_of(|_| row_bytes)
    }

    /// Rows of each batch, with the bytes of each row beside its id.
    pub(crate) fn batches_of(&self, row_bytes: impl Fn(usize) -> usize) -> Vec<Range<usize>> {
        let (mut batches, mut first, mut bytes) = (Vec::new(), 0, 0);
        for row in 0..self.len() {
            let own = POINT_BYTES + row_bytes(row) + 2 * self.id_bytes(row);
            if row > first && bytes + own > BATCH_BYTES {
                batches.push(first..row);
                (first, bytes) = (row, 0);
            }
            bytes += own;
        }
        batches.push(first..self.len());
        batches.retain(|batch| !batch.is_empty());
        batches
    }

    fn id_bytes(&self, row: usize) -> usize {
        match self {
            Ids::Any(ids) => match &ids[row] {
                ExternalId::Number(_) => 9,
                ExternalId::Uuid(_) => 17,
                ExternalId::Text(text) => 1 + text.len(),
            },
            _ => 9,
        }
    }
}

/// The path of a data folder, which the table requires.
///
/// # Errors
/// None is given.
pub(crate) fn path(given: Option<PathBuf>) -> Result<PathBuf> {
    given.ok_or_else(|| Error::bad_input("no data folder is named; give it with --data"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_have_all_rows_once_and_are_not_too_large() {
        let text = |id: usize| ExternalId::text(&"x".repeat(1 + id % 255)).unwrap();
        let any = Ids::Any((0..5000).map(text).collect());
        for (ids, row_bytes) in [
            (Ids::from_number(7, 100_000).unwrap(), 512),
            (Ids::Numbers((0..9).collect()), BATCH_BYTES),
            (any, 4000),
            (Ids::Numbers(Vec::new()), 4),
        ] {
            let batches = ids.batches(row_bytes);
            assert_eq!(
                batches.iter().cloned().flatten().collect::<Vec<_>>(),
                (0..ids.len()).collect::<Vec<_>>()
            );
            for batch in batches.iter().filter(|batch| batch.len() > 1) {
                let bytes: usize =
                    batch.clone().map(|row| POINT_BYTES + row_bytes + 2 * ids.id_bytes(row)).sum();
                assert!(bytes <= BATCH_BYTES);
            }
        }
        assert!(Ids::from_number(u64::MAX, 2).is_err() && Ids::from_number(u64::MAX - 2, 2).is_ok());
    }

    #[test]
    fn ids_are_read_from_lines() {
        let file = tempfile::NamedTempFile::with_suffix(".txt").unwrap();
        std::fs::write(file.path(), "7\n\n 18446744073709551615 \na b\n").unwrap();
        let ids = Ids::read(file.path()).unwrap();
        let wanted = [ExternalId::Number(7), ExternalId::Number(u64::MAX), ExternalId::Text("a b".into())];
        assert_eq!(ids.of(0..3), wanted);
        std::fs::write(file.path(), "7\n18446744073709551616\n").unwrap();
        let error = Ids::read(file.path()).err().unwrap();
        assert!(error.message.contains("line 2: the id 18446744073709551616"), "{error}");
    }
}
