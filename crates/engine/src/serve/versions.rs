//! The versions of an index on one server: the one that clients ask, and during a rollout the one before or after it.
//!
//! A new version is opened beside the one that is served, and connects to the other servers that have it. Once every
//! part of it can be reached wherever a query may go, clients' queries switch to it; queries under way end in the
//! version where they began. When no server has queries in the old version any more, it is dropped.
//! [`stratann_core::peer::Rollout`] decides the steps.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use stratann_core::peer::{Rollout, RolloutStep};
use stratann_storage::link::{LinkTraffic, Log};
use stratann_storage::names::BuildId;
use stratann_storage::{Error, ErrorKind, Result};

use super::{ServeOptions, Server, Status, lock};
use crate::manifest::Manifest;

/// One server with the versions of its index.
pub struct Versions {
    open: Mutex<OpenVersions>,
    // Known addresses of all servers.
    peers: Mutex<Vec<String>>,
    // Traffic of links that are closed.
    past: Mutex<LinkTraffic>,
    log: Log,
}

struct ServedVersion {
    number: u64,
    server: Arc<Server>,
}

struct OpenVersions {
    current: ServedVersion,
    other: Option<OtherVersion>,
}

enum OtherVersion {
    /// Receives queries once it is ready.
    Next(ServedVersion, Rollout),
    /// Receives no more queries.
    Last(ServedVersion, Rollout),
}

impl OtherVersion {
    fn version(&self) -> &ServedVersion {
        match self {
            OtherVersion::Next(version, _) | OtherVersion::Last(version, _) => version,
        }
    }
}

/// A step that [`Versions::step`] has taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Changed {
    /// Clients' queries go to this version from now on.
    Switched(u64),
    /// This version is closed; its files may be deleted.
    Dropped(u64),
}

impl Versions {
    /// `server` has started with version `number` of a store; 0 for an index that comes from none.
    pub fn of(server: Server, number: u64, log: Log) -> Arc<Versions> {
        let peers = Mutex::new(server.state.options.peers.clone());
        let current = ServedVersion { number, server: Arc::new(server) };
        let open = Mutex::new(OpenVersions { current, other: None });
        Arc::new(Versions { open, peers, past: Mutex::default(), log })
    }

    /// The server for clients' queries. Drop it before waiting for their answers, since a rollout waits for it.
    pub fn current(&self) -> Arc<Server> {
        lock(&self.open).current.server.clone()
    }

    /// The newest open build.
    pub fn newest_build(&self) -> BuildId {
        let open = lock(&self.open);
        let newest = match &open.other {
            Some(OtherVersion::Next(next, _)) => next,
            _ => &open.current,
        };
        newest.server.build_id()
    }

    /// Whether [`Versions::add`] is possible: no rollout is under way, or a stuck one.
    pub fn may_add(&self) -> bool {
        let open = lock(&self.open);
        match &open.other {
            None => true,
            Some(OtherVersion::Next(_, rollout)) => rollout.is_stuck(open.current.server.state.now_us()),
            Some(OtherVersion::Last(..)) => false,
        }
    }

    /// Opens version `number`, in the folder `index`, beside the one that is served. Clients notice nothing before
    /// [`Versions::step`].
    ///
    /// # Errors
    /// As [`Server::start_beside`]; another dimension, element type or distance, which clients would notice; a rollout
    /// under way. Nothing has changed then.
    pub fn add(&self, number: u64, index: PathBuf) -> Result<()> {
        if !self.may_add() {
            return Err(Error::bad_input(format!(
                "version {number} must wait until another change has ended"
            )));
        }
        // A stuck rollout ends. Its server is dropped outside of the lock, since its threads take time to end.
        let stuck = lock(&self.open).other.take();
        if let Some(stuck) = &stuck {
            self.note_traffic(stuck.version());
        }
        drop(stuck);
        let current = self.current();
        let (_, manifest) = Manifest::read(&index)?;
        check_vectors(number, current.manifest(), &manifest)?;
        let log = self.log.clone();
        let options = ServeOptions {
            index,
            peers: lock(&self.peers).clone(),
            log: Arc::new(move |line: &str| log(&format!("version {number}: {line}"))),
            ..current.state.options.clone()
        };
        let server = current.start_beside(options).map_err(|e| match e.kind {
            ErrorKind::Budget => Error::budget(format!(
                "version {number} does not fit beside the one that is served: {}; \
                 or restart the servers one after the other",
                e.message
            )),
            _ => e,
        })?;
        let rollout = Rollout::new(current.state.now_us());
        let next = ServedVersion { number, server: Arc::new(server) };
        let mut open = lock(&self.open);
        open.other = Some(OtherVersion::Next(next, rollout));
        Ok(())
    }

    /// Serves what memory nodes have now, where another load has begun since the index was opened. Call it several
    /// times a second. Until the load is complete queries are refused with the reason.
    pub fn follow_load(&self) {
        let current = self.current();
        let Some(why) = current.state.index.index().replaced() else { return };
        // A load that is under way holds no index yet.
        let Ok(next) = current.state.index.index().reopened() else { return };
        if let Err(unfit) = current.state.index.index().check_successor(&next) {
            let _ = current.state.unfit_load.set(unfit.message);
            current.state.note_memory(Some(why.message));
            return;
        }
        drop(next);
        match current.start_instead(&why) {
            Ok(server) => {
                let next = Arc::new(server);
                let before = std::mem::replace(&mut lock(&self.open).current.server, next);
                (self.log)("memory nodes have another load, which is served from now on");
                // Its threads take time to end.
                drop(before);
            }
            Err(e) => {
                (self.log)(&format!("the load that memory nodes have now cannot be served: {}", e.message))
            }
        }
    }

