//! A front over a real server and a real index, by plain sockets.
#![allow(dead_code, missing_docs, unreachable_pub, reason = "each test file uses its own part")]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use stratann_core::hash::hash;
use stratann_engine::build::{BuildOptions, KindOptions, build};
use stratann_engine::dataset::{Reader, Shape};
use stratann_engine::serve::{ServeOptions, Server, Versions};
use stratann_engine::{DType, Metric};
use stratann_params::build::GraphOptions;
use stratann_server::callers::Callers;
use stratann_server::{Front, FrontOptions, Limits};
use stratann_storage::Quiet;
use stratann_storage::ledger::Ledger;

pub const DIM: usize = 16;
pub const ROWS: u64 = 1500;

pub fn rows(count: u64, seed: u64) -> Vec<u8> {
    let component = |row: u64, i: u64| (hash(seed, row, i) >> 40) as f32 / (1 << 24) as f32;
    (0..count).flat_map(|r| (0..DIM as u64).flat_map(move |i| component(r, i).to_le_bytes())).collect()
}

pub fn numbers(rows: &[u8]) -> Vec<Vec<f32>> {
    let number = |c: &[u8]| f32::from_le_bytes(c.try_into().unwrap());
    rows.chunks(4 * DIM).map(|row| row.chunks(4).map(number).collect()).collect()
}

/// Builds an index of a kind, with ids of its own where there are some.
pub fn built(kind: impl Into<KindOptions>, ids: Option<&Path>) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let shape = Shape { rows: ROWS, dim: DIM, dtype: DType::F32 };
    let mut options = BuildOptions::new(kind, Metric::Cosine);
    (options.threads, options.calibration_queries) = (2, 60);
    options.ids = ids.map(Path::to_path_buf);
    build(&Reader::from_memory(shape, rows(ROWS, 1)).unwrap(), folder.path(), &options, &Quiet).unwrap();
    folder
}

pub fn graph() -> KindOptions {
    KindOptions::DiskGraph(GraphOptions { degree: 24, build_list: 48, ..GraphOptions::default() })
}

/// An index, and a front over it.
pub struct Place {
    pub folder: tempfile::TempDir,
    pub front: Option<Front>,
    pub address: SocketAddr,
    pub ledger: Arc<Ledger>,
}

impl Place {
    pub fn new(queue: usize, limits: Limits) -> Place {
        Place::of(queue, limits, Callers::default())
    }

    pub fn of(queue: usize, limits: Limits, callers: Callers) -> Place {
        let options = ServeOptions { queue, ..ServeOptions::default() };
        Place::serve(built(graph(), None), options, limits, callers)
    }

    /// Serves an index within a ledger of the whole process.
    pub fn within(folder: tempfile::TempDir, limits: Limits, ledger: Arc<Ledger>) -> Place {
        let options = ServeOptions { ledger: Some(ledger), ..ServeOptions::default() };
        Place::serve(folder, options, limits, Callers::default())
    }

    fn serve(folder: tempfile::TempDir, options: ServeOptions, limits: Limits, callers: Callers) -> Place {
        let index = folder.path().to_path_buf();
        let ledger = options.ledger.clone().unwrap_or_else(|| Ledger::new(None));
        let server = Server::start(ServeOptions { index, threads: 2, ..options }).unwrap();
        let options = FrontOptions {
            http: "127.0.0.1:0".parse().unwrap(),
            limits,
            callers,
            threads: 1,
            ledger: ledger.clone(),
            log: Arc::new(|_| {}),
        };
        let front = Front::start(Versions::of(server, 0, Arc::new(|_| {})), options).unwrap();
        Place { folder, address: front.address(), front: Some(front), ledger }
    }

    pub fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        stream
    }

    /// One request on a connection of its own.
    pub fn ask(&self, method: &str, path: &str, kind: &str, body: &[u8]) -> (u16, String, Value) {
        let mut stream = self.connect();
        send(&mut stream, method, path, kind, body);
        receive(&mut stream)
    }

    pub fn post(&self, body: &Value) -> (u16, String, Value) {
        self.ask("POST", "/v1/search", "application/json", body.to_string().as_bytes())
    }
}

pub fn send(stream: &mut TcpStream, method: &str, path: &str, kind: &str, body: &[u8]) {
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(&[head.as_bytes(), body].concat()).unwrap();
}

/// Status, head and body of the next response.
pub fn receive(stream: &mut TcpStream) -> (u16, String, Value) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).unwrap().to_ascii_lowercase();
    let length = head.split("content-length: ").nth(1).unwrap().lines().next().unwrap().parse().unwrap();
    let mut body = vec![0; length];
    stream.read_exact(&mut body).unwrap();
    (head[9..12].parse().unwrap(), head, serde_json::from_slice(&body).unwrap())
}
