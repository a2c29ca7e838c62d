//! HARMONY: its figures and tables, and its techniques apart.
//!
//! One `ablation --kind grid-ivf` measures most of them. What one machine does is searched for real; servers are
//! simulated with the real search and the real messages: counters are exact, times are those of the model.

use serde_json::Value;
use stratann_storage::Result;

use super::item::{Item, by, drawing, left_out};
use super::sets::{MadeSet, Set, text};
use super::study::{Study, number};

mod division;
mod loads;
mod planner;
mod pruning;
mod sizes;

/// Stands for Sift1M and the other sets of 128 to 420 components.
pub(super) const SET: MadeSet =
    MadeSet { shape: "gaussian", dim: 128, clusters: 60, rows: 40_000, queries: 1000, seed: 1 };

const WHOLE: &str = "vector";
const SLICES: &str = "dimension";
const STRIPED: &str = "striped";
const PLANNED: &str = "harmony";
/// Servers of most figures.
const FOUR: u64 = 4;
/// The highest recall that is asked for.
const RECALL: f64 = 0.99;
/// The most skewed load.
const SKEWED: &str = "skew-0.6";
const EVEN: &str = "even";
const SAMPLE: &str = "400";

/// All figures and tables, and studies of techniques.
pub(super) static ITEMS: [Item; 21] = [
    drawing("figure 1", "whole lists and slices of components"),
    by("figure 2", "pruning by quarters of the components; computing and messages", pruning::motivation),
    drawing("figure 3", "the way of a query"),
    drawing("figure 4", "queries over servers"),
    drawing("figure 5", "the pipeline"),
    by("figure 6", "throughput by recall, even load", loads::by_recall),
    by("figure 7", "throughput under skewed loads", loads::by_skew),
    by("figure 8", "where the time goes", loads::breakdown),
    by("figure 9", "balance, pipeline and pruning left out", loads::techniques),
    by("figure 10", "building and dividing", division::build),
    by("figure 11", "by components and vectors; by servers", sizes::measure),
    left_out("table 1", "notation of the cost model", "it has no numbers"),
    left_out("table 2", "sets", "the set of this study stands in the first line"),
    by("table 3", "vectors that are dropped before each slice", pruning::by_slice),
    by("table 4", "memory of the index", division::memory),
    by("table 5", "peak memory of a server", division::peak_memory),
    by("stability", "section 3.1: how pruning varies over queries", pruning::stability),
    by("switches", "each technique of one machine left out", pruning::switches),
    by(
        "planner",
        "the planner's choice over the fastest division, by components, servers and load",
        planner::measure,
    ),
    by("balance", "the busiest server over the mean, by load", planner::balance),
    by("processes", "processor time of real servers over that of one process", division::processes),
];

/// The document of an `ablation`.
struct Ablation(Value);

impl Ablation {
    /// Rows of a part that have these values.
    fn rows(&self, part: &str, wanted: &[(&str, Value)]) -> Vec<&Value> {
        let is_wanted = |row: &&Value| wanted.iter().all(|(key, value)| row[*key] == *value);
        self.0[part].as_array().map(|rows| rows.iter().filter(is_wanted).collect()).unwrap_or_default()
    }

    /// A number of the first of them.
    fn of(&self, part: &str, wanted: &[(&str, Value)], pointer: &str) -> Option<f64> {
        self.rows(part, wanted).first().and_then(|row| number(row, pointer))
    }

    /// A number of a way to divide, under an even load.
    fn even(&self, name: &str, servers: u64, recall: f64, pointer: &str) -> Option<f64> {
        let wanted = [("name", name.into()), ("servers", servers.into()), ("recall", recall.into())];
        self.of("even", &wanted, pointer)
    }

    /// A number of a way to divide over four servers, under a skewed load.
    fn skewed(&self, name: &str, load: &str, pointer: &str) -> Option<f64> {
        let wanted = [("name", name.into()), ("servers", FOUR.into()), ("load", load.into())];
        self.of("skewed", &wanted, pointer)
    }

    /// Points of a way to divide: two numbers of each row of a part.
    fn points(&self, part: &str, name: &str, [x, y]: [&str; 2]) -> Vec<(f64, f64)> {
        let rows = self.rows(part, &[("name", name.into()), ("servers", FOUR.into())]);
        rows.into_iter().filter_map(|row| Some((number(row, x)?, number(row, y)?))).collect()
    }
}

/// Techniques and divisions on the set.
fn ablation(study: &mut Study, set: &Set) -> Result<Ablation> {
    let folder = text(&study.path("grid"))?;
    let args = ["ablation", &set.base, &set.queries, "--groundtruth", &set.groundtruth, "-o", &folder];
    let what = ["--kind", "grid-ivf", "--metric", set.metric, "--sample", SAMPLE];
    let sweep = ["--recall", "0.8,0.9,0.95,0.99", "--servers", "4,8,16", "--skew", "0.4,0.5,0.6"];
    study.run(&[&args[..], &what, &sweep].concat()).map(Ablation)
}
