//! Exact searches of one call, all at once: every vector is loaded once and scored against many queries.
//!
//! Ids, distances and counters are those of queries that scan the blocks one by one. A scan for which a budget has no
//! room is left to those, and so is one that meets a block which cannot be read: they say which queries that fails.
//!
//! An exact query of inverted lists prunes by bounds. Many of one call scan the vectors together instead: with the same
//! ids and distances, and with the counters of the scan.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Instant;

use stratann_core::PAGE;
use stratann_core::format::block::Block;
use stratann_core::query::{Hit, Params, QueryStats};
use stratann_kernel::topk::{Scored, TopK};
use stratann_storage::budget::THREAD_BYTES;
use stratann_storage::{Result, threads};

use super::batch::Batch;
use super::{Effort, ExactCost, SearchOptions};
use crate::curve;
use crate::exec::{MergedReads, Times};
use crate::index::Index;
use crate::kinds::answers::Member;
use crate::kinds::blocks::ResidentRows;
use crate::kinds::{self, ListIndex, blocks, own};
use crate::manifest::Manifest;
use crate::tiles::{Form, Matrix, Pairs, STRIP_SCRATCH_BYTES, Scratch, TILE};

/// The component of accounts that a scan is.
pub(super) const EXACT_SCAN: &str = "exact scan";
/// The way in which it reads.
pub(super) const SCAN_BACKEND: &str = "pread";
/// Bytes of the vectors that a thread scores at a time.
const CHUNK_BYTES: usize = 256 << 10;
/// Chunks for each thread at least: fewer are done before another thread has begun.
const CHUNKS_PER_THREAD: u32 = 4;
/// Most queries of one pass over the vectors.
const PASS_QUERIES: usize = 4096;
/// Most memory for the results of a pass on all threads.
const PASS_BYTES: u64 = 64 << 20;

/// How a batch is scanned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ScanPlan {
    threads: usize,
    /// Queries of one pass over the vectors.
    pub(super) pass_queries: usize,
    chunk_units: u32,
    /// Memory of it all.
    pub(super) bytes: u64,
}

