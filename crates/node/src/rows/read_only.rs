//! Rows that are read and never written: what is left of a data folder whose storage engine is damaged.

use std::collections::BTreeMap;

use super::engine::{Engine, Trouble, Written};
use super::key::Key;

/// Rows in memory, as an engine stores them.
pub(super) struct ReadOnly(pub(super) BTreeMap<Key, Vec<u8>>);

impl Engine for ReadOnly {
    fn write(&self, _: &mut dyn Iterator<Item = (Key, Option<Vec<u8>>)>, _: u64) -> Written {
        Written::Nothing(Trouble { why: "its rows are read only".into(), is_disk: false })
    }

    fn get(&self, key: &Key) -> Result<Option<Vec<u8>>, Trouble> {
        Ok(self.0.get(key).cloned())
    }

    fn scan(&self, from: &Key, to: &Key, take: &mut dyn FnMut(&[u8], &[u8]) -> bool) -> Result<(), Trouble> {
        if from < to {
            let mut rows = self.0.range(from..to);
            rows.all(|(key, value)| take(key.as_bytes(), value));
        }
        Ok(())
    }

    fn settle(&self) -> Result<(), Trouble> {
        Ok(())
    }
}
