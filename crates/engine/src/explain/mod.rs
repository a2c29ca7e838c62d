//! One query, step by step.

use stratann_core::query::Params;
use stratann_storage::{Progress, Result};

use crate::index::Index;
use crate::kinds::{self, list_plan};
use crate::search::SearchOptions;
use crate::trace::Trace;
pub use list_plan::{Measured, MeasuredQueries, PlanReport, WayMeasured};

/// Runs `query` (one row of the index' element type) on its own, and records it.
///
/// # Errors
/// Bad options, or a query of the wrong length. A lost read ends the trace, which names it.
pub fn explain(index: &Index, query: &[u8], options: &SearchOptions) -> Result<Trace> {
    let params = explained_params(index, options)?;
    kinds::explain(&index.base, (&index.kind, index.cache.as_ref()), query, params)
}

/// The plan of a `hybrid-ivf` that the manifest keeps.
///
/// # Errors
/// An index without clusters, or of before plans were kept.
pub fn plan(index: &Index) -> Result<&PlanReport> {
    list_plan::report(&index.base)
}

/// Runs queries one after another and compares the reads of their visits with what the plan expected of these clusters.
///
/// # Errors
/// As [`explain`] and [`plan`]; a query that fails; an interruption.
pub fn measure_plan(
    index: &Index,
    asked: &MeasuredQueries<'_>,
    options: &SearchOptions,
    progress: &dyn Progress,
) -> Result<Measured> {
    plan(index)?;
    let (base, lists) = (&index.base, index.lists()?);
    let params = explained_params(index, options)?;
    list_plan::measure(base, lists, (asked, params), progress)
}

/// The parameters of `options`. A width that follows the load is that of a busy server.
pub(crate) fn explained_params(index: &Index, options: &SearchOptions) -> Result<Params> {
    let params = index.live_params(options)?;
    let (approach_width, width) = kinds::width(&params, options.width).at_load(usize::MAX);
    Ok(Params { approach_width, width, ..params })
}
