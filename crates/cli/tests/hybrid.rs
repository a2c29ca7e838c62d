//! `hybrid-ivf` through the program: what it prints, what it refuses, what it learns.
#![allow(missing_docs)]

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};

use common::*;
use serde_json::Value;
use stratann_storage::output::OutputPath;
use stratann_storage::profile::{Profile, ReadLine};

fn measure(folder: &Path, path: &Path, isa: Option<&str>) {
    let mut command =
        command(&["profile", arg(folder), "--seconds", "0.2", "--scratch", "4MiB", "-o", arg(path)]);
    if let Some(isa) = isa {
        command.env("STRATANN_ISA", isa);
    }
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
}

fn build_args<'a>(data: &'a Data, index: &'a Path) -> Vec<&'a str> {
    let place = ["build", arg(&data.base), "-o", arg(index), "--kind", "hybrid-ivf"];
    [&place[..], &["--profile", profile(), "--calibration-queries", "60", "--threads", "2"]].concat()
}

fn built(data: &Data, name: &str, more: &[&str]) -> PathBuf {
    let index = data.path(name);
    json(&[&build_args(data, &index)[..], more].concat());
    index
}

fn keys(value: &Value) -> BTreeSet<&str> {
    value.as_object().unwrap().keys().map(String::as_str).collect()
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is no number"))
}

