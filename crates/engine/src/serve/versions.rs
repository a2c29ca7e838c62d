//! The versions of an index that one server holds: the one that clients ask, and during a change the one before or after it.
//!
//! A new version is opened beside the one that is served, and looks for the other servers that have it. Once every part of it is reached, wherever
//! a query may go, clients' queries are given to it; those under way end where they began. When no server asks in the old one any more it is
//! dropped. When to do what, [`stratann_core::peer::Change`] says.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use stratann_core::peer::{Change, Turn};

use super::{ServeOptions, Server, Status, lock};
use crate::link::{Log, Traffic};
use crate::manifest::Manifest;
use crate::{Error, Kind, Result};

/// One server through the versions of its index.
pub struct Versions {
    held: Mutex<Held>,
    // Where the other servers are, as far as is known.
    peers: Mutex<Vec<String>>,
    // What went over links that are no more.
    past: Mutex<Traffic>,
    log: Log,
}

struct Version {
    number: u64,
    server: Arc<Server>,
}

struct Held {
    current: Version,
    beside: Option<Beside>,
}

enum Beside {
    /// To be asked, once it is settled.
    Next(Version, Change),
    /// No longer asked.
    Last(Version, Change),
}

impl Beside {
    fn version(&self) -> &Version {
        match self {
            Beside::Next(version, _) | Beside::Last(version, _) => version,
        }
    }
}

/// What [`Versions::step`] has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Changed {
    /// Clients' queries go to this version from now on.
    Switched(u64),
    /// This version is no longer held; its files may go.
    Dropped(u64),
}

impl Versions {
    /// Of a server that has started with version `number` of a store; 0 for an index that comes from none.
    pub fn of(server: Server, number: u64, log: Log) -> Arc<Versions> {
        let peers = Mutex::new(server.shared.options.peers.clone());
        let current = Version { number, server: Arc::new(server) };
        let held = Mutex::new(Held { current, beside: None });
        Arc::new(Versions { held, peers, past: Mutex::default(), log })
    }

    /// The server that clients are to ask. To be let go of before their answers are waited for.
    pub fn current(&self) -> Arc<Server> {
        lock(&self.held).current.server.clone()
    }

    /// The newest build that is held.
    pub fn newest_build(&self) -> String {
        let held = lock(&self.held);
        let newest = match &held.beside {
            Some(Beside::Next(next, _)) => next,
            _ => &held.current,
        };
        newest.server.manifest().build_id.clone()
    }

    /// Whether [`Versions::add`] would find room: no change is under way, or one that does not come to an end.
    pub fn may_add(&self) -> bool {
        let held = lock(&self.held);
        match &held.beside {
            None => true,
            Some(Beside::Next(_, change)) => change.is_stuck(held.current.server.shared.now_us()),
            Some(Beside::Last(..)) => false,
        }
    }

    /// Opens version `number`, which lies in the folder `index`, beside the one that is served. What clients notice comes with [`Versions::step`].
    ///
    /// # Errors
    /// As [`Server::start_beside`]; vectors of another kind, for clients would notice; a change that is under way. Then all stays as it is.
    pub fn add(&self, number: u64, index: PathBuf) -> Result<()> {
        if !self.may_add() {
            return Err(Error::bad_input(format!(
                "version {number} must wait until another change has ended"
            )));
        }
        // One that is stuck gives way; dropped outside of the lock, for that takes a moment.
        let stuck = lock(&self.held).beside.take();
        if let Some(stuck) = &stuck {
            self.note_traffic(stuck.version());
        }
        drop(stuck);
        let current = self.current();
        let (_, manifest) = Manifest::read(&index)?;
        check_kind(number, current.manifest(), &manifest)?;
        let log = self.log.clone();
        let options = ServeOptions {
            index,
            peers: lock(&self.peers).clone(),
            log: Arc::new(move |line: &str| log(&format!("version {number}: {line}"))),
            ..current.shared.options.clone()
        };
        let server = current.start_beside(options).map_err(|e| match e.kind {
            Kind::Budget => Error::budget(format!(
                "version {number} does not fit beside the one that is served: {}; or restart the servers one after the other",
                e.message
            )),
            _ => e,
        })?;
        let change = Change::new(current.shared.now_us());
        let next = Version { number, server: Arc::new(server) };
        let mut held = lock(&self.held);
        held.beside = Some(Beside::Next(next, change));
        Ok(())
    }

