//! What is scanned together, and what memory it takes.

use stratann_core::query::Params;
use stratann_kernel::topk::Scored;
use stratann_storage::budget::THREAD_BYTES;

use super::{Rows, matched};
use crate::curve;
use crate::index::Index;
use crate::kinds::{self, GRID_PANEL_ROWS, grid_thread_bytes, own};
use crate::manifest::Manifest;
use crate::search::sieved::Filters;
use crate::search::{Effort, ExactCost, SearchOptions};
use crate::tiles::{STRIP_SCRATCH_BYTES, TILE};

/// Bytes of the vectors that a thread scores at a time.
const CHUNK_BYTES: usize = 256 << 10;
/// Bytes of the vectors of a filter that are scored at a time at least, where there are so many.
pub(super) const MATCHED_BYTES: usize = CHUNK_BYTES / 4;
/// Queries with one filter that are scanned together at least: of fewer each finds its blocks at less cost.
const FILTERED_QUERIES: usize = 16;
/// Chunks for each thread at least: fewer are done before another thread has begun.
const CHUNKS_PER_THREAD: u32 = 4;
/// Most queries of one pass over the vectors.
const PASS_QUERIES: usize = 4096;
/// Most memory for the results of a pass on all threads.
const PASS_BYTES: u64 = 64 << 20;

/// How a batch is scanned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::search) struct ScanPlan {
    pub(super) threads: usize,
    /// Queries of one pass over the vectors.
    pub(in crate::search) pass_queries: usize,
    pub(super) chunk_units: u32,
    /// Memory of it all.
    pub(in crate::search) bytes: u64,
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
/// vector. Where memory is low, a scan comes before lists in memory, which it has no use for; an index that is in
/// memory as a whole is searched without.
pub(in crate::search) fn planned_bytes(
    manifest: &Manifest,
    options: &SearchOptions,
    low_memory: bool,
) -> u64 {
    let kind = kinds::kind_of(manifest);
    let k = options.k as u32;
    let point = match options.effort {
        Effort::Recall(recall) => curve::choose(&manifest.curves, k, recall),
        _ => None,
    };
    let params = point.map_or_else(|| kind.usual_params(k, k), |point| kind.params_at(k, &point, None));
    let is_spared = |least| low_memory && (least == 1 || manifest.facts().is_resident);
    if own(&params.kind).least_scanned().is_none_or(is_spared) {
        return 0;
    }
    let queries = TILE as u64 * query_bytes(manifest.dim, options.k, options.threads);
    threads_bytes(options.threads, CHUNK_BYTES.max(manifest.blocks.bytes)) + queries
}

impl Index {
    /// How the queries of a call with these parameters are scanned together; `None` where they do not score every
    /// vector that they may return, or not the same, or where the budget has no room for it beside `taken_bytes`.
    pub(in crate::search) fn plan_call_scan(
        &self,
        params: &Params,
        filters: &Filters<'_>,
        call: (&SearchOptions, usize),
        taken_bytes: u64,
    ) -> Option<ScanPlan> {
        if filters.all().is_empty() {
            return self.plan_scan(params, call, taken_bytes).filter(|_| self.base.live.is_none());
        }
        let filter = filters.shared().filter(|filter| filter.sieve().is_some())?;
        self.kind.block_with(&self.base, 0).filter(|_| call.1 >= FILTERED_QUERIES)?;
        // Blocks with a row of it, and on each thread vectors that wait for others, and what is made of them.
        let more_bytes = matched::BLOCK_BYTES * u64::from(self.base.manifest.blocks.count)
            + (call.0.threads * 3 * MATCHED_BYTES) as u64;
        let plan = self.plan_scan(&filter.params(), call, taken_bytes + more_bytes)?;
        // Units are blocks.
        let chunk_units = (CHUNK_BYTES / self.base.block.block_bytes).max(1) as u32;
        Some(ScanPlan { chunk_units, bytes: plan.bytes + more_bytes, ..plan })
    }

    /// How `queries` queries with these parameters are scanned together, without filters.
    pub(in crate::search) fn plan_scan(
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
            Rows::Resident(_) | Rows::Lists(_) | Rows::Groups(_) => {
                (base.manifest.rows as u32, base.row_bytes())
            }
        };
        let is_grid = matches!(rows, Rows::Groups(_));
        let chunk_units = (CHUNK_BYTES / unit_bytes).max(1) as u32;
        let chunk_units = if is_grid { chunk_units.next_multiple_of(GRID_PANEL_ROWS) } else { chunk_units };
        let chunks = units.div_ceil(chunk_units);
        let threads = options.threads.min(chunks.div_ceil(CHUNKS_PER_THREAD) as usize).max(1);
        let fixed = match rows {
            Rows::Groups(_) => threads as u64 * (grid_thread_bytes(base.manifest.dim) + THREAD_BYTES),
            _ => threads_bytes(threads, chunk_units as usize * unit_bytes),
        };
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
    pub(in crate::search) fn usual_scan(&self, options: &SearchOptions, queries: usize) -> Option<ScanPlan> {
        let taken = self.taken_bytes(&self.driver_account(options, queries));
        self.plan_scan(&self.params(options).ok()?, (options, queries), taken)
    }

    /// What such queries go through together; `None` where each goes through all of it.
    pub(in crate::search) fn scan_cost(&self, options: &SearchOptions, queries: usize) -> Option<ExactCost> {
        self.usual_scan(options, queries)?;
        let cost = self.kind.exact_cost(&self.base);
        let (count, unit, bytes) = match self.scanned_rows() {
            Rows::Blocks | Rows::Groups(_) => (cost.count, cost.unit, cost.bytes),
            Rows::Lists(_) => (self.base.manifest.rows, "vectors", cost.vector_bytes_max),
            Rows::Resident(rows) => {
                (self.base.manifest.rows, "vectors", (rows.nodes() * self.base.row_bytes()) as u64)
            }
        };
        Some(ExactCost { count, unit, bytes, vector_bytes_max: 0, is_shared: true })
    }
}
