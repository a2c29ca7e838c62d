//! `stratann cluster up`: runs a cluster of processes on this machine.

use std::collections::VecDeque;
use std::fs::DirBuilder;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::json;
use stratann_engine::manifest::Manifest;
use stratann_engine::spread::scatter;
use stratann_params::IndexKind;
use stratann_params::{Given, Param, Place, Stage, Value};
use stratann_storage::{Error, ErrorKind, Result};

use crate::commands::serve::{ClusterPlace, Stop, config_text, stops};
use crate::output::{Output, eprint_line, print};
use crate::parameters::{Parameters, Rows};
use crate::{Verdict, http_client, options};

/// Run all servers of an index on this machine, to try it out
///
/// Starts one `stratann serve` per server of a partitioned index, or one for an ordinary index, on local addresses.
/// Runs until Ctrl-C or SIGTERM, and stops the servers then. A server that dies is reported, and the others continue.
#[derive(clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(super) struct Up {
    /// An index, or a folder from `stratann cluster partition`, with or without --scatter-gather
    index: PathBuf,
    /// Number of servers, which must be that of the partition
    #[arg(long, value_name = "N")]
    servers: Option<usize>,
    /// Part of --ram-budget that caches blocks
    #[arg(long, value_name = "SIZE", value_parser = options::size, default_value = "0")]
    cache_budget: u64,
    #[command(flatten)]
    table: Parameters<UpRows>,
    /// Longest time until all servers are ready, seconds
    #[arg(long, default_value_t = WAIT_S, value_name = "S", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    wait: u64,
}

/// The table's options of servers that all servers get.
struct UpRows;

impl Rows for UpRows {
    const STAGES: &'static [Stage] = &[Stage::Serve];

    fn has(param: &Param) -> bool {
        let own =
            ["threads", "ram_budget", "merge", "carry", "results", "remote", "learning", "epoch_queries"];
        own.contains(&param.name)
    }
}

const EXAMPLES: &str = "\
Examples:
  stratann cluster partition base.idx -o spread --servers 3
  stratann cluster up spread                      # says the addresses, runs until Ctrl-C
  stratann search --connect 127.0.0.1:PORT,… query.fbin

