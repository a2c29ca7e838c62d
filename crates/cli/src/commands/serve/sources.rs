//! Source of a server's index and peers: a store and etcd.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use stratann_cluster::membership::{Claim, EtcdOptions, Member, Members, Membership};
use stratann_cluster::store::{Here, Store, drop_others, newest_fetched, only_part};
use stratann_engine::manifest::Manifest;
use stratann_engine::serve::{ServeOptions, Versions};
use stratann_engine::spread::scatter;
use stratann_params::serve::ServeSettings;
use stratann_server::Log;
use stratann_storage::{Error, ErrorKind, Quiet, Result};

use super::watch::{Watch, Watched};

/// Keys of the file of options for stores and etcd.
#[derive(Clone, Debug, Default)]
pub(super) struct Sources {
    /// `s3://BUCKET/PREFIX` or a folder that all servers read.
    pub(super) store: Option<String>,
    /// Folder for files that were fetched from the store.
    pub(super) data: Option<PathBuf>,
    /// Seconds between two checks for a new version; 0 for none.
    pub(super) poll_s: u64,
    /// `http://HOST:PORT` of etcd's members.
    pub(super) etcd: Vec<String>,
    /// Name of the cluster in etcd.
    pub(super) cluster: Option<String>,
    /// Address at which the other servers reach this one, when it is not `listen`.
    pub(super) advertise: Option<String>,
}

/// Seconds after which etcd forgets a server that does not respond.
const LEASE_S: u64 = 5;

impl From<&ServeSettings> for Sources {
    fn from(settings: &ServeSettings) -> Sources {
        Sources {
            store: settings.store.clone(),
            data: settings.data.clone(),
            poll_s: settings.poll_s,
            etcd: settings.etcd.clone(),
            cluster: settings.cluster.clone(),
            advertise: settings.advertise.clone(),
        }
    }
}

impl Sources {
    /// Etcd, when it is configured.
    pub(super) fn etcd(&self, log: &Log) -> Result<Option<EtcdOptions>> {
        match (&self.cluster, self.etcd.is_empty()) {
            (Some(cluster), false) => Ok(Some(EtcdOptions {
                endpoints: self.etcd.clone(),
                cluster: cluster.clone(),
                lease_s: LEASE_S,
                log: Arc::clone(log),
            })),
            (None, true) => Ok(None),
            _ => Err(Error::bad_input(
                "etcd needs its addresses and the name of the cluster; set both etcd and cluster",
            )),
        }
    }

    /// Reserves a number in etcd if none was set, fetches this server's files of the newest version from the store, if
    /// there is one, and completes the options with them. Returns the number of that version, or 0.
    ///
    /// A server whose files are here starts without store and etcd, and asks for both again while it serves.
    pub(super) fn complete(
        &self,
        options: &mut ServeOptions,
        etcd: Option<&EtcdOptions>,
        folder: &Path,
    ) -> Result<(Option<Claim>, u64)> {
        let Some((place, home)) = self.place(folder)? else {
            let here = Manifest::read(&options.index).ok();
            let part = here.and_then(|(_, manifest)| only_part(&options.index, &manifest));
            let servers = etcd.map(|_| servers_of(&options.index)).transpose()?.flatten();
            return number_from(etcd, servers, part, options).map(|claim| (claim, 0));
        };
        let (claim, number) = match self.fetched(&place, &home, options, etcd) {
            Ok(fetched) => fetched,
            Err(e) => self.fetched_before(&home, options, etcd, e)?,
        };
        options.log = of_version(number, &options.log);
        Ok((claim, number))
    }

    /// Fetches the newest version from the store.
    fn fetched(
        &self,
        place: &str,
        home: &Path,
        options: &mut ServeOptions,
        etcd: Option<&EtcdOptions>,
    ) -> Result<(Option<Claim>, u64)> {
        let store = Store::open(place)?;
        let servers = store.newest()?.and_then(|(_, version)| version.servers());
        let part = newest_fetched(home, options.server)?.and_then(|here| here.server);
        let claim = number_from(etcd, servers, part, options)?;
        (options.log)(&format!("checking {place} for a new version"));
        // Files of an interrupted download are kept and reused.
        let fetched = store.fetch(home, options.server, &Quiet)?;
        fetched.warning.iter().for_each(|warning| (options.log)(&format!("warning: {warning}")));
        (options.log)(&format!(
            "version {} of {place} is in {}: {}",
            fetched.number,
            fetched.folder.display(),
            fetched.text()
        ));
        // This process serves the new build, and no other uses this folder.
        drop_others(home, &fetched.folder)?;
        options.index = fetched.folder;
        Ok((claim, fetched.number))
    }

