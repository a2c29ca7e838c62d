//! OrchANN: its figures and tables, and whether local indexes of several kinds gain anything here.
//!
//! `ablation --kind hybrid-ivf` measures most of them, within a limit of memory that is a fraction of the vectors.
//! Counters are exact: reads, pages, visited lists. Times are those of this disk.

use serde_json::Value;
use stratann_storage::Result;

use super::item::{Item, by, drawing, left_out};
use super::sets::{MadeSet, Set, text};
use super::study::{Study, number};

mod cost;
mod learning;
mod mixing;
mod others;
mod routing;
mod techniques;

/// Stands for HotpotQA and TriviaQA: lists of very different sizes.
pub(super) const SET: MadeSet =
    MadeSet { shape: "skewed", dim: 128, clusters: 500, rows: 40_000, queries: 2000, seed: 1 };

/// Recalls at which ways are compared.
const RECALLS: [f64; 3] = [0.9, 0.95, 0.98];
const SAMPLE: &str = "300";
/// Queries of an epoch of learning: a tenth of all.
const EPOCH: &str = "200";
/// Memory of the program, threads and queries in flight.
const PROGRAM_MIB: u64 = 22;
const BILLION: &str = "a billion vectors do not fit here";

/// All figures and tables, and studies of techniques.
pub(super) static ITEMS: [Item; 24] = [
    by("figure 1", "sizes of inverted lists", routing::sizes),
    by("figure 2", "local indexes by the size of a list", mixing::by_size),
    left_out("figure 3", "distances to a centroid", "no command prints them; figure 4 shows what they cost"),
    by("figure 4", "routing by centroids, by samples, and by what was learned", routing::orders),
    by("figure 5", "visited lists without a true neighbour", routing::fruitless),
    by("figure 6", "vectors that codes cannot tell apart", techniques::unclear),
    by("figure 7", "reads of re-ranking by recall", techniques::rerank),
    drawing("figure 8", "the system"),
    drawing("figure 9", "lists in another order"),
    drawing("figure 10", "the triangle inequality"),
    by("figure 11", "throughput over others", others::throughput),
    by("figure 12", "latency of others over it", others::latency),
    by("figure 13", "throughput over a disk graph with reads under way", others::pipelined),
    by("figure 14", "disk accesses by recall", others::accesses),
    left_out("figure 15", "a billion vectors", BILLION),
    by("figure 16", "seconds of the build", cost::build),
    by("figure 17", "bytes on disk", cost::disk),
    by("figure 18", "each technique left out", techniques::breakdown),
    left_out("table 1", "what systems can do", "it has marks, and no numbers"),
    left_out("table 2", "sets", "the set of this study stands in the first line"),
    by("table 3", "retrieval for a language model", cost::retrieval),
    by("table 4", "memory", cost::memory),
    by("mixing", "the planned local indexes over each uniform kind, by counters", mixing::measure),
    by("learning", "learning off, on by itself and always, by traffic", learning::measure),
];

/// Memory of a search: a quarter of the vectors beside the program.
fn budget(set: &Set) -> Result<String> {
    let bytes = std::fs::metadata(&set.base).map_or(0, |file| file.len());
    Ok(format!("{}MiB", PROGRAM_MIB + (bytes / 4).div_ceil(1 << 20)))
}

/// The document of an `ablation`.
struct Ablation(Value);

/// Techniques and local indexes on the set.
fn ablation(study: &mut Study, set: &Set) -> Result<Ablation> {
    let (folder, budget) = (text(&study.path("hybrid"))?, budget(set)?);
    let args = ["ablation", &set.base, &set.queries, "--groundtruth", &set.groundtruth, "-o", &folder];
    let recalls = RECALLS.map(|recall| recall.to_string()).join(",");
    let what = ["--kind", "hybrid-ivf", "--metric", set.metric, "--sample", SAMPLE, "--epoch-queries", EPOCH];
    study.run(&[&args[..], &what, &["--recall", &recalls, "--ram-budget", &budget]].concat()).map(Ablation)
}

/// The same with a list for a thousand vectors, in hardly more memory than a search takes in any case; and the index.
fn few_lists(study: &mut Study, set: &Set) -> Result<(Ablation, String)> {
    let (folder, lists) = (study.path("few"), (set.rows / 1000).max(16).to_string());
    let index = text(&folder.join("auto.idx"))?;
    let folder = text(&folder)?;
    let args = ["ablation", &set.base, &set.queries, "--groundtruth", &set.groundtruth, "-o", &folder];
    let recalls = RECALLS.map(|recall| recall.to_string()).join(",");
    let what = ["--kind", "hybrid-ivf", "--metric", set.metric, "--sample", SAMPLE, "--epoch-queries", EPOCH];
    let tight = ["--recall", &recalls, "--clusters", &lists, "--ram-budget", "21MiB"];
    Ok((Ablation(study.run(&[&args[..], &what, &tight].concat())?), index))
}

impl Ablation {
    /// Settings of a way: recall, and a number of each.
    fn sweep(&self, part: &str, name: &str, pointer: &str) -> Sweep {
        let all = self.0[part].as_array();
        let sweep = all.and_then(|all| all.iter().find(|sweep| sweep["name"] == name));
        Sweep::of(sweep.and_then(|sweep| sweep["points"].as_array()), pointer)
    }
}

/// Recall and a number of several settings, by rising recall.
struct Sweep(Vec<(f64, f64)>);

impl Sweep {
    fn of(points: Option<&Vec<Value>>, pointer: &str) -> Sweep {
        let point = |at: &Value| Some((number(at, "/recall")?, number(at, pointer)?));
        let mut all: Vec<(f64, f64)> = points.into_iter().flatten().filter_map(point).collect();
        all.sort_by(|a, b| a.0.total_cmp(&b.0));
        Sweep(all)
    }

    /// The number at a recall, between two settings by their shares of misses; that of the least effort where all
    /// settings reach it.
    fn at(&self, recall: f64) -> Option<f64> {
        let above = self.0.iter().position(|point| point.0 >= recall)?;
        let b = self.0[above];
        let Some(a) = above.checked_sub(1).map(|below| self.0[below]) else { return Some(b.1) };
        let misses = |recall: f64| (1.0 - recall).max(1e-4).ln();
        let share = (misses(a.0) - misses(recall)) / (misses(a.0) - misses(b.0)).max(f64::MIN_POSITIVE);
        Some(a.1 + share.clamp(0.0, 1.0) * (b.1 - a.1))
    }
}

/// Searches an index within the budget, at several efforts.
fn searched(study: &mut Study, set: &Set, index: &str, more: &[&str]) -> Result<Vec<Value>> {
    let budget = budget(set)?;
    let args = ["search", index, &set.queries, "--groundtruth", &set.groundtruth, "--ram-budget", &budget];
    let document = study.run(&[&args[..], more].concat())?;
    Ok(document["runs"].as_array().cloned().unwrap_or_default())
}

/// The index that `ablation` built with the planned local indexes, or with those of a kind.
fn built(study: &mut Study, set: &Set, name: &str) -> Result<String> {
    ablation(study, set)?;
    text(&study.path("hybrid").join(format!("{name}.idx")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_interpolated_by_misses() {
        let sweep = Sweep(vec![(0.8, 100.0), (0.95, 200.0)]);
        assert!((sweep.at(0.9).unwrap() - 150.0).abs() < 1e-9);
        assert_eq!((sweep.at(0.7), sweep.at(0.99)), (Some(100.0), None));
    }
}
