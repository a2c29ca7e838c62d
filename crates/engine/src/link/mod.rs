//! Frames between the servers of a cluster, over TCP.
//!
//! Every server dials every other one. What a server has to say goes over the connections that it dialed; on those that it accepted it
//! listens. So each connection carries frames one way, from one writing thread to one reading thread, and there is no multiplexing to get
//! wrong. Frames that wait while a write is under way go out together with the next one.
//!
//! A link promises little: a frame may be lost with its connection, and one that finds a full queue is dropped. The protocol above
//! ([`stratann_core::peer`]) is made for that. What does arrive is whole and in order, and comes from a server that knows the
//! cluster's secret and serves the same build of the index.
//!
//! A server that changes to another build has a link for each meanwhile. They listen at one address, where each connection is given to the link of
//! its build.

mod dial;
mod greeting;
mod listen;
mod outbox;
#[cfg(feature = "tls")]
mod secure;
#[cfg(not(feature = "tls"))]
#[path = "clear.rs"]
mod secure;

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Duration;

use stratann_core::peer::message::Refused;

use self::greeting::Myself;
use self::listen::Door;
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
    // Closed with the last link that it is for.
    door: Mutex<Option<Arc<Door>>>,
    address: SocketAddr,
}

/// What the threads of a link have in common.
struct Shared {
    options: LinkOptions,
    receive: Arc<dyn Receive>,
    outboxes: Vec<Outbox>,
    peers: Mutex<Vec<PeerState>>,
    addresses: Mutex<Vec<String>>,
    open: Open,
    // Connections whose frames are being received.
    receiving: (Mutex<usize>, Condvar),
    writes: AtomicU64,
}

/// Open connections, to be shut down in the end, by numbers of their own from 1.
#[derive(Default)]
struct Open {
    streams: Mutex<Vec<(u64, TcpStream)>>,
    count: AtomicU64,
    is_closed: AtomicBool,
}

impl Open {
    /// Keeps a handle to a connection, so that it can be shut down. `None` once all are.
    fn register(&self, stream: &TcpStream) -> Option<u64> {
        let number = 1 + self.count.fetch_add(1, Ordering::Relaxed);
        let handle = stream.try_clone().ok()?;
        let mut streams = lock(&self.streams);
        // Under the lock: whoever closes sets the flag first and shuts down what is here afterwards.
        if self.is_closed() {
            return None;
        }
        streams.push((number, handle));
        Some(number)
    }

    fn unregister(&self, number: u64) {
        lock(&self.streams).retain(|(n, _)| *n != number);
    }

    fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::SeqCst)
    }

    fn close(&self) {
        self.is_closed.store(true, Ordering::SeqCst);
        for (_, stream) in lock(&self.streams).drain(..) {
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
    }
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
        let door = Arc::new(Door::open(&options)?);
        Ok(Link::at(door, options, receive))
    }

    /// Another link, for another build, that is reached at the same address, by those who know the same secret; `options` need not say
    /// these again. `None` once this one has stopped.
    pub fn beside(&self, options: LinkOptions, receive: Arc<dyn Receive>) -> Option<Link> {
        let door = lock(&self.door).clone()?;
        Some(Link::at(door, options, receive))
    }

    fn at(door: Arc<Door>, options: LinkOptions, receive: Arc<dyn Receive>) -> Link {
        let count = options.peers.len();
        let shared = Arc::new(Shared {
            outboxes: (0..count).map(|_| Outbox::new(options.queue_bytes)).collect(),
            peers: Mutex::new(vec![PeerState::default(); count]),
            addresses: Mutex::new(options.peers.clone()),
            open: Open::default(),
            receiving: Default::default(),
            writes: AtomicU64::new(0),
            options,
            receive,
        });
        let mut threads = Vec::new();
        door.admit(&shared);
        for to in (0..count as u8).filter(|&s| s != shared.options.server) {
            let dialing = shared.clone();
            threads.push(std::thread::spawn(move || dial::run(&dialing, to)));
        }
        let address = door.address();
        Link { shared, threads: Mutex::new(threads), door: Mutex::new(Some(door)), address }
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
        self.shared.open.close();
        self.shared.outboxes.iter().for_each(Outbox::close);
        let (receiving, news) = &self.shared.receiving;
        let ended = news.wait_while(lock(receiving), |count| *count > 0);
        drop(ended.unwrap_or_else(|e| e.into_inner()));
        drop(lock(&self.door).take());
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
        self.open.is_closed()
    }

    fn address_of(&self, server: u8) -> String {
        lock(&self.addresses).get(usize::from(server)).cloned().unwrap_or_default()
    }

    fn log(&self, line: &str) {
        (self.options.log)(line);
    }

    /// A connection's frames are received from now on: its number, or `None` when the link has been stopped. Whoever stops it waits for
    /// [`Shared::end_receiving`].
    fn begin_receiving(&self, stream: &TcpStream) -> Option<u64> {
        let mut count = lock(&self.receiving.0);
        let number = self.open.register(stream)?;
        *count += 1;
        Some(number)
    }

    fn end_receiving(&self, number: u64) {
        self.open.unregister(number);
        *lock(&self.receiving.0) -= 1;
        self.receiving.1.notify_all();
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
