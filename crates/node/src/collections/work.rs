//! A change of a collection before it has a sequence number.

use std::collections::HashSet;
use std::sync::Arc;

use stratann_payload::Payload;
use stratann_payload::value::Update;

use super::error::{Error, Result};
use super::point::{PointBytes, id_bytes};
use super::spec::{Specs, VectorsOf};
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

/// Vectors of one name for the points of a change.
#[derive(Clone, Copy, Debug)]
pub struct GivenVectors<'a> {
    /// The name; empty in a collection whose vectors have no names.
    pub name: &'a str,
    /// Components of the vectors that are there, one vector after another, little-endian.
    pub vectors: &'a [u8],
    /// Which points have a vector, one for each of them; `None` for all.
    pub has: Option<&'a [bool]>,
}

/// What was done with the points whose vectors were to change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VectorsChanged {
    /// Sequence number of the change.
    pub seq: u64,
    /// Points that were written again.
    pub changed: u64,
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

/// Records of vectors, one after another.
#[derive(Debug, Default)]
struct Records {
    bytes: Vec<u8>,
    /// Where each of them ends.
    ends: Vec<usize>,
}

impl Records {
    fn push(&mut self, record: &[u8]) {
        self.bytes.extend(record);
        self.ends.push(self.bytes.len());
    }

    fn get(&self, at: usize) -> Option<&[u8]> {
        let from = at.checked_sub(1).map_or(Some(0), |before| self.ends.get(before).copied())?;
        self.bytes.get(from..*self.ends.get(at)?)
    }
}

/// Vectors of a point by the places of their names: in place of earlier ones, or none any more.
pub(super) type PartialVectors = Vec<(usize, Option<Vec<u8>>)>;

/// What is to be done, checked.
#[derive(Debug)]
pub(super) struct Work {
    pub(super) ids: Vec<ExternalId>,
    /// The record of the vectors of each id; `None` to delete them.
    records: Option<Records>,
    /// Vectors of each id that are to change, those of other names stay.
    pub(super) partial: Option<Vec<PartialVectors>>,
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
        specs: &Specs,
        ids: &[ExternalId],
        given: &[GivenVectors<'_>],
        payloads: &[Option<&[u8]>],
    ) -> Result<Work> {
        let count = ids.len();
        check_ids(ids)?;
        let columns = check_given(specs, count, given)?;
        if let (false, [all]) = (specs.has_names(), &columns[..]) {
            check_only(all)?;
        }
        let payloads = check_payloads(payloads, count)?;
        let of_payloads = payloads.iter().flatten().map(|json| 4 + json.len() as u64).sum();
        let record = |at: usize| {
            let vectors: Vec<_> = columns.iter().map(|own| own.as_ref()?.get(at).copied()?).collect();
            specs.record(&vectors)
        };
        let of_vectors = (0..count).map(|at| record(at).len() as u64).sum();
        let bytes = check_size(ids, of_vectors, of_payloads)?;
        let kept = last_of_each(ids);
        let repeated = (count - kept.len()) as u64;
        let of_kept = kept.iter().filter_map(|at| payloads.get(*at).cloned()).collect();
        let mut work =
            Work { payloads: of_kept, repeated, ..Work::of_ids(Vec::with_capacity(kept.len()), bytes) };
        let mut records = Records::default();
        for (id, at) in kept.into_iter().filter_map(|at| Some((ids.get(at)?, at))) {
            work.ids.push(id.clone());
            records.push(&record(at));
        }
        work.records = Some(records);
        Ok(work)
    }

