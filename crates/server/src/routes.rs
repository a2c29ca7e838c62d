//! The handlers of all paths.

use std::borrow::Cow;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::{RawQuery, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::Response;
use axum::routing::{MethodRouter, get, post};
use axum::{Extension, Router};
use http_body_util::BodyExt;
use serde::Serialize;
use serde_json::{Value, json};
use stratann_engine::serve::{Answer, Question, Server, Unanswered, Versions};
use stratann_storage::ledger::Ledger;
use tokio::sync::{Semaphore, oneshot};
use tokio::time::Instant;

use crate::activity::{Activity, Connections, Phase};
use crate::limits::{Limits, RequestMemory};
use crate::request::{self, Request, RowShape, shortened};
use crate::wire::{
    Answered, Counters, Failed, FailureKind, Found, QUERIES_PER_REQUEST, Refusal, Reply, Used,
};

mod clusters;
mod filters;

/// A request with more queries is a batch: its queries' steps come after those of others.
const BATCH: usize = QUERIES_PER_REQUEST;
/// Bodies and answers of more bytes are read and written beside the threads that serve connections.
const LONG_BYTES: usize = 64 << 10;
/// Pause before a refusal, when there were more than so many within that time.
const REFUSAL_PAUSE: Duration = Duration::from_millis(100);
const REFUSALS_AT_ONCE: u32 = 16;
/// Bytes of the lists that the last queries visited, as text, at most.
const VISITS_BYTES: usize = 512 << 10;
/// First allocation for a body, bytes.
const BODY_START: usize = 4 << 10;

/// State that all requests share.
pub(crate) struct FrontState {
    pub(crate) versions: Arc<Versions>,
    pub(crate) limits: Limits,
    threads: usize,
    shape: RowShape,
    number: u8,
    ledger: Arc<Ledger>,
    pub(crate) connections: Connections,
    requests: AtomicU64,
    refused: AtomicU64,
    refusals: Refusals,
    // One permit for each thread that serves connections: while long work takes the threads of all, others serve.
    long_work: Semaphore,
}

/// Recent refusals. Clients that ask again at once would otherwise keep the threads from others.
struct Refusals(Mutex<(Instant, u32)>);

impl Refusals {
    /// Counts one more. Returns whether there were many within [`REFUSAL_PAUSE`].
    fn is_flood(&self) -> bool {
        let mut recent = self.0.lock().unwrap_or_else(|e| e.into_inner());
        if recent.0.elapsed() >= REFUSAL_PAUSE {
            *recent = (Instant::now(), 0);
        }
        recent.1 += 1;
        recent.1 > REFUSALS_AT_ONCE
    }
}

impl FrontState {
    pub(crate) fn new(
        versions: Arc<Versions>,
        shape: RowShape,
        (limits, threads): (Limits, usize),
        ledger: Arc<Ledger>,
        connections: Connections,
    ) -> FrontState {
        let number = versions.status().server;
        FrontState {
            versions,
            limits,
            threads,
            shape,
            number,
            ledger,
            connections,
            requests: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            refusals: Refusals(Mutex::new((Instant::now(), 0))),
            long_work: Semaphore::new(threads),
        }
    }

    /// Runs work over so many bytes. Where it takes long it is done beside the threads that serve connections, and
    /// waits while as much of it as there are such threads is under way.
    async fn work<T>(&self, bytes: usize, work: impl FnOnce() -> T) -> T {
        if bytes <= LONG_BYTES {
            return work();
        }
        let _permit = self.long_work.acquire().await;
        tokio::task::block_in_place(work)
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
        Err(refused) => {
            shared.refused.fetch_add(1, Ordering::Relaxed);
            if shared.refusals.is_flood() {
                tokio::time::sleep(REFUSAL_PAUSE).await;
            }
            refused.response()
        }
    }
}

/// The reason why a request is not answered.
pub(crate) struct Rejection {
    status: StatusCode,
    error: String,
}

impl Rejection {
    pub(crate) fn bad(error: impl Into<String>) -> Rejection {
        Rejection { status: StatusCode::BAD_REQUEST, error: error.into() }
    }

    pub(crate) fn forbidden(error: String) -> Rejection {
        Rejection { status: StatusCode::FORBIDDEN, error }
    }

    fn unavailable(error: impl Into<String>) -> Rejection {
        Rejection { status: StatusCode::SERVICE_UNAVAILABLE, error: error.into() }
    }

    fn overloaded() -> Rejection {
        Rejection::unavailable("the server has no memory left for more requests; ask again later")
    }

    fn late_body(limits: &Limits) -> Rejection {
        let error = format!(
            "the body came more slowly than {} bytes a second; send it faster, or in smaller requests",
            limits.least_rate
        );
        Rejection { status: StatusCode::REQUEST_TIMEOUT, error }
    }

    pub(crate) fn response(self) -> Response {
        json_response(self.status, &Refusal { error: self.error })
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
    let filters = request.named.as_ref().map_or(0, |named| named.lists.count());
    let mut answers = Limits::reply_bytes(count, request.options.k, filters) as u64;
    answers += request.cached.map_or(0, |_| clusters::cached_bytes(shared));
    if !memory.grow(answers) {
        return Err(Rejection::overloaded());
    }
    let reply = ask(shared, (&request, answers), (activity.client, number)).await?;
    drop(request);
    let status = if reply.error.is_some() { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::OK };
    let bytes = shared.work(answers as usize, || {
        // No longer than what is reserved, so that it is not copied as it grows.
        let mut bytes = Vec::with_capacity(answers as usize);
        let written = serde_json::to_writer(&mut bytes, &reply);
        bytes.shrink_to_fit();
        written.map(|()| bytes).unwrap_or_default()
    });
    let bytes = bytes.await;
    drop(reply);
    memory.shrink_to(bytes.len() as u64);
    Ok(response(status, Bytes::from_owner(ReservedBytes { bytes, _memory: memory })))
}

/// Whether a connection in a reserved place may ask for this.
pub(crate) fn is_for_reserved(path: &str) -> bool {
    matches!(path, "/v1/health" | "/v1/status")
}

/// The refusal of any other request there.
pub(crate) fn reserved_refusal() -> Response {
    let error = "all connections are in use; ask again later".into();
    let mut response = Rejection { status: StatusCode::SERVICE_UNAVAILABLE, error }.response();
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    response
}

fn is_octets(headers: &HeaderMap) -> Result<bool, Rejection> {
    let kind = headers.get(header::CONTENT_TYPE).map_or("", |kind| kind.to_str().unwrap_or("?"));
    let kind = kind.split(';').next().unwrap_or("").trim().to_ascii_lowercase();
    let error = match kind.as_str() {
        "application/octet-stream" => return Ok(true),
        "application/json" => return Ok(false),
        "" => "the request has no Content-Type".to_string(),
        other => format!("Content-Type {:?} is not read", shortened(other)),
    };
    // Pages of any site can send the other types without asking the browser's leave.
    Err(Rejection {
        status: StatusCode::UNSUPPORTED_MEDIA_TYPE,
        error: format!(
            "{error}; send application/json (curl: -H 'Content-Type: application/json') or \
                        application/octet-stream"
        ),
    })
}

/// Reads a body, and reserves memory for it as it arrives. A body beyond the limit is read to eight times that and
/// dropped: a client that is still sending would not read the rejection.
async fn read_body(
    mut body: Body,
    limits: &Limits,
    memory: &mut RequestMemory,
) -> Result<Vec<u8>, Rejection> {
    let limit = limits.body_bytes;
    let announced = body.size_hint().exact().unwrap_or(0).min(limit as u64) as usize;
    let (mut bytes, mut length, started) = (Vec::new(), 0, Instant::now());
    loop {
        // A client that keeps to the least rate has all the time that its body takes.
        let earned = Duration::from_secs_f64(length as f64 / limits.least_rate.max(1) as f64);
        let frame = match tokio::time::timeout_at(started + limits.patience + earned, body.frame()).await {
            Err(_) => return Err(Rejection::late_body(limits)),
            Ok(None) => break,
            Ok(Some(Err(e))) => {
                return Err(Rejection::bad(format!("the body broke off: {}", shortened(&e.to_string()))));
            }
            Ok(Some(Ok(frame))) => frame,
        };
        let Ok(data) = frame.into_data() else { continue };
        length += data.len();
        if length > 8 * limit {
            break;
        }
        if length <= limit {
            reserve_body(&mut bytes, length, announced, memory)?;
            bytes.extend_from_slice(&data);
        }
    }
    if length > limit {
        return Err(Rejection::bad(format!(
            "the body is longer than {limit} bytes; send fewer queries in one request, or start the server with a \
             larger --http-memory"
        )));
    }
    Ok(bytes)
}

/// Makes room for a body of `length` bytes so far. It doubles, up to what was announced.
fn reserve_body(
    bytes: &mut Vec<u8>,
    length: usize,
    announced: usize,
    memory: &mut RequestMemory,
) -> Result<(), Rejection> {
    let before = bytes.capacity();
    if length <= before {
        return Ok(());
    }
    let doubled = (2 * before).max(BODY_START);
    let capacity = length.max(if announced >= length { doubled.min(announced) } else { doubled });
    // The old memory is copied into the new.
    if !memory.grow(capacity as u64) {
        return Err(Rejection::overloaded());
    }
    bytes.reserve_exact(capacity - bytes.len());
    memory.shrink_to(memory.bytes() - before as u64);
    Ok(())
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

/// Asks all queries of a request at once and waits for all answers.
async fn ask(
    shared: &Arc<FrontState>,
    (asked, reply_bytes): (&Request, u64),
    (client, request): (u64, u64),
) -> Result<Reply, Rejection> {
    let mut waiting = Vec::new();
    let is_batch = asked.rows.len() > BATCH * shared.shape.row_bytes();
    let mut used = None;
    // All queries of a request go to one version. A rollout waits until it is dropped, so it is dropped before the
    // answers arrive.
    let server = shared.versions.current();
    let filters = filters::filters(shared, &server, (asked, reply_bytes)).await?;
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
    let filter = filters.map(|filters| filters.reports);
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
    let params = used.ok_or_else(|| Rejection::bad("there are no queries; send at least one"))?;
    let cached = match asked.cached {
        Some(known) => clusters::cached(shared, known).await,
        None => None,
    };
    let error = lost.or_else(|| overload(&answers));
    Ok(Reply { error, answers, server: shared.number, params, filter, cached })
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
        let error = "the status cannot be written as JSON; please report it".into();
        return Rejection { status: StatusCode::INTERNAL_SERVER_ERROR, error }.response();
    };
    body["memory"] = memory;
    body["http"] = json!({
        "connections": shared.connections.len(),
        "requests": shared.requests.load(Ordering::Relaxed),
        "refused": shared.refused.load(Ordering::Relaxed),
    });
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
fn by_component(components: &[(Cow<'static, str>, u64)]) -> Value {
    let mut all = serde_json::Map::new();
    for (what, bytes) in components {
        all.insert(what.replace(' ', "_") + "_bytes", (*bytes).into());
    }
    all.insert("total_bytes".into(), components.iter().map(|c| c.1).sum::<u64>().into());
    all.into()
}

async fn no_such_path() -> Response {
    let error = format!("no such path; there are {}", paths().join(", "));
    Rejection { status: StatusCode::NOT_FOUND, error }.response()
}

async fn wrong_method() -> Response {
    let error = format!("wrong method; there are {}", paths().join(", "));
    Rejection { status: StatusCode::METHOD_NOT_ALLOWED, error }.response()
}

fn json_response<T: Serialize>(status: StatusCode, body: &T) -> Response {
    response(status, serde_json::to_vec(body).unwrap_or_default().into())
}

/// The response without a body.
pub(crate) fn no_content() -> Response {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::NO_CONTENT;
    response
}

fn response(status: StatusCode, body: Bytes) -> Response {
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    if status == StatusCode::SERVICE_UNAVAILABLE {
        headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    }
    response
}

/// Bytes of an answer, which keep their reserved memory until the last of them is sent.
struct ReservedBytes {
    bytes: Vec<u8>,
    _memory: RequestMemory,
}

impl AsRef<[u8]> for ReservedBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_refusals_at_once_are_a_flood_and_few_are_not() {
        let refusals = Refusals(Mutex::new((Instant::now(), REFUSALS_AT_ONCE)));
        assert!(refusals.is_flood());
        let past = Instant::now() - REFUSAL_PAUSE;
        let refusals = Refusals(Mutex::new((past, 1000)));
        assert!(!refusals.is_flood());
    }

    #[test]
    fn a_server_that_refuses_all_queries_reports_overload_for_the_request() {
        let failed = |why| answered(Err(why));
        let (refused, expired) = (failed(Unanswered::Overloaded), failed(Unanswered::Expired));
        assert_eq!(overload(&[refused.clone(), expired]), None);
        let line = overload(&[refused.clone(), refused.clone()]);
        assert!(line.as_ref().is_some_and(|l| l.contains("again later")));
        let response = Rejection::overloaded().response();
        assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(response.headers()[header::RETRY_AFTER], "1");
    }
}
