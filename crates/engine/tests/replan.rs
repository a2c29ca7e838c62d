//! A plan for another budget: only clusters that change are rebuilt, and the index stays as exact as it was.

mod common;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use stratann_params::choices::BoundsName;
use stratann_params::choices::Learn;
use stratann_params::search::ListSwitches;

use common::{Impatient, Set, clustered, list_options, queries, quick};
use stratann_core::format::directory::{Directory, LocalKind};
use stratann_core::format::inverted_list::{ListLayout, Record};
use stratann_core::kinds::hybrid_ivf::MAX_PROBES;
use stratann_engine::build::{BuildOptions, IndexKind, LocalPlan, build};
use stratann_engine::groundtruth;
use stratann_engine::index::{Index, OpenOptions};
use stratann_engine::kinds::hybrid_ivf::learning::describe;
use stratann_engine::kinds::hybrid_ivf::replan::{ReplanOptions, Replanned, replan};
use stratann_engine::kinds::options::LearnOptions;
use stratann_engine::manifest::Manifest;
use stratann_engine::search::{Answers, Effort, SearchOptions};
use stratann_engine::{DType, Metric, verify};
use stratann_storage::budget::PROGRAM_BYTES;
use stratann_storage::profile::LocalCosts;
use stratann_storage::{ErrorKind, Quiet};
use tempfile::TempDir;

const AMPLE: u64 = 1 << 30;

fn uniform(kind: LocalKind) -> LocalPlan {
    LocalPlan::Uniform(kind)
}

fn asked(search_budget: u64, local_plan: LocalPlan) -> ReplanOptions {
    ReplanOptions { search_budget, local_plan, threads: 2, ram_budget: None }
}

fn built(set: &Set, options: &BuildOptions) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    build(&set.reader(), dir.path(), options, &Quiet).unwrap_or_else(|e| panic!("{options:?}: {e}"));
    dir
}

fn options(metric: Metric, clusters: usize, local_plan: LocalPlan) -> BuildOptions {
    let quick = quick(IndexKind::HybridIvf, metric);
    list_options(quick, |own| (own.clusters, own.plan) = (Some(clusters), local_plan.into()))
}

fn open(folder: &Path) -> Index {
    let on_disk = OpenOptions { head_budget: Some(0), ..OpenOptions::default() };
    Index::open(folder, on_disk).unwrap()
}

fn search(folder: &Path, asked: &[u8], clusters: u32) -> Answers {
    let options = SearchOptions {
        k: 10,
        effort: Effort::Nprobe(clusters, None, None),
        switches: ListSwitches {
            bounds: BoundsName::Both,
            local_lists: Some(u32::MAX),
            local_list: Some(4096),
            ..ListSwitches::default()
        }
        .into(),
        ..SearchOptions::default()
    };
    let answers = open(folder).search(asked, &options, &Quiet).unwrap();
    assert!(answers.failed.is_empty(), "{:?}", answers.failed);
    answers
}

fn assert_sound(folder: &Path, rows: u64) {
    let report = verify::verify(folder, &Quiet).unwrap();
    assert_eq!((report.violations.as_slice(), report.nodes), (&[][..], rows));
}

fn done(folder: &Path, options: &ReplanOptions) -> Replanned {
    replan(folder, options, &Quiet).unwrap_or_else(|e| panic!("{options:?}: {e}"))
}

/// With every cluster visited the answers are the exact ones, ids and distances.
fn assert_exact(folder: &Path, set: &Set, metric: Metric) {
    assert_sound(folder, set.shape.rows);
    let queries = queries(12, set.shape.dim);
    let truth = groundtruth::exact(&set.reader(), &queries.reader(), metric, 10, 1 << 30, &Quiet).unwrap();
    let ids: Vec<u64> = truth.ids.iter().map(|&id| u64::from(id)).collect();
    let answers = search(folder, &queries.bytes, MAX_PROBES);
    assert_eq!(answers.ids, ids);
    let bits = |distances: &[f32]| distances.iter().map(|d| d.to_bits()).collect::<Vec<_>>();
    assert_eq!(bits(&answers.distances), bits(&truth.distances));
}

