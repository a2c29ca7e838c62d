//! `stratann cluster partition`: its JSON, its refusals, and what other commands make of the folder.
#![allow(missing_docs)]

mod common;

use common::*;

fn partition<'a>(index: &'a str, out: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    [&["cluster", "partition", index, "-o", out, "--threads", "2"], more].concat()
}

#[test]
fn an_index_is_spread_checked_and_described() {
    let data = Data::new(3000, 16, "f32");
    let index = data.build("graph", &["--nodes-per-block", "8"]);
    let before = files(&index);
    let out = data.path("spread");
    let document = json(&partition(arg(&index), arg(&out), &["--servers", "5", "--replicas", "2"]));
    for key in ["seconds", "peak_rss_bytes", "cut_share", "largest_over_mean", "overlap", "copies", "blocks"]
    {
        assert!(document[key].is_number(), "{key}: {document}");
    }
    assert_eq!((&document["servers"], &document["replicas"]), (&5.into(), &2.into()));
    assert_eq!(document["method"], "cells");
    assert!(document["stages"]["write"].is_number());
    let sizes: Vec<u64> =
        document["server_bytes"].as_array().unwrap().iter().map(|b| b.as_u64().unwrap()).collect();
    assert_eq!(sizes.iter().sum::<u64>(), document["copies"].as_u64().unwrap() * 4096);
    assert_eq!(files(&index), before, "the source is left as it was");

    let info = json(&["info", arg(&out)]);
    assert_eq!(info["cluster"]["servers"], 5);
    assert_eq!(info["cluster"]["source"], json(&["info", arg(&index)])["build_id"]);
    assert_eq!(info["left_over"].as_array().unwrap().len(), 0);
    assert!(String::from_utf8(run(&["info", arg(&out)]).stdout).unwrap().contains("over 5 servers by cells"));
    assert_eq!(json(&["verify", arg(&out)])["violations_found"], 0);
    let error = refused(&["search", arg(&out), arg(&data.queries)], 2);
    assert!(error.contains("partitioned over 5 servers"), "{error}");

    let part = file_of(&out, "blocks-03.bin");
    let mut bytes = std::fs::read(&part).unwrap();
    bytes[5000] ^= 1;
    std::fs::write(&part, bytes).unwrap();
    let output = run(&["verify", arg(&out)]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.code() == Some(1) && text.contains("blocks-03.bin, block"), "{text}");
}

#[test]
fn a_server_with_half_of_the_memory_gets_half_of_the_blocks() {
    let data = Data::new(3000, 16, "f32");
    let index = data.build("graph", &["--nodes-per-block", "8"]);
    let blocks = json(&["info", arg(&index)])["rows"].as_u64().unwrap() / 8;
    for (method, replicas) in [("cells", "1"), ("cells", "2"), ("random", "1")] {
        let out = data.path(&format!("spread-{method}-{replicas}"));
        let more = ["--servers", "4", "--capacities", "2,2,2,1", "--method", method, "--replicas", replicas];
        let document = json(&partition(arg(&index), arg(&out), &more));
        let sizes: Vec<f64> =
            document["server_bytes"].as_array().unwrap().iter().map(|b| b.as_f64().unwrap()).collect();
        let total: f64 = sizes.iter().sum();
        for (size, capacity) in sizes.iter().zip([2.0, 2.0, 2.0, 1.0]) {
            let share = size / total / (capacity / 7.0);
            assert!((0.8..1.1).contains(&share), "{method}, {replicas}: {sizes:?}");
        }
        assert!(total / 4096.0 >= blocks as f64, "{sizes:?}");
        assert_eq!(json(&["verify", arg(&out)])["violations_found"], 0);
    }
}

