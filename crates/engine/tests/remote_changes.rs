//! Inserts, deletes and rebuilds of a `remote-hnsw` in memory nodes, by several compute nodes at once.

mod common;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use common::{Set, clustered, quick};
use stratann_engine::build::{BuildOptions, Kind, KindOptions, RemoteOptions, build};
use stratann_engine::index::{ChangeOptions, Durability, Index, OpenOptions, Unfinished};
use stratann_engine::kinds::options::RemoteSwitches;
use stratann_engine::kinds::remote_hnsw::live::load::load;
use stratann_engine::remote_memory::{Credentials, Node, NodeId, NodeOptions, Place};
use stratann_engine::search::{Answers, Effort, SearchOptions};
use stratann_engine::{DType, ErrorKind, Metric, Quiet};
use tempfile::TempDir;

const SECRET: &[u8] = b"a key of memory nodes, 32 bytes!";
const DIM: usize = 16;
const PARTITIONS: usize = 12;

fn credentials() -> Credentials {
    Credentials { secret: SECRET.to_vec(), tls: None }
}

fn start(node: u8, listen: &str, file: Option<PathBuf>, region_bytes: u64) -> Node {
    let options = || NodeOptions {
        node: NodeId(node),
        region_bytes,
        listen: listen.parse().unwrap(),
        secret: SECRET.to_vec(),
        tls: None,
        place: file.clone().map_or(Place::Memory, Place::File),
        connections_max: 64,
        log: Arc::new(|_| {}),
    };
    // The port of a node that has just ended may be taken for a moment.
    for _ in 0..50 {
        match Node::start(options()) {
            Ok(node) => return node,
            Err(_) => std::thread::sleep(std::time::Duration::from_millis(100)),
        }
    }
    Node::start(options()).unwrap()
}

/// Memory nodes with an index.
struct World {
    plan: Plan,
    _dir: TempDir,
    nodes: Vec<Option<Node>>,
    addresses: Vec<String>,
    files: Vec<Option<PathBuf>>,
}

/// What a world has.
struct Plan {
    set: Set,
    metric: Metric,
    nodes: u8,
    mirror: bool,
    files: bool,
    overflow_records: u64,
    region_bytes: u64,
}

impl Plan {
    fn new(rows: usize) -> Plan {
        Plan {
            set: vectors(rows, 1),
            metric: Metric::L2,
            nodes: 1,
            mirror: false,
            files: false,
            overflow_records: 20,
            region_bytes: 24 << 20,
        }
    }

    fn build(&self, set: &Set, ids: Option<&Path>, folder: &Path) {
        let record_bytes = 32 + set.row(0).len() as u64;
        let own = RemoteOptions {
            partitions: Some(PARTITIONS),
            m: 8,
            ef_construction: 60,
            overflow_bytes: Some(self.overflow_records * record_bytes),
            ..RemoteOptions::default()
        };
        let kind = KindOptions::RemoteHnsw(own);
        let ids = ids.map(Path::to_path_buf);
        let options = BuildOptions { kind, ids, ..quick(Kind::RemoteHnsw, self.metric) };
        build(&set.reader(), folder, &options, &Quiet).unwrap();
    }

    fn start(self) -> World {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("index");
        self.build(&self.set, None, &folder);
        let file = |node: u8| self.files.then(|| dir.path().join(format!("region-{node}")));
        let files: Vec<Option<PathBuf>> = (0..self.nodes).map(file).collect();
        let of_file = (0..).zip(&files);
        let nodes: Vec<Node> =
            of_file.map(|(node, file)| start(node, "127.0.0.1:0", file.clone(), self.region_bytes)).collect();
        let addresses: Vec<String> = nodes.iter().map(|node| node.address().to_string()).collect();
        load(&folder, &addresses, &credentials(), self.mirror, &Quiet).unwrap();
        World { plan: self, _dir: dir, nodes: nodes.into_iter().map(Some).collect(), addresses, files }
    }
}

impl World {
    /// A compute node.
    fn open(&self) -> Index {
        let options = OpenOptions { cache_budget: 1 << 20, ..OpenOptions::default() };
        Index::open_memory(&self.addresses, &credentials(), options).unwrap()
    }
}

fn vectors(rows: usize, seed: u64) -> Set {
    Set::new(DType::F32, DIM, &clustered(rows, DIM, 12, seed))
}

fn part(set: &Set, from: usize, rows: usize) -> Set {
    let size = set.shape.row_bytes();
    let mut own = set.clone();
    own.shape.rows = rows as u64;
    own.bytes = set.bytes[from * size..(from + rows) * size].to_vec();
    own
}

fn options(k: usize, nprobe: u32) -> SearchOptions {
    let effort = Effort::Clusters(nprobe, None, None);
    SearchOptions { k, effort, switches: RemoteSwitches { ef: Some(60) }.into(), ..SearchOptions::default() }
}

fn search(index: &Index, asked: &[u8], k: usize) -> Answers {
    let answers = index.search(asked, &options(k, PARTITIONS as u32), &Quiet).unwrap();
    assert!(answers.failed.is_empty(), "{:?}", answers.failed);
    for ids in answers.ids.chunks(k) {
        let ids: Vec<&u64> = ids.iter().filter(|&&id| id != u64::MAX).collect();
        assert_eq!(ids.iter().collect::<BTreeSet<_>>().len(), ids.len(), "no id twice: {ids:?}");
    }
    answers
}

/// How many vectors find themselves under their ids, at no distance.
fn found(index: &Index, set: &Set, ids: &[u64]) -> usize {
    let found = search(index, &set.bytes, 3);
    let is_there = |(row, id): &(usize, &u64)| {
        (0..3).any(|at| found.ids[3 * row + at] == **id && found.distances[3 * row + at] <= 1e-4)
    };
    ids.iter().enumerate().filter(is_there).count()
}

fn upsert(index: &Index, ids: &[u64], vectors: &[u8]) {
    let done = index.upsert(ids, vectors, &ChangeOptions::default(), &Quiet).unwrap();
    assert_eq!(done.count, ids.len() as u64);
}

#[test]
fn every_compute_node_finds_what_one_inserts_and_misses_what_one_deletes() {
    let world = Plan::new(1200).start();
    let nodes = [world.open(), world.open(), world.open()];
    let new = vectors(300, 7);
    for turn in 0..10 {
        let ids: Vec<u64> = (0..30).map(|id| 5000 + 30 * turn as u64 + id).collect();
        let own = part(&new, 30 * turn, 30);
        let threads = 1 + turn % 3;
        let options = ChangeOptions { new_ids: turn % 2 == 0, threads };
        let done = nodes[turn % 3].upsert(&ids, &own.bytes, &options, &Quiet).unwrap();
        assert_eq!((done.count, done.place), (30, Durability::Memory));
        for node in &nodes {
            assert_eq!(found(node, &own, &ids), 30, "turn {turn}");
        }
        let gone = &ids[..5];
        nodes[(turn + 1) % 3].delete(gone, threads, &Quiet).unwrap();
        for node in &nodes {
            let found = search(node, &own.bytes, 10);
            assert!(found.ids.iter().all(|id| !gone.contains(id)), "turn {turn}");
        }
    }
    let rebuilds: u64 = nodes.iter().map(Index::rebuilds).sum();
    assert!(rebuilds > 1, "{rebuilds} groups were rebuilt");
}
