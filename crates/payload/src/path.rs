//! Where in a payload: `a.b`, `a[].b`, `a[0]`, and keys in quotes, `"a.b".c`.
//!
//! | text | reaches |
//! |---|---|
//! | `a.b` | the value of key `b` in the object `a` |
//! | `a[].b` | the values of key `b` in each object of the array `a` |
//! | `a[0]` | the first element of the array `a` |
//! | `"a.b"` | the value of the key `a.b`; `\"` and `\\` are a quote and a backslash |
//!
//! Conditions look at the *values* of a path: an array that it reaches counts as its elements, one level deep.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};
use stratann_storage::error::quoted;
use stratann_storage::{Error, Result};

/// Most steps of a path.
pub const STEPS_MAX: usize = 64;
/// Longest path, in bytes.
pub const PATH_BYTES_MAX: usize = 1024;

/// A step of a path.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Step {
    /// The value of a key of an object.
    Key(String),
    /// An element of an array, from 0 on.
    At(u32),
    /// Each element of an array.
    Each,
}

/// Where in a payload. The first step is a key.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Path {
    steps: Vec<Step>,
}

impl Path {
    /// Reads a path.
    ///
    /// # Errors
    /// `BadInput` with the column, in characters from 1 on, and what was expected there.
    pub fn parse(text: &str) -> Result<Path> {
        let wrong = |at: usize, why: &str| {
            let column = text.get(..at).map_or(0, |before| before.chars().count()) + 1;
            Error::bad_input(format!("the path \"{}\" is wrong at column {column}: {why}", quoted(text)))
        };
        if text.len() > PATH_BYTES_MAX {
            return Err(Error::bad_input(format!(
                "a path has {} bytes; at most {PATH_BYTES_MAX} are possible",
                text.len()
            )));
        }
        let mut steps = Vec::new();
        let mut rest = text;
        loop {
            let at = text.len() - rest.len();
            let (key, after) = key(rest).map_err(|why| wrong(at, why))?;
            steps.push(Step::Key(key));
            rest = after;
            while let Some(inside) = rest.strip_prefix('[') {
                let at = text.len() - inside.len();
                let (number, after) =
                    inside.split_once(']').ok_or_else(|| wrong(at, "this bracket is not closed; add ]"))?;
                steps.push(match number {
                    "" => Step::Each,
                    digits if digits.bytes().all(|byte| byte.is_ascii_digit()) => {
                        Step::At(digits.parse().map_err(|_| wrong(at, "this number is too large"))?)
                    }
                    _ => return Err(wrong(at, "give the number of an element, or [] for each")),
                });
                rest = after;
            }
            if steps.len() > STEPS_MAX {
                return Err(wrong(at, &format!("more than {STEPS_MAX} steps")));
            }
            if rest.is_empty() {
                return Ok(Path { steps });
            }
            let at = text.len() - rest.len();
            rest =
                rest.strip_prefix('.').ok_or_else(|| wrong(at, "a dot, a bracket or the end is expected"))?;
        }
    }

    /// Its steps.
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// The path of what `inner` reaches in what this path reaches.
    pub(crate) fn joined(&self, inner: &Path) -> Path {
        Path { steps: self.steps.iter().chain(&inner.steps).cloned().collect() }
    }

    /// The path of each element of the array that this path reaches. A path that ends in `[]` is that already.
    pub(crate) fn each(&self) -> Path {
        let mut own = self.clone();
        if own.steps.last() != Some(&Step::Each) {
            own.steps.push(Step::Each);
        }
        own
    }

    /// Whether `decide` holds for something that the path reaches; arrays at its end are whole.
    pub fn reaches<'a>(
        &self,
        payload: &'a Map<String, Value>,
        decide: &mut dyn FnMut(&'a Value) -> bool,
    ) -> bool {
        match self.steps.split_first() {
            Some((Step::Key(key), rest)) => payload.get(key).is_some_and(|value| reach(value, rest, decide)),
            _ => false,
        }
    }

    /// Whether `decide` holds for a value of the path: arrays at its end count as their elements.
    pub fn any<'a>(
        &self,
        payload: &'a Map<String, Value>,
        decide: &mut dyn FnMut(&'a Value) -> bool,
    ) -> bool {
        self.reaches(payload, &mut |value| match value {
            Value::Array(elements) => elements.iter().any(&mut *decide),
            other => decide(other),
        })
    }

    /// What the path reaches; arrays at its end are whole.
    pub fn reached<'a>(&self, payload: &'a Map<String, Value>) -> Vec<&'a Value> {
        let mut found = Vec::new();
        self.reaches(payload, &mut |value| {
            found.push(value);
            false
        });
        found
    }
}

fn reach<'a>(value: &'a Value, steps: &[Step], decide: &mut dyn FnMut(&'a Value) -> bool) -> bool {
    match (steps.split_first(), value) {
        (None, value) => decide(value),
        (Some((Step::Key(key), rest)), Value::Object(map)) => {
            map.get(key).is_some_and(|value| reach(value, rest, decide))
        }
        (Some((Step::At(at), rest)), Value::Array(elements)) => {
            elements.get(*at as usize).is_some_and(|value| reach(value, rest, decide))
        }
        (Some((Step::Each, rest)), Value::Array(elements)) => {
            elements.iter().any(|value| reach(value, rest, decide))
        }
        _ => false,
    }
}

