//! Queries that go to the server that has their clusters cached: several servers of one memory node, as processes.
#![allow(missing_docs)]

mod common;

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use common::*;
use serde_json::Value;

const SERVERS: usize = 3;

struct Place {
    data: Data,
    _node: Running,
    servers: Vec<Running>,
    queries: PathBuf,
}

impl Place {
    fn new() -> Place {
        let data = Data::new(4000, 16, "f32");
        let (index, key, queries) = (data.path("remote"), data.path("key"), data.path("many.fbin"));
        std::fs::write(&key, "0123456789abcdef".repeat(4) + "\n").unwrap();
        write(&queries, &rows(960, 16, "f32", 5), "f32");
        let build =
            ["build", arg(&data.base), "-o", arg(&index), "--kind", "remote-hnsw", "--partitions", "48"];
        json(&[&build[..], &["-M", "8", "--ef-construction", "60", "--calibration-queries", "60"]].concat());
        let node = ["memory-node", "--size", "16MiB", "--listen", "127.0.0.1:0", "--key-file", arg(&key)];
        let node = Running::start(&[&node[..], &["--until-eof"]].concat());
        let memory = node.ready["listen"].as_str().unwrap().to_string();
        json(&["memory-node", "load", arg(&index), "--nodes", &memory, "--key-file", arg(&key)]);
        // The cache of a server has room for some of the clusters.
        let serve =
            ["serve", "--http", "127.0.0.1:0", "--until-eof", "--threads", "1", "--cache-budget", "100KiB"];
        let serve = [&serve[..], &["--memory", &memory, "--key-file", arg(&key)]].concat();
        let servers = (0..SERVERS).map(|_| Running::start(&serve)).collect();
        Place { data, _node: node, servers, queries }
    }

    fn connect(&self) -> String {
        self.servers.iter().map(Running::address).collect::<Vec<_>>().join(",")
    }

    /// The run, and its answers.
    fn search(&self, more: &[&str]) -> (Value, (usize, Vec<u32>, Vec<f32>)) {
        let (connect, out) = (self.connect(), self.data.path("out"));
        let args = ["search", "--connect", &connect, arg(&self.queries), "-k", "5", "--in-flight", "16"];
        let own = ["--threads", "2", "-o", arg(&out), "--force"];
        let run = json(&[&args[..], &own, more].concat())["runs"][0].clone();
        assert_eq!(run["failed_queries"], 0, "{run}");
        (run, read_answers(&out))
    }

    /// A number of each server's status.
    fn of_servers(&self, name: &str) -> Vec<u64> {
        let count = |server: &Running| get(server.address(), "/v1/status").1[name].as_u64().unwrap();
        self.servers.iter().map(count).collect()
    }

    /// An open loop, and the loads of the servers meanwhile.
    fn bench(&self, more: &[&str]) -> (Value, u64) {
        let loads = || self.of_servers("loads").iter().sum::<u64>();
        let (connect, before) = (self.connect(), loads());
        let args = ["bench", "--connect", &connect, arg(&self.queries), "-k", "5", "--nprobe", "3"];
        let run = json(&[&args[..], &["--rate", "600", "--seconds", "2"], more].concat())["runs"][0].clone();
        assert_eq!(run["requests"], run["answered"], "{run}");
        (run, loads() - before)
    }
}

fn counter(run: &Value, name: &str) -> f64 {
    run["per_query"][name].as_f64().unwrap()
}

#[test]
fn queries_that_go_where_their_clusters_are_cached_load_less() {
    let place = Place::new();
    for effort in [["--nprobe", "3"], ["--recall", "0.9"]] {
        let (in_turn, expected) = place.search(&[&effort[..], &["--no-affinity"]].concat());
        assert_eq!(in_turn["routed_by_cache"], Value::Null);
        let before = place.of_servers("queries");
        let (routed, found) = place.search(&effort);
        assert_eq!(found, expected, "{effort:?}");
        assert!(routed["routed_by_cache"].as_u64().unwrap() > 200, "{routed}");
        for name in ["reads", "bytes_read"] {
            let (own, other) = (counter(&routed, name), counter(&in_turn, name));
            assert!(own > 0.0 && own < 0.7 * other, "{effort:?}: {name} {own} and {other} in turn");
        }
        let after = place.of_servers("queries");
        let most = after.iter().zip(&before).map(|(a, b)| a - b).max().unwrap();
        assert!(most <= 960 / 3 * 5 / 4 + 16, "{before:?} {after:?}");
    }
}

