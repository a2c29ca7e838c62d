//! A `hybrid-ivf` partitioned over servers: which bytes each server has, what it keeps in RAM, damage, and refusals.

mod common;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::OnceLock;

use common::{Built, Set, clustered, list_options, queries, quick, run_plain, with_lists};
use stratann_core::format::directory::{Directory, LocalKind};
use stratann_core::kinds::{KindView, hybrid_ivf};
use stratann_core::place::Placement;
use stratann_core::query::{
    Arrival, Arrived, Budget, Extent, Loss, Outcome, Params, QueryState, Scratch, Step, StoreId,
};
use stratann_engine::build::{IndexKind, LocalPlan};
use stratann_engine::index::{Index, OpenOptions};
use stratann_engine::spread::scatter::scatter;
use stratann_engine::spread::{Method, PartitionOptions, PartitionReport, Shard, partition, place, plan};
use stratann_engine::{DType, Metric, verify};
use stratann_storage::tier::{Buffer, IoChoice};
use stratann_storage::{ErrorKind, Progress, Quiet};
use tempfile::TempDir;

const DIM: usize = 24;
const PAGE: u64 = 4096;

struct Source {
    built: Built,
    /// The file of all lists.
    lists: Vec<u8>,
}

fn source(local: LocalKind) -> &'static Source {
    static SOURCES: [OnceLock<Source>; 3] = [OnceLock::new(), OnceLock::new(), OnceLock::new()];
    let at = LocalKind::ALL.iter().position(|&l| l == local).unwrap();
    SOURCES[at].get_or_init(|| {
        let set = Set::new(DType::F32, DIM, &clustered(3000, DIM, 24, 1));
        let options = list_options(quick(IndexKind::HybridIvf, Metric::L2), |own| {
            (own.clusters, own.plan) = (Some(40), LocalPlan::Uniform(local).into());
        });
        let built = Built::new(set, &options);
        let lists = std::fs::read(built.dir.path().join("v1-lists.bin")).unwrap();
        Source { built, lists }
    })
}

fn options(servers: usize) -> PartitionOptions {
    PartitionOptions { threads: 2, ..PartitionOptions::new(servers) }
}

fn spread(local: LocalKind, options: &PartitionOptions) -> (TempDir, PartitionReport) {
    let dir = tempfile::tempdir().unwrap();
    let report = partition(source(local).built.dir.path(), dir.path(), options, &Quiet).unwrap();
    (dir, report)
}

fn shard(folder: &Path, server: usize) -> Shard {
    Shard::open(folder, server, OpenOptions::default()).unwrap()
}

fn lists<'a>(view: &stratann_core::kinds::IndexView<'a>) -> hybrid_ivf::View<'a> {
    match view.kind {
        KindView::HybridIvf(view) => view,
        other => panic!("{other:?}"),
    }
}

fn files(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = std::fs::read_dir(folder).unwrap().map(|e| e.unwrap());
    entries.map(|e| (e.file_name().into_string().unwrap(), std::fs::read(e.path()).unwrap())).collect()
}

/// The extents that queries read of a list: codes, records, and edges of its cluster.
fn extents(view: &hybrid_ivf::View<'_>, list: u32) -> Vec<Extent> {
    let (directory, shape): (&Directory, _) = (view.directory, &view.shape);
    let (at, members) = (list as usize, directory.members(list) as usize);
    let extent = |offset, bytes: usize| Extent { store: StoreId(0), offset, bytes: bytes as u32 };
    let mut all = vec![extent(directory.codes[at], shape.list_codes_bytes(members))];
    all.extend((members > 0).then(|| extent(directory.records[at], members * shape.record_bytes())));
    let cluster = directory.cluster_of(list);
    if directory.has_edges(cluster) {
        let ids = directory.members_of(cluster);
        for id in directory.ids[at]..directory.ids[at + 1] {
            let pages = directory.edges_at(cluster, id - ids.start);
            let size = stratann_core::format::edges::edge_bytes(directory.degree as usize);
            all.push(extent(u64::from(pages.first) * PAGE + u64::from(pages.skip), size));
        }
    }
    all
}

