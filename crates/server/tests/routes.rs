//! The front over a real server and a real index, by plain sockets.
#![allow(missing_docs)]

mod common;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use common::*;
use serde_json::{Value, json};
use stratann_core::query::QueryStats;
use stratann_engine::exec::Width;
use stratann_engine::index::{Index, OpenOptions};
use stratann_engine::search::{Effort, SearchOptions};
use stratann_server::callers::Callers;
use stratann_server::wire::{Answered, Reply};
use stratann_server::{Limits, collection_paths, paths};
use stratann_storage::Quiet;

/// Sends a head as it is, and gives the response.
fn raw(place: &Place, head: &str) -> (u16, String, Value) {
    let mut stream = place.connect();
    stream.write_all(format!("{head}\r\n\r\n").as_bytes()).unwrap();
    receive(&mut stream)
}

#[test]
fn requests_of_pages_in_a_browser_are_refused() {
    let place = Place::new(1000, Limits::default());
    let error = |reply: &Value| reply["error"].as_str().unwrap_or_default().to_string();
    for path in paths().iter().map(String::as_str).chain(["GET /", "DELETE /v1/search"]) {
        for (headers, status, said) in [
            ("Host: evil.example:8700", 403, "--host-name"),
            ("Host: localhost.evil.example", 403, "--host-name"),
            ("Host: localhost\r\nHost: evil.example", 400, "several Host headers"),
            ("Accept: */*", 400, "no Host header"),
            ("Host: localhost\r\nOrigin: http://localhost:8700", 403, "--allow-origin"),
            ("Host: localhost\r\nOrigin: null", 403, "--allow-origin"),
        ] {
            let (found, head, reply) = raw(&place, &format!("{path} HTTP/1.1\r\n{headers}"));
            assert!(found == status && error(&reply).contains(said), "{path}: {headers}: {found} {reply}");
            assert!(!head.contains("access-control"), "{head}");
        }
        let (found, _, reply) =
            raw(&place, &format!("{} HTTP/1.1\r\nHost: localhost", path.replace(" /", " http://evil/")));
        assert!(found == 403 && error(&reply).contains("evil"), "{path}: {reply}");
    }
    for host in ["localhost", "localhost:8700", "127.0.0.1:8700", "[::1]:8700", "10.9.8.7"] {
        assert_eq!(raw(&place, &format!("GET /v1/health HTTP/1.1\r\nHost: {host}")).0, 200, "{host}");
    }
    assert_eq!(raw(&place, "GET /v1/health HTTP/1.0").0, 200, "an old client");
}

#[test]
fn own_names_and_allowed_origins_are_served() {
    let (name, origin) = ("search.example".to_string(), "https://page.example".to_string());
    let callers = Callers { host_names: vec![name], origins: vec![origin] };
    let place = Place::of(1000, Limits::default(), callers);
    let health = |headers: &str| raw(&place, &format!("GET /v1/health HTTP/1.1\r\n{headers}"));
    assert_eq!(health("Host: Search.example:8700").0, 200);
    assert_eq!(health("Host: other.example").0, 403);
    assert_eq!(health("Host: localhost\r\nOrigin: https://page.example:1").0, 403);
    let (status, head, _) = health("Host: localhost\r\nOrigin: https://page.example");
    assert!(status == 200 && head.contains("access-control-allow-origin: https://page.example"), "{head}");
    // What a browser asks before it sends JSON.
    let asked = "OPTIONS /v1/search HTTP/1.1\r\nHost: localhost\r\nOrigin: https://page.example\r\n\
                 Access-Control-Request-Method: POST\r\nAccess-Control-Request-Headers: content-type\r\n\
                 Connection: close\r\n\r\n";
    let mut stream = place.connect();
    stream.write_all(asked.as_bytes()).unwrap();
    let mut head = String::new();
    stream.read_to_string(&mut head).unwrap();
    assert!(
        head.starts_with("HTTP/1.1 204") && head.contains("access-control-allow-headers: content-type"),
        "{head}"
    );
}

