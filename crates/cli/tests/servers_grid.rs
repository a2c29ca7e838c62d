//! A `grid-ivf` on several processes: equal answers in all modes, switches, wrong plans, damaged slices.
#![allow(missing_docs)]

mod common;

use std::path::{Path, PathBuf};

use common::*;
use serde_json::Value;

fn grid(data: &Data) -> PathBuf {
    let index = data.path("grid");
    let args = ["build", arg(&data.base), "-o", arg(&index), "--kind", "grid-ivf", "--lists", "40"];
    json(&[&args[..], &["--calibration-queries", "0", "--threads", "2"]].concat());
    index
}

fn search(place: &[&str], data: &Data, out: &Path, more: &[&str]) -> Value {
    let args = [arg(&data.queries), "-o", arg(out), "--force", "--nprobe", "12"];
    json(&[&["search"], place, &args, more].concat())["runs"][0]["per_query"].clone()
}

#[test]
fn several_processes_answer_as_one() {
    for dtype in ["f32", "u8"] {
        let data = Data::new(3000, 64, dtype);
        let index = grid(&data);
        let (here, there) = (data.path("here"), data.path("there"));
        let mine = search(&[arg(&index)], &data, &here, &[]);
        for (name, more) in [
            ("one", &["--servers", "1"][..]),
            ("planned", &["--servers", "3"]),
            ("rows", &["--servers", "4", "--mode", "vector"]),
            ("slices", &["--servers", "2", "--mode", "dimension"]),
            ("striped", &["--servers", "3", "--mode", "striped"]),
            ("copies", &["--servers", "4", "--replicas", "2"]),
        ] {
            let folder = spread(&data, &index, name, more);
            assert!(run(&["verify", arg(&folder)]).status.success(), "{name}");
            let up = Running::start(&["cluster", "up", arg(&folder), "--threads", "1"]);
            let all = addresses(&up);
            let connect = all.join(",");
            for switches in [
                &[][..],
                &["--fan-out", "3", "--static-order"],
                &["--no-prune"],
                &["--no-pipeline", "--blocking"],
                &["--fan-out", "8", "--mode", "eager", "--no-balance"],
            ] {
                let theirs = search(&["--connect", &connect], &data, &there, switches);
                assert_eq!(read_answers(&here), read_answers(&there), "{name}");
                let count = |of: &Value, what: &str| of[what].as_f64().unwrap();
                assert_eq!(mine["components_unpruned"], theirs["components_unpruned"], "{name}");
                assert_eq!(count(&theirs, "score_jobs") > 0.5, all.len() > 1, "{theirs}");
                let (work, whole) = (count(&theirs, "components"), count(&theirs, "components_unpruned"));
                // Rows that begin together have no threshold of each other.
                let share = count(&theirs, "largest_share");
                assert!((1.0..=all.len() as f64).contains(&share), "{name}: {theirs}");
                match switches {
                    [] => assert!(work < whole, "{name}: {theirs}"),
                    ["--no-prune"] => assert_eq!(work, whole, "{name}: {theirs}"),
                    _ => {}
                }
            }
            let status = get(&all[0], "/v1/status").1;
            assert_eq!((&status["dropped_frames"], &status["lost_reads"]), (&0.into(), &0.into()));
            // A server is down.
            if name == "copies" {
                let wanted = read_answers(&here);
                send_signal(up.ready["servers"][3]["pid"].as_u64().unwrap() as u32, libc::SIGKILL);
                search(&["--connect", &all[..3].join(",")], &data, &there, &[]);
                assert_eq!(wanted, read_answers(&there), "a copy answers");
            }
        }
    }
}

#[test]
fn plans_are_told_and_wrong_ones_refused() {
    let data = Data::new(2000, 64, "f32");
    let index = grid(&data);
    let out = data.path("out");
    let base = ["cluster", "partition", arg(&index), "-o", arg(&out), "--servers", "4"];
    let prices = ["--message-us", "5", "--byte-ns", "1"];
    let report = json(&[&base[..], &prices, &["--queries", arg(&data.queries), "--nprobe", "9"]].concat());
    let plan = &report["plan"];
    let candidates = plan["candidates"].as_array().unwrap();
    assert!(candidates.len() >= 4 && plan["nprobe"] == 9 && plan["message_ns"] == 5000.0, "{plan}");
    let costs: Vec<f64> = candidates.iter().map(|c| c["cost_ms"].as_f64().unwrap()).collect();
    assert!(costs.is_sorted() && costs[0] > 0.0);
    let explained =
        json(&["explain", arg(&index), arg(&data.queries), "--plan", "--servers", "6", "--nprobe", "9"]);
    let shapes = explained["candidates"].as_array().unwrap();
    assert!(shapes.iter().any(|c| (&c["rows"], &c["slices"]) == (&3.into(), &2.into())), "{explained}");
    let text = String::from_utf8(run(&["explain", arg(&index), "--plan"]).stdout).unwrap();
    assert!(text.contains("was taken") && text.contains("rows x slices"), "{text}");
    let info = json(&["info", arg(&out)]);
    assert_eq!(info["cluster"]["method"], "harmony", "{info}");
    let queries = Data::new(20, 16, "f32");
    for (more, words) in [
        (&["--servers", "64", "--mode", "vector", "--force"][..], "fewer"),
        (&["--mode", "dimension", "--servers", "30", "--force"], "fewer servers"),
        (&["--queries", arg(&queries.queries), "--force"], "64 f32"),
        (&["--overlap", "0.5", "--force"], "replicas"),
        (&["--ram-budget", "1MiB", "--force"], "ram-budget"),
        (&[], "force"),
    ] {
        // A later option replaces an earlier one.
        let servers = if more.contains(&"--servers") { &base[..5] } else { &base[..] };
        let output = run(&[servers, more].concat());
        let said = stderr(&output);
        assert!(!output.status.success() && said.contains(words), "{more:?}: {said}");
    }
    let alpha = refused(&[&base[..], &["--alpha", "-1"]].concat(), 2);
    assert!(alpha.contains("-1"), "{alpha}");
    // The planner is for grids.
    let (graph, folder) = (data.path("graph"), data.path("other"));
    json(&["build", arg(&data.base), "-o", arg(&graph), "--calibration-queries", "0"]);
    let other = ["cluster", "partition", arg(&graph), "-o", arg(&folder), "--servers", "2"];
    assert!(refused(&[&other[..], &["--mode", "vector"]].concat(), 2).contains("grid-ivf"));
}

