//! `remote-hnsw`: equal inputs give equal bytes, a search of everything is that of a scan, damage is never an answer.

mod common;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use stratann_params::build::RemoteOptions;
use stratann_params::choices::Representatives;
use stratann_params::search::RemoteSwitches;

use common::{Impatient, Set, clustered, hits, normal, queries, quick};
use stratann_core::format::region::{Descriptor, SUPERBLOCK_BYTES, Superblock};
use stratann_engine::build::{BuildOptions, IndexKind, KindOptions, build, plan};
use stratann_engine::exec::BatchOptions;
use stratann_engine::groundtruth;
use stratann_engine::index::{Index, OpenOptions};
use stratann_engine::kinds::{Linking, LinkingOptions};
use stratann_engine::search::{Answers, Effort, SearchOptions};
use stratann_engine::{DType, Metric, verify};
use stratann_storage::{ErrorKind, Quiet};
use tempfile::TempDir;

fn options(metric: Metric, partitions: usize) -> BuildOptions {
    let own =
        RemoteOptions { partitions: Some(partitions), m: 8, ef_construction: 60, ..RemoteOptions::default() };
    BuildOptions { kind: KindOptions::RemoteHnsw(own), ..quick(IndexKind::RemoteHnsw, metric) }
}

fn with_own(options: BuildOptions, change: impl FnOnce(&mut RemoteOptions)) -> BuildOptions {
    let KindOptions::RemoteHnsw(mut own) = options.kind else { panic!("another kind") };
    change(&mut own);
    BuildOptions { kind: KindOptions::RemoteHnsw(own), ..options }
}

fn built(set: &Set, options: &BuildOptions) -> (TempDir, Index) {
    let dir = tempfile::tempdir().unwrap();
    build(&set.reader(), dir.path(), options, &Quiet).unwrap_or_else(|e| panic!("{options:?}: {e}"));
    let index = Index::open(dir.path(), OpenOptions::default()).unwrap();
    (dir, index)
}

fn probe(k: usize, nprobe: u32, ef: Option<u32>) -> SearchOptions {
    let effort = Effort::Nprobe(nprobe, None, None);
    SearchOptions {
        k,
        effort,
        switches: RemoteSwitches { ef, ..RemoteSwitches::default() }.into(),
        ..SearchOptions::default()
    }
}

fn search(index: &Index, asked: &[u8], options: &SearchOptions) -> Answers {
    let answers = index.search(asked, options, &Quiet).unwrap();
    assert!(answers.failed.is_empty(), "{options:?}: {:?}", answers.failed);
    answers
}

fn files(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let all = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    all.filter(|path| path.is_file())
        .map(|path| (path.file_name().unwrap().to_str().unwrap().to_string(), std::fs::read(&path).unwrap()))
        .collect()
}

#[test]
fn a_search_of_everything_is_a_scan_and_one_of_all_clusters_comes_near() {
    for (dtype, metric) in [
        (DType::F32, Metric::L2),
        (DType::F32, Metric::Ip),
        (DType::F16, Metric::Cosine),
        (DType::U8, Metric::L2),
        (DType::I8, Metric::L2),
        (DType::I8, Metric::Cosine),
    ] {
        let set = Set::new(dtype, 20, &clustered(1500, 20, 12, 1));
        let asked = Set::new(dtype, 20, &clustered(40, 20, 12, 2));
        let (dir, index) = built(&set, &options(metric, 21));
        let report = verify::verify(dir.path(), &Quiet).unwrap();
        assert_eq!((report.violations.as_slice(), report.nodes, report.lists), (&[][..], 1500, Some(21)));
        let truth = groundtruth::exact(&set.reader(), &asked.reader(), metric, 10, 1 << 30, &Quiet).unwrap();
        let exact = SearchOptions { k: 10, effort: Effort::Recall(1.0), ..SearchOptions::default() };
        let found = search(&index, &asked.bytes, &exact);
        assert_eq!(found.stats.clusters, 40 * 21);
        for (&found, &wanted) in found.distances.iter().zip(&truth.distances) {
            assert!(
                (found - wanted).abs() <= 1e-4 * (1.0 + wanted.abs()),
                "{dtype:?} {metric:?}: {found} {wanted}"
            );
        }
        // Beyond the number of clusters, all of them.
        let all = search(&index, &asked.bytes, &probe(10, 5000, None));
        assert_eq!(all.stats.clusters, 40 * 21);
        let near: usize =
            (0..40).map(|q| hits(&all.ids[10 * q..10 * q + 10], &found.ids[10 * q..10 * q + 10])).sum();
        assert!(near >= 392, "{dtype:?} {metric:?}: {near} of 400");
        assert!((1..=2 * 21).contains(&all.stats.reads), "each cluster is loaded once a batch");
        assert_eq!(all.stats.shared_reads, 40 * 21);
        let few = search(&index, &asked.bytes, &probe(10, 3, Some(20)));
        assert_eq!((few.stats.clusters, few.stats.shared_reads), (120, 120));
        assert!(few.stats.full_comparisons < all.stats.full_comparisons / 2);
    }
}

