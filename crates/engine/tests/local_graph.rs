//! Clusters that are graphs: bounds change neither the walk nor an answer, damaged edges are never an answer.

mod common;

use std::path::Path;
use std::sync::{Arc, OnceLock};
use stratann_params::choices::BoundsName;
use stratann_params::search::ListSwitches;

use common::{Set, clustered, list_options, quick, run_plain, with_lists};
use proptest::prelude::*;
use stratann_core::exact::Bounds;
use stratann_core::format::checksum;
use stratann_core::format::directory::LocalKind;
use stratann_core::format::edges::{edge_bytes, write_edges};
use stratann_core::kinds::hybrid_ivf::MAX_PROBES;
use stratann_core::query::{Budget, Mode, Outcome, Params};
use stratann_engine::build::{IndexKind, LocalPlan, build};
use stratann_engine::exec::Width;
use stratann_engine::groundtruth;
use stratann_engine::index::{Index, OpenOptions};
use stratann_engine::manifest::Manifest;
use stratann_engine::search::{Answers, Effort, SearchOptions};
use stratann_engine::{DType, Metric, verify};
use stratann_storage::Quiet;
use stratann_storage::durable::hex;
use tempfile::TempDir;

const METRICS: [Metric; 3] = [Metric::L2, Metric::Cosine, Metric::Ip];
const LISTS: &str = "v1-lists.bin";

fn open(folder: &Path) -> Index {
    Index::open(folder, OpenOptions { head_budget: Some(64 << 20), ..OpenOptions::default() }).unwrap()
}

fn built(set: &Set, metric: Metric, clusters: usize) -> (TempDir, Index) {
    let dir = tempfile::tempdir().unwrap();
    let options = list_options(quick(IndexKind::HybridIvf, metric), |own| {
        own.clusters = Some(clusters);
        own.plan = LocalPlan::Uniform(LocalKind::Graph).into();
    });
    build(&set.reader(), dir.path(), &options, &Quiet).unwrap_or_else(|e| panic!("{options:?}: {e}"));
    let index = open(dir.path());
    (dir, index)
}

/// Visits so many clusters with beams of `list`.
fn visit(k: usize, clusters: u32, list: u32, bounds: BoundsName) -> SearchOptions {
    SearchOptions {
        k,
        effort: Effort::Nprobe(clusters, None, None),
        switches: ListSwitches { bounds, local_list: Some(list), ..ListSwitches::default() }.into(),
        width: Width::Fixed(1),
        ..SearchOptions::default()
    }
}

fn search(index: &Index, asked: &[u8], options: &SearchOptions) -> Answers {
    let answers = index.search(asked, options, &Quiet).unwrap();
    assert!(answers.failed.is_empty(), "{options:?}: {:?}", answers.failed);
    answers
}

/// The same members are met with every bound, and what is discarded is not among the best of them.
fn assert_bounds_are_lossless(index: &Index, asked: &[u8], options: &SearchOptions) -> Answers {
    let all = search(index, asked, options);
    for bounds in [BoundsName::Centroid, BoundsName::Code, BoundsName::Both] {
        let mut options = *options;
        options.switches = ListSwitches { bounds, ..options.switches.own() }.into();
        let some = search(index, asked, &options);
        assert_eq!((&some.ids, &some.distances), (&all.ids, &all.distances), "{options:?}");
        let walk = |a: &Answers| (a.stats.clusters, a.stats.expanded, a.stats.edge_reads);
        assert_eq!(walk(&some), walk(&all), "{options:?}");
        assert!(some.stats.full_comparisons <= all.stats.full_comparisons, "{options:?}");
    }
    all
}

