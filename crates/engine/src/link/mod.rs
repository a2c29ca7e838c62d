//! Frames between the servers of a cluster, over TCP.
//!
//! Every server dials every other one. What a server has to say goes over the connections that it dialed; on those that it accepted it
//! listens. So each connection carries frames one way, from one writing thread to one reading thread, and there is no multiplexing to get
//! wrong. Frames that wait while a write is under way go out together with the next one.
//!
//! A link promises little: a frame may be lost with its connection, and one that finds a full queue is dropped. The protocol above
//! ([`stratann_core::peer`]) is made for that. What does arrive is whole and in order, and comes from a server that knows the
//! cluster's secret and serves the same build of the index.

mod dial;
mod greeting;
mod listen;
mod outbox;
mod secure;

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Duration;

use stratann_core::peer::message::Refused;

use self::greeting::Myself;
use self::outbox::Outbox;

pub use self::secure::Tls;

/// A server that says nothing for so long is taken for dead.
pub const SILENCE: Duration = Duration::from_secs(2);
/// A server with nothing to say says so this often.
const KEEPALIVE: Duration = Duration::from_millis(250);

/// Writes one line of the log.
pub type Log = Arc<dyn Fn(&str) + Send + Sync>;

/// Who we are, and who the others are.
#[derive(Clone)]
pub struct LinkOptions {
    /// This server's number.
    pub server: u8,
    /// Build of the index that it serves.
    pub build: u64,
    /// Where the others reach it; port 0 takes a free one.
    pub listen: SocketAddr,
    /// `HOST:PORT` of all servers by number, this one's included, which is not used; empty where it is not known yet.
    pub peers: Vec<String>,
    /// What all servers of the cluster know, and nobody else.
    pub secret: Vec<u8>,
    /// Certificates, when connections are to be encrypted.
    pub tls: Option<Tls>,
    /// Bytes that may wait for one server; frames beyond are dropped.
    pub queue_bytes: usize,
    /// Where to say what happens.
    pub log: Log,
}

impl LinkOptions {
    fn myself(&self) -> Myself<'_> {
        Myself { server: self.server, servers: self.peers.len(), build: self.build, secret: &self.secret }
    }
}

/// Who takes what comes in. Called from the link's threads.
pub trait Receive: Send + Sync {
    /// A frame from `server`.
    ///
    /// # Errors
    /// When it is not to be trusted: its connection is closed.
    fn frame(&self, server: u8, frame: &[u8]) -> Result<(), Refused>;
    /// Frames go both ways from now on.
    fn up(&self, server: u8);
    /// They no longer do.
    fn down(&self, server: u8);
}

/// What went over a link so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Frames that were queued to be sent, and their bytes.
    pub frames: u64,
    /// Bytes of these.
    pub bytes: u64,
    /// Frames that found no connection, or a full queue.
    pub dropped: u64,
    /// Writes to the network; several frames may go with one.
    pub writes: u64,
}

/// One server's connections to all others. Dropping it closes them and ends its threads.
pub struct Link {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    address: SocketAddr,
}

/// What the threads of a link have in common.
struct Shared {
    options: LinkOptions,
    receive: Arc<dyn Receive>,
    outboxes: Vec<Outbox>,
    peers: Mutex<Vec<PeerState>>,
    addresses: Mutex<Vec<String>>,
    // Open connections, to be shut down in the end, by a number of their own.
    open: Mutex<Vec<(u64, TcpStream)>>,
    accepted: AtomicU64,
    last_refusal: Mutex<String>,
    writes: AtomicU64,
    is_stopped: AtomicBool,
}

