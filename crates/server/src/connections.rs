//! Connections: accepted up to a limit, served, and closed in order.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::http::header;
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::TokioIo;
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use hyper_util::service::TowerToHyperService;
use stratann_engine::serve::Versions;
use stratann_storage::ledger::{Guarantee, Ledger};
use stratann_storage::{Error, ErrorKind, Result};
use tokio::net::{TcpListener, TcpSocket};
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::activity::{Activity, Phase, STOP_TIME};
use crate::callers::Callers;
use crate::collections::{self, ServedCollections};
use crate::limits::{CONNECTION_BYTES, Limits};
use crate::patient::Patient;
use crate::request::RowShape;
use crate::routes::{self, FrontState, ServedPoints};
use crate::shared::{Shared, is_for_reserved, reserved_refusal};

/// Time for requests under way once the front stops.
const GRACE: Duration = Duration::from_secs(5);
/// Interval of looks at connections that take too long.
const LOOK: Duration = Duration::from_millis(100);
/// Buffers of the kernel for one connection, each way, bytes.
const SOCKET_BYTES: u32 = 64 << 10;
/// Connections that wait to be accepted.
const BACKLOG: u32 = 1024;
/// Pause after a failed accept (no file handle left).
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Receives one line for each event.
pub type Log = Arc<dyn Fn(&str) + Send + Sync>;

/// Options of a front.
pub struct FrontOptions {
    /// Address to listen on; port 0 takes a free one.
    pub http: SocketAddr,
    /// Limits of the connections.
    pub limits: Limits,
    /// Whose requests are answered.
    pub callers: Callers,
    /// Threads for HTTP; searches have their own.
    pub threads: usize,
    /// Ledger of the process, in which the front reserves its memory.
    pub ledger: Arc<Ledger>,
    /// Receives one line for each event.
    pub log: Log,
}

/// A running front.
pub struct Front {
    address: SocketAddr,
    runtime: Runtime,
    stop: watch::Sender<bool>,
    accepting: JoinHandle<()>,
    // What the ledger has set aside for the front.
    _memory: [Guarantee; 4],
}

impl Front {
    /// Listens, and begins to answer for an index.
    ///
    /// # Errors
    /// An address that cannot be listened on; an index of a newer version, or with damaged ids or payloads.
    pub fn start(versions: Arc<Versions>, options: FrontOptions) -> Result<Front> {
        let shape = RowShape::of(versions.current().manifest())
            .ok_or_else(|| Error::bad_input("the index is of a newer version; use a newer stratann"))?;
        let points = ServedPoints::default();
        points.of(&versions.current())?;
        let waiting = Arc::clone(&versions);
        let refuse_waiting = Box::new(move || waiting.refuse_waiting());
        let router = |shared| routes::router(Arc::new(FrontState::new(shared, versions, (shape, points))));
        Front::with(options, 0, refuse_waiting, router)
    }

    /// Listens, and begins to answer for the collections of a data folder.
    ///
    /// # Errors
    /// An address that cannot be listened on.
    pub fn of_collections(served: ServedCollections, options: FrontOptions) -> Result<Front> {
        let calls = served.calls;
        Front::with(options, calls, Box::new(|| {}), |shared| collections::router(shared, served))
    }

    /// Listens, and answers by a router. `calls` more threads are for what blocks.
    fn with(
        options: FrontOptions,
        calls: usize,
        refuse_waiting: Box<dyn Fn() + Send + Sync>,
        router: impl FnOnce(Arc<Shared>) -> Router,
    ) -> Result<Front> {
        let refused = |e: std::io::Error| Error {
            kind: ErrorKind::Io,
            message: format!("listening on {} for HTTP: {e}; give another address", options.http),
        };
        let threads = options.threads.clamp(1, 64);
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(threads)
            .max_blocking_threads(threads + calls)
            .thread_name("http")
            .enable_all()
            .build()
            .map_err(refused)?;
        let listener = runtime.block_on(async { listen(options.http) }).map_err(refused)?;
        let address = listener.local_addr().map_err(refused)?;
        let memory = options.limits.set_aside(&options.ledger, threads + calls)?;
        let shared = Arc::new(Shared::new((options.limits, threads), options.ledger, refuse_waiting));
        let (router, callers) = (router(Arc::clone(&shared)), Arc::new(options.callers));
        let (stop, stopped) = watch::channel(false);
        let accepting = runtime.spawn(accept(listener, (shared, router, callers), stopped, options.log));
        Ok(Front { address, runtime, stop, accepting, _memory: memory })
    }

