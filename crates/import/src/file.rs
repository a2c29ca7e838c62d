//! Which columns are read, and the rows of any file.

use std::path::Path;

use stratann_kernel::{DType, Metric};
use stratann_payload::IdValue;
use stratann_storage::{Error, Result};

use crate::arrays::ArrayRows;
use crate::arrow_files::{self, Form};
use crate::json_lines::JsonRows;

/// Bytes of vectors that are read at once, about.
pub(crate) const VECTOR_BYTES: usize = 4 << 20;
/// Most rows that are read at once.
pub(crate) const ROWS_MAX: usize = 4096;
/// Name of the column of ids, where none is named.
const IDS: &str = "id";
/// Name of the column of vectors, where none is named.
const VECTORS: &str = "vector";
/// Name of the column whose objects are the payload itself.
pub(crate) const PAYLOAD: &str = "payload";
/// Most names that an error lists.
const NAMES_SHOWN: usize = 20;

/// Columns that become fields of payloads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum PayloadColumns {
    /// All but those of ids and vectors.
    #[default]
    All,
    /// None; points have no payload.
    Nothing,
    /// These.
    These(Vec<String>),
}

/// Which columns are read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Columns {
    /// Ids; `id` where none is named, and none where there is no such column.
    pub ids: Option<String>,
    /// Vectors; `vector` where none is named, or else the only column of lists of numbers.
    pub vectors: Option<String>,
    /// Payloads.
    pub payload: PayloadColumns,
}

/// What vectors must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Components of a vector.
    pub dim: usize,
    /// Type of a component.
    pub dtype: DType,
    /// How vectors are compared.
    pub metric: Metric,
}

impl Wanted {
    /// Rows that are read at once.
    pub(crate) fn rows_at_once(&self) -> usize {
        (VECTOR_BYTES / (self.dim * self.dtype.size()).max(1)).clamp(1, ROWS_MAX)
    }
}

/// Some rows of a file, one after another.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rows {
    /// Number of the first one, from 0 on.
    pub first: u64,
    /// Number of rows.
    pub count: usize,
    /// An id for each row; `None` where the file has no ids.
    pub ids: Option<Vec<IdValue>>,
    /// A vector for each row, little-endian.
    pub vectors: Vec<u8>,
    /// Payloads as JSON: one for each row, or none at all.
    pub payloads: Vec<Option<Vec<u8>>>,
}

/// How long a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Total {
    /// So many rows.
    Rows(u64),
    /// So many bytes, and an unknown number of rows.
    Bytes(u64),
}

/// Rows of a file, which are read in their order.
pub trait FileRows {
    /// The next rows; `None` at the end.
    ///
    /// # Errors
    /// `BadInput` with file, row and column for what is no id, no vector of the right shape, or no payload; `Io`.
    fn next_rows(&mut self) -> Result<Option<Rows>>;

    /// Leaves out the next rows; returns how many there were, at most `rows`.
    ///
    /// # Errors
    /// As [`FileRows::next_rows`].
    fn skip(&mut self, rows: u64) -> Result<u64>;

    /// Length of the file.
    fn total(&self) -> Total;

    /// How much of it was read, in the unit of [`FileRows::total`].
    fn done(&self) -> u64;
}

/// Forms of files.
enum Kind {
    Arrow(Form),
    JsonLines,
    Arrays,
}

/// The form of a file, by its suffix.
fn kind_of(path: &Path) -> Kind {
    let suffix = path.extension().map(|suffix| suffix.to_string_lossy().to_ascii_lowercase());
    match suffix.as_deref() {
        Some("parquet") => Kind::Arrow(Form::Parquet),
        Some("arrow" | "feather" | "ipc" | "arrows") => Kind::Arrow(Form::Ipc),
        Some("jsonl" | "ndjson") => Kind::JsonLines,
        _ => Kind::Arrays,
    }
}

/// Opens a file; its suffix says what it is.
///
/// # Errors
/// `BadInput` for an unknown form, columns that are not there or cannot be read, and other dimensions; `Io`.
pub fn open(path: &Path, columns: &Columns, wanted: &Wanted) -> Result<Box<dyn FileRows>> {
    Ok(match kind_of(path) {
        Kind::Arrow(form) => arrow_files::open(path, form, columns, *wanted)?,
        Kind::JsonLines => Box::new(JsonRows::open(path, columns, *wanted)?),
        Kind::Arrays => Box::new(ArrayRows::open(path, columns, *wanted)?),
    })
}

/// Components of the vectors of a file, and the type of a collection that holds them.
///
/// # Errors
/// As [`open`]; a file without rows.
pub fn shape_of(path: &Path, columns: &Columns) -> Result<(usize, DType)> {
    match kind_of(path) {
        Kind::Arrow(form) => arrow_files::shape_of(path, form, columns),
        Kind::JsonLines => JsonRows::shape_of(path, columns),
        Kind::Arrays => ArrayRows::shape_of(path, columns),
    }
}

/// The error of a file without rows.
pub(crate) fn empty(path: &Path) -> Error {
    Error::bad_input(format!("{} has no rows; give a file with points", path.display()))
}

