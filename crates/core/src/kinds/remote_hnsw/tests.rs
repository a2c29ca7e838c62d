//! Small sets of clusters in memory, laid out by hand.

use alloc::collections::BTreeSet;
use alloc::vec;
use alloc::vec::Vec;

use proptest::prelude::*;
use stratann_kernel::{DType, Metric};

use super::*;
use crate::access::hnsw::Walk;
use crate::build::Points;
use crate::build::hnsw::{Hnsw, HnswOptions};
use crate::format::fresh::{self, FreshRecord, Tombstone};
use crate::format::hnsw::{self as layout, HnswLayout, HnswMember, HnswName};
use crate::format::region::{ClusterPlace, Descriptor};
use crate::hash::hash;
use crate::kinds::{IndexView, KindParams, KindView};
use crate::query::{
    Arrival, Arrived, Extent, Loss, Params as QueryParams, QueryState, Scratch as QueryScratch, Step,
    StoreId, Tag, run, wire,
};

mod sieved;

const DIM: usize = 6;
const BUILD: u64 = 99;
const LAYOUT: HnswLayout = HnswLayout { vector_bytes: 4 * DIM, norms: false };
const OPTIONS: HnswOptions = HnswOptions { m: 4, ef_construction: 30, seed: 3, upper_layers: None };

struct Floats(Vec<[f32; DIM]>);

impl Points for Floats {
    fn len(&self) -> usize {
        self.0.len()
    }
    fn distance(&self, a: u32, b: u32) -> f32 {
        distance(&self.0[a as usize], &self.0[b as usize])
    }
}

fn distance(a: &[f32; DIM], b: &[f32; DIM]) -> f32 {
    a.iter().zip(b).map(|(x, y)| (x - y) * (x - y)).sum()
}

fn vector(number: u64) -> [f32; DIM] {
    core::array::from_fn(|c| (hash(5, c as u64, number) % 64) as f32)
}

fn sub_hnsw(name: &HnswName, vectors: &[[f32; DIM]], ids: &[u64]) -> Vec<u8> {
    let graph = Hnsw::build(&Floats(vectors.to_vec()), &OPTIONS, &mut Default::default());
    let bytes: Vec<Vec<u8>> = vectors.iter().map(bytes).collect();
    let members = bytes.iter().zip(ids).map(|(vector, &external_id)| HnswMember {
        external_id,
        inverse_norm: 1.0,
        vector,
    });
    let mut out = Vec::new();
    layout::write(&LAYOUT, name, 8, &graph, members, &mut out);
    out
}

fn bytes(vector: &[f32; DIM]) -> Vec<u8> {
    vector.iter().flat_map(|x| x.to_le_bytes()).collect()
}

/// An index of a few clusters: vectors by id, clock and cluster.
struct Set {
    meta: Vec<u8>,
    clusters: Vec<Located>,
    /// Number of the first member of each cluster, and of all members.
    first: Vec<u32>,
    files: Vec<(Extent, Vec<u8>)>,
    tombstones: Vec<Tombstone>,
    /// Id, clock and vector of all that was ever inserted.
    all: Vec<(u64, u64, [f32; DIM])>,
}

