//! `stratann cluster up`: processes that come and go together.
#![allow(missing_docs)]

mod common;

use std::io::Read;
use std::net::TcpStream;
use std::time::Duration;

use common::*;
use serde_json::Value;

fn addresses(up: &Running) -> Vec<String> {
    let servers = up.ready["servers"].as_array().unwrap();
    servers.iter().map(|s| s["address"].as_str().unwrap().to_string()).collect()
}

/// Waits until the server at the other end of a connection has gone.
fn wait_for_end(mut connection: TcpStream) {
    connection.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    match connection.read(&mut [0]) {
        Ok(0) => {}
        Err(e) if e.kind() == std::io::ErrorKind::ConnectionReset => {}
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_plain_index_has_one_server() {
    let data = Data::new(1500, 16, "f32");
    let index = data.build("graph", &[]);
    let up = Running::start(&["cluster", "up", arg(&index), "--threads", "1", "--ram-budget", "64MiB"]);
    let addresses = addresses(&up);
    assert_eq!((addresses.len(), &up.ready["servers"][0]["server"]), (1, &0.into()));
    assert!(up.ready["servers"][0]["pid"].as_u64() > Some(0));
    let found = json(&["search", "--connect", &addresses[0], arg(&data.queries), "--search-list", "20"]);
    assert_eq!(found["runs"][0]["failed_queries"], 0);
    let open = TcpStream::connect(&addresses[0]).unwrap();
    up.signal(libc::SIGTERM);
    let (code, said) = up.end();
    assert_eq!(code, Some(0), "{said}");
    wait_for_end(open);
    assert!(TcpStream::connect(&addresses[0]).is_err(), "the server ended with it");
}

#[test]
fn servers_end_with_the_process_that_started_them() {
    let data = Data::new(300, 8, "f32");
    let flat = data.path("flat");
    json(&["build", arg(&data.base), "-o", arg(&flat), "--kind", "flat"]);
    for (signal, code) in [(libc::SIGKILL, None), (libc::SIGINT, Some(130))] {
        let up = Running::start(&["cluster", "up", arg(&flat), "--quiet"]);
        let open = TcpStream::connect(&addresses(&up)[0]).unwrap();
        up.signal(signal);
        assert_eq!(up.end().0, code);
        wait_for_end(open);
    }
    // The last server: without it nothing is left to run for.
    let up = Running::start(&["cluster", "up", arg(&flat)]);
    send_signal(up.ready["servers"][0]["pid"].as_u64().unwrap() as u32, libc::SIGKILL);
    let (code, said) = up.end();
    assert!(code == Some(1) && said.contains("server 0") && said.contains("no server is left"), "{said}");
}

#[test]
fn what_cannot_run_is_refused() {
    let data = Data::new(1500, 16, "f32");
    let index = data.build("graph", &["--nodes-per-block", "8"]);
    let error = refused(&["cluster", "up", arg(&index), "--servers", "2"], 2);
    assert!(error.contains("--servers is 2") && error.contains("needs 1"), "{error}");
    let spread = data.path("spread");
    json(&["cluster", "partition", arg(&index), "-o", arg(&spread), "--servers", "3"]);
    let error = refused(&["cluster", "up", arg(&spread), "--servers", "2"], 2);
    assert!(error.contains("partitioned over 3"), "{error}");
    assert!(refused(&["cluster", "up", arg(&data.path("nowhere"))], 2).contains("nowhere"));
    let error = refused(&["cluster", "up", arg(&index), "--ram-budget", "1MiB"], 1);
    assert!(error.contains("server 0") && error.contains("--ram-budget"), "{error}");
}

fn per_query(document: &Value, key: &str) -> f64 {
    document["runs"][0]["per_query"][key].as_f64().unwrap()
}

#[test]
fn a_spread_index_answers_as_a_whole_one() {
    let data = Data::new(3000, 16, "f32");
    let index = data.build("graph", &["--nodes-per-block", "8"]);
    let spread = data.path("spread");
    json(&["cluster", "partition", arg(&index), "-o", arg(&spread), "--servers", "3"]);
    let up = Running::start(&["cluster", "up", arg(&spread), "--servers", "3", "--threads", "1"]);
    let addresses = addresses(&up).join(",");
    let asked = ["--search-list", "30", "--width", "1"];
    let (here, there) = (data.path("here"), data.path("there"));
    let counted = ["-o", arg(&here), "--cache-budget", "0"];
    let local = json(&[&["search", arg(&index), arg(&data.queries)], &counted[..], &asked[..]].concat());
    let remote = json(
        &[&["search", "--connect", &addresses, arg(&data.queries), "-o", arg(&there)], &asked[..]].concat(),
    );
    assert_eq!(read_answers(&here), read_answers(&there));
    for key in ["reads", "hops", "full_comparisons"] {
        assert_eq!(per_query(&local, key), per_query(&remote, key), "{key}");
    }
    let met = |run| per_query(run, "code_comparisons") + per_query(run, "repeats");
    assert!((met(&local) - met(&remote)).abs() < 1e-6);
    assert!(per_query(&remote, "hand_overs") > 0.0 && per_query(&remote, "bytes_sent") > 0.0);
}

#[test]
fn one_of_two_homes_may_die() {
    let data = Data::new(3000, 16, "f32");
    let index = data.build("graph", &["--nodes-per-block", "8"]);
    let spread = data.path("spread");
    json(&["cluster", "partition", arg(&index), "-o", arg(&spread), "--servers", "3", "--replicas", "2"]);
    let up = Running::start(&["cluster", "up", arg(&spread), "--threads", "1"]);
    let addresses = addresses(&up);
    let open = TcpStream::connect(&addresses[1]).unwrap();
    send_signal(up.ready["servers"][1]["pid"].as_u64().unwrap() as u32, libc::SIGKILL);
    wait_for_end(open);
    let found =
        json(&["search", "--connect", &addresses.join(","), arg(&data.queries), "--search-list", "30"]);
    assert_eq!(found["runs"][0]["failed_queries"], 0);
}