/// The files of a folder, all of them.
fn files(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = std::fs::read_dir(folder).unwrap().map(|e| e.unwrap());
    let named = entries.map(|e| (e.file_name().into_string().unwrap(), e.path()));
    named.map(|(name, path)| (name, std::fs::read(path).expect("no folder is left"))).collect()
}

/// The lists of an index.
struct Lists {
    directory: Directory,
    shape: ListLayout,
    bytes: Vec<u8>,
}

impl Lists {
    fn of(folder: &Path) -> Lists {
        let index = open(folder);
        let clusters = index.view().kind.hybrid_ivf().copied().unwrap();
        let (directory, shape) = (clusters.directory.clone(), clusters.shape);
        let name = index.manifest().files.keys().find(|n| n.ends_with("-lists.bin")).unwrap();
        Lists { directory, shape, bytes: std::fs::read(folder.join(name)).unwrap() }
    }

    fn record(&self, id: u32) -> &[u8] {
        &self.bytes[self.directory.record_at(&self.shape, id) as usize..][..self.shape.record_bytes()]
    }

    fn external(&self, id: u32) -> u64 {
        Record::verify(&self.shape, id, self.record(id)).unwrap().external_id()
    }

    fn records(&self, cluster: u32) -> Vec<&[u8]> {
        // Without their checksums, which are those of one version.
        self.directory
            .members_of(cluster)
            .map(|id| &self.record(id)[..self.shape.record_bytes() - 4])
            .collect()
    }

    /// Heads of a cluster, but for the numbers of their lists.
    fn heads(&self, cluster: u32) -> Vec<&[u8]> {
        let head = |list: u32| {
            let length = self.shape.list_codes_bytes(self.directory.members(list) as usize);
            &self.bytes[self.directory.codes[list as usize] as usize..][12..length]
        };
        self.directory.lists_of(cluster).map(head).collect()
    }

    fn edges(&self, cluster: u32) -> Vec<&[u8]> {
        if !self.directory.has_edges(cluster) {
            return Vec::new();
        }
        let size = stratann_core::format::edges::edge_bytes(self.directory.degree as usize);
        let edge = |number: u32| {
            let at = self.directory.edges_at(cluster, number);
            &self.bytes[at.first as usize * stratann_core::PAGE + at.skip as usize..][4..size]
        };
        (0..self.directory.members_of(cluster).len() as u32).map(edge).collect()
    }

    fn externals(&self, cluster: u32) -> Vec<u64> {
        let mut ids: Vec<u64> = self.directory.members_of(cluster).map(|id| self.external(id)).collect();
        ids.sort_unstable();
        ids
    }
}

/// Clusters whose kind stays have their bytes, the others their members. Returns how many stay.
fn assert_only_changed_move(before: &Lists, after: &Lists) -> usize {
    let mut same = 0;
    for cluster in 0..before.directory.clusters() {
        let at = cluster as usize;
        assert_eq!(before.directory.members_of(cluster), after.directory.members_of(cluster));
        if before.directory.kinds[at] == after.directory.kinds[at] {
            same += 1;
            assert!(before.records(cluster) == after.records(cluster), "records of cluster {cluster}");
            assert!(before.heads(cluster) == after.heads(cluster), "heads of cluster {cluster}");
            assert!(before.edges(cluster) == after.edges(cluster), "edges of cluster {cluster}");
            assert_eq!(before.directory.entries[at], after.directory.entries[at]);
        } else {
            assert_eq!(before.externals(cluster), after.externals(cluster), "members of cluster {cluster}");
        }
    }
    same
}

