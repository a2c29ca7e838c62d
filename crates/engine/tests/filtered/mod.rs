//! Filters of queries on servers: of a partition, and with an index each.

use std::sync::mpsc::channel;

use stratann_core::query::wire::MASKS_VERSION;
use stratann_engine::Metric;
use stratann_engine::build::IndexKind;
use stratann_engine::deletes::delete;
use stratann_engine::index::{Index, OpenOptions};
use stratann_engine::kinds::division;
use stratann_engine::manifest::Manifest;
use stratann_engine::search::{Effort, Filter, Filters, Naming, SearchOptions, Together};
use stratann_engine::serve::{FilterCounts, Question, ServeOptions, Server, Unanswered};
use stratann_engine::spread::PartitionOptions;
use stratann_engine::spread::scatter::{scatter, server_folder};
use stratann_params::search::GridSwitches;
use stratann_storage::{ErrorKind, Quiet};

use super::common::{Built, Set, graph_set, nearest, queries, quick};
use super::{Answering, Cluster, DIM, PATIENCE, check, expected, one_at_a_time, source};

impl Cluster {
    /// Servers with an index for each of so many parts.
    fn start_apart(source: &Built, spread: &PartitionOptions, parts: usize) -> Cluster {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("apart");
        scatter(source.dir.path(), &out, (spread, parts), &Quiet).unwrap();
        std::fs::read_dir(&out).unwrap().map(|entry| entry.unwrap()).for_each(|entry| {
            std::fs::rename(entry.path(), dir.path().join(entry.file_name())).unwrap();
        });
        std::fs::remove_dir(&out).unwrap();
        Cluster::start_in(dir, spread.servers, Box::new(|_| {}))
    }
}

/// Asks all queries of `asked` of a server with one filter for all of them. Returns the ids that each finds.
fn ask_filtered(
    server: &Server,
    (ids, naming): (&[u64], Naming),
    options: &SearchOptions,
    asked: &Set,
) -> Vec<Vec<u64>> {
    let filters = server.filters(([ids], naming), false, options).unwrap().keep(Vec::new());
    let answers: Vec<Answering> = (0..asked.len())
        .map(|row| {
            let (sender, answer) = channel();
            let filter = Some(&filters.of(row));
            let question = Question {
                vector: asked.row(row),
                params: server.params_of(options, filter).unwrap(),
                filter,
                timeout: PATIENCE,
                partial: false,
                client: 0,
                request: 0,
                is_batch: false,
            };
            server.ask(question, Box::new(move |got| drop(sender.send(got))));
            answer
        })
        .collect();
    answers.into_iter().map(|answer| answer.recv_timeout(PATIENCE).unwrap().unwrap().ids).collect()
}

/// Compares the answers of servers with those of one process, for filters of all selectivities, said either way.
fn check_filters(cluster: &Cluster, whole: &Index, rows: usize, asked: &Set, options: &SearchOptions) {
    let server = cluster.servers[1].as_ref().unwrap();
    for every in [1, 2, 6, 30, 700, 1 << 20] {
        let named: Vec<u64> = (0..rows as u64).filter(|id| id.is_multiple_of(every)).collect();
        for (ids, naming) in [(&named[..], Naming::Only), (&named[1..], Naming::Without)] {
            let own = whole.filter(ids, naming, options, &Quiet).unwrap();
            let expected =
                whole.search_filtered(&asked.bytes, Filters::Shared(&own), options, &Quiet).unwrap();
            let found = ask_filtered(server, (ids, naming), options, asked);
            for (row, found) in found.iter().enumerate() {
                let count = expected.counts[row] as usize;
                let expected = &expected.ids[row * expected.k..][..count];
                assert_eq!(found, expected, "every {every}, {naming:?}, {:?}, query {row}", own.way());
            }
        }
    }
    let handed: u64 =
        cluster.up().map(|server| server.status().hand_overs_in + server.status().jobs_in).sum();
    assert!(handed > 0);
}

#[test]
fn servers_of_a_partition_take_filters_and_answer_as_one_process_does() {
    let kinds = [
        (IndexKind::DiskGraph, Effort::SearchList(60, None)),
        (IndexKind::HybridIvf, Effort::Nprobe(6, None, None)),
    ];
    for (kind, effort) in kinds {
        let built = Built::new(graph_set(), &quick(kind, Metric::L2));
        delete(built.dir.path(), &[6, 12], None, &Quiet).unwrap();
        let asked = queries(20, built.set.shape.dim);
        let options = SearchOptions { effort, ..one_at_a_time() };
        let whole = Index::open(built.dir.path(), OpenOptions::default()).unwrap();
        let cluster = Cluster::start_of(&built, 3, 1, |_| {});
        check_filters(&cluster, &whole, built.set.len(), &asked, &options);
        // The filter of many queries is made once on each other server.
        let made = || cluster.up().map(|server| server.status().filters.made).collect::<Vec<u64>>();
        let before = made();
        for _ in 0..5 {
            ask_filtered(
                cluster.servers[1].as_ref().unwrap(),
                (&[9, 10, 40, 41], Naming::Without),
                &options,
                &asked,
            );
        }
        let more: Vec<u64> = made().iter().zip(before).map(|(after, before)| after - before).collect();
        assert!(more.iter().all(|&more| more <= 1) && more[1] == 0, "{kind:?}: {more:?}");
        let counts: Vec<FilterCounts> = cluster.up().map(|server| server.status().filters).collect();
        assert!(counts.iter().map(|own| own.reused).sum::<u64>() > 20, "{kind:?}: {counts:?}");
        // It was sent to each of them once, and its key after that.
        assert!(counts[1].keys_sent > 5 * counts[1].sent, "{kind:?}: {counts:?}");
    }
}

