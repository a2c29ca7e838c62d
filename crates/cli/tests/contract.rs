//! The contract of the command line: JSON keys, exit codes, what goes to which stream.
#![allow(missing_docs)]

mod common;
use std::collections::BTreeSet;
use std::path::Path;

use common::*;
use serde_json::Value;
use stratann_engine::manifest::Manifest;

fn keys(value: &Value) -> BTreeSet<&str> {
    value.as_object().unwrap().keys().map(String::as_str).collect()
}

fn set<'a>(names: &[&'a str]) -> BTreeSet<&'a str> {
    names.iter().copied().collect()
}

#[test]
fn json_keys_are_stable() {
    let data = Data::new(1500, 16, "f32");
    let index = data.path("graph");
    let built = json(&data.build_args(&index));
    let expected = [
        "kind",
        "seconds",
        "peak_rss_bytes",
        "index_bytes",
        "stages",
        "rows",
        "skipped_rows",
        "facts",
        "unreached",
    ];
    assert_eq!(keys(&built), set(&expected));
    assert_eq!(built["rows"], 1500);

    let truth = data.truth("l2");
    let found = json(&[
        "search",
        arg(&index),
        arg(&data.queries),
        "--search-list",
        "20,20,40",
        // The width that follows the load differs from run to run.
        "--width",
        "4",
        "--cache-budget",
        "0",
        "--groundtruth",
        arg(&truth),
    ]);
    assert_eq!(keys(&found), set(&["index", "queries", "runs"]));
    let runs = found["runs"].as_array().unwrap();
    assert_eq!(runs.len(), 3, "equal settings are not merged");
    for run in runs {
        check_run(run);
        assert!(run["recall"].is_f64());
    }
    assert_eq!(exact_counters(&runs[0]), exact_counters(&runs[1]));
    let found = json(&["search", arg(&index), arg(&data.queries), "--cache-budget", "0"]);
    assert!(found["runs"][0]["recall"].is_null());

    let swept = json(&[
        "bench",
        arg(&index),
        arg(&data.queries),
        "--search-list",
        "20,40",
        "--in-flight",
        "1,8",
        "--rounds",
        "2",
    ]);
    assert_eq!(swept["runs"].as_array().unwrap().len(), 4);
    assert_eq!(swept["runs"][0]["qps_rounds"].as_array().unwrap().len(), 2);
}

fn check_run(run: &Value) {
    let expected = [
        "recall",
        "qps",
        "latency_us",
        "stage_us",
        "cpu_us",
        "queries",
        "failed_queries",
        "threads",
        "params",
        "per_query",
        "peak_rss_bytes",
        "ram_budget_bytes",
        "io_backend",
        "memory",
    ];
    assert_eq!(keys(run), set(&expected));
    assert_eq!(keys(&run["latency_us"]), set(&["mean", "p50", "p95", "p99"]));
    let stages: Vec<f64> = ["route", "access", "verify"].map(|s| run["stage_us"][s].as_f64().unwrap()).into();
    let mean = run["latency_us"]["mean"].as_f64().unwrap();
    assert!(stages.iter().all(|&s| s > 0.0) && (stages.iter().sum::<f64>() - mean).abs() < 0.001 * mean);
    let counters = [
        "code_comparisons",
        "repeats",
        "full_comparisons",
        "pruned",
        "reads",
        "pages_read",
        "bytes_read",
        "cache_hits",
        "hops",
        "hand_overs",
        "bytes_sent",
        "clusters",
        "fruitful_clusters",
        "lists",
        "pinned_hits",
        "result_clusters",
        "edge_reads",
        "record_reads",
        "expanded",
        "rescored",
        "resident_hits",
        "unreachable",
        "score_jobs",
        "score_rounds",
        "thresholds_sent",
        "query_bytes",
        "sum_bytes",
        "result_bytes",
        "gpu_bytes",
        "duplicates",
        "mini_batches",
        "reads_saved_in_batch",
        "reads_saved_across",
        "shared_reads",
        "round_trips",
        "vain_blocks",
        "gave_way",
        "seeds",
        "bounded",
        "components",
        "components_unpruned",
        "merged_bytes",
        "merged_reads",
    ];
    let per_query = &run["per_query"];
    assert_eq!(keys(per_query), set(&counters));
    let number = |key: &str| per_query[key].as_f64().unwrap();
    assert!(number("reads") >= 1.0 && number("code_comparisons") > 0.0 && number("full_comparisons") > 0.0);
    assert_eq!(number("bytes_read"), number("pages_read") * 4096.0);
    assert_eq!(number("hand_overs") + number("bytes_sent"), 0.0);
}

