//! Which columns are read, and the rows of any file.

use std::path::Path;

use stratann_kernel::{DType, Metric};
use stratann_payload::IdValue;
use stratann_storage::{Error, Result};

use crate::arrays::ArrayRows;
use crate::arrow_files::{self, Form};
use crate::json_lines::JsonRows;

/// Bytes of vectors and payloads that are read at once; a row of a file, or some of a batch, may be beyond.
pub(crate) const BATCH_BYTES: usize = 4 << 20;
/// Most rows that are read at once.
pub(crate) const ROWS_MAX: usize = 4096;
/// Name of the column of ids, where none is named.
const IDS: &str = "id";
/// Name of the column of vectors, where none is named.
const VECTORS: &str = "vector";
/// Name of the column whose objects are the payload itself.
pub(crate) const PAYLOAD: &str = "payload";
/// Before the name of vectors in the name of their column, where that is one of another meaning.
const OF_VECTORS: &str = "vectors.";
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
    /// Columns of vectors, each with the name of the vectors, which is empty where they have none. Without a column,
    /// vectors without a name have `vector`, or the only column of lists of numbers, and others that of their name.
    pub vectors: Vec<(String, String)>,
    /// Payloads.
    pub payload: PayloadColumns,
}

impl Columns {
    /// The column that is chosen for the vectors of a name.
    fn of_vectors(&self, name: &str) -> Option<&str> {
        self.vectors.iter().find(|(own, _)| own == name).map(|(_, column)| column.as_str())
    }
}

/// What the vectors of a name must be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// The name; empty where the one vector of a point has none.
    pub name: String,
    /// Components of a vector.
    pub dim: usize,
    /// Type of a component.
    pub dtype: DType,
    /// How vectors are compared.
    pub metric: Metric,
}

/// Most rows that are read at once.
pub(crate) fn rows_at_once(wanted: &[Wanted]) -> usize {
    let row_bytes: usize = wanted.iter().map(|own| own.dim * own.dtype.size()).sum();
    (BATCH_BYTES / row_bytes.max(1)).clamp(1, ROWS_MAX)
}

/// Whether vectors have names. Then a row may lack any of them.
pub(crate) fn has_names<N: AsRef<str>>(names: &[N]) -> bool {
    !matches!(names, [one] if one.as_ref().is_empty())
}

impl AsRef<str> for Wanted {
    fn as_ref(&self) -> &str {
        &self.name
    }
}

/// The column of the vectors of a name, as exports write it. Different names have different columns.
pub(crate) fn column_of(name: &str) -> String {
    match name {
        "" => VECTORS.into(),
        IDS | PAYLOAD => format!("{OF_VECTORS}{name}"),
        _ if name.starts_with(OF_VECTORS) => format!("{OF_VECTORS}{name}"),
        _ => name.into(),
    }
}

/// Vectors of one name.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct VectorColumn {
    /// The name; empty where the one vector of a point has none.
    pub name: String,
    /// Those that are there, one after another, little-endian.
    pub vectors: Vec<u8>,
    /// Which rows have one; all, where vectors have no names.
    pub has: Vec<bool>,
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
    /// Vectors of each name that is wanted, in that order.
    pub vectors: Vec<VectorColumn>,
    /// Payloads as JSON: one for each row, or none at all.
    pub payloads: Vec<Option<Vec<u8>>>,
}

impl Rows {
    /// No rows yet, of which the first one will have this number.
    pub(crate) fn new(first: u64, wanted: &[Wanted]) -> Rows {
        let column = |own: &Wanted| VectorColumn { name: own.name.clone(), ..VectorColumn::default() };
        Rows { first, vectors: wanted.iter().map(column).collect(), ..Rows::default() }
    }

    /// Bytes of vectors and payloads.
    pub fn bytes(&self) -> usize {
        let vectors: usize = self.vectors.iter().map(|own| own.vectors.len()).sum();
        vectors + self.payloads.iter().flatten().map(Vec::len).sum::<usize>()
    }
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

