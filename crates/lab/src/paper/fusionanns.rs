//! FusionANNS: the figures of "An Efficient CPU/GPU Cooperative Processing Architecture", and its techniques where
//! codes are short and lists are large.
//!
//! Settings, reads, pages and bytes are exact. Codes are ranked by this machine's processor, and what only a GPU can do
//! has no time.

use serde_json::Value;
use stratann_storage::Result;

use super::item::{Item, by, drawing, left_out};
use super::sets::{MadeSet, Set};
use super::study::{Study, number};

mod cost;
mod lists;
mod motivation;
mod regime;
mod speed;
mod techniques;

/// Stands for SIFT1B, SPACEV1B and DEEP1B. Clusters of a thousand, so that a query needs more than a few lists.
pub(super) const SET: MadeSet =
    MadeSet { shape: "gaussian", dim: 96, clusters: 30, rows: 30_000, queries: 200, seed: 1 };

/// The recalls of figure 10.
const RECALLS: &str = "0.9,0.92,0.94,0.96,0.98";
const LOW: f64 = 0.9;
const HIGH: f64 = 0.98;

const SPANN: &str = "spann";
const DEFAULT: &str = "default";
const NEEDS_GPU: &str = "needs a GPU: bytes counted only";
const SMALL: &str =
    "the paper has a billion vectors, and a GPU that ranks codes; here are few, and the processor ranks";

/// All figures and tables, and studies of techniques.
pub(super) static ITEMS: [Item; 17] = [
    drawing("figure 1", "retrieval augmented generation"),
    drawing("figure 2", "the lists of SPANN"),
    by("figure 3", "SPANN by threads", motivation::spann_by_threads),
    by("figure 4", "lists on disk with codes, and with a GPU, recall 0.9", motivation::combinations),
    by("figure 5", "candidates that queries need", motivation::candidates),
    drawing("figure 6", "the system"),
    drawing("figure 7", "the index"),
    drawing("figure 8", "the layout of vectors, and reads that are merged"),
    by("figure 9", "throughput and latency, recall 0.9", speed::at_low_recall),
    by("figure 10", "throughput and latency by recall", speed::by_recall),
    by("figure 11", "throughput by threads", speed::by_threads),
    by("figure 12", "techniques added one by one", techniques::one_by_one),
    left_out("table 1", "sets", "the set of this study stands in the first line"),
    by("table 2", "queries per second per dollar, a billion vectors", cost::by_dollar),
    by("table 3", "queries per second per GB of RAM, a billion vectors", cost::by_ram),
    by("regime", "codes of a bit a dimension: many candidates, as in the paper", regime::measure),
    by("list size", "reads against SPANN by vectors of a list", lists::measure),
];

/// An index whose recall curve nobody needs: settings are sought by the ablation.
fn index(study: &mut Study, set: &Set, name: &str, more: &[&str]) -> Result<String> {
    let options = ["--kind", "gpu-ivf", "--baselines", "--calibration-queries", "0"];
    study.index(set, name, &[&options[..], more].concat())
}

/// The index with the defaults of the build.
fn usual_index(study: &mut Study, set: &Set) -> Result<String> {
    index(study, set, "gpu.idx", &[])
}

/// What `ablation` printed.
struct Ablation(Value);

impl Ablation {
    /// Measures an index at recalls.
    fn of(study: &mut Study, set: &Set, index: &str, recalls: &str, more: &[&str]) -> Result<Ablation> {
        let args = ["ablation", index, &set.queries, "--groundtruth", &set.groundtruth, "--kind", "gpu-ivf"];
        Ok(Ablation(study.run(&[&args[..], &["--recall", recalls], more].concat())?))
    }

    /// The usual index at all recalls of the paper.
    fn usual(study: &mut Study, set: &Set) -> Result<Ablation> {
        let index = usual_index(study, set)?;
        Ablation::of(study, set, &index, RECALLS, &[])
    }

    /// Rows of a part of the document.
    fn rows(&self, part: &str) -> impl Iterator<Item = &Value> {
        self.0[part].as_array().into_iter().flatten()
    }

    /// A number of a way at a recall.
    fn way(&self, name: &str, asked: f64, pointer: &str) -> Option<f64> {
        self.in_part("ways", ("name", name), asked, pointer)
    }

    /// A number of the row of a part at a recall, whose `key` is `value`.
    fn in_part(&self, part: &str, (key, value): (&str, &str), asked: f64, pointer: &str) -> Option<f64> {
        let found = self.rows(part).find(|row| row["asked"] == asked && row[key] == value)?;
        number(found, pointer)
    }

    /// Points of a way over the recall that was asked for.
    fn line(&self, name: &str, pointer: &str) -> Vec<(f64, f64)> {
        let rows = self.rows("ways").filter(|row| row["name"] == name);
        rows.filter_map(|row| Some((number(row, "/asked")?, number(row, pointer)?))).collect()
    }
}

/// The name of a way that is not timed.
fn counted_only(name: &str) -> String {
    format!("{name} (bytes counted only)")
}
