//! Connections: accepted up to a limit, served, and closed in order.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use hyper_util::service::TowerToHyperService;
use stratann_engine::serve::Versions;
use stratann_engine::{Error, ErrorKind, Result};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinHandle;

use crate::limits::{CONNECTION_BYTES, Limits};
use crate::patient::Patient;
use crate::request::RowShape;
use crate::routes::{FrontState, router};

/// A connection without a new request for this long is closed.
const IDLE_TIME: Duration = Duration::from_secs(60);
/// Time for requests under way once the front stops.
const GRACE: Duration = Duration::from_secs(8);
/// Pause after a failed accept (no file handle left).
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Receives one line for each event.
pub type Log = Arc<dyn Fn(&str) + Send + Sync>;

/// Options of a front.
pub struct FrontOptions {
    /// Address to listen on; port 0 takes a free one.
    pub http: SocketAddr,
    /// Its limits.
    pub limits: Limits,
    /// Threads for HTTP; searches have their own.
    pub threads: usize,
    /// Receives one line for each event.
    pub log: Log,
}

/// A running front.
pub struct Front {
    address: SocketAddr,
    runtime: Runtime,
    stop: watch::Sender<bool>,
    accepting: JoinHandle<()>,
}

impl Front {
    /// Listens, and begins to answer.
    ///
    /// # Errors
    /// An address that cannot be listened on; an index of a newer version.
    pub fn start(versions: Arc<Versions>, options: FrontOptions) -> Result<Front> {
        let shape = RowShape::of(versions.current().manifest())
            .ok_or_else(|| Error::bad_input("the index is of a newer version; use a newer stratann"))?;
        let refused = |e: std::io::Error| Error {
            kind: ErrorKind::Io,
            message: format!("listening on {} for HTTP: {e}; give another address", options.http),
        };
        let threads = options.threads.clamp(1, 64);
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(threads)
            .thread_name("http")
            .enable_all()
            .build()
            .map_err(refused)?;
        let listener = runtime.block_on(TcpListener::bind(options.http)).map_err(refused)?;
        let address = listener.local_addr().map_err(refused)?;
        let shared = Arc::new(FrontState::new(versions, shape, options.limits, threads));
        let (stop, stopped) = watch::channel(false);
        let accepting = runtime.spawn(accept(listener, shared, stopped, options.log));
        Ok(Front { address, runtime, stop, accepting })
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

async fn accept(
    listener: TcpListener,
    shared: Arc<FrontState>,
    mut stopped: watch::Receiver<bool>,
    log: Log,
) {
    let slots = Arc::new(Semaphore::new(shared.limits.connections));
    let graceful = GracefulShutdown::new();
    let router = router(Arc::clone(&shared));
    loop {
        let accepted = tokio::select! {
            accepted = next(&listener, &slots) => accepted,
            _ = stopped.changed() => break,
        };
        match accepted {
            Ok((stream, slot)) => {
                let stream = Patient::new(stream, shared.limits.patience);
                let served = serve(stream, router.clone(), graceful.watcher());
                // Counted at once, not when its task first runs.
                let counted = Counted::new(&shared, slot);
                tokio::spawn(async move {
                    served.await;
                    drop(counted);
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
}

/// An open connection: it has a slot and is counted.
struct Counted {
    shared: Arc<FrontState>,
    _slot: OwnedSemaphorePermit,
}

impl Counted {
    fn new(shared: &Arc<FrontState>, slot: OwnedSemaphorePermit) -> Counted {
        shared.connections.fetch_add(1, Ordering::Relaxed);
        Counted { shared: Arc::clone(shared), _slot: slot }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.shared.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The next connection, once there is a slot for it.
async fn next(
    listener: &TcpListener,
    slots: &Arc<Semaphore>,
) -> std::io::Result<(TcpStream, OwnedSemaphorePermit)> {
    let slot = Arc::clone(slots).acquire_owned().await.map_err(std::io::Error::other)?;
    let (stream, _) = listener.accept().await?;
    // Answers are small: waiting for a full packet would only cost time. Without this option a socket is slower, not
    // wrong.
    let _ = stream.set_nodelay(true);
    Ok((stream, slot))
}

async fn serve(stream: Patient, router: Router, watcher: Watcher) {
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(IDLE_TIME)
        .max_buf_size(CONNECTION_BYTES / 2)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    // A client that hangs up or sends invalid bytes is no event.
    let _ = watcher.watch(connection).await;
}
