//! Papers: every figure is listed, a study runs and goes on, and what is wrong is refused.
#![allow(missing_docs)]

#[path = "../../cli/tests/common/mod.rs"]
mod common;

use common::*;

/// Papers with their numbers of figures and tables.
const PAPERS: [(&str, usize, usize); 5] =
    [("batann", 14, 1), ("d-hnsw", 7, 2), ("fusionanns", 12, 3), ("harmony", 11, 5), ("orchann", 18, 4)];

#[test]
fn every_figure_and_table_is_listed_once() {
    for (paper, figures, tables) in PAPERS {
        let list = json(&["paper", paper, "--list"]);
        let items = list["items"].as_array().unwrap();
        let ids: Vec<&str> = items.iter().map(|item| item["id"].as_str().unwrap()).collect();
        let all =
            (1..=figures).map(|n| format!("figure {n}")).chain((1..=tables).map(|n| format!("table {n}")));
        for id in all {
            assert_eq!(ids.iter().filter(|known| **known == id).count(), 1, "{paper}: {id}");
        }
        let numbered = ids.iter().filter(|id| id.starts_with("figure ") || id.starts_with("table ")).count();
        assert_eq!(numbered, figures + tables, "{paper} has no more");
        for item in items {
            let reason = item["left_out"].as_str().unwrap_or("measured");
            assert!(!reason.is_empty() && !item["title"].as_str().unwrap().is_empty(), "{paper}: {item}");
        }
    }
}

#[test]
fn a_study_measures_and_goes_on_where_it_was() {
    let root = folder();
    let out = root.path().join("study");
    let args = ["paper", "batann", "-o", arg(&out), "--rows", "1500", "--query-count", "30", "--dim", "16"];
    let first = run(&[&args[..], &["--only", "figure 4"]].concat());
    assert!(first.status.success(), "{}", stderr(&first));
    let printed = String::from_utf8_lossy(&first.stdout).into_owned();
    assert!(printed.contains("hops, width 1") && printed.contains("138"), "{printed}");
    assert!(stderr(&first).contains("stratann-lab build"), "commands are shown: {}", stderr(&first));

    let second = run(&[&args[..], &["--only", "figure 4,figure 3,figure 1", "--json"]].concat());
    assert!(!stderr(&second).contains("stratann-lab build"), "the index is there: {}", stderr(&second));
    let found: serde_json::Value = serde_json::from_slice(&second.stdout).unwrap();
    let items = found["items"].as_array().unwrap();
    let rows = items[0]["rows"].as_array().unwrap();
    let narrow = rows.iter().find(|row| row["what"] == "hops, width 1").unwrap();
    let (ours, ratio) = (narrow["ours"].as_f64().unwrap(), narrow["ratio"].as_f64().unwrap());
    assert!(ours >= 1.0 && (ratio - ours / 138.1).abs() < 1e-9, "{narrow}");
    assert!(
        items[0]["commands"].as_array().unwrap().iter().any(|c| c.as_str().unwrap().contains(" simulate "))
    );
    assert_eq!(items[2]["left_out"], "a drawing");
    for name in ["batann.json", "batann.md", "batann-figure-3.svg"] {
        assert!(out.join(name).is_file(), "{name}");
    }
    let svg = std::fs::read_to_string(out.join("batann-figure-3.svg")).unwrap();
    assert!(svg.starts_with("<svg") && svg.contains("hand-overs"));

    // A document that was cut off, and an index that is gone, are made once more.
    let runs = || std::fs::read_dir(out.join("runs")).unwrap().map(|entry| entry.unwrap().path());
    runs().for_each(|path| std::fs::write(path, "{").unwrap());
    std::fs::remove_dir_all(out.join("whole.idx")).unwrap();
    let third = run(&[&args[..], &["--only", "figure 4"]].concat());
    assert!(third.status.success() && stderr(&third).contains("stratann-lab build"), "{}", stderr(&third));
}

#[test]
fn what_is_wrong_is_refused() {
    let root = folder();
    let out = root.path().join("study");
    let args = ["paper", "batann", "-o", arg(&out)];
    let said = refused(&[&args[..], &["--only", "figure 99"]].concat(), 2);
    assert!(said.contains("figure 99") && said.contains("figure 3"), "{said}");
    assert!(refused(&["paper", "batann"], 2).contains("--output"));
    assert!(refused(&["paper", "nothing", "-o", arg(&out)], 2).contains("batann"));
    assert!(!out.exists(), "nothing was begun");
    let missing = root.path().join("missing.fbin");
    let own = ["--base", arg(&missing), "--queries", arg(&missing), "--only", "figure 3"];
    assert!(refused(&[&args[..], &own].concat(), 2).contains("missing.fbin"));
    assert!(refused(&[&args[..], &["--base", arg(&missing)]].concat(), 2).contains("--queries"));
    std::fs::write(root.path().join("file"), "x").unwrap();
    let file = root.path().join("file");
    let said = run(&["paper", "batann", "-o", arg(&file), "--only", "figure 3"]);
    assert!(!said.status.success() && stderr(&said).contains("file"), "{}", stderr(&said));
    assert_eq!(std::fs::read(&file).unwrap(), b"x");
}

