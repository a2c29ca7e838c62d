//! Searches of a `remote-hnsw` in memory nodes most of whose rows are deleted, and writers that die.

mod common;

use std::sync::Arc;

use common::{Set, clustered, hits, nearest, quick};
use stratann_core::format::region::{GroupWords, Reservations, SUPERBLOCK_BYTES, Superblock};
use stratann_engine::build::{BuildOptions, Kind, KindOptions, RemoteOptions, build};
use stratann_engine::index::{ChangeOptions, Index, OpenOptions};
use stratann_engine::kinds::remote_hnsw::live::load::load;
use stratann_engine::remote_memory::{Credentials, Node, NodeId, NodeOptions, Nodes, Operation, Place};
use stratann_engine::search::{Answers, Effort, SearchOptions};
use stratann_engine::{DType, Metric, Quiet};
use tempfile::TempDir;

const SECRET: &[u8] = b"a key of memory nodes, 32 bytes!";
const DIM: usize = 16;
const ROWS: usize = 3000;
const ASKED: usize = 100;

fn credentials() -> Credentials {
    Credentials::new(SECRET.to_vec(), None)
}

/// A memory node with an index that has a recall curve.
struct World {
    set: Set,
    node: Node,
    _dir: TempDir,
}

impl World {
    fn new(overflow_records: u64) -> World {
        let set = Set::new(DType::F32, DIM, &clustered(ROWS, DIM, 12, 1));
        let own = RemoteOptions {
            m: 8,
            ef_construction: 60,
            overflow_bytes: Some(overflow_records * (32 + 4 * DIM as u64)),
            ..RemoteOptions::default()
        };
        let kind = KindOptions::RemoteHnsw(own);
        let options = BuildOptions { kind, calibration_queries: 200, ..quick(Kind::RemoteHnsw, Metric::L2) };
        let dir = tempfile::tempdir().unwrap();
        build(&set.reader(), dir.path(), &options, &Quiet).unwrap();
        let node = Node::start(NodeOptions {
            node: NodeId(0),
            region_bytes: 16 << 20,
            listen: "127.0.0.1:0".parse().unwrap(),
            secret: SECRET.to_vec(),
            tls: None,
            place: Place::Memory,
            connections_max: 64,
            log: Arc::new(|_| {}),
        })
        .unwrap();
        let world = World { set, node, _dir: dir };
        load(world._dir.path(), &world.addresses(), &credentials(), &Quiet).unwrap();
        world
    }

    fn addresses(&self) -> [String; 1] {
        [self.node.address().to_string()]
    }

    fn open(&self) -> Index {
        let options = OpenOptions { cache_budget: 1 << 20, ..OpenOptions::default() };
        Index::open_memory(&self.addresses(), &credentials(), options).unwrap()
    }
}

fn search(index: &Index, asked: &Set, k: usize) -> Answers {
    let options = SearchOptions { k, effort: Effort::Recall(0.95), threads: 2, ..SearchOptions::default() };
    let answers = index.search(&asked.bytes, &options, &Quiet).unwrap();
    assert!(answers.failed.is_empty(), "{:?}", answers.failed);
    answers
}

/// The share of the k nearest rows that are left which a search finds; of fewer rows, all.
fn recall(world: &World, index: &Index, asked: &Set, k: usize, is_gone: impl Fn(u64) -> bool + Copy) -> f64 {
    let live = (0..ROWS as u64).filter(|&row| !is_gone(row)).count();
    let answers = search(index, asked, k);
    let (mut hit, mut all) = (0, 0);
    for q in 0..asked.len() {
        let found: Vec<u64> =
            answers.ids[k * q..k * q + k].iter().copied().filter(|&id| id != u64::MAX).collect();
        assert_eq!(found.len(), k.min(live), "query {q} of {live} rows");
        assert!(found.iter().all(|&id| !is_gone(id)), "query {q}: a deleted row");
        let near = nearest(&world.set, Metric::L2, asked.row(q), k.min(live), |row| is_gone(row as u64));
        hit += hits(&found, &near);
        all += near.len();
    }
    hit as f64 / all as f64
}

