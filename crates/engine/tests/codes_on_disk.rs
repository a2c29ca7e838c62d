//! Indexes whose blocks carry the codes: everything is found as with codes in RAM, on one server and on several, and
//! nothing but the place of the codes differs.

mod common;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use stratann_params::build::GraphOptions;
use stratann_params::choices::CodePlace;
use stratann_params::search::GraphSwitches;

use common::{
    Built, Impatient, Set, clustered, graph_options, hits, nearest, queries, quick, run, run_plain,
};
use stratann_core::format::block::Block;
use stratann_core::format::seeded_checksum;
use stratann_core::query::wire::{Carry, decode, encode};
use stratann_core::query::{Budget, Mode, Outcome, Params, QueryState, QueryStats, Scratch};
use stratann_engine::build::{BuildOptions, IndexKind, build};
use stratann_engine::exec::Width;
use stratann_engine::index::{Index, OpenOptions};
use stratann_engine::search::{Effort, SearchOptions};
use stratann_engine::spread::scatter::scatter;
use stratann_engine::spread::{Method, PartitionOptions, Shard, partition};
use stratann_engine::{DType, Metric, verify};
use stratann_storage::{ErrorKind, Quiet};

/// Room for whole lists, so that nothing is cut from them wherever the codes are.
fn roomy(metric: Metric, codes: CodePlace) -> BuildOptions {
    graph_options(quick(IndexKind::DiskGraph, metric), |own| {
        own.codes = codes;
        own.nodes_per_block = Some(4);
        own.pages_per_block = Some(2);
        own.code_bytes = Some(14);
    })
}

fn files(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = std::fs::read_dir(folder).unwrap().flatten().filter(|e| e.path().is_file());
    entries.map(|e| (e.file_name().into_string().unwrap(), std::fs::read(e.path()).unwrap())).collect()
}

struct Pair {
    ram: Built,
    disk: Built,
}

impl Pair {
    fn new(set: &Set, metric: Metric) -> Pair {
        let made = [CodePlace::Ram, CodePlace::Disk].map(|codes| {
            let dir = tempfile::tempdir().unwrap();
            let report = build(&set.reader(), dir.path(), &roomy(metric, codes), &Quiet).unwrap();
            assert_eq!(report.facts["cut_share"], 0.0, "{codes:?}: lists were cut");
            let index = Index::open(dir.path(), OpenOptions::default()).unwrap();
            Built { dir, index, set: set.clone() }
        });
        let [ram, disk] = made;
        Pair { ram, disk }
    }
}

fn pair() -> &'static Pair {
    static PAIR: OnceLock<Pair> = OnceLock::new();
    PAIR.get_or_init(|| Pair::new(&common::graph_set(), Metric::L2))
}

#[test]
fn only_the_place_of_the_codes_differs() {
    let (ram, disk) = (files(pair().ram.dir.path()), files(pair().disk.dir.path()));
    for shared in ["v1-codebook.bin", "v1-map.bin", "v1-head.bin"] {
        assert!(ram[shared] == disk[shared], "{shared}");
    }
    assert!(ram.contains_key("v1-codes.bin") && !ram.contains_key("v1-head-codes.bin"));
    assert!(!disk.contains_key("v1-codes.bin") && disk.contains_key("v1-head-codes.bin"));
    let codes = &ram["v1-codes.bin"];
    let view = pair().disk.index.view();
    let (mut ids, mut lists) = (Vec::new(), [Vec::new(), Vec::new()]);
    let own = view.kind.disk_graph().unwrap();
    let size = own.block.block_bytes;
    let blocks = ram["v1-blocks.bin"].chunks_exact(size).zip(disk["v1-blocks.bin"].chunks_exact(size));
    for (plain, bytes) in blocks {
        let plain = Block::open(pair().ram.index.view().kind.disk_graph().unwrap().block, plain).unwrap();
        let block = Block::open(own.block, bytes).unwrap();
        block.coded_ids(&mut ids).unwrap();
        let held = block.codes().chunks_exact(14);
        assert!(ids.iter().zip(held).all(|(&id, code)| *code == codes[id as usize * 14..][..14]));
        assert_eq!((block.count(), block.first_id()), (plain.count(), plain.first_id()));
        for slot in 0..block.count() {
            lists.iter_mut().for_each(Vec::clear);
            plain.neighbours(slot, &mut lists[0]).unwrap();
            block.neighbours(slot, &mut lists[1]).unwrap();
            assert_eq!(lists[0], lists[1]);
            assert_eq!(
                (block.vector(slot), block.external_id(slot)),
                (plain.vector(slot), plain.external_id(slot))
            );
        }
    }
    let of_head: Vec<u8> = pair()
        .disk
        .index
        .view()
        .kind
        .disk_graph()
        .unwrap()
        .head
        .ids
        .iter()
        .flat_map(|&id| &codes[id as usize * 14..][..14])
        .copied()
        .collect();
    assert!(disk["v1-head-codes.bin"] == of_head);
}

