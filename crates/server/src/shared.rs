//! What all requests share, whatever a front serves: limits, memory, counters, bodies and responses.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::Response;
use http_body_util::BodyExt;
use serde::Serialize;
use serde_json::{Value, json};
use stratann_storage::ledger::Ledger;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::activity::Connections;
use crate::limits::{Limits, RequestMemory};
use crate::problem::{Code, MEDIA_TYPE, Problem};
use crate::request::shortened;

/// Bodies and answers of more bytes are read and written beside the threads that serve connections.
pub(crate) const LONG_BYTES: usize = 64 << 10;
/// Pause before a refusal, when there were more than so many within that time.
const REFUSAL_PAUSE: Duration = Duration::from_millis(100);
const REFUSALS_AT_ONCE: u32 = 16;
/// First allocation for a body, bytes.
const BODY_START: usize = 4 << 10;

/// State that all requests of a front share.
pub(crate) struct Shared {
    pub(crate) limits: Limits,
    pub(crate) threads: usize,
    pub(crate) ledger: Arc<Ledger>,
    pub(crate) connections: Connections,
    pub(crate) requests: AtomicU64,
    refused: AtomicU64,
    refusals: Refusals,
    // One permit for each thread that serves connections: while long work takes the threads of all, others serve.
    pub(crate) long_work: Semaphore,
    /// Refuses queries that wait, some time after the front is asked to stop.
    pub(crate) refuse_waiting: Box<dyn Fn() + Send + Sync>,
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

impl Shared {
    pub(crate) fn new(
        (limits, threads): (Limits, usize),
        ledger: Arc<Ledger>,
        refuse_waiting: Box<dyn Fn() + Send + Sync>,
    ) -> Shared {
        Shared {
            limits,
            threads,
            connections: Connections::new(limits, &ledger),
            ledger,
            requests: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            refusals: Refusals(Mutex::new((Instant::now(), 0))),
            long_work: Semaphore::new(threads),
            refuse_waiting,
        }
    }

    /// Runs work over so many bytes. Where it takes long it is done beside the threads that serve connections, and
    /// waits while as much of it as there are such threads is under way.
    pub(crate) async fn work<T>(&self, bytes: usize, work: impl FnOnce() -> T) -> T {
        if bytes <= LONG_BYTES {
            return work();
        }
        let _permit = self.long_work.acquire().await;
        tokio::task::block_in_place(work)
    }

    /// Counts a refusal, and makes its response. One of many at once waits.
    pub(crate) async fn refuse(&self, refused: Rejection) -> Response {
        self.refused.fetch_add(1, Ordering::Relaxed);
        if self.refusals.is_flood() {
            tokio::time::sleep(REFUSAL_PAUSE).await;
        }
        refused.response()
    }

    /// Counters of the front.
    pub(crate) fn counters(&self) -> Value {
        json!({
            "connections": self.connections.len(),
            "requests": self.requests.load(Ordering::Relaxed),
            "refused": self.refused.load(Ordering::Relaxed),
        })
    }
}

/// The reason why a request is not answered.
#[derive(Debug)]
pub(crate) struct Rejection {
    pub(crate) status: StatusCode,
    pub(crate) code: Code,
    pub(crate) error: String,
    /// Seconds after which to ask again, where that helps and is not usual for the status.
    pub(crate) retry_after_s: Option<u64>,
    /// Sequence number of a change whose outcome is not known.
    pub(crate) unknown: Option<u64>,
    /// Whether asking again does not help, whatever the status.
    pub(crate) is_lasting: bool,
}

impl Rejection {
    pub(crate) fn new(status: StatusCode, error: impl Into<String>) -> Rejection {
        let (code, error) = (Code::of_status(status), error.into());
        Rejection { status, code, error, retry_after_s: None, unknown: None, is_lasting: false }
    }