#[test]
fn servers_of_a_grid_take_filters_however_it_is_divided() {
    let built = Built::new(graph_set(), &quick(IndexKind::GridIvf, Metric::L2));
    let asked = queries(20, built.set.shape.dim);
    let whole = Index::open(built.dir.path(), OpenOptions::default()).unwrap();
    let all = GridSwitches::default();
    let at_once = GridSwitches { pipeline: false, ..all };
    let one_by_one = GridSwitches { chain: false, ..all };
    for (mode, servers, slices, switches) in [
        (division::Mode::Vector, 4, None, [all, one_by_one]),
        (division::Mode::Striped, 4, None, [all, one_by_one]),
        (division::Mode::Dimension, 2, None, [all, at_once]),
        (division::Mode::Harmony, 4, Some(2), [all, at_once]),
    ] {
        let mut spread = PartitionOptions { threads: 2, ..PartitionOptions::new(servers) };
        (spread.grid.mode, spread.grid.slices) = (mode, slices);
        let cluster = Cluster::start_divided(Box::new(|_| {}), &built, &spread, |_| {});
        for (switches, nprobe) in switches.into_iter().flat_map(|switches| [(switches, 5), (switches, 1000)])
        {
            let effort = Effort::Nprobe(nprobe, None, None);
            let options = SearchOptions { effort, switches: switches.into(), ..one_at_a_time() };
            check_filters(&cluster, &whole, built.set.len(), &asked, &options);
        }
    }
}

#[test]
fn servers_without_ids_of_rows_or_with_an_older_one_refuse_filters() {
    let ask = |cluster: &Cluster| {
        let server = cluster.up().next().unwrap();
        server.filters(([&[1u64][..]], Naming::Only), false, &one_at_a_time()).unwrap_err()
    };
    // As a partition of before filters.
    let cluster = Cluster::start_with(2, 1, |folder| {
        let (_, mut manifest) = Manifest::read(folder).unwrap();
        assert!(manifest.files.remove("v1-row-ids.bin").is_some());
        manifest.build_id = manifest.content_id();
        std::fs::write(folder.join("manifest-1.json"), manifest.to_text().unwrap()).unwrap();
    });
    let refused = ask(&cluster);
    assert!(refused.kind == ErrorKind::BadInput && refused.message.contains("ids of rows"), "{refused}");
    // Jobs of a grid carry masks, which the version before does not know.
    let grid = Built::new(graph_set(), &quick(IndexKind::GridIvf, Metric::L2));
    let before = |options: &mut ServeOptions| {
        if options.server == Some(1) {
            options.versions.states.1 = (MASKS_VERSION - 1) as u16;
        }
    };
    let refused = ask(&Cluster::start_like(Box::new(before), &grid, 2, 1, |_| {}));
    assert!(refused.message.contains("earlier version"), "{refused}");
    let older = |options: &mut ServeOptions| {
        if options.server == Some(1) {
            options.versions.states.1 = options.versions.states.0;
        }
    };
    let cluster = Cluster::start_like(Box::new(older), source(), 2, 1, |_| {});
    let refused = ask(&cluster);
    assert!(refused.message.contains("earlier version"), "{refused}");
    let asked = queries(1, DIM);
    let got = cluster.ask(0, asked.row(0), false).recv_timeout(PATIENCE).unwrap().unwrap();
    check(&asked, &expected(&asked), 0, &got);
}

