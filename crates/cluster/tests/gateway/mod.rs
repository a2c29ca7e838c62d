//! A real object store for tests: `versitygw`, where it is at hand.
#![allow(unreachable_pub, reason = "each test file is a crate of its own")]

use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// A real S3-compatible server on loopback, over a temporary folder.
pub struct Gateway {
    child: Child,
    /// A bucket that is there and empty.
    pub bucket: String,
    /// Environment variables that a program needs to use it.
    pub variables: Vec<(String, String)>,
    _folder: TempDir,
}

impl Gateway {
    /// None where the program is missing.
    pub fn start() -> Option<Gateway> {
        let program = program()?;
        let folder = tempfile::tempdir().unwrap();
        static BUCKETS: AtomicU64 = AtomicU64::new(0);
        let bucket = format!("bucket{}", BUCKETS.fetch_add(1, Ordering::Relaxed));
        std::fs::create_dir(folder.path().join(&bucket)).unwrap();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let child = Command::new(program)
            .args(["--access", "tester", "--secret", "not a secret", "--region", "us-east-1"])
            .args(["--port", &format!("127.0.0.1:{port}"), "posix"])
            .arg(folder.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let start = Instant::now();
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(start.elapsed() < Duration::from_secs(20), "versitygw does not listen");
            std::thread::sleep(Duration::from_millis(20));
        }
        let variables = [
            ("AWS_ACCESS_KEY_ID", "tester".to_string()),
            ("AWS_SECRET_ACCESS_KEY", "not a secret".to_string()),
            ("AWS_REGION", "us-east-1".to_string()),
            ("AWS_ALLOW_HTTP", "true".to_string()),
            ("AWS_ENDPOINT", format!("http://127.0.0.1:{port}")),
        ];
        let variables = variables.map(|(name, value)| (name.to_string(), value)).to_vec();
        Some(Gateway { child, bucket, variables, _folder: folder })
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// `versitygw` on the path, or where `make` installs it.
fn program() -> Option<PathBuf> {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.tools/bin");
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).chain([own]).map(|dir| dir.join("versitygw")).find(|p| p.is_file())
}