#[test]
fn what_a_cache_answers_is_not_read() {
    let data = Data::new(1500, 16, "f32");
    let index = data.build("graph", &[]);
    // Room for all blocks, but not for the graph as searches in memory use it.
    let blocks = &json(&["info", arg(&index)])["blocks"];
    let of_blocks = blocks["count"].as_u64().unwrap() * (blocks["bytes"].as_u64().unwrap() + 256);
    let of_blocks = of_blocks.to_string();
    let args = [
        "search",
        arg(&index),
        arg(&data.queries),
        "--search-list",
        "30,30",
        "--width",
        "1",
        "--rerank",
        "0",
        "--cache-budget",
        &of_blocks,
    ];
    let found = json(&args);
    let cold = json(&[&args[..9], &COUNTED].concat());
    let per_query = |d: &Value, run: usize, key: &str| d["runs"][run]["per_query"][key].as_f64().unwrap();
    assert_eq!(per_query(&found, 1, "reads"), 0.0, "the second run finds all in the cache");
    assert_eq!((per_query(&found, 1, "bytes_read"), per_query(&found, 1, "pages_read")), (0.0, 0.0));
    assert!((per_query(&found, 1, "cache_hits") - per_query(&cold, 0, "reads")).abs() < 1e-9);
}

#[test]
fn a_graph_in_memory_is_not_read_whatever_the_search() {
    let data = Data::new(1500, 16, "f32");
    let index = data.build("graph", &[]);
    let search = ["search", arg(&index), arg(&data.queries), "--search-list", "30", "--width", "2"];
    // A single query does not repay the move, unless it is asked for.
    let few = data.path("one.fbin");
    common::write(&few, &data.query_rows[..1], "f32");
    let one = |more: &[&str]| {
        let report =
            json(&[&["search", arg(&index), arg(&few), "--cache-budget", "32MiB"][..], more].concat());
        let per_query = &report["runs"][0]["per_query"];
        per_query["reads"].as_f64().unwrap() + per_query["cache_hits"].as_f64().unwrap()
    };
    assert!(one(&[]) > 0.0 && one(&["--preload"]) == 0.0);
    for more in [&["--rerank", "0"][..], &["--patience", "3"], &["--no-whole-blocks"]] {
        let found = |cache: &str| {
            let out = data.path(&format!("{}-{cache}", more.concat()));
            let last = ["--cache-budget", cache, "-o", arg(&out)];
            let report = json(&[&search[..], more, &last].concat());
            let per_query = &report["runs"][0]["per_query"];
            let [reads, compared] =
                [&["reads", "cache_hits", "pages_read"][..], &["full_comparisons", "hops"]]
                    .map(|keys| keys.iter().map(|&key| per_query[key].as_f64().unwrap()).collect::<Vec<_>>());
            (reads, compared, read_answers(&out))
        };
        let (on_disk, in_memory) = (found("0"), found("32MiB"));
        assert!(on_disk.0[0] > 0.0 && in_memory.0 == [0.0; 3], "{more:?}: {:?}", in_memory.0);
        assert_eq!((on_disk.1, on_disk.2), (in_memory.1, in_memory.2), "{more:?}");
    }
}

