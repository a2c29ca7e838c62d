//! What the manifest says of an index whose rows are points: with ids of any form, and with payloads.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};
use stratann_storage::{Error, Result};

use super::Manifest;

/// Points of an index.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PointFacts {
    /// Ids that are numbers.
    pub numbers: u64,
    /// Ids that are UUIDs.
    pub uuids: u64,
    /// Ids that are strings.
    pub strings: u64,
    /// Rows with a payload.
    pub payloads: u64,
    /// Names at the top of payloads, each with the rows that have it.
    pub fields: BTreeMap<String, u64>,
    /// Whether payloads have more names than these.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub has_more_fields: bool,
    /// Fields that have indexes, and the kinds of these.
    pub indexes: BTreeMap<String, Vec<String>>,
    /// Memory of ids and of payloads while they are open.
    pub memory_bytes: u64,
}

impl PointFacts {
    /// Whether all ids are numbers. The index knows its rows by these then; others by the places of their ids in the
    /// order of all.
    pub fn has_numbers(&self) -> bool {
        self.uuids == 0 && self.strings == 0
    }
}

impl Manifest {
    /// Memory of the ids and payloads of points while they are open, and of the rows of a filter, bytes; 0 of an index
    /// without.
    pub fn points_bytes(&self) -> u64 {
        self.points.as_ref().map_or(0, |points| points.memory_bytes + self.rows / 8)
    }

    /// Refuses an index whose ids are not all numbers, for what knows numbers alone.
    ///
    /// # Errors
    /// `BadInput` that names the folder and `what` was to use it.
    pub fn check_numbered(&self, folder: &Path, what: &str) -> Result<()> {
        match &self.points {
            Some(points) if !points.has_numbers() => Err(Error::bad_input(format!(
                "{} has ids that are UUIDs or strings, and {what} knows numbers alone; use `stratann search` or a \
                 collection, or build an index with ids that are numbers",
                folder.display()
            ))),
            _ => Ok(()),
        }
    }

    /// Refuses an index with payloads, for what would lose them.
    ///
    /// # Errors
    /// `BadInput` that names the folder and `what` would lose them.
    pub(crate) fn check_without_points(&self, folder: &Path, what: &str) -> Result<()> {
        match &self.points {
            Some(_) => Err(Error::bad_input(format!(
                "{} has ids and payloads of points, which {what} would lose; build an index of the same file without \
                 --payload for that, or import the file into a collection",
                folder.display()
            ))),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_numbers_where_none_is_anything_else() {
        let of = |numbers, uuids, strings| PointFacts { numbers, uuids, strings, ..PointFacts::default() };
        assert!(of(3, 0, 0).has_numbers() && of(0, 0, 0).has_numbers());
        assert!(!of(3, 1, 0).has_numbers() && !of(3, 0, 1).has_numbers());
    }
}
