//! The members of a cluster and their addresses: keys in etcd that live as long as their servers do.
//!
//! | key | value |
//! |---|---|
//! | `/stratann/CLUSTER/servers/NN` | JSON: addresses of server NN for servers and for clients, and its build |
//! | `/stratann/CLUSTER/memory/NNN` | JSON: address of memory node NNN |
//! | `/stratann/CLUSTER/version` | number of the newest version in the store |
//!
//! The key of a server or memory node is under a lease: it expires a few seconds after its process. The version only
//! wakes the servers: the store decides.
//!
//! Entries of etcd can all be rebuilt, and nothing waits for them: without etcd a server continues with the addresses
//! that it knows, and logs so once. Connections notice a dead server sooner than a lease does.
//!
//! The protocol is JSON over HTTP (etcd's gateway, `/v3/…`), so that no gRPC library is needed.

use std::collections::BTreeMap;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use stratann_storage::error::quoted;
use stratann_storage::{Error, ErrorKind, Result};
use tokio::sync::watch;

/// A server, as its key describes it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// `HOST:PORT` for other servers.
    pub address: String,
    /// `HOST:PORT` for clients.
    pub http: String,
    /// Build of the index that it serves.
    pub build: String,
}

/// A memory node, as its key describes it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryMember {
    /// Address for compute nodes, in any form that they take.
    pub address: String,
}

/// The members of a cluster, as in etcd.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Members {
    /// Servers by number.
    pub servers: BTreeMap<u8, Member>,
    /// Memory nodes by number.
    pub memory: BTreeMap<u8, MemoryMember>,
    /// Newest version in the store, if announced.
    pub version: Option<u64>,
}

/// Addresses of etcd, and the name of the cluster.
#[derive(Clone)]
pub struct EtcdOptions {
    /// `http://HOST:PORT` of its members; the first that answers is used.
    pub endpoints: Vec<String>,
    /// Name of the cluster: letters, digits, dashes.
    pub cluster: String,
    /// Seconds after which the key of a silent server expires.
    pub lease_s: u64,
    /// Receives each line of the log.
    pub log: Arc<dyn Fn(&str) + Send + Sync>,
}

/// Between attempts to reach etcd.
const PAUSE: Duration = Duration::from_secs(1);
/// A request that takes longer has failed.
const TIMEOUT: Duration = Duration::from_secs(3);
/// Longest reply: the keys of all servers and memory nodes have a tenth of that.
const REPLY_BYTES_MAX: usize = 4 << 20;
/// Longest line of a watch.
const LINE_BYTES_MAX: usize = 1 << 20;
/// Longest value of a key that is taken: an entry has some hundred bytes.
const VALUE_BYTES_MAX: usize = 16 << 10;

/// A membership: a thread that keeps the key of a server or memory node alive, and watches those of the others.
/// Dropping it removes the key.
pub struct Membership {
    stop: watch::Sender<bool>,
    own: watch::Sender<String>,
    thread: Option<JoinHandle<()>>,
}

impl Membership {
    /// Announces server `number`, and calls `changed` with the members: once etcd answers, and at every change. Returns
    /// at once, whether or not etcd answers.
    ///
    /// # Errors
    /// An invalid name or address; a system without threads.
    pub fn join(
        options: EtcdOptions,
        number: u8,
        member: Member,
        changed: impl Fn(&Members) + Send + 'static,
    ) -> Result<Membership> {
        let (own, value) = watch::channel(text(&member)?);
        let mine = Own { key: options.key(number), address: member.address, value };
        Membership::start(options, mine, own, changed)
    }

    /// Announces memory node `number`. Returns at once, whether or not etcd answers.
    ///
    /// # Errors
    /// As [`Membership::join`].
    pub fn join_memory(options: EtcdOptions, number: u8, member: &MemoryMember) -> Result<Membership> {
        let (own, value) = watch::channel(text(member)?);
        let key = format!("{}memory/{number:03}", options.prefix());
        let mine = Own { key, address: member.address.clone(), value };
        Membership::start(options, mine, own, |_| {})
    }

    fn start(
        options: EtcdOptions,
        mine: Own,
        own: watch::Sender<String>,
        changed: impl Fn(&Members) + Send + 'static,
    ) -> Result<Membership> {
        options.check()?;
        let (stop, stopped) = watch::channel(false);
        let runtime = crate::runtime()?;
        let thread = std::thread::spawn(move || runtime.block_on(stay(options, mine, stopped, changed)));
        Ok(Membership { stop, own, thread: Some(thread) })
    }