#[test]
fn an_open_loop_sends_queries_where_their_clusters_are_cached() {
    let place = Place::new();
    let (in_turn, usual) = place.bench(&["--no-affinity"]);
    assert_eq!(in_turn["routed_by_cache"], Value::Null);
    let (routed, loads) = place.bench(&[]);
    assert!(routed["routed_by_cache"].as_u64().unwrap() > 200, "{routed}");
    assert!(loads > 0 && loads * 10 < usual * 9, "{loads} loads, and {usual} in turn");
}

#[test]
fn a_server_says_which_clusters_it_has_cached() {
    let place = Place::new();
    let address = place.servers[0].address();
    let (status, all) = get(address, "/v1/clusters?nprobe=3");
    assert_eq!(
        (status, all["nprobe"].as_u64(), all["bytes"].as_array().unwrap().len()),
        (200, Some(3), 48),
        "{all}"
    );
    let set = |cached: &Value| {
        let digits = cached["bitmap"].as_str().unwrap().as_bytes().to_vec();
        digits.iter().map(|&digit| (digit as char).to_digit(16).unwrap().count_ones()).sum::<u32>()
    };
    assert_eq!(set(&all["cached"]), 0);
    let row: Vec<u8> = place.data.query_rows[0].iter().flat_map(|&x| (x as f32).to_le_bytes()).collect();
    let path = "/v1/search?k=5&nprobe=3&timeout_ms=20000";
    let (_, reply) = post(address, path, &row);
    assert_eq!(reply["cached"], Value::Null, "a request that does not ask for the cached clusters gets none");
    let (_, reply) = post(address, &format!("{path}&cached=0"), &row);
    assert_eq!(set(&reply["cached"]), 3, "{reply}");
    let known = reply["cached"]["version"].as_str().unwrap();
    let (_, reply) = post(address, &format!("{path}&cached={known}"), &row);
    assert_eq!((&reply["cached"]["version"], &reply["cached"]["bitmap"]), (&known.into(), &Value::Null));
    let (status, refused) = post(address, &format!("{path}&cached=x"), &row);
    assert!(status == 400 && refused["error"].as_str().unwrap().contains("hexadecimal"), "{refused}");
    // A server that is lost is left out, and its queries go to the others.
    send_signal(place.servers[1].child.id(), libc::SIGKILL);
    let (run, _) = place.search(&["--nprobe", "3"]);
    assert!(run["routed_by_cache"].as_u64().is_some(), "{run}");
    assert_eq!(run["failed_queries"], 0, "{run}");
}

/// Passes connections on to a server, but for the first request for the meta-HNSW: that one is never answered.
struct SlowLink {
    address: String,
    withheld: Arc<AtomicUsize>,
}

impl SlowLink {
    fn new(to: &str) -> SlowLink {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (to, withheld) = (to.to_string(), Arc::new(AtomicUsize::new(0)));
        let count = withheld.clone();
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let (to, count) = (to.clone(), count.clone());
                // A connection that breaks off ends its thread.
                std::thread::spawn(move || pass_on(client?, &to, &count));
            }
        });
        SlowLink { address, withheld }
    }
}

fn pass_on(mut client: TcpStream, to: &str, withheld: &AtomicUsize) -> std::io::Result<()> {
    let mut server = TcpStream::connect(to)?;
    let (mut from, mut back) = (server.try_clone()?, client.try_clone()?);
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut from, &mut back);
        let _ = back.shutdown(Shutdown::Both);
    });
    let mut bytes = [0; 64 << 10];
    loop {
        let count = client.read(&mut bytes)?;
        if count == 0 {
            return server.shutdown(Shutdown::Both);
        }
        let is_meta = bytes[..count].starts_with(b"GET /v1/meta");
        if !is_meta || withheld.fetch_add(1, Ordering::Relaxed) > 0 {
            server.write_all(&bytes[..count])?;
        }
    }
}