    /// Points of which some vectors are to change. Of several of an id the last one counts.
    pub(super) fn update_vectors(
        specs: &Specs,
        ids: &[ExternalId],
        given: &[GivenVectors<'_>],
    ) -> Result<Work> {
        check_ids(ids)?;
        if given.is_empty() {
            return Err(Error::bad_input("there is no name of vectors to change; give one or more"));
        }
        let columns = check_given(specs, ids.len(), given)?;
        if let (false, [all]) = (specs.has_names(), &columns[..]) {
            check_only(all)?;
        }
        let of_vectors = given.iter().map(|own| own.vectors.len() as u64).sum();
        let bytes = check_size(ids, of_vectors, 0)?;
        let kept = last_of_each(ids);
        let vectors = |at: usize| -> PartialVectors {
            let own = columns.iter().enumerate();
            let own = own.filter_map(|(name, own)| Some((name, own.as_ref()?.get(at)?.map(<[u8]>::to_vec))));
            own.collect()
        };
        let partial = Some(kept.iter().map(|at| vectors(*at)).collect());
        let ids = kept.into_iter().filter_map(|at| ids.get(at).cloned()).collect();
        Ok(Work { partial, ..Work::of_ids(ids, bytes) })
    }

    /// The same with all vectors and payloads of the points, `points` of them.
    ///
    /// # Errors
    /// `BadInput` for points that are too large together.
    pub(super) fn whole(
        &self,
        points: impl Iterator<Item = Result<(Vec<u8>, Option<Arc<[u8]>>)>>,
    ) -> Result<Work> {
        let (mut records, mut payloads) = (Records::default(), Vec::with_capacity(self.ids.len()));
        for point in points {
            let (record, payload) = point?;
            records.push(&record);
            payloads.push(payload);
        }
        let of_payloads = payloads.iter().flatten().map(|json| 4 + json.len() as u64).sum();
        let bytes = check_size(&self.ids, records.bytes.len() as u64, of_payloads)?;
        Ok(Work { records: Some(records), payloads, ..Work::of_ids(self.ids.clone(), bytes) })
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
            records: None,
            partial: None,
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
        self.records.is_none() && !self.is_alone()
    }

    /// Whether it follows from points that are there, so that it is made by itself.
    pub(super) fn is_alone(&self) -> bool {
        self.update.is_some() || self.partial.is_some()
    }

    /// The record of the vectors of an id, by its place in this change.
    pub(super) fn vectors(&self, at: usize) -> &[u8] {
        self.records.as_ref().and_then(|records| records.get(at)).unwrap_or_default()
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

/// The vectors of one name, one for each id.
type GivenColumn<'a> = Vec<Option<&'a [u8]>>;

/// Checks vectors by name. Returns those of each name; `None` for a name that is not given.
fn check_given<'a>(
    specs: &Specs,
    count: usize,
    given: &[GivenVectors<'a>],
) -> Result<Vec<Option<GivenColumn<'a>>>> {
    let mut columns: Vec<Option<GivenColumn<'_>>> = vec![None; specs.count()];
    for own in given {
        let (name, spec) = specs.find(Some(own.name))?;
        let of = VectorsOf { name, spec };
        let column = check_column(of, count, own).map_err(|e| match own.name {
            "" => e,
            name => Error::bad_input(format!("vectors {name:?}: {}", e.message)),
        })?;
        let Some(place) = columns.get_mut(name) else { continue };
        if place.replace(column).is_some() {
            return Err(Error::bad_input(format!(
                "vectors {:?} are given twice; give each name once",
                own.name
            )));
        }
    }
    if !specs.has_names() && columns.iter().any(Option::is_none) {
        return Err(Error::bad_input("there is no vector; give one or more"));
    }
    Ok(columns)
}

fn check_column<'a>(of: VectorsOf<'_>, count: usize, given: &GivenVectors<'a>) -> Result<GivenColumn<'a>> {
    let expected = match given.has {
        Some(has) if has.len() != count => {
            return Err(Error::bad_input(format!(
                "{count} ids, and {} say whether there is a vector; give one for each id",
                has.len()
            )));
        }
        Some(has) => has.iter().filter(|has| **has).count(),
        None => count,
    };
    let rows = match (expected, given.vectors) {
        (0, []) => 0,
        _ => of.spec.check_vectors(given.vectors, "vector")?,
    };
    if rows != expected {
        return Err(Error::bad_input(match given.has {
            None => format!("{count} ids and {rows} vectors; give one vector for each id"),
            Some(_) => format!("{expected} of the points are to have a vector, and there are {rows}"),
        }));
    }
    let mut vectors = given.vectors.chunks_exact(of.spec.row_bytes());
    let is_there = |at: usize| given.has.is_none_or(|has| has.get(at) == Some(&true));
    Ok((0..count).map(|at| if is_there(at) { vectors.next() } else { None }).collect())
}

/// Refuses a point without the vector that each one has where vectors have no names.
fn check_only(column: &Option<GivenColumn<'_>>) -> Result<()> {
    match column.iter().flatten().position(Option::is_none) {
        Some(at) => Err(Error::bad_input(format!(
            "point {at} has no vector; only in a collection whose vectors have names may a point have none"
        ))),
        None => Ok(()),
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

fn check_size(ids: &[ExternalId], vectors: u64, payloads: u64) -> Result<u64> {
    let of_rows = ids.iter().map(|id| row_bytes(id, 0)).sum::<u64>();
    let bytes = GROUP_OVERHEAD + of_rows + vectors + payloads;
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

    use crate::collections::spec::Spec;

    fn upsert(ids: &[ExternalId], vectors: &[u8], payloads: &[Option<&[u8]>]) -> Result<Work> {
        let spec = Spec { dim: 1, metric: Metric::L2, dtype: DType::U8, kind: None };
        Work::upsert(&spec.into(), ids, &[GivenVectors { name: "", vectors, has: None }], payloads)
    }

    #[test]
    fn the_last_point_of_an_id_counts() {
        let ids = [1, 2, 1, 3, 2].map(ExternalId::Number);
        let work = upsert(&ids, &[10, 20, 11, 30, 21], &[]).unwrap();
        assert_eq!(work.ids, [1, 3, 2].map(ExternalId::Number));
        assert_eq!([work.vectors(0), work.vectors(1), work.vectors(2)], [&[11][..], &[30], &[21]]);
        assert_eq!((work.repeated, work.vectors(9)), (2, &[][..]));
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
            let error = upsert(ids, vectors, &[]).unwrap_err();
            assert!(error.message.contains(why), "{error}");
        }
        let many: Vec<_> = (0..80_000).map(ExternalId::Number).collect();
        assert!(Work::delete(&many).unwrap_err().message.contains("at most 8388608"));
        assert!(upsert(&many, &vec![0; many.len()], &[]).is_err());
    }

    #[test]
    fn payloads_are_read_and_counted() {
        let ids = [1, 2, 1].map(ExternalId::Number);
        let json = |text: &'static str| Some(text.as_bytes());
        let payloads = [json("{"), json(r#" {"b": 1, "a": [1.0 ]}"#), json("{}")];
        let error = upsert(&ids, &[1, 2, 3], &payloads).unwrap_err();
        assert!(error.message.starts_with("point 0: the payload is not JSON"), "{error}");
        let payloads = [None, payloads[1], payloads[2]];
        let work = upsert(&ids, &[1, 2, 3], &payloads).unwrap();
        assert_eq!(work.payload(0).map(|json| &**json), Some(&br#"{"a":[1.0],"b":1}"#[..]));
        assert_eq!((work.payload(1), work.payload(2)), (None, None));
        assert_eq!(work.bytes, upsert(&ids, &[1, 2, 3], &[]).unwrap().bytes + 4 + 17);
        let error = upsert(&ids, &[1, 2, 3], &payloads[..2]).unwrap_err();
        assert!(error.message.contains("3 ids and 2 payloads"), "{error}");
        let long = format!(r#"{{"a":"{}"}}"#, "x".repeat(1_000_000));
        let (ids, payloads) =
            ((0..9).map(ExternalId::Number).collect::<Vec<_>>(), [Some(long.as_bytes()); 9]);
        let error = upsert(&ids, &[0; 9], &payloads).unwrap_err();
        assert!(error.message.contains("9000108 of them for payloads"), "{error}");
    }
}
