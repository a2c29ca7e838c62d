//! Comparison of all rows of a collection with each other.

use std::collections::HashSet;
use std::sync::Arc;

use stratann_payload::Payload;
use stratann_storage::{Progress, Quiet};

use super::delta::State;
use super::error::{Error, Result};
use super::live::opening::{damaged, each_row, each_row_from, layout, manifest, newer_payload, point};
use super::live::{Shared, Slot};
use super::point::{Manifest, Place, TailPoint};
use crate::rows::{Key, RowKind, Rows};
use crate::segments::Layout;

/// What was compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Verified {
    /// Sequence number of the newest change.
    pub seq: u64,
    /// Points.
    pub points: u64,
}

/// Reads all rows of a collection, while nobody changes it.
///
/// # Errors
/// `Corrupt` at the first difference, with the key of its row; `Io`; `Missing`.
pub(super) fn verify(shared: &Shared, slot: &Arc<Slot>) -> Result<Verified> {
    let mut turn = slot.turn();
    shared.wake()?;
    // What is unknown is settled before.
    let live = slot.live_in_turn(shared, &mut turn)?;
    let state = live.delta.state();
    let verified = compare(shared, slot, &state, &Quiet).map_err(|e| e.of_collection(&slot.name))?;
    if (state.seq, state.points()) != (verified.seq, verified.points) {
        let why = "its rows differ from its points in memory; open the data folder again";
        return Err(Error::corrupt(why).of_collection(&slot.name));
    }
    Ok(verified)
}

/// The manifest against the tail, its ids against each other and those of segments, and each segment against its files.
fn compare(shared: &Shared, slot: &Slot, state: &State, progress: &dyn Progress) -> Result<Verified> {
    let (rows, collection) = (&shared.rows, slot.id);
    let (manifest, layout) = (manifest(rows, collection)?, layout(rows, collection)?);
    let mut ids = HashSet::new();
    let from = Place { seq: layout.watermark.saturating_add(1), ordinal: 0 }.tail_key(collection);
    each_row_from(rows, from, Key::end(collection, RowKind::Tail), &mut |chunk| {
        for (key, value) in chunk {
            let (place, TailPoint { id, payload, .. }) = point(key, value, &slot.specs)?;
            if let Some(why) = payload.and_then(|json| Payload::from_stored(json).err()) {
                return Err(damaged(key, &format!("its payload is no JSON object: {why}")));
            }
            if place.seq > manifest.seq {
                return Err(damaged(key, "the manifest counts fewer changes"));
            }
            if state.place_in_segments(&id)?.is_some() {
                return Err(damaged(key, "a segment has a point of its id, too"));
            }
            if !ids.insert(id) {
                return Err(damaged(key, "its id is in the tail twice"));
            }
        }
        Ok(())
    })?;
    let in_tail = ids.len() as u64;
    let mut points = in_tail;
    if state.entries() != layout.segments || state.watermark != layout.watermark {
        return Err(damaged(&Layout::key(collection), "it names others than the segments that are open"));
    }
    for own in &state.segments {
        points += own.segment.verify(own.left.rows(), progress)?;
    }
    check_ids_of_segments(state)?;
    check_newer_payloads(rows, collection, state)?;
    if points != manifest.points || in_tail != manifest.tail_points {
        let why = format!(
            "it counts {} points, {} of them in the tail; there are {points} and {in_tail}",
            manifest.points, manifest.tail_points
        );
        return Err(damaged(&Manifest::key(collection), &why));
    }
    Ok(Verified { seq: manifest.seq, points })
}

/// Compares newer payloads over segments with those in memory.
fn check_newer_payloads(rows: &Rows, collection: u64, state: &State) -> Result<()> {
    each_row(rows, collection, RowKind::Overlay, &mut |chunk| {
        for (key, value) in chunk {
            let (number, newer) = newer_payload(key, value)?;
            if let Some(Err(why)) = newer.payload.as_deref().map(Payload::from_stored) {
                return Err(damaged(key, &format!("it is no JSON object: {why}")));
            }
            // Others are of segments that are gone, or not published.
            let Some(own) = state.segment(number) else { continue };
            let row = own.segment.rows_of(&[newer.ordinal])?.first().copied().unwrap_or(u32::MAX);
            if own.left.rows().has(row) && own.overlay.get(row) != Some(&newer) {
                return Err(damaged(key, "memory has another payload"));
            }
        }
        Ok(())
    })
}

/// Refuses an id that two segments have.
fn check_ids_of_segments(state: &State) -> Result<()> {
    for (at, own) in state.segments.iter().enumerate() {
        for next in own.segment.behind(None)? {
            let (id, place) = next?;
            if !own.left.rows().has(place.row) {
                continue;
            }
            for other in &state.segments[at + 1..] {
                let twice = other.segment.find(&id)?.is_some_and(|place| other.left.rows().has(place.row));
                if twice {
                    return Err(Error::corrupt(format!(
                        "{} and {} have a point of the same id",
                        own.segment.folder().display(),
                        other.segment.folder().display()
                    )));
                }
            }
        }
    }
    Ok(())
}
