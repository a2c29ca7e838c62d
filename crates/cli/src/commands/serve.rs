//! `stratann serve`: a server of an index, or of one shard.

use std::io::Read;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use stratann_cluster::membership::{Claim, EtcdOptions, Member, Membership};
use stratann_core::query::Remote;
use stratann_engine::index::CacheBudget;
use stratann_engine::serve::{ServeOptions, Server, Versions};
use stratann_params::choices::IoName;
use stratann_server::callers::{self, Callers};
use stratann_server::{Front, FrontOptions, Limits, Log, Signal, watch_signals};
use stratann_storage::ledger::Ledger;
use stratann_storage::link::Tls;
use stratann_storage::{Error, ErrorKind, Result, input};

use crate::Verdict;
use crate::options::{self, CarryName, RemoteName, ResultsName};
use crate::output::{Output, print};
use crate::scorer::ScorerArgs;

mod caps;
mod config;
mod learning;
mod memory;
mod sources;
mod watch;
use caps::CapArgs;
use config::{Config, SizeText, config_of, in_flight};
use memory::{ServedMemory, cache_bytes};
use sources::Sources;

/// Answer searches over HTTP
///
/// Serves one index, one server's shard of an index from `stratann cluster partition`, or what memory nodes hold. Runs
/// until SIGTERM or Ctrl-C, then finishes running requests. There is no authentication: everyone who reaches the
/// address can search.
#[derive(clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub struct Args {
    /// File of options in TOML; options of the command line take precedence
    #[arg(long, value_name = "FILE", required_unless_present_any = ["index", "memory"])]
    config: Option<PathBuf>,
    /// Folder of the index
    #[arg(long, value_name = "INDEX")]
    index: Option<PathBuf>,
    /// HTTP address for clients; port 0 takes a free one [default: 127.0.0.1:8700]
    #[arg(long, value_name = "HOST:PORT")]
    http: Option<String>,
    /// Name by which clients address this server, beside IP addresses, localhost and the host of --http; repeatable
    #[arg(long, value_name = "NAME", value_parser = callers::host_name)]
    host_name: Vec<String>,
    /// Origin of a web page that may use this server, such as https://search.example; repeatable [default: none]
    #[arg(long, value_name = "ORIGIN", value_parser = callers::origin)]
    allow_origin: Vec<String>,
    /// Search threads [default: all cores]
    #[arg(long, value_parser = options::threads)]
    threads: Option<usize>,
    /// Limit of all memory, such as 512MiB [default: no limit]
    #[arg(long, value_name = "SIZE", value_parser = options::size)]
    ram_budget: Option<u64>,
    /// Memory that caches blocks: a size, or auto for up to half of the memory that is available [default: auto; 0 with
    /// --ram-budget]
    #[arg(long, value_name = "auto|SIZE", value_parser = options::cache_budget)]
    cache_budget: Option<CacheBudget>,
    /// Queries in flight per thread [default: disk-graph 64; hybrid-ivf 16, or 8 where its codes do not fit in RAM;
    /// flat 1]
    #[arg(long, value_parser = options::in_flight, value_name = "N")]
    in_flight: Option<usize>,
    /// Most queries that wait or are in flight; more are refused [default: 4096]
    #[arg(long, value_name = "N")]
    queue: Option<usize>,
    #[command(flatten)]
    caps: CapArgs,
    /// I/O back end [default: auto]
    #[arg(long, value_parser = options::choice::<IoName>())]
    io: Option<IoName>,
    /// Make each read, even while another query makes the same one (to compare)
    #[arg(long)]
    no_merge: bool,
    /// What a hand-over contains of its candidates [default: ids; distances where codes are on disk]
    #[arg(long, value_enum)]
    carry: Option<CarryName>,
    /// Where partial results go at a hand-over [default: along]
    #[arg(long, value_enum)]
    results: Option<ResultsName>,
    /// How a hybrid-ivf query uses lists and vectors of other servers [default: score]
    #[arg(long, value_enum)]
    remote: Option<RemoteName>,
    /// Queries per learning epoch of a hybrid-ivf [default: 2000]
    #[arg(long, value_name = "N")]
    epoch_queries: Option<u32>,
    /// Use what a hybrid-ivf has learnt from earlier queries, without learning more
    #[arg(long)]
    frozen: bool,
    /// Neither use nor update what a hybrid-ivf has learnt
    #[arg(long, conflicts_with = "frozen")]
    no_learning: bool,
    #[command(flatten)]
    memory: ServedMemory,
    #[command(flatten)]
    scorer: ScorerArgs,
    /// Stop when standard input ends too, with the program that started the server
    #[arg(long)]
    until_eof: bool,
}

