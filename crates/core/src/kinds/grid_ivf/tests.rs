//! Scans of small grids against distances that are computed one by one.

use alloc::vec;
use alloc::vec::Vec;

use proptest::prelude::*;
use stratann_kernel::bits::{BitCoder, Layout};
use stratann_kernel::distance::inverse_norm;
use stratann_kernel::element::{narrow_f16, widen};
use stratann_kernel::{DType, Metric};

use super::{Axes, Codes, Params as Own, Pilot, View};
use crate::format::grid::{GridLayout, ListMember, write_list};
use crate::hash::hash;
use crate::kinds::{IndexView, KindParams, KindView};
use crate::query::{Known, Params, QueryState, Scratch, wire};
use crate::search::{Outcome, Step};
use crate::view::Base;

mod pass;
mod spread;

const DIM: usize = 70;
/// Members of the lists: none, less than a block, several blocks. More than a block of all of them are scored first.
const SIZES: [usize; 6] = [0, 3, 64, 3900, 250, 2900];

/// A grid of random vectors around a centroid for each list.
struct Grid {
    layout: GridLayout,
    order: Vec<u32>,
    centroids: Vec<f32>,
    first: Vec<u32>,
    // Of the head of each list, and of all its groups.
    starts: Vec<u64>,
    slices: Vec<u32>,
    data: Vec<u8>,
    // As they are in the data set, list by list.
    vectors: Vec<Vec<u8>>,
    scale: f32,
    pilot_axes: Vec<f32>,
    pilot_offsets: Vec<f32>,
    coder: Option<BitCoder>,
    // What is subtracted before vectors are encoded.
    centre: Vec<f32>,
}

/// Steps of the pilot.
fn step_of(metric: Metric, dtype: DType) -> f32 {
    if metric == Metric::Cosine || dtype.is_float() { 0.05 } else { 2.0 }
}

fn encode(dtype: DType, floats: &[f32]) -> Vec<u8> {
    match dtype {
        DType::F32 => bytemuck::cast_slice(floats).to_vec(),
        DType::F16 => narrow_f16(floats).collect(),
        DType::U8 => floats.iter().map(|&x| (128.0 + 40.0 * x) as u8).collect(),
        DType::I8 => floats.iter().map(|&x| (40.0 * x) as i8 as u8).collect(),
    }
}

fn floats_of(dtype: DType, vector: &[u8]) -> Vec<f32> {
    let mut out = vec![0.0; DIM];
    widen(dtype, vector, &mut out);
    out
}

/// Component `c` of point `i`, smaller from component to component.
fn random(seed: u64, i: usize, c: usize) -> f32 {
    let uniform = (hash(seed, i as u64, c as u64) >> 40) as f32 / (1 << 23) as f32 - 1.0;
    uniform * 2.0 / (1.0 + c as f32 / 8.0)
}

impl Grid {
    fn new(metric: Metric, dtype: DType, columns: usize, seed: u64) -> Grid {
        let edges = GridLayout::edges_of(DIM);
        let has_codes = columns.is_multiple_of(3);
        let pilot = if metric == Metric::Ip || has_codes { 0 } else { 24 };
        let code = Layout::even(DIM, 2 + seed as usize % 3, 0, false).filter(|_| has_codes);
        let layout = GridLayout { dtype, metric, columns, edges, id_bytes: 4, pilot, code };
        let centre = if metric == Metric::Ip { 0.0 } else { 0.1 };
        // Components are stored in this order, and are of the smallest variance last.
        let order: Vec<u32> = (0..DIM as u32).rev().collect();
        let mut grid = Grid {
            layout,
            order,
            centroids: vec![],
            first: vec![0],
            starts: vec![],
            slices: vec![0, GridLayout::edges_of(DIM).len() as u32 - 1],
            data: vec![],
            vectors: vec![],
            // The components of the largest variance.
            pilot_axes: (0..pilot * DIM).map(|i| f32::from(u8::from(DIM - 1 - i / DIM == i % DIM))).collect(),
            pilot_offsets: vec![-100.0 * step_of(metric, dtype); pilot],
            coder: code.map(|code| BitCoder::of_points(code, seed, metric == Metric::Ip)),
            centre: vec![centre; DIM],
            scale: if dtype.is_float() || metric == Metric::Cosine { 1048576.0 } else { 1.0 },
        };
        for (list, &size) in SIZES.iter().enumerate() {
            grid.add_list(seed, list, size);
        }
        grid
    }

