//! Searches with a filter: whatever rows it has and wherever they lie, results are its rows, as many as there are.

mod common;

use common::{
    Built, Set, clustered, filter, hits, ids, nearest, normal, on_disk, options, queries, quick, row_ids,
    run_plain, search, with_graph, with_sieve,
};
use proptest::prelude::*;
use proptest::sample::select;
use stratann_core::kinds::disk_graph::Sieving;
use stratann_core::query::{Budget, Outcome, Params};
use stratann_core::sieve::Sieve;
use stratann_engine::build::IndexKind;
use stratann_engine::curve::Curve;
use stratann_engine::dataset::Shape;
use stratann_engine::index::{Index, OpenOptions};
use stratann_engine::manifest::Manifest;
use stratann_engine::search::{
    Effort, Filter, Filters, Naming, PriceUnit, SearchOptions, SievePrices, SieveWay,
};
use stratann_engine::{DType, Metric};
use stratann_params::choices::PlanName;
use stratann_params::search::ListSwitches;
use stratann_storage::{ErrorKind, Quiet};

const ROWS: usize = 3000;
const DIM: usize = 24;
/// The kinds whose searches take filters.
const KINDS: [IndexKind; 6] = [
    IndexKind::DiskGraph,
    IndexKind::Flat,
    IndexKind::HybridIvf,
    IndexKind::GridIvf,
    IndexKind::GpuIvf,
    IndexKind::RemoteHnsw,
];
const METRICS: [Metric; 3] = [Metric::L2, Metric::Ip, Metric::Cosine];

fn set() -> Set {
    Set::new(DType::F32, DIM, &clustered(ROWS, DIM, 12, 1))
}

/// Every way to the rows of a sieve, of which all but the last find the nearest.
fn ways(rerank: u32) -> [(bool, u32, Sieving); 7] {
    let all = Sieving { list: ROWS as u32, ..Sieving::default() };
    let codes = Sieving { code_scan: true, ..all };
    [
        (true, 0, all),
        (false, 0, codes),
        (false, 0, Sieving { blocks_max: 2, ..all }),
        (false, 0, Sieving { blocks_max: 2, to_codes: true, ..all }),
        (false, 0, Sieving { comparisons_max: 500, to_codes: true, ..all }),
        // Its walk ends within a round of blocks.
        (false, 0, Sieving { comparisons_max: 500, ..all }),
        (false, rerank, all),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]

    /// The ways of a disk-graph, in memory and from disk: those that go through all rows of the sieve find the nearest
    /// of them, and no way finds another row.
    #[test]
    fn every_way_finds_rows_of_the_sieve(
        metric in select(&METRICS[..]),
        every in prop_oneof![Just(1), 1..400usize],
        k in 1..20u32,
        seed in 0..1000u64,
        width in 1..9u32,
    ) {
        let mut built = Built::new(set(), &quick(IndexKind::DiskGraph, metric));
        built.index.set_cache_budget(1 << 30);
        prop_assert!(built.index.make_resident(&Quiet).unwrap());
        let external = row_ids(&built);
        let is_match = |row: &u32| (*row as usize + seed as usize).is_multiple_of(every);
        let matches: Vec<u32> = (0..ROWS as u32).filter(is_match).collect();
        let sieve = Sieve::from_sorted(ROWS as u32, &matches).unwrap();
        let names: Vec<u64> = matches.iter().map(|&row| external[row as usize]).collect();
        let (blocks, asked) = (built.blocks(), queries(3, DIM));
        for query in (0..3).map(|at| asked.row(at)) {
            let truth = nearest(&built.set, metric, query, k as usize, |row| !names.contains(&(row as u64)));
            for view in [built.index.view(), on_disk(&built.index.view())] {
                let view = with_sieve(&view, &sieve);
                for (at, (scan, rerank, sieving)) in ways(k + 10).into_iter().enumerate() {
                    let params = Params { width, approach_width: width, ..Params::disk_graph(k, ROWS as u32) };
                    let params = with_graph(params, |own| {
                        (own.scan, own.rerank, own.sieving) = (scan, rerank, sieving);
                    });
                    let state = run_plain(&view, &blocks, query, params, Budget::default(), seed);
                    prop_assert_eq!(state.outcome(), Outcome::Complete);
                    let found = ids(state.results());
                    prop_assert!(found.iter().all(|id| names.contains(id)), "way {at}");
                    prop_assert_eq!(found.len(), truth.len(), "way {}", at);
                    // The last compares the nearest by codes alone.
                    if at < 6 {
                        prop_assert_eq!(&found, &truth, "way {}", at);
                    }
                    let gives_way = sieving.blocks_max > 0 || sieving.comparisons_max > 0;
                    prop_assert_eq!(state.stats().gave_way, u64::from(gives_way), "way {}", at);
                }
            }
        }
    }
}