/// Rows of the only item that was measured, with numbers of ours.
fn quantities(report: &serde_json::Value) -> Vec<String> {
    let rows = report["items"][0]["rows"].as_array().unwrap();
    let of =
        |row: &serde_json::Value| row["ours"].as_f64().map(|_| row["what"].as_str().unwrap().to_string());
    rows.iter().filter_map(of).collect()
}

#[test]
fn a_table_of_harmony_is_measured_on_a_small_set() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("study");
    let small = ["--rows", "2000", "--query-count", "60", "--dim", "32", "--clusters", "10"];
    let args = ["paper", "harmony", "-o", arg(&out), "--only", "table 3"];
    let report = json(&[&args[..], &small].concat());
    assert_eq!(quantities(&report).len(), 5, "{report}");
    let page = std::fs::read_to_string(out.join("harmony.md")).unwrap();
    assert!(page.contains("**table 3**") && page.contains("dropped before slice 2"), "{page}");
    let wrong = run(&["paper", "harmony", "--list", "--only", "figure 99"]);
    assert!(!wrong.status.success() && stderr(&wrong).contains("figure 11"), "{}", stderr(&wrong));
}

/// Measures items of a paper with few vectors, twice; the second time the documents of the folder are used.
fn measured(paper: &str, only: &str) -> serde_json::Value {
    let folder = folder();
    let out = arg(folder.path());
    let few = ["--rows", "2000", "--query-count", "40", "--dim", "32", "--clusters", "8"];
    let args = [&["paper", paper, "-o", out, "--only", only], &few[..]].concat();
    let found = json(&args);
    let again = run(&args);
    assert!(again.status.success() && !stderr(&again).contains("stratann-lab build"), "{}", stderr(&again));
    let text = String::from_utf8(again.stdout).unwrap();
    assert!(text.contains("why they differ"), "{text}");
    let page = std::fs::read_to_string(folder.path().join(format!("{paper}.md"))).unwrap();
    for item in found["items"].as_array().unwrap() {
        assert!(page.contains(&format!("**{}**", item["id"].as_str().unwrap())));
        assert!(
            item["commands"]
                .as_array()
                .unwrap()
                .iter()
                .all(|c| c.as_str().unwrap().starts_with("stratann-lab "))
        );
        for row in item["rows"].as_array().unwrap() {
            let ratio = row["ratio"].as_f64();
            assert_eq!(ratio.is_some(), row["paper"].is_object() && row["ours"].is_number(), "{row}");
        }
    }
    found
}

/// What was measured for a quantity of an item.
fn ours(found: &serde_json::Value, item: &str, what: &str) -> Option<f64> {
    let items = found["items"].as_array().unwrap();
    let item = items.iter().find(|of| of["id"] == item).unwrap();
    let row = item["rows"].as_array().unwrap().iter().find(|row| row["what"] == what);
    row.unwrap_or_else(|| panic!("no {what:?} in {item}"))["ours"].as_f64()
}

#[test]
fn fusionanns_is_repeated() {
    let found = measured("fusionanns", "figure 4,figure 5,table 2");
    let figure = |what: &str| ours(&found, "figure 4", what);
    assert!(figure("QPS, hi+pq over spann").unwrap() > 0.0);
    assert_eq!(figure("QPS, hi+gpu over spann"), None, "no GPU is there");
    let copied = |way: &str| figure(&format!("bytes to a GPU for a query, {way}")).unwrap();
    assert!(copied("hi+gpu (bytes counted only)") > copied("hi+pq+gpu (bytes counted only)"));
    assert!(ours(&found, "figure 5", "candidates that a query needs, p50").unwrap() >= 1.0);
    assert!(ours(&found, "table 2", "QPS a dollar, ours over SPANN").unwrap() > 0.0);
    assert_eq!(ours(&found, "table 2", "QPS a dollar, ours over RUMMY"), None);
}

#[test]
fn d_hnsw_is_repeated() {
    let found = measured("d-hnsw", "table 1,meta-hnsw");
    let round_trips = |way: &str| ours(&found, "table 1", &format!("round trips, {way}")).unwrap();
    assert!(
        round_trips("naive") > 3.0 && round_trips("naive") < 4.5,
        "a round trip for each of four clusters"
    );
    assert!(round_trips("remote-hnsw") < round_trips("no-doorbell"));
    assert!(ours(&found, "table 1", "network time, naive over remote-hnsw").unwrap() > 1.0);
    assert!(ours(&found, "meta-hnsw", "bytes of a representative without its vector").unwrap() > 0.0);
}