    fn add_list(&mut self, seed: u64, list: usize, size: usize) {
        let dtype = self.layout.dtype;
        let of = |i: usize| -> Vec<f32> {
            let center = |c| 0.7 * random(seed, 1_000_000 + list, c);
            (0..DIM).rev().map(|c| center(c) + 0.5 * random(seed, 1000 * list + i, c)).collect()
        };
        self.centroids.extend((0..DIM).rev().map(|c| 0.7 * random(seed, 1_000_000 + list, c)));
        let rows: Vec<Vec<u8>> = (0..size).map(|i| encode(dtype, &of(i))).collect();
        let stored: Vec<(Vec<u8>, f32)> = rows.iter().map(|row| self.stored(row)).collect();
        let pilots: Vec<(Vec<u8>, f32)> = rows.iter().map(|row| self.pilot_of(row)).collect();
        let radius = pilots.iter().map(|pilot| pilot.1).fold(0.0, f32::max);
        let reference = self.codes().map_or(vec![], |codes| codes.reference(vec![0.2; DIM]));
        let codes: Vec<(Vec<u8>, f32)> = stored.iter().map(|of| self.code_of(of, &reference)).collect();
        let members: Vec<ListMember<'_>> = stored
            .iter()
            .zip(pilots.iter().zip(&codes))
            .zip(self.vectors.len()..)
            .map(|(((vector, factor), ((pilot, _), (code, radius))), i)| ListMember {
                external_id: i as u64,
                vector,
                factor: *factor,
                length: 1.0,
                pilot,
                code,
                radius: *radius,
            })
            .collect();
        let start = self.data.len();
        let unit = |unit| (start + self.layout.unit_at(size, &self.slices, unit)) as u64;
        self.starts.extend([unit(0), unit(1)]);
        write_list(&self.layout, &members, (radius, &reference), &mut self.data);
        self.vectors.extend(rows);
        self.first.push(self.vectors.len() as u32);
    }

