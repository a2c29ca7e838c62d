//! Trace of one `remote-hnsw` query, as JSON and as text.

use serde::Serialize;
use stratann_engine::explain::remote::{ClusterVisit, RemoteTrace};
use stratann_storage::Result;
use stratann_storage::budget::size;

use crate::commands::search::PerQuery;
use crate::output::{Output, count, table};

#[derive(Serialize)]
struct Document<'a> {
    query: usize,
    #[serde(flatten)]
    trace: &'a RemoteTrace,
    counters: PerQuery,
}

/// Traces a query that searches clusters. Returns whether it is complete, and why it ended.
pub(super) fn show(query: usize, trace: RemoteTrace, output: Output) -> Result<(bool, String)> {
    let document = Document { query, trace: &trace, counters: PerQuery::of(&trace.stats, 1) };
    output.result(&document, || text(query, &trace))?;
    Ok((trace.complete, "a cluster could not be read, or is damaged; run `stratann verify`".into()))
}

fn text(query: usize, trace: &RemoteTrace) -> String {
    let bytes = |visit: &ClusterVisit| u64::from(visit.bytes) + u64::from(visit.fresh_bytes);
    let mut out = format!("query {query}: k {}, nprobe {}, ef {}\n", trace.k, trace.nprobe, trace.ef);
    out += &format!(
        "route: {} representatives compared, {} clusters chosen\n\n",
        count(trace.meta_comparisons),
        trace.clusters.len()
    );
    let row = |visit: &ClusterVisit| {
        vec![
            visit.cluster.to_string(),
            visit.group.to_string(),
            format!("{:.4}", visit.distance),
            count(visit.members.into()),
            visit.fresh.to_string(),
            size(bytes(visit)),
            count(visit.comparisons),
            count(visit.expanded),
        ]
    };
    let heads = ["cluster", "group", "distance", "members", "fresh", "bytes", "compared", "expanded"];
    out += &table(&heads, &trace.clusters.iter().map(row).collect::<Vec<_>>());
    out += &format!("\n{} in all\n", size(trace.clusters.iter().map(bytes).sum()));
    out += &format!(
        "{} loads of {} in {} round trips of up to {} loads; {} cache hits\n",
        count(trace.loads),
        size(trace.loaded_bytes),
        count(trace.round_trips),
        trace.doorbell,
        count(trace.cache_hits)
    );
    if let Some(headers) = &trace.headers {
        let (trips, bytes) = (count(headers.round_trips), size(headers.bytes));
        out += &format!("before them the headers of all groups: {bytes} in {trips} round trips\n");
    }
    out += "\n";
    for (rank, result) in (1..).zip(&trace.results) {
        out += &format!("{rank:>4}. id {}, distance {:.6}\n", result.id, result.distance);
    }
    out
}