impl Set {
    /// `sizes` are members and fresh records of each cluster. Fresh records of odd number are upserts of members.
    fn new(sizes: &[(usize, usize)]) -> Set {
        let mut set = Set {
            meta: vec![],
            clusters: vec![],
            first: vec![],
            files: vec![],
            tombstones: vec![],
            all: vec![],
        };
        let (mut id, mut clock) = (0u64, 0u64);
        for (cluster, &(members, fresh)) in sizes.iter().enumerate() {
            let (group, side) = (cluster as u32 / 2, cluster % 2);
            let seed = layout::seed(BUILD, group, 0, side);
            let name = HnswName { cluster: cluster as u32, version: 0, seed };
            let ids: Vec<u64> = (id..id + members as u64).collect();
            let vectors: Vec<[f32; DIM]> = ids.iter().map(|&id| vector(id)).collect();
            set.all.extend(ids.iter().zip(&vectors).map(|(&id, &vector)| (id, 0, vector)));
            let base = set.put(sub_hnsw(&name, &vectors, &ids));
            let mut records = Vec::new();
            for number in 0..fresh {
                let is_upsert = number % 2 == 1;
                let id = if is_upsert { ids[number % ids.len()] } else { 10_000 + clock };
                if is_upsert {
                    clock += 1;
                    set.tombstones.retain(|t| t.id != id);
                    set.tombstones.push(Tombstone { id, clock });
                }
                clock += 1;
                let vector = vector(1_000_000 + clock);
                let record = FreshRecord {
                    id,
                    clock,
                    cluster: cluster as u32,
                    inverse_norm: 1.0,
                    vector: &bytes(&vector),
                };
                record.encode(fresh::seed(BUILD, group, 0), &mut records);
                set.all.push((id, clock, vector));
                // A slot that was reserved, and never written.
                records.resize(records.len() + fresh::record_bytes(4 * DIM) * (number % 3 / 2), 0);
            }
            let fresh = set.put(records);
            set.first.push(id as u32);
            set.clusters.push(Located { base, fresh, group, part_records: 3, ..Located::default() });
            id += members as u64;
        }
        set.first.push(id as u32);
        set.tombstones.sort_unstable_by_key(|t| t.id);
        let heads: Vec<[f32; DIM]> =
            (0..sizes.len()).map(|c| vector(sizes[..c].iter().map(|s| s.0 as u64).sum())).collect();
        let meta = HnswName::meta(BUILD);
        set.meta = sub_hnsw(&meta, &heads, &vec![0; heads.len()]);
        set
    }

    fn put(&mut self, bytes: Vec<u8>) -> Extent {
        let offset = self.files.last().map_or(0, |(at, _)| at.end());
        let at = Extent { store: StoreId(0), offset, bytes: bytes.len() as u32 };
        self.files.push((at, bytes));
        at
    }

    fn view(&self) -> IndexView<'_> {
        let base = Base::whole((Metric::L2, DType::F32), DIM, 1000);
        let kind = View {
            layout: &LAYOUT,
            meta: &self.meta,
            build: BUILD,
            clusters: &self.clusters,
            first: &self.first,
            tombstones: &self.tombstones,
            marks: &[],
            shares: &[],
            id_sieve: None,
        };
        IndexView { base, kind: KindView::RemoteHnsw(kind) }
    }

    fn read(&self, at: Extent) -> Result<&[u8], Loss> {
        let found = self.files.iter().find(|(own, _)| own.offset <= at.offset && at.end() <= own.end());
        let (own, bytes) = found.ok_or(Loss::Failed)?;
        let from = (at.offset - own.offset) as usize;
        Ok(&bytes[from..from + at.bytes as usize])
    }

    /// Distances and ids of the k nearest of what was not deleted, by a scan.
    fn truth(&self, query: &[f32; DIM], k: usize) -> Vec<(f32, u64)> {
        let is_hidden = |id: u64, clock: u64| self.tombstones.iter().any(|t| t.id == id && t.clock > clock);
        let live = self.all.iter().filter(|(id, clock, _)| !is_hidden(*id, *clock));
        let mut near: Vec<(f32, u64)> = live.map(|(id, _, vector)| (distance(query, vector), *id)).collect();
        near.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        near.truncate(k);
        near
    }
}

/// Parameters of a query that searches graphs, however small.
fn params(k: u32, nprobe: u32, ef: u32, exact: bool) -> QueryParams {
    let kind = KindParams::RemoteHnsw(Params { nprobe, ef, exact, scan_clusters: false });
    QueryParams { kind, ..QueryParams::remote_hnsw(k, nprobe) }
}

