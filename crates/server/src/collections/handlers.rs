//! What each path of collections does. Handlers may block.

use std::sync::Arc;
use std::time::Instant;

use axum::http::StatusCode;
use stratann_node::collections::{
    Collection, Error, Estimated, Kind, LIMIT_MAX, PayloadChanged, PayloadJson, Point, SearchOptions, Specs,
    Upserted, VectorsChanged,
};
use stratann_node::rows::ExternalId;
use stratann_payload::Predicate;
use stratann_payload::index::Unindexed;
use stratann_storage::ErrorKind;

use super::body::{self, Column, Get, Points, Scroll, ScrollFrom, VectorForm};
use super::filters::{self, PointFilter, Wanted};
use super::replies::{
    CountReply, DeleteReply, Described, DroppedReply, GetReply, InfoReply, LimitsReply, ListReply, Listed,
    NameReply, Next, PayloadReply, PointReply, QueryReply, Results, SchemaReply, ScrollReply, UpsertReply,
    Vector, VectorsReply, VerifyReply,
};
use super::{Answer, Asked, ok};
use crate::limits::Limits;
use crate::problem::Code;
use crate::shared::Rejection;

/// Bytes of a component as text, with its comma.
const COMPONENT_BYTES: usize = 16;

/// The refusal of what a collection does not do.
fn rejection(error: Error) -> Rejection {
    let retry_after_s = error.retry_after_s();
    let unknown = match error.kind {
        Kind::Unknown { seq } => Some(seq),
        _ => None,
    };
    let is_lasting = error.kind == Kind::ReadOnly;
    let code = Code::from_name(error.kind.code()).unwrap_or(Code::Failed);
    Rejection { retry_after_s, unknown, is_lasting, ..Rejection::of(code, error.message) }
}

impl Asked<'_> {
    fn collection(&self) -> Result<Collection, Rejection> {
        self.served.node.collection(self.name).map_err(rejection)
    }

    fn has_collection(&self) -> Result<bool, Rejection> {
        let all = self.served.node.collections().map_err(rejection)?;
        Ok(all.iter().any(|info| info.name == self.name))
    }
}

/// All collections.
pub(super) fn list(asked: &mut Asked<'_>) -> Result<Answer, Rejection> {
    let all = asked.served.node.collections().map_err(rejection)?;
    let each = all.iter().map(|info| match &info.specs {
        Ok(specs) => Listed::Whole(Described::of(&info.name, specs)),
        Err(e) => Listed::Damaged { name: &info.name, error: &e.message },
    });
    ok(&ListReply { collections: each.collect(), read_only: asked.served.node.why_read_only() })
}

/// A new collection.
pub(super) fn create(asked: &mut Asked<'_>) -> Result<Answer, Rejection> {
    let (specs, limits) = body::spec(asked.body).map_err(Rejection::bad)?;
    let taken = |why: String| Rejection::of(Code::NameTaken, why);
    if asked.has_collection()? {
        let name = asked.name;
        return Err(taken(format!(
            "there is a collection \"{name}\" already; give another name, or drop it"
        )));
    }
    match asked.served.node.create_limited(asked.name, specs, limits) {
        Ok(made) => Ok((StatusCode::CREATED, ok(&Described::of(made.name(), made.specs()))?.1)),
        // Another request may have made it meanwhile.
        Err(e) if e.kind == Kind::Other(ErrorKind::BadInput) && asked.has_collection()? => {
            Err(taken(e.message))
        }
        Err(e) => Err(rejection(e)),
    }
}

/// What a collection is made of.
pub(super) fn info(asked: &mut Asked<'_>) -> Result<Answer, Rejection> {
    let collection = asked.collection()?;
    let facts = collection.facts().map_err(rejection)?;
    let schema = collection.schema().map_err(rejection)?;
    ok(&InfoReply::of(collection.name(), collection.specs(), &facts, &schema))
}

