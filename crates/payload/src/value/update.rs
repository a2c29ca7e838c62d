//! Updates of a payload. One that fails leaves the payload as it was.

use serde_json::{Map, Value};
use stratann_storage::Result;

use super::Payload;
use crate::path::{Path, Step};

/// A change of a payload.
#[derive(Clone, Debug, PartialEq)]
pub enum Update {
    /// Sets the fields of `payload`, at the top or in the objects that a path reaches. Other fields stay.
    Set {
        /// New fields.
        payload: Payload,
        /// Where; `None` is the top.
        key: Option<Path>,
    },
    /// Puts another payload in its place.
    Overwrite(Payload),
    /// Removes what these paths reach.
    DeleteKeys(Vec<Path>),
    /// Removes all fields.
    Clear,
}

impl Payload {
    /// Applies an update; false where nothing changed.
    ///
    /// # Errors
    /// `BadInput` where the payload would be beyond its limits; it stays as it was.
    pub fn update(&mut self, update: &Update) -> Result<bool> {
        let mut next = match update {
            Update::Overwrite(payload) => payload.clone(),
            Update::Clear => Payload::new(),
            Update::Set { .. } | Update::DeleteKeys(_) => self.clone(),
        };
        match update {
            Update::Set { payload, key: None } => merge(&mut next.map, &payload.map),
            Update::Set { payload, key: Some(path) } => next.set_under(path, &payload.map),
            Update::DeleteKeys(paths) => paths.iter().for_each(|path| next.delete(path)),
            Update::Overwrite(_) | Update::Clear => {}
        }
        next.checked()?;
        let is_changed = next != *self;
        *self = next;
        Ok(is_changed)
    }

    /// Sets fields in the objects that a path reaches. Keys on the way are created, and a value on the way that is no
    /// object gives way to one; elements of arrays must be there.
    fn set_under(&mut self, path: &Path, fields: &Map<String, Value>) {
        if let Some((Step::Key(key), rest)) = path.steps().split_first() {
            set(self.map.entry(key.clone()).or_insert(Value::Null), rest, fields);
        }
    }

    /// Removes what a path reaches: a key of an object, an element of an array, or all elements.
    fn delete(&mut self, path: &Path) {
        let Some((Step::Key(key), rest)) = path.steps().split_first() else { return };
        match self.map.get_mut(key) {
            Some(inner) if !rest.is_empty() => remove(inner, rest),
            _ => _ = self.map.remove(key),
        }
    }
}

fn merge(into: &mut Map<String, Value>, fields: &Map<String, Value>) {
    into.extend(fields.iter().map(|(key, value)| (key.clone(), value.clone())));
}

fn set(value: &mut Value, steps: &[Step], fields: &Map<String, Value>) {
    match steps.split_first() {
        None => {
            if let Value::Object(map) = value {
                merge(map, fields);
            } else {
                *value = Value::Object(fields.clone());
            }
        }
        Some((Step::Key(key), rest)) => {
            if !value.is_object() {
                *value = Value::Object(Map::new());
            }
            if let Value::Object(map) = value {
                set(map.entry(key.clone()).or_insert(Value::Null), rest, fields);
            }
        }
        Some((Step::At(at), rest)) => {
            if let Some(element) = value.get_mut(*at as usize) {
                set(element, rest, fields);
            }
        }
        Some((Step::Each, rest)) => {
            value.as_array_mut().into_iter().flatten().for_each(|element| set(element, rest, fields));
        }
    }
}

fn remove(value: &mut Value, steps: &[Step]) {
    match (steps, value) {
        ([Step::Key(key)], Value::Object(map)) => _ = map.remove(key),
        ([Step::At(at)], Value::Array(elements)) if (*at as usize) < elements.len() => {
            elements.remove(*at as usize);
        }
        ([Step::Each], Value::Array(elements)) => elements.clear(),
        ([Step::Key(key), rest @ ..], Value::Object(map)) => {
            if let Some(inner) = map.get_mut(key) {
                remove(inner, rest);
            }
        }
        ([Step::At(at), rest @ ..], Value::Array(elements)) => {
            if let Some(inner) = elements.get_mut(*at as usize) {
                remove(inner, rest);
            }
        }
        ([Step::Each, rest @ ..], Value::Array(elements)) => {
            elements.iter_mut().for_each(|inner| remove(inner, rest));
        }
        _ => {}
    }
}
