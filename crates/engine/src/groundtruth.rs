//! Exact neighbours by a full scan: the ground truth of all other kinds.
//!
//! The base is read in blocks; all threads score every block against all queries. The kept neighbours do not
//! depend on the order of scoring, so the result is the same for any number of threads and any budget.

use std::ops::Range;
use stratann_params::choices::OnBadRow;

use stratann_core::sieve::Sieve;
use stratann_kernel::Metric;
use stratann_kernel::topk::{Scored, TopK};
use stratann_storage::{Error, Progress, Result};

pub use check::{CheckedTruth, Found, Owner};

pub use crate::dataset::GroundTruth;
use crate::dataset::{Reader, check_row};
use crate::parallel;
use crate::tiles::{Form, Matrix, Pairs, STRIP_ROWS, STRIP_SCRATCH_BYTES, Scratch, TILE};

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
    exact_with(
        base,
        queries,
        (metric, k),
        ram_budget_bytes,
        Rows { on_bad_row: OnBadRow::Fail, only: Only::All },
        progress,
    )
}

/// The rows of a base that can be neighbours.
#[derive(Clone, Copy, Debug)]
pub struct Rows<'a> {
    /// What is done with invalid ones; under [`OnBadRow::Skip`] they are ignored.
    pub on_bad_row: OnBadRow,
    /// Those that are asked for.
    pub only: Only<'a>,
}

/// The rows that neighbours are sought among.
#[derive(Clone, Copy, Debug, Default)]
pub enum Only<'a> {
    /// All.
    #[default]
    All,
    /// Some, for all queries.
    Shared(&'a Sieve),
    /// Some, for each query.
    Each(&'a [Sieve]),
}

impl Only<'_> {
    /// Whether a row may be a neighbour of a query.
    fn has(&self, query: usize, row: u32) -> bool {
        match self {
            Only::All => true,
            Only::Shared(sieve) => sieve.has(row),
            Only::Each(sieves) => sieves.get(query).is_some_and(|sieve| sieve.has(row)),
        }
    }

    /// Memory, bytes.
    fn bytes(&self) -> u64 {
        match self {
            Only::All => 0,
            Only::Shared(sieve) => sieve.bytes() as u64,
            Only::Each(sieves) => sieves.iter().map(|sieve| sieve.bytes() as u64).sum(),
        }
    }
}

/// As [`exact`], among some rows of the base. Where queries have different numbers of neighbours, those of a query with
/// fewer are filled up: [`GroundTruth::FILL`].
///
/// # Errors
/// As [`exact`]; rows that are not named for each query.
pub fn exact_with(
    base: &Reader,
    queries: &Reader,
    (metric, k): (Metric, usize),
    ram_budget_bytes: u64,
    Rows { on_bad_row, only }: Rows<'_>,
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
    if let Only::Each(each) = only
        && each.len() as u64 != q.rows
    {
        let (lists, queries) = (each.len(), q.rows);
        return Err(Error::bad_input(format!(
            "{lists} filters for {queries} queries of {query_name}; give one for each"
        )));
    }
    let asked = QuerySource::Set(queries);
    let left = ram_budget_bytes.saturating_sub(only.bytes());
    Search { base, metric, k, on_bad_row, only, progress }.run(&asked, left)
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
    let search = Search { base, metric, k, on_bad_row: OnBadRow::Skip, only: Only::All, progress };
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
    let search = Search { base, metric, k, on_bad_row: OnBadRow::Skip, only: Only::All, progress };
    search.run(&QuerySource::Made { rows, vectors }, ram_budget_bytes)
}

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
    only: Only<'a>,
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

/// Neighbours of all queries, in rows of `columns`.
struct FoundRows {
    columns: usize,
    // Neighbours of the query that has most.
    most: usize,
    ids: Vec<u32>,
    distances: Vec<f32>,
}

