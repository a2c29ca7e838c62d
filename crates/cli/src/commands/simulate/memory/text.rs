//! The report as tables.

use stratann_capacity::memory_nodes::rows::{Against, Row};

use super::Document;
use crate::output::{count, table};

type Cell = fn(&Row) -> String;

const COLUMNS: [(&str, Cell); 18] = [
    ("", |r| r.scheme.into()),
    ("compute nodes", |r| r.compute_nodes.to_string()),
    ("recall", |r| r.recall.map_or("-".into(), |x| format!("{x:.4}"))),
    ("round trips", |r| format!("{:.5}", r.per_query.round_trips)),
    ("bytes", |r| count(r.per_query.bytes as u64)),
    ("loads", |r| format!("{:.3}", r.per_query.loads)),
    ("cached", |r| format!("{:.1}", r.per_query.cache_hits)),
    ("QPS", |r| count(r.qps as u64)),
    ("time us", |r| short(r.time_us)),
    ("network us", |r| short(r.network_us)),
    ("sub-HNSW us", |r| short(r.sub_hnsw_us)),
    ("meta-HNSW us", |r| short(r.meta_hnsw_us)),
    ("hidden", |r| format!("{:.0} %", 100.0 * r.hidden)),
    ("p50 ms", |r| short(r.latency_us.p50 / 1000.0)),
    ("p99 ms", |r| short(r.latency_us.p99 / 1000.0)),
    ("CPU", |r| format!("{:.0} %", 100.0 * r.utilisation.cpu)),
    ("link", |r| format!("{:.0} %", 100.0 * r.utilisation.memory_links.iter().copied().fold(0.0, f64::max))),
    ("bound by", |r| r.bottleneck.clone()),
];

fn short(number: f64) -> String {
    match number {
        n if n >= 1000.0 => count(n as u64),
        n if n >= 1.0 => format!("{n:.2}"),
        n => format!("{n:.4}"),
    }
}

pub(super) fn text(document: &Document) -> String {
    let headings: Vec<&str> = COLUMNS.iter().map(|column| column.0).collect();
    let cells = |row: &Row| COLUMNS.iter().map(|column| column.1(row)).collect();
    let mut out = table(&headings, &document.runs.iter().map(cells).collect::<Vec<_>>());
    out += "\nper query; time: until a client has the answers of its batch, over their number; network and sub-HNSW\n";
    out +=
        "may be at the same time: hidden is the share of the smaller; link: the busiest of a memory node\n";
    if !document.against_naive.is_empty() {
        let row = |of: &Against| {
            let times = [of.time, of.network, of.round_trips, of.bytes].map(|times| format!("{times:.1} x"));
            [vec![of.scheme.into(), of.compute_nodes.to_string()], times.to_vec()].concat()
        };
        let rows: Vec<Vec<String>> = document.against_naive.iter().map(row).collect();
        out += "\nnaive is simulated too. It takes so many times as much as each other scheme:\n";
        out += &table(&["scheme", "compute nodes", "time", "network", "round trips", "bytes"], &rows);
        out.push('\n');
    }
    out + &document.costs.text()
}
