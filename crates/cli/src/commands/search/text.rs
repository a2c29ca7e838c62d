//! A report of a search as text.

use stratann_engine::exec::scorer::GpuReport;
use stratann_engine::kinds::LearningFacts;
use stratann_storage::budget::size;

use super::points::ShownPoints;
use super::{Document, Run, Shown};
use crate::memory;
use crate::output::{count, table};

/// Results of a query that are printed.
pub(super) const RESULTS_SHOWN: usize = 5;

pub(super) fn text(document: &Document<'_>) -> String {
    let headings = ["search", "recall", "queries/s", "mean latency", "99 % within", "reads", "KiB read"];
    let rows: Vec<Vec<String>> = document.runs.iter().map(row).collect();
    let mut out = document.points.as_ref().map_or_else(|| shown(&document.shown), ShownPoints::text);
    out += &table(&headings, &rows);
    if let Some(run) = document.runs.last() {
        out += &format!(
            "\n{} queries on {} threads; reads per query, {}; CPU time per query {}\nmemory: {}\n",
            count(run.queries as u64),
            run.threads,
            run.io_backend,
            time(run.cpu_us),
            memory::text(&run.account)
        );
        if let Some(filter) = &run.filter {
            out += &filter.text();
        }
        for (index, filter) in run.filters.iter().enumerate() {
            out += &format!("index {index}, {}", filter.text());
        }
        if run.memory_node_bytes.len() > 1 {
            let nodes = (0..).zip(&run.memory_node_bytes);
            let nodes: Vec<String> =
                nodes.map(|(node, &bytes): (usize, _)| format!("node {node} {}", size(bytes))).collect();
            out += &format!("read of memory nodes: {}\n", nodes.join(", "));
        }
        if let Some(learning) = &run.learning {
            out += &learning_line(learning);
        }
        if let Some(gpu) = run.scorer.as_ref().and_then(|scorer| scorer.gpu.as_ref()) {
            out += &gpu_lines(gpu);
        }
    }
    out
}

/// A line about learning from queries.
fn learning_line(learning: &LearningFacts) -> String {
    format!(
        "learning is {}: {} epochs learnt from, {} skipped; hot spot {:.2}, foreseen {:.2}, least {}\n",
        if learning.is_on { "on" } else { "off" },
        count(learning.learned_epochs),
        count(learning.skipped_epochs),
        learning.hot_spot,
        learning.foreseen,
        learning.threshold
    )
}

/// Lines about the memory and the work of a GPU.
fn gpu_lines(gpu: &GpuReport) -> String {
    let parts: Vec<String> =
        gpu.memory_bytes.iter().map(|(what, &bytes)| format!("{what} {}", size(bytes))).collect();
    let mut out = format!(
        "GPU: {}; memory: {}; {} batches of {} jobs, {} to it and {} back\n",
        gpu.device,
        parts.join(", "),
        count(gpu.batches),
        count(gpu.jobs),
        size(gpu.bytes_to_device),
        size(gpu.bytes_from_device)
    );
    if gpu.ranked_here > 0 {
        out += &format!("{} jobs were ranked by the processor instead", count(gpu.ranked_here));
        out +=
            &gpu.lost.as_ref().map_or("\n".into(), |why| format!(": the GPU is not used any more, {why}\n"));
    }
    out
}

/// The first results, one line for each query.
fn shown(shown: &[Shown]) -> String {
    if shown.is_empty() {
        return String::new();
    }
    let mut out = String::from("nearest first, id (distance):\n");
    for Shown { query, results } in shown {
        let results: Vec<String> =
            results.iter().map(|(id, distance)| format!("{id} ({distance:.4})")).collect();
        out += &format!("  query {query}: {}\n", results.join("  "));
    }
    out + "\n"
}

/// Formats microseconds: `870 us`, `41.7 ms`, `1.20 s`.
pub(super) fn time(us: f64) -> String {
    match us {
        us if us < 1000.0 => format!("{us:.0} us"),
        us if us < 1e6 => format!("{:.1} ms", us / 1000.0),
        us => format!("{:.2} s", us / 1e6),
    }
}

fn row(run: &Run) -> Vec<String> {
    // Of a walk by codes.
    let compared = run.params.get("rerank").map_or(String::new(), |count| format!(", {count} compared"));
    let setting = match (&run.params["recall"], &run.params["search_list"]) {
        (serde_json::Value::Null, _) if run.params.get("nprobe").is_some() => {
            format!("nprobe {}", run.params["nprobe"])
        }
        (recall, _) if run.params.get("nprobe").is_some() => {
            format!("--recall {recall} (nprobe {})", run.params["nprobe"])
        }
        (serde_json::Value::Null, list) => format!("search list {list}{compared}"),
        (recall, list) => format!("--recall {recall} (search list {list}{compared})"),
    };
    vec![
        setting,
        run.recall.map_or("-".into(), |r| format!("{r:.4}")),
        count(run.qps as u64),
        format!("{} at {} in flight", time(run.latency_us.mean), run.in_flight),
        time(run.latency_us.p99),
        format!("{:.1}", run.per_query.mean(|s| s.reads)),
        format!("{:.0}", run.per_query.mean(|s| s.bytes_read) / 1024.0),
    ]
}
