//! Searches of small indexes against distances that are computed one by one.

mod in_memory;

use alloc::vec;
use alloc::vec::Vec;

use proptest::prelude::*;
use stratann_kernel::coder::Coder;
use stratann_kernel::distance::{Exact, inverse_norm};
use stratann_kernel::element::{narrow_f16, widen};
use stratann_kernel::trained_codes::{CENTROIDS, Codebook};
use stratann_kernel::{DType, Metric};

use super::{Params as Own, Rule, View};
#[cfg(not(feature = "lab"))]
use crate::codec::Refused;
use crate::format::block::{self, BlockLayout, Node};
use crate::format::block_map::BlockMap;
use crate::format::posting_file::{self, PostingLayout, PostingMember};
use crate::format::posting_lists::PostingLists;
use crate::hash::hash;
use crate::kinds::{IndexView, KindParams, KindView};
use crate::query::{Params, QueryState, Scratch, outcome, wire};
use crate::route::{NONE, NavGraph};
use crate::score::Ranking;
use crate::search::{Arrival, Arrived, Extent, Hit, Loss, Outcome, QueryStats, Step, Tag};
use crate::view::Base;

pub(super) const DIM: usize = 8;
pub(super) const LISTS: usize = 12;
pub(super) const ROWS: usize = 600;
/// Vectors of a block.
const EACH: usize = 20;

/// An index of random vectors around a point for each list.
pub(super) struct Index {
    metric: Metric,
    dtype: DType,
    vectors: Vec<Vec<u8>>,
    coder: Coder,
    codes: Vec<u8>,
    block: BlockLayout,
    blocks: Vec<u8>,
    map: BlockMap,
    lists: PostingLists,
    centroids: Vec<u8>,
    nav: NavGraph,
    list: PostingLayout,
    code_list: PostingLayout,
    list_pages: Vec<u32>,
    code_list_pages: Vec<u32>,
    list_bytes: Vec<u8>,
    code_list_bytes: Vec<u8>,
    places: Vec<u32>,
    row_blocks: Vec<u8>,
}

fn random(seed: u64, i: usize, c: usize) -> f32 {
    (hash(seed, i as u64, c as u64) >> 40) as f32 / (1 << 23) as f32 - 1.0
}

fn encode(dtype: DType, floats: &[f32]) -> Vec<u8> {
    match dtype {
        DType::F32 => bytemuck::cast_slice(floats).to_vec(),
        DType::F16 => narrow_f16(floats).collect(),
        DType::U8 => floats.iter().map(|&x| (128.0 + 50.0 * x) as u8).collect(),
        DType::I8 => floats.iter().map(|&x| (50.0 * x) as i8 as u8).collect(),
    }
}

impl Index {
    pub(super) fn new(metric: Metric, dtype: DType, seed: u64) -> Index {
        let center = |list: usize| (0..DIM).map(move |c| random(seed, 10_000 + list, c));
        let vectors: Vec<Vec<u8>> = (0..ROWS)
            .map(|i| {
                let list = i * LISTS / ROWS;
                let row: Vec<f32> =
                    center(list).zip(0..).map(|(x, c)| x + 0.4 * random(seed, i, c)).collect();
                encode(dtype, &row)
            })
            .collect();
        let mut index = Index {
            metric,
            dtype,
            coder: Coder::Trained(codebook(metric, dtype, seed)),
            codes: vec![],
            block: BlockLayout {
                block_bytes: 4096,
                vector_bytes: DIM * dtype.size(),
                id_bytes: 4,
                norms: metric == Metric::Cosine,
                adjacency: false,
                code_bytes: 0,
                checksum_seed: 5,
            },
            blocks: vec![],
            map: BlockMap::from_counts((0..ROWS / EACH).map(|_| EACH as u32)).unwrap(),
            lists: PostingLists::default(),
            centroids: vec![],
            nav: NavGraph {
                cluster_of: (0..LISTS as u32).collect(),
                ids: vec![NONE; LISTS],
                terms: vec![0.0; LISTS],
                radii: vec![0.0; LISTS],
                degree: 3,
                neighbours: (0..LISTS as u32)
                    .flat_map(|i| [1, 2, 5].map(|step| (i + step) % LISTS as u32))
                    .collect(),
                bootstrap: LISTS as u32,
                ..NavGraph::default()
            },
            list: PostingLayout {
                entry_bytes: DIM * dtype.size(),
                id_bytes: 4,
                norms: metric == Metric::Cosine,
                checksum_seed: 5,
            },
            code_list: PostingLayout { entry_bytes: 4, id_bytes: 0, norms: false, checksum_seed: 5 },
            list_pages: vec![0],
            code_list_pages: vec![0],
            list_bytes: vec![],
            code_list_bytes: vec![],
            places: (0..ROWS as u32).map(|id| id * 7 % ROWS as u32).collect(),
            row_blocks: vec![],
            vectors,
        };
        assert!(index.nav.is_consistent(LISTS as u32, 0, 0));
        for list in 0..LISTS {
            let floats: Vec<f32> = center(list).collect();
            let stored = encode(dtype, &floats);
            index.centroids.extend(narrow_f16(&index.floats(&stored)));
        }
        index.encode_all();
        index.write_all();
        index
    }