/// Parameters of a query that scans small clusters.
fn scanning(k: u32, nprobe: u32, ef: u32) -> QueryParams {
    let kind = KindParams::RemoteHnsw(Params { nprobe, ef, exact: false, scan_clusters: true });
    QueryParams { kind, ..QueryParams::remote_hnsw(k, nprobe) }
}

fn results(state: &QueryState) -> Vec<(f32, u64)> {
    state.results().iter().map(|hit| (hit.distance, hit.external_id)).collect()
}

fn search(set: &Set, query: &[f32; DIM], params: QueryParams) -> QueryState {
    let view = set.view();
    let (mut state, mut scratch) = (QueryState::new(params, view.budget()), QueryScratch::default());
    scratch.prepare(&view, &bytes(query));
    run(&mut state, &view, &mut scratch, |at| set.read(at));
    state
}

fn sizes() -> impl Strategy<Value = Vec<(usize, usize)>> {
    prop::collection::vec((1usize..60, 0usize..12), 1..9)
}

proptest! {
    #[test]
    fn an_exact_query_finds_what_a_scan_does(sizes in sizes(), number: u64, k in 1usize..30) {
        let set = Set::new(&sizes);
        let query = vector(number);
        let state = search(&set, &query, params(k as u32, 1, 1, true));
        prop_assert_eq!(state.outcome(), Outcome::Complete);
        prop_assert_eq!(results(&state), set.truth(&query, k));
        let live: BTreeSet<u64> = state.results().iter().map(|hit| hit.external_id).collect();
        prop_assert_eq!(live.len(), state.results().len(), "none twice");
    }

    /// The clusters are so small that all of them are scanned: one result more than k is wanted where one is left out.
    #[test]
    fn scans_of_all_clusters_find_what_an_exact_query_does(
        sizes in sizes(), number: u64, k in 1u32..30, ef in 1u32..40, is_left_out: bool,
    ) {
        let set = Set::new(&sizes);
        let query = vector(number);
        let exclude = if is_left_out { (number % 50) as u32 } else { u32::MAX };
        let of = |params| search(&set, &query, QueryParams { exclude, ..params });
        let (scanned, exact) = (of(scanning(k, 9, ef)), of(params(k, 1, 1, true)));
        prop_assert_eq!(results(&scanned), results(&exact));
        prop_assert_eq!(scanned.stats().full_comparisons, exact.stats().full_comparisons);
        prop_assert_eq!(scanned.stats().expanded, 0);
    }

    /// Parts cover the fresh records of a cluster, and one record more changes only the last of them.
    #[test]
    fn a_record_more_changes_one_part(used in 0u32..40, capacity in 40u32..90, side in 0usize..2) {
        let record_bytes = fresh::record_bytes(4 * DIM) as u64;
        let clusters = [ClusterPlace { members: 1, bytes: 512 }; 2];
        let group = Descriptor { capacity, clusters, ..Descriptor::default() };
        let parts = |used| -> Vec<Extent> {
            let own = Located::new(&group, 3, (side, used), record_bytes);
            let parts: Vec<Extent> = own.fresh_parts(side, record_bytes as usize).collect();
            let (first, last) = (parts.iter().map(|p| p.offset).min(), parts.iter().map(Extent::end).max());
            assert_eq!(parts.iter().map(|p| u64::from(p.bytes)).sum::<u64>(), u64::from(used) * record_bytes);
            assert!(used == 0 || (first, last) == (Some(own.fresh.offset), Some(own.fresh.end())));
            parts
        };
        let (before, after) = (parts(used), parts(used + 1));
        prop_assert!(after.len() <= view::FRESH_PARTS as usize + 1);
        let kept = before.iter().filter(|part| after.contains(part)).count();
        prop_assert!(kept + 1 >= before.len());
    }

    /// Arrivals are taken one by one in any order, and nothing else is waited for. Where rows are deleted more clusters
    /// follow when all have arrived.
    #[test]
    fn the_order_of_arrival_changes_nothing(
        sizes in sizes(), number: u64, k in 1u32..20, nprobe in 1u32..9, ef in 1u32..40, order: u64,
        scans: bool,
    ) {
        let set = Set::new(&sizes);
        let query = vector(number);
        let params = if scans { scanning(k, nprobe, ef) } else { params(k, nprobe, ef, false) };
        let expected = search(&set, &query, params);
        let view = set.view();
        let (mut state, mut scratch) = (QueryState::new(params, view.budget()), QueryScratch::default());
        scratch.prepare(&view, &bytes(&query));
        let mut tables = Tables::default();
        let mut step = state.step(&view, &mut scratch, &[]);
        prop_assert_eq!(state.stats().clusters, u64::from(nprobe).min(sizes.len() as u64));
        let mut all = 0;
        while step == Step::Wait {
            let mut wanted: Vec<(Tag, Extent)> = state.fetches().collect();
            all += wanted.len();
            prop_assert!(!wanted.is_empty() && state.stats().shared_reads as usize == all);
            prop_assert!(all == wanted.len() || !set.tombstones.is_empty(), "a second round without deletions");
            wanted.sort_by_key(|(tag, _)| hash(order, 0, tag.0.into()));
            for (left, (tag, at)) in (0..wanted.len()).rev().zip(wanted) {
                prop_assert!(state.is_ready(1) && !state.is_ready(0));
                // Another thread's tables do as well.
                scratch.swap_tables(&mut tables);
                let arrival = Arrival { tag, what: Arrived::Bytes(set.read(at).unwrap()) };
                step = state.step(&view, &mut scratch, &[arrival]);
                prop_assert!(left == 0 || step == Step::Wait);
            }
        }
        prop_assert_eq!(step, Step::Done);
        let live = set.truth(&query, k as usize).len();
        prop_assert!(set.tombstones.is_empty() || state.results().len() == live, "{} of {live}", state.results().len());
        prop_assert_eq!(results(&state), results(&expected));
        prop_assert_eq!(state.stats(), expected.stats());
        prop_assert_eq!((state.stats().reads, state.stats().bytes_read), (0, 0));
    }

    #[test]
    fn any_byte_of_a_cluster_that_is_changed_is_found(sizes in sizes(), at: usize, change in 1u8.., which: usize) {
        let mut set = Set::new(&sizes);
        let bases: Vec<usize> = (0..set.files.len()).step_by(2).collect();
        let file = bases[which % bases.len()];
        let place = at % set.files[file].1.len();
        set.files[file].1[place] ^= change;
        let state = search(&set, &vector(1), params(3, 100, 10, false));
        let lost = matches!(
            state.outcome(),
            Outcome::Lost { unit, loss: Loss::Damaged, .. } if unit as usize == file / 2
        );
        prop_assert!(lost, "{:?}", state.outcome());
        // Whatever the bytes are, a search of them ends.
        let name = set.view().kind.remote_hnsw().unwrap().name(file as u32 / 2).unwrap();
        prop_assert!(!layout::SubHnsw::verify(&LAYOUT, &name, &set.files[file].1));
        if let Some(own) = layout::SubHnsw::open(&LAYOUT, &set.files[file].1) {
            let mut exact = stratann_kernel::distance::Exact::default();
            exact.set(Metric::L2, DType::F32, DIM, &bytes(&vector(2)));
            let mut tables = Tables::default();
            let (_, found) = tables.hnsw.search(&own, &exact, Walk::new(20), |_| false);
            prop_assert!(found.count() <= 20);
        }
    }

    #[test]
    fn parameters_and_states_come_back_from_bytes(sizes in sizes(), k in 1u32..9, nprobe in 1u32..9, exact: bool) {
        let set = Set::new(&sizes);
        let view = set.view();
        for params in [params(k, nprobe, 17, exact), scanning(k, nprobe, 17)] {
            let state = QueryState::new(params, view.budget());
            let mut out = Vec::new();
            wire::encode(&state, wire::Carry::Ids, &mut out);
            prop_assert_eq!(wire::decode(&out).unwrap(), state);
        }
        let done = search(&set, &vector(3), params(k, nprobe, 17, exact));
        let own = if let crate::kinds::KindState::RemoteHnsw(own) = &done.own { own } else { unreachable!() };
        let mut out = Vec::new();
        super::wire::encode(own, &mut Writer(&mut out));
        let mut back = State::default();
        prop_assert!(super::wire::decode(&mut back, k, &mut Reader(&out)).is_ok());
        prop_assert_eq!(&back, own);
        for cut in 0..out.len() {
            let cut = super::wire::decode(&mut State::default(), k, &mut Reader(&out[..cut]));
            prop_assert!(cut.is_err());
        }
    }
}