#[test]
fn lists_are_spread_checked_and_described() {
    let data = Data::new(2000, 16, "f32");
    let index = data.path("lists");
    let build =
        ["build", arg(&data.base), "-o", arg(&index), "--kind", "hybrid-ivf", "--plan", "uniform-ivf"];
    json(&[&build[..], &["--clusters", "20", "--calibration-queries", "0", "--threads", "2"]].concat());
    let before = files(&index);
    let out = data.path("spread");
    let document = json(&partition(arg(&index), arg(&out), &["--servers", "4", "--replicas", "2"]));
    for key in ["seconds", "peak_rss_bytes", "cut_share", "largest_over_mean", "overlap", "copies", "blocks"]
    {
        assert!(document[key].is_number(), "{key}: {document}");
    }
    let info = json(&["info", arg(&out)]);
    assert_eq!((&document["unit"], &document["blocks"]), (&"lists".into(), &info["clusters"]["lists"]));
    let held = info["cluster"]["held"].as_array().unwrap();
    let copies: u64 = held.iter().map(|lists| lists.as_u64().unwrap()).sum();
    assert_eq!((document["copies"].as_u64(), held.len()), (Some(copies), 4));
    assert_eq!(copies, 2 * document["blocks"].as_u64().unwrap());
    assert_eq!(files(&index), before, "the source is left as it was");
    let text = String::from_utf8(run(&["info", arg(&out)]).stdout).unwrap();
    assert!(text.contains("lists each, 2 replicas of a list"), "{text}");
    let verified = json(&["verify", arg(&out)]);
    assert_eq!((&verified["violations_found"], &verified["lists"]), (&0.into(), &document["blocks"]));
    let again = data.path("again");
    let output = run(&partition(arg(&index), arg(&again), &["--servers", "4"]));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("lists on 4 servers") && text.contains("of the edges between lists"), "{text}");
    let refusal = |more: &[&str]| refused(&partition(arg(&index), arg(&data.path("no")), more), 2);
    assert!(refusal(&["--servers", "3", "--overlap", "0.2"]).contains("--overlap is for disk-graph"));
    assert!(refusal(&["--servers", "21"]).contains("20 clusters"));
    assert!(refusal(&["--servers", "3", "--scatter-gather"]).contains("--scatter-gather is for disk-graph"));
    assert!(refusal(&["--servers", "3", "--ram-budget", "1MiB"]).contains("--ram-budget"));
    assert!(!data.path("no").exists());
    let part = file_of(&out, "lists-03.bin");
    let mut bytes = std::fs::read(&part).unwrap();
    bytes[5000] ^= 1;
    std::fs::write(&part, bytes).unwrap();
    let output = run(&["verify", arg(&out)]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.code() == Some(1) && text.contains("lists-03.bin, list"), "{text}");
}

#[test]
fn what_cannot_be_is_refused() {
    let data = Data::new(1200, 16, "f32");
    let index = data.build("graph", &[]);
    let out = data.path("spread");
    let refusal = |more: &[&str]| {
        let error = refused(&partition(arg(&index), arg(&out), more), 2);
        assert!(!out.exists(), "{error}");
        error
    };
    assert!(refusal(&["--servers", "0"]).contains("servers is 0"));
    assert!(refusal(&["--servers", "65"]).contains("servers is 65"));
    assert!(refusal(&["--servers", "3", "--replicas", "4"]).contains("replicas is 4"));
    assert!(refusal(&["--servers", "3", "--overlap", "-0.1"]).contains("overlap is -0.1"));
    for (capacities, more, said) in [
        ("2,1", &[][..], "2 capacities for 3 servers"),
        ("2,1,0", &[], "a capacity is 0"),
        ("2,NaN,1", &[], "--capacities is NaN"),
        ("9,1,1", &["--replicas", "2"], "server 0 has 82 % of the capacity"),
        ("2,2,1", &["--method", "kmeans"], "--method cells"),
    ] {
        let refused = refusal(&[&["--servers", "3", "--capacities", capacities], more].concat());
        assert!(refused.contains(said), "{capacities}: {refused}");
    }
    assert!(refusal(&["--servers", "3", "--method", "guess"]).contains("guess"));
    assert!(refusal(&["--servers", "3", "--ram-budget", "1MiB"]).contains("--ram-budget"));
    assert!(refusal(&[]).contains("--servers"));
    let nowhere = data.path("nowhere");
    assert!(refused(&partition(arg(&nowhere), arg(&out), &["--servers", "3"]), 2).contains("no such index"));

    let flat = data.path("flat");
    json(&["build", arg(&data.base), "-o", arg(&flat), "--kind", "flat"]);
    assert!(
        refused(&partition(arg(&flat), arg(&out), &["--servers", "3"]), 2)
            .contains("kind flat; these can be partitioned over servers: disk-graph, hybrid-ivf, grid-ivf")
    );
    json(&partition(arg(&index), arg(&out), &["--servers", "3"]));
    assert!(refused(&partition(arg(&index), arg(&out), &["--servers", "4"]), 2).contains("--force"));
    assert_eq!(json(&["info", arg(&out)])["cluster"]["servers"], 3);
    json(&partition(arg(&index), arg(&out), &["--servers", "4", "--force"]));
    assert_eq!(json(&["info", arg(&out)])["cluster"]["servers"], 4);
}

