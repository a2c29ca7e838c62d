//! A payload: a JSON object with limits.
//!
//! Integers of 64 bits are exact, with a sign or without one; larger ones are floats. Of equal keys of an object the
//! last one counts. Strings may hold any character, NUL among them.

mod update;

use std::io;

use serde_json::{Map, Value};
use stratann_storage::{Error, Result};

pub use update::Update;

/// Longest payload as compact JSON, in bytes.
pub const BYTES_MAX: usize = 1 << 20;
/// Most levels of objects and arrays, the payload included.
pub const DEPTH_MAX: usize = 100;

/// A JSON object.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Payload {
    map: Map<String, Value>,
}

impl Payload {
    /// A payload without fields.
    pub fn new() -> Payload {
        Payload::default()
    }

    /// Reads a payload from JSON.
    ///
    /// # Errors
    /// `BadInput` for more than [`BYTES_MAX`] bytes or [`DEPTH_MAX`] levels, for bytes that are no JSON (invalid UTF-8,
    /// NaN and numbers beyond a float among them), and for JSON that is no object.
    pub fn parse(json: &[u8]) -> Result<Payload> {
        if json.len() > BYTES_MAX {
            return Err(too_long(&format!("{} bytes", json.len())));
        }
        Payload::from_value(json_of(json, DEPTH_MAX, "the payload")?)
    }

    /// A payload of a JSON value.
    ///
    /// # Errors
    /// `BadInput` for a value that is no object, and beyond the limits as in [`Payload::parse`].
    pub fn from_value(value: Value) -> Result<Payload> {
        let Value::Object(map) = value else {
            let kind = kind_of(&value);
            return Err(Error::bad_input(format!(
                "the payload is {kind}; give a JSON object such as {{\"color\": \"red\"}}"
            )));
        };
        let payload = Payload { map };
        payload.checked()?;
        Ok(payload)
    }

    /// Refuses what is beyond the limits.
    fn checked(&self) -> Result<()> {
        if self.map.values().any(|value| !fits(value, DEPTH_MAX - 1)) {
            return Err(Error::bad_input(format!(
                "the payload nests deeper than {DEPTH_MAX} levels; give a flatter object"
            )));
        }
        let mut left = Counter(BYTES_MAX);
        serde_json::to_writer(&mut left, &self.map).map_err(|_| too_long("more"))
    }

    /// Reads compact JSON that was stored; its limits were checked before.
    ///
    /// # Errors
    /// The text says what is wrong.
    pub fn from_stored(json: &[u8]) -> Result<Payload, String> {
        let map = serde_json::from_slice(json).map_err(|e| e.to_string())?;
        Ok(Payload { map })
    }

    /// Compact JSON.
    pub fn to_bytes(&self) -> Vec<u8> {
        self.to_string().into_bytes()
    }

    /// Its fields.
    pub fn as_map(&self) -> &Map<String, Value> {
        &self.map
    }

    /// The payload as a JSON value.
    pub fn into_value(self) -> Value {
        Value::Object(self.map)
    }

    /// Memory, bytes, about.
    pub fn memory_bytes(&self) -> usize {
        size_of::<Payload>() + map_bytes(&self.map)
    }

    /// Whether it has no field. Such a payload is not stored.
    pub fn is_empty(&self) -> bool {
        self.map.is_empty()
    }
}

impl std::fmt::Display for Payload {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // A map of JSON values always has a text.
        f.write_str(&serde_json::to_string(&self.map).unwrap_or_default())
    }
}

fn too_long(bytes: &str) -> Error {
    Error::bad_input(format!(
        "the payload has {bytes}, at most {BYTES_MAX} bytes are possible; store large parts elsewhere"
    ))
}

/// Counts down the bytes that may still be written.
struct Counter(usize);

impl io::Write for Counter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 = self.0.checked_sub(bytes.len()).ok_or(io::ErrorKind::FileTooLarge)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Memory of the entries of a map, whose nodes are two thirds full, about.
fn map_bytes(map: &Map<String, Value>) -> usize {
    let entry = (size_of::<String>() + size_of::<Value>()) * 3 / 2;
    map.iter().map(|(key, value)| entry + key.capacity() + value_bytes(value)).sum()
}

/// Memory of a value beside its own place.
fn value_bytes(value: &Value) -> usize {
    match value {
        Value::String(text) => text.capacity(),
        Value::Array(elements) => {
            elements.capacity() * size_of::<Value>() + elements.iter().map(value_bytes).sum::<usize>()
        }
        Value::Object(map) => map_bytes(map),
        Value::Null | Value::Bool(_) | Value::Number(_) => 0,
    }
}

/// Whether a value has at most so many levels.
pub(crate) fn fits(value: &Value, levels: usize) -> bool {
    match value {
        Value::Array(elements) => levels > 0 && elements.iter().all(|inner| fits(inner, levels - 1)),
        Value::Object(map) => levels > 0 && map.values().all(|inner| fits(inner, levels - 1)),
        _ => true,
    }
}

/// The name of a kind of JSON value, with its article.
pub(crate) fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

/// Reads JSON of at most so many levels. `what` names it in errors.
pub(crate) fn json_of(json: &[u8], depth_max: usize, what: &str) -> Result<Value> {
    let text = std::str::from_utf8(json).map_err(|e| {
        Error::bad_input(format!("{what} is not UTF-8 at byte {}; encode it as UTF-8", e.valid_up_to()))
    })?;
    // The depth is counted before the parser recurses.
    if let Some(at) = too_deep(json, depth_max) {
        return Err(Error::bad_input(format!(
            "{what} nests deeper than {depth_max} levels at byte {at}; give a flatter one"
        )));
    }
    let mut parser = serde_json::Deserializer::from_str(text);
    parser.disable_recursion_limit();
    let read = <Value as serde::Deserialize>::deserialize(&mut parser);
    read.and_then(|value| parser.end().map(|()| value)).map_err(|e| {
        Error::bad_input(format!("{what} is not JSON: {e}; give JSON, without NaN and infinities"))
    })
}

/// The byte at which JSON nests deeper than so many levels.
fn too_deep(json: &[u8], depth_max: usize) -> Option<usize> {
    let (mut depth, mut in_string, mut is_escaped) = (0usize, false, false);
    for (at, byte) in json.iter().enumerate() {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if in_string => is_escaped = true,
            b'"' => in_string = !in_string,
            b'{' | b'[' if !in_string => depth += 1,
            b'}' | b']' if !in_string => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > depth_max {
            return Some(at);
        }
    }
    None
}

#[cfg(test)]
mod tests;
