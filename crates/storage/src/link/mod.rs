//! Frames between the servers of a cluster, over TCP.
//!
//! Every server dials every other one. It sends over the connections that it dialed and receives over those that it
//! accepted. So each connection carries frames one way and needs no multiplexing. Frames are queued and then written
//! together, by the thread that queued them ([`Outbox`]). Driver threads receive them through their tiers
//! ([`Inbounds`]), threads of the link where there are none, and under TLS.
//!
//! A frame may be lost with its connection, and a frame that finds a full queue is dropped. The protocol above
//! ([`stratann_core::peer`]) tolerates both. Frames that arrive are whole and in order, and come from a server that
//! knows the cluster's secret and serves the same build of the index.
//!
//! During a rollout a server has a link for each of two builds. They listen at one address, and each connection goes to
//! the link of its build.

mod dial;
pub(crate) mod entrance;
pub(crate) mod greeting;
mod inbound;
mod listen;
mod measured;
mod outbox;
#[cfg(feature = "tls")]
pub(crate) mod secure;
#[cfg(not(feature = "tls"))]
#[path = "clear.rs"]
pub(crate) mod secure;
pub(crate) mod sockets;
pub(crate) mod timed;

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Duration;

use stratann_core::peer::message::Refused;

use self::greeting::Identity;
use self::listen::Listener;
use self::measured::Costs;
use self::outbox::Outbox;

pub use self::entrance::client_of;
pub use self::greeting::{Agreed, Versions};
pub use self::inbound::{Inbound, Inbounds};
pub use self::measured::{LinkCosts, MEASUREMENTS_MAX, MEASURING_BYTES};
pub use self::secure::Tls;
use crate::ledger::Reservation;

/// A server that sends nothing for this long counts as dead.
pub const SILENCE: Duration = Duration::from_secs(2);
/// Time for a whole greeting, of both sides.
pub(crate) const GREETING: Duration = SILENCE;
/// Interval of keepalive frames on an idle connection.
const KEEPALIVE: Duration = Duration::from_millis(250);

/// Writes one line of the log.
pub type Log = Arc<dyn Fn(&str) + Send + Sync>;

/// This server and the others.
#[derive(Clone)]
pub struct LinkOptions {
    /// This server's number.
    pub server: u8,
    /// Build of the served index.
    pub build: u64,
    /// Address for the other servers; port 0 takes a free one.
    pub listen: SocketAddr,
    /// `HOST:PORT` of all servers by number; empty where it is not known yet. This server's own entry is not used.
    pub peers: Vec<String>,
    /// The secret of the cluster.
    pub secret: Vec<u8>,
    /// Certificates for encrypted connections; `None` for connections in the clear.
    pub tls: Option<Tls>,
    /// Versions of frames and states that this server offers.
    pub versions: Versions,
    /// Bytes that may wait for one server; frames beyond are dropped.
    pub queue_bytes: usize,
    /// Interval at which the link to each server is measured; `None` where it is not.
    pub measured_every: Option<Duration>,
    /// Receives each line of the log.
    pub log: Log,
}

impl LinkOptions {
    fn identity(&self) -> Identity<'_> {
        Identity {
            server: self.server,
            servers: self.peers.len(),
            build: self.build,
            secret: &self.secret,
            versions: self.versions,
        }
    }
}

/// Receiver of frames. Called from the link's threads, and from those that take connections over.
pub trait LinkReceiver: Send + Sync {
    /// Gives a connection in the clear to a thread that receives it through its tier ([`Inbounds`]).
    ///
    /// # Errors
    /// The connection, where there is no such thread: the link receives it.
    fn take_over(&self, connection: Inbound) -> Result<(), Box<Inbound>> {
        Err(Box::new(connection))
    }

    /// A frame from `server`.
    ///
    /// # Errors
    /// A frame that is not to be trusted; its connection is closed.
    fn frame(&self, server: u8, frame: &[u8]) -> Result<(), Refused>;
    /// Reserves memory for a long frame. Where there is none the frame is skipped, like one that is lost.
    fn reserve(&self, bytes: u64) -> Option<Reservation>;
    /// Frames can be exchanged with a server, in these versions.
    fn up(&self, server: u8, agreed: Agreed);
    /// Frames can no longer be exchanged with a server.
    fn down(&self, server: u8);
}

/// Counters of a link since it started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkTraffic {
    /// Frames that were queued.
    pub frames: u64,
    /// Bytes of these frames.
    pub bytes: u64,
    /// Frames that were dropped: there was no connection, or a full queue.
    pub dropped: u64,
    /// Frames that arrived and were refused.
    pub refused: u64,
    /// Writes to the network; one may carry several frames.
    pub writes: u64,
}