#[test]
fn answers_are_those_of_the_index() {
    let place = Place::new(1000, Limits::default());
    let asked = rows(20, 2);
    let options = SearchOptions {
        k: 7,
        effort: Effort::SearchList(40, None),
        width: Width::Fixed(1),
        ..SearchOptions::default()
    };
    let index = Index::open(place.folder.path(), OpenOptions::default()).unwrap();
    let here = index.search(&asked, &options, &Quiet).unwrap();

    let body = json!({ "queries": numbers(&asked), "k": 7, "search_list": 40, "width": 1 });
    let url = "/v1/search?k=7&search_list=40&width=1";
    for (status, _, reply) in [place.post(&body), place.ask("POST", url, "application/octet-stream", &asked)]
    {
        assert_eq!(status, 200, "{reply}");
        assert!(reply["answers"][0]["ids"][0].is_string() && reply["server"] == 0, "{reply}");
        let reply: Reply = serde_json::from_str(&reply.to_string()).unwrap();
        assert_eq!((reply.params.k, reply.params.search_list), (7, 40));
        let mut sum = QueryStats::default();
        for (i, answer) in reply.answers.iter().enumerate() {
            let Answered::Found(found) = answer else { panic!("{answer:?}") };
            assert_eq!(found.ids, here.ids[7 * i..7 * (i + 1)]);
            assert_eq!(found.distances, here.distances[7 * i..7 * (i + 1)]);
            assert!(!found.partial && found.per_query.0.reads > 0);
            sum.add(&found.per_query.0);
        }
        assert_eq!(sum, here.stats);
    }
    // A recall of 1 is exact.
    let exact =
        index.search(&asked, &SearchOptions { effort: Effort::Recall(1.0), ..options }, &Quiet).unwrap();
    let body = json!({ "queries": numbers(&asked), "k": 7, "recall": 1.0, "width": 1 });
    let (status, _, reply) = place.post(&body);
    assert_eq!(status, 200, "{reply}");
    let reply: Reply = serde_json::from_str(&reply.to_string()).unwrap();
    for (answer, ids) in reply.answers.iter().zip(exact.ids.chunks(7)) {
        let Answered::Found(found) = answer else { panic!("{answer:?}") };
        assert_eq!(found.ids, ids);
    }
}

#[test]
fn invalid_requests_are_refused_in_one_line() {
    let place = Place::new(1000, Limits::default());
    let row = numbers(&rows(1, 2));
    for (body, said) in [
        (json!({ "queries": [[1, 2]] }), "query 0 has 2 dimensions, the index has 16"),
        (json!({ "queries": [vec![0; DIM]] }), "query 0: a zero vector"),
        (json!({ "queries": [] }), "no queries"),
        (json!({ "queries": row, "k": 0 }), "k is 0"),
        (json!({ "queries": row, "k": 10_000 }), "k is 10000, and this server takes up to 2048 (max_k)"),
        (
            json!({ "queries": row, "search_list": 9000 }),
            "search_list is 9000, and this server takes up to 8192 (max_list)",
        ),
        (
            json!({ "queries": row, "search_list": 30, "ef": 9000 }),
            "ef is for remote-hnsw, and this index is a disk-graph",
        ),
        (json!({ "queries": row, "recall": 1.5 }), "recall is 1.5"),
        (json!({ "queries": row, "search_list": 0 }), "search list is 0"),
        (json!({ "queries": row, "colour": "red" }), "there is no parameter colour"),
    ] {
        let (status, _, reply) = place.post(&body);
        let error = reply["error"].as_str().unwrap();
        assert!(status == 400 && error.contains(said) && !error.contains('\n'), "{status} {reply}");
    }
    for (method, path, kind, body, status, said) in [
        ("POST", "/v1/search", "application/json", "{", 400, "the body: EOF"),
        ("POST", "/v1/search", "text/html", "", 415, "text/html"),
        ("POST", "/v1/search", "application/x-www-form-urlencoded", "{}", 415, "send application/json"),
        ("POST", "/v1/search", "", "{}", 415, "no Content-Type"),
        ("POST", "/v1/search", "application/octet-stream", "odd", 400, "3 bytes"),
        ("POST", "/v1/search?k=3", "application/json", "{}", 400, "in the URL"),
        ("GET", "/v1/search", "", "", 405, "wrong method"),
        ("POST", "/v1/status", "", "", 405, "wrong method"),
        ("GET", "/", "", "", 404, "POST /v1/search"),
    ] {
        let (found, _, reply) = place.ask(method, path, kind, body.as_bytes());
        assert_eq!(found, status, "{reply}");
        assert!(reply["error"].as_str().unwrap().contains(said), "{reply}");
    }
    let (_, _, status) = place.ask("GET", "/v1/status", "", b"");
    assert_eq!((&status["http"]["requests"], &status["http"]["refused"]), (&json!(16), &json!(16)));
}

