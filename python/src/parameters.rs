//! Keywords that follow from the table of parameters.

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use stratann_params::{
    GROUPS, Given, IndexKind, Place, Scope, Stage, Surface, Value, retired, rows, unknown_among,
};

use crate::error;

/// Values of a dict of keywords; those without a value are not given.
///
/// # Errors
/// A keyword that the table does not have, a value of another type.
pub(crate) fn given(keywords: &Bound<'_, PyDict>, scope: &Scope, others: &[&str]) -> PyResult<Given> {
    let mut given = Given::default();
    for (name, value) in keywords {
        let name: String = name.extract()?;
        if value.is_none() || others.contains(&name.as_str()) {
            continue;
        }
        let py = value.py();
        let values = match value.cast::<PyList>() {
            Ok(list) => list.iter().map(|value| of(&value)).collect::<PyResult<_>>()?,
            Err(_) => vec![of(&value)?],
        };
        for value in values {
            given.add(scope, &name, value).map_err(|wrong| error::input(py, &wrong.0))?;
        }
    }
    Ok(given)
}

/// Values of a dict of keywords of a stage that are for every kind of index.
///
/// # Errors
/// As [`given`]; a number out of range.
pub(crate) fn checked(keywords: &Bound<'_, PyDict>, stages: &'static [Stage]) -> PyResult<Given> {
    // An open index changes in memory nodes alone.
    let place = if stages == [Stage::Update] { Place::MemoryNodes } else { Place::Folder };
    let scope = Scope { stages, kinds: Vec::new(), place, surface: Surface::Python };
    let given = given(keywords, &scope, &[])?;
    given.check(&scope).map_err(|wrong| error::input(keywords.py(), &wrong.0))?;
    Ok(given)
}

/// The value of a Python object, or of one of NumPy.
fn of(object: &Bound<'_, PyAny>) -> PyResult<Value> {
    if let Ok(flag) = object.extract() {
        return Ok(Value::Flag(flag));
    }
    if let Ok(text) = object.extract() {
        return Ok(Value::Text(text));
    }
    if let Ok(number) = object.extract() {
        return Ok(Value::Whole(number));
    }
    match object.extract() {
        // A negative number is in no range of whole numbers.
        Ok(number) => Ok(Value::Real(number)),
        Err(_) => object.extract().map(Value::Path),
    }
}

/// The names of keywords of a stage.
#[pyfunction]
pub(crate) fn parameters(stage: &str) -> Vec<&'static str> {
    of_stage(stage, |_| true)
}

/// The error for a keyword that a function does not have: names a similar one of the kind. `known` are all keywords of
/// the function.
#[pyfunction]
pub(crate) fn unknown(stage: &str, kind: &str, name: &str, known: Vec<String>) -> String {
    let stages = GROUPS.iter().map(|group| group.stage);
    let own: Vec<Stage> = stages.filter(|own| format!("{own:?}").eq_ignore_ascii_case(stage)).collect();
    if let Some(gone) = retired(&own, name, Surface::Python) {
        return gone.0;
    }
    let of_all = parameters(stage);
    let of_kind = of_stage(stage, |kinds| IndexKind::parse(kind).is_none_or(|kind| kinds.contains(&kind)));
    let is_near = |name: &&String| of_kind.contains(&name.as_str()) || !of_all.contains(&name.as_str());
    let near: Vec<String> = known.iter().filter(is_near).cloned().collect();
    unknown_among(name, &near).0
}

/// The names of a stage's keywords whose kinds are accepted.
fn of_stage(stage: &str, accepts: impl Fn(&[IndexKind]) -> bool) -> Vec<&'static str> {
    let groups = GROUPS.iter().filter(|group| format!("{:?}", group.stage).eq_ignore_ascii_case(stage));
    let stages: Vec<Stage> = groups.map(|group| group.stage).take(1).collect();
    let of_stage = rows(&stages).filter(|(group, param)| param.in_python && accepts(group.kinds_of(param)));
    of_stage.map(|(_, param)| param.name).collect()
}