fn ids_of(trace: &Value) -> Vec<u32> {
    trace["ids"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

#[test]
fn searches_report_what_clusters_cost() {
    let data = Data::new(3000, 16, "f32");
    let index = built(&data, "index", &[]);
    let truth = data.truth("l2");
    let asked = ["--groundtruth", arg(&truth), "--no-learning", "--width", "1"];
    let search = |more: &[&str]| {
        json(&[&["search", arg(&index), arg(&data.queries)], more, &asked[..]].concat())["runs"][0].clone()
    };
    let by_recall = search(&["--recall", "0.9"]);
    assert!(number(&by_recall["recall"]) > 0.85, "{by_recall}");
    let run = search(&["--nprobe", "12", "--early-stop", "0.3", "--stop-slack", "2"]);
    for key in ["clusters", "fruitful_clusters", "lists", "pruned", "pinned_hits", "result_clusters"] {
        assert!(run["per_query"][key].is_f64(), "{key}: {run}");
    }
    let each = |key: &str| number(&run["per_query"][key]);
    assert!(each("clusters") <= 12.0 && each("clusters") >= each("fruitful_clusters"));
    assert!(each("lists") >= each("clusters") && each("pruned") > 0.0 && each("pinned_hits") == 0.0);
    assert_eq!(each("bytes_read"), 4096.0 * each("pages_read"));
    let params = &run["params"];
    assert_eq!(
        (&params["nprobe"], &params["order"], &params["bounds"]),
        (&12.into(), &"expected".into(), &"both".into())
    );
    let all = search(&["--nprobe", "12", "--no-bounds"]);
    assert!(number(&all["per_query"]["full_comparisons"]) > 2.0 * each("full_comparisons"));
}

#[test]
fn info_tells_what_it_is_made_of_and_what_it_has_learnt() {
    let data = Data::new(2000, 16, "f32");
    let index = built(&data, "index", &["--clusters", "40"]);
    let info = json(&["info", arg(&index)]);
    let facts = &info["clusters"];
    assert_eq!(keys(&facts["sizes"]), ["count", "gini", "max", "mean", "min", "std"].into());
    assert_eq!((&facts["sizes"]["count"], &info["learnt"]), (&40.into(), &Value::Null));
    let kinds: u64 = facts["kinds"].as_array().unwrap().iter().map(|n| n.as_u64().unwrap()).sum();
    assert!(kinds == 40 && facts["lists"].as_u64() >= Some(40) && facts["nav_nodes"].as_u64() > Some(40));
    assert!(facts["code_bytes"].as_u64() > Some(0) && info["plan"]["ways"].is_array());

    let search = ["search", arg(&index), arg(&data.queries), "--nprobe", "5"];
    let learning_bytes = |more: &[&str]| {
        json(&[&search[..], more].concat())["runs"][0]["memory"]["learning_bytes"].as_u64().unwrap()
    };
    // Queries that end no epoch leave the memory of learning to lists.
    assert!(learning_bytes(&[]) < 1 << 10 && json(&["info", arg(&index)])["learnt"].is_null());
    assert!(learning_bytes(&["--epoch-queries", "20", "--always-learn"]) > 1 << 20);
    let learnt = json(&["info", arg(&index)])["learnt"].clone();
    assert_eq!(keys(&learnt), ["bytes", "epochs", "hot", "queries", "visited_clusters"].into());
    assert_eq!((&learnt["epochs"], &learnt["queries"]), (&2.into(), &40.into()), "{learnt}");
    assert!(number(&learnt["hot"]) > 0.0 && number(&learnt["visited_clusters"]) > 0.0);
    let text = String::from_utf8(run(&["info", arg(&index)]).stdout).unwrap();
    assert!(
        text.contains("40 inverted lists of") && text.contains("learnt from 40 queries in 2 epochs"),
        "{text}"
    );
}

#[test]
fn explain_follows_the_same_search() {
    let data = Data::new(2000, 16, "f32");
    for plan in ["uniform-flat", "uniform-ivf"] {
        let index = built(&data, plan, &["--clusters", "30", "--plan", plan]);
        let effort = ["--nprobe", "8", "--early-stop", "0.4", "--head-budget", "0"];
        let out = data.path("out");
        let single = [
            "--threads",
            "1",
            "--in-flight",
            "1",
            "--width",
            "1",
            "--no-learning",
            "-o",
            arg(&out),
            "--force",
        ];
        json(&[&["search", arg(&index), arg(&data.queries)], &effort[..], &single[..]].concat());
        let (k, found, _) = read_answers(&out);
        let mut reads = 0.0;
        for query in [0, 7, 33] {
            let asked = ["explain", arg(&index), arg(&data.queries), "--query", &query.to_string()];
            let trace = json(&[&asked[..], &effort[..]].concat());
            assert_eq!(ids_of(&trace), found[query * k..(query + 1) * k]);
            let visits = trace["visits"].as_array().unwrap();
            assert_eq!(number(&trace["counters"]["clusters"]), visits.len() as f64);
            let sum = |key: &str| visits.iter().map(|v| number(&v[key])).sum::<f64>();
            let fruitful = visits.iter().filter(|v| v["fruitful"] == true).count();
            assert_eq!(number(&trace["counters"]["fruitful_clusters"]), fruitful as f64);
            assert_eq!(number(&trace["counters"]["lists"]), sum("lists_scanned"));
            assert_eq!(sum("results") + number(&trace["results_elsewhere"]), 10.0, "{trace}");
            let (lists, survivors) =
                (number(&trace["list_reads"]["reads"]), number(&trace["survivor_reads"]["reads"]));
            assert_eq!(number(&trace["counters"]["reads"]), lists + survivors);
            assert_eq!(sum("reads"), lists);
            reads += lists;
            let is_known = |v: &Value| {
                v["kind"] == plan.trim_start_matches("uniform-")
                    && number(&v["scanned"]) <= number(&v["members"])
            };
            assert!(visits.iter().all(is_known) && trace["stop"].is_string());
        }
        assert!(reads > 0.0);
        // Once codes lie in RAM they are not read.
        let held = ["explain", arg(&index), arg(&data.queries), "--nprobe", "8", "--head-budget", "16MiB"];
        let trace = json(&held);
        assert_eq!(trace["list_reads"]["reads"], 0, "{trace}");
        let text = String::from_utf8(run(&held).stdout).unwrap();
        assert!(text.contains("8 lists visited") && text.contains("stop: "), "{text}");
    }
}

#[test]
fn explain_holds_the_plan_against_reads() {
    let data = Data::new(2000, 16, "f32");
    let index = built(&data, "index", &["--clusters", "30", "--plan", "uniform-ivf"]);
    let trace =
        json(&["explain", arg(&index), "--plan", "--nprobe", "6", "--sample", "40", "--head-budget", "0"]);
    assert_eq!(keys(&trace), ["index", "measured", "plan", "sizes"].into());
    let (plan, measured) = (&trace["plan"], &trace["measured"]);
    assert_eq!((&plan["ways"][0]["kind"], &plan["ways"][0]["clusters"]), (&"ivf".into(), &30.into()));
    assert_eq!((&measured["source"], &measured["queries"]), (&"rows".into(), &40.into()));
    let (way, visits) = (&measured["ways"][0], number(&measured["visits"]));
    assert!(number(&way["reads"]) > 0.5 && visits > 5.0 && visits <= 6.0, "{trace}");
    let priced =
        number(&way["reads"]) * number(&plan["read_us"]) + number(&way["kib"]) * number(&plan["kib_us"]);
    assert!((priced / number(&way["measured_us"]) - 1.0).abs() < 1e-6, "{trace}");
    assert!((visits * priced / number(&measured["measured_us"]) - 1.0).abs() < 1e-6);
    assert!(number(&measured["predicted_us"]) > 0.0);

    let own = json(&["explain", arg(&index), "--plan", arg(&data.queries), "--nprobe", "6"]);
    assert_eq!((&own["measured"]["source"], &own["measured"]["queries"]), (&"queries".into(), &50.into()));
    // What it counts is what a search reads, which counts for itself.
    let cold = ["--nprobe", "6", "--head-budget", "0"];
    let own = json(&[&["explain", arg(&index), "--plan", arg(&data.queries)], &cold[..]].concat());
    let search = ["search", arg(&index), arg(&data.queries), "--width", "1", "--no-learning"];
    let found = json(&[&search[..], &cold, &COUNTED].concat());
    let (measured, reads) = (&own["measured"], number(&found["runs"][0]["per_query"]["reads"]));
    let explained = number(&measured["visits"]) * number(&measured["ways"][0]["reads"])
        + number(&measured["survivor_reads"]);
    assert!(reads > 5.0 && (explained / reads - 1.0).abs() < 0.02, "{explained} {reads}");
    let none = json(&["explain", arg(&index), "--plan", "--sample", "0"]);
    assert!(none["measured"].is_null());
    let text = String::from_utf8(run(&["explain", arg(&index), "--plan", "--nprobe", "6"]).stdout).unwrap();
    assert!(text.contains("all flat") && text.contains("measured on 200 rows"), "{text}");
    assert!(refused(&["explain", arg(&index), "--sample", "9"], 2).contains("--plan"));
    let graph = data.build("graph", &[]);
    assert!(refused(&["explain", arg(&graph), "--plan"], 2).contains("--plan is for hybrid-ivf"));
}

#[test]
fn tune_measures_the_curve_anew() {
    let data = Data::new(2000, 16, "f32");
    let index = built(&data, "index", &["--clusters", "30", "--calibration-queries", "0"]);
    let error = refused(&["search", arg(&index), arg(&data.queries), "--recall", "0.9"], 2);
    assert!(error.contains("stratann tune") && error.contains("--nprobe"), "{error}");
    let by_rows = json(&["tune", arg(&index), "-k", "10", "--sample", "120", "--recall", "0.9"]);
    assert_eq!((&by_rows["source"], &by_rows["version"]), (&"mixture".into(), &2.into()));
    let check = &by_rows["checks"][0];
    assert!(number(&check["measured"]) > 0.8 && number(&check["search_list"]) <= 30.0, "{check}");
    let truth = data.truth("l2");
    let own = ["--queries", arg(&data.queries), "--groundtruth", arg(&truth)];
    let by_queries = json(&[&["tune", arg(&index), "-k", "10", "--recall", "0.9"], &own[..]].concat());
    assert_eq!((&by_queries["source"], &by_queries["version"]), (&"queries".into(), &3.into()));
    let asked = ["search", arg(&index), arg(&data.queries), "--recall", "0.9", "--groundtruth", arg(&truth)];
    assert!(number(&json(&asked)["runs"][0]["recall"]) > 0.85);
}

#[test]
fn replan_rebuilds_what_another_plan_asks_for() {
    let data = Data::new(2000, 16, "f32");
    let index = built(&data, "index", &["--clusters", "30", "--plan", "uniform-flat"]);
    let replan = ["replan", arg(&index), "--search-budget", "256MiB", "--threads", "2", "--plan"];
    let teach = ["search", arg(&index), arg(&data.queries), "--nprobe", "5", "--epoch-queries", "20"];
    json(&[&teach[..], &["--always-learn"]].concat());
    let learnt = json(&["info", arg(&index)])["learnt"].clone();
    let done = json(&[&replan[..], &["uniform-ivf"]].concat());
    let expected = [
        "code_budget_bytes",
        "copied_bytes",
        "kinds_after",
        "kinds_before",
        "observed",
        "ram_bytes",
        "rebuilt",
        "rewritten_bytes",
        "shared_bytes",
        "tune",
        "version",
        "visit_us",
        "visit_us_before",
    ];
    assert_eq!(keys(&done), expected.into());
    assert_eq!((&done["version"], &done["rebuilt"]), (&2.into(), &30.into()), "{done}");
    assert_eq!(done["kinds_after"], serde_json::json!([0, 0, 30]));
    assert_eq!((&done["observed"], &done["tune"]), (&true.into(), &true.into()));
    let info = json(&["info", arg(&index)]);
    assert_eq!((&info["clusters"]["kinds"], &info["learnt"]), (&done["kinds_after"], &learnt));
    assert!(run(&["verify", arg(&index)]).status.success());
    let truth = data.truth("l2");
    let asked = ["search", arg(&index), arg(&data.queries), "--nprobe", "30", "--groundtruth", arg(&truth)];
    let all = [&asked[..], &["--local-lists", "1000"]].concat();
    assert_eq!(number(&json(&all)["runs"][0]["recall"]), 1.0);

    let planned = |plan| String::from_utf8(run(&[&replan[..], &[plan]].concat()).stdout).unwrap();
    let text = planned("uniform-ivf");
    assert!(text.contains("no list changes") && text.contains("observed visits"), "{text}");
    let text = planned("uniform-graph");
    assert!(text.contains("30 lists rebuilt") && text.contains("stratann tune"), "{text}");
}

#[test]
fn a_killed_replan_leaves_an_index_that_answers_and_can_be_replanned() {
    let data = Data::new(3000, 16, "f32");
    let index = built(&data, "index", &["--clusters", "30", "--plan", "uniform-flat"]);
    let replan =
        |plan| ["replan", arg(&index), "--search-budget", "256MiB", "--threads", "2", "--plan", plan];
    let started = std::time::Instant::now();
    json(&replan("uniform-ivf"));
    let takes = started.elapsed();
    let mut noise = Noise(std::process::id().into());
    let seed = noise.0;
    for attempt in 0..6 {
        let plan = ["uniform-flat", "uniform-ivf"][attempt % 2];
        let mut child = command(&replan(plan)).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        std::thread::sleep(takes.mul_f64(noise.share()));
        child.kill().unwrap();
        child.wait().unwrap();
        let verified = run(&["verify", arg(&index)]);
        assert!(verified.status.success(), "seed {seed}, attempt {attempt}: {}", stderr(&verified));
        assert_exact(&data, &index);
    }
    // Walks through graphs find most, not all.
    json(&replan("uniform-graph"));
    assert!(run(&["verify", arg(&index)]).status.success());
    json(&replan("uniform-flat"));
    assert_exact(&data, &index);
    assert!(!index.join("partial").exists());
}

#[test]
fn replan_refuses_in_one_line_what_it_cannot_do() {
    let data = Data::new(1000, 16, "f32");
    let index = built(&data, "index", &["--clusters", "20", "--plan", "uniform-flat"]);
    let replan = |index: &Path, budget: &str| refused(&["replan", arg(index), "--search-budget", budget], 2);
    let error = replan(&index, "1MiB");
    assert!(error.contains("give ") && error.contains("MiB or more"), "{error}");
    let named = error.split("give ").nth(1).unwrap().split(' ').next().unwrap();
    json(&["replan", arg(&index), "--search-budget", named]);
    assert!(replan(&data.build("graph", &[]), "1GiB").contains("only a hybrid-ivf"));
    assert!(replan(&data.path("nowhere"), "1GiB").contains("nowhere"));
    assert!(refused(&["replan", arg(&index)], 2).contains("--search-budget"));
    let small = ["--search-budget", "1GiB", "--plan", "uniform-ivf", "--ram-budget", "1MiB"];
    assert!(refused(&[&["replan", arg(&index)], &small[..]].concat(), 2).contains("--ram-budget"));
    assert!(run(&["verify", arg(&index)]).status.success());
}

#[test]
fn what_cannot_be_is_refused_in_one_line() {
    let data = Data::new(2000, 16, "f32");
    let (graph, index) = (data.build("graph", &[]), built(&data, "index", &["--clusters", "30"]));
    let (queries, other) = (arg(&data.queries), data.path("other"));
    let build = |more: &[&str]| {
        [&build_args(&data, &other)[..], more].concat().iter().map(|a| a.to_string()).collect::<Vec<_>>()
    };
    let refuse = |args: Vec<String>| refused(&args.iter().map(String::as_str).collect::<Vec<_>>(), 2);

    let error = refuse(build(&["--plan", "uniform-tree"]));
    assert!(error.contains("uniform-tree") && error.contains("uniform-flat"), "{error}");
    let error = refuse(build(&["--search-budget", "1MiB"]));
    assert!(
        error.contains("--search-budget") && error.contains("give ") && error.contains("MiB or more"),
        "{error}"
    );
    // What it names will do.
    let named = error.split("give ").nth(1).unwrap().split(' ').next().unwrap().to_string();
    json(&build(&["--search-budget", &named]).iter().map(String::as_str).collect::<Vec<_>>());
    std::fs::remove_dir_all(&other).unwrap();

    for (effort, said) in [
        (&["--nprobe", "5"][..], "this index is a disk-graph; give --search-list instead"),
        (&["--nprobe", "5", "--recall", "0.9"], "--recall and --nprobe are both given"),
        (&["--early-stop", "0.2"], "--early-stop is for hybrid-ivf"),
    ] {
        let error = refused(&[&["search", arg(&graph), queries], effort].concat(), 2);
        assert!(error.contains(said), "{effort:?}: {error}");
    }
    for (effort, said) in [
        (&["--search-list", "20"][..], "this index is a hybrid-ivf; give --nprobe instead"),
        (&["--nprobe", "0"], "--nprobe is 0; use 1 to"),
        (&["--nprobe", "5", "--early-stop", "0"], "--early-stop is a share above 0"),
        (&["--nprobe", "5", "--ram-budget", "1MiB"], "--ram-budget"),
    ] {
        let error = refused(&[&["search", arg(&index), queries], effort].concat(), 2);
        assert!(error.contains(said), "{effort:?}: {error}");
    }
    let error = refused(&["search", "--connect", &nobody(), queries, "--nprobe", "5", "--hot", "9"], 2);
    assert!(error.contains("--hot cannot be used with --connect"), "{error}");
}

#[test]
fn a_profile_is_believed_or_refused() {
    let data = Data::new(1200, 16, "f32");
    let (path, index) = (data.path("other.json"), data.path("index"));
    measure(data.folder.path(), &path, Some("scalar"));
    let with = |profile: &Path| {
        let place = ["build", arg(&data.base), "-o", arg(&index), "--kind", "hybrid-ivf"];
        let rest = ["--profile", arg(profile), "--calibration-queries", "0"];
        [&place[..], &rest[..]].concat().iter().map(|a| a.to_string()).collect::<Vec<_>>()
    };
    let args = with(&path);
    let output = run(&args.iter().map(String::as_str).collect::<Vec<_>>());
    assert!(output.status.success(), "{}", stderr(&output));
    let said = stderr(&output);
    let is_other = said.contains("warning: the profile is not of this machine and disk");
    assert!(is_other && said.contains("leave --profile out to use that of this disk"), "{said}");
    std::fs::remove_dir_all(&index).unwrap();

    let good = std::fs::read_to_string(&path).unwrap();
    let damaged = data.path("damaged.json");
    let digit = good.find("\"latency_us\"").unwrap()
        + good[good.find("\"latency_us\"").unwrap()..].find(|c: char| c.is_ascii_digit()).unwrap();
    let mut bytes = good.into_bytes();
    bytes[digit] = if bytes[digit] == b'9' { b'8' } else { b'9' };
    for (content, code, said) in [
        (bytes.as_slice(), 1, "is damaged"),
        (&bytes[..bytes.len() / 2], 1, "damaged.json"),
        (b"{}", 2, "is no profile"),
        (b"", 1, "damaged.json"),
    ] {
        std::fs::write(&damaged, content).unwrap();
        let args = with(&damaged);
        let output = run(&args.iter().map(String::as_str).collect::<Vec<_>>());
        let text = stderr(&output);
        assert!(output.status.code() == Some(code) && text.contains(said), "{code}: {text}");
        assert!(!index.join("manifest-1.json").exists());
    }
}

/// The names and bytes of the files in a folder.
fn contents(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = std::fs::read_dir(folder).unwrap().map(|e| e.unwrap());
    let files = entries.filter(|e| e.file_type().unwrap().is_file());
    files.map(|e| (e.file_name().into_string().unwrap(), std::fs::read(e.path()).unwrap())).collect()
}

#[test]
fn builds_on_a_disk_share_its_profile() {
    let data = Data::new(3000, 16, "f32");
    let cache = data.path("cache");
    let ask = |args: &[&str]| {
        let output = command(args).env("STRATANN_CACHE", &cache).output().unwrap();
        assert!(output.status.success(), "{args:?}: {}", stderr(&output));
        (serde_json::from_slice::<Value>(&output.stdout).unwrap_or_default(), stderr(&output))
    };
    let build = |name: &str| {
        let index = data.path(name);
        let place = ["build", arg(&data.base), "-o", arg(&index), "--kind", "hybrid-ivf"];
        let said = ask(&[&place[..], &["--calibration-queries", "60", "--threads", "2"]].concat()).1;
        (ask(&["info", arg(&index), "--json"]).0, contents(&index), said)
    };
    let folder = arg(data.folder.path());
    let doctor = || ask(&["doctor", "--path", folder, "--json"]).0["profile"].clone();
    assert!(doctor()["measurement"].is_null());
    let quick = ["--keep", "--seconds", "0.2", "--scratch", "4MiB", "--json"];
    let (kept, _) = ask(&[&["profile", folder], &quick[..]].concat());
    let file = PathBuf::from(kept["file"].as_str().unwrap());
    assert!(file.starts_with(&cache) && doctor()["measurement"] == kept["measurement"], "{kept}");

    // A disk that was never measured like this.
    let mut planted = Profile::read(&file).unwrap();
    planted.disk.loaded = ReadLine { depth: 32, fixed_us: 513.0, ns_per_byte: 1.0 };
    planted.write(&OutputPath::check(&file, true, &[]).unwrap()).unwrap();
    let (first, of_first, said) = build("first");
    assert!(!said.contains("timing reads"), "{said}");
    assert_eq!(first["clusters"]["read_max"], 63 * 4096);
    assert_eq!(first["plan"]["profile"]["fixed_us"], 513.0);
    assert_eq!(build("second").1, of_first);
    let shown = ask(&["profile", folder, "--kept", "--json"]).0;
    assert_eq!(shown["disk"]["loaded"]["fixed_us"], 513.0);

    // A damaged one is measured again beside other work, and replaced.
    std::fs::write(&file, "no profile").unwrap();
    assert!(doctor()["error"].as_str().unwrap().contains("damaged"));
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    std::hint::black_box(std::fs::read(&data.base).unwrap());
                }
            });
        }
        let ((third, of_third, said), (fourth, of_fourth, _)) = (build("third"), build("fourth"));
        is_over.store(true, Ordering::Relaxed);
        assert!(said.contains("measured again"), "{said}");
        assert_eq!((&third["plan"], of_third), (&fourth["plan"], of_fourth));
        assert_ne!(third["plan"]["profile"]["fixed_us"], 513.0);
    });
    assert!(Profile::read(&file).is_ok());

    // Where nothing can be kept, a build measures and says so.
    std::fs::remove_dir_all(&cache).unwrap();
    std::fs::write(&cache, "a file").unwrap();
    assert!(build("fifth").2.contains("set STRATANN_CACHE"));
}

