//! One query, step by step.

use stratann_core::query::Params;
use stratann_storage::{Error, Progress, Result};

use crate::index::Index;
use crate::kinds::{self, list_plan};
use crate::search::{Filter, SearchOptions};
use crate::trace::{Event, FilterTrace, RowFilter, Trace};
pub use list_plan::{Measured, MeasuredQueries, PlanReport, WayMeasured};

/// Runs `query` (one row of the index' element type) on its own, and records it.
///
/// # Errors
/// Bad options, or a query of the wrong length. A lost read ends the trace, which names it.
pub fn explain(index: &Index, query: &[u8], options: &SearchOptions) -> Result<Trace> {
    let params = explained_params(index, options)?;
    kinds::explain(&index.base, (&index.kind, index.cache.as_ref()), (query, None), params)
}

/// As [`explain`], of a query that may return the rows of a filter alone, which was made with these options.
///
/// # Errors
/// As [`explain`]; a filter of another index.
pub fn explain_filtered(
    index: &Index,
    query: &[u8],
    filter: &Filter,
    options: &SearchOptions,
) -> Result<Trace> {
    let Some(sieve) = filter.sieve().filter(|_| filter.is_of(index)) else {
        let why = "a filter of another index was given; make it of this one, which is not in memory nodes";
        return Err(Error::bad_input(why));
    };
    let Params { approach_width, width, .. } = explained_params(index, options)?;
    let params = Params { approach_width, width, ..filter.params() };
    let asked = (query, Some(&**sieve));
    let mut trace = kinds::explain(&index.base, (&index.kind, index.cache.as_ref()), asked, params)?;
    let (gave_way, seeds, vain_blocks) =
        (trace.stats.gave_way > 0, trace.stats.seeds, trace.stats.vain_blocks);
    let filter = FilterTrace { plan: filter.report(), gave_way, seeds, vain_blocks };
    // After the begin of the search, whose event comes first.
    trace.events.insert(1.min(trace.events.len()), Event::from(RowFilter { filter }));
    Ok(trace)
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
