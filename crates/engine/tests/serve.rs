//! Running servers, alone and together, over real sockets on loopback: equal answers, failing servers, overload,
//! deadlines, cancellation. Servers are dropped here; the tests of the program kill processes.

mod common;
mod filtered;
mod stopping;

use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::{Duration, Instant};
use stratann_params::choices::CodePlace;

use common::{Built, Set, clustered, graph_options, graph_set, queries, quick};
use stratann_core::query::Mode;
use stratann_core::query::wire::{Carry, Results};
use stratann_engine::build::IndexKind;
use stratann_engine::deletes::delete;
use stratann_engine::exec::Width;
use stratann_engine::index::{Index, OpenOptions};
use stratann_engine::search::{Answers, Effort, SearchOptions};
use stratann_engine::serve::{Answer, Caps, Question, ServeOptions, Server, Unanswered, WaitsByClass};
use stratann_engine::spread::{PartitionOptions, partition};
use stratann_engine::verify::verify;
use stratann_engine::{DType, Metric};
use stratann_storage::tier::IoChoice;
use stratann_storage::{ErrorKind, Quiet};
use stratann_testing::way::Way;
use tempfile::TempDir;

const DIM: usize = 24;
const PATIENCE: Duration = Duration::from_secs(30);

fn source() -> &'static Built {
    static BUILT: OnceLock<Built> = OnceLock::new();
    BUILT.get_or_init(|| {
        let set = Set::new(DType::F32, DIM, &clustered(6000, DIM, 40, 1));
        let quick = quick(IndexKind::DiskGraph, Metric::L2);
        let options = graph_options(quick, |own| own.nodes_per_block = Some(6));
        Built::new(set, &options)
    })
}

fn one_at_a_time() -> SearchOptions {
    SearchOptions {
        effort: Effort::SearchList(40, None),
        width: Width::Fixed(1),
        mode: Mode::Barrier,
        ..Default::default()
    }
}

fn expected(asked: &Set) -> Answers {
    source().index.search(&asked.bytes, &one_at_a_time(), &Quiet).unwrap()
}

type Said = Arc<Mutex<Vec<String>>>;

/// A test that fails must not keep the servers that it drops from logging: they would end the program.
fn lock(said: &Said) -> MutexGuard<'_, Vec<String>> {
    said.lock().unwrap_or_else(|e| e.into_inner())
}

fn options(folder: &Path, said: &Said) -> ServeOptions {
    let said = said.clone();
    let log = Arc::new(move |line: &str| lock(&said).push(line.to_string()));
    ServeOptions { index: folder.into(), threads: 1, in_flight: Some(8), log, ..ServeOptions::default() }
}

/// Servers of one spread index; any may be missing.
struct Cluster {
    dir: TempDir,
    addresses: Vec<SocketAddr>,
    servers: Vec<Option<Server>>,
    said: Said,
    like: Like,
}

/// Changes the options of the servers of a cluster.
type Like = Box<dyn Fn(&mut ServeOptions)>;

impl Cluster {
    fn start(count: usize, replicas: usize) -> Cluster {
        Cluster::start_with(count, replicas, |_| {})
    }

    /// `change` changes the folder before the servers open it.
    fn start_with(count: usize, replicas: usize, change: impl Fn(&Path)) -> Cluster {
        Cluster::start_of(source(), count, replicas, change)
    }

    fn start_of(source: &Built, count: usize, replicas: usize, change: impl Fn(&Path)) -> Cluster {
        Cluster::start_like(Box::new(|_| {}), source, count, replicas, change)
    }

    fn start_like(
        like: Like,
        source: &Built,
        count: usize,
        replicas: usize,
        change: impl Fn(&Path),
    ) -> Cluster {
        let spread = PartitionOptions { replicas, threads: 2, ..PartitionOptions::new(count) };
        Cluster::start_divided(like, source, &spread, change)
    }

    fn start_divided(
        like: Like,
        source: &Built,
        spread: &PartitionOptions,
        change: impl Fn(&Path),
    ) -> Cluster {
        let (dir, count) = (tempfile::tempdir().unwrap(), spread.servers);
        partition(source.dir.path(), dir.path(), spread, &Quiet).unwrap();
        change(dir.path());
        Cluster::start_in(dir, count, like)
    }

    /// Starts so many servers of what is in a folder.
    fn start_in(dir: TempDir, count: usize, like: Like) -> Cluster {
        let addresses = stratann_testing::addresses(count);
        let mut cluster = Cluster { dir, addresses, servers: Vec::new(), said: Said::default(), like };
        cluster.servers = (0..count).map(|s| Some(cluster.open(s))).collect();
        cluster.settle();
        cluster
    }

