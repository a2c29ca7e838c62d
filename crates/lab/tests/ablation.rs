//! Ablations, costs and codes.
#![allow(missing_docs)]

#[path = "../../cli/tests/common/mod.rs"]
mod common;

use common::*;

fn number(value: &serde_json::Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is no number"))
}

#[test]
fn every_technique_is_compared() {
    let data = Data::new(2000, 16, "f32");
    let (truth, out, profile) = (data.truth("l2"), data.path("indexes"), data.path("profile.json"));
    let folder = data.base.parent().unwrap();
    json(&["profile", arg(folder), "--seconds", "0.2", "--scratch", "4MiB", "-o", arg(&profile)]);
    let plot = data.path("ablation.svg");
    let args = ["ablation", arg(&data.base), arg(&data.queries), "--groundtruth", arg(&truth)];
    let more = ["-o", arg(&out), "--profile", arg(&profile), "--clusters", "40", "--epoch-queries", "10"];
    let found = json(&[&args[..], &more, &["--recall", "0.5,0.8", "--plot", arg(&plot)]].concat());
    let names = |part: &str| -> Vec<String> {
        found[part].as_array().unwrap().iter().map(|s| s["name"].as_str().unwrap().to_string()).collect()
    };
    assert_eq!(
        names("local_indexes"),
        ["auto", "uniform-flat", "uniform-graph", "uniform-ivf", "auto again"]
    );
    assert_eq!(names("pruning")[0], "all");
    assert!(names("pruning").iter().any(|n| n == "no bounds"));
    let reads = |at: usize| number(&found["pruning"][at]["points"][0]["kib_read"]);
    assert!(reads(names("pruning").len() - 1) > reads(0), "without bounds more is read");
    let epochs = found["learning"].as_array().unwrap();
    assert!(epochs.len() >= 2, "{found}");
    for epoch in epochs {
        assert!(
            (0.0..=1.0).contains(&number(&epoch["precision"])) && (0.0..=1.0).contains(&number(&epoch["f1"]))
        );
    }
    let svg = std::fs::read_to_string(&plot).unwrap();
    assert!(svg.starts_with("<svg") && svg.contains("local indexes") && svg.trim_end().ends_with("</svg>"));
    // The indexes are there now.
    let again = run(&[&args[..], &more, &["--recall", "0.5"]].concat());
    assert!(stderr(&again).contains("is used again"), "{}", stderr(&again));
    assert!(String::from_utf8(again.stdout).unwrap().contains("uniform-graph"));
    let wrong = run(&[&args[..], &more, &["--recall", "1.5"]].concat());
    assert!(!wrong.status.success() && stderr(&wrong).contains("shares from 0 to 1"), "{}", stderr(&wrong));
}

/// Costs of a simulation, so that its times do not depend on this machine.
const COSTS: &str = r#"{"threads": 2, "prepare_ns": 2000, "step_ns": 500, "read_ns": 0, "route_comparison_ps": 20000,
    "code_comparison_ps": 0, "full_comparison_ps": 0, "component_ps": 500, "message_ns": 3000, "message_byte_ps": 200,
    "disk_iops": 1000.0, "disk_latency_us": 1.0, "network_latency_us": 20.0, "network_gbps": 25.0}"#;

/// Rows of a part of the document with these values.
fn rows_with<'v>(part: &'v serde_json::Value, wanted: &[(&str, &str)]) -> Vec<&'v serde_json::Value> {
    let is_wanted = |row: &&serde_json::Value| wanted.iter().all(|(key, value)| row[key] == *value);
    part.as_array().unwrap().iter().filter(is_wanted).collect()
}

