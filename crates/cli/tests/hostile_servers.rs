//! Servers whose replies do not end, hardly begin, or steer a terminal.
#![allow(missing_docs)]

mod common;

use common::*;
use stratann_testing::hostile::{Hostile, Reply};

/// Searches on a server and fails; gives what was said, with that of `--json`, and the bytes that were taken.
fn failed(answer: impl Fn(&str) -> Reply + Send + Sync + 'static) -> (String, u64) {
    let folder = folder();
    let queries = folder.path().join("query.fbin");
    write(&queries, &rows(2, 4, "f32", 1), "f32");
    let hostile = Hostile::start(answer).unwrap();
    let address = hostile.address().to_string();
    let output = run(&["search", "--connect", &address, arg(&queries), "-k", "1", "--json"]);
    assert!(!output.status.success());
    (stderr(&output) + &String::from_utf8_lossy(&output.stdout), hostile.sent())
}

fn status() -> Reply {
    let status = serde_json::json!({
        "rows": 10, "dim": 4, "dtype": "f32", "metric": "l2", "build_id": "0123456789abcdef", "io_backend": "x",
        "cpu_us": 0, "peak_rss_bytes": 0, "bytes_sent": 0, "memory": {}, "ram_budget_bytes": null,
    });
    Reply::of("200 OK", &status.to_string())
}

#[test]
fn an_endless_status_ends() {
    let (head, chunk) = Reply::chunks("200 OK", 1 << 20);
    let (said, sent) = failed(move |_| Reply::Endless(head.clone(), chunk.clone()));
    assert!(said.contains("no server answers"), "{said}");
    assert!(sent < 64 << 20, "{sent} bytes");
}

#[test]
fn a_slow_status_ends() {
    let (head, chunk) = Reply::chunks("200 OK", 1);
    let (said, _) = failed(move |_| Reply::Dribble(head.clone(), chunk.clone()));
    assert!(said.contains("no server answers"), "{said}");
    let (said, _) = failed(|_| Reply::Dribble(b"HTTP/1.1 200 OK\r\nX: ".to_vec(), b"y".to_vec()));
    assert!(said.contains("no server answers"), "{said}");
}

#[test]
fn nothing_that_a_server_says_steers_a_terminal() {
    for (code, text) in
        [("400 Bad Request", "bad\\u001b[2J\\u009b31m\\u0007"), ("500 No", "no\\u001b]0;x\\u0007")]
    {
        let body = format!("{{\"error\": \"{text}\"}}");
        let (said, _) = failed(move |line| match line.contains("/v1/status") {
            true => status(),
            false => Reply::of(code, &body),
        });
        let is_plain = |c: char| c == '\n' || !c.is_control();
        assert!(said.chars().all(is_plain) && said.contains('\u{fffd}'), "{said:?}");
    }
}
