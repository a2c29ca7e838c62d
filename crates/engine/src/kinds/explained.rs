//! Traces of single queries, by kind.

use stratann_core::kinds::{IndexView, KindView};
use stratann_core::query::Params;
use stratann_core::sieve::Sieve;
use stratann_storage::Result;
use stratann_storage::cache::ExtentCache;

use super::{KindIndex, blocks, gpu_ivf, grid_ivf, hybrid_ivf, remote_hnsw, setting};
use crate::base::Base;
use crate::trace::Trace;

/// Runs one query on its own and records it. With a sieve it may return the rows of that alone.
///
/// # Errors
/// A query of the wrong length.
pub(crate) fn explain(
    base: &Base,
    (kind, cache): (&KindIndex, Option<&ExtentCache>),
    (query, sieve): (&[u8], Option<&Sieve>),
    params: Params,
) -> Result<Trace> {
    base.check_query(query)?;
    // A filter has no row that is deleted.
    let sieve = sieve.or(base.live.as_deref());
    let mut seen = (kind.view(base), setting(&params));
    seen.0.base.sieve = sieve;
    Ok(match kind {
        KindIndex::Flat(_) => blocks::explain::explain(base, seen, None, query, params),
        KindIndex::DiskGraph(graph) => {
            let block_of = |node| graph.block_of(node);
            // Reads show the way; what is found does not depend on them.
            let view = IndexView { kind: KindView::DiskGraph(graph.view_on_disk(base)), ..seen.0 };
            blocks::explain::explain(base, (view, seen.1), Some(&block_of), query, params)
        }
        KindIndex::HybridIvf(lists) => hybrid_ivf::explain::explain((base, sieve), lists, query, params),
        KindIndex::GridIvf(_) => grid_ivf::explain::explain(&seen.0, query, params),
        KindIndex::GpuIvf(own) => gpu_ivf::explain::explain((base, sieve), own, query, params),
        KindIndex::RemoteHnsw(own) => {
            remote_hnsw::explain::explain((base, sieve), (own, cache), query, params)?
        }
    })
}
