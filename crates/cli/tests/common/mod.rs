//! Shared parts of the tests of the real binary: small generated data, a naive search, and running `stratann`.
#![allow(dead_code, missing_docs, unreachable_pub, reason = "each test file uses its own part")]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use half::f16;
use serde_json::Value;

pub use tempfile::TempDir;

pub const DTYPES: [(&str, &str); 4] = [("f32", "fbin"), ("f16", "f16bin"), ("u8", "u8bin"), ("i8", "i8bin")];
pub const METRICS: [&str; 3] = ["l2", "ip", "cosine"];

/// A folder that goes with the test.
pub fn folder() -> TempDir {
    tempfile::tempdir().unwrap()
}

/// The program under test: that of the laboratory in its tests.
pub const PROGRAM: &str =
    match (option_env!("CARGO_BIN_EXE_stratann"), option_env!("CARGO_BIN_EXE_stratann-lab")) {
        (Some(program), _) | (None, Some(program)) => program,
        (None, None) => panic!("no program under test"),
    };

/// Whether the program under test is the laboratory, which has the baselines.
pub const LAB: bool = cfg!(feature = "lab");

/// The program with `args`, to be started.
pub fn command(args: &[&str]) -> Command {
    let mut command = Command::new(PROGRAM);
    command.args(args).env_remove("STRATANN_ISA").env("STRATANN_CACHE", env!("CARGO_TARGET_TMPDIR"));
    command
}

/// Runs `stratann` to its end.
pub fn run(args: &[&str]) -> Output {
    command(args).output().unwrap()
}