fn check_one_server(found: &serde_json::Value) {
    for recall in [0.6, 1.0] {
        let all: Vec<_> = found["one_server"].as_array().unwrap().iter().collect();
        let at: Vec<_> = all.into_iter().filter(|row| row["asked"] == recall).collect();
        let components = |name: &str| {
            let row = at.iter().find(|row| row["name"] == name).unwrap();
            number(&row["components"])
        };
        assert_eq!(at.len(), 5);
        assert!(at.iter().all(|row| row["recall"] == at[0]["recall"] && number(&row["recall"]) >= recall));
        assert!(components("all") < components("no pruning"));
        // The first threshold may be too high to prune anything, and vectors that are scored first count.
        assert!(components("all") <= components("no pruning by vectors"));
        assert!(components("no pruning by vectors") < 1.2 * components("no pruning"));
        assert_eq!(components("no pruning by dimensions"), components("no pruning"));
        assert!(components("no prewarming") != components("all"));
    }
    let numbers = |of: &serde_json::Value| of.as_array().unwrap().iter().map(number).collect::<Vec<f64>>();
    let dropped = numbers(&found["survival"]["dropped_before"]);
    assert!(
        dropped.len() == 4 && dropped.is_sorted() && dropped[0] == 0.0 && dropped[3] > 0.0,
        "{dropped:?}"
    );
    let stability = &found["stability"];
    let spread = ["least", "p5", "median", "p95", "most"].map(|name| number(&stability[name]));
    assert!(spread.is_sorted() && (spread[0]..=spread[4]).contains(&number(&stability["mean"])));
}

fn check_servers(found: &serde_json::Value) {
    // Two recalls on two servers in four modes; one on four servers, which may have two slices, too.
    assert_eq!(found["even"].as_array().unwrap().len(), 13);
    for row in rows_with(&found["even"], &[]) {
        let slices = match row["name"].as_str().unwrap() {
            "vector" | "striped" => 1,
            "dimension" => row["servers"].as_u64().unwrap(),
            _ => row["slices"].as_u64().unwrap(),
        };
        assert_eq!(row["slices"], slices, "{row}");
        assert!(number(&row["speed_up_unpruned"]) > number(&row["speed_up"]), "{row}");
        assert!(number(&row["qps"]) > 0.0 && number(&row["blocking_qps"]) > 0.0);
        let share = number(&row["largest_share"]) * number(&row["servers"]);
        assert!((share - number(&row["largest_over_mean"])).abs() < 1e-9, "{row}");
    }
    let load = rows_with(&found["loads"], &[("load", "skew-0.9")])[0];
    assert!(load["servers"] == 2 && number(&load["expected"]) > 0.5, "{load}");
    let zipf = rows_with(&found["loads"], &[("load", "zipf")])[0];
    assert!(zipf["expected"].is_null() && zipf["asked"].is_null(), "{zipf}");
    let nprobe = &load["nprobe"];
    let share = |part: &str| {
        let rows = rows_with(&found[part], &[("name", "vector")]);
        let row = rows.into_iter().find(|row| row["servers"] == 2 && &row["nprobe"] == nprobe).unwrap();
        number(&row["largest_share"])
    };
    assert!(share("skewed") > share("even"), "one server has more of a skewed load");
    assert_eq!(
        found["choices"].as_array().unwrap().len(),
        7,
        "two recalls on two servers, one on four; two skewed loads on both"
    );
}

fn check_techniques(found: &serde_json::Value) {
    let rows = rows_with(&found["techniques"], &[]);
    let names: Vec<&str> = rows.iter().map(|row| row["name"].as_str().unwrap()).collect();
    let variants =
        ["no pruning by vectors", "no pruning by dimensions", "no pruning", "no prewarming"].as_slice();
    let is_sliced = rows[0]["slices"] != 1;
    let order: &[&str] = if is_sliced { &["no pipeline"] } else { &["no chain"] };
    assert_eq!(names, [&["all", "blocking", "no balance"], order, variants].concat());
    let components = |name: &str| number(&rows.iter().find(|row| row["name"] == name).unwrap()["components"]);
    assert!(components("all") < components("no pruning"));
    assert!(components("all") <= components("no pruning by vectors"));
    assert_eq!(components("no pruning by dimensions"), components("no pruning"));
    assert_eq!(rows[1]["qps"], rows[0]["blocking_qps"]);
    let divisions = rows_with(&found["divisions"], &[]);
    assert_eq!(divisions.len(), 8);
    for division in divisions {
        assert!(number(&division["largest_bytes"]) < number(&division["all_bytes"]), "{division}");
        assert!(number(&division["over_vectors"]) > 1.0, "{division}");
        let has_peak = division["servers"] == 2;
        assert_eq!(division["peak_bytes"].as_u64().is_some_and(|bytes| bytes > 1 << 20), has_peak);
    }
}

