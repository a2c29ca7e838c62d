//! A filter as users write it, and its plain definition.
//!
//! A filter matches where each condition of `must` does, at least one of `should` if there are any, none of `must_not`,
//! and at least `min_count` of `min_should`. A condition on a field matches where *a value* of its path does: an array
//! counts as its elements. Values are compared by type: the number 5 is not the string "5", but 5 is 5.0.
//!
//! | condition | matches where a value |
//! |---|---|
//! | match value, any | is equal to one of these |
//! | match except | is not null, and equal to none of these |
//! | match text | is a string with all these [words](crate::words), in any order |
//! | match text_any | is a string with one of these words |
//! | match phrase | is a string with these words next to each other |
//! | match prefix, substring | is a string that begins with this one, or has it within; case counts |
//! | range | is a number in the range, or with dates a string that is a [date](crate::date) in it |
//!
//! Text without words is found nowhere. The other conditions on fields:
//!
//! | condition | matches where the path |
//! |---|---|
//! | values_count | reaches so many values: an array counts its elements, null and a missing field are 0 |
//! | exists | reaches something, null and an empty array among it |
//! | is_empty | reaches nothing but nulls and empty arrays |
//! | is_null | reaches null, or an array with null |
//! | nested | reaches an array, and the filter matches one of its elements that is an object |

mod from_json;
mod matches;
mod to_json;

pub use from_json::JSON_BYTES_MAX;
pub(crate) use from_json::names_points;
pub(crate) use matches::{count_of, is_filled};
#[cfg(any(test, feature = "random"))]
pub mod random;
#[cfg(test)]
mod tests;

use crate::date::Date;
use crate::id::IdValue;
use crate::number::Number;
use crate::path::Path;
use crate::scalar::Scalar;

/// Most levels of filters within filters.
pub const DEPTH_MAX: usize = 128;
/// Most conditions of a filter, those of inner filters included.
pub const CONDITIONS_MAX: usize = 100_000;
/// Most values of all conditions of a filter together.
pub const VALUES_MAX: usize = 1_000_000;

/// A filter. One without conditions matches every point.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Filter {
    /// All of these match.
    pub must: Vec<Condition>,
    /// At least one of these matches, if there are any.
    pub should: Vec<Condition>,
    /// None of these matches.
    pub must_not: Vec<Condition>,
    /// At least so many of these match.
    pub min_should: Option<MinShould>,
}

/// At least `min_count` of some conditions.
#[derive(Clone, Debug, PartialEq)]
pub struct MinShould {
    /// The conditions; equal ones count each.
    pub conditions: Vec<Condition>,
    /// How many must match; 0 is always fulfilled.
    pub min_count: usize,
}

/// A condition of a filter.
#[derive(Clone, Debug, PartialEq)]
pub enum Condition {
    /// A value of the path matches.
    Match(Path, Match),
    /// A value of the path is a number in the interval.
    Range(Path, Interval<Number>),
    /// A value of the path is a date in the interval.
    DateRange(Path, Interval<Date>),
    /// The number of values is in the interval.
    ValuesCount(Path, Interval<u64>),
    /// The path reaches something.
    Exists(Path),
    /// The path reaches nothing but nulls and empty arrays.
    IsEmpty(Path),
    /// The path reaches null, or an array with null.
    IsNull(Path),
    /// The point has one of these ids.
    HasId(Vec<IdValue>),
    /// The point has a vector of this name.
    HasVector(String),
    /// An element of the array at the path matches a filter, whose paths begin in the element.
    Nested(Path, Filter),
    /// A filter matches.
    Filter(Filter),
}

/// What a value is compared with.
#[derive(Clone, Debug, PartialEq)]
pub enum Match {
    /// Equal to this.
    Value(Scalar),
    /// Equal to one of these.
    Any(Vec<Scalar>),
    /// Not null, and equal to none of these.
    Except(Vec<Scalar>),
    /// A string with all words of this.
    Text(String),
    /// A string with one of the words of this.
    TextAny(String),
    /// A string with the words of this next to each other.
    Phrase(String),
    /// A string that begins with this.
    Prefix(String),
    /// A string that has this within.
    Substring(String),
}

/// An interval; without a limit it is open on that side.
#[derive(Clone, Debug, PartialEq)]
pub struct Interval<T> {
    /// More than this.
    pub gt: Option<T>,
    /// This or more.
    pub gte: Option<T>,
    /// Less than this.
    pub lt: Option<T>,
    /// This or less.
    pub lte: Option<T>,
}

impl<T> Default for Interval<T> {
    fn default() -> Interval<T> {
        Interval { gt: None, gte: None, lt: None, lte: None }
    }
}

impl<T: Clone> Interval<T> {
    /// From one value to another, both included.
    pub fn between(low: T, high: T) -> Interval<T> {
        Interval { gte: Some(low), lte: Some(high), ..Interval::default() }
    }

    /// Whether a value is in it, which `order` compares with a limit.
    pub(crate) fn has(&self, order: impl Fn(&T) -> std::cmp::Ordering) -> bool {
        let holds = |limit: &Option<T>, allowed: fn(std::cmp::Ordering) -> bool| {
            limit.as_ref().is_none_or(|limit| allowed(order(limit)))
        };
        holds(&self.gt, |order| order.is_gt())
            && holds(&self.gte, |order| order.is_ge())
            && holds(&self.lt, |order| order.is_lt())
            && holds(&self.lte, |order| order.is_le())
    }
}

impl Filter {
    /// The filter that matches where all of these conditions do.
    pub fn all(conditions: Vec<Condition>) -> Filter {
        Filter { must: conditions, ..Filter::default() }
    }

    /// The filter that matches where one of these conditions does; with none, everywhere.
    pub fn any(conditions: Vec<Condition>) -> Filter {
        Filter { should: conditions, ..Filter::default() }
    }

    /// The filter that matches where none of these conditions does.
    pub fn none(conditions: Vec<Condition>) -> Filter {
        Filter { must_not: conditions, ..Filter::default() }
    }

    /// Whether it has no conditions.
    pub fn is_empty(&self) -> bool {
        self.must.is_empty()
            && self.should.is_empty()
            && self.must_not.is_empty()
            && self.min_should.is_none()
    }
}
