//! Filtered searches of a `remote-hnsw`, in a folder and in memory nodes that others change.

mod common;

use std::sync::mpsc::channel;
use std::time::Duration;

use common::nodes::{addresses, credentials};
use common::{Set, clustered, hits, nearest, nodes, normal, quick};
use stratann_engine::build::{BuildOptions, IndexKind, KindOptions, build};
use stratann_engine::exec::BatchOptions;
use stratann_engine::index::{Index, OpenOptions, UpdateOptions};
use stratann_engine::memory_nodes::load;
use stratann_engine::search::{Answers, Effort, Filter, Filters, Naming, SearchOptions, SieveWay};
use stratann_engine::serve::{Answer, MemoryNodes, Question, ServeOptions, Server};
use stratann_engine::{DType, Metric};
use stratann_params::build::RemoteOptions;
use stratann_storage::remote_memory::Node;
use stratann_storage::{ErrorKind, Quiet};
use tempfile::TempDir;

const ROWS: usize = 3000;
const DIM: usize = 24;
const ASKED: usize = 40;
const CLUSTERS: usize = 48;
const K: usize = 10;

/// One index in a folder, and the same in memory nodes.
struct World {
    set: Set,
    folder: Index,
    nodes: Vec<Node>,
    _dir: TempDir,
}

impl World {
    fn new(metric: Metric) -> World {
        World::with(metric, 2)
    }

    fn with(metric: Metric, nodes: u8) -> World {
        let set = Set::new(DType::F32, DIM, &clustered(ROWS, DIM, 12, 1));
        let own = RemoteOptions {
            partitions: Some(CLUSTERS),
            m: 8,
            ef_construction: 60,
            ..RemoteOptions::default()
        };
        let kind = KindOptions::RemoteHnsw(own);
        let options = BuildOptions { kind, calibration_queries: 200, ..quick(IndexKind::RemoteHnsw, metric) };
        let dir = tempfile::tempdir().unwrap();
        build(&set.reader(), dir.path(), &options, &Quiet).unwrap();
        let folder = Index::open(dir.path(), OpenOptions::default()).unwrap();
        let nodes = nodes::nodes(nodes, 16 << 20);
        load(dir.path(), &addresses(&nodes), &credentials(), &Quiet).unwrap();
        World { set, folder, nodes, _dir: dir }
    }

    fn in_nodes(&self) -> Index {
        Index::open_memory(&addresses(&self.nodes), &credentials(), OpenOptions::default()).unwrap()
    }
}

/// Queries near one place, so that rows can be near to all of them, or far.
fn asked() -> Set {
    let centre = clustered(1, DIM, 12, 2);
    let value = |at: usize| centre[at % DIM] + 0.5 * normal(9, (at / DIM) as u64, (at % DIM) as u64);
    Set::new(DType::F32, DIM, &(0..ASKED * DIM).map(value).collect::<Vec<_>>())
}

fn options(recall: f64) -> SearchOptions {
    SearchOptions { k: K, effort: Effort::Recall(recall), threads: 2, ..SearchOptions::default() }
}

fn filter(index: &Index, ids: &[u64], naming: Naming, options: &SearchOptions) -> Filter {
    index.filter(ids, naming, options, &Quiet).unwrap()
}

fn search(index: &Index, asked: &Set, filter: &Filter, options: &SearchOptions) -> Answers {
    let answers = index.search_filtered(&asked.bytes, Filters::Shared(filter), options, &Quiet).unwrap();
    assert!(answers.failed.is_empty(), "{:?}", answers.failed);
    answers
}

/// The results of a query.
fn found(answers: &Answers, query: usize) -> &[u64] {
    &answers.ids[query * answers.k..query * answers.k + answers.counts[query] as usize]
}

