//! The threads that listen: one for connections, one for each that came.

use std::io::{self, Read};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use stratann_core::peer::message::{HEADER, Message};

use super::greeting::{self, Failed};
use super::secure::Wire;
use super::{LinkOptions, Log, Open, SILENCE, Shared, Tls, lock};

/// Connections besides those of two builds that may be open: greetings under way, old ones not yet seen to be dead.
const SPARE_CONNECTIONS: usize = 32;
/// Bytes that are read at once.
const READ_BYTES: usize = 64 << 10;

/// Where other servers reach this one. It knows the links of all builds that are served here, and gives each connection to the one that it is for.
pub(super) struct Door {
    inner: Arc<Inner>,
    address: SocketAddr,
    thread: Option<JoinHandle<()>>,
}

struct Inner {
    secret: Vec<u8>,
    tls: Option<Tls>,
    log: Log,
    limit: usize,
    // The newest last.
    links: Mutex<Vec<Weak<Shared>>>,
    open: Open,
    last_refusal: Mutex<String>,
}

impl Door {
    /// Listens from now on.
    pub(super) fn open(options: &LinkOptions) -> io::Result<Door> {
        let listener = TcpListener::bind(options.listen)?;
        let address = listener.local_addr()?;
        let inner = Arc::new(Inner {
            secret: options.secret.clone(),
            tls: options.tls.clone(),
            log: options.log.clone(),
            limit: 2 * options.peers.len() + SPARE_CONNECTIONS,
            links: Mutex::default(),
            open: Open::default(),
            last_refusal: Mutex::default(),
        });
        let listening = inner.clone();
        let thread = std::thread::spawn(move || run(&listening, &listener));
        Ok(Door { inner, address, thread: Some(thread) })
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// From now on connections for the link's build are given to it, as long as it is there.
    pub(super) fn admit(&self, link: &Arc<Shared>) {
        let mut links = lock(&self.inner.links);
        links.retain(|known| known.strong_count() > 0);
        links.push(Arc::downgrade(link));
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        self.inner.open.close();
        // The listening thread waits in accept: a connection ends that.
        let mut address = self.address;
        if address.ip().is_unspecified() {
            address.set_ip(match address.is_ipv4() {
                true => std::net::Ipv4Addr::LOCALHOST.into(),
                false => std::net::Ipv6Addr::LOCALHOST.into(),
            });
        }
        let _ = TcpStream::connect_timeout(&address, Duration::from_secs(1));
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Inner {
    /// The link that serves a build; the newest for any other.
    fn links(&self) -> Vec<Arc<Shared>> {
        let links = lock(&self.links);
        links.iter().rev().filter_map(Weak::upgrade).filter(|link| !link.is_stopped()).collect()
    }

    /// Who is refused dials again and again: the same refusal is said once.
    fn log_refusal(&self, from: &str, why: &Failed) {
        let line = format!("connection from {from} refused: {why}");
        let mut last = lock(&self.last_refusal);
        if !self.open.is_closed() && *last != line {
            (self.log)(&line);
            *last = line;
        }
    }
}

/// Accepts until the door closes.
fn run(inner: &Arc<Inner>, listener: &TcpListener) {
    let open = Arc::new(AtomicUsize::new(0));
    let mut threads = Vec::new();
    while !inner.open.is_closed() {
        let stream = match listener.accept() {
            Ok((stream, _)) => stream,
            Err(e) => {
                // Out of descriptors, perhaps: what is open goes on, and this may pass.
                (inner.log)(&format!("accepting a connection failed: {e}"));
                std::thread::sleep(Duration::from_millis(100));
                continue;
            }
        };
        if inner.open.is_closed() || open.load(Ordering::SeqCst) >= inner.limit {
            continue;
        }
        threads.retain(|t: &JoinHandle<()>| !t.is_finished());
        open.fetch_add(1, Ordering::SeqCst);
        let (inner, open) = (inner.clone(), open.clone());
        threads.push(std::thread::spawn(move || {
            receive(&inner, stream);
            open.fetch_sub(1, Ordering::SeqCst);
        }));
    }
    for thread in threads {
        let _ = thread.join();
    }
}

/// Greets whoever dialed and gives its frames to the link that it is for, until the connection ends.
fn receive(inner: &Inner, stream: TcpStream) {
    let from = stream.peer_addr().map_or_else(|_| "somewhere".into(), |a| a.ip().to_string());
    let (Ok(handle), Some(greeted)) = (stream.try_clone(), inner.open.register(&stream)) else { return };
    let greeting = greet(inner, stream);
    match greeting {
        Ok((server, link, mut wire)) => {
            // From now on the link closes it.
            let number = link.begin_receiving(&handle);
            inner.open.unregister(greeted);
            if let Some(number) = number {
                take(&link, server, number, &from, &mut wire);
                link.end_receiving(number);
            }
        }
        Err(why) => {
            inner.open.unregister(greeted);
            inner.log_refusal(&from, &why);
        }
    }
}

/// Takes a server's frames for a link.
fn take(link: &Shared, server: u8, number: u64, from: &str, wire: &mut Wire) {
    link.note(server, |state| state.inbound = number);
    let ended = take_frames(link, server, wire);
    if let Err(why) = ended
        && !link.is_stopped()
    {
        link.log(&format!("connection from server {server} at {from} closed: {why}"));
    }
    link.note(server, |state| {
        if state.inbound == number {
            state.inbound = 0;
            // Whoever stops speaking stops listening: what would go there now would be lost, and a write would tell late.
            link.outboxes[usize::from(server)].set_open(false);
        }
    });
}

fn greet(inner: &Inner, stream: TcpStream) -> Result<(u8, Arc<Shared>, Wire), Failed> {
    stream.set_read_timeout(Some(SILENCE))?;
    stream.set_write_timeout(Some(SILENCE))?;
    let mut wire = Wire::accept(inner.tls.as_ref(), stream)?;
    let links = inner.links();
    let newest = links.first().map_or(0, |link| link.options.build);
    let find = |build| {
        let link = links.iter().find(|link| link.options.build == build)?;
        Some((link.options.myself(), link.clone()))
    };
    let (server, link) = greeting::answer(&inner.secret, newest, find, &mut wire)?;
    Ok((server, link, wire))
}

/// Reads until the end of the stream; an error says why it is not trusted any further.
fn take_frames(shared: &Shared, server: u8, stream: &mut impl Read) -> Result<(), String> {
    let mut bytes = vec![0; READ_BYTES];
    let mut held = 0;
    loop {
        let used = deliver(shared, server, &bytes[..held])?;
        bytes.copy_within(used..held, 0);
        held -= used;
        // A frame that is longer than the buffer; its length was checked against the limit.
        let wanted = frame_len(&bytes[..held])?.unwrap_or(0).max(READ_BYTES);
        if bytes.len() < wanted {
            bytes.resize(wanted, 0);
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

/// Length of the frame that `bytes` begin with, once its header is there.
fn frame_len(bytes: &[u8]) -> Result<Option<usize>, String> {
    let Some(header) = bytes.first_chunk::<HEADER>() else { return Ok(None) };
    let length = Message::frame_len(header).map_err(|why| format!("a frame was refused ({why:?})"))?;
    Ok(Some(length))
}

/// Gives the whole frames in `bytes` on; how many bytes they took.
fn deliver(shared: &Shared, server: u8, bytes: &[u8]) -> Result<usize, String> {
    let mut used = 0;
    while let Some(length) = frame_len(&bytes[used..])? {
        let Some(frame) = bytes.get(used..used + length) else { break };
        // A frame without a body says only that the sender lives.
        if length > HEADER {
            let taken = shared.receive.frame(server, frame);
            taken.map_err(|why| format!("a frame was refused ({why:?})"))?;
        }
        used += length;
    }
    Ok(used)
}
