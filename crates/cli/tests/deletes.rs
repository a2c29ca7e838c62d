//! `stratann delete INDEX`: what searches, `info`, `verify`, `tune` and builds from the index say afterwards, and mistakes.
#![allow(missing_docs)]

mod common;

use std::path::PathBuf;

use common::*;

/// Every third row.
fn thirds() -> Vec<u64> {
    (0..1500).filter(|id| id % 3 == 1).collect()
}

fn file(data: &Data, name: &str, ids: &[u64]) -> PathBuf {
    let path = data.path(name);
    std::fs::write(&path, ids.iter().map(|id| format!("{id}\n")).collect::<String>()).unwrap();
    path
}

#[test]
fn deleted_rows_are_not_found_until_they_are_brought_back() {
    let data = Data::new(1500, 16, "f32");
    let (index, old) = (data.build("i", &[]), file(&data, "old.txt", &thirds()));
    let (truth, out) = (data.path("left.ibin"), data.path("out"));
    json(&[
        "groundtruth",
        arg(&data.base),
        arg(&data.queries),
        "-k",
        "10",
        "-o",
        arg(&truth),
        "--without",
        arg(&old),
    ]);
    let deleted = json(&["delete", arg(&index), arg(&old)]);
    assert_eq!(
        (&deleted["changed"], &deleted["left"], &deleted["version"]),
        (&500.into(), &1000.into(), &2.into())
    );
    let search = ["search", arg(&index), arg(&data.queries), "-k", "10", "--recall", "0.95"];
    let found =
        json(&[&search[..], &["--groundtruth", arg(&truth), "-o", arg(&out)]].concat())["runs"][0].clone();
    assert!(found["recall"].as_f64().unwrap() >= 0.93, "{found}");
    // Ground truth with deleted rows would show a recall that no search can have.
    let whole = data.path("whole.ibin");
    json(&["groundtruth", arg(&data.base), arg(&data.queries), "-k", "10", "-o", arg(&whole)]);
    let error = refused(&[&search[..], &["--groundtruth", arg(&whole)]].concat(), 2);
    assert!(error.contains("is deleted") && error.contains("--without"), "{error}");
    let tune = ["tune", arg(&index), "--queries", arg(&data.queries), "--groundtruth"];
    let error = refused(&[&tune[..], &[arg(&whole)]].concat(), 2);
    assert!(error.contains("is deleted"), "{error}");
    json(&[&tune[..], &[arg(&truth), "-k", "10"]].concat());
    let info = json(&["info", arg(&index)]);
    assert_eq!(info["deletes"], serde_json::json!({ "rows": 500, "left": 1000, "undo": 1 }));
    assert_eq!(info["format_version"], 5);
    let text = String::from_utf8(run(&["info", arg(&index)]).stdout).unwrap();
    assert!(text.contains("500 of them are deleted, 1,000 are left"), "{text}");
    json(&["verify", arg(&index)]);
    let fresh = data.path("fresh");
    json(&["build", "--from", arg(&index), "-o", arg(&fresh)]);
    assert_eq!(json(&["info", arg(&fresh)])["rows"], 1000);
    let back = json(&["delete", arg(&index), "--undo"]);
    assert_eq!((&back["changed"], &back["deleted"]), (&500.into(), &0.into()));
    json(&[&search[..], &["--groundtruth", arg(&whole)]].concat());
}

#[test]
fn deletes_of_odd_ids_are_counted_and_mistakes_are_refused() {
    let data = Data::new(1500, 16, "f32");
    let index = data.build("i", &[]);
    let some = json(&["delete", arg(&index), "--id", "5,3,5,99999,18446744073709551615"]);
    assert_eq!((&some["changed"], &some["unknown"], &some["repeated"]), (&2.into(), &2.into(), &1.into()));
    let said = String::from_utf8(run(&["delete", arg(&index), "--id", "3,4"]).stdout).unwrap();
    assert!(
        said.contains("deleted 1 rows; 1 rows were deleted before") && said.contains("1,497 rows are left"),
        "{said}"
    );
    let (old, gone) = (file(&data, "old.txt", &[1]), data.path("gone"));
    let negative = data.path("negative.txt");
    std::fs::write(&negative, "-1\n").unwrap();
    for (args, why) in [
        (&["delete"][..], "no index is named"),
        (&["delete", arg(&index)], "no ids are given"),
        (&["delete", arg(&index), arg(&old), "--id", "3"], "leave one of them out"),
        (&["delete", arg(&index), arg(&old), "--undo"], "--undo takes no ids"),
        (&["delete", arg(&index), arg(&negative)], "negative.txt"),
        (&["delete", arg(&gone), "--id", "3"], "no such index"),
        (&["delete", arg(&index), "--id", "3", "--key-file", arg(&old)], "keys are for memory nodes"),
        (&["delete", arg(&index), "--id", "3", "--batch", "9"], "--batch"),
        (&["delete", arg(&index), "--id", "3", "--ram-budget", "1KiB"], "RAM budget"),
        (&["delete", arg(&index), arg(&old), "--memory", "127.0.0.1:1"], "one path too many"),
    ] {
        let error = refused(args, 2);
        assert!(error.contains(why), "{args:?}: {error}");
    }
    assert_eq!(json(&["info", arg(&index)])["version"], 3, "mistakes change nothing");
    let spread = data.path("spread");
    json(&["cluster", "partition", arg(&index), "--servers", "2", "-o", arg(&spread)]);
    let error = refused(&["delete", arg(&spread), "--id", "3"], 2);
    assert!(error.contains("is partitioned over 2 servers"), "{error}");
}