    /// Names of vectors of which there are none: known from the beginning of a file with columns, and of lines, all of
    /// which were read, at their end.
    fn names_without(&self) -> Vec<String>;
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
pub fn open(path: &Path, columns: &Columns, wanted: &[Wanted]) -> Result<Box<dyn FileRows>> {
    Ok(match kind_of(path) {
        Kind::Arrow(form) => arrow_files::open(path, form, columns, wanted)?,
        Kind::JsonLines => Box::new(JsonRows::open(path, columns, wanted)?),
        Kind::Arrays => Box::new(ArrayRows::open(path, columns, wanted)?),
    })
}

/// Components of the vectors of each of these names in a file, and the type of a collection that holds them: those of
/// the first row that has one. One name that is empty stands for vectors without names.
///
/// # Errors
/// As [`open`]; a file in which no row has a vector of a name.
pub fn shapes_of(path: &Path, columns: &Columns, names: &[&str]) -> Result<Vec<(usize, DType)>> {
    let shapes = match kind_of(path) {
        Kind::Arrow(form) => arrow_files::shapes_of(path, form, columns, names)?,
        Kind::JsonLines => JsonRows::shapes_of(path, columns, names)?,
        Kind::Arrays => ArrayRows::shapes_of(path, columns, names)?,
    };
    let shape = |(shape, name): (Option<(usize, DType)>, &&str)| match (shape, *name) {
        (Some(shape), _) => Ok(shape),
        (None, "") => Err(empty(path)),
        (None, name) => Err(Error::bad_input(format!(
            "{} has no row with a vector of {name:?}, whose dimensions would be those of the collection; create it \
             with `stratann collection create --vectors NAME=DIM` before",
            path.display()
        ))),
    };
    shapes.into_iter().zip(names).map(shape).collect()
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
    /// One for each name of vectors; `None` for a name without a column.
    pub(crate) vectors: Vec<Option<usize>>,
    pub(crate) payload: Vec<usize>,
}

impl Roles {
    /// Finds the columns of a file, with those of vectors of these names.
    pub(crate) fn of<N: AsRef<str>>(
        path: &Path,
        all: &[Named<'_>],
        (columns, of_vectors): (&Columns, &[N]),
    ) -> Result<Roles> {
        let ids = match &columns.ids {
            Some(name) => Some(demanded(path, all, ("--ids", name))?),
            None => all.iter().position(|column| column.name == IDS),
        };
        let vectors: Vec<Option<usize>> = of_vectors
            .iter()
            .map(|name| match (columns.of_vectors(name.as_ref()), name.as_ref()) {
                (Some(column), _) => chosen_vectors(path, all, column).map(Some),
                (None, "") => usual_vectors(path, all).map(Some),
                (None, name) => Ok(named_vectors(all, name)),
            })
            .collect::<Result<_>>()?;
        let payload = match &columns.payload {
            PayloadColumns::All => {
                (0..all.len()).filter(|at| Some(*at) != ids && !vectors.contains(&Some(*at))).collect()
            }
            PayloadColumns::Nothing => Vec::new(),
            PayloadColumns::These(these) => {
                these.iter().map(|name| demanded(path, all, ("--payload", name))).collect::<Result<_>>()?
            }
        };
        Ok(Roles { ids, vectors, payload })
    }
}

/// The column that an option names.
fn demanded(path: &Path, all: &[Named<'_>], (option, name): (&str, &str)) -> Result<usize> {
    all.iter().position(|column| column.name == name).ok_or_else(|| {
        let (path, all) = (path.display(), names(all));
        Error::bad_input(format!("{path} has no column {name:?} for {option}; its columns are {all}"))
    })
}

/// The column of vectors that an option names.
fn chosen_vectors(path: &Path, all: &[Named<'_>], name: &str) -> Result<usize> {
    let at = demanded(path, all, ("--vectors", name))?;
    match all.get(at).is_some_and(|column| column.is_vectors) {
        true => Ok(at),
        false => Err(Error::bad_input(format!(
            "{}: the column {name:?} has no lists of numbers; name a column of vectors with --vectors",
            path.display()
        ))),
    }
}

/// The column of the vectors of a name, where none is chosen.
fn named_vectors(all: &[Named<'_>], name: &str) -> Option<usize> {
    let column = |of: &str| all.iter().position(|column| column.name == of && column.is_vectors);
    column(&column_of(name)).or_else(|| column(name))
}

/// The error of a file with columns none of which has vectors of these names.
pub(crate) fn no_vectors<N: AsRef<str>>(path: &Path, all: &[Named<'_>], of_vectors: &[N]) -> Error {
    let of_vectors: Vec<String> = of_vectors.iter().map(|name| format!("{:?}", name.as_ref())).collect();
    Error::bad_input(format!(
        "{} has no column of lists of numbers for the vectors {} among {}; name one with --vectors NAME=COLUMN",
        path.display(),
        of_vectors.join(", "),
        names(all)
    ))
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
        roles_of(all, columns, &[""])
    }

    fn roles_of(all: &[(&str, bool)], columns: &Columns, names: &[&str]) -> Result<Roles> {
        let all: Vec<Named<'_>> = all.iter().map(|&(name, is_vectors)| Named { name, is_vectors }).collect();
        Roles::of(Path::new("f"), &all, (columns, names))
    }

    #[test]
    fn columns_have_usual_names() {
        let all = [("id", false), ("tags", true), ("vector", true), ("a.b", false)];
        let usual = roles(&all, &Columns::default()).unwrap();
        assert_eq!(usual, Roles { ids: Some(0), vectors: vec![Some(2)], payload: vec![1, 3] });
        let own = Columns {
            ids: Some("a.b".into()),
            vectors: vec![(String::new(), "tags".into())],
            payload: PayloadColumns::These(vec!["id".into(), "a.b".into()]),
        };
        assert_eq!(
            roles(&all, &own).unwrap(),
            Roles { ids: Some(3), vectors: vec![Some(1)], payload: vec![0, 3] }
        );
        let only = roles(&[("x", false), ("embedding", true)], &Columns::default()).unwrap();
        assert_eq!(only, Roles { ids: None, vectors: vec![Some(1)], payload: vec![0] });
    }

    #[test]
    fn vectors_by_name_have_the_columns_of_their_names() {
        let all = [("id", false), ("title", true), ("vectors.id", true), ("image", false), ("other", true)];
        let names = ["id", "image", "title"];
        let usual = roles_of(&all, &Columns::default(), &names).unwrap();
        // A column of another type than vectors is one of the payload.
        assert_eq!(usual, Roles { ids: Some(0), vectors: vec![Some(2), None, Some(1)], payload: vec![3, 4] });
        let chosen = Columns { vectors: vec![("image".into(), "other".into())], ..Columns::default() };
        let own = roles_of(&all, &chosen, &names).unwrap();
        assert_eq!((own.vectors, own.payload), (vec![Some(2), Some(4), Some(1)], vec![3]));
        for (column, why) in [("image", "no lists of numbers"), ("none", "no column \"none\" for --vectors")]
        {
            let wrong = Columns { vectors: vec![("title".into(), column.into())], ..Columns::default() };
            let error = roles_of(&all, &wrong, &names).unwrap_err();
            assert!(error.message.contains(why), "{error}");
        }
        let names = ["", "a", "id", "payload", "vector", "vectors.id", "vectors.vectors.id"];
        let columns: std::collections::BTreeSet<String> =
            names[1..].iter().map(|name| column_of(name)).collect();
        assert_eq!((columns.len(), column_of("")), (names.len() - 1, "vector".into()));
        assert!(!columns.contains(IDS) && !columns.contains(PAYLOAD));
    }

    #[test]
    fn columns_that_are_not_there_are_named() {
        let named = |ids: Option<&str>, vectors: Option<&str>| Columns {
            ids: ids.map(String::from),
            vectors: vectors.into_iter().map(|column| (String::new(), column.into())).collect(),
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
