//! The file of options of `stratann serve`: keys are names of the table of parameters.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use stratann_engine::manifest::Manifest;
use stratann_params::{Given, Param, Place, Scope, Surface, Type, Value, named};
use stratann_storage::{Error, Result, input};
use toml::{Spanned, Value as Toml};

use super::ServeRows;
use crate::parameters::{Parameters, Rows};

/// Lists to which the command line adds, instead of replacing those of the file.
const ADDED: [&str; 2] = ["host_name", "allow_origin"];

/// The options of file and command line, which takes precedence, and the folder that paths of the file are relative
/// to.
///
/// # Errors
/// A file that cannot be read or is no TOML; a key that servers do not have; a value of another type.
pub(super) fn given(path: Option<&Path>, own: &Parameters<ServeRows>) -> Result<(Given, PathBuf)> {
    let Some(path) = path else { return Ok((own.given.clone(), PathBuf::new())) };
    let folder = path.parent().unwrap_or(Path::new(""));
    let file = read(path, folder, &own.given)?;
    let mut given = own.given.clone().or(file.clone());
    for name in ADDED.into_iter().filter(|name| own.given.has(name)) {
        file.values(name).for_each(|value| given.push(name, value.clone(), name.into()));
    }
    Ok((given, folder.to_path_buf()))
}

fn read(path: &Path, folder: &Path, own: &Given) -> Result<Given> {
    let text = input::read_text(path)?;
    let wrong = |start: usize, why: String| {
        let line = text.get(..start).unwrap_or("").matches('\n').count() + 1;
        Error::bad_input(format!("{}, line {line}: {why}", path.display()))
    };
    let keys: BTreeMap<Spanned<String>, Toml> = toml::from_str(&text).map_err(|e| {
        let why = e.message().lines().collect::<Vec<_>>().join(" ");
        wrong(e.span().map_or(0, |span| span.start), why)
    })?;
    let mut keys: Vec<(Spanned<String>, Toml)> = keys.into_iter().collect();
    keys.sort_by_key(|(key, _)| key.span().start);
    // A key that servers do not have is likely one of this kind, misspelt.
    let index = own.values("index").find_map(path_of).or_else(|| {
        let (_, index) = keys.iter().find(|(key, _)| key.get_ref() == "index")?;
        Some(folder.join(index.as_str()?))
    });
    let kinds = index.and_then(|index| Manifest::read(&index).ok()?.1.kind()).into_iter().collect();
    let scope = Scope { stages: ServeRows::STAGES, kinds, place: Place::Folder, surface: Surface::File };
    let mut given = Given::default();
    for (key, value) in keys {
        let name = key.get_ref();
        let row = named(ServeRows::STAGES, name).next().map(|(_, param)| param);
        let all = match value {
            Toml::Array(all) if row.is_none_or(|param| param.is_list) => all,
            value => vec![value],
        };
        for value in all {
            let value =
                of(value, row, folder).map_err(|why| wrong(key.span().start, format!("{name} is {why}")))?;
            given.add(&scope, name, value).map_err(|why| wrong(key.span().start, why.0))?;
        }
    }
    Ok(given)
}

fn path_of(value: &Value) -> Option<PathBuf> {
    match value {
        Value::Path(path) => Some(path.clone()),
        _ => None,
    }
}

/// A value of a file. A path is relative to the folder of the file.
fn of(value: Toml, row: Option<&Param>, folder: &Path) -> std::result::Result<Value, String> {
    let wrong = |what: &str| {
        let wanted = row.map_or("leave it out".into(), |param| param.wanted(Surface::File));
        format!("{what}; {wanted}")
    };
    Ok(match value {
        Toml::Boolean(flag) => Value::Flag(flag),
        Toml::Integer(number) => u64::try_from(number).map_or(Value::Real(number as f64), Value::Whole),
        Toml::Float(number) => Value::Real(number),
        Toml::String(text) => match row.map(|param| param.of) {
            Some(Type::Path) => Value::Path(folder.join(text)),
            _ => Value::Text(text),
        },
        Toml::Array(_) => return Err(wrong("a list")),
        Toml::Table(_) => return Err(wrong("a table")),
        Toml::Datetime(_) => return Err(wrong("a date")),
    })
}
