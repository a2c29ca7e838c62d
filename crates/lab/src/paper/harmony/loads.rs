//! Throughput of the ways to divide, by recall and load; their times, and their techniques (figures 6 to 9).

use serde_json::Value;
use stratann_storage::Result;

use super::super::chart::Chart;
use super::super::item::{Found, Row, one, range};
use super::super::sets::Set;
use super::super::study::{Study, number, over};
use super::{Ablation, EVEN, FOUR, PLANNED, RECALL, SKEWED, SLICES, STRIPED, WHOLE, ablation};

const RECALLS: [f64; 4] = [0.8, 0.9, 0.95, 0.99];
const WAYS: [&str; 4] = [WHOLE, SLICES, STRIPED, PLANNED];
/// The ways that the paper has.
const THREE: [&str; 3] = [WHOLE, SLICES, PLANNED];
const FAISS: &str = "one server that does not prune stands for Faiss, which bench/grid.py measures for real; \
                     messages take processor time from four servers of two threads";

fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let all: Vec<f64> = values.collect();
    (!all.is_empty()).then(|| all.iter().sum::<f64>() / all.len() as f64)
}

/// Figure 6.
pub(super) fn by_recall(study: &mut Study, set: &Set) -> Result<Found> {
    let found = ablation(study, set)?;
    let speed_up = |name, recall, pointer| found.even(name, FOUR, recall, pointer);
    let unpruned = "/speed_up_unpruned";
    let all = RECALLS.iter().flat_map(|&recall| THREE.map(|name| speed_up(name, recall, unpruned)));
    let below = |name| mean(RECALLS[..3].iter().filter_map(|&recall| found.even(name, FOUR, recall, "/qps")));
    let rows = vec![
        Row::new(
            "speed-up of four servers over Faiss, mean of the three ways and of all recalls",
            "times",
            one(3.75),
            mean(all.flatten()),
            FAISS,
        ),
        Row::new(
            "speed-up of the planner's choice at the highest recall",
            "times",
            one(4.63),
            speed_up(PLANNED, RECALL, unpruned),
            FAISS,
        ),
        Row::new(
            "the same over one server that prunes",
            "times",
            None,
            speed_up(PLANNED, RECALL, "/speed_up"),
            "the paper does not compare with it",
        ),
        Row::new(
            "QPS of whole lists over slices, recalls below 0.99",
            "times",
            range(1.0, f64::MAX),
            over(below(WHOLE), below(SLICES)),
            "slices take more messages",
        ),
    ];
    let points = |name: &str| (name.to_string(), found.points("even", name, ["/recall", "/qps"]));
    let chart =
        Chart { title: "4 servers, even load".into(), x: "recall", y: "QPS", lines: WAYS.map(points).into() };
    Ok(Found { rows, charts: vec![chart] })
}

/// What the speed-up under the most skewed load loses against an even load at the same recall, percent.
fn lost(found: &Ablation, name: &str) -> Option<f64> {
    let recall = found.skewed(name, SKEWED, "/recall")?;
    let kept = over(found.skewed(name, SKEWED, "/speed_up"), found.even(name, FOUR, recall, "/speed_up"))?;
    Some(100.0 * (1.0 - kept))
}

/// Figure 7.
pub(super) fn by_skew(study: &mut Study, set: &Set) -> Result<Found> {
    const WHY: &str = "queries visit lists of several servers, which no load of real queries can prevent; the paper \
                       makes queries for each machine";
    let found = ablation(study, set)?;
    let qps = |name| found.skewed(name, SKEWED, "/qps");
    let rows = vec![
        Row::new("lost by whole lists", "%", one(56.0), lost(&found, WHOLE), WHY),
        Row::new("lost by slices", "%", one(0.0), lost(&found, SLICES), WHY),
        Row::new("lost by the planner's choice", "%", one(0.0), lost(&found, PLANNED), WHY),
        Row::new(
            "QPS of the planner's choice over slices",
            "times",
            one(1.91),
            over(qps(PLANNED), qps(SLICES)),
            "the planner deals hot lists over servers, and keeps them whole",
        ),
        Row::new(
            "QPS of the planner's choice over whole lists",
            "times",
            None,
            over(qps(PLANNED), qps(WHOLE)),
            "the figure has curves without numbers",
        ),
    ];
    let share = |load: &Value| {
        found.of("skewed", &[("name", WHOLE.into()), ("load", load.clone())], "/largest_share")
    };
    let points = |name: &str| {
        let of = found.rows("skewed", &[("name", name.into()), ("servers", FOUR.into())]);
        let point = |row: &&Value| Some((share(&row["load"])?, number(row, "/speed_up")?));
        (name.to_string(), of.iter().filter_map(point).collect())
    };
    let chart = Chart {
        title: "4 servers, skewed loads".into(),
        x: "share of one server of whole lists",
        y: "times one server",
        lines: WAYS.map(points).into(),
    };
    Ok(Found { rows, charts: vec![chart] })
}

/// Figure 8.
pub(super) fn breakdown(study: &mut Study, set: &Set) -> Result<Found> {
    const WHY: &str = "the figure has bars without numbers";
    let found = ablation(study, set)?;
    let parts = [("computing", "/computing_us"), ("messages", "/messages_us"), ("idle threads", "/idle_us")];
    let row = |name: &str, (what, pointer): (&str, &str)| {
        let ours = found.even(name, FOUR, RECALL, pointer);
        Row::new(format!("{what}, {name}, {EVEN} load"), "us", None, ours, WHY)
    };
    let mut rows: Vec<Row> = THREE.iter().flat_map(|name| parts.map(|part| row(name, part))).collect();
    let of = |name, pointer| found.even(name, FOUR, RECALL, pointer);
    rows.push(Row::new(
        "messages of slices over those of the planner's choice",
        "times",
        range(1.0, f64::MAX),
        over(of(SLICES, "/messages_us"), of(PLANNED, "/messages_us")),
        "the planner takes fewer slices",
    ));
    Ok(Found { rows, charts: Vec::new() })
}

/// Figure 9.
pub(super) fn techniques(study: &mut Study, set: &Set) -> Result<Found> {
    const BALANCE: &str = "the load crowds less into one server; see figure 7";
    const PIPELINE: &str =
        "as many queries in flight as threads: a thread waits for the messages of its query";
    const PRUNING: &str = "other sets are pruned otherwise; see table 3";
    let found = ablation(study, set)?;
    let of = |name: &str| found.of("techniques", &[("name", name.into())], "/qps");
    let gain = |name: &str| over(of("all"), of(name));
    let mut rows = vec![
        Row::new("QPS of all over no balance", "times", one(1.75), gain("no balance"), BALANCE),
        Row::new("over blocking queries", "times", one(1.25), gain("blocking"), PIPELINE),
        Row::new("over no pruning", "times", one(1.51), gain("no pruning"), PRUNING),
    ];
    let others = ["no pipeline", "no chain", "no pruning by vectors", "no pruning by codes", "no prewarming"];
    let no_number = "the paper has no number for it apart";
    let measured = others.iter().filter_map(|name| Some((name, gain(name)?)));
    rows.extend(
        measured.map(|(name, gain)| Row::new(format!("over {name}"), "times", None, Some(gain), no_number)),
    );
    Ok(Found { rows, charts: Vec::new() })
}