/// A column of a file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Named<'a> {
    pub(crate) name: &'a str,
    /// Whether it has lists of numbers.
    pub(crate) is_vectors: bool,
}

/// Places of the columns that are read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Roles {
    pub(crate) ids: Option<usize>,
    pub(crate) vectors: usize,
    pub(crate) payload: Vec<usize>,
}

impl Roles {
    /// Finds the columns of a file.
    pub(crate) fn of(path: &Path, all: &[Named<'_>], columns: &Columns) -> Result<Roles> {
        let named = |name: &str| all.iter().position(|column| column.name == name);
        let demanded = |option: &str, name: &str| {
            named(name).ok_or_else(|| {
                Error::bad_input(format!(
                    "{} has no column {name:?} for {option}; its columns are {}",
                    path.display(),
                    names(all)
                ))
            })
        };
        let ids = match &columns.ids {
            Some(name) => Some(demanded("--ids", name)?),
            None => named(IDS),
        };
        let vectors = match &columns.vectors {
            Some(name) => demanded("--vectors", name)?,
            None => usual_vectors(path, all)?,
        };
        if !all.get(vectors).is_some_and(|column| column.is_vectors) {
            let name = columns.vectors.as_deref().unwrap_or(VECTORS);
            return Err(Error::bad_input(format!(
                "{}: the column {name:?} has no lists of numbers; name a column of vectors with --vectors",
                path.display()
            )));
        }
        let payload = match &columns.payload {
            PayloadColumns::All => (0..all.len()).filter(|at| Some(*at) != ids && *at != vectors).collect(),
            PayloadColumns::Nothing => Vec::new(),
            PayloadColumns::These(these) => {
                these.iter().map(|name| demanded("--payload", name)).collect::<Result<_>>()?
            }
        };
        Ok(Roles { ids, vectors, payload })
    }
}

/// The column of vectors, where none is named.
fn usual_vectors(path: &Path, all: &[Named<'_>]) -> Result<usize> {
    let usual = all.iter().position(|column| column.name == VECTORS && column.is_vectors);
    let lists: Vec<usize> = (0..all.len()).filter(|at| all[*at].is_vectors).collect();
    match (usual, lists.as_slice()) {
        (Some(usual), _) => Ok(usual),
        (None, &[one]) => Ok(one),
        (None, []) => Err(Error::bad_input(format!(
            "{} has no column of lists of numbers among {}; vectors are a list column",
            path.display(),
            names(all)
        ))),
        (None, several) => {
            let several: Vec<Named<'_>> = several.iter().map(|at| all[*at]).collect();
            Err(Error::bad_input(format!(
                "{} has several columns of lists of numbers; choose one with --vectors: {}",
                path.display(),
                names(&several)
            )))
        }
    }
}

fn names(all: &[Named<'_>]) -> String {
    let shown: Vec<String> =
        all.iter().take(NAMES_SHOWN).map(|column| format!("{:?}", column.name)).collect();
    let more = if all.len() > NAMES_SHOWN { ", …" } else { "" };
    shown.join(", ") + more
}

#[cfg(test)]
mod tests {
    use super::*;

    fn roles(all: &[(&str, bool)], columns: &Columns) -> Result<Roles> {
        let all: Vec<Named<'_>> = all.iter().map(|&(name, is_vectors)| Named { name, is_vectors }).collect();
        Roles::of(Path::new("f"), &all, columns)
    }

    #[test]
    fn columns_have_usual_names() {
        let all = [("id", false), ("tags", true), ("vector", true), ("a.b", false)];
        let usual = roles(&all, &Columns::default()).unwrap();
        assert_eq!(usual, Roles { ids: Some(0), vectors: 2, payload: vec![1, 3] });
        let own = Columns {
            ids: Some("a.b".into()),
            vectors: Some("tags".into()),
            payload: PayloadColumns::These(vec!["id".into(), "a.b".into()]),
        };
        assert_eq!(roles(&all, &own).unwrap(), Roles { ids: Some(3), vectors: 1, payload: vec![0, 3] });
        let only = roles(&[("x", false), ("embedding", true)], &Columns::default()).unwrap();
        assert_eq!(only, Roles { ids: None, vectors: 1, payload: vec![0] });
    }

    #[test]
    fn columns_that_are_not_there_are_named() {
        let named = |ids: Option<&str>, vectors: Option<&str>| Columns {
            ids: ids.map(String::from),
            vectors: vectors.map(String::from),
            payload: PayloadColumns::Nothing,
        };
        let all = [("x", true), ("y", true), ("z", false)];
        for (columns, why) in [
            (named(None, None), "choose one with --vectors: \"x\", \"y\""),
            (named(Some("i"), Some("x")), "no column \"i\" for --ids; its columns are \"x\", \"y\", \"z\""),
            (named(None, Some("z")), "\"z\" has no lists of numbers"),
        ] {
            let error = roles(&all, &columns).unwrap_err();
            assert!(error.message.contains(why), "{error}");
        }
        let error = roles(&[("z", false)], &Columns::default()).unwrap_err();
        assert!(error.message.contains("no column of lists of numbers"), "{error}");
    }
}