/// Where vectors come from: numbered units of them.
enum Rows<'a> {
    /// Memory; a unit is a row.
    Resident(&'a ResidentRows),
    /// Blocks, in the cache or read.
    Blocks,
    /// Records of inverted lists; a unit is a row.
    Lists(&'a ListIndex),
}

/// One pass over all vectors for some queries of a batch.
struct Pass<'a, 'b> {
    index: &'a Index,
    batch: &'a Batch<'b>,
    plan: ScanPlan,
    rows: Rows<'a>,
    form: Form,
    queries: Matrix,
    // The number of the first query, and the row that each must not see.
    first: usize,
    exclude: Vec<u32>,
    next_unit: AtomicU32,
    has_failed: AtomicBool,
    done: Mutex<Done>,
}

/// What the threads of a pass have found and read.
#[derive(Default)]
struct Done {
    tops: Vec<TopK>,
    reads: u64,
    pages_read: u64,
    blocks_cached: u64,
    compute_ns: u64,
}

/// Rows of a chunk, gathered by one thread.
#[derive(Default)]
struct Chunk {
    vectors: Vec<u8>,
    inverse_norms: Vec<f32>,
    // Internal and external ids.
    ids: Vec<(u32, u64)>,
    matrix: Matrix,
    scratch: Scratch,
}

/// Memory of `threads` threads that score chunks of so many bytes: as read, gathered, widened from f16, and distances.
fn threads_bytes(threads: usize, chunk_bytes: usize) -> u64 {
    threads as u64 * (4 * chunk_bytes as u64 + STRIP_SCRATCH_BYTES as u64 + THREAD_BYTES)
}

/// Memory of a query: its vector in both forms, and its results on every thread, and once more while they are put
/// together.
fn query_bytes(dim: usize, k: usize, threads: usize) -> u64 {
    (8 * dim + (threads + 1) * k * size_of::<Scored>() + 64) as u64
}

/// Memory that lets searches with these options scan an index that is not open yet; 0 where they do not score every
/// vector. Where memory is low, a scan comes before lists in memory, which it has no use for.
pub(super) fn planned_bytes(manifest: &Manifest, options: &SearchOptions, low_memory: bool) -> u64 {
    let kind = kinds::kind_of(manifest);
    let k = options.k as u32;
    let point = match options.effort {
        Effort::Recall(recall) => curve::choose(&manifest.curves, k, recall),
        _ => None,
    };
    let params = point.map_or_else(|| kind.usual_params(k, k), |point| kind.params_at(k, &point, None));
    if own(&params.kind).least_scanned().is_none_or(|least| low_memory && least == 1) {
        return 0;
    }
    let queries = TILE as u64 * query_bytes(manifest.dim, options.k, options.threads);
    threads_bytes(options.threads, CHUNK_BYTES.max(manifest.blocks.bytes)) + queries
}

impl Index {
    /// How `queries` queries with these parameters are scanned together; `None` where they do not score every vector,
    /// or where the budget has no room for it beside `taken_bytes`.
    pub(super) fn plan_scan(
        &self,
        params: &Params,
        (options, queries): (&SearchOptions, usize),
        taken_bytes: u64,
    ) -> Option<ScanPlan> {
        let base = &self.base;
        let least = own(&params.kind).least_scanned()?;
        if queries < least || base.manifest.spread.is_some() {
            return None;
        }
        let rows = self.scanned_rows();
        let (units, unit_bytes) = match rows {
            Rows::Blocks => (base.manifest.blocks.count, base.block.block_bytes),
            Rows::Resident(_) | Rows::Lists(_) => (base.manifest.rows as u32, base.row_bytes()),
        };
        let chunk_units = (CHUNK_BYTES / unit_bytes).max(1) as u32;
        let chunks = units.div_ceil(chunk_units);
        let threads = options.threads.min(chunks.div_ceil(CHUNKS_PER_THREAD) as usize).max(1);
        let fixed = threads_bytes(threads, chunk_units as usize * unit_bytes);
        let per_query = query_bytes(base.manifest.dim, params.k as usize, threads);
        let fit = |bytes: u64| (bytes.saturating_sub(fixed) / per_query) as usize;
        let left = self.ram_budget.map_or(u64::MAX, |budget| budget.saturating_sub(taken_bytes));
        let pass_queries = fit(left.min(fixed + PASS_BYTES)).min(PASS_QUERIES).min(queries);
        // Fewer than a tile would make many passes.
        let is_enough = pass_queries >= queries.min(TILE);
        let bytes = fixed + pass_queries as u64 * per_query;
        is_enough.then_some(ScanPlan { threads, pass_queries, chunk_units, bytes })
    }

    /// How `queries` queries with these options are scanned together; `None` where they are not.
    pub(super) fn usual_scan(&self, options: &SearchOptions, queries: usize) -> Option<ScanPlan> {
        let taken = self.taken_bytes(&self.driver_account(options, queries));
        self.plan_scan(&self.params(options).ok()?, (options, queries), taken)
    }

    /// What such queries go through together; `None` where each goes through all of it.
    pub(super) fn scan_cost(&self, options: &SearchOptions, queries: usize) -> Option<ExactCost> {
        self.usual_scan(options, queries)?;
        let cost = self.kind.exact_cost(&self.base);
        let (count, unit, bytes) = match self.scanned_rows() {
            Rows::Blocks => (cost.count, cost.unit, cost.bytes),
            Rows::Lists(_) => (self.base.manifest.rows, "vectors", cost.vector_bytes_max),
            Rows::Resident(rows) => {
                (self.base.manifest.rows, "vectors", (rows.nodes() * self.base.row_bytes()) as u64)
            }
        };
        Some(ExactCost { count, unit, bytes, vector_bytes_max: 0, is_shared: true })
    }

    /// Where a scan finds the vectors.
    fn scanned_rows(&self) -> Rows<'_> {
        match (self.kind.rows(), self.kind.lists()) {
            (Some(rows), _) => Rows::Resident(rows),
            (None, Some(lists)) => Rows::Lists(lists),
            (None, None) => Rows::Blocks,
        }
    }

    /// Answers the queries of a batch in order, and returns how many: all of them, or those before a pass that failed.
    pub(super) fn scan(&self, batch: &Batch<'_>, plan: ScanPlan, width: u32) -> usize {
        for first in (0..batch.count).step_by(plan.pass_queries) {
            let pass = Pass::new(self, batch, plan, first);
            let started = Instant::now();
            pass.run();
            if batch.progress.interrupted() {
                break;
            }
            if pass.has_failed.load(Ordering::Relaxed) {
                return first;
            }
            pass.answer(started.elapsed().as_nanos() as u64, width);
        }
        batch.count
    }
}

