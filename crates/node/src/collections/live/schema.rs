//! Which fields of a collection are indexed: a row of its own.
//!
//! | value of the row `f` | bytes | content |
//! |---|---|---|
//! | 0 | 1 | version of the layout, 1 |
//! | 1 | | the schema as JSON |

use std::sync::Arc;

use stratann_payload::Schema;
use stratann_payload::schema::FIELDS_MAX;
use stratann_storage::Progress;

use super::jobs::Job;
use super::making::share_of_builds;
use super::opening::damaged;
use super::slot::{Shared, Slot};
use crate::collections::budget::SegmentRoom;
use crate::collections::delta::State;
use crate::collections::error::{Error, Result};
use crate::rows::{Batch, Key, Outcome, RowKind};
use crate::segments::{Indexing, LARGEST, Segment};

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

    /// Has these fields indexed in all segments that are made from now on, and later in those that there are.
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
            Outcome::Durable(_) => {
                drop(turn);
                shared.jobs.ask(shared, self, Job::Merge);
                Ok(())
            }
            Outcome::NotWritten(e) => Err(e.into()),
            Outcome::NoRoom(e) => Err(Error::disk_full(&e)),
            Outcome::Unknown { error, .. } => {
                turn.is_stale = true;
                Err(Error::unknown(0, "the schema", &error))
            }
        }
    }

    /// Writes indexes of payloads again where they are of another schema. No index of vectors is made.
    pub(crate) fn reindex(self: &Arc<Slot>, shared: &Shared, progress: &dyn Progress) -> Result<()> {
        shared.check_writable()?;
        let _running = self.running(Job::Merge);
        while self.reindex_next(shared, progress).map_err(|e| e.of_collection(&self.name))? {}
        Ok(())
    }

    /// Writes one of them. Returns whether there was one.
    fn reindex_next(self: &Arc<Slot>, shared: &Shared, progress: &dyn Progress) -> Result<bool> {
        let (state, schema) = {
            let mut turn = self.turn();
            shared.wake()?;
            (self.live_in_turn(shared, &mut turn)?.delta.state(), self.schema(shared)?)
        };
        let Some(older) = of_other_schema(&state, &schema) else { return Ok(false) };
        let room = SegmentRoom::replacing(&shared.memory, self.id, 0);
        let bytes_max = shared.options.build_bytes.map(|all| share_of_builds(all, LARGEST));
        let indexing = Indexing { schema: &schema, bytes_max };
        let Some(new) = older.reindexed(indexing, &room, progress)? else { return Ok(false) };
        if new.payloads.as_ref().is_some_and(|own| own.schema() != *schema) {
            return Err(Error::corrupt(
                "an index of payloads has other fields than those that it was made for",
            ));
        }
        let number = new.entry.number;
        let mut turn = self.turn();
        let live = self.live_in_turn(shared, &mut turn)?;
        let state = live.delta.state();
        if state.segment(number).is_none_or(|own| own.segment.entry != older.entry) {
            // Another one is in its place by now.
            return Ok(true);
        }
        let mut layout = turn.layout(&state, state.watermark);
        let entries = layout.segments.iter_mut().filter(|own| own.number == number);
        entries.for_each(|own| *own = new.entry.clone());
        let next_segment = turn.next_segment;
        self.publish(shared, &mut turn, (&layout, &state.manifest(), Batch::new()))?;
        live.delta.replace_segment(Arc::new(new));
        drop(turn);
        // While the copy names the older file, it is there.
        self.copy_layout(shared, next_segment);
        older.remove_payload_index();
        Ok(true)
    }

    /// Whether some payloads are indexed by another schema.
    pub(super) fn is_reindexing_due(&self, shared: &Shared, state: &State) -> bool {
        self.schema(shared).is_ok_and(|schema| of_other_schema(state, &schema).is_some())
    }
}

/// A segment whose payloads are indexed by another schema, if there is one.
fn of_other_schema<'a>(state: &'a State, schema: &Schema) -> Option<&'a Arc<Segment>> {
    let is_other = |own: &&Arc<Segment>| own.payloads.as_ref().is_some_and(|own| own.schema() != *schema);
    state.segments.iter().map(|own| &own.segment).find(is_other)
}
