//! Exact neighbours by a full scan: the ground truth of all other kinds.
//!
//! The base is read in blocks; all threads score every block against all queries. The kept neighbours do not
//! depend on the order of scoring, so the result is the same for any number of threads and any budget.

use std::ops::Range;
use stratann_params::choices::OnBadRow;

use stratann_kernel::distance::{
    balance, block_dot_f32, block_dot_i8, block_dot_u8, block_l2_f32, block_l2_i8, block_l2_u8, inverse_norm,
};
use stratann_kernel::element::widen;
use stratann_kernel::topk::{Scored, TopK};
use stratann_kernel::{DType, Metric};
use stratann_storage::{Error, Progress, Result};

pub use check::{CheckedTruth, Found, Owner};

pub use crate::dataset::GroundTruth;
use crate::dataset::{Reader, check_row};
use crate::parallel;

/// Computes the exact `k` nearest rows of `base` for every query, ordered by `(distance, row number)`.
///
/// Distances are those of [`Exact::distance`](stratann_kernel::distance::Exact::distance), bit for bit. Queries and
/// base have the same component type, or one has f32 and the other f16; f16 is then widened, which is exact. With fewer
/// than `k` rows the result has as many columns as there are rows, and a note reports it. The budget covers everything
/// but the pages that a Parquet file decodes.
///
/// # Errors
///
/// `BadInput` for dimensions or types that do not match, a query or base row that [`check_row`] refuses, `k` = 0, more
/// rows than u32 can number. `Budget` for less memory than the smallest plan takes, which it names. `Interrupted` on
/// request.
pub fn exact(
    base: &Reader,
    queries: &Reader,
    metric: Metric,
    k: usize,
    ram_budget_bytes: u64,
    progress: &dyn Progress,
) -> Result<GroundTruth> {
    exact_with(base, queries, metric, k, ram_budget_bytes, OnBadRow::Fail, progress)
}

/// As [`exact`]. Under [`OnBadRow::Skip`] invalid base rows are ignored.
pub fn exact_with(
    base: &Reader,
    queries: &Reader,
    metric: Metric,
    k: usize,
    ram_budget_bytes: u64,
    on_bad_row: OnBadRow,
    progress: &dyn Progress,
) -> Result<GroundTruth> {
    let (b, q) = (base.shape(), queries.shape());
    let (base_name, query_name) = (base.path().display(), queries.path().display());
    if b.dim != q.dim {
        let message = format!(
            "{query_name} has {} dimensions, {base_name} has {}; search with vectors of the same model",
            q.dim, b.dim
        );
        return Err(Error::bad_input(message));
    }
    if b.dtype != q.dtype && !(b.dtype.is_float() && q.dtype.is_float()) {
        let (qt, bt) = (q.dtype.name(), b.dtype.name());
        let message = format!("{query_name} holds {qt}, {base_name} holds {bt}; convert the queries to {bt}");
        return Err(Error::bad_input(message));
    }
    let asked = QuerySource::Set(queries);
    Search { base, metric, k, on_bad_row, progress }.run(&asked, ram_budget_bytes)
}

/// Computes the exact `k` nearest other rows for some rows of `base` itself; each is excluded from its own result, by
/// number and not by value.
///
/// Invalid base rows are ignored; the given rows must be valid. Otherwise like [`exact`].
pub fn neighbours(
    base: &Reader,
    rows: &[u64],
    metric: Metric,
    k: usize,
    ram_budget_bytes: u64,
    progress: &dyn Progress,
) -> Result<GroundTruth> {
    let search = Search { base, metric, k, on_bad_row: OnBadRow::Skip, progress };
    search.run(&QuerySource::Rows(rows), ram_budget_bytes)
}

/// As [`neighbours`], for vectors that come from rows: query i is excluded from the row `rows[i]`. `vectors` holds them
/// as bytes in the base's component type.
pub(crate) fn neighbours_of_made(
    base: &Reader,
    (rows, vectors): (&[u64], &[u8]),
    metric: Metric,
    k: usize,
    ram_budget_bytes: u64,
    progress: &dyn Progress,
) -> Result<GroundTruth> {
    let search = Search { base, metric, k, on_bad_row: OnBadRow::Skip, progress };
    search.run(&QuerySource::Made { rows, vectors }, ram_budget_bytes)
}

