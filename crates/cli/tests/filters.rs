//! `stratann search --only` and `--without`, and ground truth among the rows that match.
#![allow(missing_docs)]

mod common;

use std::path::PathBuf;

use common::*;

const KINDS: [&str; 5] = ["disk-graph", "flat", "hybrid-ivf", "grid-ivf", "gpu-ivf"];

/// Every third row.
fn thirds() -> Vec<u64> {
    (0..1500).filter(|id| id % 3 == 1).collect()
}

/// Writes ids in the format of the suffix.
fn ids(data: &Data, name: &str, ids: &[u64]) -> PathBuf {
    let path = data.path(name);
    let bytes = ids.iter().flat_map(|id| id.to_le_bytes());
    let content = match path.extension().and_then(|suffix| suffix.to_str()) {
        Some("txt") => ids.iter().map(|id| format!("{id}\n")).collect::<String>().into_bytes(),
        Some("u64bin") => [ids.len() as u32, 1].into_iter().flat_map(u32::to_le_bytes).chain(bytes).collect(),
        _ => {
            let shape = ids.len();
            let header = format!("{{'descr': '<u8', 'fortran_order': False, 'shape': ({shape},), }}");
            let header = format!("{header:<117}\n");
            b"\x93NUMPY\x01\x00".iter().copied().chain([118, 0]).chain(header.bytes()).chain(bytes).collect()
        }
    };
    std::fs::write(&path, content).unwrap();
    path
}

/// The exact nearest of some rows, as a file.
fn truth(data: &Data, filter: [&str; 2], name: &str) -> PathBuf {
    let path = data.path(name);
    let args = ["groundtruth", arg(&data.base), arg(&data.queries), "-k", "10", "-o", arg(&path), "--force"];
    json(&[&args[..], &filter].concat());
    path
}

#[test]
fn only_rows_that_match_are_found_in_every_kind() {
    let data = Data::new(1500, 16, "f32");
    let (only, out) = (ids(&data, "only.u64bin", &thirds()), data.path("out"));
    let truth = truth(&data, ["--only", arg(&only)], "truth.ibin");
    for kind in KINDS {
        let index = match kind {
            "flat" => {
                let index = data.path(kind);
                json(&["build", arg(&data.base), "-o", arg(&index), "--kind", kind]);
                index
            }
            _ => data.build(kind, &["--kind", kind]),
        };
        let args =
            ["search", arg(&index), arg(&data.queries), "-k", "10", "--recall", "0.95", "-o", arg(&out)];
        let filter = ["--force", "--only", arg(&only), "--groundtruth", arg(&truth)];
        let run = json(&[&args[..], &filter].concat())["runs"][0].clone();
        let (_, found, _) = read_answers(&out);
        assert!(found.iter().all(|id| id % 3 == 1), "{kind}");
        assert!(run["recall"].as_f64().unwrap() >= 0.93, "{kind}: {}", run["recall"]);
        assert_eq!(run["filter"]["matches"], 500, "{kind}");
        assert_eq!((&run["filter"]["unknown_ids"], &run["filter"]["repeated_ids"]), (&0.into(), &0.into()));
        // The exact answer is exact.
        let exact = ["search", arg(&index), arg(&data.queries), "-k", "10", "--recall", "1"];
        let run = json(&[&exact[..], &filter[1..]].concat())["runs"][0].clone();
        assert_eq!((&run["recall"], &run["filter"]["way"]), (&1.0.into(), &"exact".into()), "{kind}");
    }
}

#[test]
fn a_filter_is_the_same_in_every_format_and_said_either_way() {
    let data = Data::new(1500, 16, "f32");
    let index = data.build("graph", &[]);
    let others: Vec<u64> = (0..1500).filter(|id| id % 3 != 1).collect();
    let mut untidy: Vec<u64> = thirds().into_iter().rev().collect();
    untidy.extend([1, 1, u64::MAX, 1500]);
    let files = [
        ("--only", ids(&data, "a.npy", &thirds())),
        ("--only", ids(&data, "b.txt", &thirds())),
        ("--only", ids(&data, "c.u64bin", &untidy)),
        ("--without", ids(&data, "d.npy", &others)),
    ];
    let answers = files.map(|(way, file)| {
        let out = data.path("out");
        let args = ["search", arg(&index), arg(&data.queries), "-o", arg(&out), "--force", way, arg(&file)];
        let run = json(&args)["runs"][0].clone();
        (read_answers(&out).1, counters(&run), run["filter"]["unknown_ids"].clone())
    });
    assert!(answers.iter().all(|other| (&other.0, &other.1) == (&answers[0].0, &answers[0].1)));
    assert_eq!(answers.map(|answer| answer.2.as_u64().unwrap()), [0, 0, 2, 0]);
}