#[test]
fn bounds_change_no_answer_and_no_step_of_a_walk() {
    let (rows, asked) = (clustered(2500, 20, 10, 1), clustered(12, 20, 10, 2));
    for dtype in [DType::F32, DType::U8] {
        let (set, asked) = (Set::new(dtype, 20, &rows), Set::new(dtype, 20, &asked));
        for metric in METRICS {
            let (dir, index) = built(&set, metric, 8);
            let report = verify::verify(dir.path(), &Quiet).unwrap();
            assert_eq!((report.violations.as_slice(), report.nodes), (&[][..], 2500), "{dtype:?} {metric:?}");
            assert!(report.edges > 2500 * 4, "{} edges", report.edges);
            for (clusters, list, width) in [(1, 1, 1), (2, 10, 4), (5, 40, 1), (MAX_PROBES, 64, 8)] {
                let mut options = visit(10, clusters, list, BoundsName::Off);
                options.width = Width::Fixed(width);
                // What a visit brings shows in the codes, whatever is read.
                options.effort = Effort::Nprobe(clusters, None, Some(0.25));
                assert_bounds_are_lossless(&index, &asked.bytes, &options);
                options.effort = Effort::Nprobe(clusters, None, None);
                let all = assert_bounds_are_lossless(&index, &asked.bytes, &options);
                let both = search(&index, &asked.bytes, &visit(10, clusters, list, BoundsName::Both));
                assert!(both.stats.edge_reads > 0 && both.stats.pruned > 0);
                assert!(both.stats.record_reads * 2 < all.stats.full_comparisons);
            }
        }
    }
}

#[test]
fn a_walk_through_every_cluster_finds_most() {
    let (set, asked) = (Set::new(DType::F32, 24, &clustered(6000, 24, 12, 1)), clustered(40, 24, 12, 2));
    let asked = Set::new(DType::F32, 24, &asked);
    for metric in METRICS {
        let (_dir, index) = built(&set, metric, 6);
        let truth = groundtruth::exact(&set.reader(), &asked.reader(), metric, 10, 1 << 30, &Quiet).unwrap();
        let recall = |list| {
            let mut options = visit(10, MAX_PROBES, list, BoundsName::Both);
            // Where walks begin is left to the entries.
            options.switches = ListSwitches { votes: Some(1), ..options.switches.own() }.into();
            let answers = search(&index, &asked.bytes, &options);
            let found = answers.ids.chunks(10).zip(truth.ids.chunks(10));
            let found: usize =
                found.map(|(a, t)| t.iter().filter(|&&id| a.contains(&u64::from(id))).count()).sum();
            // Far less than the codes of all.
            (found as f64 / 400.0, answers.stats.code_comparisons as f64 / 40.0)
        };
        let ((few, _), (many, looked_at)) = (recall(10), recall(64));
        assert!(many >= 0.9 && many >= few, "{metric:?}: {few} and {many}");
        assert!(looked_at < 5000.0, "{metric:?}: {looked_at} codes of 6000");
    }
}

#[test]
fn threads_and_queries_in_flight_change_no_answer_and_no_counter() {
    let place = place();
    for width in [1, 4] {
        let ask = |threads, in_flight| {
            let options = SearchOptions {
                effort: Effort::Nprobe(12, Some(2.0), Some(0.5)),
                threads,
                in_flight: Some(in_flight),
                width: Width::Fixed(width),
                ..SearchOptions::default()
            };
            let answers = search(&place.index, &place.asked.bytes, &options);
            (answers.ids, answers.distances, answers.stats)
        };
        let one = ask(1, 1);
        assert!(one.2.edge_reads > 0 && one == ask(2, 16) && one == ask(4, 3));
    }
}

/// A few thousand rows that several tests share.
struct Place {
    dir: TempDir,
    index: Index,
    asked: Set,
    bytes: Arc<Vec<u8>>,
}

fn place() -> &'static Place {
    static PLACE: OnceLock<Place> = OnceLock::new();
    PLACE.get_or_init(|| {
        let (dir, index) = built(&Set::new(DType::F32, 24, &clustered(3000, 24, 12, 1)), Metric::L2, 20);
        let bytes = Arc::new(std::fs::read(dir.path().join(LISTS)).unwrap());
        Place { dir, index, asked: Set::new(DType::F32, 24, &clustered(20, 24, 12, 2)), bytes }
    })
}

fn params(width: u32, mode: Mode, bounds: Bounds) -> Params {
    let params = Params { width, approach_width: width, mode, ..Params::hybrid_ivf(10, 12) };
    with_lists(params, |own| own.bounds = bounds)
}

