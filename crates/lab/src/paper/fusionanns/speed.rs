//! Throughput and latency against other systems, at a recall, by recall and by threads (figures 9 to 11).
//!
//! SPANN and RUMMY are searches of the same index that do what these do. DiskANN is our disk-graph.

use stratann_storage::Result;

use super::super::chart::Chart;
use super::super::item::{Claim, Found, Row, one, range};
use super::super::sets::Set;
use super::super::study::{Study, number, over};
use super::motivation::{line, peak, threads};
use super::{Ablation, DEFAULT, HIGH, LOW, NEEDS_GPU, SMALL, SPANN, counted_only};

const QPS: &str = "/qps";
const LATENCY: &str = "/latency_us/mean";
const GRAPH: &str = "DiskANN is our disk-graph with all blocks on disk; one machine, two cores, few vectors";
/// Lengths of the beam of the disk-graph.
const LISTS: &str = "10,14,20,28,40,56,80,112,160,240";

/// A disk-graph at the shortest beam that reaches a recall.
struct Graph {
    search_list: f64,
    qps: f64,
    reads: f64,
}

fn graph_index(study: &mut Study, set: &Set) -> Result<String> {
    study.index(set, "graph.idx", &["--kind", "disk-graph", "--calibration-queries", "0"])
}

impl Graph {
    fn at(study: &mut Study, set: &Set, recall: f64) -> Result<Option<Graph>> {
        let index = graph_index(study, set)?;
        let args = ["bench", &index, &set.queries, "--groundtruth", &set.groundtruth];
        let document = study.run(&[&args[..], &["--search-list", LISTS]].concat())?;
        let mut all: Vec<(f64, Graph)> = document["runs"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|run| {
                let of = |pointer| number(run, pointer);
                let graph = Graph {
                    search_list: of("/params/search_list")?,
                    qps: of(QPS)?,
                    reads: of("/per_query/reads")?,
                };
                Some((of("/recall")?, graph))
            })
            .collect();
        all.sort_by(|a, b| a.1.search_list.total_cmp(&b.1.search_list));
        Ok(all.into_iter().find(|point| point.0 >= recall).map(|point| point.1))
    }
}

/// Figure 9.
pub(super) fn at_low_recall(study: &mut Study, set: &Set) -> Result<Found> {
    let ablation = Ablation::usual(study, set)?;
    let graph = Graph::at(study, set, LOW)?;
    let own = |pointer| ablation.way(DEFAULT, LOW, pointer);
    let spann = |pointer| ablation.way(SPANN, LOW, pointer);
    let claims = [range(9.4, 13.1), range(3.2, 4.3)];
    let mut rows = against(LOW, own(QPS), [spann(QPS), graph.as_ref().map(|graph| graph.qps)], claims);
    rows.push(Row::new("QPS over RUMMY", "times", range(2.0, 4.9), None, NEEDS_GPU));
    let fewer = |what: &str, pointer| {
        let ours = over(spann(pointer), own(pointer));
        Row::new(what, "times", None, ours, "exact; the paper has this in figure 12")
    };
    rows.extend([
        Row::new(
            "mean latency over SPANN",
            "times",
            None,
            over(own(LATENCY), spann(LATENCY)),
            "the paper has bars without numbers, and calls it comparable",
        ),
        fewer("reads of SPANN over ours", "/reads"),
        fewer("pages of SPANN over ours", "/pages"),
        Row::new(
            "reads of the disk-graph over ours",
            "times",
            None,
            over(graph.map(|graph| graph.reads), own("/reads")),
            GRAPH,
        ),
        Row::new(
            format!("bytes to a GPU, {} over ours", counted_only("rummy-like")),
            "times",
            None,
            over(ablation.way(&counted_only("rummy-like"), LOW, "/gpu_bytes"), own("/gpu_bytes")),
            "exact; vectors of lists instead of ids",
        ),
    ]);
    Ok(Found { rows, charts: Vec::new() })
}

