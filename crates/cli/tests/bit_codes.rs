//! Codes of bits on the command line: equal on every machine, searched, partitioned, checked and refused.
#![allow(missing_docs)]

mod common;

use std::path::Path;

use common::*;

const QUICK: [&str; 2] = ["--calibration-queries", "0"];

/// Options of lists with codes of bits.
fn lists<'a>(more: &[&'a str]) -> Vec<&'a str> {
    [&["--kind", "hybrid-ivf", "--profile", profile()], &QUICK[..], more].concat()
}

/// Ids and distances of a search, as bytes.
fn answers(data: &Data, index: &Path, more: &[&str]) -> Vec<u8> {
    let out = data.path("answers");
    let asked = ["search", arg(index), arg(&data.queries), "-o", arg(&out), "--force"];
    json(&[&asked[..], more].concat());
    std::fs::read(out).unwrap()
}

fn recall(data: &Data, index: &std::path::Path, metric: &str, list: &str) -> f64 {
    let truth = data.truth(metric);
    let asked =
        ["search", arg(index), arg(&data.queries), "--groundtruth", arg(&truth), "--search-list", list];
    json(&asked)["runs"][0]["recall"].as_f64().unwrap()
}

#[test]
fn files_are_equal_on_every_instruction_set_and_with_any_threads() {
    let data = Data::new(1500, 40, "f32");
    let first = data.build("first", &[&QUICK[..], &["--threads", "1"]].concat());
    for (name, isa, threads) in [("scalar", "scalar", "2"), ("avx2", "avx2", "1"), ("best", "", "2")] {
        let index = data.path(name);
        let options = [&data.build_args(&index)[..], &QUICK, &["--threads", threads]].concat();
        let made = command(&options).env("STRATANN_ISA", isa).output().unwrap();
        assert!(made.status.success(), "{}", stderr(&made));
        assert_same_files(&first, &index);
    }
    // Answers are equal as well.
    let answers = |isa: &str| {
        let asked = [
            "search",
            arg(&first),
            arg(&data.queries),
            "--search-list",
            "30",
            "--width",
            "1",
            "--cache-budget",
            "0",
            "--threads",
            "1",
            "--json",
        ];
        let found = command(&asked).env("STRATANN_ISA", isa).output().unwrap();
        exact_counters(&serde_json::from_slice::<serde_json::Value>(&found.stdout).unwrap()["runs"][0])
    };
    assert_eq!(answers("scalar"), answers(""));
}

#[test]
fn every_metric_and_place_of_codes_finds_the_nearest() {
    for dtype in ["f32", "u8"] {
        let data = Data::new(2000, 24, dtype);
        for metric in ["l2", "ip", "cosine"] {
            for place in ["ram", "disk"] {
                let name = format!("{dtype}-{metric}-{place}");
                let more = ["--metric", metric, "--codes", place];
                let index = data.build(&name, &[&QUICK[..], &more].concat());
                let found = recall(&data, &index, metric, "60");
                assert!(found > 0.93, "{name}: {found}");
                assert!(run(&["verify", arg(&index)]).status.success(), "{name}");
            }
        }
    }
}

#[test]
fn more_bits_find_more_with_the_same_list() {
    let data = Data::new(2000, 64, "f32");
    let found: Vec<f64> = ["8", "21", "69"]
        .iter()
        .map(|bytes| {
            let index = data.build(bytes, &[&QUICK[..], &["--code-bytes", bytes]].concat());
            recall(&data, &index, "l2", "14")
        })
        .collect();
    assert!(found[0] < found[1] && found[1] < found[2], "{found:?}");
}

#[test]
fn a_partition_answers_as_the_whole_index() {
    let data = Data::new(2000, 24, "f32");
    let index = data.build("whole", &QUICK);
    let asked =
        ["simulate", arg(&index), arg(&data.queries), "--servers", "3", "--search-list", "30", "--no-times"];
    let found = json(&asked);
    assert_eq!(found["runs"][0]["failed_queries"].as_u64(), Some(0), "{found:#}");
    let spread = data.path("spread");
    json(&["cluster", "partition", arg(&index), "-o", arg(&spread), "--servers", "3"]);
    assert!(run(&["verify", arg(&spread)]).status.success());
}

