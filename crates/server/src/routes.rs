//! The handlers of all paths.

use std::borrow::Cow;
use std::ops::Deref;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use axum::body::{Body, Bytes};
use axum::extract::{RawQuery, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use axum::routing::{MethodRouter, get, post};
use axum::{Extension, Router};
use serde::Serialize;
use serde_json::{Value, json};
use stratann_engine::serve::{Answer, Question, Server, Unanswered, Versions};
use stratann_node::points::Points;
use tokio::sync::oneshot;

use crate::activity::{Activity, Phase};
use crate::limits::{Limits, RequestMemory};
use crate::request::{self, Request, RowShape};
use crate::shared::{Rejection, ReservedBytes, Shared, is_octets, json_response, read_body, response};
use crate::wire::{Answered, Counters, Failed, FailureKind, Found, QUERIES_PER_REQUEST, Reply, Used};

mod clusters;
mod filters;
mod points;

pub(crate) use points::ServedPoints;

/// A request with more queries is a batch: its queries' steps come after those of others.
const BATCH: usize = QUERIES_PER_REQUEST;
/// Bytes of the lists that the last queries visited, as text, at most.
const VISITS_BYTES: usize = 512 << 10;

/// State of the requests to an index.
pub(crate) struct FrontState {
    shared: Arc<Shared>,
    versions: Arc<Versions>,
    shape: RowShape,
    number: u8,
    points: ServedPoints,
}

impl Deref for FrontState {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.shared
    }
}

impl FrontState {
    /// `points` are those of the version that is served.
    pub(crate) fn new(
        shared: Arc<Shared>,
        versions: Arc<Versions>,
        (shape, points): (RowShape, ServedPoints),
    ) -> FrontState {
        let number = versions.status().server;
        FrontState { shared, versions, shape, number, points }
    }
}

/// A served path.
struct Route {
    method: &'static str,
    path: &'static str,
    handler: MethodRouter<Arc<FrontState>>,
}

/// The served paths with their methods.
fn routes() -> [Route; 7] {
    let route = |method, path, handler| Route { method, path, handler };
    [
        route("POST", "/v1/search", post(search)),
        route("GET", "/v1/health", get(health)),
        route("GET", "/v1/status", get(status)),
        route("GET", "/v1/visits", get(visits)),
        route("GET", "/v1/clusters", get(clusters::clusters)),
        route("GET", "/v1/meta", get(clusters::meta)),
        route("GET", "/v1/landmarks", get(clusters::landmarks)),
    ]
}

/// Returns the served paths, each after its method.
pub fn paths() -> Vec<String> {
    routes().iter().map(|route| format!("{} {}", route.method, route.path)).collect()
}

pub(crate) fn router(shared: Arc<FrontState>) -> Router {
    let add = |router: Router<_>, own: Route| router.route(own.path, own.handler);
    let router = routes().into_iter().fold(Router::new(), add);
    router.fallback(no_such_path).method_not_allowed_fallback(wrong_method).with_state(shared)
}

async fn search(
    State(shared): State<Arc<FrontState>>,
    Extension(activity): Extension<Arc<Activity>>,
    RawQuery(url_query): RawQuery,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let number = shared.requests.fetch_add(1, Ordering::Relaxed);
    let url_query = url_query.as_deref().unwrap_or("");
    match answer(&shared, (number, &activity), url_query, &headers, body).await {
        Ok(response) => response,
        Err(refused) => shared.refuse(refused).await,
    }
}

async fn answer(
    shared: &Arc<FrontState>,
    (number, activity): (u64, &Activity),
    url_query: &str,
    headers: &HeaderMap,
    body: Body,
) -> Result<Response, Rejection> {
    let mut memory = RequestMemory::new(&shared.ledger);
    activity.begin(Phase::Body);
    let body = read_body(body, &shared.limits, &mut memory).await?;
    activity.begin(Phase::Answering);
    // After the body: a client that is still sending would not read the refusal.
    let is_octets = is_octets(headers)?;
    let mut has_room = true;
    let mut reserve = |bytes| {
        has_room = memory.grow(bytes);
        has_room
    };
    let read = shared.work(body.len(), || {
        if is_octets {
            request::from_octets(body, url_query, &shared.shape, &shared.limits)
        } else if url_query.is_empty() {
            request::from_json(&body, &shared.shape, &shared.limits, &mut reserve)
        } else {
            Err("parameters in the URL go with application/octet-stream; put them into the body".into())
        }
    });
    let read = read.await;
    let mut request =
        read.map_err(|why| if has_room { Rejection::bad(why) } else { Rejection::overloaded() })?;
    request.rows.shrink_to_fit();
    memory.shrink_to(request.bytes());
    let count = request.rows.len() / shared.shape.row_bytes();
    let filters = request.filters();
    let mut answers = Limits::reply_bytes(count, request.options.k, filters) as u64;
    answers += request.cached.map_or(0, |_| clusters::cached_bytes(shared));
    if !memory.grow(answers) {
        return Err(Rejection::overloaded());
    }
    let (reply, points) = ask(shared, (&request, answers), (activity.client, number)).await?;
    let with_payload = request.with_payload;
    drop(request);
    match points {
        None => Ok(sent(shared, reply, answers, memory).await),
        Some(points) => {
            let reply = points::found(shared, (&points, with_payload), reply, &mut memory).await?;
            let bytes = memory.bytes();
            Ok(sent(shared, reply, bytes, memory).await)
        }
    }
}

