//! Four compute nodes insert into, delete from and search one `remote-hnsw`: `make storm-remote`.
//!
//! STRATANN_STORM_SECONDS is how long, 300 by default.
#![allow(clippy::print_stdout, reason = "figures are what the storm is for")]

mod common;

use std::collections::{BTreeSet, HashMap};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use stratann_params::build::RemoteOptions;
use stratann_params::search::RemoteSwitches;

use common::{Set, clustered, hits, nearest, quick};
use stratann_core::build::hash;
use stratann_engine::build::{BuildOptions, IndexKind, KindOptions, build};
use stratann_engine::index::{Index, OpenOptions, UpdateOptions};
use stratann_engine::memory_nodes::load;
use stratann_engine::search::{Effort, SearchOptions};
use stratann_engine::{DType, Metric};
use stratann_storage::Quiet;
use stratann_storage::remote_memory::{Credentials, Node, NodeId, NodeOptions};

const SECRET: &[u8] = b"a key of memory nodes, 32 bytes!";
const NODES: usize = 4;
const ROWS: usize = 20_000;
const DIM: usize = 32;
const PARTITIONS: usize = 40;
/// Rows that vectors are inserted of.
const POOL: usize = 200_000;
/// More ids than have the same vector.
const EQUALS: usize = 100;
/// Changes of one call, and vectors that are searched after it.
const CHANGES: usize = 8;
const CHECKED: usize = 24;

/// Content under an id.
#[derive(Clone, Copy, PartialEq)]
struct Held {
    /// Grows when a change begins, and when it is acknowledged.
    turn: u64,
    is_busy: bool,
    /// A row of the pool, or none.
    row: Option<usize>,
}

/// Work and observations of all compute nodes.
#[derive(Default)]
struct Board {
    held: HashMap<u64, Held>,
    /// Ids whose last change was acknowledged, the latest last.
    recent: Vec<u64>,
    inserted: u64,
    deleted: u64,
    checked: u64,
    /// Found by an exact search alone.
    missed_by_graphs: u64,
}

struct Storm {
    indexes: Vec<Index>,
    pool: Set,
    board: Mutex<Board>,
    /// Milliseconds of single queries while no group was built, and while one was.
    latency_ms: Mutex<[Vec<f64>; 2]>,
    rounds: AtomicU64,
}

fn options(k: usize, effort: Effort, ef: u32) -> SearchOptions {
    let switches = RemoteSwitches { ef: Some(ef), ..RemoteSwitches::default() }.into();
    SearchOptions { k, effort, switches, threads: 1, ..SearchOptions::default() }
}

fn usual(k: usize) -> SearchOptions {
    options(k, Effort::Nprobe(10, None, None), 80)
}

fn built(set: &Set, ids: Option<&Path>, folder: &Path) {
    let own = RemoteOptions {
        partitions: Some(PARTITIONS),
        m: 16,
        ef_construction: 100,
        overflow: Some(120 * (32 + 4 * DIM as u64)),
        ..RemoteOptions::default()
    };
    let (kind, ids) = (KindOptions::RemoteHnsw(own), ids.map(Path::to_path_buf));
    let options = BuildOptions { kind, ids, ..quick(IndexKind::RemoteHnsw, Metric::L2) };
    build(&set.reader(), folder, &options, &Quiet).unwrap();
}

fn p99(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times.get(times.len() * 99 / 100).copied().unwrap_or(0.0)
}