#[test]
fn sets_of_any_size_are_encoded() {
    for (rows, dim) in [(1, 1), (2, 3), (20, 100), (255, 2), (257, 96)] {
        let data = Data::new(rows, dim, "f32");
        let index = data.build(&format!("of-{rows}-{dim}"), &QUICK);
        let asked = ["search", arg(&index), arg(&data.queries), "--search-list", "300", "-k", "1"];
        assert_eq!(json(&asked)["runs"][0]["failed_queries"], 0, "{rows} {dim}");
    }
}

#[test]
fn what_cannot_be_is_refused() {
    let data = Data::new(300, 16, "f32");
    let index = data.path("none");
    let build = |more: &[&'static str]| refused(&[&data.build_args(&index)[..], more].concat(), 2);
    assert!(build(&["--code-bytes", "4"]).contains("use 6 to "));
    assert!(build(&["--code-bytes", "4000"]).contains("use 6 to "));
    let gone = "--code-kind is gone: every kind builds codes of bits after a rotation, which need no training; choose \
                their size by --code-bytes";
    for kind in ["disk-graph", "hybrid-ivf", "gpu-ivf", "auto"] {
        for more in [&["--code-kind", "pq"][..], &["--code-kind=residual-opq"], &["--code-kind", "bits"]] {
            let args = [&["build", arg(&data.base), "-o", arg(&index), "--kind", kind][..], more].concat();
            assert!(refused(&args, 2).contains(gone), "{kind} {more:?}");
        }
    }
    assert!(!index.exists());
    // A damaged coder is an error that names its file.
    damage(&data, &data.build("sound", &QUICK), "codebook.bin", ["--search-list", "20"]);
}

/// Changes bytes of a file of an index, each of which makes a search an error that names the file.
fn damage(data: &Data, index: &std::path::Path, name: &str, effort: [&str; 2]) {
    let file = file_of(index, name);
    let bytes = std::fs::read(&file).unwrap();
    for at in [0, 4, 13, bytes.len() - 1] {
        let mut damaged = bytes.clone();
        damaged[at] ^= 0xff;
        std::fs::write(&file, damaged).unwrap();
        let asked = [&["search", arg(index), arg(&data.queries)][..], &effort].concat();
        assert!(refused(&asked, 1).contains(name));
    }
    std::fs::write(&file, bytes).unwrap();
}

/// Builds a `gpu-ivf` with codes of bits.
fn gpu_ivf(data: &Data, name: &str, more: &[&str]) -> std::path::PathBuf {
    let index = data.path(name);
    let place = ["build", arg(&data.base), "-o", arg(&index), "--kind", "gpu-ivf"];
    json(&[&place[..], &QUICK, more].concat());
    index
}

#[test]
fn a_gpu_ivf_finds_the_nearest_under_every_metric() {
    for dtype in ["f32", "u8"] {
        let data = Data::new(2000, 24, dtype);
        for metric in ["l2", "ip", "cosine"] {
            let name = format!("gpu-{dtype}-{metric}");
            let more = ["--metric", metric, "--code-bytes", "11"];
            let index = gpu_ivf(&data, &name, &[&more[..], &["--threads", "1"]].concat());
            let again = gpu_ivf(&data, &format!("{name}-again"), &[&more[..], &["--threads", "2"]].concat());
            assert_same_files(&index, &again);
            let truth = data.truth(metric);
            let asked = ["search", arg(&index), arg(&data.queries), "--groundtruth", arg(&truth)];
            let effort = ["--nprobe", "60", "--rule", "static", "--candidates", "60", "--scorer", "cpu"];
            let answers = json(&[&asked[..], &effort].concat());
            let found = &answers["runs"][0];
            assert!(found["recall"].as_f64().unwrap() > 0.93, "{name}: {found}");
            let codes_bytes = found["memory"]["codes_bytes"].as_f64().unwrap();
            assert!(codes_bytes > 2000.0 * 8.0 && codes_bytes <= 2000.0 * 11.0, "{found}");
            assert!(found["per_query"]["gpu_bytes"].as_f64().unwrap() > 1032.0, "{found}");
            assert!(run(&["verify", arg(&index)]).status.success(), "{name}");
        }
    }
}

/// Sets the first rows to zeros, one row several times, and one far away.
fn make_odd(data: &mut Data, dtype: &str) {
    let far = match dtype {
        "f32" => 1e6,
        "f16" => 6e4,
        "u8" => 255.0,
        _ => -128.0,
    };
    let (count, dim) = (data.base_rows.len(), data.base_rows[0].len());
    for row in 0..count.min(3) {
        data.base_rows[row] = vec![0.0; dim];
    }
    for row in 4..count.min(9) {
        data.base_rows[row] = data.base_rows[3].clone();
    }
    if count > 1 {
        data.base_rows[count - 1] = vec![far; dim];
    }
    write(&data.base, &data.base_rows, dtype);
}

#[test]
fn strict_bounds_of_lists_change_no_answer() {
    for (dtype, _) in DTYPES {
        for (rows, dim) in [(1, 3), (2, 1), (20, 100), (255, 2), (257, 96)] {
            let mut data = Data::new(rows, dim, dtype);
            for metric in METRICS {
                if metric == "l2" {
                    make_odd(&mut data, dtype);
                }
                // A zero has no direction; one row of zeros would be no row.
                let skip = ["--on-bad-row", "skip"];
                if metric == "cosine" && rows <= 3 {
                    continue;
                }
                let index = data.build(metric, &lists(&[&["--metric", metric], &skip[..]].concat()));
                assert!(run(&["verify", arg(&index)]).status.success(), "{dtype} {metric} {rows} {dim}");
                for nprobe in ["1", "3", "65536"] {
                    let asked = [
                        "--nprobe",
                        nprobe,
                        "--no-early-stop",
                        "--order",
                        "centroid",
                        "--local-lists",
                        "65536",
                    ];
                    let strict = answers(&data, &index, &asked);
                    let off = answers(&data, &index, &[&asked[..], &["--no-bounds"]].concat());
                    assert!(strict == off, "{dtype} {metric} {rows} {dim} {nprobe}");
                }
            }
        }
    }
}

#[test]
fn every_local_index_has_them() {
    let data = Data::new(1500, 24, "f32");
    let nearest = nearest(&data.base_rows, &data.query_rows, "l2", 10);
    for plan in ["uniform-flat", "uniform-ivf", "uniform-graph"] {
        let index = data.build(plan, &lists(&["--plan", plan, "--clusters", "8"]));
        assert!(run(&["verify", arg(&index)]).status.success(), "{plan}");
        let all = ["--nprobe", "65536", "--local-lists", "65536", "--local-list", "2000"];
        answers(&data, &index, &all);
        let (k, ids, _) = read_answers(&data.path("answers"));
        for (found, want) in ids.chunks(k).zip(&nearest) {
            assert!(found.iter().zip(want).all(|(&id, want)| id as usize == want.1), "{plan}");
        }
        // What is learnt and what bounds leave out changes no answer.
        let learnt =
            answers(&data, &index, &[&all[..], &["--epoch-queries", "10", "--threads", "1"]].concat());
        assert_eq!(learnt, answers(&data, &index, &[&all[..], &["--no-learning"]].concat()), "{plan}");
    }
}

#[test]
fn lists_are_equal_on_every_instruction_set_and_with_any_threads() {
    let data = Data::new(1500, 40, "f32");
    let first = data.build("first", &lists(&["--threads", "1"]));
    for (name, isa, threads) in [("scalar", "scalar", "2"), ("avx2", "avx2", "1"), ("best", "", "2")] {
        let index = data.path(name);
        let place = ["build", arg(&data.base), "-o", arg(&index)];
        let options = [&place[..], &lists(&["--threads", threads])].concat();
        let made = command(&options).env("STRATANN_ISA", isa).output().unwrap();
        assert!(made.status.success(), "{}", stderr(&made));
        assert_same_files(&first, &index);
    }
}

#[test]
fn lists_are_calibrated_explained_and_partitioned() {
    let data = Data::new(3000, 24, "f32");
    let index = data.build("index", &lists(&["--clusters", "40"]));
    let info = json(&["info", arg(&index)]);
    // Twelve bytes of levels, and two factors of 16 or 32 bits.
    assert_eq!(info["clusters"]["code_bytes"], 20, "{info:#}");
    json(&["explain", arg(&index), arg(&data.queries), "--nprobe", "3"]);
    let truth = data.truth("l2");
    json(&["tune", arg(&index), "-k", "10", "--sample", "120", "--recall", "0.9"]);
    let asked = ["search", arg(&index), arg(&data.queries), "--groundtruth", arg(&truth), "--recall", "0.9"];
    assert!(json(&asked)["runs"][0]["recall"].as_f64().unwrap() > 0.85);
    let simulated =
        ["simulate", arg(&index), arg(&data.queries), "--servers", "3", "--nprobe", "8", "--no-times"];
    assert_eq!(json(&simulated)["runs"][0]["failed_queries"].as_u64(), Some(0));
    let spread = data.path("spread");
    json(&["cluster", "partition", arg(&index), "-o", arg(&spread), "--servers", "3"]);
    assert!(run(&["verify", arg(&spread)]).status.success());
}

#[test]
fn damage_to_lists_is_an_error() {
    let data = Data::new(600, 16, "f32");
    let index = data.build("index", &lists(&["--clusters", "6"]));
    for (role, step) in [("codebook.bin", 9), ("lists.bin", 4001), ("nav.bin", 601)] {
        let file = file_of(&index, role);
        let bytes = std::fs::read(&file).unwrap();
        for at in (0..bytes.len()).step_by(step) {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0xff;
            std::fs::write(&file, damaged).unwrap();
            let asked = ["search", arg(&index), arg(&data.queries), "--nprobe", "65536", "--no-learning"];
            let found = run(&asked);
            assert!(matches!(found.status.code(), Some(0 | 1)), "{role} {at}: {}", stderr(&found));
            assert!(
                found.status.success() || stderr(&found).contains(role),
                "{role} {at}: {}",
                stderr(&found)
            );
        }
        std::fs::write(&file, bytes).unwrap();
    }
}

#[test]
fn a_gpu_ivf_of_any_size_is_built_and_one_that_is_damaged_is_refused() {
    for (rows, dim) in [(1, 1), (2, 3), (20, 100), (255, 2), (257, 96)] {
        let data = Data::new(rows, dim, "f32");
        let index = gpu_ivf(&data, &format!("gpu-of-{rows}-{dim}"), &[]);
        let asked = ["search", arg(&index), arg(&data.queries), "--nprobe", "300", "-k", "1"];
        let run = &json(&asked)["runs"][0];
        assert_eq!(run["failed_queries"], 0, "{rows} {dim}");
    }
    let data = Data::new(600, 16, "u8");
    let none = data.path("none");
    let build = ["build", arg(&data.base), "-o", arg(&none), "--kind", "gpu-ivf"];
    for bytes in ["4", "4000"] {
        assert!(refused(&[&build[..], &["--code-bytes", bytes]].concat(), 2).contains("use 6 to "));
    }
    for bytes in ["6", "12", "25"] {
        let index = gpu_ivf(&data, bytes, &["--code-bytes", bytes]);
        damage(&data, &index, "codebook.bin", ["--nprobe", "20"]);
        damage(&data, &index, "codes.bin", ["--nprobe", "20"]);
        assert!(run(&["verify", arg(&index)]).status.success());
    }
}

#[test]
fn a_gpu_ivf_is_calibrated_and_searched_by_recall() {
    let data = Data::new(3000, 24, "f32");
    let index = gpu_ivf(&data, "calibrated", &["--calibration-queries", "60"]);
    let truth = data.truth("l2");
    for recall in ["0.9", "1"] {
        let asked =
            ["search", arg(&index), arg(&data.queries), "--groundtruth", arg(&truth), "--recall", recall];
        let found = json(&asked)["runs"][0]["recall"].as_f64().unwrap();
        assert!(found > 0.85 && (recall != "1" || found == 1.0), "{recall}: {found}");
    }
    let trace = json(&["explain", arg(&index), arg(&data.queries), "--query", "0", "--nprobe", "12"]);
    assert_eq!(trace["complete"], true, "{trace}");
}