const EXAMPLES: &str = "\
Examples:
  stratann serve --index base.idx
  stratann serve --config server-0.toml
  stratann serve --memory 10.0.0.9:8900 --key-file key
  curl -s 127.0.0.1:8700/v1/search -H 'Content-Type: application/json' -d '{\"queries\": [[0.1, 0.2, …]], \"k\": 10}'

Keys of the file:
  index, server, listen, peers, http, secret_file, threads, in_flight, io, ram_budget, cache_budget, queue,
  carry, results, remote, scorer, device, gpu_budget, spill, early_tables
  host_name, allow_origin: lists of names of this server, and of origins of web pages that may use it
  max_k, max_list, max_nprobe, max_batch, max_timeout_ms, http_memory, connections_per_address: what clients may take
  header_time_s, idle_time_s: when a connection is closed
  learning (on, frozen or off), epoch_queries
  tls_certificate, tls_key, tls_authority: PEM files that encrypt traffic between servers
  store, data: fetch the index from a store; poll_s: seconds between checks for a new version (10; 0 for never)
  etcd, cluster, advertise: find the other servers by etcd
  memory, key_file, memory_certificate, memory_certificate_key, memory_authority: serve what memory nodes hold;
  memory = [\"etcd:CLUSTER@URL\"] finds them by etcd
  batch, doorbell: how batches of a remote-hnsw are loaded

A server of a partitioned index needs server, listen, peers, and secret_file unless all servers are on this machine:

  index = \"spread\"                # paths are relative to the folder of this file
  server = 0
  listen = \"10.0.0.1:8800\"        # for the other servers
  peers = [\"10.0.0.1:8800\", \"10.0.0.2:8800\"]
  http = \"10.0.0.1:8700\"          # for clients
  secret_file = \"secret\"
  ram_budget = \"2GiB\"";

const USUAL_HTTP: &str = "127.0.0.1:8700";
const USUAL_QUEUE: usize = 4096;
/// Seconds between two checks for a new version.
const USUAL_POLL_S: u64 = 10;
/// Interval of checks while waiting for the end.
const LOOK: Duration = Duration::from_millis(200);
/// Shortest secret; shorter ones can be guessed.
const SECRET_BYTES_MIN: usize = 16;
/// Number of search threads per HTTP thread.
const SEARCH_THREADS_PER_HTTP: usize = 8;

/// Everything that a server needs to start.
struct Setup {
    http: SocketAddr,
    engine: ServeOptions,
    limits: Limits,
    callers: Callers,
    http_threads: usize,
    // All memory of the process.
    ledger: Arc<Ledger>,
    sources: Sources,
    folder: PathBuf,
    version: u64,
    etcd: Option<EtcdOptions>,
    // Whether options say how to learn.
    asks_for_learning: bool,
    // Held as long as the process lives: it reserves this server's number.
    _claim: Option<Claim>,
    // The same: it follows memory nodes in etcd.
}

/// Runs `stratann serve`.
pub(crate) fn run(args: &Args, output: Output) -> Result<Verdict> {
    let log: Log = Arc::new(move |line: &str| output.note(&format!("{} {line}", utc(SystemTime::now()))));
    let setup = setup(args, Arc::clone(&log), output)?;
    let stop = stops(args.until_eof)?;
    let front_bytes = setup.limits.bytes(setup.http_threads);
    let has_budget = setup.engine.ram_budget.is_some();
    let server = Server::start(setup.engine).map_err(|e| match e.kind {
        // The engine's error names its own need only.
        ErrorKind::Budget if has_budget => Error::budget(format!(
            "without the {} for HTTP, {}, and that for HTTP beside it",
            stratann_storage::budget::size(front_bytes),
            e.message,
        )),
        _ => e,
    })?;
    if let Some(why) = learning::why_ignored(&server).filter(|_| setup.asks_for_learning) {
        log(&format!("note: {why}"));
    }
    let versions = Versions::of(server, setup.version, Arc::clone(&log));
    let front = Front::start(
        Arc::clone(&versions),
        FrontOptions {
            http: setup.http,
            limits: setup.limits,
            callers: setup.callers,
            threads: setup.http_threads,
            ledger: setup.ledger,
            log: Arc::clone(&log),
        },
    )?;
    tell_ready(&versions.current(), &front, &log, output)?;
    let (switched, news) = mpsc::channel();
    let watch = setup.sources.watch(&versions, (&setup.folder, Arc::clone(&log)), move || {
        // The receiver is gone when the process ends.
        let _ = switched.send(());
    })?;
    let wake = watch.as_ref().map(watch::Watch::waker);
    let wake = move || wake.iter().for_each(|wake| wake());
    let http = front.address().to_string();
    let membership = setup.etcd.map(|etcd| setup.sources.join(etcd, &versions, &http, wake)).transpose()?;
    let why = wait_for_end(&stop, &news, membership.as_ref(), &versions)?;
    log(why.text());
    // First, clients are no longer sent here.
    drop(membership);
    drop(watch);
    front.stop();
    drop(versions);
    log("stopped");
    Ok(if why == Stop::Interrupted { Verdict::Interrupted } else { Verdict::Fine })
}

/// Waits for the request to stop. Announces the served build in etcd meanwhile, and follows loads of memory nodes.
fn wait_for_end(
    stop: &mpsc::Receiver<Stop>,
    news: &mpsc::Receiver<()>,
    membership: Option<&(Membership, Member)>,
    versions: &Versions,
) -> Result<Stop> {
    loop {
        match stop.recv_timeout(LOOK) {
            Ok(why) => return Ok(why),
            Err(mpsc::RecvTimeoutError::Disconnected) => return Ok(Stop::Requested),
            Err(mpsc::RecvTimeoutError::Timeout) => versions.follow_load(),
        }
        if let (Some((membership, own)), Ok(())) = (membership, news.try_recv()) {
            let build = versions.current().manifest().build_id.to_string();
            membership.update(&Member { build, ..own.clone() })?;
        }
    }
}

fn tell_ready(server: &Server, front: &Front, log: &Log, output: Output) -> Result<()> {
    let (status, listen) = (server.status(), server.listening());
    if output.json {
        let ready = serde_json::json!({
            "http": front.address().to_string(),
            "listen": listen.map(|a| a.to_string()),
            "pid": std::process::id(),
            "server": status.server,
        });
        print(&format!("{ready}\n"))?;
    }
    let peers = listen.map(|a| format!(", for its peers on {a}")).unwrap_or_default();
    log(&format!(
        "server {} of {} serves {} vectors of {} × {}, {}, on http://{}{peers}; {}",
        status.server,
        status.servers,
        crate::output::count(status.rows),
        status.dim,
        status.dtype,
        status.metric,
        front.address(),
        status.io_backend,
    ));
    Ok(())
}

/// Reason why a server stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// SIGTERM, or the end of the program that started it.
    Requested,
    /// Ctrl-C.
    Interrupted,
}

impl Stop {
    fn text(self) -> &'static str {
        match self {
            Stop::Requested => "stopping; running requests are finished",
            Stop::Interrupted => {
                "interrupted; running requests are finished, a second Ctrl-C ends them at once"
            }
        }
    }
}

