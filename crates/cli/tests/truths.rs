//! Wrong ground truth is an error with exit code 2, and right ground truth never is, whoever computed it.
#![allow(missing_docs)]

mod common;
use std::path::{Path, PathBuf};

use common::*;

const K: usize = 20;

/// Writes ground truth: distances changed by `stored`, ids by `id`; without distances where `stored` gives none.
fn write_truth(
    path: &Path,
    truth: &[Vec<(f64, usize)>],
    id: impl Fn(usize) -> u32,
    stored: impl Fn(f64) -> Option<f64>,
) {
    let mut bytes = [truth.len() as u32, K as u32].map(u32::to_le_bytes).concat();
    truth.iter().flatten().for_each(|n| bytes.extend(id(n.1).to_le_bytes()));
    for distance in truth.iter().flatten().filter_map(|n| stored(n.0)) {
        bytes.extend((distance as f32).to_le_bytes());
    }
    std::fs::write(path, bytes).unwrap();
}

fn same(row: usize) -> u32 {
    row as u32
}

/// A set, its index, and files of wrong ground truth by their description.
struct Case {
    data: Data,
    index: PathBuf,
    metric: &'static str,
}

impl Case {
    fn new(dtype: &str, metric: &'static str) -> Case {
        let data = Data::new(1200, 16, dtype);
        let index = data.build("graph", &["--metric", metric]);
        Case { data, index, metric }
    }

    fn nearest(&self, metric: &str) -> Vec<Vec<(f64, usize)>> {
        nearest(&self.data.base_rows, &self.data.query_rows, metric, K)
    }

    /// Files of wrong ground truth.
    fn wrong(&self) -> Vec<(&'static str, PathBuf)> {
        let data = &self.data;
        let right = self.nearest(self.metric);
        let mut all = Vec::new();
        let mut put = |name: &'static str, truth: &[Vec<(f64, usize)>], id: &dyn Fn(usize) -> u32| {
            for (suffix, has_distances) in [("ibin", true), ("bin", false)] {
                let path = data.path(&format!("{}.{suffix}", name.replace(' ', "-")));
                write_truth(&path, truth, id, |d| has_distances.then_some(d));
                all.push((name, path));
            }
        };
        // Twice the scale: no neighbour is in both, and all distances differ.
        let scaled = |seed| -> Vec<Vec<f64>> {
            let other = rows(1200, 16, "f32", seed);
            other.into_iter().map(|row| row.into_iter().map(|x| 2.0 * x + 1.0).collect()).collect()
        };
        put("other vectors", &nearest(&scaled(9), &data.query_rows, self.metric, K), &same);
        put("other queries", &nearest(&data.base_rows, &rows(50, 16, "f32", 5), self.metric, K), &same);
        put("permuted ids", &right, &|row| (row as u32 + 600) % 1200);
        let larger: Vec<Vec<f64>> = rows(12_000, 16, "f32", 1);
        put("a larger set", &nearest(&larger, &data.query_rows, self.metric, K), &same);
        for metric in METRICS.into_iter().filter(|m| *m != self.metric) {
            let name = match metric {
                "l2" => "metric l2",
                "ip" => "metric ip",
                _ => "metric cosine",
            };
            put(name, &self.nearest(metric), &same);
        }
        // Row 0 of the queries is a header, the rest are floats that look like ids.
        let vectors = data.path("vectors.ibin");
        write(&vectors, &rows(50, 16, "f32", 4), "f32");
        all.push(("a file of vectors", vectors));
        all
    }
}

fn assert_refused(case: &Case, name: &str, path: &Path, args: &[&str]) {
    let error = refused(args, 2);
    let file = path.file_name().unwrap().to_str().unwrap();
    assert!(error.contains(file) && error.len() < 600, "{name} under {}: {error}", case.metric);
    assert!(error.contains("ground truth") || error.contains("ground-truth"), "{name}: {error}");
}

#[test]
fn wrong_ground_truth_is_refused() {
    for metric in METRICS {
        let case = Case::new("f32", metric);
        let (index, queries) = (arg(&case.index), arg(&case.data.queries));
        for (name, path) in case.wrong() {
            let args = ["search", index, queries, "--search-list", "40", "--groundtruth", arg(&path)];
            assert_refused(&case, name, &path, &args);
        }
    }
}

#[test]
fn every_command_refuses_it_and_changes_nothing() {
    let case = Case::new("f32", "l2");
    let (index, queries) = (arg(&case.index), arg(&case.data.queries));
    let server = Running::serve(&case.index, &[]);
    let before = files(&case.index);
    for (name, path) in case.wrong() {
        let (truth, answers) = (arg(&path), case.data.path("answers.ibin"));
        let tune = ["tune", index, "--queries", queries, "--groundtruth", truth, "-k", "10"];
        let bench = ["bench", index, queries, "--search-list", "40", "--groundtruth", truth, "--rounds", "1"];
        let search =
            ["search", "--connect", server.address(), queries, "--groundtruth", truth, "-o", arg(&answers)];
        let simulate =
            ["simulate", index, queries, "--search-list", "40", "--servers", "2", "--groundtruth", truth];
        for args in [&tune[..], &bench, &search, &simulate] {
            assert_refused(&case, name, &path, args);
        }
        assert!(!answers.exists(), "{name}: results of a refused search are not written");
    }
    assert!(files(&case.index) == before, "the index is unchanged");
}

