//! Exact searches of one call, all at once: every vector is loaded once and scored against many queries.
//!
//! Ids, distances and counters are those of queries that scan the blocks one by one. A scan for which a budget has no
//! room is left to those, and so is one that meets a block which cannot be read: they say which queries that fails.
//!
//! An exact query of inverted lists prunes by bounds. Many of one call scan the vectors together instead: with the same
//! ids and distances, and with the counters of the scan. Lists in groups of components are scored where they lie.

mod matched;
mod plan;

use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Instant;

use stratann_core::PAGE;
use stratann_core::format::block::Block;
use stratann_core::query::{Hit, QueryStats};
use stratann_kernel::topk::{Scored, TopK};
use stratann_storage::{Result, threads};

use super::batch::Batch;
use crate::exec::{MergedReads, Times};
use crate::index::Index;
use crate::kinds::answers::Member;
use crate::kinds::blocks::ResidentRows;
use crate::kinds::questions::MovesIntoMemory;
use crate::kinds::{GridIndex, GridPanel, GridPass, ListIndex, blocks, own};
use crate::search::sieved::Filter;
use crate::tiles::{Form, Matrix, Pairs, Scratch, TILE};
use matched::Matched;
use plan::MATCHED_BYTES;
pub(super) use plan::ScanPlan;
pub(super) use plan::planned_bytes;