#[test]
fn answers_and_counters_are_those_with_codes_in_ram() {
    for (dtype, metric) in [
        (DType::F32, Metric::L2),
        (DType::F16, Metric::Cosine),
        (DType::U8, Metric::L2),
        (DType::I8, Metric::Ip),
    ] {
        let set = Set::new(dtype, 20, &clustered(2500, 20, 10, 1));
        let asked = Set::new(dtype, 20, &clustered(30, 20, 10, 2));
        let pair = Pair::new(&set, metric);
        for (list, width, head, whole_blocks, patience) in
            [(20, 1, true, true, 0), (60, 1, true, true, 4), (40, 4, false, true, 0), (40, 8, true, false, 0)]
        {
            let options = SearchOptions {
                effort: Effort::SearchList(list, None),
                width: Width::Fixed(width),
                switches: GraphSwitches {
                    head,
                    whole_blocks,
                    patience: Some(patience),
                    ..GraphSwitches::default()
                }
                .into(),
                ..SearchOptions::default()
            };
            let [ram, disk] =
                [&pair.ram, &pair.disk].map(|b| b.index.search(&asked.bytes, &options, &Quiet).unwrap());
            assert_eq!(ram.ids, disk.ids, "{dtype:?} {metric:?} L = {list}");
            let bits = |d: &[f32]| d.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            assert_eq!(bits(&ram.distances), bits(&disk.distances));
            assert_eq!(ram.stats, disk.stats);
        }
    }
}

#[test]
fn what_is_left_in_ram_is_small() {
    let account = |built: &Built| {
        let account = built.index.account();
        assert!(account.total() <= built.index.manifest().planned_account(0).total() + 1024);
        account.components.into_iter().collect::<BTreeMap<_, u64>>()
    };
    let (ram, disk) = (account(&pair().ram), account(&pair().disk));
    assert_eq!((ram["codes"], ram.get("head codes")), (3000 * 14, None));
    assert_eq!((disk.get("codes"), disk["head codes"]), (None, 150 * 14));
    assert!(!pair().ram.index.manifest().to_text().unwrap().contains("\"codes\""));
    assert_eq!(pair().disk.index.manifest().build["codes"], "disk");
}

#[test]
fn a_state_travels_with_its_distances() {
    let place = &pair().disk;
    let (view, blocks, asked) = (place.index.view(), place.blocks(), queries(10, 24));
    let params = Params { width: 2, ..Params::disk_graph(10, 40) };
    for q in 0..asked.len() {
        let stayed = run_plain(&view, &blocks, asked.row(q), params, Budget::default(), 1);
        let travel = |carry: Carry| {
            let state = QueryState::new(params, Budget::default());
            run(&view, &blocks, asked.row(q), state, 1, |state, scratch, _| {
                let mut bytes = Vec::new();
                encode(&state, carry, &mut bytes);
                *scratch = Scratch::default();
                scratch.prepare(&view, asked.row(q));
                decode(&bytes).unwrap()
            })
        };
        let travelled = travel(Carry::Distances);
        assert_eq!((travelled.outcome(), travelled.results()), (stayed.outcome(), stayed.results()));
        let QueryStats { repeats, code_comparisons, .. } = *travelled.stats();
        assert_eq!(travelled.stats().met(), stayed.stats().met());
        assert_eq!(*travelled.stats(), QueryStats { repeats, code_comparisons, ..*stayed.stats() });
    }
    // What comes without, and is not refused at the door, looks again from the start, as long as its budget lasts.
    let mut state =
        run_plain(&view, &blocks, asked.row(0), params, Budget { reads: 3, ..Budget::default() }, 1);
    assert_eq!(state.outcome(), Outcome::OutOfBudget);
    assert!(state.has_distances());
    state = QueryState::new(params, Budget { reads: 500, ..Budget::default() });
    let mut revived = 0;
    let ended = run(&view, &blocks, asked.row(0), state, 1, |state, _, _| {
        revived += 1;
        if revived != 3 {
            return state;
        }
        let mut bytes = Vec::new();
        encode(&state, Carry::Ids, &mut bytes);
        let state = decode(&bytes).unwrap();
        assert!(!state.has_distances());
        state
    });
    let alone = run_plain(&view, &blocks, asked.row(0), params, Budget::default(), 1);
    assert_eq!((ended.outcome(), ended.results()), (Outcome::Complete, alone.results()));
    assert!(ended.stats().reads > alone.stats().reads);
}

