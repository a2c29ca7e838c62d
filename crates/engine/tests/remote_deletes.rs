//! Searches of a `remote-hnsw` in memory nodes most of whose rows are deleted, and writers that die.

mod common;

use std::sync::Arc;
use stratann_params::build::RemoteOptions;

use common::{Set, clustered, hits, nearest, quick};
use stratann_core::format::region::{GroupWords, Reservations, SUPERBLOCK_BYTES, Superblock};
use stratann_engine::build::{BuildOptions, IndexKind, KindOptions, build};
use stratann_engine::index::{Index, OpenOptions, UpdateOptions};
use stratann_engine::memory_nodes::load;
use stratann_engine::search::{Answers, Effort, SearchOptions};
use stratann_engine::{DType, Metric};
use stratann_storage::Quiet;
use stratann_storage::remote_memory::{Credentials, Node, NodeId, NodeOptions, Nodes, Operation, Place};
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
    dir: TempDir,
}

fn node(region_bytes: u64) -> Node {
    Node::start(NodeOptions {
        node: NodeId(0),
        region_bytes,
        listen: "127.0.0.1:0".parse().unwrap(),
        secret: SECRET.to_vec(),
        tls: None,
        place: Place::Memory,
        connections_max: 64,
        log: Arc::new(|_| {}),
    })
    .unwrap()
}

impl World {
    fn new(overflow_records: u64) -> World {
        World::with(overflow_records, false)
    }

