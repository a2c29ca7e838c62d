//! A change of a collection before it has a sequence number.

use std::collections::HashSet;
use std::sync::Arc;

use stratann_payload::Payload;
use stratann_payload::value::Update;

use super::error::{Error, Result};
use super::point::{PointBytes, id_bytes};
use super::spec::Spec;
use crate::rows::{BATCH_BYTES_MAX, ExternalId, ID_BYTES_MAX};

/// Bytes of keys, checksums and lengths of a point that replaces another one: two keys of the tail, one of its place.
const POINT_OVERHEAD: u64 = 96;
/// Bytes of the manifest with its key, which each group has once.
pub(super) const GROUP_OVERHEAD: u64 = 64;

/// What was done with the points of an upsert.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Upserted {
    /// Sequence number of the change.
    pub seq: u64,
    /// Ids that had no point before.
    pub new: u64,
    /// Ids whose earlier point was replaced.
    pub replaced: u64,
    /// Points that a later one of the same id in the same batch took the place of.
    pub repeated: u64,
    /// Ids whose point was left as it was, by a condition.
    pub skipped: Vec<ExternalId>,
}

/// Which points of an upsert are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Condition {
    /// All.
    #[default]
    Always,
    /// Those of ids without a point.
    IfAbsent,
    /// Those of ids without a point, or with one that no change behind this number wrote.
    IfNotNewer(u64),
}

/// What was done with the ids of a delete.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Deleted {
    /// Sequence number of the change; the newest one where no id was known, which is no change.
    pub seq: u64,
    /// Points that are gone.
    pub deleted: u64,
    /// Different ids that had no point.
    pub unknown: u64,
}

/// What was done with the points whose payloads were to change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PayloadChanged {
    /// Sequence number of the last change; the newest one where nothing changed.
    pub seq: u64,
    /// Points with a payload that was changed, or put in place of one that was not read.
    pub changed: u64,
    /// Points whose payload is as it was.
    pub unchanged: u64,
    /// Different ids that had no point. Of a filter: points that others changed or deleted meanwhile.
    pub unknown: u64,
    /// Changes that were made, one after another.
    pub changes: u64,
}

/// What was done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Done {
    Upserted(Upserted),
    Deleted(Deleted),
    Payload(PayloadChanged),
    /// Nothing, since the change has so many bytes of rows.
    TooLarge(u64),
}

impl Done {
    /// The error of a reply to another kind of change.
    pub(super) fn of_another(&self) -> Error {
        match self {
            Done::TooLarge(bytes) => Error::bad_input(format!(
                "the points with their new payloads take {bytes} bytes; give at most {BATCH_BYTES_MAX} at once"
            )),
            _ => Error::corrupt("a change got the reply of another kind of change"),
        }
    }
}

/// What is to be done, checked.
#[derive(Debug)]
pub(super) struct Work {
    pub(super) ids: Vec<ExternalId>,
    /// A vector for each id; `None` to delete them.
    pub(super) vectors: Option<Vec<u8>>,
    /// Payloads as compact JSON: one for each id, or none at all.
    payloads: Vec<Option<Arc<[u8]>>>,
    /// Numbers of the changes that wrote the points: others are left alone. One for each id, or none at all.
    expected: Vec<u64>,
    /// What is done to the payloads of points that are there.
    pub(super) update: Option<Arc<Update>>,
    /// Which points of an upsert are written.
    condition: Condition,
    /// Points that a later one of the same id took the place of.
    pub(super) repeated: u64,
    /// Most bytes of its rows.
    pub(super) bytes: u64,
}

impl Work {
    /// Points to write. Of several of an id the last one counts. `payloads` has JSON for each id, or nothing.
    pub(super) fn upsert(
        spec: &Spec,
        ids: &[ExternalId],
        vectors: &[u8],
        payloads: &[Option<&[u8]>],
    ) -> Result<Work> {
        let count = ids.len();
        check_ids(ids)?;
        let rows = spec.check_vectors(vectors, "vector")?;
        if rows != count {
            return Err(Error::bad_input(format!(
                "{count} ids and {rows} vectors; give one vector for each id"
            )));
        }
        let payloads = check_payloads(payloads, count)?;
        let of_payloads = payloads.iter().flatten().map(|json| 4 + json.len() as u64).sum();
        let bytes = check_size(ids, spec.row_bytes() as u64, of_payloads)?;
        let kept = last_of_each(ids);
        let repeated = (count - kept.len()) as u64;
        let of_kept = kept.iter().filter_map(|at| payloads.get(*at).cloned()).collect();
        let mut work =
            Work { payloads: of_kept, repeated, ..Work::of_ids(Vec::with_capacity(kept.len()), bytes) };
        let mut chosen = Vec::with_capacity(kept.len() * spec.row_bytes());
        for (id, vector) in kept.into_iter().filter_map(|at| {
            let bytes = at * spec.row_bytes()..(at + 1) * spec.row_bytes();
            Some((ids.get(at)?, vectors.get(bytes)?))
        }) {
            work.ids.push(id.clone());
            chosen.extend(vector);
        }
        work.vectors = Some(chosen);
        Ok(work)
    }