fn calibrated(kind: IndexKind) -> Built {
    let mut options = quick(kind, Metric::L2);
    options.calibration_queries = 200;
    Built::new(set(), &options)
}

/// Names of the sets of [`matches`].
const PLACES: [&str; 3] = ["anywhere", "near", "far"];

/// Rows that match: drawn anywhere, those nearest to the queries, and those farthest from them.
fn matches(set: &Set, asked: &Set, share: f64) -> [Vec<u64>; 3] {
    let count = (share * ROWS as f64).ceil() as usize;
    let mut anywhere: Vec<u64> = (0..ROWS as u64).collect();
    anywhere.sort_by(|&a, &b| normal(5, 5, a).total_cmp(&normal(5, 5, b)));
    let by_distance = nearest(set, Metric::L2, asked.row(0), ROWS, |_| false);
    let far = by_distance.iter().rev().copied().take(count).collect();
    [anywhere[..count].to_vec(), by_distance[..count].to_vec(), far]
}

/// The first of some queries, and those nearest to it.
fn around_the_first(count: usize) -> Set {
    let all = queries(20 * count, DIM);
    let near = nearest(&all, Metric::L2, all.row(0), count, |_| false);
    let rows = near.iter().flat_map(|&query| all.row(query as usize).to_vec());
    Set { shape: Shape { rows: count as u64, ..all.shape }, bytes: rows.collect() }
}

/// Recalls that are asked for.
const RECALLS: [f64; 2] = [0.9, 0.99];

#[test]
fn recall_is_that_asked_for_among_the_rows_that_match() {
    let (of_first, all) = (around_the_first(20), queries(60, DIM));
    for kind in KINDS {
        let mut built = calibrated(kind);
        for in_memory in [false, true] {
            if in_memory {
                built.index.set_cache_budget(1 << 30);
                built.index.make_resident(&Quiet).unwrap();
            }
            for share in [1.0, 0.5, 0.1, 0.01, 0.001] {
                // Found and wanted, of each recall.
                let mut sums = [(0, 0); 2];
                for (place, rows) in PLACES.iter().zip(matches(&built.set, &of_first, share)) {
                    let asked = if *place == "anywhere" { &all } else { &of_first };
                    let skip = |row: usize| !rows.contains(&(row as u64));
                    let truth = (0..asked.len())
                        .map(|query| nearest(&built.set, Metric::L2, asked.row(query), 10, skip));
                    let truth: Vec<Vec<u64>> = truth.collect();
                    for (recall, sum) in RECALLS.into_iter().zip(&mut sums) {
                        let options = options(10, recall);
                        let own = filter(&built.index, &rows, Naming::Only, &options);
                        assert_eq!(own.matches() as usize, rows.len());
                        let answers = search(&built.index, asked, Filters::Shared(&own), &options);
                        assert_eq!(answers.short, 0);
                        let (mut found, mut wanted) = (0, 0);
                        for (query, truth) in truth.iter().enumerate() {
                            let ids = &answers.ids[10 * query..][..answers.counts[query] as usize];
                            assert_eq!(ids.len(), truth.len());
                            assert!(ids.iter().all(|id| rows.contains(id)));
                            (found, wanted) = (found + hits(ids, truth), wanted + truth.len());
                        }
                        // Twenty queries that are neighbours tell little.
                        let reached = found as f64 / wanted as f64;
                        let way = own.way();
                        let what = format!("{kind:?}, {share} match {place}, {way:?}, in memory {in_memory}");
                        assert!(reached >= recall - 0.1, "{what}: {reached} for {recall}");
                        *sum = (sum.0 + found, sum.1 + wanted);
                    }
                }
                for ((found, wanted), recall) in sums.into_iter().zip(RECALLS) {
                    let reached = f64::from(found as u32) / f64::from(wanted as u32);
                    let what = format!("{kind:?}, {share} match, in memory {in_memory}");
                    assert!(reached >= recall - 0.02, "{what}: {reached} for {recall}");
                }
            }
        }
    }
}

