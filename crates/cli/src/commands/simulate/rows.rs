//! Rows of a simulation's report.

use serde::Serialize;
use stratann_capacity::calibrate::Comparison;
use stratann_capacity::costs::Prices;
use stratann_capacity::passes::Pass;
use stratann_capacity::servers::{Mode, Outcome, Replayed};
use stratann_engine::search::Latency;

use crate::commands::search::PerQuery;
use crate::output::{count, table};

/// One number of servers, one mode, one load.
#[derive(Serialize)]
pub(super) struct Row {
    servers: usize,
    mode: &'static str,
    search_list: u32,
    /// Clusters visited at most, where the index has clusters.
    #[serde(skip_serializing_if = "Option::is_none")]
    nprobe: Option<u32>,
    recall: Option<f64>,
    per_query: PerQuery,
    /// Hand-overs over rounds of reads (BatANN figure 3).
    hand_over_share: f64,
    bytes_per_hand_over: f64,
    vector_bytes_per_query: f64,
    messages_per_query: f64,
    /// Codes that were compared again because hand-overs contain no distances.
    rescored_per_query: f64,
    busiest_over_mean: f64,
    queries: usize,
    pub(super) failed_queries: usize,
    /// Arrival rate, queries per second; `null` for the highest throughput.
    rate: Option<f64>,
    qps: Option<f64>,
    latency_us: Option<Latency>,
    /// Processor time of all servers per query.
    cpu_us: Option<f64>,
    bottleneck: Option<&'static str>,
    utilisation: Option<Utilisation>,
}

/// Utilisation of threads, disk and link, each on its busiest server.
#[derive(Clone, Copy, Serialize)]
struct Utilisation {
    cpu: f64,
    disk: f64,
    network: f64,
}

/// Common fields of all rows, and the rows.
#[derive(Serialize)]
pub(super) struct Document {
    pub(super) params: serde_json::Value,
    pub(super) costs: Option<Prices>,
    pub(super) calibration: Option<Comparison>,
    pub(super) runs: Vec<Row>,
}

impl Row {
    /// One row per load.
    pub(super) fn all(outcome: &Outcome, has_truth: bool) -> Vec<Row> {
        let row = || Row::new(outcome.mode, &outcome.pass, has_truth);
        match outcome.loads.as_slice() {
            [] => vec![row()],
            loads => loads.iter().map(|load| row().timed(load)).collect(),
        }
    }

    fn new(mode: Mode, pass: &Pass, has_truth: bool) -> Row {
        let each = |x: u64| x as f64 / pass.queries.max(1) as f64;
        let stats = &pass.stats;
        let mut per_query = PerQuery::of(stats, pass.queries);
        per_query.bytes_sent = each(pass.bytes);
        let waited = pass.fetched + stats.score_rounds;
        per_query.round_trips = (waited > 0).then(|| each(waited));
        let busiest = pass.reads.iter().copied().max().unwrap_or(0) as f64;
        let mean = pass.reads.iter().sum::<u64>() as f64 / pass.reads.len().max(1) as f64;
        Row {
            servers: pass.reads.len(),
            mode: mode.name(),
            search_list: pass.search_list,
            nprobe: pass.nprobe,
            recall: has_truth.then(|| pass.recall()),
            per_query,
            hand_over_share: stats.hand_overs as f64 / stats.hops.max(1) as f64,
            bytes_per_hand_over: pass.baton_bytes as f64 / stats.hand_overs.max(1) as f64,
            vector_bytes_per_query: each(pass.vector_bytes),
            messages_per_query: each(pass.messages),
            rescored_per_query: each(stats.rescored),
            busiest_over_mean: if mean > 0.0 { busiest / mean } else { 1.0 },
            queries: pass.queries,
            failed_queries: pass.failed,
            rate: None,
            qps: None,
            latency_us: None,
            cpu_us: None,
            bottleneck: None,
            utilisation: None,
        }
    }

    /// Adds the results of a replay.
    fn timed(self, load: &Replayed) -> Row {
        let (timing, cpu_us) = (&load.timing, load.cpu_us);
        let busiest = timing.busiest();
        let cut = |share: f64| (share * 1e4).round() / 1e4;
        Row {
            rate: load.rate,
            qps: Some((timing.qps * 10.0).round() / 10.0),
            latency_us: Some(Latency::of(&timing.latency_ns)),
            cpu_us: Some((cpu_us * 10.0).round() / 10.0),
            bottleneck: Some(busiest.bottleneck()),
            utilisation: Some(Utilisation {
                cpu: cut(busiest.cpu),
                disk: cut(busiest.disk),
                network: cut(busiest.network),
            }),
            ..self
        }
    }
}

