//! Throughput and latency against scatter-gather, by recall, servers, rate and width (figures 9 to 14).

use stratann_storage::Result;

use super::super::chart::Chart;
use super::super::item::{Found, Row, one, range};
use super::super::sets::Set;
use super::super::study::{Study, over};
use super::hops::widths;
use super::{BATON, RECALL, Runs, SCATTER, WIDTH, parts, simulate};

const RECALLS: [&str; 3] = ["0.9", "0.95", "0.99"];
const READS: &str = "/per_query/reads";
const COMPARISONS: &str = "/per_query/code_comparisons";
const HAND_OVERS: &str = "reads differ more (scale): what they save, hand-overs take back in part";

/// Both modes at a recall, 5 and 10 servers.
fn both(study: &mut Study, set: &Set, recall: &str, more: &[&str]) -> Result<Runs> {
    let mut runs = Runs::default();
    let modes = format!("{BATON},{SCATTER}");
    for servers in ["5", "10"] {
        let parts = parts(study, set, servers)?;
        let args = [
            "--mode",
            &modes,
            "--match-recall",
            "--partitions",
            &parts,
            "--recall",
            recall,
            "--width",
            WIDTH,
        ];
        runs.0.extend(simulate(study, set, servers, &[&args[..], more].concat())?.0);
    }
    Ok(runs)
}

/// Figure 9.
pub(super) fn by_recall(study: &mut Study, set: &Set) -> Result<Found> {
    let mut rows = Vec::new();
    let mut all = Runs::default();
    for recall in RECALLS {
        let runs = both(study, set, recall, &[])?;
        for (servers, claim) in [(5, range(2.93, 3.98)), (10, range(6.21, 6.49))] {
            let gain = over(runs.of(servers, BATON, "/qps"), runs.of(servers, SCATTER, "/qps"));
            let claim = claim.filter(|_| recall == RECALL);
            let what = format!("QPS over scatter-gather, {servers} servers, recall {recall}");
            rows.push(Row::new(what, "times", claim, gain, HAND_OVERS));
        }
        all.0.extend(runs.0);
    }
    let charts = [5, 10].map(|servers| {
        let of = Runs(all.0.iter().filter(|row| row["servers"] == servers).cloned().collect());
        let lines = [BATON, SCATTER].map(|mode| (mode.to_string(), of.points(mode, "/recall", "/qps")));
        Chart { title: format!("{servers} servers"), x: "recall", y: "QPS", lines: lines.into() }
    });
    Ok(Found { rows, charts: charts.into() })
}

/// Figure 10.
pub(super) fn work(study: &mut Study, set: &Set) -> Result<Found> {
    const SAME: &str = "one graph, one search: what differs is the order of reads that are under way";
    const TIMES: &str = "the paper has curves without numbers, and says that it grows with the servers";
    let alone = simulate(study, set, "1", &["--width", WIDTH])?;
    let runs = both(study, set, RECALL, &[])?;
    let mut rows = Vec::new();
    for servers in [5, 10] {
        for (what, pointer) in [("reads", READS), ("comparisons", COMPARISONS)] {
            let ratio = |mode| over(runs.of(servers, mode, pointer), alone.of(1, BATON, pointer));
            let name = |mode: &str| format!("{what} over one server, {mode}, {servers} servers");
            rows.push(Row::new(name(BATON), "times", one(1.0), ratio(BATON), SAME));
            rows.push(Row::new(name(SCATTER), "times", None, ratio(SCATTER), TIMES));
        }
    }
    Ok(Found { rows, charts: Vec::new() })
}

/// Figure 11.
pub(super) fn by_servers(study: &mut Study, set: &Set) -> Result<Found> {
    const WHY: &str = "hand-overs cost processor time; the paper shows a nearly straight line";
    let counts = [1, 2, 4, 6, 8, 10];
    let named = counts.map(|n: u64| n.to_string()).join(",");
    let runs = simulate(study, set, &named, &["--width", WIDTH])?;
    let qps = |servers| runs.of(servers, BATON, "/qps");
    let row = |servers: u64| {
        let each = over(qps(servers), qps(1)).map(|times| times / servers as f64);
        Row::new(format!("QPS over {servers} times that of one server"), "times", one(1.0), each, WHY)
    };
    let rows = counts[1..].iter().map(|&servers| row(servers)).collect();
    let line = (
        "QPS over one server".to_string(),
        counts.map(|n| (n as f64, over(qps(n), qps(1)).unwrap_or(0.0))).into(),
    );
    Ok(Found {
        rows,
        charts: vec![Chart {
            title: format!("recall {RECALL}, width {WIDTH}"),
            x: "servers",
            y: "times",
            lines: vec![line],
        }],
    })
}