    /// Takes the next step of a rollout, if one is due, and sends this server's status to the others. Call it several
    /// times a second.
    pub fn step(&self) -> Option<Changed> {
        let mut open = lock(&self.open);
        let now_us = open.current.server.state.now_us();
        let other = open.other.take()?;
        open.current.server.send_status();
        match other {
            OtherVersion::Next(next, mut rollout) => {
                next.server.send_status();
                let step = rollout.step(now_us, next.server.is_ready(), false);
                if step != RolloutStep::Switch {
                    open.other = Some(OtherVersion::Next(next, rollout));
                    return None;
                }
                let number = next.number;
                let last = std::mem::replace(&mut open.current, next);
                open.other = Some(OtherVersion::Last(last, rollout));
                Some(Changed::Switched(number))
            }
            OtherVersion::Last(last, mut rollout) => {
                // No other thread has a reference, so none can submit a query.
                if Arc::strong_count(&last.server) == 1 {
                    last.server.drain();
                }
                last.server.send_status();
                let step = rollout.step(now_us, true, last.server.is_drained());
                if step != RolloutStep::Drop || Arc::strong_count(&last.server) > 1 {
                    open.other = Some(OtherVersion::Last(last, rollout));
                    return None;
                }
                let current = open.current.server.clone();
                drop(open);
                self.note_traffic(&last);
                let number = last.number;
                drop(last);
                if !current.state.set_aside_shared() {
                    (self.log)("memory that two versions shared is in use and could not be set aside again");
                }
                Some(Changed::Dropped(number))
            }
        }
    }

    /// Refuses the heavy queries of clients that still wait for a slot, in all versions: the server stops.
    pub fn refuse_waiting(&self) {
        let open = lock(&self.open);
        let other = open.other.as_ref().map(|b| &b.version().server);
        other.into_iter().chain([&open.current.server]).for_each(|server| server.refuse_waiting());
    }

    /// Sets the address of another server, for all versions.
    pub fn set_peer(&self, server: u8, address: String) {
        let open = lock(&self.open);
        if let Some(known) = lock(&self.peers).get_mut(usize::from(server)) {
            known.clone_from(&address);
        }
        let other = open.other.as_ref().map(|b| &b.version().server);
        for server_of_version in other.into_iter().chain([&open.current.server]) {
            server_of_version.set_peer(server, address.clone());
        }
    }

    /// Status of the server: of the version that clients ask, with the sums over all open versions.
    pub fn status(&self) -> Status {
        let open = lock(&self.open);
        let mut status = open.current.server.status();
        status.version = (open.current.number > 0).then_some(open.current.number);
        let mut traffic = *lock(&self.past);
        if let Some(other) = &open.other {
            let version = other.version();
            let of_other = version.server.status();
            status.builds.push(of_other.build_id);
            status.waiting += of_other.waiting;
            status.in_flight += of_other.in_flight;
            // What both versions have is in memory once: the newer one has taken it from the older one.
            let newer = if let OtherVersion::Next(next, _) = other { next } else { &open.current };
            let shared = newer.server.state.index.index().shared_bytes();
            let bytes: u64 = of_other.memory.iter().filter(|c| c.0 != "program").map(|c| c.1).sum();
            status.memory.push((format!("version {}", version.number).into(), bytes.saturating_sub(shared)));
            add_traffic(&mut traffic, version);
        }
        status.bytes_sent += traffic.bytes;
        status.frames_sent += traffic.frames;
        status.writes += traffic.writes;
        status.dropped_frames += traffic.dropped;
        status.refused_frames += traffic.refused;
        status
    }

    fn note_traffic(&self, version: &ServedVersion) {
        add_traffic(&mut lock(&self.past), version);
    }
}

fn add_traffic(sum: &mut LinkTraffic, version: &ServedVersion) {
    let own = version.server.state.link.get().map_or_else(LinkTraffic::default, |link| link.traffic());
    sum.bytes += own.bytes;
    sum.frames += own.frames;
    sum.writes += own.writes;
    sum.dropped += own.dropped;
    sum.refused += own.refused;
}

/// Clients send vectors of one dimension and element type, and compare distances of one metric: a new version must not
/// change them.
fn check_vectors(number: u64, old: &Manifest, new: &Manifest) -> Result<()> {
    if old.vectors() == new.vectors() {
        return Ok(());
    }
    Err(Error::bad_input(format!(
        "version {number} holds vectors of {}, the one that is served of {}; restart the servers to serve it",
        new.vectors(),
        old.vectors()
    )))
}

impl Server {
    fn send_status(&self) {
        self.state.with_peer(|peer, _, out| peer.send_status(out));
    }

    fn is_ready(&self) -> bool {
        self.state.broken.get().is_none() && self.state.lock_peer().is_ready(&self.state.replica_sets)
    }

    fn drain(&self) {
        self.state.lock_peer().drain();
    }

    fn is_drained(&self) -> bool {
        lock(&self.state.clients).is_empty() && self.state.lock_peer().is_drained()
    }
}
