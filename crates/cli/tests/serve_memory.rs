//! `stratann serve --memory`, and the commands that look into memory nodes, with real processes.
#![allow(missing_docs)]

mod common;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};

use common::*;
use serde_json::{Value, json};
use stratann_core::format::region::{SUPERBLOCK_BYTES, Superblock};
use stratann_storage::remote_memory::{Credentials, Range, connect_one, read_key};
use stratann_testing::way::Way;

const SIGKILL: i32 = 9;

/// A memory node into which a small index is loaded.
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
        own.load();
        own
    }

    fn load(&self) {
        let nodes = ["--nodes", &self.address, "--key-file", arg(&self.key)];
        json(&[&["memory-node", "load", arg(&self.index)][..], &nodes].concat());
    }

    /// Writes into the memory of a node what should not be there.
    fn damage(&self, address: &str, offset: u64) {
        let secret = read_key(&self.key, &|_| {}).unwrap();
        let mut memory = connect_one(address, &Credentials::new(secret, None)).unwrap();
        memory.write(&[(offset, &[0x5a; 8])]).unwrap();
    }

    /// Offset of the first group.
    fn groups_at(&self, address: &str) -> u64 {
        let secret = read_key(&self.key, &|_| {}).unwrap();
        let mut memory = connect_one(address, &Credentials::new(secret, None)).unwrap();
        let mut bytes = vec![0; 2 * SUPERBLOCK_BYTES as usize];
        memory.read(&[Range { offset: 0, bytes: bytes.len() as u32 }], &mut bytes).unwrap();
        Superblock::newest(&bytes).unwrap().groups_at
    }

    fn start_node(&mut self) {
        let args = [
            "memory-node",
            "--size",
            "16MiB",
            "--listen",
            &self.address,
            "--key-file",
            arg(&self.key),
            "--until-eof",
        ];
        let node = Running::start(&args);
        self.address = node.ready["listen"].as_str().unwrap().to_string();
        self.node = Some(node);
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
        "POST /v1/search HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n\
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
        // A folder has no memory nodes.
        let by_node: Vec<u64> =
            serde_json::from_value(status["memory_node_bytes"].clone()).unwrap_or_default();
        let loaded = status["loaded_bytes"].as_u64().unwrap();
        assert!(by_node.is_empty() || (by_node.len() == 1 && by_node[0] >= loaded), "{status}");
        assert_eq!(by_node.is_empty(), std::ptr::eq(server, &folder));
        let (loads, trips) = (status["loads"].as_u64().unwrap(), status["round_trips"].as_u64().unwrap());
        assert!(loads > 0 && trips > 0 && trips <= loads, "{status}");
        assert!(
            status["loaded_bytes"].as_u64() > Some(100_000)
                && status["memory"]["doorbells_bytes"].as_u64() > Some(0),
            "{status}"
        );
    }
    let found = json(&[&["search", queries, "--nprobe", "6"][..], &loaded.memory()].concat());
    let run = &found["runs"][0];
    // What is counted for a query are extents. Buffers are whole pages, and all of a buffer is read.
    let all = run["per_query"]["bytes_read"].as_f64().unwrap() * run["queries"].as_f64().unwrap();
    let read = run["memory_node_bytes"][0].as_u64().unwrap() as f64;
    assert!(read > 0.999 * all && read < all + 24.0 * 4096.0, "{run}");
    // The beam in each cluster, and that graphs are searched, are parameters of requests too.
    let with_beam = |from: &[&str], ef| answers(&[from, &["--ef", ef, "--no-scan-clusters"]].concat(), &out);
    let connected = ["search", "--connect", servers[0].address(), queries];
    let beams = ["5", "200"].map(|ef| {
        let found = with_beam(&connected, ef);
        assert_eq!(found, with_beam(&[&["search", queries][..], &loaded.memory()].concat(), ef));
        found
    });
    assert_ne!(beams[0], beams[1]);
    // All clusters are in the cache of this one now: it reads the headers of each batch alone.
    let bytes = || get(servers[1].address(), "/v1/status").1["loaded_bytes"].as_u64().unwrap();
    let before = bytes();
    answers(&["search", "--connect", servers[1].address(), queries], &out);
    let all = json(&["info", arg(&loaded.index)])["remote"]["cluster_bytes"].as_u64().unwrap();
    assert!((1..all / 3).contains(&(bytes() - before)), "{} {all}", bytes() - before);
}