#[test]
fn a_body_has_a_limit() {
    let limits = Limits { body_bytes: 4096, ..Limits::default() };
    let place = Place::new(1000, limits);
    let octets =
        |count| place.ask("POST", "/v1/search?search_list=20", "application/octet-stream", &rows(count, 2));
    assert_eq!(octets(64).0, 200);
    let (status, _, reply) = octets(65);
    assert!(status == 400 && reply["error"].as_str().unwrap().contains("longer than 4096 bytes"), "{reply}");
    // Without a length, in pieces.
    let mut stream = place.connect();
    let head = "POST /v1/search HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n";
    stream.write_all(head.as_bytes()).unwrap();
    for _ in 0..5 {
        stream.write_all(format!("3e8\r\n{}\r\n", " ".repeat(1000)).as_bytes()).unwrap();
    }
    stream.write_all(b"0\r\n\r\n").unwrap();
    assert_eq!(receive(&mut stream).0, 400);
}

#[test]
fn an_overloaded_server_returns_retry_after() {
    // One query is held: of many that come together most are refused, each in its place.
    let place = Place::new(1, Limits::default());
    let (status, _, reply) = place.post(&json!({ "queries": numbers(&rows(500, 2)), "search_list": 200 }));
    let answers = reply["answers"].as_array().unwrap();
    let refused = answers.iter().filter(|a| a["kind"] == "overloaded").count();
    assert!(status == 200 && refused > 0 && answers[0]["ids"].is_array(), "{status}, {refused} refused");

    // No memory for the answers.
    let place = Place::new(1000, Limits { large_bytes: 20 << 10, ..Limits::default() });
    let (status, _, reply) =
        place.post(&json!({ "queries": numbers(&rows(9, 2)), "search_list": 20, "k": 20 }));
    assert!(status == 400 && reply["error"].as_str().unwrap().contains("ask for less"), "{reply}");
    let place = Place::new(1000, Limits { small_bytes: 1 << 10, ..Limits::default() });
    let (status, head, _) = place.post(&json!({ "queries": numbers(&rows(9, 2)) }));
    assert!(status == 503 && head.contains("retry-after: 1"), "{head}");
}

#[test]
fn clients_that_hang_up_break_nothing() {
    let place = Place::new(1000, Limits::default());
    let whole = json!({ "queries": numbers(&rows(50, 2)), "search_list": 100 }).to_string();
    for round in 0..20 {
        let mut stream = place.connect();
        match round % 4 {
            0 => stream.write_all(b"POST /v1/se").unwrap(),
            1 => stream.write_all(b"nonsense\r\n\r\n").unwrap(),
            2 => {
                let head =
                    "POST /v1/search HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5000\r\n\r\n{\"quer";
                stream.write_all(head.as_bytes()).unwrap();
            }
            _ => send(&mut stream, "POST", "/v1/search", "application/json", whole.as_bytes()),
        }
    }
    let (status, _, reply) = place.post(&serde_json::from_str(&whole).unwrap());
    assert!(status == 200 && reply["answers"].as_array().unwrap().len() == 50, "{reply}");
}

