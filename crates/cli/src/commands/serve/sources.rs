//! Where a server's index comes from, and who its peers are, when a folder and a list in the file are not all.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

use stratann_cluster::membership::{Claim, EtcdOptions, Member, Members, Membership};
use stratann_cluster::store::{Store, drop_others};
use stratann_engine::serve::{ServeOptions, Server};
use stratann_engine::{Error, Quiet, Result};
use stratann_server::Log;

/// Keys of the file of options that concern this.
#[derive(Clone, Debug, Default)]
pub(super) struct Sources {
    /// `s3://BUCKET/PREFIX` or a folder that all servers read.
    pub(super) store: Option<String>,
    /// Where what comes from the store is kept.
    pub(super) data: Option<PathBuf>,
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

    /// Takes a number from etcd when none was set, fetches what that server needs of the newest version in the store, and completes the
    /// options with it.
    pub(super) fn complete(
        &self,
        options: &mut ServeOptions,
        etcd: Option<&EtcdOptions>,
        folder: &Path,
    ) -> Result<Option<Claim>> {
        let Some(place) = &self.store else {
            return match &self.data {
                Some(_) => Err(Error::bad_input(
                    "data is where an index from a store is kept; set store, or leave data out",
                )),
                None => Ok(None),
            };
        };
        let Some(data) = &self.data else {
            return Err(Error::bad_input("an index from a store needs a folder on this machine; set data"));
        };
        // What looks like an address is one; a folder is relative to the file, as all others are.
        let place = match place.contains("://") {
            true => place.clone(),
            false => folder.join(place).display().to_string(),
        };
        let store = Store::open(&place)?;
        let servers = store.newest()?.and_then(|(_, manifest)| manifest.cluster).map(|c| c.servers);
        let claim = match (options.server, servers, etcd) {
            (None, Some(servers), Some(etcd)) => Some(etcd.claim(servers)?),
            _ => None,
        };
        options.server = options.server.or(claim.as_ref().map(|c| c.number));
        let home = folder.join(data);
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
        if let (Some(servers), true, true) = (servers, options.peers.is_empty(), etcd.is_some()) {
            options.peers = vec![String::new(); servers];
        }
        Ok(claim)
    }

    /// Announces a running server in etcd and lets it hear of the others.
    pub(super) fn join(&self, etcd: EtcdOptions, server: &Arc<Server>, http: &str) -> Result<Membership> {
        let listening = server.listening().map(|a| a.to_string()).unwrap_or_default();
        let build = server.manifest().build_id.clone();
        let own = Member {
            address: self.advertise.clone().unwrap_or(listening),
            http: http.to_string(),
            build: build.clone(),
        };
        let (number, server): (u8, Weak<Server>) = (server.status().server, Arc::downgrade(server));
        let changed = move |members: &Members| {
            let Some(server) = server.upgrade() else { return };
            for (&other, member) in members.servers.iter().filter(|(n, m)| **n != number && m.build == build)
            {
                server.set_peer(other, member.address.clone());
            }
        };
        Membership::join(etcd, number, own, changed)
    }
}
