//! The delta of a collection, built from its rows.

use super::budget::Reserved;
use super::delta::{Change, Delta, memory_bytes};
use super::error::{Error, Result};
use super::point::{Manifest, Place, decode_point, id_bytes};
use super::spec::Spec;
use crate::rows::{CHUNK_BYTES, ExternalId, Key, RowKind, Rows};

/// Reads the manifest; that of a collection without changes where there is none.
///
/// # Errors
/// `Corrupt` and `Io`.
pub(super) fn manifest(rows: &Rows, collection: u64) -> Result<Manifest> {
    let key = Manifest::key(collection);
    match rows.get(&key)? {
        Some(bytes) => {
            Manifest::decode(&bytes).ok_or_else(|| damaged(&key, "it is no manifest of this version"))
        }
        None => Ok(Manifest::default()),
    }
}

/// The error of a row that says what cannot be.
pub(super) fn damaged(key: &Key, why: &str) -> Error {
    Error::corrupt(format!("{key} is damaged: {why}; restore the collection from a snapshot, or drop it"))
}

/// Reads a tail row.
///
/// # Errors
/// `Corrupt` for one that is no point of this collection.
pub(super) fn point<'a>(key: &Key, value: &'a [u8], spec: &Spec) -> Result<(Place, ExternalId, &'a [u8])> {
    let place = Place::of_tail_key(key).ok_or_else(|| damaged(key, "its key names no place"))?;
    let (id, vector) = decode_point(value).ok_or_else(|| damaged(key, "it has no id"))?;
    if vector.len() != spec.row_bytes() {
        let why = format!("its vector has {} bytes of {}", vector.len(), spec.row_bytes());
        return Err(damaged(key, &why));
    }
    match spec.first_not_finite(vector) {
        Some(at) => Err(damaged(key, &format!("component {at} is NaN or infinite"))),
        None => Ok((place, id, vector)),
    }
}

/// Rows with their values.
type Chunk = [(Key, Vec<u8>)];

/// Passes all rows of a kind in their order.
///
/// # Errors
/// The first error of a row, or of `take`.
pub(super) fn each_row(
    rows: &Rows,
    collection: u64,
    kind: RowKind,
    take: &mut dyn FnMut(&Chunk) -> Result<()>,
) -> Result<()> {
    let (mut from, end) = (Key::first(collection, kind), Key::end(collection, kind));
    loop {
        let chunk = rows.scan(&from, &end, CHUNK_BYTES)?;
        take(&chunk.rows)?;
        match chunk.next {
            Some(next) => from = next,
            None => return Ok(()),
        }
    }
}

/// Builds the delta from the tail. Its memory is reserved before, as the manifest counts the points.
///
/// # Errors
/// `Busy`; `Corrupt` when a row is damaged or tail and manifest differ; `Io`.
pub(super) fn build(rows: &Rows, collection: u64, spec: &Spec, reserved: &mut Reserved) -> Result<Delta> {
    let manifest = manifest(rows, collection)?;
    reserved.resize(memory_bytes(spec, manifest.points, manifest.id_bytes))?;
    let delta = Delta::new(*spec);
    let (mut points, mut ids) = (0, 0);
    each_row(rows, collection, RowKind::Tail, &mut |chunk| {
        let mut found = Vec::with_capacity(chunk.len());
        for (key, value) in chunk {
            let (place, id, vector) = point(key, value, spec)?;
            points += 1;
            ids += id_bytes(&id) as u64;
            let is_beyond = place.seq > manifest.seq || points > manifest.points || ids > manifest.id_bytes;
            if is_beyond || delta.reader().place(&id).is_some() {
                return Err(damaged(
                    key,
                    "the manifest counts fewer changes or points, or its id is there twice",
                ));
            }
            found.push((id, place, vector));
        }
        let changes = found.iter().map(|(id, place, vector)| Change::Put { id, place: *place, vector });
        delta.apply(manifest.seq, changes);
        Ok(())
    })?;
    let state = delta.state();
    if (state.points(), state.id_bytes()) != (manifest.points, manifest.id_bytes) {
        let why = format!("it counts {} points, and the tail has {}", manifest.points, state.points());
        return Err(damaged(&Manifest::key(collection), &why));
    }
    Ok(delta)
}
