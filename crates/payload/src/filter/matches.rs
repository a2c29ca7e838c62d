//! The plain definition of a filter, on one point.

use serde_json::{Map, Value};

use super::{Condition, Filter, Interval, Match, MinShould};
use crate::date::{self, Date};
use crate::number::Number;
use crate::scalar::Scalar;
use crate::value::Payload;
use crate::words::{has_phrase, words};
use crate::{Path, PointFacts};

impl Filter {
    /// Whether the filter matches a point. [`crate::Predicate::matches`] gives the same answers sooner.
    pub fn matches(&self, payload: &Payload, facts: &dyn PointFacts) -> bool {
        self.holds(payload.as_map(), facts)
    }

    fn holds(&self, fields: &Map<String, Value>, facts: &dyn PointFacts) -> bool {
        let holds = |condition: &Condition| condition.holds(fields, facts);
        let has_enough = |least: &MinShould| {
            least.conditions.iter().filter(|&condition| holds(condition)).count() >= least.min_count
        };
        self.must.iter().all(holds)
            && (self.should.is_empty() || self.should.iter().any(holds))
            && !self.must_not.iter().any(holds)
            && self.min_should.as_ref().is_none_or(has_enough)
    }
}

impl Condition {
    fn holds(&self, fields: &Map<String, Value>, facts: &dyn PointFacts) -> bool {
        match self {
            Condition::Match(path, wanted) => path.any(fields, &mut |value| wanted.holds(value)),
            Condition::Range(path, range) => path.any(fields, &mut |value| has_number(range, value)),
            Condition::DateRange(path, range) => path.any(fields, &mut |value| has_date(range, value)),
            Condition::ValuesCount(path, range) => {
                let count = count_of(path, fields);
                range.has(|limit| count.cmp(limit))
            }
            Condition::Exists(path) => path.reaches(fields, &mut |_| true),
            Condition::IsEmpty(path) => !path.reaches(fields, &mut is_filled),
            Condition::IsNull(path) => path.any(fields, &mut |value| value.is_null()),
            Condition::HasId(ids) => ids.iter().any(|id| facts.has_id(id)),
            Condition::HasVector(name) => facts.has_vector(name),
            Condition::Nested(path, filter) => path.each().reaches(fields, &mut |element| {
                element.as_object().is_some_and(|element| filter.holds(element, facts))
            }),
            Condition::Filter(filter) => filter.holds(fields, facts),
        }
    }
}

impl Match {
    fn holds(&self, value: &Value) -> bool {
        let is_in = |list: &[Scalar]| Scalar::of_json(value).is_some_and(|own| list.contains(&own));
        match (self, value) {
            (Match::Value(wanted), value) => Scalar::of_json(value).as_ref() == Some(wanted),
            (Match::Any(wanted), _) => is_in(wanted),
            (Match::Except(others), value) => !value.is_null() && !is_in(others),
            (Match::Text(text), Value::String(own)) => {
                let own: Vec<String> = words(own).collect();
                words(text).next().is_some() && words(text).all(|word| own.contains(&word))
            }
            (Match::TextAny(text), Value::String(own)) => {
                let own: Vec<String> = words(own).collect();
                words(text).any(|word| own.contains(&word))
            }
            (Match::Phrase(text), Value::String(own)) => has_phrase(own, &words(text).collect::<Vec<_>>()),
            (Match::Prefix(text), Value::String(own)) => own.starts_with(text),
            (Match::Substring(text), Value::String(own)) => own.contains(text),
            _ => false,
        }
    }
}

fn has_number(range: &Interval<Number>, value: &Value) -> bool {
    let number = value.as_number().and_then(Number::of_json);
    number.is_some_and(|number| range.has(|limit| number.cmp(limit)))
}

fn has_date(range: &Interval<Date>, value: &Value) -> bool {
    let micros = value.as_str().and_then(date::micros_of);
    micros.is_some_and(|micros| range.has(|limit| micros.cmp(&limit.micros)))
}

/// Whether something that a path reaches is neither null nor an empty array.
pub(crate) fn is_filled(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Array(elements) => !elements.is_empty(),
        _ => true,
    }
}

/// Number of values of a path.
pub(crate) fn count_of(path: &Path, fields: &Map<String, Value>) -> u64 {
    let mut count = 0;
    path.reaches(fields, &mut |value| {
        count += match value {
            Value::Null => 0,
            Value::Array(elements) => elements.len() as u64,
            _ => 1,
        };
        false
    });
    count
}
