//! An index partitioned over servers: replicas, balance, determinism, damage, and queries that are handed from shard to
//! shard.

mod common;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::OnceLock;

use common::{Built, Set, arrival, clustered, graph_options, queries, quick, wanted};
use stratann_core::query::{Arrival, Budget, Extent, Params, QueryState, Read, Scratch, Step, StoreId, Tag};
use stratann_engine::build::IndexKind;
use stratann_engine::index::{Index, OpenOptions};
use stratann_engine::spread::{Method, PartitionOptions, PartitionReport, Shard, partition, plan};
use stratann_engine::{DType, Metric, verify};
use stratann_storage::tier::{Buffer, IoChoice};
use stratann_storage::{ErrorKind, Progress, Quiet};
use tempfile::TempDir;

/// About a thousand blocks of six nodes.
fn source() -> &'static Built {
    static BUILT: OnceLock<Built> = OnceLock::new();
    BUILT.get_or_init(|| {
        let set = Set::new(DType::F32, 24, &clustered(6000, 24, 40, 1));
        let quick = quick(IndexKind::DiskGraph, Metric::L2);
        let options = graph_options(quick, |own| own.nodes_per_block = Some(6));
        Built::new(set, &options)
    })
}

fn options(servers: usize) -> PartitionOptions {
    PartitionOptions { threads: 2, ..PartitionOptions::new(servers) }
}

fn spread(options: &PartitionOptions) -> (TempDir, PartitionReport) {
    let dir = tempfile::tempdir().unwrap();
    let report = partition(source().dir.path(), dir.path(), options, &Quiet).unwrap();
    (dir, report)
}

fn shard(folder: &Path, server: usize) -> Shard {
    Shard::open(folder, server, OpenOptions::default()).unwrap()
}

fn files(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = std::fs::read_dir(folder).unwrap().map(|e| e.unwrap());
    entries.map(|e| (e.file_name().into_string().unwrap(), std::fs::read(e.path()).unwrap())).collect()
}

fn with(method: Method, replicas: usize, overlap: f64) -> PartitionOptions {
    PartitionOptions { method, replicas, overlap, ..options(7) }
}

const METHODS: [Method; 3] = [Method::Random, Method::Kmeans, Method::Cells];

#[test]
fn every_block_has_its_homes_and_no_server_holds_too_much() {
    for method in METHODS {
        for (replicas, overlap) in [(1, 0.0), (1, 0.2), (2, 0.0), (3, 0.0), (7, 0.0)] {
            let (dir, report) = spread(&with(method, replicas, overlap));
            let placement = shard(dir.path(), 0).placement().clone();
            let blocks = placement.all().len();
            let homes: usize = placement.all().iter().map(|h| h.count_ones() as usize).sum();
            let most = if overlap > 0.0 { 2 } else { replicas };
            let in_range = |h: &u64| (replicas..=most).contains(&(h.count_ones() as usize));
            assert!(placement.all().iter().all(in_range), "{method:?} {replicas} {overlap}");
            assert_eq!(report.copies, homes as u64);
            assert!(homes <= blocks * replicas + (blocks as f64 * overlap) as usize);
            assert!(overlap == 0.0 || homes > blocks + blocks / 10, "{homes} copies of {blocks} blocks");
            assert!(report.largest_over_mean <= 1.05, "{method:?} {replicas} {overlap}: {report:?}");
        }
    }
}

#[test]
fn locality_cuts_fewer_edges_and_copies_fewer_still() {
    let cut = |method, replicas, overlap| spread(&with(method, replicas, overlap)).1.cut_share;
    let (random, kmeans, cells) =
        (cut(Method::Random, 1, 0.0), cut(Method::Kmeans, 1, 0.0), cut(Method::Cells, 1, 0.0));
    assert!(random > 0.8 && kmeans < 0.8 * random && cells < kmeans, "{random} {kmeans} {cells}");
    let (overlap, twice) = (cut(Method::Cells, 1, 0.2), cut(Method::Cells, 2, 0.0));
    assert!(overlap < cells && twice < overlap, "{cells} {overlap} {twice}");
    assert_eq!(cut(Method::Cells, 7, 0.0), 0.0);
}