impl<'a, 'b> Pass<'a, 'b> {
    fn new(index: &'a Index, batch: &'a Batch<'b>, plan: ScanPlan, first: usize) -> Pass<'a, 'b> {
        let manifest = &index.base.manifest;
        let form = Form { dtype: index.base.dtype, metric: index.base.metric, dim: manifest.dim };
        let numbers = first..batch.count.min(first + plan.pass_queries);
        let size = index.base.row_bytes();
        let mut queries = Matrix::default();
        queries.fill_here(form, &mut batch.queries[numbers.start * size..numbers.end * size].to_vec());
        Pass {
            index,
            batch,
            plan,
            rows: index.scanned_rows(),
            form,
            queries,
            first,
            exclude: numbers.map(batch.exclude).collect(),
            next_unit: AtomicU32::new(0),
            has_failed: AtomicBool::new(false),
            done: Mutex::default(),
        }
    }

    fn units(&self) -> u32 {
        match self.rows {
            Rows::Resident(_) | Rows::Lists(_) => self.index.base.manifest.rows as u32,
            Rows::Blocks => self.index.base.manifest.blocks.count,
        }
    }

    /// Without a thread for it, the pass has failed: drivers say why.
    fn run(&self) {
        if threads::together(self.plan.threads, &|_| self.work()).is_err() {
            self.has_failed.store(true, Ordering::Relaxed);
        }
    }

    fn work(&self) {
        let mut own = Done {
            tops: self.exclude.iter().map(|_| TopK::new(self.batch.params.k as usize)).collect(),
            ..Done::default()
        };
        let mut chunk = Chunk::default();
        let units = self.units();
        loop {
            let first = self.next_unit.fetch_add(self.plan.chunk_units, Ordering::Relaxed);
            if first >= units || self.batch.progress.interrupted() || self.has_failed.load(Ordering::Relaxed)
            {
                break;
            }
            let count = self.plan.chunk_units.min(units - first);
            if self.gather(first, count, &mut chunk, &mut own).is_err() {
                self.has_failed.store(true, Ordering::Relaxed);
                break;
            }
            let started = Instant::now();
            self.score(&mut chunk, &mut own.tops);
            own.compute_ns += started.elapsed().as_nanos() as u64;
        }
        self.done.lock().unwrap_or_else(|e| e.into_inner()).add(own);
    }

    /// Collects the rows of these units.
    fn gather(&self, first: u32, count: u32, chunk: &mut Chunk, own: &mut Done) -> Result<()> {
        chunk.vectors.clear();
        chunk.inverse_norms.clear();
        chunk.ids.clear();
        match self.rows {
            Rows::Resident(rows) => {
                for row in first..first + count {
                    let Some((vector, inverse_norm)) = rows.vector(row) else { continue };
                    chunk.vectors.extend_from_slice(vector);
                    chunk.inverse_norms.push(inverse_norm);
                    chunk.ids.push((row, rows.external_id(row)));
                }
                Ok(())
            }
            Rows::Blocks => {
                let cache = self.index.cache.as_ref().filter(|cache| cache.holds_all());
                let read =
                    blocks::for_each_of(&self.index.base, cache, first..first + count, &mut |block| {
                        chunk.push(block);
                    })?;
                own.reads += u64::from(read);
                own.pages_read += u64::from(read) * self.index.base.block.block_bytes.div_ceil(PAGE) as u64;
                own.blocks_cached += u64::from(count - read);
                Ok(())
            }
            Rows::Lists(lists) => {
                let read = lists.for_each_in(&self.index.base, first..first + count, &mut |members| {
                    members.iter().for_each(|member| chunk.push_member(member));
                })?;
                own.reads += read.0;
                own.pages_read += read.1;
                Ok(())
            }
        }
    }