    fn codes(&self) -> Option<Codes<'_>> {
        self.coder.as_ref().map(|coder| Codes { coder, centre: &self.centre })
    }

    /// The code of a stored vector, and its radius.
    fn code_of(&self, (stored, factor): &(Vec<u8>, f32), reference: &[f32]) -> (Vec<u8>, f32) {
        let Some(codes) = self.codes() else { return (vec![], 0.0) };
        let mut vector = floats_of(self.layout.dtype, stored);
        if self.layout.metric == Metric::Cosine && self.layout.dtype != DType::F32 {
            vector.iter_mut().for_each(|x| *x *= factor);
        }
        let mut code = vec![0; codes.coder.layout().code_bytes()];
        let radius = codes.encode(vector, reference, &mut code);
        (code, radius)
    }

    /// The code of a vector, and its distance from it.
    fn pilot_of(&self, row: &[u8]) -> (Vec<u8>, f32) {
        let (metric, dtype) = (self.layout.metric, self.layout.dtype);
        let mut point = floats_of(dtype, row);
        if metric == Metric::Cosine {
            let factor = inverse_norm(dtype, row);
            point.iter_mut().for_each(|x| *x *= factor);
        }
        let mut turned = vec![];
        let step = step_of(metric, dtype);
        Pilot { axes: &self.pilot_axes, offsets: &self.pilot_offsets, step }.turn(&point, &mut turned);
        let codes: Vec<u8> = turned.iter().map(|x| x.round() as u8).collect();
        let error: f32 = turned.iter().zip(&codes).map(|(x, &c)| (x - f32::from(c)).powi(2)).sum();
        (codes, error.sqrt() * step * 1.0001)
    }

    /// A vector as it is stored, and its factor.
    fn stored(&self, row: &[u8]) -> (Vec<u8>, f32) {
        let (dtype, size) = (self.layout.dtype, self.layout.dtype.size());
        let factor = inverse_norm(dtype, row);
        let mut ordered: Vec<u8> =
            self.order.iter().flat_map(|&c| row[size * c as usize..][..size].iter().copied()).collect();
        if self.layout.metric == Metric::Cosine && dtype == DType::F32 {
            let unit: Vec<f32> = floats_of(dtype, &ordered).iter().map(|x| x * factor).collect();
            ordered = bytemuck::cast_slice(&unit).to_vec();
        }
        (ordered, factor)
    }

    /// With a unit that is larger by so many bits, where units are not whole numbers.
    fn in_units(self, bits: i32) -> Grid {
        let scale = if self.scale > 1.0 { self.scale * 2f32.powi(-bits) } else { self.scale };
        Grid { scale, ..self }
    }

    /// A query; so much longer where it is of floats of 32 bits.
    fn query(&self, seed: u64, length: f32) -> Vec<u8> {
        let dtype = self.layout.dtype;
        let length = if dtype == DType::F32 { length } else { 1.0 };
        let floats: Vec<f32> = (0..DIM).rev().map(|c| length * random(seed, 77_000_000, c)).collect();
        encode(dtype, &floats)
    }

    fn view(&self) -> IndexView<'_> {
        let Grid { layout, order, centroids, first, starts, slices, .. } = self;
        let Grid { data, pilot_axes, pilot_offsets, .. } = self;
        let step = step_of(layout.metric, layout.dtype);
        let pilot = Pilot { axes: pilot_axes, offsets: pilot_offsets, step };
        let nodes = self.vectors.len() as u32;
        IndexView {
            base: Base::whole((layout.metric, layout.dtype), DIM, nodes),
            kind: KindView::GridIvf(View {
                layout,
                scale: self.scale,
                axes: Axes::Ordered(order),
                pilot: (layout.pilot > 0).then_some(pilot),
                codes: self.codes(),
                centroids,
                stripes: 1,
                first,
                slices,
                starts,
                data,
                apart: None,
                firsts: None,
            }),
        }
    }

    fn search(&self, query: &[u8], params: Params) -> QueryState {
        let view = self.view();
        let mut scratch = Scratch::default();
        scratch.prepare(&view, query);
        let mut state = QueryState::new(params, view.budget());
        assert_eq!(state.step(&view, &mut scratch, &[]), Step::Done);
        assert_eq!(state.outcome(), Outcome::Complete);
        state
    }

    /// The distance of a vector, in doubles.
    fn distance(&self, query: &[u8], i: u64) -> f64 {
        let wide = |bytes: &[u8]| -> Vec<f64> {
            floats_of(self.layout.dtype, bytes).iter().map(|&x| f64::from(x)).collect()
        };
        let (q, x) = (wide(query), wide(&self.vectors[i as usize]));
        let dot = |a: &[f64], b: &[f64]| -> f64 { a.iter().zip(b).map(|(a, b)| a * b).sum() };
        match self.layout.metric {
            Metric::L2 => q.iter().zip(&x).map(|(a, b)| (a - b) * (a - b)).sum(),
            Metric::Ip => -dot(&q, &x),
            Metric::Cosine => 1.0 - dot(&q, &x) / (dot(&q, &q) * dot(&x, &x)).sqrt(),
        }
    }
}

/// By how many bits the unit of an index is larger than it would be, and how long a query is: the shortest and the
/// longest have sums of few digits, and many.
fn units_and_lengths() -> impl Strategy<Value = (i32, f32)> {
    (prop::sample::select(vec![0, 0, 12, 30]), prop::sample::select(vec![1.0, 1.0, 1e-3, 1e4, 1e12]))
}

fn norm_of(dtype: DType, vector: &[u8]) -> f64 {
    floats_of(dtype, vector).iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>().sqrt()
}

