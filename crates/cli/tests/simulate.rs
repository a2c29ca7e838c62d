//! `stratann simulate` and `stratann cluster partition --scatter-gather`: times, ways to search, and what is refused.
#![allow(missing_docs)]

mod common;

use common::*;
use serde_json::Value;

const COSTS: &str = r#"{"threads": 2, "prepare_ns": 20000, "step_ns": 1500, "read_ns": 4000, "code_comparison_ps": 8000,
    "full_comparison_ps": 12000, "message_ns": 6000, "disk_iops": 100000, "disk_latency_us": 90.5, "network_latency_us": 20,
    "network_gbps": 25}"#;

struct Place {
    data: Data,
    index: std::path::PathBuf,
    costs: std::path::PathBuf,
}

fn place() -> Place {
    let data = Data::new(2000, 16, "f32");
    let index = data.build("graph", &["--nodes-per-block", "8", "--calibration-queries", "0"]);
    let costs = data.path("costs.json");
    std::fs::write(&costs, COSTS).unwrap();
    Place { data, index, costs }
}

impl Place {
    fn args<'a>(&'a self, more: &[&'a str]) -> Vec<&'a str> {
        let asked = ["--search-list", "30", "--method", "random"];
        [&["simulate", arg(&self.index), arg(&self.data.queries)], &asked[..], more].concat()
    }

    fn runs(&self, more: &[&str]) -> Vec<Value> {
        let args = [&["--costs", arg(&self.costs)], more].concat();
        json(&self.args(&args))["runs"].as_array().unwrap().clone()
    }

    fn refusal(&self, more: &[&str]) -> String {
        refused(&self.args(more), 2)
    }
}

fn number(run: &Value, path: &str) -> f64 {
    run.pointer(path).and_then(Value::as_f64).unwrap_or_else(|| panic!("{path}: {run}"))
}

#[test]
fn times_depend_on_costs_load_and_seed_alone_and_counters_on_none_of_them() {
    let place = place();
    let runs = place.runs(&["--servers", "1,4"]);
    assert_eq!(runs, place.runs(&["--servers", "1,4"]));
    let (one, four) = (&runs[0], &runs[1]);
    assert!(number(four, "/qps") > 1.5 * number(one, "/qps"), "{one} {four}");
    for run in &runs {
        for key in ["mean", "p50", "p95", "p99"] {
            assert!(number(run, &format!("/latency_us/{key}")) > 0.0);
        }
        let shares = ["cpu", "disk", "network"].map(|r| number(run, &format!("/utilisation/{r}")));
        assert!(shares.iter().all(|s| (0.0..=1.0).contains(s)), "{run}");
        let most = shares.iter().copied().fold(0.0, f64::max);
        assert_eq!(most, number(run, &format!("/utilisation/{}", run["bottleneck"].as_str().unwrap())));
        assert!(most > 0.9, "with many queries in flight something is busy: {run}");
        assert!(run["rate"].is_null() && run["mode"] == "baton" && run["search_list"] == 30);
    }
    let slow = &place.runs(&["--servers", "4", "--disk-iops", "2000"])[0];
    assert_eq!(slow["bottleneck"], "disk");
    assert!(number(slow, "/qps") * number(slow, "/per_query/reads") <= 4.0 * 2000.0 * 1.001, "{slow}");
    let alone = json(&place.args(&["--servers", "4", "--no-times"]));
    assert!(alone["costs"].is_null() && alone["runs"][0]["qps"].is_null());
    for run in [slow, &alone["runs"][0]] {
        assert_eq!(run["per_query"], four["per_query"]);
    }
    let text = String::from_utf8(run(&place.args(&["--servers", "4", "--no-times"])).stdout).unwrap();
    assert!(text.contains("hand-overs") && !text.contains("simulated"), "{text}");
}

#[test]
fn random_arrivals_wait_longer_the_more_there_are() {
    let place = place();
    let most = number(&place.runs(&["--servers", "3"])[0], "/qps");
    let rates = [0.1, 0.6, 0.9].map(|share| (share * most).round());
    let wanted = rates.map(|r| r.to_string()).join(",");
    let runs = place.runs(&["--servers", "3", "--rate", &wanted]);
    assert_eq!(runs.len(), 3);
    let mut last = 0.0;
    for (run, rate) in runs.iter().zip(rates) {
        assert_eq!(number(run, "/rate"), rate);
        assert!((number(run, "/qps") / rate - 1.0).abs() < 0.05, "{run}");
        let mean = number(run, "/latency_us/mean");
        assert!(mean > last && number(run, "/latency_us/p99") > mean, "{run}");
        last = mean;
    }
    let other = place.runs(&["--servers", "3", "--rate", &wanted, "--seed", "2"]);
    assert_ne!(runs[0]["latency_us"], other[0]["latency_us"]);
}

#[test]
fn separate_indexes_hold_all_rows_once_and_find_what_one_index_finds() {
    let place = place();
    let before = files(&place.index);
    let out = place.data.path("apart");
    let partition =
        ["cluster", "partition", arg(&place.index), "-o", arg(&out), "--threads", "2", "--scatter-gather"];
    let with = |more: &[&'static str]| [&partition[..], &["--method", "random"], more].concat();
    let report = json(&with(&["--servers", "3"]));
    assert_eq!(files(&place.index), before, "the source is left as it was");
    let rows: Vec<u64> = report["rows"].as_array().unwrap().iter().map(|r| r.as_u64().unwrap()).collect();
    assert_eq!((rows.len(), rows.iter().sum::<u64>()), (3, 2000));
    let names: Vec<_> = std::fs::read_dir(&out).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(names.len(), 4, "{names:?}");
    for (server, rows) in rows.iter().enumerate() {
        let folder = out.join(format!("server-{server:02}"));
        let info = json(&["info", arg(&folder)]);
        assert_eq!(info["rows"], *rows);
        assert_eq!(json(&["verify", arg(&folder)])["violations_found"], 0);
    }
    let truth = place.data.truth("l2");
    let both = ["--servers", "3", "--mode", "baton,scatter-gather,fetch", "--groundtruth", arg(&truth)];
    let runs = place.runs(&[&both[..], &["--partitions", arg(&out)]].concat());
    let modes: Vec<&str> = runs.iter().map(|r| r["mode"].as_str().unwrap()).collect();
    assert_eq!(modes, ["baton", "scatter-gather", "fetch"]);
    let built = place.runs(&both);
    assert_eq!(runs, built, "what is built for the occasion is the same");
    let (baton, scatter, fetch) = (&runs[0], &runs[1], &runs[2]);
    assert!(number(scatter, "/recall") >= number(baton, "/recall"));
    assert!(number(scatter, "/per_query/reads") > 1.3 * number(baton, "/per_query/reads"));
    assert_eq!(number(scatter, "/messages_per_query"), 4.0);
    for key in ["/recall", "/per_query/reads", "/per_query/full_comparisons"] {
        assert_eq!(number(fetch, key), number(baton, key));
    }
    let met = |run| number(run, "/per_query/code_comparisons") + number(run, "/per_query/repeats");
    assert!((met(fetch) - met(baton)).abs() < 1e-6);
    assert_eq!(number(fetch, "/messages_per_query"), 2.0 * number(fetch, "/per_query/round_trips"));
    assert!(number(fetch, "/per_query/bytes_sent") > number(baton, "/per_query/bytes_sent"));

    let matched = place.runs(&[&both[..], &["--partitions", arg(&out), "--match-recall"]].concat());
    let (found, wanted) = (number(&matched[1], "/recall"), number(&matched[0], "/recall"));
    assert!(found >= wanted - 0.002 && number(&matched[1], "/search_list") <= 30.0, "{}", matched[1]);
    let list = (number(&matched[1], "/search_list") as u32).saturating_sub(1).max(10).to_string();
    let shorter = place.runs(&[&both[..], &["--partitions", arg(&out), "--partition-list", &list]].concat());
    assert!(list == "10" || number(&shorter[1], "/recall") < wanted - 0.002, "{}", shorter[1]);

    // What is there stays, unless it is to be replaced.
    let again = refused(&with(&["--servers", "3"]), 2);
    assert!(again.contains("--force"), "{again}");
    assert_eq!(json(&with(&["--servers", "2", "--force"]))["servers"], 2);
    let error = place.refusal(&[
        "--servers",
        "3",
        "--mode",
        "scatter-gather",
        "--no-times",
        "--partitions",
        arg(&out),
    ]);
    assert!(error.contains("is for 2 servers"), "{error}");
    let copied = refused(&with(&["--servers", "3", "--replicas", "2"]), 2);
    assert!(copied.contains("--replicas"), "{copied}");
}

#[test]
fn a_folder_that_holds_something_else_is_left_alone() {
    let place = place();
    let out = place.data.path("mine");
    std::fs::create_dir(&out).unwrap();
    std::fs::write(out.join("letter.txt"), "dear").unwrap();
    let partition = |index: &std::path::Path, more: &[&str]| {
        let fixed = ["cluster", "partition", arg(index), "-o", arg(&out), "--scatter-gather"];
        refused(&[&fixed[..], more].concat(), 2)
    };
    let error = partition(&place.index, &["--servers", "2", "--force"]);
    assert!(error.contains("holds something else"), "{error}");
    assert_eq!(std::fs::read_to_string(out.join("letter.txt")).unwrap(), "dear");
    assert!(partition(&place.index, &["--servers", "0"]).contains("servers is 0"));
    std::fs::remove_dir_all(&out).unwrap();
    let error = partition(&place.index, &["--servers", "2", "--ram-budget", "1MiB"]);
    assert!(error.contains("--ram-budget") && !out.exists(), "{error}");
    let left: Vec<_> =
        std::fs::read_dir(place.data.folder.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert!(left.iter().all(|n| !n.to_string_lossy().starts_with('.')), "{left:?}");
}

#[test]
fn the_model_is_measured_and_compared_and_its_costs_can_be_used_again() {
    let place = place();
    let document = json(&place.args(&["--servers", "2", "--calibrate", "--threads", "2"]));
    for key in ["real", "simulated"] {
        assert!(number(&document, &format!("/calibration/{key}/qps")) > 0.0);
        assert!(number(&document, &format!("/calibration/{key}/latency_us/mean")) > 0.0);
        assert!(number(&document, &format!("/calibration/{key}/cpu_us")) > 0.0);
    }
    assert!(number(&document, "/calibration/qps_error") > -1.0);
    for key in ["prepare_ns", "code_comparison_ps", "full_comparison_ps", "message_ns", "disk_iops"] {
        assert!(number(&document, &format!("/costs/{key}")) > 0.0, "{key}: {document}");
    }
    let path = place.data.path("earlier.json");
    std::fs::write(&path, document.to_string()).unwrap();
    let again = json(&place.args(&["--servers", "2", "--costs", arg(&path)]));
    assert_eq!(again["costs"], document["costs"]);
    assert_eq!(again["runs"], document["runs"]);
}

#[test]
fn what_cannot_be_simulated_is_refused() {
    let place = place();
    let costs = |text: &str| {
        let path = place.data.path("wrong.json");
        std::fs::write(&path, text).unwrap();
        place.refusal(&["--servers", "2", "--costs", arg(&path)])
    };
    assert!(costs("{").contains("wrong.json"));
    assert!(costs("{}").contains("threads"));
    assert!(costs(&COSTS.replace("step_ns", "steps_ns")).contains("steps_ns"));
    assert!(costs(&COSTS.replace("100000", "0")).contains("disk IOPS is 0"));
    assert!(costs(&COSTS.replace("90.5", "-1")).contains("disk latency is -1"));
    let nowhere = place.data.path("nowhere");
    assert!(place.refusal(&["--servers", "2", "--costs", arg(&nowhere)]).contains("nowhere"));
    let out = arg(&nowhere);
    for (more, said) in [
        (&["--rate", "0"][..], "--rate is 0"),
        (&["--rate=-5"], "--rate is -5"),
        (&["--rate", "5", "--no-times"], "--no-times"),
        (&["--match-recall"], "--groundtruth"),
        (&["--partitions", out], "scatter-gather"),
        (&["--mode", "guess"], "guess"),
        (&["--mode", "scatter-gather", "--partition-list", "0"], "--partition-list is 0"),
        (&["--mode", "scatter-gather", "--no-times", "--partitions", out], "holds no separate indexes"),
        (&["--network-gbps", "0", "--costs", arg(&place.costs)], "network Gbit/s is 0"),
        (&["--disk-mb-per-s", "0", "--costs", arg(&place.costs)], "disk MB/s is 0"),
        (&["--request-us=-1", "--costs", arg(&place.costs)], "request is -1"),
        (&["--servers-per-host", "0", "--costs", arg(&place.costs)], "servers per host is 0"),
        (&["--cores-per-host", "9999", "--costs", arg(&place.costs)], "cores per host is 9999"),
        (&["--link", out, "--costs", arg(&place.costs)], "nowhere"),
        (&["--link", arg(&place.costs), "--costs", arg(&place.costs)], "doctor --link"),
        (&["--in-flight", "0"], "use 1 to 4096"),
        (&["--in-flight", "5", "--rate", "5"], "--rate"),
        (&["--threads", "0"], "threads"),
    ] {
        let error = place.refusal(&[&["--servers", "2"], more].concat());
        assert!(error.contains(said), "{more:?}: {error}");
    }
    let several = ["--servers", "2,3", "--mode", "scatter-gather", "--partitions", out];
    assert!(place.refusal(&several).contains("one number of servers"));
    // Made from another index.
    let other = place.data.build("other", &["--seed", "2", "--calibration-queries", "0"]);
    let apart = place.data.path("apart");
    json(&["cluster", "partition", arg(&other), "-o", arg(&apart), "--servers", "2", "--scatter-gather"]);
    let error = place.refusal(&[
        "--servers",
        "2",
        "--mode",
        "scatter-gather",
        "--no-times",
        "--partitions",
        arg(&apart),
    ]);
    assert!(error.contains("made from another index"), "{error}");
}

/// Inverted lists on several servers: what is found, and what is compared and read for it, is that of one.
#[test]
fn lists_are_handed_over_and_cost_what_they_cost_on_one_server() {
    let data = Data::new(2000, 16, "f32");
    let index =
        data.build("lists", &["--kind", "hybrid-ivf", "--clusters", "40", "--calibration-queries", "0"]);
    let asked = ["simulate", arg(&index), arg(&data.queries), "--nprobe", "10", "--no-times"];
    let runs = |more: &[&str]| json(&[&asked[..], more].concat())["runs"].as_array().unwrap().clone();
    let all = runs(&["--servers", "1,3,10"]);
    let key = |run: &Value, key: &str| number(run, &format!("/per_query/{key}"));
    for run in &all {
        assert_eq!((&run["nprobe"], &run["failed_queries"]), (&10.into(), &0.into()));
        for counter in ["lists", "code_comparisons", "clusters"] {
            assert_eq!(key(run, counter), key(&all[0], counter), "{counter}: {run}");
        }
        let [records, alone] = [run, &all[0]].map(|run| key(run, "full_comparisons"));
        assert!((records / alone - 1.0).abs() < 0.03, "{records} {alone}");
        assert_eq!(key(run, "hand_overs") > 1.0, run["servers"] != 1);
    }
    let copied = runs(&["--servers", "10", "--replicas", "3"]);
    assert!(key(&copied[0], "hand_overs") < key(&all[2], "hand_overs"));
    for (more, why) in [(["--overlap", "0.2"], "--replicas"), (["--entry", "any"], "fewer than 64 servers")] {
        let servers = if more[0] == "--overlap" { "4" } else { "64" };
        let error = refused(&[&asked[..], &["--servers", servers], &more[..]].concat(), 2);
        assert!(error.contains(why), "{error}");
    }
}

#[test]
fn modes_that_a_kind_does_not_have_are_refused() {
    let data = Data::new(300, 16, "f32");
    for (kind, missing, offered) in [
        ("grid-ivf", &["fetch", "score", "forward"][..], "use baton, scatter-gather"),
        ("disk-graph", &["score", "forward"], "use baton, scatter-gather, fetch"),
    ] {
        let index = data.build(kind, &["--kind", kind, "--calibration-queries", "0"]);
        for mode in missing {
            let asked =
                ["simulate", arg(&index), arg(&data.queries), "--servers", "2", "--no-times", "--mode", mode];
            let error = refused(&asked, 2);
            assert!(error.contains(kind) && error.contains(mode) && error.contains(offered), "{error}");
        }
    }
}

/// One process listens while another measures; what it prints is the network of a simulation.
#[test]
fn the_network_is_measured_given_or_said_to_be_assumed() {
    let place = place();
    let mut listening = std::process::Command::new(env!("CARGO_BIN_EXE_stratann"))
        .args(["doctor", "--link-listen", "127.0.0.1:0", "--json"])
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let mut said = std::io::BufReader::new(listening.stderr.take().unwrap());
    std::io::BufRead::read_line(&mut said, &mut line).unwrap();
    let address = line.split_whitespace().nth(2).unwrap();
    let folder = arg(place.data.folder.path());
    let measured = json(&["doctor", "--path", folder, "--link", address]);
    assert!(listening.wait().unwrap().success());
    let served: Value = serde_json::from_reader(listening.stdout.take().unwrap()).unwrap();
    assert!(number(&served, "/listened/served/messages") >= number(&measured, "/link/messages"), "{served}");
    assert_eq!(measured["link"]["host"], address);
    for key in ["latency_us", "p99_us", "gbps", "messages", "message_bytes", "bulk_bytes"] {
        assert!(number(&measured, &format!("/link/{key}")) > 0.0, "{key}: {measured}");
    }
    assert!(number(&measured, "/disk/large_bytes_per_s") > 0.0);
    assert!(json(&["doctor", "--path", folder]).get("link").is_none());
    let error = refused(&["doctor", "--path", folder, "--link", address], 1);
    assert!(error.contains("refused") && error.contains("--link-listen"), "{error}");
    assert!(refused(&["doctor", "--link", "nonsense"], 2).contains("HOST:PORT"));

    let file = place.data.path("link.json");
    std::fs::write(&file, measured.to_string()).unwrap();
    let costs = |more: &[&str]| {
        let out =
            run(&place.args(&[&["--servers", "2", "--costs", arg(&place.costs), "--json"], more].concat()));
        let document: Value = serde_json::from_slice(&out.stdout).unwrap();
        (document["costs"].clone(), String::from_utf8(out.stderr).unwrap())
    };
    let from =
        |costs: &Value| [&costs["network_latency_from"], &costs["network_gbps_from"]].map(Value::to_string);
    let (assumed, notes) = costs(&[]);
    assert_eq!(from(&assumed), ["\"assumed\""; 2]);
    assert!(notes.contains("the network is assumed: 20 us, 25 Gbit/s"), "{notes}");
    let (by_link, notes) = costs(&["--link", arg(&file)]);
    assert_eq!(from(&by_link), ["\"measured\""; 2]);
    assert_eq!(by_link["network_latency_us"], measured["link"]["latency_us"]);
    assert_eq!(by_link["network_gbps"], measured["link"]["gbps"]);
    assert!(!notes.contains("assumed"), "{notes}");
    let (both, _) = costs(&["--link", arg(&file), "--network-gbps", "7"]);
    assert_eq!(from(&both), ["\"measured\"", "\"given\""]);
    assert_eq!(both["network_gbps"], 7.0);
    // What is known of a figure stays with it.
    let earlier = place.data.path("with-link.json");
    std::fs::write(&earlier, by_link.to_string()).unwrap();
    let again = json(&place.args(&["--servers", "2", "--costs", arg(&earlier)]));
    assert_eq!(again["costs"], by_link);
    let text = place.args(&["--servers", "2", "--costs", arg(&place.costs)]);
    let text = String::from_utf8(run(&text).stdout).unwrap();
    assert!(text.contains("network 20.0 us (assumed), 25 Gbit/s (assumed)"), "{text}");
}

/// Costs of earlier versions have no bandwidth of the disk: their times stay, and it is said.
#[test]
fn long_reads_take_longer_on_a_disk_with_a_bandwidth() {
    let data = Data::new(2000, 16, "f32");
    let index =
        data.build("lists", &["--kind", "hybrid-ivf", "--clusters", "10", "--calibration-queries", "0"]);
    let costs = data.path("costs.json");
    std::fs::write(&costs, COSTS).unwrap();
    let asked = ["simulate", arg(&index), arg(&data.queries), "--nprobe", "4", "--servers", "2", "--json"];
    let of = |more: &[&str]| {
        let out = run(&[&asked[..], &["--mode", "baton,score", "--costs", arg(&costs)], more].concat());
        let document: Value = serde_json::from_slice(&out.stdout).unwrap();
        (document["runs"].as_array().unwrap().clone(), String::from_utf8(out.stderr).unwrap())
    };
    let (free, notes) = of(&[]);
    assert!(notes.contains("no disk_mb_per_s"), "{notes}");
    let (fast, notes) = of(&["--disk-mb-per-s", "1000000"]);
    assert!(!notes.contains("no disk_mb_per_s"), "{notes}");
    let (slow, _) = of(&["--disk-mb-per-s", "5"]);
    for ((free, fast), slow) in free.iter().zip(&fast).zip(&slow) {
        assert_eq!((&free["per_query"], &free["per_query"]), (&fast["per_query"], &slow["per_query"]));
        assert!((number(fast, "/qps") / number(free, "/qps") - 1.0).abs() < 0.01, "{free} {fast}");
        assert!(number(slow, "/qps") < 0.5 * number(fast, "/qps"), "{slow} {fast}");
        assert_eq!(slow["bottleneck"], "disk");
    }
    // Beyond the first page of each read no more bytes a second than there are.
    for run in &slow {
        let beyond = number(run, "/per_query/bytes_read") - 4096.0 * number(run, "/per_query/reads");
        assert!(beyond > 0.0 && number(run, "/qps") * beyond <= 2.0 * 5e6 * 1.05, "{run}");
    }
}

/// Servers of one host share its cores; clients' requests take a part of them.
#[test]
fn hosts_and_requests_are_simulated() {
    let place = place();
    let qps = |more: &[&str]| {
        let runs =
            place.runs(&[&["--servers", "4", "--disk-iops", "1e8", "--disk-latency-us", "1"], more].concat());
        (number(&runs[0], "/qps"), number(&runs[0], "/cpu_us"))
    };
    let (apart, cpu_us) = qps(&[]);
    let (together, same_us) = qps(&["--servers-per-host", "4", "--cores-per-host", "2"]);
    assert!(together < 0.5 * apart && cpu_us == same_us, "{together} {apart}");
    let (asked, more_us) = qps(&["--request-us", "1000"]);
    assert!(asked < apart && (more_us - cpu_us - 1000.0).abs() < 0.2, "{cpu_us} {more_us}");
    let (few, _) = qps(&["--in-flight", "1"]);
    assert!(few < 0.5 * apart, "{few} {apart}");
}

/// Without given costs those of this machine are measured, and can be used again.
#[test]
fn costs_of_compute_nodes_are_measured() {
    let data = Data::new(2000, 16, "f32");
    let more = ["--kind", "remote-hnsw", "--partitions", "40", "--calibration-queries", "0"];
    let index = data.build("remote", &more);
    let asked = ["simulate", arg(&index), arg(&data.queries), "--nprobe", "4", "--compute-nodes", "2"];
    let found = json(&asked);
    for key in ["meta_comparison_ps", "comparison_ps", "load_byte_ps", "range_ns"] {
        assert!(number(&found, &format!("/costs/{key}")) > 0.0, "{key}: {found}");
    }
    assert_eq!(found["costs"]["network_latency_from"], "assumed");
    let path = data.path("earlier.json");
    std::fs::write(&path, found.to_string()).unwrap();
    let again = json(&[&asked[..], &["--costs", arg(&path)]].concat());
    assert_eq!((&again["costs"], &again["runs"]), (&found["costs"], &found["runs"]));
}

#[test]
fn options_of_memory_nodes_are_for_a_remote_hnsw() {
    let place = place();
    assert!(place.refusal(&["--compute-nodes", "2"]).contains("is for remote-hnsw"));
    assert!(place.refusal(&["--servers", "2", "--clients", "3"]).contains("is for remote-hnsw"));
}