/// Whether a character stands for itself in a key without quotes.
fn is_plain(c: char) -> bool {
    !matches!(c, '.' | '[' | ']' | '"' | '\\') && !c.is_control()
}

/// The key that a text begins with, and the rest.
fn key(text: &str) -> Result<(String, &str), &'static str> {
    let Some(inside) = text.strip_prefix('"') else {
        let end = text.find(|c| !is_plain(c)).unwrap_or(text.len());
        let (key, rest) = text.split_at(end);
        return match key {
            "" => Err("a key is expected; names with . [ ] \" are written in quotes"),
            key => Ok((key.to_string(), rest)),
        };
    };
    let mut key = String::new();
    let mut chars = inside.chars();
    loop {
        match chars.next() {
            None => return Err("this quote is not closed; add \""),
            Some('"') => return Ok((key, chars.as_str())),
            Some('\\') => match chars.next() {
                Some(c @ ('"' | '\\')) => key.push(c),
                _ => return Err("a backslash in a key in quotes is written \\\\"),
            },
            Some(c) => key.push(c),
        }
    }
}

impl fmt::Display for Path {
    /// The one text of this path.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, step) in self.steps.iter().enumerate() {
            match step {
                Step::At(number) => write!(f, "[{number}]")?,
                Step::Each => f.write_str("[]")?,
                Step::Key(key) => {
                    f.write_str(if at == 0 { "" } else { "." })?;
                    if !key.is_empty() && key.chars().all(is_plain) {
                        f.write_str(key)?;
                    } else {
                        write!(f, "\"{}\"", key.replace('\\', "\\\\").replace('"', "\\\""))?;
                    }
                }
            }
        }
        Ok(())
    }
}

impl FromStr for Path {
    type Err = Error;

    fn from_str(text: &str) -> Result<Path> {
        Path::parse(text)
    }
}

impl Serialize for Path {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Path {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Path, D::Error> {
        Path::parse(&String::deserialize(deserializer)?).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_path_has_one_text() {
        for (text, own) in [
            ("a", "a"),
            ("a.b", "a.b"),
            ("a[].b[0][]", "a[].b[0][]"),
            (r#""a".b"#, "a.b"),
            (r#""a.b".c"#, r#""a.b".c"#),
            (r#""\"\\[""#, r#""\"\\[""#),
            (r#""".x"#, r#""".x"#),
            ("first name.größe", "first name.größe"),
            ("a[007]", "a[7]"),
        ] {
            let path = Path::parse(text).unwrap();
            assert_eq!(path.to_string(), own);
            assert_eq!(Path::parse(own).unwrap(), path);
        }
    }

    #[test]
    fn wrong_paths_name_the_column() {
        for (text, column) in [
            ("", 1),
            (".a", 1),
            ("a.", 3),
            ("a..b", 3),
            ("a[", 3),
            ("a[x]", 3),
            ("é[-1]", 3),
            ("a]", 2),
            ("[0]", 1),
            ("\"a", 1),
            ("\"\\x\"", 1),
            ("a\"b\"", 2),
            ("a[0]b", 5),
            ("a[99999999999]", 3),
            ("a\0", 2),
            ("a\\", 2),
        ] {
            let error = Path::parse(text).unwrap_err();
            assert!(error.message.contains(&format!("at column {column}:")), "{error}");
        }
        assert!(Path::parse(&"a.".repeat(600)).unwrap_err().message.contains("1200 bytes"));
        assert!(Path::parse(&format!("a{}", "[]".repeat(64))).unwrap_err().message.contains("64 steps"));
    }

    #[test]
    fn values_are_reached() {
        let payload = json!({
            "a": {"b": 1, "c": [1, [2], null]},
            "l": [{"x": 1}, {"x": [2, 3]}, 7, {"y": 4}],
            "a.b": "dotted",
        });
        let map = payload.as_object().unwrap();
        for (path, whole, values) in [
            ("a.b", json!([1]), json!([1])),
            ("a.c", json!([[1, [2], null]]), json!([1, [2], null])),
            ("a.c[1]", json!([[2]]), json!([2])),
            ("l[].x", json!([1, [2, 3]]), json!([1, 2, 3])),
            ("l[1].x[0]", json!([2]), json!([2])),
            ("l.x", json!([]), json!([])),
            ("a[]", json!([]), json!([])),
            ("\"a.b\"", json!(["dotted"]), json!(["dotted"])),
            ("no.such", json!([]), json!([])),
        ] {
            let path = Path::parse(path).unwrap();
            assert_eq!(json!(path.reached(map)), whole, "{path}");
            let mut found = Vec::new();
            path.any(map, &mut |value| {
                found.push(value);
                false
            });
            assert_eq!(json!(found), values, "{path}");
        }
    }
}
