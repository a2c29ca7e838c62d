//! The memory plan of spreading an index, and what is skipped where memory is low.

use stratann_storage::budget::{Account, THREAD_BYTES};
use stratann_storage::{Error, Result};

use super::parts::BUFFER_BYTES;
use super::refine::Incoming;
use super::source::CHUNK_BYTES;
use super::{Method, PartitionOptions, cells, copies, divide};
use crate::files;
use crate::manifest::Manifest;

/// Sampled blocks for each cell or centre.
const SAMPLE_PER_CELL: usize = 12;
const SAMPLE_PER_CENTRE: usize = 4000;
/// Cells when memory is short.
const FEW_CELLS: usize = 1000;

/// Sizes that fit the budget.
#[derive(Clone, Debug)]
pub(super) struct SpreadPlan {
    pub(super) cells: usize,
    /// Blocks that train k-means.
    pub(super) sample: usize,
    /// Whether edges into a block are weighed besides those out of it.
    pub(super) counts_incoming: bool,
    pub(super) account: Account,
}

impl SpreadPlan {
    /// The largest plan within the budget.
    ///
    /// # Errors
    /// `ErrorKind::Budget`, naming the smallest that works.
    pub(super) fn new(manifest: &Manifest, options: &PartitionOptions) -> Result<SpreadPlan> {
        let blocks = manifest.blocks.count as usize;
        let wanted = match options.method {
            Method::Cells => cells::count(blocks),
            Method::Kmeans => options.servers,
            Method::Random => 0,
        };
        let per_centre = if options.method == Method::Kmeans { SAMPLE_PER_CENTRE } else { SAMPLE_PER_CELL };
        let plan = |cells: usize, per_centre: usize, counts_incoming: bool| {
            let sample = (cells * per_centre).min(blocks);
            let account = account(manifest, options, cells, sample, counts_incoming);
            SpreadPlan { cells, sample, counts_incoming, account }
        };
        let few = wanted.min(FEW_CELLS).max(options.servers.min(wanted));
        let choices = [
            plan(wanted, per_centre, true),
            plan(wanted, per_centre, false),
            plan(few, per_centre / 2, false),
        ];
        let budget = options.ram_budget.unwrap_or(u64::MAX);
        if let Some(plan) = choices.iter().find(|p| p.account.total() <= budget) {
            return Ok(plan.clone());
        }
        let smallest = choices.iter().min_by_key(|p| p.account.total());
        let smallest = smallest.ok_or_else(|| Error::budget("no plan"))?;
        smallest.account.check(options.ram_budget, "spread this index")?;
        Ok(smallest.clone())
    }
}

fn account(
    manifest: &Manifest,
    options: &PartitionOptions,
    cell_count: usize,
    sample: usize,
    counts_incoming: bool,
) -> Account {
    let blocks = u64::from(manifest.blocks.count);
    let (dim, servers) = (manifest.dim, options.servers);
    let mut account = Account::new();
    account.add("threads", options.threads as u64 * THREAD_BYTES);
    account.add("block map", manifest.rows / 7 + 64 + 4 * blocks);
    let codebook = manifest.file(files::CODEBOOK).map_or(0, |f| 2 * f.1.bytes);
    account.add("codebook", codebook);
    // A chunk of blocks, and for each of its edges the block that it leads to: an edge takes a byte or two in the
    // chunk.
    account.add("blocks under way", 4 * CHUNK_BYTES.max(manifest.blocks.bytes) as u64);
    // Of the first replicas, what comes before them, and what comes after, only one at a time is in memory.
    let first = match options.method {
        Method::Random => 0,
        Method::Kmeans => {
            divide::kmeans_bytes(sample, dim, servers, options.threads) + sample as u64 * 4 * servers as u64
        }
        Method::Cells => {
            let is_own = cell_count as u64 >= blocks;
            let training =
                if is_own { 0 } else { divide::kmeans_bytes(sample, dim, cell_count, options.threads) };
            2 * blocks + training.max(cells::graph_bytes(cell_count))
        }
    };
    let copied = options.replicas > 1 || options.overlap > 0.0;
    let needs_table = counts_incoming && (copied || options.method == Method::Cells);
    let table = if needs_table { Incoming::bytes(blocks, servers) } else { 0 };
    let wishes = if copied { copies::Wishes::bytes(blocks) } else { 0 };
    let writing = 8 * blocks + servers as u64 * (BUFFER_BYTES + manifest.blocks.bytes) as u64 + 8 * blocks;
    account.add("first servers of blocks", blocks);
    let stages = [("cells", first), ("edges into blocks", table + wishes), ("replicas", writing + wishes)];
    if let Some((what, bytes)) = stages.into_iter().max_by_key(|s| s.1) {
        account.add(what, bytes);
    }
    account
}
