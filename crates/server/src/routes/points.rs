//! Points of a served index: ids of any form, and payloads.

use std::sync::{Arc, Mutex};

use serde::{Serialize, Serializer};
use stratann_engine::serve::Server;
use stratann_node::collections::PayloadJson;
use stratann_node::points::{Points, Spend};
use stratann_node::rows::ExternalId;
use stratann_storage::names::BuildId;
use stratann_storage::{Error, Result as StorageResult};

use super::FrontState;
use super::filters::rejection;
use crate::limits::RequestMemory;
use crate::problem::Code;
use crate::request::{BY_ID, Request};
use crate::shared::{LONG_BYTES, Rejection};
use crate::wire::{Answered, Counters, Found, Reply, decimal};

/// Ids and payloads of the version of the index that was asked last.
#[derive(Default)]
pub(crate) struct ServedPoints(Mutex<Option<(BuildId, Arc<Points>)>>);

impl ServedPoints {
    /// Those of a version, which are opened once; `None` where it has none.
    ///
    /// # Errors
    /// Files that are missing or damaged.
    pub(crate) fn of(&self, server: &Server) -> StorageResult<Option<Arc<Points>>> {
        let manifest = server.manifest();
        if manifest.points.is_none() {
            return Ok(None);
        }
        let mut known = self.0.lock().unwrap_or_else(|e| e.into_inner());
        if let Some((_, points)) = known.as_ref().filter(|(build, _)| *build == manifest.build_id) {
            return Ok(Some(Arc::clone(points)));
        }
        let points = Points::open(server.folder(), manifest)?.map(Arc::new);
        *known = points.clone().map(|points| (manifest.build_id, points));
        Ok(points)
    }
}

/// The points that a request is about; `None` where it gets what the engine finds.
pub(super) fn asked(
    shared: &FrontState,
    server: &Server,
    request: &Request,
) -> Result<Option<Arc<Points>>, Rejection> {
    let points = shared.points.of(server).map_err(|e| rejection(&e))?;
    let Some(points) = points else {
        return match request.filter.is_some() || request.with_payload {
            true => Err(Rejection::bad(
                "this index has no payloads; build it with them (`stratann build … --payload`), or leave filter, \
                 where and with_payload out",
            )),
            false => Ok(None),
        };
    };
    if points.has_numbers() {
        return Ok((request.filter.is_some() || request.with_payload).then_some(points));
    }
    match request.named {
        Some(_) => Err(Rejection::bad(format!(
            "only and without name numbers, and some ids of this index are UUIDs or strings; {BY_ID}"
        ))),
        None => Ok(Some(points)),
    }
}

/// The answer to a query, with ids of any form or payloads.
#[derive(Serialize)]
pub(super) struct FoundPoints {
    ids: Ids,
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "as_json")]
    payloads: Option<Vec<Option<Vec<u8>>>>,
    distances: Vec<f32>,
    partial: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    lost_parts: Vec<u8>,
    latency_us: u64,
    per_query: Counters,
}

/// Ids of results.
#[derive(Serialize)]
#[serde(untagged)]
enum Ids {
    #[serde(serialize_with = "decimal")]
    Numbers(Vec<u64>),
    Any(Vec<ExternalId>),
}

fn as_json<S: Serializer>(payloads: &Option<Vec<Option<Vec<u8>>>>, serializer: S) -> Result<S::Ok, S::Error> {
    let all = payloads.iter().flatten();
    serializer.collect_seq(all.map(|own| own.as_deref().map(PayloadJson)))
}

/// A reply with the points that were found, in place of what the engine knows them by.
pub(super) async fn found(
    shared: &FrontState,
    (points, with_payload): (&Points, bool),
    reply: Reply,
    memory: &mut RequestMemory,
) -> Result<Reply<Answered<FoundPoints>>, Rejection> {
    let Reply { answers, unindexed, server, params, filter, cached, error, .. } = reply;
    let (mut taken, mut refused) = (0, None);
    // As they were read, and as a part of the reply.
    let mut spend = |bytes: usize| {
        taken += 2 * bytes;
        reserve(shared, (2 * bytes, taken), memory).map_err(|why| {
            let error = Error::budget(&*why.error);
            refused = Some(why);
            error
        })
    };
    let mut one = |found: Found| with_points(found, points, with_payload, &mut spend);
    // Payloads are on the disk.
    let answers = shared.work(LONG_BYTES + 1, || {
        let each = answers.into_iter().map(|answer| match answer {
            Answered::Found(found) => one(found).map(Answered::Found),
            Answered::Failed(failed) => Ok(Answered::Failed(failed)),
        });
        each.collect::<StorageResult<Vec<_>>>()
    });
    let answers = answers.await.map_err(|e| refused.unwrap_or_else(|| rejection(&e)))?;
    let any_ids = !points.has_numbers();
    Ok(Reply { answers, any_ids, unindexed, server, params, filter, cached, error })
}

/// The points of an answer. `spend` is asked for the bytes of payloads and of strings.
fn with_points(
    found: Found,
    points: &Points,
    with_payload: bool,
    spend: Spend<'_>,
) -> StorageResult<FoundPoints> {
    let Found { ids, distances, partial, lost_parts, latency_us, per_query } = found;
    let results = ids.iter().copied().zip(distances.iter().copied());
    let hits = points.hits_within(results, if with_payload { Some(&mut *spend) } else { None })?;
    let text = |id: &ExternalId| if let ExternalId::Text(text) = id { text.len() } else { 0 };
    spend(hits.iter().map(|hit| text(&hit.id)).sum())?;
    let (mut own, mut payloads) = (Vec::with_capacity(hits.len()), Vec::new());
    for hit in hits {
        own.push(hit.id);
        payloads.push(hit.payload);
    }
    let ids = if points.has_numbers() { Ids::Numbers(ids) } else { Ids::Any(own) };
    let payloads = with_payload.then_some(payloads);
    Ok(FoundPoints { ids, payloads, distances, partial, lost_parts, latency_us, per_query })
}

/// Reserves memory for so many bytes of a reply, which has some in all.
fn reserve(
    shared: &FrontState,
    (bytes, all): (usize, usize),
    memory: &mut RequestMemory,
) -> Result<(), Rejection> {
    let most = shared.limits.large_bytes;
    if all > most {
        let error = format!(
            "the payloads take more than {most} bytes; ask for less at a time, or start the server with a larger \
             --http-memory"
        );
        return Err(Rejection::of(Code::ReplyTooLong, error));
    }
    match memory.grow(bytes as u64) {
        true => Ok(()),
        false => Err(Rejection::overloaded()),
    }
}