#[test]
fn the_number_of_threads_changes_no_byte() {
    for options in [with(Method::Cells, 2, 0.0), with(Method::Kmeans, 1, 0.2)] {
        let run = |threads| spread(&PartitionOptions { threads, ..options.clone() }).0;
        let (one, three) = (run(1), run(3));
        let (one, three) = (files(one.path()), files(three.path()));
        assert_eq!(one.keys().collect::<Vec<_>>(), three.keys().collect::<Vec<_>>());
        assert!(one.iter().all(|(name, bytes)| three[name] == *bytes));
    }
    let (a, b) = (spread(&options(7)).0, spread(&PartitionOptions { seed: 2, ..options(7) }).0);
    assert_ne!(shard(a.path(), 0).placement(), shard(b.path(), 0).placement());
}

#[test]
fn a_shard_opens_alone_and_finds_its_blocks() {
    let (dir, _) = spread(&with(Method::Cells, 2, 0.0));
    let whole = source().blocks();
    let mut removed = files(dir.path());
    removed.retain(|name, _| name.contains("-blocks-") && name != "v1-blocks-03.bin");
    removed.keys().for_each(|name| std::fs::remove_file(dir.path().join(name)).unwrap());
    let shard = shard(dir.path(), 3);
    let part = std::fs::read(dir.path().join("v1-blocks-03.bin")).unwrap();
    let view = shard.view(u64::MAX);
    let size = view.kind.disk_graph().unwrap().block.block_bytes;
    assert_eq!(part.len(), shard.held() as usize * size);
    let mut tier = shard.tier(4, IoChoice::Pread).unwrap();
    let mut next = 0;
    for block in 0..view.kind.disk_graph().unwrap().blocks {
        let here = view.base.here.unwrap().holds(block);
        let at = Extent { store: StoreId(0), offset: u64::from(block) * size as u64, bytes: size as u32 };
        let located = shard.locate(at);
        assert_eq!(located, here.then_some(Extent { offset: next, ..at }), "block {block}");
        if let Some(located) = located {
            tier.submit(u64::from(block), shard.file_ids().of(at.store), located.offset, Buffer::new(size));
            let mut done = Vec::new();
            tier.poll(true, &mut done).unwrap();
            assert_eq!(*done[0].result.as_ref().unwrap(), size, "block {block}");
            let at = block as usize * size;
            assert_eq!(&part[next as usize..next as usize + size], &whole[at..at + size]);
            assert_eq!(done[0].buffer.bytes(), &whole[at..at + size]);
            next += size as u64;
        }
    }
    let account = shard.account();
    assert!(account.total() <= shard.manifest().planned_account(0).total() + 1024, "{account:?}");
    let budget = OpenOptions { ram_budget: Some(1 << 20), ..OpenOptions::default() };
    assert_eq!(Shard::open(dir.path(), 3, budget).unwrap_err().kind, ErrorKind::Budget);
}

/// Runs a query over the shards, each with its own scratch, beginning at `server`.
fn hand_over(shards: &[Shard], blocks: &[u8], query: &[u8], params: Params, mut server: usize) -> QueryState {
    let mut state = QueryState::new(params, Budget::default());
    let mut arrived: Vec<(Tag, Read)> = Vec::new();
    let mut scratch = Scratch::default();
    scratch.prepare(&shards[server].view(u64::MAX), query);
    loop {
        let view = shards[server].view(u64::MAX);
        let arrivals: Vec<Arrival<'_>> = arrived
            .iter()
            .map(|(tag, read)| Arrival { tag: *tag, what: arrival(&view, blocks, read) })
            .collect();
        match state.step(&view, &mut scratch, &arrivals) {
            Step::Done => return state,
            Step::HandOver(next) => {
                assert_ne!(usize::from(next), server);
                server = usize::from(next);
                scratch = Scratch::default();
                scratch.prepare(&shards[server].view(u64::MAX), query);
                arrived.clear();
            }
            Step::Wait => {
                arrived = wanted(&state);
                let located = arrived.iter().map(|a| shards[server].locate(a.1.at));
                assert!(located.into_iter().all(|o| o.is_some()), "a read of what another server holds");
            }
        }
    }
}

