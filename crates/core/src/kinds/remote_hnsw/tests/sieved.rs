//! Queries with a filter, by numbers of rows and by ids.

use super::super::wire as wire_of_kind;
use super::*;
use crate::sieve::{IdSieve, Sieve};

/// A filter of a query.
enum Filter {
    Rows(Sieve),
    Ids(IdSieve),
}

impl Filter {
    fn has(&self, id: u64) -> bool {
        match self {
            Filter::Rows(rows) => rows.has(id as u32),
            Filter::Ids(ids) => ids.has(id),
        }
    }
}

/// Live vectors of a set that a filter has, as [`Set::truth`] names them.
fn truth(set: &Set, filter: &Filter, query: &[f32; DIM], k: usize) -> Vec<(f32, u64)> {
    let mut all = set.truth(query, usize::MAX);
    all.retain(|&(_, id)| filter.has(id));
    all.truncate(k);
    all
}

fn search_filtered(set: &Set, filter: &Filter, query: &[f32; DIM], params: QueryParams) -> QueryState {
    let mut view = set.view();
    let KindView::RemoteHnsw(own) = &mut view.kind else { panic!("another kind") };
    match filter {
        Filter::Rows(rows) => view.base.sieve = Some(rows),
        Filter::Ids(ids) => (own.first, own.id_sieve) = (&[], Some(ids)),
    }
    let (mut state, mut scratch) = (QueryState::new(params, view.budget()), QueryScratch::default());
    scratch.prepare(&view, &bytes(query));
    run(&mut state, &view, &mut scratch, |at| set.read(at));
    state
}

/// The rows that a set was loaded with, of which one in `every` matches.
fn rows(set: &Set, every: u64, seed: u64) -> Filter {
    let count = set.all.iter().filter(|(_, clock, _)| *clock == 0).count() as u32;
    let ids: Vec<u32> = (0..count).filter(|&id| hash(seed, 1, id.into()).is_multiple_of(every)).collect();
    Filter::Rows(Sieve::from_sorted(count, &ids).unwrap())
}

/// The ids that are or were in a set, of which one in `every` is named.
fn ids(set: &Set, every: u64, (is_only, seed): (bool, u64)) -> Filter {
    let all: BTreeSet<u64> = set.all.iter().map(|(id, _, _)| *id).collect();
    let named: Vec<u64> = all.iter().copied().filter(|&id| hash(seed, 1, id).is_multiple_of(every)).collect();
    Filter::Ids(IdSieve::new(&named, is_only, all.len() as u64).unwrap())
}

/// Clusters with a row of a sieve.
fn with_rows(set: &Set, sieve: &Sieve) -> u64 {
    set.first.windows(2).filter(|ends| sieve.has_any(ends[0]..ends[1])).count() as u64
}

proptest! {
    /// However few clusters are asked for, there are as many results as rows that match, up to k. An exact query finds
    /// the nearest, and reads no cluster without one.
    #[test]
    fn rows_of_a_sieve_are_found_in_clusters_that_have_some(
        sizes in prop::collection::vec((1usize..60).prop_map(|members| (members, 0)), 1..9),
        number: u64, k in 1usize..30, every in 1u64..80, nprobe in 1u32..9, scans: bool,
    ) {
        let set = Set::new(&sizes);
        let (query, filter) = (vector(number), rows(&set, every, number));
        let Filter::Rows(sieve) = &filter else { panic!("no rows") };
        let expected = truth(&set, &filter, &query, k);
        let exact = search_filtered(&set, &filter, &query, params(k as u32, 1, 1, true));
        prop_assert_eq!(results(&exact), &expected[..]);
        prop_assert_eq!(exact.stats().clusters, with_rows(&set, sieve));
        let meta = set.clusters.len() as u64;
        prop_assert_eq!(exact.stats().full_comparisons, u64::from(sieve.count()) + meta);
        let few = if scans { scanning(k as u32, nprobe, 4) } else { params(k as u32, nprobe, 4, false) };
        let few = search_filtered(&set, &filter, &query, few);
        prop_assert_eq!(few.outcome(), Outcome::Complete);
        prop_assert_eq!(few.results().len(), expected.len());
        prop_assert!(few.results().iter().all(|hit| filter.has(hit.external_id)));
        prop_assert!(few.stats().clusters <= with_rows(&set, sieve));
        prop_assert_eq!(few.stats().vain_blocks, 0);
    }

    /// Fresh records and updated rows are judged by their ids, and what is deleted is not found.
    #[test]
    fn ids_of_a_sieve_are_found_among_fresh_and_updated_rows(
        sizes in sizes(), number: u64, k in 1usize..30, every in 1u64..80, is_only: bool,
        nprobe in 1u32..9, scans: bool,
    ) {
        let set = Set::new(&sizes);
        let (query, filter) = (vector(number), ids(&set, every, (is_only, number)));
        let expected = truth(&set, &filter, &query, k);
        let exact = search_filtered(&set, &filter, &query, params(k as u32, 1, 1, true));
        prop_assert_eq!(results(&exact), &expected[..]);
        let few = if scans { scanning(k as u32, nprobe, 4) } else { params(k as u32, nprobe, 4, false) };
        let few = search_filtered(&set, &filter, &query, few);
        prop_assert_eq!(few.outcome(), Outcome::Complete);
        prop_assert_eq!(few.results().len(), expected.len());
        prop_assert!(few.results().iter().all(|hit| filter.has(hit.external_id)));
        // What its clusters hold comes back from bytes.
        let own = if let crate::kinds::KindState::RemoteHnsw(own) = &few.own { own } else { unreachable!() };
        let (mut out, mut back) = (Vec::new(), State::default());
        wire_of_kind::encode(own, &mut Writer(&mut out));
        prop_assert!(wire_of_kind::decode(&mut back, k as u32, &mut Reader(&out)).is_ok());
        prop_assert_eq!(&back, own);
    }

    /// A filter that has all rows finds what a query without one does, and compares as much.
    #[test]
    fn a_filter_that_has_everything_changes_nothing(
        sizes in prop::collection::vec((1usize..60).prop_map(|members| (members, 0)), 1..9),
        number: u64, k in 1u32..30, nprobe in 1u32..9, scans: bool,
    ) {
        let set = Set::new(&sizes);
        let query = vector(number);
        let of = if scans { scanning(k, nprobe, 30) } else { params(k, nprobe, 30, false) };
        let plain = search(&set, &query, of);
        for filter in [rows(&set, 1, 0), ids(&set, 1, (true, 0))] {
            let own = search_filtered(&set, &filter, &query, of);
            if plain.results().len() == k as usize {
                prop_assert_eq!(results(&own), results(&plain));
                prop_assert_eq!(own.stats().clusters, plain.stats().clusters);
            }
            prop_assert_eq!(own.stats().vain_blocks + own.stats().gave_way, 0);
        }
    }
}

