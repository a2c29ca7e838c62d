//! Memory nodes and compute nodes that die or stand still, as real processes.
#![allow(missing_docs)]

mod common;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use common::*;
use serde_json::Value;
use stratann_core::format::region::{
    CONTROL_BYTES, ControlWords, GROUP_WORDS_BYTES, GroupWords, SUPERBLOCK_BYTES, Superblock,
};
use stratann_storage::remote_memory::{Credentials, Nodes, read_key};

const SIGKILL: i32 = 9;
const SIGCONT: i32 = 18;
const DIM: usize = 16;
const FIRST_ID: u64 = 100_000;
const CLUSTERS: &str = "10";

/// A memory node with a small index, whose overflows fill up soon.
struct World {
    data: Data,
    key: PathBuf,
    index: PathBuf,
    node: Option<Running>,
    address: String,
}

/// Words of the headers in the first node.
struct Seen {
    /// Changes since the index was loaded.
    clock: u64,
    /// Groups that were rebuilt, and how often.
    versions: Vec<u32>,
}

impl World {
    fn new() -> World {
        let data = Data::new(800, DIM, "f32");
        let (key, index) = (data.path("key"), data.path("remote.idx"));
        std::fs::write(&key, "0123456789abcdef".repeat(4) + "\n").unwrap();
        let args = ["build", arg(&data.base), "-o", arg(&index), "--kind", "remote-hnsw", "--metric", "l2"];
        let own = ["--partitions", CLUSTERS, "-M", "8", "--ef-construction", "60", "--overflow", "4KiB"];
        json(&[&args[..], &own].concat());
        let mut world = World { data, key, index, node: None, address: "127.0.0.1:0".into() };
        world.start();
        world.load();
        world
    }

    /// Loads the index. Returns the number of the load.
    fn load(&self) -> String {
        let load = ["memory-node", "load", arg(&self.index), "--nodes", &self.address, "--key-file"];
        json(&[&load[..], &[arg(&self.key)]].concat())["load"].as_str().unwrap().to_string()
    }

    /// Starts the node, at the address that it had.
    fn start(&mut self) {
        let (address, key) = (&self.address, arg(&self.key));
        let args = ["memory-node", "--size", "64MiB", "--listen", address, "--key-file", key, "--until-eof"];
        let started = Running::start(&args);
        self.address = started.ready["listen"].as_str().unwrap().to_string();
        self.node = Some(started);
    }

    fn kill(&mut self) {
        let mut running = self.node.take().unwrap();
        running.signal(SIGKILL);
        running.child.wait().unwrap();
    }

    fn args(&self, args: &[&str]) -> Vec<String> {
        let memory = ["--memory", &self.address, "--key-file", arg(&self.key)].map(String::from);
        args.iter().map(|own| own.to_string()).chain(memory).collect()
    }

    fn json(&self, args: &[&str]) -> Value {
        let args = self.args(args);
        json(&args.iter().map(String::as_str).collect::<Vec<_>>())
    }

    /// Vectors to insert, and their ids from `first` on, as files.
    fn new_vectors(&self, name: &str, first: u64, count: usize) -> [PathBuf; 2] {
        let files = [format!("{name}.fbin"), format!("{name}.u64bin")].map(|name| self.data.path(&name));
        write(&files[0], &rows(count, DIM, "f32", first), "f32");
        let ids: Vec<u8> = (first..first + count as u64).flat_map(u64::to_le_bytes).collect();
        let head = [(count as u32).to_le_bytes(), 1u32.to_le_bytes()].concat();
        std::fs::write(&files[1], [head, ids].concat()).unwrap();
        files
    }

    /// A compute node that inserts these.
    fn inserts(&self, [vectors, ids]: &[PathBuf; 2]) -> Running {
        let args = self.args(&["insert", arg(vectors), "--ids", arg(ids), "--threads", "2", "--json"]);
        let mut command = command(&args.iter().map(String::as_str).collect::<Vec<_>>());
        let child: Child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        Running { child, ready: Value::Null }
    }

    fn seen(&self) -> Seen {
        let secret = read_key(&self.key, &|_| {}).unwrap();
        let address = std::slice::from_ref(&self.address);
        let mut nodes = Nodes::new(address, &Credentials::new(secret, None)).unwrap();
        let own = Superblock::newest(&nodes.read(0, 0, 2 * SUPERBLOCK_BYTES).unwrap()).unwrap();
        let words = nodes.read(0, own.control_at, CONTROL_BYTES + own.groups * GROUP_WORDS_BYTES).unwrap();
        let (control, groups) = words.split_at(CONTROL_BYTES as usize);
        let groups = groups.chunks_exact(GROUP_WORDS_BYTES as usize);
        let groups: Vec<GroupWords> = groups.map(|group| GroupWords::decode(group).unwrap()).collect();
        Seen {
            clock: ControlWords::decode(control).unwrap().tombstones,
            versions: groups.iter().map(|group| group.version.number()).collect(),
        }
    }