/// Queries that one task scores together, so that rows are loaded from memory once for all of them.
const TILE: usize = 32;
/// Bytes of the rows that a tile is scored against at a time; they stay in the core's own cache.
const STRIP_BYTES: usize = 128 << 10;
/// Most distances per thread are `TILE` times this.
const STRIP_ROWS: usize = 1024;
/// Largest useful block.
const BLOCK_BYTES: u64 = 32 << 20;
/// Fewest rows per block; with fewer, threads mostly wait.
const SMALLEST_BLOCK: u64 = 256;
/// Tasks per thread, to limit the wait for the last one.
const TASKS: usize = 4;

/// Source of the queries.
enum QuerySource<'a> {
    Set(&'a Reader),
    Rows(&'a [u64]),
    Made { rows: &'a [u64], vectors: &'a [u8] },
}

struct Search<'a> {
    base: &'a Reader,
    metric: Metric,
    k: usize,
    on_bad_row: OnBadRow,
    progress: &'a dyn Progress,
}

/// Queries and rows of one pass.
#[derive(Debug)]
struct PassPlan {
    queries: u64,
    block_rows: u64,
}

/// The closest rows of one query so far.
struct Seeker {
    /// Row number of the query itself, if it is a row.
    own: Option<u64>,
    top: TopK,
}

/// Rows ready to be scored: all floats as f32, since widening is exact and done once for all queries.
#[derive(Default)]
struct Matrix {
    floats: Vec<f32>,
    bytes: Vec<u8>,
    /// Inverse norm of every row, under cosine.
    inverse_norms: Vec<f32>,
    usable: Vec<bool>,
}

/// Data shared by all tasks of a block, whose first row has number `first`.
#[derive(Clone, Copy)]
struct Pairs<'a> {
    first: u64,
    block: &'a Matrix,
    queries: &'a Matrix,
}

/// Scratch of a thread for one strip.
#[derive(Default)]
struct Scratch {
    distances: Vec<f32>,
    integers: Vec<u32>,
}

impl QuerySource<'_> {
    fn len(&self) -> u64 {
        match self {
            QuerySource::Set(reader) => reader.shape().rows,
            QuerySource::Rows(rows) | QuerySource::Made { rows, .. } => rows.len() as u64,
        }
    }

    fn own(&self, query: u64) -> Option<u64> {
        match self {
            QuerySource::Set(_) => None,
            QuerySource::Rows(rows) | QuerySource::Made { rows, .. } => Some(rows[query as usize]),
        }
    }
}

impl Matrix {
    /// Takes the rows in `raw`, and leaves a buffer there for reuse.
    fn fill(&mut self, dtype: DType, metric: Metric, dim: usize, raw: &mut Vec<u8>) {
        let row_bytes = dim * dtype.size();
        let count = raw.len() / row_bytes;
        let parts = || raw.chunks(TILE * row_bytes);
        let rows_of = |part| <[u8]>::chunks_exact(part, row_bytes);
        self.usable.resize(count, false);
        parallel::for_each(parts().zip(self.usable.chunks_mut(TILE)), |(part, out)| {
            let usable = rows_of(part).map(|row| check_row(dtype, metric, row).is_none());
            out.iter_mut().zip(usable).for_each(|(out, usable)| *out = usable);
        });
        self.inverse_norms.clear();
        self.inverse_norms.resize(count, 0.0);
        if metric == Metric::Cosine {
            parallel::for_each(parts().zip(self.inverse_norms.chunks_mut(TILE)), |(part, out)| {
                let inverse = rows_of(part).map(|row| inverse_norm(dtype, row));
                out.iter_mut().zip(inverse).for_each(|(out, inverse)| *out = inverse);
            });
        }
        if dtype.is_float() {
            self.floats.resize(count * dim, 0.0);
            let wide = self.floats.chunks_mut(TILE * dim).zip(self.inverse_norms.chunks_mut(TILE));
            parallel::for_each(parts().zip(wide), |(part, (wide, inverses))| {
                let rows = rows_of(part).zip(wide.chunks_exact_mut(dim));
                for ((row, wide), inverse) in rows.zip(inverses) {
                    widen(dtype, row, wide);
                    if metric == Metric::Cosine {
                        *inverse = balance(wide, *inverse);
                    }
                }
            });
        } else {
            std::mem::swap(&mut self.bytes, raw);
        }
    }
}

