//! Files of two builds in one folder: it is refused, or queries fail, or the answers are those of the manifest's build.

mod common;

use std::collections::BTreeMap;
use std::path::Path;
use stratann_params::choices::CodePlace;

use common::{Set, clustered, graph_options, list_options, queries, quick, run_plain};
use stratann_core::PAGE;
use stratann_core::format::directory::LocalKind;
use stratann_core::query::{Budget, Extent, Outcome, Params, StoreId};
use stratann_engine::build::{BuildOptions, IndexKind, LocalPlan, build};
use stratann_engine::index::{Index, OpenOptions};
use stratann_engine::kinds::hybrid_ivf::replan::{ReplanOptions, replan};
use stratann_engine::search::{Effort, SearchOptions};
use stratann_engine::spread::{Method, PartitionOptions, Shard, partition};
use stratann_engine::{DType, Metric};
use stratann_storage::Quiet;
use stratann_storage::tier::{Buffer, IoChoice};
use tempfile::TempDir;

type Files = BTreeMap<String, Vec<u8>>;
/// Results of each query; `None` for one that failed. `Err` for a folder that was refused.
type Answers = Result<Vec<Option<Vec<(u64, u32)>>>, String>;

const DIM: usize = 24;
const SERVERS: usize = 3;

fn files(folder: &Path) -> Files {
    let entries = std::fs::read_dir(folder).unwrap().map(|e| e.unwrap());
    let files = entries.filter(|e| e.file_type().unwrap().is_file() && e.file_name() != "lock");
    files.map(|e| (e.file_name().into_string().unwrap(), std::fs::read(e.path()).unwrap())).collect()
}

fn folder_of(files: &Files) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    files.iter().for_each(|(name, bytes)| std::fs::write(dir.path().join(name), bytes).unwrap());
    dir
}

/// Rows of one shape. Sets with different seeds have no row in common.
fn rows(seed: u64) -> Set {
    Set::new(DType::F32, DIM, &clustered(1500, DIM, 12, seed))
}

fn built(set: &Set, options: &BuildOptions) -> Files {
    let dir = tempfile::tempdir().unwrap();
    build(&set.reader(), dir.path(), options, &Quiet).unwrap();
    files(dir.path())
}

fn spread(source: &Files) -> Files {
    let (source, dir) = (folder_of(source), tempfile::tempdir().unwrap());
    let options = PartitionOptions { threads: 1, method: Method::Kmeans, ..PartitionOptions::new(SERVERS) };
    partition(source.path(), dir.path(), &options, &Quiet).unwrap();
    files(dir.path())
}

fn replanned(source: &Files, kind: LocalKind) -> Files {
    let dir = folder_of(source);
    let options = ReplanOptions {
        search_budget: 1 << 30,
        local_plan: LocalPlan::Uniform(kind),
        threads: 1,
        ram_budget: None,
    };
    replan(dir.path(), &options, &Quiet).unwrap();
    files(dir.path())
}

/// Searches a folder with lists, as many as reach every part of it.
fn search(files: &Files, asked: &Set) -> Answers {
    let dir = folder_of(files);
    if files.keys().any(|name| name.ends_with("-placement.bin")) {
        return search_shards(dir.path(), asked);
    }
    // Nothing stays in memory, so that every read is one of the files.
    let options = OpenOptions { head_budget: Some(0), ..OpenOptions::default() };
    let index = Index::open(dir.path(), options).map_err(|e| e.message)?;
    let effort = match index.manifest().kind() {
        Some(IndexKind::HybridIvf) => Effort::Nprobe(20, None, None),
        _ => Effort::SearchList(100, None),
    };
    let options = SearchOptions { k: 5, effort, threads: 1, ..SearchOptions::default() };
    let answers = index.search(&asked.bytes, &options, &Quiet).map_err(|e| e.message)?;
    let failed: Vec<usize> = answers.failed.iter().map(|f| f.0).collect();
    let of = |q: usize| answers.ids[5 * q..5 * q + 5].iter().zip(&answers.distances[5 * q..5 * q + 5]);
    let result = |q: usize| of(q).map(|(id, distance)| (*id, distance.to_bits())).collect();
    Ok((0..asked.len()).map(|q| (!failed.contains(&q)).then(|| result(q))).collect())
}

/// The same over the shards of a partitioned index: each block as the last of its servers reads it.
fn search_shards(folder: &Path, asked: &Set) -> Answers {
    let open = |server| Shard::open(folder, server, OpenOptions::default()).map_err(|e| e.message);
    let shards: Vec<Shard> = (0..SERVERS).map(open).collect::<Result<_, String>>()?;
    let (size, count) = {
        let view = shards[0].view(u64::MAX);
        let own = view.kind.disk_graph().unwrap();
        (own.block.block_bytes, own.blocks)
    };
    let mut blocks = vec![0u8; size * count as usize];
    for shard in &shards {
        let mut tier = shard.tier(4, IoChoice::Pread).unwrap();
        for block in 0..count {
            let at = u64::from(block) * size as u64;
            let whole = Extent { store: StoreId(0), offset: at, bytes: size as u32 };
            let Some(located) = shard.locate(whole) else { continue };
            tier.submit(0, shard.file_ids().of(whole.store), located.offset, Buffer::new(size));
            let mut done = Vec::new();
            tier.poll(true, &mut done).unwrap();
            blocks[at as usize..at as usize + size].copy_from_slice(done[0].buffer.bytes());
        }
    }
    let mut view = shards[0].view(u64::MAX);
    view.base.here = None;
    let params = Params { width: 2, approach_width: 2, ..Params::disk_graph(5, 100) };
    let answer = |q: usize| {
        let state = run_plain(&view, &blocks, asked.row(q), params, Budget::default(), 1);
        let results = || state.results().iter().map(|r| (r.external_id, r.distance.to_bits())).collect();
        (state.outcome() == Outcome::Complete).then(results)
    };
    Ok((0..asked.len()).map(answer).collect())
}