#[test]
fn the_order_of_arrival_changes_nothing_behind_a_barrier_and_little_without() {
    let place = place();
    let (mut same, mut asked) = (0, 0);
    for q in 0..place.asked.len() {
        let ask = |mode, seed| {
            let params = params(4, mode, Bounds::Both);
            let row = place.asked.row(q);
            run_plain(&place.index.view(), &place.bytes, row, params, Budget::default(), seed)
        };
        let first = ask(Mode::Barrier, 1);
        assert_eq!((first.outcome(), first.results().len()), (Outcome::Complete, 10));
        for seed in 2..5 {
            let other = ask(Mode::Barrier, seed);
            assert_eq!((other.results(), other.stats()), (first.results(), first.stats()));
            let eager = ask(Mode::Eager, seed);
            assert_eq!(eager.outcome(), Outcome::Complete);
            asked += 10;
            same += first.results().iter().filter(|hit| eager.results().contains(hit)).count();
        }
    }
    assert!(same as f64 > 0.9 * f64::from(asked), "{same} of {asked}");
}

/// Codes that are in RAM for some clusters only: those of the others are read before the walk, which is the same.
#[test]
fn codes_that_do_not_fit_in_ram_are_read_before_the_walk() {
    let place = place();
    let options = visit(10, MAX_PROBES, 64, BoundsName::Both);
    let found = [0, 20 << 10, 64 << 20].map(|head_budget| {
        let index = Index::open(
            place.dir.path(),
            OpenOptions { head_budget: Some(head_budget), ..OpenOptions::default() },
        )
        .unwrap();
        search(&index, &place.asked.bytes, &options)
    });
    let walk =
        |a: &Answers| (a.stats.edge_reads, a.stats.record_reads, a.stats.code_comparisons, a.ids.clone());
    assert!(found[1..].iter().all(|a| walk(a) == walk(&found[0])));
    let head_reads = found.each_ref().map(|a| a.stats.reads - a.stats.edge_reads - a.stats.record_reads);
    assert!(head_reads[0] > head_reads[1] && head_reads[1] > head_reads[2] && head_reads[2] == 0);
}

#[test]
fn a_budget_ends_a_walk() {
    let place = place();
    let params = params(1, Mode::Barrier, Bounds::Both);
    for (hops, reads) in [(1, 1000), (1000, 1), (3, 3), (1000, 0)] {
        let budget = Budget { hops, reads, ..Budget::default() };
        let state = run_plain(&place.index.view(), &place.bytes, place.asked.row(0), params, budget, 1);
        assert_eq!(state.outcome(), Outcome::OutOfBudget);
        assert!(state.stats().reads <= u64::from(reads));
    }
}

