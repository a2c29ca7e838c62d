//! `stratann serve`: a server of an index, or of one shard.

use std::io::Read;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, SystemTime};

use stratann_cluster::membership::{Claim, EtcdOptions, Member, Membership};
use stratann_engine::exec::scorer::ScorerOptions;
use stratann_engine::index::CacheBudget;
use stratann_engine::kinds::known::IN_MEMORY_NODES;
use stratann_engine::manifest::Manifest;
use stratann_engine::serve::{ServeOptions, Server, Versions};
use stratann_engine::spread::scatter;
use stratann_params::open::{LearnSettings, OpenSettings};
use stratann_params::search::{BatchSettings, SearchSettings};
use stratann_params::serve::{CapSettings, NodeSettings, PeerSettings, ServeSettings};
use stratann_params::{Given, IndexKind, Place, Stage, Value};
use stratann_server::callers::{self, Callers};
use stratann_server::{Front, FrontOptions, Limits, Log, Signal, watch_signals};
use stratann_storage::ledger::Ledger;
use stratann_storage::link::Tls;
use stratann_storage::{Error, ErrorKind, Result, input};

use crate::output::{Output, print, utc};
use crate::parameters::{Parameters, Rows};
use crate::{Verdict, options};

mod caps;
mod collections;
mod config;
mod memory;
mod sources;
mod watch;
use memory::cache_bytes;
use sources::Sources;

/// Answer searches over HTTP
///
/// Serves one index, one server's shard of an index from `stratann cluster partition`, what memory nodes hold, or the
/// collections of a data folder. Runs until SIGTERM or Ctrl-C, then finishes running requests. There is no
/// authentication: everyone who reaches the address can search, and change collections.
#[derive(clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub struct Args {
    /// File of options in TOML; options of the command line take precedence
    #[arg(long, value_name = "FILE", required_unless_present_any = ["index", "memory", "data"])]
    config: Option<PathBuf>,
    #[command(flatten)]
    table: Parameters<ServeRows>,
    /// Stop when standard input ends too, with the program that started the server
    #[arg(long)]
    until_eof: bool,
}

/// The table's options of servers.
struct ServeRows;

impl Rows for ServeRows {
    const STAGES: &'static [Stage] = &[Stage::Serve];
}

const EXAMPLES: &str = "\
Examples:
  stratann serve --index base.idx
  stratann serve --config server-0.toml
  stratann serve --memory 10.0.0.9:8900 --key-file key
  stratann serve --data photos.data                # collections
  curl -s 127.0.0.1:8700/v1/search -H 'Content-Type: application/json' -d '{\"queries\": [[0.1, 0.2, …]], \"k\": 10}'

Keys of the file are names of the reference: those of options with underscores, with a flag as true or false, and

  server, listen, peers, secret_file, tls_certificate, tls_key, tls_authority: the servers of a partition
  store, data, poll_s: fetch the index from a store, and look for new versions; data alone has collections
  etcd, cluster, advertise: find the other servers by etcd
  learning (on, always, frozen or off)
  max_timeout_ms, connections_per_address, header_time_s, idle_time_s: what clients may take

A server of a partitioned index needs server, listen, peers, and secret_file unless all servers are on this machine:

  index = \"spread\"                # paths are relative to the folder of this file
  server = 0
  listen = \"10.0.0.1:8800\"        # for the other servers
  peers = [\"10.0.0.1:8800\", \"10.0.0.2:8800\"]
  http = \"10.0.0.1:8700\"          # for clients
  secret_file = \"secret\"
  ram_budget = \"2GiB\"";

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
    // Held as long as the process lives: it reserves this server's number.
    _claim: Option<Claim>,
}

