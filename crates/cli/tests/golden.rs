//! Counters of fixed searches over a fixed build: they depend on no machine. A change of the algorithm changes them,
//! and then `STRATANN_BLESS=1 cargo test -p stratann --test golden` writes them again, for the difference to be
//! reviewed.
#![allow(missing_docs)]

mod common;
#[path = "common/fixed_profile.rs"]
mod fixed_profile;

use common::*;
use serde_json::{Map, Value};

#[test]
fn counters_are_those_of_the_golden_file() {
    let mut all = Map::new();
    for (dtype, metric) in [("f32", "l2"), ("u8", "l2"), ("f16", "cosine"), ("i8", "ip")] {
        let data = Data::new(2000, 24, dtype);
        let index = data.build("graph", &["--metric", metric]);
        let truth = data.truth(metric);
        let common = ["search", arg(&index), arg(&data.queries), "--groundtruth", arg(&truth)];
        for (name, more) in [
            ("list 20 and 60, width 1", &["--search-list", "20,60", "--width", "1"][..]),
            ("list 40, width 4", &["--search-list", "40", "--width", "4"]),
            ("recall 0.9, width 1", &["--recall", "0.9", "--width", "1"]),
            ("list 40, medoid", &["--search-list", "40", "--width", "1", "--no-head"]),
            ("list 40, single nodes", &["--search-list", "40", "--width", "1", "--no-whole-blocks"]),
        ] {
            let found = json(&[&common[..], &COUNTED, more].concat());
            let runs: Vec<Value> = found["runs"].as_array().unwrap().iter().map(counters).collect();
            all.insert(format!("{dtype} {metric}: {name}"), runs.into());
        }
    }
    compare("counters.json", all);
}

#[test]
fn counters_of_grids_are_those_of_the_golden_file() {
    let mut all = Map::new();
    for (dtype, metric) in [("f32", "l2"), ("f32", "ip"), ("u8", "l2"), ("f16", "cosine"), ("i8", "ip")] {
        let data = Data::new(2000, 40, dtype);
        let index = data.path("grid");
        let place = ["build", arg(&data.base), "-o", arg(&index), "--kind", "grid-ivf"];
        json(&[&place[..], &["--metric", metric, "--calibration-queries", "60", "--threads", "2"]].concat());
        let truth = data.truth(metric);
        let common = ["search", arg(&index), arg(&data.queries), "--groundtruth", arg(&truth)];
        for (name, more) in [
            ("nprobe 3 and 12", &["--nprobe", "3,12"][..]),
            ("recall 0.9", &["--recall", "0.9"]),
            ("nprobe 12, not pruned by vector", &["--nprobe", "12", "--no-prune-vector"]),
            ("nprobe 12, not pruned by dimension", &["--nprobe", "12", "--no-prune-dimension"]),
            ("nprobe 12, not prewarmed", &["--nprobe", "12", "--no-prewarm"]),
        ] {
            let found = json(&[&common[..], &COUNTED, more].concat());
            let runs: Vec<Value> = found["runs"].as_array().unwrap().iter().map(counters).collect();
            all.insert(format!("{dtype} {metric}: {name}"), runs.into());
        }
    }
    compare("grids.json", all);
}

#[test]
fn counters_of_remote_indexes_are_those_of_the_golden_file() {
    let mut all = Map::new();
    for (dtype, metric) in [("f32", "l2"), ("f32", "ip"), ("u8", "l2"), ("f16", "cosine"), ("i8", "ip")] {
        let data = Data::new(2000, 24, dtype);
        let index = data.path("remote");
        let place = ["build", arg(&data.base), "-o", arg(&index), "--kind", "remote-hnsw"];
        let how = ["--partitions", "20", "-M", "6", "--calibration-queries", "60", "--threads", "2"];
        json(&[&place[..], &["--metric", metric], &how].concat());
        let truth = data.truth(metric);
        let common = ["search", arg(&index), arg(&data.queries), "--groundtruth", arg(&truth)];
        for (name, more) in [
            ("nprobe 2 and 8", &["--nprobe", "2,8"][..]),
            ("nprobe 8, ef 12", &["--nprobe", "8", "--ef", "12"]),
            ("recall 0.9", &["--recall", "0.9"]),
            ("recall 1", &["--recall", "1"]),
        ] {
            let found = json(&[&common[..], &COUNTED, more].concat());
            let runs: Vec<Value> = found["runs"].as_array().unwrap().iter().map(counters).collect();
            all.insert(format!("{dtype} {metric}: {name}"), runs.into());
        }
    }
    compare("remote.json", all);
}

#[test]
fn counters_of_clusters_are_those_of_the_golden_file() {
    let mut all = Map::new();
    for (dtype, metric) in [("f32", "l2"), ("u8", "l2"), ("i8", "ip")] {
        let data = Data::new(2000, 24, dtype);
        let machine = data.path("profile.json");
        fixed_profile::write(&machine);
        let truth = data.truth(metric);
        for plan in ["uniform-flat", "uniform-ivf", "uniform-graph"] {
            let index = data.path(plan);
            let place = ["build", arg(&data.base), "-o", arg(&index), "--kind", "hybrid-ivf"];
            let how = ["--metric", metric, "--clusters", "20", "--plan", plan, "--profile", arg(&machine)];
            json(&[&place[..], &how, &["--calibration-queries", "60", "--threads", "2"]].concat());
            let common = ["search", arg(&index), arg(&data.queries), "--groundtruth", arg(&truth)];
            let ram = if plan == "uniform-graph" { "64MiB" } else { "0" };
            let common = [&common[..], &["--width", "1", "--head-budget", ram]].concat();
            for (name, more) in [
                ("8 clusters", &["--nprobe", "8", "--no-learning"][..]),
                (
                    "early stop",
                    &["--nprobe", "12", "--early-stop", "0.3", "--stop-slack", "1", "--no-learning"],
                ),
                ("recall 0.9", &["--recall", "0.9", "--no-learning"]),
                // Five epochs: of the first two the graph is as it was built.
                ("learning", &["--nprobe", "8", "--epoch-queries", "10", "--always-learn"]),
            ] {
                let found = json(&[&common[..], &COUNTED, more].concat());
                let runs: Vec<Value> = found["runs"].as_array().unwrap().iter().map(counters).collect();
                all.insert(format!("{dtype} {metric} {plan}: {name}"), runs.into());
            }
        }
    }
    compare("clusters.json", all);
}