impl Storm {
    fn board(&self) -> std::sync::MutexGuard<'_, Board> {
        self.board.lock().unwrap()
    }

    /// One compute node until the end: changes, a batch that checks what all have acknowledged, and single queries.
    fn run(&self, node: usize, until: Instant) {
        while Instant::now() < until {
            let round = self.rounds.fetch_add(1, Ordering::Relaxed);
            self.change(node, round);
            self.check(node, round);
            (0..4).for_each(|at| self.measure(node, 4 * round + at));
        }
    }

    /// Changes some of its own ids: half of them are new, a quarter moves, a quarter is deleted.
    fn change(&self, node: usize, round: u64) {
        let draw = |at: usize, most: u64| hash(round, at as u64, node as u64) % most;
        let (mut ids, mut rows) = (BTreeSet::new(), Vec::new());
        let is_new = round % 4 < 2;
        let deletes = round % 4 == 3;
        let mut board = self.board();
        for at in 0..CHANGES {
            if is_new {
                ids.insert((ROWS as u64 + round * CHANGES as u64 + at as u64) * NODES as u64 + node as u64);
                continue;
            }
            // Of its own ids one that is there, or was.
            let most = board.recent.len().max(1) as u64;
            let drawn = (0..16).filter_map(|again| board.recent.get(draw(16 * at + again, most) as usize));
            ids.extend(drawn.copied().find(|id| id % NODES as u64 == node as u64));
        }
        for (at, &id) in ids.iter().enumerate() {
            rows.push((!deletes).then(|| draw(100 + at, POOL as u64) as usize));
            let held = board.held.entry(id).or_insert(Held { turn: 0, is_busy: true, row: None });
            (held.turn, held.is_busy) = (held.turn + 1, true);
        }
        drop(board);
        let ids: Vec<u64> = ids.into_iter().collect();
        let index = &self.indexes[node];
        if deletes {
            index.delete(&ids, &UpdateOptions { threads: 1, ..UpdateOptions::default() }, &Quiet).unwrap();
        } else {
            let vectors = rows.iter().flatten().flat_map(|&row| self.pool.row(row).to_vec());
            let options = UpdateOptions { new_ids: is_new, threads: 1, ..UpdateOptions::default() };
            index.upsert(&ids, &vectors.collect::<Vec<u8>>(), &options, &Quiet).unwrap();
        }
        let mut board = self.board();
        for (&id, &row) in ids.iter().zip(&rows) {
            let turn = board.held[&id].turn + 1;
            board.held.insert(id, Held { turn, is_busy: false, row });
            board.recent.push(id);
            let count = if deletes { &mut board.deleted } else { &mut board.inserted };
            *count += 1;
        }
    }

    /// Gives vectors of the index other components, so that its size stays as it is.
    fn replace(&self, node: usize, round: u64) {
        let drawn = (0..CHANGES as u64).map(|at| hash(round, at, 11) % ROWS as u64);
        let ids: Vec<u64> = drawn.collect::<BTreeSet<u64>>().into_iter().collect();
        let rows = ids.iter().map(|id| (hash(round, *id, 12) % POOL as u64) as usize);
        let vectors: Vec<u8> = rows.flat_map(|row| self.pool.row(row).to_vec()).collect();
        let options = UpdateOptions { threads: 1, ..UpdateOptions::default() };
        self.indexes[node].upsert(&ids, &vectors, &options, &Quiet).unwrap();
    }

    /// Searches vectors that were acknowledged before, the latest and some others.
    fn check(&self, node: usize, round: u64) {
        let before: Vec<(u64, Held)> = {
            let board = self.board();
            let last = board.recent.iter().rev().take(CHECKED / 2).copied();
            let some = (0..CHECKED as u64 / 2).filter_map(|at| {
                let most = board.recent.len() as u64;
                (most > 0).then(|| board.recent[(hash(round, 7, at) % most) as usize])
            });
            let ids: BTreeSet<u64> = last.chain(some).collect();
            let held = ids.into_iter().map(|id| (id, board.held[&id]));
            held.filter(|(_, held)| !held.is_busy).collect()
        };
        for (id, held) in before {
            let row = held.row;
            let asked = self.pool.row(row.unwrap_or((id % POOL as u64) as usize));
            let mut is_right = self.sees(node, asked, id, &usual(10)) == row.is_some();
            if !is_right && self.board().held[&id] == held {
                // A graph may miss a vector that is there, and ids with the same vector may come before it.
                let exact = options(EQUALS, Effort::Recall(1.0), 80);
                is_right = self.sees(node, asked, id, &exact) == row.is_some();
                self.board().missed_by_graphs += 1;
            }
            let mut board = self.board();
            board.checked += 1;
            // Who changes the id meanwhile may be seen or not.
            let is_same = board.held[&id] == held;
            drop(board);
            assert!(
                is_right || !is_same,
                "node {node}: id {id}, row {row:?}, round {round}: not as acknowledged"
            );
        }
    }

    /// Whether a search of a vector finds it under its id. No id may be found twice.
    fn sees(&self, node: usize, asked: &[u8], id: u64, options: &SearchOptions) -> bool {
        let answers = self.indexes[node].search(asked, options, &Quiet).unwrap();
        assert!(answers.failed.is_empty(), "{:?}", answers.failed);
        let ids: Vec<&u64> = answers.ids.iter().filter(|&&id| id != u64::MAX).collect();
        assert_eq!(ids.iter().collect::<BTreeSet<_>>().len(), ids.len(), "no id twice: {ids:?}");
        answers.ids.iter().zip(&answers.distances).any(|(&found, &distance)| found == id && distance <= 1e-3)
    }

    fn measure(&self, node: usize, number: u64) {
        let asked = self.pool.row((hash(9, 9, number) % POOL as u64) as usize);
        let is_building = || self.indexes.iter().any(|index| index.rebuilds_under_way() > 0);
        let (before, started) = (is_building(), Instant::now());
        let answers = self.indexes[node].search(asked, &usual(10), &Quiet).unwrap();
        assert!(answers.failed.is_empty(), "{:?}", answers.failed);
        let ms = started.elapsed().as_secs_f64() * 1e3;
        let is_during = before || is_building();
        self.latency_ms.lock().unwrap()[usize::from(is_during)].push(ms);
    }

    /// Of an insert, a node that has all else in its cache reads no more than the used part of overflows, and 64 bytes of
    /// headers a group. Returns false where a group was rebuilt meanwhile.
    fn reads_used_bytes_alone(&self, reader: &Index, turn: u64) -> bool {
        let asked = Set::new(DType::F32, DIM, &clustered(50, DIM, 30, 6));
        let all = options(10, Effort::Nprobe(PARTITIONS as u32, None, None), 80);
        reader.search(&asked.bytes, &all, &Quiet).unwrap();
        let rebuilds = self.indexes[0].rebuilds();
        let ids: Vec<u64> = (0..CHANGES as u64).map(|at| (1 << 40) + turn * CHANGES as u64 + at).collect();
        let rows: Vec<u8> = (0..CHANGES).flat_map(|row| self.pool.row(row).to_vec()).collect();
        let new = UpdateOptions { new_ids: true, threads: 1, ..UpdateOptions::default() };
        self.indexes[0].upsert(&ids, &rows, &new, &Quiet).unwrap();
        if self.indexes[0].rebuilds() > rebuilds {
            return false;
        }
        let stats = reader.search(&asked.bytes, &all, &Quiet).unwrap().stats;
        let record_bytes = 32 + 4 * DIM as u64;
        let used = reader.live_facts().unwrap().fresh_reserved * record_bytes;
        let most = used + 64 * (PARTITIONS.div_ceil(2) as u64 + 1);
        let least = CHANGES as u64 * record_bytes;
        assert!((least..=most).contains(&stats.bytes_read), "{} bytes of {used} used", stats.bytes_read);
        self.indexes[0].delete(&ids, &UpdateOptions::default(), &Quiet).unwrap();
        true
    }

    /// Recall of what is held now, after all changes, and in a fresh build of it.
    fn recall(&self, set: &Set) -> [f64; 2] {
        let board = self.board();
        let mut all = set.clone();
        let mut ids: Vec<u64> = (0..ROWS as u64).collect();
        for (&id, held) in &board.held {
            if let Some(row) = held.row {
                ids.push(id);
                all.bytes.extend_from_slice(self.pool.row(row));
            }
        }
        all.shape.rows = ids.len() as u64;
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("ids.u64bin");
        let words: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
        let head = [(ids.len() as u32).to_le_bytes(), 1u32.to_le_bytes()].concat();
        std::fs::write(&file, [head, words].concat()).unwrap();
        built(&all, Some(&file), &folder.path().join("index"));
        let fresh = Index::open(&folder.path().join("index"), OpenOptions::default()).unwrap();
        let asked = Set::new(DType::F32, DIM, &clustered(300, DIM, 30, 5));
        let truth: Vec<Vec<u64>> = (0..300)
            .map(|q| nearest(&all, Metric::L2, asked.row(q), 10, |_| false))
            .map(|rows| rows.into_iter().map(|row| ids[row as usize]).collect())
            .collect();
        [&self.indexes[0], &fresh].map(|index| {
            let answers = index.search(&asked.bytes, &usual(10), &Quiet).unwrap();
            let hit: usize = (0..300).map(|q| hits(&answers.ids[10 * q..10 * q + 10], &truth[q])).sum();
            hit as f64 / 3000.0
        })
    }
}