/// Whatever is deleted, a search has the recall that it asks for, and all k results where so many rows are left.
#[test]
fn searches_find_what_is_left_however_much_is_deleted() {
    let asked = Set::new(DType::F32, DIM, &clustered(ASKED, DIM, 12, 5));
    for (kept, of) in [(1, 1), (1, 2), (1, 10), (1, 100), (1, 120)] {
        let world = World::new(40);
        let (writer, reader) = (world.open(), world.open());
        let is_gone = |row: u64| row % of >= kept;
        let gone: Vec<u64> = (0..ROWS as u64).filter(|&row| is_gone(row)).collect();
        let before = search(&reader, &asked, 10).stats;
        for part in gone.chunks(700) {
            writer.delete(part, &ChangeOptions { threads: 2, ..ChangeOptions::default() }, &Quiet).unwrap();
            // Also while deletions are partly in the log.
            recall(&world, &reader, &asked, 10, |row| {
                gone.binary_search(&row).is_ok_and(|_| row <= part[part.len() - 1])
            });
        }
        for k in [1, 10, 100] {
            let found = recall(&world, &reader, &asked, k, is_gone);
            assert!(found >= 0.95, "recall@{k} is {found} with {kept} of {of} rows");
        }
        if gone.is_empty() {
            assert_eq!(search(&reader, &asked, 10).stats.full_comparisons, before.full_comparisons);
        }
    }
}

/// Rows of some clusters alone are deleted: the others are searched in their place.
#[test]
fn clusters_without_rows_take_no_place_among_those_that_are_searched() {
    let world = World::new(40);
    let index = world.open();
    let asked = Set::new(DType::F32, DIM, &clustered(ASKED, DIM, 12, 5));
    // What is near the first question goes.
    let near = nearest(&world.set, Metric::L2, asked.row(0), 2000, |_| false);
    index.delete(&near, &ChangeOptions::default(), &Quiet).unwrap();
    let found = recall(&world, &index, &asked, 10, |row| near.contains(&row));
    assert!(found >= 0.95, "recall is {found}");
}

/// A writer that has reserved more slots than there are, and died, leaves an index that is sound.
#[test]
fn reservations_of_a_dead_writer_that_did_not_fit_are_no_damage() {
    let world = World::new(20);
    let index = world.open();
    let new = Set::new(DType::F32, DIM, &clustered(30, DIM, 12, 9));
    let ids: Vec<u64> = (10_000..10_030).collect();
    index
        .upsert(&ids, &new.bytes, &ChangeOptions { new_ids: true, ..ChangeOptions::default() }, &Quiet)
        .unwrap();
    let mut nodes = Nodes::new(&world.addresses(), &credentials()).unwrap();
    let own = Superblock::newest(&nodes.read(0, 0, 2 * SUPERBLOCK_BYTES).unwrap()).unwrap();
    for (turn, group) in (0..own.groups as u32).enumerate() {
        let words = GroupWords::decode(&nodes.read(0, own.words_at(group), 64).unwrap()).unwrap();
        let offset = own.words_at(group) + GroupWords::reserved_at(words.version.number());
        // It asks for slots of one side, and then for more of the other side than there are.
        for (side, count) in [(turn % 2, 7), (1 - turn % 2, 64)] {
            for _ in 0..count {
                let mut ops = [Operation::FetchAdd { offset, add: Reservations::STEPS[side], old: 0 }];
                nodes.execute(0, &mut ops).unwrap();
            }
        }
    }
    let report = index.verify_memory(&Quiet).unwrap();
    assert_eq!(report.report.violations_found, 0, "{:?}", report.report);
    assert_eq!(report.fresh.published, 30);
    let found = search(&index, &new, 3);
    let is_there = |(row, id): (usize, &u64)| found.ids[3 * row..3 * row + 3].contains(id);
    assert!(ids.iter().enumerate().all(is_there));
}