#[test]
fn right_ground_truth_of_any_tool_is_taken() {
    for (dtype, _) in DTYPES {
        for metric in METRICS {
            let case = Case::new(dtype, metric);
            let right = case.nearest(metric);
            let recall = |path: &Path| {
                let args = [
                    "search",
                    arg(&case.index),
                    arg(&case.data.queries),
                    "--search-list",
                    "12",
                    "--width",
                    "1",
                ];
                json(&[&args[..], &["--groundtruth", arg(path)]].concat())["runs"][0]["recall"].clone()
            };
            let expected = recall(&case.data.truth(metric));
            assert!(expected.as_f64().unwrap() > 0.3, "{dtype} {metric}: {expected}");
            let forms: &[fn(f64) -> f64] = match metric {
                "l2" => &[|d| d, |d| d.sqrt(), |d| d * 1.0002, |_| 0.0],
                "ip" => &[|d| d, |d| -d, |d| 1.0 + d, |d| d * 0.9998],
                _ => &[|d| d, |d| 1.0 - d, |d| d - 1.0, |d| d + 1e-5],
            };
            let path = case.data.path("given.ibin");
            for form in forms {
                write_truth(&path, &right, same, |d| Some(form(d)));
                assert_eq!(recall(&path), expected, "{dtype} {metric}");
            }
            write_truth(&path, &right, same, |_| None);
            assert_eq!(recall(&path), expected, "{dtype} {metric}, ids alone");
        }
    }
}

#[test]
fn ties_and_a_short_search_are_no_contradiction() {
    // Each vector is there forty times, so any forty rows are the nearest.
    let mut data = Data::new(30, 16, "f32");
    data.base_rows = (0..1200).map(|row| data.base_rows[row % 30].clone()).collect();
    write(&data.base, &data.base_rows, "f32");
    let index = data.path("flat");
    json(&["build", arg(&data.base), "-o", arg(&index), "--kind", "flat"]);
    let mut ties = nearest(&data.base_rows, &data.query_rows, "l2", 40);
    // The tool keeps the last of the ties, the index the first: no neighbour is in both.
    ties.iter_mut().for_each(|row| row.drain(..20).for_each(drop));
    for has_distances in [true, false] {
        let path = data.path("ties.ibin");
        write_truth(&path, &ties, same, |d| has_distances.then_some(d));
        let args = ["search", arg(&index), arg(&data.queries), "-k", "20", "--groundtruth", arg(&path)];
        assert_eq!(json(&args)["runs"][0]["recall"], 0.0);
    }
}

#[test]
fn ids_of_an_index_are_its_own() {
    let data = Data::new(1200, 16, "f32");
    let mut ids = [1200u32, 1].map(u32::to_le_bytes).concat();
    (0..1200u64).for_each(|row| ids.extend((5000 + 3 * row).to_le_bytes()));
    let file = data.path("ids.u64bin");
    std::fs::write(&file, ids).unwrap();
    let index = data.build("own", &["--ids", arg(&file)]);
    let right = nearest(&data.base_rows, &data.query_rows, "l2", K);
    let path = data.path("given.ibin");
    let search =
        ["search", arg(&index), arg(&data.queries), "--search-list", "40", "--groundtruth", arg(&path)];
    for has_distances in [true, false] {
        write_truth(&path, &right, |row| 5000 + 3 * row as u32, |d| has_distances.then_some(d));
        assert!(json(&search)["runs"][0]["recall"].as_f64().unwrap() > 0.9);
        write_truth(&path, &right, same, |d| has_distances.then_some(d));
        assert!(refused(&search, 2).contains("--ids"));
    }
}

#[test]
fn rows_that_were_left_out_move_no_ids() {
    let mut data = Data::new(1200, 16, "f32");
    (0..400).for_each(|row| data.base_rows[row][3] = f64::NAN);
    write(&data.base, &data.base_rows, "f32");
    let index = data.build("skipped", &["--on-bad-row", "skip"]);
    let truth = data.path("truth.ibin");
    let args = ["groundtruth", arg(&data.base), arg(&data.queries), "-k", "20", "-o", arg(&truth)];
    json(&[&args[..], &["--on-bad-row", "skip"]].concat());
    // The last 400 ids exceed the number of vectors.
    let args =
        ["search", arg(&index), arg(&data.queries), "--search-list", "40", "--groundtruth", arg(&truth)];
    assert!(json(&args)["runs"][0]["recall"].as_f64().unwrap() > 0.9);
}