/// An index in a memory node, and compute nodes that search it.
struct Place {
    _folder: tempfile::TempDir,
    _memory: Node,
    addresses: [String; 1],
    credentials: Credentials,
    set: Set,
    storm: Storm,
}

impl Place {
    fn new(nodes: usize) -> Place {
        let folder = tempfile::tempdir().unwrap();
        let set = Set::new(DType::F32, DIM, &clustered(ROWS, DIM, 30, 1));
        let index = folder.path().join("index");
        built(&set, None, &index);
        let credentials = Credentials::new(SECRET.to_vec(), None);
        let memory = Node::start(NodeOptions {
            node: NodeId(0),
            region_bytes: 2 << 30,
            listen: "127.0.0.1:0".parse().unwrap(),
            secret: SECRET.to_vec(),
            tls: None,
            place: stratann_storage::remote_memory::Place::Memory,
            connections_max: 64,
            log: Arc::new(|_| {}),
        })
        .unwrap();
        let addresses = [memory.address().to_string()];
        load(&index, &addresses, &credentials, &Quiet).unwrap();
        let open = |_| {
            let options = OpenOptions { cache_budget: 2 << 20, ..OpenOptions::default() };
            Index::open_memory(&addresses, &credentials, options).unwrap()
        };
        let storm = Storm {
            indexes: (0..nodes).map(open).collect(),
            pool: Set::new(DType::F32, DIM, &clustered(POOL, DIM, 30, 2)),
            board: Mutex::default(),
            latency_ms: Mutex::default(),
            rounds: AtomicU64::new(0),
        };
        Place { _folder: folder, _memory: memory, addresses, credentials, set, storm }
    }

