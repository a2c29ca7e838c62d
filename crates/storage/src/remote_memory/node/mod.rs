//! The memory node: one thread that serves its region to all connections.

mod connection;
mod frames;
#[cfg(test)]
mod tests;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

pub(super) use self::connection::versions_differ;
use self::connection::{Connection, End};
use self::frames::Frames;
pub use super::region::Place;
use super::region::Region;
use super::{Facts, NodeId, protocol};
use crate::link::entrance::{Bell, Entrance, Greeted, OpenEntrance, Welcome};
use crate::link::greeting::{self, Identity, REMOTE_MEMORY};
use crate::link::{Log, Tls, Versions, sockets};
use crate::{Error, ErrorKind, Result};

/// Most connections of a node.
pub const CONNECTIONS_MAX: usize = 1024;

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
    /// Place of the region.
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
    bell: Bell,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct State {
    is_stopping: AtomicBool,
    has_ended: AtomicBool,
    // Most bytes of the buffers of all connections so far.
    buffers_peak: AtomicUsize,
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
        let mut region = Region::open(options.node, options.region_bytes, &options.place, &options.secret)?;
        let facts = region.facts();
        let welcome = Welcome {
            role: &REMOTE_MEMORY,
            versions: versions(),
            tls: options.tls.clone(),
            refusal: connection::refusal,
            log: options.log.clone(),
        };
        let OpenEntrance { entrance, bell, address } =
            Entrance::open(options.listen, welcome).map_err(|e| {
                Error::bad_input(format!("listening on {}: {e}; give another --listen", options.listen))
            })?;
        region.set_door(address);
        let state = Arc::new(State::default());
        let serving = Serving {
            region,
            entrance,
            state: state.clone(),
            options,
            connections: Vec::new(),
            frames: Frames::new(),
            accepted: 0,
        };
        let thread = std::thread::Builder::new()
            .name("memory-node".into())
            .spawn(move || serving.run())
            .map_err(|e| Error { kind: ErrorKind::Io, message: format!("starting a thread: {e}") })?;
        Ok(Node { address, facts, state, bell, thread: Some(thread) })
    }

    /// The address that it listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Properties of the node, as it was started.
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
        self.bell.ring();
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

/// State of the thread of a node.
struct Serving {
    region: Region,
    entrance: Entrance,
    state: Arc<State>,
    options: NodeOptions,
    connections: Vec<Connection>,
    frames: Frames,
    accepted: u64,
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
        let mut watched = self.entrance.watched(now);
        let guests = watched.len();
        let watch = |c: &Connection| sockets::watched(c.descriptor(), c.wants_input(), c.wants_output());
        watched.extend(self.connections.iter().map(watch));
        let target = self.region.target();
        watched.extend(target.map(|target| sockets::watched(target.descriptor(), true, false)));
        let is_busy = target.is_some_and(|target| !target.progress());
        let patience = if is_busy { Some(Duration::ZERO) } else { self.patience(now) };
        sockets::wait(&mut watched, patience)
            .map_err(|e| Error { kind: ErrorKind::Io, message: format!("waiting for connections: {e}") })?;
        let mut ended = Vec::new();
        for (connection, watched) in self.connections.iter_mut().zip(&watched[guests..]) {
            let has_come = connection.wants_input() && sockets::is_readable(watched);
            if connection.is_eager() || has_come || connection.can_go_on(&self.frames) {
                let received = connection.receive(&self.region, &mut self.frames);
                ended.extend(received.err().map(|end| (connection.number(), end)));
            }
            if let Some(load) = connection.begins_load() {
                self.region.begin_load(load, &self.options.secret)?;
                (self.options.log)(&format!("load {load:016x} begins; the region is empty"));
            }
            connection.produce(&self.region, &mut self.frames);
            let is_broken = watched.revents & (libc::POLLERR | libc::POLLNVAL) != 0;
            let sent = match connection.wants_output() {
                _ if is_broken => Err(End::Closed),
                true => connection.send(),
                false => Ok(()),
            };
            ended.extend(sent.err().map(|end| (connection.number(), end)));
        }
        // Whoever reads of the region before, or accesses it without this thread, finds out.
        let epoch = self.region.facts().epoch;
        let late = self.connections.iter().filter(|own| own.is_late(epoch));
        ended.extend(late.map(|own| (own.number(), End::Closed)));
        let slow =
            self.connections.iter().filter(|own| own.deadline().is_some_and(|deadline| deadline <= now));
        ended.extend(slow.map(|own| (own.number(), End::Because("it was too slow with a request".into()))));
        let bytes = self.connections.iter().map(Connection::bytes).sum();
        self.state.buffers_peak.fetch_max(bytes, Ordering::Relaxed);
        self.close(&ended);
        self.welcome(&watched[..guests]);
        Ok(())
    }

    /// Longest wait.
    fn patience(&self, now: Instant) -> Option<Duration> {
        if self.connections.iter().any(|own| own.is_eager() || own.can_go_on(&self.frames)) {
            return Some(Duration::ZERO);
        }
        let deadlines = self.connections.iter().filter_map(Connection::deadline);
        deadlines.chain(self.entrance.deadline()).min().map(|deadline| sockets::until(deadline, now))
    }

    fn close(&mut self, ended: &[(u64, End)]) {
        let has_ended = |own: &Connection| ended.iter().any(|(number, _)| *number == own.number());
        for own in self.connections.iter_mut().filter(|own| has_ended(own)) {
            own.release(&mut self.frames);
            self.frames.forget(own.number());
        }
        self.connections.retain(|own| !has_ended(own));
        for (_, end) in ended {
            if let End::Because(why) = end {
                self.entrance.log(format!("a connection was closed: {why}"));
            }
        }
    }

    /// Greets who has come. Nothing but a small greeting is kept before.
    fn welcome(&mut self, watched: &[sockets::Watched]) {
        let secret = &self.options.secret;
        let me = Identity { server: 0, servers: 2, build: 0, secret, versions: versions() };
        let judge = |opening: &[u8], received: &_| {
            let find = |_| Some((me.clone(), ()));
            greeting::judge(&REMOTE_MEMORY, secret, (opening, received), (0, versions()), find)
        };
        for Greeted { wire, .. } in self.entrance.turn(watched, judge) {
            let limit = self.options.connections_max;
            if self.connections.len() >= limit {
                let line = format!("a connection was closed: there are {limit}, the most of this node");
                self.entrance.log(line);
                continue;
            }
            self.accepted += 1;
            match Connection::new(wire, self.accepted, self.region.facts().epoch) {
                Ok(connection) => self.connections.push(connection),
                Err(e) => self.entrance.log(format!("a connection was closed: {e}")),
            }
        }
    }
}