/// The component of accounts that a scan is.
pub(super) const EXACT_SCAN: &str = "exact scan";
/// The way in which it reads.
pub(super) const SCAN_BACKEND: &str = "pread";
/// Where vectors come from: numbered units of them.
enum Rows<'a> {
    /// Memory; a unit is a row.
    Resident(&'a ResidentRows),
    /// Blocks, in the cache or read.
    Blocks,
    /// Records of inverted lists; a unit is a row.
    Lists(&'a ListIndex),
    /// Lists in memory in groups of components; a unit is a row.
    Groups(&'a GridIndex),
}

/// Queries as they are scored.
enum Queries<'a> {
    Vectors(Matrix),
    /// In the axes of the lists that they are scored against.
    Turned(Box<GridPass<'a>>),
}

/// One pass over all vectors for some queries of a batch.
struct Pass<'a, 'b> {
    index: &'a Index,
    batch: &'a Batch<'b>,
    plan: ScanPlan,
    rows: Rows<'a>,
    // Of a filter that all queries share; units are its blocks then.
    matched: Option<Matched>,
    form: Form,
    queries: Queries<'a>,
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

/// Rows of a chunk, gathered by one thread, or a few of those that are scored where they lie.
#[derive(Default)]
struct Chunk<'a> {
    panel: GridPanel<'a>,
    vectors: Vec<u8>,
    inverse_norms: Vec<f32>,
    // Internal and external ids.
    ids: Vec<(u32, u64)>,
    matrix: Matrix,
    scratch: Scratch,
}

impl Index {
    /// Where a scan finds the vectors.
    fn scanned_rows(&self) -> Rows<'_> {
        let resident = self.kind.residency().and_then(MovesIntoMemory::rows);
        match (resident, self.kind.lists(), self.kind.sliced()) {
            (Some(rows), ..) => Rows::Resident(rows),
            (_, Some(lists), _) => Rows::Lists(lists),
            (.., Some(grid)) => Rows::Groups(grid),
            (None, None, None) => Rows::Blocks,
        }
    }

    /// Answers the queries of a batch in order, and returns how many: all of them, or those before a pass that failed.
    pub(super) fn scan(&self, batch: &Batch<'_>, plan: ScanPlan, width: u32) -> usize {
        for first in (0..batch.count).step_by(plan.pass_queries) {
            let started = Instant::now();
            let Ok(pass) = Pass::new(self, batch, plan, first) else { return first };
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
    /// Makes queries ready.
    ///
    /// # Errors
    /// No thread for it.
    fn new(index: &'a Index, batch: &'a Batch<'b>, plan: ScanPlan, first: usize) -> Result<Pass<'a, 'b>> {
        let manifest = &index.base.manifest;
        let form = Form { dtype: index.base.dtype, metric: index.base.metric, dim: manifest.dim };
        let numbers = first..batch.count.min(first + plan.pass_queries);
        let size = index.base.row_bytes();
        let vectors = &batch.queries[numbers.start * size..numbers.end * size];
        let rows = index.scanned_rows();
        let matched = batch.filters.shared().and_then(Filter::sieve);
        let matched = matched.and_then(|sieve| Matched::new(index, sieve));
        let queries = match rows {
            Rows::Groups(grid) => Queries::Turned(grid.pass(&index.base, vectors, plan.threads)?.into()),
            _ => {
                let mut queries = Matrix::default();
                queries.fill_here(form, &mut vectors.to_vec());
                Queries::Vectors(queries)
            }
        };
        Ok(Pass {
            index,
            batch,
            plan,
            rows,
            matched,
            form,
            queries,
            first,
            exclude: numbers.map(batch.exclude).collect(),
            next_unit: AtomicU32::new(0),
            has_failed: AtomicBool::new(false),
            done: Mutex::default(),
        })
    }

    fn units(&self) -> u32 {
        if let Some(matched) = &self.matched {
            return matched.blocks();
        }
        match self.rows {
            Rows::Resident(_) | Rows::Lists(_) | Rows::Groups(_) => self.index.base.manifest.rows as u32,
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
        let is_stopped = || self.batch.progress.interrupted() || self.has_failed.load(Ordering::Relaxed);
        while !is_stopped() {
            let first = self.next_unit.fetch_add(self.plan.chunk_units, Ordering::Relaxed).min(units);
            let range = first..units.min(first.saturating_add(self.plan.chunk_units));
            let is_last = range.is_empty();
            let is_gathered = self.gather(range.clone(), &mut chunk, &mut own).is_ok();
            // Few rows of a filter lie in a block: they are scored with those of other blocks.
            if is_gathered && !is_last && self.matched.is_some() && chunk.vectors.len() < MATCHED_BYTES {
                continue;
            }
            let started = Instant::now();
            if !is_gathered || !self.score(range, &mut chunk, &mut own.tops) {
                self.has_failed.store(true, Ordering::Relaxed);
            }
            own.compute_ns += started.elapsed().as_nanos() as u64;
            chunk.clear();
            if is_last {
                break;
            }
        }
        self.done.lock().unwrap_or_else(|e| e.into_inner()).add(own);
    }

    /// Collects the rows of these units, unless they are scored where they lie.
    fn gather(&self, units: Range<u32>, chunk: &mut Chunk<'a>, own: &mut Done) -> Result<()> {
        if let Some(matched) = &self.matched {
            return matched.gather((self.index, &self.rows), units, chunk, own);
        }
        match self.rows {
            _ if units.is_empty() => Ok(()),
            Rows::Resident(rows) => {
                for row in units {
                    let Some((vector, inverse_norm)) = rows.vector(row) else { continue };
                    chunk.push_row(vector, inverse_norm, (row, rows.external_id(row)));
                }
                Ok(())
            }
            Rows::Blocks => {
                let cache = self.index.cache.as_ref().filter(|cache| cache.holds_all());
                let count = units.end - units.start;
                let read = blocks::for_each_of(&self.index.base, cache, units, &mut |block| {
                    chunk.push(block);
                })?;
                own.reads += u64::from(read);
                own.pages_read += u64::from(read) * self.index.base.block.block_bytes.div_ceil(PAGE) as u64;
                own.blocks_cached += u64::from(count - read);
                Ok(())
            }
            Rows::Lists(lists) => {
                let read = lists.for_each_in(&self.index.base, units, &mut |members| {
                    members.iter().for_each(|member| chunk.push_member(member));
                })?;
                own.reads += read.0;
                own.pages_read += read.1;
                Ok(())
            }
            Rows::Groups(_) => Ok(()),
        }
    }

    /// Scores what was gathered, or these units where they lie. Returns false where one is missing.
    fn score(&self, units: Range<u32>, chunk: &mut Chunk<'a>, tops: &mut [TopK]) -> bool {
        let is_interrupted = || self.batch.progress.interrupted();
        let Chunk { panel, vectors, inverse_norms, ids, matrix, scratch } = chunk;
        let queries = match &self.queries {
            Queries::Vectors(queries) => queries,
            Queries::Turned(pass) => {
                return pass.score(units, panel, (&self.exclude, tops), &is_interrupted).is_some();
            }
        };
        matrix.fill_known(self.form, vectors, inverse_norms);
        let pairs = Pairs { form: self.form, queries, rows: matrix };
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
        true
    }

    /// Gives the batch its answers, and the counters of queries that scan the blocks one by one.
    fn answer(self, latency_ns: u64, width: u32) {
        let Pass { index, batch, rows, matched, first, exclude, done, .. } = self;
        let base = &index.base;
        let Done { tops, reads, pages_read, blocks_cached, compute_ns } =
            done.into_inner().unwrap_or_else(|e| e.into_inner());
        // Where the cache keeps what one query has read, the next ones find it there.
        let is_kept = index.cache.as_ref().is_some_and(|cache| cache.holds_all());
        // What is in memory in groups takes one round.
        let (units, lists) = match rows {
            Rows::Lists(_) => (reads, 0),
            Rows::Groups(grid) => (1, grid.scored_lists()),
            Rows::Resident(_) | Rows::Blocks => {
                (matched.as_ref().map_or(base.manifest.blocks.count, Matched::blocks).into(), 0)
            }
        };
        let is_grid = matches!(rows, Rows::Groups(_));
        let components = if is_grid { base.manifest.rows * base.manifest.dim as u64 } else { 0 };
        let compared = |exclude: u32| match &matched {
            Some(matched) => matched.rows_but(exclude),
            None => base.manifest.rows - u64::from(u64::from(exclude) < base.manifest.rows),
        };
        let queries = exclude.len() as u64;
        for (number, (top, exclude)) in tops.into_iter().zip(exclude).enumerate() {
            let is_read = !is_kept || number == 0;
            let mut stats = QueryStats {
                full_comparisons: compared(exclude),
                reads: if is_read { reads } else { 0 },
                pages_read: if is_read { pages_read } else { 0 },
                bytes_read: if is_read { pages_read * PAGE as u64 } else { 0 },
                cache_hits: blocks_cached + if is_read { 0 } else { reads },
                hops: units.div_ceil(u64::from(width.max(1))),
                clusters: lists,
                lists,
                components,
                components_unpruned: components,
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

impl Chunk<'_> {
    fn clear(&mut self) {
        self.vectors.clear();
        self.inverse_norms.clear();
        self.ids.clear();
    }

    fn push_row(&mut self, vector: &[u8], inverse_norm: f32, ids: (u32, u64)) {
        self.vectors.extend_from_slice(vector);
        self.inverse_norms.push(inverse_norm);
        self.ids.push(ids);
    }

    fn push(&mut self, block: &Block<'_>) {
        self.vectors.extend_from_slice(block.vectors());
        for slot in 0..block.count() {
            self.inverse_norms.push(if block.has_norms() { block.inverse_norm(slot) } else { 1.0 });
            self.ids.push((block.first_id().wrapping_add(slot as u32), block.external_id(slot)));
        }
    }

    fn push_member(&mut self, member: &Member<'_>) {
        self.push_row(member.vector, member.inverse_norm, (member.id, member.external_id));
    }
}