    fn norm(&self, vector: &[u8]) -> f32 {
        if self.metric == Metric::Cosine { inverse_norm(self.dtype, vector) } else { 1.0 }
    }

    /// As codes are made: of unit length under cosine.
    fn floats(&self, vector: &[u8]) -> Vec<f32> {
        let mut out = vec![0.0; DIM];
        widen(self.dtype, vector, &mut out);
        let norm = self.norm(vector);
        out.iter_mut().for_each(|x| *x *= norm);
        out
    }

    fn encode_all(&mut self) {
        let mut residual = vec![0.0; DIM];
        for vector in &self.vectors {
            let mut code = [0; 4];
            self.coder.trained().unwrap().encode_rotated(&self.floats(vector), &mut residual, &mut code);
            self.codes.extend(code);
        }
    }

    fn node(&self, id: usize) -> Node<'_> {
        let vector = &self.vectors[id];
        Node { vector, inverse_norm: self.norm(vector), external_id: 3 * id as u64, neighbours: &[] }
    }

    fn write_all(&mut self) {
        let mut blocks = vec![];
        for (number, first) in (0..).zip((0..ROWS).step_by(EACH)) {
            let nodes: Vec<Node<'_>> = (first..first + EACH).map(|id| self.node(id)).collect();
            block::write(&self.block, number, first as u32, &nodes, &[], &mut blocks);
        }
        let mut row_blocks = vec![];
        let mut id_at = vec![0; ROWS];
        (0..).zip(&self.places).for_each(|(id, &place)| id_at[place as usize] = id);
        for (number, ids) in (0u32..).zip(id_at.chunks(EACH)) {
            let nodes: Vec<Node<'_>> = ids.iter().map(|&id| self.node(id)).collect();
            block::write(&self.block, number, number * EACH as u32, &nodes, &[], &mut row_blocks);
        }
        (self.blocks, self.row_blocks) = (blocks, row_blocks);
        for list in 0..LISTS {
            let own = list * ROWS / LISTS..(list + 1) * ROWS / LISTS;
            let next = (list + 1) % LISTS * ROWS / LISTS;
            // Every third vector of the list behind is here too.
            let replicas: Vec<u32> = (next..next + ROWS / LISTS).step_by(3).map(|id| id as u32).collect();
            self.lists.push(own.len() as u32, &replicas);
            let ids: Vec<u32> = own.map(|id| id as u32).chain(replicas).collect();
            let member = |&id: &u32| {
                let Node { vector, inverse_norm, external_id, .. } = self.node(id as usize);
                PostingMember { id, entry: vector, inverse_norm, external_id }
            };
            let members: Vec<PostingMember<'_>> = ids.iter().map(member).collect();
            let mut bytes = vec![];
            posting_file::write(&self.list, list as u32, &members, &mut bytes);
            let coded = |m: &PostingMember<'_>| (m.id, &self.codes[4 * m.id as usize..][..4]);
            let members: Vec<PostingMember<'_>> = members
                .iter()
                .map(coded)
                .map(|(id, entry)| PostingMember { id, entry, inverse_norm: 1.0, external_id: 0 })
                .collect();
            let mut code_bytes = vec![];
            posting_file::write(&self.code_list, list as u32, &members, &mut code_bytes);
            self.list_bytes.extend(bytes);
            self.code_list_bytes.extend(code_bytes);
            self.list_pages.push((self.list_bytes.len() / 4096) as u32);
            self.code_list_pages.push((self.code_list_bytes.len() / 4096) as u32);
        }
        assert!(self.lists.is_consistent(ROWS as u32));
    }

    pub(super) fn view(&self) -> IndexView<'_> {
        let base = Base::whole((self.metric, self.dtype), DIM, ROWS as u32);
        let own = View {
            block: &self.block,
            blocks: (ROWS / EACH) as u32,
            map: &self.map,
            coder: &self.coder,
            codes: &self.codes,
            codes_from: 0,
            lists: &self.lists,
            centroids: &self.centroids,
            nav: &self.nav,
            code_error: 0.1,
            vector_norm: 2.0,
            resident: None,
            #[cfg(feature = "lab")]
            baselines: Some(super::baseline::Baselines {
                list_pages: &self.list_pages,
                list: self.list,
                code_list_pages: &self.code_list_pages,
                code_list: self.code_list,
                resident: &self.list_bytes,
                places: &self.places,
                row_block: &self.block,
                rows_per_block: EACH as u32,
            }),
        };
        IndexView { base, kind: KindView::GpuIvf(own) }
    }

    pub(super) fn read(&self, at: Extent) -> &[u8] {
        let store = [&self.blocks, &self.list_bytes, &self.code_list_bytes, &self.row_blocks];
        &store[usize::from(at.store.0)][at.offset as usize..][..at.bytes as usize]
    }

    pub(super) fn query(&self, seed: u64) -> Vec<u8> {
        let near = &self.vectors[(hash(seed, 77, 0) % ROWS as u64) as usize];
        let mut floats = vec![0.0; DIM];
        widen(self.dtype, near, &mut floats);
        let step = if self.dtype.is_float() { 0.2 } else { 10.0 };
        floats.iter_mut().zip(0..).for_each(|(x, c)| *x += step * random(seed, 88, c));
        match self.dtype {
            DType::U8 => floats.iter().map(|&x| x.clamp(0.0, 255.0) as u8).collect(),
            DType::I8 => floats.iter().map(|&x| x.clamp(-128.0, 127.0) as i8 as u8).collect(),
            dtype => encode(dtype, &floats),
        }
    }

    /// The k nearest of `ids`, one by one.
    pub(super) fn plain(&self, query: &[u8], k: usize, ids: impl Iterator<Item = usize>) -> Vec<Hit> {
        let mut exact = Exact::default();
        exact.set(self.metric, self.dtype, DIM, query);
        let hit = |id: usize| {
            let vector = &self.vectors[id];
            Hit { distance: exact.distance(vector, self.norm(vector)), external_id: 3 * id as u64 }
        };
        let mut all: Vec<Hit> = ids.map(hit).collect();
        all.sort_by(Hit::order);
        all.truncate(k);
        all
    }

    /// Runs a query whose state is encoded and decoded after every step, and whose reads arrive in any order.
    pub(super) fn run(&self, query: &[u8], params: Params, seed: u64) -> QueryState {
        let view = self.view();
        self.run_on(&view, query, QueryState::new(params, view.budget()), seed)
    }

    /// The same, with another view and a state that has not begun.
    pub(super) fn run_on(
        &self,
        view: &IndexView<'_>,
        query: &[u8],
        mut state: QueryState,
        seed: u64,
    ) -> QueryState {
        let mut scratch = Scratch::default();
        scratch.prepare(view, query);
        let mut arrived: Vec<(Tag, Result<&[u8], Loss>)> = vec![];
        let mut ranked: Vec<(Tag, Ranking)> = vec![];
        loop {
            let mut arrivals: Vec<Arrival<'_>> = arrived
                .iter()
                .map(|(tag, read)| Arrival { tag: *tag, what: outcome(read) })
                .chain(
                    ranked
                        .iter()
                        .map(|(tag, ranking)| Arrival { tag: *tag, what: Arrived::Ranked(ranking.ranked()) }),
                )
                .collect();
            arrivals.sort_by_key(|arrival| hash(seed, 5, arrival.tag.0.into()));
            let step = state.step(view, &mut scratch, &arrivals);
            assert_eq!(step == Step::Done, state.outcome() != Outcome::Running);
            arrived.clear();
            ranked.clear();
            for tag in state.code_wants() {
                ranked.push((tag, scratch.rank_codes(view)));
            }
            for (tag, at) in state.fetches() {
                let bytes = self.read(at);
                let read = state.read_of(tag).unwrap();
                assert_eq!(view.check_read(&read, bytes), Ok(()));
                assert!(view.check_read(&read, &bytes[1..]).is_err());
                arrived.push((tag, Ok(bytes)));
            }
            let mut bytes = vec![];
            wire::encode(&state, wire::Carry::Ids, &mut bytes);
            state = wire::decode(&bytes).unwrap();
            let mut again = vec![];
            wire::encode(&state, wire::Carry::Ids, &mut again);
            assert_eq!(again, bytes);
            scratch = Scratch::default();
            scratch.prepare(view, query);
            if step == Step::Done {
                return state;
            }
        }
    }
}