#[test]
fn any_order_of_arrival_is_taken() {
    let place = &pair().disk;
    let (view, blocks, asked) = (place.index.view(), place.blocks(), queries(5, 24));
    for mode in [Mode::Barrier, Mode::Eager] {
        let params = Params { width: 8, approach_width: 4, mode, ..Params::disk_graph(10, 60) };
        for q in 0..asked.len() {
            let ends = [1, 2, 3].map(|seed| {
                let ended = run_plain(&view, &blocks, asked.row(q), params, Budget::default(), seed);
                assert_eq!(ended.outcome(), Outcome::Complete);
                ended.results().to_vec()
            });
            assert!(mode == Mode::Eager || ends.iter().all(|e| *e == ends[0]));
        }
    }
}

#[test]
fn defaults_fit_and_find() {
    for (dtype, dim, metric) in [
        (DType::F32, 24, Metric::L2),
        (DType::U8, 128, Metric::L2),
        (DType::F16, 384, Metric::Cosine),
        (DType::F32, 2, Metric::Ip),
        (DType::F32, 1500, Metric::L2),
    ] {
        let rows = if dim > 1000 { 300 } else { 1500 };
        let set = Set::new(dtype, dim, &clustered(rows, dim, 10, 1));
        let options = graph_options(quick(IndexKind::DiskGraph, metric), |own| {
            own.codes = CodePlace::Disk;
        });
        let dir = tempfile::tempdir().unwrap();
        let report = build(&set.reader(), dir.path(), &options, &Quiet).unwrap();
        let cut = report.facts["cut_share"].as_f64().unwrap();
        assert!(cut < 0.12, "{dtype:?} × {dim}: {cut} of the edges are cut, {:?}", report.facts);
        let report = verify::verify(dir.path(), &Quiet).unwrap();
        assert_eq!(report.violations, []);
        let index = Index::open(dir.path(), OpenOptions::default()).unwrap();
        let asked = Set::new(dtype, dim, &clustered(20, dim, 10, 2));
        let search = SearchOptions { effort: Effort::SearchList(100, None), ..SearchOptions::default() };
        let answers = index.search(&asked.bytes, &search, &Quiet).unwrap();
        let of_query = |q: usize| {
            hits(&answers.ids[q * 10..(q + 1) * 10], &nearest(&set, metric, asked.row(q), 10, |_| false))
        };
        let found: usize = (0..20).map(of_query).sum();
        assert!(found >= 185, "{dtype:?} × {dim}: {found} of 200");
    }
}

#[test]
fn tiny_sets_give_all_they_have() {
    for rows in [1, 2, 5, 40] {
        let set = Set::new(DType::F32, 9, &clustered(rows, 9, 3, 1));
        let options =
            graph_options(quick(IndexKind::DiskGraph, Metric::L2), |own| own.codes = CodePlace::Disk);
        let built = Built::new(set.clone(), &options);
        assert_eq!(verify::verify(built.dir.path(), &Quiet).unwrap().violations, []);
        let search =
            SearchOptions { k: 50, effort: Effort::SearchList(50, None), ..SearchOptions::default() };
        let mut ids = built.index.search(set.row(0), &search, &Quiet).unwrap().ids;
        ids.sort_unstable();
        assert_eq!(ids, (0..rows as u64).collect::<Vec<_>>());
    }
}