With --json the first line of standard output, once all are ready, is
  {\"servers\":[{\"address\":\"127.0.0.1:PORT\",\"pid\":…,\"server\":0},…]}";

/// Longest time until all servers are ready, seconds.
const WAIT_S: u64 = 120;
/// Attempts to find free ports.
const ATTEMPTS: usize = 3;
/// Last lines of a server that are repeated when it dies.
const LAST_LINES: usize = 3;
/// Interval of checks on the servers.
const LOOK: Duration = Duration::from_millis(100);
/// Grace period for servers to stop before they are killed.
const GRACE: Duration = Duration::from_secs(15);

/// Runs `stratann cluster up`.
pub(super) fn run(args: &Up, output: Output) -> Result<Verdict> {
    let (kind, spread) = match scatter::is_apart(&args.index) {
        true => (Some(IndexKind::DiskGraph), Some(scatter::describe(&args.index)?.servers)),
        false => {
            let manifest = Manifest::read(&args.index)?.1;
            (manifest.kind(), manifest.spread.map(|spread| spread.servers))
        }
    };
    let place = if spread.is_some() { Place::Part } else { Place::Folder };
    args.table.check(kind, place)?;
    let servers = spread.unwrap_or(1);
    if let Some(wanted) = args.servers.filter(|&wanted| wanted != servers) {
        return Err(Error::bad_input(format!(
            "--servers is {wanted}, but {} {}; leave it out, or partition the index again with `stratann cluster \
             partition`",
            args.index.display(),
            spread.map_or("is not partitioned and needs 1".into(), |n| format!("is partitioned over {n}"))
        )));
    }
    let stop = stops(false)?;
    let mut attempt = 1;
    let mut cluster = loop {
        let mut cluster = Cluster::start(args, spread, output)?;
        match cluster.wait_until_ready(Duration::from_secs(args.wait), &stop) {
            Ok(None) => break cluster,
            Ok(Some(why)) => return Ok(cluster.stop(why, output)),
            Err(e) if attempt < ATTEMPTS && e.message.contains("in use") => attempt += 1,
            Err(e) => return Err(e),
        }
    };
    cluster.tell_ready(output)?;
    Ok(match cluster.watch(&stop) {
        Some(why) => cluster.stop(why, output),
        None => {
            eprint_line("stratann: no server is left");
            Verdict::Failed
        }
    })
}

/// Starts the servers of a partition with so many search threads each, and waits until they are ready.
///
/// # Errors
/// A folder that is no partition, or a server that ends or is not ready in two minutes.
pub fn started(index: &Path, threads: usize, output: Output) -> Result<Cluster> {
    let mut given = Given::default();
    given.push("threads", Value::Whole(threads as u64), "--threads".into());
    let args = Up {
        index: index.to_path_buf(),
        servers: None,
        cache_budget: 0,
        table: Parameters::of(given),
        wait: WAIT_S,
    };
    let servers = Manifest::read(index)?.1.spread.map(|spread| spread.servers);
    // Nobody asks it to stop.
    let (_asks, stop) = mpsc::channel();
    let mut cluster = Cluster::start(&args, servers, output)?;
    cluster.wait_until_ready(Duration::from_secs(args.wait), &stop)?;
    Ok(cluster)
}

/// Running servers and their files. Dropping it ends them.
pub struct Cluster {
    servers: Vec<Running>,
    // Dropped after the servers, which read from it.
    _folder: Folder,
}

/// One server.
struct Running {
    number: usize,
    child: Child,
    /// Standard input; the server ends when it is closed.
    stdin: Option<ChildStdin>,
    /// HTTP address, once it is known.
    address: Option<String>,
    ready: mpsc::Receiver<String>,
    last_lines: Arc<Mutex<VecDeque<String>>>,
    reader: Option<JoinHandle<()>>,
    is_dead: bool,
}

impl Cluster {
    fn start(args: &Up, spread: Option<usize>, output: Output) -> Result<Cluster> {
        let folder = Folder::new()?;
        let index = args.index.canonicalize().map_err(|e| Error::io("opening", &args.index, &e))?;
        let secret_file = folder.path.join("secret");
        write_private(&secret_file, &secret()?)?;
        let peers = free_addresses(spread.unwrap_or(0))?;
        let mut cluster = Cluster { servers: Vec::new(), _folder: folder };
        for server in 0..spread.unwrap_or(1) {
            let place = ClusterPlace { server, peers: &peers, secret_file: &secret_file };
            let text = config_text(&index, "127.0.0.1:0", &args.table.given, spread.map(|_| &place))?;
            let config = cluster._folder.path.join(format!("server-{server:02}.toml"));
            write_private(&config, text.as_bytes())?;
            cluster.servers.push(Running::start(server, &config, args, output)?);
        }
        Ok(cluster)
    }

    /// Waits until all servers respond and reach the whole index; `Some` when it was asked to stop first.
    fn wait_until_ready(&mut self, longest: Duration, stop: &mpsc::Receiver<Stop>) -> Result<Option<Stop>> {
        let (agent, started) = (http_client::agent(), Instant::now());
        loop {
            let mut waiting = Vec::new();
            for server in &mut self.servers {
                if server.has_ended() {
                    let message = format!("{} ended: {}", server.name(), server.last_lines());
                    return Err(Error { kind: ErrorKind::Io, message });
                }
                if server.address.is_none() {
                    server.address = server.ready.try_recv().ok();
                }
                let healthy = server.address.as_ref().map(|a| http_client::healthy(&agent, a));
                match healthy {
                    Some(Ok(true)) => {}
                    Some(Ok(false)) => waiting.push(format!("{} cannot reach others", server.name())),
                    Some(Err(_)) | None => waiting.push(format!("{} does not respond", server.name())),
                }
            }
            if waiting.is_empty() {
                return Ok(None);
            }
            if started.elapsed() > longest {
                let (seconds, waiting) = (longest.as_secs(), waiting.join(", "));
                let message = format!("not ready after {seconds} s: {waiting}; give a longer --wait");
                return Err(Error { kind: ErrorKind::Io, message });
            }
            if let Ok(why) = stop.recv_timeout(LOOK) {
                return Ok(Some(why));
            }
        }
    }

    /// HTTP addresses of servers that are ready.
    pub fn addresses(&self) -> Vec<String> {
        self.servers.iter().filter_map(|server| server.address.clone()).collect()
    }

    fn tell_ready(&self, output: Output) -> Result<()> {
        let address = |s: &Running| s.address.clone().unwrap_or_default();
        if output.json {
            let servers: Vec<_> = self
                .servers
                .iter()
                .map(|s| json!({ "address": address(s), "pid": s.child.id(), "server": s.number }))
                .collect();
            return print(&format!("{}\n", json!({ "servers": servers })));
        }
        let all: Vec<String> = self.servers.iter().map(address).collect();
        print(&format!("{} ready: --connect {}\n", servers(all.len()), all.join(",")))?;
        output.note("Ctrl-C stops");
        Ok(())
    }

    /// Waits for the end: `None` when the last server has died.
    fn watch(&mut self, stop: &mpsc::Receiver<Stop>) -> Option<Stop> {
        loop {
            for server in &mut self.servers {
                if !server.is_dead && server.has_ended() {
                    eprint_line(&format!("stratann: {} ended: {}", server.name(), server.last_lines()));
                }
            }
            if self.servers.iter().all(|s| s.is_dead) {
                return None;
            }
            if let Ok(why) = stop.recv_timeout(LOOK) {
                return Some(why);
            }
        }
    }

    /// Asks all servers to stop and waits for them.
    fn stop(self, why: Stop, output: Output) -> Verdict {
        output.note(&format!("stopping {}", servers(self.servers.len())));
        drop(self);
        if why == Stop::Interrupted { Verdict::Interrupted } else { Verdict::Fine }
    }
}

fn servers(count: usize) -> String {
    if count == 1 { "1 server".into() } else { format!("{count} servers") }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for server in &mut self.servers {
            // The end of its standard input asks a server to stop.
            server.stdin = None;
        }
        let deadline = Instant::now() + GRACE;
        while Instant::now() < deadline && !self.servers.iter_mut().all(Running::has_ended) {
            std::thread::sleep(LOOK / 5);
        }
        for server in &mut self.servers {
            // Killing a server that has ended fails, which is harmless.
            let _ = server.child.kill();
            let _ = server.child.wait();
        }
    }
}