impl FoundRows {
    fn new(columns: usize, queries: usize) -> FoundRows {
        let cells = queries * columns;
        FoundRows { columns, most: 0, ids: Vec::with_capacity(cells), distances: Vec::with_capacity(cells) }
    }

    /// Adds the neighbours of the next query, closest first.
    fn push(&mut self, closest: &[Scored]) {
        self.most = self.most.max(closest.len());
        let end = self.ids.len() + self.columns;
        self.ids.extend(closest.iter().map(|s| s.id as u32));
        self.distances.extend(closest.iter().map(|s| s.distance));
        self.ids.resize(end, GroundTruth::FILL);
        self.distances.resize(end, f32::INFINITY);
    }

    /// The neighbours in as many columns as any query needs; where there is no query, in all.
    fn into_truth(mut self) -> GroundTruth {
        let columns = self.columns;
        let queries = self.ids.len() / columns.max(1);
        let k = if queries == 0 { columns } else { self.most };
        if k < columns {
            for query in 0..queries {
                let from = query * columns..query * columns + k;
                self.ids.copy_within(from.clone(), query * k);
                self.distances.copy_within(from, query * k);
            }
            self.ids.truncate(queries * k);
            self.distances.truncate(queries * k);
        }
        GroundTruth { k, ids: self.ids, distances: self.distances }
    }
}

/// Vectors, and which of them can be scored.
#[derive(Default)]
struct CheckedRows {
    matrix: Matrix,
    usable: Vec<bool>,
}

/// Data shared by all tasks of a block, whose first row has number `first`, and of queries from `first_query` on.
#[derive(Clone, Copy)]
struct ScoredBlock<'a> {
    first: u64,
    first_query: u64,
    rows: &'a CheckedRows,
    queries: &'a CheckedRows,
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

