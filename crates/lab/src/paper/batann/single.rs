//! One machine (figure 7): how many queries a thread has under way.

use serde_json::Value;
use stratann_storage::Result;

use super::super::chart::Chart;
use super::super::item::{Found, Row};
use super::super::sets::Set;
use super::super::study::{Study, number, over};
use super::{RECALL, index};

/// Figure 7.
pub(super) fn measure(study: &mut Study, set: &Set) -> Result<Found> {
    const WHY: &str =
        "the figure has curves without numbers; bench/compare.py runs DiskANN, and nothing here PipeANN";
    let index = index(study, set)?;
    let lists = "20,40,80,160";
    let args = ["bench", &index, &set.queries, "--groundtruth", &set.groundtruth, "--search-list", lists];
    let more = ["--in-flight", "1,8", "--admission", "one,batch,fixed"];
    let document = study.run(&[&args[..], &more].concat())?;
    let runs = document["runs"].as_array().cloned().unwrap_or_default();
    let ways = [("one", "one query at a time"), ("batch", "batches of eight"), ("fixed", "always eight")];
    let lines: Vec<_> =
        ways.iter().map(|&(admission, name)| (name.to_string(), curve(&runs, admission))).collect();
    let target = RECALL.parse().unwrap_or(0.95);
    let qps: Vec<Option<f64>> = lines.iter().map(|line| reaching(&line.1, target)).collect();
    let row = |name: &str, a: usize, b: usize| {
        Row::new(format!("QPS at {RECALL}, {name}"), "times", None, over(qps[a], qps[b]), WHY)
    };
    let rows =
        vec![row("always eight over one at a time", 2, 0), row("always eight over batches of eight", 2, 1)];
    let chart = Chart { title: "one machine".into(), x: "recall", y: "QPS", lines };
    Ok(Found { rows, charts: vec![chart] })
}

/// Recall and QPS of a policy of admission, by rising recall.
fn curve(runs: &[Value], admission: &str) -> Vec<(f64, f64)> {
    let in_flight = if admission == "one" { 1 } else { 8 };
    let is_it =
        |run: &&Value| run["params"]["admission"] == admission && run["params"]["in_flight"] == in_flight;
    let mut points: Vec<(f64, f64)> = runs
        .iter()
        .filter(is_it)
        .filter_map(|run| Some((number(run, "/recall")?, number(run, "/qps")?)))
        .collect();
    points.sort_by(|a, b| a.0.total_cmp(&b.0));
    points
}

/// QPS of the first point that reaches a recall.
fn reaching(points: &[(f64, f64)], recall: f64) -> Option<f64> {
    points.iter().find(|point| point.0 >= recall).map(|point| point.1)
}
