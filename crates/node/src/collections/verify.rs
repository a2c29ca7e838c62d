//! Comparison of all rows of a collection with each other.

use super::error::{Error, Result};
use super::opening::{damaged, each_row, manifest, point};
use super::point::{Manifest, Place, decode_point, place_key};
use super::slot::{Shared, Slot};
use crate::rows::{ExternalId, RowKind};

/// What was compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Verified {
    /// Sequence number of the newest change.
    pub seq: u64,
    /// Points, each with its place.
    pub points: u64,
}

/// Reads all rows of a collection, while nobody changes it.
///
/// # Errors
/// `Corrupt` at the first difference, with the key of its row; `Io`; `Missing`.
pub(super) fn verify(shared: &Shared, slot: &Slot) -> Result<Verified> {
    let mut turn = slot.turn();
    // What is unknown is settled before.
    let live = slot.live_in_turn(shared, &mut turn)?;
    let verified = compare(shared, slot).map_err(|e| e.of_collection(&slot.name))?;
    let state = live.delta.state();
    if (state.seq, state.points()) != (verified.seq, verified.points) {
        let why = "its rows differ from its points in memory; open the data folder again";
        return Err(Error::corrupt(why).of_collection(&slot.name));
    }
    Ok(verified)
}

fn compare(shared: &Shared, slot: &Slot) -> Result<Verified> {
    let (rows, collection) = (&shared.rows, slot.id);
    let manifest = manifest(rows, collection)?;
    let (mut points, mut places) = (0, 0);
    each_row(rows, collection, RowKind::Tail, &mut |chunk| {
        for (key, value) in chunk {
            let (place, id, _) = point(key, value, &slot.spec)?;
            let stored = rows.get(&place_key(collection, &id))?;
            if stored.as_deref().and_then(Place::decode) != Some(place) || place.seq > manifest.seq {
                return Err(damaged(key, "the place of its id is another one"));
            }
            points += 1;
        }
        Ok(())
    })?;
    each_row(rows, collection, RowKind::Place, &mut |chunk| {
        for (key, value) in chunk {
            let place = Place::decode(value).ok_or_else(|| damaged(key, "it is no place"))?;
            let id = ExternalId::decode(key.rest()).ok_or_else(|| damaged(key, "its key has no id"))?;
            let stored = rows.get(&place.tail_key(collection))?;
            if stored.as_deref().and_then(decode_point).is_none_or(|(found, _)| found != id) {
                return Err(damaged(key, "the tail has no point of its id there"));
            }
            places += 1;
        }
        Ok(())
    })?;
    if points != manifest.points || places != manifest.points {
        let why = format!(
            "it counts {} points; {points} are in the tail, and {places} have a place",
            manifest.points
        );
        return Err(damaged(&Manifest::key(collection), &why));
    }
    Ok(Verified { seq: manifest.seq, points })
}
