//! Memory of searches: of an open index exactly, of one that is not open yet as far as its manifest tells.

use stratann_core::query::Params;
use stratann_params::search::ListSwitches;
use stratann_storage::budget::{Account, THREAD_BYTES};

use super::scan::{self, EXACT_SCAN};
use super::{Reserve, SearchOptions};
use crate::exec::{BatchOptions, SLOT_BYTES, Width};
use crate::index::Index;
use crate::kinds::blocks;
use crate::kinds::effort::Effort;
use crate::kinds::kind;
use crate::kinds::own;
use crate::manifest::Manifest;
use crate::{curve, kinds, parallel};

/// Memory of queries in flight, their threads and their doorbells on an index that is not open yet, as far as its
/// manifest tells; rounded up where it does not. With `low_memory` fewer are in flight, and doorbells are as short as
/// they may be.
pub fn reserve(manifest: &Manifest, options: &SearchOptions, low_memory: bool) -> [(&'static str, u64); 3] {
    let planned = kinds::kind_of(manifest)
        .planned_query(manifest, low_memory)
        .unwrap_or_else(|| blocks::planned_query(manifest));
    let threads = options.threads as u64;
    let state = planned.tables_bytes
        + longest_list(manifest, options) * 24
        + options.k as u64 * 16
        + manifest.dim as u64 * 16
        + 4096;
    let queries = match manifest.facts().shares_reads {
        true => {
            let least = if low_memory { FEWEST_QUERIES } else { usize::MAX };
            let batch = options.batch_options.batch.min(least) as u64;
            let effort = if let Effort::Nprobe(nprobe, ..) = options.effort { nprobe } else { 0 };
            let params = kinds::kind_of(manifest).usual_params(options.k as u32, effort.max(USUAL_EFFORT));
            batch * batch_slot_bytes(manifest.dim, kinds::state_bytes(&params)) + threads * state
        }
        false => {
            let in_flight = options.in_flight.unwrap_or(planned.in_flight);
            let batch = kinds::kind_of(manifest).planned_reads_at_once(&options.switches);
            let usual = kinds::kind_of(manifest).usual_params(options.k as u32, USUAL_EFFORT);
            let at_once = kinds::width(&usual, options.width).at_load(in_flight).1.max(batch);
            let reads = u64::from(at_once) * planned.read_bytes as u64;
            let scan = scan::planned_bytes(manifest, options, low_memory);
            threads * in_flight as u64 * (state + reads) + scan
        }
    };
    let shortest = low_memory && !options.batch_options.is_doorbell_chosen;
    let doorbell_bytes = if shortest { 0 } else { options.batch_options.doorbell_bytes };
    let batch_options = BatchOptions { doorbell_bytes, ..options.batch_options };
    let doorbells = kinds::kind_of(manifest).planned_doorbells_bytes(manifest, &batch_options);
    [("queries in flight", queries), ("threads", threads * THREAD_BYTES), (DOORBELLS, doorbells)]
}

/// Room for searches of a usual kind on an index that is opened before it is known which will come: all cores, and
/// some thousand queries at a time. `loaders` threads load batches of their own.
pub fn usual_reserve(manifest: &Manifest, batch_options: BatchOptions, loaders: usize) -> Reserve {
    const QUERIES_BYTES: u64 = 4 << 20;
    let threads = parallel::cores();
    let options = SearchOptions { threads, batch_options, ..SearchOptions::default() };
    let bytes = |low_memory| {
        let [queries, threads, doorbells] = reserve(manifest, &options, low_memory).map(|part| part.1);
        QUERIES_BYTES + queries + threads + loaders as u64 * doorbells
    };
    Reserve { bytes: bytes(false), low_memory_bytes: bytes(true), threads }
}

/// Bytes of a query that waits in a batch, whose state has `asked_bytes`.
fn batch_slot_bytes(dim: usize, asked_bytes: u64) -> u64 {
    asked_bytes + dim as u64 * 16 + SLOT_BYTES
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
        let mut account = self.driver_account(options, queries);
        let params = self.params(options).ok();
        let plan =
            params.and_then(|params| self.plan_scan(&params, (options, queries), self.taken_bytes(&account)));
        if let Some(plan) = plan {
            account.add(EXACT_SCAN, plan.bytes);
        }
        account
    }

    /// What a search has taken, with a full cache.
    pub(super) fn taken_bytes(&self, account: &Account) -> u64 {
        account.total() + self.cache.as_ref().map_or(0, |cache| cache.unaccounted_bytes())
    }

    /// The same for a search whose queries are run by drivers.
    pub(super) fn driver_account(&self, options: &SearchOptions, queries: usize) -> Account {
        let mut account = self.account();
        let in_flight = self.in_flight(options);
        let per_query = self.query_bytes(options) + self.reads_bytes(options);
        let queries_bytes = match self.base.facts().shares_reads {
            true => self.batch_bytes(options, queries),
            false => options.threads as u64 * in_flight as u64 * per_query,
        };
        account.add("queries in flight", queries_bytes);
        account.add("threads", options.threads as u64 * THREAD_BYTES);
        if let Some(own) = self.kind.shares_loads() {
            account.add(DOORBELLS, own.doorbells_bytes(&options.batch_options));
        }
        if let Some(learning) = self.learning() {
            account.add("learning", learning.bytes(options.threads));
        }
        let answer = 12 * options.k.min(self.base.manifest.rows as usize) as u64 + 8;
        account.add("queries and answers", queries as u64 * (answer + self.base.row_bytes() as u64));
        account
    }

    /// `options` with half as many queries in flight on a thread, and half again, until they fit; unless the user chose
    /// how many. Answers do not depend on it.
    pub fn with_fitting_in_flight(
        &self,
        options: &SearchOptions,
        fits: &dyn Fn(&SearchOptions) -> bool,
    ) -> SearchOptions {
        let mut fitting = *options;
        let mut in_flight = self.in_flight(options);
        let is_free = options.in_flight.is_none() && !self.base.facts().shares_reads;
        while is_free && in_flight > 1 && !fits(&fitting) {
            in_flight /= 2;
            fitting.in_flight = Some(in_flight);
        }
        fitting
    }

    /// `options` whose doorbells take at most `left_bytes`, unless the user chose their length.
    pub fn with_doorbells_in(&self, options: &SearchOptions, left_bytes: u64) -> SearchOptions {
        let own = self.kind.shares_loads();
        let batch_options =
            own.map_or(options.batch_options, |own| own.fit_doorbells(&options.batch_options, left_bytes));
        SearchOptions { batch_options, ..*options }
    }

    /// `options` whose doorbells fit into the RAM budget beside all else, with a full cache.
    pub(super) fn with_fitting_doorbells(&self, options: &SearchOptions, queries: usize) -> SearchOptions {
        let Some(budget) = self.ram_budget else { return *options };
        let account = self.search_account(options, queries);
        let to_come = self.cache.as_ref().map_or(0, |cache| cache.unaccounted_bytes());
        let others = account.total() - account.bytes_of(DOORBELLS) + to_come;
        self.with_doorbells_in(options, budget.saturating_sub(others))
    }

    /// Bytes of the queries of a gathered batch. Tables belong to their threads.
    fn batch_bytes(&self, options: &SearchOptions, queries: usize) -> u64 {
        let batch = options.batch_options.batch.min(queries.max(1)) as u64;
        let asked = self.params(options).map_or(0, |params| kinds::state_bytes(&params));
        batch * batch_slot_bytes(self.base.manifest.dim, asked)
            + options.threads as u64 * self.tables_bytes(options)
    }

    /// Bytes of `slots` queries of the usual size on each of the threads of a server. The answers of an index that
    /// others change are kept until the end of their batch.
    pub(crate) fn served_slots_bytes(&self, threads: usize, slots: usize) -> u64 {
        let asked = kinds::state_bytes(&self.usual_params());
        let kept = if self.kind.live().is_some() { asked } else { 0 };
        let tables = self.tables_bytes(&SearchOptions::default());
        let slot = batch_slot_bytes(self.base.manifest.dim, asked) + kept;
        threads as u64 * (slots as u64 * slot + tables)
    }

    /// Bytes of the reads of one query that are under way at once; 0 where they are those of its batch, or where all
    /// that it uses is in memory.
    fn reads_bytes(&self, options: &SearchOptions) -> u64 {
        if self.base.facts().shares_reads || self.is_resident() {
            return 0;
        }
        let params = self.params(options).ok();
        let width = params.map_or(options.width, |params| kinds::width(&params, options.width));
        let by_width = u64::from(self.most_reads(options, width)) * self.read_bytes_max() as u64;
        let batch = params.map_or(0, |params| own(&params.kind).reads_at_once());
        by_width.max(u64::from(batch) * self.base.block.block_bytes as u64)
    }

    /// The most concurrent reads of a query that was asked with these options.
    pub(crate) fn width_limit(&self, options: &SearchOptions) -> u32 {
        let params = self.params(options).ok();
        let width = params.map_or(options.width, |params| kinds::width(&params, options.width));
        self.most_reads(options, width)
    }

    /// The most concurrent reads of a query of this width.
    pub(super) fn most_reads(&self, options: &SearchOptions, width: Width) -> u32 {
        width.at_load(self.in_flight(options)).1
    }

    /// State and scratch of one query: look-up tables, beams, the query itself.
    pub(crate) fn query_bytes(&self, options: &SearchOptions) -> u64 {
        let list = longest_list(&self.base.manifest, options);
        self.tables_bytes(options) + list * 24 + options.k as u64 * 16
    }

    /// The part of [`Index::query_bytes`] that depends on the index alone.
    fn tables_bytes(&self, options: &SearchOptions) -> u64 {
        let local_beam =
            u64::from(options.switches.own::<ListSwitches>().local_list.unwrap_or(0)).max(options.k as u64);
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
        kind(self.base.kind).usual_params(USUAL_K, effort.max(USUAL_EFFORT))
    }

    /// The state of a query of the usual size.
    pub(super) fn usual_state_bytes(&self) -> u64 {
        *self.usual_state_bytes.get_or_init(|| kinds::state_bytes(&self.usual_params()))
    }

    /// State and scratch of a query of the usual size.
    pub(crate) fn usual_query_bytes(&self) -> u64 {
        self.tables_bytes(&SearchOptions::default()) + self.usual_state_bytes()
    }

    /// Bytes of a buffer for the longest read.
    pub(crate) fn buffer_bytes_max(&self) -> usize {
        let block_bytes = self.base.block.block_bytes;
        self.read_bytes_max().div_ceil(block_bytes).next_power_of_two() * block_bytes
    }
}

/// The component of accounts that doorbells are.
pub const DOORBELLS: &str = "doorbells";
/// Queries that a budget has room for at least.
const FEWEST_QUERIES: usize = 64;
/// Results, candidate queue and clusters of a usual query.
const USUAL_K: u32 = 100;
const USUAL_EFFORT: u32 = 256;
/// A usual query is no larger than this, whatever the curves of the index.
const USUAL_EFFORT_MAX: u32 = 1024;
