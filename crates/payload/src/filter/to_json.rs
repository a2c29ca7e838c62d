//! A filter as JSON, in the form that is read.

use serde_json::{Map, Value, json};

use super::{Condition, Filter, Interval, Match};
use crate::Path;
use crate::id::IdValue;
use crate::scalar::Scalar;

impl Filter {
    /// The filter as JSON; [`Filter::from_value`] gives the same filter.
    pub fn to_value(&self) -> Value {
        let mut own = Map::new();
        let list = |conditions: &[Condition]| conditions.iter().map(Condition::to_value).collect::<Value>();
        for (name, conditions) in
            [("must", &self.must), ("should", &self.should), ("must_not", &self.must_not)]
        {
            if !conditions.is_empty() {
                own.insert(name.into(), list(conditions));
            }
        }
        if let Some(least) = &self.min_should {
            let value = json!({"conditions": list(&least.conditions), "min_count": least.min_count});
            own.insert("min_should".into(), value);
        }
        Value::Object(own)
    }
}

impl Condition {
    fn to_value(&self) -> Value {
        let of_field = |path: &Path, name: &str, value: Value| json!({"key": path.to_string(), name: value});
        let of_key = |name: &str, path: &Path| json!({name: {"key": path.to_string()}});
        match self {
            Condition::Match(path, wanted) => of_field(path, "match", wanted.to_value()),
            Condition::Range(path, range) => {
                of_field(path, "range", interval(range, |number| number.to_json()))
            }
            // Without a limit it would be a range of numbers; this one is the first of all dates.
            Condition::DateRange(path, range) if *range == Interval::default() => {
                of_field(path, "range", json!({"gte": "0000-01-01T00:00:00+23:59"}))
            }
            Condition::DateRange(path, range) => {
                of_field(path, "range", interval(range, |date| date.text().into()))
            }
            Condition::ValuesCount(path, range) => {
                of_field(path, "values_count", interval(range, |count| (*count).into()))
            }
            Condition::Exists(path) => of_key("exists", path),
            Condition::IsEmpty(path) => of_key("is_empty", path),
            Condition::IsNull(path) => of_key("is_null", path),
            Condition::HasId(ids) => json!({"has_id": ids.iter().map(IdValue::to_json).collect::<Value>()}),
            Condition::HasVector(name) => json!({"has_vector": name}),
            Condition::Nested(path, filter) => {
                json!({"nested": {"key": path.to_string(), "filter": filter.to_value()}})
            }
            Condition::Filter(filter) => filter.to_value(),
        }
    }
}

impl Match {
    fn to_value(&self) -> Value {
        let list = |scalars: &[Scalar]| scalars.iter().map(Scalar::to_json).collect::<Value>();
        match self {
            Match::Value(scalar) => json!({"value": scalar.to_json()}),
            Match::Any(scalars) => json!({"any": list(scalars)}),
            Match::Except(scalars) => json!({"except": list(scalars)}),
            Match::Text(text) => json!({"text": text}),
            Match::TextAny(text) => json!({"text_any": text}),
            Match::Phrase(text) => json!({"phrase": text}),
            Match::Prefix(text) => json!({"prefix": text}),
            Match::Substring(text) => json!({"substring": text}),
        }
    }
}

fn interval<T>(range: &Interval<T>, value: impl Fn(&T) -> Value) -> Value {
    let limits = [("gt", &range.gt), ("gte", &range.gte), ("lt", &range.lt), ("lte", &range.lte)];
    let given =
        limits.into_iter().filter_map(|(name, limit)| Some((name.to_string(), value(limit.as_ref()?))));
    Value::Object(given.collect())
}
