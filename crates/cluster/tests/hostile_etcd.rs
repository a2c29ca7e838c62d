//! An etcd whose replies do not end, hardly begin, or steer a terminal.

use std::sync::Arc;

use stratann_cluster::membership::EtcdOptions;
use stratann_testing::hostile::{Hostile, Reply};

fn members(answer: impl Fn(&str) -> Reply + Send + Sync + 'static) -> (String, u64) {
    let hostile = Hostile::start(answer).unwrap();
    let endpoints = vec![format!("http://{}", hostile.address())];
    let options = EtcdOptions { endpoints, cluster: "tests".into(), lease_s: 5, log: Arc::new(|_| {}) };
    (options.members().unwrap_err().message, hostile.sent())
}

#[test]
fn an_endless_reply_ends() {
    let (head, chunk) = Reply::chunks("200 OK", 1 << 20);
    let (error, sent) = members(move |_| Reply::Endless(head.clone(), chunk.clone()));
    assert!(error.contains("sends a reply of more than 4194304 bytes"), "{error}");
    assert!(sent < 64 << 20, "{sent} bytes");
}

#[test]
fn a_slow_reply_ends() {
    let (head, chunk) = Reply::chunks("200 OK", 1);
    let (error, _) = members(move |_| Reply::Dribble(head.clone(), chunk.clone()));
    assert!(error.contains("does not answer"), "{error}");
    let (error, _) = members(|_| Reply::Dribble(b"HTTP/1.1 200 OK\r\nX: ".to_vec(), b"y".to_vec()));
    assert!(error.contains("does not answer"), "{error}");
}

#[test]
fn a_reply_does_not_steer_a_terminal() {
    let body = r#"{"error": "\u001b[2J\u009b31m\r\nsecond line\u0007"}"#;
    let (error, _) = members(move |_| Reply::of("400 Bad Request", body));
    assert!(!error.chars().any(char::is_control) && error.contains("second line"), "{error}");
}