/// Other limits of the memory of a collection.
pub(super) fn change(asked: &mut Asked<'_>) -> Result<Answer, Rejection> {
    let change = body::limits(asked.body).map_err(Rejection::bad)?;
    let limits = asked.served.node.change_limits(asked.name, |own| {
        own.quota_bytes = change.memory_quota_bytes.unwrap_or(own.quota_bytes);
        own.minimum_bytes = change.memory_minimum_bytes.unwrap_or(own.minimum_bytes);
    });
    ok(&LimitsReply::of(asked.name, &limits.map_err(rejection)?))
}

/// One segment of all points, made in the background.
pub(super) fn compact(asked: &mut Asked<'_>) -> Result<Answer, Rejection> {
    body::nothing(asked.body).map_err(Rejection::bad)?;
    asked.collection()?.compact_later().map_err(rejection)?;
    Ok((StatusCode::ACCEPTED, ok(&NameReply { name: asked.name })?.1))
}

/// The end of a collection.
pub(super) fn drop_collection(asked: &mut Asked<'_>) -> Result<Answer, Rejection> {
    let dropped = asked.served.node.drop_collection(asked.name).map_err(rejection)?;
    let unfinished = dropped.unfinished.map(|e| e.message);
    ok(&DroppedReply { name: asked.name, rows: dropped.rows, unfinished })
}

/// New points, or points in place of others.
pub(super) fn upsert(asked: &mut Asked<'_>) -> Result<Answer, Rejection> {
    let collection = asked.collection()?;
    let read = body::points(asked.body, collection.specs()).map_err(Rejection::bad)?;
    let Points { ids, vectors, payloads, condition } = read;
    let given: Vec<_> = vectors.iter().map(Column::given).collect();
    let done = collection.upsert_named(&ids, &given, &payloads, condition).map_err(rejection)?;
    let Upserted { seq, new, replaced, repeated, skipped } = &done;
    let (seq, new, replaced, repeated) = (*seq, *new, *replaced, *repeated);
    ok(&UpsertReply { seq, new, replaced, repeated, skipped: skipped.iter().collect() })
}

/// Other vectors of points, which keep those of other names and their payloads.
pub(super) fn update_vectors(asked: &mut Asked<'_>) -> Result<Answer, Rejection> {
    let collection = asked.collection()?;
    let read = body::update_vectors(asked.body, collection.specs()).map_err(Rejection::bad)?;
    let (ids, vectors) = read;
    let given: Vec<_> = vectors.iter().map(Column::given).collect();
    let VectorsChanged { seq, changed } = collection.update_vectors(&ids, &given).map_err(rejection)?;
    ok(&VectorsReply { seq, changed })
}

/// The end of points.
pub(super) fn delete(asked: &mut Asked<'_>) -> Result<Answer, Rejection> {
    let collection = asked.collection()?;
    let reply = match filters::wanted(asked.body).map_err(Rejection::bad)? {
        Wanted::Ids(ids) => {
            let done = collection.delete(&ids).map_err(rejection)?;
            let (seq, deleted, unknown) = (done.seq, done.deleted, done.unknown);
            DeleteReply { seq, deleted, unknown, changed: 0, changes: 1, unindexed: Vec::new() }
        }
        Wanted::Matching(filter) => {
            let filter = filter.checked(&collection).map_err(rejection)?;
            let done = collection.delete_matching(filter).map_err(rejection)?;
            DeleteReply {
                seq: done.seq,
                deleted: done.deleted,
                unknown: 0,
                changed: done.changed,
                changes: done.changes,
                unindexed: texts(&done.unindexed),
            }
        }
    };
    ok(&reply)
}