/// The whole pages that hold an extent in a server's file, through its tier.
fn read(shard: &Shard, at: Extent) -> Option<Vec<u8>> {
    let mut tier = shard.tier(4, IoChoice::Pread).unwrap();
    let at = shard.locate(at)?;
    let buffer = Buffer::new((at.pages() * PAGE) as usize);
    tier.submit(7, shard.file_ids().of(at.store), at.first_page() * PAGE, buffer);
    let mut done = Vec::new();
    tier.poll(true, &mut done).unwrap();
    let skip = (at.offset % PAGE) as usize;
    assert!(*done[0].result.as_ref().unwrap() >= skip + at.bytes as usize);
    Some(done[0].buffer.bytes()[skip..][..at.bytes as usize].to_vec())
}

#[test]
fn each_server_has_all_bytes_of_its_lists_and_of_no_others() {
    for local in LocalKind::ALL {
        let source = source(local);
        for (servers, replicas, method) in
            [(1, 1, Method::Cells), (3, 1, Method::Random), (4, 2, Method::Cells)]
        {
            let options = PartitionOptions { replicas, method, ..options(servers) };
            let (dir, report) = spread(local, &options);
            let placement = place(&source.built.index, &options, &Quiet).unwrap().placement;
            let mut held = vec![0u32; servers];
            for (server, held) in held.iter_mut().enumerate() {
                let shard = shard(dir.path(), server);
                assert_eq!(shard.placement(), &placement, "the same as the simulator places");
                let part = std::fs::read(dir.path().join(format!("v1-lists-{server:02}.bin"))).unwrap();
                assert_eq!((part.len() as u64, part.len() % PAGE as usize), (report.server_bytes[server], 0));
                let view = shard.view(u64::MAX);
                let view = lists(&view);
                let mut last = 0;
                for list in 0..view.directory.list_count() {
                    let is_here = placement.replicas(list) >> server & 1 == 1;
                    *held += u32::from(is_here);
                    for at in extents(&view, list) {
                        let whole = &source.lists[at.offset as usize..at.end() as usize];
                        let found = read(&shard, at);
                        assert_eq!(
                            found.as_deref(),
                            is_here.then_some(whole),
                            "{local:?}, list {list}, {at:?}"
                        );
                        last = last.max(shard.locate(at).map_or(0, |at| at.end()));
                    }
                }
                assert!(part.len() as u64 - last < 2 * PAGE, "nothing else is in the file");
                assert_eq!(shard.held(), *held);
                let account = shard.account();
                assert!(account.total() <= shard.manifest().planned_account(0).total() + table_bytes(&shard));
            }
            let spread = shard(dir.path(), 0).manifest().spread.clone().unwrap();
            assert_eq!((spread.held, report.unit), (held.clone(), "lists"));
            assert_eq!(report.copies, u64::from(held.iter().sum::<u32>()));
            assert_eq!(report.blocks as usize, placement.all().len());
            let first = shard(dir.path(), 0);
            let cut = cut_share(&lists(&first.view(u64::MAX)), &placement);
            assert_eq!((report.cut_share, spread.cut_share), (cut, cut));
            assert_eq!(cut > 0.0, servers > 1);
            assert!(report.largest_over_mean < 1.3, "{report:?}");
            let sound = verify::verify(dir.path(), &Quiet).unwrap();
            let whole = verify::verify(source.built.dir.path(), &Quiet).unwrap();
            assert_eq!(sound.violations, []);
            assert_eq!((sound.nodes, sound.edges, sound.lists), (whole.nodes, whole.edges, whole.lists));
        }
    }
}

/// Memory of the tables of resident lists, which the plan does not count.
fn table_bytes(shard: &Shard) -> u64 {
    let resident: u64 =
        shard.account().components.iter().filter(|c| c.0.ends_with("in RAM")).map(|c| c.1).sum();
    resident + 4 * u64::from(lists(&shard.view(1)).directory.clusters()) + 1024
}

