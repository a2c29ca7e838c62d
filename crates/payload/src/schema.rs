//! Which fields of a collection have which indexes.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use stratann_storage::{Error, Result};

use crate::path::Path;

/// Most fields of a schema.
pub const FIELDS_MAX: usize = 1000;

/// What an index of a field holds. Values of other types are allowed in the field, and this index lacks them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum IndexKind {
    /// Strings, for match of values, prefix and substring.
    Keyword,
    /// Numbers with few different values, for match of values and range.
    Integer,
    /// Numbers with many different values, for range and match of values.
    Float,
    /// True and false.
    Bool,
    /// Strings that are dates, for ranges of dates.
    Datetime,
    /// Strings that are mostly UUIDs: as `keyword`, with less than half of the space.
    Uuid,
    /// Words of strings, for text, text_any and phrase.
    Text,
}

impl IndexKind {
    /// All kinds.
    pub const ALL: [IndexKind; 7] = [
        IndexKind::Keyword,
        IndexKind::Integer,
        IndexKind::Float,
        IndexKind::Bool,
        IndexKind::Datetime,
        IndexKind::Uuid,
        IndexKind::Text,
    ];

    /// Name in a schema and in messages.
    pub const fn name(self) -> &'static str {
        match self {
            IndexKind::Keyword => "keyword",
            IndexKind::Integer => "integer",
            IndexKind::Float => "float",
            IndexKind::Bool => "bool",
            IndexKind::Datetime => "datetime",
            IndexKind::Uuid => "uuid",
            IndexKind::Text => "text",
        }
    }
}

/// Indexed fields. As JSON an object of lists: `{"title": ["keyword", "text"], "price": ["float"]}`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Schema {
    fields: BTreeMap<Path, BTreeSet<IndexKind>>,
}

impl Schema {
    /// A schema without fields.
    pub fn new() -> Schema {
        Schema::default()
    }

    /// Adds an index to a field; false where the field has it.
    ///
    /// # Errors
    /// `BadInput` for more than [`FIELDS_MAX`] fields.
    pub fn add(&mut self, field: Path, kind: IndexKind) -> Result<bool> {
        if self.fields.len() >= FIELDS_MAX && !self.fields.contains_key(&field) {
            return Err(Error::bad_input(format!(
                "the field {field} would be indexed beside {FIELDS_MAX} others; remove an index first"
            )));
        }
        Ok(self.fields.entry(field).or_default().insert(kind))
    }

    /// Removes all indexes of a field; false where it has none.
    pub fn remove(&mut self, field: &Path) -> bool {
        self.fields.remove(field).is_some()
    }

    /// Fields and their indexes, in the order of the fields.
    pub fn fields(&self) -> impl Iterator<Item = (&Path, &BTreeSet<IndexKind>)> {
        self.fields.iter()
    }

    /// Whether no field is indexed.
    pub fn is_empty(&self) -> bool {
        self.fields.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schema_is_an_object_of_lists() {
        let text = r#"{"a.b":["keyword","text"],"price":["float"]}"#;
        let schema: Schema = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::to_string(&schema).unwrap(), text);
        for bad in [r#"{"a..b":["text"]}"#, r#"{"a":["geo"]}"#, r#"{"a":"text"}"#] {
            assert!(serde_json::from_str::<Schema>(bad).is_err(), "{bad}");
        }
        let mut own = Schema::new();
        assert!(own.add(Path::parse("x").unwrap(), IndexKind::Bool).unwrap());
        assert!(!own.add(Path::parse("x").unwrap(), IndexKind::Bool).unwrap());
        assert!(own.remove(&Path::parse("x").unwrap()) && own.is_empty());
    }
}