/// Reports when to stop. A second signal ends the process at once.
pub(crate) fn stops(until_eof: bool) -> Result<mpsc::Receiver<Stop>> {
    let (sender, receiver) = mpsc::channel();
    let by_signal = sender.clone();
    let is_second = AtomicBool::new(false);
    let act = move |signal| {
        let why = if signal == Signal::Interrupt { Stop::Interrupted } else { Stop::Requested };
        if is_second.swap(true, Ordering::SeqCst) {
            std::process::exit(if why == Stop::Interrupted { 130 } else { 1 });
        }
        // The receiver is gone when the process ends.
        let _ = by_signal.send(why);
    };
    let system =
        |e: std::io::Error| Error { kind: ErrorKind::Io, message: format!("waiting for signals: {e}") };
    watch_signals(act).map_err(system)?;
    let wait_for_eof = move || {
        let mut input = std::io::stdin().lock();
        while input.read(&mut [0; 64]).is_ok_and(|n| n > 0) {}
        let _ = sender.send(Stop::Requested);
    };
    if until_eof {
        std::thread::Builder::new().name("stdin".into()).spawn(wait_for_eof).map_err(system)?;
    }
    Ok(receiver)
}

/// The folder of the index; empty where a store has it.
fn index_folder(args: &Args, config: &Config, has_memory: bool, folder: &Path) -> Result<PathBuf> {
    match (has_memory, config.index.is_some() || config.store.is_some()) {
        (true, true) => {
            return Err(Error::bad_input("both memory and an index or store are set; remove one of them"));
        }
        (true, false) => return Ok(PathBuf::new()),
        (false, _) => {}
    }
    match (&args.index, &config.index, &config.store) {
        (Some(_), _, Some(_)) | (_, Some(_), Some(_)) => {
            Err(Error::bad_input("both index and store are set; remove one of them"))
        }
        (Some(index), ..) => Ok(index.clone()),
        (None, Some(index), _) => Ok(folder.join(index)),
        (None, None, Some(_)) => Ok(PathBuf::new()),
        (None, None, None) => {
            Err(Error::bad_input("the file has no index; add index = \"FOLDER\", or store and data"))
        }
    }
}

