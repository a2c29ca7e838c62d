//! Inserts, deletes and rebuilds of a `remote-hnsw` in memory nodes, by several compute nodes at once.

mod common;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use stratann_params::build::RemoteOptions;
use stratann_params::search::RemoteSwitches;

use common::{Set, clustered, hits, nearest, quick};
use stratann_core::format::region::{
    CONTROL_BYTES, GROUP_WORDS_BYTES, GroupWords, SUPERBLOCK_BYTES, Superblock,
};
use stratann_engine::build::{BuildOptions, IndexKind, KindOptions, build};
use stratann_engine::index::{Index, OpenOptions, Unfinished, UpdateOptions};
use stratann_engine::memory_nodes::load;
use stratann_engine::search::{Answers, Effort, SearchOptions};
use stratann_engine::{DType, Metric};
use stratann_storage::remote_memory::{Credentials, Node, NodeId, NodeOptions, Nodes, Place};
use stratann_storage::{ErrorKind, Quiet};
use tempfile::TempDir;

const SECRET: &[u8] = b"a key of memory nodes, 32 bytes!";
const DIM: usize = 16;
const PARTITIONS: usize = 12;

fn credentials() -> Credentials {
    Credentials::new(SECRET.to_vec(), None)
}

fn start(node: u8, listen: &str, region_bytes: u64) -> Node {
    let options = || NodeOptions {
        node: NodeId(node),
        region_bytes,
        listen: listen.parse().unwrap(),
        secret: SECRET.to_vec(),
        tls: None,
        place: Place::Memory,
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
    dir: TempDir,
    nodes: Vec<Option<Node>>,
    addresses: Vec<String>,
}

/// Parts of a world.
struct Plan {
    set: Set,
    metric: Metric,
    nodes: u8,
    overflow_records: u64,
    region_bytes: u64,
}

impl Plan {
    fn new(rows: usize) -> Plan {
        Plan {
            set: vectors(rows, 1),
            metric: Metric::L2,
            nodes: 1,
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
            overflow: Some(self.overflow_records * record_bytes),
            ..RemoteOptions::default()
        };
        let kind = KindOptions::RemoteHnsw(own);
        let ids = ids.map(Path::to_path_buf);
        let options = BuildOptions { kind, ids, ..quick(IndexKind::RemoteHnsw, self.metric) };
        build(&set.reader(), folder, &options, &Quiet).unwrap();
    }

    fn start(self) -> World {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("index");
        self.build(&self.set, None, &folder);
        let start = |node| start(node, "127.0.0.1:0", self.region_bytes);
        let nodes: Vec<Node> = (0..self.nodes).map(start).collect();
        let addresses: Vec<String> = nodes.iter().map(|node| node.address().to_string()).collect();
        load(&folder, &addresses, &credentials(), &Quiet).unwrap();
        World { plan: self, dir, nodes: nodes.into_iter().map(Some).collect(), addresses }
    }
}

impl World {
    /// A compute node.
    fn open(&self) -> Index {
        let options = OpenOptions { cache_budget: 1 << 20, ..OpenOptions::default() };
        Index::open_memory(&self.addresses, &credentials(), options).unwrap()
    }

    /// The version of each group.
    fn versions(&self) -> Vec<u32> {
        let mut nodes = Nodes::new(&self.addresses, &credentials()).unwrap();
        let own = Superblock::newest(&nodes.read(0, 0, 2 * SUPERBLOCK_BYTES).unwrap()).unwrap();
        let words = nodes.read(0, own.control_at + CONTROL_BYTES, own.groups * GROUP_WORDS_BYTES).unwrap();
        let groups = words.chunks_exact(GROUP_WORDS_BYTES as usize);
        groups.map(|bytes| GroupWords::decode(bytes).unwrap().version.number()).collect()
    }

    fn stop(&mut self, node: usize) {
        self.nodes[node].take().unwrap().stop().unwrap();
    }

    fn start_again(&mut self, node: usize) {
        self.nodes[node] = Some(start(node as u8, &self.addresses[node], self.plan.region_bytes));
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
    let effort = Effort::Nprobe(nprobe, None, None);
    SearchOptions {
        k,
        effort,
        switches: RemoteSwitches { ef: Some(60), ..RemoteSwitches::default() }.into(),
        ..SearchOptions::default()
    }
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

/// Number of vectors that find themselves under their ids, at no distance.
fn found(index: &Index, set: &Set, ids: &[u64]) -> usize {
    let found = search(index, &set.bytes, 3);
    let is_there = |(row, id): &(usize, &u64)| {
        (0..3).any(|at| found.ids[3 * row + at] == **id && found.distances[3 * row + at] <= 1e-4)
    };
    ids.iter().enumerate().filter(is_there).count()
}

fn upsert(index: &Index, ids: &[u64], vectors: &[u8]) {
    let done = index.upsert(ids, vectors, &UpdateOptions::default(), &Quiet).unwrap();
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
        let options = UpdateOptions { new_ids: turn % 2 == 0, threads, ..UpdateOptions::default() };
        let done = nodes[turn % 3].upsert(&ids, &own.bytes, &options, &Quiet).unwrap();
        assert_eq!(done.count, 30);
        for node in &nodes {
            assert_eq!(found(node, &own, &ids), 30, "turn {turn}");
        }
        let gone = &ids[..5];
        nodes[(turn + 1) % 3]
            .delete(gone, &UpdateOptions { threads, ..UpdateOptions::default() }, &Quiet)
            .unwrap();
        for node in &nodes {
            let found = search(node, &own.bytes, 10);
            assert!(found.ids.iter().all(|id| !gone.contains(id)), "turn {turn}");
        }
    }
    let rebuilds: u64 = nodes.iter().map(Index::rebuilds).sum();
    assert!(rebuilds > 1, "{rebuilds} groups were rebuilt");
}

/// Changes side by side share their requests, and end as those that are made one by one.
#[test]
fn changes_side_by_side_share_requests() {
    let new = vectors(48, 7);
    let ids: Vec<u64> = (50_000..50_048).collect();
    let mut asked = Vec::new();
    for batch in [1, 16] {
        let world = Plan { overflow_records: 100, ..Plan::new(300) }.start();
        let index = world.open();
        let options = UpdateOptions { batch, ..UpdateOptions::default() };
        let inserted = index.upsert(&ids, &new.bytes, &options, &Quiet).unwrap();
        let deleted = index.delete(&ids[..16], &options, &Quiet).unwrap();
        assert_eq!((inserted.count, deleted.count), (48, 16));
        assert_eq!(found(&world.open(), &part(&new, 16, 32), &ids[16..]), 32);
        assert_eq!(found(&world.open(), &part(&new, 0, 16), &ids[..16]), 0);
        asked.push((inserted.round_trips, deleted.round_trips));
    }
    let (alone, together) = (asked[0], asked[1]);
    assert!(8 * together.0 < alone.0 && 8 * together.1 < alone.1, "{alone:?} {together:?}");
}

/// Of several changes of one id in a call the last one counts, also where others are made side by side.
#[test]
fn changes_of_one_id_in_a_call_keep_their_order() {
    let world = Plan::new(300).start();
    let index = world.open();
    let new = vectors(30, 8);
    let ids: Vec<u64> = (0..30).map(|row| 60_000 + row % 3).collect();
    upsert(&index, &ids, &new.bytes);
    assert_eq!(found(&index, &part(&new, 27, 3), &ids[27..]), 3);
    assert_eq!(found(&index, &part(&new, 0, 27), &ids[..27]), 0);
}

/// An upsert moves a vector to another cluster: no search finds what was under its id before.
#[test]
fn an_upsert_replaces_what_is_under_its_id() {
    let world = Plan::new(900).start();
    let [writer, other] = [world.open(), world.open()];
    let set = &world.plan.set;
    let ids: Vec<u64> = (0..200).collect();
    let new = vectors(200, 9);
    upsert(&writer, &ids, &new.bytes);
    let old = part(set, 0, 200);
    for node in [&writer, &other] {
        assert_eq!(found(node, &new, &ids), 200);
        let answers = search(node, &old.bytes, 1);
        assert!(
            answers
                .ids
                .iter()
                .zip(&ids)
                .all(|(found, id)| found != id || answers.distances[*id as usize] > 0.0)
        );
    }
    // Back again, the last one of equal ids counts.
    let both = [&new.bytes[..], &old.bytes[..]].concat();
    let twice: Vec<u64> = ids.iter().chain(&ids).copied().collect();
    let options = UpdateOptions { new_ids: false, threads: 4, ..UpdateOptions::default() };
    writer.upsert(&twice, &both, &options, &Quiet).unwrap();
    assert_eq!(found(&other, &old, &ids), 200);
    assert_eq!(found(&other, &new, &ids), 0);
}

/// All metrics and element types find what was inserted, in overflows and in rebuilt groups, and miss what is deleted.
#[test]
fn every_type_and_metric_takes_inserts() {
    for (dtype, metric) in [
        (DType::F32, Metric::Ip),
        (DType::F16, Metric::Cosine),
        (DType::U8, Metric::L2),
        (DType::I8, Metric::L2),
        (DType::I8, Metric::Cosine),
    ] {
        let set = Set::new(dtype, DIM, &clustered(900, DIM, 12, 1));
        let new = Set::new(dtype, DIM, &clustered(300, DIM, 12, 4));
        let world = Plan { set, metric, ..Plan::new(1) }.start();
        let [writer, other] = [world.open(), world.open()];
        // The first ids need 4 bytes, the last ones 8.
        let ids: Vec<u64> = (0..300).map(|at| if at < 150 { 1000 + at } else { (1 << 40) + at }).collect();
        upsert(&writer, &ids, &new.bytes);
        assert!(writer.rebuilds() > 0);
        writer
            .delete(
                &(0..100).collect::<Vec<u64>>(),
                &UpdateOptions { threads: 2, ..UpdateOptions::default() },
                &Quiet,
            )
            .unwrap();
        let all = [&world.plan.set.bytes[..], &new.bytes].concat();
        let mut union = new.clone();
        (union.bytes, union.shape.rows) = (all, 1200);
        let id_of = |row: u64| if row < 900 { row } else { ids[row as usize - 900] };
        let asked = Set::new(dtype, DIM, &clustered(40, DIM, 12, 5));
        let answers = search(&other, &asked.bytes, 10);
        let near = |q: usize| -> Vec<u64> {
            nearest(&union, metric, asked.row(q), 10, |row| row < 100).into_iter().map(id_of).collect()
        };
        let hit: usize = (0..40).map(|q| hits(&answers.ids[10 * q..10 * q + 10], &near(q))).sum();
        assert!(hit >= 385, "{dtype:?} {metric:?}: {hit} of 400");
    }
}

#[test]
fn a_full_overflow_rebuilds_its_group_alone() {
    let world = Plan::new(1200).start();
    let [writer, other] = [world.open(), world.open()];
    let before = world.versions();
    assert!(before.iter().all(|&version| version == 0));
    // Vectors near one vector are in its cluster, for the most part.
    let near: Vec<f32> = {
        let one = world.plan.set.wide(77);
        (0..60)
            .flat_map(|row| one.iter().map(move |&x| x as f32 + 0.001 * row as f32).collect::<Vec<_>>())
            .collect()
    };
    let near = Set::new(DType::F32, DIM, &near);
    let ids: Vec<u64> = (7000..7060).collect();
    for (row, id) in ids.iter().enumerate() {
        let options = UpdateOptions { new_ids: true, threads: 1, ..UpdateOptions::default() };
        writer.upsert(&[*id], near.row(row), &options, &Quiet).unwrap();
    }
    let after = world.versions();
    let changed: Vec<&u32> = after.iter().filter(|&&version| version != 0).collect();
    assert_eq!((changed.len(), writer.rebuilds()), (1, u64::from(*changed[0])), "{after:?}");
    assert!(*changed[0] >= 2, "60 records in room for 20");
    assert_eq!(found(&other, &near, &ids), 60);
}

#[test]
fn recall_after_changes_is_that_of_a_fresh_build() {
    let world = Plan { overflow_records: 40, ..Plan::new(3000) }.start();
    let (writer, other) = (world.open(), world.open());
    let new = vectors(1500, 3);
    let ids: Vec<u64> = (10_000..11_500).collect();
    writer
        .upsert(
            &ids,
            &new.bytes,
            &UpdateOptions { new_ids: true, threads: 3, ..UpdateOptions::default() },
            &Quiet,
        )
        .unwrap();
    let gone: Vec<u64> = (0..500).collect();
    writer.delete(&gone, &UpdateOptions { threads: 2, ..UpdateOptions::default() }, &Quiet).unwrap();
    // The same vectors, built at once.
    let mut all = part(&world.plan.set, 500, 2500);
    all.bytes.extend_from_slice(&new.bytes);
    all.shape.rows = 4000;
    let id_of: Vec<u64> = (500..3000).chain(ids).collect();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("ids.u64bin");
    let words: Vec<u8> = id_of.iter().flat_map(|id| id.to_le_bytes()).collect();
    std::fs::write(&file, [&4000u32.to_le_bytes()[..], &1u32.to_le_bytes(), &words].concat()).unwrap();
    world.plan.build(&all, Some(&file), &folder.path().join("index"));
    let fresh = Index::open(&folder.path().join("index"), OpenOptions::default()).unwrap();
    let asked = vectors(300, 5);
    let truth: Vec<Vec<u64>> = (0..300)
        .map(|q| nearest(&all, Metric::L2, asked.row(q), 10, |_| false))
        .map(|rows| rows.into_iter().map(|row| id_of[row as usize]).collect())
        .collect();
    for (nprobe, ef) in [(3, 12), (6, 30), (12, 60)] {
        let options = SearchOptions {
            switches: RemoteSwitches { ef: Some(ef), ..RemoteSwitches::default() }.into(),
            ..options(10, nprobe)
        };
        let recall = |index: &Index| {
            let answers = index.search(&asked.bytes, &options, &Quiet).unwrap();
            let hit: usize = (0..300).map(|q| hits(&answers.ids[10 * q..10 * q + 10], &truth[q])).sum();
            hit as f64 / 3000.0
        };
        let [changed, built] = [recall(&other), recall(&fresh)];
        // Representatives differ, so that a few probes are not comparable to the point.
        let slack = if nprobe == 12 { 0.01 } else { 0.04 };
        assert!(
            changed >= built - slack,
            "{nprobe} clusters, beam {ef}: {changed} after changes, {built} built"
        );
    }
}

#[test]
fn a_full_log_of_tombstones_is_freed() {
    let world = Plan::new(900).start();
    let nodes = [world.open(), world.open()];
    std::thread::scope(|scope| {
        for (node, first) in nodes.iter().zip([0u64, 100_000]) {
            scope.spawn(move || {
                // The log has room for 1024.
                let ids: Vec<u64> = (first..first + 1500).collect();
                assert_eq!(
                    node.delete(&ids, &UpdateOptions { threads: 2, ..UpdateOptions::default() }, &Quiet)
                        .unwrap()
                        .count,
                    1500
                );
            });
        }
    });
    let asked = part(&world.plan.set, 0, 100);
    for node in &nodes {
        let found = node.search(&asked.bytes, &options(3, 12), &Quiet).unwrap();
        assert!(found.failed.is_empty() && found.ids.iter().all(|&id| id == u64::MAX), "all are deleted");
    }
    // Clusters without members take vectors again.
    let ids: Vec<u64> = (0..100).collect();
    upsert(&nodes[0], &ids, &asked.bytes);
    assert_eq!(found(&nodes[1], &asked, &ids), 100);
}

/// Writers race for the last slot, and those that find the group full race to rebuild it.
#[test]
fn writers_and_rebuilders_of_one_group_do_not_lose_a_vector() {
    let world = Plan { overflow_records: 1, ..Plan::new(300) }.start();
    let nodes: Vec<Index> = (0..4).map(|_| world.open()).collect();
    let one = world.plan.set.wide(5);
    let all: Vec<f32> = (0..60)
        .flat_map(|row| one.iter().map(move |&x| x as f32 + 0.01 * row as f32).collect::<Vec<_>>())
        .collect();
    let all = Set::new(DType::F32, DIM, &all);
    std::thread::scope(|scope| {
        for (node, index) in nodes.iter().enumerate() {
            let all = &all;
            scope.spawn(move || {
                for row in (node..60).step_by(4) {
                    let options =
                        UpdateOptions { new_ids: row % 8 < 4, threads: 1, ..UpdateOptions::default() };
                    index.upsert(&[9000 + row as u64], all.row(row), &options, &Quiet).unwrap();
                }
            });
        }
    });
    let ids: Vec<u64> = (9000..9060).collect();
    for node in &nodes {
        assert_eq!(found(node, &all, &ids), 60);
    }
    let rebuilt: u32 = world.versions().iter().sum();
    let published: u64 = nodes.iter().map(Index::rebuilds).sum();
    assert_eq!(u64::from(rebuilt), published, "each version has one publisher");
}

/// A compute node that sees an old table of groups for long goes on with the new one.
#[test]
fn a_compute_node_that_stood_still_goes_on() {
    let world = Plan::new(900).start();
    let [still, busy] = [world.open(), world.open()];
    let asked = part(&world.plan.set, 0, 50);
    let first = vectors(10, 6);
    upsert(&still, &(5000..5010).collect::<Vec<u64>>(), &first.bytes);
    assert_eq!(found(&still, &asked, &(0..50).collect::<Vec<u64>>()), 50);
    let new = vectors(600, 8);
    let ids: Vec<u64> = (6000..6600).collect();
    upsert(&busy, &ids, &new.bytes);
    busy.delete(
        &(0..50).collect::<Vec<u64>>(),
        &UpdateOptions { threads: 1, ..UpdateOptions::default() },
        &Quiet,
    )
    .unwrap();
    assert!(busy.rebuilds() >= 6, "{} rebuilds", busy.rebuilds());
    // Its writer knows versions that are gone, and its reader has cached clusters that were replaced.
    upsert(&still, &(5000..5010).collect::<Vec<u64>>(), &first.bytes);
    for node in [&still, &busy] {
        assert_eq!(found(node, &new, &ids), 600);
        assert_eq!(found(node, &first, &(5000..5010).collect::<Vec<u64>>()), 10);
        assert_eq!(found(node, &asked, &(0..50).collect::<Vec<u64>>()), 0);
    }
}

#[test]
fn a_node_that_comes_back_empty_is_named() {
    let mut world = Plan::new(900).start();
    let index = world.open();
    let new = vectors(20, 6);
    let ids: Vec<u64> = (5000..5020).collect();
    upsert(&index, &ids, &new.bytes);
    world.stop(0);
    world.start_again(0);
    let refused = index.upsert(&ids, &new.bytes, &UpdateOptions::default(), &Quiet).unwrap_err();
    assert_eq!(refused.acknowledged.len(), 0);
    assert_eq!(refused.error.kind, ErrorKind::Corrupt, "{refused}");
    assert!(refused.to_string().contains("changes are gone"), "{refused}");
    let answers = index.search(&new.bytes, &options(3, 12), &Quiet);
    assert!(answers.as_ref().map_or(true, |answers| answers.failed.len() == 20), "{answers:?}");
}

/// Fresh records cost their own bytes, and each group 64 bytes of headers.
#[test]
fn a_batch_reads_the_used_part_of_overflows_alone() {
    let world = Plan { overflow_records: 200, ..Plan::new(900) }.start();
    let (writer, other) = (world.open(), world.open());
    let asked = vectors(60, 6);
    let all = options(5, 12);
    other.search(&asked.bytes, &all, &Quiet).unwrap();
    let groups = PARTITIONS.div_ceil(2) as u64;
    let mut used = 0;
    for count in [1u64, 7, 20] {
        let ids: Vec<u64> = (5000 + used..5000 + used + count).collect();
        let new = vectors(count as usize, 100 + count);
        writer
            .upsert(
                &ids,
                &new.bytes,
                &UpdateOptions { new_ids: true, threads: 1, ..UpdateOptions::default() },
                &Quiet,
            )
            .unwrap();
        used += count;
        let stats = other.search(&asked.bytes, &all, &Quiet).unwrap().stats;
        let record_bytes = 32 + 4 * DIM as u64;
        let most = used * record_bytes + 64 * (groups + 1);
        assert!(stats.bytes_read <= most, "{} bytes, {used} records: {most}", stats.bytes_read);
        let stats = other.search(&asked.bytes, &all, &Quiet).unwrap().stats;
        assert_eq!((stats.bytes_read, stats.round_trips), (64 * (groups + 1), 1), "all is cached");
    }
}

#[test]
fn bad_vectors_and_ids_change_nothing() {
    let world = Plan { metric: Metric::Cosine, ..Plan::new(300) }.start();
    let index = world.open();
    let good = vectors(3, 6);
    let try_with = |at: usize, value: f32, ids: &[u64]| -> Unfinished {
        let mut bytes = good.bytes.clone();
        if at < 3 * DIM {
            bytes[4 * at..4 * at + 4].copy_from_slice(&value.to_le_bytes());
        }
        index.upsert(ids, &bytes, &UpdateOptions::default(), &Quiet).unwrap_err()
    };
    let nan = try_with(DIM + 2, f32::NAN, &[500, 501, 502]);
    assert!(nan.to_string().contains("row 1 (id 501): component 2 is NaN"), "{nan}");
    let infinite = try_with(2 * DIM, f32::INFINITY, &[500, 501, 502]);
    assert!(infinite.to_string().contains("row 2"), "{infinite}");
    let few = try_with(usize::MAX, 0.0, &[500, 501]);
    assert!(few.to_string().contains("2 ids") && few.to_string().contains("16 components"), "{few}");
    for refused in [nan, infinite, few] {
        assert_eq!((refused.error.kind, refused.acknowledged.len()), (ErrorKind::BadInput, 0));
    }
    let mut zero = good.bytes.clone();
    zero[..4 * DIM].fill(0);
    let refused = index.upsert(&[1, 2, 3], &zero, &UpdateOptions::default(), &Quiet).unwrap_err();
    assert!(refused.to_string().contains("zero vector"), "{refused}");
    assert!(world.versions().iter().all(|&version| version == 0));
    assert_eq!(found(&index, &good, &[500, 501, 502]), 0);
    let folder = world.dir.path().join("index");
    let index = Index::open(&folder, OpenOptions::default()).unwrap();
    let refused =
        index.delete(&[1], &UpdateOptions { threads: 1, ..UpdateOptions::default() }, &Quiet).unwrap_err();
    assert!(refused.to_string().contains("memory-node load"), "{refused}");
}

#[test]
fn the_largest_id_is_an_id_like_any_other() {
    let world = Plan::new(300).start();
    let (index, new) = (world.open(), vectors(2, 6));
    index.upsert(&[u64::MAX, 500], &new.bytes, &UpdateOptions::default(), &Quiet).unwrap();
    assert_eq!(found(&index, &new, &[u64::MAX, 500]), 2);
    index.delete(&[u64::MAX], &UpdateOptions::default(), &Quiet).unwrap();
    assert_eq!(found(&index, &part(&new, 0, 1), &[u64::MAX]), 0);
    assert_eq!(found(&index, &part(&new, 1, 1), &[500]), 1);
}

/// A region without room for the next version of a group says how much it needs; with room again, changes go on.
#[test]
fn a_region_without_space_is_named() {
    let world = Plan { region_bytes: 520 << 10, ..Plan::new(900) }.start();
    let index = world.open();
    let new = vectors(3000, 6);
    let ids: Vec<u64> = (5000..8000).collect();
    let refused = index
        .upsert(
            &ids,
            &new.bytes,
            &UpdateOptions { new_ids: true, threads: 1, ..UpdateOptions::default() },
            &Quiet,
        )
        .unwrap_err();
    assert_eq!(refused.error.kind, ErrorKind::Budget, "{refused}");
    assert!(refused.to_string().contains("--size"), "{refused}");
    let done = refused.acknowledged.len();
    assert!(done > 20 && done < 3000, "{done}");
    assert!(refused.acknowledged.is_sorted_by(|a, b| a < b));
    for &row in &refused.acknowledged {
        assert_eq!(found(&index, &part(&new, row, 1), &ids[row..row + 1]), 1, "row {row}");
    }
}