#[test]
fn damaged_learnt_state_is_a_warning_and_no_other_answer() {
    let data = Data::new(2000, 16, "f32");
    let index = built(&data, "index", &["--clusters", "30"]);
    let out = data.path("out");
    let search = |more: &[&str]| {
        let asked = ["search", arg(&index), arg(&data.queries), "--nprobe", "6", "-o", arg(&out), "--force"];
        let output = run(&[&asked[..], more].concat());
        assert!(output.status.success(), "{}", stderr(&output));
        (read_answers(&out), stderr(&output))
    };
    let (plain, _) = search(&["--no-learning"]);
    search(&["--epoch-queries", "25", "--always-learn"]);
    let learnt = index.join("learnt.bin");
    let good = std::fs::read(&learnt).unwrap();
    let (_, said) = search(&["--frozen"]);
    assert!(!said.contains("warning"), "{said}");
    assert_eq!(std::fs::read(&learnt).unwrap(), good, "--frozen writes nothing");
    for damage in 0..3 {
        let mut bad = good.clone();
        match damage {
            0 => bad[40] ^= 1,
            1 => bad.truncate(good.len() - 1),
            _ => bad.clear(),
        }
        std::fs::write(&learnt, bad).unwrap();
        let (answers, said) = search(&["--frozen"]);
        assert!(
            said.contains("warning: ") && said.contains("learnt.bin") && said.contains("unharmed"),
            "{said}"
        );
        assert_eq!(answers, plain);
        let output = run(&["info", arg(&index)]);
        assert!(output.status.success() && stderr(&output).contains("learnt.bin"));
        let verified = run(&["verify", arg(&index)]);
        assert_eq!(verified.status.code(), Some(1));
        assert!(String::from_utf8_lossy(&verified.stdout).contains("learnt.bin"));
    }
    std::fs::write(&learnt, good).unwrap();
    assert!(run(&["verify", arg(&index)]).status.success());
}

