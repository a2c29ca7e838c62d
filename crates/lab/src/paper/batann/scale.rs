//! Work against the number of vectors, on one graph and on separate ones (figure 11's cause, and what to expect of
//! more vectors than fit here).

use serde_json::Value;
use stratann_storage::Result;

use super::super::chart::Chart;
use super::super::item::{Claim, Found, Row, range};
use super::super::sets::{Set, text};
use super::super::study::{Study, number};
use super::{BATON, RECALL, SCATTER};

/// Halvings of the set.
const HALVINGS: u32 = 4;
const SERVERS: [u64; 4] = [1, 2, 5, 10];
/// The paper's sizes, and its throughput over scatter-gather with ten servers.
const PAPER_ROWS: [(f64, &str, Option<Claim>); 2] =
    [(1e8, "100 million", range(6.21, 6.49)), (1e9, "a billion", range(2.5, 5.1))];
const READS: &str = "/per_query/reads";
const COMPARISONS: &str = "/per_query/code_comparisons";
const HAND_OVERS: &str = "/per_query/hand_overs";
const CPU: &str = "/cpu_us";

/// What one size takes on so many servers.
struct Point {
    rows: f64,
    servers: u64,
    mode: &'static str,
    row: Value,
}

/// A straight line over the logarithm of n, by least squares.
struct Line {
    at_one: f64,
    per_doubling: f64,
    /// Standard error of a value on the line.
    error: f64,
}

impl Line {
    fn fit(points: &[(f64, f64)]) -> Line {
        let count = points.len().max(1) as f64;
        let mean = |of: &dyn Fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / count;
        let (x, y) = (mean(&|p| p.0.log2()), mean(&|p| p.1));
        let varied = points.iter().map(|p| (p.0.log2() - x).powi(2)).sum::<f64>();
        let together = points.iter().map(|p| (p.0.log2() - x) * (p.1 - y)).sum::<f64>();
        let per_doubling = if varied > 0.0 { together / varied } else { 0.0 };
        let line = Line { at_one: y - per_doubling * x, per_doubling, error: 0.0 };
        let left = points.iter().map(|p| (p.1 - line.at(p.0)).powi(2)).sum::<f64>();
        Line { error: (left / (count - 2.0).max(1.0)).sqrt(), ..line }
    }

    fn at(&self, rows: f64) -> f64 {
        self.at_one + self.per_doubling * rows.log2()
    }
}

/// Fits reads, comparisons and hand-overs over n, and extends the lines to the paper's sizes.
pub(super) fn measure(study: &mut Study, set: &Set) -> Result<Found> {
    const NONE: &str = "the paper has no such fit";
    let points = points(study, set)?;
    let fit = |servers, mode, pointer| Line::fit(&over_rows(&points, servers, mode, pointer));
    let mut rows = Vec::new();
    for (what, pointer) in [("reads", READS), ("comparisons", COMPARISONS)] {
        for (servers, mode) in [(1, BATON), (10, BATON), (10, SCATTER)] {
            let line = fit(servers, mode, pointer);
            let name = format!("{what} at {}, {mode}, {servers} servers", set.rows);
            rows.push(Row::new(name, "", None, Some(line.at(set.rows as f64)), NONE));
            let name = format!("{what} for each doubling of n, {mode}, {servers} servers");
            rows.push(Row::new(
                name,
                "",
                None,
                Some(line.per_doubling),
                format!("±{:.1} about the line", line.error),
            ));
        }
    }
    for servers in SERVERS.into_iter().filter(|&servers| servers > 1) {
        let name = format!("hand-overs for each doubling of n, {servers} servers");
        rows.push(Row::new(name, "", None, Some(fit(servers, BATON, HAND_OVERS).per_doubling), NONE));
    }
    let (one, parts) = (fit(10, BATON, READS), fit(10, SCATTER, READS));
    let sizes = [(set.rows as f64, "this set", None)].into_iter().chain(PAPER_ROWS);
    let rises = one.per_doubling > 0.0 && parts.per_doubling > 0.0;
    for (n, name, claim) in sizes {
        let what = format!("reads of scatter-gather over those of one graph, 10 servers, {name}");
        let is_more = n > set.rows as f64;
        let (ratio, error) = quotient((parts.at(n), parts.error), (one.at(n), one.error));
        let row = match is_more && !rises {
            true => Row::new(
                what,
                "times",
                claim,
                None,
                "reads do not rise with n in this set: it has too few for its clusters",
            ),
            false => {
                let why =
                    format!("of the lines, ±{error:.2}; the paper's is throughput, which hand-overs lessen");
                Row::new(what, "times", claim, Some(ratio), why)
            }
        };
        rows.push(row);
    }
    rows.extend(processor_time(&points, set));
    let lines = [(1, BATON), (10, BATON), (10, SCATTER)].map(|(servers, mode)| {
        (format!("{mode}, {servers} servers"), over_rows(&points, servers, mode, READS))
    });
    let reads =
        Chart { title: format!("reads, recall {RECALL}"), x: "vectors", y: "reads", lines: lines.into() };
    let lines = [2, 5, 10]
        .map(|servers| (format!("{servers} servers"), over_rows(&points, servers, BATON, HAND_OVERS)));
    let hops = Chart { title: "hand-overs".into(), x: "vectors", y: "hand-overs", lines: lines.into() };
    Ok(Found { rows, charts: vec![reads, hops] })
}

