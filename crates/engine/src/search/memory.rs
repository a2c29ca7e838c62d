//! What searches take of memory: of an open index exactly, of one that is not open yet as far as its manifest tells.

use stratann_core::query::Params;

use super::{Reserve, SearchOptions};
use crate::budget::{Account, THREAD_BYTES};
use crate::driver::SLOT_BYTES;
use crate::index::Index;
use crate::kinds;
use crate::kinds::effort::Effort;
use crate::manifest::Manifest;
use crate::recall::curve;

/// What queries in flight and their threads take on an index that is not open yet, as far as its manifest tells;
/// rounded up where it does not. With `low_memory` fewer are in flight.
pub fn reserve(manifest: &Manifest, options: &SearchOptions, low_memory: bool) -> [(&'static str, u64); 2] {
    let planned = kinds::planned_query(manifest, low_memory);
    let in_flight = options.in_flight.unwrap_or(planned.in_flight);
    let state = planned.tables_bytes
        + longest_list(manifest, options) * 24
        + options.k as u64 * 16
        + manifest.dim as u64 * 16
        + 4096;
    let batch = kinds::planned_reads_at_once(manifest, &options.switches);
    let reads = u64::from(options.width.at_load(in_flight).1.max(batch)) * planned.read_bytes as u64;
    let queries = options.threads as u64 * in_flight as u64 * (state + reads);
    [("queries in flight", queries), ("threads", options.threads as u64 * THREAD_BYTES)]
}

/// Room for searches of a usual kind on an index that is opened before it is known which will come: all cores, and
/// some thousand queries at a time.
pub fn usual_reserve(manifest: &Manifest) -> Reserve {
    const QUERIES_BYTES: u64 = 4 << 20;
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    let options = SearchOptions { threads, ..SearchOptions::default() };
    let bytes =
        |low_memory| QUERIES_BYTES + reserve(manifest, &options, low_memory).iter().map(|r| r.1).sum::<u64>();
    Reserve { bytes: bytes(false), low_memory_bytes: bytes(true), threads }
}

fn longest_list(manifest: &Manifest, options: &SearchOptions) -> u64 {
    options.effort.beam().unwrap_or_else(|| beam_of_curve(manifest, options).max(USUAL_BEAM))
}

/// A beam that most searches stay below.
const USUAL_BEAM: u64 = 200;

/// The beam of a search that asks for a recall, where the index has a curve of beams.
fn beam_of_curve(manifest: &Manifest, options: &SearchOptions) -> u64 {
    let Effort::Recall(recall) = options.effort else { return 0 };
    let point = curve::choose(&manifest.curves, options.k as u32, recall);
    point.filter(|p| !p.is_exact()).map_or(0, |p| u64::from(p.effort))
}

impl Index {
    /// Memory of a search with these options, the open index included; a few queries alone take less.
    pub fn search_account(&self, options: &SearchOptions, queries: usize) -> Account {
        let mut account = self.account();
        let in_flight = self.in_flight(options);
        let per_query = self.query_bytes(options) + self.reads_bytes(options);
        let queries_bytes = match self.base.kind.shares_reads() {
            true => self.gathered_bytes(options, queries),
            false => options.threads as u64 * in_flight as u64 * per_query,
        };
        account.add("queries in flight", queries_bytes);
        account.add("threads", options.threads as u64 * THREAD_BYTES);
        if self.base.kind.shares_reads() {
            account.add("doorbells", self.kind.doorbells_bytes(&options.gather));
        }
        if let Some(learning) = self.learning() {
            account.add("learning", learning.bytes(options.threads));
        }
        let answer = 12 * options.k.min(self.base.manifest.rows as usize) as u64 + 8;
        account.add("queries and answers", queries as u64 * (answer + self.base.row_bytes() as u64));
        account
    }

    /// Bytes of the queries of a gathered batch. Tables belong to their threads.
    fn gathered_bytes(&self, options: &SearchOptions, queries: usize) -> u64 {
        let batch = options.gather.batch.min(queries.max(1)) as u64;
        let asked = self.params(options).map_or(0, |params| kinds::asked_bytes(&params));
        batch * self.gathered_slot_bytes(asked) + options.threads as u64 * self.tables_bytes(options)
    }

    /// Bytes of a query that waits in a batch, whose state has `asked_bytes`.
    fn gathered_slot_bytes(&self, asked_bytes: u64) -> u64 {
        asked_bytes + self.base.manifest.dim as u64 * 16 + SLOT_BYTES
    }

    /// The same for `slots` queries of the usual size on each of the threads of a server. The answers of an index that
    /// others change are kept until the end of their batch.
    pub(crate) fn served_slots_bytes(&self, threads: usize, slots: usize) -> u64 {
        let asked = kinds::asked_bytes(&self.usual_params());
        let kept = if self.kind.live().is_some() { asked } else { 0 };
        let tables = self.tables_bytes(&SearchOptions::default());
        threads as u64 * (slots as u64 * (self.gathered_slot_bytes(asked) + kept) + tables)
    }

    /// Bytes of the reads of one query that are under way at once; 0 where they are those of its batch.
    fn reads_bytes(&self, options: &SearchOptions) -> u64 {
        if self.base.kind.shares_reads() {
            return 0;
        }
        let by_width = u64::from(self.width_limit(options)) * self.read_bytes_max() as u64;
        let batch = self.params(options).map_or(0, |params| kinds::reads_at_once(&params));
        by_width.max(u64::from(batch) * self.base.block.block_bytes as u64)
    }

    pub(crate) fn width_limit(&self, options: &SearchOptions) -> u32 {
        options.width.at_load(self.in_flight(options)).1
    }

    /// State and scratch of one query: look-up tables, beams, the query itself.
    pub(crate) fn query_bytes(&self, options: &SearchOptions) -> u64 {
        let list = longest_list(&self.base.manifest, options);
        self.tables_bytes(options) + list * 24 + options.k as u64 * 16
    }

    /// The part of [`Index::query_bytes`] that depends on the index alone.
    fn tables_bytes(&self, options: &SearchOptions) -> u64 {
        let local_beam = u64::from(options.switches.lists().local_list.unwrap_or(0)).max(options.k as u64);
        let tables = self.kind.query_tables_bytes(&self.base, local_beam);
        // Ids and ranks of the block that is expanded.
        let coded =
            self.base.block.block_bytes.checked_div(self.base.block.code_bytes).unwrap_or(0) as u64 * 8;
        tables + coded + self.base.manifest.dim as u64 * 16 + 4096
    }

    /// A query of the usual size: what a recall of this index's curves comes to, for up to 100 results. Slots have
    /// memory for it.
    pub(crate) fn usual_params(&self) -> Params {
        let efforts = self.base.manifest.curves.iter().flat_map(|c| &c.points).map(|p| p.effort);
        let effort = efforts.max().unwrap_or(0).min(USUAL_EFFORT_MAX);
        kinds::sized_params(self.base.kind, USUAL_K, effort.max(USUAL_EFFORT))
    }

    /// State and scratch of a query of the usual size.
    pub(crate) fn usual_query_bytes(&self) -> u64 {
        self.tables_bytes(&SearchOptions::default()) + kinds::asked_bytes(&self.usual_params())
    }

    /// Bytes of a buffer for the longest read.
    pub(crate) fn buffer_bytes_max(&self) -> usize {
        let block_bytes = self.base.block.block_bytes;
        self.read_bytes_max().div_ceil(block_bytes).next_power_of_two() * block_bytes
    }
}

/// Results, candidate queue and clusters of a usual query.
const USUAL_K: u32 = 100;
const USUAL_EFFORT: u32 = 256;
/// A usual query is no larger than this, whatever the curves of the index.
const USUAL_EFFORT_MAX: u32 = 1024;
