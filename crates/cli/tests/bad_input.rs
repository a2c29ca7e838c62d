//! Bad input gives one line that says what and where, the right exit code, and leaves nothing broken behind.
#![allow(missing_docs)]

mod common;
use std::path::Path;

use common::*;

fn small(dtype: &str) -> Data {
    Data::new(1200, 16, dtype)
}

fn build_refused(data: &Data, more: &[&str]) -> String {
    let index = data.path("refused");
    let error = refused(&[&data.build_args(&index)[..], more].concat(), 2);
    assert!(!index.exists(), "a refused build leaves no folder");
    error
}

#[test]
fn queries_that_do_not_fit() {
    let data = small("f32");
    let index = data.build("graph", &[]);
    let (index, path) = (arg(&index), data.path("bad.fbin"));
    let error = |rows: &[Vec<f64>]| {
        write(&path, rows, "f32");
        refused(&["search", index, arg(&path)], 2)
    };
    let wrong_dim = error(&rows(10, 17, "f32", 3));
    assert!(wrong_dim.contains("17 dimensions") && wrong_dim.contains("16"), "{wrong_dim}");
    let mut with_nan = rows(10, 16, "f32", 3);
    with_nan[7][3] = f64::NAN;
    let nan = error(&with_nan);
    assert!(nan.contains("row 7") && nan.contains("bad.fbin") && nan.contains("component 3 is NaN"), "{nan}");
    with_nan[7][3] = f64::INFINITY;
    assert!(error(&with_nan).contains("infinite"));
    assert!(error(&[]).contains("0 rows"));

    let bytes = small("u8");
    let error = refused(&["search", index, arg(&bytes.queries)], 2);
    assert!(error.contains("u8") && error.contains("f32"), "{error}");
    let whole = std::fs::read(&data.queries).unwrap();
    std::fs::write(&path, &whole[..whole.len() - 5]).unwrap();
    let error = refused(&["search", index, arg(&path)], 2);
    assert!(error.contains("truncated") && error.contains("bad.fbin"), "{error}");
    refused(&["search", index, arg(&data.path("missing.fbin"))], 2);
}

#[test]
fn numbers_out_of_range() {
    let data = small("f32");
    let index = data.build("graph", &[]);
    let search = |more: &[&str]| refused(&[&["search", arg(&index), arg(&data.queries)], more].concat(), 2);
    assert!(search(&["-k", "0"]).contains("k is 0"));
    assert!(search(&["--search-list", "0"]).contains("search list is 0"));
    assert!(search(&["--recall", "1.5"]).contains("1.5"));
    assert!(search(&["--recall", "0"]).contains("recall is 0"));
    assert!(search(&["--threads", "0"]).contains("threads"));
    assert!(search(&["--width", "wide"]).contains("width"));
    assert!(search(&["--ram-budget", "lots"]).contains("lots"));
    assert!(search(&["--recall", "0.8,0.9", "-o", "x"]).contains("-o"));
    assert!(
        refused(
            &["groundtruth", arg(&data.base), arg(&data.queries), "-k", "0", "-o", arg(&data.path("gt"))],
            2
        )
        .contains("k is 0")
    );
    assert!(refused(&["explain", arg(&index), arg(&data.queries), "--query", "50"], 2).contains("50"));
    let output = run(&[
        "search",
        arg(&index),
        arg(&data.queries),
        "-k",
        "2000",
        "--search-list",
        "2000",
        "-o",
        arg(&data.path("all")),
    ]);
    assert!(output.status.success());
    assert!(stderr(&output).contains("1200 results"), "{}", stderr(&output));
    assert_eq!(read_answers(&data.path("all")).0, 1200);
}

#[test]
fn base_files_that_cannot_be_indexed() {
    let data = small("f32");
    let mut bad_rows = data.base_rows.clone();
    bad_rows[321][5] = f64::NAN;
    write(&data.base, &bad_rows, "f32");
    let error = build_refused(&data, &[]);
    assert!(
        error.contains("row 321") && error.contains("NaN") && error.contains("--on-bad-row skip"),
        "{error}"
    );
    let index = data.path("skipped");
    let built = json(&[&data.build_args(&index)[..], &["--on-bad-row", "skip"]].concat());
    assert_eq!((&built["rows"], &built["skipped_rows"]), (&1199.into(), &1.into()));

    write(&data.base, &[], "f32");
    assert!(build_refused(&data, &[]).contains("0 rows"));
    write(&data.base, &data.base_rows, "f32");
    let whole = std::fs::read(&data.base).unwrap();
    std::fs::write(&data.base, &whole[..whole.len() / 2]).unwrap();
    let error = build_refused(&data, &[]);
    assert!(error.contains("truncated") && error.contains("base.fbin"), "{error}");
    write(&data.base, &data.base_rows, "f32");
    let mut ids = [1200u32.to_le_bytes(), 1u32.to_le_bytes()].concat();
    (0..1200u64).for_each(|row| ids.extend((row % 1000).to_le_bytes()));
    std::fs::write(data.path("ids.u64bin"), ids).unwrap();
    let error = build_refused(&data, &["--ids", arg(&data.path("ids.u64bin"))]);
    assert!(error.contains("same id 0") && error.contains("1000"), "{error}");
    assert!(build_refused(&data, &["--degree", "1"]).contains("--degree"));
}

