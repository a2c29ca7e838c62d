//! The listening thread: it greets new connections, and notices silent ones.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::entrance::{Bell, Entrance, Greeted, OpenEntrance, Welcome};
use super::greeting::{self, PEERS, Versions};
use super::inbound::{Inbound, Place, Watch};
use super::measured::Measured;
use super::{KEEPALIVE, LinkOptions, LinkState, lock, sockets};

/// Open connections besides those of two builds: broken ones that are not yet noticed.
const SPARE_CONNECTIONS: usize = 32;

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
    let (mut watches, mut looked) = (Vec::<Watch>::new(), Instant::now());
    while !inner.is_closed.load(Ordering::SeqCst) {
        let now = Instant::now();
        let mut watched = entrance.watched(now);
        let greeting = entrance.deadline().map(|deadline| sockets::until(deadline, now));
        let time = greeting.into_iter().chain((!watches.is_empty()).then_some(KEEPALIVE)).min();
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
        for Greeted { wire, address: from, who: (dialer, link) } in greeted {
            let Some(place) = Place::take(&open, inner.limit) else {
                entrance.log(format!("connection from {from} closed: there are {}, the most", inner.limit));
                continue;
            };
            if dialer.is_measuring {
                Measured::begin(&link, wire, place).into_iter().for_each(Measured::answer_on_thread);
                continue;
            }
            let Some(inbound) = Inbound::begin(&link, (dialer.server, from.to_string()), wire, place) else {
                continue;
            };
            match inbound.watched() {
                None => inbound.read_on_thread(),
                Some(watch) => match link.receive.take_over(inbound) {
                    Ok(()) => watches.push(watch),
                    Err(refused) => refused.read_on_thread(),
                },
            }
        }
        if looked.elapsed() >= KEEPALIVE {
            looked = Instant::now();
            watches.retain_mut(|watch| watch.look(looked));
        }
    }
}