#[test]
fn a_budget_of_a_search_follows_its_doorbells() {
    let loaded = Loaded::new();
    let usual = ["--threads", "1", "-k", "5", "--nprobe", "24", "--cache-budget", "0", "--json"];
    let search = [&["search", arg(&loaded.data.queries)][..], &loaded.memory(), &usual].concat();
    let run = |more: &[&str]| json(&[&search[..], more].concat())["runs"][0].clone();
    let roomy = run(&["--ram-budget", "1GiB"]);
    let bytes = |run: &Value, part: &str| run["memory"][part].as_u64().unwrap();
    let (total, doorbells) = (bytes(&roomy, "total_bytes"), bytes(&roomy, "doorbells_bytes"));
    assert_eq!(
        (&roomy["params"]["doorbell"], &roomy["params"]["doorbell_bytes"]),
        (&64.into(), &Value::Null)
    );
    let budget = (total - doorbells / 2).to_string();
    let tight = run(&["--ram-budget", &budget]);
    assert!(bytes(&tight, "doorbells_bytes") <= doorbells / 2 && tight["params"]["doorbell_bytes"].is_u64());
    let chosen = ["--doorbell", "64", "--ram-budget"];
    let error = refused(&[&search[..], &chosen, &[&budget]].concat(), 2);
    let named = error.split("give --ram-budget ").nth(1).unwrap().split_whitespace().next().unwrap();
    run(&[&chosen[..], &[named]].concat());
    // One budget has room for short doorbells, and not for long ones.
    let total = |doorbell| bytes(&run(&["--doorbell", doorbell]), "total_bytes");
    let budget = ((total("1") + total("2")) / 2).to_string();
    run(&["--doorbell", "1", "--ram-budget", &budget]);
    refused(&[&search[..], &["--doorbell", "2", "--ram-budget", &budget]].concat(), 2);
}

#[test]
fn a_budget_holds_for_a_batch_of_many_queries() {
    let loaded = Loaded::new();
    let usual =
        ["--threads", "1", "-k", "5", "--nprobe", "24", "--cache-budget", "0", "--json", "--doorbell", "2"];
    let search = [&["search", arg(&loaded.data.base)][..], &loaded.memory(), &usual].concat();
    let run = |budget: u64| {
        json(&[&search[..], &["--ram-budget", &budget.to_string()]].concat())["runs"][0].clone()
    };
    let bytes = |run: &Value, part: &str| run["memory"][part].as_u64().unwrap();
    let roomy = run(1 << 30);
    let queries = bytes(&roomy, "queries_in_flight_bytes") + bytes(&roomy, "queries_and_answers_bytes");
    let budget = bytes(&roomy, "total_bytes") - queries / 2;
    let tight = run(budget);
    assert!(bytes(&tight, "total_bytes") <= budget, "{budget} bytes and {tight}");
    assert_eq!(tight["queries"], roomy["queries"]);
}

#[test]
fn what_is_loaded_is_told_with_the_traffic_that_is_expected() {
    let loaded = Loaded::new();
    let queries = arg(&loaded.data.queries);
    let load = ["memory-node", "load", arg(&loaded.index), "--nodes", &loaded.address];
    let load = [&load[..], &["--key-file", arg(&loaded.key)]].concat();
    let usual = json(&load);
    assert_eq!((&usual["placement"], &usual["traffic"]["queries"]), (&json!("traffic"), &json!(0)));
    assert_eq!(usual["traffic"]["batch"], 2000);
    let given = ["--traffic", queries, "--nprobe", "3", "--batch", "1", "--placement", "bytes"];
    let found = json(&[&load[..], &given].concat());
    assert_eq!(found["placement"], "bytes");
    assert_eq!(found["traffic"], json!({ "queries": 50, "nprobe": 3, "batch": 1 }));
    let bytes = |of: &Value| of["nodes"][0]["traffic_bytes"].as_u64().unwrap();
    assert!(bytes(&found) > 0 && bytes(&found) < bytes(&usual), "{found} {usual}");
    let said = String::from_utf8(run(&[&load[..], &given].concat()).stdout).unwrap();
    assert!(said.contains("expected traffic") && said.contains("by 50 queries"), "{said}");
    let other = Data::new(50, 8, "f32");
    let error = refused(&[&load[..], &["--traffic", arg(&other.base)]].concat(), 2);
    assert!(error.contains("8 dimensions, the index has 16"), "{error}");
}

