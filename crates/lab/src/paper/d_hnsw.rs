//! d-HNSW: the figures of "Efficient Vector Search on Disaggregated Memory", and network time apart from compute.
//!
//! Counters are exact. Times are those of a model: the batches of real searches, replayed with the processor times of
//! this machine and with the prices of a link.

use serde_json::Value;
use stratann_storage::Result;
use stratann_storage::output::OutputPath;

use super::item::{Item, by, drawing};
use super::sets::{MadeSet, Set, text};
use super::study::{Study, number};

mod ablation;
mod breakdown;
mod links;
mod recall;
mod sizes;

/// Stands for SIFT1M.
pub(super) const SET: MadeSet =
    MadeSet { shape: "gaussian", dim: 128, clusters: 30, rows: 30_000, queries: 2000, seed: 1 };
/// Stands for GIST1M.
const WIDE_SET: MadeSet =
    MadeSet { shape: "gaussian", dim: 960, clusters: 10, rows: 10_000, queries: 500, seed: 1 };

/// Clusters of the index: the highest number of figure 7, so that clusters are large.
const PARTITIONS: &str = "100";
/// Clusters of a query: naive takes 3.5 round trips in the paper, one for each.
const NPROBE: &str = "4";
/// The beam of the tables.
const EF: &str = "48";

const NAIVE: &str = "naive";
const NO_DOORBELL: &str = "no-doorbell";
const OWN: &str = "remote-hnsw";
const MODEL: &str = "modelled link of 100 Gb/s; few vectors, so clusters of fewer bytes";

/// All figures and tables, and studies of techniques.
pub(super) static ITEMS: [Item; 16] = [
    drawing("figure 1", "HNSW"),
    drawing("figure 2", "the system"),
    drawing("figure 3", "the representative index"),
    drawing("figure 4", "the layout of a group"),
    drawing("figure 5", "clusters that are loaded for a batch"),
    by("figure 6", "recall and latency by efSearch", ablation::by_beam),
    by("figure 7", "70 to 100 clusters, top 1", sizes::measure),
    by("table 1", "where the time of a query goes, top 1, efSearch 48", breakdown::usual),
    by("table 2", "the same with 960 components", breakdown::wide),
    by("links", "network time apart from compute: three links, 1 to 32 threads", links::measure),
    by("short batches", "doorbells where round trips are the cost", links::short_batches),
    by("meta-hnsw", "bytes of the representative index", ablation::meta),
    by("doorbells", "ranges of a doorbell", ablation::doorbells),
    by("cache", "loads with a cache for a tenth of the clusters", ablation::caches),
    by("overflow", "room for fresh records", ablation::overflow),
    by("recall", "recall asked and reached, and its cost over that of the cheapest setting", recall::measure),
];

/// An index whose recall curve nobody needs.
fn index(study: &mut Study, set: &Set) -> Result<String> {
    index_of(study, set, "remote.idx", PARTITIONS)
}

fn index_of(study: &mut Study, set: &Set, name: &str, partitions: &str) -> Result<String> {
    let options = ["--kind", "remote-hnsw", "--partitions", partitions, "--calibration-queries", "0"];
    study.index(set, name, &options)
}

/// A link between compute nodes and memory nodes.
#[derive(Clone, Copy, Debug)]
struct Link {
    gbps: &'static str,
    /// One way.
    latency_us: &'static str,
}

/// That of the paper, with the latency of RDMA.
const RDMA: Link = Link { gbps: "100", latency_us: "2" };

/// Rows of a simulation.
struct Runs(Vec<Value>);

impl Runs {
    /// A number of a way to load clusters.
    fn of(&self, scheme: &str, pointer: &str) -> Option<f64> {
        self.0.iter().find(|row| row["scheme"] == scheme).and_then(|row| number(row, pointer))
    }
}

/// Compute nodes, and the clients that share them.
type Fleet = [&'static str; 4];

/// A compute node for each of 24 clients, as the paper has them.
const FLEET: Fleet = ["--compute-nodes", "24", "--clients", "24"];
/// One client: nobody else uses the links.
const ALONE: Fleet = ["--compute-nodes", "1", "--clients", "1"];

/// Simulates the three ways to load clusters.
fn simulate(
    study: &mut Study,
    set: &Set,
    (index, costs): (&str, &str),
    (fleet, link): (Fleet, Link),
    more: &[&str],
) -> Result<Runs> {
    let base = command(set, index);
    let costs = measured_costs(study, &[&base[..], &ALONE].concat(), costs)?;
    let ways = ["--baseline", "none,naive,no-doorbell", "--costs", &costs];
    let link = ["--network-gbps", link.gbps, "--network-latency-us", link.latency_us];
    let document = study.run(&[&base[..], &fleet, &ways, &link, more].concat())?;
    Ok(Runs(document["runs"].as_array().cloned().unwrap_or_default()))
}

/// Costs of the processor, in a file of the study: those of the run that other programs disturbed least.
fn measured_costs(study: &mut Study, base: &[&str], name: &str) -> Result<String> {
    let mut least: Option<Value> = None;
    // Both are measured by the clock, so that other programs raise them.
    let cost = |document: &Value| {
        let of = |name| number(document, &format!("/costs/{name}")).unwrap_or(f64::INFINITY);
        of("meta_comparison_ps") * of("load_byte_ps")
    };
    for seed in ["1", "2", "3", "4", "5"] {
        let document = study.run(&[base, &["--seed", seed]].concat())?;
        if least.as_ref().is_none_or(|least| cost(&document) < cost(least)) {
            least = Some(document);
        }
    }
    let path = study.path(name);
    OutputPath::check(&path, true, &[])?.write(least.unwrap_or_default().to_string().as_bytes())?;
    text(&path)
}

/// A simulation at the setting of the tables.
fn command<'a>(set: &'a Set, index: &'a str) -> [&'a str; 9] {
    let Set { queries, groundtruth, .. } = set;
    ["simulate", index, queries, "--groundtruth", groundtruth, "--nprobe", NPROBE, "--ef", EF]
}
