//! Changes of payloads. A point of the tail is written again with its vector; of a point in a segment only the newer
//! payload is written, over the segment.

use std::collections::BTreeMap;
use std::sync::Arc;

use roaring::RoaringBitmap;
use stratann_payload::Payload;
use stratann_payload::value::Update;

use super::slot::{Live, Shared, Slot, Turn};
use crate::collections::delta::{At, Change, SegmentState, State};
use crate::collections::error::{Error, Result};
use crate::collections::point::{Manifest, Place, PointBytes, encode_point};
use crate::collections::work::{Done, PayloadChanged, Work, row_bytes, stored_json};
use crate::rows::{BATCH_BYTES_MAX, Batch, ExternalId, Outcome};
use crate::segments::{Layout, Newer, Overlay};

/// Bytes of key, checksum and length of a newer payload.
const NEWER_OVERHEAD: u64 = 96;

/// A change of payloads of which it is known what it does.
struct Planned<'a> {
    work: &'a Work,
    update: &'a Update,
    state: &'a State,
    seq: u64,
    tail: Vec<InTail>,
    /// Newer payloads by segment and row.
    newer: Vec<(u64, u32, Newer)>,
    /// Bytes of the rows that are written.
    bytes: u64,
    done: PayloadChanged,
}

/// A point of the tail that is written again.
struct InTail {
    /// Its place in the change.
    at: usize,
    /// Where it is.
    from: At,
    /// Its new payload.
    payload: Option<Arc<[u8]>>,
}

/// Points of a segment that are changed: by row, the place in the order of ids and that in the change.
type Wanted = BTreeMap<u32, (u32, usize)>;

