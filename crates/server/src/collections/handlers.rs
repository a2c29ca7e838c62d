//! What each path of collections does. Handlers may block.

use std::time::Instant;

use axum::http::StatusCode;
use serde_json::json;
use stratann_engine::DType;
use stratann_node::collections::{Collection, Error, Found, Kind, LIMIT_MAX, SearchOptions, Spec};
use stratann_node::rows::ExternalId;
use stratann_payload::index::Unindexed;
use stratann_storage::ErrorKind;

use super::body::{self, Points, Query, Scroll};
use super::filters::{self, Wanted};
use super::ids::IdJson;
use super::replies::{Described, PayloadJson, PointReply, QueryReply, Results, ScrollReply, Vector};
use super::{Answer, Asked, ok};
use crate::limits::Limits;
use crate::shared::Rejection;

/// Most bytes of the vectors that are read at once.
const PART_BYTES: usize = 1 << 20;
/// Most points that are read at once: each may have a payload of a MiB.
const PAYLOADS_AT_ONCE: usize = 64;
/// Bytes of a component as text, with its comma.
const COMPONENT_BYTES: usize = 16;

/// The refusal of what a collection does not do.
fn rejection(error: Error) -> Rejection {
    let retry_after_s = error.retry_after_s();
    let (status, unknown) = match error.kind {
        Kind::Missing => (StatusCode::NOT_FOUND, None),
        Kind::Busy => (StatusCode::TOO_MANY_REQUESTS, None),
        Kind::Unknown { seq } => (StatusCode::SERVICE_UNAVAILABLE, Some(seq)),
        Kind::DiskFull => (StatusCode::INSUFFICIENT_STORAGE, None),
        Kind::ReadOnly => (StatusCode::SERVICE_UNAVAILABLE, None),
        Kind::Other(ErrorKind::BadInput) => (StatusCode::BAD_REQUEST, None),
        Kind::Other(ErrorKind::Interrupted | ErrorKind::Budget) => (StatusCode::SERVICE_UNAVAILABLE, None),
        Kind::Other(_) => (StatusCode::INTERNAL_SERVER_ERROR, None),
    };
    let is_lasting = error.kind == Kind::ReadOnly;
    Rejection { retry_after_s, unknown, is_lasting, ..Rejection::new(status, error.message) }
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
    let each = all.iter().map(|info| match &info.spec {
        Ok(spec) => json!(Described::of(&info.name, spec)),
        Err(e) => json!({ "name": info.name, "error": e.message }),
    });
    let read_only = asked.served.node.why_read_only();
    ok(&json!({ "collections": each.collect::<Vec<_>>(), "read_only": read_only }))
}