/// Runs `stratann serve`.
pub(crate) fn run(args: &Args, output: Output) -> Result<Verdict> {
    let log: Log = Arc::new(move |line: &str| output.note(&format!("{} {line}", utc(SystemTime::now()))));
    let (given, folder) = config::given(args.config.as_deref(), &args.table)?;
    if collections::are_asked(&given) {
        return collections::run(args, &given, log, output);
    }
    let setup = setup(args, (given, folder), Arc::clone(&log), output)?;
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

/// The folder of the index; empty where a store or memory nodes have it.
fn index_folder(settings: &ServeSettings, has_memory: bool) -> Result<PathBuf> {
    match (&settings.index, &settings.store) {
        (Some(_), Some(_)) => Err(Error::bad_input("both index and store are set; remove one of them")),
        (Some(index), None) => Ok(index.clone()),
        (None, Some(_)) => Ok(PathBuf::new()),
        (None, None) if has_memory => Ok(PathBuf::new()),
        (None, None) => Err(Error::bad_input(
            "the file has no index; add index = \"FOLDER\", store and data, or data alone",
        )),
    }
}

/// Kind and place of what is served; `None` where they cannot be read, which opening the index reports.
fn served(engine: &ServeOptions) -> Option<(IndexKind, Place)> {
    if engine.memory.is_some() {
        return Some((IN_MEMORY_NODES, Place::MemoryNodes));
    }
    if scatter::is_apart(&engine.index) {
        return Some((IndexKind::DiskGraph, Place::Part));
    }
    let manifest = Manifest::read(&engine.index).ok()?.1;
    let place = if manifest.spread.is_some() { Place::Part } else { Place::Folder };
    Some((manifest.kind()?, place))
}

/// The address for other servers, and the secret that they share.
fn address_of_servers(peers: &PeerSettings, output: Output) -> Result<(Option<SocketAddr>, Option<Vec<u8>>)> {
    let listen = peers.listen.as_deref().map(|l| socket_address("listen", l)).transpose()?;
    let secret = peers.secret_file.as_ref().map(|f| read_secret(f, output)).transpose()?;
    check_exposure(listen, secret.is_some())?;
    Ok((listen, secret))
}

/// Merges the file and the command line.
fn setup(args: &Args, (given, folder): (Given, PathBuf), log: Log, output: Output) -> Result<Setup> {
    given.check_values(&args.table.scope([], Place::Folder))?;
    let check = |kind, place| Ok::<_, Error>(given.check(&args.table.scope([kind], place))?);
    if given.has("memory") {
        check(IN_MEMORY_NODES, Place::MemoryNodes)?;
    }
    let (settings, peers, caps): (ServeSettings, PeerSettings, CapSettings) =
        (given.read(), given.read(), given.read());
    let nodes: NodeSettings = given.read();
    let index = index_folder(&settings, !nodes.memory.is_empty())?;
    let sources = Sources::from(&settings);
    let etcd = sources.etcd(&log)?;
    let (http, callers) = http_of(&settings, output)?;
    let (listen, secret) = address_of_servers(&peers, output)?;
    let ram_budget = given.read::<OpenSettings>().ram_budget;
    let threads = given.read::<SearchSettings>().threads.unwrap_or_else(options::all_cores);
    let limits = caps::limits(&caps, ram_budget)?;
    let (ledger, http_threads) = (Ledger::new(ram_budget), threads.div_ceil(SEARCH_THREADS_PER_HTTP));
    let mut engine = ServeOptions {
        index,
        memory: memory::nodes(&nodes, output)?,
        server: peers.server,
        listen,
        tls: read_tls(&peers)?,
        secret: secret.unwrap_or_default(),
        threads,
        ram_budget: ram_budget.map(|b| b.saturating_sub(limits.bytes(http_threads))),
        caps: caps::of_query(&caps),
        ledger: Some(Arc::clone(&ledger)),
        may_change: sources.store.is_some(),
        queue: settings.queue,
        carry: peers.carry.map(options::carry),
        results: options::results(peers.results),
        remote: options::remote(peers.remote),
        peers: peers.peers,
        log,
        ..of_searches(&given)?
    };
    let (claim, version) = sources.complete(&mut engine, etcd.as_ref(), &folder)?;
    if let Some((kind, place)) = served(&engine) {
        check(kind, place)?;
    }
    let cache = settings.cache_budget.map_or(usual_cache(&engine), CacheBudget::from);
    engine.cache_budget = cache_bytes(cache, &engine);
    Ok(Setup {
        http,
        engine,
        limits,
        callers,
        http_threads,
        ledger,
        sources,
        folder,
        version,
        etcd,
        _claim: claim,
    })
}

/// Options of a server that searches in one process have, too.
fn of_searches(given: &Given) -> Result<ServeOptions> {
    let search: SearchSettings = given.read();
    Ok(ServeOptions {
        batch_options: given.read::<BatchSettings>().into(),
        in_flight: search.in_flight,
        io: search.io.into(),
        merge: search.merge,
        learning: given.read::<LearnSettings>().into(),
        scorer: ScorerOptions::read(&given.read())?,
        ..ServeOptions::default()
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

/// The address for clients, and whose requests are answered. The host of the address is a name, too.
fn http_of(settings: &ServeSettings, output: Output) -> Result<(SocketAddr, Callers)> {
    let checked = |key: &str, texts: &[String], check: fn(&str) -> std::result::Result<String, String>| {
        let check =
            |text: &String| check(text).map_err(|why| Error::bad_input(format!("{key} is {text:?}; {why}")));
        texts.iter().map(check).collect::<Result<Vec<String>>>()
    };
    let names = checked("host_name", &settings.host_name, callers::host_name)?;
    let own = settings.http.rsplit_once(':').and_then(|(host, _)| callers::host_name(host).ok());
    let origins = checked("allow_origin", &settings.allow_origin, callers::origin)?;
    let callers = Callers { host_names: names.into_iter().chain(own).collect(), origins };
    Ok((http_address(&settings.http, output)?, callers))
}

/// The address for clients. Warns when others than this machine can reach it.
fn http_address(text: &str, output: Output) -> Result<SocketAddr> {
    let http = socket_address("http", text)?;
    if !http.ip().is_loopback() {
        output.note(
            "note: everyone who reaches the HTTP address can search, and change collections; there is no \
             authentication",
        );
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
fn read_tls(peers: &PeerSettings) -> Result<Option<Tls>> {
    match (&peers.tls_certificate, &peers.tls_key, &peers.tls_authority) {
        (None, None, None) => Ok(None),
        (Some(certificate), Some(key), Some(authority)) => Tls::read(certificate, key, authority).map(Some),
        _ => Err(Error::bad_input(
            "tls_certificate, tls_key and tls_authority go together; give all of them, or none",
        )),
    }
}

/// Writes a file of options for `stratann serve`.
pub(crate) fn config_text(
    index: &Path,
    http: &str,
    given: &Given,
    cluster: Option<&ClusterPlace<'_>>,
) -> Result<String> {
    let quoted = |path: &Path| match path.to_str() {
        // A JSON string is a valid TOML string.
        Some(text) => Ok(serde_json::Value::from(text).to_string()),
        None => Err(Error::bad_input(format!("{} is not UTF-8; rename it", path.display()))),
    };
    let mut text = format!("index = {}\nhttp = \"{http}\"\n", quoted(index)?);
    for (name, value) in given.values_by_name() {
        let value = match value {
            Value::Text(text) => serde_json::Value::from(text.as_str()).to_string(),
            Value::Path(path) => quoted(path)?,
            value => value.to_string(),
        };
        text += &format!("{name} = {value}\n");
    }
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
    fn a_written_config_is_read_back() {
        let peers = ["127.0.0.1:1".to_string(), "127.0.0.1:2".to_string()];
        let place = ClusterPlace { server: 1, peers: &peers, secret_file: Path::new("/tmp/secret") };
        let mut more = Given::default();
        more.push("merge", Value::Flag(false), "--no-merge".into());
        more.push("learning", Value::Text("frozen".into()), "--frozen".into());
        let text = config_text(Path::new("/a \"b\"\\c"), "127.0.0.1:0", &more, Some(&place)).unwrap();
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        let (given, _) = config::given(Some(file.path()), &Parameters::of(Given::default())).unwrap();
        let (settings, own): (ServeSettings, PeerSettings) = (given.read(), given.read());
        assert_eq!(settings.index.as_deref(), Some(Path::new("/a \"b\"\\c")));
        assert_eq!((own.server, own.listen.as_deref()), (Some(1), Some("127.0.0.1:2")));
        assert_eq!(own.peers, peers);
        assert_eq!(given.read::<LearnSettings>().learning, stratann_params::choices::Learn::Frozen);
        assert!(!given.read::<SearchSettings>().merge);
    }

    /// Every key that a file could have before the table had them.
    const OLDER: &str = r#"
        index = "spread"
        server = 1
        listen = "10.0.0.2:8800"
        peers = ["10.0.0.1:8800", "10.0.0.2:8800"]
        http = "10.0.0.2:8700"
        host_name = ["search.example"]
        allow_origin = ["https://search.example"]
        secret_file = "secret"
        threads = 4
        in_flight = 16
        io = "pread"
        ram_budget = "2GiB"
        cache_budget = "auto"
        queue = 900
        max_k = 100
        max_list = 200
        max_nprobe = 300
        max_batch = 400
        max_timeout_ms = 500
        http_memory = 1048576
        connections_per_address = 6
        header_time_s = 7
        idle_time_s = 8
        carry = "distances"
        results = "origin"
        remote = "hand-over"
        scorer = "cuda"
        device = 0
        gpu_budget = "8GiB"
        spill = true
        learning = "frozen"
        epoch_queries = 77
        tls_certificate = "certificate.pem"
        tls_key = "key.pem"
        tls_authority = "authority.pem"
        store = "s3://bucket/prefix"
        data = "data"
        poll_s = 0
        etcd = ["http://127.0.0.1:2379"]
        cluster = "products"
        advertise = "10.0.0.2:8801"
        memory = ["10.0.0.9:8900"]
        key_file = "key"
        memory_certificate = "certificate.pem"
        memory_certificate_key = "key.pem"
        memory_authority = "authority.pem"
        batch = 100
        doorbell = 9
    "#;

    #[test]
    fn a_file_of_an_older_version_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("server.toml");
        std::fs::write(&path, OLDER).unwrap();
        let (given, beside) = config::given(Some(&path), &Parameters::of(Given::default())).unwrap();
        let keys = OLDER.lines().filter_map(|line| line.split_once('=')).map(|(key, _)| key.trim());
        assert!(keys.clone().count() == 48 && keys.clone().all(|key| given.has(key)), "{given:?}");
        let (settings, peers): (ServeSettings, PeerSettings) = (given.read(), given.read());
        assert_eq!(
            settings.index,
            Some(beside.join("spread")),
            "paths are relative to the folder of the file"
        );
        assert_eq!((settings.queue, settings.poll_s, peers.server), (900, 0, Some(1)));
        assert_eq!(peers.peers, ["10.0.0.1:8800", "10.0.0.2:8800"]);
        assert_eq!(given.read::<OpenSettings>().ram_budget, Some(2 << 30));
        let caps: CapSettings = given.read();
        assert_eq!((caps.max_k, caps.http_memory, caps.idle_time_s), (100, Some(1 << 20), Some(8)));
        assert!(given.read::<stratann_params::open::ScorerSettings>().spill);
        let batches: BatchSettings = given.read();
        assert_eq!((batches.batch, batches.doorbell), (Some(100), Some(9)));
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
