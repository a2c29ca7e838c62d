//! `stratann serve --memory`, and the commands that look into memory nodes, with real processes.
#![allow(missing_docs)]

mod common;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};

use common::*;
use serde_json::{Value, json};

const SIGKILL: i32 = 9;

/// A memory node on a file, into which a small index is loaded.
struct Loaded {
    data: Data,
    key: PathBuf,
    index: PathBuf,
    node: Option<Running>,
    address: String,
}

impl Loaded {
    fn new() -> Loaded {
        let data = Data::new(2000, 16, "f32");
        let (index, key) = (data.path("remote"), data.path("key"));
        std::fs::write(&key, "0123456789abcdef".repeat(4) + "\n").unwrap();
        json(&[
            "build",
            arg(&data.base),
            "-o",
            arg(&index),
            "--kind",
            "remote-hnsw",
            "--partitions",
            "24",
            "-M",
            "8",
            "--ef-construction",
            "60",
            "--calibration-queries",
            "60",
            "--threads",
            "2",
        ]);
        let mut own = Loaded { data, key, index, node: None, address: "127.0.0.1:0".into() };
        own.start_node();
        json(&["memory-node", "load", arg(&own.index), "--nodes", &own.address, "--key-file", arg(&own.key)]);
        own
    }

    fn start_node(&mut self) {
        let file = self.data.path("region");
        let args = [
            "memory-node",
            "--size",
            "16MiB",
            "--listen",
            &self.address,
            "--key-file",
            arg(&self.key),
            "--until-eof",
            "--file",
            arg(&file),
        ];
        let node = Running::start(&args);
        self.address = node.ready["listen"].as_str().unwrap().to_string();
        self.node = Some(node);
    }

    fn kill_node(&mut self) {
        if let Some(node) = self.node.take() {
            node.signal(SIGKILL);
        }
    }

    /// The options that name the memory node.
    fn memory(&self) -> [&str; 4] {
        ["--memory", &self.address, "--key-file", arg(&self.key)]
    }

    fn serve(&self, more: &[&str]) -> Running {
        let usual = ["serve", "--http", "127.0.0.1:0", "--until-eof", "--threads", "2"];
        Running::start(&[&usual[..], &self.memory(), more].concat())
    }
}

fn search(address: &str, queries: &[Vec<f64>]) -> (u16, Value) {
    let body = json!({"queries": queries, "k": 5, "nprobe": 24}).to_string();
    let mut stream = TcpStream::connect(address).unwrap();
    write!(
        stream,
        "POST /v1/search HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    )
    .unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).unwrap();
    let (head, body) = reply.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), serde_json::from_str(body).unwrap())
}

fn answers(from: &[&str], out: &Path) -> (usize, Vec<u32>, Vec<f32>) {
    let asked = ["-k", "5", "--nprobe", "6", "-o", arg(out), "--force"];
    json(&[from, &asked].concat());
    read_answers(out)
}

#[test]
fn two_servers_of_a_memory_node_answer_as_a_search_of_it_and_of_the_folder() {
    let loaded = Loaded::new();
    let (queries, out) = (arg(&loaded.data.queries), loaded.data.path("out.ibin"));
    let of_memory = answers(&[&["search", queries][..], &loaded.memory()].concat(), &out);
    let servers = [
        loaded.serve(&["--cache-budget", "0"]),
        loaded.serve(&["--batch", "16", "--doorbell", "2", "--cache-budget", "16MiB"]),
    ];
    let folder = Running::serve(&loaded.index, &["--threads", "2"]);
    let of_folder = answers(&["search", arg(&loaded.index), queries], &out);
    assert_eq!(of_memory, of_folder);
    for server in servers.iter().chain([&folder]) {
        assert_eq!(answers(&["search", "--connect", server.address(), queries], &out), of_memory);
        let (code, status) = get(server.address(), "/v1/status");
        assert_eq!((code, status["answered"].as_u64()), (200, Some(50)));
        let (loads, trips) = (status["loads"].as_u64().unwrap(), status["round_trips"].as_u64().unwrap());
        assert!(loads > 0 && trips > 0 && trips <= loads, "{status}");
        assert!(
            status["loaded_bytes"].as_u64() > Some(100_000)
                && status["memory"]["doorbells_bytes"].as_u64() > Some(0),
            "{status}"
        );
    }
    // All clusters are in the cache of this one now: it reads the headers of each batch alone.
    let bytes = || get(servers[1].address(), "/v1/status").1["loaded_bytes"].as_u64().unwrap();
    let before = bytes();
    answers(&["search", "--connect", servers[1].address(), queries], &out);
    let all = json(&["info", arg(&loaded.index)])["remote"]["cluster_bytes"].as_u64().unwrap();
    assert!((1..all / 3).contains(&(bytes() - before)), "{} {all}", bytes() - before);
}

#[test]
fn a_memory_node_that_is_killed_is_an_error_until_it_is_back() {
    let mut loaded = Loaded::new();
    let server = loaded.serve(&[]);
    let queries = loaded.data.query_rows.clone();
    let (code, before) = search(server.address(), &queries);
    assert_eq!(code, 200, "{before}");
    loaded.kill_node();
    let (code, lost) = search(server.address(), &queries[..3]);
    assert_eq!(code, 503, "{lost}");
    assert!(lost["error"].as_str().unwrap().contains("memory nodes are lost"), "{lost}");
    assert!(lost["error"].as_str().unwrap().contains(&loaded.address), "{lost}");
    let (code, health) = get(server.address(), "/v1/health");
    assert_eq!((code, &health["healthy"]), (503, &false.into()));
    loaded.start_node();
    // No query is needed for the server to notice.
    wait_for("the memory node", || get(server.address(), "/v1/health").0 == 200);
    let (code, after) = search(server.address(), &queries);
    assert_eq!(code, 200, "{after}");
    for (before, after) in
        before["answers"].as_array().unwrap().iter().zip(after["answers"].as_array().unwrap())
    {
        assert_eq!(before["ids"], after["ids"]);
    }
    drop(server);
}

#[test]
fn what_does_not_go_with_memory_nodes_is_refused_by_name() {
    let loaded = Loaded::new();
    let memory = loaded.memory();
    let error = refused(&["serve", "--memory", &loaded.address], 2);
    assert!(error.contains("--key-file"), "{error}");
    assert!(refused(&[&["serve", "--index", "x"][..], &memory].concat(), 2).contains("--index"));
    let error = refused(&[&["serve", "--doorbell", "0"][..], &memory].concat(), 2);
    assert!(error.contains("doorbell is 0"), "{error}");
    let file = loaded.data.path("server.toml");
    let text = format!("memory = [\"{}\"]\nkey_file = \"key\"\nserver = 1\n", loaded.address);
    std::fs::write(&file, &text).unwrap();
    let error = refused(&["serve", "--config", arg(&file)], 2);
    assert!(error.contains("leave out server"), "{error}");
    std::fs::write(&file, text.replace("server = 1", "http = \"127.0.0.1:0\"\nbatch = 100")).unwrap();
    let server = Running::start(&["serve", "--config", arg(&file), "--until-eof"]);
    assert_eq!(search(server.address(), &loaded.data.query_rows[..1]).0, 200);
}