#[test]
fn a_filter_of_no_ids_reads_nothing_and_vain_clusters_are_counted() {
    let set = Set::new(&[(40, 0), (30, 0), (20, 0), (10, 0)]);
    let query = vector(3);
    let none = Filter::Ids(IdSieve::new(&[], true, 100).unwrap());
    let state = search_filtered(&set, &none, &query, params(5, 2, 10, false));
    assert_eq!((state.outcome(), state.results().len()), (Outcome::Complete, 0));
    assert_eq!((state.stats().shared_reads, state.stats().clusters), (0, 0));
    // One id: all clusters are read, and three of them in vain.
    let one = Filter::Ids(IdSieve::new(&[95], true, 100).unwrap());
    let state = search_filtered(&set, &one, &query, params(5, 1, 10, false));
    assert_eq!(state.results().iter().map(|hit| hit.external_id).collect::<Vec<_>>(), [95]);
    assert_eq!((state.stats().shared_reads, state.stats().vain_blocks), (4, 3));
    // By its number only its own is.
    let one = Filter::Rows(Sieve::from_sorted(100, &[95]).unwrap());
    let state = search_filtered(&set, &one, &query, params(5, 1, 10, false));
    assert_eq!(state.results().iter().map(|hit| hit.external_id).collect::<Vec<_>>(), [95]);
    assert_eq!((state.stats().shared_reads, state.stats().vain_blocks), (1, 0));
}

/// A walk among rows that do not match ends where it has cost as much as a scan of those that do.
#[test]
fn a_walk_far_from_all_matches_gives_way_to_a_scan() {
    let set = Set::new(&[(4000, 0)]);
    let query = vector(0);
    // Of the nearest quarter none matches.
    let near = set.truth(&query, 4000);
    let mut matches: Vec<u32> = near[1000..].iter().map(|&(_, id)| id as u32).collect();
    matches.sort_unstable();
    let filter = Filter::Rows(Sieve::from_sorted(4000, &matches).unwrap());
    let state = search_filtered(&set, &filter, &query, scanning(10, 1, 10));
    assert_eq!(results(&state), truth(&set, &filter, &query, 10));
    assert_eq!(state.stats().gave_way, 1);
    let scan = matches.len() as u64;
    assert!((scan..2 * scan).contains(&state.stats().full_comparisons), "{:?}", state.stats());
    // Where matches lie anywhere, it does not.
    let filter = rows(&set, 2, 1);
    let state = search_filtered(&set, &filter, &query, scanning(10, 1, 10));
    assert_eq!(state.stats().gave_way, 0);
    assert!(state.stats().full_comparisons < 1000, "{:?}", state.stats());
}

#[test]
fn few_matches_near_a_query_mean_more_clusters() {
    let sizes = [(50, 0); 12];
    let set = Set::new(&sizes);
    let query = vector(1);
    let clusters =
        |filter: &Filter| search_filtered(&set, filter, &query, params(1, 2, 20, false)).stats().clusters;
    assert_eq!(clusters(&rows(&set, 1, 0)), 2);
    assert_eq!(clusters(&ids(&set, 1, (true, 0))), 2);
    // The clusters nearest to the query have a tenth of their rows, the others all.
    let ranked = {
        let view = set.view();
        let KindView::RemoteHnsw(own) = view.kind else { panic!("another kind") };
        let mut chooser = Chooser::open(&LAYOUT, &HnswName::meta(BUILD), own.meta).unwrap();
        let mut ranked = Vec::new();
        chooser.choose((Metric::L2, DType::F32), &bytes(&query), 12, &mut ranked);
        ranked
    };
    let is_near = |id: u32| ranked[..4].contains(&(id / 50));
    let kept: Vec<u32> = (0..600).filter(|&id| !is_near(id) || id.is_multiple_of(10)).collect();
    let named: Vec<u64> = kept.iter().map(|&id| id.into()).collect();
    let by_rows = clusters(&Filter::Rows(Sieve::from_sorted(600, &kept).unwrap()));
    let by_ids = clusters(&Filter::Ids(IdSieve::new(&named, true, 600).unwrap()));
    assert_eq!((by_rows, by_ids), (12, 12), "a seventh of the usual share is there: 2 clusters become all");
}