/// How far the connections with one other server are.
#[derive(Clone, Copy, Debug, Default)]
struct PeerState {
    // The number of the connection that it dialed; 0 for none.
    inbound: u64,
    outbound: bool,
    is_up: bool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

impl Link {
    /// Listens, and begins to dial. Comes back at once; [`Receive::up`] tells of each server that answers.
    ///
    /// # Errors
    /// When the address cannot be listened on.
    pub fn start(options: LinkOptions, receive: Arc<dyn Receive>) -> io::Result<Link> {
        let listener = TcpListener::bind(options.listen)?;
        let address = listener.local_addr()?;
        let count = options.peers.len();
        let shared = Arc::new(Shared {
            outboxes: (0..count).map(|_| Outbox::new(options.queue_bytes)).collect(),
            peers: Mutex::new(vec![PeerState::default(); count]),
            addresses: Mutex::new(options.peers.clone()),
            open: Mutex::default(),
            accepted: AtomicU64::new(1),
            last_refusal: Mutex::default(),
            writes: AtomicU64::new(0),
            is_stopped: AtomicBool::new(false),
            options,
            receive,
        });
        let mut threads = Vec::new();
        let listening = shared.clone();
        threads.push(std::thread::spawn(move || listen::run(&listening, &listener)));
        for to in (0..count as u8).filter(|&s| s != shared.options.server) {
            let dialing = shared.clone();
            threads.push(std::thread::spawn(move || dial::run(&dialing, to)));
        }
        Ok(Link { shared, threads: Mutex::new(threads), address })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where a server is from now on. A connection that works is kept.
    pub fn set_peer(&self, server: u8, address: String) {
        if let Some(known) = lock(&self.shared.addresses).get_mut(usize::from(server)) {
            *known = address;
        }
    }

    /// Queues a frame. False when it was dropped: no connection, or a full queue.
    pub fn send(&self, to: u8, frame: &[u8]) -> bool {
        self.shared.outboxes.get(usize::from(to)).is_some_and(|outbox| outbox.push(frame))
    }

    /// What was sent so far.
    pub fn traffic(&self) -> Traffic {
        let mut sum = Traffic { writes: self.shared.writes.load(Ordering::Relaxed), ..Traffic::default() };
        for outbox in &self.shared.outboxes {
            outbox.add_to(&mut sum);
        }
        sum
    }

    /// Closes all connections and ends all threads; nothing is received after it returns.
    pub fn stop(&self) {
        self.shared.is_stopped.store(true, Ordering::SeqCst);
        self.shared.outboxes.iter().for_each(Outbox::close);
        // The listening thread waits in accept: a connection ends that.
        let mut address = self.address;
        if address.ip().is_unspecified() {
            address.set_ip(match address.is_ipv4() {
                true => std::net::Ipv4Addr::LOCALHOST.into(),
                false => std::net::Ipv6Addr::LOCALHOST.into(),
            });
        }
        let _ = TcpStream::connect_timeout(&address, Duration::from_secs(1));
        for (_, stream) in lock(&self.shared.open).drain(..) {
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
        for thread in lock(&self.threads).drain(..) {
            let _ = thread.join();
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Shared {
    fn is_stopped(&self) -> bool {
        self.is_stopped.load(Ordering::SeqCst)
    }

    fn address_of(&self, server: u8) -> String {
        lock(&self.addresses).get(usize::from(server)).cloned().unwrap_or_default()
    }

    /// Who is refused dials again and again: the same refusal is said once.
    fn log_refusal(&self, from: &str, why: &str) {
        let line = format!("connection from {from} refused: {why}");
        let mut last = lock(&self.last_refusal);
        if !self.is_stopped() && *last != line {
            self.log(&line);
            *last = line;
        }
    }

    fn log(&self, line: &str) {
        (self.options.log)(line);
    }

    /// Keeps a handle to a connection, so that stopping can shut it down. `None` when the link has been stopped.
    fn register(&self, stream: &TcpStream) -> Option<u64> {
        let number = self.accepted.fetch_add(1, Ordering::Relaxed);
        let handle = stream.try_clone().ok()?;
        let mut open = lock(&self.open);
        // Under the lock: whoever stops the link sets the flag first and shuts down what is here afterwards.
        if self.is_stopped() {
            return None;
        }
        open.push((number, handle));
        Some(number)
    }

    fn unregister(&self, number: u64) {
        lock(&self.open).retain(|(n, _)| *n != number);
    }

    /// Notes a change of one server's connections and tells who receives. The lock is held meanwhile, so that news comes in order.
    fn note(&self, server: u8, change: impl FnOnce(&mut PeerState)) {
        let mut peers = lock(&self.peers);
        let Some(state) = peers.get_mut(usize::from(server)) else { return };
        let before = *state;
        change(state);
        let is_up = state.inbound != 0 && state.outbound;
        // A server that dials anew has lost something, perhaps its memory, even if its old connection seems to live.
        let is_replaced = before.is_up && state.inbound != before.inbound;
        state.is_up = is_up;
        if before.is_up && (!is_up || is_replaced) {
            self.log(&format!("server {server} no longer answers"));
            self.receive.down(server);
        }
        if is_up && (!before.is_up || is_replaced) {
            self.log(&format!("server {server} answers"));
            self.receive.up(server);
        }
    }
}

#[cfg(test)]
mod tests;
