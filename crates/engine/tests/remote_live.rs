//! A `remote-hnsw` in memory nodes: what is loaded is what is searched, on one node or several, and lost nodes are named.

mod common;

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use stratann_params::build::RemoteOptions;

use common::{Set, clustered, quick};
use serde_json::Value;
use stratann_core::format::region::{READER_BYTES, READERS_MAX, SUPERBLOCK_BYTES, Superblock};
use stratann_core::hash::checksum;
use stratann_engine::build::{BuildOptions, IndexKind, KindOptions, build};
use stratann_engine::dataset::{Reader, Shape};
use stratann_engine::exec::BatchOptions;
use stratann_engine::index::{Index, OpenOptions, UpdateOptions};
use stratann_engine::manifest::Manifest;
use stratann_engine::memory_nodes::{Loaded, load};
use stratann_engine::search::{Answers, DOORBELLS, Effort, SearchOptions};
use stratann_engine::serve::{MemoryNodes, ServeOptions, Server};
use stratann_engine::{DType, Metric};
use stratann_storage::durable::hex;
use stratann_storage::remote_memory::{Credentials, Node, NodeId, NodeOptions, Nodes, Place, Range};
use stratann_storage::{ErrorKind, Progress, Quiet};
use stratann_testing::way::Way;
use tempfile::TempDir;

const ASKED: usize = 50;
const CLUSTERS: usize = 24;

fn built(metric: Metric) -> (TempDir, Index, Set) {
    let set = Set::new(DType::F32, 16, &clustered(2000, 16, 12, 1));
    let own =
        RemoteOptions { partitions: Some(CLUSTERS), m: 8, ef_construction: 60, ..RemoteOptions::default() };
    let options = BuildOptions { kind: KindOptions::RemoteHnsw(own), ..quick(IndexKind::RemoteHnsw, metric) };
    let dir = tempfile::tempdir().unwrap();
    build(&set.reader(), dir.path(), &options, &Quiet).unwrap();
    let index = Index::open(dir.path(), OpenOptions::default()).unwrap();
    (dir, index, Set::new(DType::F32, 16, &clustered(ASKED, 16, 12, 2)))
}

fn node(number: u8, region_bytes: u64, place: Place) -> Node {
    node_at("127.0.0.1:0".parse().unwrap(), number, region_bytes, place)
}

fn node_at(listen: SocketAddr, number: u8, region_bytes: u64, place: Place) -> Node {
    Node::start(NodeOptions {
        node: NodeId(number),
        region_bytes,
        listen,
        secret: vec![7; 32],
        tls: None,
        place,
        connections_max: 64,
        log: Arc::new(|_| {}),
    })
    .unwrap()
}

fn nodes(count: u8) -> Vec<Node> {
    (0..count).map(|number| node(number, 4 << 20, Place::Memory)).collect()
}

fn addresses(nodes: &[Node]) -> Vec<String> {
    nodes.iter().map(|node| node.address().to_string()).collect()
}

fn credentials() -> Credentials {
    Credentials::new(vec![7; 32], None)
}

fn loaded(folder: &Path, nodes: &[Node]) -> Loaded {
    load(folder, &addresses(nodes), &credentials(), &Quiet).unwrap()
}

fn opened(nodes: &[Node]) -> Index {
    Index::open_memory(&addresses(nodes), &credentials(), OpenOptions::default()).unwrap()
}

fn options(threads: usize) -> SearchOptions {
    let batch_options = BatchOptions { doorbell: 4, ..BatchOptions::default() };
    SearchOptions {
        effort: Effort::Nprobe(6, None, None),
        threads,
        batch_options,
        ..SearchOptions::default()
    }
}

fn search(index: &Index, asked: &Set, threads: usize) -> Answers {
    let answers = index.search(&asked.bytes, &options(threads), &Quiet).unwrap();
    assert!(answers.failed.is_empty(), "{:?}", answers.failed);
    answers
}

#[test]
fn memory_nodes_answer_as_the_folder_does() {
    for metric in [Metric::L2, Metric::Ip, Metric::Cosine] {
        let (dir, index, asked) = built(metric);
        let alone = search(&index, &asked, 1);
        for count in [1, 3] {
            let nodes = nodes(count);
            let placed = loaded(dir.path(), &nodes);
            assert_eq!((placed.nodes.len(), placed.groups), (usize::from(count), CLUSTERS as u32 / 2));
            let remote = opened(&nodes);
            for threads in [1, 2] {
                let found = search(&remote, &asked, threads);
                assert_eq!((&found.ids, &found.distances), (&alone.ids, &alone.distances), "{metric:?}");
                // Every cluster once, and the headers.
                let loads = alone.stats.reads;
                assert_eq!(found.stats.reads, loads + 1);
                let doorbells = loads.div_ceil(4);
                let most = doorbells * u64::from(count) + 1;
                assert!((doorbells + 1..=most).contains(&found.stats.round_trips), "{:?}", found.stats);
            }
        }
    }
}