#[test]
fn all_clusters_are_searched_when_all_are_asked_for_whatever_the_graph() {
    let sizes: Vec<(usize, usize)> = (0..200).map(|i| (1 + i % 3, 0)).collect();
    let set = Set::new(&sizes);
    for number in 0..20 {
        let query = vector(70_000 + number);
        let state = search(&set, &query, params(5, 200, 10, false));
        assert_eq!(state.stats().clusters, 200);
        assert_eq!(results(&state), set.truth(&query, 5));
        let few = search(&set, &query, params(5, 3, 10, false));
        assert_eq!((few.stats().clusters, few.stats().shared_reads), (3, 3));
    }
}

#[test]
fn a_cluster_that_cannot_be_read_ends_the_query_by_its_number() {
    let mut set = Set::new(&[(9, 0), (9, 2)]);
    set.files.retain(|(at, _)| *at != set.clusters[1].base);
    let state = search(&set, &vector(4), params(3, 2, 10, false));
    assert!(matches!(state.outcome(), Outcome::Lost { unit: 1, loss: Loss::Failed, .. }));
}

#[test]
fn a_vector_that_does_not_exist_for_a_query_leads_nowhere() {
    let set = Set::new(&[(80, 0)]);
    let without = |exclude: u32| {
        let params = QueryParams { exclude, ..params(1, 1, 1, false) };
        results(&search(&set, &vector(exclude.into()), params))
    };
    let found: Vec<_> = (0..80).map(without).collect();
    // The shortest beam ends at the vector itself if that is there. Only the entry has to be passed.
    assert!(found.iter().filter(|found| found.is_empty()).count() <= 1, "{found:?}");
    assert!((0..80).all(|id| found[id as usize].iter().all(|hit| hit.1 != id)));
}