#[test]
fn what_cannot_be_asked_for_is_refused() {
    let set = Set::new(DType::F32, 1500, &clustered(40, 1500, 3, 1));
    let refused = |change: fn(&mut GraphOptions), word: &str| {
        let options = graph_options(quick(IndexKind::DiskGraph, Metric::L2), |own| {
            own.codes = CodePlace::Disk;
            change(own);
        });
        let dir = tempfile::tempdir().unwrap();
        let error = build(&set.reader(), dir.path(), &options, &Quiet).unwrap_err();
        assert_eq!(error.kind, ErrorKind::BadInput, "{error}");
        assert!(error.message.contains(word), "{error}");
    };
    refused(|own| own.pages_per_block = Some(0), "--pages-per-block is 0");
    refused(|own| own.pages_per_block = Some(17), "--pages-per-block is 17");
    refused(|own| own.pages_per_block = Some(1), "--pages-per-block is 1; one node takes");
    refused(|own| own.nodes_per_block = Some(0), "--nodes-per-block is 0");
    refused(|own| own.nodes_per_block = Some(400), "--nodes-per-block is 400; at most");
    let error = pair().disk.index.carry(Some(Carry::Ids)).unwrap_err();
    assert!(error.message.contains("--carry distances"), "{error}");
    assert_eq!(pair().disk.index.carry(None).unwrap(), Carry::Distances);
    assert_eq!(pair().ram.index.carry(None).unwrap(), Carry::Ids);
}

fn replace(path: &Path, bytes: &[u8]) {
    std::fs::remove_file(path).unwrap();
    std::fs::write(path, bytes).unwrap();
}

#[test]
fn a_flipped_code_is_found() {
    let built = Built::new(common::graph_set(), &roomy(Metric::L2, CodePlace::Disk));
    let path = common::blocks_path(built.dir.path());
    let good = std::fs::read(&path).unwrap();
    let view = built.index.view();
    let own = view.kind.disk_graph().unwrap();
    let size = own.block.block_bytes;
    // In the last block the code of a node that earlier blocks know, with a checksum that fits.
    let last = own.blocks - 1;
    let mut ids = Vec::new();
    let bytes = &good[last as usize * size..];
    let block = Block::open(own.block, bytes).unwrap();
    block.coded_ids(&mut ids).unwrap();
    let code = &block.codes()[..14];
    let at = bytes.windows(14).position(|w| w == code).unwrap();
    let mut bad = good.clone();
    let forged = &mut bad[last as usize * size..];
    forged[at + 3] ^= 4;
    let sum = seeded_checksum(own.block.checksum_seed, &forged[8..]);
    forged[..8].copy_from_slice(&sum.to_le_bytes());
    replace(&path, &bad);
    let report = verify::verify(built.dir.path(), &Quiet).unwrap();
    let found = report.violations.iter().find(|f| f.block == Some(last)).unwrap();
    assert_eq!(found.what, format!("the code of node {} is not the one that it has elsewhere", ids[0]));
    assert_eq!(found.offset, Some(u64::from(last) * size as u64));
    // Without a fitting checksum the block is damaged as any other.
    let mut bad = good.clone();
    bad[last as usize * size + at] ^= 4;
    replace(&path, &bad);
    let report = verify::verify(built.dir.path(), &Quiet).unwrap();
    assert!(report.violations.iter().any(|f| f.block == Some(last) && f.what.contains("checksum")));
    replace(&path, &good);
    // The head graph's codes.
    let path = built.dir.path().join("v1-head-codes.bin");
    let good = std::fs::read(&path).unwrap();
    let mut bad = good.clone();
    bad[20] ^= 1;
    replace(&path, &bad);
    assert!(
        verify::verify(built.dir.path(), &Quiet)
            .unwrap()
            .violations
            .iter()
            .any(|f| f.file == "v1-head-codes.bin")
    );
    assert_eq!(Index::open(built.dir.path(), OpenOptions::default()).unwrap_err().kind, ErrorKind::Corrupt);
    replace(&path, &good[..good.len() - 14]);
    assert_eq!(Index::open(built.dir.path(), OpenOptions::default()).unwrap_err().kind, ErrorKind::Corrupt);
    std::fs::remove_file(&path).unwrap();
    assert!(Index::open(built.dir.path(), OpenOptions::default()).is_err());
}