#[test]
fn batches_and_doorbells_change_costs_alone() {
    let (dir, _, asked) = built(Metric::L2);
    let nodes = nodes(1);
    loaded(dir.path(), &nodes);
    let remote = opened(&nodes);
    let usual = search(&remote, &asked, 1);
    for batch_options in [
        BatchOptions { batch: 1, doorbell: 1, overlap: false, ..BatchOptions::default() },
        BatchOptions { batch: 7, doorbell: 3, overlap: true, ..BatchOptions::default() },
        BatchOptions { batch: 2000, doorbell: 1, overlap: false, ..BatchOptions::default() },
    ] {
        let found =
            remote.search(&asked.bytes, &SearchOptions { batch_options, ..options(2) }, &Quiet).unwrap();
        assert_eq!((found.failed.len(), &found.ids, &found.distances), (0, &usual.ids, &usual.distances));
        assert!(found.stats.round_trips > usual.stats.round_trips, "{batch_options:?}");
    }
}

fn opened_within(nodes: &[Node], budget: u64) -> Index {
    let options = OpenOptions { ram_budget: Some(budget), ..OpenOptions::default() };
    Index::open_memory(&addresses(nodes), &credentials(), options).unwrap()
}

#[test]
fn a_budget_shortens_doorbells_whose_length_was_not_chosen() {
    let (dir, _, asked) = built(Metric::L2);
    let nodes = nodes(1);
    loaded(dir.path(), &nodes);
    let with = |batch_options| SearchOptions { batch_options, ..options(1) };
    let (usual, chosen) =
        (BatchOptions::default(), BatchOptions { is_doorbell_chosen: true, ..BatchOptions::default() });
    let remote = opened(&nodes);
    let whole = remote.search(&asked.bytes, &with(usual), &Quiet).unwrap();
    let (total, doorbells) = (whole.account.total(), whole.account.bytes_of(DOORBELLS));
    let short = remote.search_account(&with(BatchOptions { doorbell: 2, ..usual }), ASKED);
    assert!(short.bytes_of(DOORBELLS) < doorbells / 4, "{short:?}");
    let budget = total - doorbells / 2;
    let tight = opened_within(&nodes, budget);
    let found = tight.search(&asked.bytes, &with(usual), &Quiet).unwrap();
    assert_eq!((&found.ids, &found.distances), (&whole.ids, &whole.distances));
    assert!(found.account.total() <= budget && found.account.bytes_of(DOORBELLS) > 0);
    assert!(found.stats.round_trips > whole.stats.round_trips, "{:?}", found.stats);
    assert_eq!(found.stats.reads, whole.stats.reads);
    // A length that was chosen is refused, with a budget that has room for it.
    let refused = tight.search(&asked.bytes, &with(chosen), &Quiet).unwrap_err();
    assert_eq!(refused.kind, ErrorKind::Budget);
    let chosen_few = BatchOptions { doorbell: 2, ..chosen };
    tight.search(&asked.bytes, &with(chosen_few), &Quiet).unwrap();
    opened_within(&nodes, total).search(&asked.bytes, &with(chosen), &Quiet).unwrap();
    // Not even a read at a time has room.
    let refused = opened_within(&nodes, total - doorbells).search(&asked.bytes, &with(usual), &Quiet);
    assert_eq!(refused.unwrap_err().kind, ErrorKind::Budget);
}

#[test]
fn a_server_shortens_doorbells_too() {
    let (dir, ..) = built(Metric::L2);
    let nodes = nodes(1);
    loaded(dir.path(), &nodes);
    let start = |ram_budget, batch_options| {
        let memory = MemoryNodes { addresses: addresses(&nodes), credentials: credentials() };
        let memory = Some(memory);
        Server::start(ServeOptions {
            memory,
            ram_budget,
            batch_options,
            threads: 2,
            ..ServeOptions::default()
        })
    };
    let usual = BatchOptions::default();
    let roomy = start(None, usual).unwrap().status();
    assert_eq!(roomy.doorbell_bytes, None);
    let doorbells = roomy.memory.iter().find(|part| part.0 == DOORBELLS).unwrap().1;
    let budget = roomy.memory.iter().map(|part| part.1).sum::<u64>() - doorbells / 2;
    let tight = start(Some(budget), usual).unwrap().status();
    assert!(tight.doorbell_bytes.is_some_and(|bytes| 4 * bytes <= doorbells / 2), "{tight:?}");
    let refused = start(Some(budget), BatchOptions { is_doorbell_chosen: true, ..usual });
    assert_eq!(refused.err().unwrap().kind, ErrorKind::Budget);
}

