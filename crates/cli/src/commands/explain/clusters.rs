//! Trace of one `hybrid-ivf` query, as JSON and as text.

use serde::Serialize;
use stratann_core::PAGE;
use stratann_engine::explain::lists::{ListTrace, PageRead, ReadFor, Round, VisitTrace};
use stratann_storage::Result;

use crate::commands::search::PerQuery;
use crate::output::{Output, count, table};

#[derive(Serialize)]
struct Document<'a> {
    query: usize,
    #[serde(flatten)]
    trace: &'a ListTrace,
    counters: PerQuery,
}

/// Traces a query that reads lists. Returns whether it is complete, and why it ended.
pub(super) fn show(query: usize, trace: ListTrace, output: Output) -> Result<(bool, String)> {
    let document = Document { query, trace: &trace, counters: PerQuery::of(&trace.stats, 1) };
    output.result(&document, || text(query, &trace))?;
    Ok((trace.complete, trace.stop))
}

fn text(query: usize, trace: &ListTrace) -> String {
    let slack = trace.stop_slack.map_or("exact bounds".into(), |s| format!("slack {s:.2}"));
    let early = match (trace.early_stop, trace.patience) {
        (Some(share), Some(patience)) => {
            format!("early stop {share:.2} (after {patience:.1} consecutive lists without a new result)")
        }
        _ => "no early stop".into(),
    };
    let mut out = format!(
        "query {query}: k {}, nprobe {}, {early}, bounds {}, {slack}\n",
        trace.k, trace.nprobe, trace.bounds
    );
    out += &format!(
        "route: {} comparisons in a navigation graph of {} nodes, {} of them learnt; order of lists: {}\n\n",
        count(trace.nav_comparisons),
        count(u64::from(trace.nav_nodes)),
        count(u64::from(trace.nav_learned)),
        trace.order
    );
    let rows: Vec<Vec<String>> = trace.visits.iter().map(row).collect();
    let headings = [
        "list",
        "kind",
        "members",
        "distance",
        "ranked",
        "sample hits",
        "sub-lists",
        "in RAM",
        "scanned",
        "kept",
        "reads",
        "useful",
        "results",
    ];
    out += &table(&headings, &rows);
    if let Some(others) = trace.results_unvisited.filter(|&n| n > 0) {
        out += &format!(
            "{others} further results come from the navigation graph, of lists that were not visited\n"
        );
    }
    out += "\n";
    for (i, round) in trace.rounds.iter().enumerate() {
        out += &line(i + 1, round, trace.k as usize);
    }
    out += &format!("stop: {}\n\n", trace.stop);
    out += &sums(trace);
    out + &super::results(&trace.ids, &trace.distances)
}

fn row(visit: &VisitTrace) -> Vec<String> {
    vec![
        visit.cluster.to_string(),
        visit.kind.into(),
        count(visit.members),
        format!("{:.4}", visit.centroid_distance),
        format!("{:.4}", visit.ranked_distance),
        visit.sample_hits.to_string(),
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
        "step {number}: {}; {} codes, {} vectors compared, {} pruned, {} candidates left; {kth}\n",
        reads.join(", "),
        count(round.code_comparisons),
        round.scored,
        count(round.pruned),
        round.candidates
    )
}

fn read(read: &PageRead) -> String {
    let kib = u64::from(read.pages) * PAGE as u64 / 1024;
    match read.purpose {
        ReadFor::Lists { cluster, lists } => {
            format!("{kib} KiB at {} for codes of list {cluster} ({lists} lists)", read.offset)
        }
        ReadFor::Candidates { vectors } => {
            format!("{kib} KiB at {} for {vectors} candidates", read.offset)
        }
        ReadFor::Run { cluster, vectors } => {
            format!("{kib} KiB at {} for {vectors} vectors of list {cluster}", read.offset)
        }
        ReadFor::Edges { cluster } => {
            format!("{kib} KiB at {} for edges of list {cluster}", read.offset)
        }
        ReadFor::Other => format!("{kib} KiB at {}", read.offset),
    }
}

fn sums(trace: &ListTrace) -> String {
    let (s, kib) = (&trace.stats, |pages: u64| count(pages * PAGE as u64 / 1024));
    format!(
        "{} lists visited, {} of them useful, {} scans with sub-lists\n\
         {} reads of codes and edges ({} KiB), {} of candidates ({} KiB), {} vectors in RAM instead, in {} hops\n\
         {} codes and {} full vectors compared, {} vectors pruned before they were read\n\n",
        s.clusters,
        s.fruitful_clusters,
        s.lists,
        trace.list_reads.reads,
        kib(trace.list_reads.pages),
        trace.candidate_reads.reads,
        kib(trace.candidate_reads.pages),
        s.pinned_hits,
        s.hops,
        count(s.code_comparisons),
        count(s.full_comparisons),
        count(s.pruned)
    )
}