fn codebook(metric: Metric, dtype: DType, seed: u64) -> Codebook {
    let (low, width) = match dtype {
        _ if metric == Metric::Cosine => (-1.0, 2.0),
        DType::U8 => (0.0, 255.0),
        DType::I8 => (-100.0, 200.0),
        DType::F16 | DType::F32 => (-1.4, 2.8),
    };
    let at = |i: usize| low + width * (random(seed, 5000, i) + 1.0) / 2.0;
    Codebook {
        dim: DIM,
        ip: metric == Metric::Ip,
        coarse: vec![0.0; DIM],
        starts: vec![0, 2, 4, 6, 8],
        centroids: (0..DIM * CENTROIDS).map(at).collect(),
        ..Codebook::default()
    }
}

pub(super) fn params(k: u32, change: impl FnOnce(&mut Own)) -> Params {
    let mut own = Own { rule: Rule::Static, whole_blocks: false, ..Own::new(k, LISTS as u32) };
    own.candidates = ROWS as u32;
    change(&mut own);
    Params { width: 4, kind: KindParams::GpuIvf(own), ..Params::gpu_ivf(k, LISTS as u32) }
}

pub(super) fn results(state: &QueryState) -> Vec<Hit> {
    assert_eq!(state.outcome(), Outcome::Complete);
    state.results().to_vec()
}

