//! What the paper finds in other systems (figures 3 to 5).

use serde_json::Value;
use stratann_storage::Result;

use super::super::chart::Chart;
use super::super::item::{Found, Row, one, range};
use super::super::sets::Set;
use super::super::study::{Study, number, over, percent};
use super::{Ablation, LOW, NEEDS_GPU, SPANN, counted_only};

/// Share of the highest throughput that counts as the highest.
const NEARLY: f64 = 0.95;

/// Rows of a way by threads, by rising number of them.
pub(super) fn threads<'a>(ablation: &'a Ablation, name: &str, simulated: bool) -> Vec<&'a Value> {
    let rows = ablation.rows("threads");
    rows.filter(|row| row["name"] == name && row["simulated"] == simulated).collect()
}

/// Points of rows over threads.
pub(super) fn line(rows: &[&Value], pointer: &str) -> Vec<(f64, f64)> {
    rows.iter().filter_map(|row| Some((number(row, "/threads")?, number(row, pointer)?))).collect()
}

/// The fewest threads with nearly the most queries a second.
pub(super) fn peak(qps: &[(f64, f64)]) -> Option<f64> {
    let most = qps.iter().map(|point| point.1).fold(0.0, f64::max);
    qps.iter().find(|point| point.1 >= NEARLY * most).map(|point| point.0)
}

/// Figure 3.
pub(super) fn spann_by_threads(study: &mut Study, set: &Set) -> Result<Found> {
    const WHY: &str = "simulated with the disk of this machine; how many threads fill it depends on both";
    const CURVE: &str = "the paper has a curve, and says that it is nearly straight";
    const STAGES: &str = "measured up to the threads of this machine";
    let ablation = Ablation::usual(study, set)?;
    let simulated = threads(&ablation, SPANN, true);
    let (qps, latency) = (line(&simulated, "/qps"), line(&simulated, "/latency_us/mean"));
    let ends =
        |points: &[(f64, f64)]| over(points.last().map(|point| point.1), points.first().map(|point| point.1));
    let measured = threads(&ablation, SPANN, false);
    let row = |what: &str, claim, ours, why: &str| Row::new(what, "times", claim, ours, why);
    let rows = vec![
        Row::new("threads at the highest QPS, simulated", "", one(4.0), peak(&qps), WHY),
        row("QPS, 64 threads over one, simulated", None, ends(&qps), WHY),
        row("mean latency, 64 threads over one, simulated", None, ends(&latency), CURVE),
        row(
            "time to choose lists, most threads over one, measured",
            one(1.0),
            ends(&line(&measured, "/stage_us/route")),
            STAGES,
        ),
        row(
            "time to read lists, most threads over one, measured",
            None,
            ends(&line(&measured, "/stage_us/access")),
            STAGES,
        ),
    ];
    let chart = |title: &str, y, lines| Chart { title: title.into(), x: "threads", y, lines };
    let charts = vec![
        chart("spann, simulated", "QPS", vec![("QPS".into(), qps)]),
        chart("spann, simulated", "us", vec![("mean latency".into(), latency)]),
    ];
    Ok(Found { rows, charts })
}

/// Figure 4.
pub(super) fn combinations(study: &mut Study, set: &Set) -> Result<Found> {
    const CODES: &str = "codes of bits are ranked in registers; PQ looks tables up in memory";
    const READS: &str = "a list of few vectors is one read, and each candidate another one";
    const BYTES: &str = "lists of the paper have more vectors";
    const BARS: &str = "the paper has bars without numbers";
    let ablation = Ablation::usual(study, set)?;
    let of = |name: &str, pointer: &str| ablation.way(name, LOW, pointer);
    let ratio = |name: &str, pointer: &str| over(of(name, pointer), of(SPANN, pointer));
    let on_gpu = counted_only("hi+pq+gpu");
    let mut rows = vec![
        Row::new("QPS, hi+pq over spann", "times", one(0.35), ratio("hi+pq", "/qps"), CODES),
        Row::new("QPS, hi+gpu over spann", "times", one(0.9), None, NEEDS_GPU),
        Row::new("mean latency, hi+pq over spann", "times", None, ratio("hi+pq", "/latency_us/mean"), BARS),
        Row::new("reads, hi+pq over spann", "times", one(1.7), ratio("hi+pq", "/reads"), READS),
        Row::new(format!("reads, {on_gpu} over spann"), "times", one(1.7), ratio(&on_gpu, "/reads"), READS),
        Row::new("bytes a read, spann", "", range(12_288.0, 49_152.0), of(SPANN, "/bytes_a_read"), BYTES),
        Row::new("bytes a read, hi+pq", "", one(4096.0), of("hi+pq", "/bytes_a_read"), ""),
    ];
    for name in ["hi+gpu", "hi+pq+gpu"] {
        let name = counted_only(name);
        let ours = of(&name, "/gpu_bytes");
        rows.push(Row::new(format!("bytes to a GPU for a query, {name}"), "bytes", None, ours, BARS));
    }
    let own = of(super::DEFAULT, "/gpu_bytes");
    rows.push(Row::new("bytes to a GPU for a query, default: ids of lists", "bytes", None, own, BARS));
    Ok(Found { rows, charts: Vec::new() })
}

/// Figure 5.
pub(super) fn candidates(study: &mut Study, set: &Set) -> Result<Found> {
    Ok(needed(&Ablation::usual(study, set)?, "the codes of the default rank better than those of the paper"))
}

/// The distribution over queries of the candidates that they need.
pub(super) fn needed(ablation: &Ablation, why: &str) -> Found {
    const CURVE: &str = "the paper has a curve without numbers";
    let needed = &ablation.0["needed"];
    let points: Vec<(f64, f64)> = serde_json::from_value(needed["complete"].clone()).unwrap_or_default();
    let share = points.iter().find(|point| point.0 == 40.0).map(|point| point.1);
    let at = |name: &str| number(needed, &format!("/{name}"));
    let mut rows = vec![Row::new(
        "queries with all of their lists' neighbours among 40 candidates",
        "%",
        one(42.0),
        percent(share),
        why,
    )];
    let part = |name: &str| {
        let what = format!("candidates that a query needs, {}", name.replace('_', " "));
        Row::new(what, "", None, at(name), CURVE)
    };
    rows.extend(["mean", "standard_deviation", "p5", "p50", "p95", "max"].map(part));
    let lines = vec![("share of queries".to_string(), points)];
    Found {
        rows,
        charts: vec![Chart { title: "complete queries".into(), x: "candidates", y: "share", lines }],
    }
}