#[test]
fn other_commands_speak_json_too() {
    let data = Data::new(1500, 16, "f32");
    let index = data.build("graph", &[]);
    let info = json(&["info", arg(&index)]);
    assert_eq!(
        (&info["rows"], &info["dim"], &info["dtype"], &info["kind"]),
        (&1500.into(), &16.into(), &"f32".into(), &"disk-graph".into())
    );
    let report = json(&["verify", arg(&index)]);
    assert_eq!((&report["violations_found"], &report["nodes"]), (&0.into(), &1500.into()));

    let trace = json(&["explain", arg(&index), arg(&data.queries), "--query", "7", "--search-list", "30"]);
    let out = data.path("out");
    json(&["search", arg(&index), arg(&data.queries), "--search-list", "30", "-o", arg(&out)]);
    let (k, ids, _) = read_answers(&out);
    let told: Vec<u64> = trace["ids"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap()).collect();
    assert_eq!(
        told,
        ids[7 * k..8 * k].iter().map(|&id| u64::from(id)).collect::<Vec<_>>(),
        "explain runs the same search"
    );
    let rounds = trace["rounds"].as_array().unwrap();
    let reads: usize = rounds.iter().map(|r| r["reads"].as_array().unwrap().len()).sum();
    assert_eq!(trace["counters"]["reads"].as_f64(), Some(reads as f64));
    assert!(
        rounds.iter().all(|r| r["reads"]
            .as_array()
            .unwrap()
            .iter()
            .all(|read| read["asked_by"]["node"].is_u64()))
    );

    let doctor = json(&["doctor", "--path", arg(data.folder.path())]);
    assert!(
        doctor["disk"]["iops"].as_f64().unwrap() > 0.0
            && doctor["disk"]["latency_us"].as_f64().unwrap() > 0.0
    );
    assert!(doctor["cores"].as_u64().unwrap() > 0);
}

#[test]
fn a_profile_is_measured_kept_and_shown() {
    let folder = tempfile::tempdir().unwrap();
    let quick = ["--seconds", "0.2", "--scratch", "4MiB"];
    let profile = |rest: &[&str]| run(&[&["profile"], rest].concat());
    let measured = json(&[&["profile", arg(folder.path())], &quick[..]].concat());
    let parts = ["file", "differs", "format_version", "origin", "seconds", "measurement", "disk", "compute"];
    assert_eq!(keys(&measured), set(&parts));
    assert!(measured["differs"].is_null() && measured["disk"]["latency_us"].as_f64().unwrap() > 0.0);
    let file = folder.path().join("stratann-profile.json");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "the scratch file is gone");

    assert_eq!(json(&["profile", "--show", arg(&file)]), measured);
    let shown = profile(&["--show", arg(&file)]);
    assert!(shown.status.success());
    let words = String::from_utf8(shown.stdout).unwrap();
    assert!(words.contains("sequential reads") && words.contains("codes, per byte"), "{words}");

    let other = folder.path().join("other.json");
    std::fs::write(&other, "{}").unwrap();
    let error = refused(&["profile", arg(folder.path()), "-o", arg(&other), "--force"], 2);
    assert!(error.contains("no profile"), "{error}");
    refused(&["profile", "--show", arg(&other)], 2);
    refused(&["profile", arg(&folder.path().join("nowhere"))], 2);
    refused(&["profile", arg(folder.path()), "--seconds", "0"], 2);
    refused(&["profile", "--show", arg(&file), "--seconds", "3"], 2);
    std::fs::write(&file, &std::fs::read(&file).unwrap()[..100]).unwrap();
    refused(&["profile", "--show", arg(&file)], 1);
}

/// Publishes the index with curves that reach less.
fn lower_curves(index: &Path) {
    let (number, mut manifest) = Manifest::read(index).unwrap();
    for point in manifest.curves.iter_mut().flat_map(|curve| &mut curve.points) {
        (point.recall, point.hardest) = (0.8 * point.recall, point.hardest.map(|hardest| 0.8 * hardest));
    }
    manifest.publish(index, number + 1).unwrap();
}