#[test]
fn nothing_that_matches_is_an_answer_without_results() {
    let data = Data::new(1500, 16, "f32");
    let (index, out) = (data.build("graph", &[]), data.path("out.csv"));
    let none = ids(&data, "none.txt", &[]);
    let search =
        ["search", arg(&index), arg(&data.queries), "-o", arg(&out), "--force", "--only", arg(&none)];
    let run = json(&search)["runs"][0].clone();
    assert_eq!((&run["filter"]["matches"], &run["failed_queries"]), (&0.into(), &0.into()));
    assert_eq!(std::fs::read_to_string(&out).unwrap().lines().count(), 1, "a heading alone");
    let some = ids(&data, "some.txt", &[3, 4]);
    let search =
        ["search", arg(&index), arg(&data.queries), "-o", arg(&out), "--force", "--only", arg(&some)];
    json(&search);
    assert_eq!(std::fs::read_to_string(&out).unwrap().lines().count(), 1 + 2 * 50);
}

#[test]
fn bad_filters_are_refused_before_anything_is_searched() {
    let data = Data::new(1500, 16, "f32");
    let index = data.build("graph", &[]);
    let search = ["search", arg(&index), arg(&data.queries)];
    let refuse = |more: &[&str], code: i32, named: &str| {
        let why = refused(&[&search[..], more].concat(), code);
        assert!(why.contains(named), "{more:?}: {why}");
    };
    let file = |name: &str, text: &str| {
        std::fs::write(data.path(name), text).unwrap();
        data.path(name)
    };
    refuse(&["--only", arg(&file("negative.txt", "1\n-2\n"))], 2, "line 2");
    refuse(&["--only", arg(&file("words.txt", "1\n\nshop\n"))], 2, "line 3");
    refuse(&["--only", arg(&file("large.txt", "18446744073709551616\n"))], 2, "line 1");
    refuse(&["--only", arg(&file("ids.json", "[1]"))], 2, ".u64bin");
    refuse(&["--only", arg(&data.path("missing.txt"))], 2, "missing.txt");
    let (some, other) = (ids(&data, "some.npy", &thirds()), data.build("other", &[]));
    refuse(&["--only", arg(&some), "--also", arg(&other)], 2, "--also");
    let both = run(&[&search[..], &["--only", arg(&some), "--without", arg(&some)]].concat());
    assert_eq!(both.status.code(), Some(2));
    assert!(stderr(&both).contains("--without"), "{}", stderr(&both));
    let servers = ["search", "--connect", "127.0.0.1:9", arg(&data.queries), "--only", arg(&some)];
    assert!(refused(&servers, 2).contains("servers"));
    let remote = data.build("remote", &["--kind", "remote-hnsw"]);
    let remote = ["search", arg(&remote), arg(&data.queries), "--only", arg(&some)];
    assert!(refused(&remote, 2).contains("remote-hnsw"));
    // Ground truth of all rows is not that of the rows that match, and one of too few is no measure.
    let of_all = data.truth("l2");
    refuse(&["--only", arg(&some), "--groundtruth", arg(&of_all)], 2, "does not match");
    let few = truth(&data, ["--only", arg(&ids(&data, "few.txt", &[1, 2, 3]))], "few.ibin");
    refuse(&["--only", arg(&some), "--groundtruth", arg(&few)], 2, "groundtruth --only");
}

#[test]
fn a_budget_has_room_for_the_filter_or_says_how_much_it_takes() {
    let data = Data::new(1500, 16, "f32");
    let (index, some) = (data.build("graph", &[]), ids(&data, "some.npy", &thirds()));
    let search = ["search", arg(&index), arg(&data.queries), "--only", arg(&some), "--ram-budget"];
    let found = json(&[&search[..], &["64MiB"]].concat())["runs"][0].clone();
    assert!(found["memory"]["total_bytes"].as_u64().unwrap() <= 64 << 20);
    assert!(found["memory"]["filter_bytes"].as_u64().unwrap() > 0, "{}", found["memory"]);
    let small = run(&[&search[..], &["1MiB"]].concat());
    assert_eq!(small.status.code(), Some(2));
    assert!(stderr(&small).contains("--ram-budget"), "{}", stderr(&small));
}