/// Of the edges of the navigation graph between clusters, the share without a common server.
fn cut_share(view: &hybrid_ivf::View<'_>, placement: &Placement) -> f64 {
    let (mut edges, mut cut) = (0, 0);
    for node in 0..view.nav.nodes() {
        for &other in view.nav.list(node) {
            let of = |node: u32| view.nav.cluster_of[node as usize];
            let on = |node: u32| placement.replicas(view.directory.lists_of(of(node)).start);
            if of(node) != of(other) {
                edges += 1;
                cut += u32::from(on(node) & on(other) == 0);
            }
        }
    }
    f64::from(cut) / f64::from(edges)
}

#[test]
fn the_number_of_threads_changes_no_byte() {
    let run = |threads| spread(LocalKind::Ivf, &PartitionOptions { threads, replicas: 2, ..options(3) }).0;
    let (one, three) = (run(1), run(3));
    let (one, three) = (files(one.path()), files(three.path()));
    assert_eq!(one.keys().collect::<Vec<_>>(), three.keys().collect::<Vec<_>>());
    assert!(one.iter().all(|(name, bytes)| three[name] == *bytes));
}

/// Runs a query over the shards, each with its own scratch, beginning at `server`. Reads go through `locate`.
fn hand_over(shards: &[Shard], query: &[u8], params: Params, mut server: usize) -> QueryState {
    let prepared = |server: usize| {
        let mut scratch = Scratch::default();
        scratch.prepare(&shards[server].view(u64::MAX), query);
        scratch
    };
    let mut state = QueryState::new(params, Budget::default());
    let (mut arrived, mut scratch) = (Vec::new(), prepared(server));
    loop {
        let view = shards[server].view(u64::MAX);
        let arrivals: Vec<Arrival<'_>> = arrived
            .iter()
            .map(|(tag, bytes): &(_, Option<Vec<u8>>)| {
                let what = bytes.as_deref().map_or(Arrived::Lost(Loss::Short), Arrived::Bytes);
                Arrival { tag: *tag, what }
            })
            .collect();
        match state.step(&view, &mut scratch, &arrivals) {
            Step::Done => return state,
            Step::HandOver(next) => {
                assert_ne!(usize::from(next), server);
                server = usize::from(next);
                scratch = prepared(server);
                arrived.clear();
            }
            Step::Wait => {
                let wanted = common::wanted(&state);
                arrived = wanted.iter().map(|(tag, of)| (*tag, read(&shards[server], of.at))).collect();
                assert!(arrived.iter().all(|a| a.1.is_some()), "a read of what another server holds");
            }
        }
    }
}

#[test]
fn answers_do_not_depend_on_what_each_server_has_in_ram() {
    let asked = queries(12, DIM);
    for local in LocalKind::ALL {
        let source = source(local);
        let (dir, _) = spread(local, &options(3));
        let on_disk = OpenOptions { head_budget: Some(0), ..OpenOptions::default() };
        // A budget for codes alone, one for all records as well, and a small one, which leaves some on disk.
        let budgets = [
            OpenOptions::default(),
            OpenOptions { ram_budget: Some(64 << 20), ..OpenOptions::default() },
            OpenOptions { head_budget: Some(20 << 10), ..OpenOptions::default() },
        ];
        let whole = Index::open(source.built.dir.path(), on_disk).unwrap();
        for mixed in [[on_disk; 3], budgets, [budgets[1]; 3]] {
            let shards: Vec<Shard> = (0..3).map(|s| Shard::open(dir.path(), s, mixed[s]).unwrap()).collect();
            for (server, shard) in shards.iter().enumerate() {
                let view = shard.view(u64::MAX);
                let (view, here) = (lists(&view), view.base.here.unwrap());
                assert_eq!(usize::from(here.server), server);
                for part in [view.resident, view.resident_records] {
                    let is_foreign = |l: usize| part[l].is_some() && !here.holds(l as u32);
                    assert!(!(0..part.len()).any(is_foreign), "only its own lists are in RAM");
                }
                let count = |part: hybrid_ivf::Resident<'_>| part.iter().flatten().count() as u32;
                let expected = if mixed[server].head_budget == Some(0) { 0 } else { shard.held() };
                let is_small = mixed[server].head_budget == Some(20 << 10);
                assert!(count(view.resident) == expected || is_small && count(view.resident) < expected);
                let has_records = mixed[server].ram_budget.is_some();
                assert_eq!(count(view.resident_records), if has_records { shard.held() } else { 0 });
            }
            for width in [1, 4] {
                let params = Params { width, approach_width: width, ..Params::hybrid_ivf(10, 12) };
                let params = with_lists(params, |own| own.bound_slack = 1.0);
                let mut hand_overs = 0;
                for i in 0..asked.len() {
                    let alone =
                        run_plain(&whole.view(), &source.lists, asked.row(i), params, Budget::default(), 1);
                    let there = hand_over(&shards, asked.row(i), params, i % 3);
                    assert_eq!(there.outcome(), Outcome::Complete, "{local:?}, query {i}");
                    assert_eq!(there.results(), alone.results(), "{local:?}, query {i}");
                    hand_overs += there.stats().hand_overs;
                }
                assert!(hand_overs > 0);
            }
        }
    }
}

