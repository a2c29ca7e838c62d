//! `stratann memory-node`, as a real process that is stopped, killed and started again.
#![allow(missing_docs)]

mod common;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use common::*;

use stratann_storage::remote_memory::{Credentials, MemoryError, Range, RemoteMemory, connect_one, read_key};

struct Place {
    folder: tempfile::TempDir,
    key: PathBuf,
}

impl Place {
    fn new() -> Place {
        let folder = folder();
        let key = folder.path().join("key");
        std::fs::write(&key, "0123456789abcdef".repeat(4) + "\n").unwrap();
        Place { folder, key }
    }

    fn start(&self, listen: &str, more: &[&str]) -> Running {
        let args = [
            "memory-node",
            "--size",
            "4MiB",
            "--listen",
            listen,
            "--key-file",
            arg(&self.key),
            "--until-eof",
        ];
        Running::start(&[&args[..], more].concat())
    }

    fn connect(&self, address: &str) -> Result<Box<dyn RemoteMemory>, MemoryError> {
        let secret = read_key(&self.key, &|_| {}).unwrap();
        connect_one(address, &Credentials::new(secret, None))
    }

    /// Reads until the pauses between attempts are over.
    fn read(memory: &mut dyn RemoteMemory, bytes: usize) -> Result<Vec<u8>, MemoryError> {
        let start = Instant::now();
        loop {
            let mut into = vec![0; bytes];
            match memory.read(&[Range { offset: 0, bytes: bytes as u32 }], &mut into) {
                Err(MemoryError::Disconnected { .. }) if start.elapsed() < Duration::from_secs(20) => {
                    std::thread::sleep(Duration::from_millis(20));
                }
                result => return result.map(|()| into),
            }
        }
    }
}

fn listen(node: &Running) -> String {
    node.ready["listen"].as_str().unwrap().to_string()
}

fn segment(test: &str) -> String {
    format!("stratann-{test}-{}", std::process::id())
}

const SIGTERM: i32 = 15;
const SIGKILL: i32 = 9;
const SIGCONT: i32 = 18;

#[test]
fn it_ends_by_sigterm_while_a_client_is_connected() {
    let place = Place::new();
    let node = place.start("127.0.0.1:0", &["--node-id", "3"]);
    assert_eq!(node.ready["node"], 3);
    let mut memory = place.connect(&listen(&node)).unwrap();
    assert_eq!(memory.facts().node.0, 3);
    assert_eq!(format!("{:016x}", memory.facts().epoch), node.ready["epoch"].as_str().unwrap());
    memory.fetch_add(0, 1).unwrap();
    let start = Instant::now();
    node.signal(SIGTERM);
    let (code, said) = node.end();
    assert_eq!(code, Some(0), "{said}");
    assert!(start.elapsed() < Duration::from_secs(10));
    assert!(said.contains("memory node 3 has 4.0 MiB") && said.contains("stopped"), "{said}");
}

/// A node that was killed comes back empty, and says so by its epoch.
#[test]
fn a_node_that_was_killed_comes_back_empty() {
    let place = Place::new();
    let node = place.start("127.0.0.1:0", &[]);
    let address = listen(&node);
    let mut memory = place.connect(&address).unwrap();
    memory.fetch_add(0, 1).unwrap();
    node.signal(SIGKILL);
    drop(node);
    let _empty = place.start(&address, &[]);
    let error = Place::read(memory.as_mut(), 8).unwrap_err();
    assert!(matches!(&error, MemoryError::EpochChanged { .. }), "{error}");
    assert!(error.to_string().contains("memory-node load"), "{error}");
    assert_eq!(Place::read(place.connect(&address).unwrap().as_mut(), 8).unwrap(), [0; 8]);
}

/// One error says why there is neither a file nor a mirror, and nothing is made.
#[test]
fn options_that_kept_a_region_are_refused() {
    let place = Place::new();
    let file = place.folder.path().join("region");
    let (key, file) = (arg(&place.key), arg(&file));
    let node = ["memory-node", "--listen", "127.0.0.1:0", "--size", "1MiB", "--key-file", key];
    let load = ["memory-node", "load", "no.idx", "--nodes", "127.0.0.1:1", "--key-file", key];
    for (command, option) in [
        (&node[..], &["--file", file][..]),
        (&node, &["--mirror"]),
        (&load, &["--mirror"]),
        (&load, &["--file", file]),
    ] {
        let error = refused(&[command, option].concat(), 2);
        assert!(
            error.contains("durability is not here") && error.contains("load the index again"),
            "{error}"
        );
        assert_eq!(error.trim().lines().count(), 1, "{error}");
    }
    assert!(!Path::new(file).exists());
}