#[test]
fn all_ways_to_divide_a_grid_are_compared() {
    let data = Data::new(3000, 128, "f32");
    let (truth, out, costs) = (data.truth("l2"), data.path("grid"), data.path("costs.json"));
    std::fs::write(&costs, format!(r#"{{"costs": {COSTS}}}"#)).unwrap();
    let plot = data.path("grid.svg");
    let args = ["ablation", arg(&data.base), arg(&data.queries), "--groundtruth", arg(&truth)];
    let more = ["-o", arg(&out), "--kind", "grid-ivf", "--clusters", "40", "--threads", "2"];
    let simulated = ["--costs", arg(&costs), "--servers", "2,4", "--skew", "0.9", "--recall", "0.6,1"];
    let all = [&args[..], &more, &simulated].concat();
    let found = json(&[&all[..], &["--plot", arg(&plot)]].concat());
    assert_eq!((&found["lists"], &found["dim"]), (&40.into(), &128.into()));
    assert!(number(&found["build"]["train"]) > 0.0 && number(&found["build"]["add"]) > 0.0);
    check_one_server(&found);
    check_servers(&found);
    check_techniques(&found);
    let svg = std::fs::read_to_string(&plot).unwrap();
    assert!(svg.contains("skewed loads") && svg.trim_end().ends_with("</svg>"));
    // Counters are those of a search.
    let last = rows_with(&found["one_server"], &[("name", "all")])[1];
    let nprobe = last["nprobe"].to_string();
    let index = out.join("grid.idx");
    let searched = json(&["search", arg(&index), arg(&data.queries), "--nprobe", &nprobe]);
    assert_eq!(last["components"], searched["runs"][0]["per_query"]["components"]);
    // The index is there now, and forced modes do not depend on the machine.
    let again = json(&all);
    assert_eq!(again["build"], found["build"]);
    for mode in ["vector", "dimension"] {
        let of = |document: &serde_json::Value| {
            let rows = rows_with(&document["even"], &[("name", mode)]);
            rows.into_iter().cloned().collect::<Vec<_>>()
        };
        assert_eq!(of(&again), of(&found));
    }
    let text = String::from_utf8(run(&all).stdout).unwrap();
    assert!(text.contains("no balance") && text.contains("peak memory"), "{text}");
}

#[test]
fn options_of_the_other_kind_are_refused() {
    let data = Data::new(300, 16, "f32");
    let (truth, out) = (data.truth("l2"), data.path("grid"));
    let args = ["ablation", arg(&data.base), arg(&data.queries), "--groundtruth", arg(&truth)];
    let of = |more: &[&str]| refused(&[&args[..], &["-o", arg(&out)], more].concat(), 2);
    for (more, words) in [
        (&["--kind", "grid-ivf", "--ram-budget", "1GiB"][..], "--ram-budget is not for grid-ivf"),
        (&["--kind", "grid-ivf", "--profile", "p.json"], "--profile is not for grid-ivf"),
        (&["--kind", "grid-ivf", "--epoch-queries", "5"], "--epoch-queries is not for grid-ivf"),
        (&["--kind", "grid-ivf", "--nprobe", "5"], "--nprobe is not for grid-ivf"),
        (&["--servers", "4"], "--servers is not for hybrid-ivf"),
        (&["--skew", "0.5"], "--skew is not for hybrid-ivf"),
        (&["--costs", "c.json"], "--costs is not for hybrid-ivf"),
        (&["--kind", "grid-ivf", "--servers", "1"], "--servers is 1; use 2 to 64"),
        (&["--kind", "grid-ivf", "--skew", "1.5"], "--skew is 1.5"),
        (&["--kind", "grid-ivf", "--recall", "2"], "shares from 0 to 1"),
    ] {
        let said = of(more);
        assert!(said.contains(words), "{more:?}: {said}");
    }
    assert!(!out.exists(), "nothing was begun");
}

fn check_gpu_ways(found: &serde_json::Value, recalls: &[f64]) {
    let ways = rows_with(&found["ways"], &[]);
    assert_eq!(ways.len(), 13 * recalls.len());
    for way in &ways {
        assert!(number(&way["recall"]) >= number(&way["asked"]), "{way}");
        let needs_gpu = way["name"].as_str().unwrap().ends_with("(bytes counted only)");
        assert_eq!(needs_gpu, ["qps", "blocking_qps", "latency_us"].iter().all(|time| way[time].is_null()));
        assert!(needs_gpu || number(&way["qps"]) > 0.0 && number(&way["blocking_qps"]) > 0.0, "{way}");
        assert!(number(&way["pages"]) >= number(&way["reads"]), "{way}");
        let is_in_ram = way["name"] == "rummy-like (bytes counted only)";
        assert_eq!(number(&way["reads"]) == 0.0, is_in_ram, "{way}");
    }
    for &asked in recalls {
        let at = |name: &str| {
            let is_it = |way: &str| way.strip_suffix(" (bytes counted only)").unwrap_or(way) == name;
            let own = ways.iter().find(|way| is_it(way["name"].as_str().unwrap()) && way["asked"] == asked);
            *own.unwrap_or_else(|| panic!("{name} at {asked}"))
        };
        assert_eq!(number(&at("spann")["qps_over_spann"]), 1.0);
        // One family gives equal answers, by equal settings.
        for (one, other) in [("spann", "hi+gpu"), ("spann", "rummy-like"), ("hi+pq", "hi+pq+gpu")] {
            assert_eq!(at(one)["recall"], at(other)["recall"]);
            assert_eq!(at(one)["setting"], at(other)["setting"]);
        }
        assert_eq!(at("static")["recall"], at("mi-cpu")["recall"]);
        assert_eq!(at("changes")["recall"], at("no-dedup")["recall"]);
        assert!(number(&at("static")["reads"]) <= number(&at("mi-cpu")["reads"]));
        assert!(number(&at("changes")["reads"]) <= number(&at("no-dedup")["reads"]));
        assert!(number(&at("spann")["reads"]) == number(&at("spann")["setting"]["nprobe"]));
        assert!(number(&at("hi+gpu")["gpu_bytes"]) > number(&at("mi-gpu")["gpu_bytes"]));
    }
}

fn check_gpu_saved(found: &serde_json::Value, recalls: &[f64]) {
    let saved = rows_with(&found["saved"], &[]);
    assert_eq!(saved.len(), 2 * recalls.len());
    for row in &saved {
        let [made, by_rule, by_sharing, both] =
            ["reads", "saved_by_rule", "saved_by_sharing", "saved"].map(|name| number(&row[name]));
        let all = number(&row["static_reads"]);
        assert!(
            (made + by_rule + by_sharing - all).abs() < 1e-9 && (by_rule + by_sharing - both).abs() < 1e-9
        );
        assert!((number(&row["candidates"]) - made - by_sharing).abs() < 1e-9 && by_sharing >= 0.0, "{row}");
        if let Some(n) = row["static_n"].as_u64() {
            // A candidate a read, at most n of them; and it is no worse than the rule.
            assert!(all <= n as f64 && number(&row["static_recall"]) >= number(&row["recall"]), "{row}");
        }
    }
    assert_eq!(rows_with(&found["saved_mean"], &[]).len(), 2);
    let needed = &found["needed"];
    let shares: Vec<f64> =
        needed["complete"].as_array().unwrap().iter().map(|pair| number(&pair[1])).collect();
    assert!(shares.is_sorted() && shares.last() == Some(&1.0), "{needed}");
    assert!(number(&needed["p50"]) <= number(&needed["p95"]) && number(&needed["mean"]) > 0.0, "{needed}");
    assert_eq!(rows_with(&found["sweep"], &[]).len(), 48);
}

fn check_gpu_threads(found: &serde_json::Value) {
    for name in ["spann", "default", "mi-cpu"] {
        let rows = rows_with(&found["threads"], &[("name", name)]);
        let (simulated, measured): (Vec<_>, Vec<_>) =
            rows.into_iter().partition(|row| row["simulated"].as_bool().unwrap());
        assert_eq!(measured.iter().map(|row| number(&row["threads"])).collect::<Vec<_>>(), [1.0, 2.0]);
        assert!(measured.iter().all(|row| number(&row["qps"]) > 0.0 && row["stage_us"].is_object()));
        assert_eq!(simulated.len(), 7);
        assert!(number(&simulated[6]["qps"]) >= number(&simulated[0]["qps"]), "64 threads do as much as one");
    }
}

fn check_cost(index: &std::path::Path, ablation: &std::path::Path) {
    let cost = json(&["cost", arg(index), "--ablation", arg(ablation), "--rows", "1000000000"]);
    let systems = rows_with(&cost["systems"], &[]);
    let names: Vec<&str> = systems.iter().map(|system| system["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["spann", "rummy-like", "gpu-ivf", "mi-cpu"]);
    for system in systems {
        for (place, bytes) in [("ram", "ram_bytes"), ("gpu", "gpu_bytes"), ("ssd", "ssd_bytes")] {
            let parts = rows_with(&system["parts"], &[("place", place)]);
            assert_eq!(parts.iter().map(|part| number(&part["bytes"])).sum::<f64>(), number(&system[bytes]));
        }
        let dollars = ["server_dollars", "ram_dollars", "gpu_dollars", "ssd_dollars"];
        let sum: f64 = dollars.iter().map(|name| number(&system[name])).sum();
        assert!((sum - number(&system["dollars"])).abs() < 1e-6);
        let ram = number(&system["ram_bytes"]) / 1e9;
        assert!((number(&system["ram_dollars"]) - 10.0 * ram).abs() < 1e-6);
        // Without a GPU there is no throughput of what needs one.
        if system["name"] == "rummy-like" {
            assert!(system["qps"].is_null() && system["qps_a_dollar"].is_null(), "{system}");
            continue;
        }
        assert!((number(&system["qps_a_dollar"]) * sum - number(&system["qps"])).abs() < 1e-6);
        assert!((number(&system["qps_a_ram_gb"]) * ram - number(&system["qps"])).abs() < 1e-6);
    }
    // The index's own codes, a thousand million over three thousand times.
    let code = rows_with(&cost["systems"][2]["parts"], &[("what", "codes")])[0];
    assert_eq!(number(&code["bytes"]), 1e9 * number(&code["bytes_a_vector"]));
    let text = String::from_utf8(run(&["cost", arg(index), "--qps", "spann=10"]).stdout).unwrap();
    assert!(text.contains("2.35/1.40 = 1.68") && text.contains("at least 1.68"), "{text}");
    let wrong = refused(&["cost", arg(index), "--qps", "diskann=10"], 2);
    assert!(wrong.contains("--qps diskann=10: write SYSTEM=QPS"), "{wrong}");
    let wrong = refused(&["cost", arg(index), "--ram-gb-price=-1"], 2);
    assert!(wrong.contains("--ram-gb-price is -1"), "{wrong}");
    let wrong = refused(&["cost", arg(index), "--ablation", arg(ablation), "--recall", "0.1"], 2);
    assert!(wrong.contains("no way at a recall of 0.1"), "{wrong}");
}

#[test]
fn a_gpu_index_is_compared_with_other_systems() {
    let data = Data::new(3000, 32, "u8");
    let (truth, index, costs) = (data.truth("l2"), data.path("gpu.idx"), data.path("costs.json"));
    std::fs::write(&costs, format!(r#"{{"costs": {COSTS}}}"#)).unwrap();
    let (base, queries) = (arg(&data.base), arg(&data.queries));
    let build = ["build", base, "-o", arg(&index), "--kind", "gpu-ivf", "--calibration-queries", "0"];
    json(&[&build[..], &["--baselines"]].concat());
    let plot = data.path("gpu.svg");
    let args = ["ablation", "--kind", "gpu-ivf", arg(&index), queries, "--groundtruth", arg(&truth)];
    let more = ["--recall", "0.6,0.8", "--threads", "1,2", "--costs", arg(&costs), "--sample", "20"];
    let found = json(&[&args[..], &more, &["--svg", arg(&plot)]].concat());
    check_gpu_ways(&found, &[0.6, 0.8]);
    check_gpu_saved(&found, &[0.6, 0.8]);
    check_gpu_threads(&found);
    let svg = std::fs::read_to_string(&plot).unwrap();
    assert!(svg.contains("QPS over spann") && svg.trim_end().ends_with("</svg>"));
    // A fixed number of candidates that is smaller by one misses the recall.
    let fixed = rows_with(&found["ways"], &[("name", "static")])[1];
    let [nprobe, n] = ["nprobe", "candidates"].map(|name| fixed["setting"][name].as_u64().unwrap());
    let recall = |n: u64| {
        let numbers = [nprobe, n].map(|number| number.to_string());
        let search = ["search", arg(&index), queries, "--groundtruth", arg(&truth), "--rule", "static"];
        let found = json(&[&search[..], &["--nprobe", &numbers[0], "--candidates", &numbers[1]]].concat());
        number(&found["runs"][0]["recall"])
    };
    assert_eq!(recall(n), number(&fixed["recall"]));
    assert!(n == 10 || recall(n - 1) < 0.8);
    let ablation = data.path("ablation.json");
    std::fs::write(&ablation, found.to_string()).unwrap();
    check_cost(&index, &ablation);
    let codes = json(&["codes", arg(&index), queries, "--nprobe", "8", "--rounds", "1"]);
    assert!(codes["code_bytes"] == 32 && number(&codes["ns_a_code"]) > 0.0, "{codes}");
}

#[test]
fn what_no_gpu_ablation_can_be_made_of_is_refused() {
    let data = Data::new(300, 32, "u8");
    let (truth, flat, plain) = (data.truth("l2"), data.path("flat.idx"), data.path("plain.idx"));
    let base = arg(&data.base);
    json(&["build", base, "-o", arg(&flat), "--kind", "flat"]);
    let quick = ["--calibration-queries", "0"];
    json(&[&["build", base, "-o", arg(&plain), "--kind", "gpu-ivf"][..], &quick].concat());
    let of = |index: &std::path::Path, truth: &std::path::Path, more: &[&str]| {
        let args = ["ablation", "--kind", "gpu-ivf", arg(index), arg(&data.queries)];
        refused(&[&args[..], &["--groundtruth", arg(truth)], more].concat(), 2)
    };
    for (said, words) in [
        (of(&flat, &truth, &[]), "is of kind flat; give an index of kind gpu-ivf"),
        (of(&plain, &truth, &[]), "build it with --baselines"),
        (of(&plain, &truth, &["-o", "x"]), "--output is not for gpu-ivf"),
        (of(&plain, &truth, &["--metric", "l2"]), "--metric is not for gpu-ivf"),
        (of(&plain, &truth, &["--recall", "0.9,0.8"]), "--recall is not ascending"),
        (of(&plain, &truth, &["--codes-per-read", "0"]), "--codes-per-read is out of range"),
        (refused(&["cost", arg(&flat)], 2), "is of kind flat; give an index of kind gpu-ivf"),
        (refused(&["cost", arg(&plain)], 2), "build it with --baselines"),
        (refused(&["codes", arg(&flat), arg(&data.queries)], 2), "give an index of kind gpu-ivf"),
    ] {
        assert!(said.contains(words), "{words}: {said}");
    }
    let args = ["ablation", base, arg(&data.queries), "--groundtruth", arg(&truth)];
    assert!(refused(&args, 2).contains("--output is missing"));
}

fn check_remote_schemes(found: &serde_json::Value) {
    for k in [1, 10] {
        let of = |scheme: &str| {
            let own = rows_with(&found["breakdown"], &[("scheme", scheme)]);
            own.into_iter().find(|row| row["k"] == k).unwrap_or_else(|| panic!("{scheme} at {k}"))
        };
        let all = ["naive", "no-doorbell", "no-overlap", "remote-hnsw"].map(of);
        let each = |counter: &str| all.map(|row| number(&row[counter]));
        let [naive, no_doorbell, no_overlap, own] = each("round_trips");
        assert!(naive > no_doorbell && no_doorbell > own && own == no_overlap, "{found}");
        // All but naive load each cluster once.
        let [naive, no_doorbell, no_overlap, own] = each("bytes");
        assert!(naive > own && no_doorbell == own && no_overlap == own);
        let [naive, no_doorbell, no_overlap, own] = each("recall");
        assert!(no_doorbell == own && no_overlap == own && own > 0.5 && naive > 0.5);
        for row in all {
            let stages = ["network_us", "sub_hnsw_us", "meta_hnsw_us"].map(|stage| number(&row[stage]));
            assert!(
                stages.iter().sum::<f64>() >= 0.999 * number(&row["time_us"]) && stages[1] > 0.0,
                "{row}"
            );
        }
        assert_eq!(number(&all[0]["speedup"]), 1.0);
    }
}

fn check_fresh_and_caches(found: &serde_json::Value) {
    let fresh = found["fresh"]["numbers"].as_array().unwrap();
    assert!(!fresh.is_empty() && number(&found["fresh"]["queries_per_load"]) > 1.0, "{found}");
    for at in fresh {
        assert!(number(&at["scanned_comparisons"]) > number(&at["fresh"]), "{at}");
        assert!(number(&at["scanned_recall"]) > 0.9 && number(&at["linked_recall"]) > 0.9, "{at}");
        assert!(number(&at["link_comparisons"]) > number(&at["linked_comparisons"]), "{at}");
    }
    let caches = found["caches"].as_array().unwrap();
    assert_eq!(caches.len(), 6, "two streams with three lengths of batches");
    for at in caches {
        let [without, lru, own] = ["loads_without", "loads_lru", "loads"].map(|name| number(&at[name]));
        assert!(without > 0.0 && lru <= without && own <= without, "{at}");
        assert_eq!(number(&at["wanted"]) / number(&at["batch"]), without);
    }
    let lru_of = |stream| number(&rows_with(&found["caches"], &[("stream", stream)])[0]["loads_lru"]);
    assert!(lru_of("skewed") < lru_of("uniform"), "{caches:?}");
}

#[test]
fn a_remote_index_is_compared_with_other_ways_to_load() {
    // Clusters of many long vectors are walked; others are scanned, whatever the beam.
    let data = Data::new(2000, 512, "f32");
    let (truth, index, out) = (data.truth("l2"), data.path("remote.idx"), data.path("indexes"));
    let (base, queries) = (arg(&data.base), arg(&data.queries));
    let quick = ["--calibration-queries", "0", "--partitions", "8"];
    json(&[&["build", base, "-o", arg(&index), "--kind", "remote-hnsw"][..], &quick].concat());
    let plot = data.path("remote.svg");
    let args = ["ablation", "--kind", "remote-hnsw", arg(&index), queries, "--groundtruth", arg(&truth)];
    let more =
        ["--nprobe", "4", "--sample", "10", "--vectors", base, "-o", arg(&out), "--partitions", "8,16"];
    let found = json(&[&args[..], &more, &["--svg", arg(&plot)]].concat());
    check_remote_schemes(&found);
    let curve: Vec<f64> =
        found["curve"].as_array().unwrap().iter().map(|row| number(&row["recall"])).collect();
    assert!(curve.len() == 2 * 9 * 3 && curve[53] > curve[29], "a longer beam finds more: {curve:?}");
    let partitions: Vec<_> =
        found["partitions"].as_array().unwrap().iter().map(|at| at["partitions"].as_u64().unwrap()).collect();
    assert_eq!(partitions, [8, 16]);
    let lengths = found["doorbells"]["lengths"].as_array().unwrap();
    assert!(number(&lengths[0]["round_trips"]) > number(&lengths[3]["round_trips"]), "{found}");
    assert!(lengths.iter().all(|at| at["foreground_queries"].as_u64().unwrap() >= 1));
    check_fresh_and_caches(&found);
    let modelled = rows_with(&found["model"]["against_naive"], &[("scheme", "remote-hnsw")])[0];
    assert!(number(&modelled["network"]) > 1.0 && modelled["compute_nodes"] == 24, "{found}");
    assert_eq!(found["model"]["schemes"].as_array().unwrap().len(), 4);
    assert_eq!(found["model"]["nodes"].as_array().unwrap().len(), 16);
    let svg = std::fs::read_to_string(&plot).unwrap();
    assert!(svg.contains("model: QPS by compute nodes") && svg.trim_end().ends_with("</svg>"));
    let text = run(&[&args[..], &["--nprobe", "4", "--sample", "10"]].concat());
    let said = String::from_utf8(text.stdout).unwrap();
    assert!(said.contains("model, not measured") && said.contains("give --vectors and --output"), "{said}");
    for (more, words) in [
        (&["--cache-share", "2"][..], "--cache-share is out of range"),
        (&["--link-gbps", "0"], "--link-gbps is out of range"),
        (&["--clients", "0"], "--clients is 0"),
        (&["--metric", "l2"], "--metric is not for remote-hnsw"),
    ] {
        let said = refused(&[&args[..], more].concat(), 2);
        assert!(said.contains(words), "{words}: {said}");
    }
}