/// Figure 12.
pub(super) fn latency(study: &mut Study, set: &Set) -> Result<Found> {
    const FASTER: &str = "fewer hops at this scale, and a modelled disk without the paper's queues";
    let runs = both(study, set, RECALL, &["--rate", "1000"])?;
    let mean = |servers, mode| runs.of(servers, mode, "/latency_us/mean");
    let (five, ten) = (mean(5, BATON), mean(10, BATON));
    let ms = |us: Option<f64>| us.map(|us| us / 1000.0);
    let scatter = |servers| over(mean(servers, SCATTER), mean(servers, BATON));
    let rows = vec![
        Row::new("mean latency, 5 servers, 1,000 queries a second", "ms", range(0.0, 5.0), ms(five), FASTER),
        Row::new("mean latency, 10 servers", "ms", range(0.0, 5.0), ms(ten), FASTER),
        Row::new("10 servers over 5", "times", one(1.13), over(ten, five), "more hand-overs of each hop"),
        Row::new("scatter-gather over baton, 5 servers", "times", range(0.0, 1.0), scatter(5), FASTER),
        Row::new("scatter-gather over baton, 10 servers", "times", range(0.0, 1.0), scatter(10), FASTER),
    ];
    Ok(Found { rows, charts: Vec::new() })
}

/// Figure 13.
pub(super) fn by_rate(study: &mut Study, set: &Set) -> Result<Found> {
    const WHY: &str = "rates are shares of what the simulated servers can take";
    let most = both(study, set, RECALL, &[])?.of(10, BATON, "/qps").unwrap_or(1000.0);
    let rates: Vec<f64> =
        [0.05, 0.1, 0.2, 0.4, 0.6, 0.8].iter().map(|share| (share * most).round()).collect();
    let named = rates.iter().map(f64::to_string).collect::<Vec<_>>().join(",");
    let runs = both(study, set, RECALL, &["--rate", &named])?;
    let ten = Runs(runs.0.into_iter().filter(|row| row["servers"] == 10).collect());
    let line = |mode: &str, what: &str| {
        let points = ten.points(mode, "/rate", &format!("/latency_us/{what}"));
        (format!("{mode}, {what}"), points.into_iter().map(|(rate, us)| (rate, us / 1000.0)).collect())
    };
    let lines: Vec<(String, Vec<(f64, f64)>)> =
        [BATON, SCATTER].iter().flat_map(|mode| [line(mode, "mean"), line(mode, "p99")]).collect();
    let stable = |line: &[(f64, f64)]| {
        let idle = line.first().map_or(0.0, |point| point.1);
        line.iter().rev().find(|point| point.1 <= 2.0 * idle).map(|point| point.0)
    };
    let sustained = over(stable(&lines[0].1), stable(&lines[2].1));
    let rows = vec![Row::new(
        "highest rate at twice the idle latency, over scatter-gather's",
        "times",
        one(5.0),
        sustained,
        WHY,
    )];
    let chart = Chart { title: "10 servers".into(), x: "queries a second", y: "ms", lines };
    Ok(Found { rows, charts: vec![chart] })
}

/// Figure 14.
pub(super) fn by_width(study: &mut Study, set: &Set) -> Result<Found> {
    const WHY: &str = "the fewer hops, the less there is to read at a time";
    let [narrow, wide] = widths(study, set)?;
    let quiet = |study: &mut Study, width| simulate(study, set, "10", &["--width", width, "--rate", "1000"]);
    let [narrow_quiet, wide_quiet] = [quiet(study, "1")?, quiet(study, WIDTH)?];
    let (qps, mean) = ("/qps", "/latency_us/mean");
    let gain = over(wide.of(10, BATON, qps), narrow.of(10, BATON, qps));
    let latency = over(wide_quiet.of(10, BATON, mean), narrow_quiet.of(10, BATON, mean));
    let rows = vec![
        Row::new("QPS, width 8 over width 1", "times", range(1.0, f64::MAX), gain, WHY),
        Row::new(
            "mean latency at 1,000 queries a second, width 8 over width 1",
            "times",
            range(0.0, 0.5),
            latency,
            WHY,
        ),
    ];
    Ok(Found { rows, charts: Vec::new() })
}