/// Servers with an index each answer as a search of these indexes as one, each of them with the rows that it has.
#[test]
fn servers_with_an_index_each_take_of_a_filter_what_each_holds() {
    let built = source();
    let asked = queries(20, DIM);
    let spread = PartitionOptions { threads: 2, ..PartitionOptions::new(3) };
    let dir = tempfile::tempdir().unwrap();
    scatter(built.dir.path(), &dir.path().join("apart"), (&spread, 3), &Quiet).unwrap();
    let folder = |part| server_folder(&dir.path().join("apart"), part);
    let parts: Vec<Index> =
        (0..3).map(|part| Index::open(&folder(part), OpenOptions::default()).unwrap()).collect();
    let together = Together::new(&parts).unwrap();
    let cluster = Cluster::start_apart(built, &spread, 3);
    for effort in [Effort::SearchList(40, None), Effort::Recall(1.0)] {
        let options = SearchOptions { effort, ..one_at_a_time() };
        for every in [1, 2, 7, 100, 2000, 1 << 20] {
            let named: Vec<u64> = (0..built.set.len() as u64).filter(|id| id % every == 0).collect();
            for (ids, naming) in [(&named[..], Naming::Only), (&named[1..], Naming::Without)] {
                let own: Vec<Filter> =
                    parts.iter().map(|index| index.filter(ids, naming, &options, &Quiet).unwrap()).collect();
                let filters: Vec<Filters<'_>> = own.iter().map(Filters::Shared).collect();
                let expected =
                    together.search_filtered(&asked.bytes, &filters, &options, false, &Quiet).unwrap();
                let found =
                    ask_filtered(cluster.servers[2].as_ref().unwrap(), (ids, naming), &options, &asked);
                for (row, found) in found.iter().enumerate() {
                    let count = expected.counts[row] as usize;
                    let expected = &expected.ids[row * expected.k..][..count];
                    assert_eq!(found, expected, "{effort:?}, every {every}, {naming:?}, query {row}");
                }
            }
        }
    }
    // Each of them was made once on each other server, whatever the number of queries.
    let made: Vec<u64> = cluster.up().map(|server| server.status().filters.made).collect();
    assert!(made[0] <= 24 && made[1] <= 24 && made[2] == 0, "{made:?}");
    assert!(
        cluster.up().map(|server| server.status().filters.reused).sum::<u64>() >= 2 * 19 * 24,
        "{made:?}"
    );
}

#[test]
fn parts_on_several_servers_take_filters_too() {
    let built = source();
    let asked = queries(10, DIM);
    let spread = PartitionOptions { threads: 2, ..PartitionOptions::new(4) };
    let cluster = Cluster::start_apart(built, &spread, 2);
    let options = SearchOptions { effort: Effort::Recall(1.0), ..one_at_a_time() };
    for every in [2, 7, 100, 2000] {
        let ids: Vec<u64> = (0..built.set.len() as u64).filter(|id| id % every == 1).collect();
        for server in cluster.up() {
            let found = ask_filtered(server, (&ids, Naming::Only), &options, &asked);
            for (row, found) in found.iter().enumerate() {
                let is_out = |id: usize| id as u64 % every != 1;
                let truth = nearest(&built.set, Metric::L2, asked.row(row), 10, is_out);
                assert_eq!(*found, truth, "every {every}, query {row}");
            }
        }
    }
}

/// Many queries at once, each with rows of its own: all are answered with these, or refused for want of room, and the
/// servers take no more memory than they set aside.
#[test]
fn a_thousand_different_filters_in_flight_are_right_or_refused() {
    let (built, count) = (source(), 1000);
    let asked = queries(count, DIM);
    let options = one_at_a_time();
    let whole = Index::open(built.dir.path(), OpenOptions::default()).unwrap();
    let cluster = Cluster::start(3, 1);
    let server = cluster.servers[0].as_ref().unwrap();
    let rows =
        |query: u64| (0..built.set.len() as u64).filter(|id| id % 97 == query % 97 || *id == query).collect();
    let lists: Vec<Vec<u64>> = (0..count as u64).map(rows).collect();
    let lists: Vec<&[u64]> = lists.iter().map(Vec::as_slice).collect();
    let own = whole.filters(&lists, Naming::Only, &options, &Quiet).unwrap();
    let expected = whole.search_filtered(&asked.bytes, Filters::Each(&own), &options, &Quiet).unwrap();
    let filters = server.filters((lists, Naming::Only), true, &options).unwrap().keep(Vec::new());
    let ask = |row: usize| {
        let (sender, answer) = channel();
        let filter = Some(&filters.of(row));
        let question = Question {
            vector: asked.row(row),
            params: server.params_of(&options, filter).unwrap(),
            filter,
            timeout: PATIENCE,
            partial: false,
            client: 0,
            request: 0,
            is_batch: false,
        };
        server.ask(question, Box::new(move |got| drop(sender.send(got))));
        answer
    };
    let is_right = |row: usize, ids: &[u64]| {
        let found = expected.counts[row] as usize;
        ids == &expected.ids[row * expected.k..][..found]
    };
    let answers: Vec<Answering> = (0..count).map(ask).collect();
    let mut answered = 0;
    for (row, answer) in answers.iter().enumerate() {
        match answer.recv_timeout(PATIENCE).unwrap() {
            Ok(got) => {
                assert!(is_right(row, &got.ids), "query {row}");
                answered += 1;
            }
            Err(why) => assert!(matches!(why, Unanswered::Overloaded), "query {row}: {why}"),
        }
    }
    assert!(answered >= 50, "{answered} of {count}");
    // Nothing is lost: those that were refused are answered when there is room.
    for row in (0..count).step_by(50) {
        let got = ask(row).recv_timeout(PATIENCE).unwrap().unwrap();
        assert!(is_right(row, &got.ids), "query {row}");
    }
    for server in cluster.up() {
        let status = server.status();
        let accounted: u64 = status.memory.iter().map(|part| part.1).sum();
        assert!(status.ledger.committed_bytes <= accounted, "{:?}", status.ledger);
    }
}