#[test]
fn the_budget_that_an_error_names_works() {
    let data = Data::new(3000, 32, "f32");
    let index = data.path("graph");
    let named = |error: &str| {
        error.split("--ram-budget ").nth(1).unwrap().split_whitespace().next().unwrap().to_string()
    };
    let error = build_refused(&data, &["--ram-budget", "1MiB"]);
    json(&[&data.build_args(&index)[..], &["--ram-budget", &named(&error)]].concat());
    let search = ["search", arg(&index), arg(&data.queries), "--recall", "0.9", "--threads", "2"];
    for budget in ["1MiB", "7MiB", "8MiB"] {
        let error = refused(&[&search[..], &["--ram-budget", budget]].concat(), 2);
        let enough = named(&error);
        json(&[&search[..], &["--ram-budget", &enough]].concat());
        // More is never too little: what is moved into memory leaves room for queries.
        let least: usize = enough.strip_suffix("MiB").unwrap().parse().unwrap();
        for more in 1..12 {
            json(&[&search[..], &["--ram-budget", &format!("{}MiB", least + more)]].concat());
        }
    }
    let out = data.path("gt");
    let truth = ["groundtruth", arg(&data.base), arg(&data.queries), "-o", arg(&out)];
    let error = refused(&[&truth[..], &["--ram-budget", "1KiB"]].concat(), 2);
    assert!(error.contains("budget"), "{error}");
}

#[test]
fn an_existing_index_is_left_alone() {
    let data = small("f32");
    let index = data.build("graph", &[]);
    let before = files(&index);
    let error = refused(&data.build_args(&index), 2);
    assert!(error.contains("--force"), "{error}");
    assert_eq!(files(&index), before);
    // A forced build that fails leaves the old index as it was.
    let broken = data.path("broken.fbin");
    let mut bad = data.base_rows.clone();
    bad[0][0] = f64::NAN;
    write(&broken, &bad, "f32");
    refused(&["build", arg(&broken), "-o", arg(&index), "--kind", "disk-graph", "--force"], 2);
    assert_eq!(files(&index), before);
    json(&[&data.build_args(&index)[..], &["--force", "--seed", "9"]].concat());
    assert_eq!(json(&["info", arg(&index)])["version"], 2);
    assert_eq!(json(&["info", arg(&index)])["left_over"], serde_json::json!([]));
}

#[test]
fn folders_that_are_no_index() {
    let data = small("f32");
    let search = |index: &Path| refused(&["search", arg(index), arg(&data.queries)], 2);
    search(&data.path("nowhere"));
    std::fs::create_dir(data.path("empty")).unwrap();
    assert!(search(&data.path("empty")).contains("not an index"));
    std::fs::create_dir_all(data.path("half/partial")).unwrap();
    assert!(search(&data.path("half")).contains("--resume"));
    let error = refused(&["build", arg(&data.base), "-o", arg(&data.queries), "--kind", "flat"], 2);
    assert!(error.contains("is a file"), "{error}");

    let index = data.build("graph", &[]);
    let path = index.join("manifest-1.json");
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, text.replace("\"format_version\": 4", "\"format_version\": 99")).unwrap();
    let error = search(&index);
    assert!(error.contains("format version 99") && error.contains("newer stratann"), "{error}");
    std::fs::write(&path, &text[..text.len() / 2]).unwrap();
    assert!(refused(&["search", arg(&index), arg(&data.queries)], 1).contains("manifest-1.json"));
}

#[test]
fn truth_that_does_not_belong() {
    let data = small("f32");
    let index = data.build("graph", &[]);
    let truth = data.truth("l2");
    let few = data.path("few.fbin");
    write(&few, &rows(10, 16, "f32", 3), "f32");
    let error = refused(&["search", arg(&index), arg(&few), "--groundtruth", arg(&truth)], 2);
    assert!(error.contains("50 queries") && error.contains("10"), "{error}");
    let error = refused(
        &[
            "search",
            arg(&index),
            arg(&data.queries),
            "-k",
            "30",
            "--search-list",
            "60",
            "--groundtruth",
            arg(&truth),
        ],
        2,
    );
    assert!(error.contains("20 neighbours"), "{error}");
}