    /// Ids to delete.
    pub(super) fn delete(ids: &[ExternalId]) -> Result<Work> {
        check_ids(ids)?;
        let bytes = check_size(ids, 0, 0)?;
        let kept = last_of_each(ids).into_iter().filter_map(|at| ids.get(at).cloned());
        Ok(Work::of_ids(kept.collect(), bytes))
    }

    /// Different ids to delete, each only if its point is of the change with this number.
    pub(super) fn delete_unchanged(ids: Vec<ExternalId>, expected: Vec<u64>) -> Result<Work> {
        let bytes = check_size(&ids, 0, 0)?;
        Ok(Work { expected, ..Work::of_ids(ids, bytes) })
    }

    /// Ids whose payloads are to change.
    pub(super) fn update(ids: &[ExternalId], update: &Arc<Update>) -> Result<Work> {
        Ok(Work { update: Some(update.clone()), ..Work::delete(ids)? })
    }

    /// Different ids whose payloads are to change, each only if its point is of the change with this number.
    pub(super) fn update_unchanged(
        ids: Vec<ExternalId>,
        expected: Vec<u64>,
        update: &Arc<Update>,
    ) -> Result<Work> {
        Ok(Work { update: Some(update.clone()), ..Work::delete_unchanged(ids, expected)? })
    }

    fn of_ids(ids: Vec<ExternalId>, bytes: u64) -> Work {
        let (payloads, expected) = (Vec::new(), Vec::new());
        Work {
            ids,
            vectors: None,
            payloads,
            expected,
            update: None,
            condition: Condition::Always,
            repeated: 0,
            bytes,
        }
    }

    /// The same where a condition holds.
    pub(super) fn only(self, condition: Condition) -> Work {
        Work { condition, ..self }
    }

    /// Whether it changes an id, by its place in this change. `earlier` is the number of the change that wrote the
    /// point that is there.
    pub(super) fn writes(&self, at: usize, earlier: Option<u64>) -> bool {
        match (earlier, self.condition) {
            _ if self.is_delete() => earlier.is_some_and(|seq| self.admits(at, seq)),
            (None, _) | (_, Condition::Always) => true,
            (Some(_), Condition::IfAbsent) => false,
            (Some(seq), Condition::IfNotNewer(newest)) => seq <= newest,
        }
    }

    /// Whether a change of this number may be that of the point to change, by its place in this change.
    pub(super) fn admits(&self, at: usize, seq: u64) -> bool {
        self.expected.get(at).is_none_or(|expected| *expected == seq)
    }

    /// Whether it only deletes.
    pub(super) fn is_delete(&self) -> bool {
        self.vectors.is_none() && self.update.is_none()
    }

    /// The vector of an id, by its place in this change.
    pub(super) fn vector(&self, at: usize) -> &[u8] {
        let vectors = self.vectors.as_deref().unwrap_or_default();
        let bytes = vectors.len() / self.ids.len().max(1);
        vectors.get(at * bytes..(at + 1) * bytes).unwrap_or_default()
    }

    /// Bytes of an id and its payload, by its place in this change.
    pub(super) fn bytes_of(&self, at: usize) -> PointBytes {
        let payload = self.payload(at).map(|json| &**json);
        self.ids.get(at).map_or(PointBytes::default(), |id| PointBytes::of(id, payload))
    }

    /// The payload of an id, by its place in this change.
    pub(super) fn payload(&self, at: usize) -> Option<&Arc<[u8]>> {
        self.payloads.get(at)?.as_ref()
    }
}

/// Reads payloads, and makes compact JSON of them. One without fields is none.
fn check_payloads(payloads: &[Option<&[u8]>], count: usize) -> Result<Vec<Option<Arc<[u8]>>>> {
    if payloads.is_empty() {
        return Ok(Vec::new());
    }
    if payloads.len() != count {
        return Err(Error::bad_input(format!(
            "{count} ids and {} payloads; give a payload or nothing for each id",
            payloads.len()
        )));
    }
    let read = |(at, json): (usize, &Option<&[u8]>)| {
        let Some(json) = json else { return Ok(None) };
        let wrong = |e: stratann_storage::Error| Error::bad_input(format!("point {at}: {}", e.message));
        Payload::parse(json).map(|payload| stored_json(&payload)).map_err(wrong)
    };
    payloads.iter().enumerate().map(read).collect()
}

/// A payload as it is stored; `None` for one without fields.
pub(super) fn stored_json(payload: &Payload) -> Option<Arc<[u8]>> {
    (!payload.is_empty()).then(|| payload.to_bytes().into())
}

/// Checks that there are ids, and that none is longer than a key may be.
pub(super) fn check_ids(ids: &[ExternalId]) -> Result<()> {
    if ids.is_empty() {
        return Err(Error::bad_input("there is no id; give one or more"));
    }
    for (row, id) in ids.iter().enumerate() {
        check_id(id).map_err(|e| Error::bad_input(format!("id {row}: {}", e.message)))?;
    }
    Ok(())
}

