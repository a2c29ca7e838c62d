//! What learning from queries costs and gains: off, on by itself, and always, by traffic (section 5.2).

use std::path::Path;

use serde_json::Value;
use stratann_core::hash::hash;
use stratann_engine::dataset::{Reader, Shape, write_bin};
use stratann_storage::Result;
use stratann_storage::output::OutputPath;

use super::super::item::{Found, Row};
use super::super::sets::{MadeSet, Set, made, text};
use super::super::study::{Study, number, over};

/// Lists of very different sizes; each query comes once.
const SET: MadeSet = MadeSet {
    shape: "skewed",
    dim: 64,
    clusters: 500,
    rows: 40_000,
    queries: EPOCHS * EPOCH as u32,
    seed: 1,
};
/// Epochs, and queries of one.
const EPOCHS: u32 = 10;
const EPOCH: u64 = 1000;
/// Queries of the made set that are asked again and again by Zipf's law.
const ASKED: u64 = 2000;
/// Clusters of the set that a hot region has, and queries of a spot that lasts an epoch.
const REGION: &str = "8";
const SPOT: u64 = 20;
/// RAM for codes of lists: none, so that hot members alone are learned; and for those of some 1/10 of the vectors.
const NO_LISTS: &str = "0";
const SOME_LISTS: &str = "128KiB";
/// Queries whose navigation is traced.
const TRACED: usize = 10;
const WHY: &str = "the paper has no number for it";

/// How queries come.
const TRAFFIC: [&str; 4] = ["uniform", "hot", "region", "moving"];
/// Ways to learn, and their switches.
const WAYS: [(&str, Option<&str>); 3] =
    [("off", Some("--no-learning")), ("by itself", None), ("always", Some("--always-learn"))];

/// The counters of a search.
struct Counted {
    run: Value,
    /// Nodes of the navigation graph that a query evaluates.
    nodes: Option<f64>,
}

/// Learning by traffic and way.
pub(super) fn measure(study: &mut Study, _: &Set) -> Result<Found> {
    let set = made(SET, "learning", study)?;
    let index = study.index(&set, "learning.idx", &["--kind", "hybrid-ivf", "--calibration-queries", "0"])?;
    let mut rows = Vec::new();
    for traffic in TRAFFIC {
        let set = asked(study, &set, traffic)?;
        for head in [NO_LISTS, SOME_LISTS] {
            let mut runs = Vec::new();
            for (_, switch) in WAYS {
                runs.push(searched(study, &set, &index, (head, switch))?);
            }
            rows.extend(compared(traffic, head, &runs));
        }
    }
    Ok(Found { rows, charts: Vec::new() })
}

/// The set with queries that come so.
fn asked(study: &mut Study, set: &Set, traffic: &str) -> Result<Set> {
    let queries = match traffic {
        "uniform" => return Ok(set.clone()),
        "region" => {
            // The same centres, of which the first alone are drawn from.
            let folder = text(&study.path("learning-region"))?;
            let queries = format!("{folder}/query.fbin");
            let numbers = [SET.dim, 1, SET.queries].map(|n| n.to_string());
            let args = ["bench", "generate", "skewed", "-o", &folder, "--force", "--clusters", REGION];
            let sizes = ["--dim", &numbers[0], "--rows", &numbers[1], "--queries", &numbers[2]];
            study.make(&[&args[..], &sizes].concat(), Some(Path::new(&queries)))?;
            queries
        }
        _ => drawn(study, set, traffic)?,
    };
    let truth = text(&study.path(&format!("learning-{traffic}.ibin")))?;
    let args = ["groundtruth", &set.base, &queries, "-k", "10", "--metric", set.metric, "-o", &truth];
    study.make(&[&args[..], &["--force"]].concat(), Some(Path::new(&truth)))?;
    Ok(Set { queries, groundtruth: truth, ..set.clone() })
}

/// A file of the set's queries, asked again as they come in this traffic.
fn drawn(study: &Study, set: &Set, traffic: &str) -> Result<String> {
    let reader = Reader::open(Path::new(&set.queries))?;
    let shape: Shape = reader.shape();
    let path = OutputPath::check(&study.path(&format!("learning-{traffic}.fbin")), true, &[])?;
    let row = |at: u64| {
        let mut bytes = Vec::new();
        let number = hash(SET.seed, 7, at);
        let row = if traffic == "moving" { at / EPOCH * SPOT + number % SPOT } else { by_rank(number) };
        reader.read_rows(row % shape.rows, 1, &mut bytes)?;
        Ok(bytes)
    };
    write_bin(&path, shape, (0..shape.rows).map(row))?;
    text(path.path())
}