    /// The refusal of a code, with its status.
    pub(crate) fn of(code: Code, error: impl Into<String>) -> Rejection {
        let status = StatusCode::from_u16(code.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        Rejection { code, ..Rejection::new(status, error) }
    }

    pub(crate) fn bad(error: impl Into<String>) -> Rejection {
        Rejection::new(StatusCode::BAD_REQUEST, error)
    }

    pub(crate) fn forbidden(error: String) -> Rejection {
        Rejection::new(StatusCode::FORBIDDEN, error)
    }

    pub(crate) fn unavailable(error: impl Into<String>) -> Rejection {
        Rejection::new(StatusCode::SERVICE_UNAVAILABLE, error)
    }

    pub(crate) fn failed(error: impl Into<String>) -> Rejection {
        Rejection::new(StatusCode::INTERNAL_SERVER_ERROR, error)
    }

    pub(crate) fn overloaded() -> Rejection {
        Rejection::unavailable("the server has no memory left for more requests; ask again later")
    }

    fn late_body(limits: &Limits) -> Rejection {
        let error = format!(
            "the body came more slowly than {} bytes a second; send it faster, or in smaller requests",
            limits.least_rate
        );
        Rejection::new(StatusCode::REQUEST_TIMEOUT, error)
    }

    pub(crate) fn response(self) -> Response {
        let problem = Problem::of(self.code, self.status, &self.error, self.unknown);
        let mut response = json_response(self.status, &problem);
        response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(MEDIA_TYPE));
        if let Some(seconds) = self.retry_after_s {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.is_lasting {
            response.headers_mut().remove(header::RETRY_AFTER);
        }
        response
    }
}

/// Whether a body is rows as bytes; otherwise it is JSON.
pub(crate) fn is_octets(headers: &HeaderMap) -> Result<bool, Rejection> {
    let kind = headers.get(header::CONTENT_TYPE).map_or("", |kind| kind.to_str().unwrap_or("?"));
    let kind = kind.split(';').next().unwrap_or("").trim().to_ascii_lowercase();
    let error = match kind.as_str() {
        "application/octet-stream" => return Ok(true),
        "application/json" => return Ok(false),
        "" => "the request has no Content-Type".to_string(),
        other => format!("Content-Type {:?} is not read", shortened(other)),
    };
    // Pages of any site can send the other types without asking the browser's leave.
    Err(Rejection::new(
        StatusCode::UNSUPPORTED_MEDIA_TYPE,
        format!(
            "{error}; send application/json (curl: -H 'Content-Type: application/json') or \
             application/octet-stream"
        ),
    ))
}

/// Reads a body, and reserves memory for it as it arrives. A body beyond the limit is read to eight times that and
/// dropped: a client that is still sending would not read the rejection.
pub(crate) async fn read_body(
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
        let error = format!(
            "the body is longer than {limit} bytes; send fewer vectors in one request, or start the server with a \
             larger --http-memory"
        );
        return Err(Rejection::of(Code::BodyTooLong, error));
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

/// Whether a connection in a reserved place may ask for this.
pub(crate) fn is_for_reserved(path: &str) -> bool {
    matches!(path, "/v1/health" | "/v1/status")
}

/// The refusal of any other request there.
pub(crate) fn reserved_refusal() -> Response {
    let mut response = Rejection::unavailable("all connections are in use; ask again later").response();
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    response
}

pub(crate) fn json_response<T: Serialize>(status: StatusCode, body: &T) -> Response {
    response(status, serde_json::to_vec(body).unwrap_or_default().into())
}

/// The response without a body.
pub(crate) fn no_content() -> Response {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::NO_CONTENT;
    response
}

pub(crate) fn response(status: StatusCode, body: Bytes) -> Response {
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
pub(crate) struct ReservedBytes {
    pub(crate) bytes: Vec<u8>,
    pub(crate) _memory: RequestMemory,
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
    fn a_rejection_says_when_to_ask_again_and_what_is_not_known() {
        let response = Rejection::overloaded().response();
        assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(response.headers()[header::RETRY_AFTER], "1");
        let busy = Rejection::new(StatusCode::TOO_MANY_REQUESTS, "full");
        let response = Rejection { retry_after_s: Some(3), ..busy }.response();
        assert_eq!(response.headers()[header::RETRY_AFTER], "3");
    }
}