#[test]
fn more_threads_and_less_memory_give_equal_bytes() {
    let set = Set::new(DType::F32, 24, &clustered(4000, 24, 12, 1));
    for representatives in [Representatives::Sample, Representatives::Kmeans] {
        let made = |threads: usize, ram_budget: Option<u64>| {
            let options = with_own(options(Metric::L2, 30), |own| own.representatives = representatives);
            let options = BuildOptions { threads, ram_budget, ..options };
            let dir = tempfile::tempdir().unwrap();
            build(&set.reader(), dir.path(), &options, &Quiet).unwrap();
            files(dir.path())
        };
        let one = made(1, None);
        assert!(one == made(2, None), "{representatives:?}");
        let least = plan_least(&set, representatives);
        let [little, again] = [made(1, Some(least)), made(2, Some(least))];
        assert!(little == again, "{representatives:?} with a budget, and with one and two threads");
        if representatives == Representatives::Sample {
            assert!(one["v1-region.bin"] == little["v1-region.bin"], "the budget changes nothing");
        }
    }
}

/// The smallest budget, as the error of a smaller one names it.
fn plan_least(set: &Set, representatives: Representatives) -> u64 {
    let options = with_own(options(Metric::L2, 30), |own| own.representatives = representatives);
    let fits = |ram_budget: u64| {
        let options = BuildOptions { ram_budget: Some(ram_budget), ..options.clone() };
        plan(&set.reader(), &options)
    };
    let refused = fits(1 << 20).unwrap_err();
    assert_eq!(refused.kind, ErrorKind::Budget);
    let least = (1..1000).map(|mib| mib << 20).find(|&bytes| fits(bytes).is_ok()).unwrap();
    let named = format!("{}", least >> 20);
    assert!(refused.message.contains(&named), "{}: {named} MiB", refused.message);
    least
}

#[test]
fn a_build_that_was_stopped_anywhere_resumes_to_the_same_bytes() {
    let set = Set::new(DType::U8, 24, &clustered(3000, 24, 12, 1));
    let options = BuildOptions { calibration_queries: 20, ..options(Metric::L2, 20) };
    let whole = tempfile::tempdir().unwrap();
    let count = Impatient { asked: AtomicU64::new(0), patience: u64::MAX };
    build(&set.reader(), whole.path(), &options, &count).unwrap();
    let wanted = files(whole.path());
    let questions = count.asked.load(Ordering::Relaxed);
    let mut stopped = 0;
    for patience in (0..questions).step_by((questions / 12).max(1) as usize) {
        let dir = tempfile::tempdir().unwrap();
        let stop = Impatient { asked: AtomicU64::new(0), patience };
        stopped += u32::from(build(&set.reader(), dir.path(), &options, &stop).is_err());
        let resumed = BuildOptions { resume: true, force: true, ..options.clone() };
        build(&set.reader(), dir.path(), &resumed, &Quiet).unwrap();
        let found = files(dir.path());
        if found.contains_key("manifest-1.json") {
            assert!(found == wanted, "stopped after {patience} questions");
        }
    }
    assert!(stopped >= 8, "{stopped} of about 12 were stopped");
}

#[test]
fn the_image_is_what_a_memory_node_holds() {
    let set = Set::new(DType::F32, 24, &clustered(2000, 24, 12, 1));
    let (dir, index) = built(&set, &with_own(options(Metric::L2, 15), |own| own.overflow = Some(10_000)));
    let image = std::fs::read(dir.path().join("v1-region.bin")).unwrap();
    let superblock = Superblock::newest_of_image(&image[..2 * SUPERBLOCK_BYTES as usize]).unwrap();
    assert_eq!((superblock.groups, superblock.clusters, superblock.end), (8, 15, image.len() as u64));
    assert_eq!((superblock.record_bytes, superblock.manifest_bytes), (32 + 96, 0));
    let meta = std::fs::read(dir.path().join("v1-meta.bin")).unwrap();
    assert_eq!(image[superblock.meta_at as usize..][..superblock.meta_bytes as usize], meta);
    let (mut members, mut end) = (0, superblock.groups_at);
    for group in 0..8 {
        let at = superblock.descriptor_at(group, 0) as usize;
        let own = Descriptor::decode(superblock.build, group, 0, &image[at..at + 64]).unwrap();
        assert_eq!((own.at.offset(), own.capacity), (end, 10_000 / 128));
        members += own.clusters.iter().map(|cluster| cluster.members).sum::<u32>();
        let overflow = own.fresh(0, own.capacity, superblock.record_bytes);
        let range = overflow.offset as usize..(overflow.offset + overflow.bytes) as usize;
        assert!(image[range].iter().all(|&byte| byte == 0));
        end += own.space;
    }
    assert_eq!((members, end), (2000, superblock.end));
    let facts = &index.manifest().section.remote().unwrap().facts;
    assert_eq!((facts.meta_bytes, facts.capacity), (superblock.meta_bytes, 78));
}