#[test]
fn every_kind_becomes_every_other_and_stays_exact() {
    use LocalKind::{Flat, Graph, Ivf};
    let set = Set::new(DType::F32, 16, &clustered(1500, 16, 10, 1));
    for metric in [Metric::L2, Metric::Cosine, Metric::Ip] {
        let dir = built(&set, &options(metric, 25, uniform(Flat)));
        for (number, kind) in (2..).zip([Ivf, Graph, Flat, Graph, Ivf, Flat]) {
            let before = Lists::of(dir.path());
            let replanned = done(dir.path(), &asked(AMPLE, uniform(kind)));
            assert_eq!((replanned.version, replanned.rebuilt), (number, 25), "{replanned:?}");
            assert_eq!(replanned.kinds_after[kind as usize], 25);
            let (version, manifest) = Manifest::read(dir.path()).unwrap();
            let facts = manifest.section.lists().unwrap().facts;
            assert_eq!((version, facts.kinds), (number, replanned.kinds_after));
            assert_exact(dir.path(), &set, metric);
            assert_eq!(assert_only_changed_move(&before, &Lists::of(dir.path())), 0);
            let edges = verify::verify(dir.path(), &Quiet).unwrap().edges;
            assert_eq!(edges > 0, kind == Graph);
        }
    }
}

#[test]
fn a_graph_that_was_added_is_walked_like_one_that_was_built() {
    let set = Set::new(DType::F32, 16, &clustered(1500, 16, 10, 1));
    for (from, metric) in [(LocalKind::Flat, Metric::Ip), (LocalKind::Ivf, Metric::L2)] {
        let dir = built(&set, &options(metric, 6, uniform(from)));
        done(dir.path(), &asked(AMPLE, uniform(LocalKind::Graph)));
        let queries = queries(30, 16);
        let truth =
            groundtruth::exact(&set.reader(), &queries.reader(), metric, 10, 1 << 30, &Quiet).unwrap();
        let index = Index::open(dir.path(), OpenOptions::default()).unwrap();
        let effort = Effort::Nprobe(MAX_PROBES, None, None);
        let answers = index
            .search(&queries.bytes, &SearchOptions { k: 10, effort, ..SearchOptions::default() }, &Quiet)
            .unwrap();
        assert!(answers.failed.is_empty() && answers.stats.edge_reads > 0);
        let pairs = answers.ids.chunks(10).zip(truth.ids.chunks(10));
        let found: usize =
            pairs.map(|(a, t)| t.iter().filter(|&&id| a.contains(&u64::from(id))).count()).sum();
        assert!(found >= 280, "{metric:?}: {found} of 300");
    }
}

/// Whatever is visited, a cluster that was divided and put together again answers as before.
#[test]
fn there_and_back_is_the_same_index() {
    let set = Set::new(DType::F32, 16, &clustered(2000, 16, 10, 1));
    for metric in [Metric::L2, Metric::Cosine, Metric::Ip] {
        let dir = built(&set, &options(metric, 30, uniform(LocalKind::Flat)));
        let queries = queries(20, 16);
        let ask = || [1, 4, 12].map(|n| search(dir.path(), &queries.bytes, n));
        let before = ask();
        done(dir.path(), &asked(AMPLE, uniform(LocalKind::Ivf)));
        done(dir.path(), &asked(AMPLE, uniform(LocalKind::Flat)));
        for (before, after) in before.iter().zip(ask()) {
            assert_eq!((&before.ids, &before.distances), (&after.ids, &after.distances), "{metric:?}");
            assert_eq!(before.stats.clusters, after.stats.clusters);
        }
    }
}

/// Clusters of very different sizes.
fn uneven() -> Set {
    let mut rows = clustered(4500, 16, 3, 1);
    rows.extend(clustered(500, 16, 40, 2));
    Set::new(DType::F32, 16, &rows)
}

/// Divides lists in RAM, and scans all others.
fn divided_in_ram(metric: Metric) -> BuildOptions {
    options(metric, 40, LocalPlan::Auto)
}

