//! Traces of single queries, by kind.

use stratann_core::query::Params;
use stratann_storage::Result;
use stratann_storage::cache::ExtentCache;

use super::{KindIndex, blocks, gpu_ivf, grid_ivf, hybrid_ivf, remote_hnsw, setting};
use crate::base::Base;

/// Runs one query on its own and records it.
///
/// # Errors
/// A query of the wrong length.
pub(crate) fn explain(
    base: &Base,
    (kind, cache): (&KindIndex, Option<&ExtentCache>),
    query: &[u8],
    params: Params,
) -> Result<Explained> {
    base.check_query(query)?;
    let seen = (kind.view(base), setting(&params));
    Ok(match kind {
        KindIndex::Flat => Explained::Blocks(blocks::explain::explain(base, seen, None, query, params)),
        KindIndex::DiskGraph(graph) => {
            let block_of = |node| graph.block_of(node);
            Explained::Blocks(blocks::explain::explain(base, seen, Some(&block_of), query, params))
        }
        KindIndex::HybridIvf(lists) => {
            Explained::Lists(hybrid_ivf::explain::explain(base, lists, query, params))
        }
        KindIndex::GridIvf(_) => Explained::Grid(grid_ivf::explain::explain(&kind.view(base), query, params)),
        KindIndex::GpuIvf(own) => Explained::Gpu(gpu_ivf::explain::explain(base, own, query, params)),
        KindIndex::RemoteHnsw(own) => {
            Explained::Remote(remote_hnsw::explain::explain(base, (own, cache), query, params)?)
        }
    })
}

/// The modules of traces.
pub mod traces {
    pub use super::super::blocks::explain as blocks;
    pub use super::super::gpu_ivf::explain as gpu;
    pub use super::super::grid_ivf::explain as grid;
    pub use super::super::hybrid_ivf::explain as lists;
    pub use super::super::remote_hnsw::explain as remote;
}

/// The trace of a query.
#[derive(Clone, Debug)]
pub enum Explained {
    /// Of a kind that reads blocks.
    Blocks(blocks::explain::BlockTrace),
    /// Of a kind that reads lists.
    Lists(hybrid_ivf::explain::ListTrace),
    /// Of a kind whose lists are in memory.
    Grid(grid_ivf::explain::GridTrace),
    /// Of a kind with a scorer of codes.
    Gpu(gpu_ivf::explain::GpuTrace),
    /// Of a kind whose clusters are read whole.
    Remote(remote_hnsw::explain::RemoteTrace),
}
