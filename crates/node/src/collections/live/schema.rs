//! Which fields of a collection are indexed: a row of its own.
//!
//! | value of the row `f` | bytes | content |
//! |---|---|---|
//! | 0 | 1 | version of the layout, 1 |
//! | 1 | | the schema as JSON |

use std::sync::Arc;

use stratann_payload::Schema;
use stratann_payload::schema::FIELDS_MAX;

use super::opening::damaged;
use super::slot::{Shared, Slot};
use crate::collections::error::{Error, Result};
use crate::rows::{Batch, Key, Outcome, RowKind};

const VERSION: u8 = 1;

impl Slot {
    fn schema_key(&self) -> Key {
        Key::first(self.id, RowKind::Fields)
    }

    /// The indexed fields.
    ///
    /// # Errors
    /// `Corrupt` and `Io` of the row.
    pub(crate) fn schema(&self, shared: &Shared) -> Result<Arc<Schema>> {
        let key = self.schema_key();
        let Some(value) = shared.rows.get(&key)? else { return Ok(Arc::default()) };
        let schema = value.strip_prefix(&[VERSION]).and_then(|json| serde_json::from_slice(json).ok());
        schema.map(Arc::new).ok_or_else(|| damaged(&key, "it is no schema of this version"))
    }

    /// Has these fields indexed in all segments that are made from now on.
    ///
    /// # Errors
    /// `BadInput` for too many fields; `Unknown`; `Missing`; `Io`.
    pub(crate) fn set_schema(self: &Arc<Slot>, shared: &Shared, schema: &Schema) -> Result<()> {
        let fields = schema.fields().count();
        if fields > FIELDS_MAX {
            return Err(Error::bad_input(format!(
                "{fields} fields would be indexed; give at most {FIELDS_MAX}"
            )));
        }
        // A field without an index is none.
        let mut own = Schema::new();
        for (path, kinds) in schema.fields() {
            kinds.iter().try_for_each(|kind| own.add(path.clone(), *kind).map(|_| ()))?;
        }
        let json = serde_json::to_vec(&own)
            .map_err(|e| Error::bad_input(format!("the schema has no JSON form: {e}; give another")))?;
        let mut turn = self.turn();
        shared.wake()?;
        self.live_in_turn(shared, &mut turn)?;
        let mut batch = Batch::new();
        batch.put(self.schema_key(), &[&[VERSION][..], &json].concat());
        match shared.rows.write(batch) {
            Outcome::Durable(_) => Ok(()),
            Outcome::NotWritten(e) => Err(e.into()),
            Outcome::NoRoom(e) => Err(Error::disk_full(&e)),
            Outcome::Unknown { error, .. } => {
                turn.is_stale = true;
                Err(Error::unknown(0, "the schema", &error))
            }
        }
    }
}
