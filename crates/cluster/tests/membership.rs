//! Membership against a real etcd, where the program `etcd` is installed.

use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use stratann_cluster::membership::{EtcdOptions, Member, Members, Membership, MemoryMember};
use stratann_testing::etcd::Etcd;
use tempfile::TempDir;

const PATIENCE: Duration = Duration::from_secs(30);

/// An etcd, and the folder of its data; `None` where the program is not installed.
fn start() -> Option<(Etcd, TempDir)> {
    let folder = tempfile::tempdir().unwrap();
    Some((Etcd::start(folder.path().join("data"))?, folder))
}

fn options(etcd: &Etcd, said: &Arc<Mutex<Vec<String>>>) -> EtcdOptions {
    let said = said.clone();
    EtcdOptions {
        endpoints: vec!["http://127.0.0.1:9".into(), etcd.url()],
        cluster: "tests".into(),
        lease_s: 2,
        log: Arc::new(move |line| said.lock().unwrap().push(line.into())),
    }
}

fn member(port: u16) -> Member {
    Member { address: format!("127.0.0.1:{port}"), http: "127.0.0.1:80".into(), build: "b".into() }
}

fn join(options: EtcdOptions, number: u8) -> (Membership, Receiver<Members>) {
    let (sender, news) = channel();
    let tell = move |members: &Members| drop(sender.send(members.clone()));
    (Membership::join(options, number, member(1000 + u16::from(number)), tell).unwrap(), news)
}

/// Waits for news in which exactly these servers are there.
fn until(news: &Receiver<Members>, servers: &[u8]) -> Members {
    loop {
        let members = news.recv_timeout(PATIENCE).expect("news come");
        if members.servers.keys().eq(servers) {
            return members;
        }
    }
}

#[test]
fn servers_join_and_leave_and_all_others_are_notified() {
    let Some((mut etcd, folder)) = start() else { return };
    let said = Arc::default();
    let (first, heard) = join(options(&etcd, &said), 0);
    until(&heard, &[0]);
    let (second, other) = join(options(&etcd, &said), 1);
    assert_eq!(until(&other, &[0, 1]).servers[&0], member(1000));
    assert_eq!(until(&heard, &[0, 1]).servers[&1], member(1001));
    options(&etcd, &said).announce_version(7).unwrap();
    assert_eq!(heard.recv_timeout(PATIENCE).unwrap().version, Some(7));
    // A server that changes to another build updates its key.
    first.update(&Member { build: "c".into(), ..member(1000) }).unwrap();
    while other.recv_timeout(PATIENCE).expect("news come").servers[&0].build != "c" {}
    until(&heard, &[0, 1]);
    // An orderly end takes the key at once.
    drop(second);
    until(&heard, &[0]);

    // etcd goes and comes back: nothing ends, and the key is there again.
    etcd.kill();
    let start = Instant::now();
    while !said.lock().unwrap().iter().any(|line| line.contains("serving on")) {
        assert!(start.elapsed() < PATIENCE);
        std::thread::sleep(Duration::from_millis(20));
    }
    etcd.restart_empty(folder.path().join("data2"));
    let (_third, heard_anew) = join(options(&etcd, &said), 2);
    until(&heard_anew, &[0, 2]);
    drop(first);
    until(&heard_anew, &[2]);
}

#[test]
fn memory_nodes_are_announced_beside_servers() {
    let Some((etcd, _folder)) = start() else { return };
    let said: Arc<Mutex<Vec<String>>> = Arc::default();
    let (_server, heard) = join(options(&etcd, &said), 0);
    until(&heard, &[0]);
    let node = |port: u16| MemoryMember { address: format!("ucx:127.0.0.1:{port}") };
    let first = Membership::join_memory(options(&etcd, &said), 0, &node(1)).unwrap();
    let reached = |nodes: &[(u8, MemoryMember)]| {
        while !heard
            .recv_timeout(PATIENCE)
            .expect("news come")
            .memory
            .iter()
            .map(|(n, m)| (*n, m.clone()))
            .eq(nodes.to_vec())
        {}
    };
    reached(&[(0, node(1))]);
    // Another process of this number waits until the key goes.
    let second = Membership::join_memory(options(&etcd, &said), 0, &node(2)).unwrap();
    let _third = Membership::join_memory(options(&etcd, &said), 200, &node(3)).unwrap();
    reached(&[(0, node(1)), (200, node(3))]);
    let start = Instant::now();
    while !said
        .lock()
        .unwrap()
        .iter()
        .any(|line| line.contains("memory node 0 is at ucx:127.0.0.1:1 already"))
    {
        assert!(start.elapsed() < PATIENCE);
        std::thread::sleep(Duration::from_millis(20));
    }
    drop(first);
    reached(&[(0, node(2)), (200, node(3))]);
    let members = options(&etcd, &said).members().unwrap();
    assert_eq!((members.memory[&0].clone(), members.servers.len()), (node(2), 1));
    drop(second);
    reached(&[(200, node(3))]);
}

#[test]
fn a_number_is_claimed_once_and_free_again_after_its_server() {
    let Some((etcd, _folder)) = start() else { return };
    let said = Arc::default();
    let options = options(&etcd, &said);
    let (_zero, heard) = join(options.clone(), 0);
    until(&heard, &[0]);
    let claims: Vec<_> = (0..2).map(|_| options.claim(3).unwrap()).collect();
    assert_eq!(claims.iter().map(|c| c.number).collect::<Vec<_>>(), [1, 2]);
    let error = options.claim(3).err().unwrap();
    assert!(error.message.contains("all 3 servers"), "{error}");
    // A claim outlives its lease while it is held.
    std::thread::sleep(Duration::from_secs(4));
    assert!(options.claim(3).is_err());
    drop(claims);
    assert_eq!(options.claim(3).unwrap().number, 1);
}

#[test]
fn a_number_that_another_server_has_is_left_to_it() {
    let Some((etcd, _folder)) = start() else { return };
    let said: Arc<Mutex<Vec<String>>> = Arc::default();
    let (first, heard) = join(options(&etcd, &said), 0);
    until(&heard, &[0]);
    let (sender, news) = channel();
    let tell = move |members: &Members| drop(sender.send(members.clone()));
    let _second = Membership::join(options(&etcd, &said), 0, member(2000), tell).unwrap();
    assert_eq!(until(&news, &[0]).servers[&0], member(1000));
    let start = Instant::now();
    while !said.lock().unwrap().iter().any(|line| line.contains("server 0 is at 127.0.0.1:1000 already")) {
        assert!(start.elapsed() < PATIENCE);
        std::thread::sleep(Duration::from_millis(20));
    }
    drop(first);
    while until(&news, &[0]).servers[&0] != member(2000) {}
}

#[test]
fn invalid_addresses_are_refused_and_a_missing_etcd_is_waited_for() {
    let options = |endpoint: &str, cluster: &str| EtcdOptions {
        endpoints: vec![endpoint.into()],
        cluster: cluster.into(),
        lease_s: 2,
        log: Arc::new(|_| {}),
    };
    for (endpoint, cluster, word) in
        [("ftp://x", "a", "http://"), ("http://127.0.0.1:9", "a/b", "name of a cluster")]
    {
        let error = options(endpoint, cluster).claim(3).err().unwrap();
        assert!(error.message.contains(word), "{error}");
    }
    let gone = options("http://127.0.0.1:9", "a");
    assert!(gone.claim(3).err().unwrap().message.contains("does not answer"));
    // Joining does not wait, and leaving does not either.
    let (joined, news) = join(gone, 0);
    assert!(news.recv_timeout(Duration::from_millis(200)).is_err());
    drop(joined);
}