impl Running {
    fn start(number: usize, config: &Path, args: &Up, output: Output) -> Result<Running> {
        let program = std::env::current_exe().map_err(|e| Error::io("finding", Path::new("stratann"), &e))?;
        let mut command = Command::new(&program);
        command.args(["serve", "--json", "--until-eof", "--config"]).arg(config);
        command.args(["--cache-budget", &args.cache_budget.to_string()]);
        // A separate process group: Ctrl-C in a terminal reaches only this process, which then stops the servers in
        // order.
        command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|e| Error::io("starting", &program, &e))?;
        let last_lines = Arc::new(Mutex::new(VecDeque::new()));
        let (addresses, ready) = mpsc::channel();
        if let Some(stdout) = child.stdout.take() {
            std::thread::spawn(move || send_address(stdout, &addresses));
        }
        let reader = child.stderr.take().map(|stderr| {
            let (lines, output) = (Arc::clone(&last_lines), output);
            std::thread::spawn(move || repeat_lines(stderr, number, &lines, output))
        });
        let stdin = child.stdin.take();
        Ok(Running { number, child, stdin, address: None, ready, last_lines, reader, is_dead: false })
    }

    fn name(&self) -> String {
        format!("server {} (process {})", self.number, self.child.id())
    }

    fn has_ended(&mut self) -> bool {
        self.is_dead = self.is_dead || !matches!(self.child.try_wait(), Ok(None));
        self.is_dead
    }

    /// Returns how the server ended, and its last lines.
    fn last_lines(&mut self) -> String {
        if let Some(reader) = self.reader.take() {
            // The thread ends with the process; its lines so far are used.
            let _ = reader.join();
        }
        let status = self.child.wait().map_or_else(|e| e.to_string(), |s| s.to_string());
        let lines = self.last_lines.lock().unwrap_or_else(|e| e.into_inner());
        let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        if lines.is_empty() { status } else { format!("{status}: {}", lines.join(" | ")) }
    }
}