#[test]
fn a_build_that_was_stopped_anywhere_resumes_to_the_same_bytes() {
    let set = common::graph_set();
    let quick = quick(IndexKind::DiskGraph, Metric::L2);
    let own = graph_options(quick, |own| (own.codes, own.cells) = (CodePlace::Disk, Some(3)));
    let options = BuildOptions { calibration_queries: 20, ..own };
    let whole = tempfile::tempdir().unwrap();
    let count = Impatient { asked: AtomicU64::new(0), patience: u64::MAX };
    build(&set.reader(), whole.path(), &options, &count).unwrap();
    let expected = files(whole.path());
    let one = tempfile::tempdir().unwrap();
    build(&set.reader(), one.path(), &BuildOptions { threads: 1, ..options.clone() }, &Quiet).unwrap();
    assert!(files(one.path()) == expected, "the number of threads changes bytes");
    let asked = count.asked.load(Ordering::Relaxed);
    for patience in (1..16).map(|i| asked * i / 16) {
        let dir = tempfile::tempdir().unwrap();
        let stop = Impatient { asked: AtomicU64::new(0), patience };
        match build(&set.reader(), dir.path(), &options, &stop) {
            Err(error) => assert_eq!(error.kind, ErrorKind::Interrupted, "{error}"),
            // How often is asked depends on the threads.
            Ok(_) => continue,
        }
        let resumed = BuildOptions { resume: true, ..options.clone() };
        build(&set.reader(), dir.path(), &resumed, &Quiet).unwrap();
        assert!(files(dir.path()) == expected, "patience {patience}");
    }
}

#[test]
fn a_spread_index_has_its_codes_with_its_blocks() {
    let source = pair();
    let cells = cfg!(feature = "metis").then_some(Method::Cells);
    for method in [Method::Random, Method::Kmeans].into_iter().chain(cells) {
        let [ram, disk] = [&source.ram, &source.disk].map(|built| {
            let dir = tempfile::tempdir().unwrap();
            let options = PartitionOptions { method, threads: 2, ..PartitionOptions::new(5) };
            partition(built.dir.path(), dir.path(), &options, &Quiet).unwrap();
            assert_eq!(verify::verify(dir.path(), &Quiet).unwrap().violations, []);
            dir
        });
        let open = |dir: &Path| Shard::open(dir, 2, OpenOptions::default()).unwrap();
        // Means of blocks are means of the same codes.
        assert_eq!(open(ram.path()).placement(), open(disk.path()).placement(), "{method:?}");
        let shard = open(disk.path());
        assert!(!shard.account().components.iter().any(|c| c.0 == "codes"));
        assert!(shard.account().total() <= shard.manifest().planned_account(0).total() + 1024);
        let names: Vec<String> = files(disk.path()).into_keys().collect();
        assert!(
            names.contains(&"v1-head-codes.bin".into()) && !names.contains(&"v1-codes.bin".into()),
            "{names:?}"
        );
    }
    let damaged = Built::new(common::graph_set(), &roomy(Metric::L2, CodePlace::Disk));
    let path = common::blocks_path(damaged.dir.path());
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[100_000] ^= 1;
    replace(&path, &bytes);
    let out = tempfile::tempdir().unwrap();
    for method in [Method::Kmeans].into_iter().chain(cells) {
        let options = PartitionOptions { method, ..PartitionOptions::new(3) };
        let error = partition(damaged.dir.path(), &out.path().join("out"), &options, &Quiet).unwrap_err();
        assert!(error.kind == ErrorKind::Corrupt && error.message.contains("v1-blocks.bin"), "{error}");
    }
}

#[test]
fn separate_indexes_keep_the_place_of_their_codes() {
    let parent = tempfile::tempdir().unwrap();
    let out = parent.path().join("apart");
    let options = PartitionOptions { threads: 2, method: Method::Kmeans, ..PartitionOptions::new(2) };
    scatter(pair().disk.dir.path(), &out, (&options, 2), &Quiet).unwrap();
    for server in 0..2 {
        let folder = stratann_engine::spread::scatter::server_folder(&out, server);
        let index = Index::open(&folder, OpenOptions::default()).unwrap();
        let (source, made) = (pair().disk.index.manifest(), index.manifest());
        assert_eq!((made.blocks.code_bytes, made.blocks.bytes), (14, source.blocks.bytes));
        assert_eq!(made.build["codes"], "disk");
    }
}