/// Rows that are hard on roundings, codes or graphs.
fn odd_rows(what: u32, dim: usize, seed: u64) -> Vec<f32> {
    let rows = clustered(200, dim, 6, seed);
    match what {
        0 => (0..200).flat_map(|i| rows[i % 7 * dim..(i % 7 + 1) * dim].to_vec()).collect(),
        1 => rows[..dim].repeat(200),
        2 => rows.iter().map(|x| x + 20_000.0).collect(),
        3 => rows.iter().map(|x| x * 1e-5).collect(),
        4 => rows.iter().map(|x| x * 1e6 + 1e7).collect(),
        // Many of one vector, the others apart.
        5 => (0..200)
            .flat_map(|i| if i < 120 { rows[..dim].to_vec() } else { rows[i * dim..(i + 1) * dim].to_vec() })
            .collect(),
        _ => rows
            .iter()
            .enumerate()
            .map(|(i, x)| if (i / dim).is_multiple_of(2) { x * 1e-3 } else { x * 1e3 })
            .collect(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn odd_data_is_walked_through_without_loss(
        what in 0u32..7,
        dim in 1usize..24,
        clusters in prop_oneof![Just(1usize), Just(200), 2usize..20],
        metric in prop_oneof![Just(Metric::L2), Just(Metric::Cosine), Just(Metric::Ip)],
        k in prop_oneof![Just(1usize), Just(10), Just(200)],
        list in 1u32..60,
        seed in 0u64..1000,
    ) {
        let rows = odd_rows(what, dim, seed);
        let set = Set::new(DType::F32, dim, &rows);
        let (dir, index) = built(&set, metric, clusters);
        prop_assert_eq!(verify::verify(dir.path(), &Quiet).unwrap().violations, []);
        let mut asked: Vec<f32> = rows[..2 * dim].to_vec();
        asked.extend(&odd_rows(what, dim, seed + 1)[..3 * dim]);
        let asked = Set::new(DType::F32, dim, &asked);
        let answers = assert_bounds_are_lossless(&index, &asked.bytes, &visit(k, MAX_PROBES, list, BoundsName::Off));
        // As many as there are: every member can be reached.
        for ids in answers.ids.chunks(answers.k) {
            let mut ids = ids.to_vec();
            ids.sort_unstable();
            ids.dedup();
            prop_assert_eq!((ids.len(), ids.last().copied().is_some_and(|id| id < 200)), (k, true));
        }
    }
}

/// A copy that a test may damage.
fn copy() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(place().dir.path()).unwrap().flatten() {
        std::fs::copy(entry.path(), dir.path().join(entry.file_name())).unwrap();
    }
    dir
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 120, failure_persistence: None, ..ProptestConfig::default() })]

    /// A directory that a manifest vouches for: refused, or walked through without a panic.
    #[test]
    fn a_senseless_directory_never_ends_the_program(
        at in prop_oneof![0usize..12, any::<usize>()],
        to in prop_oneof![any::<u32>(), 0u32..4000, Just(u32::MAX), Just(0)],
    ) {
        let dir = copy();
        let name = "v1-directory.bin";
        let mut bytes = std::fs::read(dir.path().join(name)).unwrap();
        let at = at % (bytes.len() / 4) * 4;
        bytes[at..at + 4].copy_from_slice(&to.to_le_bytes());
        std::fs::write(dir.path().join(name), &bytes).unwrap();
        vouch_for(dir.path(), name, &bytes);
        let open = Index::open(dir.path(), OpenOptions { head_budget: Some(64 << 20), ..OpenOptions::default() });
        if let Ok(index) = open {
            index.search(&place().asked.bytes, &visit(10, MAX_PROBES, 20, BoundsName::Both), &Quiet).unwrap();
        }
        verify::verify(dir.path(), &Quiet).unwrap();
    }
}

/// Publishes a manifest that takes a file for what it is now.
fn vouch_for(folder: &Path, name: &str, bytes: &[u8]) {
    let (number, mut manifest) = Manifest::read(folder).unwrap();
    manifest.files.get_mut(name).unwrap().xxh3 = hex(checksum(bytes));
    manifest.build_id = manifest.content_id();
    manifest.publish(folder, number + 1).unwrap();
}

/// Place of the edges of a member, and its id.
fn edges_of(cluster: u32, number: u32) -> (std::ops::Range<usize>, u32) {
    let directory = place().index.view().kind.hybrid_ivf().copied().unwrap().directory;
    let at = directory.edges_at(cluster, number);
    let at = at.first as usize * 4096 + at.skip as usize;
    (at..at + edge_bytes(directory.degree as usize), directory.members_of(cluster).start + number)
}

#[test]
fn damaged_edges_fail_the_query_and_are_named() {
    let place = place();
    let clusters = place.index.view().kind.hybrid_ivf().copied().unwrap();
    let mut bytes = place.bytes.to_vec();
    let (mut failed, mut same) = (0, 0);
    for bounds in [Bounds::Off, Bounds::Both] {
        for i in 0..150u32 {
            let cluster = i % clusters.directory.clusters();
            let number = i * 7 % clusters.directory.members_of(cluster).len() as u32;
            let (range, _) = edges_of(cluster, number);
            let at = range.start + i as usize * 11 % range.len();
            bytes[at] ^= 1 << (i % 8);
            for q in 0..4 {
                let ask = |bytes: &[u8]| {
                    let row = place.asked.row(q);
                    let params = params(2, Mode::Barrier, bounds);
                    run_plain(&place.index.view(), bytes, row, params, Budget::default(), 1)
                };
                let state = ask(&bytes);
                match state.outcome() {
                    Outcome::Lost { at: lost, .. } => {
                        assert_eq!(lost.offset as usize / 4096, at / 4096);
                        failed += 1;
                    }
                    other => {
                        assert_eq!(
                            (other, state.results()),
                            (Outcome::Complete, ask(&place.bytes).results())
                        );
                        same += 1;
                    }
                }
            }
            bytes[at] ^= 1 << (i % 8);
        }
    }
    assert!(failed > 50 && same > 50, "{failed} failed, {same} were the same");

    let dir = copy();
    let (range, id) = edges_of(3, 5);
    bytes[range.start + 20] ^= 1;
    std::fs::write(dir.path().join(LISTS), &bytes).unwrap();
    let report = verify::verify(dir.path(), &Quiet).unwrap();
    assert_eq!(report.violations_found, 2, "the file as a whole, and the edges: {:?}", report.violations);
    let named = report.violations.iter().find(|f| f.offset == Some(range.start as u64)).unwrap();
    assert!(named.what.contains(&format!("edges of member {id} ")), "{named:?}");
}