#[test]
fn a_cache_saves_exactly_the_loads_of_what_it_holds() {
    let (dir, _, asked) = built(Metric::L2);
    let nodes = nodes(1);
    loaded(dir.path(), &nodes);
    let mut remote = opened(&nodes);
    let first = search(&remote, &asked, 1);
    remote.set_cache_budget(64 << 20);
    assert_eq!(search(&remote, &asked, 2).stats.reads, first.stats.reads);
    let cached = search(&remote, &asked, 2);
    assert_eq!((cached.stats.reads, cached.stats.round_trips), (1, 1), "the headers alone");
    assert_eq!((cached.ids, cached.distances), (first.ids, first.distances));
}

/// Waits until a search gets all answers.
fn search_in_time(index: &Index, asked: &Set) -> Answers {
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        let answers = index.search(&asked.bytes, &options(2), &Quiet);
        if let Some(answers) = answers.ok().filter(|answers| answers.failed.is_empty()) {
            return answers;
        }
        assert!(Instant::now() < until, "no answers");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// A node that was cut off has what it had: an open index goes back to it, and changes go on.
#[test]
fn a_node_that_was_cut_off_is_used_again() {
    let (dir, index, asked) = built(Metric::L2);
    let alone = search(&index, &asked, 1);
    for lost in 0..2 {
        let all = nodes(2);
        let ways: Vec<Way> = all.iter().map(|node| Way::to(node.address()).unwrap()).collect();
        let known: Vec<String> = ways.iter().map(|way| way.address().to_string()).collect();
        load(dir.path(), &known, &credentials(), &Quiet).unwrap();
        let remote = Index::open_memory(&known, &credentials(), OpenOptions::default()).unwrap();
        assert_eq!(search(&remote, &asked, 2).ids, alone.ids);
        ways[lost].cut();
        let failed = remote.search(&asked.bytes, &options(2), &Quiet);
        assert!(failed.is_err() || !failed.unwrap().failed.is_empty(), "without node {lost}");
        let refused = remote.upsert(&[9000], asked.row(0), &UpdateOptions::default(), &Quiet);
        assert!(refused.is_ok() || refused.unwrap_err().error.kind == ErrorKind::Io);
        ways[lost].mend();
        let ids: Vec<u64> = (9000..9000 + ASKED as u64).collect();
        remote.upsert(&ids, &asked.bytes, &UpdateOptions::default(), &Quiet).unwrap();
        let after = search_in_time(&remote, &asked);
        assert_eq!(after.ids.iter().step_by(10).copied().collect::<Vec<_>>(), ids, "back at node {lost}");
        // Requests over connections that have failed meanwhile count too.
        let upsert = || remote.upsert(&[9999], asked.row(0), &UpdateOptions::default(), &Quiet).unwrap();
        let alone = upsert().round_trips;
        ways[lost].cut();
        ways[lost].mend();
        assert!(upsert().round_trips >= alone, "{alone} without a lost connection");
    }
}

#[test]
fn clusters_longer_than_a_read_are_refused() {
    let (rows, dim) = (135_000, 8);
    let bytes: Vec<u8> = (0..rows * dim as u64).map(|i| (i * 37 % 251) as u8).collect();
    let base = Reader::from_memory(Shape { rows, dim, dtype: DType::U8 }, bytes).unwrap();
    let own = RemoteOptions { partitions: Some(1), m: 256, ..RemoteOptions::default() };
    let options =
        BuildOptions { kind: KindOptions::RemoteHnsw(own), ..quick(IndexKind::RemoteHnsw, Metric::L2) };
    let refused = build(&base, tempfile::tempdir().unwrap().path(), &options, &Quiet).unwrap_err();
    assert_eq!(refused.kind, ErrorKind::BadInput);
    assert!(refused.message.contains("build with --partitions 2 or more"), "{}", refused.message);
    // A folder of an earlier version, as far as its manifest says.
    let (dir, ..) = built(Metric::L2);
    let path = dir.path().join("manifest-1.json");
    let mut manifest: Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    manifest["remote"]["cluster_bytes_max"] = (300u64 << 20).into();
    manifest.as_object_mut().unwrap().remove("checksum");
    let changed: Manifest = serde_json::from_value(manifest.clone()).unwrap();
    manifest["build_id"] = changed.content_id().to_string().into();
    manifest["checksum"] = hex(checksum(manifest.to_string().as_bytes())).into();
    std::fs::write(&path, manifest.to_string() + "\n").unwrap();
    let refused = load(dir.path(), &addresses(&nodes(1)), &credentials(), &Quiet).unwrap_err();
    assert!(refused.message.contains("build with --partitions 36 or more"), "{}", refused.message);
}

/// A node that comes back empty is named as empty, to those that have the index open and to those that open it.
#[test]
fn a_node_that_comes_back_empty_is_named() {
    let (dir, index, asked) = built(Metric::L2);
    let alone = search(&index, &asked, 1);
    for lost in 0..2 {
        let mut all = nodes(2);
        loaded(dir.path(), &all);
        let (remote, known, listen) = (opened(&all), addresses(&all), all[lost].address());
        assert_eq!(search(&remote, &asked, 2).ids, alone.ids);
        all.remove(lost).stop().unwrap();
        all.insert(lost, node_at(listen, lost as u8, 4 << 20, Place::Memory));
        let found = remote.search(&asked.bytes, &options(2), &Quiet);
        let why = found.map_or_else(|e| e.message, |found| found.failed[0].1.clone());
        assert!(why.contains("changes are gone") && why.contains("memory-node load"), "{why}");
        // Some of them are for groups of the node.
        let ids: Vec<u64> = (9000..9000 + ASKED as u64).collect();
        let refused = remote.upsert(&ids, &asked.bytes, &UpdateOptions::default(), &Quiet).unwrap_err();
        assert!(refused.to_string().contains("load"), "{refused}");
        let refused = Index::open_memory(&known, &credentials(), OpenOptions::default()).unwrap_err();
        let named = format!("memory node {lost} holds no index");
        assert!(refused.message.contains(&named) && refused.message.contains("load"), "{}", refused.message);
        // Loaded again it answers; what was inserted is gone.
        loaded(dir.path(), &all);
        assert_eq!(search(&opened(&all), &asked, 1).ids, alone.ids);
    }
}

/// Nodes of two loads lack each other's changes. A region that another version has loaded is refused.
#[test]
fn nodes_of_another_load_or_format_are_refused() {
    let (dir, ..) = built(Metric::L2);
    let (mut all, others) = (nodes(2), nodes(2));
    loaded(dir.path(), &all);
    loaded(dir.path(), &others);
    let refused = |known: &[Node]| {
        Index::open_memory(&addresses(known), &credentials(), OpenOptions::default()).unwrap_err().message
    };
    all.truncate(1);
    all.extend(others.into_iter().skip(1));
    assert!(refused(&all).contains("were not loaded together"), "{}", refused(&all));
    let mut memory =
        stratann_storage::remote_memory::connect_one(&addresses(&all)[0], &credentials()).unwrap();
    for copy in [0, SUPERBLOCK_BYTES] {
        memory.write(&[(copy + 8, &1u64.to_le_bytes())]).unwrap();
    }
    assert!(refused(&all).contains("format 1 of regions"), "{}", refused(&all));
    loaded(dir.path(), &all);
    opened(&all);
}

/// The user stops it at once.
struct Interrupted;

impl Progress for Interrupted {
    fn stage(&self, _: &str, _: u64, _: &str) {}

    fn advance(&self, _: u64) {}

    fn note(&self, _: &str) {}

    fn interrupted(&self) -> bool {
        true
    }
}

/// Lines of readers that are taken.
fn lines(nodes: &[Node]) -> usize {
    let mut nodes = Nodes::new(&addresses(nodes), &credentials()).unwrap();
    let own = Superblock::newest(&nodes.read(0, 0, 2 * SUPERBLOCK_BYTES).unwrap()).unwrap();
    let lines = nodes.read(0, own.readers_at, READERS_MAX * READER_BYTES).unwrap();
    lines.chunks_exact(READER_BYTES as usize).filter(|line| line.iter().any(|&byte| byte != 0)).count()
}

/// Space of old groups waits for every line that is taken, so one that nobody uses must not stay.
#[test]
fn a_reader_or_a_writer_that_fails_gives_its_line_back() {
    let (dir, _, asked) = built(Metric::L2);
    let nodes = nodes(1);
    loaded(dir.path(), &nodes);
    let index = opened(&nodes);
    assert_eq!(lines(&nodes), 1, "that of the index");
    let stopped = index.verify_memory(&Interrupted).unwrap_err();
    assert_eq!((stopped.kind, lines(&nodes)), (ErrorKind::Interrupted, 0));
    search(&index, &asked, 1);
    assert_eq!(lines(&nodes), 1);
    // A writer that reads damaged descriptors fails after it has announced itself.
    let mut memory =
        stratann_storage::remote_memory::connect_one(&addresses(&nodes)[0], &credentials()).unwrap();
    let mut bytes = vec![0; 2 * SUPERBLOCK_BYTES as usize];
    memory.read(&[Range { offset: 0, bytes: bytes.len() as u32 }], &mut bytes).unwrap();
    let own = Superblock::newest(&bytes).unwrap();
    memory.write(&[(own.descriptor_at(0, 0), &[0xA5; 64])]).unwrap();
    let refused = index.upsert(&[1], asked.row(0), &UpdateOptions::default(), &Quiet).unwrap_err();
    assert_eq!((refused.error.kind, lines(&nodes)), (ErrorKind::Corrupt, 1), "{refused}");
    drop(index);
    assert_eq!(lines(&nodes), 0);
}

#[test]
fn a_lost_node_is_missed_by_name() {
    let (dir, _, asked) = built(Metric::L2);
    let mut all = nodes(2);
    loaded(dir.path(), &all);
    let (remote, known) = (opened(&all), addresses(&all));
    all.remove(1).stop().unwrap();
    let answers = remote.search(&asked.bytes, &options(2), &Quiet).unwrap();
    let why = &answers.failed[0].1;
    assert!(why.contains("memory node 1") && why.contains("was not read"), "{why}");
    let refused = Index::open_memory(&known, &credentials(), OpenOptions::default()).unwrap_err();
    assert!(refused.message.contains("memory node 1 of 2 does not answer"), "{}", refused.message);
    all.remove(0).stop().unwrap();
    let failed = remote.search(&asked.bytes, &options(1), &Quiet).unwrap_err();
    assert!(failed.message.contains("cannot be reached"), "{}", failed.message);
}

#[test]
fn what_cannot_be_loaded_is_refused() {
    let (dir, ..) = built(Metric::L2);
    let refused = |nodes: &[Node]| {
        let e = load(dir.path(), &addresses(nodes), &credentials(), &Quiet).unwrap_err();
        (e.kind, e.message)
    };
    let (kind, message) = refused(&[node(0, 64 << 10, Place::Memory)]);
    assert!(kind == ErrorKind::Budget && message.contains("--size"), "{message}");
    // The size that it names is enough.
    let size: u64 = message.split("--size ").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap();
    loaded(dir.path(), &[node(0, size, Place::Memory)]);
    assert!(refused(&[node(1, 4 << 20, Place::Memory)]).1.contains("the numbers from 0 on"));
    let own = nodes(1);
    let wrong = Credentials::new(vec![8; 32], None);
    let e = load(dir.path(), &addresses(&own), &wrong, &Quiet).unwrap_err();
    assert!(e.message.contains("another key"), "{}", e.message);
    let e = Index::open_memory(&addresses(&own), &credentials(), OpenOptions::default()).unwrap_err();
    assert!(e.message.contains("holds no index"), "{}", e.message);
    let flat = tempfile::tempdir().unwrap();
    let set = Set::new(DType::F32, 16, &clustered(100, 16, 12, 1));
    build(&set.reader(), flat.path(), &quick(IndexKind::Flat, Metric::L2), &Quiet).unwrap();
    let e = load(flat.path(), &addresses(&own), &credentials(), &Quiet).unwrap_err();
    assert!(e.message.contains("--kind remote-hnsw"), "{}", e.message);
}

/// Damage in a region is named, and is no answer.
#[test]
fn damage_is_named() {
    let (dir, _, asked) = built(Metric::L2);
    let all = nodes(1);
    let placed = loaded(dir.path(), &all);
    let remote = opened(&all);
    let mut memory =
        stratann_storage::remote_memory::connect_one(&addresses(&all)[0], &credentials()).unwrap();
    // In the middle of the groups.
    let at = placed.nodes[0].used_bytes / 8 * 8 - (placed.nodes[0].used_bytes / 4) / 8 * 8;
    memory.write(&[(at, &[0xA5; 64])]).unwrap();
    let found = remote.search(&asked.bytes, &options(1), &Quiet).unwrap();
    let why = &found.failed[0].1;
    assert!(why.contains("memory node 0") && why.contains("damaged"), "{why}");
}
