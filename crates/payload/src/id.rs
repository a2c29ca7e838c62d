//! External ids as filters name them.

use serde_json::Value;
use stratann_storage::{Error, Result};

/// Longest string that is an id, in bytes.
const ID_BYTES_MAX: usize = 255;
/// Hexadecimal digits in lower case.
const DIGITS: [u8; 16] = *b"0123456789abcdef";
/// Places of the hyphens of a UUID.
const HYPHENS: [usize; 4] = [8, 13, 18, 23];

/// An external id in a filter.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum IdValue {
    /// A number.
    Number(u64),
    /// The bytes of a UUID.
    Uuid([u8; 16]),
    /// A string of 1 to 255 bytes.
    Text(String),
}

impl IdValue {
    /// The id of a JSON value: a number is a number, a UUID in its canonical form of either case is a UUID, and any
    /// other string is a string.
    ///
    /// # Errors
    /// `BadInput` for another value, which `place` names.
    pub fn of_json(value: &Value, place: &str) -> Result<IdValue> {
        match value {
            Value::String(text) => IdValue::of_text(text).ok_or_else(|| {
                Error::bad_input(format!("{place} has {} bytes; ids have 1 to {ID_BYTES_MAX}", text.len()))
            }),
            other => other.as_u64().map(IdValue::Number).ok_or_else(|| {
                Error::bad_input(format!("{place} is no id; give a number from 0 to 2^64 - 1 or a string"))
            }),
        }
    }

    /// The id of a string; `None` for an empty one and one of more than 255 bytes.
    pub fn of_text(text: &str) -> Option<IdValue> {
        if text.is_empty() || text.len() > ID_BYTES_MAX {
            return None;
        }
        Some(uuid_of(text).map_or_else(|| IdValue::Text(text.to_string()), IdValue::Uuid))
    }

    /// The id as JSON.
    pub fn to_json(&self) -> Value {
        match self {
            IdValue::Number(number) => (*number).into(),
            IdValue::Uuid(bytes) => uuid_text(bytes).into(),
            IdValue::Text(text) => text.as_str().into(),
        }
    }
}

/// Bytes of a UUID in its canonical form, of either case; `None` for another text.
pub(crate) fn uuid_of(text: &str) -> Option<[u8; 16]> {
    let text = text.as_bytes();
    if text.len() != 36 || HYPHENS.iter().any(|&at| text[at] != b'-') {
        return None;
    }
    let mut bytes = [0; 16];
    let digits = (0..36).filter(|at| !HYPHENS.contains(at)).map(|at| text[at]);
    for (at, byte) in digits.enumerate() {
        let digit = char::from(byte).to_digit(16)?;
        bytes[at / 2] = bytes[at / 2] << 4 | digit as u8;
    }
    Some(bytes)
}

/// A UUID in its canonical form, in lower case.
pub(crate) fn uuid_text(bytes: &[u8; 16]) -> String {
    let mut text = String::with_capacity(36);
    for (at, byte) in bytes.iter().enumerate() {
        if [4, 6, 8, 10].contains(&at) {
            text.push('-');
        }
        for digit in [byte >> 4, byte & 15] {
            text.push(char::from(DIGITS[usize::from(digit)]));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_numbers_uuids_and_strings() {
        let uuid = "f47ac10b-58cc-4372-a567-0e02b2c3d479";
        for text in [uuid, &uuid.to_uppercase()] {
            let id = IdValue::of_json(&text.into(), "id").unwrap();
            assert!(matches!(id, IdValue::Uuid(_)));
            assert_eq!(id.to_json(), uuid);
        }
        for text in
            ["7", &uuid[1..], "f47ac10b58cc-4372-a567-0e02b2c3d4799", "é47ac10b-58cc-4372-a567-0e02b2c3d47"]
        {
            assert_eq!(IdValue::of_text(text), Some(IdValue::Text(text.into())));
        }
        assert_eq!(IdValue::of_json(&7.into(), "id").unwrap(), IdValue::Number(7));
        for bad in [Value::Null, (-1).into(), 1.5.into(), "".into(), "x".repeat(256).into()] {
            assert!(IdValue::of_json(&bad, "id").unwrap_err().message.contains("id"), "{bad}");
        }
    }
}