#[test]
fn a_simulated_cluster_reads_what_one_server_reads() {
    let data = Data::new(3000, 16, "f32");
    let index = data.build("graph", &["--nodes-per-block", "8"]);
    let asked = ["--search-list", "30"];
    let counted = ["--width", "1", "--cache-budget", "0"];
    let one = json(&[&["search", arg(&index), arg(&data.queries)], &counted[..], &asked[..]].concat());
    let simulate = |more: &[&str]| {
        json(&[&["simulate", arg(&index), arg(&data.queries)], &asked[..], more].concat())["runs"].clone()
    };
    let counter = |run: &serde_json::Value, key: &str| run["per_query"][key].as_f64().unwrap();
    let runs = simulate(&["--servers", "1,5", "--method", "random"]);
    for run in runs.as_array().unwrap() {
        for key in ["reads", "hops", "full_comparisons"] {
            assert_eq!(counter(run, key), counter(&one["runs"][0], key), "{key}");
        }
        let met = |run| counter(run, "code_comparisons") + counter(run, "repeats");
        assert!((met(run) - met(&one["runs"][0])).abs() < 1e-6);
        assert_eq!(run["failed_queries"], 0);
    }
    assert_eq!(counter(&runs[0], "hand_overs") + counter(&runs[0], "bytes_sent"), 0.0);
    assert!(
        counter(&runs[1], "hand_overs") > 1.0 && runs[1]["bytes_per_hand_over"].as_f64().unwrap() > 100.0
    );
    let copied = simulate(&["--servers", "5", "--method", "random", "--replicas", "3"]);
    assert!(counter(&copied[0], "hand_overs") < counter(&runs[1], "hand_overs"));
    let home = simulate(&["--servers", "5", "--method", "random", "--results", "origin"]);
    assert_eq!(home[0]["per_query"]["reads"], runs[1]["per_query"]["reads"]);
    assert!(home[0]["messages_per_query"].as_f64() > runs[1]["messages_per_query"].as_f64());
    let nearest = simulate(&["--servers", "5", "--method", "random", "--entry", "nearest"]);
    assert!(counter(&nearest[0], "hand_overs") < counter(&runs[1], "hand_overs"));
    for (more, said) in [(["--servers", "0"], "servers is 0"), (["--servers", "65"], "servers is 65")] {
        let error = refused(&[&["simulate", arg(&index), arg(&data.queries)], &more[..]].concat(), 2);
        assert!(error.contains(said), "{error}");
    }
    let wide = ["simulate", arg(&index), arg(&data.queries), "--servers", "2", "--width", "0"];
    assert!(refused(&wide, 2).contains("--width is 0"));
}