fn remote(args: &Args, key: Option<&str>) -> Result<Remote> {
    let remote = named("remote", args.remote, key)?;
    Ok(remote.unwrap_or_default().into())
}

/// The address for other servers, and the secret that they share.
fn address_of_servers(
    config: &Config,
    folder: &Path,
    output: Output,
) -> Result<(Option<SocketAddr>, Option<Vec<u8>>)> {
    let listen = config.listen.as_deref().map(|l| socket_address("listen", l)).transpose()?;
    let secret = config.secret_file.as_ref().map(|f| read_secret(&folder.join(f), output)).transpose()?;
    check_exposure(listen, secret.is_some())?;
    Ok((listen, secret))
}

/// Merges the file and the command line.
fn setup(args: &Args, log: Log, output: Output) -> Result<Setup> {
    let (mut config, folder) = config_of(args.config.as_deref())?;
    let memory_keys = config.memory();
    let index = index_folder(args, &config, args.memory.is_used(&memory_keys), folder)?;
    let (sources, keys, scorer_keys) = (config.sources(), config.caps(), config.scorer());
    let (learning, asks_for_learning) =
        (learning::learning(args, &config)?, learning::is_asked(args, &config));
    let etcd = sources.etcd(&log)?;
    let (http, callers) = http_of(args, &config, output)?;
    let (listen, secret) = address_of_servers(&config, folder, output)?;
    let tls = read_tls(&config, folder)?;
    let bytes = |name: &str, size: Option<SizeText>| size.map(|s| s.bytes(name)).transpose();
    let ram_budget = args.ram_budget.or(bytes("ram_budget", config.ram_budget)?);
    let cache_budget = config.cache_budget.map(SizeText::cache_budget).transpose()?;
    let threads = args.threads.or(config.threads).unwrap_or_else(options::all_cores);
    in_range("threads", threads, 1, 1024)?;
    let in_flight = in_flight(args.in_flight, config.in_flight)?;
    let queue = in_range("queue", args.queue.or(config.queue).unwrap_or(USUAL_QUEUE), 1, 1 << 20)?;
    let caps = args.caps.caps(&keys)?;
    let limits = args.caps.limits(keys, ram_budget)?;
    let (ledger, http_threads) = (Ledger::new(ram_budget), threads.div_ceil(SEARCH_THREADS_PER_HTTP));
    in_range("poll_s", usize::try_from(sources.poll_s).unwrap_or(usize::MAX), 0, 86_400)?;
    let memory = args.memory.nodes(&memory_keys, folder, output)?;
    let mut engine = ServeOptions {
        index,
        memory,
        gather: args.memory.gather(&memory_keys)?,
        server: config.server,
        listen,
        tls,
        peers: config.peers,
        secret: secret.unwrap_or_default(),
        threads,
        in_flight,
        io: io_choice(args.io, config.io.as_deref())?.into(),
        merge: !args.no_merge,
        ram_budget: ram_budget.map(|b| b.saturating_sub(limits.bytes(http_threads))),
        cache_budget: 0,
        queue,
        caps,
        ledger: Some(Arc::clone(&ledger)),
        may_change: sources.store.is_some(),
        learning,
        scorer: args.scorer.options(&scorer_keys)?,
        carry: named("carry", args.carry, config.carry.as_deref())?.map(Into::into),
        results: named("results", args.results, config.results.as_deref())?.unwrap_or_default().into(),
        remote: remote(args, config.remote.as_deref())?,
        log,
        ..ServeOptions::default()
    };
    memory::check(&engine, etcd.is_some())?;
    let (claim, version) = sources.complete(&mut engine, etcd.as_ref(), folder)?;
    engine.cache_budget =
        cache_bytes(args.cache_budget.or(cache_budget).unwrap_or(usual_cache(&engine)), &engine);
    Ok(Setup {
        http,
        engine,
        limits,
        callers,
        http_threads,
        ledger,
        sources,
        folder: folder.to_path_buf(),
        version,
        etcd,
        asks_for_learning,
        _claim: claim,
    })
}