#[test]
fn a_damaged_cluster_is_named_and_is_no_answer() {
    let set = Set::new(DType::F32, 24, &clustered(1000, 24, 12, 1));
    let (dir, index) = built(&set, &options(Metric::L2, 9));
    let asked = queries(20, 24);
    let located = index.view().kind.remote_hnsw().unwrap().clusters[4].base;
    let path = dir.path().join("v1-region.bin");
    let sound = std::fs::read(&path).unwrap();
    for at in [0, 70, located.bytes as usize / 2, located.bytes as usize - 1] {
        let mut bytes = sound.clone();
        bytes[located.offset as usize + at] ^= 4;
        std::fs::write(&path, &bytes).unwrap();
        let index = Index::open(dir.path(), OpenOptions::default()).unwrap();
        let answers = index.search(&asked.bytes, &probe(5, 9, None), &Quiet).unwrap();
        assert_eq!(answers.failed.len(), 20);
        // Loads that are still to come for queries that have failed hold nothing up.
        let batch_options = BatchOptions { doorbell: 1, ..BatchOptions::default() };
        let several = SearchOptions { threads: 3, batch_options, ..probe(5, 9, None) };
        assert_eq!(index.search(&asked.bytes, &several, &Quiet).unwrap().failed.len(), 20);
        let report = verify::verify(dir.path(), &Quiet).unwrap();
        let named = report.violations.iter().find(|finding| finding.list == Some(4)).expect("it is named");
        assert!(named.what.contains("cluster 4") && named.offset == Some(located.offset), "{named:?}");
    }
    // The tables before the groups.
    for at in [20, 8192 + 64 + 5 * 64 + 3] {
        let mut bytes = sound.clone();
        bytes[at] ^= 4;
        std::fs::write(&path, &bytes).unwrap();
        let refused = Index::open(dir.path(), OpenOptions::default()).unwrap_err();
        assert!(refused.message.contains("v1-region.bin"), "{}", refused.message);
    }
}

#[test]
fn bad_options_and_queries_are_refused() {
    let set = Set::new(DType::F32, 8, &clustered(200, 8, 4, 1));
    let changes: [fn(&mut RemoteOptions); 5] = [
        |own| own.partitions = Some(0),
        |own| own.partitions = Some(70_000),
        |own| own.m = 1,
        |own| own.ef_construction = 0,
        |own| own.overflow = Some(1 << 33),
    ];
    for change in changes {
        let dir = tempfile::tempdir().unwrap();
        let options = with_own(options(Metric::L2, 4), change);
        assert_eq!(build(&set.reader(), dir.path(), &options, &Quiet).unwrap_err().kind, ErrorKind::BadInput);
    }
    let (_dir, index) = built(&set, &options(Metric::L2, 4));
    assert!(index.search(&set.bytes[..32], &probe(3, 2, Some(0)), &Quiet).is_err());
    let list = SearchOptions { k: 3, effort: Effort::SearchList(40, None), ..SearchOptions::default() };
    assert!(index.search(&set.bytes[..32], &list, &Quiet).unwrap_err().message.contains("--nprobe"));
}

#[test]
fn tiny_and_equal_sets_are_found() {
    for (rows, partitions) in [(1, 1), (2, 5), (40, 40), (70, 1)] {
        let set = Set::new(DType::F32, 8, &clustered(rows, 8, 4, 1));
        let (dir, index) = built(&set, &options(Metric::L2, partitions));
        assert!(verify::verify(dir.path(), &Quiet).unwrap().violations.is_empty());
        let found = search(&index, &set.bytes, &probe(1, 1000, None));
        assert_eq!(found.ids, (0..rows as u64).collect::<Vec<_>>(), "{rows} {partitions}");
    }
    let same = Set::new(DType::F32, 8, &vec![normal(1, 1, 1); 8 * 300]);
    let (_dir, index) = built(&same, &options(Metric::L2, 10));
    let found = search(&index, same.row(0), &probe(10, 10, None));
    assert_eq!((found.ids.len(), found.distances[9]), (10, 0.0));
}

