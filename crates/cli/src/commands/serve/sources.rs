//! Where a server's index comes from, and who its peers are, when a folder and a list in the file are not all.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use stratann_cluster::membership::{Claim, EtcdOptions, Member, Members, Membership};
use stratann_cluster::store::{Store, drop_others};
use stratann_engine::manifest::Manifest;
use stratann_engine::serve::{ServeOptions, Versions};
use stratann_engine::spread::scatter;
use stratann_engine::{Error, Quiet, Result};
use stratann_server::Log;

use super::watch::{Watch, Watched};

/// Keys of the file of options that concern this.
#[derive(Clone, Debug, Default)]
pub(super) struct Sources {
    /// `s3://BUCKET/PREFIX` or a folder that all servers read.
    pub(super) store: Option<String>,
    /// Where what comes from the store is kept.
    pub(super) data: Option<PathBuf>,
    /// Seconds between two looks for a new version; 0 for none.
    pub(super) poll_s: u64,
    /// `http://HOST:PORT` of etcd's members.
    pub(super) etcd: Vec<String>,
    /// Name of the cluster in etcd.
    pub(super) cluster: Option<String>,
    /// Where the other servers reach this one, when it is not `listen`.
    pub(super) advertise: Option<String>,
}

/// Seconds after which etcd forgets a silent server.
const LEASE_S: u64 = 5;

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

    /// Takes a number from etcd when none was set, fetches what that server needs of the newest version in the store, if there is a store, and
    /// completes the options with it. Gives the number of that version too, or 0.
    pub(super) fn complete(
        &self,
        options: &mut ServeOptions,
        etcd: Option<&EtcdOptions>,
        folder: &Path,
    ) -> Result<(Option<Claim>, u64)> {
        let Some((place, home)) = self.place(folder)? else {
            let servers = etcd.map(|_| servers_of(&options.index)).transpose()?.flatten();
            return number_from(etcd, servers, options).map(|claim| (claim, 0));
        };
        let store = Store::open(&place)?;
        let servers = store.newest()?.and_then(|(_, manifest)| manifest.cluster).map(|c| c.servers);
        let claim = number_from(etcd, servers, options)?;
        (options.log)(&format!("looking for a new version in {place}"));
        // What an interrupted download has brought is kept, so it needs no care of its own.
        let fetched = store.fetch(&home, options.server, &Quiet)?;
        (options.log)(&format!(
            "version {} of {place}: {} bytes downloaded to {}",
            fetched.number,
            fetched.downloaded_bytes,
            fetched.folder.display()
        ));
        // This process serves the new build, and no other uses this folder.
        drop_others(&home, &fetched.folder)?;
        options.index = fetched.folder;
        options.log = of_version(fetched.number, &options.log);
        Ok((claim, fetched.number))
    }

    /// Looks for new versions in the store, when there is one, and lets the server change to them.
    pub(super) fn watch(
        &self,
        versions: &Arc<Versions>,
        (folder, log): (&Path, Log),
        changed: impl Fn() + Send + 'static,
    ) -> Result<Option<Watch>> {
        let Some((place, home)) = self.place(folder)?.filter(|_| self.poll_s > 0) else { return Ok(None) };
        let server = versions.current().manifest().cluster.is_some().then(|| versions.status().server);
        let every = Duration::from_secs(self.poll_s);
        let watched = Watched { place, home, server, every, versions: Arc::clone(versions), log };
        Watch::start(watched, changed).map(Some)
    }

    /// Announces a running server in etcd and lets it hear of the others; `wake` is called when a new version is announced.
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
            build: versions.newest_build(),
        };
        let (number, versions): (u8, Weak<Versions>) = (versions.status().server, Arc::downgrade(versions));
        let known = AtomicU64::new(0);
        let changed = move |members: &Members| {
            let Some(versions) = versions.upgrade() else { return };
            // Whatever builds they serve: which connections are for which, the greeting says.
            for (&other, member) in members.servers.iter().filter(|(n, _)| **n != number) {
                versions.set_peer(other, member.address.clone());
            }
            if members.version.is_some_and(|v| known.swap(v, Ordering::Relaxed) != v) {
                wake();
            }
        };
        Ok((Membership::join(etcd, number, own.clone(), changed)?, own))
    }

    /// The store, and where its versions are kept here.
    fn place(&self, folder: &Path) -> Result<Option<(String, PathBuf)>> {
        match (&self.store, &self.data) {
            (None, None) => Ok(None),
            (None, Some(_)) => Err(Error::bad_input(
                "data is where an index from a store is kept; set store, or leave data out",
            )),
            (Some(_), None) => {
                Err(Error::bad_input("an index from a store needs a folder on this machine; set data"))
            }
            (Some(store), Some(data)) => {
                // What looks like an address is one; a folder is relative to the file, as all others are.
                let place = match store.contains("://") {
                    true => store.clone(),
                    false => folder.join(store).display().to_string(),
                };
                Ok(Some((place, folder.join(data))))
            }
        }
    }
}

/// Servers that an index is spread over, when it is.
fn servers_of(index: &Path) -> Result<Option<usize>> {
    match scatter::is_apart(index) {
        true => Ok(Some(scatter::describe(index)?.servers)),
        false => Ok(Manifest::read(index)?.1.cluster.map(|c| c.servers)),
    }
}

/// Completes what etcd is to tell: this server's number, when none was set, and room for the addresses of the others.
fn number_from(
    etcd: Option<&EtcdOptions>,
    servers: Option<usize>,
    options: &mut ServeOptions,
) -> Result<Option<Claim>> {
    let (Some(etcd), Some(servers)) = (etcd, servers) else { return Ok(None) };
    let claim = match options.server {
        None => Some(etcd.claim(servers)?),
        Some(_) => None,
    };
    options.server = options.server.or(claim.as_ref().map(|c| c.number));
    if options.peers.is_empty() {
        options.peers = vec![String::new(); servers];
    }
    Ok(claim)
}

/// A log whose lines say of which version they are.
fn of_version(number: u64, log: &Log) -> Log {
    let log = Arc::clone(log);
    Arc::new(move |line: &str| log(&format!("version {number}: {line}")))
}
