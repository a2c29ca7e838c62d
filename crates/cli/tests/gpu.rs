//! `gpu-ivf` through the program: what it prints, what its techniques cost, what it refuses. The laboratory runs the
//! same tests with the baselines.
#![allow(missing_docs)]

mod common;

use std::path::{Path, PathBuf};

use common::*;
use serde_json::Value;

/// Baselines that give the answers of the static rule where all candidates are re-ranked.
const SAME: [&str; 8] =
    ["spann", "hi+pq", "hi+gpu", "hi+pq+gpu", "rummy-like", "mi-cpu", "mi-gpu", "static-n"];

/// Options that the program is given for files of baselines, which only the laboratory writes.
const BASELINES: &[&str] = if LAB { &["--baselines"] } else { &[] };

/// The baselines that the program has.
fn baselines(names: &[&'static str]) -> Vec<&'static str> {
    if LAB { names.to_vec() } else { Vec::new() }
}

fn built(data: &Data, name: &str, more: &[&str]) -> PathBuf {
    let index = data.path(name);
    let place = ["build", arg(&data.base), "-o", arg(&index), "--kind", "gpu-ivf", "--threads", "2"];
    let how =
        ["--code-bytes", "8", "--list-share", "0.05", "--epsilon", "0.3", "--calibration-queries", "60"];
    json(&[&place[..], &how, more].concat());
    index
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is no number"))
}

/// Searches without a cache and counts every read.
fn search(index: &Path, data: &Data, more: &[&str]) -> Value {
    let out = data.path("answers");
    let asked = ["search", arg(index), arg(&data.queries), "-o", arg(&out), "--force", "--threads", "2"];
    json(&[&asked[..], &COUNTED, more].concat())["runs"][0].clone()
}

/// As [`search`], with the ids and distances.
fn answers(index: &Path, data: &Data, more: &[&str]) -> (Value, (usize, Vec<u32>, Vec<f32>)) {
    let run = search(index, data, more);
    (run["per_query"].clone(), read_answers(&data.path("answers")))
}

#[test]
fn searches_report_what_they_cost() {
    let data = Data::new(3000, 24, "f32");
    let index = built(&data, "index", &[]);
    let truth = data.truth("l2");
    let known = ["--groundtruth", arg(&truth)];
    let by_recall = search(&index, &data, &[&known[..], &["--recall", "0.9"]].concat());
    assert!(number(&by_recall["recall"]) > 0.85, "{by_recall}");
    let run = search(
        &index,
        &data,
        &[&known[..], &["--nprobe", "20", "--candidates", "64", "--scorer", "cpu"]].concat(),
    );
    let (params, each) = (&run["params"], |key: &str| number(&run["per_query"][key]));
    assert_eq!(
        (&params["nprobe"], &params["candidates"], &params["rule"], &params["whole_blocks"]),
        (&20.into(), &64.into(), &"margin".into(), &true.into())
    );
    assert!(each("lists") == 20.0 && each("duplicates") > 0.0 && each("gpu_bytes") > 0.0, "{run}");
    assert!(each("mini_batches") > 0.0 && each("full_comparisons") > 0.0 && each("code_comparisons") > 0.0);
    assert_eq!((each("record_reads"), each("bytes_read")), (each("reads"), 4096.0 * each("pages_read")));
    assert_eq!(run["scorer"]["name"], "cpu", "{run}");
    assert!(number(&run["memory"]["codes_bytes"]) == 3000.0 * 8.0, "{run}");
    // Every vector is read and scored.
    let exact = search(&index, &data, &[&known[..], &["--recall", "1"]].concat());
    assert_eq!(number(&exact["recall"]), 1.0, "{exact}");
}

#[test]
fn info_explain_verify_and_tune_know_it() {
    let data = Data::new(2000, 24, "u8");
    let index = built(&data, "index", BASELINES);
    let info = json(&["info", arg(&index)]);
    let facts = &info["gpu"];
    assert_eq!(
        (&info["kind"], &facts["sizes"]["count"], &facts["baselines"]),
        (&"gpu-ivf".into(), &100.into(), &LAB.into())
    );
    assert!(number(&facts["replication"]) > 1.0 && number(&facts["replication"]) <= 8.0, "{facts}");
    let text = String::from_utf8(run(&["info", arg(&index)]).stdout).unwrap();
    assert!(text.contains("gpu-ivf") && text.contains("ids of lists"), "{text}");
    let report = json(&["verify", arg(&index)]);
    assert_eq!(
        (&report["violations_found"], &report["nodes"], &report["lists"]),
        (&0.into(), &2000.into(), &100.into())
    );

    // Without a switch, with each rule, and as each baseline: the trace has the counters and answers of a search.
    let effort = ["--nprobe", "12"];
    let mut ways = vec![vec![], vec!["--no-whole-blocks"]];
    ways.extend(["static", "changes", "margin"].map(|rule| vec!["--rule", rule]));
    let all = [&SAME[..], &["no-dedup", "no-layout"]].concat();
    ways.extend(baselines(&all).into_iter().map(|name| vec!["--baseline", name]));
    for way in ways {
        let how = [&effort[..], &way].concat();
        let trace = json(&[&["explain", arg(&index), arg(&data.queries), "--query", "0"], &how[..]].concat());
        let (_, (k, ids, _)) = answers(&index, &data, &[&how[..], &["--width", "1"]].concat());
        let results = trace["results"].as_array().unwrap();
        let traced: Vec<u32> = results.iter().map(|r| r["id"].as_u64().unwrap() as u32).collect();
        assert_eq!((&traced[..], &trace["complete"]), (&ids[..k], &true.into()), "{way:?}");
        let (lists, counters) = (trace["lists"].as_array().unwrap(), &trace["counters"]);
        assert_eq!(lists.len(), 12, "{way:?}");
        assert!(lists.iter().all(|list| number(&list["own"]) + number(&list["replicas"]) > 0.0));
        let batches = trace["batches"].as_array().unwrap();
        let reads: f64 = batches.iter().map(|batch| number(&batch["reads"])).sum();
        assert_eq!(reads, number(&counters["record_reads"]), "{way:?}: {trace}");
    }
    let text = String::from_utf8(run(&["explain", arg(&index), arg(&data.queries)]).stdout).unwrap();
    assert!(text.contains("mini-batch") && text.contains("bytes to the scorer"), "{text}");

    let tuned =
        json(&["tune", arg(&index), "-k", "10", "--sample", "60", "--recall", "0.8", "--threads", "2"]);
    assert_eq!((&tuned["version"], tuned["checks"].as_array().unwrap().len()), (&2.into(), 1), "{tuned}");
    assert!(run(&["verify", arg(&index)]).status.success());
}

#[test]
fn techniques_cost_less_and_do_not_change_answers() {
    let data = Data::new(3000, 24, "f32");
    let index = built(&data, "index", BASELINES);
    let all = ["--nprobe", "25", "--candidates", "3000"];
    let of = |more: &[&str]| answers(&index, &data, &[&all[..], more].concat());
    let (plain, wanted) = of(&["--rule", "static"]);
    let reads = |counters: &Value| number(&counters["reads"]);
    assert!(number(&plain["duplicates"]) > 0.0, "{plain}");
    for name in baselines(&SAME) {
        let scores_lists = matches!(name, "spann" | "hi+gpu" | "rummy-like");
        let all = if scores_lists { &all[..2] } else { &all[..] };
        let (counters, found) = answers(&index, &data, &[all, &["--baseline", name]].concat());
        assert_eq!(found.1, wanted.1, "{name}");
        let each = |key: &str| number(&counters[key]);
        match name {
            "spann" | "hi+gpu" => {
                assert!(each("reads") == 25.0 && each("record_reads") == 0.0, "{name}: {counters}");
                assert!(each("bytes_read") > number(&plain["bytes_read"]), "{name}: {counters}");
            }
            "rummy-like" => assert_eq!(each("reads"), 0.0, "{counters}"),
            "static-n" => assert_eq!(each("reads"), reads(&plain)),
            // A read for each candidate.
            _ => {
                assert_eq!(each("record_reads"), each("full_comparisons"), "{name}");
                assert!(each("reads") > 5.0 * reads(&plain), "{name}: {counters}");
            }
        }
        // Vectors or codes go to the GPU, not ids.
        if let "hi+gpu" | "rummy-like" | "hi+pq+gpu" = name {
            assert!(each("gpu_bytes") > number(&plain["gpu_bytes"]), "{name}: {counters}");
        }
    }

    let each =
        |more: &[&str]| search(&index, &data, &[&["--nprobe", "25"], more].concat())["per_query"].clone();
    let (fixed, changes, margin) =
        (each(&["--rule", "static"]), each(&["--rule", "changes"]), each(&["--rule", "margin"]));
    assert!(reads(&fixed) > reads(&changes) && reads(&fixed) > reads(&margin), "{fixed} {changes} {margin}");
    for key in ["reads_saved_in_batch", "reads_saved_across"] {
        assert!(number(&changes[key]) > 0.0, "{key}: {changes}");
    }
    for name in baselines(&["no-dedup", "no-layout"]) {
        assert!(reads(&each(&["--baseline", name])) > reads(&changes), "{name}");
    }
    // Whole blocks are more vectors by no more reads.
    let (whole, single) = (each(&[]), each(&["--no-whole-blocks"]));
    assert!(reads(&single) >= reads(&whole), "{single} {whole}");
    assert!(number(&single["full_comparisons"]) < number(&whole["full_comparisons"]), "{single} {whole}");
    // One that stops later reads more.
    let patient = each(&["--rule", "changes", "--beta", "4"]);
    assert!(number(&patient["mini_batches"]) > number(&changes["mini_batches"]), "{patient} {changes}");
}

#[test]
fn every_way_has_a_curve_where_baselines_were_built() {
    let data = Data::new(2000, 24, "f32");
    let (with, without) = (built(&data, "with", BASELINES), built(&data, "without", &[]));
    let truth = data.truth("l2");
    let asked = ["--recall", "0.8", "--groundtruth", arg(&truth)];
    for name in baselines(&[&SAME[..], &["no-dedup", "no-layout"]].concat()) {
        let run = search(&with, &data, &[&asked[..], &["--baseline", name]].concat());
        assert!(number(&run["recall"]) > 0.7, "{name}: {run}");
        if name != "no-dedup" {
            let line = refused(
                &[&["search", arg(&without), arg(&data.queries), "--baseline", name], &asked[..2]].concat(),
                2,
            );
            assert!(line.contains("build it with --baselines"), "{name}: {line}");
        }
    }
    // Every index has a curve of algorithm 1.
    let no_dedup = baselines(&["no-dedup"]).into_iter().map(|name| ["--baseline", name]);
    for how in [["--rule", "changes"]].into_iter().chain(no_dedup) {
        let run = search(&without, &data, &[&asked[..], &how[..]].concat());
        assert!(number(&run["recall"]) > 0.7, "{how:?}: {run}");
        assert!(number(&run["params"]["candidates"]) < 288.0, "{how:?}: {run}");
    }
    // Files of baselines are needed by some of them only.
    for name in baselines(&["spann", "rummy-like", "no-layout", "mi-cpu"]) {
        let needs = name != "mi-cpu";
        let asked = ["search", arg(&without), arg(&data.queries), "--nprobe", "5", "--baseline", name];
        let done = run(&asked);
        assert_eq!(done.status.code(), Some(if needs { 2 } else { 0 }), "{name}: {}", stderr(&done));
        assert!(!needs || stderr(&done).contains("build it with --baselines"), "{}", stderr(&done));
    }
}

#[test]
fn a_server_answers_as_the_index_does() {
    let data = Data::new(2000, 24, "f32");
    let index = built(&data, "index", &[]);
    let server = Running::serve(&index, &["--scorer", "cpu"]);
    let there = data.path("there");
    for effort in [&["--nprobe", "15"][..], &["--recall", "0.9"]] {
        let (counters, wanted) =
            answers(&index, &data, &[effort, &["--width", "1", "--scorer", "cpu"]].concat());
        let remote =
            ["search", "--connect", server.address(), arg(&data.queries), "-o", arg(&there), "--force"];
        let remote = json(&[&remote[..], effort, &["--width", "1"]].concat());
        assert_eq!(read_answers(&there), wanted);
        for key in ["reads", "lists", "duplicates", "mini_batches", "gpu_bytes"] {
            assert_eq!(remote["runs"][0]["per_query"][key], counters[key], "{key}");
        }
    }
    let query: Vec<u8> = data.query_rows[3].iter().flat_map(|&x| (x as f32).to_le_bytes()).collect();
    let (code, reply) = post(server.address(), "/v1/search?nprobe=15&k=5", &query);
    let ids = reply["answers"][0]["ids"].as_array().unwrap();
    let wanted = answers(&index, &data, &["--nprobe", "15", "-k", "5"]).1.1;
    let found: Vec<u32> = ids.iter().map(|id| id.as_str().unwrap().parse().unwrap()).collect();
    assert_eq!((code, &found[..]), (200, &wanted[15..20]), "{reply}");
    let (code, reply) = post(server.address(), "/v1/search?search_list=20", &query);
    assert!(code == 400 && reply["error"].as_str().unwrap().contains("gpu-ivf"), "{reply}");
    server.signal(libc::SIGTERM);
    assert_eq!(server.end().0, Some(0));
}

#[test]
fn wrong_options_of_a_build_are_refused() {
    let data = Data::new(400, 16, "f32");
    let index = data.path("index");
    let build = ["build", arg(&data.base), "-o", arg(&index), "--kind", "gpu-ivf"];
    for (more, said) in [
        (&["--epsilon", "-1"][..], "--epsilon is -1; give a share from 0 to 10"),
        (&["--list-share", "0"], "--list-share is 0; give a share above 0 and up to 1"),
        (&["--list-share", "1.5"], "--list-share is 1.5"),
        (&["--code-bytes", "5"], "--code-bytes is 5; use 6 to 25 for 16 dimensions"),
        (&["--code-bytes", "26"], "--code-bytes is 26"),
        (&["--code-kind", "opq"], "--code-kind is gone: every kind builds codes of bits"),
        (&["--ram-budget", "1MiB"], "too small to build this index"),
    ] {
        let line = refused(&[&build[..], more].concat(), 2);
        assert!(line.contains(said), "{line}");
        assert!(!index.exists(), "{more:?}");
    }
}

#[test]
fn wrong_options_of_a_search_are_refused() {
    let data = Data::new(600, 16, "f32");
    let index = built(&data, "index", &[]);
    let asked = ["search", arg(&index), arg(&data.queries)];
    for (more, said) in [
        (&["--candidates", "0"][..], "--candidates is 0; use 1 to 65536"),
        (&["--batch-size", "0"], "--batch-size is 0; use 1 to 1024"),
        (&["--batch-size", "2000"], "--batch-size is 2000"),
        (&["--epsilon-stop", "2"], "--epsilon-stop is 2; give a share from 0 to 1"),
        (&["--margin", "-2"], "--margin is -2; "),
        (&["--margin", "nan"], "--margin is NaN"),
        (&["--beta", "-1"], "--beta"),
        (&["--beta", "2"], "belong to --rule changes"),
        (&["--rule", "static", "--epsilon-stop", "0.1"], "belong to --rule changes"),
        (&["--rule", "changes", "--margin", "0.1"], "--margin belongs to --rule margin"),
        (&["--rule", "none"], "possible values: static, changes, margin"),
        (&["--no-bounds", "--rule", "margin"], "--no-bounds is for hybrid-ivf, and this index is a gpu-ivf"),
        (&["--scorer", "cpu", "--gpu-budget", "1GiB"], "leave them out with --scorer cpu"),
        (&["--scorer", "cpu", "--device", "0"], "leave them out with --scorer cpu"),
        (&["--scorer", "cpu", "--spill"], "leave them out with --scorer cpu"),
        (&["--no-early-tables"], "there is no option --no-early-tables"),
        (&["--gpu-budget", "much"], "KiB, MiB, GiB or TiB"),
        (&["--ram-budget", "1MiB"], "give --ram-budget"),
    ] {
        let line = refused(&[&asked[..], &["--nprobe", "5"], more].concat(), 2);
        assert!(line.contains(said), "{line}");
    }
    let of_lab = [
        (&["--baseline", "mi-cpu", "--beta", "2"][..], "belong to --rule changes"),
        (&["--baseline", "spann", "--rule", "margin"], "--baseline and --rule are both given"),
        (&["--baseline", "best"], "possible values: spann, hi+pq"),
    ];
    for (more, said) in of_lab {
        let line = refused(&[&asked[..], &["--nprobe", "5"], more].concat(), 2);
        assert!(!LAB || line.contains(said), "{line}");
    }
    let line = refused(&[&asked[..], &["--search-list", "20"]].concat(), 2);
    assert!(line.contains("this index is a gpu-ivf; give --nprobe instead"), "{line}");
    for args in [
        &["cluster", "partition", arg(&index), "-o", arg(&data.path("spread")), "--servers", "2"][..],
        &["replan", arg(&index), "--search-budget", "64MiB"],
        &["explain", arg(&index), "--plan"],
        &["serve", "--index", arg(&index), "--http", "127.0.0.1:0", "--scorer", "cpu", "--spill"],
    ] {
        let line = refused(args, 2);
        assert!(line.contains("gpu-ivf") || line.contains("--scorer cpu"), "{line}");
    }
    let config = data.path("server.toml");
    for (text, said) in [
        ("scorer = \"fpga\"", "use \"auto\", \"cuda\" or \"cpu\""),
        ("scorer = \"cpu\"\nspill = true", "leave them out with --scorer cpu"),
        ("early_tables = false", "early_tables"),
        ("gpu_budget = \"much\"", "gpu_budget is"),
    ] {
        std::fs::write(&config, format!("index = \"index\"\nhttp = \"127.0.0.1:0\"\n{text}")).unwrap();
        let line = refused(&["serve", "--config", arg(&config)], 2);
        assert!(line.contains(said), "{line}");
    }
}

#[test]
fn a_missing_gpu_is_an_error_where_it_is_asked_for() {
    let doctor = json(&["doctor"]);
    if doctor["gpus"].as_u64() != Some(0) {
        eprintln!("left out: this machine has a GPU");
        return;
    }
    let data = Data::new(600, 16, "f32");
    let index = built(&data, "index", &[]);
    // --spill is for codes that do not fit, not for a GPU that is missing.
    for more in [&["--scorer", "cuda"][..], &["--device", "0"], &["--scorer", "cuda", "--spill"]] {
        let line =
            refused(&[&["search", arg(&index), arg(&data.queries), "--nprobe", "5"], more].concat(), 2);
        assert!(line.contains("cannot be loaded") && line.contains("or use --scorer cpu"), "{line}");
        let serve = ["serve", "--index", arg(&index), "--http", "127.0.0.1:0"];
        assert!(refused(&[&serve[..], more].concat(), 2).contains("or use --scorer cpu"));
    }
    let other = data.path("other");
    json(&["build", arg(&data.base), "-o", arg(&other), "--kind", "flat"]);
    let line = refused(&["search", arg(&other), arg(&data.queries), "--scorer", "cuda"], 2);
    assert!(line.contains("this index is a flat; leave it out"), "{line}");
    let auto = search(&index, &data, &["--nprobe", "5", "--gpu-budget", "1GiB"]);
    assert_eq!(auto["scorer"]["name"], "cpu", "{auto}");
}

/// Codes that earlier programs trained are ranked by the processor, whatever a machine has.
#[test]
fn trained_codes_are_left_to_the_processor() {
    let old = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../cli/tests/data/format-4");
    let copy = folder();
    let index = copy.path().join("gpu-ivf");
    std::fs::create_dir(&index).unwrap();
    for (name, bytes) in files(&old.join("gpu-ivf")) {
        std::fs::write(index.join(name), bytes).unwrap();
    }
    let queries = old.join("query.fbin");
    let asked = ["search", arg(&index), arg(&queries), "--nprobe", "5"];
    for more in [&[][..], &["--scorer", "auto"], &["--scorer", "cpu"]] {
        let found = json(&[&asked[..], more].concat());
        assert_eq!(found["runs"][0]["scorer"]["name"], "cpu", "{found}");
        // What earlier programs took without a curve.
        assert_eq!(number(&found["runs"][0]["params"]["margin"]) as f32, 0.2, "{found}");
    }
    for more in [&["--scorer", "cuda"][..], &["--device", "0"], &["--scorer", "cuda", "--spill"]] {
        let said = refused(&[&asked[..], more].concat(), 2);
        assert!(said.contains("codes of this index are of the old form"), "{said}");
        assert!(said.contains("rebuild the index for a GPU; or use --scorer cpu"), "{said}");
    }
    let tune = ["tune", arg(&index), "-k", "10", "--sample", "40", "--recall", "0.8"];
    assert_eq!(json(&tune)["version"], 2);
    let margins = |point: &Value| point["stop"]["stop_margin"].as_f64().unwrap_or(0.0);
    let manifest: Value =
        serde_json::from_slice(&std::fs::read(index.join("manifest-2.json")).unwrap()).unwrap();
    let points = manifest["curves"].as_array().unwrap().iter().flat_map(|c| c["points"].as_array().unwrap());
    assert!(points.map(margins).all(|margin| margin <= 0.7), "shares, not standard errors");
}

#[test]
fn damage_names_the_file_that_has_it() {
    let data = Data::new(1500, 16, "f32");
    let index = built(&data, "index", BASELINES);
    let all = [
        ("v1-blocks.bin", "mi-cpu"),
        ("list-vectors.bin", "spann"),
        ("list-codes.bin", "hi+pq"),
        ("row-blocks.bin", "no-layout"),
    ];
    for (role, name) in &all[..if LAB { 4 } else { 1 }] {
        let path = file_of(&index, role);
        let good = std::fs::read(&path).unwrap();
        std::fs::write(&path, good.iter().map(|byte| byte ^ 1).collect::<Vec<u8>>()).unwrap();
        let baseline = if LAB { &["--baseline", name][..] } else { &[] };
        let asked = ["search", arg(&index), arg(&data.queries), "--nprobe", "20"];
        let done = run(&[&asked[..], baseline].concat());
        let said = stderr(&done);
        assert!(
            done.status.code() == Some(1) && said.contains(role) && said.contains("damaged"),
            "{role}: {said}"
        );
        let verified = run(&["verify", arg(&index)]);
        assert_eq!(verified.status.code(), Some(1), "{role}");
        assert!(String::from_utf8_lossy(&verified.stdout).contains(role), "{role}");
        std::fs::write(&path, good).unwrap();
    }
}

/// Counters of fixed searches depend on no machine; `golden.rs` says how they are written again.
#[test]
fn counters_of_gpu_indexes_are_those_of_the_golden_file() {
    let mut all = serde_json::Map::new();
    for (dtype, metric) in [("f32", "l2"), ("f32", "ip"), ("u8", "l2"), ("f16", "cosine"), ("i8", "ip")] {
        let data = Data::new(2000, 24, dtype);
        let index = data.path("gpu");
        let place = ["build", arg(&data.base), "-o", arg(&index), "--kind", "gpu-ivf"];
        let how = ["--code-bytes", "8", "--calibration-queries", "60", "--threads", "2"];
        json(&[&place[..], BASELINES, &["--metric", metric], &how].concat());
        let truth = data.truth(metric);
        let common = ["search", arg(&index), arg(&data.queries), "--groundtruth", arg(&truth)];
        let searches = [
            ("nprobe 4 and 20", &["--nprobe", "4,20"][..]),
            ("recall 0.9", &["--recall", "0.9"]),
            ("nprobe 20, single nodes", &["--nprobe", "20", "--no-whole-blocks", "--margin", "0.1"]),
            (
                "nprobe 20, changes",
                &["--nprobe", "20", "--rule", "changes", "--batch-size", "5", "--beta", "2"],
            ),
            ("nprobe 20, static", &["--nprobe", "20", "--rule", "static", "--candidates", "40"]),
            ("nprobe 20, spann", &["--nprobe", "20", "--baseline", "spann"]),
            ("nprobe 20, hi+pq+gpu", &["--nprobe", "20", "--baseline", "hi+pq+gpu", "--candidates", "40"]),
            ("nprobe 20, rummy-like", &["--nprobe", "20", "--baseline", "rummy-like"]),
            ("nprobe 20, mi-cpu", &["--nprobe", "20", "--baseline", "mi-cpu", "--candidates", "40"]),
            ("nprobe 20, no-layout", &["--nprobe", "20", "--baseline", "no-layout", "--candidates", "40"]),
        ];
        for &(name, more) in searches.iter().filter(|(_, more)| LAB || !more.contains(&"--baseline")) {
            let found = json(&[&common[..], &COUNTED, more].concat());
            let runs: Vec<Value> = found["runs"].as_array().unwrap().iter().map(counters).collect();
            all.insert(format!("{dtype} {metric}: {name}"), runs.into());
        }
    }
    compare(if LAB { "gpu-baselines.json" } else { "gpu.json" }, all);
}

#[test]
fn baselines_are_left_to_the_laboratory() {
    if LAB {
        return;
    }
    let data = Data::new(600, 16, "f32");
    let index = built(&data, "index", &[]);
    let (base, queries, other) = (arg(&data.base), arg(&data.queries), data.path("other"));
    let build = ["build", base, "-o", arg(&other), "--kind", "gpu-ivf", "--baselines"];
    assert!(refused(&build, 2).contains("stratann-lab build") && !other.exists());
    for command in ["search", "explain"] {
        for name in ["spann", "naive", "anything"] {
            let said = refused(&[command, arg(&index), queries, "--nprobe", "5", "--baseline", name], 2);
            assert!(said.contains("stratann-lab search") && said.contains(name), "{said}");
        }
    }
    for command in ["search", "build"] {
        let help = String::from_utf8(run(&[command, "--help"]).stdout).unwrap();
        assert!(!help.contains("--baseline <"), "{command}");
    }
}