#[test]
fn queries_are_answered_across_shards_with_fewer_hand_overs_where_edges_are_not_cut() {
    let asked = queries(20, 24);
    let blocks = source().blocks();
    let mut params = Params::disk_graph(10, 40);
    (params.width, params.approach_width) = (1, 1);
    let whole = Built {
        dir: tempfile::tempdir().unwrap(),
        index: Index::open(source().dir.path(), OpenOptions::default()).unwrap(),
        set: asked.clone(),
    };
    let mut handed = Vec::new();
    for options in [with(Method::Random, 1, 0.0), with(Method::Cells, 1, 0.0), with(Method::Cells, 2, 0.0)] {
        let (dir, _) = spread(&options);
        let shards: Vec<Shard> = (0..7).map(|s| shard(dir.path(), s)).collect();
        let mut hand_overs = 0;
        for i in 0..asked.len() {
            let alone =
                common::run_plain(&whole.index.view(), &blocks, asked.row(i), params, Budget::default(), 1);
            let state = hand_over(&shards, &blocks, asked.row(i), params, i % 7);
            // One block at a time is read in the same order wherever it lies.
            assert_eq!(state.results(), alone.results(), "query {i}");
            hand_overs += state.stats().hand_overs;
        }
        handed.push(hand_overs);
    }
    assert!(handed[1] * 2 < handed[0] && handed[2] < handed[1], "{handed:?}");
}

#[test]
fn damage_in_any_file_is_noticed() {
    let (dir, _) = spread(&PartitionOptions { replicas: 2, ..options(3) });
    let sound = verify::verify(dir.path(), &Quiet).unwrap();
    let one = verify::verify(source().dir.path(), &Quiet).unwrap();
    assert_eq!(sound.violations, []);
    assert_eq!((sound.blocks, sound.nodes, sound.edges), (one.blocks, one.nodes, one.edges));
    assert_eq!((sound.unreachable, sound.files), (one.unreachable, 9));
    for (name, bytes) in files(dir.path()) {
        let path = dir.path().join(&name);
        for at in [9, bytes.len() / 2, bytes.len() - 3] {
            // Replaced, not written to: shared files are links to those of the source.
            let mut damaged = bytes.clone();
            damaged[at] ^= 2;
            replace(&path, &damaged);
            let report = verify::verify(dir.path(), &Quiet).unwrap();
            assert!(report.violations_found > 0, "{name}, byte {at}");
            if name.contains("-blocks-") {
                let block = report.violations.iter().find(|f| f.file == name && f.block.is_some());
                assert_eq!(block.unwrap().offset, Some(at as u64 / 4096 * 4096), "{name}, byte {at}");
            }
        }
        replace(&path, &bytes[..bytes.len() - 2]);
        assert!(verify::verify(dir.path(), &Quiet).unwrap().violations_found > 0, "{name} cut short");
        std::fs::remove_file(&path).unwrap();
        if !name.starts_with("manifest") {
            assert!(verify::verify(dir.path(), &Quiet).unwrap().violations_found > 0, "{name} missing");
        }
        std::fs::write(&path, &bytes).unwrap();
    }
    assert_eq!(verify::verify(dir.path(), &Quiet).unwrap().violations, []);
    assert_eq!(verify::verify(source().dir.path(), &Quiet).unwrap().violations, []);
}

fn replace(path: &Path, bytes: &[u8]) {
    std::fs::remove_file(path).unwrap();
    std::fs::write(path, bytes).unwrap();
}

#[test]
fn a_damaged_source_is_not_spread() {
    let built = Built::new(common::graph_set(), &quick(IndexKind::DiskGraph, Metric::L2));
    for (name, bytes) in files(built.dir.path()) {
        let path = built.dir.path().join(&name);
        let mut damaged = bytes.clone();
        damaged[bytes.len() / 2] ^= 1;
        std::fs::write(&path, &damaged).unwrap();
        let parent = tempfile::tempdir().unwrap();
        let out = parent.path().join("out");
        let error = partition(built.dir.path(), &out, &options(3), &Quiet).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Corrupt, "{name}: {error}");
        assert!(error.message.contains(&name) && !out.exists(), "{name}: {error}");
        std::fs::write(&path, &bytes).unwrap();
    }
}