#[test]
fn a_recall_that_calibration_does_not_reach_is_noted() {
    let data = Data::new(1500, 16, "f32");
    for kind in ["disk-graph", "hybrid-ivf", "grid-ivf", "gpu-ivf", "remote-hnsw"] {
        let index = data.path(kind);
        let place = ["build", arg(&data.base), "-o", arg(&index), "--kind", kind, "--threads", "2"];
        let built = json(&[&place[..], &["--calibration-queries", "60"]].concat());
        // Beams of a remote-hnsw end at a length that misses some of the hardest queries of this set.
        assert!(kind == "remote-hnsw" || built["unreached"] == serde_json::json!([]), "{kind}: {built}");
        lower_curves(&index);
        let info = json(&["info", arg(&index)]);
        let unreached = info["unreached"].as_array().unwrap();
        assert!(unreached.len() == 3 && unreached[1]["k"] == 10 && unreached[1]["asked"] == 0.95, "{info}");
        let shown = String::from_utf8(run(&["info", arg(&index)]).stdout).unwrap();
        assert_eq!(shown.matches("recall 0.95 asked, 0.").count(), 3, "{shown}");
        if kind == "remote-hnsw" {
            continue;
        }
        let asked = ["search", arg(&index), arg(&data.queries), "--recall"];
        let said = |recalls: &str| stderr(&run(&[&asked[..], &[recalls]].concat()));
        let note = said("0.6,0.95");
        assert_eq!(note.matches("recall 0.95 asked, 0.").count(), 1, "{kind}: {note}");
        assert!(note.contains("stratann tune") && note.contains("this search is exact"), "{kind}: {note}");
        assert!(!said("0.6").contains(" asked, ") && !said("1").contains(" asked, "), "{kind}");
    }
}

#[test]
fn a_build_says_what_calibration_does_not_reach() {
    // Among thousands of equal vectors a graph finds other ones than the exact search.
    let data = Data::new(1, 16, "f32");
    let (base, index) = (data.path("equal.fbin"), data.path("graph"));
    write(&base, &vec![data.base_rows[0].clone(); 6000], "f32");
    let place = ["build", arg(&base), "-o", arg(&index), "--kind", "disk-graph", "--threads", "2"];
    let output = run(&[&place[..], &["--calibration-queries", "60", "--json"]].concat());
    let built: Value = serde_json::from_slice(&output.stdout).unwrap();
    let found = built["unreached"].as_array().unwrap();
    assert!(found.iter().any(|u| u["k"] == 100 && u["reached"].as_f64().unwrap() < 0.9), "{built}");
    let said = stderr(&output);
    assert!(said.contains("for k 100") && said.contains("build with more --code-bytes"), "{said}");
}

#[test]
fn streams_and_exit_codes() {
    let data = Data::new(1500, 16, "f32");
    let index = data.path("graph");
    let output = run(&data.build_args(&index));
    assert_eq!(output.status.code(), Some(0));
    assert!(stderr(&output).contains("of RAM") && stderr(&output).contains("of disk"), "{}", stderr(&output));
    let output = run(&["search", arg(&index), arg(&data.queries), "--quiet"]);
    assert!(output.stderr.is_empty() && !output.stdout.is_empty());

    assert_eq!(run(&["--help"]).status.code(), Some(0));
    assert_eq!(run(&["--version"]).status.code(), Some(0));
    assert_eq!(run(&["search", "--help"]).status.code(), Some(0));
    assert_eq!(run(&[]).status.code(), Some(2));
    let error = refused(&["search", arg(&index), arg(&data.queries), "--nonsense"], 2);
    assert!(error.contains("--nonsense"), "{error}");
    refused(&["build", arg(&data.base), "-o", arg(&index)], 2);
    refused(&["search", arg(&index), arg(&data.queries), "--recall", "0.9", "--search-list", "10"], 2);

    let output = run(&["search", arg(&data.path("nowhere")), arg(&data.queries), "--json"]);
    assert_eq!(output.status.code(), Some(2));
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(keys(&document), set(&["error", "kind"]));
}