impl<'a> Planned<'a> {
    fn new(work: &'a Work, update: &'a Update, (state, seq): (&'a State, u64)) -> Planned<'a> {
        let (tail, newer, done) = (Vec::new(), Vec::new(), PayloadChanged::default());
        Planned { work, update, state, seq, tail, newer, bytes: 0, done }
    }

    /// Finds out what becomes of each point.
    ///
    /// # Errors
    /// `BadInput` for a payload that would be beyond its limits; `Corrupt` and `Io` of segments.
    fn plan(&mut self, places: Vec<Option<At>>) -> Result<()> {
        let mut in_segments: BTreeMap<u64, (&SegmentState, Wanted)> = BTreeMap::new();
        for (at, (id, place)) in self.work.ids.iter().zip(places).enumerate() {
            if let Some(place) = place {
                self.plan_in_tail(at, place)?;
                continue;
            }
            let found = self.state.place_in_segments(id)?;
            match found.filter(|(own, place)| self.work.admits(at, own.seq_of(place))) {
                None => self.done.unknown += 1,
                Some((own, place)) => {
                    let wanted = in_segments.entry(own.segment.entry.number);
                    let (_, rows) = wanted.or_insert_with(|| (own, Wanted::new()));
                    rows.insert(place.row, (place.ordinal, at));
                }
            }
        }
        in_segments.into_values().try_for_each(|(own, wanted)| self.plan_in_segment(own, wanted))
    }

    fn plan_in_tail(&mut self, at: usize, place: At) -> Result<()> {
        let Some((own, content)) = self.state.tail_point(place) else {
            self.done.unknown += 1;
            return Ok(());
        };
        if !self.work.admits(at, own.seq) {
            self.done.unknown += 1;
            return Ok(());
        }
        if let Some(payload) = self.updated(at, content.payload.map(|json| &**json))? {
            let of_payload = payload.as_ref().map_or(0, |json| 4 + json.len() as u64);
            let of_row = self.work.ids.get(at).map_or(0, |id| row_bytes(id, content.vectors.len() as u64));
            self.bytes += of_row + of_payload;
            self.done.changed += 1;
            if !self.is_too_large() {
                self.tail.push(InTail { at, from: place, payload });
            }
        }
        Ok(())
    }

    /// Changes points of a segment; each block of its payloads is read once, and none where they do not matter.
    fn plan_in_segment(&mut self, own: &SegmentState, wanted: Wanted) -> Result<()> {
        let matters = matches!(self.update, Update::Set { .. } | Update::DeleteKeys(_));
        let mut left = wanted;
        let newer = left.keys().filter_map(|row| Some((*row, own.overlay.get(*row)?.clone())));
        for (row, newer) in newer.collect::<Vec<_>>() {
            let Some(place) = left.remove(&row) else { continue };
            self.put(own, (row, place), newer.payload.as_deref())?;
        }
        if let Some(payloads) = own.segment.payloads.as_ref().filter(|_| matters) {
            let rows: RoaringBitmap = left.keys().copied().collect();
            let mut failed = Ok(());
            payloads.for_rows(&rows, |row, json| {
                if let (Ok(()), Some(place)) = (&failed, left.remove(&row)) {
                    failed = self.put(own, (row, place), Some(json));
                }
                Ok(())
            })?;
            failed?;
        }
        for (row, place) in left {
            if matters {
                self.put(own, (row, place), None)?;
            } else {
                // What is there was not read; it counts as changed.
                let payload = if let Update::Overwrite(new) = self.update { stored_json(new) } else { None };
                self.put_payload(own, (row, place.0), payload);
            }
        }
        Ok(())
    }

    fn put(
        &mut self,
        own: &SegmentState,
        (row, (ordinal, at)): (u32, (u32, usize)),
        earlier: Option<&[u8]>,
    ) -> Result<()> {
        if let Some(payload) = self.updated(at, earlier)? {
            self.put_payload(own, (row, ordinal), payload);
        }
        Ok(())
    }

    fn put_payload(&mut self, own: &SegmentState, (row, ordinal): (u32, u32), payload: Option<Arc<[u8]>>) {
        self.bytes += NEWER_OVERHEAD + payload.as_ref().map_or(0, |json| json.len() as u64);
        self.done.changed += 1;
        // Nothing more is gathered of a change that is too large.
        if !self.is_too_large() {
            self.newer.push((own.segment.entry.number, row, Newer { seq: self.seq, ordinal, payload }));
        }
    }

    /// The payload after the update; `None` where nothing changes.
    fn updated(&mut self, at: usize, earlier: Option<&[u8]>) -> Result<Option<Option<Arc<[u8]>>>> {
        let read = earlier.map_or_else(|| Ok(Payload::new()), Payload::from_stored);
        let mut payload =
            read.map_err(|why| Error::corrupt(format!("a payload is no JSON object: {why}")))?;
        let id = || self.work.ids.get(at).map_or_else(String::new, ExternalId::to_string);
        let is_changed = payload.update(self.update);
        let is_changed =
            is_changed.map_err(|e| Error::bad_input(format!("point {}: {}", id(), e.message)))?;
        if !is_changed {
            self.done.unchanged += 1;
            return Ok(None);
        }
        Ok(Some(stored_json(&payload)))
    }

    fn is_too_large(&self) -> bool {
        self.bytes > BATCH_BYTES_MAX
    }

    /// Rows and payload bytes that come to memory, and what the manifest says afterwards.
    fn counts(&self, before: Manifest) -> (PointBytes, u64, Manifest) {
        let (mut added, mut after) = (PointBytes::default(), Manifest { seq: self.seq, ..before });
        for InTail { at, from, payload } in &self.tail {
            let Some(id) = self.work.ids.get(*at) else { continue };
            let own = PointBytes::of(id, payload.as_deref());
            let earlier = self.state.tail_point(*from).and_then(|(_, content)| content.payload);
            added += own;
            after.bytes -= PointBytes::of(id, earlier.map(|json| &**json));
            after.bytes += own;
        }
        let of_newer = |(_, _, newer): &(u64, u32, Newer)| Overlay::bytes_of(newer.payload.as_deref());
        (added, self.newer.iter().map(of_newer).sum(), after)
    }

    /// The rows of the change.
    fn batch(&self, collection: u64, after: &Manifest) -> Batch {
        let mut batch = Batch::new();
        for InTail { at, from, payload } in &self.tail {
            let (Some(id), Some((own, content))) = (self.work.ids.get(*at), self.state.tail_point(*from))
            else {
                continue;
            };
            batch.remove(own.tail_key(collection));
            let value = encode_point(id, &content.vectors, payload.as_deref());
            batch.put(self.place(*at).tail_key(collection), &value);
        }
        for (segment, _, newer) in &self.newer {
            batch.put(Layout::overlay_key(collection, *segment, newer.ordinal), &newer.encode());
        }
        batch.put_beside(Manifest::key(collection), &after.encode());
        batch
    }

    /// What the change does to the points in memory.
    fn changes(&self) -> impl Iterator<Item = Change<'_>> {
        let of_tail = self.tail.iter().filter_map(|InTail { at, from, payload }| {
            let (_, content) = self.state.tail_point(*from)?;
            let (id, payload) = (self.work.ids.get(*at)?, payload.as_ref());
            Some(Change::Put { id, place: self.place(*at), vectors: content.vectors, payload })
        });
        let of_newer = self.newer.iter().map(|(segment, row, newer)| Change::Payload {
            segment: *segment,
            row: *row,
            newer: newer.clone(),
        });
        of_tail.chain(of_newer)
    }

    fn place(&self, at: usize) -> Place {
        Place { seq: self.seq, ordinal: at as u32 }
    }
}

impl Slot {
    /// Changes payloads, for whoever has the turn.
    pub(super) fn change_payloads(
        self: &Arc<Slot>,
        shared: &Shared,
        (turn, live): (&mut Turn, &Arc<Live>),
        (work, update): (&Work, &Update),
    ) -> Result<Done> {
        let before = turn.given;
        let (places, state) = live.delta.reader().places(&work.ids);
        let mut planned = Planned::new(work, update, (&state, before + 1));
        planned.plan(places)?;
        if planned.is_too_large() {
            return Ok(Done::TooLarge(planned.bytes));
        }
        if planned.done.changed == 0 {
            return Ok(Done::Payload(PayloadChanged { seq: state.seq, ..planned.done }));
        }
        let (added, of_newer, after) = planned.counts(state.manifest());
        let rows = planned.tail.len() as u64;
        let bytes = state.memory_with(&self.specs, rows, added).saturating_add(of_newer);
        live.lock().resize(bytes)?;
        let batch = || planned.batch(self.id, &after);
        let outcome = self.write_changes(shared, (turn, live), (before, after.seq), batch, planned.changes());
        let done = PayloadChanged { seq: after.seq, changes: 1, ..planned.done };
        match outcome {
            Outcome::Durable(_) => Ok(Done::Payload(done)),
            Outcome::NotWritten(e) => Err(e.into()),
            Outcome::NoRoom(e) => Err(Error::disk_full(&e)),
            Outcome::Unknown { error, .. } => Err(Error::unknown(after.seq, "the change", &error)),
        }
    }
}