/// Every query with every cluster visited.
fn assert_exact(data: &Data, index: &Path) {
    assert_eq!(json(&["verify", arg(index)])["violations_found"], 0);
    let out = data.path("exact");
    let all = ["--nprobe", "65536", "--local-lists", "65536", "-o", arg(&out), "--force"];
    json(&[&["search", arg(index), arg(&data.queries)], &all[..]].concat());
    let (k, _, distances) = read_answers(&out);
    let truth = nearest(&data.base_rows, &data.query_rows, "l2", k);
    for (query, want) in truth.iter().enumerate() {
        for (rank, (distance, _)) in want.iter().enumerate() {
            let found = f64::from(distances[query * k + rank]);
            assert!(
                (found - distance).abs() <= 1e-3 * distance.max(1.0),
                "query {query}, rank {rank}: {found}, not {distance}"
            );
        }
    }
}

#[test]
fn clusters_of_any_shape_are_searched_exactly() {
    let data = Data::new(2500, 8, "f32");
    for (clusters, name) in [("1", "giant"), ("2500", "singletons")] {
        let index = built(&data, name, &["--clusters", clusters]);
        let info = json(&["info", arg(&index)]);
        assert!(number(&info["clusters"]["sizes"]["count"]) <= clusters.parse().unwrap(), "{info}");
        assert_exact(&data, &index);
        let found = json(&[
            "search",
            arg(&index),
            arg(&data.queries),
            "--recall",
            "0.9",
            "--groundtruth",
            arg(&data.truth("l2")),
        ]);
        assert!(number(&found["runs"][0]["recall"]) > 0.85, "{found}");
        json(&["explain", arg(&index), arg(&data.queries), "--nprobe", "3"]);
    }
}