#[test]
fn a_search_is_as_wide_as_was_measured() {
    for kind in KINDS.into_iter().filter(|kind| *kind != IndexKind::Flat) {
        let built = calibrated(kind);
        let (folder, dir) = (built.dir.path(), tempfile::tempdir().unwrap());
        // An index of an earlier version says nothing of filters.
        let older = dir.path().join("older");
        std::fs::create_dir(&older).unwrap();
        for file in std::fs::read_dir(folder).unwrap().map(|file| file.unwrap()) {
            if file.file_type().unwrap().is_file() {
                std::fs::copy(file.path(), older.join(file.file_name())).unwrap();
            }
        }
        let (number, mut manifest) = Manifest::read(&older).unwrap();
        let widening = |curves: &[Curve]| curves.iter().any(|curve| !curve.widening.is_empty());
        assert!(widening(&manifest.curves), "{kind:?}");
        manifest.curves.iter_mut().for_each(|curve| curve.widening.clear());
        manifest.publish(&older, number + 1).unwrap();
        let older = Index::open(&older, OpenOptions::default()).unwrap();
        assert!(!widening(&older.manifest().curves));
        let (asked, options) = (queries(40, DIM), options(10, 0.9));
        let spent = |index: &Index| {
            let rows: Vec<u64> = (0..ROWS as u64).filter(|id| id % 4 != 1).collect();
            let own = filter(index, &rows, Naming::Only, &options);
            let stats = search(index, &asked, Filters::Shared(&own), &options).stats;
            (own.way(), stats.lists + stats.reads_asked() + stats.code_comparisons + stats.full_comparisons)
        };
        let (by_rule, measured) = (spent(&older), spent(&built.index));
        assert_eq!((by_rule.0, measured.0), (SieveWay::Search, SieveWay::Search), "{kind:?}");
        let is_less = measured.1 < by_rule.1;
        // The curves of so small an index begin with what is enough here.
        let is_as_much =
            matches!(kind, IndexKind::DiskGraph | IndexKind::RemoteHnsw) && measured.1 == by_rule.1;
        assert!(is_less || is_as_much, "{kind:?}: {measured:?}, and {by_rule:?} by rule");
        // Without a filter both are the same.
        let usual = [&older, &built.index].map(|index| search(index, &asked, Filters::None, &options));
        let [one, two] = usual.each_ref().map(|answers| (&answers.ids, &answers.stats, &answers.params));
        assert_eq!(one, two);
    }
}

