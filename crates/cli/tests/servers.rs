//! A cluster of real processes: equal answers, deaths under load, strangers, stores.
#![allow(missing_docs)]

mod common;

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use common::*;
use serde_json::Value;

const PATIENCE: Duration = Duration::from_secs(60);

fn spread(data: &Data, index: &Path, name: &str, more: &[&str]) -> PathBuf {
    let out = data.path(name);
    json(&[&["cluster", "partition", arg(index), "-o", arg(&out)], more].concat());
    out
}

fn addresses(up: &Running) -> Vec<String> {
    let servers = up.ready["servers"].as_array().unwrap();
    servers.iter().map(|s| s["address"].as_str().unwrap().to_string()).collect()
}

/// What a server answers to a GET.
fn get(address: &str, path: &str) -> (u16, Value) {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let status = text.split(' ').nth(1).unwrap().parse().unwrap();
    let body = text.split_once("\r\n\r\n").unwrap().1;
    (status, serde_json::from_str(&body[body.find('{').unwrap()..=body.rfind('}').unwrap()]).unwrap())
}

fn wait_for(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < PATIENCE, "{what} does not come");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn several_processes_answer_as_one_and_do_the_same_work() {
    let data = Data::new(3000, 16, "f32");
    let index = data.build("graph", &["--nodes-per-block", "8"]);
    let asked = ["--search-list", "30", "--width", "1"];
    let (here, there) = (data.path("here"), data.path("there"));
    let local = json(&[&["search", arg(&index), arg(&data.queries), "-o", arg(&here)], &asked[..]].concat());
    for (name, more) in [("one", &["--servers", "3"][..]), ("two", &["--servers", "4", "--replicas", "2"])] {
        let folder = spread(&data, &index, name, more);
        let up = Running::start(&["cluster", "up", arg(&folder), "--threads", "1", "--ram-budget", "96MiB"]);
        let all = addresses(&up).join(",");
        let remote = json(
            &[&["search", "--connect", &all, arg(&data.queries), "-o", arg(&there)], &asked[..]].concat(),
        );
        assert_eq!(read_answers(&here), read_answers(&there));
        let (mine, theirs) = (&local["runs"][0]["per_query"], &remote["runs"][0]["per_query"]);
        for key in ["reads", "hops", "code_comparisons", "full_comparisons", "pages_read"] {
            assert_eq!(mine[key], theirs[key], "{key}");
        }
        assert!(
            theirs["hand_overs"].as_f64() > Some(0.5) && theirs["bytes_sent"].as_f64() > Some(50.0),
            "{theirs}"
        );
        let (code, status) = get(&addresses(&up)[1], "/v1/status");
        assert_eq!((code, &status["server"], &status["dropped_frames"]), (200, &1.into(), &0.into()));
    }
}

#[test]
fn with_two_homes_a_process_is_killed_under_load_and_nothing_is_lost() {
    let data = Data::new(3000, 16, "f32");
    let index = data.build("graph", &["--nodes-per-block", "8"]);
    let folder = spread(&data, &index, "spread", &["--servers", "4", "--replicas", "2"]);
    let up = Running::start(&["cluster", "up", arg(&folder), "--threads", "1"]);
    let all = addresses(&up);
    let (expected, got) = (data.path("expected"), data.path("got"));
    let ask = |servers: &[String], out: &Path| {
        let servers = servers.join(",");
        let found = json(&[
            "search",
            "--connect",
            &servers,
            arg(&data.queries),
            "--search-list",
            "30",
            "--width",
            "1",
            "-o",
            arg(out),
        ]);
        assert_eq!(found["runs"][0]["failed_queries"], 0, "{found}");
    };
    ask(&all, &expected);
    let victim = up.ready["servers"][3]["pid"].as_u64().unwrap() as u32;
    std::thread::scope(|scope| {
        // Clients go on while it dies; one of them has the victim among its servers.
        let (ask, all, data, expected) = (&ask, &all, &data, &expected);
        for (i, servers) in [&all[..3], &all[..]].into_iter().enumerate() {
            scope.spawn(move || {
                let got = data.path(&format!("got{i}"));
                for _ in 0..12 {
                    ask(servers, &got);
                    assert_eq!(read_answers(expected), read_answers(&got));
                }
            });
        }
        std::thread::sleep(Duration::from_millis(300));
        send_signal(victim, libc::SIGKILL);
    });
    wait_for("word of the death", || {
        get(&all[0], "/v1/status").1["live"] == serde_json::json!([true, true, true, false])
    });
    assert_eq!(get(&all[0], "/v1/health").0, 200, "every part has another home");
    ask(&all[..3], &got);
    assert_eq!(read_answers(&expected), read_answers(&got));
}