    fn open(&self, server: usize) -> Server {
        let peers = self.addresses.iter().map(SocketAddr::to_string).collect();
        let mut options = ServeOptions {
            server: Some(server as u8),
            listen: Some(self.addresses[server]),
            peers,
            secret: b"of these tests".to_vec(),
            ..options(self.dir.path(), &self.said)
        };
        (self.like)(&mut options);
        Server::start(options).unwrap()
    }

    fn up(&self) -> impl Iterator<Item = &Server> {
        self.servers.iter().flatten()
    }

    /// Waits until all running servers know of each other, and of no others.
    fn settle(&self) {
        let alive: Vec<bool> = self.servers.iter().map(Option::is_some).collect();
        let start = Instant::now();
        while self.up().any(|s| s.status().live != alive) {
            assert!(start.elapsed() < PATIENCE, "{:?}", lock(&self.said));
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn ask(&self, server: usize, vector: &[u8], partial: bool) -> Answering {
        ask(self.servers[server].as_ref().unwrap(), vector, partial, PATIENCE)
    }
}

type Answering = Receiver<Result<Answer, Unanswered>>;

fn ask(server: &Server, vector: &[u8], partial: bool, timeout: Duration) -> Answering {
    ask_with(server, &one_at_a_time(), vector, partial, timeout).1
}

/// Asks a query. Returns its number for cancellation, too.
fn ask_with(
    server: &Server,
    options: &SearchOptions,
    vector: &[u8],
    partial: bool,
    timeout: Duration,
) -> (u64, Answering) {
    let (sender, answer) = channel();
    let params = server.params(options).unwrap();
    let question =
        Question { vector, params, filter: None, timeout, partial, client: 0, request: 0, is_batch: false };
    (server.ask(question, Box::new(move |got| drop(sender.send(got)))), answer)
}

/// A search that reads nearly all blocks, one after the other: hundreds of steps.
fn long_search() -> SearchOptions {
    SearchOptions { effort: Effort::SearchList(4000, None), ..one_at_a_time() }
}

fn waits_until(what: &str, is_so: impl Fn() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < PATIENCE, "{what}: it never happens");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn check(asked: &Set, expected: &Answers, i: usize, got: &Answer) {
    let (row, k) = (i % asked.len(), expected.k);
    assert_eq!(got.ids, expected.ids[row * k..(row + 1) * k], "query {i}");
    assert_eq!(got.distances, expected.distances[row * k..(row + 1) * k], "query {i}");
}

#[test]
fn one_server_answers_as_a_search_does_and_counts_the_same() {
    let (asked, said) = (queries(50, DIM), Said::default());
    let expected = expected(&asked);
    for io in [IoChoice::Auto, IoChoice::Pread] {
        let server =
            Server::start(ServeOptions { threads: 2, io, ..options(source().dir.path(), &said) }).unwrap();
        let answers: Vec<_> = (0..200).map(|i| ask(&server, asked.row(i % 50), false, PATIENCE)).collect();
        let (mut reads, mut compared) = (0, 0);
        for (i, answer) in answers.iter().enumerate() {
            let got = answer.recv_timeout(PATIENCE).unwrap().unwrap();
            check(&asked, &expected, i, &got);
            reads += got.stats.reads;
            compared += got.stats.code_comparisons;
        }
        assert_eq!((reads, compared), (4 * expected.stats.reads, 4 * expected.stats.code_comparisons));
        let status = server.status();
        assert_eq!((status.queries, status.answered, status.refused, status.in_flight), (200, 200, 0, 0));
        assert!(status.is_complete && status.servers == 1 && status.waiting == 0, "{status:?}");
        let WaitsByClass { usual, heavy } = status.waits;
        assert_eq!((usual.begun, usual.ended, heavy.begun, heavy.ended), (200, 200, 0, 0));
        assert!(usual.queued_us >= usual.longest_queued_us && usual.longest_queued_us > 0, "{usual:?}");
        assert!(usual.computing_us + usual.ready_us <= usual.in_slot_us, "{usual:?}");
    }
}

#[test]
fn a_cluster_answers_as_one_server_does_and_does_the_same_work() {
    let asked = queries(50, DIM);
    let expected = expected(&asked);
    let ways = [
        (1, Results::Along, IoChoice::Auto, 1),
        (2, Results::Along, IoChoice::Pread, 1),
        (2, Results::Along, IoChoice::Auto, 4),
        (2, Results::Origin, IoChoice::Auto, 1),
    ];
    for (replicas, results, io, threads) in ways {
        // No attempt is given up, however slow the machine: a second one would hand over, too.
        let like = move |options: &mut ServeOptions| {
            (options.results, options.patience) = (results, PATIENCE);
            (options.io, options.threads) = (io, threads);
        };
        let cluster = Cluster::start_like(Box::new(like), source(), 4, replicas, |_| {});
        let answers: Vec<_> = (0..200).map(|i| cluster.ask(i % 4, asked.row(i % 50), false)).collect();
        let (mut reads, mut met, mut handed) = (0, 0, 0);
        for (i, answer) in answers.iter().enumerate() {
            let got = answer.recv_timeout(PATIENCE).unwrap().unwrap();
            check(&asked, &expected, i, &got);
            reads += got.stats.reads;
            met += got.stats.met();
            handed += got.stats.hand_overs;
        }
        assert_eq!((reads, met), (4 * expected.stats.reads, 4 * expected.stats.met()));
        let sum = |of: fn(&stratann_engine::serve::Status) -> u64| {
            cluster.up().map(|s| of(&s.status())).sum::<u64>()
        };
        assert_eq!((sum(|s| s.hand_overs_out), sum(|s| s.hand_overs_in)), (handed, handed));
        assert!(handed > 100 && sum(|s| s.dropped_frames) == 0, "{handed} hand-overs");
        assert!(sum(|s| s.frames_sent) > handed && sum(|s| s.bytes_sent) > 100 * handed);
        // After the last release no server holds anything.
        let start = Instant::now();
        while cluster.up().any(|s| s.held() != (0, 0)) {
            assert!(start.elapsed() < PATIENCE, "something is never freed");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

#[test]
fn with_two_replicas_a_server_fails_and_returns_and_no_answer_is_lost_or_wrong() {
    let asked = queries(50, DIM);
    let expected = expected(&asked);
    let mut cluster = Cluster::start(4, 2);
    let origins = [0, 1, 3];
    for round in 0..3 {
        let mut answers = Vec::new();
        for i in 0..600 {
            answers.push(cluster.ask(origins[i % 3], asked.row(i % 50), false));
            match i {
                200 => drop(cluster.servers[2].take()),
                400 => cluster.servers[2] = Some(cluster.open(2)),
                _ => {}
            }
        }
        for (i, answer) in answers.iter().enumerate() {
            let got = answer.recv_timeout(PATIENCE).expect("every query is answered");
            check(&asked, &expected, i, &got.unwrap_or_else(|e| panic!("round {round}, query {i}: {e}")));
            assert!(answer.recv().is_err(), "one answer each");
        }
        cluster.settle();
    }
    let again = cluster.ask(2, asked.row(0), false).recv_timeout(PATIENCE).unwrap().unwrap();
    check(&asked, &expected, 0, &again);
}

/// Servers of the previous version and of this one in one cluster, upgraded one after the other under load.
#[test]
fn servers_are_upgraded_one_by_one_and_no_answer_is_lost_or_wrong() {
    let asked = queries(50, DIM);
    let expected = expected(&asked);
    let upgraded = Arc::new(AtomicUsize::new(0));
    let known = Arc::clone(&upgraded);
    let like = move |options: &mut ServeOptions| {
        if options.server.is_none_or(|server| usize::from(server) >= known.load(Ordering::SeqCst)) {
            options.versions.states.1 = options.versions.states.0;
        }
    };
    let mut cluster = Cluster::start_like(Box::new(like), source(), 3, 2, |_| {});
    for next in 0..=3 {
        let mut answers = Vec::new();
        for i in 0..300 {
            let origin = (0..3).filter(|&s| s != next).nth(i % 2).unwrap();
            answers.push(cluster.ask(origin, asked.row(i % 50), false));
            match i {
                100 if next < 3 => drop(cluster.servers[next].take()),
                200 if next < 3 => {
                    upgraded.store(next + 1, Ordering::SeqCst);
                    cluster.servers[next] = Some(cluster.open(next));
                }
                _ => {}
            }
        }
        for (i, answer) in answers.iter().enumerate() {
            let got = answer.recv_timeout(PATIENCE).expect("every query is answered");
            check(&asked, &expected, i, &got.unwrap_or_else(|e| panic!("server {next}, query {i}: {e}")));
        }
        cluster.settle();
        let count = |of: fn(&stratann_engine::serve::Status) -> u64| {
            cluster.up().map(|server| of(&server.status())).sum::<u64>()
        };
        assert_eq!(count(|status| status.refused_frames), 0, "all read what the others write");
        assert!(count(|status| status.hand_overs_in) > 0);
    }
}

/// Links that become ten times as slow while queries are under way, and fast again.
#[test]
fn links_that_get_slow_cost_no_answer_and_are_measured() {
    let asked = queries(50, DIM);
    let expected = expected(&asked);
    let ways = Arc::new(Mutex::new(Vec::<Way>::new()));
    let all = ways.clone();
    let like = move |options: &mut ServeOptions| {
        (options.patience, options.measured_every) = (PATIENCE, Duration::from_millis(50));
        for peer in &mut options.peers {
            let way = Way::to(peer.parse().unwrap()).unwrap();
            way.limit(400_000);
            *peer = way.address().to_string();
            all.lock().unwrap().push(way);
        }
    };
    let cluster = Cluster::start_like(Box::new(like), source(), 3, 1, |_| {});
    for bytes_per_ms in [400_000, 40_000, 400_000] {
        let gbps = bytes_per_ms as f64 * 8e-6;
        let answers: Vec<_> = (0..200).map(|i| cluster.ask(i % 3, asked.row(i % 50), false)).collect();
        ways.lock().unwrap().iter().for_each(|way| way.limit(bytes_per_ms));
        for (i, answer) in answers.iter().enumerate() {
            check(&asked, &expected, i, &answer.recv_timeout(PATIENCE).unwrap().unwrap());
        }
        waits_until("the links are measured", || {
            cluster.up().all(|server| {
                let links = server.status().links;
                links.len() == 2 && links.iter().all(|link| (gbps / 9.0..=gbps).contains(&link.costs.gbps))
            })
        });
    }
    let said = lock(&cluster.said);
    assert!(!said.iter().any(|line| line.contains("no longer")), "a slow server is not dead: {said:?}");
    let sum =
        |of: fn(&stratann_engine::serve::Status) -> u64| cluster.up().map(|s| of(&s.status())).sum::<u64>();
    assert_eq!((sum(|s| s.dropped_frames), sum(|s| s.refused)), (0, 0));
}

#[test]
fn without_a_live_replica_the_answer_is_partial_or_refused_as_asked() {
    let asked = queries(50, DIM);
    let mut cluster = Cluster::start(3, 1);
    cluster.servers[1] = None;
    cluster.settle();
    assert!(cluster.up().all(|s| !s.status().is_complete));
    let (mut partial, mut whole, mut refused) = (0, 0, 0);
    for i in 0..50 {
        let got = cluster.ask(0, asked.row(i), true).recv_timeout(PATIENCE).unwrap().unwrap();
        assert_eq!(got.is_partial, got.stats.unreachable > 0);
        partial += usize::from(got.is_partial);
        match cluster.ask(2, asked.row(i), false).recv_timeout(PATIENCE).unwrap() {
            Ok(got) => whole += usize::from(!got.is_partial),
            Err(Unanswered::Unreachable(_)) => refused += 1,
            Err(other) => panic!("{other}"),
        }
    }
    assert!(partial > 10 && refused == partial && whole == 50 - refused, "{partial} {whole} {refused}");
}

/// Damages every third block in a server's file.
fn damage(folder: &Path, server: usize) {
    let path = folder.join(format!("v1-blocks-{server:02}.bin"));
    let mut bytes = std::fs::read(&path).unwrap();
    let block = source().index.block_bytes();
    bytes.chunks_exact_mut(3 * block).for_each(|three| three[100..200].fill(0xA5));
    std::fs::write(&path, bytes).unwrap();
}

#[test]
fn a_bad_disk_costs_no_answer_while_another_replica_can_read() {
    let asked = queries(50, DIM);
    let expected = expected(&asked);
    let cluster = Cluster::start_with(4, 2, |folder| damage(folder, 1));
    let answers: Vec<_> = (0..200).map(|i| cluster.ask(i % 4, asked.row(i % 50), false)).collect();
    let mut reads = 0;
    for (i, answer) in answers.iter().enumerate() {
        let got = answer.recv_timeout(PATIENCE).unwrap().unwrap_or_else(|e| panic!("query {i}: {e}"));
        check(&asked, &expected, i, &got);
        assert!(!got.is_partial && got.stats.unreachable == 0);
        reads += got.stats.reads;
    }
    let bad = cluster.servers[1].as_ref().unwrap().status();
    assert!(bad.lost_reads > 0 && bad.unreadable_ranges > 0, "{bad:?}");
    // Failed reads are repeated on another server; attempts that were given up are in no answer.
    let again = reads - 4 * expected.stats.reads;
    assert!(again > 0 && again <= bad.lost_reads, "{again} reads more, {} lost", bad.lost_reads);
    let said = lock(&cluster.said);
    let lines = said.iter().filter(|line| line.contains("cannot be read")).count();
    assert_eq!(lines, bad.unreadable_ranges, "{said:?}");
    assert!(bad.lost_reads > lines as u64);
}

#[test]
fn without_another_replica_a_bad_block_is_named_or_left_out_as_asked() {
    let asked = queries(50, DIM);
    let cluster = Cluster::start_with(3, 1, |folder| damage(folder, 2));
    let (mut named, mut partial) = (0, 0);
    for i in 0..50 {
        partial += usize::from(
            cluster.ask(0, asked.row(i), true).recv_timeout(PATIENCE).unwrap().unwrap().is_partial,
        );
        match cluster.ask(1, asked.row(i), false).recv_timeout(PATIENCE).unwrap() {
            Ok(got) => assert!(!got.is_partial),
            Err(Unanswered::Failed(why)) => {
                assert!(why.contains("could not be read") && why.contains("damaged"), "{why}");
                named += 1;
            }
            Err(other) => panic!("{other}"),
        }
    }
    assert!(named > 0 && named == partial, "{named} named, {partial} partial");
}

#[test]
fn too_many_queries_are_refused_at_once() {
    let (asked, said) = (queries(50, DIM), Said::default());
    let narrow = ServeOptions { queue: 20, in_flight: Some(1), ..options(source().dir.path(), &said) };
    let server = Server::start(narrow).unwrap();
    let answers: Vec<_> = (0..500).map(|i| ask(&server, asked.row(i % 50), false, PATIENCE)).collect();
    let got: Vec<_> = answers.iter().map(|a| a.recv_timeout(PATIENCE).unwrap()).collect();
    let overloaded = got.iter().filter(|g| matches!(g, Err(Unanswered::Overloaded))).count();
    assert!(overloaded > 0 && got.iter().filter(|g| g.is_ok()).count() == 500 - overloaded);
    let wrong = ask(&server, &asked.bytes[..7], false, PATIENCE).recv_timeout(PATIENCE).unwrap();
    assert!(matches!(&wrong, Err(Unanswered::Failed(why)) if why.contains("bytes")), "{wrong:?}");
    let waiting: Vec<_> = (0..20).map(|i| ask(&server, asked.row(i), false, PATIENCE)).collect();
    drop(server);
    for answer in waiting {
        answer.recv_timeout(PATIENCE).expect("every client that waits gets a reply").ok();
    }
}

#[test]
fn a_query_without_time_expires_and_never_runs() {
    let (asked, said) = (queries(50, DIM), Said::default());
    let server = Server::start(options(source().dir.path(), &said)).unwrap();
    let late: Vec<_> = (0..50).map(|i| ask(&server, asked.row(i), false, Duration::ZERO)).collect();
    for answer in late {
        assert_eq!(answer.recv_timeout(PATIENCE).unwrap().unwrap_err(), Unanswered::Expired);
    }
    waits_until("all runs are dropped", || server.status().dropped_runs == 50);
    let status = server.status();
    assert_eq!((status.answered, status.refused, status.in_flight, status.waiting), (0, 50, 0, 0));
    assert_eq!(server.held(), (0, 0));
}

/// One slot, and many queries with more steps than they have time for: those that wait are dropped where they wait, the
/// one that runs at its next step.
#[test]
fn queries_past_their_deadline_are_dropped_wherever_they_are() {
    let (asked, said) = (queries(50, DIM), Said::default());
    let narrow = ServeOptions { in_flight: Some(1), ..options(source().dir.path(), &said) };
    let server = Server::start(narrow).unwrap();
    let search = long_search();
    let alone = ask_with(&server, &search, asked.row(0), false, PATIENCE).1.recv_timeout(PATIENCE).unwrap();
    let alone = alone.unwrap();
    assert!(alone.stats.reads > 300, "{:?}", alone.stats);
    // Time for a few of 200.
    let timeout = Duration::from_micros(alone.latency_us * 4 + 1000);
    let answers: Vec<_> =
        (0..200).map(|i| ask_with(&server, &search, asked.row(i % 50), false, timeout).1).collect();
    let (mut answered, mut expired) = (0, 0);
    for answer in answers {
        match answer.recv_timeout(PATIENCE).expect("every query gets a reply") {
            Ok(_) => answered += 1,
            Err(why) => {
                assert_eq!(why, Unanswered::Expired);
                expired += 1;
            }
        }
    }
    assert!(expired > 100, "{expired} expired, {answered} answered");
    waits_until("all runs are dropped", || server.status().dropped_runs == expired);
    waits_until("the slot is free", || server.status().in_flight == 0);
    let status = server.status();
    assert_eq!((status.answered, status.refused, status.waiting), (answered + 1, expired, 0));
    assert_eq!(server.held(), (0, 0));
    // The slot is free for the next query.
    let next = ask_with(&server, &search, asked.row(0), false, PATIENCE).1.recv_timeout(PATIENCE).unwrap();
    assert_eq!(next.unwrap().ids, alone.ids);
}

#[test]
fn cancelled_queries_free_their_slots_and_get_no_reply() {
    let (asked, said) = (queries(50, DIM), Said::default());
    let narrow = ServeOptions { in_flight: Some(2), ..options(source().dir.path(), &said) };
    let server = Server::start(narrow).unwrap();
    let search = long_search();
    let pending: Vec<_> =
        (0..300).map(|i| ask_with(&server, &search, asked.row(i % 50), false, PATIENCE)).collect();
    pending.iter().for_each(|(number, _)| server.cancel(*number));
    let answered = pending.iter().filter(|(_, answer)| answer.recv().is_ok()).count() as u64;
    let cancelled = server.status().cancelled;
    assert!(cancelled == 300 - answered && cancelled > 100, "{cancelled} cancelled, {answered} answered");
    waits_until("all runs are dropped", || server.status().dropped_runs == cancelled);
    waits_until("the slots are free", || server.status().in_flight == 0);
    let status = server.status();
    assert_eq!((status.answered, status.refused, status.waiting), (answered, 0, 0));
    assert_eq!(server.held(), (0, 0));
    server.cancel(pending[0].0);
    assert_eq!(server.status().cancelled, cancelled, "a query is cancelled once");
}

#[test]
fn a_cluster_drops_expired_and_cancelled_queries_on_all_servers() {
    let asked = queries(50, DIM);
    let like = |options: &mut ServeOptions| (options.in_flight, options.patience) = (Some(2), PATIENCE);
    let cluster = Cluster::start_like(Box::new(like), source(), 3, 1, |_| {});
    let server = |i: usize| cluster.servers[i % 3].as_ref().unwrap();
    let search = long_search();
    // Hundreds of reads, one after the other, on servers with two slots: nearly none ends in time.
    let late: Vec<_> = (0..150)
        .map(|i| ask_with(server(i), &search, asked.row(i % 50), false, Duration::from_millis(1)).1)
        .collect();
    // A release may overtake a baton between two other servers: that run ends at its deadline.
    let limit = Duration::from_secs(10);
    let cancelled: Vec<_> =
        (0..150).map(|i| ask_with(server(i), &search, asked.row(i % 50), false, limit)).collect();
    for (i, (number, _)) in cancelled.iter().enumerate() {
        server(i).cancel(*number);
    }
    let mut expired = 0;
    for answer in late {
        match answer.recv_timeout(PATIENCE).expect("every query gets a reply") {
            Ok(_) => {}
            Err(why) => {
                assert_eq!(why, Unanswered::Expired);
                expired += 1;
            }
        }
    }
    assert!(expired > 100, "{expired} of 150 expired");
    waits_until("all servers are idle", || {
        cluster.up().all(|s| (s.held(), s.status().in_flight, s.status().waiting) == ((0, 0), 0, 0))
    });
    let sum =
        |of: fn(&stratann_engine::serve::Status) -> u64| cluster.up().map(|s| of(&s.status())).sum::<u64>();
    assert_eq!(sum(|s| s.answered + s.refused + s.cancelled), 300);
    assert!(sum(|s| s.dropped_runs) > 100 && sum(|s| s.refused_frames) == 0);
    let expected = expected(&asked);
    let again = cluster.ask(0, asked.row(0), false).recv_timeout(PATIENCE).unwrap().unwrap();
    check(&asked, &expected, 0, &again);
}

/// Bytes of a part of the ledger: guaranteed, used, and the most that was used.
fn part(server: &Server, name: &str) -> (u64, u64, u64) {
    let ledger = server.status().ledger;
    let part = ledger.parts.iter().find(|p| p.part == name).unwrap();
    (part.guaranteed_bytes, part.used_bytes, part.most_bytes)
}

/// The memory of a large query is reserved before it runs: others wait for it, and usual queries do not wait.
#[test]
fn large_queries_take_turns_for_the_memory_that_the_budget_leaves() {
    let (asked, said) = (queries(50, DIM), Said::default());
    let folder = source().dir.path();
    let free = Server::start(ServeOptions { ram_budget: Some(1 << 30), ..options(folder, &said) }).unwrap();
    let needed = free.status().ledger.committed_bytes;
    drop(free);
    let tight = ServeOptions { ram_budget: Some(needed), ..options(folder, &said) };
    let server = Server::start(tight).unwrap();
    let (guaranteed, ..) = part(&server, "large_queries");
    let search = long_search();
    let large: Vec<_> =
        (0..100).map(|i| ask_with(&server, &search, asked.row(i % 50), false, PATIENCE).1).collect();
    let usual: Vec<_> = (0..100).map(|i| ask(&server, asked.row(i % 50), false, PATIENCE)).collect();
    let expected = expected(&asked);
    for (i, answer) in usual.iter().enumerate() {
        check(&asked, &expected, i, &answer.recv_timeout(PATIENCE).unwrap().unwrap());
    }
    assert!(large.iter().all(|answer| answer.recv_timeout(PATIENCE).unwrap().is_ok()));
    waits_until("all memory is released", || {
        ["large_queries", "waiting_queries"].iter().all(|name| part(&server, name).1 == 0)
    });
    let (_, _, most) = part(&server, "large_queries");
    assert!(most > 0 && most <= guaranteed, "{most} at most, {guaranteed} set aside");
    let status = server.status().ledger;
    assert!(status.committed_bytes <= needed, "{status:?}");
}

#[test]
fn a_query_above_a_cap_is_refused_and_the_operator_can_raise_it() {
    let said = Said::default();
    let folder = source().dir.path();
    let server = Server::start(options(folder, &said)).unwrap();
    let wide = |k, list| SearchOptions { k, effort: Effort::SearchList(list, None), ..one_at_a_time() };
    for (options, words) in
        [(wide(3000, 3000), ["k is 3000", "2048 (max_k)"]), (wide(10, 9000), ["is 9000", "8192 (max_list)"])]
    {
        let error = server.params(&options).unwrap_err();
        assert!(words.iter().all(|word| error.message.contains(word)), "{error}");
    }
    let caps = Caps { max_k: 16_384, max_list: 65_536, max_nprobe: 65_536 };
    let roomy = Server::start(ServeOptions { caps, ..options(folder, &said) }).unwrap();
    let params = roomy.params(&wide(3000, 65_536)).unwrap();
    assert_eq!((params.k, params.kind.disk_graph().unwrap().search_list), (3000, 65_536));
    assert!(part(&roomy, "large_queries").0 > part(&server, "large_queries").0);
    // What a budget could never hold is refused at once, not queued for ever.
    let needed = server.status().ledger.committed_bytes;
    let tight = Server::start(ServeOptions { ram_budget: Some(needed), ..options(folder, &said) }).unwrap();
    let wide = SearchOptions { width: Width::Fixed(64), ..wide(2048, 8192) };
    let error = tight.params(&wide).unwrap_err();
    assert!(error.message.contains("larger --ram-budget"), "{error}");
}

#[test]
fn invalid_options_are_refused() {
    let said = Said::default();
    let dir = tempfile::tempdir().unwrap();
    partition(source().dir.path(), dir.path(), &PartitionOptions::new(3), &Quiet).unwrap();
    let listen = Some("127.0.0.1:0".parse().unwrap());
    let peers = |n: usize| vec!["127.0.0.1:9".to_string(); n];
    let plain = || options(source().dir.path(), &said);
    let spread = || options(dir.path(), &said);
    let cases = [
        (ServeOptions { server: Some(3), ..spread() }, "servers 0 to 2"),
        (spread(), "partitioned over 3 servers"),
        (ServeOptions { server: Some(0), ..plain() }, "not partitioned"),
        (ServeOptions { server: Some(0), listen, peers: peers(2), ..spread() }, "the list of peers has 2"),
        (ServeOptions { server: Some(0), peers: peers(3), ..spread() }, "set listen"),
        (ServeOptions { listen, ..plain() }, "set server"),
        (ServeOptions { threads: 0, ..plain() }, "threads"),
        (ServeOptions { index: "no such folder".into(), ..plain() }, "no such folder"),
    ];
    for (options, word) in cases {
        let error = Server::start(options).err().unwrap_or_else(|| panic!("not refused: {word}"));
        assert!(error.message.contains(word), "{error}");
    }
    let error = Server::start(ServeOptions { ram_budget: Some(1 << 20), ..plain() }).err().unwrap();
    assert_eq!(error.kind, ErrorKind::Budget);
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let listen = Some(taken.local_addr().unwrap());
    let error =
        Server::start(ServeOptions { server: Some(0), listen, peers: peers(3), ..spread() }).err().unwrap();
    assert!(error.message.contains("another address"), "{error}");
}

#[test]
fn servers_without_codes_in_ram_hand_distances_over() {
    let set = Set::new(DType::F32, DIM, &clustered(4000, DIM, 40, 1));
    let options = graph_options(quick(IndexKind::DiskGraph, Metric::L2), |own| own.codes = CodePlace::Disk);
    let built = Built::new(set, &options);
    let asked = queries(30, DIM);
    let expected = built.index.search(&asked.bytes, &one_at_a_time(), &Quiet).unwrap();
    let cluster = Cluster::start_of(&built, 3, 1, |_| {});
    let answers: Vec<_> = (0..asked.len()).map(|i| cluster.ask(i % 3, asked.row(i), false)).collect();
    let mut hand_overs = 0;
    for (i, answer) in answers.into_iter().enumerate() {
        let got = answer.recv_timeout(PATIENCE).unwrap().unwrap();
        check(&asked, &expected, i, &got);
        assert_eq!(got.stats.rescored, 0);
        hand_overs += got.stats.hand_overs;
    }
    assert!(hand_overs > 0);
    let said = Said::default();
    let wrong =
        ServeOptions { server: Some(0), carry: Some(Carry::Ids), ..self::options(cluster.dir.path(), &said) };
    let error = Server::start(wrong).map(drop).unwrap_err();
    assert!(error.kind == ErrorKind::BadInput && error.message.contains("--carry distances"), "{error}");
}

#[test]
fn servers_of_a_partition_find_no_deleted_row_and_answer_as_one_process_does() {
    let kinds = [
        (IndexKind::DiskGraph, Effort::SearchList(60, None)),
        (IndexKind::HybridIvf, Effort::Nprobe(6, None, None)),
        (IndexKind::GridIvf, Effort::Nprobe(4, None, None)),
    ];
    for (kind, effort) in kinds {
        let built = Built::new(graph_set(), &quick(kind, Metric::L2));
        let deleted: Vec<u64> = (0..built.set.len() as u64).filter(|id| id % 5 == 2).collect();
        delete(built.dir.path(), &deleted, None, &Quiet).unwrap();
        let asked = queries(30, built.set.shape.dim);
        let options = SearchOptions { effort, ..one_at_a_time() };
        let whole = Index::open(built.dir.path(), OpenOptions::default()).unwrap();
        let expected = whole.search(&asked.bytes, &options, &Quiet).unwrap();
        assert!(expected.ids.iter().all(|id| id % 5 != 2));
        let cluster = Cluster::start_of(&built, 3, 1, |_| {});
        let server = cluster.servers[1].as_ref().unwrap();
        for (row, expected) in expected.ids.chunks(expected.k).enumerate() {
            let (_, answer) = ask_with(server, &options, asked.row(row), false, PATIENCE);
            let got = answer.recv_timeout(PATIENCE).unwrap().unwrap();
            assert_eq!(got.ids, expected, "{kind:?}, query {row}");
        }
        let report = verify(cluster.dir.path(), &Quiet).unwrap();
        assert_eq!(report.violations_found, 0, "{kind:?}: {:?}", report.violations);
    }
}

#[test]
fn a_server_without_the_bits_of_deleted_rows_does_not_start() {
    let built = Built::new(graph_set(), &quick(IndexKind::DiskGraph, Metric::L2));
    delete(built.dir.path(), &[3], None, &Quiet).unwrap();
    let mut cluster = Cluster::start_of(&built, 2, 1, |_| {});
    cluster.servers[1] = None;
    let path = cluster.dir.path().join("v1-deleted.bin");
    let sound = std::fs::read(&path).unwrap();
    let mut damaged = sound.clone();
    damaged[16] ^= 1;
    // Replaced, not written to: it is a link to that of the source.
    for content in [None, Some(&damaged), Some(&sound)] {
        std::fs::remove_file(&path).ok();
        content.iter().for_each(|bytes| std::fs::write(&path, bytes).unwrap());
        let options = ServeOptions {
            server: Some(1),
            listen: Some(cluster.addresses[1]),
            peers: cluster.addresses.iter().map(SocketAddr::to_string).collect(),
            secret: b"of these tests".to_vec(),
            ..options(cluster.dir.path(), &cluster.said)
        };
        match Server::start(options) {
            Ok(server) => {
                assert_eq!(content, Some(&sound));
                cluster.servers[1] = Some(server);
            }
            Err(refused) => {
                assert!(content != Some(&sound) && refused.message.contains("deleted.bin"), "{refused}");
            }
        }
    }
    cluster.settle();
    let asked = queries(3, built.set.shape.dim);
    let got = cluster.ask(1, asked.row(0), false).recv_timeout(PATIENCE).unwrap().unwrap();
    assert!(!got.ids.contains(&3) && got.ids.len() == 10);
}