    /// Looks how far a change is, tells the other servers, and goes on with it; to be called several times a second.
    pub fn step(&self) -> Option<Changed> {
        let mut held = lock(&self.held);
        let now_us = held.current.server.shared.now_us();
        let beside = held.beside.take()?;
        held.current.server.tell_standing();
        match beside {
            Beside::Next(next, mut change) => {
                next.server.tell_standing();
                let turn = change.turn(now_us, next.server.is_settled(), false);
                if turn != Turn::Switch {
                    held.beside = Some(Beside::Next(next, change));
                    return None;
                }
                let number = next.number;
                let last = std::mem::replace(&mut held.current, next);
                held.beside = Some(Beside::Last(last, change));
                Some(Changed::Switched(number))
            }
            Beside::Last(last, mut change) => {
                // Nobody else holds it any more, so nobody can ask.
                if Arc::strong_count(&last.server) == 1 {
                    last.server.leave();
                }
                last.server.tell_standing();
                let is_left = last.server.is_left();
                if change.turn(now_us, true, is_left) != Turn::Drop || Arc::strong_count(&last.server) > 1 {
                    held.beside = Some(Beside::Last(last, change));
                    return None;
                }
                drop(held);
                self.note_traffic(&last);
                Some(Changed::Dropped(last.number))
            }
        }
    }

    /// Where another server is from now on, for all versions.
    pub fn set_peer(&self, server: u8, address: String) {
        let held = lock(&self.held);
        if let Some(known) = lock(&self.peers).get_mut(usize::from(server)) {
            known.clone_from(&address);
        }
        let beside = held.beside.as_ref().map(|b| &b.version().server);
        for held in beside.into_iter().chain([&held.current.server]) {
            held.set_peer(server, address.clone());
        }
    }

    /// How the server fares: what clients ask now, and what all versions together do.
    pub fn status(&self) -> Status {
        let held = lock(&self.held);
        let mut status = held.current.server.status();
        status.version = (held.current.number > 0).then_some(held.current.number);
        let mut traffic = *lock(&self.past);
        if let Some(beside) = &held.beside {
            let version = beside.version();
            let other = version.server.status();
            status.builds.push(other.build_id);
            status.waiting += other.waiting;
            status.in_flight += other.in_flight;
            let bytes = other.memory.iter().filter(|c| c.0 != "program").map(|c| c.1).sum();
            status.memory.push((format!("version {}", version.number), bytes));
            add_traffic(&mut traffic, version);
        }
        status.bytes_sent += traffic.bytes;
        status.frames_sent += traffic.frames;
        status.writes += traffic.writes;
        status.dropped_frames += traffic.dropped;
        status
    }

    fn note_traffic(&self, version: &Version) {
        add_traffic(&mut lock(&self.past), version);
    }
}

fn add_traffic(sum: &mut Traffic, version: &Version) {
    let own = version.server.shared.link.get().map_or_else(Traffic::default, |link| link.traffic());
    sum.bytes += own.bytes;
    sum.frames += own.frames;
    sum.writes += own.writes;
    sum.dropped += own.dropped;
}

/// Clients have sent vectors of one kind, and shall not be told that these are wrong now.
fn check_kind(number: u64, old: &Manifest, new: &Manifest) -> Result<()> {
    let kind = |m: &Manifest| format!("{} × {}, {}", m.dim, m.dtype, m.metric);
    if kind(old) == kind(new) {
        return Ok(());
    }
    Err(Error::bad_input(format!(
        "version {number} holds vectors of {}, the one that is served of {}; restart the servers to serve it",
        kind(new),
        kind(old)
    )))
}

impl Server {
    fn tell_standing(&self) {
        self.shared.with_peer(|peer, _, out| peer.tell_standing(out));
    }

    fn is_settled(&self) -> bool {
        self.shared.broken.get().is_none() && self.shared.lock_peer().is_settled(&self.shared.homes)
    }

    fn leave(&self) {
        self.shared.lock_peer().leave();
    }

    fn is_left(&self) -> bool {
        lock(&self.shared.clients).is_empty() && self.shared.lock_peer().is_left()
    }
}
