//! Reads a filter from JSON, in Qdrant's form. Errors name the place as a JSON pointer (RFC 6901).

use serde_json::{Map, Value};
use stratann_storage::error::quoted;
use stratann_storage::{Error, Result};

use super::{CONDITIONS_MAX, Condition, DEPTH_MAX, Filter, Interval, Match, MinShould, VALUES_MAX};
use crate::date::Date;
use crate::id::IdValue;
use crate::number::Number;
use crate::path::Path;
use crate::scalar::Scalar;
use crate::value::{json_of, kind_of};

/// Longest filter as JSON, in bytes.
pub const JSON_BYTES_MAX: usize = 32 << 20;
/// Most levels of JSON for each level of filters: a condition `nested` in a list has four.
const JSON_LEVELS: usize = 4;

const OF_FILTER: [&str; 4] = ["must", "should", "must_not", "min_should"];
const OF_FIELD: [&str; 6] = ["key", "match", "range", "values_count", "is_empty", "is_null"];
const OF_MATCH: [&str; 8] = ["value", "any", "except", "text", "text_any", "phrase", "prefix", "substring"];
const OF_RANGE: [&str; 4] = ["gt", "gte", "lt", "lte"];
const OF_NESTED: [&str; 2] = ["key", "filter"];
const CONDITIONS: &str = "give a condition such as {\"key\": …, \"match\": {\"value\": …}}, or exists, \
                          is_empty, is_null, has_id, has_vector, nested, must, should, must_not, min_should";

impl Filter {
    /// Reads a filter from JSON.
    ///
    /// # Errors
    /// `BadInput` that names place and remedy for bytes that are no JSON, unknown or wrong members, conditions on
    /// places (geo), and filters beyond [`DEPTH_MAX`], [`CONDITIONS_MAX`], [`VALUES_MAX`] or 32 MiB.
    pub fn from_json(json: &[u8]) -> Result<Filter> {
        if json.len() > JSON_BYTES_MAX {
            return Err(Error::bad_input(format!(
                "the filter has {} bytes, at most {JSON_BYTES_MAX} are possible; name fewer values",
                json.len()
            )));
        }
        Filter::from_value(&json_of(json, JSON_LEVELS * DEPTH_MAX, "the filter")?)
    }

    /// Reads a filter from a JSON value.
    ///
    /// # Errors
    /// As [`Filter::from_json`].
    pub fn from_value(value: &Value) -> Result<Filter> {
        let mut reader = Reader { place: String::new(), depth: 0, conditions: 0, values: 0 };
        reader.filter(value)
    }
}

/// Reads JSON values, and knows its place.
struct Reader {
    /// JSON pointer.
    place: String,
    /// Filters around this one.
    depth: usize,
    conditions: usize,
    values: usize,
}

impl Reader {
    fn wrong(&self, what: &str) -> Error {
        Error::bad_input(format!("{} {what}", self.here()))
    }

    /// The place for messages.
    fn here(&self) -> String {
        if self.place.is_empty() {
            "the filter".into()
        } else {
            format!("the filter at {}", quoted(&self.place))
        }
    }

    /// Reads what a member of the current place has.
    fn within<T>(&mut self, member: &str, read: impl FnOnce(&mut Reader) -> Result<T>) -> Result<T> {
        let length = self.place.len();
        self.place.push('/');
        self.place.push_str(&member.replace('~', "~0").replace('/', "~1"));
        let found = read(self);
        self.place.truncate(length);
        found
    }