/// Number of points, or of those that match.
pub(super) fn count(asked: &mut Asked<'_>) -> Result<Answer, Rejection> {
    let collection = asked.collection()?;
    let (filter, is_exact) = filters::counted(asked.body).map_err(Rejection::bad)?;
    let counted = |seq, count, unindexed: &[Unindexed]| {
        ok(&CountReply { seq, count, least: count, most: count, unindexed: texts(unindexed) })
    };
    let Some(filter) = filter else {
        // All changes up to this one are counted.
        let seq = collection.seq().map_err(rejection)?;
        return counted(seq, collection.count().map_err(rejection)?, &[]);
    };
    let filter = filter.checked(&collection).map_err(rejection)?;
    if is_exact {
        let found = collection.count_matching(filter).map_err(rejection)?;
        return counted(found.seq, found.points, &found.unindexed);
    }
    let Estimated { seq, points, least, most, unindexed, .. } =
        collection.estimate_matching(filter).map_err(rejection)?;
    ok(&CountReply { seq, count: points, least, most, unindexed: texts(&unindexed) })
}

fn texts(unindexed: &[Unindexed]) -> Vec<String> {
    unindexed.iter().map(ToString::to_string).collect()
}

/// Fields of payloads that are indexed from now on.
pub(super) fn set_schema(asked: &mut Asked<'_>) -> Result<Answer, Rejection> {
    let schema = filters::schema(asked.body).map_err(Rejection::bad)?;
    asked.collection()?.set_schema(&schema).map_err(rejection)?;
    ok(&SchemaReply { name: asked.name, schema: &schema })
}

/// Fields of payloads that are indexed.
pub(super) fn schema(asked: &mut Asked<'_>) -> Result<Answer, Rejection> {
    let schema = asked.collection()?.schema().map_err(rejection)?;
    ok(&SchemaReply { name: asked.name, schema: &schema })
}

/// The comparison of all that is stored of a collection.
pub(super) fn verify(asked: &mut Asked<'_>) -> Result<Answer, Rejection> {
    body::nothing(asked.body).map_err(Rejection::bad)?;
    let found = asked.served.node.verify(asked.name).map_err(rejection)?;
    ok(&VerifyReply { name: asked.name, seq: found.seq, points: found.points })
}

/// Fields that come to payloads, or in place of theirs.
pub(super) fn set_payload(asked: &mut Asked<'_>) -> Result<Answer, Rejection> {
    change_payload(asked, filters::Change::Set)
}

/// A payload in place of others.
pub(super) fn overwrite_payload(asked: &mut Asked<'_>) -> Result<Answer, Rejection> {
    change_payload(asked, filters::Change::Overwrite)
}

/// Payloads without some fields.
pub(super) fn delete_payload_keys(asked: &mut Asked<'_>) -> Result<Answer, Rejection> {
    change_payload(asked, filters::Change::Delete)
}

/// Points without payloads.
pub(super) fn clear_payload(asked: &mut Asked<'_>) -> Result<Answer, Rejection> {
    change_payload(asked, filters::Change::Clear)
}

fn change_payload(asked: &mut Asked<'_>, change: filters::Change) -> Result<Answer, Rejection> {
    let collection = asked.collection()?;
    let (wanted, update) = filters::change(asked.body, change).map_err(Rejection::bad)?;
    let chosen = wanted.chosen(&collection).map_err(rejection)?;
    let done = collection.change_payload(chosen, update).map_err(rejection)?;
    let PayloadChanged { seq, changed, unchanged, unknown, changes } = done;
    ok(&PayloadReply { seq, changed, unchanged, unknown, changes })
}

/// A point by its id.
pub(super) fn point(asked: &mut Asked<'_>) -> Result<Answer, Rejection> {
    let id = ExternalId::of_token(asked.id).map_err(|e| Rejection::bad(e.message))?;
    let collection = asked.collection()?;
    let found = collection.get(std::slice::from_ref(&id)).map_err(rejection)?;
    let Some(point) = found.into_iter().next().flatten() else {
        let error = format!("collection \"{}\" has no point {id}", asked.name);
        return Err(Rejection::of(Code::MissingPoint, error));
    };
    ok(&PointReply::of(&point, collection.specs(), Some(VectorForm::Numbers)))
}