    /// Runs each node on a thread of its own.
    fn each(&self, what: impl Fn(usize) + Sync) {
        let what = &what;
        let nodes = 0..self.storm.indexes.len();
        std::thread::scope(|scope| nodes.for_each(|node| drop(scope.spawn(move || what(node)))));
    }
}

fn seconds() -> u64 {
    std::env::var("STRATANN_STORM_SECONDS").ok().map_or(300, |own| own.parse().expect("seconds"))
}

#[test]
#[ignore = "takes minutes: make storm-remote"]
fn four_compute_nodes_insert_delete_and_search() {
    let (seconds, place) = (seconds(), Place::new(NODES));
    let storm = &place.storm;
    // First all nodes search alone.
    let started = Instant::now();
    let (alone, end) =
        (started + Duration::from_secs(seconds / 6 + 1), started + Duration::from_secs(seconds));
    place.each(|node| {
        for number in (node as u64..).step_by(NODES).take_while(|_| Instant::now() < alone) {
            storm.measure(node, number);
        }
    });
    let before = std::mem::take(&mut *storm.latency_ms.lock().unwrap());
    place.each(|node| storm.run(node, end));
    print_latencies(before, std::mem::take(&mut *storm.latency_ms.lock().unwrap()));
    let rebuilds: u64 = storm.indexes.iter().map(Index::rebuilds).sum();
    let options = OpenOptions { cache_budget: 64 << 20, ..OpenOptions::default() };
    let reader = Index::open_memory(&place.addresses, &place.credentials, options).unwrap();
    assert!((0..8).any(|turn| storm.reads_used_bytes_alone(&reader, turn)), "a rebuild in every turn");
    let [changed, fresh] = storm.recall(&place.set);
    let board = storm.board();
    println!(
        "{} inserts, {} deletes, {rebuilds} rebuilds in {seconds} s; {} checks, all seen ({} not by graphs)",
        board.inserted, board.deleted, board.checked, board.missed_by_graphs
    );
    println!("recall@10: {changed:.4} after the changes, {fresh:.4} of a fresh build");
    assert!(board.inserted > 100 && board.deleted > 20 && board.checked > 100 && rebuilds > 0);
    assert!(changed >= fresh - 0.01, "{changed} after the changes, {fresh} of a fresh build");
}

/// Compute nodes are machines of their own: here one searches on a processor that others leave to it.
#[test]
#[ignore = "takes minutes: make storm-remote"]
fn a_node_searches_while_another_one_rebuilds_groups() {
    let (seconds, place) = (seconds() / 3, Place::new(2));
    let storm = &place.storm;
    let started = Instant::now();
    let (alone, end) = (started + Duration::from_secs(seconds / 2), started + Duration::from_secs(seconds));
    let search = |until: Instant, first: u64| {
        (first..).take_while(|_| Instant::now() < until).for_each(|number| storm.measure(0, number));
    };
    search(alone, 0);
    let before = std::mem::take(&mut *storm.latency_ms.lock().unwrap());
    place.each(|node| match node {
        0 => search(end, 1 << 32),
        _ => (0..).take_while(|_| Instant::now() < end).for_each(|round| storm.replace(node, round)),
    });
    assert!(storm.indexes[1].rebuilds() > 0);
    print_latencies(before, std::mem::take(&mut *storm.latency_ms.lock().unwrap()));
}

/// Latencies of single queries: before all changes, and then between and during rebuilds.
fn print_latencies([mut before, _]: [Vec<f64>; 2], [mut between, mut during]: [Vec<f64>; 2]) {
    let counts = [before.len(), between.len(), during.len()];
    let [before, between, during] = [p99(&mut before), p99(&mut between), p99(&mut during)];
    println!(
        "p99 of a query: {before:.2} ms before, {between:.2} ms between rebuilds, {during:.2} ms during rebuilds: \
         {:.2} of before, {:.2} of between ({counts:?} queries)",
        during / before,
        during / between
    );
}
