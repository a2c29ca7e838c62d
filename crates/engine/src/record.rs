//! Options as a manifest records them.

use std::collections::BTreeMap;

use serde_json::Value as Json;
use stratann_params::{Group, Value};
use stratann_storage::Result;

/// The options that the content of an index depends on, by name.
pub(crate) type Record = BTreeMap<&'static str, Json>;

/// What the record says of the compression of codes. Indexes of before have other values, or none.
pub(crate) const CODE_KIND: &str = "bits";

/// Options that an index is made with.
pub(crate) trait Recorded {
    /// Checks the values for vectors of `dim` components.
    ///
    /// # Errors
    /// A value out of range, options that exclude each other.
    fn check(&self, dim: usize) -> Result<()>;

    /// Chooses what nobody gave and depends on the set, within a budget of RAM.
    fn choose_for(&mut self, _rows: u64, _dim: usize, _ram_budget: Option<u64>) {}

    /// Returns the options that the content of an index depends on, as its manifest records them.
    fn record(&self, dim: usize) -> Record;
}

/// A kind without options.
impl Recorded for () {
    fn check(&self, _dim: usize) -> Result<()> {
        Ok(())
    }

    fn record(&self, _dim: usize) -> Record {
        Record::new()
    }
}

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