#[test]
fn what_cannot_be_is_refused_and_nothing_is_left() {
    let index = source().dir.path();
    let parent = tempfile::tempdir().unwrap();
    let out = parent.path().join("out");
    let refused = |options: &PartitionOptions, word: &str| {
        let error = partition(index, &out, options, &Quiet).unwrap_err();
        assert_eq!(error.kind, ErrorKind::BadInput);
        assert!(error.message.contains(word) && !out.exists(), "{error}");
    };
    refused(&options(0), "servers is 0");
    refused(&options(65), "servers is 65");
    refused(&PartitionOptions { replicas: 0, ..options(3) }, "replicas is 0");
    refused(&PartitionOptions { replicas: 4, ..options(3) }, "replicas is 4");
    refused(&PartitionOptions { overlap: 1.5, ..options(3) }, "overlap is 1.5");
    refused(&PartitionOptions { overlap: f64::NAN, ..options(3) }, "overlap is NaN");
    refused(&PartitionOptions { overlap: 0.1, replicas: 2, ..options(3) }, "overlap");
    let error = partition(index, index, &options(3), &Quiet).unwrap_err();
    assert!(error.message.contains("the index itself"), "{error}");

    let flat = Built::new(common::graph_set(), &quick(IndexKind::Flat, Metric::L2));
    let error = partition(flat.dir.path(), &out, &options(3), &Quiet).unwrap_err();
    assert!(error.message.contains("kind flat") && !out.exists(), "{error}");
    let error = Shard::open(index, 0, OpenOptions::default()).unwrap_err();
    assert!(error.message.contains("not partitioned"), "{error}");

    let (dir, _) = spread(&options(3));
    let before = files(dir.path());
    let again = |options: &PartitionOptions| partition(index, dir.path(), options, &Quiet);
    assert!(again(&options(4)).unwrap_err().message.contains("--force"));
    assert_eq!(files(dir.path()), before);
    let error = partition(dir.path(), &out, &options(2), &Quiet).unwrap_err();
    assert!(error.message.contains("already") && !out.exists(), "{error}");
    let error = Index::open(dir.path(), OpenOptions::default()).unwrap_err();
    assert!(error.message.contains("partitioned over 3 servers"), "{error}");
    let error = Shard::open(dir.path(), 3, OpenOptions::default()).unwrap_err();
    assert!(error.message.contains("servers 0 to 2"), "{error}");
    again(&PartitionOptions { force: true, ..options(4) }).unwrap();
    assert!(files(dir.path()).keys().all(|name| name.starts_with("v2-") || name == "manifest-2.json"));
}

#[test]
fn a_budget_is_kept_or_refused_with_one_that_works() {
    let index = source().dir.path();
    let parent = tempfile::tempdir().unwrap();
    let out = parent.path().join("out");
    let most = plan(index, &options(64)).unwrap().total();
    let tight = PartitionOptions { ram_budget: Some(1 << 20), ..options(64) };
    let error = partition(index, &out, &tight, &Quiet).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Budget);
    assert!(!out.exists());
    let named = error.message.split("--ram-budget ").nth(1).unwrap();
    let mib: u64 = named.split("MiB").next().unwrap().parse().unwrap();
    assert!(mib << 20 < most + (1 << 20), "{error} of {most}");
    let enough = PartitionOptions { ram_budget: Some(mib << 20), ..options(64) };
    assert!(plan(index, &enough).unwrap().total() <= mib << 20);
    let report = partition(index, &out, &enough, &Quiet).unwrap();
    assert!(report.largest_over_mean <= 1.1 && report.cut_share < 0.9, "{report:?}");
    assert_eq!(verify::verify(&out, &Quiet).unwrap().violations, []);
}

/// Asks to stop after so many questions.
struct Stop(std::sync::atomic::AtomicI64);

impl Progress for Stop {
    fn stage(&self, _: &str, _: u64, _: &str) {}
    fn advance(&self, _: u64) {}
    fn note(&self, _: &str) {}
    fn interrupted(&self) -> bool {
        self.0.fetch_sub(1, std::sync::atomic::Ordering::Relaxed) <= 0
    }
}

#[test]
fn an_interruption_leaves_what_was_there() {
    let (dir, _) = spread(&options(3));
    let before = files(dir.path());
    let mut stopped = 0;
    for patience in 0.. {
        let again = PartitionOptions { force: true, replicas: 2, ..options(4) };
        match partition(source().dir.path(), dir.path(), &again, &Stop(patience.into())) {
            Ok(_) => break,
            Err(e) => assert_eq!(e.kind, ErrorKind::Interrupted),
        }
        assert_eq!(files(dir.path()), before);
        stopped += 1;
    }
    assert!(stopped > 5, "{stopped}");
    assert_eq!(shard(dir.path(), 0).placement().servers(), 4);
}
