//! Keywords that follow from the table of parameters.

use pyo3::prelude::*;
use pyo3::types::PyDict;
use stratann_params::{GROUPS, Given, IndexKind, Scope, Value, similar};

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
        given.add(scope, &name, of(&value)?).map_err(|wrong| error::input(py, &wrong.0))?;
    }
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
    let of_all = parameters(stage);
    let of_kind = of_stage(stage, |kinds| IndexKind::parse(kind).is_none_or(|kind| kinds.contains(&kind)));
    let is_near = |name: &&String| of_kind.contains(&name.as_str()) || !of_all.contains(&name.as_str());
    let near: Vec<String> = known.iter().filter(is_near).cloned().collect();
    match similar(name, &near) {
        Some(near) => format!("there is no parameter {name}; use {near}"),
        None => format!("there is no parameter {name}; leave it out"),
    }
}

/// The names of a stage's keywords whose kinds are accepted.
fn of_stage(stage: &str, accepts: impl Fn(&[IndexKind]) -> bool) -> Vec<&'static str> {
    let groups = GROUPS.iter().filter(|group| format!("{:?}", group.stage).eq_ignore_ascii_case(stage));
    let all = groups.flat_map(|group| group.params.iter().map(move |param| (group, param)));
    all.filter(|(group, param)| param.in_python && accepts(group.kinds_of(param)))
        .map(|(_, param)| param.name)
        .collect()
}