    /// In a region that may be full when the index is loaded.
    fn with(overflow_records: u64, is_full: bool) -> World {
        let set = Set::new(DType::F32, DIM, &clustered(ROWS, DIM, 12, 1));
        let own = RemoteOptions {
            m: 8,
            ef_construction: 60,
            overflow: Some(overflow_records * (32 + 4 * DIM as u64)),
            ..RemoteOptions::default()
        };
        let kind = KindOptions::RemoteHnsw(own);
        let options =
            BuildOptions { kind, calibration_queries: 200, ..quick(IndexKind::RemoteHnsw, Metric::L2) };
        let dir = tempfile::tempdir().unwrap();
        build(&set.reader(), dir.path(), &options, &Quiet).unwrap();
        let mut world = World { set, node: node(if is_full { 64 << 10 } else { 16 << 20 }), dir };
        let load = |world: &World| load(world.dir.path(), &world.addresses(), &credentials(), &Quiet);
        if is_full {
            let refused = load(&world).unwrap_err().to_string();
            let size = refused.split("--size ").nth(1).and_then(|rest| rest.split(' ').next()).unwrap();
            world.node = node(size.parse().unwrap());
        }
        load(&world).unwrap();
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
            writer.delete(part, &UpdateOptions { threads: 2, ..UpdateOptions::default() }, &Quiet).unwrap();
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
    index.delete(&near, &UpdateOptions::default(), &Quiet).unwrap();
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
        .upsert(&ids, &new.bytes, &UpdateOptions { new_ids: true, ..UpdateOptions::default() }, &Quiet)
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

/// Bytes in use, and those of vectors, graphs and room for records that are left.
fn space(index: &Index) -> (u64, u64) {
    let facts = index.live_facts().unwrap();
    let rows = index.rows().unwrap();
    assert_eq!(rows, facts.rows);
    // A vector of 16 floats, its id and 16 neighbours, and its part of the overflow.
    (facts.nodes.iter().map(|node| node.used_bytes).sum(), rows * (64 + 4 + 34))
}

/// The whole set is replaced several times by writers at once: space does not grow, and an overflow that was filled
/// costs a rebuild.
#[test]
fn changes_at_constant_size_do_not_fill_a_region() {
    let world = World::new(40);
    let nodes = [world.open(), world.open()];
    let before = space(&nodes[0]);
    for turn in 0..4 {
        let new = Set::new(DType::F32, DIM, &clustered(ROWS, DIM, 12, 20 + turn));
        std::thread::scope(|scope| {
            for (node, half) in nodes.iter().zip([0, ROWS / 2]) {
                let bytes = &new.bytes[half * 4 * DIM..(half + ROWS / 2) * 4 * DIM];
                let ids: Vec<u64> = (half as u64..(half + ROWS / 2) as u64).collect();
                scope.spawn(move || {
                    let options = UpdateOptions { threads: 2, ..UpdateOptions::default() };
                    node.upsert(&ids, bytes, &options, &Quiet).unwrap();
                });
            }
        });
        let found = search(&nodes[0], &new, 1);
        let is_there = |(row, id): (usize, &u64)| *id == row as u64;
        let there = found.ids.iter().enumerate().filter(|(row, id)| is_there((*row, id))).count();
        assert!(there >= ROWS * 95 / 100, "{there} rows find themselves");
        let after = space(&nodes[0]);
        assert_eq!(nodes[1].rows().unwrap(), ROWS as u64);
        assert!(after.0 <= 2 * before.0 && after.0 <= 3 * after.1.max(before.0), "{before:?} {after:?}");
    }
    let rebuilds: u64 = nodes.iter().map(Index::rebuilds).sum();
    let most = 4 * ROWS as u64 / 40 + 4 * 24;
    assert!(rebuilds <= most, "{rebuilds} rebuilds, {most} overflows were filled");
    assert_eq!(nodes[0].verify_memory(&Quiet).unwrap().report.violations_found, 0);
}

/// Clusters all of whose rows are deleted and folded in have no bytes, which is no damage. Space of what was deleted is
/// not in use.
#[test]
fn an_index_that_is_nearly_empty_is_sound() {
    let world = World::new(16);
    let (index, before) = (world.open(), space(&world.open()));
    let gone: Vec<u64> = (2..ROWS as u64).collect();
    index.delete(&gone, &UpdateOptions::default(), &Quiet).unwrap();
    index.delete(&gone, &UpdateOptions::default(), &Quiet).unwrap();
    let after = space(&index);
    assert_eq!((index.rows().unwrap(), index.rebuilds() > 0), (2, true));
    // Two pages for each group are left, and the tables.
    assert!(after.0 < before.0 * 3 / 4, "{before:?} {after:?}");
    assert_eq!(index.verify_memory(&Quiet).unwrap().report.violations_found, 0);
    let asked = Set::new(DType::F32, DIM, &clustered(20, DIM, 12, 5));
    assert!((recall(&world, &index, &asked, 10, |row| row >= 2) - 1.0).abs() < 1e-9);
}

/// Deletes need no space, and many of them no rebuild: what they delete is marked.
#[test]
fn deletes_work_in_a_full_region() {
    let world = World::with(40, true);
    let (index, other) = (world.open(), world.open());
    let asked = Set::new(DType::F32, DIM, &clustered(ASKED, DIM, 12, 5));
    let gone: Vec<u64> = (0..ROWS as u64).filter(|row| row % 6 > 0).collect();
    let few = index.delete(&gone[..1200], &UpdateOptions::default(), &Quiet).unwrap();
    assert!(few.round_trips < 300, "{} round trips", few.round_trips);
    assert_eq!((index.rebuilds(), other.rows().unwrap()), (0, ROWS as u64 - 1200));
    index.delete(&gone[1200..], &UpdateOptions { threads: 3, ..UpdateOptions::default() }, &Quiet).unwrap();
    assert_eq!(other.rows().unwrap(), 500);
    // Ids that are not there are none.
    index.delete(&gone, &UpdateOptions::default(), &Quiet).unwrap();
    assert_eq!((index.rows().unwrap(), other.rows().unwrap()), (500, 500));
    let found = recall(&world, &other, &asked, 10, |row| row % 6 > 0);
    assert!(found >= 0.95, "recall is {found}");
    assert_eq!(index.verify_memory(&Quiet).unwrap().report.violations_found, 0);
}
