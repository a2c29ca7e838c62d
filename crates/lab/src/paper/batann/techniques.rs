//! Techniques apart, which the paper has always on.

use stratann_storage::Result;

use super::super::item::{Found, Row};
use super::super::sets::Set;
use super::super::study::{Study, number, over};
use super::{BATON, Runs, index, simulate};

const HAND_OVERS: &str = "/per_query/hand_overs";
const READS: &str = "/per_query/reads";
const TEN: &str = "10";

/// A row without a number of the paper.
fn row(what: String, unit: &'static str, ours: Option<f64>) -> Row {
    Row::new(what, unit, None, ours, "the paper has no such comparison")
}

/// Rows of a technique and of what stands for it when it is off: hand-overs, bytes, processor time.
fn compared(names: &[&str], runs: &[Runs], mode: &str) -> Vec<Row> {
    let what = [
        ("hand-overs", HAND_OVERS, ""),
        ("bytes sent", "/per_query/bytes_sent", "bytes"),
        ("processor time", "/cpu_us", "us"),
    ];
    let each = |(name, runs): (&&str, &Runs)| {
        what.map(|(what, pointer, unit)| row(format!("{what}, {name}"), unit, runs.of(10, mode, pointer)))
    };
    names.iter().zip(runs).flat_map(each).collect()
}

/// Blocks divided by the graph and by space.
pub(super) fn methods(study: &mut Study, set: &Set) -> Result<Found> {
    let names = ["cells", "kmeans", "random"];
    let mut runs = Vec::new();
    for name in names {
        runs.push(simulate(study, set, TEN, &["--width", "1", "--method", name])?);
    }
    Ok(Found { rows: compared(&names, &runs, BATON), charts: Vec::new() })
}

/// Candidates with and without distances; results along or to the server that was asked.
pub(super) fn carries(study: &mut Study, set: &Set) -> Result<Found> {
    let names = ["ids", "distances"];
    let mut runs = Vec::new();
    for name in names {
        runs.push(simulate(study, set, TEN, &["--carry", name])?);
    }
    let mut rows = compared(&names, &runs, BATON);
    for results in ["along", "origin"] {
        let runs = simulate(study, set, TEN, &["--results", results])?;
        let bytes = runs.of(10, BATON, "/bytes_per_hand_over");
        rows.push(row(format!("bytes of a hand-over, results {results}"), "bytes", bytes));
    }
    Ok(Found { rows, charts: Vec::new() })
}

/// One copy of each block, a tenth of them twice, two copies.
pub(super) fn replicas(study: &mut Study, set: &Set) -> Result<Found> {
    let ways: [(&str, &[&str]); 4] = [
        ("one copy", &[]),
        ("one copy, a tenth of the blocks twice", &["--overlap", "0.1"]),
        ("two copies", &["--replicas", "2"]),
        ("three copies", &["--replicas", "3"]),
    ];
    let mut runs = Vec::new();
    for (_, options) in ways {
        runs.push(simulate(study, set, TEN, &[&["--width", "1"], options].concat())?);
    }
    let names = ways.map(|way| way.0);
    let mut rows = compared(&names, &runs, BATON);
    let fewer = over(runs[2].of(10, BATON, HAND_OVERS), runs[0].of(10, BATON, HAND_OVERS));
    rows.push(row("hand-overs, two copies over one".into(), "times", fewer));
    Ok(Found { rows, charts: Vec::new() })
}

/// The state goes to the blocks, the blocks to the state, or distances to the state.
pub(super) fn modes(study: &mut Study, set: &Set) -> Result<Found> {
    let modes = [BATON, "fetch"];
    let runs = simulate(study, set, TEN, &["--mode", &modes.join(",")])?;
    let what = [
        ("messages", "/messages_per_query", ""),
        ("bytes sent", "/per_query/bytes_sent", "bytes"),
        ("processor time", "/cpu_us", "us"),
    ];
    let each = |mode: &&str| {
        what.map(|(what, pointer, unit)| row(format!("{what}, {mode}"), unit, runs.of(10, mode, pointer)))
    };
    Ok(Found { rows: modes.iter().flat_map(each).collect(), charts: Vec::new() })
}

/// One machine with one query a thread and with more.
pub(super) fn pipelining(study: &mut Study, set: &Set) -> Result<Found> {
    let index = index(study, set)?;
    let counts = [1u64, 2, 8, 32, 64];
    let named = counts.map(|n| n.to_string()).join(",");
    let args = ["bench", &index, &set.queries, "--groundtruth", &set.groundtruth, "--recall", super::RECALL];
    let document = study.run(&[&args[..], &["--in-flight", &named]].concat())?;
    let runs = document["runs"].as_array().cloned().unwrap_or_default();
    let of = |count: u64, pointer| {
        runs.iter().find(|run| run["params"]["in_flight"] == count).and_then(|run| number(run, pointer))
    };
    let mut rows: Vec<Row> = counts[1..]
        .iter()
        .map(|&count| {
            row(format!("QPS, {count} in flight over one"), "times", over(of(count, "/qps"), of(1, "/qps")))
        })
        .collect();
    let reads = over(of(64, READS), of(1, READS));
    rows.push(row("reads, 64 in flight over one".into(), "times", reads));
    Ok(Found { rows, charts: Vec::new() })
}