#[test]
fn equal_sets_get_equal_plans_in_whatever_form_they_are_given() {
    let built = calibrated(IndexKind::DiskGraph);
    let options = options(10, 0.95);
    let asked = queries(20, DIM);
    for every in [2, 30, 500] {
        let only: Vec<u64> = (0..ROWS as u64).filter(|id| id.is_multiple_of(every)).collect();
        let without: Vec<u64> = (0..ROWS as u64).filter(|id| !id.is_multiple_of(every)).collect();
        let mut untidy: Vec<u64> = only.iter().rev().chain(&only).copied().collect();
        untidy.extend([u64::MAX, ROWS as u64, 1 << 53]);
        let forms = [
            filter(&built.index, &only, Naming::Only, &options),
            filter(&built.index, &without, Naming::Without, &options),
            filter(&built.index, &untidy, Naming::Only, &options),
        ];
        assert_eq!((forms[2].unknown(), forms[2].repeated()), (Some(3), only.len()));
        assert_eq!((forms[0].unknown(), forms[1].repeated()), (Some(0), 0));
        let [first, others @ ..] = forms.each_ref().map(|own| {
            let answers = search(&built.index, &asked, Filters::Shared(own), &options);
            (
                own.way(),
                own.matches(),
                answers.ids,
                answers.stats.code_comparisons,
                answers.stats.full_comparisons,
            )
        });
        assert!(others.iter().all(|other| *other == first));
    }
}

#[test]
fn few_rows_many_and_all_are_found_in_other_ways() {
    let built = calibrated(IndexKind::DiskGraph);
    let way = |count: u64| {
        let ids: Vec<u64> = (0..count).collect();
        filter(&built.index, &ids, Naming::Only, &options(10, 0.95)).way()
    };
    assert_eq!(way(2), SieveWay::Exact);
    assert_eq!(way(60), SieveWay::Codes);
    assert_eq!(way(2900), SieveWay::Search);
    let exact = options(10, 1.0);
    assert_eq!(filter(&built.index, &[1, 2], Naming::Without, &exact).way(), SieveWay::Exact);
}

#[test]
fn no_row_one_row_and_fewer_than_k_are_no_errors_and_not_short() {
    let options = options(10, 0.95);
    let asked = queries(5, DIM);
    for kind in KINDS {
        let built = calibrated(kind);
        for rows in [&[][..], &[7], &[1, 2, 3], &[u64::MAX, 5000]] {
            let own = filter(&built.index, rows, Naming::Only, &options);
            let answers = search(&built.index, &asked, Filters::Shared(&own), &options);
            let there = rows.iter().filter(|&&id| id < ROWS as u64).count();
            assert!(answers.counts.iter().all(|&count| count as usize == there), "{kind:?} {rows:?}");
            assert_eq!(answers.short, 0);
            if there == 0 {
                assert_eq!(answers.stats.reads_asked(), 0, "nothing to read");
            }
        }
        let none = filter(&built.index, &(0..ROWS as u64).collect::<Vec<_>>(), Naming::Without, &options);
        assert_eq!(none.matches(), 0);
    }
}

#[test]
fn each_query_has_a_filter_of_its_own() {
    let built = calibrated(IndexKind::DiskGraph);
    let (options, asked) = (options(10, 0.95), queries(6, DIM));
    let rows = |query: u64| (0..ROWS as u64).filter(|id| id % 6 == query).collect::<Vec<_>>();
    let each: Vec<Filter> =
        (0..6).map(|query| filter(&built.index, &rows(query), Naming::Only, &options)).collect();
    let answers = search(&built.index, &asked, Filters::Each(&each), &options);
    for (query, found) in answers.ids.chunks(10).enumerate() {
        assert!(found.iter().all(|id| id % 6 == query as u64));
    }
    let refused = built.index.search_filtered(&asked.bytes, Filters::Each(&each[..5]), &options, &Quiet);
    assert_eq!(refused.unwrap_err().kind, ErrorKind::BadInput);
}

#[test]
fn answers_and_counters_do_not_depend_on_threads() {
    let built = calibrated(IndexKind::DiskGraph);
    let asked = queries(40, DIM);
    for every in [2, 9, 200] {
        let rows: Vec<u64> = (0..ROWS as u64).filter(|id| id.is_multiple_of(every)).collect();
        let run = |threads| {
            let options = SearchOptions { threads, ..options(10, 0.95) };
            let own = filter(&built.index, &rows, Naming::Only, &options);
            let answers = search(&built.index, &asked, Filters::Shared(&own), &options);
            (answers.ids, answers.stats.reads_asked(), answers.stats.code_comparisons)
        };
        assert_eq!(run(1), run(4));
    }
}

