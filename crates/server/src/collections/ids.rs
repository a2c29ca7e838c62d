//! Ids in JSON: numbers, or strings. A string that is a UUID is a UUID.

use std::fmt;

use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer};
use stratann_node::rows::ExternalId;

use crate::request::{quoting, shortened};

/// Reads a list of ids. Numbers are exact up to 2^64 - 1.
///
/// # Errors
/// One line for the client.
pub(super) fn from_json(text: &str) -> Result<Vec<ExternalId>, String> {
    let read: Vec<Read> = serde_json::from_str(text).map_err(|e| format!("ids: {}", quoting(&e)))?;
    Ok(read.into_iter().map(|id| id.0).collect())
}

/// An id of a request.
pub(super) struct Read(pub(super) ExternalId);

impl<'de> Deserialize<'de> for Read {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(AnId)
    }
}

struct AnId;

impl Visitor<'_> for AnId {
    type Value = Read;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a whole number from 0 to 2^64 - 1, or a string")
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<Read, E> {
        Ok(Read(ExternalId::Number(number)))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Read, E> {
        ExternalId::of_string(text).map(Read).map_err(|e| E::custom(shortened(&e.message)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_survive_json() {
        let text =
            r#"[0,9007199254740993,18446744073709551615,"7","é","f47ac10b-58cc-4372-a567-0e02b2c3d479"]"#;
        let ids = from_json(text).unwrap();
        assert_eq!(ids[1], ExternalId::Number(9_007_199_254_740_993));
        assert!(ids[3] == ExternalId::Text("7".into()) && matches!(ids[5], ExternalId::Uuid(_)));
        assert_eq!(serde_json::to_string(&ids).unwrap(), text);
    }

    #[test]
    fn what_is_no_id_is_refused() {
        let long = format!(r#"["{}"]"#, "x".repeat(256));
        for (text, why) in [
            ("7", "expected a sequence"),
            ("[-1]", "whole number"),
            ("[1.5]", "whole number"),
            ("[18446744073709551616]", "whole number"),
            ("[null]", "whole number"),
            ("[[1]]", "whole number"),
            (r#"[""]"#, "empty"),
            (&*long, "256 bytes"),
        ] {
            let error = from_json(text).unwrap_err();
            assert!(error.contains(why) && error.starts_with("ids: "), "{text}: {error}");
        }
    }
}
