//! A report of a search as text.

use super::{Document, Run};
use crate::memory;
use crate::output::{count, table};

pub(super) fn text(document: &Document<'_>) -> String {
    let headings = ["run", "recall", "QPS", "mean", "p50", "p99", "CPU", "reads", "KiB read", "hops"];
    let rows: Vec<Vec<String>> = document.runs.iter().map(row).collect();
    let mut out = table(&headings, &rows);
    if let Some(run) = document.runs.last() {
        out += &format!(
            "\n{} queries, {} threads, {}; latency and CPU in microseconds, counters per query\nmemory: {}\n",
            count(run.queries as u64),
            run.threads,
            run.io_backend,
            memory::text(&run.account)
        );
    }
    out
}

fn row(run: &Run) -> Vec<String> {
    let setting = match (&run.params["recall"], &run.params["search_list"]) {
        (serde_json::Value::Null, _) if run.params.get("nprobe").is_some() => {
            format!("nprobe {}", run.params["nprobe"])
        }
        (recall, _) if run.params.get("nprobe").is_some() => {
            format!("recall {recall} (nprobe {})", run.params["nprobe"])
        }
        (serde_json::Value::Null, list) => format!("list {list}"),
        (recall, list) => format!("recall {recall} (list {list})"),
    };
    let us = |x: f64| format!("{x:.0}");
    vec![
        setting,
        run.recall.map_or("-".into(), |r| format!("{r:.4}")),
        count(run.qps as u64),
        us(run.latency_us.mean),
        us(run.latency_us.p50),
        us(run.latency_us.p99),
        us(run.cpu_us),
        format!("{:.1}", run.per_query.mean(|s| s.reads)),
        format!("{:.0}", run.per_query.mean(|s| s.bytes_read) / 1024.0),
        format!("{:.1}", run.per_query.mean(|s| s.hops)),
    ]
}