/// By the graph where there are many clusters, and by a scan where there are few.
#[test]
fn a_client_chooses_the_clusters_that_a_search_takes() {
    for clusters in [3, 2500] {
        let set = Set::new(&vec![(1, 0); clusters]);
        let name = HnswName::meta(BUILD);
        let mut chooser = Chooser::open(&LAYOUT, &name, &set.meta).unwrap();
        for number in 0..50 {
            let query = vector(70_000 + number);
            let state = search(&set, &query, scanning(3, 5, 9));
            assert_eq!(state.stats().expanded > 0, clusters > 3, "by the graph");
            let own =
                if let crate::kinds::KindState::RemoteHnsw(own) = &state.own { own } else { unreachable!() };
            let mut chosen = Vec::new();
            chooser.choose((Metric::L2, DType::F32), &bytes(&query), 5, &mut chosen);
            assert_eq!(chosen, own.clusters);
            assert_eq!(chosen.len(), clusters.min(5));
        }
        let mut none = Vec::new();
        chooser.choose((Metric::L2, DType::F32), &[1, 2, 3], 5, &mut none);
        assert!(none.is_empty(), "a query of another length");
        let other = HnswName { seed: 1, ..name };
        assert!(Chooser::open(&LAYOUT, &other, &set.meta).is_none());
        assert!(Chooser::open(&LAYOUT, &name, &set.meta[..40]).is_none());
    }
}