/// Rows that match: drawn anywhere, those nearest to the queries, and those farthest from them.
fn matches(set: &Set, asked: &Set, share: f64) -> [(&'static str, Vec<u64>); 3] {
    let count = ((share * ROWS as f64).round() as usize).max(1);
    let mut anywhere: Vec<u64> = (0..ROWS as u64).collect();
    anywhere.sort_by(|&a, &b| normal(5, 5, a).total_cmp(&normal(5, 5, b)));
    let by_distance = nearest(set, Metric::L2, asked.row(0), ROWS, |_| false);
    let far = by_distance.iter().rev().copied().take(count).collect();
    [("anywhere", anywhere[..count].to_vec()), ("near", by_distance[..count].to_vec()), ("far", far)]
}

/// Mean recall among the rows that `is_match` has. Every query has as many results as there are, and none else.
fn recall(set: &Set, asked: &Set, answers: &Answers, is_match: impl Fn(u64) -> bool) -> f64 {
    let (mut hit, mut all) = (0, 0);
    for query in 0..asked.len() {
        let own = found(answers, query);
        let truth = nearest(set, Metric::L2, asked.row(query), answers.k, |row| !is_match(row as u64));
        assert_eq!(own.len(), truth.len(), "query {query}");
        assert!(own.iter().all(|&id| is_match(id)), "query {query}: a row that does not match");
        hit += hits(own, &truth);
        all += truth.len();
    }
    if all == 0 { 1.0 } else { hit as f64 / all as f64 }
}

#[test]
fn recall_is_that_asked_for_whatever_matches_and_wherever_it_lies() {
    let world = World::new(Metric::L2);
    let (asked, nodes) = (asked(), world.in_nodes());
    for share in [1.0, 0.5, 0.1, 0.01, 0.001, 0.0003] {
        for (place, rows) in matches(&world.set, &asked, share) {
            for wanted in [0.8, 0.9, 0.99] {
                for (where_, index) in [("folder", &world.folder), ("nodes", &nodes)] {
                    let options = options(wanted);
                    let own = filter(index, &rows, Naming::Only, &options);
                    let answers = search(index, &asked, &own, &options);
                    let recall = recall(&world.set, &asked, &answers, |id| rows.contains(&id));
                    let what = format!("{where_}, {share} match {place}, {:?}, {wanted}", own.way());
                    assert!(recall >= wanted - 0.02, "{what}: {recall}");
                    assert_eq!(answers.short, 0, "{what}");
                }
            }
        }
    }
}

/// The way of a filter, its number of matches, the answers, and what they cost.
fn told(
    index: &Index,
    asked: &Set,
    own: &Filter,
    options: &SearchOptions,
) -> (SieveWay, u32, Vec<u64>, [u64; 4]) {
    let answers = search(index, asked, own, options);
    let stats = &answers.stats;
    // What is read once for several queries that ask for more depends on when each does.
    let counters = [stats.clusters, stats.full_comparisons, stats.shared_reads, stats.vain_blocks];
    (own.way(), own.matches(), answers.ids, counters)
}

#[test]
fn equal_sets_get_equal_plans_in_whatever_form_they_are_given() {
    let world = World::new(Metric::L2);
    let (asked, nodes, options) = (asked(), world.in_nodes(), options(0.9));
    for index in [&world.folder, &nodes] {
        for every in [2, 30, 700] {
            let is_match = |id: &u64| id.is_multiple_of(every);
            let only: Vec<u64> = (0..ROWS as u64).filter(is_match).collect();
            let without: Vec<u64> = (0..ROWS as u64).filter(|id| !is_match(id)).collect();
            let untidy: Vec<u64> = only.iter().rev().chain(&only).copied().collect();
            let forms = [
                filter(index, &only, Naming::Only, &options),
                filter(index, &without, Naming::Without, &options),
                filter(index, &untidy, Naming::Only, &options),
            ];
            assert_eq!(forms[2].repeated(), only.len());
            let [first, others @ ..] = forms.each_ref().map(|own| told(index, &asked, own, &options));
            others.into_iter().for_each(|other| assert_eq!(other, first, "one in {every}"));
        }
    }
}

#[test]
fn threads_batches_and_doorbells_change_no_answer_and_no_counter() {
    let world = World::new(Metric::L2);
    let (asked, nodes) = (asked(), world.in_nodes());
    for index in [&world.folder, &nodes] {
        for every in [2, 40] {
            let rows: Vec<u64> = (0..ROWS as u64).filter(|id| id.is_multiple_of(every)).collect();
            let run = |threads, batch, doorbell| {
                let batch_options = BatchOptions { batch, doorbell, ..BatchOptions::default() };
                let options = SearchOptions { threads, batch_options, ..options(0.9) };
                let own = filter(index, &rows, Naming::Only, &options);
                let (way, matches, ids, [clusters, comparisons, wanted, vain]) =
                    told(index, &asked, &own, &options);
                (way, matches, ids, clusters, comparisons, wanted, vain)
            };
            let usual = run(1, 2000, 64);
            for (threads, batch, doorbell) in [(4, 2000, 64), (1, 1, 1), (3, 7, 2), (2, 2000, 1)] {
                assert_eq!(run(threads, batch, doorbell), usual, "{threads} threads, batches of {batch}");
            }
        }
    }
}

#[test]
fn clusters_without_a_match_are_not_read_where_rows_have_numbers() {
    let world = World::new(Metric::L2);
    let (asked, nodes) = (asked(), world.in_nodes());
    let options = options(0.9);
    // Every cluster of a batch is read once. The rows of a few clusters, by a search of their own ids.
    let all = filter(&world.folder, &(0..ROWS as u64).collect::<Vec<_>>(), Naming::Only, &options);
    assert_eq!(search(&world.folder, &asked, &all, &options).stats.vain_blocks, 0);
    for rows in [&[17u64][..], &[17, 170, 1700], &[5, 6, 7, 8, 9]] {
        let own = filter(&world.folder, rows, Naming::Only, &options);
        assert_eq!((own.way(), own.matches() as usize), (SieveWay::Exact, rows.len()));
        let stats = search(&world.folder, &asked, &own, &options).stats;
        assert!((1..=rows.len() as u64).contains(&(stats.clusters / ASKED as u64)), "{stats:?}");
        let read = stats.clusters / ASKED as u64;
        assert_eq!((stats.clusters, stats.reads, stats.vain_blocks), (read * ASKED as u64, read, 0));
        // Each match is compared once, beside the representatives.
        assert_eq!(stats.full_comparisons, (rows.len() + CLUSTERS) as u64 * ASKED as u64);
        // By ids all clusters are read, once for the batch, after the headers, and it shows which had none.
        let own = filter(&nodes, rows, Naming::Only, &options);
        let in_nodes = search(&nodes, &asked, &own, &options).stats;
        assert_eq!((in_nodes.clusters, in_nodes.reads), ((CLUSTERS * ASKED) as u64, CLUSTERS as u64 + 1));
        assert_eq!(in_nodes.vain_blocks, (CLUSTERS as u64 - read) * ASKED as u64);
    }
}

#[test]
fn no_row_one_row_and_fewer_than_k_are_no_errors_and_not_short() {
    let world = World::new(Metric::L2);
    let (asked, nodes, options) = (asked(), world.in_nodes(), options(0.9));
    for index in [&world.folder, &nodes] {
        for rows in [&[][..], &[7], &[1, 2, 3], &[u64::MAX, 5000], &[u64::MAX, 8]] {
            let own = filter(index, rows, Naming::Only, &options);
            let answers = search(index, &asked, &own, &options);
            let there = rows.iter().filter(|&&id| id < ROWS as u64).count();
            assert!(answers.counts.iter().all(|&count| count as usize == there), "{rows:?}");
            assert_eq!(answers.short, 0);
            if there == 0 && own.is_exact() || rows.is_empty() {
                assert_eq!(answers.stats.shared_reads, 0, "nothing to read");
            }
        }
        let all: Vec<u64> = (0..ROWS as u64).collect();
        let none = filter(index, &all, Naming::Without, &options);
        let answers = search(index, &asked, &none, &options);
        assert_eq!((none.matches(), answers.short), (0, 0));
        assert!(answers.counts.iter().all(|&count| count == 0));
        // More results than rows match.
        let many = SearchOptions { k: 200, ..options };
        let some: Vec<u64> = (0..ROWS as u64).step_by(30).collect();
        let own = filter(index, &some, Naming::Only, &many);
        let answers = search(index, &asked, &own, &many);
        assert_eq!(recall(&world.set, &asked, &answers, |id| some.contains(&id)), 1.0);
        assert_eq!(answers.short, 0);
    }
    let unknown = |index| filter(index, &[1, u64::MAX], Naming::Only, &options);
    assert_eq!((unknown(&world.folder).unknown(), unknown(&world.folder).is_exact()), (Some(1), true));
    assert_eq!((unknown(&nodes).unknown(), unknown(&nodes).is_exact()), (None, false));
}

#[test]
fn each_query_has_a_filter_of_its_own_and_the_batch_reads_what_all_need() {
    let world = World::new(Metric::L2);
    let (asked, nodes, options) = (asked(), world.in_nodes(), options(0.9));
    for index in [&world.folder, &nodes] {
        let rows =
            |query: u64| (0..ROWS as u64).filter(move |id| id % ASKED as u64 == query).collect::<Vec<_>>();
        let each: Vec<Filter> =
            (0..ASKED as u64).map(|query| filter(index, &rows(query), Naming::Only, &options)).collect();
        let answers = index.search_filtered(&asked.bytes, Filters::Each(&each), &options, &Quiet).unwrap();
        assert!(answers.failed.is_empty() && answers.short == 0);
        for query in 0..ASKED {
            let own = found(&answers, query);
            assert!(own.len() == K && own.iter().all(|id| id % ASKED as u64 == query as u64));
        }
        // In memory nodes queries may need more rounds, each of which reads a cluster once.
        let rounds = if index.is_in_memory_nodes() { answers.largest.hops } else { 1 };
        assert!(answers.stats.reads <= rounds * CLUSTERS as u64 + 1, "{:?}", answers.stats);
        assert!(answers.stats.reads < answers.stats.shared_reads / 4, "{:?}", answers.stats);
        let refused = index.search_filtered(&asked.bytes, Filters::Each(&each[1..]), &options, &Quiet);
        assert_eq!(refused.unwrap_err().kind, ErrorKind::BadInput);
    }
    // A filter of the one is none of the other.
    let own = filter(&nodes, &[1, 2], Naming::Only, &options);
    let refused = world.folder.search_filtered(&asked.bytes, Filters::Shared(&own), &options, &Quiet);
    assert_eq!(refused.map(|_| ()).unwrap_err().kind, ErrorKind::BadInput);
    let own = filter(&world.folder, &[1, 2], Naming::Only, &options);
    let refused = nodes.search_filtered(&asked.bytes, Filters::Shared(&own), &options, &Quiet);
    assert_eq!(refused.map(|_| ()).unwrap_err().kind, ErrorKind::BadInput);
}

/// The vectors of a set with some of them replaced, and others behind.
fn changed(set: &Set, updated: &[u64], inserted: usize) -> Set {
    let moved = clustered(updated.len() + inserted, DIM, 12, 77);
    let mut values: Vec<f32> = (0..set.len()).flat_map(|row| set.wide(row)).map(|x| x as f32).collect();
    for (at, &id) in updated.iter().enumerate() {
        values[id as usize * DIM..(id as usize + 1) * DIM].copy_from_slice(&moved[at * DIM..(at + 1) * DIM]);
    }
    values.extend(&moved[updated.len() * DIM..]);
    Set::new(DType::F32, DIM, &values)
}

fn rows_of(set: &Set, ids: &[u64]) -> Vec<u8> {
    ids.iter().flat_map(|&id| set.row(id as usize).to_vec()).collect()
}

#[test]
fn fresh_rows_updates_and_deletions_obey_a_filter() {
    let world = World::new(Metric::L2);
    let (asked, writer, reader) = (asked(), world.in_nodes(), world.in_nodes());
    let updated: Vec<u64> = (0..ROWS as u64).step_by(9).collect();
    let inserted: Vec<u64> = (ROWS as u64..ROWS as u64 + 300).collect();
    let set = changed(&world.set, &updated, inserted.len());
    let update = UpdateOptions::default();
    for ids in [&updated, &inserted] {
        writer.upsert(ids, &rows_of(&set, ids), &update, &Quiet).unwrap();
    }
    let is_deleted = |id: u64| id % 7 == 3;
    let deleted: Vec<u64> = (0..set.len() as u64).filter(|&id| is_deleted(id)).collect();
    writer.delete(&deleted, &update, &Quiet).unwrap();
    for every in [1, 2, 20, 300, 3000] {
        let is_named = |id: u64| id.is_multiple_of(every);
        let named: Vec<u64> = (0..set.len() as u64).filter(|&id| is_named(id)).collect();
        for naming in [Naming::Only, Naming::Without] {
            let is_match = |id: u64| is_named(id) == (naming == Naming::Only) && !is_deleted(id);
            for wanted in [0.8, 0.95, 1.0] {
                let options = options(wanted);
                let own = filter(&reader, &named, naming, &options);
                let answers = search(&reader, &asked, &own, &options);
                let recall = recall(&set, &asked, &answers, is_match);
                assert!(recall >= wanted - 0.02, "{naming:?} one in {every}, {wanted}: {recall}");
                assert_eq!(answers.short, 0);
            }
        }
    }
    // The rows that changed, by their ids alone; those that were deleted are not found although they are named.
    for ids in [&updated, &inserted, &deleted] {
        let own = filter(&reader, ids, Naming::Only, &options(1.0));
        let answers = search(&reader, &asked, &own, &options(1.0));
        let is_match = |id: u64| ids.contains(&id) && !is_deleted(id);
        assert_eq!(recall(&set, &asked, &answers, is_match), 1.0);
    }
    // Nothing is left of what matches, and then of all.
    let left: Vec<u64> = updated.iter().copied().filter(|&id| !is_deleted(id)).collect();
    writer.delete(&left, &update, &Quiet).unwrap();
    let own = filter(&reader, &updated, Naming::Only, &options(0.9));
    assert!(search(&reader, &asked, &own, &options(0.9)).counts.iter().all(|&count| count == 0));
    writer.delete(&(0..set.len() as u64).collect::<Vec<_>>(), &update, &Quiet).unwrap();
    for (ids, naming) in [(&left, Naming::Only), (&left, Naming::Without)] {
        let own = filter(&reader, ids, naming, &options(0.9));
        let answers = search(&reader, &asked, &own, &options(0.9));
        assert!(answers.counts.iter().all(|&count| count == 0) && answers.short == 0);
    }
}

#[test]
fn other_distances_find_the_nearest_of_the_rows_that_match() {
    for metric in [Metric::Ip, Metric::Cosine] {
        let world = World::with(metric, 1);
        let (asked, nodes) = (asked(), world.in_nodes());
        for every in [2, 50] {
            let is_match = |id: u64| id.is_multiple_of(every);
            let rows: Vec<u64> = (0..ROWS as u64).filter(|&id| is_match(id)).collect();
            for index in [&world.folder, &nodes] {
                let own = filter(index, &rows, Naming::Only, &options(1.0));
                let answers = search(index, &asked, &own, &options(1.0));
                for query in 0..ASKED {
                    let row = asked.row(query);
                    let truth = nearest(&world.set, metric, row, K, |row| !is_match(row as u64));
                    assert_eq!(found(&answers, query), truth, "{metric:?}, query {query}");
                }
            }
        }
    }
}

#[test]
fn a_budget_lowers_the_batch_and_changes_no_answer() {
    let world = World::new(Metric::L2);
    let (asked, options) = (asked(), options(0.9));
    let rows: Vec<u64> = (0..ROWS as u64).step_by(3).collect();
    let of = |ram_budget| {
        let open = OpenOptions { ram_budget, ..OpenOptions::default() };
        let index = Index::open_memory(&addresses(&world.nodes), &credentials(), open).unwrap();
        let own = filter(&index, &rows, Naming::Only, &options);
        search(&index, &asked, &own, &options)
    };
    let free = of(None);
    let needed = free.account.total();
    // Filters take more for each query of a batch: half of them at a time take less.
    let tight = needed - free.account.bytes_of("filters") / 4;
    let answers = of(Some(tight));
    assert!(answers.account.total() <= tight, "{:?}", answers.account);
    assert_eq!((answers.ids, answers.distances), (free.ids, free.distances));
}

#[test]
fn a_server_of_memory_nodes_takes_filters_and_answers_as_one_process_does() {
    let world = World::new(Metric::L2);
    let memory = MemoryNodes { addresses: addresses(&world.nodes), credentials: credentials() };
    let served = ServeOptions { memory: Some(memory), threads: 2, ..ServeOptions::default() };
    let server = Server::start(served).unwrap();
    let (asked, index) = (asked(), world.in_nodes());
    for share in [0.5, 0.1, 0.01, 0.0003] {
        for (place, rows) in matches(&world.set, &asked, share) {
            let others: Vec<u64> = (0..ROWS as u64).filter(|id| !rows.contains(id)).collect();
            for (ids, naming) in [(&rows, Naming::Only), (&others, Naming::Without)] {
                let options = options(0.9);
                let expected = search(&index, &asked, &filter(&index, ids, naming, &options), &options);
                let filters = server.filters(([&ids[..]], naming), false, &options).unwrap();
                let filters = filters.keep(Vec::new());
                let (sender, answers) = channel();
                for query in 0..asked.len() {
                    let (own, sender) = (filters.of(query), sender.clone());
                    let question = Question {
                        vector: asked.row(query),
                        params: server.params_of(&options, Some(&own)).unwrap(),
                        filter: Some(&own),
                        timeout: Duration::from_secs(60),
                        partial: false,
                        client: 0,
                        request: 0,
                        is_batch: false,
                    };
                    let reply =
                        Box::new(move |answer: Result<Answer, _>| sender.send((query, answer)).unwrap());
                    server.ask(question, reply);
                }
                for _ in 0..asked.len() {
                    let (query, answer) = answers.recv_timeout(Duration::from_secs(60)).unwrap();
                    let answer: Answer = answer.unwrap();
                    assert_eq!(
                        answer.ids,
                        found(&expected, query),
                        "{share} {place}, {naming:?}, query {query}"
                    );
                }
            }
        }
    }
}