prop_compose! {
    pub(super) fn settings()(
        metric in prop_oneof![Just(Metric::L2), Just(Metric::Cosine), Just(Metric::Ip)],
        dtype in prop_oneof![Just(DType::F32), Just(DType::F16), Just(DType::U8), Just(DType::I8)],
        seed in 0u64..1000, k in 1u32..30,
    ) -> (Metric, DType, u64, u32) {
        (metric, dtype, seed, k)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn all_candidates_of_all_lists_give_the_exact_answer((metric, dtype, seed, k) in settings(), batch in 1u32..40) {
        let index = Index::new(metric, dtype, seed);
        let query = index.query(seed);
        let want = index.plain(&query, k as usize, 0..ROWS);
        type Change = fn(&mut Own);
        let changes: [Change; 5] = [
            |own| own.exact = true,
            |_| {},
            |own| own.whole_blocks = true,
            |own| (own.merge, own.reuse) = (false, false),
            |own| (own.rule, own.margin) = (Rule::Margin, f32::INFINITY),
        ];
        for change in changes {
            let params = params(k, |own| { own.batch = batch; change(own) });
            prop_assert_eq!(&results(&index.run(&query, params, seed)), &want, "{:?}", params);
        }
        // A vector that is not admitted is nowhere among the results.
        let excluded = want[0].external_id as u32 / 3;
        let without = index.plain(&query, k as usize, (0..ROWS).filter(|&id| id as u32 != excluded));
        for change in changes {
            let params = Params { exclude: excluded, ..params(k, |own| { own.batch = batch; change(own) }) };
            prop_assert_eq!(&results(&index.run(&query, params, seed)), &without, "{:?}", params);
        }
    }

    #[test]
    fn shared_reads_change_no_answer_and_are_counted((metric, dtype, seed, k) in settings(), batch in 1u32..30) {
        let index = Index::new(metric, dtype, seed);
        let query = index.query(seed);
        for rule in Rule::ALL {
            let run = |merge, reuse| {
                let params = params(k, |own| {
                    (own.rule, own.batch, own.candidates) = (rule, batch, 100);
                    (own.merge, own.reuse, own.epsilon, own.beta) = (merge, reuse, 0.1, 2);
                });
                index.run(&query, params, seed)
            };
            let plain = run(false, false);
            let asked = plain.stats().reads;
            prop_assert_eq!(plain.stats().reads_saved_in_batch + plain.stats().reads_saved_across, 0);
            for (merge, reuse) in [(true, false), (false, true), (true, true)] {
                let shared = run(merge, reuse);
                let stats = shared.stats();
                prop_assert_eq!(results(&shared), results(&plain));
                prop_assert_eq!(stats.mini_batches, plain.stats().mini_batches);
                prop_assert_eq!(stats.reads + stats.reads_saved_in_batch + stats.reads_saved_across, asked);
                prop_assert!(merge || stats.reads_saved_in_batch == 0);
                prop_assert!(reuse || stats.reads_saved_across == 0);
            }
        }
    }

    #[test]
    fn stable_batches_end_it((metric, dtype, seed, k) in settings(), beta in 0u32..4) {
        let index = Index::new(metric, dtype, seed);
        let query = index.query(seed);
        let run = |epsilon| {
            let params = params(k, |own| {
                (own.rule, own.batch, own.epsilon, own.beta) = (Rule::Changes, 30, epsilon, beta);
            });
            *index.run(&query, params, seed).stats()
        };
        // Every mini-batch changes all results or fewer.
        prop_assert_eq!(run(1.0).mini_batches, u64::from(beta.max(1)));
        // The first one cannot be without effect.
        prop_assert!(run(0.0).mini_batches > u64::from(beta));
        prop_assert!(run(0.0).reads >= run(0.5).reads);
    }

    #[test]
    fn margins_stop_sooner_the_smaller_they_are((metric, dtype, seed, k) in settings(), whole: bool) {
        let index = Index::new(metric, dtype, seed);
        let query = index.query(seed);
        let run = |margin| {
            let params = params(k, |own| {
                (own.rule, own.batch, own.margin, own.whole_blocks) = (Rule::Margin, 5, margin, whole);
            });
            *index.run(&query, params, seed).stats()
        };
        let stats: Vec<QueryStats> = [-1.0, 0.0, 0.5, 100.0, f32::INFINITY].map(run).to_vec();
        prop_assert!(stats.is_sorted_by(|a, b| a.mini_batches <= b.mini_batches));
        prop_assert_eq!(stats[4].reads, (ROWS / EACH) as u64);
    }

    #[test]
    fn hostile_states_are_refused_or_end(
        bytes in prop::collection::vec(any::<u8>(), 0..200),
        at in 0usize..400,
        x: u8,
    ) {
        let index = Index::new(Metric::L2, DType::U8, 1);
        let view = index.view();
        let query = index.query(1);
        let (mut state, mut scratch) = (QueryState::new(params(5, |_| {}), view.budget()), Scratch::default());
        scratch.prepare(&view, &query);
        state.step(&view, &mut scratch, &[]);
        let mut good = vec![];
        wire::encode(&state, wire::Carry::Ids, &mut good);
        let mut bad = good.clone();
        let body = 16..bad.len();
        if let Some(byte) = bad.get_mut(16 + at) {
            *byte = x;
        }
        bad.extend(&bytes);
        for mut bytes in [bad, [&good[..16], &bytes].concat(), good[..body.end.min(16 + at)].to_vec()] {
            if bytes.len() < 16 {
                continue;
            }
            let length = bytes.len() as u32 - 16;
            let sum = wire::seal(wire::VERSION, &bytes[16..]);
            bytes[4..8].copy_from_slice(&length.to_le_bytes());
            bytes[8..16].copy_from_slice(&sum.to_le_bytes());
            let Ok(mut state) = wire::decode(&bytes) else { continue };
            if state.is_baton(&view.size()) {
                for _ in 0..3 {
                    state.step(&view, &mut scratch, &[]);
                }
            }
        }
    }
}

#[test]
fn a_lost_block_ends_the_query() {
    let index = Index::new(Metric::L2, DType::F32, 3);
    let (view, query) = (index.view(), index.query(3));
    for exact in [true, false] {
        let params = params(5, |own| own.exact = exact);
        let (mut state, mut scratch) = (QueryState::new(params, view.budget()), Scratch::default());
        scratch.prepare(&view, &query);
        crate::query::run(&mut state, &view, &mut scratch, |at| match at.offset {
            0..8192 => Ok(index.read(at)),
            _ => Err(Loss::Failed),
        });
        assert!(matches!(state.outcome(), Outcome::Lost { loss: Loss::Failed, .. }), "{exact}");
    }
    // The same when the scorer has nothing.
    let (mut state, mut scratch) = (QueryState::new(params(5, |_| {}), view.budget()), Scratch::default());
    scratch.prepare(&view, &query);
    state.step(&view, &mut scratch, &[]);
    let tag = state.code_wants().next().unwrap();
    state.step(&view, &mut scratch, &[Arrival { tag, what: Arrived::Lost(Loss::Expired) }]);
    assert!(matches!(state.outcome(), Outcome::Lost { .. }));
}

#[test]
fn parameters_come_back_and_limits_hold() {
    let good = params(10, |_| {});
    assert!(good.is_valid());
    type Change = fn(&mut Own);
    let bad: [Change; 7] = [
        |own| own.nprobe = 0,
        |own| own.candidates = 9,
        |own| own.batch = 0,
        |own| own.batch = 2000,
        |own| own.epsilon = 1.5,
        |own| own.epsilon = f32::NAN,
        |own| own.margin = f32::NAN,
    ];
    for change in bad {
        let params = params(10, change);
        assert!(!params.is_valid(), "{params:?}");
    }
}

#[test]
#[cfg(not(feature = "lab"))]
fn searches_of_the_laboratory_are_refused_and_their_numbers_are_reserved() {
    let mut bytes = vec![];
    Own::new(10, 4).encode(&mut crate::codec::Writer(&mut bytes));
    let decode = |bytes: &[u8]| Own::decode(&mut crate::codec::Reader(bytes));
    assert_eq!(decode(&bytes), Ok(Own::new(10, 4)));
    let (source, flags) = (bytes.len() - 2, bytes.len() - 1);
    let changed = |at: usize, byte: u8| decode(&[&bytes[..at], &[byte], &bytes[at + 1..]].concat());
    for number in 1..=3 {
        assert_eq!(changed(source, number), Err(Refused::Laboratory));
    }
    for flag in [1 << 3, 1 << 4] {
        assert_eq!(changed(flags, bytes[flags] | flag), Err(Refused::Laboratory));
    }
    assert_eq!(changed(source, 4), Err(Refused::Content));
    assert_eq!(changed(flags, bytes[flags] | 1 << 6), Err(Refused::Content));
    assert!(alloc::format!("{}", Refused::Laboratory).contains("stratann-lab"));
}