type Cell = fn(&Row) -> String;

const COUNTED: [(&str, Cell); 12] = [
    ("servers", |r| r.servers.to_string()),
    ("mode", |r| r.mode.into()),
    ("effort", |r| r.nprobe.map_or(r.search_list.to_string(), |nprobe| format!("nprobe {nprobe}"))),
    ("recall", |r| r.recall.map_or("-".into(), |x| format!("{x:.4}"))),
    ("reads", |r| format!("{:.1}", r.per_query.mean(|s| s.reads))),
    ("codes compared", |r| format!("{:.0}", r.per_query.mean(|s| s.code_comparisons))),
    ("hand-overs", |r| format!("{:.2}", r.per_query.mean(|s| s.hand_overs))),
    ("round trips", |r| r.per_query.round_trips.map_or("-".into(), |x| format!("{x:.2}"))),
    ("share of hops", |r| format!("{:.1} %", 100.0 * r.hand_over_share)),
    ("messages", |r| format!("{:.1}", r.messages_per_query)),
    ("bytes sent", |r| format!("{:.0}", r.per_query.bytes_sent)),
    ("busiest", |r| format!("{:.2}", r.busiest_over_mean)),
];

const TIMED: [(&str, Cell); 6] = [
    ("rate", |r| r.rate.map_or("most".into(), |x| count(x as u64))),
    ("QPS", |r| r.qps.map_or("-".into(), |x| count(x as u64))),
    ("mean us", |r| r.latency_us.map_or("-".into(), |l| format!("{:.0}", l.mean))),
    ("p99 us", |r| r.latency_us.map_or("-".into(), |l| format!("{:.0}", l.p99))),
    ("CPU us", |r| r.cpu_us.map_or("-".into(), |us| format!("{us:.0}"))),
    ("bound by", |r| r.bottleneck.unwrap_or("-").into()),
];

pub(super) fn text(document: &Document) -> String {
    let timed = if document.costs.is_some() { TIMED.as_slice() } else { &[] };
    let columns: Vec<&(&str, Cell)> = COUNTED.iter().chain(timed).collect();
    let headings: Vec<&str> = columns.iter().map(|c| c.0).collect();
    let cells = |row: &Row| columns.iter().map(|c| c.1(row)).collect();
    let rows: Vec<Vec<String>> = document.runs.iter().map(cells).collect();
    let mut out = format!(
        "{}\nper query; messages and bytes are those between servers; \
         busiest: reads of the busiest server over the mean\n",
        table(&headings, &rows)
    );
    if let Some(prices) = &document.costs {
        out += &costs_text(prices);
    }
    if let Some(c) = &document.calibration {
        out += &format!(
            "one server on this machine: {} QPS, {:.0} us of CPU per query; simulated: {} QPS ({:+.1} %), {:.0} us\n",
            count(c.real.qps as u64),
            c.real.cpu_us,
            count(c.simulated.qps as u64),
            100.0 * c.qps_error,
            c.simulated.cpu_us,
        );
    }
    out
}

fn costs_text(p: &Prices) -> String {
    let ns = |ps: u64| ps as f64 / 1000.0;
    let bytes = p.disk_mb_per_s.map_or("long reads take no longer".into(), |mb| format!("{mb:.0} MB/s"));
    let mut out = format!(
        "times are simulated: {} threads per server; preparing a query {} ns, step {} ns, read {} ns, \
         comparison {:.1} ns (to begin), {:.1} ns (codes) and {:.1} ns (vectors), component {:.2} ns, \
         message {} ns and {:.2} ns a byte, \
         waking a thread {} ns, request {:.0} us\n",
        p.threads,
        p.prepare_ns,
        p.step_ns,
        p.read_ns,
        ns(p.route_comparison_ps.unwrap_or(p.code_comparison_ps)),
        ns(p.code_comparison_ps),
        ns(p.full_comparison_ps),
        ns(p.component_ps),
        p.message_ns,
        ns(p.message_byte_ps),
        p.wake_ns,
        p.request_us,
    );
    out += &format!(
        "disk {} reads/s, {:.0} us, {bytes}; network {:.1} us ({}), {} Gbit/s ({})\n",
        count(p.disk_iops as u64),
        p.disk_latency_us,
        p.network_latency_us,
        p.network_latency_from.name(),
        p.network_gbps,
        p.network_gbps_from.name(),
    );
    if p.servers_per_host.is_some() || p.cores_per_host.is_some() {
        let cores =
            p.cores_per_host.map_or("a core for each thread".into(), |cores| format!("{cores} cores"));
        out += &format!("hosts: {} servers and {cores} each\n", p.servers_per_host.unwrap_or(1));
    }
    out
}