/// The response with a reply, for which so many bytes are reserved.
async fn sent<A: Serialize>(
    shared: &FrontState,
    reply: Reply<A>,
    reserved: u64,
    mut memory: RequestMemory,
) -> Response {
    let status = if reply.error.is_some() { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::OK };
    let bytes = shared.work(reserved as usize, || {
        // No longer than what is reserved, so that it is not copied as it grows.
        let mut bytes = Vec::with_capacity(reserved as usize);
        let written = serde_json::to_writer(&mut bytes, &reply);
        bytes.shrink_to_fit();
        written.map(|()| bytes).unwrap_or_default()
    });
    let bytes = bytes.await;
    drop(reply);
    memory.shrink_to(bytes.len() as u64);
    response(status, Bytes::from_owner(ReservedBytes { bytes, _memory: memory }))
}

/// A query of a request. Dropping it before its answer cancels the query: hyper drops the handler of a client that
/// hangs up.
struct Pending {
    server: Weak<Server>,
    number: u64,
    answer: oneshot::Receiver<Result<Answer, Unanswered>>,
    is_answered: bool,
}

impl Pending {
    async fn wait(&mut self) -> Result<Answer, Unanswered> {
        let answer = (&mut self.answer).await;
        self.is_answered = true;
        answer.unwrap_or_else(|_| Err(Unanswered::Failed("the server is stopping; ask another".into())))
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if let Some(server) = self.server.upgrade().filter(|_| !self.is_answered) {
            server.cancel(self.number);
        }
    }
}

/// Asks all queries of a request at once and waits for all answers. Returns also the points of the index, where
/// results are to be named by these.
async fn ask(
    shared: &Arc<FrontState>,
    (asked, reply_bytes): (&Request, u64),
    (client, request): (u64, u64),
) -> Result<(Reply, Option<Arc<Points>>), Rejection> {
    let mut waiting = Vec::new();
    let is_batch = asked.rows.len() > BATCH * shared.shape.row_bytes();
    let mut used = None;
    // All queries of a request go to one version. A rollout waits until it is dropped, so it is dropped before the
    // answers arrive.
    let server = shared.versions.current();
    let points = points::asked(shared, &server, asked)?;
    let filters = filters::filters(shared, (&server, points.as_deref()), (asked, reply_bytes)).await?;
    for rows in asked.rows.chunks(BATCH * shared.shape.row_bytes()) {
        for vector in rows.chunks_exact(shared.shape.row_bytes()) {
            // Computed for each query: the width depends on the load, which includes the queries of this request.
            let filter = filters.as_ref().map(|filters| filters.kept.of(waiting.len()));
            let params = server.params_of(&asked.options, filter.as_ref());
            let params = params.map_err(|e| Rejection::bad(e.message))?;
            used.get_or_insert(Used::of(&params));
            let (sender, receiver) = oneshot::channel();
            let (timeout, partial) = (asked.timeout, asked.partial);
            let filter = filter.as_ref();
            let question = Question { vector, params, filter, timeout, partial, client, request, is_batch };
            let number = server.ask(question, Box::new(move |answer| drop(sender.send(answer))));
            let server = Arc::downgrade(&server);
            waiting.push(Pending { server, number, answer: receiver, is_answered: false });
        }
        // Other connections are served between parts of a batch.
        if is_batch {
            tokio::task::yield_now().await;
        }
    }
    drop(server);
    // Each query has its own.
    let (filter, unindexed) =
        filters.map_or((None, None), |filters| (Some(filters.reports), filters.unindexed));
    let (answers, lost) = answers_of(waiting).await;
    let params = used.ok_or_else(|| Rejection::bad("there are no queries; send at least one"))?;
    let cached = match asked.cached {
        Some(known) => clusters::cached(shared, known).await,
        None => None,
    };
    let error = lost.or_else(|| overload(&answers));
    let (server, any_ids) = (shared.number, false);
    Ok((Reply { error, answers, any_ids, unindexed, server, params, filter, cached }, points))
}