#[test]
fn equal_vectors_are_one_place_and_no_trouble() {
    let mut data = Data::new(900, 8, "f32");
    data.base_rows = vec![data.base_rows[0].clone(); 900];
    write(&data.base, &data.base_rows, "f32");
    for (name, more) in [("plain", &[][..]), ("ivf", &["--plan", "uniform-ivf", "--clusters", "3"])] {
        let index = built(&data, name, more);
        assert_exact(&data, &index);
        json(&["explain", arg(&index), "--plan", "--nprobe", "2"]);
        json(&["search", arg(&index), arg(&data.base), "--nprobe", "1", "--epoch-queries", "100"]);
    }
}

#[test]
fn a_server_learns_from_its_queries() {
    let data = Data::new(2000, 16, "f32");
    let index = built(&data, "index", &["--clusters", "30"]);
    let learnt = index.join("learnt.bin");
    let ask = |server: &Running| {
        let asked = [
            "search",
            "--connect",
            server.address(),
            arg(&data.queries),
            "--nprobe",
            "6",
            "--early-stop",
            "0.5",
        ];
        json(&asked)["runs"][0].clone()
    };
    for more in [&["--no-learning"][..], &["--frozen"]] {
        let server = Running::serve(&index, &[more, &["--epoch-queries", "20"]].concat());
        for _ in 0..3 {
            assert_eq!(number(&ask(&server)["per_query"]["pinned_hits"]), 0.0);
        }
        drop(server);
        assert!(!learnt.exists(), "{more:?}");
    }
    let server = Running::serve(&index, &["--epoch-queries", "20", "--always-learn"]);
    let first = ask(&server);
    for key in ["clusters", "fruitful_clusters", "lists", "pruned"] {
        assert!(number(&first["per_query"][key]) > 0.0, "{key}: {first}");
    }
    assert_eq!((&first["params"]["nprobe"], &first["params"]["early_stop"]), (&6.into(), &0.5.into()));
    wait_for("learning", || number(&ask(&server)["per_query"]["pinned_hits"]) > 0.0);
    wait_for("what was learnt", || learnt.exists());
    let status = get(server.address(), "/v1/status").1;
    assert!(number(&status["memory"]["learning_bytes"]) > 0.0, "{status}");
    let learning = &status["learning"];
    assert!(learning["is_on"] == true && number(&learning["learned_epochs"]) > 0.0, "{status}");
    let (code, said) = {
        server.signal(libc::SIGTERM);
        server.end()
    };
    assert_eq!(code, Some(0), "{said}");

    // Another one goes on from there, and writes no more when it is frozen.
    let kept = std::fs::read(&learnt).unwrap();
    let server = Running::serve(&index, &["--epoch-queries", "20", "--frozen"]);
    assert!(number(&ask(&server)["per_query"]["pinned_hits"]) > 0.0);
    for _ in 0..3 {
        ask(&server);
    }
    drop(server);
    assert_eq!(std::fs::read(&learnt).unwrap(), kept);
    std::fs::write(&learnt, &kept[..30]).unwrap();
    let server = Running::serve(&index, &[]);
    assert_eq!(number(&ask(&server)["per_query"]["pinned_hits"]), 0.0);
    server.signal(libc::SIGTERM);
    let (_, said) = server.end();
    assert!(said.contains("warning: ") && said.contains("learnt.bin"), "{said}");
}