#[test]
fn damage_in_any_file_is_noticed() {
    let (dir, _) = spread(LocalKind::Graph, &PartitionOptions { replicas: 2, ..options(3) });
    assert_eq!(verify::verify(dir.path(), &Quiet).unwrap().violations, []);
    for (name, bytes) in files(dir.path()) {
        let path = dir.path().join(&name);
        for at in [9, bytes.len() / 3] {
            // Replaced, not written to: shared files are links to those of the source.
            let mut damaged = bytes.clone();
            damaged[at] ^= 2;
            replace(&path, &damaged);
            let report = verify::verify(dir.path(), &Quiet).unwrap();
            assert!(report.violations.iter().any(|f| f.file == name), "{name}, byte {at}: {report:?}");
            if name.contains("-lists-") {
                let list = report.violations.iter().find(|f| f.file == name && f.list.is_some());
                let offset = list.unwrap_or_else(|| panic!("{name}, byte {at}: {report:?}")).offset;
                assert!(offset.unwrap() <= at as u64, "{name}, byte {at}: {report:?}");
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
    assert_eq!(verify::verify(source(LocalKind::Graph).built.dir.path(), &Quiet).unwrap().violations, []);
}

fn replace(path: &Path, bytes: &[u8]) {
    std::fs::remove_file(path).unwrap();
    std::fs::write(path, bytes).unwrap();
}

#[test]
fn a_file_of_another_server_or_build_is_not_opened() {
    let (dir, _) = spread(LocalKind::Flat, &options(3));
    let (other, _) = spread(LocalKind::Flat, &PartitionOptions { method: Method::Random, ..options(3) });
    let [first, second, theirs] = [(dir.path(), 0), (dir.path(), 1), (other.path(), 0)]
        .map(|(folder, server)| std::fs::read(folder.join(format!("v1-lists-{server:02}.bin"))).unwrap());
    let path = dir.path().join("v1-lists-00.bin");
    let refused = |bytes: &[u8]| {
        std::fs::write(&path, bytes).unwrap();
        let error = Shard::open(dir.path(), 0, OpenOptions::default()).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Corrupt, "{error}");
        assert!(error.message.contains("v1-lists-00.bin"), "{error}");
    };
    refused(&first[..first.len() - 4096]);
    for foreign in [&second, &theirs] {
        refused(foreign);
        // Of the right length, but not its own.
        let mut padded = foreign.clone();
        padded.resize(first.len(), 0);
        refused(&padded);
    }
    // Nothing is resident: no list is taken for another.
    let mut padded = second.clone();
    padded.resize(first.len(), 0);
    std::fs::write(&path, &padded).unwrap();
    let on_disk = OpenOptions { head_budget: Some(0), ..OpenOptions::default() };
    let lost = Shard::open(dir.path(), 0, on_disk).unwrap();
    let view = lost.view(u64::MAX);
    let (view, here) = (lists(&view), view.base.here.unwrap());
    let is_sound = |list: u32| {
        let bytes = read(&lost, extents(&view, list)[0]).unwrap();
        stratann_core::format::inverted_list::ListCodes::verify(&view.shape, list, &bytes).is_some()
    };
    assert!((0..view.directory.list_count()).filter(|&l| here.holds(l)).all(|l| !is_sound(l)));
    std::fs::write(&path, &first).unwrap();
    // A placement of another partition of the same index.
    let placement = dir.path().join("v1-placement.bin");
    std::fs::copy(other.path().join("v1-placement.bin"), &placement).unwrap();
    let error = Shard::open(dir.path(), 0, OpenOptions::default()).unwrap_err();
    assert!(error.kind == ErrorKind::Corrupt && error.message.contains("v1-placement.bin"), "{error}");
}

#[test]
fn a_damaged_source_is_not_spread() {
    let set = Set::new(DType::F32, 8, &clustered(400, 8, 5, 1));
    let options_of = list_options(quick(IndexKind::HybridIvf, Metric::L2), |own| own.clusters = Some(8));
    let built = Built::new(set, &options_of);
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
    let index = source(LocalKind::Flat).built.dir.path();
    let parent = tempfile::tempdir().unwrap();
    let out = parent.path().join("out");
    let refused = |options: &PartitionOptions, word: &str| {
        let error = partition(index, &out, options, &Quiet).unwrap_err();
        assert_eq!(error.kind, ErrorKind::BadInput);
        assert!(error.message.contains(word) && !out.exists(), "{error}");
    };
    refused(&PartitionOptions { overlap: 0.1, ..options(3) }, "overlap is for blocks");
    refused(&PartitionOptions { replicas: 4, ..options(3) }, "replicas is 4");
    refused(&options(41), "has 40 clusters, fewer than 41 servers");
    let error = scatter(index, &out, (&options(3), 3), &Quiet).unwrap_err();
    assert!(error.message.contains("only disk-graph can be divided") && !out.exists(), "{error}");
    let flat = Built::new(common::graph_set(), &quick(IndexKind::Flat, Metric::L2));
    let error = partition(flat.dir.path(), &out, &options(3), &Quiet).unwrap_err();
    assert!(error.message.contains("over servers: disk-graph, hybrid-ivf, grid-ivf"), "{error}");
    let (dir, _) = spread(LocalKind::Flat, &options(3));
    let error = partition(dir.path(), &out, &options(2), &Quiet).unwrap_err();
    assert!(error.message.contains("already") && !out.exists(), "{error}");
    let error = Index::open(dir.path(), OpenOptions::default()).unwrap_err();
    assert!(error.message.contains("none of which holds all of its lists"), "{error}");
}

#[test]
fn a_budget_is_kept_or_refused_with_one_that_works() {
    let index = source(LocalKind::Graph).built.dir.path();
    let parent = tempfile::tempdir().unwrap();
    let out = parent.path().join("out");
    let least = plan(index, &options(8)).unwrap().total();
    let with = |budget| PartitionOptions { ram_budget: Some(budget), ..options(8) };
    let error = partition(index, &out, &with(least - 1), &Quiet).unwrap_err();
    assert!(error.kind == ErrorKind::Budget && !out.exists(), "{error}");
    let mib = |message: &str| {
        let named = message.split("--ram-budget ").nth(1).unwrap();
        named.split("MiB").next().unwrap().parse::<u64>().unwrap()
    };
    partition(index, &out, &with(mib(&error.message) << 20), &Quiet).unwrap();
    let open =
        |budget| Shard::open(&out, 1, OpenOptions { ram_budget: Some(budget), ..OpenOptions::default() });
    let error = open(1 << 20).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Budget);
    let budget = mib(&error.message) << 20;
    let shard = open(budget).unwrap();
    assert!(shard.account().total() <= budget, "{:?}", shard.account());
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
    let (dir, _) = spread(LocalKind::Flat, &options(3));
    let before = files(dir.path());
    let mut stopped = 0;
    for patience in 0.. {
        let again = PartitionOptions { force: true, replicas: 2, ..options(4) };
        let index = source(LocalKind::Flat).built.dir.path();
        match partition(index, dir.path(), &again, &Stop(patience.into())) {
            Ok(_) => break,
            Err(e) => assert_eq!(e.kind, ErrorKind::Interrupted),
        }
        assert_eq!(files(dir.path()), before);
        stopped += 1;
    }
    assert!(stopped > 5, "{stopped}");
    let placement: Placement = shard(dir.path(), 0).placement().clone();
    assert_eq!(placement.servers(), 4);
}