/// All switches of a search over this many lists.
fn variants(k: u32, nprobe: u32) -> Vec<Params> {
    let mut all = vec![];
    for flags in 0..16 {
        let [prune_dimension, prune_vector, prewarm, prune_code] = [0, 1, 2, 3].map(|i| flags >> i & 1 == 1);
        let own = Own { prune_dimension, prune_vector, prewarm, prune_code, ..Own::new(nprobe) };
        all.push(Params { kind: KindParams::GridIvf(own), ..Params::grid_ivf(k, nprobe) });
    }
    all
}

#[test]
fn a_bound_prunes_and_keeps_what_is_within() {
    for metric in Metric::ALL {
        let grid = Grid::new(metric, DType::F32, 2, 11);
        let (query, view) = (grid.query(5, 1.0), grid.view());
        let search = |known: Known| {
            let mut scratch = Scratch::default();
            scratch.prepare(&view, &query);
            let mut state = QueryState::new(Params::grid_ivf(10, 4), view.budget());
            state.set_known(known);
            assert_eq!(state.step(&view, &mut scratch, &[]), Step::Done);
            state
        };
        let plain = grid.search(&query, Params::grid_ivf(10, 4));
        assert_eq!(search(Known { bound: f32::NAN, ..Known::default() }), plain);
        for rank in [4, 9] {
            let bound = plain.results()[rank].distance;
            let bounded = search(Known { bound, ..Known::default() });
            let within: Vec<_> = bounded.results().iter().filter(|hit| hit.distance <= bound).collect();
            assert_eq!(within, plain.results()[..=rank].iter().collect::<Vec<_>>());
            assert!(bounded.stats().bounded > 0 && bounded.stats().components < plain.stats().components);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn answers_do_not_depend_on_pruning(
        metric in prop::sample::select(Metric::ALL.to_vec()),
        dtype in prop::sample::select(DType::ALL.to_vec()),
        columns in 0..4usize,
        k in prop::sample::select(vec![1u32, 10, 300, 1000]),
        nprobe in 1..8u32,
        (bits, length) in units_and_lengths(),
        seed in 0..1000u64,
    ) {
        let grid = Grid::new(metric, dtype, columns, seed).in_units(bits);
        let query = grid.query(seed, length);
        let searches: Vec<QueryState> =
            variants(k, nprobe).into_iter().map(|params| grid.search(&query, params)).collect();
        let plain = &searches[0];
        for other in &searches[1..] {
            prop_assert_eq!(other.results(), plain.results());
            // Some are compared twice: first codes, or as part of a block after they were prewarmed.
            let again = grid.layout.pilot * grid.vectors.len() + 80 * DIM;
            prop_assert!(other.stats().components <= plain.stats().components + again as u64);
        }
        prop_assert_eq!(plain.stats().components, plain.stats().components_unpruned);
        for hit in plain.results() {
            let exact = grid.distance(&query, hit.external_id);
            let error = (f64::from(hit.distance) - exact).abs();
            let norms = norm_of(dtype, &query) * norm_of(dtype, &grid.vectors[hit.external_id as usize]);
            let bound = match metric {
                Metric::L2 => exact,
                Metric::Ip => norms,
                Metric::Cosine => 1.0,
            };
            prop_assert!(error <= 1e-5 * bound, "{} {exact}", hit.distance);
        }
    }
}

#[test]
fn the_nearest_of_all_lists_are_found() {
    for metric in Metric::ALL {
        for dtype in DType::ALL {
            for columns in [2, 3] {
                let grid = Grid::new(metric, dtype, columns, 3);
                let query = grid.vectors[100].clone();
                let mut wanted: Vec<(f64, u64)> =
                    (0..grid.vectors.len() as u64).map(|i| (grid.distance(&query, i), i)).collect();
                wanted.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
                let own = Own { exact: true, ..Own::new(1) };
                let params = Params { kind: KindParams::GridIvf(own), ..Params::grid_ivf(10, 1) };
                let found = grid.search(&query, params);
                for (hit, (distance, _)) in found.results().iter().zip(&wanted) {
                    assert!((f64::from(hit.distance) - distance).abs() <= 1e-5 * (1.0 + distance.abs()));
                }
                assert_eq!(found.results().len(), 10);
                let stats = found.stats();
                assert!(stats.components < stats.components_unpruned, "{metric:?} {dtype:?}");
                assert_eq!(stats.components_unpruned, (grid.vectors.len() * DIM) as u64);
                assert_eq!(stats.full_comparisons + stats.pruned, grid.vectors.len() as u64);
                assert_eq!(stats.lists, SIZES.len() as u64);
                let compared_codes = stats.code_comparisons - SIZES.len() as u64;
                assert_eq!(compared_codes > 0, columns == 3);
            }
        }
    }
}

#[test]
fn a_trace_tells_where_vectors_drop_out() {
    let kinds = [(Metric::L2, DType::U8), (Metric::Ip, DType::F32), (Metric::Cosine, DType::F16)];
    for (metric, dtype, columns) in kinds.into_iter().flat_map(|(m, d)| [(m, d, 2), (m, d, 0)]) {
        let grid = Grid::new(metric, dtype, columns, 4);
        let view = grid.view();
        let query = grid.vectors[300].clone();
        let mut scratch = Scratch::default();
        scratch.prepare(&view, &query);
        scratch.trace_lists();
        let mut state = QueryState::new(Params::grid_ivf(10, 6), view.budget());
        state.step(&view, &mut scratch, &[]);
        let trace = scratch.grid_ivf().and_then(|own| own.scanned()).unwrap();
        let stats = state.stats();
        let members: u64 = trace.lists.iter().map(|list| u64::from(list.members)).sum();
        assert_eq!((trace.lists.len(), members), (6, grid.vectors.len() as u64));
        // Fewer and fewer are left; those that are at the end are all that were offered.
        let left: Vec<u64> = [trace.after_pilot].iter().chain(&trace.after_group).copied().collect();
        assert!(left.is_sorted_by(|a, b| a >= b) && left[0] <= members, "{left:?}");
        assert!(*left.last().unwrap() <= stats.full_comparisons && left[1] < members);
        let compared: u64 = trace.lists.iter().map(|list| list.components).sum();
        assert!(compared <= stats.components && compared > 0);
        assert_eq!(trace.codes, stats.code_comparisons - SIZES.len() as u64);
    }
}

#[test]
fn an_excluded_vector_is_no_result() {
    let grid = Grid::new(Metric::L2, DType::F32, 1, 5);
    let query = grid.vectors[5].clone();
    let params = Params { exclude: 5, ..Params::grid_ivf(3, 6) };
    let found = grid.search(&query, params);
    assert!(found.results().len() == 3 && found.results().iter().all(|hit| hit.external_id != 5));
}

#[test]
fn states_travel_before_and_after_their_step() {
    let grid = Grid::new(Metric::L2, DType::F32, 1, 9);
    let query = grid.vectors[17].clone();
    let view = grid.view();
    for params in variants(7, 3) {
        let travel = |state: &QueryState| {
            let mut bytes = vec![];
            wire::encode(state, wire::Carry::Ids, &mut bytes);
            // Every flipped bit is refused.
            for bit in (0..8 * bytes.len()).step_by(5) {
                let mut damaged = bytes.clone();
                damaged[bit / 8] ^= 1 << (bit % 8);
                assert!(wire::decode(&damaged).is_err(), "bit {bit}");
            }
            wire::decode(&bytes).unwrap()
        };
        let mut scratch = Scratch::default();
        scratch.prepare(&view, &query);
        let mut state = travel(&QueryState::new(params, view.budget()));
        assert_eq!(state.params(), &params);
        assert_eq!(state.step(&view, &mut scratch, &[]), Step::Done);
        let state = travel(&state);
        let alone = grid.search(&query, params);
        assert_eq!((state.results(), state.stats()), (alone.results(), alone.stats()));
    }
}
