//! Options as a manifest records them.

use std::collections::BTreeMap;

use serde_json::Value as Json;
use stratann_params::{Group, Value};

/// The options that the content of an index depends on, by name.
pub(crate) type Record = BTreeMap<&'static str, Json>;

/// Every option of a group; null for those without a value.
pub(crate) fn recorded<G: Group>(options: &G) -> Record {
    let value = |name: &str| options.get(name).map_or(Json::Null, json);
    G::PARAMS.iter().map(|param| (param.name, value(param.name))).collect()
}

fn json(value: Value) -> Json {
    match value {
        Value::Flag(flag) => flag.into(),
        Value::Whole(number) => number.into(),
        Value::Real(number) => number.into(),
        Value::Single(number) => f64::from(number).into(),
        Value::Text(text) => text.into(),
        Value::Path(path) => path.to_string_lossy().into(),
    }
}
