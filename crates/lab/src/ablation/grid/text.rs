//! The figures as tables.

use stratann_cli::output::{count, table};
use stratann_storage::budget::size;

use super::Document;
use super::one::{ALL, AtRecall};
use super::servers::Simulated;

pub(super) fn text(document: &Document<'_>) -> String {
    let mut out = format!(
        "{} vectors of {} components in {} lists\n",
        count(document.rows),
        document.dim,
        count(document.lists.into())
    );
    out += "\none server\n";
    out += &one_server(&document.one_server);
    out += &pruning(document);
    out += "\nbuilding and dividing\n";
    out += &divisions(document);
    out += "\nsimulated servers, the given queries\n";
    out += &simulated(&document.even);
    out += "\nsimulated servers, skewed loads\n";
    out += &loads(document);
    out += &simulated(&document.skewed);
    out += "\nqueries in flight and idle threads\n";
    out += &times(document);
    out += "\ntechniques under the last skewed load\n";
    out += &techniques(&document.techniques);
    out += "\nthe planner's choice beside the fastest way\n";
    out += &choices(document);
    out + "\nx 1, x unpruned: QPS over that of one server under the same load, and of one that does not prune; \
           I: the standard deviation of the servers' computing for a query, microseconds; of all: the busiest server's \
           share of it\n"
}

fn one_server(rows: &[AtRecall]) -> String {
    let all = |at: &AtRecall| rows.iter().find(|all| all.name == ALL && all.asked == at.asked);
    let row = |at: &AtRecall| {
        vec![
            at.name.to_string(),
            format!("{:.4}", at.recall),
            at.nprobe.to_string(),
            count(at.qps as u64),
            all(at).map_or("-".into(), |all| format!("{:.2} x", all.qps / at.qps)),
            count(at.components as u64),
            percent(at.skipped),
        ]
    };
    let head = ["", "recall", "nprobe", "QPS", "QPS of all", "components", "skipped"];
    table(&head, &rows.iter().map(row).collect::<Vec<_>>())
}

fn pruning(document: &Document<'_>) -> String {
    let (survival, stability) = (&document.survival, &document.stability);
    let dropped: Vec<String> = survival.dropped_before.iter().map(|share| percent(*share)).collect();
    format!(
        "\nvectors dropped before each quarter of the components, nprobe {}: {}; {} on the mean\n\
         components that a query skips: {} on the mean, standard deviation {}, 5th to 95th percentile {} to {}\n",
        survival.nprobe,
        dropped.join(", "),
        percent(survival.mean),
        percent(stability.mean),
        percent(stability.standard_deviation),
        percent(stability.p5),
        percent(stability.p95)
    )
}

fn divisions(document: &Document<'_>) -> String {
    let mut out = String::new();
    if let Some(build) = &document.build {
        out += &format!("train {:.2} s, add {:.2} s\n", build.train, build.add);
    }
    let row = |d: &super::Division| {
        vec![
            d.mode.name().to_string(),
            d.servers.to_string(),
            d.slices.to_string(),
            format!("{:.2}", d.seconds),
            document.build.as_ref().map_or("-".into(), |build| percent(d.seconds / build.sum())),
            size(d.largest_bytes),
            size(d.all_bytes),
            format!("{:.3}", d.over_vectors),
            d.peak_bytes.map_or("-".into(), size),
            d.cpu_us.map_or("-".into(), |us| format!("{us:.0}")),
        ]
    };
    let head = [
        "mode",
        "servers",
        "slices",
        "pre-assign s",
        "of the build",
        "fullest server",
        "all servers",
        "all/vectors",
        "peak memory",
        "cpu us",
    ];
    out += &table(&head, &document.divisions.iter().map(row).collect::<Vec<_>>());
    out + &format!("processor time of a query in one process: {:.0} us\n", document.one_process_cpu_us)
}

fn loads(document: &Document<'_>) -> String {
    let row = |load: &super::Skew| {
        vec![
            load.load.clone(),
            load.servers.to_string(),
            load.expected.map_or("-".into(), percent),
            load.nprobe.to_string(),
            load.recall.to_string(),
            load.distinct_queries.to_string(),
        ]
    };
    let head = ["load", "servers", "share", "nprobe", "recall", "different queries"];
    table(&head, &document.loads.iter().map(row).collect::<Vec<_>>())
}

fn simulated(rows: &[Simulated]) -> String {
    let row = |s: &Simulated| {
        vec![
            s.load.clone(),
            s.name.clone(),
            s.servers.to_string(),
            s.recall.to_string(),
            s.nprobe.to_string(),
            format!("{} x {}", s.rows, s.slices),
            count(s.qps as u64),
            format!("{:.2}", s.speed_up),
            format!("{:.2}", s.speed_up_unpruned),
            count(s.components as u64),
            format!("{:.1}", s.messages),
            size(s.bytes as u64),
            format!("{:.1}", s.imbalance_us),
            format!("{:.2}", s.largest_over_mean),
            percent(s.largest_share),
        ]
    };
    let head = [
        "load",
        "",
        "servers",
        "recall",
        "nprobe",
        "plan",
        "QPS",
        "x 1",
        "x unpruned",
        "components",
        "messages",
        "bytes",
        "I",
        "busiest/mean",
        "of all",
    ];
    table(&head, &rows.iter().map(row).collect::<Vec<_>>())
}

/// Microseconds of a query (figures 2b and 8).
fn times(document: &Document<'_>) -> String {
    let last = document.recalls.last().copied().unwrap_or(0.0);
    let us = |us: f64| format!("{us:.0}");
    let row = |s: &Simulated| {
        vec![
            s.name.clone(),
            s.servers.to_string(),
            us(s.computing_us),
            us(s.messages_us),
            us(s.idle_us),
            us(s.blocking_idle_us),
            us(s.waiting_us),
            count(s.qps as u64),
            count(s.blocking_qps as u64),
        ]
    };
    let head = [
        "",
        "servers",
        "computing us",
        "messages us",
        "idle us",
        "idle, blocking",
        "waiting alone",
        "QPS",
        "QPS, blocking",
    ];
    let rows = document.even.iter().filter(|s| s.recall == last).map(row);
    table(&head, &rows.collect::<Vec<_>>())
}

fn techniques(rows: &[Simulated]) -> String {
    let Some(all) = rows.first() else { return String::new() };
    let row = |s: &Simulated| {
        vec![
            s.name.clone(),
            format!("{} x {}", s.rows, s.slices),
            count(s.qps as u64),
            format!("{:.2} x", all.qps / s.qps.max(f64::MIN_POSITIVE)),
            count(s.components as u64),
            percent(s.largest_share),
        ]
    };
    let head = ["", "plan", "QPS", "QPS of all", "components", "of all"];
    table(&head, &rows.iter().map(row).collect::<Vec<_>>())
}

fn choices(document: &Document<'_>) -> String {
    let row = |choice: &super::Choice| {
        vec![
            choice.load.clone(),
            choice.servers.to_string(),
            choice.recall.to_string(),
            format!("{} x {}", choice.rows, choice.slices),
            choice.best_way.clone(),
            format!("{:.2}", choice.over_best),
        ]
    };
    let head = ["load", "servers", "recall", "plan", "fastest way", "QPS over it"];
    table(&head, &document.choices.iter().map(row).collect::<Vec<_>>())
}

fn percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}
