//! The memory node: one thread that serves its region to all connections.

mod connection;
mod sockets;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

pub(super) use self::connection::versions_differ;
use self::connection::{Connection, End};
pub(super) use self::sockets::is_quiet;
pub use super::region::Place;
use super::region::Region;
use super::{Facts, NodeId, protocol};
use crate::link::{Log, Tls, Versions};
use crate::{Error, ErrorKind, Result};

/// Most connections of a node.
pub const CONNECTIONS_MAX: usize = 1024;
/// Time without new connections after one could not be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Options of a memory node.
#[derive(Clone)]
pub struct NodeOptions {
    /// Number of the node.
    pub node: NodeId,
    /// Size of the region.
    pub region_bytes: u64,
    /// Address for compute nodes; port 0 takes a free one.
    pub listen: SocketAddr,
    /// The key: compute nodes must know it.
    pub secret: Vec<u8>,
    /// Certificates for encrypted connections; `None` for connections in the clear.
    pub tls: Option<Tls>,
    /// Where the region is.
    pub place: Place,
    /// Most connections at once.
    pub connections_max: usize,
    /// Receives each line of the log.
    pub log: Log,
}

/// A running memory node. It stops when it is dropped.
pub struct Node {
    address: SocketAddr,
    facts: Facts,
    state: Arc<State>,
    wake: UnixStream,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct State {
    is_stopping: AtomicBool,
    has_ended: AtomicBool,
    error: Mutex<Option<Error>>,
}

/// Versions of the protocol that this program speaks. There are no states.
pub(super) fn versions() -> Versions {
    Versions { frames: (protocol::VERSION, protocol::VERSION), states: (0, 0) }
}

impl Node {
    /// Opens the region, listens, and starts the thread.
    ///
    /// # Errors
    /// A region that cannot be had, an address that cannot be listened on.
    pub fn start(options: NodeOptions) -> Result<Node> {
        let region = Region::open(options.node, options.region_bytes, &options.place)?;
        let facts = region.facts();
        let system = |what: String| {
            move |e: std::io::Error| Error { kind: ErrorKind::Io, message: format!("{what}: {e}") }
        };
        let listener = TcpListener::bind(options.listen).map_err(|e| {
            Error::bad_input(format!("listening on {}: {e}; give another --listen", options.listen))
        })?;
        let address = listener.local_addr().map_err(system("listening".into()))?;
        listener.set_nonblocking(true).map_err(system("listening".into()))?;
        let (wake, bell) = UnixStream::pair().map_err(system("making a socket".into()))?;
        for socket in [&wake, &bell] {
            socket.set_nonblocking(true).map_err(system("making a socket".into()))?;
        }
        let state = Arc::new(State::default());
        let serving = Serving {
            region,
            listener,
            bell,
            state: state.clone(),
            options,
            connections: Vec::new(),
            accepted: 0,
            accept_after: None,
            last_line: String::new(),
        };
        let thread = std::thread::Builder::new()
            .name("memory-node".into())
            .spawn(move || serving.run())
            .map_err(system("starting a thread".into()))?;
        Ok(Node { address, facts, state, wake, thread: Some(thread) })
    }

    /// The address that it listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Properties of the node.
    pub fn facts(&self) -> Facts {
        self.facts
    }

    /// Whether it has ended by itself. [`Node::stop`] says why.
    pub fn has_ended(&self) -> bool {
        self.state.has_ended.load(Ordering::SeqCst)
    }

    /// Closes all connections and ends the thread: the region is gone then.
    ///
    /// # Errors
    /// Why it had ended before.
    pub fn stop(mut self) -> Result<()> {
        self.end();
        let error = self.state.error.lock().unwrap_or_else(|e| e.into_inner()).take();
        error.map_or(Ok(()), Err)
    }

    fn end(&mut self) {
        self.state.is_stopping.store(true, Ordering::SeqCst);
        let _ = self.wake.write(&[1]);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.end();
    }
}

/// What the thread of a node has.
struct Serving {
    region: Region,
    listener: TcpListener,
    bell: UnixStream,
    state: Arc<State>,
    options: NodeOptions,
    connections: Vec<Connection>,
    accepted: u64,
    accept_after: Option<Instant>,
    last_line: String,
}

impl Serving {
    fn run(mut self) {
        let mut ended = Ok(());
        while ended.is_ok() && !self.state.is_stopping.load(Ordering::SeqCst) {
            ended = self.round();
        }
        self.region.close();
        if let Err(error) = ended {
            (self.options.log)(&error.message);
            *self.state.error.lock().unwrap_or_else(|e| e.into_inner()) = Some(error);
        }
        self.state.has_ended.store(true, Ordering::SeqCst);
    }