#[test]
fn a_server_answers_as_the_index_does() {
    let data = Data::new(2000, 16, "f32");
    let index = built(&data, "index", &["--clusters", "30", "--plan", "uniform-ivf"]);
    let server = Running::serve(&index, &["--no-learning"]);
    let (here, there) = (data.path("here"), data.path("there"));
    for effort in [&["--nprobe", "6", "--stop-slack", "2"][..], &["--recall", "0.8"]] {
        let asked = [effort, &["--width", "1"]].concat();
        let local = ["search", arg(&index), arg(&data.queries), "--no-learning", "-o", arg(&here), "--force"];
        let remote =
            ["search", "--connect", server.address(), arg(&data.queries), "-o", arg(&there), "--force"];
        let (local, remote) = (json(&[&local[..], &asked].concat()), json(&[&remote[..], &asked].concat()));
        assert_eq!(read_answers(&here), read_answers(&there));
        assert_eq!(exact_counters(&local["runs"][0]), exact_counters(&remote["runs"][0]));
        for key in ["nprobe", "early_stop", "stop_slack"] {
            assert_eq!(local["runs"][0]["params"][key], remote["runs"][0]["params"][key], "{key}");
        }
    }
    let queries: Vec<u8> = data.query_rows[0].iter().flat_map(|&x| (x as f32).to_le_bytes()).collect();
    let wrong = post(server.address(), "/v1/search?search_list=20", &queries);
    assert_eq!(wrong.0, 400);
    assert!(wrong.1["error"].as_str().unwrap().contains("hybrid-ivf"), "{}", wrong.1);
    assert_eq!(post(server.address(), "/v1/search?nprobe=2&early_stop=0", &queries).0, 400);

    let config = data.path("server.toml");
    for (text, said) in [
        ("learning = \"maybe\"", "use \"on\", \"always\", \"frozen\" or \"off\""),
        ("epoch_queries = 0", "epoch_queries is 0"),
    ] {
        std::fs::write(&config, format!("index = \"index\"\n{text}")).unwrap();
        assert!(refused(&["serve", "--config", arg(&config)], 2).contains(said));
    }
}

