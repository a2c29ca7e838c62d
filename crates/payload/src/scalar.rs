//! A value of a payload that conditions compare: a truth value, a number or a string.

use serde_json::Value;
use stratann_storage::{Error, Result};

use crate::number::Number;

/// A value without parts. Values of different types are never equal.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scalar {
    /// True or false.
    Bool(bool),
    /// A number.
    Number(Number),
    /// A string.
    Text(String),
}

impl Scalar {
    /// The scalar of a JSON value; `None` for null, an array, an object.
    pub fn of_json(value: &Value) -> Option<Scalar> {
        match value {
            Value::Bool(is_true) => Some(Scalar::Bool(*is_true)),
            Value::Number(number) => Number::of_json(number).map(Scalar::Number),
            Value::String(text) => Some(Scalar::Text(text.clone())),
            Value::Null | Value::Array(_) | Value::Object(_) => None,
        }
    }

    /// As [`Scalar::of_json`], with a message for what is none.
    pub(crate) fn demanded(value: &Value, place: &str) -> Result<Scalar> {
        Scalar::of_json(value).ok_or_else(|| match value {
            Value::Null => {
                Error::bad_input(format!("{place} is null; use {{\"is_null\": {{\"key\": …}}}} to find null"))
            }
            _ => Error::bad_input(format!("{place} is not a string, number or boolean; give one of these")),
        })
    }

    /// The scalar as JSON.
    pub fn to_json(&self) -> Value {
        match self {
            Scalar::Bool(is_true) => (*is_true).into(),
            Scalar::Number(number) => number.to_json(),
            Scalar::Text(text) => text.as_str().into(),
        }
    }
}

impl From<&str> for Scalar {
    fn from(text: &str) -> Scalar {
        Scalar::Text(text.to_string())
    }
}

impl From<bool> for Scalar {
    fn from(is_true: bool) -> Scalar {
        Scalar::Bool(is_true)
    }
}

impl From<i64> for Scalar {
    fn from(number: i64) -> Scalar {
        Scalar::Number(Number::of_i64(number))
    }
}