#[test]
fn a_recall_that_was_asked_for_is_reached() {
    let set = Set::new(DType::F32, 24, &clustered(4000, 24, 12, 1));
    let options = BuildOptions { calibration_queries: 200, ..options(Metric::L2, 40) };
    let (_dir, index) = built(&set, &options);
    let asked = queries(200, 24);
    let truth = groundtruth::exact(&set.reader(), &asked.reader(), Metric::L2, 10, 1 << 30, &Quiet).unwrap();
    let mut compared = 0;
    for recall in [0.8, 0.95, 0.99] {
        let wanted = SearchOptions { k: 10, effort: Effort::Recall(recall), ..SearchOptions::default() };
        let found = search(&index, &asked.bytes, &wanted);
        let near = |q: usize| truth.ids_of(q).iter().map(|&id| u64::from(id)).collect::<Vec<_>>();
        let hit: usize = (0..200).map(|q| hits(&found.ids[10 * q..10 * q + 10], &near(q))).sum();
        assert!(hit as f64 / 2000.0 >= recall - 0.02, "{recall}: {hit} of 2000");
        assert!(found.stats.full_comparisons > compared, "more recall costs more");
        compared = found.stats.full_comparisons;
    }
}

#[test]
fn a_recall_is_reached_without_a_scan_where_few_clusters_hold_most_vectors() {
    // Of many dimensions: the representatives in the middle are the nearest of most vectors.
    let rows = |count: u64, seed: u64| -> Vec<f32> {
        (0..count).flat_map(|row| (0..32).map(move |i| normal(seed, row, i))).collect()
    };
    let set = Set::new(DType::F32, 32, &rows(6000, 1));
    let options = BuildOptions { calibration_queries: 200, ..options(Metric::L2, 60) };
    let (_dir, index) = built(&set, &options);
    let asked = Set::new(DType::F32, 32, &rows(200, 2));
    let truth = groundtruth::exact(&set.reader(), &asked.reader(), Metric::L2, 10, 1 << 30, &Quiet).unwrap();
    for recall in [0.9, 0.95, 0.99] {
        let wanted = SearchOptions { k: 10, effort: Effort::Recall(recall), ..SearchOptions::default() };
        let found = search(&index, &asked.bytes, &wanted);
        let near = |q: usize| truth.ids_of(q).iter().map(|&id| u64::from(id)).collect::<Vec<_>>();
        let hit: usize = (0..200).map(|q| hits(&found.ids[10 * q..10 * q + 10], &near(q))).sum();
        assert!(hit as f64 / 2000.0 >= recall - 0.01, "{recall}: {hit} of 2000");
        // Nearly all neighbours of such vectors take as long to find as a scan.
        assert!(recall > 0.95 || found.stats.full_comparisons < 200 * 6000, "{recall} is no scan");
    }
}

#[test]
fn scanning_fresh_records_is_compared_with_linking_them() {
    for (dtype, metric) in [(DType::F32, Metric::L2), (DType::U8, Metric::L2), (DType::F32, Metric::Cosine)] {
        let set = Set::new(dtype, 16, &clustered(2000, 16, 12, 1));
        let (_dir, index) = built(&set, &options(metric, 16));
        let asked = Set::new(dtype, 16, &clustered(50, 16, 12, 2));
        let measure = |fresh: &[u32]| {
            let how = LinkingOptions { queries: &asked.bytes, nprobe: 16, ef: 20, k: 5, fresh };
            index.measure_linking(&how, &Quiet).unwrap()
        };
        let found = measure(&[4, 0, 12, 5000]);
        assert_eq!(found.iter().map(|at| at.fresh).collect::<Vec<_>>(), [4, 12], "5000 have no room");
        assert_eq!(found, measure(&[4, 12]));
        assert!(found[0].clusters >= 8 && found[0].queries == 50 * found[0].clusters, "{found:?}");
        for at in &found {
            // A record that is scanned is found.
            assert!(at.scanned.recall > 0.9 && at.linked.recall > 0.9, "{at:?}");
            assert!(at.scanned.comparisons > f64::from(at.fresh) && at.linked.comparisons > 20.0, "{at:?}");
        }
        // Each insertion compares a record with more than the beam of a search does.
        let each = |at: &Linking| at.link_comparisons / f64::from(at.fresh);
        assert!(each(&found[0]) > found[0].linked.comparisons, "{found:?}");
        assert!(found[1].link_comparisons > 2.0 * found[0].link_comparisons, "{found:?}");
    }
    let flat = tempfile::tempdir().unwrap();
    let set = Set::new(DType::F32, 16, &clustered(100, 16, 12, 1));
    build(&set.reader(), flat.path(), &quick(IndexKind::Flat, Metric::L2), &Quiet).unwrap();
    let flat = Index::open(flat.path(), OpenOptions::default()).unwrap();
    let how = LinkingOptions { queries: &set.bytes, nprobe: 1, ef: 1, k: 1, fresh: &[1] };
    assert!(flat.measure_linking(&how, &Quiet).unwrap_err().message.contains("remote-hnsw"));
}
