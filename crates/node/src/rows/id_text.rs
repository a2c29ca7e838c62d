//! External ids as text.
//!
//! | text | as a token | as a string |
//! |---|---|---|
//! | digits alone | a number | a string |
//! | a UUID in its canonical form, of either case | a UUID | a UUID |
//! | anything else of 1 to 255 bytes | a string | a string |
//!
//! Tokens are lines of files, words of a command line, and parts of a path. Where numbers have a form of their own, as
//! in JSON, a text is a string.

use std::fmt;

use serde::{Serialize, Serializer};
use stratann_payload::IdValue;
use stratann_storage::{Error, Result};

use super::key::ExternalId;

/// Places of the hyphens of a UUID.
const HYPHENS: [usize; 4] = [8, 13, 18, 23];

impl ExternalId {
    /// Reads a token.
    ///
    /// # Errors
    /// `BadInput` for a number beyond 64 bits, an empty text, and one of more than 255 bytes.
    pub fn of_token(text: &str) -> Result<ExternalId> {
        if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
            return ExternalId::of_string(text);
        }
        text.parse().map(ExternalId::Number).map_err(|_| {
            let shown: String = text.chars().take(40).collect();
            Error::bad_input(format!("the id {shown} is larger than 2^64 - 1; give a smaller number"))
        })
    }

    /// The id that a filter names.
    pub fn of_filter(id: &IdValue) -> ExternalId {
        match id {
            IdValue::Number(number) => ExternalId::Number(*number),
            IdValue::Uuid(bytes) => ExternalId::Uuid(*bytes),
            IdValue::Text(text) => ExternalId::Text(text.clone()),
        }
    }

    /// Whether a filter names this id.
    pub(crate) fn is_named(&self, id: &IdValue) -> bool {
        match (self, id) {
            (ExternalId::Number(own), IdValue::Number(id)) => own == id,
            (ExternalId::Uuid(own), IdValue::Uuid(id)) => own == id,
            (ExternalId::Text(own), IdValue::Text(id)) => own == id,
            _ => false,
        }
    }

    /// Reads a string.
    ///
    /// # Errors
    /// `BadInput` for an empty text, and one of more than 255 bytes.
    pub fn of_string(text: &str) -> Result<ExternalId> {
        uuid(text).map_or_else(|| ExternalId::text(text), |bytes| Ok(ExternalId::Uuid(bytes)))
    }
}

/// Bytes of a UUID in its canonical form; `None` for another text.
fn uuid(text: &str) -> Option<[u8; 16]> {
    let text = text.as_bytes();
    if text.len() != 36 || HYPHENS.iter().any(|&at| text.get(at) != Some(&b'-')) {
        return None;
    }
    let digits: Vec<u8> =
        (0..36).filter(|at| !HYPHENS.contains(at)).filter_map(|at| digit(text[at])).collect();
    let bytes: Vec<u8> = digits.as_chunks::<2>().0.iter().map(|[high, low]| high << 4 | low).collect();
    bytes.try_into().ok()
}

fn digit(byte: u8) -> Option<u8> {
    char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok())
}

impl fmt::Display for ExternalId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ExternalId::Number(number) => write!(f, "{number}"),
            ExternalId::Uuid(bytes) => {
                for (at, byte) in bytes.iter().enumerate() {
                    let hyphen = if [4, 6, 8, 10].contains(&at) { "-" } else { "" };
                    write!(f, "{hyphen}{byte:02x}")?;
                }
                Ok(())
            }
            ExternalId::Text(text) => f.write_str(text),
        }
    }
}

/// As JSON has an id: a number, or a string for UUIDs and strings.
impl Serialize for ExternalId {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        match self {
            ExternalId::Number(number) => serializer.serialize_u64(*number),
            other => serializer.collect_str(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_read_as_they_are_written() {
        let uuid = "f47ac10b-58cc-4372-a567-0e02b2c3d479";
        for (text, token, string) in [
            ("7", ExternalId::Number(7), ExternalId::Text("7".into())),
            ("007", ExternalId::Number(7), ExternalId::Text("007".into())),
            ("18446744073709551615", ExternalId::Number(u64::MAX), ExternalId::Text(u64::MAX.to_string())),
            ("-7", ExternalId::Text("-7".into()), ExternalId::Text("-7".into())),
            ("é", ExternalId::Text("é".into()), ExternalId::Text("é".into())),
        ] {
            assert_eq!(ExternalId::of_token(text).unwrap(), token);
            assert_eq!(ExternalId::of_string(text).unwrap(), string);
            assert_eq!(ExternalId::of_token(&token.to_string()).unwrap(), token);
            assert_eq!(string.to_string(), text);
        }
        for text in [uuid, &uuid.to_uppercase()] {
            let id = ExternalId::of_token(text).unwrap();
            assert!(matches!(id, ExternalId::Uuid(_)) && id == ExternalId::of_string(text).unwrap());
            assert_eq!(id.to_string(), uuid);
        }
    }

    #[test]
    fn what_is_no_uuid_is_a_string() {
        for text in [
            "f47ac10b-58cc-4372-a567-0e02b2c3d47",
            "f47ac10b-58cc-4372-a567-0e02b2c3d47g",
            "f47ac10b58cc4372a5670e02b2c3d479",
            "f47ac10b-58cc-4372-a5670-e02b2c3d479",
            "é47ac10b-58cc-4372-a567-0e02b2c3d47",
        ] {
            assert_eq!(ExternalId::of_token(text).unwrap(), ExternalId::Text(text.into()));
        }
    }

    #[test]
    fn what_no_id_can_be_is_refused() {
        for (text, why) in
            [("", "empty"), (&*"x".repeat(256), "256 bytes"), ("18446744073709551616", "larger than 2^64")]
        {
            let error = ExternalId::of_token(text).unwrap_err();
            assert!(error.message.contains(why), "{error:?}");
        }
    }
}