/// One server's connections to all others. Dropping it closes them and ends its threads.
pub struct Link {
    state: Arc<LinkState>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    // Ends the thread that measures.
    measuring: Mutex<Option<Sender<()>>>,
    // Closed with its last link.
    listener: Mutex<Option<Arc<Listener>>>,
    address: SocketAddr,
}

/// State that the threads of a link share.
struct LinkState {
    options: LinkOptions,
    receive: Arc<dyn LinkReceiver>,
    outboxes: Vec<Outbox>,
    peers: Mutex<Vec<PeerState>>,
    addresses: Mutex<Vec<String>>,
    open: OpenConnections,
    // Connections whose frames are being received.
    receiving: (Mutex<usize>, Condvar),
    // A bit for servers with queued frames: two servers may have the same. The same for frames that may be late.
    queued: AtomicU64,
    late: AtomicU64,
    writes: AtomicU64,
    refused: AtomicU64,
    costs: Costs,
}

/// Open connections, to be shut down in the end. They are numbered from 1.
#[derive(Default)]
struct OpenConnections {
    streams: Mutex<Vec<(u64, TcpStream)>>,
    count: AtomicU64,
    is_closed: AtomicBool,
}

impl OpenConnections {
    /// Keeps a handle to a connection, so that it can be shut down. `None` once all are shut down.
    fn register(&self, stream: &TcpStream) -> Option<u64> {
        let number = 1 + self.count.fetch_add(1, Ordering::Relaxed);
        let handle = stream.try_clone().ok()?;
        let mut streams = lock(&self.streams);
        // Checked under the lock: `close` sets the flag first, then shuts down every connection in the list.
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

/// State of the connections with one other server.
#[derive(Clone, Copy, Debug, Default)]
struct PeerState {
    // Number of the connection that it dialed; 0 for none.
    inbound: u64,
    // Of the connection that it accepted.
    outbound: Option<Agreed>,
    is_up: bool,
}

fn queued_bit(to: u8) -> u64 {
    1 << (to % 64)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

impl Link {
    /// Listens. The other servers are dialed from [`Link::dial`] on.
    ///
    /// # Errors
    /// An address that cannot be listened on.
    pub fn open(options: LinkOptions, receive: Arc<dyn LinkReceiver>) -> io::Result<Link> {
        let listener = Arc::new(Listener::open(&options)?);
        Ok(Link::at(listener, options, receive))
    }

    /// Opens a link for another build at the same address, with the same secret and certificates; those of `options`
    /// are not used. `None` once this link has stopped.
    pub fn beside(&self, options: LinkOptions, receive: Arc<dyn LinkReceiver>) -> Option<Link> {
        let listener = lock(&self.listener).clone()?;
        Some(Link::at(listener, options, receive))
    }

    fn at(listener: Arc<Listener>, options: LinkOptions, receive: Arc<dyn LinkReceiver>) -> Link {
        let count = options.peers.len();
        let state = Arc::new(LinkState {
            outboxes: (0..count).map(|_| Outbox::new(options.queue_bytes)).collect(),
            peers: Mutex::new(vec![PeerState::default(); count]),
            addresses: Mutex::new(options.peers.clone()),
            open: OpenConnections::default(),
            receiving: Default::default(),
            queued: AtomicU64::new(0),
            late: AtomicU64::new(0),
            writes: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            costs: Costs::new(count),
            options,
            receive,
        });
        listener.admit(&state);
        let (address, listener) = (listener.address(), Mutex::new(Some(listener)));
        Link { state, threads: Mutex::default(), measuring: Mutex::default(), listener, address }
    }

    /// Begins to dial the other servers, once. [`LinkReceiver::up`] is called for each that answers. Frames that it
    /// sends must find the link, so whoever receives has to hold it by then.
    pub fn dial(&self) {
        let (mut threads, mut measuring) = (lock(&self.threads), lock(&self.measuring));
        if !threads.is_empty() || self.state.is_stopped() {
            return;
        }
        let others = (0..self.state.outboxes.len() as u8).filter(|&s| s != self.state.options.server);
        threads.extend(others.map(|to| {
            let dialing = self.state.clone();
            std::thread::spawn(move || dial::run(&dialing, to))
        }));
        if let Some(every) = self.state.options.measured_every {
            let (stop, stopping) = mpsc::channel();
            let state = self.state.clone();
            threads.push(std::thread::spawn(move || measured::run(&state, every, &stopping)));
            *measuring = Some(stop);
        }
    }

    /// The address that it listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Sets the address of a server. A working connection is kept.
    pub fn set_peer(&self, server: u8, address: String) {
        if let Some(known) = lock(&self.state.addresses).get_mut(usize::from(server)) {
            *known = address;
        }
    }

    /// Queues a frame, which [`Link::write_now`] sends. False when it was dropped: no connection, or a full queue.
    pub fn queue(&self, to: u8, frame: &[u8]) -> bool {
        self.push(to, frame, &self.state.queued)
    }

    /// As [`Link::queue`], for a frame that may be late: it leaves with the next one to that server, or with
    /// [`Link::write_late`].
    pub fn queue_late(&self, to: u8, frame: &[u8]) -> bool {
        self.push(to, frame, &self.state.late)
    }

    fn push(&self, to: u8, frame: &[u8], noted: &AtomicU64) -> bool {
        let is_queued = self.state.outboxes.get(usize::from(to)).is_some_and(|outbox| outbox.push(frame));
        if is_queued {
            noted.fetch_or(queued_bit(to), Ordering::AcqRel);
        }
        is_queued
    }

    /// Queues a frame, and sends all that are queued. False when it was dropped.
    pub fn send(&self, to: u8, frame: &[u8]) -> bool {
        let is_queued = self.queue(to, frame);
        self.write_now();
        is_queued
    }

    /// Sends all queued frames: those to one server go out together. It does not wait for them to be taken.
    pub fn write_now(&self) {
        self.write(&self.state.queued);
    }

    /// Sends the queued frames that may be late, where none to the same server took them along.
    pub fn write_late(&self) {
        self.write(&self.state.late);
    }

    fn write(&self, noted: &AtomicU64) {
        if noted.load(Ordering::Relaxed) == 0 {
            return;
        }
        let queued = noted.swap(0, Ordering::AcqRel);
        for (to, outbox) in (0..).zip(&self.state.outboxes) {
            if queued & queued_bit(to) != 0 {
                self.state.writes.fetch_add(outbox.write_now(), Ordering::Relaxed);
            }
        }
    }

    /// Counters since the start.
    pub fn traffic(&self) -> LinkTraffic {
        let mut sum = LinkTraffic {
            writes: self.state.writes.load(Ordering::Relaxed),
            refused: self.state.refused.load(Ordering::Relaxed),
            ..LinkTraffic::default()
        };
        for outbox in &self.state.outboxes {
            outbox.add_to(&mut sum);
        }
        sum
    }

    /// Costs of the link to each server, by number, as last measured.
    pub fn costs(&self) -> Vec<Option<LinkCosts>> {
        self.state.costs.all()
    }

    /// Closes all connections and ends all threads; nothing is received after it returns.
    pub fn stop(&self) {
        self.state.open.close();
        self.state.outboxes.iter().for_each(Outbox::close);
        drop(lock(&self.measuring).take());
        let (receiving, news) = &self.state.receiving;
        let ended = news.wait_while(lock(receiving), |count| *count > 0);
        drop(ended.unwrap_or_else(|e| e.into_inner()));
        drop(lock(&self.listener).take());
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

impl LinkState {
    fn is_stopped(&self) -> bool {
        self.open.is_closed()
    }

    fn address_of(&self, server: u8) -> String {
        lock(&self.addresses).get(usize::from(server)).cloned().unwrap_or_default()
    }

    fn log(&self, line: &str) {
        (self.options.log)(line);
    }

    /// Begins to receive frames of a connection. Returns its number; `None` when the link has stopped. [`Link::stop`]
    /// waits for [`LinkState::end_receiving`].
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

    /// Notes a change of one server's connections and informs the receiver. It holds the lock meanwhile, so that calls
    /// come in order.
    fn note(&self, server: u8, change: impl FnOnce(&mut PeerState)) {
        let mut peers = lock(&self.peers);
        let Some(state) = peers.get_mut(usize::from(server)) else { return };
        let before = *state;
        change(state);
        let agreed = state.outbound.filter(|_| state.inbound != 0);
        let is_up = agreed.is_some();
        // A server that dials again has lost its connection, perhaps its memory, even if the old connection seems to be
        // open.
        let is_replaced = before.is_up && state.inbound != before.inbound;
        state.is_up = is_up;
        if before.is_up && (!is_up || is_replaced) {
            self.log(&format!("server {server} no longer answers"));
            self.receive.down(server);
        }
        if let Some(agreed) = agreed.filter(|_| !before.is_up || is_replaced) {
            self.log(&format!("server {server} answers"));
            self.receive.up(server, agreed);
        }
    }
}

#[cfg(test)]
mod tests;
