//! `bench ablation`, and the kind that `build --kind auto` chooses.
#![allow(missing_docs)]

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
    let args = ["bench", "ablation", arg(&data.base), arg(&data.queries), "--groundtruth", arg(&truth)];
    let more = ["-o", arg(&out), "--profile", arg(&profile), "--clusters", "40", "--epoch-queries", "10"];
    let found = json(&[&args[..], &more, &["--recall", "0.5,0.8", "--plot", arg(&plot)]].concat());
    let names = |part: &str| -> Vec<String> {
        found[part].as_array().unwrap().iter().map(|s| s["name"].as_str().unwrap().to_string()).collect()
    };
    assert_eq!(names("local_indexes"), ["auto", "uniform-flat", "uniform-graph", "uniform-ivf"]);
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
    // Two recalls on two servers, one on four; each in four modes.
    assert_eq!(found["even"].as_array().unwrap().len(), 12);
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
    let [load] = rows_with(&found["loads"], &[])[..] else { panic!("{found}") };
    assert!(load["load"] == "skew-0.9" && number(&load["expected"]) > 0.5, "{load}");
    let nprobe = &load["nprobe"];
    let share = |part: &str| {
        let rows = rows_with(&found[part], &[("name", "vector")]);
        let row = rows.into_iter().find(|row| row["servers"] == 2 && &row["nprobe"] == nprobe).unwrap();
        number(&row["largest_share"])
    };
    assert!(share("skewed") > share("even"), "one server has more of a skewed load");
    assert_eq!(
        found["choices"].as_array().unwrap().len(),
        4,
        "one for each load, recall and number of servers"
    );
}

fn check_techniques(found: &serde_json::Value) {
    let rows = rows_with(&found["techniques"], &[]);
    let names: Vec<&str> = rows.iter().map(|row| row["name"].as_str().unwrap()).collect();
    let variants =
        ["no pruning by vectors", "no pruning by dimensions", "no pruning", "no prewarming"].as_slice();
    assert_eq!(names, [&["all", "no balance", "blocking", "no pipeline"], variants].concat());
    let components = |at: usize| number(&rows[at]["components"]);
    assert!(components(0) < components(4) && components(0) < components(6) && components(5) == components(6));
    assert!(components(0) <= components(3));
    assert_eq!(rows[2]["qps"], rows[0]["blocking_qps"]);
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
    let args = ["bench", "ablation", arg(&data.base), arg(&data.queries), "--groundtruth", arg(&truth)];
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
    assert!(text.contains("no pipeline") && text.contains("peak memory"), "{text}");
}

#[test]
fn options_of_the_other_kind_are_refused() {
    let data = Data::new(300, 16, "f32");
    let (truth, out) = (data.truth("l2"), data.path("grid"));
    let args = ["bench", "ablation", arg(&data.base), arg(&data.queries), "--groundtruth", arg(&truth)];
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
fn the_kind_is_chosen_and_why_is_told() {
    let data = Data::new(300, 16, "f32");
    let index = data.path("index");
    let built = run(&["build", arg(&data.base), "-o", arg(&index), "--kind", "auto"]);
    let text = stderr(&built);
    assert!(built.status.success() && text.contains("--kind auto: flat: flat takes about "), "{text}");
    assert_eq!(json(&["info", arg(&index)])["kind"], "flat");
}