/// Makes graphs of large lists in RAM, and scans all else: reads are for nothing, and no list can be left out.
fn graphs_in_ram(metric: Metric) -> BuildOptions {
    let mut options = divided_in_ram(metric);
    let profile = options.profile.as_mut().unwrap();
    (profile.disk.loaded.fixed_us, profile.disk.loaded.ns_per_byte) = (1e-3, 1e-5);
    profile.local = Some(LocalCosts {
        alpha_flat: 1.5,
        hops_a: 0.0,
        hops_b: 2.0,
        beta_scan: 1.4,
        lists_a: 0.0,
        lists_b: 1e6,
    });
    options
}

fn with_budget(options: BuildOptions, bytes: u64) -> BuildOptions {
    list_options(options, |own| own.search_budget = Some(bytes))
}

/// Budgets that leave all that a plan can use, most of it, and nothing.
fn budgets(set: &Set, options: &BuildOptions) -> [u64; 3] {
    let dir = built(set, options);
    let replanned = done(dir.path(), &asked(AMPLE, LocalPlan::Auto));
    let fixed = AMPLE - replanned.code_budget_bytes;
    [fixed + replanned.ram_bytes, fixed + replanned.ram_bytes * 4 / 5, fixed]
}

#[test]
fn a_budget_changes_some_clusters_and_leaves_the_others() {
    let set = uneven();
    for (metric, of) in [
        (Metric::L2, divided_in_ram as fn(Metric) -> BuildOptions),
        (Metric::Ip, divided_in_ram),
        (Metric::Cosine, graphs_in_ram),
        (Metric::Ip, graphs_in_ram),
    ] {
        let [whole, less, _] = budgets(&set, &of(metric));
        let dir = built(&set, &with_budget(of(metric), whole));
        for budget in [less, whole] {
            let before = Lists::of(dir.path());
            let replanned = done(dir.path(), &asked(budget, LocalPlan::Auto));
            let same = assert_only_changed_move(&before, &Lists::of(dir.path()));
            assert_eq!(same as u64 + replanned.rebuilt, 40);
            assert!(replanned.rebuilt > 3 && same > 3, "{replanned:?}");
            assert!(replanned.copied_bytes > 0 && replanned.rewritten_bytes > 0, "{replanned:?}");
            assert!(replanned.shared_bytes > 0 && !replanned.observed);
            assert!(replanned.visit_us_before.is_none_or(|us| us >= replanned.visit_us), "{replanned:?}");
            assert!(replanned.ram_bytes <= replanned.code_budget_bytes);
            assert_exact(dir.path(), &set, metric);
        }
    }
}

#[test]
fn a_budget_that_changes_nothing_shares_all_files() {
    let set = uneven();
    let [whole, less, _] = budgets(&set, &divided_in_ram(Metric::L2));
    let dir = built(&set, &with_budget(divided_in_ram(Metric::L2), whole));
    let before = files(dir.path());
    let (_, old) = Manifest::read(dir.path()).unwrap();
    let replanned = done(dir.path(), &asked(whole, LocalPlan::Auto));
    assert_eq!((replanned.version, replanned.rebuilt, replanned.tune), (2, 0, false));
    assert_eq!((replanned.rewritten_bytes, replanned.copied_bytes), (0, 0));
    let mut after = files(dir.path());
    assert!(after.remove("manifest-2.json").is_some());
    assert!(before == after, "nothing else is touched");
    let (_, new) = Manifest::read(dir.path()).unwrap();
    assert_eq!((&new.files, &new.build_id), (&old.files, &old.build_id));
    assert_eq!(
        new.section.lists().unwrap().plan.as_ref().unwrap().budget_bytes,
        Some(replanned.code_budget_bytes)
    );

    // The next one shares what it can with the first, and removes the rest.
    assert!(done(dir.path(), &asked(less, LocalPlan::Auto)).rebuilt > 0);
    let names: Vec<String> = files(dir.path()).into_keys().collect();
    let expected = [
        "manifest-3.json",
        "v1-centroids.bin",
        "v1-codebook.bin",
        "v3-directory.bin",
        "v3-lists.bin",
        "v3-nav.bin",
        "v3-sublists.bin",
    ];
    assert_eq!(names, expected);
    assert_exact(dir.path(), &set, Metric::L2);
}

