//! Requests over HTTP: bodies in JSON, bodies of rows with parameters in the URL, and any bytes.
#![no_main]

use std::cell::RefCell;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use stratann_engine::serve::{ServeOptions, Server, Versions};
use stratann_fuzz::edits;
use stratann_fuzz::place::{Which, place};
use stratann_server::wire::{Refusal, Reply};
use stratann_server::{Front, FrontOptions, Limits};
use stratann_storage::ledger::Ledger;

fn address() -> SocketAddr {
    static FRONT: OnceLock<Front> = OnceLock::new();
    let front = FRONT.get_or_init(|| {
        let index = place(Which::Graph).path().to_path_buf();
        let options = ServeOptions { index, threads: 1, ..ServeOptions::default() };
        let server = Server::start(options).expect("a server");
        let http = "127.0.0.1:0".parse().expect("an address");
        let limits = Limits { queries: 16, body_bytes: 1 << 16, ..Limits::within(None) };
        let ledger = Ledger::new(None);
        let options = FrontOptions { http, limits, threads: 1, ledger, log: Arc::new(|_| {}) };
        Front::start(Versions::of(server, 0, Arc::new(|_| {})), options).expect("a front")
    });
    front.address()
}

thread_local! {
    /// The connection, which serves one request after another.
    static CONNECTION: RefCell<Option<BufReader<TcpStream>>> = const { RefCell::new(None) };
}

fuzz_target!(|data: &[u8]| {
    let (choice, data) = edits::first(data);
    match choice % 4 {
        0 => raw(data),
        1 => ask("/v1/search", "application/json", data),
        _ => {
            // The length of the parameters comes first.
            let (length, rest) = edits::first(data);
            let (url_query, body) = rest.split_at(usize::from(length).min(rest.len()));
            let is_url = |b: u8| b.is_ascii_alphanumeric() || b"=&+-._%".contains(&b);
            let escaped = |&b: &u8| if is_url(b) { char::from(b).to_string() } else { format!("%{b:02x}") };
            let url_query: String = url_query.iter().map(escaped).collect();
            ask(&format!("/v1/search?{url_query}"), "application/octet-stream", body);
        }
    }
});

fn connect() -> BufReader<TcpStream> {
    let stream = TcpStream::connect(address()).expect("a connection");
    stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a timeout");
    stream.set_nodelay(true).expect("an option of a socket");
    BufReader::new(stream)
}

/// Sends any bytes, and reads to the end.
fn raw(data: &[u8]) {
    let mut connection = connect();
    let _ = connection.get_mut().write_all(data);
    let _ = connection.get_mut().shutdown(std::net::Shutdown::Write);
    let _ = connection.read_to_end(&mut Vec::new());
}

/// Sends a request and checks the answer.
fn ask(path: &str, kind: &str, body: &[u8]) {
    CONNECTION.with_borrow_mut(|connection| {
        let open = connection.get_or_insert_with(connect);
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: here\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        let sent = open.get_mut().write_all(&[head.as_bytes(), body].concat());
        let answered = sent.and_then(|()| answer(open)).expect("an answer");
        let Answer { status, is_closed, body } = answered;
        assert!([200, 400, 413, 414, 503, 504].contains(&status), "status {status}");
        match status {
            200 => drop(serde_json::from_slice::<Reply>(&body).expect("a reply")),
            414 => {}
            _ => {
                let is_refusal = serde_json::from_slice::<Refusal>(&body).is_ok();
                assert!(is_refusal || serde_json::from_slice::<Reply>(&body).is_ok(), "status {status}");
            }
        }
        if is_closed {
            *connection = None;
        }
    });
}

struct Answer {
    status: u16,
    is_closed: bool,
    body: Vec<u8>,
}

fn answer(connection: &mut BufReader<TcpStream>) -> std::io::Result<Answer> {
    let (mut status, mut length, mut is_closed) = (0, 0, false);
    loop {
        let mut line = String::new();
        if connection.read_line(&mut line)? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        let line = line.trim_end().to_ascii_lowercase();
        if let Some(code) = line.strip_prefix("http/1.1 ") {
            status = code.split(' ').next().and_then(|code| code.parse().ok()).unwrap_or(0);
        } else if let Some(value) = line.strip_prefix("content-length: ") {
            length = value.parse().unwrap_or(0);
        } else if line == "connection: close" {
            is_closed = true;
        } else if line.is_empty() {
            break;
        }
    }
    let mut body = vec![0; length];
    connection.read_exact(&mut body)?;
    Ok(Answer { status, is_closed, body })
}