    /// The address that it listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Accepts no more connections, finishes the requests under way within some seconds, and closes.
    pub fn stop(self) {
        self.stop.send_replace(true);
        let finished = async { tokio::time::timeout(GRACE, self.accepting).await };
        // Requests that did not finish in time end with the runtime.
        let _ = self.runtime.block_on(finished);
        self.runtime.shutdown_timeout(Duration::from_secs(1));
    }
}

fn listen(address: SocketAddr) -> std::io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    socket.set_reuseaddr(true)?;
    // The kernel would let them grow to megabytes for each client that does not read.
    socket.set_send_buffer_size(SOCKET_BYTES)?;
    socket.set_recv_buffer_size(SOCKET_BYTES)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

async fn accept(
    listener: TcpListener,
    (shared, router, callers): (Arc<Shared>, Router, Arc<Callers>),
    mut stopped: watch::Receiver<bool>,
    log: Log,
) {
    let graceful = GracefulShutdown::new();
    let looking = tokio::spawn(look(Arc::clone(&shared), stopped.clone()));
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stopped.changed() => break,
        };
        match accepted {
            Ok((stream, peer)) => {
                // Answers are small: waiting for a full packet would only cost time. Without this option a socket is
                // slower, not wrong.
                let _ = stream.set_nodelay(true);
                // The connection is closed at once where no place is left.
                let Some((number, activity)) = shared.connections.enter(peer.ip()) else { continue };
                let stream = Patient::new(stream, &shared.limits, Arc::clone(&activity));
                let answering = (router.clone(), Arc::clone(&callers));
                let served = serve(stream, answering, graceful.watcher(), Arc::clone(&activity));
                let shared = Arc::clone(&shared);
                tokio::spawn(async move {
                    tokio::select! {
                        () = served => {}
                        () = activity.closed() => {}
                    }
                    shared.connections.leave(number);
                });
            }
            Err(e) => {
                log(&format!("accepting a connection: {e}"));
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(listener);
    graceful.shutdown().await;
    looking.abort();
}

/// Closes connections that take too long, until it is aborted.
async fn look(shared: Arc<Shared>, stopped: watch::Receiver<bool>) {
    let mut since = None;
    loop {
        tokio::time::sleep(LOOK).await;
        if *stopped.borrow() {
            let since = since.get_or_insert_with(Instant::now);
            if since.elapsed() >= STOP_TIME {
                (shared.refuse_waiting)();
            }
        }
        shared.connections.close_late(since.map(|since| since.elapsed()));
    }
}

async fn serve(
    stream: Patient,
    (router, callers): (Router, Arc<Callers>),
    watcher: Watcher,
    activity: Arc<Activity>,
) {
    let inner = TowerToHyperService::new(router);
    let service = service_fn(move |mut request: Request<Incoming>| {
        activity.begin(Phase::Answering);
        let is_refused = activity.is_reserved && !is_for_reserved(request.uri().path());
        let stopped = callers.stops(&request).or_else(|| is_refused.then(reserved_refusal));
        let origin = request.headers().get(header::ORIGIN).cloned();
        request.extensions_mut().insert(Arc::clone(&activity));
        let call = stopped.is_none().then(|| inner.call(request));
        let (activity, callers) = (Arc::clone(&activity), Arc::clone(&callers));
        async move {
            let response = match call {
                Some(call) => call.await.map(|mut response| {
                    callers.admit(origin.as_ref(), &mut response);
                    response
                }),
                None => Ok(stopped.unwrap_or_else(reserved_refusal)),
            };
            activity.begin(Phase::Sending);
            response
        }
    });
    // Time-outs of headers are those of the activity: here they would run while a connection is idle, too.
    let connection = http1::Builder::new()
        .header_read_timeout(None)
        .max_buf_size(CONNECTION_BYTES / 2)
        .serve_connection(TokioIo::new(stream), service);
    // A client that hangs up or sends invalid bytes is no event.
    let _ = watcher.watch(connection).await;
}
