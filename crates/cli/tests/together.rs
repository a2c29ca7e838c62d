//! `stratann search --also`: several indexes searched as one.
#![allow(missing_docs)]

mod common;

use std::path::{Path, PathBuf};

use common::*;

struct Place {
    data: Data,
    parts: Vec<PathBuf>,
    truth: PathBuf,
    out: PathBuf,
}

/// Three indexes of a third of the rows each.
fn place() -> Place {
    let data = Data::new(3000, 16, "f32");
    let index = data.build("graph", &["--nodes-per-block", "8", "--calibration-queries", "0"]);
    let apart = spread(&data, &index, "apart", &["--servers", "3", "--scatter-gather"]);
    let parts = (0..3).map(|part| apart.join(format!("server-{part:02}"))).collect();
    let (truth, out) = (data.truth("l2"), data.path("out"));
    Place { data, parts, truth, out }
}

const LONG: [&str; 2] = ["--search-list", "900"];

impl Place {
    fn args<'a>(&'a self, indexes: &'a [PathBuf], more: &[&'a str]) -> Vec<&'a str> {
        let mut args = vec!["search", arg(&indexes[0]), arg(&self.data.queries)];
        indexes[1..].iter().for_each(|index| args.extend(["--also", arg(index)]));
        args.extend(["-o", arg(&self.out), "--force"]);
        args.extend(more);
        args
    }

    /// The ids that a search finds, and its only run.
    fn search(&self, indexes: &[PathBuf], more: &[&str]) -> (Vec<u32>, serde_json::Value) {
        let run = json(&self.args(indexes, more))["runs"][0].clone();
        (read_answers(&self.out).1, run)
    }
}

fn break_blocks(index: &Path) {
    let blocks = file_of(index, "blocks.bin");
    let mut bytes = std::fs::read(&blocks).unwrap();
    bytes.iter_mut().for_each(|byte| *byte ^= 0x55);
    std::fs::write(&blocks, bytes).unwrap();
}

#[test]
fn several_indexes_answer_as_one() {
    let place = place();
    let more = [&LONG[..], &COUNTED, &["--groundtruth", arg(&place.truth)]].concat();
    let (found, run) = place.search(&place.parts, &more);
    assert_eq!(run["recall"], 1.0, "all rows are searched");
    let mut reads = 0.0;
    for part in &place.parts {
        let (alone, run) = place.search(std::slice::from_ref(part), &[&LONG[..], &COUNTED].concat());
        assert_ne!(alone, found);
        reads += run["per_query"]["reads"].as_f64().unwrap();
    }
    assert!((run["per_query"]["reads"].as_f64().unwrap() - reads).abs() < 1e-6, "counters are added up");
    // In any order, within a budget, which is divided, and of other kinds. A row that two of them hold is one result.
    let reversed: Vec<PathBuf> = place.parts.iter().rev().cloned().collect();
    assert_eq!(place.search(&reversed, &LONG).0, found);
    let (bounded, run) = place.search(&place.parts, &[&LONG[..], &["--ram-budget", "64MiB"]].concat());
    assert_eq!(bounded, found);
    assert!(run["memory"]["total_bytes"].as_u64().unwrap() <= 64 << 20, "{}", run["memory"]);
    let flat = place.data.path("flat");
    json(&["build", arg(&place.data.base), "-o", arg(&flat), "--kind", "flat"]);
    let mixed: Vec<PathBuf> = place.parts.iter().chain([&flat]).cloned().collect();
    let recall = ["--recall", "1"];
    assert_eq!(place.search(&mixed, &recall).0, found);
}

#[test]
fn several_indexes_are_searched_in_memory_where_they_fit() {
    let data = Data::new(1500, 16, "f32");
    let indexes = ["one", "other"].map(|name| data.build(name, &["--nodes-per-block", "8"]));
    let place = Place { truth: data.truth("l2"), out: data.path("out"), parts: indexes.to_vec(), data };
    // With equal parameters both forms answer alike.
    let same = ["--search-list", "60", "--rerank", "30", "--width", "1"];
    let (found, run) = place.search(&place.parts, &same);
    assert_eq!(run["per_query"]["reads"], 0.0);
    let budget = ["--ram-budget", "64MiB"];
    let (bounded, run) = place.search(&place.parts, &[&same[..], &budget].concat());
    assert_eq!((&bounded, &run["per_query"]["reads"]), (&found, &serde_json::json!(0.0)));
    assert!(run["memory"]["total_bytes"].as_u64().unwrap() <= 64 << 20, "{}", run["memory"]);
    let (from_disk, counted) = place.search(&place.parts, &[&same[..], &COUNTED].concat());
    assert_eq!(found, from_disk);
    assert!(counted["per_query"]["reads"].as_f64().unwrap() > 20.0);
    // With less than they can use their caches have all of it.
    let small = place.search(&place.parts, &[&same[..], &["--cache-budget", "128KiB"]].concat());
    assert_eq!(small.0, found);
    assert_eq!(small.1["memory"]["block_cache_bytes"], 128 << 10);
    assert!(small.1["per_query"]["cache_hits"].as_f64().unwrap() > 1.0);
}

#[test]
fn an_index_that_fails_is_named() {
    let place = place();
    let without: Vec<PathBuf> = vec![place.parts[0].clone(), place.parts[2].clone()];
    let (expected, _) = place.search(&without, &LONG);
    break_blocks(&place.parts[1]);
    let output = run(&place.args(&place.parts, &LONG));
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("server-01: "), "{}", stderr(&output));
    assert!(read_answers(&place.out).1.iter().all(|&id| id == u32::MAX), "no half of an answer");
    let output = run(&place.args(&place.parts, &[&LONG[..], &["--partial"]].concat()));
    assert!(output.status.success() && stderr(&output).contains("server-01: "), "{}", stderr(&output));
    assert_eq!(read_answers(&place.out).1, expected);
}

#[test]
fn what_cannot_be_searched_as_one_is_refused() {
    let place = place();
    let refusal = |indexes: &[PathBuf], more: &[&str]| refused(&place.args(indexes, more), 2);
    let other = place.data.path("cosine");
    json(&["build", arg(&place.data.base), "-o", arg(&other), "--kind", "flat", "--metric", "cosine"]);
    let with = |index: PathBuf| vec![place.parts[0].clone(), index];
    let said = refusal(&with(other), &["--recall", "1"]);
    assert!(said.contains("cosine has 16 × f32, cosine; only indexes of equal vectors"), "{said}");
    let short = Data::new(500, 8, "f32");
    let flat = short.path("short");
    json(&["build", arg(&short.base), "-o", arg(&flat), "--kind", "flat"]);
    let said = refusal(&with(flat), &["--recall", "1"]);
    assert!(said.contains("8"), "{said}");
    assert!(refusal(&with(place.data.path("none")), &LONG).contains("none"));
    let small = refusal(&place.parts, &[&LONG[..], &["--ram-budget", "12MiB"]].concat());
    assert!(small.contains("share of the budget") && small.contains("server-00"), "{small}");
    assert!(refusal(&place.parts[..1], &[&LONG[..], &["--partial"]].concat()).contains("--also"));
    let servers = ["search", "--connect", "127.0.0.1:1", arg(&place.data.queries), "--also", "x"];
    assert!(refused(&servers, 2).contains("cannot be used with"));
}