/// Runs `stratann --json`, which must succeed, and reads its document.
pub fn json(args: &[&str]) -> Value {
    let output = run(&[args, &["--json"]].concat());
    assert!(output.status.success(), "{args:?}: {}", stderr(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The counters of a run, without those that depend on timing.
pub fn exact_counters(run: &Value) -> Value {
    let mut counters = run["per_query"].clone();
    let named = counters.as_object_mut().expect("counters");
    named.retain(|name, _| !name.starts_with("merged_"));
    counters
}

/// Runs `stratann`, which must fail with `code` and one line on stderr that starts with its name; gives that line.
pub fn refused(args: &[&str], code: i32) -> String {
    let output = run(&[args, &["--quiet"]].concat());
    let text = stderr(&output);
    assert_eq!(output.status.code(), Some(code), "{args:?}: {text}");
    let lines: Vec<&str> = text.lines().filter(|l| l.starts_with("stratann: ")).collect();
    assert_eq!(lines.len(), 1, "{args:?}: {text}");
    lines[0].to_string()
}

pub fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Options of a search that makes and counts every read.
pub const COUNTED: [&str; 2] = ["--cache-budget", "0"];

/// A path as an argument.
pub fn arg(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Numbers that look random and are the same everywhere.
pub struct Noise(pub u64);

impl Noise {
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// From 0 up to 1.
    pub fn share(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Roughly normal.
    pub fn normal(&mut self) -> f64 {
        (0..6).map(|_| self.share()).sum::<f64>() * std::f64::consts::SQRT_2 - 3.0 * std::f64::consts::SQRT_2
    }
}

/// Rows in clusters, as the numbers that a file of `dtype` holds.
pub fn rows(count: usize, dim: usize, dtype: &str, seed: u64) -> Vec<Vec<f64>> {
    let mut centres = Noise(77);
    let centres: Vec<Vec<f64>> = (0..20).map(|_| (0..dim).map(|_| centres.normal()).collect()).collect();
    let mut noise = Noise(seed);
    let mut row = || {
        let centre = &centres[noise.bits() as usize % centres.len()];
        centre.iter().map(|c| as_stored(c + 0.6 * noise.normal(), dtype)).collect()
    };
    (0..count).map(|_| row()).collect()
}

fn as_stored(x: f64, dtype: &str) -> f64 {
    match dtype {
        "f16" => f16::from_f64(x).to_f64(),
        "u8" => (128.0 + 30.0 * x).round().clamp(0.0, 255.0),
        "i8" => (30.0 * x).round().clamp(-128.0, 127.0),
        _ => f64::from(x as f32),
    }
}

/// Writes rows in the layout of big-ann-benchmarks.
pub fn write(path: &Path, rows: &[Vec<f64>], dtype: &str) {
    let mut out = Vec::new();
    out.extend((rows.len() as u32).to_le_bytes());
    out.extend((rows.first().map_or(8, Vec::len) as u32).to_le_bytes());
    for &x in rows.iter().flatten() {
        match dtype {
            "f16" => out.extend(f16::from_f64(x).to_le_bytes()),
            "u8" => out.push(x as u8),
            "i8" => out.push(x as i8 as u8),
            _ => out.extend((x as f32).to_le_bytes()),
        }
    }
    std::fs::write(path, out).unwrap();
}

/// A distance as the contract defines it.
pub fn distance(metric: &str, a: &[f64], b: &[f64]) -> f64 {
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(x, y)| x * y).sum::<f64>();
    match metric {
        "ip" => -dot(a, b),
        "cosine" => 1.0 - dot(a, b) / (dot(a, a) * dot(b, b)).sqrt(),
        _ => a.iter().zip(b).map(|(x, y)| (x - y).powi(2)).sum(),
    }
}

/// The k nearest rows of each query: distances and row numbers.
pub fn nearest(base: &[Vec<f64>], queries: &[Vec<f64>], metric: &str, k: usize) -> Vec<Vec<(f64, usize)>> {
    let of = |query: &Vec<f64>| {
        let mut all: Vec<(f64, usize)> =
            base.iter().enumerate().map(|(i, row)| (distance(metric, query, row), i)).collect();
        all.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        all.truncate(k);
        all
    };
    queries.iter().map(of).collect()
}

/// Ids and distances in the layout of big-ann-benchmarks: u32 queries, u32 k, ids, distances.
pub fn read_answers(path: &Path) -> (usize, Vec<u32>, Vec<f32>) {
    let bytes = std::fs::read(path).unwrap();
    let word = |i: usize| u32::from_le_bytes(bytes[4 * i..4 * i + 4].try_into().unwrap());
    let (queries, k) = (word(0) as usize, word(1) as usize);
    let cells = queries * k;
    assert_eq!(bytes.len(), 8 + 8 * cells);
    let ids = (0..cells).map(|i| word(2 + i)).collect();
    (k, ids, (0..cells).map(|i| f32::from_bits(word(2 + cells + i))).collect())
}

/// A set of vectors on disk, its queries, and the exact answers.
pub struct Data {
    pub folder: TempDir,
    pub base: PathBuf,
    pub queries: PathBuf,
    pub base_rows: Vec<Vec<f64>>,
    pub query_rows: Vec<Vec<f64>>,
}

impl Data {
    pub fn new(count: usize, dim: usize, dtype: &str) -> Data {
        let folder = folder();
        let suffix = DTYPES.iter().find(|d| d.0 == dtype).unwrap().1;
        let (base, queries) =
            (folder.path().join(format!("base.{suffix}")), folder.path().join(format!("query.{suffix}")));
        let (base_rows, query_rows) = (rows(count, dim, dtype, 1), rows(50, dim, dtype, 2));
        write(&base, &base_rows, dtype);
        write(&queries, &query_rows, dtype);
        Data { folder, base, queries, base_rows, query_rows }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Builds a graph quickly, or the kind that `more` names; gives its folder.
    pub fn build(&self, name: &str, more: &[&str]) -> PathBuf {
        let index = self.path(name);
        let mut args = self.build_args(&index);
        if more.contains(&"--kind") {
            // Options of a graph are refused for other kinds.
            args.retain(|word| {
                !["--kind", "disk-graph", "--degree", "24", "--build-list", "48"].contains(word)
            });
        }
        json(&[&args[..], more].concat());
        index
    }

    pub fn build_args<'a>(&'a self, index: &'a Path) -> Vec<&'a str> {
        let (base, index) = (arg(&self.base), arg(index));
        vec![
            "build",
            base,
            "-o",
            index,
            "--kind",
            "disk-graph",
            "--degree",
            "24",
            "--build-list",
            "48",
            "--calibration-queries",
            "60",
            "--threads",
            "2",
        ]
    }

    pub fn truth(&self, metric: &str) -> PathBuf {
        let path = self.path(&format!("truth-{metric}.ibin"));
        if !path.exists() {
            json(&[
                "groundtruth",
                arg(&self.base),
                arg(&self.queries),
                "-k",
                "20",
                "-o",
                arg(&path),
                "--metric",
                metric,
            ]);
        }
        path
    }
}

/// All files of an index with their bytes, the lock aside, and hidden ones that a killed process left.
pub fn files(index: &Path) -> std::collections::BTreeMap<String, Vec<u8>> {
    let entries = std::fs::read_dir(index).unwrap().map(|e| e.unwrap());
    let plain = entries.filter(|e| {
        let name = e.file_name();
        e.file_type().unwrap().is_file() && name != "lock" && !name.to_string_lossy().starts_with('.')
    });
    plain.map(|e| (e.file_name().into_string().unwrap(), std::fs::read(e.path()).unwrap())).collect()
}

/// Fails naming the file, not with megabytes of bytes.
pub fn assert_same_files(a: &Path, b: &Path) {
    let (a, b) = (files(a), files(b));
    assert_eq!(a.keys().collect::<Vec<_>>(), b.keys().collect::<Vec<_>>());
    for (name, bytes) in &a {
        let at = bytes.iter().zip(&b[name]).position(|(x, y)| x != y);
        assert!(bytes.len() == b[name].len() && at.is_none(), "{name} differs at {at:?}");
    }
}

/// The only data file of the index with this role.
pub fn file_of(index: &Path, role: &str) -> PathBuf {
    let name = files(index).into_keys().find(|n| n.ends_with(role)).unwrap();
    index.join(name)
}

/// A `stratann` that runs until it is stopped; it does not outlive the test.
pub struct Running {
    pub child: std::process::Child,
    /// The document that it printed when it was ready.
    pub ready: Value,
}

impl Running {
    /// Starts `stratann --json` and waits for its first line.
    pub fn start(args: &[&str]) -> Running {
        Running::of(command(&[args, &["--json"]].concat()))
    }

    /// As [`Running::start`], of a command that is complete.
    pub fn of(mut command: Command) -> Running {
        use std::io::BufRead;
        use std::process::Stdio;
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        std::io::BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        // An error is a document of several lines.
        let Ok(ready) = serde_json::from_str(&line) else {
            panic!("{command:?}: {}", stderr(&child.wait_with_output().unwrap()));
        };
        Running { child, ready }
    }

    /// Starts `stratann serve` on a free port, without a cache.
    pub fn serve(index: &Path, more: &[&str]) -> Running {
        let args = ["serve", "--index", arg(index), "--http", "127.0.0.1:0", "--until-eof"];
        Running::start(&[&args[..], &COUNTED, more].concat())
    }

    /// Address at which it answers.
    pub fn address(&self) -> &str {
        self.ready["http"].as_str().unwrap()
    }

    pub fn signal(&self, signal: i32) {
        send_signal(self.child.id(), signal);
    }

    /// Stops it, and waits until each of its threads stands still: on a busy machine one may run on for a while.
    pub fn suspend(&self) {
        self.signal(libc::SIGSTOP);
        let tasks = std::path::PathBuf::from(format!("/proc/{}/task", self.child.id()));
        let is_stopped = |task: &std::path::Path| {
            let status = std::fs::read_to_string(task.join("stat")).unwrap_or_default();
            // The name in brackets may have any characters.
            status.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('T'))
        };
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
        while !std::fs::read_dir(&tasks).unwrap().all(|task| is_stopped(&task.unwrap().path())) {
            assert!(std::time::Instant::now() < deadline, "it does not stop");
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }

    /// The lines that it says on stderr from now on; [`Running::end`] has none of them.
    pub fn lines(&mut self) -> std::sync::mpsc::Receiver<String> {
        use std::io::BufRead;
        let stderr = std::io::BufReader::new(self.child.stderr.take().unwrap());
        let (sender, lines) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            // The test may have heard enough.
            stderr.lines().map_while(Result::ok).for_each(|line| drop(sender.send(line)));
        });
        lines
    }

    /// Waits for the end; gives the exit status and what was said on stderr.
    pub fn end(mut self) -> (Option<i32>, String) {
        let mut said = Vec::new();
        std::io::Read::read_to_end(self.child.stderr.as_mut().unwrap(), &mut said).unwrap();
        (self.child.wait().unwrap().code(), String::from_utf8_lossy(&said).into_owned())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // With its standard input it loses those that it has started, too.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn send_signal(pid: u32, signal: i32) {
    // SAFETY: sending a signal touches no memory of this process.
    assert_eq!(unsafe { libc::kill(pid as i32, signal) }, 0);
}

/// An address on which nobody listens.
pub fn nobody() -> String {
    stratann_testing::addresses(1)[0].to_string()
}

/// Longest wait for what must come.
pub const PATIENCE: Duration = Duration::from_secs(60);

pub fn spread(data: &Data, index: &Path, name: &str, more: &[&str]) -> PathBuf {
    let out = data.path(name);
    json(&[&["cluster", "partition", arg(index), "-o", arg(&out)], more].concat());
    out
}

pub fn addresses(up: &Running) -> Vec<String> {
    let servers = up.ready["servers"].as_array().unwrap();
    servers.iter().map(|s| s["address"].as_str().unwrap().to_string()).collect()
}

/// Reply of a server to rows as bytes.
pub fn post(address: &str, path: &str, body: &[u8]) -> (u16, Value) {
    post_as(address, path, ("application/octet-stream", body))
}

/// Reply of a server to a body of a type.
pub fn post_as(address: &str, path: &str, (kind, body): (&str, &[u8])) -> (u16, Value) {
    let mut stream = TcpStream::connect(address).unwrap();
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(&[head.as_bytes(), body].concat()).unwrap();
    read_reply(stream)
}

/// Reply of a server to a GET.
pub fn get(address: &str, path: &str) -> (u16, Value) {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
    read_reply(stream)
}

fn read_reply(mut stream: TcpStream) -> (u16, Value) {
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let status = text.split(' ').nth(1).unwrap().parse().unwrap();
    let body = text.split_once("\r\n\r\n").unwrap().1;
    (status, serde_json::from_str(&body[body.find('{').unwrap()..=body.rfind('}').unwrap()]).unwrap())
}

pub fn wait_for(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < PATIENCE, "{what} does not come");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Configurations of the servers of a spread index, with free ports, and one secret.
pub fn configs(data: &Data, name: &str, count: usize, source: &dyn Fn(usize) -> String) -> Vec<PathBuf> {
    let peers: Vec<String> = stratann_testing::addresses(count).iter().map(SocketAddr::to_string).collect();
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

pub fn start(config: &Path) -> Running {
    Running::start(&["serve", "--config", arg(config), "--until-eof"])
}

/// The part of a run that a golden file holds.
pub fn counters(run: &Value) -> Value {
    let search_list = &run["params"]["search_list"];
    serde_json::json!({ "per_query": run["per_query"], "recall": run["recall"], "search_list": search_list })
}

/// Compares with a golden file, or writes it again.
///
/// Merged reads depend on timing and are not compared.
pub fn compare(file: &str, mut all: serde_json::Map<String, Value>) {
    let runs = all.values_mut().filter_map(Value::as_array_mut).flatten();
    for per_query in runs.filter_map(|run| run["per_query"].as_object_mut()) {
        per_query.remove("merged_reads");
        per_query.remove("merged_bytes");
    }
    let path = format!("{}/../cli/tests/golden/{file}", env!("CARGO_MANIFEST_DIR"));
    if std::env::var_os("STRATANN_BLESS").is_some() {
        std::fs::write(path, format!("{:#}\n", Value::Object(all))).unwrap();
        return;
    }
    let golden: serde_json::Map<String, Value> =
        serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    assert_eq!(golden.keys().collect::<Vec<_>>(), all.keys().collect::<Vec<_>>());
    for (name, runs) in &golden {
        assert_eq!(&all[name], runs, "{name}");
    }
}

/// The option that calibrates with so many queries, which a `flat` has not.
pub fn calibrated<'a>(kind: &str, queries: &'a str) -> Vec<&'a str> {
    if kind == "flat" { Vec::new() } else { vec!["--calibration-queries", queries] }
}

/// One profile for all lists of a test program: a build would measure for 8 seconds, and equal profiles give equal
/// plans.
pub fn profile() -> &'static str {
    static PROFILE: OnceLock<(TempDir, PathBuf)> = OnceLock::new();
    let (_, path) = PROFILE.get_or_init(|| {
        let folder = folder();
        let path = folder.path().join("profile.json");
        let place = arg(folder.path());
        assert!(
            run(&["profile", place, "--seconds", "0.2", "--scratch", "4MiB", "-o", arg(&path)])
                .status
                .success()
        );
        (folder, path)
    });
    arg(path)
}