/// A row by Zipf's law: ranks from a power of two to the next together have the same share.
fn by_rank(number: u64) -> u64 {
    let octave = 1 << (number % u64::from(ASKED.ilog2()));
    octave + (number >> 16) % octave
}

/// Counters of all queries of a way, from an index that has learned nothing, with the nodes that routing evaluates.
fn searched(
    study: &mut Study,
    set: &Set,
    index: &str,
    (head, switch): (&str, Option<&str>),
) -> Result<Counted> {
    let _ = std::fs::remove_file(Path::new(index).join("learnt.bin"));
    let epoch = EPOCH.to_string();
    let args = ["search", index, &set.queries, "--groundtruth", &set.groundtruth, "--epoch-queries", &epoch];
    let effort = ["--nprobe", "16", "--early-stop", "0.3", "--stop-slack", "1.9", "--width", "1"];
    let memory = ["--head-budget", head];
    let switches: Vec<&str> = switch.into_iter().collect();
    let document = study.run(&[&args[..], &effort, &memory, &switches].concat())?;
    let run = document.pointer("/runs/0").cloned().unwrap_or_default();
    let mut nodes = Vec::new();
    for query in 0..TRACED {
        let query = (query * SET.queries as usize / TRACED).to_string();
        let args = ["explain", index, &set.queries, "--query", &query];
        let traced = study.run(&[&args[..], &effort[..6], &memory, &switches].concat())?;
        nodes.extend(number(&traced, "/nav_comparisons"));
    }
    let nodes = (!nodes.is_empty()).then(|| nodes.iter().sum::<f64>() / nodes.len() as f64);
    Ok(Counted { run, nodes })
}

/// Counters of each way over those without learning, and what was learned.
fn compared(traffic: &str, head: &str, runs: &[Counted]) -> Vec<Row> {
    const COUNTERS: [(&str, &str); 3] = [
        ("reads", "/per_query/reads"),
        ("visited lists", "/per_query/clusters"),
        ("processor time", "/cpu_us"),
    ];
    let Some(off) = runs.first() else { return Vec::new() };
    let has_lists = head == SOME_LISTS;
    let traffic = if has_lists { format!("{traffic}, lists in RAM") } else { traffic.to_string() };
    let row = |what: String, unit, ours| Row::new(what, unit, None, ours, WHY);
    let mut rows =
        vec![row(format!("reads of a query, {traffic}, off"), "", number(&off.run, "/per_query/reads"))];
    for (way, run) in WAYS.iter().map(|way| way.0).zip(runs).skip(1) {
        let facts = |name: &str| number(&run.run, &format!("/learning/{name}"));
        let ratio = |pointer| over(number(&run.run, pointer), number(&off.run, pointer));
        rows.push(row(format!("epochs learned of {EPOCHS}, {traffic}, {way}"), "", facts("learned_epochs")));
        for (what, pointer) in COUNTERS.into_iter().take(if has_lists { 1 } else { COUNTERS.len() }) {
            rows.push(row(format!("{what} over off, {traffic}, {way}"), "times", ratio(pointer)));
        }
        if has_lists {
            continue;
        }
        let nodes = over(run.nodes, off.nodes);
        rows.push(row(format!("nodes of routing over off, {traffic}, {way}"), "times", nodes));
        let recall = number(&run.run, "/recall").zip(number(&off.run, "/recall"));
        rows.push(row(
            format!("recall less off, {traffic}, {way}"),
            "",
            recall.map(|(with, without)| with - without),
        ));
    }
    let always = runs.last().map(|run| &run.run);
    let measure = |name: &str| always.and_then(|run| number(run, &format!("/learning/{name}")));
    rows.push(row(format!("hot spot of the last epoch, {traffic}"), "", measure("hot_spot")));
    rows.push(row(format!("foreseen share of the last epoch, {traffic}"), "", measure("foreseen")));
    rows
}