#[test]
fn explain_follows_walks() {
    let data = Data::new(2000, 16, "f32");
    let index = built(&data, "index", &["--clusters", "20", "--plan", "uniform-graph"]);
    for query in ["0", "7", "33"] {
        let asked = ["explain", arg(&index), arg(&data.queries), "--query", query, "--nprobe", "8"];
        let trace = json(&[&asked[..], &["--head-budget", "16MiB"]].concat());
        let visits = trace["visits"].as_array().unwrap();
        let all_met = |v: &Value| {
            let (met, kept) = (number(&v["scanned"]), number(&v["kept"]));
            v["kind"] == "graph" && met > 0.0 && met <= number(&v["members"]) && kept <= met
        };
        assert!(visits.len() == 8 && visits.iter().all(all_met), "{trace}");
        let fruitful = visits.iter().filter(|v| v["fruitful"] == true).count();
        assert!(
            fruitful > 0 && number(&trace["counters"]["fruitful_clusters"]) == fruitful as f64,
            "{trace}"
        );
        assert_eq!(visits.iter().map(|v| number(&v["lists_scanned"])).sum::<f64>(), 0.0);
    }
}

#[test]
fn a_server_holds_the_codes_that_its_budget_has_room_for() {
    let data = Data::new(3000, 16, "f32");
    let index = built(&data, "index", &["--clusters", "40", "--plan", "uniform-flat"]);
    let place = ["serve", "--index", arg(&index), "--http", "127.0.0.1:0", "--until-eof"];
    let limits = ["--threads", "1", "--queue", "64", "--no-learning"];
    let is_enough = |bytes: u64| {
        let output = run(&[&place[..], &limits, &["--ram-budget", &bytes.to_string()]].concat());
        let said = stderr(&output);
        assert!(output.status.success() || said.contains("give --ram-budget "), "{said}");
        output.status.success()
    };
    let (mut refused, mut least) = (1u64 << 20, 64u64 << 20);
    while least - refused > 1024 {
        let middle = (refused + least) / 2;
        *if is_enough(middle) { &mut least } else { &mut refused } = middle;
    }
    let serve = |budget: u64| {
        let options = ["--ram-budget", &budget.to_string()];
        let server = Running::serve(&index, &[&limits[..], &options].concat());
        let asked = ["search", "--connect", server.address(), arg(&data.queries), "--nprobe", "10"];
        let run = json(&asked)["runs"][0].clone();
        let memory = get(server.address(), "/v1/status").1["memory"].clone();
        assert!(number(&memory["total_bytes"]) <= budget as f64, "{memory}");
        (number(&run["per_query"]["reads"]), number(&memory["codes_in_RAM_bytes"]))
    };
    let (tiny, generous) = (serve(least), serve(4 * least));
    assert!(generous.0 < tiny.0 - 3.0, "{generous:?}, {tiny:?}");
    assert!(generous.1 > tiny.1 && generous.1 > 0.0, "{generous:?}, {tiny:?}");
}
