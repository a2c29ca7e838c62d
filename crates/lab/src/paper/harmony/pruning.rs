//! Vectors that are dropped after some of their components (figure 2, table 3, section 3.1), and the switches of one
//! machine.

use serde_json::Value;
use stratann_storage::Result;

use super::super::chart::Chart;
use super::super::item::{Found, Row, one, range};
use super::super::sets::Set;
use super::super::study::{Study, number, over, percent};
use super::{Ablation, FOUR, RECALL, SKEWED, SLICES, WHOLE, ablation};

const AXES: &str = "components are in order of their variance, and other sets are pruned otherwise";

/// Percent of the vectors that are dropped before a quarter of the components.
fn dropped_before(found: &Ablation, quarter: usize) -> Option<f64> {
    percent(number(&found.0, &format!("/survival/dropped_before/{quarter}")))
}

/// Figure 2.
pub(super) fn motivation(study: &mut Study, set: &Set) -> Result<Found> {
    const MESSAGES: &str = "the origin is one of the servers here, and a query goes from slice to slice once";
    let found = ablation(study, set)?;
    let messages = |name| found.even(name, FOUR, RECALL, "/messages_us");
    let qps = |name| found.even(name, FOUR, RECALL, "/qps");
    let under = |load| found.skewed(WHOLE, load, "/speed_up");
    let even = found.even(WHOLE, FOUR, RECALL, "/speed_up");
    let rows = vec![
        Row::new("dropped before the second quarter", "%", one(50.0), dropped_before(&found, 1), AXES),
        Row::new("before the third", "%", range(80.0, 97.4), dropped_before(&found, 2), AXES),
        Row::new("before the fourth", "%", range(80.0, 97.4), dropped_before(&found, 3), AXES),
        Row::new(
            "processor time of messages, whole lists over slices",
            "times",
            one(0.34),
            over(messages(WHOLE), messages(SLICES)),
            MESSAGES,
        ),
        Row::new(
            "QPS of whole lists over slices, even load",
            "times",
            one(1.3),
            over(qps(WHOLE), qps(SLICES)),
            "messages cost processor time here, which the paper's network cards and 56 threads take over",
        ),
        Row::new(
            "speed-up of whole lists, most skewed load over even",
            "times",
            one(0.26),
            over(under(SKEWED), even),
            "the load has at most 60 % of its scanning on one server; a query visits lists of others, too",
        ),
    ];
    let left = found.0["survival"]["left"].as_array().cloned().unwrap_or_default();
    let point = |at: &Value| Some((at[0].as_f64()?, at[1].as_f64()?));
    let line = ("left".to_string(), left.iter().filter_map(point).collect());
    let chart = Chart { title: "pruning".into(), x: "components", y: "share left", lines: vec![line] };
    Ok(Found { rows, charts: vec![chart] })
}

/// Table 3.
pub(super) fn by_slice(study: &mut Study, set: &Set) -> Result<Found> {
    let found = ablation(study, set)?;
    let claims = [range(0.0, 0.0), range(1.54, 81.24), range(30.7, 95.23), range(81.18, 99.05)];
    let row = |(slice, claim)| {
        Row::new(
            format!("dropped before slice {}", slice + 1),
            "%",
            claim,
            dropped_before(&found, slice),
            AXES,
        )
    };
    let mut rows: Vec<Row> = claims.into_iter().enumerate().map(row).collect();
    let mean = percent(number(&found.0, "/survival/mean"));
    rows.push(Row::new("mean of the slices", "%", range(29.73, 69.14), mean, AXES));
    Ok(Found { rows, charts: Vec::new() })
}

/// Section 3.1.
pub(super) fn stability(study: &mut Study, set: &Set) -> Result<Found> {
    const WHY: &str = "the paper has no such number";
    let found = ablation(study, set)?;
    let row = |what: &str, name: &str| {
        let ours = percent(number(&found.0, &format!("/stability/{name}")));
        Row::new(what, "%", None, ours, WHY)
    };
    let rows = vec![
        row("components that a query skips, mean", "mean"),
        row("standard deviation over queries", "standard_deviation"),
        row("5th percentile", "p5"),
        row("95th percentile", "p95"),
    ];
    Ok(Found { rows, charts: Vec::new() })
}

/// One machine without one technique.
pub(super) fn switches(study: &mut Study, set: &Set) -> Result<Found> {
    const WHY: &str = "the paper has no such comparison";
    let found = ablation(study, set)?;
    let at = |row: &Value| row["asked"] == RECALL;
    let measured: Vec<&Value> = found.rows("one_server", &[]).into_iter().filter(|row| at(row)).collect();
    let Some((all, others)) = measured.split_first() else { return Ok(Found::default()) };
    let times = |row: &Value, pointer| over(number(all, pointer), number(row, pointer));
    let each = |row: &&Value| {
        let name = row["name"].as_str().unwrap_or_default().to_string();
        [
            Row::new(format!("components of all over {name}"), "times", None, times(row, "/components"), WHY),
            Row::new(format!("QPS of all over {name}"), "times", None, times(row, "/qps"), WHY),
        ]
    };
    Ok(Found { rows: others.iter().flat_map(each).collect(), charts: Vec::new() })
}