#[test]
fn health_and_status_say_how_it_is() {
    let place = Place::new(1000, Limits::default());
    let (code, _, health) = place.ask("GET", "/v1/health", "", b"");
    assert_eq!(code, 200);
    assert_eq!(health, json!({ "healthy": true, "server": 0, "servers": 1, "missing": [] }));
    place.post(&json!({ "queries": numbers(&rows(3, 2)), "search_list": 20 }));
    let (code, _, status) = place.ask("GET", "/v1/status", "", b"");
    assert_eq!(
        (code, &status["rows"], &status["dim"], &status["dtype"]),
        (200, &json!(1500), &json!(16), &json!("f32"))
    );
    assert_eq!(
        (&status["queries"], &status["answered"], &status["metric"]),
        (&json!(3), &json!(3), &json!("cosine"))
    );
    assert!(
        status["memory"]["codes_bytes"].as_u64() > Some(0) && status["cpu_us"].as_u64() > Some(0),
        "{status}"
    );
    assert_eq!(status["block_bytes"], 4096);
}

#[test]
fn many_clients_ask_at_once_and_keep_their_connections() {
    let place = Place::new(1000, Limits::default());
    let asked = rows(40, 3);
    let one_by_one = |place: &Place| -> Vec<Value> {
        let mut stream = place.connect();
        let ask = |row: &[u8]| {
            send(&mut stream, "POST", "/v1/search?search_list=30&width=1", "application/octet-stream", row);
            let (status, _, reply) = receive(&mut stream);
            assert_eq!(status, 200, "{reply}");
            reply["answers"][0]["ids"].clone()
        };
        asked.chunks(4 * DIM).map(ask).collect()
    };
    let expected = one_by_one(&place);
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..8).map(|_| scope.spawn(|| one_by_one(&place))).collect();
        for client in clients {
            assert_eq!(client.join().unwrap(), expected);
        }
    });
}

#[test]
fn a_client_that_takes_no_answer_is_let_go() {
    let limits = Limits { patience: Duration::from_millis(200), ..Limits::default() };
    let place = Place::new(1000, limits);
    let mut deaf = place.connect();
    for _ in 0..8 {
        let url = "/v1/search?k=1500&search_list=1500";
        send(&mut deaf, "POST", url, "application/octet-stream", &rows(100, 2));
    }
    let connections = || place.ask("GET", "/v1/status", "", b"").2["http"]["connections"].as_u64();
    let started = Instant::now();
    assert_eq!(connections(), Some(2));
    while connections() != Some(1) {
        assert!(started.elapsed() < Duration::from_secs(60), "it is still there");
    }
    drop(deaf);
}

fn healthy(stream: &mut TcpStream) -> u16 {
    send(stream, "GET", "/v1/health", "", b"");
    receive(stream).0
}

#[test]
fn beyond_the_limit_the_connection_that_is_idle_longest_gives_way() {
    let limits = Limits { connections: 2, connections_per_address: 2, ..Limits::default() };
    let place = Place::new(1000, limits);
    let (mut first, mut second) = (place.connect(), place.connect());
    assert_eq!((healthy(&mut first), healthy(&mut second)), (200, 200));
    let mut third = place.connect();
    assert_eq!((healthy(&mut third), healthy(&mut second)), (200, 200));
    assert_eq!(first.read(&mut [0]).unwrap_or(0), 0, "it is closed");
}

