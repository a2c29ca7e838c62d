//! Servers that find each other by etcd alone: a real one, where the program `etcd` is installed.
#![allow(missing_docs)]

mod common;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use common::*;
use serde_json::{Value, json as value};
use stratann_testing::{Need, leave_out};

/// An etcd of one member that can be killed and started again with its data.
struct Etcd {
    child: Child,
    data: PathBuf,
    ports: [u16; 2],
}

impl Etcd {
    fn start(data: PathBuf) -> Option<Etcd> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        if !std::env::split_paths(&path).any(|dir| dir.join("etcd").is_file()) {
            leave_out(Need::Etcd, "the program etcd is not installed");
            return None;
        }
        let held = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
        let ports = held.each_ref().map(|l| l.local_addr().unwrap().port());
        drop(held);
        let mut etcd = Etcd { child: Etcd::run(&data, ports), data, ports };
        etcd.wait();
        Some(etcd)
    }

    fn run(data: &Path, [port, other]: [u16; 2]) -> Child {
        let (client, peer) = (format!("http://127.0.0.1:{port}"), format!("http://127.0.0.1:{other}"));
        Command::new("etcd")
            .arg("--data-dir")
            .arg(data)
            .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
            .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
            .args(["--initial-cluster", &format!("default={peer}")])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap()
    }

    fn wait(&mut self) {
        let start = Instant::now();
        while TcpStream::connect(("127.0.0.1", self.ports[0])).is_err() {
            let is_running = self.child.try_wait().unwrap().is_none();
            assert!(start.elapsed() < PATIENCE && is_running, "etcd does not listen");
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }

    fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    fn again(&mut self) {
        self.child = Etcd::run(&self.data, self.ports);
        self.wait();
    }

    /// Numbers of the servers whose keys are there.
    fn servers(&self) -> Vec<u8> {
        self.keys("servers")
    }

    fn keys(&self, under: &str) -> Vec<u8> {
        let prefix = format!("/stratann/tests/{under}/");
        let code = |text: &str| base64(text.as_bytes());
        let end = format!("/stratann/tests/{under}0");
        let body = value!({ "key": code(&prefix), "range_end": code(&end), "keys_only": true }).to_string();
        let Ok(mut stream) = TcpStream::connect(("127.0.0.1", self.ports[0])) else { return Vec::new() };
        let head = format!(
            "POST /v3/kv/range HTTP/1.1\r\nHost: here\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        let mut text = String::new();
        let asked = stream.write_all((head + &body).as_bytes());
        if asked.and_then(|()| stream.read_to_string(&mut text)).is_err() {
            return Vec::new();
        }
        // In numbers from 0 up: the last characters of each key are its server's.
        (0..9).filter(|n| text.contains(&format!("\"{}\"", code(&format!("{prefix}0{n}"))))).collect()
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        self.kill();
    }
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let three = |chunk: &[u8]| {
        let word = (0..3).fold(0u32, |word, i| word << 8 | u32::from(*chunk.get(i).unwrap_or(&0)));
        let digit = |i: usize| match i <= chunk.len() {
            true => DIGITS[(word >> (18 - 6 * i) & 63) as usize] as char,
            false => '=',
        };
        [0, 1, 2, 3].map(digit)
    };
    bytes.chunks(3).flat_map(three).collect()
}

struct Place {
    data: Data,
    index: PathBuf,
    etcd: Etcd,
}

const ASKED: [&str; 4] = ["--search-list", "30", "--width", "1"];

impl Place {
    /// A server without a number, and without anybody's address.
    fn serve(&self, name: &str) -> Running {
        let path = self.data.path(&format!("{name}.toml"));
        let text = format!(
            "store = \"store\"\ndata = \"data-{name}\"\netcd = [\"http://127.0.0.1:{}\"]\ncluster = \"tests\"\n\
             listen = \"127.0.0.1:0\"\nhttp = \"127.0.0.1:0\"\nthreads = 1\nsecret_file = \"secret\"\n",
            self.etcd.ports[0]
        );
        std::fs::write(&path, text).unwrap();
        start(&path)
    }

    /// All queries at these servers, which must answer as the index does.
    fn check(&self, servers: &[&Running]) {
        let (here, there) = (self.data.path("here"), self.data.path("there"));
        let queries = arg(&self.data.queries);
        if !here.exists() {
            json(&[&["search", arg(&self.index), queries, "-o", arg(&here)], &ASKED[..]].concat());
        }
        let all = servers.iter().map(|s| s.address()).collect::<Vec<_>>().join(",");
        let found = json(
            &[&["search", "--connect", &all, queries, "-o", arg(&there), "--force"], &ASKED[..]].concat(),
        );
        assert_eq!(found["runs"][0]["failed_queries"], 0, "{found}");
        assert_eq!(read_answers(&here), read_answers(&there));
    }
}

fn live(server: &Running) -> Value {
    get(server.address(), "/v1/status").1["live"].clone()
}

fn place() -> Option<Place> {
    let data = Data::new(2000, 16, "f32");
    let etcd = Etcd::start(data.path("etcd"))?;
    let index = data.build("graph", &["--nodes-per-block", "8", "--calibration-queries", "0"]);
    let folder = spread(&data, &index, "spread", &["--servers", "3", "--replicas", "2"]);
    json(&["cluster", "publish", arg(&folder), arg(&data.path("store"))]);
    std::fs::write(data.path("secret"), "a secret of this test").unwrap();
    Some(Place { data, index, etcd })
}

#[test]
fn servers_found_by_etcd_alone_outlive_it_and_each_other() {
    let Some(mut place) = place() else { return };
    let servers: Vec<Running> = ["a", "b", "c"].iter().map(|name| place.serve(name)).collect();
    let numbers: Vec<&Value> = servers.iter().map(|s| &s.ready["server"]).collect();
    assert_eq!(numbers, [&value!(0), &value!(1), &value!(2)], "each takes the lowest free number");
    let whole = value!([true, true, true]);
    wait_for("the cluster", || servers.iter().all(|s| live(s) == whole));
    wait_for("all keys", || place.etcd.servers() == [0, 1, 2]);
    place.check(&servers.iter().collect::<Vec<_>>());

    // Without etcd everything goes on with what is known.
    place.etcd.kill();
    for _ in 0..3 {
        place.check(&servers.iter().collect::<Vec<_>>());
    }
    assert!(servers.iter().all(|s| live(s) == whole));
    place.etcd.again();
    wait_for("all keys again", || place.etcd.servers() == [0, 1, 2]);

    // One that says nothing any more loses its lease and its place, and gets both back.
    servers[2].signal(libc::SIGSTOP);
    wait_for("the end of its lease", || place.etcd.servers() == [0, 1]);
    let without = value!([true, true, false]);
    wait_for("word of its silence", || servers[..2].iter().all(|s| live(s) == without));
    place.check(&[&servers[0], &servers[1]]);
    servers[2].signal(libc::SIGCONT);
    wait_for("its return", || place.etcd.servers() == [0, 1, 2] && servers.iter().all(|s| live(s) == whole));
    place.check(&servers.iter().collect::<Vec<_>>());

    // One that dies is replaced by another, under its number and at another address.
    let [first, second, third] = <[Running; 3]>::try_from(servers).ok().unwrap();
    third.signal(libc::SIGKILL);
    drop(third);
    wait_for("the end of its keys", || place.etcd.servers() == [0, 1] && place.etcd.keys("claims") == [0, 1]);
    let heir = place.serve("d");
    assert_eq!(heir.ready["server"], 2);
    wait_for("the new server", || [&first, &second, &heir].iter().all(|s| live(s) == whole));
    place.check(&[&first, &second, &heir]);

    // All are stopped, and come back without etcd and without the store, by what they have on their disks.
    drop((first, second, heir));
    place.etcd.kill();
    let (store, away) = (place.data.path("store"), place.data.path("away"));
    std::fs::rename(&store, &away).unwrap();
    std::fs::write(&store, "").unwrap();
    let servers: Vec<Running> = ["a", "b", "d"].iter().map(|name| place.serve(name)).collect();
    let numbers: Vec<&Value> = servers.iter().map(|s| &s.ready["server"]).collect();
    assert_eq!(numbers, [&value!(0), &value!(1), &value!(2)], "each has the number of its blocks");
    place.etcd.again();
    std::fs::remove_file(&store).unwrap();
    std::fs::rename(&away, &store).unwrap();
    wait_for("the cluster", || servers.iter().all(|s| live(s) == whole));
    place.check(&servers.iter().collect::<Vec<_>>());
}