/// Points by their ids.
pub(super) fn get(asked: &mut Asked<'_>) -> Result<Answer, Rejection> {
    let collection = asked.collection()?;
    let specs = collection.specs();
    let Get { ids, with_vectors, form } = body::get(asked.body).map_err(Rejection::bad)?;
    let vector_bytes = specs.row_bytes() + if with_vectors { text_bytes(specs, form) } else { 0 };
    let each = Limits::reply_bytes(1, 1, 0).saturating_add(vector_bytes);
    reserve(asked, ids.len().saturating_mul(each), "points")?;
    let points = collection.get(&ids).map_err(rejection)?;
    let payloads: usize = points.iter().flatten().filter_map(|own| own.payload.as_ref()).map(Vec::len).sum();
    reserve(asked, 2 * payloads, "payloads")?;
    let form = with_vectors.then_some(form);
    let each = points.iter().map(|own| own.as_ref().map(|own| PointReply::of(own, specs, form)));
    ok(&GetReply { points: each.collect() })
}

/// Points in the order of their ids, or of a field.
pub(super) fn scroll(asked: &mut Asked<'_>) -> Result<Answer, Rejection> {
    let collection = asked.collection()?;
    let specs = collection.specs();
    let Scroll { from, limit, with_vectors, form, filter } =
        body::scroll(asked.body).map_err(Rejection::bad)?;
    if !(1..=LIMIT_MAX).contains(&limit) {
        return Err(Rejection::bad(format!("limit is {limit}; use 1 to {LIMIT_MAX}")));
    }
    // A page has fewer points where more would take too much memory.
    let vector_bytes = specs.row_bytes() + if with_vectors { text_bytes(specs, form) } else { 0 };
    let each = Limits::reply_bytes(1, 1, 0).saturating_add(vector_bytes);
    let limit = limit.min(collection.page_points()).min(asked.limits.large_bytes / each).max(1);
    if !asked.memory.grow((limit * each) as u64) {
        return Err(Rejection::overloaded());
    }
    let filter = checked(filter.as_ref(), &collection)?;
    let reply = |seq, points: &[Point], next, unindexed: &[Unindexed]| {
        let form = with_vectors.then_some(form);
        let points = points.iter().map(|point| PointReply::of(point, specs, form));
        ok(&ScrollReply { seq, points: points.collect(), next, unindexed: texts(unindexed) })
    };
    match &from {
        ScrollFrom::Ids(after) => {
            let page = match filter {
                None => collection.scroll(after.as_ref(), limit),
                Some(filter) => collection.scroll_matching(after.as_ref(), limit, filter),
            };
            let page = page.map_err(rejection)?;
            reply(page.seq, &page.points, page.next.as_ref().map(Next::Id), &page.unindexed)
        }
        ScrollFrom::Field(by, after) => {
            let page = collection.scroll_ordered(by, after.as_deref(), limit, filter);
            let page = page.map_err(rejection)?;
            reply(page.seq, &page.points, page.next.as_deref().map(Next::Place), &page.unindexed)
        }
    }
}

