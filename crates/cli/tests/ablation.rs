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

#[test]
fn the_kind_is_chosen_and_why_is_told() {
    let data = Data::new(300, 16, "f32");
    let index = data.path("index");
    let built = run(&["build", arg(&data.base), "-o", arg(&index), "--kind", "auto"]);
    let text = stderr(&built);
    assert!(built.status.success() && text.contains("--kind auto: flat: flat takes about "), "{text}");
    assert_eq!(json(&["info", arg(&index)])["kind"], "flat");
}
