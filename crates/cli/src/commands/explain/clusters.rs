//! One query of a `hybrid-ivf`, as a document and as text.

use serde::Serialize;
use stratann_core::PAGE;
use stratann_engine::Result;
use stratann_engine::index::Index;
use stratann_engine::kinds::hybrid_ivf::explain::{self as clusters, PageRead, ReadFor, Round, Trace, Visit};
use stratann_engine::search::SearchOptions;

use crate::commands::search::PerQuery;
use crate::output::{Output, count, table};

#[derive(Serialize)]
struct Document<'a> {
    query: usize,
    #[serde(flatten)]
    trace: &'a Trace,
    counters: PerQuery,
}

/// Tells the way of one query: whether it has all that was asked for, and why it ended.
pub(super) fn run(
    query: usize,
    index: &Index,
    row: &[u8],
    options: &SearchOptions,
    output: Output,
) -> Result<(bool, String)> {
    let trace = clusters::explain(index, row, options)?;
    let block_bytes = index.view().block.block_bytes;
    let document = Document { query, trace: &trace, counters: PerQuery::of(&trace.stats, 1, block_bytes) };
    output.result(&document, || text(query, &trace))?;
    Ok((trace.complete, trace.stop))
}

fn text(query: usize, trace: &Trace) -> String {
    let slack = trace.stop_slack.map_or("bounds that are certain".into(), |s| format!("slack {s:.2}"));
    let early = match (trace.early_stop, trace.patience) {
        (Some(share), Some(patience)) => {
            format!("early stop {share:.2} (fruitless clusters in a row that count {patience:.1})")
        }
        _ => "no early stop".into(),
    };
    let mut out = format!(
        "query {query}: k {}, nprobe {}, {early}, bounds {}, {slack}\n",
        trace.k, trace.nprobe, trace.bounds
    );
    out += &format!(
        "route: {} comparisons in a navigation graph of {} nodes, {} of them learnt; clusters in the order of {}\n\n",
        count(trace.nav_comparisons),
        count(u64::from(trace.nav_nodes)),
        count(u64::from(trace.nav_learnt)),
        trace.order
    );
    let rows: Vec<Vec<String>> = trace.visits.iter().map(row).collect();
    let headings = [
        "cluster", "kind", "members", "distance", "ranked", "votes", "lists", "in RAM", "scanned", "kept",
        "reads", "fruitful", "results",
    ];
    out += &table(&headings, &rows);
    if let Some(elsewhere) = trace.results_elsewhere.filter(|&n| n > 0) {
        out += &format!("{elsewhere} results more come from the navigation graph, of clusters not visited\n");
    }
    out += "\n";
    for (i, round) in trace.rounds.iter().enumerate() {
        out += &line(i + 1, round, trace.k as usize);
    }
    out += &format!("stop: {}\n\n", trace.stop);
    out += &sums(trace);
    out + &super::results(&trace.ids, &trace.distances)
}

fn row(visit: &Visit) -> Vec<String> {
    vec![
        visit.cluster.to_string(),
        visit.kind.into(),
        count(visit.members),
        format!("{:.4}", visit.centroid_distance),
        format!("{:.4}", visit.ranked_distance),
        visit.votes.to_string(),
        format!("{} of {}", visit.lists_scanned, visit.lists),
        visit.lists_in_ram.to_string(),
        count(visit.scanned),
        count(visit.kept),
        visit.reads.to_string(),
        if visit.fruitful { "yes" } else { "no" }.into(),
        visit.results.map_or("-".into(), |n| n.to_string()),
    ]
}

fn line(number: usize, round: &Round, k: usize) -> String {
    let reads: Vec<String> = round.reads.iter().map(read).collect();
    let kth = match round.kth_distance {
        Some(distance) => format!("k-th distance {distance:.4}"),
        None => format!("{} of {k} results", round.results),
    };
    format!(
        "step {number}: {}; {} codes, {} vectors compared, {} pruned, {} may follow; {kth}\n",
        reads.join(", "),
        count(round.code_comparisons),
        round.scored,
        count(round.pruned),
        round.survivors
    )
}

fn read(read: &PageRead) -> String {
    let kib = u64::from(read.pages) * PAGE as u64 / 1024;
    match read.what {
        ReadFor::Lists { cluster, lists } => {
            format!("{kib} KiB at {} for {lists} lists of cluster {cluster}", read.offset)
        }
        ReadFor::Survivors { vectors } => {
            format!("{kib} KiB at {} for {vectors} vectors that survived", read.offset)
        }
        ReadFor::Run { cluster, vectors } => {
            format!("{kib} KiB at {} for {vectors} vectors of cluster {cluster}", read.offset)
        }
        ReadFor::Edges { cluster } => {
            format!("{kib} KiB at {} for edges of cluster {cluster}", read.offset)
        }
        ReadFor::Other => format!("{kib} KiB at {}", read.offset),
    }
}

fn sums(trace: &Trace) -> String {
    let (s, kib) = (&trace.stats, |pages: u64| count(pages * PAGE as u64 / 1024));
    format!(
        "{} clusters visited, {} of them fruitful, {} lists scanned\n{} reads of codes and edges ({} KiB), {} of vectors that survived ({} KiB), {} vectors found in \
         RAM instead, in {} hops\n{} codes and {} full vectors compared, {} vectors pruned before they were read\n\n",
        s.clusters,
        s.fruitful_clusters,
        s.lists,
        trace.list_reads.reads,
        kib(trace.list_reads.pages),
        trace.survivor_reads.reads,
        kib(trace.survivor_reads.pages),
        s.pinned_hits,
        s.hops,
        count(s.code_comparisons),
        count(s.full_comparisons),
        count(s.pruned)
    )
}