#[test]
fn help_and_completions_name_every_command() {
    let help = String::from_utf8(run(&["--help"]).stdout).unwrap();
    for name in [
        "build",
        "search",
        "groundtruth",
        "tune",
        "replan",
        "info",
        "verify",
        "explain",
        "bench",
        "cluster",
        "collection",
        "serve",
        "simulate",
        "doctor",
        "profile",
        "completions",
    ] {
        assert!(help.contains(&format!("\n  {name}")), "{name}");
        assert!(run(&[name, "--help"]).status.success(), "{name}");
    }
    for shell in ["bash", "zsh", "fish"] {
        let script = run(&["completions", shell]);
        assert!(
            script.status.success() && String::from_utf8(script.stdout).unwrap().contains("groundtruth"),
            "{shell}"
        );
    }
}

#[test]
fn a_reader_that_goes_away_is_no_accident() {
    let mut child = command(&["completions", "bash"])
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(output.stderr.is_empty(), "{}", stderr(&output));
}

#[test]
fn queries_of_another_kind_than_the_rows_are_told_to_expect_less() {
    let data = Data::new(2000, 16, "f32");
    let index = data.build("graph", &[]);
    let far = data.path("far.fbin");
    let spread: Vec<Vec<f64>> =
        data.query_rows.iter().map(|row| row.iter().map(|x| 2.0 * x).collect()).collect();
    write(&far, &spread, "f32");
    let said = |queries: &Path, effort: [&str; 2]| {
        let output = run(&[&["search", arg(&index), arg(queries)], &effort[..]].concat());
        assert!(output.status.success(), "{}", stderr(&output));
        stderr(&output).matches("times as far").count()
    };
    assert_eq!(said(&data.queries, ["--recall", "0.9"]), 0);
    assert_eq!(said(&far, ["--recall", "0.9,0.8"]), 1);
    assert_eq!(said(&far, ["--search-list", "30"]), 0);
}

#[test]
fn the_kind_is_chosen_and_why_is_told() {
    let data = Data::new(300, 16, "f32");
    let index = data.path("index");
    let built = run(&["build", arg(&data.base), "-o", arg(&index), "--kind", "auto"]);
    let text = stderr(&built);
    assert!(built.status.success() && text.contains("--kind auto: flat: flat takes about "), "{text}");
    assert_eq!(json(&["info", arg(&index)])["kind"], "flat");
}

#[test]
fn generated_vectors_depend_on_their_options_alone() {
    let folder = folder();
    let made = |name: &str, shape: &str, more: &[&str]| {
        let to = folder.path().join(name);
        json(
            &[&["bench", "generate", shape, "-o", arg(&to), "--dim", "40", "--queries", "7"], more].concat(),
        );
        let read = |file: &str| std::fs::read(to.join(file)).unwrap();
        (read("base.fbin"), read("query.fbin"))
    };
    for shape in ["gaussian", "series"] {
        let few = made(&format!("{shape}-few"), shape, &["--rows", "20"]);
        let more = made(&format!("{shape}-more"), shape, &["--rows", "30"]);
        let other = made(&format!("{shape}-other"), shape, &["--rows", "20", "--seed", "2"]);
        assert_eq!(few.0.len(), 8 + 20 * 40 * 4);
        assert_eq!((&few.0[8..], &few.1), (&more.0[8..few.0.len()], &more.1), "rows are not of the others");
        assert!(few.0 != other.0 && few.1 != other.1);
        assert!(few.0[8..8 + 160] != few.1[8..8 + 160], "queries are no rows");
    }
    let to = folder.path().join("series-few");
    let again = ["bench", "generate", "series", "-o", arg(&to), "--dim", "40", "--rows", "20"];
    assert!(refused(&again, 2).contains("--force"));
}

#[test]
fn studies_name_the_command_of_the_laboratory() {
    for study in ["ablation", "codes", "cost"] {
        for more in [&[][..], &["--help"], &["--groundtruth", "truth", "base", "queries"]] {
            let said = refused(&[&["bench", study], more].concat(), 2);
            assert!(said.contains(&format!("stratann-lab {study}")) && said.contains("make lab"), "{said}");
        }
    }
}