    fn score(&self, chunk: &mut Chunk, tops: &mut [TopK]) {
        let Chunk { vectors, inverse_norms, ids, matrix, scratch } = chunk;
        matrix.fill_known(self.form, vectors, inverse_norms);
        let pairs = Pairs { form: self.form, queries: &self.queries, rows: matrix };
        let is_interrupted = || self.batch.progress.interrupted();
        for (tile, tops) in tops.chunks_mut(TILE).enumerate() {
            let query = tile * TILE;
            let exclude = &self.exclude[query..query + tops.len()];
            let id = |query: usize, row: usize| {
                let (internal, external) = ids[row];
                (internal != exclude[query]).then_some(external)
            };
            let mut tops: Vec<&mut TopK> = tops.iter_mut().collect();
            let bounds = [f32::INFINITY; TILE];
            pairs.score((query, &bounds), 0..ids.len(), &mut tops, id, &is_interrupted, scratch);
        }
    }

    /// Gives the batch its answers, and the counters of queries that scan the blocks one by one.
    fn answer(self, latency_ns: u64, width: u32) {
        let Pass { index, batch, rows, first, exclude, done, .. } = self;
        let base = &index.base;
        let Done { tops, reads, pages_read, blocks_cached, compute_ns } =
            done.into_inner().unwrap_or_else(|e| e.into_inner());
        // Where the cache keeps what one query has read, the next ones find it there.
        let is_kept = index.cache.as_ref().is_some_and(|cache| cache.holds_all());
        let units = if matches!(rows, Rows::Lists(_)) { reads } else { base.manifest.blocks.count.into() };
        let queries = exclude.len() as u64;
        for (number, (top, exclude)) in tops.into_iter().zip(exclude).enumerate() {
            let is_read = !is_kept || number == 0;
            let has_excluded = u64::from(exclude) < base.manifest.rows;
            let mut stats = QueryStats {
                full_comparisons: base.manifest.rows - u64::from(has_excluded),
                reads: if is_read { reads } else { 0 },
                pages_read: if is_read { pages_read } else { 0 },
                bytes_read: if is_read { pages_read * PAGE as u64 } else { 0 },
                cache_hits: blocks_cached + if is_read { 0 } else { reads },
                hops: units.div_ceil(u64::from(width.max(1))),
                ..QueryStats::default()
            };
            own(&batch.params.kind).count_scan(&mut stats);
            let times = Times {
                latency: latency_ns,
                verify: (compute_ns / queries).min(latency_ns),
                ..Times::default()
            };
            let hits = top.into_sorted().into_iter();
            let hits = hits.map(|Scored { distance, id }| Hit { distance, external_id: id });
            batch.scanned(first + number, hits, &stats, times);
        }
        if !is_kept {
            let others = queries - 1;
            let bytes = others * pages_read * PAGE as u64;
            batch.merged(MergedReads { reads: others * reads, bytes });
        }
        batch.progress.advance(queries);
    }
}

impl Done {
    fn add(&mut self, other: Done) {
        self.reads += other.reads;
        self.pages_read += other.pages_read;
        self.blocks_cached += other.blocks_cached;
        self.compute_ns += other.compute_ns;
        if self.tops.is_empty() {
            self.tops = other.tops;
            return;
        }
        for (top, other) in self.tops.iter_mut().zip(other.tops) {
            other.into_sorted().into_iter().for_each(|scored| top.push(scored));
        }
    }
}

impl Chunk {
    fn push(&mut self, block: &Block<'_>) {
        self.vectors.extend_from_slice(block.vectors());
        for slot in 0..block.count() {
            self.inverse_norms.push(if block.has_norms() { block.inverse_norm(slot) } else { 1.0 });
            self.ids.push((block.first_id().wrapping_add(slot as u32), block.external_id(slot)));
        }
    }

    fn push_member(&mut self, member: &Member<'_>) {
        self.vectors.extend_from_slice(member.vector);
        self.inverse_norms.push(member.inverse_norm);
        self.ids.push((member.id, member.external_id));
    }
}