/// A stopped node has no part in shared memory. TCP says that it does not answer.
#[test]
fn reads_and_atomic_operations_over_shm_go_on_while_the_node_is_stopped() {
    let place = Place::new();
    let name = segment("stopped");
    let node = place.start("127.0.0.1:0", &["--shm", &name]);
    assert_eq!(node.ready["shm"], name.as_str());
    let address = format!("shm:{name}");
    let mut before = place.connect(&address).unwrap();
    node.suspend();
    let mut after = place.connect(&address).unwrap();
    for round in 0..1000u64 {
        assert_eq!(before.fetch_add(0, 1), Ok(round));
        assert_eq!(Place::read(after.as_mut(), 8).unwrap(), (round + 1).to_le_bytes());
        assert_eq!(after.compare_swap(8, round, round + 1), Ok(round));
    }
    let error = place.connect(&listen(&node)).err().unwrap();
    assert!(error.to_string().contains("does not answer"), "{error}");
    node.signal(SIGCONT);
    let mut tcp = place.connect(&listen(&node)).unwrap();
    assert_eq!(tcp.fetch_add(0, 0), Ok(1000));
    node.signal(SIGTERM);
    let (code, said) = node.end();
    assert_eq!(code, Some(0), "{said}");
    assert!(!Path::new("/dev/shm").join(name).exists());
}

/// Clients of shared memory find out that its node was killed. The next node of that name begins with zeros.
#[test]
fn a_segment_ends_with_its_node() {
    let place = Place::new();
    let name = segment("killed");
    let address = format!("shm:{name}");
    let node = place.start("127.0.0.1:0", &["--shm", &name]);
    let mut memory = place.connect(&address).unwrap();
    assert_eq!(memory.fetch_add(0, 7), Ok(0));
    node.signal(SIGKILL);
    let error = loop {
        match memory.fetch_add(0, 1) {
            Ok(_) => std::thread::yield_now(),
            Err(error) => break error,
        }
    };
    assert!(matches!(error, MemoryError::Disconnected { .. }), "{error}");
    drop(node);
    let error = place.connect(&address).err().unwrap();
    assert!(matches!(error, MemoryError::Disconnected { .. }), "{error}");
    let again = place.start("127.0.0.1:0", &["--shm", &name]);
    let error = memory.fetch_add(0, 1).unwrap_err();
    assert!(matches!(error, MemoryError::EpochChanged { .. }), "{error}");
    assert_eq!(place.connect(&address).unwrap().fetch_add(0, 1), Ok(0));
    again.signal(SIGTERM);
    assert_eq!(again.end().0, Some(0));
    assert!(!Path::new("/dev/shm").join(name).exists());
}

#[test]
fn mistakes_are_refused_by_name() {
    let place = Place::new();
    let short = place.folder.path().join("short");
    std::fs::write(&short, "abc").unwrap();
    let base = |key: &'static str| ["memory-node", "--listen", "127.0.0.1:0", "--size", key];
    let refuse = |more: &[&str], size: &'static str| refused(&[&base(size)[..], more].concat(), 2);
    let key = arg(&place.key);
    let error = refuse(&["--key-file", arg(&short)], "1MiB");
    assert!(error.contains("64 hexadecimal digits"), "{error}");
    let error = refuse(&["--key-file", key, "--shm", "../x"], "1MiB");
    assert!(error.contains("letters"), "{error}");
    let error = refuse(&["--key-file", key, "--tls-certificate", "x"], "1MiB");
    assert!(error.contains("--tls-key"), "{error}");
}

/// Over ucx's shared memory, reads go on while the node is stopped. Its TCP connection is open then.
#[test]
fn reads_over_ucx_go_on_while_the_node_is_stopped() {
    let refusal = stratann_storage::remote_memory::back_ends()
        .into_iter()
        .find_map(|b| b.refusal.filter(|_| b.name == "ucx"));
    if let Some(why) = refusal {
        stratann_testing::leave_out(stratann_testing::Need::Ucx, &why);
        return;
    }
    let place = Place::new();
    let node = place.start("127.0.0.1:0", &["--ucx"]);
    let mut memory = place.connect(&format!("ucx:{}", listen(&node))).unwrap();
    memory.write(&[(0, &[7; 100_000])]).unwrap();
    assert_eq!(memory.fetch_add(0, 0), Ok(0x0707_0707_0707_0707));
    node.suspend();
    for round in 0..200usize {
        let mut into = vec![0; 1 + 500 * round];
        memory.read(&[Range { offset: 0, bytes: into.len() as u32 }], &mut into).unwrap();
        assert!(into.iter().all(|byte| *byte == 7));
    }
    node.signal(SIGCONT);
    assert_eq!(memory.fetch_add(0, 1), Ok(0x0707_0707_0707_0707));
    node.signal(SIGTERM);
    assert_eq!(node.end().0, Some(0));
}