    /// Uses the newest version that was fetched before, as the store failed with `error`.
    fn fetched_before(
        &self,
        home: &Path,
        options: &mut ServeOptions,
        etcd: Option<&EtcdOptions>,
        error: Error,
    ) -> Result<(Option<Claim>, u64)> {
        let Some(Here { number, folder: index, servers, server }) = newest_fetched(home, options.server)?
        else {
            return Err(error);
        };
        let claim = number_from(etcd, servers, server, options)?;
        (options.log)(&format!(
            "warning: {}; version {number} in {} is served until the store answers",
            error.message,
            index.display()
        ));
        options.index = index;
        Ok((claim, number))
    }

    /// Checks the store for new versions, when there is one, and lets the server change to them.
    pub(super) fn watch(
        &self,
        versions: &Arc<Versions>,
        (folder, log): (&Path, Log),
        changed: impl Fn() + Send + 'static,
    ) -> Result<Option<Watch>> {
        let Some((place, home)) = self.place(folder)?.filter(|_| self.poll_s > 0) else { return Ok(None) };
        let status = versions.status();
        let server = (status.servers > 1).then_some(status.server);
        let every = Duration::from_secs(self.poll_s);
        let watched = Watched { place, home, server, every, versions: Arc::clone(versions), log };
        Watch::start(watched, changed).map(Some)
    }

    /// Registers a running server in etcd and receives changes of the others; `wake` is called when a new version is
    /// announced.
    pub(super) fn join(
        &self,
        etcd: EtcdOptions,
        versions: &Arc<Versions>,
        http: &str,
        wake: impl Fn() + Send + 'static,
    ) -> Result<(Membership, Member)> {
        let listening = versions.current().listening().map(|a| a.to_string()).unwrap_or_default();
        let own = Member {
            address: self.advertise.clone().unwrap_or(listening),
            http: http.to_string(),
            build: versions.newest_build().to_string(),
        };
        let (number, versions): (u8, Weak<Versions>) = (versions.status().server, Arc::downgrade(versions));
        let known = AtomicU64::new(0);
        let changed = move |members: &Members| {
            let Some(versions) = versions.upgrade() else { return };
            // The greeting distinguishes connections of different builds.
            for (&other, member) in members.servers.iter().filter(|(n, _)| **n != number) {
                versions.set_peer(other, member.address.clone());
            }
            if members.version.is_some_and(|v| known.swap(v, Ordering::Relaxed) != v) {
                wake();
            }
        };
        Ok((Membership::join(etcd, number, own.clone(), changed)?, own))
    }

    /// Opens the store, and the folder that keeps its versions.
    fn place(&self, folder: &Path) -> Result<Option<(String, PathBuf)>> {
        match (&self.store, &self.data) {
            (None, None) => Ok(None),
            (None, Some(_)) => Err(Error::bad_input(
                "data is the folder for an index from a store; set store, or leave data out",
            )),
            (Some(_), None) => {
                Err(Error::bad_input("an index from a store needs a folder on this machine; set data"))
            }
            (Some(store), Some(data)) => {
                // A URL is an address; a folder is relative to the file, like all others.
                let place = match store.contains("://") {
                    true => store.clone(),
                    false => folder.join(store).display().to_string(),
                };
                Ok(Some((place, data.clone())))
            }
        }
    }
}

/// Number of servers that an index is partitioned over.
fn servers_of(index: &Path) -> Result<Option<usize>> {
    match scatter::is_apart(index) {
        true => Ok(Some(scatter::describe(index)?.servers)),
        false => Ok(Manifest::read(index)?.1.spread.map(|c| c.servers)),
    }
}

/// Completes what etcd provides: this server's number, if none was set, and space for the addresses of the others. When
/// etcd does not answer, the number is that of the server whose part is here, `part`.
fn number_from(
    etcd: Option<&EtcdOptions>,
    servers: Option<usize>,
    part: Option<usize>,
    options: &mut ServeOptions,
) -> Result<Option<Claim>> {
    let (Some(etcd), Some(servers)) = (etcd, servers) else { return Ok(None) };
    let claim = match (options.server, part.and_then(|part| u8::try_from(part).ok())) {
        (Some(_), _) => None,
        (None, part) => match (etcd.claim(servers), part) {
            (Err(e), Some(part)) if e.kind == ErrorKind::Io => {
                (options.log)(&format!(
                    "warning: {}; this is server {part}, by the files that are here",
                    e.message
                ));
                options.server = Some(part);
                None
            }
            (claimed, _) => Some(claimed?),
        },
    };
    options.server = options.server.or(claim.as_ref().map(|c| c.number));
    if options.peers.is_empty() {
        options.peers = vec![String::new(); servers];
    }
    Ok(claim)
}

/// Returns a log that prefixes its lines with the version.
fn of_version(number: u64, log: &Log) -> Log {
    let log = Arc::clone(log);
    Arc::new(move |line: &str| log(&format!("version {number}: {line}")))
}
