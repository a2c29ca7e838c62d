//! Throughput, latency and disk accesses beside what stands for other systems (figures 11 to 14).
//!
//! A `disk-graph` stands for DiskANN and Starling, and with many reads under way for PipeANN; lists that are read
//! whole, in the order of their centroids, stand for SPANN.

use serde_json::Value;
use stratann_storage::Result;

use super::super::chart::Chart;
use super::super::item::{Found, Row, one, range};
use super::super::sets::Set;
use super::super::study::{Study, over};
use super::{RECALLS, Sweep, built, searched};

const GRAPH: &str = "a disk-graph of ours stands for DiskANN and Starling, within the same memory; \
                     bench/compare.py runs DiskANN, nothing runs Starling";
const LISTS: &str = "lists of ours that are read whole stand for SPANN, without its replicas; \
                     nothing runs SPANN itself";
const QPS: &str = "/qps";
const LATENCY: &str = "/latency_us/mean";
const READS: &str = "/per_query/reads";
const PAGES: &str = "/per_query/pages_read";

/// Runs of the three ways.
struct Ways {
    planned: Vec<Value>,
    graph: Vec<Value>,
    whole: Vec<Value>,
}

impl Ways {
    fn of<'w>(&'w self, way: fn(&'w Ways) -> &'w Vec<Value>, pointer: &str, recall: f64) -> Option<f64> {
        Sweep::of(Some(way(self)), pointer).at(recall)
    }

    /// The planned one over the other.
    fn gain<'w>(&'w self, way: fn(&'w Ways) -> &'w Vec<Value>, pointer: &str, recall: f64) -> Option<f64> {
        over(self.of(|ways| &ways.planned, pointer, recall), self.of(way, pointer, recall))
    }

    fn chart(&self, what: &str, y: &'static str, pointer: &str) -> Chart {
        let line = |name: &str, runs| (name.to_string(), Sweep::of(Some(runs), pointer).0);
        let lines = vec![
            line("hybrid-ivf", &self.planned),
            line("disk-graph", &self.graph),
            line("whole lists", &self.whole),
        ];
        Chart { title: what.into(), x: "recall", y, lines }
    }
}

/// A graph over all vectors.
fn graph(study: &mut Study, set: &Set) -> Result<String> {
    study.index(set, "graph.idx", &["--kind", "disk-graph", "--calibration-queries", "0"])
}

/// Searches all three.
fn ways(study: &mut Study, set: &Set) -> Result<Ways> {
    let (lists, flat, graph) =
        (built(study, set, "auto")?, built(study, set, "uniform-flat")?, graph(study, set)?);
    let probes = ["--nprobe", "1,2,4,8,16,32,64,128,256"];
    let stops = ["--early-stop", "0.3", "--stop-slack", "1.9"];
    let planned = searched(study, set, &lists, &[&probes[..], &stops].concat())?;
    let beams = ["--search-list", "10,20,40,80,160,320"];
    let graph = searched(study, set, &graph, &beams)?;
    let plain = ["--no-bounds", "--no-early-stop", "--no-learning", "--order", "centroid"];
    let whole = searched(study, set, &flat, &[&probes[..], &plain].concat())?;
    Ok(Ways { planned, graph, whole })
}

/// Figure 11.
pub(super) fn throughput(study: &mut Study, set: &Set) -> Result<Found> {
    let ways = ways(study, set)?;
    let rows = RECALLS.iter().flat_map(|&recall| {
        let graph = ways.gain(|ways| &ways.graph, QPS, recall);
        let whole = ways.gain(|ways| &ways.whole, QPS, recall);
        [
            Row::new(
                format!("QPS over a disk graph, recall {recall}"),
                "times",
                range(2.0, 4.7),
                graph,
                GRAPH,
            ),
            Row::new(
                format!("QPS over whole lists, recall {recall}"),
                "times",
                range(1.0, 17.2),
                whole,
                LISTS,
            ),
        ]
    });
    Ok(Found { rows: rows.collect(), charts: vec![ways.chart("throughput", "QPS", QPS)] })
}

/// Figure 12.
pub(super) fn latency(study: &mut Study, set: &Set) -> Result<Found> {
    let ways = ways(study, set)?;
    let rows = RECALLS.iter().flat_map(|&recall| {
        let less = |gain: Option<f64>| gain.map(|gain| 1.0 / gain);
        let whole = less(ways.gain(|ways| &ways.whole, LATENCY, recall));
        let graph = less(ways.gain(|ways| &ways.graph, LATENCY, recall));
        [
            Row::new(
                format!("mean of whole lists over it, recall {recall}"),
                "times",
                range(1.0, 25.0),
                whole,
                LISTS,
            ),
            Row::new(
                format!("mean of a disk graph over it, recall {recall}"),
                "times",
                range(1.0, 3.5),
                graph,
                GRAPH,
            ),
        ]
    });
    Ok(Found { rows: rows.collect(), charts: vec![ways.chart("latency", "us", LATENCY)] })
}

/// Figure 13.
pub(super) fn pipelined(study: &mut Study, set: &Set) -> Result<Found> {
    const WHY: &str =
        "a disk-graph of ours with eight reads of a query under way stands for PipeANN, which nothing runs";
    let planned = ways(study, set)?.planned;
    let graph = graph(study, set)?;
    let wide = searched(study, set, &graph, &["--search-list", "10,20,40,80,160,320", "--width", "8"])?;
    let gain =
        |recall| over(Sweep::of(Some(&planned), QPS).at(recall), Sweep::of(Some(&wide), QPS).at(recall));
    let row = |recall| {
        Row::new(format!("QPS over it, recall {recall}"), "times", range(2.0, 5.2), gain(recall), WHY)
    };
    Ok(Found { rows: RECALLS.map(row).into(), charts: Vec::new() })
}

/// Figure 14.
pub(super) fn accesses(study: &mut Study, set: &Set) -> Result<Found> {
    const MAPPED: &str = "the paper counts page faults of mapped files, ours are reads of whole extents";
    let ways = ways(study, set)?;
    let at = |pointer, recall| ways.of(|ways| &ways.planned, pointer, recall);
    let fewer = |pointer, recall| over(ways.of(|ways| &ways.graph, pointer, recall), at(pointer, recall));
    let growth = |pointer| over(at(pointer, 0.98), at(pointer, 0.9)).map(|growth| 100.0 * (growth - 1.0));
    let rows = vec![
        Row::new(
            "reads of a disk graph over it, recall 0.97",
            "times",
            range(3.5, 7.0),
            fewer(READS, 0.97),
            GRAPH,
        ),
        Row::new("pages of a disk graph over it, recall 0.97", "times", None, fewer(PAGES, 0.97), GRAPH),
        Row::new("growth of reads, recall 0.9 to 0.98", "%", range(0.0, 10.0), growth(READS), MAPPED),
        Row::new("growth of pages, recall 0.9 to 0.98", "%", one(10.0), growth(PAGES), MAPPED),
    ];
    Ok(Found { rows, charts: vec![ways.chart("reads", "reads of a query", READS)] })
}