/// The nearest points of queries.
pub(super) fn query(asked: &mut Asked<'_>) -> Result<Answer, Rejection> {
    let collection = asked.collection()?;
    let query = body::query(asked.body, collection.specs(), asked.limits.queries).map_err(Rejection::bad)?;
    let spec = query.spec;
    let k = query.k;
    if !(1..=asked.served.max_k.min(LIMIT_MAX)).contains(&k) {
        return Err(Rejection::bad(format!("k is {k}; use 1 to {} (max_k)", asked.served.max_k)));
    }
    let count = query.vectors.len() / spec.row_bytes().max(1);
    let results = count.saturating_mul(k);
    let each = if query.with_vectors { spec.row_bytes() + text_bytes(&spec.into(), query.form) } else { 0 };
    // Ids are taken to be short.
    let bytes = Limits::reply_bytes(count, k, 0).saturating_add(results.saturating_mul(each));
    reserve(asked, bytes, "answers")?;
    let options = SearchOptions {
        k,
        recall: query.recall,
        filter: checked(query.filter.as_ref(), &collection)?.cloned(),
        vector_name: query.vector_name.clone(),
        with_payload: query.with_payload,
        with_vectors: query.with_vectors,
        threads: asked.served.threads.max(1),
        ..SearchOptions::default()
    };
    let started = Instant::now();
    let found = collection.search_with(&query.vectors, &options).map_err(rejection)?;
    let latency_us = started.elapsed().as_micros() as u64;
    let payloads: usize =
        found.hits.iter().flatten().filter_map(|hit| hit.payload.as_ref()).map(Vec::len).sum();
    // As they were read, and as a part of the reply.
    reserve(asked, 2 * payloads, "payloads")?;
    let vector = |bytes| Vector { bytes, dtype: spec.dtype, form: query.form };
    let answers = found.hits.iter().map(|hits| {
        let payloads = hits.iter().map(|hit| hit.payload.as_deref().map(PayloadJson));
        let vectors = hits.iter().filter_map(|hit| hit.vector.as_deref().map(vector));
        Results {
            ids: hits.iter().map(|hit| &hit.id).collect(),
            distances: hits.iter().map(|hit| hit.distance).collect(),
            vectors: query.with_vectors.then(|| vectors.collect()),
            payloads: query.with_payload.then(|| payloads.collect()),
        }
    });
    let answers = answers.collect();
    ok(&QueryReply { seq: found.seq, latency_us, answers, unindexed: texts(&found.unindexed) })
}

/// A filter, once the collection has the indexes that it asks for.
fn checked<'a>(
    filter: Option<&'a PointFilter>,
    collection: &Collection,
) -> Result<Option<&'a Arc<Predicate>>, Rejection> {
    filter.map(|filter| filter.checked(collection)).transpose().map_err(rejection)
}

/// Bytes of the vectors of a point in a reply.
fn text_bytes(specs: &Specs, form: VectorForm) -> usize {
    let each = specs.iter().map(|own| match form {
        VectorForm::Numbers => own.spec.dim * COMPONENT_BYTES + own.name.len(),
        VectorForm::Base64 => own.spec.row_bytes() * 4 / 3 + 4 + own.name.len(),
    });
    each.sum()
}

/// Reserves memory for a part of a reply.
fn reserve(asked: &mut Asked<'_>, bytes: usize, what: &str) -> Result<(), Rejection> {
    if bytes > asked.limits.large_bytes {
        let most = asked.limits.large_bytes;
        let error = format!(
            "the {what} take more than {most} bytes; ask for less at a time, or start the server with a larger \
             --http-memory"
        );
        return Err(Rejection::of(Code::ReplyTooLong, error));
    }
    match asked.memory.grow(bytes as u64) {
        true => Ok(()),
        false => Err(Rejection::overloaded()),
    }
}

#[cfg(test)]
mod tests {
    use axum::http::header;

    use super::*;

    #[test]
    fn each_kind_of_error_has_a_status() {
        let other = |kind| Kind::Other(kind);
        for (kind, status, retry) in [
            (Kind::Missing, 404, None),
            (Kind::Busy, 429, Some("1")),
            (Kind::Unknown { seq: 7 }, 503, Some("1")),
            (Kind::DiskFull, 507, None),
            (Kind::ReadOnly, 503, None),
            (other(ErrorKind::Budget), 503, Some("1")),
            (other(ErrorKind::BadInput), 400, None),
            (other(ErrorKind::Corrupt), 500, None),
            (other(ErrorKind::Io), 500, None),
        ] {
            let refused = rejection(Error { kind, message: "why".into() });
            assert_eq!(refused.unknown, matches!(kind, Kind::Unknown { .. }).then_some(7));
            let response = refused.response();
            assert_eq!(response.status().as_u16(), status, "{kind:?}");
            let after = response.headers().get(header::RETRY_AFTER).map(|value| value.to_str().unwrap());
            assert_eq!(after, retry, "{kind:?}");
        }
    }
}