#[test]
fn a_link_that_is_slow_at_first_is_said_and_tried_again() {
    let place = Place::new();
    let links = [0, 1].map(|server: usize| SlowLink::new(place.servers[server].address()));
    let connect = links.each_ref().map(|link| link.address.clone()).join(",");
    let args = ["search", "--connect", &connect, arg(&place.queries), "-k", "5", "--threads", "2", "--json"];
    let output = run(&[&args[..], &["--nprobe", "2,3,4"]].concat());
    assert!(output.status.success(), "{}", stderr(&output));
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    let routed: Vec<bool> =
        found["runs"].as_array().unwrap().iter().map(|run| run["routed_by_cache"].is_u64()).collect();
    assert_eq!(routed, [false, true, true], "{found}");
    let said = stderr(&output);
    let warnings: Vec<&str> = said.lines().filter(|line| line.starts_with("warning: ")).collect();
    assert!(matches!(warnings[..], [one] if one.contains("--no-affinity")), "{said}");
    assert!(links.iter().all(|link| warnings[0].contains(&link.address)), "{said}");
    assert_eq!(links.each_ref().map(|link| link.withheld.load(Ordering::Relaxed)), [2, 1]);
}

#[test]
fn queries_begin_at_the_server_where_they_enter() {
    let data = Data::new(4000, 16, "f32");
    let index = data.build("graph", &["--calibration-queries", "0"]);
    let folder = spread(&data, &index, "spread", &["--servers", "4"]);
    let up = Running::start(&["cluster", "up", arg(&folder), "--threads", "1"]);
    let (all, out) = (addresses(&up), data.path("out"));
    let connect = all.join(",");
    let search = |more: &[&str]| {
        let args =
            ["search", "--connect", &connect, arg(&data.queries), "--search-list", "30", "--width", "1"];
        let run = json(&[&args[..], &["-o", arg(&out), "--force"], more].concat())["runs"][0].clone();
        (run, read_answers(&out))
    };
    let (in_turn, expected) = search(&["--no-affinity"]);
    let (routed, found) = search(&[]);
    assert_eq!(found, expected);
    assert_eq!((&in_turn["routed_by_entry"], &routed["routed_by_cache"]), (&Value::Null, &Value::Null));
    let count = data.query_rows.len() as u64;
    let sent = routed["routed_by_entry"].as_u64().unwrap();
    assert!(sent > count / 2 && sent <= count, "{sent} of {count}");
    let (fewer, hand_overs) = (counter(&routed, "hand_overs"), counter(&in_turn, "hand_overs"));
    assert!(fewer < hand_overs - 0.2, "{fewer} and {hand_overs} in turn");
    assert_eq!(counter(&routed, "reads"), counter(&in_turn, "reads"));

    let bench = ["bench", "--connect", &connect, arg(&data.queries), "--search-list", "30", "--rate", "100"];
    let run = json(&[&bench[..], &["--seconds", "1"]].concat())["runs"][0].clone();
    assert!(run["routed_by_entry"].as_u64().unwrap() * 2 > run["requests"].as_u64().unwrap(), "{run}");

    // A server that is gone is asked for nothing.
    send_signal(up.ready["servers"][3]["pid"].as_u64().unwrap() as u32, libc::SIGKILL);
    let args = ["search", "--connect", &connect, arg(&data.queries), "--search-list", "30", "--partial"];
    let partial = json(&args)["runs"][0].clone();
    assert_eq!(partial["failed_queries"], 0, "{partial}");
}

#[test]
fn servers_of_other_kinds_are_asked_in_turn() {
    let data = Data::new(500, 8, "f32");
    let index = data.build("graph", &["--calibration-queries", "0"]);
    let servers = [Running::serve(&index, &[]), Running::serve(&index, &[])];
    assert_eq!(get(servers[0].address(), "/v1/clusters").0, 404);
    assert_eq!(get(servers[0].address(), "/v1/meta").0, 404);
    let connect = format!("{},{}", servers[0].address(), servers[1].address());
    let found = json(&["search", "--connect", &connect, arg(&data.queries), "--search-list", "30"]);
    let run = &found["runs"][0];
    assert_eq!((&run["routed_by_cache"], &run["routed_by_entry"]), (&Value::Null, &Value::Null));
    assert_eq!(get(servers[0].address(), "/v1/landmarks").0, 404, "it has the whole index");
}
