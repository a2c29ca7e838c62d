//! Memory nodes that are found by etcd: a real one, where the program `etcd` is installed.
#![allow(missing_docs)]

mod common;

use std::path::PathBuf;

use common::*;
use stratann_testing::etcd::Etcd;

const SIGTERM: i32 = 15;

struct Place {
    data: Data,
    etcd: Etcd,
    key: PathBuf,
    index: PathBuf,
}

impl Place {
    fn new() -> Option<Place> {
        let data = Data::new(1000, 16, "f32");
        let etcd = Etcd::start(data.path("etcd"))?;
        let (index, key) = (data.path("remote"), data.path("key"));
        std::fs::write(&key, "0123456789abcdef".repeat(4) + "\n").unwrap();
        let build =
            ["build", arg(&data.base), "-o", arg(&index), "--kind", "remote-hnsw", "--partitions", "12"];
        json(&[&build[..], &["-M", "8", "--ef-construction", "60", "--calibration-queries", "0"]].concat());
        Some(Place { data, etcd, key, index })
    }

    /// A memory node, at a free port.
    fn node(&self, number: &str) -> Running {
        let url = self.etcd.url();
        let args = ["memory-node", "--size", "8MiB", "--listen", "127.0.0.1:0", "--key-file", arg(&self.key)];
        let place = ["--node-id", number, "--etcd", &url, "--cluster", "tests"];
        Running::start(&[&args[..], &place, &["--until-eof"]].concat())
    }

    fn nodes(&self) -> String {
        format!("etcd:tests@http://127.0.0.1:9,{}", self.etcd.url())
    }

    /// Answers of the folder.
    fn expected(&self) -> (usize, Vec<u32>, Vec<f32>) {
        self.answers(&["search", arg(&self.index)])
    }

    fn answers(&self, from: &[&str]) -> (usize, Vec<u32>, Vec<f32>) {
        let out = self.data.path("out");
        let asked = [arg(&self.data.queries), "-k", "5", "--nprobe", "4", "--force", "-o", arg(&out)];
        let found = json(&[from, &asked].concat());
        assert_eq!(found["runs"][0]["failed_queries"], 0, "{found}");
        read_answers(&out)
    }
}

#[test]
fn memory_nodes_are_found_by_etcd() {
    let Some(place) = Place::new() else { return };
    let nodes = place.nodes();
    let memory = ["--memory", &nodes, "--key-file", arg(&place.key)];
    let none = refused(&[&["info"], &memory[..]].concat(), 2);
    assert!(
        none.contains("no memory node of the cluster tests") && none.contains("memory-node --etcd"),
        "{none}"
    );
    let first = place.node("0");
    let second = place.node("1");
    wait_for("both keys", || place.etcd.keys("memory") == [0, 1]);
    json(&["memory-node", "load", arg(&place.index), "--nodes", &nodes, "--key-file", arg(&place.key)]);
    let expected = place.expected();
    assert_eq!(place.answers(&[&["search"], &memory[..]].concat()), expected);
    let info = json(&[&["info"], &memory[..]].concat());
    assert_eq!(info["memory_nodes"]["nodes"].as_array().map(Vec::len), Some(2), "{info}");
    json(&[&["verify"], &memory[..]].concat());

    let serve = ["serve", "--http", "127.0.0.1:0", "--until-eof", "--threads", "2", "--cache-budget", "0"];
    let server = Running::start(&[&serve[..], &memory].concat());
    assert_eq!(place.answers(&["search", "--connect", server.address()]), expected);
    // One that was started again is found where it is now, and named as empty.
    second.signal(SIGTERM);
    assert_eq!(second.end().0, Some(0));
    let _second = place.node("1");
    wait_for("its key", || place.etcd.keys("memory") == [0, 1]);
    let empty = refused(&[&["info"], &memory[..]].concat(), 2);
    assert!(empty.contains("memory node 1 holds no index"), "{empty}");
    // An orderly end takes the key at once.
    first.signal(SIGTERM);
    assert_eq!(first.end().0, Some(0));
    assert_eq!(place.etcd.keys("memory"), [1]);
}

#[test]
fn addresses_of_etcd_are_checked() {
    let data = Data::new(60, 8, "f32");
    let key = data.path("key");
    std::fs::write(&key, "0123456789abcdef".repeat(4)).unwrap();
    let info = |nodes: &str| refused(&["info", "--memory", nodes, "--key-file", arg(&key)], 2);
    for (nodes, expected) in [
        ("etcd:http://127.0.0.1:9", "etcd:CLUSTER@http"),
        ("etcd:a/b@http://127.0.0.1:9", "no name of a cluster"),
        ("etcd:tests@127.0.0.1:9", "no address of etcd"),
    ] {
        let error = info(nodes);
        assert!(error.contains(expected), "{error}");
    }
    let node = ["memory-node", "--size", "1MiB", "--listen", "0.0.0.0:0", "--key-file", arg(&key)];
    let error = refused(&[&node[..], &["--etcd", "http://127.0.0.1:9", "--cluster", "tests"]].concat(), 2);
    assert!(error.contains("--advertise"), "{error}");
}