/// Results of the mixtures of one pair.
#[derive(Debug, Default)]
struct Tally {
    mixtures: usize,
    refused: usize,
    failed: usize,
    same: usize,
}

impl Tally {
    fn add(&mut self, expected: &Answers, found: &Answers, what: &str) {
        self.mixtures += 1;
        let Ok(found) = found else {
            self.refused += 1;
            return;
        };
        let expected = expected.as_ref().unwrap();
        let failed = found.iter().filter(|answer| answer.is_none()).count();
        for (q, (found, expected)) in found.iter().zip(expected).enumerate() {
            assert!(found.is_none() || found == expected, "{what}: query {q}: {found:?} {expected:?}");
        }
        if failed > 0 { self.failed += 1 } else { self.same += 1 }
    }
}

/// Puts files of `other` among those of `one`, whole and page by page.
fn mix(one: &Files, other: &Files, asked: &Set) -> Tally {
    let mut tally = Tally::default();
    let expected = search(one, asked);
    assert!(expected.as_ref().unwrap().iter().all(Option::is_some));
    let role = |name: &str| name.split_once('-').map(|(_, role)| role.to_string());
    for (name, bytes) in one {
        let from = other.iter().find(|(n, _)| *n == name || role(n) == role(name));
        let Some((_, from)) = from else { continue };
        let with =
            |content: Vec<u8>| Files::from_iter(one.clone().into_iter().chain([(name.clone(), content)]));
        if name.starts_with("manifest") {
            // The data files are those of the other build.
            let mixed = Files::from_iter(other.clone().into_iter().chain([(name.clone(), bytes.clone())]));
            tally.add(&expected, &search(&mixed, asked), name);
            continue;
        }
        tally.add(&expected, &search(&with(from.clone()), asked), name);
        if !name.contains("blocks") && !name.contains("lists.bin") {
            continue;
        }
        let mut fitted = from.clone();
        fitted.resize(bytes.len(), 0);
        tally.add(&expected, &search(&with(fitted.clone()), asked), name);
        let pages = bytes.len() / PAGE;
        for number in 0..24.min(pages) {
            let at = number * pages / 24.min(pages) * PAGE;
            let mut content = bytes.clone();
            content[at..at + PAGE].copy_from_slice(&fitted[at..at + PAGE]);
            let what = format!("page {} of {name}", at / PAGE);
            tally.add(&expected, &search(&with(content), asked), &what);
        }
    }
    tally
}

#[test]
fn files_of_two_builds_never_give_wrong_answers() {
    let (set, asked) = (rows(1), queries(12, DIM));
    let reseeded = |mut options: BuildOptions| {
        options.seed = 9;
        options
    };
    let lists = |kind| {
        list_options(quick(IndexKind::HybridIvf, Metric::L2), |own| {
            (own.clusters, own.plan) = (Some(20), LocalPlan::Uniform(kind).into());
        })
    };
    let on_disk =
        graph_options(quick(IndexKind::DiskGraph, Metric::Cosine), |own| own.codes = CodePlace::Disk);
    let graph = graph_options(quick(IndexKind::DiskGraph, Metric::L2), |own| own.pages_per_block = Some(2));
    let all = [
        quick(IndexKind::Flat, Metric::L2),
        graph.clone(),
        on_disk,
        lists(LocalKind::Flat),
        lists(LocalKind::Ivf),
        lists(LocalKind::Graph),
    ];
    let mut total = 0;
    let mut check = |one: &Files, other: &Files, name: String| {
        let tally = mix(one, other, &asked);
        assert!(tally.failed > 0, "{name}: {tally:?}");
        total += tally.mixtures;
    };
    for options in &all {
        let one = built(&set, options);
        let name = options.kind().name();
        check(&one, &built(&rows(2), options), format!("{name} of other rows"));
        if options.kind() != IndexKind::Flat {
            check(&one, &built(&set, &reseeded(options.clone())), format!("{name} with another seed"));
        }
    }
    let (one, other) = (built(&set, &graph), built(&rows(2), &graph));
    check(&spread(&one), &spread(&other), "a partitioned disk-graph of other rows".into());
    let before = built(&set, &lists(LocalKind::Flat));
    let after = replanned(&before, LocalKind::Ivf);
    check(&after, &replanned(&after, LocalKind::Graph), "a hybrid-ivf of an earlier version".into());
    assert!(total >= 300, "only {total} mixtures");
}
