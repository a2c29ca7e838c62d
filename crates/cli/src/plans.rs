//! Ways to divide a `grid-ivf` over servers, as a table.

use stratann_engine::kinds::division::{Candidate, GridPlan};
use stratann_storage::budget::size;

use crate::output::{count, table};

/// The plans that were compared, what they cost, and why the first was taken.
pub(crate) fn plans(plan: &GridPlan) -> String {
    let queries = plan.queries.max(1) as f64;
    let each = |ms: f64| format!("{:.3} ms", ms / queries);
    let row = |c: &Candidate| {
        vec![
            shape(c),
            each(c.computing_ms),
            each(c.messages_ms),
            format!("{:.1}", c.messages_per_query),
            size(c.bytes_per_query as u64),
            each(plan.alpha * c.imbalance_ms),
            format!("{:.2}", c.largest_share),
            each(c.cost_ms),
        ]
    };
    let rows: Vec<Vec<String>> = plan.candidates.iter().map(row).collect();
    let head =
        ["rows x slices", "computing", "messages", "number", "bytes", "imbalance", "busiest/mean", "cost"];
    format!(
        "{}\neach figure is for one of {} queries that visit {} lists; a component takes {:.2} ns, preparing a query \
         {:.1} us, a message {:.1} us\n{}\n",
        table(&head, &rows),
        count(plan.queries as u64),
        plan.nprobe,
        plan.component_ns,
        plan.prepare_ns / 1e3,
        plan.message_ns / 1e3,
        why(plan, queries)
    )
}

/// Rows and slices of a plan.
pub(crate) fn shape(candidate: &Candidate) -> String {
    let striped = if candidate.stripes > 1 { " striped" } else { "" };
    format!("{} x {}{striped}", candidate.rows, candidate.slices)
}

/// Differences of the first plan from the second.
fn why(plan: &GridPlan, queries: f64) -> String {
    let [first, second, ..] = &plan.candidates[..] else {
        return "no other plan is possible in this mode".into();
    };
    let parts = [
        ("computing", second.computing_ms - first.computing_ms),
        ("messages", second.messages_ms - first.messages_ms),
        ("imbalance", plan.alpha * (second.imbalance_ms - first.imbalance_ms)),
    ];
    let told: Vec<String> =
        parts.iter().map(|(what, ms)| format!("{what} {:+.3} ms", ms / queries)).collect();
    format!("{} was taken: {} would add {}", shape(first), shape(second), told.join(", "))
}