#[test]
fn a_flipped_bit_and_too_little_memory_are_told() {
    let data = Data::new(2000, 64, "f32");
    let index = grid(&data);
    let folder = spread(&data, &index, "slices", &["--servers", "2", "--mode", "dimension"]);
    let up = ["cluster", "up", arg(&folder), "--threads", "1", "--ram-budget", "12MiB"];
    let error = refused(&up, 1);
    assert!(error.contains("give --ram-budget"), "{error}");
    for name in ["v1-grid-01.bin", "v1-firsts.bin"] {
        let path = folder.join(name);
        let sound = std::fs::read(&path).unwrap();
        let mut bytes = sound.clone();
        bytes[sound.len() / 3] ^= 4;
        std::fs::write(&path, bytes).unwrap();
        let verified = run(&["verify", arg(&folder)]);
        let said = String::from_utf8_lossy(&verified.stdout).into_owned() + &stderr(&verified);
        assert!(!verified.status.success() && said.contains(name), "{said}");
        std::fs::write(&path, sound).unwrap();
    }
    assert!(run(&["verify", arg(&folder)]).status.success());
}

#[test]
fn grids_are_simulated() {
    let data = Data::new(2000, 64, "f32");
    let index = grid(&data);
    let args = ["simulate", arg(&index), arg(&data.queries), "--servers", "1,4", "--nprobe", "8"];
    for mode in ["harmony", "vector", "dimension", "striped"] {
        let report = json(&[&args[..], &["--partition", mode, "--no-times"]].concat());
        let runs = report["runs"].as_array().unwrap_or_else(|| panic!("{report}"));
        assert_eq!(runs.len(), 2, "{report}");
        let of = |run: &Value, what: &str| run["per_query"][what].as_f64().unwrap();
        assert!(of(&runs[0], "score_jobs") == 0.0 && of(&runs[1], "score_jobs") > 0.5, "{report}");
        assert!(of(&runs[1], "components") < of(&runs[1], "components_unpruned"));
    }
}

/// One dimension, one list with most vectors, equal vectors, a component that never differs.
#[test]
fn extreme_sets_are_divided_and_answered_as_on_one_machine() {
    let one = Data::new(600, 1, "f32");
    let crowded = Data::new(1000, 32, "f32");
    let (mut few, many) = (rows(1000, 32, "f32", 5), rows(800, 32, "f32", 6));
    few.truncate(200);
    // Four of five vectors are nearest to the first of three given centroids.
    let far = |row: Vec<f64>| row.into_iter().map(|x| x + 400.0).collect::<Vec<f64>>();
    let far: Vec<Vec<f64>> = few.into_iter().map(far).collect();
    let centroids = crowded.path("centroids.fbin");
    write(&centroids, &[vec![0.0; 32], far[0].clone(), far[1].clone()], "f32");
    write(&crowded.base, &[many, far].concat(), "f32");
    let equal = Data::new(300, 16, "u8");
    write(&equal.base, &vec![vec![7.0; 16]; 300], "u8");
    let flat = Data::new(500, 24, "f32");
    let still = |mut row: Vec<f64>| {
        row[5] = 3.25;
        row
    };
    write(&flat.base, &rows(500, 24, "f32", 8).into_iter().map(still).collect::<Vec<_>>(), "f32");
    let given = ["--centroids", arg(&centroids)];
    let found = ["--lists", "9"];
    for (data, lists, modes) in [
        (&one, &found, &["vector", "striped"][..]),
        (&crowded, &given, &["vector", "dimension", "striped"]),
        (&equal, &found, &["harmony", "striped"]),
        (&flat, &found, &["dimension", "striped"]),
    ] {
        let index = data.path("grid");
        let args =
            ["build", arg(&data.base), "-o", arg(&index), "--kind", "grid-ivf", "--calibration-queries", "0"];
        json(&[&args[..], lists].concat());
        let (here, there) = (data.path("here"), data.path("there"));
        search(&[arg(&index)], data, &here, &[]);
        for mode in modes {
            let folder = spread(data, &index, mode, &["--servers", "2", "--mode", mode]);
            assert!(run(&["verify", arg(&folder)]).status.success(), "{mode}");
            let up = Running::start(&["cluster", "up", arg(&folder), "--threads", "1"]);
            for switches in [&[][..], &["--no-pipeline"]] {
                search(&["--connect", &addresses(&up).join(",")], data, &there, switches);
                assert_eq!(read_answers(&here), read_answers(&there), "{mode}");
            }
        }
    }
    let index = one.path("grid");
    let folder = one.path("refused");
    let args =
        ["cluster", "partition", arg(&index), "-o", arg(&folder), "--servers", "2", "--mode", "dimension"];
    assert!(refused(&args, 2).contains("fewer servers"), "one component has one slice");
}