#[test]
fn small_budgets_refuse_filters() {
    let built = calibrated(IndexKind::DiskGraph);
    let open = |ram_budget| {
        Index::open(built.dir.path(), OpenOptions { ram_budget, ..OpenOptions::default() }).unwrap()
    };
    let taken = open(None).account().total();
    let small = open(Some(taken + 100)).filter(&[1], Naming::Only, &options(10, 0.9), &Quiet).unwrap_err();
    assert_eq!(small.kind, ErrorKind::Budget);
    let enough = open(Some(taken + 64 * ROWS as u64));
    filter(&enough, &[1], Naming::Only, &options(10, 0.9));
    assert!(enough.account().components.iter().any(|part| part.0 == "row ids" && part.1 == 4 * ROWS as u64));
}

#[test]
fn a_thousand_filters_stay_within_the_budget_or_are_refused() {
    let built = calibrated(IndexKind::DiskGraph);
    let asked = queries(1000, DIM);
    let rows =
        |query: u64| (0..ROWS as u64).filter(|id| (id * 7 + query).is_multiple_of(97)).collect::<Vec<_>>();
    let ids: Vec<Vec<u64>> = (0..1000).map(rows).collect();
    let ids: Vec<&[u64]> = ids.iter().map(Vec::as_slice).collect();
    let open = |ram_budget| {
        Index::open(built.dir.path(), OpenOptions { ram_budget, ..OpenOptions::default() }).unwrap()
    };
    let options = options(10, 0.95);
    let free = open(None);
    let each = free.filters(&ids, Naming::Only, &options, &Quiet).unwrap();
    let expected = search(&free, &asked, Filters::Each(&each), &options);
    let needed = expected.account.total();
    assert!(needed > each.iter().map(Filter::bytes).sum());
    // A tight budget has fewer queries in flight, and the same answers.
    let tight = open(Some(needed / 5 * 4));
    let each = tight.filters(&ids, Naming::Only, &options, &Quiet).unwrap();
    let answers = search(&tight, &asked, Filters::Each(&each), &options);
    assert!(answers.account.total() <= needed / 5 * 4, "{:?}", answers.account);
    assert_eq!(answers.ids, expected.ids);
    let sum: u64 = each.iter().map(Filter::bytes).sum();
    let small = open(Some(tight.account().total() + sum / 2));
    let refused = small.filters(&ids, Naming::Only, &options, &Quiet).unwrap_err();
    assert_eq!(refused.kind, ErrorKind::Budget);
}

/// Lists of divided clusters that a search would leave out are compared where all lists with a match are visited.
#[test]
fn all_lists_of_divided_clusters_are_compared_for_few_rows() {
    let mut build = quick(IndexKind::HybridIvf, Metric::L2);
    build = common::list_options(build, |own| {
        own.clusters = Some(6);
        own.plan = PlanName::UniformIvf;
    });
    let built = Built::new(set(), &build);
    let asked = queries(10, DIM);
    let one_list = ListSwitches { local_lists: Some(1), ..ListSwitches::default() };
    let effort = Effort::Nprobe(6, None, None);
    let options = SearchOptions { effort, switches: one_list.into(), ..options(10, 0.9) };
    let rows: Vec<u64> = (0..ROWS as u64).filter(|id| id.is_multiple_of(50)).collect();
    let own = filter(&built.index, &rows, Naming::Only, &options);
    assert_eq!(own.way(), SieveWay::Codes);
    let answers = search(&built.index, &asked, Filters::Shared(&own), &options);
    for (query, found) in answers.ids.chunks(10).enumerate() {
        let truth =
            nearest(&built.set, Metric::L2, asked.row(query), 10, |row| !rows.contains(&(row as u64)));
        assert!(hits(found, &truth) >= 9, "query {query}: {found:?} for {truth:?}");
    }
}