/// The usual cache. With a RAM budget there is one only when it was asked for: what the budget leaves is shared by
/// queries, and by a next version of the index. What memory nodes hold has no versions.
fn usual_cache(engine: &ServeOptions) -> CacheBudget {
    match engine.ram_budget {
        Some(_) if engine.memory.is_none() => CacheBudget::Bytes(0),
        _ => CacheBudget::Auto,
    }
}

/// Returns a value that is in range.
fn in_range(name: &str, value: usize, low: usize, high: usize) -> Result<usize> {
    if (low..=high).contains(&value) {
        return Ok(value);
    }
    Err(Error::bad_input(format!("{name} is {value}; use {low} to {high}")))
}

fn io_choice(given: Option<IoName>, configured: Option<&str>) -> Result<IoName> {
    match (given, configured) {
        (Some(io), _) => Ok(io),
        (None, None) => Ok(IoName::Auto),
        (None, Some(name)) => IoName::parse(name)
            .ok_or_else(|| Error::bad_input(format!("io is {name:?}; use \"auto\", \"uring\" or \"pread\""))),
    }
}

/// Returns an option with named values, or the value in the file.
fn named<T: clap::ValueEnum>(key: &str, given: Option<T>, configured: Option<&str>) -> Result<Option<T>> {
    let (None, Some(name)) = (&given, configured) else { return Ok(given) };
    let names: Vec<String> = T::value_variants()
        .iter()
        .filter_map(T::to_possible_value)
        .map(|v| format!("{:?}", v.get_name()))
        .collect();
    T::from_str(name, false)
        .map(Some)
        .map_err(|_| Error::bad_input(format!("{key} is {name:?}; use {}", names.join(" or "))))
}

/// The address for clients, and whose requests are answered. The host of the address is a name, too.
fn http_of(args: &Args, config: &Config, output: Output) -> Result<(SocketAddr, Callers)> {
    let http = args.http.as_deref().or(config.http.as_deref()).unwrap_or(USUAL_HTTP);
    let checked = |key: &str, texts: &[String], check: fn(&str) -> std::result::Result<String, String>| {
        let check =
            |text: &String| check(text).map_err(|why| Error::bad_input(format!("{key} is {text:?}; {why}")));
        texts.iter().map(check).collect::<Result<Vec<String>>>()
    };
    let names = checked("host_name", &config.host_name, callers::host_name)?;
    let own = http.rsplit_once(':').and_then(|(host, _)| callers::host_name(host).ok());
    let origins = checked("allow_origin", &config.allow_origin, callers::origin)?;
    let callers = Callers {
        host_names: args.host_name.iter().cloned().chain(names).chain(own).collect(),
        origins: [&args.allow_origin[..], &origins].concat(),
    };
    Ok((http_address(http, output)?, callers))
}

/// The address for clients. Warns when others than this machine can reach it.
fn http_address(text: &str, output: Output) -> Result<SocketAddr> {
    let http = socket_address("http", text)?;
    if !http.ip().is_loopback() {
        output.note("note: everyone who reaches the HTTP address can search; there is no authentication");
    }
    Ok(http)
}

/// The first address that a text stands for.
pub(crate) fn socket_address(name: &str, text: &str) -> Result<SocketAddr> {
    let found = text.to_socket_addrs().ok().and_then(|mut all| all.next());
    found.ok_or_else(|| {
        Error::bad_input(format!(
            "{name} is {text:?}; give HOST:PORT of this machine, such as 127.0.0.1:8700"
        ))
    })
}

/// Peers are trusted, so strangers must not be able to connect.
fn check_exposure(listen: Option<SocketAddr>, has_secret: bool) -> Result<()> {
    match listen {
        Some(address) if !address.ip().is_loopback() && !has_secret => Err(Error::bad_input(format!(
            "listen is {address}, which other machines reach, and there is no secret_file: anyone could pose as a \
             server of this cluster; give all servers a file with the same secret"
        ))),
        _ => Ok(()),
    }
}

