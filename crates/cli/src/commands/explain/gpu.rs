//! Trace of one `gpu-ivf` query, as JSON and as text.

use serde::Serialize;
use stratann_engine::explain::gpu::{GpuTrace, MiniBatch};
use stratann_storage::Result;

use crate::commands::search::PerQuery;
use crate::output::{Output, count, table};

#[derive(Serialize)]
struct Document<'a> {
    query: usize,
    #[serde(flatten)]
    trace: &'a GpuTrace,
    counters: PerQuery,
}

/// Traces a query whose codes are ranked by a scorer. Returns whether it is complete, and why it ended.
pub(super) fn show(query: usize, trace: GpuTrace, output: Output) -> Result<(bool, String)> {
    let document = Document { query, trace: &trace, counters: PerQuery::of(&trace.stats, 1) };
    output.result(&document, || text(query, &trace))?;
    Ok((trace.complete, "a block or a list could not be read, or is damaged; run `stratann verify`".into()))
}

/// Most lists that are printed.
const LISTS_PRINTED: usize = 8;

fn text(query: usize, trace: &GpuTrace) -> String {
    let stats = &trace.stats;
    let mut out = format!(
        "query {query}: k {}, nprobe {}, up to {} candidates, rule {}\n",
        trace.k, trace.nprobe, trace.candidates, trace.rule
    );
    let members: u64 = trace.lists.iter().map(|l| u64::from(l.own + l.replicas)).sum();
    let nearest = trace.lists.iter().take(LISTS_PRINTED);
    let nearest: Vec<String> = nearest.map(|l| format!("{} ({:.4})", l.list, l.centroid_distance)).collect();
    out += &format!(
        "route: {} lists, the nearest {}{}\n",
        trace.lists.len(),
        nearest.join(", "),
        if trace.lists.len() > LISTS_PRINTED { ", …" } else { "" }
    );
    out += &format!(
        "access: {} members, {} of them repeated; {} codes compared, centroids included; {} bytes to the scorer and \
         back\n\n",
        count(members),
        count(trace.duplicates),
        count(stats.code_comparisons),
        count(trace.gpu_bytes)
    );
    let heads = ["mini-batch", "candidates", "reads", "same read", "read before", "new results"];
    let rows: Vec<Vec<String>> = trace.batches.iter().enumerate().map(|(i, b)| batch(i, b)).collect();
    out += &table(&heads, &rows);
    out += "\n";
    for (rank, result) in (1..).zip(&trace.results) {
        let how = match (result.candidate, result.batch) {
            (Some(candidate), Some(batch)) => format!("candidate {candidate}, mini-batch {batch}"),
            (None, Some(batch)) => format!("in a block of mini-batch {batch}"),
            _ => "in a list".into(),
        };
        out += &format!("{rank:>4}. id {}, distance {:.6}: {how}\n", result.id, result.distance);
    }
    out
}

fn batch(number: usize, batch: &MiniBatch) -> Vec<String> {
    let numbers = [batch.candidates, batch.reads, batch.shared, batch.known, batch.changed];
    std::iter::once(number.to_string()).chain(numbers.map(|n| n.to_string())).collect()
}