    /// Waits, executes what has come, and sends.
    fn round(&mut self) -> Result<()> {
        let now = Instant::now();
        self.accept_after = self.accept_after.filter(|after| *after > now);
        let mut watched = vec![
            sockets::watched(self.bell.as_raw_fd(), true, false),
            sockets::watched(self.listener.as_raw_fd(), self.accept_after.is_none(), false),
        ];
        let watch = |c: &Connection| sockets::watched(c.descriptor(), c.wants_input(), c.wants_output());
        watched.extend(self.connections.iter().map(watch));
        let target = self.region.target();
        watched.extend(target.map(|target| sockets::watched(target.descriptor(), true, false)));
        let is_busy = target.is_some_and(|target| !target.progress());
        let patience = if is_busy { Some(Duration::ZERO) } else { self.patience(now) };
        sockets::wait(&mut watched, patience)
            .map_err(|e| Error { kind: ErrorKind::Io, message: format!("waiting for connections: {e}") })?;
        if sockets::is_readable(&watched[0]) {
            let _ = self.bell.read(&mut [0; 64]);
        }
        let mut ended = Vec::new();
        for (connection, watched) in self.connections.iter_mut().zip(&watched[2..]) {
            if connection.is_eager() || (connection.wants_input() && sockets::is_readable(watched)) {
                let received = connection.receive(&self.options.secret, &self.region);
                ended.extend(received.err().map(|end| (connection.number(), end)));
            }
            connection.produce(&self.region);
            let is_broken = watched.revents & (libc::POLLERR | libc::POLLNVAL) != 0;
            let sent = match connection.wants_output() {
                _ if is_broken => Err(End::Closed),
                true => connection.send(),
                false => Ok(()),
            };
            ended.extend(sent.err().map(|end| (connection.number(), end)));
        }
        let now = Instant::now();
        let late = self.connections.iter().filter(|c| c.deadline().is_some_and(|deadline| deadline <= now));
        ended.extend(late.map(|c| (c.number(), End::Because("the greeting took too long".into()))));
        self.close(ended);
        if sockets::is_readable(&watched[1]) {
            self.accept();
        }
        Ok(())
    }

    /// How long to wait at most.
    fn patience(&self, now: Instant) -> Option<Duration> {
        if self.connections.iter().any(Connection::is_eager) {
            return Some(Duration::ZERO);
        }
        let deadlines = self.connections.iter().filter_map(Connection::deadline).chain(self.accept_after);
        // Rounded up: a wait that ends just before its deadline would be repeated.
        deadlines.min().map(|deadline| deadline.saturating_duration_since(now) + Duration::from_millis(1))
    }

    fn close(&mut self, ended: Vec<(u64, End)>) {
        for (number, end) in ended {
            self.connections.retain(|connection| connection.number() != number);
            if let End::Because(why) = end {
                self.log(format!("a connection was closed: {why}"));
            }
        }
    }

    fn accept(&mut self) {
        loop {
            let stream = match self.listener.accept() {
                Ok((stream, _)) => stream,
                Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => return,
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(e) => {
                    // Perhaps out of descriptors: open connections go on, and this may pass.
                    self.log(format!("accepting a connection failed: {e}"));
                    self.accept_after = Some(Instant::now() + ACCEPT_PAUSE);
                    return;
                }
            };
            if self.connections.len() >= self.options.connections_max {
                let limit = self.options.connections_max;
                self.log(format!("a connection was closed: there are {limit}, the most of this node"));
                continue;
            }
            self.accepted += 1;
            match Connection::new(stream, self.options.tls.as_ref(), self.accepted) {
                Ok(mut connection) => {
                    if connection.send().is_ok() {
                        self.connections.push(connection);
                    }
                }
                Err(e) => self.log(format!("a connection was closed: {e}")),
            }
        }
    }

    /// A line that repeats is logged once.
    fn log(&mut self, line: String) {
        if line != self.last_line {
            (self.options.log)(&line);
            self.last_line = line;
        }
    }
}
