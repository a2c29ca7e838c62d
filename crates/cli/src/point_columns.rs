//! Options about files of points, and about indexes of their fields, that several commands have.

use std::collections::BTreeMap;

use stratann_import::PayloadColumns;
use stratann_payload::{IndexKind, Path};
use stratann_storage::{Error, Result};

/// The columns that `--payload` names.
///
/// # Errors
/// `BadInput` for an empty name.
pub(crate) fn payload_columns(given: &[String]) -> Result<PayloadColumns> {
    Ok(match given.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        [] | ["all"] => PayloadColumns::All,
        ["none"] => PayloadColumns::Nothing,
        names if names.contains(&"") => {
            return Err(Error::bad_input("--payload has an empty name; give all, none, or names of columns"));
        }
        names => PayloadColumns::These(names.iter().map(|name| (*name).to_string()).collect()),
    })
}

/// The indexes of fields that `--set FIELD=KIND` names.
///
/// # Errors
/// `BadInput` for what is no field or no kind.
pub(crate) fn field_indexes(given: &[String]) -> Result<BTreeMap<Path, Vec<IndexKind>>> {
    let mut set: BTreeMap<Path, Vec<IndexKind>> = BTreeMap::new();
    for text in given {
        let (field, kinds) = text.rsplit_once('=').ok_or_else(|| {
            Error::bad_input(format!("--set {text}: no kind is given; write FIELD=KIND, as price=float"))
        })?;
        let field = Path::parse(field).map_err(|e| Error::bad_input(format!("--set: {}", e.message)))?;
        let kinds = kinds.split(',').map(|name| kind(text, name.trim())).collect::<Result<Vec<_>>>()?;
        set.entry(field).or_default().extend(kinds);
    }
    Ok(set)
}

fn kind(text: &str, name: &str) -> Result<IndexKind> {
    let known = IndexKind::ALL.into_iter().find(|kind| kind.name() == name);
    known.ok_or_else(|| {
        let names = IndexKind::ALL.map(IndexKind::name).join(", ");
        Error::bad_input(format!("--set {text}: there is no kind {name:?} of index; use {names}"))
    })
}
