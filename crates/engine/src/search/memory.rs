//! What searches take of memory: of an open index exactly, of one that is not open yet as far as its manifest tells.

use stratann_core::PAGE;

use super::{Effort, IN_FLIGHT, IN_FLIGHT_CLUSTERS, IN_FLIGHT_TIGHT, SearchOptions};
use crate::budget::{Account, THREAD_BYTES};
use crate::index::Index;
use crate::manifest::Manifest;

/// Look-up tables of a query over posting lists, and the members that it keeps in mind.
fn probe_bytes(code_bytes: usize) -> u64 {
    let survivors = 2 * stratann_core::access::lists::SURVIVORS_MAX as u64 * 12;
    code_bytes as u64 * 512 + 4096 + survivors
}

/// Room for searches on an index that is about to be opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reserve {
    /// What they take, in bytes, with as many queries in flight as usual.
    pub bytes: u64,
    /// The same with fewer, as there are by themselves where RAM is short.
    pub tight_bytes: u64,
    /// Threads that search.
    pub threads: usize,
}

/// What queries in flight and their threads take on an index that is not open yet, as far as its manifest tells; rounded up where it does not. With `is_tight` there
/// are fewer of them, as where RAM is short.
pub fn reserve(manifest: &Manifest, options: &SearchOptions, is_tight: bool) -> [(&'static str, u64); 2] {
    let code_bytes = manifest.build.get("code_bytes").and_then(|v| v.as_u64()).unwrap_or(0);
    let (in_flight, tables, read) = match &manifest.clusters {
        // A read that begins and ends within a page takes one more.
        Some(facts) => (
            if is_tight { IN_FLIGHT_TIGHT } else { IN_FLIGHT_CLUSTERS },
            probe_bytes(facts.code_bytes) + stratann_core::query::seen_bytes(manifest.rows),
            (facts.read_max as usize / PAGE + 1).next_power_of_two() * PAGE,
        ),
        None => (IN_FLIGHT, code_bytes * 1536 + 16_384, manifest.blocks.bytes),
    };
    let in_flight = options.in_flight.unwrap_or(in_flight);
    let state = tables
        + longest_list(manifest, options) * 24
        + options.k as u64 * 16
        + manifest.dim as u64 * 16
        + 4096;
    let reads = u64::from(options.width.at_load(in_flight).1) * read as u64;
    let queries = options.threads as u64 * in_flight as u64 * (state + reads);
    [("queries in flight", queries), ("threads", options.threads as u64 * THREAD_BYTES)]
}

/// Room for searches of a usual kind on an index that is opened before it is known which will come: all cores, and some thousand queries at a time.
pub fn usual_reserve(manifest: &Manifest) -> Reserve {
    const QUERIES_BYTES: u64 = 4 << 20;
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    let options = SearchOptions { threads, ..SearchOptions::default() };
    let bytes =
        |is_tight| QUERIES_BYTES + reserve(manifest, &options, is_tight).iter().map(|r| r.1).sum::<u64>();
    Reserve { bytes: bytes(false), tight_bytes: bytes(true), threads }
}

fn longest_list(manifest: &Manifest, options: &SearchOptions) -> u64 {
    let of_curves = manifest.curves.iter().flat_map(|c| &c.points).map(|p| u64::from(p.search_list)).max();
    match options.effort {
        Effort::List(list, _) => u64::from(list),
        Effort::Recall(_) | Effort::Clusters(..) => of_curves.unwrap_or(0).max(200),
    }
}

impl Index {
    /// Memory of a search with these options, the open index included; a few queries alone take less.
    pub fn search_account(&self, options: &SearchOptions, queries: usize) -> Account {
        let mut account = self.account();
        let (params_width, in_flight) = (self.width_limit(options), self.in_flight(options));
        let read = self.clusters.as_ref().map_or(1, |c| c.pages_max()) * self.block.block_bytes;
        let per_query = self.query_bytes(options) + params_width as u64 * read as u64;
        account.add("queries in flight", options.threads as u64 * in_flight as u64 * per_query);
        account.add("threads", options.threads as u64 * THREAD_BYTES);
        if let Some(learning) = &self.learning {
            account.add("learning", learning.bytes(options.threads));
        }
        let answer = 12 * options.k.min(self.manifest.rows as usize) as u64 + 8;
        account.add("queries and answers", queries as u64 * (answer + self.block.vector_bytes as u64));
        account
    }

    pub(crate) fn width_limit(&self, options: &SearchOptions) -> u32 {
        options.width.at_load(self.in_flight(options)).1
    }

    /// State and scratch of one query: look-up tables, beams, the query itself.
    pub(crate) fn query_bytes(&self, options: &SearchOptions) -> u64 {
        let list = match options.effort {
            Effort::List(list, _) => u64::from(list),
            Effort::Recall(_) | Effort::Clusters(..) => 200,
        };
        let seen = stratann_core::query::seen_bytes(self.manifest.rows);
        let tables = self.graph.as_ref().map_or(0, |g| g.codebook.code_bytes() as u64 * 512 + 4096 + seen);
        let beam = u64::from(options.probe.local_list.unwrap_or(0)).max(options.k as u64);
        let of_clusters =
            self.clusters.as_ref().map(|c| probe_bytes(c.shape.code_bytes) + c.walk_bytes(beam) + seen);
        let tables = tables + of_clusters.unwrap_or(0);
        // Ids and ranks of the block that is expanded.
        let coded = self.block.block_bytes.checked_div(self.block.code_bytes).unwrap_or(0) as u64 * 8;
        tables + coded + list * 24 + options.k as u64 * 16 + self.manifest.dim as u64 * 16 + 4096
    }
}