/// A new collection.
pub(super) fn create(asked: &mut Asked<'_>) -> Result<Answer, Rejection> {
    let (spec, limits) = body::spec(asked.body).map_err(Rejection::bad)?;
    let taken = |why: String| Rejection::new(StatusCode::CONFLICT, why);
    if asked.has_collection()? {
        let name = asked.name;
        return Err(taken(format!(
            "there is a collection \"{name}\" already; give another name, or drop it"
        )));
    }
    match asked.served.node.create_limited(asked.name, spec, limits) {
        Ok(made) => Ok((StatusCode::CREATED, ok(&Described::of(made.name(), &spec))?.1)),
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
    let segments = facts.segments.iter().map(|segment| {
        json!({
            "number": segment.number,
            "kind": segment.kind.name(),
            "rows": segment.rows,
            "dead": segment.dead,
            "bytes": segment.bytes,
        })
    });
    let mut reply = json!(Described::of(collection.name(), &collection.spec()));
    reply["points"] = facts.points.into();
    reply["seq"] = facts.seq.into();
    reply["delta_points"] = facts.delta_points.into();
    reply["delta_bytes"] = facts.delta_bytes.into();
    reply["segments"] = segments.collect();
    reply["trouble"] = facts.trouble.map(|e| e.message).into();
    reply["jobs"] = facts.jobs.into();
    reply["schema"] = json!(collection.schema().map_err(rejection)?);
    reply["memory_bytes"] = facts.memory_bytes.into();
    reply["memory_quota_bytes"] = facts.limits.quota_bytes.into();
    reply["memory_minimum_bytes"] = facts.limits.minimum_bytes.into();
    ok(&reply)
}

/// Other limits of the memory of a collection.
pub(super) fn change(asked: &mut Asked<'_>) -> Result<Answer, Rejection> {
    let change = body::limits(asked.body).map_err(Rejection::bad)?;
    let limits = asked.served.node.change_limits(asked.name, |own| {
        own.quota_bytes = change.memory_quota_bytes.unwrap_or(own.quota_bytes);
        own.minimum_bytes = change.memory_minimum_bytes.unwrap_or(own.minimum_bytes);
    });
    let limits = limits.map_err(rejection)?;
    ok(&json!({
        "name": asked.name,
        "memory_quota_bytes": limits.quota_bytes,
        "memory_minimum_bytes": limits.minimum_bytes,
    }))
}

/// One segment of all points, made in the background.
pub(super) fn compact(asked: &mut Asked<'_>) -> Result<Answer, Rejection> {
    body::nothing(asked.body).map_err(Rejection::bad)?;
    asked.collection()?.compact_later().map_err(rejection)?;
    Ok((StatusCode::ACCEPTED, ok(&json!({ "name": asked.name }))?.1))
}

/// The end of a collection.
pub(super) fn drop_collection(asked: &mut Asked<'_>) -> Result<Answer, Rejection> {
    let dropped = asked.served.node.drop_collection(asked.name).map_err(rejection)?;
    let unfinished = dropped.unfinished.map(|e| e.message);
    ok(&json!({ "name": asked.name, "rows": dropped.rows, "unfinished": unfinished }))
}

/// New points, or points in place of others.
pub(super) fn upsert(asked: &mut Asked<'_>) -> Result<Answer, Rejection> {
    let collection = asked.collection()?;
    let spec = collection.spec();
    let Points { ids, vectors, payloads } = body::points(asked.body, &spec).map_err(Rejection::bad)?;
    let done = collection.upsert_points(&ids, &vectors, &payloads).map_err(rejection)?;
    ok(&json!({ "seq": done.seq, "new": done.new, "replaced": done.replaced, "repeated": done.repeated }))
}

/// The end of points.
pub(super) fn delete(asked: &mut Asked<'_>) -> Result<Answer, Rejection> {
    let collection = asked.collection()?;
    match filters::wanted(asked.body).map_err(Rejection::bad)? {
        Wanted::Ids(ids) => {
            let done = collection.delete(&ids).map_err(rejection)?;
            ok(&json!({ "seq": done.seq, "deleted": done.deleted, "unknown": done.unknown }))
        }
        Wanted::Matching(filter) => {
            let done = collection.delete_matching(&filter).map_err(rejection)?;
            let unindexed = texts(&done.unindexed);
            ok(&json!({
                "seq": done.seq,
                "deleted": done.deleted,
                "changed": done.changed,
                "changes": done.changes,
                "unindexed": unindexed,
            }))
        }
    }
}

/// Number of points, or of those that match.
pub(super) fn count(asked: &mut Asked<'_>) -> Result<Answer, Rejection> {
    let collection = asked.collection()?;
    match filters::optional(asked.body).map_err(Rejection::bad)? {
        None => ok(&json!({ "count": collection.count().map_err(rejection)? })),
        Some(filter) => {
            let counted = collection.count_matching(&filter).map_err(rejection)?;
            let unindexed = texts(&counted.unindexed);
            ok(&json!({ "seq": counted.seq, "count": counted.points, "unindexed": unindexed }))
        }
    }
}

fn texts(unindexed: &[Unindexed]) -> Vec<String> {
    unindexed.iter().map(ToString::to_string).collect()
}

/// Fields of payloads that are indexed from now on.
pub(super) fn set_schema(asked: &mut Asked<'_>) -> Result<Answer, Rejection> {
    let schema = filters::schema(asked.body).map_err(Rejection::bad)?;
    asked.collection()?.set_schema(&schema).map_err(rejection)?;
    ok(&json!({ "name": asked.name, "schema": schema }))
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
    let done = collection.change_payload(wanted.chosen(), update).map_err(rejection)?;
    ok(&json!({
        "seq": done.seq,
        "changed": done.changed,
        "unchanged": done.unchanged,
        "unknown": done.unknown,
        "changes": done.changes,
    }))
}

/// A point by its id.
pub(super) fn point(asked: &mut Asked<'_>) -> Result<Answer, Rejection> {
    let id = ExternalId::of_token(asked.id).map_err(|e| Rejection::bad(e.message))?;
    let collection = asked.collection()?;
    let found = collection.get(std::slice::from_ref(&id)).map_err(rejection)?;
    let Some(point) = found.into_iter().next().flatten() else {
        let error = format!("collection \"{}\" has no point {id}", asked.name);
        return Err(Rejection::new(StatusCode::NOT_FOUND, error));
    };
    ok(&PointReply::of(&point, collection.spec().dtype, true))
}

/// Points in the order of their ids.
pub(super) fn scroll(asked: &mut Asked<'_>) -> Result<Answer, Rejection> {
    let collection = asked.collection()?;
    let spec = collection.spec();
    let Scroll { after, limit, with_vectors, filter } = body::scroll(asked.body).map_err(Rejection::bad)?;
    if !(1..=LIMIT_MAX).contains(&limit) {
        return Err(Rejection::bad(format!("limit is {limit}; use 1 to {LIMIT_MAX}")));
    }
    // A page has fewer points where more would take too much memory.
    let text_bytes = if with_vectors { spec.dim * COMPONENT_BYTES } else { 0 };
    let each = Limits::reply_bytes(1, 1, 0).saturating_add(spec.row_bytes()).saturating_add(text_bytes);
    let limit = limit.min(collection.page_points()).min(asked.limits.large_bytes / each).max(1);
    if !asked.memory.grow((limit * each) as u64) {
        return Err(Rejection::overloaded());
    }
    let page = match &filter {
        None => collection.scroll(after.as_ref(), limit),
        Some(filter) => collection.scroll_matching(after.as_ref(), limit, filter),
    };
    let page = page.map_err(rejection)?;
    let points = page.points.iter().map(|point| PointReply::of(point, spec.dtype, with_vectors));
    let next = page.next.as_ref().map(IdJson);
    ok(&ScrollReply { seq: page.seq, points: points.collect(), next, unindexed: texts(&page.unindexed) })
}

/// The nearest points of queries.
pub(super) fn query(asked: &mut Asked<'_>) -> Result<Answer, Rejection> {
    let collection = asked.collection()?;
    let spec = collection.spec();
    let query = body::query(asked.body, &spec, asked.limits.queries).map_err(Rejection::bad)?;
    let k = query.k;
    if !(1..=asked.served.max_k.min(LIMIT_MAX)).contains(&k) {
        return Err(Rejection::bad(format!("k is {k}; use 1 to {} (max_k)", asked.served.max_k)));
    }
    reserve(asked, &query, &spec)?;
    let options = SearchOptions {
        k,
        recall: query.recall,
        filter: query.filter.clone(),
        threads: asked.served.threads.max(1),
        ..SearchOptions::default()
    };
    let started = Instant::now();
    let found = collection.search_with(&query.vectors, &options).map_err(rejection)?;
    let latency_us = started.elapsed().as_micros() as u64;
    let points = match query.with_vectors || query.with_payload {
        true => points_of(asked, &collection, (&found, query.with_vectors, query.with_payload))?,
        false => Vec::new(),
    };
    let mut first = 0;
    let answers = found.hits.iter().map(|hits| {
        let own = points.get(first..first + hits.len()).unwrap_or_default();
        first += hits.len();
        Results {
            ids: hits.iter().map(|hit| IdJson(&hit.id)).collect(),
            distances: hits.iter().map(|hit| hit.distance).collect(),
            vectors: query.with_vectors.then(|| own.iter().map(|own| own.vector(spec.dtype)).collect()),
            payloads: query.with_payload.then(|| own.iter().map(Kept::payload).collect()),
        }
    });
    let answers = answers.collect();
    ok(&QueryReply { seq: found.seq, latency_us, answers, unindexed: texts(&found.unindexed) })
}

/// Reserves memory for answers, whose ids are taken to be short.
fn reserve(asked: &mut Asked<'_>, query: &Query, spec: &Spec) -> Result<(), Rejection> {
    let count = query.vectors.len() / spec.row_bytes().max(1);
    let each = if query.with_vectors { spec.dim * (COMPONENT_BYTES + spec.dtype.size()) } else { 0 };
    let results = count.saturating_mul(query.k);
    let bytes = Limits::reply_bytes(count, query.k, 0).saturating_add(results.saturating_mul(each));
    if bytes > asked.limits.large_bytes {
        return Err(Rejection::bad(format!(
            "{count} queries with k = {} have answers of more than {} bytes; ask for less at a time, or start the \
             server with a larger --http-memory",
            query.k, asked.limits.large_bytes
        )));
    }
    match asked.memory.grow(bytes as u64) {
        true => Ok(()),
        false => Err(Rejection::overloaded()),
    }
}

/// What a reply has of a hit; nothing of a point that was deleted since the search.
#[derive(Default)]
struct Kept {
    vector: Option<Vec<u8>>,
    payload: Option<Vec<u8>>,
}

impl Kept {
    fn vector(&self, dtype: DType) -> Option<Vector<'_>> {
        self.vector.as_ref().map(|bytes| Vector { bytes, dtype })
    }

    fn payload(&self) -> Option<PayloadJson<'_>> {
        self.payload.as_deref().map(PayloadJson)
    }
}