/// Waits for all answers. Returns also why memory nodes are lost, where that is so for all.
async fn answers_of(waiting: Vec<Pending>) -> (Vec<Answered>, Option<String>) {
    let (mut answers, mut lost) = (Vec::with_capacity(waiting.len()), None);
    for mut pending in waiting {
        let answer = pending.wait().await;
        match &answer {
            Err(why @ Unanswered::MemoryLost(_)) if answers.is_empty() => lost = Some(why.to_string()),
            Err(Unanswered::MemoryLost(_)) => {}
            _ => lost = None,
        }
        answers.push(answered(answer));
    }
    (answers, lost)
}

fn answered(answer: Result<Answer, Unanswered>) -> Answered {
    match answer {
        Ok(answer) => Answered::Found(Found {
            per_query: Counters(answer.stats),
            ids: answer.ids,
            distances: answer.distances,
            partial: answer.is_partial,
            lost_parts: answer.lost_parts,
            latency_us: answer.latency_us,
        }),
        Err(why) => {
            let kind = match why {
                Unanswered::Overloaded => FailureKind::Overloaded,
                Unanswered::Expired => FailureKind::Expired,
                Unanswered::Unreachable(_) | Unanswered::MemoryLost(_) => FailureKind::Unreachable,
                Unanswered::Failed(_) => FailureKind::Failed,
            };
            Answered::Failed(Failed { error: why.to_string(), kind })
        }
    }
}

/// The error of a request whose queries were all refused as overload.
fn overload(answers: &[Answered]) -> Option<String> {
    let is_refused = |a: &Answered| matches!(a, Answered::Failed(f) if f.kind == FailureKind::Overloaded);
    match answers.first() {
        Some(Answered::Failed(first)) if answers.iter().all(is_refused) => Some(first.error.clone()),
        _ => None,
    }
}

async fn health(State(shared): State<Arc<FrontState>>) -> Response {
    let status = shared.versions.status();
    let missing: Vec<usize> = (0..status.live.len()).filter(|&s| !status.live[s]).collect();
    let code = if status.is_complete { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let body = json!({
        "healthy": status.is_complete,
        "server": status.server,
        "servers": status.servers,
        "missing": missing,
    });
    json_response(code, &body)
}

async fn status(State(shared): State<Arc<FrontState>>) -> Response {
    let mut status = shared.versions.status();
    let own = shared.limits.bytes(shared.threads);
    status.memory.push(("HTTP".into(), own));
    status.ram_budget_bytes = status.ram_budget_bytes.map(|b| b + own);
    let memory = by_component(&status.memory);
    let Ok(mut body) = serde_json::to_value(status) else {
        return Rejection::failed("the status cannot be written as JSON; please report it").response();
    };
    body["memory"] = memory;
    body["http"] = shared.counters();
    json_response(StatusCode::OK, &body)
}

/// The lists that the last queries visited, of the version that clients ask.
async fn visits(State(shared): State<Arc<FrontState>>) -> Response {
    let server = shared.versions.current();
    let visits = shared
        .work(VISITS_BYTES, || json!({ "build_id": server.build_id(), "queries": server.recent_visits() }));
    json_response(StatusCode::OK, &visits.await)
}

/// An account as one number for each component, and their sum, as in the reports of searches.
pub(crate) fn by_component(components: &[(Cow<'static, str>, u64)]) -> Value {
    let mut all = serde_json::Map::new();
    for (what, bytes) in components {
        all.insert(what.replace(' ', "_") + "_bytes", (*bytes).into());
    }
    all.insert("total_bytes".into(), components.iter().map(|c| c.1).sum::<u64>().into());
    all.into()
}

async fn no_such_path() -> Response {
    let error = format!("no such path; there are {}", paths().join(", "));
    Rejection::new(StatusCode::NOT_FOUND, error).response()
}

async fn wrong_method() -> Response {
    let error = format!("wrong method; there are {}", paths().join(", "));
    Rejection::new(StatusCode::METHOD_NOT_ALLOWED, error).response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_refuses_all_queries_reports_overload_for_the_request() {
        let failed = |why| answered(Err(why));
        let (refused, expired) = (failed(Unanswered::Overloaded), failed(Unanswered::Expired));
        assert_eq!(overload(&[refused.clone(), expired]), None);
        let line = overload(&[refused.clone(), refused.clone()]);
        assert!(line.as_ref().is_some_and(|l| l.contains("again later")));
    }
}