pub(super) fn check_id(id: &ExternalId) -> Result<()> {
    match id {
        ExternalId::Text(text) if !(1..=ID_BYTES_MAX).contains(&text.len()) => {
            Err(Error::bad_input(format!("a string of {} bytes; give 1 to {ID_BYTES_MAX}", text.len())))
        }
        _ => Ok(()),
    }
}

/// Bytes of the rows of a point, without its payload.
pub(super) fn row_bytes(id: &ExternalId, vector_bytes: u64) -> u64 {
    POINT_OVERHEAD + 2 * id_bytes(id) as u64 + vector_bytes
}

fn check_size(ids: &[ExternalId], vector_bytes: u64, payloads: u64) -> Result<u64> {
    let of_rows = ids.iter().map(|id| row_bytes(id, vector_bytes)).sum::<u64>();
    let bytes = GROUP_OVERHEAD + of_rows + payloads;
    if bytes > BATCH_BYTES_MAX {
        return Err(Error::bad_input(format!(
            "a batch of {} ids takes {bytes} bytes with its keys, {payloads} of them for payloads; give at most \
             {BATCH_BYTES_MAX} at once",
            ids.len()
        )));
    }
    Ok(bytes)
}

/// Places of ids, ascending, without those that come again later.
fn last_of_each(ids: &[ExternalId]) -> Vec<usize> {
    let mut seen = HashSet::with_capacity(ids.len());
    let mut kept: Vec<usize> = (0..ids.len()).rev().filter(|at| seen.insert(&ids[*at])).collect();
    kept.reverse();
    kept
}

#[cfg(test)]
mod tests {
    use super::*;
    use stratann_kernel::{DType, Metric};

    const SPEC: Spec = Spec { dim: 1, metric: Metric::L2, dtype: DType::U8, kind: None };

    #[test]
    fn the_last_point_of_an_id_counts() {
        let ids = [1, 2, 1, 3, 2].map(ExternalId::Number);
        let work = Work::upsert(&SPEC, &ids, &[10, 20, 11, 30, 21], &[]).unwrap();
        assert_eq!(work.ids, [1, 3, 2].map(ExternalId::Number));
        assert_eq!((work.vectors.as_deref(), work.repeated), (Some(&[11, 30, 21][..]), 2));
        assert_eq!((work.vector(1), work.vector(9)), (&[30][..], &[][..]));
        let work = Work::delete(&ids).unwrap();
        assert_eq!((work.ids.len(), work.is_delete()), (3, true));
    }

    #[test]
    fn what_cannot_be_written_is_refused() {
        let ids = [ExternalId::Number(1), ExternalId::Text(String::new())];
        for (ids, vectors, why) in [
            (&ids[..0], &[][..], "no id"),
            (&ids[..1], &[][..], "no vector"),
            (&ids[..1], &[1, 2], "1 ids and 2 vectors"),
            (&ids[..], &[1, 2], "id 1: a string of 0 bytes"),
            (&[ExternalId::Text("x".repeat(256))], &[1], "a string of 256 bytes"),
        ] {
            let error = Work::upsert(&SPEC, ids, vectors, &[]).unwrap_err();
            assert!(error.message.contains(why), "{error}");
        }
        let many: Vec<_> = (0..80_000).map(ExternalId::Number).collect();
        assert!(Work::delete(&many).unwrap_err().message.contains("at most 8388608"));
        assert!(Work::upsert(&SPEC, &many, &vec![0; many.len()], &[]).is_err());
    }

    #[test]
    fn payloads_are_read_and_counted() {
        let ids = [1, 2, 1].map(ExternalId::Number);
        let json = |text: &'static str| Some(text.as_bytes());
        let payloads = [json("{"), json(r#" {"b": 1, "a": [1.0 ]}"#), json("{}")];
        let error = Work::upsert(&SPEC, &ids, &[1, 2, 3], &payloads).unwrap_err();
        assert!(error.message.starts_with("point 0: the payload is not JSON"), "{error}");
        let payloads = [None, payloads[1], payloads[2]];
        let work = Work::upsert(&SPEC, &ids, &[1, 2, 3], &payloads).unwrap();
        assert_eq!(work.payload(0).map(|json| &**json), Some(&br#"{"a":[1.0],"b":1}"#[..]));
        assert_eq!((work.payload(1), work.payload(2)), (None, None));
        assert_eq!(work.bytes, Work::upsert(&SPEC, &ids, &[1, 2, 3], &[]).unwrap().bytes + 4 + 17);
        let error = Work::upsert(&SPEC, &ids, &[1, 2, 3], &payloads[..2]).unwrap_err();
        assert!(error.message.contains("3 ids and 2 payloads"), "{error}");
        let long = format!(r#"{{"a":"{}"}}"#, "x".repeat(1_000_000));
        let (ids, payloads) =
            ((0..9).map(ExternalId::Number).collect::<Vec<_>>(), [Some(long.as_bytes()); 9]);
        let error = Work::upsert(&SPEC, &ids, &[0; 9], &payloads).unwrap_err();
        assert!(error.message.contains("9000108 of them for payloads"), "{error}");
    }
}