/// Reads the address line of a server and its log to the end.
fn send_address(stdout: impl Read, addresses: &mpsc::Sender<String>) {
    for line in BufReader::new(stdout).lines().map_while(std::io::Result::ok) {
        let ready: Option<serde_json::Value> = serde_json::from_str(&line).ok();
        if let Some(address) = ready.as_ref().and_then(|r| r["http"].as_str()) {
            // The receiver is gone when another server has failed.
            let _ = addresses.send(address.to_string());
        }
    }
}

fn repeat_lines(stderr: impl Read, number: usize, last: &Mutex<VecDeque<String>>, output: Output) {
    for line in BufReader::new(stderr).lines().map_while(std::io::Result::ok) {
        output.note(&format!("{number}: {line}"));
        let mut last = last.lock().unwrap_or_else(|e| e.into_inner());
        if last.len() == LAST_LINES {
            last.pop_front();
        }
        last.push_back(line);
    }
}

/// Reserves free local addresses: bound together, so that they differ, and released.
fn free_addresses(count: usize) -> Result<Vec<String>> {
    let refused = |e| Error::io("finding a free port on", Path::new("127.0.0.1"), &e);
    let listeners: std::io::Result<Vec<TcpListener>> =
        (0..count).map(|_| TcpListener::bind("127.0.0.1:0")).collect();
    let addresses = listeners.map_err(refused)?.into_iter().map(|l| Ok(l.local_addr()?.to_string()));
    addresses.collect::<std::io::Result<_>>().map_err(refused)
}

/// Draws a new secret of 64 hexadecimal digits.
fn secret() -> Result<Vec<u8>> {
    let path = Path::new("/dev/urandom");
    let mut bytes = [0; 32];
    let read = std::fs::File::open(path).and_then(|mut file| file.read_exact(&mut bytes));
    read.map_err(|e| Error::io("reading", path, &e))?;
    Ok(bytes.iter().flat_map(|b| format!("{b:02x}").into_bytes()).collect())
}

fn write_private(path: &Path, bytes: &[u8]) -> Result<()> {
    let created = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    created.and_then(|mut file| file.write_all(bytes)).map_err(|e| Error::io("writing", path, &e))
}

/// A folder that only this user can read, and that is removed with the cluster.
struct Folder {
    path: PathBuf,
}

impl Folder {
    fn new() -> Result<Folder> {
        let base = std::env::temp_dir();
        let name = |attempt| base.join(format!("stratann-up-{}-{attempt}", std::process::id()));
        let mut attempt = 0;
        loop {
            let path = name(attempt);
            match DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => return Ok(Folder { path }),
                Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists && attempt < 100 => attempt += 1,
                Err(e) => return Err(Error::io("creating", &path, &e)),
            }
        }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // A remainder is small, private, and in the folder for temporary files.
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_differ_and_can_be_taken() {
        let addresses = free_addresses(5).unwrap();
        let taken: Vec<TcpListener> = addresses.iter().map(|a| TcpListener::bind(a).unwrap()).collect();
        assert_eq!(taken.len(), 5);
    }

    #[test]
    fn the_folder_is_private_and_goes() {
        use std::os::unix::fs::PermissionsExt;
        let folder = Folder::new().unwrap();
        let file = folder.path.join("secret");
        write_private(&file, &secret().unwrap()).unwrap();
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&folder.path), mode(&file)), (0o700, 0o600));
        assert_eq!(std::fs::read(&file).unwrap().len(), 64);
        assert_ne!(std::fs::read(&file).unwrap(), secret().unwrap());
        let path = folder.path.clone();
        drop(folder);
        assert!(!path.exists());
    }
}