/// A page holds the edges of several clusters: what was read for one of them never stands for another.
#[test]
fn damaged_edges_are_found_through_a_cache_whichever_cluster_is_searched_first() {
    let place = place();
    let directory = place.index.view().kind.hybrid_ivf().unwrap().directory;
    let shared: Vec<u32> = (1..directory.clusters()).filter(|&c| directory.edges_at(c, 0).skip > 0).collect();
    assert!(shared.len() > 8, "only {} clusters begin within a page", shared.len());
    let dir = copy();
    let options = visit(10, MAX_PROBES, 4096, BoundsName::Both);
    let open = || {
        let cached =
            OpenOptions { cache_budget: 64 << 20, head_budget: Some(64 << 20), ..OpenOptions::default() };
        Index::open(dir.path(), cached).unwrap()
    };
    let intact = search(&open(), &place.asked.bytes, &options);
    let mut failed = 0;
    for &cluster in shared.iter().take(12) {
        let mut bytes = place.bytes.to_vec();
        bytes[edges_of(cluster, 0).0.start + 20] ^= 1;
        std::fs::write(dir.path().join(LISTS), &bytes).unwrap();
        let found = open().search(&place.asked.bytes, &options, &Quiet).unwrap();
        failed += found.failed.len();
        for q in (0..place.asked.len()).filter(|q| found.failed.iter().all(|f| f.0 != *q)) {
            assert_eq!(found.ids[q * 10..][..10], intact.ids[q * 10..][..10], "cluster {cluster}, query {q}");
        }
    }
    assert!(failed > 100, "only {failed} queries failed");
}

/// Damage that checksums cannot find, since they were computed again.
#[test]
fn edges_that_lie_are_found_and_harm_nothing_else() {
    let (range, id) = edges_of(3, 5);
    let clusters = place().index.view().kind.hybrid_ivf().copied().unwrap();
    let (degree, seed) = (clusters.directory.degree as usize, clusters.shape.checksum_seed);
    let lies: [(&str, &[(u32, f32)]); 5] = [
        ("the length of an edge", &[(1, 1e6), (2, 1e6)]),
        ("leads to", &[(5, 0.0)]),
        ("leads to", &[(1_000_000, 1.0)]),
        ("leads to", &[(u32::MAX, 1.0)]),
        ("the length of an edge", &[(1, f32::NAN)]),
    ];
    for (words, edges) in lies {
        let dir = copy();
        let mut bytes = place().bytes.to_vec();
        let mut forged = Vec::new();
        write_edges(degree, seed, id, edges, &mut forged);
        bytes[range.clone()].copy_from_slice(&forged);
        std::fs::write(dir.path().join(LISTS), &bytes).unwrap();
        vouch_for(dir.path(), LISTS, &bytes);
        let report = verify::verify(dir.path(), &Quiet).unwrap();
        assert_eq!(report.violations_found, 1, "{:?}", report.violations);
        assert!(report.violations[0].what.contains(words), "{edges:?}: {:?}", report.violations);
        let asked = &place().asked.bytes;
        open(dir.path()).search(asked, &visit(10, MAX_PROBES, 64, BoundsName::Both), &Quiet).unwrap();
    }
}
