//! BatANN: the figures of "Passing the Baton", and those techniques apart that the paper has always on.
//!
//! Servers are simulated, with the real search and the real messages: counters are exact, times are those of the
//! model.

use serde_json::Value;
use stratann_storage::Result;
use stratann_storage::output::OutputPath;

use super::item::{Item, by, drawing, left_out};
use super::sets::{MadeSet, Set, text};
use super::study::{Study, number};

mod hops;
mod scale;
mod single;
mod techniques;
mod throughput;

/// Stands for BIGANN, MSSPACEV and DEEP.
pub(super) const SET: MadeSet =
    MadeSet { shape: "gaussian", dim: 96, clusters: 100, rows: 100_000, queries: 1000, seed: 1 };

/// The recall that the paper's numbers are for.
const RECALL: &str = "0.95";
/// Concurrent reads that the paper settles on.
const WIDTH: &str = "8";
const BATON: &str = "baton";
const SCATTER: &str = "scatter-gather";
const FEWER: &str = "a smaller set, and blocks of several vectors: fewer hops of a query";
const NO_BILLION: &str = "a billion vectors do not fit here; figures 9 to 11 show the same at this scale";

/// All figures and tables, and studies of techniques.
pub(super) static ITEMS: [Item; 22] = [
    drawing("figure 1", "scatter-gather and a global index"),
    drawing("figure 2", "the system"),
    by("figure 3", "hops, and those that leave their server, width 1, 3 to 10 servers", hops::by_servers),
    by("figure 4", "hops at widths 1 and 8, 10 servers", hops::by_width),
    by("figure 5", "comparisons and reads at widths 1 and 8, 10 servers", hops::work_by_width),
    drawing("figure 6", "the implementation"),
    by("figure 7", "one machine: queries of a thread in turn, and one after the other", single::measure),
    left_out("figure 8", "throughput at a billion vectors", NO_BILLION),
    by("figure 9", "throughput over scatter-gather at a recall, 5 and 10 servers", throughput::by_recall),
    by("figure 10", "comparisons and reads of both, 1, 5 and 10 servers", throughput::work),
    by("figure 11", "throughput by number of servers", throughput::by_servers),
    by("figure 12", "latency at a low rate, 5 and 10 servers", throughput::latency),
    by("figure 13", "latency by rate, 10 servers", throughput::by_rate),
    by("figure 14", "throughput and latency at widths 1 and 8, 10 servers", throughput::by_width),
    left_out("table 1", "sets", "the set of this study stands in the first line"),
    by("scale", "reads, comparisons and hand-overs against the number of vectors", scale::measure),
    by("cut", "hops that leave, against cuts of whole graphs", hops::limits),
    by("partitioning", "how blocks are divided: by the graph, by space", techniques::methods),
    by("carry", "what a hand-over has of its candidates, and where its results go", techniques::carries),
    by("replicas", "more copies of blocks", techniques::replicas),
    by("modes", "hand-overs against asking other servers", techniques::modes),
    by("pipelining", "queries in flight", techniques::pipelining),
];

/// The index of the whole set.
fn index(study: &mut Study, set: &Set) -> Result<String> {
    study.index(set, "whole.idx", &["--kind", "disk-graph"])
}

/// Separate indexes of so many servers.
fn parts(study: &mut Study, set: &Set, servers: &str) -> Result<String> {
    let index = index(study, set)?;
    let folder = study.path(&format!("parts-{servers}"));
    let path = text(&folder)?;
    let args =
        ["cluster", "partition", &index, "-o", &path, "--servers", servers, "--scatter-gather", "--force"];
    study.make(&args, Some(&folder))?;
    Ok(path)
}

/// Rows of a simulation.
#[derive(Default)]
struct Runs(Vec<Value>);

impl Runs {
    /// A number of the row of so many servers and of a mode.
    fn of(&self, servers: u64, mode: &str, pointer: &str) -> Option<f64> {
        let is_it = |row: &&Value| row["servers"] == servers && row["mode"] == mode;
        self.0.iter().find(is_it).and_then(|row| number(row, pointer))
    }

    /// Points of all rows of a mode.
    fn points(&self, mode: &str, x: &str, y: &str) -> Vec<(f64, f64)> {
        let rows = self.0.iter().filter(|row| row["mode"] == mode);
        rows.filter_map(|row| Some((number(row, x)?, number(row, y)?))).collect()
    }
}

/// Simulates servers at the costs of this machine, at the paper's recall unless `more` names another.
fn simulate(study: &mut Study, set: &Set, servers: &str, more: &[&str]) -> Result<Runs> {
    let index = index(study, set)?;
    let costs = costs(study, set)?;
    let effort: &[&str] = if more.contains(&"--recall") { &[] } else { &["--recall", RECALL] };
    let args = ["simulate", &index, &set.queries, "--groundtruth", &set.groundtruth, "--servers", servers];
    let document = study.run(&[&args[..], effort, &["--costs", &costs], more].concat())?;
    Ok(Runs(document["runs"].as_array().cloned().unwrap_or_default()))
}

/// Costs of work on this machine, measured once for all items.
fn costs(study: &mut Study, set: &Set) -> Result<String> {
    let index = index(study, set)?;
    let measured = study.run(&["simulate", &index, &set.queries, "--servers", "1,2", "--recall", RECALL])?;
    keep_costs(study, &measured, "costs.json")
}

/// Writes the costs that a simulation has measured. Returns their file.
fn keep_costs(study: &Study, measured: &Value, name: &str) -> Result<String> {
    let path = study.path(name);
    OutputPath::check(&path, true, &[])?.write(measured.to_string().as_bytes())?;
    text(&path)
}