/// Reads the secret of a cluster: the content of a file, trimmed.
fn read_secret(path: &Path, output: Output) -> Result<Vec<u8>> {
    let bytes = input::read(path)?;
    let secret = bytes.trim_ascii();
    if secret.len() < SECRET_BYTES_MIN {
        return Err(Error::bad_input(format!(
            "{} has {} bytes, a secret needs at least {SECRET_BYTES_MIN}; create one with `openssl rand -hex 32`",
            path.display(),
            secret.len()
        )));
    }
    let mode = std::fs::metadata(path).map_err(|e| Error::io("reading", path, &e))?.permissions().mode();
    if mode & 0o077 != 0 {
        output.note(&format!("note: other users of this machine can read {}; use chmod 600", path.display()));
    }
    Ok(secret.to_vec())
}

/// Reads the certificates for traffic between servers: all three files, or none.
fn read_tls(config: &Config, folder: &Path) -> Result<Option<Tls>> {
    match (&config.tls_certificate, &config.tls_key, &config.tls_authority) {
        (None, None, None) => Ok(None),
        (Some(certificate), Some(key), Some(authority)) => {
            Tls::read(&folder.join(certificate), &folder.join(key), &folder.join(authority)).map(Some)
        }
        _ => Err(Error::bad_input(
            "tls_certificate, tls_key and tls_authority go together; give all of them, or none",
        )),
    }
}

/// Formats a time as `2026-01-31T12:00:00Z`.
pub(crate) fn utc(moment: SystemTime) -> String {
    let seconds = moment.duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    // Years start with March here, so that the leap day comes last; 400 years have 146,097 days.
    let shifted = days + 719_468;
    let (era, day) = (shifted / 146_097, shifted % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let of_year = day - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let (day, month) = (of_year - (153 * month + 2) / 5 + 1, if month < 10 { month + 3 } else { month - 9 });
    let year = era * 400 + year + u64::from(month <= 2);
    let (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// Writes a file of options for `stratann serve`.
pub(crate) fn config_text(index: &Path, http: &str, cluster: Option<&ClusterPlace<'_>>) -> Result<String> {
    let quoted = |path: &Path| match path.to_str() {
        // A JSON string is a valid TOML string.
        Some(text) => Ok(serde_json::Value::from(text).to_string()),
        None => Err(Error::bad_input(format!("{} is not UTF-8; rename it", path.display()))),
    };
    let mut text = format!("index = {}\nhttp = \"{http}\"\n", quoted(index)?);
    if let Some(place) = cluster {
        text += &format!("server = {}\nlisten = \"{}\"\n", place.server, place.peers[place.server]);
        text += &format!("peers = {}\n", serde_json::Value::from(place.peers));
        text += &format!("secret_file = {}\n", quoted(place.secret_file)?);
    }
    Ok(text)
}

/// A server's place in a cluster.
pub(crate) struct ClusterPlace<'a> {
    pub(crate) server: usize,
    pub(crate) peers: &'a [String],
    pub(crate) secret_file: &'a Path,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_told_in_utc() {
        let at = |seconds| utc(UNIX_EPOCH + Duration::from_secs(seconds));
        assert_eq!(at(0), "1970-01-01T00:00:00Z");
        assert_eq!(at(951_782_399), "2000-02-28T23:59:59Z");
        assert_eq!(at(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(at(951_868_800), "2000-03-01T00:00:00Z");
        assert_eq!(at(1_735_689_599), "2024-12-31T23:59:59Z");
        assert_eq!(at(4_107_542_400), "2100-03-01T00:00:00Z");
    }

    #[test]
    fn a_written_config_is_read_back() {
        let peers = ["127.0.0.1:1".to_string(), "127.0.0.1:2".to_string()];
        let place = ClusterPlace { server: 1, peers: &peers, secret_file: Path::new("/tmp/secret") };
        let text = config_text(Path::new("/a \"b\"\\c"), "127.0.0.1:0", Some(&place)).unwrap();
        let config: Config = toml::from_str(&text).unwrap();
        assert_eq!(config.index.as_deref(), Some(Path::new("/a \"b\"\\c")));
        assert_eq!((config.server, config.listen.as_deref()), (Some(1), Some("127.0.0.1:2")));
        assert_eq!(config.peers, peers);
    }

    #[test]
    fn only_this_machine_needs_no_secret() {
        let address = |text: &str| Some(text.parse().unwrap());
        assert!(check_exposure(address("127.0.0.1:1"), false).is_ok());
        assert!(check_exposure(address("[::1]:1"), false).is_ok());
        assert!(check_exposure(address("10.0.0.1:1"), true).is_ok());
        let error = check_exposure(address("0.0.0.0:1"), false).unwrap_err().message;
        assert!(error.contains("secret_file"), "{error}");
    }
}