impl Search<'_> {
    fn run(&self, asked: &QuerySource<'_>, ram_budget_bytes: u64) -> Result<GroundTruth> {
        let rows = self.base.shape().rows;
        if self.k == 0 {
            return Err(Error::bad_input("k is 0; use at least 1"));
        }
        if rows > u64::from(u32::MAX) {
            let name = self.base.path().display();
            let message = format!("{name} has {rows} rows; ground truth numbers at most {}", u32::MAX);
            return Err(Error::bad_input(message));
        }
        let plan = self.plan(asked, ram_budget_bytes)?;
        let passes = asked.len().div_ceil(plan.queries);
        self.progress.stage("exact neighbours", rows * passes, "rows");
        let mut truth = GroundTruth { k: self.columns(), ids: Vec::new(), distances: Vec::new() };
        let cells = asked.len() as usize * truth.k;
        truth.ids.reserve_exact(cells);
        truth.distances.reserve_exact(cells);
        for pass in 0..passes {
            let first = pass * plan.queries;
            let numbers = first..asked.len().min(first + plan.queries);
            for seeker in self.pass(asked, numbers, plan.block_rows)? {
                let closest = seeker.top.into_sorted();
                truth.k = closest.len();
                truth.ids.extend(closest.iter().map(|s| s.id as u32));
                truth.distances.extend(closest.iter().map(|s| s.distance));
            }
        }
        if truth.k == 0 {
            let name = self.base.path().display();
            return Err(Error::bad_input(format!("{name}: no row can be a neighbour; give a larger base")));
        }
        if truth.k < self.k {
            let line =
                format!("only {} rows can be neighbours: {} columns instead of {}", truth.k, truth.k, self.k);
            self.progress.note(&line);
        }
        Ok(truth)
    }

    fn columns(&self) -> usize {
        self.k.min(self.base.shape().rows as usize)
    }

    /// Divides the budget: results first, then as many queries as fit in three quarters, then the block.
    fn plan(&self, asked: &QuerySource<'_>, ram_budget_bytes: u64) -> Result<PassPlan> {
        let shape = self.base.shape();
        let threads = rayon::current_num_threads() as u64;
        let wide = if shape.dtype.is_float() { 4 * shape.dim as u64 } else { 0 };
        // A row takes its bytes as read (at most 4 per component for queries) and as widened, with norm and flag.
        let per_row = shape.row_bytes() as u64 + wide + 5;
        let top = (self.columns() * size_of::<Scored>() + size_of::<Seeker>()) as u64;
        let per_query = 4 * shape.dim as u64 + wide + 5 + top;
        let per_thread = TILE as u64 * (8 * STRIP_ROWS as u64 + (TASKS as u64 + 2) * top);
        let fixed = asked.len() * self.columns() as u64 * 8 + threads * per_thread;
        let least_queries = asked.len().clamp(1, TILE as u64);
        let least_rows = shape.rows.min(SMALLEST_BLOCK);
        let least = fixed + least_queries * per_query + least_rows * per_row;
        if ram_budget_bytes < least {
            let message = format!(
                "exact neighbours of {} queries in {} need at least {} MiB of memory, the budget is {} MiB; raise it",
                asked.len(),
                self.base.path().display(),
                least.div_ceil(1 << 20),
                ram_budget_bytes >> 20
            );
            return Err(Error::budget(message));
        }
        let spare = ram_budget_bytes - fixed;
        let for_queries = (spare / 4 * 3).min(spare - least_rows * per_row);
        let queries = (for_queries / per_query).clamp(least_queries, asked.len().max(least_queries));
        let left = (spare - queries * per_query) / per_row;
        let most = (BLOCK_BYTES / per_row).max(SMALLEST_BLOCK);
        Ok(PassPlan { queries, block_rows: left.min(most).clamp(least_rows, shape.rows) })
    }

    /// Scores the queries with these numbers against the whole base.
    fn pass(&self, asked: &QuerySource<'_>, numbers: Range<u64>, block_rows: u64) -> Result<Vec<Seeker>> {
        let columns = self.columns();
        let queries = self.read_queries(asked, numbers.clone())?;
        let seeker = |q| Seeker { own: asked.own(q), top: TopK::new(columns) };
        let mut seekers: Vec<Seeker> = numbers.map(seeker).collect();
        let shape = self.base.shape();
        let (mut raw, mut block) = (Vec::new(), Matrix::default());
        let mut first = 0;
        while first < shape.rows {
            let count = block_rows.min(shape.rows - first);
            self.base.read_rows(first, count as usize, &mut raw)?;
            block.fill(shape.dtype, self.metric, shape.dim, &mut raw);
            if self.on_bad_row == OnBadRow::Fail {
                self.refuse_bad(self.base, &block, |i| first + i)?;
            }
            self.score_block(Pairs { first, block: &block, queries: &queries }, &mut seekers);
            self.progress.check_interrupted()?;
            self.progress.advance(count);
            first += count;
        }
        Ok(seekers)
    }

    fn read_queries(&self, asked: &QuerySource<'_>, numbers: Range<u64>) -> Result<Matrix> {
        let mut raw = Vec::new();
        let count = (numbers.end - numbers.start) as usize;
        let reader = match asked {
            QuerySource::Set(reader) => {
                reader.read_rows(numbers.start, count, &mut raw)?;
                reader
            }
            QuerySource::Made { vectors, .. } => {
                let width = self.base.shape().row_bytes();
                let range = numbers.start as usize * width..numbers.end as usize * width;
                raw.extend_from_slice(&vectors[range]);
                self.base
            }
            QuerySource::Rows(rows) => {
                let wanted = &rows[numbers.start as usize..numbers.end as usize];
                let width = self.base.shape().row_bytes();
                raw.resize(count * width, 0);
                // In file order, which is faster for compressed formats.
                let mut order: Vec<usize> = (0..count).collect();
                order.sort_unstable_by_key(|&i| wanted[i]);
                let mut row = Vec::new();
                for i in order {
                    self.base.read_rows(wanted[i], 1, &mut row)?;
                    raw[i * width..(i + 1) * width].copy_from_slice(&row);
                }
                self.base
            }
        };
        let shape = reader.shape();
        let mut queries = Matrix::default();
        queries.fill(shape.dtype, self.metric, shape.dim, &mut raw);
        let number = |i| asked.own(numbers.start + i).unwrap_or(numbers.start + i);
        self.refuse_bad(reader, &queries, number)?;
        Ok(queries)
    }

    /// Returns the error of the first invalid row; `number` maps its position to its number.
    fn refuse_bad(&self, reader: &Reader, matrix: &Matrix, number: impl Fn(u64) -> u64) -> Result<()> {
        let Some(place) = matrix.usable.iter().position(|&usable| !usable) else { return Ok(()) };
        let number = number(place as u64);
        let mut row = Vec::new();
        reader.read_rows(number, 1, &mut row)?;
        let reason = check_row(reader.shape().dtype, self.metric, &row);
        let line = reason.map(|bad| bad.message(reader, number)).unwrap_or_default();
        Err(Error::bad_input(format!("{line}; correct or remove it")))
    }

    /// Scores a block: tiles of queries in parallel and, when there are few, slices of the block too.
    fn score_block(&self, pairs: Pairs<'_>, seekers: &mut [Seeker]) {
        let count = pairs.block.usable.len();
        let tasks = TASKS * rayon::current_num_threads();
        let tiles = seekers.len().div_ceil(TILE);
        let slices = tasks.div_ceil(tiles).min(count.div_ceil(STRIP_ROWS));
        let slice_rows = count.div_ceil(slices);
        parallel::map(seekers.chunks_mut(TILE).enumerate(), |(tile, seekers)| {
            let score = |rows, bounds: &[f32], seekers: &mut [Seeker]| {
                self.score_tile(pairs, rows, tile * TILE, bounds, seekers);
            };
            let bounds: Vec<f32> = seekers.iter().map(|s| s.top.threshold()).collect();
            if slices == 1 {
                return score(0..count, &bounds, seekers);
            }
            let fresh = |s: &Seeker| Seeker { own: s.own, top: TopK::new(self.columns()) };
            let slice = |i: usize| {
                let mut part: Vec<Seeker> = seekers.iter().map(fresh).collect();
                score(i * slice_rows..count.min((i + 1) * slice_rows), &bounds, &mut part);
                part
            };
            for (seeker, found) in parallel::map(0..slices, slice).into_iter().flat_map(found_in) {
                seekers[seeker].top.push(found);
            }
        });
    }

    /// Scores rows of a block against the tile of queries that starts at `query`; rows beyond `bounds` are dropped.
    fn score_tile(
        &self,
        pairs: Pairs<'_>,
        rows: Range<usize>,
        query: usize,
        bounds: &[f32],
        seekers: &mut [Seeker],
    ) {
        let mut scratch = Scratch::default();
        let strip = (STRIP_BYTES / self.base.shape().row_bytes()).clamp(16, STRIP_ROWS);
        for start in rows.clone().step_by(strip) {
            if self.progress.interrupted() {
                return;
            }
            let strip = start..rows.end.min(start + strip);
            self.distances(pairs, query..query + seekers.len(), strip.clone(), &mut scratch);
            let lines = scratch.distances.chunks_exact(strip.len());
            for ((seeker, &bound), line) in seekers.iter_mut().zip(bounds).zip(lines) {
                let mut limit = bound.min(seeker.top.threshold());
                for (&distance, i) in line.iter().zip(strip.clone()) {
                    let id = pairs.first + i as u64;
                    // An unusable row's distance may be NaN, which is never <= anything.
                    if distance <= limit && pairs.block.usable[i] && seeker.own != Some(id) {
                        seeker.top.push(Scored { distance, id });
                        limit = bound.min(seeker.top.threshold());
                    }
                }
            }
        }
    }

    /// Computes `scratch.distances[q][r]` for the queries and rows at these positions.
    fn distances(&self, pairs: Pairs<'_>, q: Range<usize>, r: Range<usize>, scratch: &mut Scratch) {
        let Pairs { block, queries, .. } = pairs;
        let dim = self.base.shape().dim;
        let Scratch { distances, integers } = scratch;
        let cells = q.len() * r.len();
        distances.resize(cells, 0.0);
        let (of_q, of_r) = (q.start * dim..q.end * dim, r.start * dim..r.end * dim);
        match self.base.shape().dtype {
            DType::F32 | DType::F16 => {
                let score = if self.metric == Metric::L2 { block_l2_f32 } else { block_dot_f32 };
                score(&queries.floats[of_q], &block.floats[of_r], dim, distances);
            }
            dtype @ (DType::U8 | DType::I8) => {
                integers.resize(cells, 0);
                let (queries, rows) = (&queries.bytes[of_q], &block.bytes[of_r]);
                let signed = dtype == DType::I8;
                match (self.metric, signed) {
                    (Metric::L2, false) => block_l2_u8(queries, rows, dim, integers),
                    (Metric::L2, true) => block_l2_i8(queries, rows, dim, integers),
                    (_, false) => block_dot_u8(queries, rows, dim, integers),
                    (_, true) => block_dot_i8(queries, rows, dim, bytemuck::cast_slice_mut(integers)),
                }
                if signed && self.metric != Metric::L2 {
                    distances.iter_mut().zip(&*integers).for_each(|(d, &i)| *d = i as i32 as f32);
                } else {
                    distances.iter_mut().zip(&*integers).for_each(|(d, &i)| *d = i as f32);
                }
            }
        }
        match self.metric {
            Metric::L2 => {}
            Metric::Ip => distances.iter_mut().for_each(|d| *d = -*d),
            Metric::Cosine => {
                let rows = &block.inverse_norms[r.clone()];
                for (line, &of_query) in distances.chunks_exact_mut(r.len()).zip(&queries.inverse_norms[q]) {
                    // The same products in the same order as the pairwise distance.
                    line.iter_mut().zip(rows).for_each(|(d, &of_row)| *d = 1.0 - *d * of_query * of_row);
                }
            }
        }
    }
}

/// Neighbours found in a slice, with the position of the query in its tile.
fn found_in(part: Vec<Seeker>) -> impl Iterator<Item = (usize, Scored)> {
    part.into_iter()
        .enumerate()
        .flat_map(|(i, s)| s.top.into_sorted().into_iter().map(move |found| (i, found)))
}

pub(crate) mod check;

#[cfg(test)]
mod tests;