/// QPS over SPANN and over DiskANN.
fn against(
    recall: f64,
    own: Option<f64>,
    [spann, graph]: [Option<f64>; 2],
    [of_spann, of_graph]: [Option<Claim>; 2],
) -> Vec<Row> {
    let row = |name: &str, claim, other, why| {
        Row::new(format!("QPS over {name}, recall {recall}"), "times", claim, over(own, other), why)
    };
    vec![row("SPANN", of_spann, spann, SMALL), row("DiskANN", of_graph, graph, GRAPH)]
}

/// Figure 10.
pub(super) fn by_recall(study: &mut Study, set: &Set) -> Result<Found> {
    let ablation = Ablation::usual(study, set)?;
    let mut rows = Vec::new();
    for recall in [LOW, HIGH] {
        let graph = Graph::at(study, set, recall)?.map(|graph| graph.qps);
        let of = |name: &str| ablation.way(name, recall, QPS);
        rows.extend(against(recall, of(DEFAULT), [of(SPANN), graph], [range(9.4, 11.7), one(3.2)]));
    }
    let gain = |recall| ablation.way(DEFAULT, recall, "/qps_over_spann");
    rows.push(Row::new(
        "QPS over SPANN, recall 0.98 over recall 0.9",
        "times",
        range(1.0, 11.7 / 9.4),
        over(gain(HIGH), gain(LOW)),
        "the more lists a query needs, the more reads SPANN makes",
    ));
    let lines = |pointer| {
        [SPANN, DEFAULT, "changes"].map(|name| (name.to_string(), ablation.line(name, pointer))).to_vec()
    };
    let chart = |title: &str, y, lines| Chart { title: title.into(), x: "recall", y, lines };
    let charts = vec![
        chart("QPS over spann", "times", lines("/qps_over_spann")),
        chart("latency over spann", "times", lines("/latency_over_spann")),
        chart("reads", "reads of a query", lines("/reads")),
    ];
    Ok(Found { rows, charts })
}

/// Figure 11.
pub(super) fn by_threads(study: &mut Study, set: &Set) -> Result<Found> {
    const WHY: &str =
        "simulated: one disk of this machine, a query on each thread, the processor ranks codes";
    let ablation = Ablation::usual(study, set)?;
    let of = |name: &str| line(&threads(&ablation, name, true), QPS);
    let (own, spann) = (of(DEFAULT), of(SPANN));
    let end = |points: &[(f64, f64)], first: bool| {
        let point = if first { points.first() } else { points.last() };
        point.map(|point| point.1)
    };
    let graph = graph_on_threads(study, set)?;
    let row = |what: &str, claim, ours| Row::new(what, "times", claim, ours, WHY);
    let rows = vec![
        row("QPS over SPANN, 64 threads", range(0.0, 13.2), over(end(&own, false), end(&spann, false))),
        row("QPS over DiskANN, 64 threads", range(0.0, 3.8), over(end(&own, false), graph)),
        Row::new("QPS over RUMMY, 64 threads", "times", range(0.0, 5.1), None, NEEDS_GPU),
        row("QPS over SPANN, one thread", one(1.0), over(end(&own, true), end(&spann, true))),
        Row::new("threads at the highest QPS, SPANN", "", one(4.0), peak(&spann), WHY),
        Row::new("threads at the highest QPS, ours", "", one(64.0), peak(&own), WHY),
    ];
    let lines = [SPANN, DEFAULT, "mi-cpu"].map(|name| (name.to_string(), of(name))).to_vec();
    let chart = Chart { title: "simulated, recall 0.9".into(), x: "threads", y: "QPS", lines };
    Ok(Found { rows, charts: vec![chart] })
}

/// QPS of the disk-graph on a simulated machine of 64 threads, a query on each.
fn graph_on_threads(study: &mut Study, set: &Set) -> Result<Option<f64>> {
    let Some(graph) = Graph::at(study, set, LOW)? else { return Ok(None) };
    let index = graph_index(study, set)?;
    let length = graph.search_list.to_string();
    let args = ["simulate", &index, &set.queries, "--servers", "1", "--search-list", &length];
    let document = study.run(&[&args[..], &["--threads", "64", "--in-flight", "64"]].concat())?;
    Ok(number(&document, "/runs/0/qps"))
}
