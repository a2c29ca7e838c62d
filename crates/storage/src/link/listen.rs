//! The listening threads: one greets new connections, and each one that has greeted has its own.

use std::io::{self, Read};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use stratann_core::peer::message::{self, HEADER, Refused};

use super::entrance::{Bell, Entrance, Greeted, OpenEntrance, Welcome};
use super::greeting::{self, PEERS, Versions};
use super::outbox::Outbox;
use super::secure::Wire;
use super::{LinkOptions, LinkState, SILENCE, lock, sockets};

/// Open connections besides those of two builds: broken ones that are not yet noticed.
const SPARE_CONNECTIONS: usize = 32;
/// Bytes of one read.
const READ_BYTES: usize = 64 << 10;

/// The listening socket of a server. It knows the links of all builds that are served here, and gives each connection
/// to its link.
pub(super) struct Listener {
    inner: Arc<Inner>,
    address: SocketAddr,
    bell: Bell,
    thread: Option<JoinHandle<()>>,
}

struct Inner {
    secret: Vec<u8>,
    versions: Versions,
    limit: usize,
    // Newest last.
    links: Mutex<Vec<Weak<LinkState>>>,
    is_closed: AtomicBool,
}

impl Listener {
    /// Starts to listen.
    pub(super) fn open(options: &LinkOptions) -> io::Result<Listener> {
        let welcome = Welcome {
            role: &PEERS,
            versions: options.versions,
            tls: options.tls.clone(),
            refusal: ToString::to_string,
            log: options.log.clone(),
        };
        let OpenEntrance { entrance, bell, address } = Entrance::open(options.listen, welcome)?;
        let inner = Arc::new(Inner {
            secret: options.secret.clone(),
            versions: options.versions,
            limit: 2 * options.peers.len() + SPARE_CONNECTIONS,
            links: Mutex::default(),
            is_closed: AtomicBool::new(false),
        });
        let listening = inner.clone();
        let thread = std::thread::spawn(move || run(&listening, entrance));
        Ok(Listener { inner, address, bell, thread: Some(thread) })
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Gives connections for the link's build to it, as long as the link exists.
    pub(super) fn admit(&self, link: &Arc<LinkState>) {
        let mut links = lock(&self.inner.links);
        links.retain(|known| known.strong_count() > 0);
        links.push(Arc::downgrade(link));
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.inner.is_closed.store(true, Ordering::SeqCst);
        self.bell.ring();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Inner {
    /// All running links, newest first.
    fn links(&self) -> Vec<Arc<LinkState>> {
        let links = lock(&self.links);
        links.iter().rev().filter_map(Weak::upgrade).filter(|link| !link.is_stopped()).collect()
    }
}

/// Greets connections until the listener closes, and gives each to its link.
fn run(inner: &Arc<Inner>, mut entrance: Entrance) {
    let open = Arc::new(AtomicUsize::new(0));
    let mut threads = Vec::new();
    while !inner.is_closed.load(Ordering::SeqCst) {
        let now = Instant::now();
        let mut watched = entrance.watched(now);
        let time = entrance.deadline().map(|deadline| sockets::until(deadline, now));
        if let Err(e) = sockets::wait(&mut watched, time) {
            entrance.log(format!("waiting for connections: {e}"));
            std::thread::sleep(Duration::from_millis(100));
            continue;
        }
        let links = inner.links();
        let newest = links.first().map_or(0, |link| link.options.build);
        let greeted = entrance.turn(&watched, |opening, received| {
            let find = |build| {
                let link = links.iter().find(|link| link.options.build == build)?;
                Some((link.options.identity(), link.clone()))
            };
            let own = (newest, inner.versions);
            greeting::judge(&PEERS, &inner.secret, (opening, received), own, find)
        });
        threads.retain(|t: &JoinHandle<()>| !t.is_finished());
        for Greeted { wire, address: from, who: (server, link) } in greeted {
            if open.fetch_add(1, Ordering::SeqCst) >= inner.limit {
                open.fetch_sub(1, Ordering::SeqCst);
                entrance.log(format!("connection from {from} closed: there are {}, the most", inner.limit));
                continue;
            }
            let open = open.clone();
            threads.push(std::thread::spawn(move || {
                receive(&link, server, &from.to_string(), wire);
                open.fetch_sub(1, Ordering::SeqCst);
            }));
        }
    }
    for thread in threads {
        let _ = thread.join();
    }
}

/// Gives the frames of a server to its link, until the connection ends.
fn receive(link: &LinkState, server: u8, from: &str, mut wire: Wire) {
    let socket = wire.socket();
    let handle = socket.set_nonblocking(false).and_then(|()| socket.try_clone());
    // The link closes it when it stops.
    let number = handle.ok().and_then(|handle| link.begin_receiving(&handle));
    if let Some(number) = number {
        take(link, server, number, from, &mut wire);
        link.end_receiving(number);
    }
}

/// Receives a server's frames for a link.
fn take(link: &LinkState, server: u8, number: u64, from: &str, wire: &mut Wire) {
    link.note(server, |state| state.inbound = number);
    // A server that was away is reached by all others at about the same time.
    link.outboxes.get(usize::from(server)).into_iter().for_each(Outbox::end_pause);
    let ended = take_frames(link, server, wire);
    if let Err(why) = ended
        && !link.is_stopped()
    {
        link.log(&format!("connection from server {server} at {from} closed: {why}"));
    }
    link.note(server, |state| {
        if state.inbound == number {
            state.inbound = 0;
            // A server that closes one connection closes both. Frames sent now would be lost, and a write would fail
            // late.
            link.outboxes[usize::from(server)].shut();
        }
    });
}

/// Reads until the end of the stream. The error says why the stream is not trusted any further.
fn take_frames(state: &LinkState, server: u8, stream: &mut impl Read) -> Result<(), String> {
    let mut bytes = vec![0; READ_BYTES];
    let (mut held, mut skipped) = (0, 0);
    let mut memory = None;
    loop {
        let mut used = skipped.min(held);
        skipped -= used;
        if skipped == 0 {
            used += deliver(state, server, &bytes[used..held]).map_err(|why| refuse(state, why))?;
        }
        bytes.copy_within(used..held, 0);
        held -= used;
        // The frame may be longer than the buffer; its length was checked against the limit.
        let length =
            if skipped > 0 { None } else { frame_len(&bytes[..held]).map_err(|why| refuse(state, why))? };
        let wanted = length.unwrap_or(0).max(READ_BYTES);
        if wanted > bytes.len() {
            memory = state.receive.reserve(wanted as u64);
            if memory.is_none() {
                skipped = wanted;
                continue;
            }
            bytes.resize(wanted, 0);
        } else if memory.is_some() && wanted.max(held) == READ_BYTES {
            bytes.truncate(READ_BYTES);
            bytes.shrink_to_fit();
            memory = None;
        }
        match stream.read(&mut bytes[held..]) {
            Ok(0) => return if held == 0 { Ok(()) } else { Err("it ended within a frame".into()) },
            Ok(n) => held += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                return Err(format!("nothing came for {} s", SILENCE.as_secs()));
            }
            Err(e) => return Err(e.to_string()),
        }
    }
}

/// Returns the length of the frame at the front of `bytes`, once its header is complete.
fn frame_len(bytes: &[u8]) -> Result<Option<usize>, Refused> {
    let Some(header) = bytes.first_chunk::<HEADER>() else { return Ok(None) };
    message::frame_len(header).map(Some)
}

/// Counts a refused frame. Returns the line for the log.
fn refuse(state: &LinkState, why: Refused) -> String {
    state.refused.fetch_add(1, Ordering::Relaxed);
    format!("a frame was refused: {why}")
}

/// Passes on the whole frames in `bytes`. Returns the number of their bytes.
fn deliver(state: &LinkState, server: u8, bytes: &[u8]) -> Result<usize, Refused> {
    let mut used = 0;
    while let Some(length) = frame_len(&bytes[used..])? {
        let Some(frame) = bytes.get(used..used + length) else { break };
        // A frame without a body is a sign of life.
        if length > HEADER {
            state.receive.frame(server, frame)?;
        }
        used += length;
    }
    Ok(used)
}