#[test]
fn the_same_rows_have_another_plan_for_other_options() {
    let built = calibrated(IndexKind::DiskGraph);
    let rows: Vec<u64> = (0..60).collect();
    let usual = filter(&built.index, &rows, Naming::Only, &options(10, 0.95));
    let exact = built.index.filter_for(&usual, &options(10, 1.0)).unwrap();
    assert_eq!((usual.way(), exact.way()), (SieveWay::Codes, SieveWay::Exact));
    assert_eq!(exact.report(), filter(&built.index, &rows, Naming::Only, &options(10, 1.0)).report());
    let again = built.index.filter_for(&exact, &options(10, 0.95)).unwrap();
    let asked = queries(5, DIM);
    let [one, two] =
        [&usual, &again].map(|own| search(&built.index, &asked, Filters::Shared(own), &options(10, 0.95)));
    assert_eq!((one.ids, one.stats), (two.ids, two.stats));
    assert_eq!(again.report(), usual.report());
}

#[test]
fn the_cheapest_way_is_taken_and_prices_say_so() {
    let built = calibrated(IndexKind::DiskGraph);
    for count in [2, 60, 700, 2900] {
        let ids: Vec<u64> = (0..count).collect();
        let own = filter(&built.index, &ids, Naming::Only, &options(10, 0.95));
        let prices = own.prices().unwrap();
        assert_eq!(prices.unit, PriceUnit::Us);
        let all: Vec<_> = prices.all().collect();
        assert_eq!(all.len(), 3, "codes are in memory");
        let least = all.iter().min_by(|a, b| a.1.total_cmp(&b.1)).unwrap();
        assert_eq!(least.0, own.way(), "{all:?}");
    }
    for (kind, has_codes) in [(IndexKind::GridIvf, false), (IndexKind::HybridIvf, true)] {
        let built = calibrated(kind);
        for count in [5u64, 2900] {
            let ids: Vec<u64> = (0..count).collect();
            let own = filter(&built.index, &ids, Naming::Only, &options(10, 0.95));
            let SievePrices { unit, exact, codes, search } = own.prices().unwrap();
            assert_eq!((unit, exact.is_some(), codes.is_some()), (PriceUnit::Lists, !has_codes, has_codes));
            let (all, search) = (exact.or(codes).unwrap(), search.unwrap());
            assert!(search >= 1.0 && search <= all.max(1.0), "{search} of {all}");
            assert_eq!(own.way() == SieveWay::Search, search < all, "{kind:?}: {search} of {all}");
        }
    }
}

/// Where the nearest lists of a gpu-ivf have none of the rows, the codes of all of them are compared, and no lists
/// ranked.
#[test]
fn rows_far_from_all_near_lists_are_compared_at_once() {
    let built = calibrated(IndexKind::GpuIvf);
    let asked = around_the_first(10);
    let options = options(10, 0.9);
    for (place, rows) in PLACES.iter().zip(matches(&built.set, &asked, 0.3)) {
        let own = filter(&built.index, &rows, Naming::Only, &options);
        let answers = search(&built.index, &asked, Filters::Shared(&own), &options);
        assert_eq!(
            answers.stats.gave_way > 0,
            *place == "far",
            "{place}, {:?}: {:?}",
            own.way(),
            answers.stats
        );
        if *place == "far" {
            assert_eq!(answers.stats.gave_way, asked.len() as u64);
            assert_eq!(answers.stats.lists, 0);
            let truth = |query| {
                nearest(&built.set, Metric::L2, asked.row(query), 10, |row| !rows.contains(&(row as u64)))
            };
            let found = (0..asked.len()).map(|query| hits(&answers.ids[10 * query..][..10], &truth(query)));
            assert!(found.sum::<usize>() >= 9 * asked.len());
        }
    }
}