/// Time-outs play no part here: they are an hour.
#[test]
fn health_answers_while_silent_sockets_have_all_places() {
    let hour = Duration::from_secs(3600);
    let limits = Limits {
        connections: 20,
        connections_per_address: 20,
        header_time: hour,
        idle_time: hour,
        ..Limits::default()
    };
    let place = Place::new(1000, limits);
    let silent: Vec<TcpStream> = (0..200).map(|_| place.connect()).collect();
    let halves: Vec<TcpStream> = (0..200).map(|_| place.connect()).collect();
    halves.iter().for_each(|mut half| {
        let _ = half.write_all(b"POST /v1/search HTTP/1.1\r\nHost: he");
    });
    for _ in 0..3 {
        assert_eq!(healthy(&mut place.connect()), 200);
        assert_eq!(place.post(&json!({ "queries": numbers(&rows(1, 2)), "search_list": 20 })).0, 200);
    }
    let open = place.ask("GET", "/v1/status", "", b"").2["http"]["connections"].as_u64().unwrap();
    assert!(open <= 20, "{open} connections");
    drop((silent, halves));
}

#[test]
fn a_header_has_a_time() {
    let limits = Limits { header_time: Duration::from_millis(300), ..Limits::default() };
    let place = Place::new(1000, limits);
    let mut silent = place.connect();
    let mut half = place.connect();
    half.write_all(b"GET /v1/hea").unwrap();
    let mut kept = place.connect();
    assert_eq!(healthy(&mut kept), 200);
    assert_eq!((silent.read(&mut [0]).unwrap_or(0), half.read(&mut [0]).unwrap_or(0)), (0, 0));
    assert_eq!(healthy(&mut kept), 200, "an idle connection has more time");
}

/// Bodies that are announced and do not come take nothing from others.
#[test]
fn a_body_is_charged_as_it_arrives_and_must_keep_to_a_rate() {
    let limits = Limits { patience: Duration::from_millis(300), least_rate: 1 << 20, ..Limits::default() };
    let place = Place::new(1000, limits);
    let announce = || {
        let mut stream = place.connect();
        let head = format!(
            "POST /v1/search HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n{{\"quer",
            limits.body_bytes
        );
        stream.write_all(head.as_bytes()).unwrap();
        stream
    };
    let mut announced: Vec<TcpStream> = (0..50).map(|_| announce()).collect();
    assert_eq!(place.post(&json!({ "queries": numbers(&rows(1, 2)), "search_list": 20 })).0, 200);
    for stream in &mut announced {
        let (status, _, reply) = receive(stream);
        assert!(
            status == 408 && reply["error"].as_str().unwrap().contains("1048576 bytes a second"),
            "{reply}"
        );
    }
    let parts = place.ask("GET", "/v1/status", "", b"").2["ledger"]["parts"].clone();
    for name in ["requests", "large_requests", "waiting_queries", "large_queries"] {
        let part = parts.as_array().unwrap().iter().find(|p| p["part"] == name).unwrap();
        assert!(part["used_bytes"] == 0 && part["refused"] == 0, "{part}");
    }
}

#[test]
fn errors_quote_little_of_what_a_client_sent() {
    let place = Place::new(1000, Limits::default());
    let long = "x".repeat(5000);
    let row = numbers(&rows(1, 2));
    let count = |reply: &Value| reply["error"].as_str().unwrap().matches('x').count();
    for reply in [
        place.post(&json!({ "queries": row, long.as_str(): 1 })).2,
        place.post(&json!({ "queries": row, "mode": long })).2,
        place.post(&json!({ "queries": row, "width": long })).2,
        place.post(&json!({ "queries": [[long]] })).2,
        place.ask("POST", "/v1/search", &long, b"").2,
        place.ask("POST", &format!("/v1/search?{long}=1"), "application/octet-stream", &rows(1, 2)).2,
        place.ask("POST", &format!("/v1/search?k={long}"), "application/octet-stream", &rows(1, 2)).2,
    ] {
        assert!(count(&reply) <= 210 && !reply["error"].as_str().unwrap().is_empty(), "{reply}");
    }
}

#[test]
fn a_front_that_stops_closes_idle_connections() {
    let mut place = Place::new(1000, Limits::default());
    let mut idle = place.connect();
    send(&mut idle, "GET", "/v1/health", "", b"");
    assert_eq!(receive(&mut idle).0, 200);
    place.front.take().unwrap().stop();
    assert_eq!(idle.read(&mut [0]).unwrap(), 0, "closed");
    assert!(TcpStream::connect(place.address).is_err(), "nobody listens");
}