/// Hot members of a file of learnt state.
fn hot(folder: &Path) -> Vec<u32> {
    let bytes = std::fs::read(folder.join("learnt.bin")).unwrap();
    let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    (0..word(24) as usize).map(|i| word(48 + 8 * i)).collect()
}

#[test]
fn what_was_learnt_is_kept_and_weighs() {
    let set = uneven();
    let dir = built(&set, &options(Metric::L2, 40, uniform(LocalKind::Flat)));
    let learning = LearnOptions { learn: Learn::Always, epoch_queries: 20, hot: Some(30) };
    let index = Index::open(dir.path(), OpenOptions { learning, ..OpenOptions::default() }).unwrap();
    let effort = Effort::Nprobe(4, None, None);
    let options = SearchOptions { k: 10, effort, ..SearchOptions::default() };
    index.search(&queries(60, 16).bytes, &options, &Quiet).unwrap();
    drop(index);
    let facts = |folder: &Path| describe(folder, &Manifest::read(folder).unwrap().1).unwrap().unwrap();
    let (before, learnt) = (Lists::of(dir.path()), facts(dir.path()));
    let ids = hot(dir.path());
    assert!(ids.len() > 5);

    let replanned = done(dir.path(), &asked(AMPLE, uniform(LocalKind::Ivf)));
    assert!(replanned.observed && replanned.rebuilt == 40);
    assert!(Manifest::read(dir.path()).unwrap().1.section.lists().unwrap().plan.as_ref().unwrap().observed);
    assert_eq!(facts(dir.path()), learnt);
    let after = Lists::of(dir.path());
    let now = hot(dir.path());
    assert_ne!(ids, now, "members have moved");
    let external = |lists: &Lists, ids: &[u32]| ids.iter().map(|&id| lists.external(id)).collect::<Vec<_>>();
    assert_eq!(external(&before, &ids), external(&after, &now));
    let frozen = LearnOptions { learn: Learn::Frozen, ..LearnOptions::default() };
    let index = Index::open(dir.path(), OpenOptions { learning: frozen, ..OpenOptions::default() }).unwrap();
    assert!(index.warnings().is_empty(), "{:?}", index.warnings());
    let answers = index.search(&queries(60, 16).bytes, &options, &Quiet).unwrap();
    assert!(answers.stats.pinned_hits > 0);
}

/// Fails with this kind, says all of this, and touches nothing.
fn assert_refused(folder: &Path, options: &ReplanOptions, kind: ErrorKind, said: &[&str]) {
    let before = files(folder);
    let error = replan(folder, options, &Quiet).unwrap_err();
    assert_eq!(error.kind, kind, "{error}");
    for part in said {
        assert!(error.message.contains(part), "{part}: {error}");
    }
    assert!(files(folder) == before, "{error}");
}

#[test]
fn what_cannot_be_is_refused_and_harms_nothing() {
    let set = uneven();
    let ivf = uniform(LocalKind::Ivf);
    let dir = built(&set, &options(Metric::L2, 40, uniform(LocalKind::Flat)));
    let folder = dir.path();
    let few = ["--search-budget 1.0 MiB is too small", "; give ", "MiB or more"];
    assert_refused(folder, &asked(1 << 20, LocalPlan::Auto), ErrorKind::Budget, &few);
    let [_, _, least] = budgets(&set, &divided_in_ram(Metric::L2));
    let graphs = asked(least + (1 << 10), uniform(LocalKind::Graph));
    assert_refused(folder, &graphs, ErrorKind::Budget, &["of RAM for codes", "--plan auto"]);
    for ram_budget in [1 << 20, PROGRAM_BYTES + 40_000] {
        let small = ReplanOptions { ram_budget: Some(ram_budget), ..asked(AMPLE, ivf) };
        assert_refused(folder, &small, ErrorKind::Budget, &["--ram-budget", "or more"]);
    }
    for kind in [IndexKind::DiskGraph, IndexKind::Flat] {
        let other = built(&Set::new(DType::F32, 8, &clustered(200, 8, 4, 1)), &quick(kind, Metric::L2));
        let said = [kind.name(), "only a hybrid-ivf"];
        assert_refused(other.path(), &asked(AMPLE, ivf), ErrorKind::BadInput, &said);
    }
    let nowhere = replan(&folder.join("nowhere"), &asked(AMPLE, ivf), &Quiet).unwrap_err();
    assert_eq!(nowhere.kind, ErrorKind::BadInput);
}

