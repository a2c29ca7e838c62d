//! One query, step by step.

use stratann_core::query::Params;
use stratann_storage::Result;

pub use crate::kinds::Explained;
pub use crate::kinds::traces::{blocks, gpu, grid, lists, remote};

use crate::exec::Width;
use crate::index::Index;
use crate::kinds;
use crate::search::SearchOptions;

/// Runs `query` (one row of the index' element type) on its own, and records it.
///
/// # Errors
/// Bad options, or a query of the wrong length. A lost read ends the trace, which names it.
pub fn explain(index: &Index, query: &[u8], options: &SearchOptions) -> Result<Explained> {
    let params = explained_params(index, options)?;
    kinds::explain(&index.base, (&index.kind, index.cache.as_ref()), query, params)
}

/// The parameters of `options`. Without a width, the narrow rounds of a busy server: the fewest reads, and the
/// easiest to follow.
pub(crate) fn explained_params(index: &Index, options: &SearchOptions) -> Result<Params> {
    let width = match options.width {
        Width::Auto => 1,
        Width::Fixed(width) => width,
    };
    Ok(Params { approach_width: width, width, ..index.params(options)? })
}