/// Vectors and payloads of all hits, in their order. Memory of payloads is reserved while they are read.
fn points_of(
    asked: &mut Asked<'_>,
    collection: &Collection,
    (found, with_vectors, with_payload): (&Found, bool, bool),
) -> Result<Vec<Kept>, Rejection> {
    let ids: Vec<ExternalId> = found.hits.iter().flatten().map(|hit| hit.id.clone()).collect();
    let part = (PART_BYTES / collection.spec().row_bytes().max(1)).clamp(1, PAYLOADS_AT_ONCE);
    let (mut all, mut payload_bytes) = (Vec::with_capacity(ids.len()), 0);
    for ids in ids.chunks(part) {
        for point in collection.get(ids).map_err(rejection)? {
            let Some(point) = point else {
                all.push(Kept::default());
                continue;
            };
            let payload = point.payload.filter(|_| with_payload);
            // As it is read, and as a part of the reply.
            let bytes = 2 * payload.as_ref().map_or(0, Vec::len);
            payload_bytes += bytes;
            if payload_bytes > asked.limits.large_bytes {
                return Err(Rejection::bad(format!(
                    "the payloads of the results have more than {} bytes; ask for less at a time",
                    asked.limits.large_bytes / 2
                )));
            }
            if !asked.memory.grow(bytes as u64) {
                return Err(Rejection::overloaded());
            }
            all.push(Kept { vector: with_vectors.then_some(point.vector), payload });
        }
    }
    Ok(all)
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