#[test]
fn a_client_that_hangs_up_cancels_its_queries() {
    let place = Place::new(1000, Limits::default());
    let status = || place.ask("GET", "/v1/status", "", b"").2;
    let number = |status: &Value, key: &str| status[key].as_u64().unwrap();
    let waits_until = |what: &str, is_so: &dyn Fn(&Value) -> bool| {
        let started = Instant::now();
        while !is_so(&status()) {
            assert!(started.elapsed() < Duration::from_secs(60), "{what}: {}", status());
        }
    };
    let mut stream = place.connect();
    // Queries that read nearly the whole index, one block after the other.
    let url = "/v1/search?k=10&search_list=1500&width=1";
    send(&mut stream, "POST", url, "application/octet-stream", &rows(900, 2));
    waits_until("the queries arrive", &|s| number(s, "queries") == 900);
    drop(stream);
    waits_until("no query waits", &|s| number(s, "waiting") == 0);
    let cancelled = number(&status(), "cancelled");
    assert!(cancelled > 0 && number(&status(), "answered") + cancelled == 900, "{}", status());
    waits_until("their slots are free", &|s| {
        number(s, "dropped_runs") == cancelled && number(s, "in_flight") == 0
    });
}

/// The texts of the documents that say what a server answers.
fn documents() -> Vec<(String, String)> {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut all = Vec::new();
    for place in ["README.md", "ARCHITECTURE.md", "CHANGELOG.md", "docs/book", "decisions"] {
        let place = root.join(place);
        let inner = std::fs::read_dir(&place).into_iter().flatten().map(|entry| entry.unwrap().path());
        for path in inner.chain([place]).filter(|path| path.is_file()) {
            let text = std::fs::read_to_string(&path).unwrap_or_default();
            all.push((path.display().to_string(), text));
        }
    }
    assert!(all.len() > 40, "{} documents", all.len());
    all
}

/// Whether a path is one of a served form, in which any name may stand for what is in braces.
fn fits(form: &str, path: &str) -> bool {
    let (form, path): (Vec<&str>, Vec<&str>) = (form.split('/').collect(), path.split('/').collect());
    form.len() == path.len() && form.iter().zip(path).all(|(own, part)| *own == part || own.starts_with('{'))
}

#[test]
fn documents_name_the_paths_that_are_served() {
    let (served, of_collections) = (paths(), collection_paths());
    let all: Vec<&String> = served.iter().chain(&of_collections).collect();
    let ends = |c: char| !(c.is_ascii_alphanumeric() || matches!(c, '/' | '.' | '_' | '-' | '{' | '}'));
    for (file, text) in documents() {
        for (at, _) in text.match_indices("/v1/") {
            let path = text[at..].split(ends).next().unwrap().trim_end_matches('.');
            let before =
                text[..at].rsplit(|c: char| !c.is_ascii_uppercase() && c != ' ').next().unwrap().trim();
            let is_method = matches!(before, "GET" | "POST" | "PUT" | "DELETE");
            let is_served = |own: &&String| {
                let (method, form) = own.split_once(' ').unwrap();
                (!is_method || method == before) && fits(form, path)
            };
            assert!(all.iter().any(is_served), "{file}: {before} {path}");
        }
        if file.ends_with("book/serve.md") {
            let section = text.split("\n## Paths\n").nth(1).unwrap().split("\n## ").next().unwrap();
            let rows = section.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
            assert_eq!(rows.collect::<Vec<_>>(), served);
        }
        if file.ends_with("book/collections.md") {
            let rows = text.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
            let rows = rows.filter(|row| row.contains(" /v1/"));
            let rows = rows.map(|row| row.replace("{c}", "{collection}"));
            assert_eq!(rows.collect::<Vec<_>>(), of_collections);
        }
    }
}