    /// Changes the entry of this server.
    ///
    /// # Errors
    /// A value that cannot be written as JSON.
    pub fn update(&self, member: &Member) -> Result<()> {
        // The thread that keeps the key ends only with this struct.
        let _ = self.own.send(text(member)?);
        Ok(())
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        let _ = self.stop.send(true);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl EtcdOptions {
    fn check(&self) -> Result<()> {
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        if self.cluster.is_empty() || !self.cluster.chars().all(is_name) {
            return Err(Error::bad_input(format!(
                "{:?} is no name of a cluster; use letters, digits and dashes",
                self.cluster
            )));
        }
        match self.endpoints.iter().find(|e| !e.starts_with("http://") && !e.starts_with("https://")) {
            Some(bad) => {
                Err(Error::bad_input(format!("{bad:?} is no address of etcd; write http://HOST:PORT")))
            }
            None if self.endpoints.is_empty() => {
                Err(Error::bad_input("no address of etcd is given; write http://HOST:PORT"))
            }
            None => Ok(()),
        }
    }

    fn prefix(&self) -> String {
        format!("/stratann/{}/", self.cluster)
    }

    fn key(&self, number: u8) -> String {
        format!("{}servers/{number:02}", self.prefix())
    }

    /// Claims the lowest number below `servers` that no server has. A thread keeps the claim alive, for example while
    /// the server's files are fetched, until the claim is dropped.
    ///
    /// # Errors
    /// An etcd that does not answer; no free number.
    pub fn claim(&self, servers: usize) -> Result<Claim> {
        self.check()?;
        let runtime = crate::runtime()?;
        let (sender, claimed) = std::sync::mpsc::channel();
        let (stop, stopped) = watch::channel(false);
        let options = self.clone();
        let thread = std::thread::spawn(move || runtime.block_on(hold(&options, servers, &sender, stopped)));
        let answer = claimed
            .recv()
            .map_err(|_| Error { kind: ErrorKind::Io, message: "the client of etcd ended".into() })?;
        let holder = Membership { stop, own: watch::channel(String::new()).0, thread: Some(thread) };
        answer.map(|number| Claim { number, _holder: holder })
    }

    /// Returns the members that are announced now.
    ///
    /// # Errors
    /// An etcd that does not answer.
    pub fn members(&self) -> Result<Members> {
        self.check()?;
        let runtime = crate::runtime()?;
        let read = async { Etcd::reach(self).await?.0.members(self).await };
        let found = runtime.block_on(read);
        found
            .map(|(members, _)| members)
            .map_err(|why| Error { kind: ErrorKind::Io, message: format!("etcd: {why}; check that it runs") })
    }

    /// Announces version `number` to all servers.
    ///
    /// # Errors
    /// An etcd that does not answer: servers find the version when they poll the store.
    pub fn announce_version(&self, number: u64) -> Result<()> {
        self.check()?;
        let runtime = crate::runtime()?;
        runtime
            .block_on(async {
                let (etcd, _) = Etcd::reach(self).await?;
                let key = format!("{}version", self.prefix());
                etcd.call("kv/put", &json!({ "key": code(&key), "value": code(&number.to_string()) }))
                    .await
                    .map(|_| ())
            })
            .map_err(|why| Error { kind: ErrorKind::Io, message: format!("etcd: {why}; check that it runs") })
    }
}

/// The entry of this server or memory node.
struct Own {
    key: String,
    address: String,
    value: watch::Receiver<String>,
}

impl Own {
    /// Name of the entry in the log.
    fn name(&self) -> String {
        let mut parts = self.key.rsplit('/');
        let number = parts.next().map_or("", |number| number.trim_start_matches('0'));
        let kind = if parts.next() == Some("memory") { "memory node" } else { "server" };
        format!("{kind} {}", if number.is_empty() { "0" } else { number })
    }
}

/// The value of a member's key.
fn text(member: &impl Serialize) -> Result<String> {
    serde_json::to_string(member).map_err(|e| Error::bad_input(e.to_string()))
}

/// A number that no other server can claim.
pub struct Claim {
    /// The number.
    pub number: u8,
    _holder: Membership,
}

/// A result whose error is a description.
type Described<T> = std::result::Result<T, String>;

/// One member of etcd, over HTTP.
struct Etcd {
    client: reqwest::Client,
    endpoint: String,
}

fn code(text: &str) -> String {
    STANDARD.encode(text)
}

fn decode(value: &Value) -> Option<String> {
    String::from_utf8(STANDARD.decode(value.as_str()?).ok()?).ok()
}

/// etcd writes 64-bit numbers as strings.
fn number(value: &Value) -> Option<u64> {
    value.as_u64().or_else(|| value.as_str()?.parse().ok())
}

impl Etcd {
    /// Returns the first endpoint that answers, and the revision of its data.
    async fn reach(options: &EtcdOptions) -> Described<(Etcd, u64)> {
        crate::install_cryptography();
        let client =
            reqwest::Client::builder().connect_timeout(TIMEOUT).build().map_err(|e| e.to_string())?;
        let mut why = String::new();
        for endpoint in &options.endpoints {
            let etcd = Etcd { client: client.clone(), endpoint: endpoint.trim_end_matches('/').to_string() };
            let asked = json!({ "key": code(&options.prefix()), "count_only": true });
            match etcd.call("kv/range", &asked).await {
                Ok(answer) => return Ok((etcd, number(&answer["header"]["revision"]).unwrap_or(0))),
                Err(e) => why = e,
            }
        }
        Err(why)
    }

    async fn call(&self, path: &str, body: &Value) -> Described<Value> {
        let request =
            self.client.post(format!("{}/v3/{path}", self.endpoint)).timeout(TIMEOUT).body(body.to_string());
        let response = request.send().await.map_err(|e| self.describe(&e))?;
        let status = response.status();
        let body = self.body(response).await?;
        let value: Value = serde_json::from_slice(body.split(|&b| b == b'\n').next().unwrap_or_default())
            .map_err(|_| format!("{} answers what etcd would not ({status})", self.endpoint))?;
        match value["error"].as_str().or(value["error"]["message"].as_str()) {
            Some(error) => Err(format!("{} says: {}", self.endpoint, quoted(error))),
            None if status.is_success() => Ok(value),
            None => Err(format!("{} answers {status}", self.endpoint)),
        }
    }

    /// Reads a whole reply; its time is that of the request.
    async fn body(&self, mut response: reqwest::Response) -> Described<Vec<u8>> {
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(|e| self.describe(&e))? {
            if body.len() + chunk.len() > REPLY_BYTES_MAX {
                return Err(format!("{} sends a reply of more than {REPLY_BYTES_MAX} bytes", self.endpoint));
            }
            body.extend_from_slice(&chunk);
        }
        Ok(body)
    }

    fn describe(&self, error: &reqwest::Error) -> String {
        let mut all = format!("{} does not answer", self.endpoint);
        let mut source = std::error::Error::source(error);
        while let Some(cause) = source {
            all = format!("{all}: {}", quoted(&cause.to_string()));
            source = cause.source();
        }
        all
    }

    async fn grant(&self, seconds: u64) -> Described<u64> {
        let answer = self.call("lease/grant", &json!({ "TTL": seconds.to_string() })).await?;
        number(&answer["ID"]).ok_or_else(|| "a lease without a number".into())
    }

    /// Fails when the lease has expired.
    async fn keep_alive(&self, lease: u64) -> Described<()> {
        let answer = self.call("lease/keepalive", &json!({ "ID": lease.to_string() })).await?;
        match number(&answer["result"]["TTL"]) {
            Some(seconds) if seconds > 0 => Ok(()),
            _ => Err("the lease has ended".into()),
        }
    }

    async fn revoke(&self, lease: u64) {
        // If this fails, the lease expires by itself.
        let _ = self.call("lease/revoke", &json!({ "ID": lease.to_string() })).await;
    }

    /// Creates a key under a lease. False when it exists.
    async fn create(&self, key: &str, value: &str, lease: u64) -> Described<bool> {
        let asked = json!({
            "compare": [{ "key": code(key), "target": "CREATE", "create_revision": "0" }],
            "success": [{ "request_put": { "key": code(key), "value": code(value), "lease": lease.to_string() } }],
        });
        Ok(self.call("kv/txn", &asked).await?["succeeded"].as_bool().unwrap_or(false))
    }

    /// Reads all keys of a cluster, and their revision.
    async fn members(&self, options: &EtcdOptions) -> Described<(Members, u64)> {
        let answer = self.call("kv/range", &range(options)).await?;
        let mut members = Members::default();
        for kv in answer["kvs"].as_array().into_iter().flatten() {
            members.put(options, kv, false);
        }
        Ok((members, number(&answer["header"]["revision"]).unwrap_or(0)))
    }
}

/// The keys of a cluster: from its prefix up to the next string that does not begin with it.
fn range(options: &EtcdOptions) -> Value {
    let prefix = options.prefix();
    let end = format!("{}0", prefix.trim_end_matches('/'));
    json!({ "key": code(&prefix), "range_end": code(&end) })
}

impl Members {
    /// Applies one key; an invalid key is ignored.
    fn put(&mut self, options: &EtcdOptions, kv: &Value, is_gone: bool) {
        let Some(key) = decode(&kv["key"]) else { return };
        let Some(name) = key.strip_prefix(&options.prefix()) else { return };
        let value = decode(&kv["value"]).filter(|value| !is_gone && value.len() <= VALUE_BYTES_MAX);
        if name == "version" {
            self.version = value.and_then(|v| v.parse().ok());
        } else if let Some(server) = name.strip_prefix("servers/").and_then(|n| n.parse().ok()) {
            set(&mut self.servers, server, value);
        } else if let Some(node) = name.strip_prefix("memory/").and_then(|n| n.parse().ok()) {
            set(&mut self.memory, node, value);
        }
    }

    /// The address under a key of a server or memory node.
    fn address_of(&self, options: &EtcdOptions, key: &str) -> Option<&str> {
        let name = key.strip_prefix(&options.prefix())?;
        let (room, number) = name.split_once('/')?;
        let number = number.parse().ok()?;
        match room {
            "memory" => self.memory.get(&number).map(|node| node.address.as_str()),
            _ => self.servers.get(&number).map(|server| server.address.as_str()),
        }
    }
}

/// Takes over the value of one key; one that cannot be read counts as gone.
fn set<M: serde::de::DeserializeOwned>(all: &mut BTreeMap<u8, M>, number: u8, value: Option<String>) {
    match value.and_then(|v| serde_json::from_str(&v).ok()) {
        Some(member) => all.insert(number, member),
        None => all.remove(&number),
    };
}

/// Holds the lowest free number until it is stopped.
async fn hold(
    options: &EtcdOptions,
    servers: usize,
    claimed: &Sender<Result<u8>>,
    mut stopped: watch::Receiver<bool>,
) {
    let taken = async {
        let (etcd, _) = Etcd::reach(options).await?;
        let lease = etcd.grant(options.lease_s).await?;
        for server in 0..servers.min(64) as u8 {
            // The key of the claim differs from that of the server, which has an address once the server runs.
            let key = format!("{}claims/{server:02}", options.prefix());
            let is_free = !etcd.members(options).await?.0.servers.contains_key(&server);
            if is_free && etcd.create(&key, "claimed", lease).await? {
                return Ok(Some((etcd, lease, server)));
            }
        }
        etcd.revoke(lease).await;
        Ok::<_, String>(None)
    };
    let (etcd, lease, server) = match taken.await {
        Ok(Some(taken)) => taken,
        Ok(None) => {
            let _ = claimed.send(Err(Error::bad_input(format!(
                "all {servers} servers of the cluster are there already"
            ))));
            return;
        }
        Err(why) => {
            let _ = claimed.send(Err(Error {
                kind: ErrorKind::Io,
                message: format!("etcd: {why}; check that it runs, or set server"),
            }));
            return;
        }
    };
    let _ = claimed.send(Ok(server));
    let every = Duration::from_secs(options.lease_s) / 3;
    while tokio::time::timeout(every, stopped.changed()).await.is_err() {
        let _ = etcd.keep_alive(lease).await;
    }
    etcd.revoke(lease).await;
}

/// Announces and watches, again and again, until it is stopped.
async fn stay(
    options: EtcdOptions,
    own: Own,
    mut stopped: watch::Receiver<bool>,
    changed: impl Fn(&Members),
) {
    let known = Mutex::new(None);
    // Unchanged members are reported once, however often etcd is read.
    let tell = |members: &Members| {
        let mut known = known.lock().unwrap_or_else(|e| e.into_inner());
        if known.as_ref() != Some(members) {
            changed(members);
            *known = Some(members.clone());
        }
    };
    let mut logged = String::new();
    loop {
        let mut session = std::pin::pin!(session(&options, &own, &tell, stopped.clone()));
        let why = tokio::select! {
            why = &mut session => why,
            _ = stopped.wait_for(|stop| *stop) => {
                // It takes back its key.
                let _ = tokio::time::timeout(PAUSE, session).await;
                return;
            }
        };
        match why {
            Ok(()) => return,
            Err(why) if why != logged => {
                (options.log)(&format!("etcd: {why}; serving on with what is known"));
                logged = why;
            }
            Err(_) => {}
        }
        if tokio::time::timeout(PAUSE, stopped.wait_for(|stop| *stop)).await.is_ok() {
            return;
        }
    }
}

/// One lease, from its beginning to its end, or until stopped.
async fn session(
    options: &EtcdOptions,
    own: &Own,
    changed: &impl Fn(&Members),
    mut stopped: watch::Receiver<bool>,
) -> Described<()> {
    let (etcd, _) = Etcd::reach(options).await?;
    let (members, _) = etcd.members(options).await?;
    changed(&members);
    if let Some(other) = members.address_of(options, &own.key).filter(|other| *other != own.address) {
        // An earlier process of this number, or another one that took it after its lease had expired.
        return Err(format!(
            "{} is at {other} already, and this one says nothing there until that key goes; stop one of the two",
            own.name()
        ));
    }
    let lease = etcd.grant(options.lease_s).await?;
    let (key, mut value) = (own.key.clone(), own.value.clone());
    let put = |value: &str| json!({ "key": code(&key), "value": code(value), "lease": lease.to_string() });
    let first = put(&value.borrow_and_update());
    etcd.call("kv/put", &first).await?;
    let (members, revision) = etcd.members(options).await?;
    changed(&members);
    let keeping = async {
        let every = Duration::from_secs(options.lease_s) / 3;
        loop {
            let is_new = tokio::time::timeout(every, value.changed()).await.is_ok_and(|c| c.is_ok());
            let sent = match is_new {
                true => {
                    let entry = put(&value.borrow_and_update());
                    etcd.call("kv/put", &entry).await.map(|_| ())
                }
                false => etcd.keep_alive(lease).await,
            };
            if let Err(why) = sent {
                return why;
            }
        }
    };
    let ended = tokio::select! {
        why = keeping => Err(why),
        why = watch_keys(&etcd, options, members, revision, changed) => Err(why),
        _ = stopped.wait_for(|stop| *stop) => Ok(()),
    };
    etcd.revoke(lease).await;
    ended
}

/// Watches the keys of the cluster from a revision on. Returns when the stream ends.
async fn watch_keys(
    etcd: &Etcd,
    options: &EtcdOptions,
    mut members: Members,
    revision: u64,
    changed: &impl Fn(&Members),
) -> String {
    let mut create = range(options);
    create["start_revision"] = (revision + 1).to_string().into();
    let request = etcd.client.post(format!("{}/v3/watch", etcd.endpoint));
    let sent = request.body(json!({ "create_request": create }).to_string()).send();
    let mut response = match tokio::time::timeout(TIMEOUT, sent).await {
        Ok(Ok(response)) => response,
        Ok(Err(e)) => return etcd.describe(&e),
        Err(_) => return format!("{} does not begin the watch", etcd.endpoint),
    };
    let mut line = Vec::new();
    loop {
        match response.chunk().await {
            Ok(Some(chunk)) => line.extend_from_slice(&chunk),
            Ok(None) => return format!("{} ended the watch", etcd.endpoint),
            Err(e) => return etcd.describe(&e),
        }
        // One answer a line; a line may come in parts.
        while let Some(end) = line.iter().position(|&b| b == b'\n') {
            let rest = line.split_off(end + 1);
            let answer: Value = serde_json::from_slice(&line).unwrap_or_default();
            line = rest;
            if answer["result"]["canceled"].as_bool() == Some(true) {
                return format!("{} cancelled the watch", etcd.endpoint);
            }
            for event in answer["result"]["events"].as_array().into_iter().flatten() {
                members.put(options, &event["kv"], event["type"] == "DELETE");
            }
            changed(&members);
        }
        if line.len() > LINE_BYTES_MAX {
            return format!("{} sends lines without end", etcd.endpoint);
        }
    }
}