#[test]
fn damage_is_not_copied() {
    let set = uneven();
    let dir = built(&set, &options(Metric::L2, 40, uniform(LocalKind::Flat)));
    let path = dir.path().join("v1-lists.bin");
    let (lists, sound) = (Lists::of(dir.path()), std::fs::read(&path).unwrap());
    let record = lists.directory.record_at(&lists.shape, 1234) as usize;
    let head = lists.directory.codes[7] as usize + 40;
    for (kind, at) in [(LocalKind::Ivf, record), (LocalKind::Graph, record), (LocalKind::Graph, head)] {
        let mut bytes = sound.clone();
        bytes[at] ^= 1;
        std::fs::write(&path, bytes).unwrap();
        let said = ["is damaged", "v1-lists.bin"];
        assert_refused(dir.path(), &asked(AMPLE, uniform(kind)), ErrorKind::Corrupt, &said);
    }
    std::fs::write(&path, sound).unwrap();
    // What a killed one left is in nobody's way.
    std::fs::create_dir(dir.path().join("replan")).unwrap();
    std::fs::write(dir.path().join("replan/v2-lists.bin"), "half").unwrap();
    std::fs::write(dir.path().join("v2-nav.bin"), "half").unwrap();
    done(dir.path(), &asked(AMPLE, uniform(LocalKind::Ivf)));
    assert_exact(dir.path(), &set, Metric::L2);
    assert!(!dir.path().join("replan").exists());
}

#[test]
fn one_that_is_interrupted_leaves_the_old_version() {
    let set = uneven();
    let dir = built(&set, &options(Metric::L2, 40, uniform(LocalKind::Flat)));
    let before = files(dir.path());
    for kind in [LocalKind::Ivf, LocalKind::Graph] {
        let count = Impatient { asked: AtomicU64::new(0), patience: u64::MAX };
        let other = built(&set, &options(Metric::L2, 40, uniform(LocalKind::Flat)));
        replan(other.path(), &asked(AMPLE, uniform(kind)), &count).unwrap();
        let questions = count.asked.load(Ordering::Relaxed);
        for patience in (0..questions - 1).step_by((questions / 10).max(1) as usize).chain([questions - 2]) {
            let stop = Impatient { asked: AtomicU64::new(0), patience };
            let error = replan(dir.path(), &asked(AMPLE, uniform(kind)), &stop).unwrap_err();
            assert_eq!(error.kind, ErrorKind::Interrupted, "{error}");
            assert!(files(dir.path()) == before, "after {patience} of {questions} questions");
        }
    }
    assert_exact(dir.path(), &set, Metric::L2);
}

#[test]
fn equal_indexes_are_planned_to_equal_bytes_on_any_number_of_threads() {
    let set = uneven();
    let made = [1, 2, 5].map(|threads| {
        let dir = built(&set, &options(Metric::Cosine, 40, uniform(LocalKind::Flat)));
        for kind in [LocalKind::Ivf, LocalKind::Graph] {
            done(dir.path(), &ReplanOptions { threads, ..asked(AMPLE, uniform(kind)) });
        }
        files(dir.path())
    });
    assert!(made[0] == made[1] && made[1] == made[2]);
}