#[test]
fn a_memory_node_that_is_cut_off_is_an_error_until_it_answers() {
    let mut loaded = Loaded::new();
    let node = loaded.address.clone();
    let way = Way::to(node.parse().unwrap()).unwrap();
    loaded.address = way.address().to_string();
    let server = loaded.serve(&[]);
    let queries = loaded.data.query_rows.clone();
    let (code, before) = search(server.address(), &queries);
    assert_eq!(code, 200, "{before}");
    way.cut();
    let (code, lost) = search(server.address(), &queries[..3]);
    assert_eq!(code, 503, "{lost}");
    assert!(lost["error"].as_str().unwrap().contains("memory nodes are lost"), "{lost}");
    assert!(lost["error"].as_str().unwrap().contains(&loaded.address), "{lost}");
    let (code, health) = get(server.address(), "/v1/health");
    assert_eq!((code, &health["healthy"]), (503, &false.into()));
    way.mend();
    // No query is needed for the server to notice.
    wait_for("the memory node", || get(server.address(), "/v1/health").0 == 200);
    let (code, after) = search(server.address(), &queries);
    assert_eq!(code, 200, "{after}");
    for (before, after) in
        before["answers"].as_array().unwrap().iter().zip(after["answers"].as_array().unwrap())
    {
        assert_eq!(before["ids"], after["ids"]);
    }
    // Killed and started again it is empty, and named as that.
    loaded.node.take().unwrap().signal(SIGKILL);
    loaded.address = node;
    loaded.start_node();
    wait_for("the node that is empty", || {
        let (code, found) = search(server.address(), &queries[..3]);
        assert_eq!(code, 503, "{found}");
        found["error"].as_str().unwrap().contains("was open")
    });
    // The server follows a load, whether the node was started again or not, and says unhealthy until then.
    for _ in 0..2 {
        loaded.load();
        wait_for("the load", || {
            let (code, found) = search(server.address(), &queries);
            assert!(code == 200 || found["error"].as_str().unwrap().contains("was open"), "{found}");
            code == 200
        });
        assert_eq!(get(server.address(), "/v1/health").0, 200);
        let (_, after) = search(server.address(), &queries);
        for (before, after) in
            before["answers"].as_array().unwrap().iter().zip(after["answers"].as_array().unwrap())
        {
            assert_eq!(before["ids"], after["ids"]);
        }
    }
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
    assert!(error.contains("server is for an index in a folder"), "{error}");
    std::fs::write(&file, text.replace("server = 1", "http = \"127.0.0.1:0\"\nbatch = 100")).unwrap();
    let server = Running::start(&["serve", "--config", arg(&file), "--until-eof"]);
    assert_eq!(search(server.address(), &loaded.data.query_rows[..1]).0, 200);
}

#[test]
fn info_verify_and_explain_see_what_was_changed() {
    let loaded = Loaded::new();
    let (memory, queries) = (loaded.memory(), arg(&loaded.data.queries));
    let of = |command: &[&str]| json(&[command, &memory].concat());
    let fresh = of(&["info"])["memory_nodes"].clone();
    assert_eq!(
        (&fresh["tombstones"], &fresh["fresh_reserved"], &fresh["groups"]),
        (&0.into(), &0.into(), &12.into())
    );

    // The 50 queries under ids that rows have already, and five ids that go.
    of(&["insert", queries]);
    of(&["delete", "--id", "100,101,102,103,104"]);
    let live = of(&["info"])["memory_nodes"].clone();
    assert_eq!(
        (&live["tombstones"], &live["fresh_reserved"], &live["clock"]),
        (&55.into(), &50.into(), &55.into())
    );
    let sound = of(&["verify"]);
    assert_eq!((&sound["violations_found"], &sound["lists"]), (&0.into(), &24.into()));
    assert_eq!(sound["fresh"], json!({"published": 50, "holes": 0, "killed": 0}));
    assert_eq!(sound["nodes"], 2050);
    let text = run(&[&["verify"][..], &memory].concat());
    assert!(String::from_utf8_lossy(&text.stdout).contains("fresh records: 50 published"), "{text:?}");

    let trace = of(&["explain", queries, "--query", "3", "--nprobe", "24", "-k", "1"]);
    assert_eq!((&trace["results"][0]["id"], &trace["results"][0]["distance"]), (&3.into(), &0.0.into()));
    let fresh: u64 = trace["clusters"].as_array().unwrap().iter().map(|c| c["fresh"].as_u64().unwrap()).sum();
    assert_eq!(fresh, 50, "all records of all clusters: {trace}");
    assert!(trace["headers"]["round_trips"].as_u64() > Some(0) && trace["round_trips"] == 1, "{trace}");
    let loads = trace["loads"].as_u64().unwrap();
    assert!((24..=48).contains(&loads) && trace["cache_hits"] == 0, "{trace}");
    let folder = json(&["explain", arg(&loaded.index), queries, "--nprobe", "5"]);
    assert_eq!(
        (&folder["loads"], &folder["round_trips"], &folder["headers"]),
        (&5.into(), &1.into(), &Value::Null)
    );
    let error = refused(&[&["explain", arg(&loaded.index), queries][..], &memory].concat(), 2);
    assert!(error.contains("leave out"), "{error}");

    loaded.damage(&loaded.address, loaded.groups_at(&loaded.address) + 400);
    let output = run(&[&["verify", "--json"][..], &memory].concat());
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((output.status.code(), &found["violations_found"]), (Some(1), &1.into()), "{found}");
    let violation = &found["violations"][0];
    assert!(violation["file"] == "memory node 0" && violation["list"].as_u64() < Some(24), "{violation}");
}