impl CheckedRows {
    /// Takes the vectors in `raw`, and leaves a buffer there for reuse.
    fn fill(&mut self, form: Form, raw: &mut Vec<u8>) {
        let Form { dtype, metric, dim } = form;
        let row_bytes = dim * dtype.size();
        self.usable.resize(raw.len() / row_bytes, false);
        parallel::for_each(
            raw.chunks(TILE * row_bytes).zip(self.usable.chunks_mut(TILE)),
            |(part, out): (&[u8], &mut [bool])| {
                let usable = part.chunks_exact(row_bytes).map(|row| check_row(dtype, metric, row).is_none());
                out.iter_mut().zip(usable).for_each(|(out, usable)| *out = usable);
            },
        );
        self.matrix.fill(form, raw);
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
        let mut found = FoundRows::new(self.columns(), asked.len() as usize);
        for pass in 0..passes {
            let first = pass * plan.queries;
            let numbers = first..asked.len().min(first + plan.queries);
            for seeker in self.pass(asked, numbers, plan.block_rows)? {
                found.push(&seeker.top.into_sorted());
            }
        }
        let truth = found.into_truth();
        if truth.k == 0 {
            let name = self.base.path().display();
            let what = match self.only {
                Only::All => "give a larger base",
                Only::Shared(_) | Only::Each(_) => "name rows of it in the filter",
            };
            return Err(Error::bad_input(format!("{name}: no row can be a neighbour; {what}")));
        }
        if truth.k < self.k {
            let line =
                format!("only {} rows can be neighbours: {} columns instead of {}", truth.k, truth.k, self.k);
            self.progress.note(&line);
        }
        let short = (0..truth.queries()).filter(|&query| truth.count_of(query) < truth.k).count();
        if short > 0 {
            self.progress.note(&format!(
                "{short} queries have fewer than {} rows that match: their neighbours are filled up with id {} at an \
                 infinite distance",
                truth.k,
                GroundTruth::FILL
            ));
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
        let per_thread = STRIP_SCRATCH_BYTES as u64 + TILE as u64 * (TASKS as u64 + 2) * top;
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
        let (columns, first_query) = (self.columns(), numbers.start);
        let queries = self.read_queries(asked, numbers.clone())?;
        let seeker = |q| Seeker { own: asked.own(q), top: TopK::new(columns) };
        let mut seekers: Vec<Seeker> = numbers.map(seeker).collect();
        let shape = self.base.shape();
        let (mut raw, mut block) = (Vec::new(), CheckedRows::default());
        let mut first = 0;
        while first < shape.rows {
            let count = block_rows.min(shape.rows - first);
            self.base.read_rows(first, count as usize, &mut raw)?;
            block.fill(self.form(self.base), &mut raw);
            if self.on_bad_row == OnBadRow::Fail {
                self.refuse_bad(self.base, &block, |i| first + i)?;
            }
            let scored = ScoredBlock { first, first_query, rows: &block, queries: &queries };
            self.score_block(scored, &mut seekers);
            self.progress.check_interrupted()?;
            self.progress.advance(count);
            first += count;
        }
        Ok(seekers)
    }

    fn read_queries(&self, asked: &QuerySource<'_>, numbers: Range<u64>) -> Result<CheckedRows> {
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
        let mut queries = CheckedRows::default();
        queries.fill(self.form(reader), &mut raw);
        let number = |i| asked.own(numbers.start + i).unwrap_or(numbers.start + i);
        self.refuse_bad(reader, &queries, number)?;
        Ok(queries)
    }

    /// Returns the error of the first invalid row; `number` maps its position to its number.
    fn refuse_bad(&self, reader: &Reader, rows: &CheckedRows, number: impl Fn(u64) -> u64) -> Result<()> {
        let Some(place) = rows.usable.iter().position(|&usable| !usable) else { return Ok(()) };
        let number = number(place as u64);
        let mut row = Vec::new();
        reader.read_rows(number, 1, &mut row)?;
        let reason = check_row(reader.shape().dtype, self.metric, &row);
        let line = reason.map(|bad| bad.message(reader, number)).unwrap_or_default();
        Err(Error::bad_input(format!("{line}; correct or remove it")))
    }

    /// Scores a block: tiles of queries in parallel and, when there are few, slices of the block too.
    fn score_block(&self, block: ScoredBlock<'_>, seekers: &mut [Seeker]) {
        let count = block.rows.usable.len();
        let tasks = TASKS * rayon::current_num_threads();
        let tiles = seekers.len().div_ceil(TILE);
        let slices = tasks.div_ceil(tiles).min(count.div_ceil(STRIP_ROWS));
        let slice_rows = count.div_ceil(slices);
        parallel::map(seekers.chunks_mut(TILE).enumerate(), |(tile, seekers)| {
            let score = |rows, bounds: &[f32], seekers: &mut [Seeker]| {
                self.score_tile(block, rows, (tile * TILE, bounds), seekers);
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
        block: ScoredBlock<'_>,
        rows: Range<usize>,
        (query, bounds): (usize, &[f32]),
        seekers: &mut [Seeker],
    ) {
        let (own, mut tops): (Vec<Option<u64>>, Vec<&mut TopK>) =
            seekers.iter_mut().map(|seeker| (seeker.own, &mut seeker.top)).unzip();
        // Of a tile, whose queries are numbered from its first.
        let first_query = block.first_query as usize + query;
        let id = |query: usize, row: usize| {
            let id = block.first + row as u64;
            let is_asked = self.only.has(first_query + query, id as u32);
            (is_asked && block.rows.usable[row] && own[query] != Some(id)).then_some(id)
        };
        let pairs =
            Pairs { form: self.form(self.base), queries: &block.queries.matrix, rows: &block.rows.matrix };
        let is_interrupted = || self.progress.interrupted();
        pairs.score((query, bounds), rows, &mut tops, id, &is_interrupted, &mut Scratch::default());
    }

    fn form(&self, reader: &Reader) -> Form {
        let shape = reader.shape();
        Form { dtype: shape.dtype, metric: self.metric, dim: shape.dim }
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