    /// Every vector finds itself, once.
    fn check_found(&self, [vectors, _]: &[PathBuf; 2], first: u64, count: usize) {
        let out = self.data.path("found.ibin");
        self.json(&["search", arg(vectors), "-k", "4", "--nprobe", CLUSTERS, "-o", arg(&out), "--force"]);
        let (k, ids, distances) = read_answers(&out);
        assert_eq!(ids.len(), k * count);
        for (row, (ids, distances)) in ids.chunks(k).zip(distances.chunks(k)).enumerate() {
            assert_eq!((u64::from(ids[0]), distances[0]), (first + row as u64, 0.0), "row {row}: {ids:?}");
            assert_eq!(ids.iter().collect::<BTreeSet<_>>().len(), k, "none twice: {ids:?}");
        }
    }

    fn check_sound(&self) {
        let verified = self.json(&["verify"]);
        assert_eq!(verified["violations_found"], 0, "{verified}");
    }
}

/// Output of a process that inserts, once it ends well.
fn inserted(running: Running, count: usize) {
    let (mut running, mut out) = (running, String::new());
    std::io::Read::read_to_string(&mut running.child.stdout.take().unwrap(), &mut out).unwrap();
    let (code, said) = running.end();
    assert_eq!(code, Some(0), "{said}");
    let out: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(out["inserted"], count as u64, "{out}");
}

/// A compute node is stopped while it inserts, wherever it is. Others fill and rebuild every group, and take what it
/// holds. Then it goes on.
fn stand_still(at_least: Duration, stops: usize) {
    let world = World::new();
    let own = world.new_vectors("own", FIRST_ID, 3000);
    let own_inserts = world.inserts(&own);
    for stop in 0..stops {
        let before = world.seen().clock;
        wait_for("inserts", || world.seen().clock >= before + 150);
        own_inserts.suspend();
        let stopped = Instant::now();
        let before = world.seen().versions;
        let first = FIRST_ID * (2 + stop as u64);
        let others = world.new_vectors("others", first, 600);
        inserted(world.inserts(&others), 600);
        let after = world.seen().versions;
        assert!(before.iter().zip(&after).all(|(before, after)| after > before), "{before:?} {after:?}");
        world.check_found(&others, first, 600);
        std::thread::sleep(at_least.saturating_sub(stopped.elapsed()));
        own_inserts.signal(SIGCONT);
    }
    inserted(own_inserts, 3000);
    world.check_found(&own, FIRST_ID, 3000);
    world.check_found(&world.new_vectors("others", 2 * FIRST_ID, 600), 2 * FIRST_ID, 600);
    world.check_sound();
}

#[test]
fn a_compute_node_that_stands_still_while_others_rebuild_its_groups_loses_nothing() {
    stand_still(Duration::ZERO, 2);
}

#[test]
#[ignore = "takes minutes"]
fn a_compute_node_that_stands_still_for_a_minute_loses_nothing() {
    stand_still(Duration::from_secs(60), 2);
}

/// Of writers that are stopped somewhere, or work, while the index is loaded again, nothing is in the new load.
#[test]
fn writers_of_the_load_before_are_refused() {
    let world = World::new();
    let rows = world.json(&["info"])["rows"].clone();
    for round in 0..12 {
        let new = world.new_vectors("new", FIRST_ID, 4000);
        let inserts = world.inserts(&new);
        wait_for("inserts", || world.seen().clock >= 100 + 10 * round);
        if round % 2 == 0 {
            inserts.suspend();
        }
        let load = world.load();
        if round % 2 == 0 {
            inserts.signal(SIGCONT);
        }
        let (code, said) = inserts.end();
        assert_eq!(code, Some(1), "{said}");
        assert!(said.contains(&load) && said.contains("rows are acknowledged"), "{said}");
        world.check_sound();
        assert_eq!((world.seen().clock, &world.json(&["info"])["rows"]), (0, &rows), "round {round}");
    }
}

fn answer(server: &Running) -> (u16, Value) {
    let query = [0.5f32; DIM].map(f32::to_le_bytes).concat();
    post(server.address(), "/v1/search?k=5&nprobe=10", &query)
}

fn serve(world: &World) -> Running {
    let args = world.args(&["serve", "--http", "127.0.0.1:0", "--until-eof", "--threads", "2"]);
    Running::start(&args.iter().map(String::as_str).collect::<Vec<_>>())
}

#[test]
fn every_client_is_told_of_a_memory_node_that_comes_back_empty() {
    let mut world = World::new();
    let server = serve(&world);
    assert_eq!(answer(&server).0, 200);
    let new = world.new_vectors("new", FIRST_ID, 4000);
    let inserts = world.inserts(&new);
    wait_for("inserts", || world.seen().clock >= 100);
    world.kill();
    world.start();
    let (code, said) = inserts.end();
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("was open") && said.contains("rows are acknowledged"), "{said}");
    let (code, lost) = answer(&server);
    assert_eq!(code, 503, "{lost}");
    assert!(lost["error"].as_str().unwrap().contains("was open"), "{lost}");
    let args = world.args(&["search", arg(&new[0]), "-k", "1"]);
    let late = refused(&args.iter().map(String::as_str).collect::<Vec<_>>(), 2);
    assert!(late.contains("holds no index"), "{late}");
}