/// The throughput of servers that are never idle: processor time of scatter-gather over that of hand-overs, and over
/// that of one graph whose hand-overs are free.
fn processor_time(points: &[Point], set: &Set) -> Vec<Row> {
    let fit = |servers, mode| Line::fit(&over_rows(points, servers, mode, CPU));
    let (alone, one, parts) = (fit(1, BATON), fit(10, BATON), fit(10, SCATTER));
    let sizes = [(set.rows as f64, "this set", None)].into_iter().chain(PAPER_ROWS);
    let of_size = |(n, name, claim)| {
        let over = |line: &Line, what: &str, claim: Option<Claim>, why: &str| {
            let (ratio, error) = quotient((parts.at(n), parts.error), (line.at(n), line.error));
            let what = format!("processor time of scatter-gather over {what}, 10 servers, {name}");
            Row::new(what, "times", claim, Some(ratio), format!("of the lines, ±{error:.2}; {why}"))
        };
        [
            over(&one, "that of one graph", claim, "the paper's is throughput"),
            over(
                &alone,
                "that of one graph with free hand-overs",
                None,
                "the difference is the cost of hand-overs",
            ),
        ]
    };
    sizes.flat_map(of_size).collect()
}

/// A quotient and its error, of two values with errors that are independent.
fn quotient((a, a_error): (f64, f64), (b, b_error): (f64, f64)) -> (f64, f64) {
    let ratio = a / b;
    (ratio, ratio * ((a_error / a).powi(2) + (b_error / b).powi(2)).sqrt())
}

fn over_rows(points: &[Point], servers: u64, mode: &str, pointer: &str) -> Vec<(f64, f64)> {
    let wanted = points.iter().filter(|point| point.servers == servers && point.mode == mode);
    wanted.filter_map(|point| Some((point.rows, number(&point.row, pointer)?))).collect()
}

/// All sizes on all numbers of servers, at the recall of the paper.
fn points(study: &mut Study, set: &Set) -> Result<Vec<Point>> {
    let mut points = Vec::new();
    let costs = costs(study, set)?;
    for halving in (0..HALVINGS).rev() {
        let rows = set.rows >> halving;
        let part = set.first(study, rows)?;
        let (index, list) = index(study, &part)?;
        let named = SERVERS.map(|n| n.to_string()).join(",");
        let args = ["simulate", &index, &part.queries, "--groundtruth", &part.groundtruth, "--costs", &costs];
        let at = ["--search-list", &list, "--servers"];
        let batons = study.run(&[&args[..], &at, &[&named]].concat())?;
        let folder = study.path(&format!("first-{rows}-parts"));
        let parts = text(&folder)?;
        let divide =
            ["cluster", "partition", &index, "-o", &parts, "--servers", "10", "--scatter-gather", "--force"];
        study.make(&divide, Some(&folder))?;
        let scatter = ["10", "--mode", SCATTER, "--match-recall", "--partitions", &parts];
        let scattered = study.run(&[&args[..], &at, &scatter].concat())?;
        for (mode, document) in [(BATON, batons), (SCATTER, scattered)] {
            for row in document["runs"].as_array().into_iter().flatten() {
                let servers = row["servers"].as_u64().unwrap_or(0);
                points.push(Point { rows: rows as f64, servers, mode, row: row.clone() });
            }
        }
    }
    Ok(points)
}

/// The index of a part, and the shortest beam that reaches the recall of the paper.
fn index(study: &mut Study, part: &Set) -> Result<(String, String)> {
    let name = format!("first-{}.idx", part.rows);
    let index = study.index(part, &name, &["--kind", "disk-graph", "--calibration-queries", "0"])?;
    let list = list(study, part, &index)?.to_string();
    Ok((index, list))
}

/// Costs of work on this machine, measured on the whole set for all sizes.
fn costs(study: &mut Study, set: &Set) -> Result<String> {
    let whole = set.first(study, set.rows)?;
    let (index, list) = index(study, &whole)?;
    let args = ["simulate", &index, &whole.queries, "--servers", "1,2", "--search-list", &list];
    let measured = study.run(&args)?;
    super::keep_costs(study, &measured, "scale-costs.json")
}

/// The shortest beam that reaches the recall of the paper on one server.
fn list(study: &mut Study, set: &Set, index: &str) -> Result<u32> {
    let wanted: f64 = RECALL.parse().unwrap_or(0.95);
    // The longest that is tried.
    const MOST: u32 = 1280;
    let recall = |study: &mut Study, list: u32| -> Result<f64> {
        let list = list.to_string();
        let args = [
            "simulate",
            index,
            &set.queries,
            "--groundtruth",
            &set.groundtruth,
            "--no-times",
            "--servers",
            "1",
        ];
        let document = study.run(&[&args[..], &["--search-list", &list]].concat())?;
        Ok(number(&document, "/runs/0/recall").unwrap_or(0.0))
    };
    let (mut low, mut high) = (10, 20);
    while high < MOST && recall(study, high)? < wanted {
        (low, high) = (high, 2 * high);
    }
    while low + 1 < high {
        let middle = low + (high - low) / 2;
        match recall(study, middle)? < wanted {
            true => low = middle,
            false => high = middle,
        }
    }
    Ok(high)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_over_doublings_is_found() {
        let points: Vec<(f64, f64)> =
            (10..14).map(|x| (f64::from(1 << x), 3.0 + 2.0 * f64::from(x))).collect();
        let line = Line::fit(&points);
        assert!((line.per_doubling - 2.0).abs() < 1e-9 && (line.at_one - 3.0).abs() < 1e-9);
        assert!(line.error < 1e-9 && (line.at(1e6) - (3.0 + 2.0 * 1e6f64.log2())).abs() < 1e-6);
        assert!(Line::fit(&[(1024.0, 1.0), (2048.0, 3.0), (4096.0, 2.0)]).error > 0.5);
        let (ratio, error) = quotient((6.0, 0.6), (2.0, 0.0));
        assert!((ratio - 3.0).abs() < 1e-9 && (error - 0.3).abs() < 1e-9);
    }
}