    fn object<'a>(&self, value: &'a Value) -> Result<&'a Map<String, Value>> {
        let wrong = || self.wrong(&format!("is {}; give an object", kind_of(value)));
        value.as_object().ok_or_else(wrong)
    }

    /// Refuses members that are not in `known`.
    fn known_alone(&self, map: &Map<String, Value>, known: &[&str]) -> Result<()> {
        match map.keys().find(|key| !known.contains(&key.as_str())) {
            Some(key) => Err(self.wrong(&format!(
                "has an unknown member \"{}\"; possible are {}",
                quoted(key),
                known.join(", ")
            ))),
            None => Ok(()),
        }
    }

    fn filter(&mut self, value: &Value) -> Result<Filter> {
        if self.depth >= DEPTH_MAX {
            return Err(self.wrong(&format!("nests deeper than {DEPTH_MAX} filters; flatten it")));
        }
        self.depth += 1;
        let map = self.object(value)?;
        self.known_alone(map, &OF_FILTER)?;
        let mut own = Filter::default();
        for (name, into) in
            [("must", &mut own.must), ("should", &mut own.should), ("must_not", &mut own.must_not)]
        {
            if let Some(value) = given(map, name) {
                *into = self.within(name, |reader| reader.list(value))?;
            }
        }
        if let Some(value) = given(map, "min_should") {
            own.min_should = Some(self.within("min_should", |reader| reader.min_should(value))?);
        }
        self.depth -= 1;
        Ok(own)
    }

    /// Conditions; a single one may stand without a list.
    fn list(&mut self, value: &Value) -> Result<Vec<Condition>> {
        match value {
            Value::Array(list) => {
                let mut conditions = Vec::with_capacity(list.len());
                for (at, value) in list.iter().enumerate() {
                    conditions.push(self.within(&at.to_string(), |reader| reader.condition(value))?);
                }
                Ok(conditions)
            }
            Value::Object(_) => Ok(vec![self.condition(value)?]),
            _ => Err(self.wrong(&format!("is {}; give a list of conditions", kind_of(value)))),
        }
    }

    fn min_should(&mut self, value: &Value) -> Result<MinShould> {
        let map = self.object(value)?;
        self.known_alone(map, &["conditions", "min_count"])?;
        let conditions = given(map, "conditions").ok_or_else(|| self.wrong("lacks \"conditions\""))?;
        let conditions = self.within("conditions", |reader| reader.list(conditions))?;
        let min_count = given(map, "min_count").and_then(Value::as_u64);
        let min_count = min_count.ok_or_else(|| self.wrong("lacks \"min_count\", a number from 0 on"))?;
        Ok(MinShould { conditions, min_count: usize::try_from(min_count).unwrap_or(usize::MAX) })
    }

    fn condition(&mut self, value: &Value) -> Result<Condition> {
        self.conditions += 1;
        if self.conditions > CONDITIONS_MAX {
            return Err(self.wrong(&format!(
                "is beyond the {CONDITIONS_MAX} conditions that are possible; use match any for lists of values"
            )));
        }
        let map = self.object(value)?;
        if let Some(key) = map.keys().find(|key| key.starts_with("geo_")) {
            return Err(self.wrong(&format!(
                "has \"{}\", and conditions on places are not possible; use range on two fields for latitude and \
                 longitude",
                quoted(key)
            )));
        }
        if map.is_empty() || OF_FILTER.iter().any(|name| map.contains_key(*name)) {
            return Ok(Condition::Filter(self.filter(value)?));
        }
        if map.contains_key("key") {
            return self.of_field(map);
        }
        let mut given = map.iter().filter(|(_, value)| !value.is_null());
        let (Some((name, value)), None) = (given.next(), given.next()) else {
            return Err(self.wrong(&format!("is no single condition; {CONDITIONS}")));
        };
        if !["exists", "is_empty", "is_null", "has_id", "has_vector", "nested"].contains(&name.as_str()) {
            return Err(self.wrong(&format!("has an unknown member \"{}\"; {CONDITIONS}", quoted(name))));
        }
        self.within(name, |reader| reader.named(name, value))
    }

    /// The condition of a name that stands alone.
    fn named(&mut self, name: &str, value: &Value) -> Result<Condition> {
        match name {
            "exists" => self.keyed(value).map(Condition::Exists),
            "is_empty" => self.keyed(value).map(Condition::IsEmpty),
            "is_null" => self.keyed(value).map(Condition::IsNull),
            "has_id" => self.ids(value).map(Condition::HasId),
            "nested" => self.nested(value),
            _ => match value {
                Value::String(name) => Ok(Condition::HasVector(name.clone())),
                _ => Err(self.wrong(&format!("is {}; give the name of a vector", kind_of(value)))),
            },
        }
    }

    fn keyed(&mut self, value: &Value) -> Result<Path> {
        let map = self.object(value)?;
        self.known_alone(map, &["key"])?;
        self.path(map)
    }

    /// The path of the member `key`.
    fn path(&mut self, map: &Map<String, Value>) -> Result<Path> {
        let text = given(map, "key").and_then(Value::as_str);
        let text =
            text.ok_or_else(|| self.wrong("lacks \"key\", a string such as \"color\" or \"a[].b\""))?;
        Path::parse(text).map_err(|e| self.wrong(&format!("has a wrong key: {}", e.message)))
    }

    fn ids(&mut self, value: &Value) -> Result<Vec<IdValue>> {
        let list = value.as_array().ok_or_else(|| self.wrong("is no list; give a list of ids"))?;
        self.count(list.len())?;
        let read = |(at, value)| IdValue::of_json(value, &format!("{}, item {at},", self.here()));
        list.iter().enumerate().map(read).collect()
    }

    fn nested(&mut self, value: &Value) -> Result<Condition> {
        let map = self.object(value)?;
        self.known_alone(map, &OF_NESTED)?;
        let path = self.path(map)?;
        let inner = given(map, "filter").ok_or_else(|| self.wrong("lacks \"filter\""))?;
        let filter = self.within("filter", |reader| reader.filter(inner))?;
        if names_points(&filter) {
            return Err(self.wrong("has has_id or has_vector within; put these beside nested"));
        }
        Ok(Condition::Nested(path, filter))
    }

    /// A condition on a field: `key`, and one of the others.
    fn of_field(&mut self, map: &Map<String, Value>) -> Result<Condition> {
        self.known_alone(map, &OF_FIELD)?;
        let path = self.path(map)?;
        let mut others = map.iter().filter(|(name, value)| *name != "key" && !value.is_null());
        let (Some((name, value)), None) = (others.next(), others.next()) else {
            let names = OF_FIELD[1..].join(", ");
            return Err(self.wrong(&format!("needs exactly one of {names} beside \"key\"")));
        };
        self.within(name, |reader| match name.as_str() {
            "match" => Ok(Condition::Match(path, reader.match_of(value)?)),
            "range" => reader.range(path, value),
            "values_count" => {
                let count = |value: &Value, place: &str| {
                    let wrong = || Error::bad_input(format!("{place} is no number from 0 on; give one"));
                    value.as_u64().ok_or_else(wrong)
                };
                Ok(Condition::ValuesCount(path, reader.interval(value, count)?))
            }
            _ => {
                let is = value.as_bool().ok_or_else(|| reader.wrong("is no boolean; give true or false"))?;
                let own = if name == "is_null" { Condition::IsNull(path) } else { Condition::IsEmpty(path) };
                Ok(if is { own } else { Condition::Filter(Filter::none(vec![own])) })
            }
        })
    }

    fn match_of(&mut self, value: &Value) -> Result<Match> {
        let map = self.object(value)?;
        self.known_alone(map, &OF_MATCH)?;
        let mut members = map.iter();
        let (Some((name, value)), None) = (members.next(), members.next()) else {
            return Err(self.wrong(&format!("needs exactly one of {}", OF_MATCH.join(", "))));
        };
        self.within(name, |reader| {
            Ok(match name.as_str() {
                "value" => Match::Value(Scalar::demanded(value, &reader.here())?),
                "any" => Match::Any(reader.scalars(value)?),
                "except" => Match::Except(reader.scalars(value)?),
                "text" => Match::Text(reader.text(value)?),
                "text_any" => Match::TextAny(reader.text(value)?),
                "phrase" => Match::Phrase(reader.text(value)?),
                "prefix" => Match::Prefix(reader.text(value)?),
                _ => Match::Substring(reader.text(value)?),
            })
        })
    }

    fn text(&self, value: &Value) -> Result<String> {
        let wrong = || self.wrong(&format!("is {}; give a string", kind_of(value)));
        value.as_str().map(String::from).ok_or_else(wrong)
    }

    fn scalars(&mut self, value: &Value) -> Result<Vec<Scalar>> {
        let list = value.as_array().ok_or_else(|| self.wrong("is no list; give a list of values"))?;
        self.count(list.len())?;
        let read = |(at, value)| Scalar::demanded(value, &format!("{}, item {at},", self.here()));
        list.iter().enumerate().map(read).collect()
    }

    /// Counts values against their limit.
    fn count(&mut self, values: usize) -> Result<()> {
        self.values += values;
        if self.values <= VALUES_MAX {
            return Ok(());
        }
        Err(self.wrong(&format!("is beyond the {VALUES_MAX} values that a filter may have; name fewer")))
    }

    /// A range of numbers, or one of dates where its first limit is a string.
    fn range(&mut self, path: Path, value: &Value) -> Result<Condition> {
        let limits = self.object(value)?;
        if limits.values().any(Value::is_string) {
            return Ok(Condition::DateRange(path, self.interval(value, Date::demanded)?));
        }
        let number = |value: &Value, place: &str| {
            let wrong =
                || Error::bad_input(format!("{place} is {}; give a number or a date", kind_of(value)));
            value.as_number().and_then(Number::of_json).ok_or_else(wrong)
        };
        Ok(Condition::Range(path, self.interval(value, number)?))
    }

    fn interval<T>(
        &mut self,
        value: &Value,
        read: impl Fn(&Value, &str) -> Result<T>,
    ) -> Result<Interval<T>> {
        let map = self.object(value)?;
        self.known_alone(map, &OF_RANGE)?;
        let mut limit = |name: &str| match given(map, name) {
            Some(value) => self.within(name, |reader| read(value, &reader.here()).map(Some)),
            None => Ok(None),
        };
        Ok(Interval { gt: limit("gt")?, gte: limit("gte")?, lt: limit("lt")?, lte: limit("lte")? })
    }
}

/// A member; clients write those that are not given as null.
fn given<'a>(map: &'a Map<String, Value>, name: &str) -> Option<&'a Value> {
    map.get(name).filter(|value| !value.is_null())
}

/// Whether a filter has conditions on points, which elements of an array do not have.
pub(crate) fn names_points(filter: &Filter) -> bool {
    let least = filter.min_should.iter().flat_map(|least| &least.conditions);
    let mut all = filter.must.iter().chain(&filter.should).chain(&filter.must_not).chain(least);
    all.any(|condition| match condition {
        Condition::HasId(_) | Condition::HasVector(_) => true,
        Condition::Filter(inner) => names_points(inner),
        // It was checked when it was read.
        _ => false,
    })
}
