//! Limits of what a store may answer. Its client collects lists and errors whole, so their bytes are counted here.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use http_body_util::{BodyExt, Limited};
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpResponseBody,
    HttpService, ReqwestConnector,
};

/// Bytes of all replies to one operation, the data of objects aside: a list of 100,000 objects has fewer.
const REPLY_BYTES_MAX: u64 = 32 << 20;

/// Bytes that replies to the running operation may still have.
#[derive(Clone, Debug, Default)]
pub(super) struct Allowance(Arc<AtomicU64>);

impl Allowance {
    /// Begins another operation.
    pub(super) fn renew(&self) {
        self.0.store(REPLY_BYTES_MAX, Ordering::Relaxed);
    }

    fn spend(&self, bytes: u64) {
        let _ = self
            .0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| Some(left.saturating_sub(bytes)));
    }
}

impl HttpConnector for Allowance {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let inner = ReqwestConnector::default().connect(options)?;
        Ok(HttpClient::new(Client { inner, allowance: self.clone() }))
    }
}

/// A client whose replies end with an error once they are too long.
#[derive(Debug)]
struct Client {
    inner: HttpClient,
    allowance: Allowance,
}

impl Client {
    async fn send(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let is_object = request.method() == "GET" && request.uri().query().is_none();
        let range = request.headers().get("range").and_then(|range| range_bytes(range.to_str().ok()?));
        let (parts, body) = self.inner.execute(request).await?.into_parts();
        let body = match (is_object && parts.status.is_success(), range) {
            // Whoever reads it compares it with the length that the manifest says, piece by piece.
            (true, None) => body,
            (true, Some(bytes)) => limited(body, bytes),
            (false, _) => {
                let (left, allowance) = (self.allowance.0.load(Ordering::Relaxed), self.allowance.clone());
                let counted = body.map_frame(move |frame| {
                    allowance.spend(frame.data_ref().map_or(0, |data| data.len() as u64));
                    frame
                });
                limited(HttpResponseBody::new(counted), left)
            }
        };
        Ok(HttpResponse::from_parts(parts, body))
    }
}

fn limited(body: HttpResponseBody, bytes: u64) -> HttpResponseBody {
    let limited = Limited::new(body, usize::try_from(bytes).unwrap_or(usize::MAX));
    let too_long = |e| HttpError::new_boxed(HttpErrorKind::Decode, e);
    HttpResponseBody::new(limited.map_err(too_long))
}

/// Length of `bytes=FIRST-LAST`.
fn range_bytes(range: &str) -> Option<u64> {
    let (first, last) = range.strip_prefix("bytes=")?.split_once('-')?;
    let (first, last): (u64, u64) = (first.parse().ok()?, last.parse().ok()?);
    last.checked_sub(first)?.checked_add(1)
}

type Sent<'a> = Pin<Box<dyn Future<Output = Result<HttpResponse, HttpError>> + Send + 'a>>;

impl HttpService for Client {
    fn call<'life0, 'async_trait>(&'life0 self, request: HttpRequest) -> Sent<'async_trait>
    where
        'life0: 'async_trait,
        Self: 'async_trait,
    {
        Box::pin(self.send(request))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_have_a_length() {
        assert_eq!((range_bytes("bytes=0-0"), range_bytes("bytes=5-9")), (Some(1), Some(5)));
        for text in ["", "bytes=5-", "bytes=-5", "bytes=9-5", "5-9", "bytes=0-18446744073709551615"] {
            assert_eq!(range_bytes(text), None, "{text}");
        }
    }
}