/// Configurations of the servers of a spread index, with free ports, and one secret.
fn configs(data: &Data, name: &str, count: usize, source: &dyn Fn(usize) -> String) -> Vec<PathBuf> {
    let held: Vec<TcpListener> = (0..count).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    let peers: Vec<String> = held.iter().map(|l| l.local_addr().unwrap().to_string()).collect();
    std::fs::write(data.path("secret"), "a secret of this test").unwrap();
    (0..count)
        .map(|s| {
            let path = data.path(&format!("{name}-{s}.toml"));
            let text = format!(
                "{}\nserver = {s}\nlisten = {:?}\npeers = {peers:?}\nhttp = \"127.0.0.1:0\"\nthreads = 1\nsecret_file = \"secret\"\n",
                source(s),
                peers[s]
            );
            std::fs::write(&path, text).unwrap();
            path
        })
        .collect()
}

fn start(config: &Path) -> Running {
    Running::start(&["serve", "--config", arg(config), "--until-eof"])
}

#[test]
fn servers_fetch_their_parts_from_a_store_and_serve_them() {
    let data = Data::new(3000, 16, "f32");
    let index = data.build("graph", &["--nodes-per-block", "8"]);
    let folder = spread(&data, &index, "spread", &["--servers", "3"]);
    let store = data.path("store");
    let publish = ["cluster", "publish", arg(&folder), arg(&store)];
    let first = json(&publish);
    assert_eq!((&first["version"], &first["is_new"]), (&1.into(), &true.into()));
    assert_eq!(json(&publish)["is_new"], false);
    let files = configs(&data, "stored", 3, &|s| format!("store = \"store\"\ndata = \"data-{s}\""));
    let servers: Vec<Running> = files.iter().map(|f| start(f)).collect();
    let all: Vec<&str> = servers.iter().map(Running::address).collect();
    wait_for("the cluster", || all.iter().all(|a| get(a, "/v1/health").0 == 200));
    let (here, there) = (data.path("here"), data.path("there"));
    let asked = ["--search-list", "30", "--width", "1"];
    json(&[&["search", arg(&index), arg(&data.queries), "-o", arg(&here)], &asked[..]].concat());
    json(
        &[&["search", "--connect", &all.join(","), arg(&data.queries), "-o", arg(&there)], &asked[..]]
            .concat(),
    );
    assert_eq!(read_answers(&here), read_answers(&there));
    // Each has its own blocks and no other's.
    let held = |s: usize| -> Vec<String> {
        let build =
            std::fs::read_dir(data.path(&format!("data-{s}"))).unwrap().next().unwrap().unwrap().path();
        let names = std::fs::read_dir(build).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
        names.filter(|n| n.contains("-blocks-")).collect()
    };
    assert_eq!(
        [held(0), held(1), held(2)].concat(),
        ["v1-blocks-00.bin", "v1-blocks-01.bin", "v1-blocks-02.bin"]
    );
    for (text, said) in [
        ("store = \"store\"", "set data"),
        ("data = \"d\"", "names no index"),
        ("store = \"none\"\ndata = \"d\"", "holds no index"),
        ("store = \"store\"\ndata = \"d\"\netcd = [\"http://127.0.0.1:9\"]", "set both etcd and cluster"),
    ] {
        let path = data.path("bad.toml");
        std::fs::write(&path, format!("{text}\nserver = 0\n")).unwrap();
        let error = refused(&["serve", "--config", arg(&path)], 2);
        assert!(error.contains(said), "{text}: {error}");
    }
}

#[test]
fn another_version_of_the_index_is_no_peer_and_noise_does_no_harm() {
    let data = Data::new(3000, 16, "f32");
    let index = data.build("graph", &["--nodes-per-block", "8"]);
    let new = spread(&data, &index, "new", &["--servers", "2", "--replicas", "2"]);
    let old = spread(
        &data,
        &index,
        "old",
        &["--servers", "2", "--replicas", "2", "--seed", "5", "--method", "random"],
    );
    let build = |folder: &Path| json(&["info", arg(folder)])["build_id"].clone();
    // With all blocks on both servers the placement is the same; the manifest is not.
    assert_ne!(build(&new), build(&old));
    let folders: BTreeMap<usize, &Path> = BTreeMap::from([(0, new.as_path()), (1, old.as_path())]);
    let files = configs(&data, "mixed", 2, &|s| format!("index = {:?}", folders[&s]));
    let servers: Vec<Running> = files.iter().map(|f| start(f)).collect();
    let listen = servers[0].ready["listen"].as_str().unwrap().to_string();
    for noise in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0xFF; 100_000], &[0; 10], b"STRATANN"] {
        let mut stream = TcpStream::connect(&listen).unwrap();
        // It may close before all is written.
        let _ = stream.write_all(noise);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let _ = stream.read_to_end(&mut Vec::new());
    }
    // Each answers alone, for it holds all blocks, and knows the other as dead.
    for server in &servers {
        let found =
            json(&["search", "--connect", server.address(), arg(&data.queries), "--search-list", "30"]);
        assert_eq!(found["runs"][0]["failed_queries"], 0);
        let live = get(server.address(), "/v1/status").1["live"].clone();
        assert_eq!(live.as_array().unwrap().iter().filter(|l| **l == true).count(), 1, "{live}");
    }
    for server in servers {
        server.signal(libc::SIGTERM);
        let (code, said) = server.end();
        assert_eq!(code, Some(0), "{said}");
        assert!(said.contains("another build of the index"), "{said}");
    }
}
