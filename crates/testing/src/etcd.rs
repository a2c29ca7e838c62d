//! An etcd for tests, where the program is installed.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::{Need, leave_out};

const PATIENCE: Duration = Duration::from_secs(60);

/// An etcd of one member that can be killed and started again with its data.
pub struct Etcd {
    child: Child,
    data: PathBuf,
    /// For clients, and for other members.
    pub ports: [u16; 2],
}

impl Etcd {
    /// `None` where the program is not installed.
    ///
    /// # Panics
    /// When it does not start.
    pub fn start(data: PathBuf) -> Option<Etcd> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        if !std::env::split_paths(&path).any(|dir| dir.join("etcd").is_file()) {
            leave_out(Need::Etcd, "the program etcd is not installed");
            return None;
        }
        let held = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").expect("a free port"));
        let ports = held.each_ref().map(|l| l.local_addr().expect("its address").port());
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
            .expect("etcd starts")
    }

    fn wait(&mut self) {
        let start = Instant::now();
        while TcpStream::connect(("127.0.0.1", self.ports[0])).is_err() {
            let is_running = self.child.try_wait().is_ok_and(|ended| ended.is_none());
            assert!(start.elapsed() < PATIENCE && is_running, "etcd does not listen");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Ends it at once.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Starts it again with its data.
    ///
    /// # Panics
    /// When it does not start.
    pub fn again(&mut self) {
        self.child = Etcd::run(&self.data, self.ports);
        self.wait();
    }

    /// Starts it again without its data, on the same ports.
    ///
    /// # Panics
    /// When it does not start.
    pub fn restart_empty(&mut self, data: PathBuf) {
        self.data = data;
        self.again();
    }

    /// Address for clients.
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.ports[0])
    }

    /// Numbers of one digit whose keys are there, under `servers`, `claims` or `memory`.
    pub fn keys(&self, under: &str) -> Vec<u8> {
        let prefix = format!("/stratann/tests/{under}/");
        let code = |text: &str| base64(text.as_bytes());
        let end = format!("/stratann/tests/{under}0");
        let (key, range_end) = (code(&prefix), code(&end));
        let body = format!(r#"{{"key":"{key}","range_end":"{range_end}","keys_only":true}}"#);
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
        let zeros = if under == "memory" { "00" } else { "0" };
        (0..9).filter(|n| text.contains(&format!("\"{}\"", code(&format!("{prefix}{zeros}{n}"))))).collect()
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
