//! Build, search and ground truth of the real binary against a naive search.
#![allow(missing_docs)]

mod common;
use common::*;

/// Recall of a file of answers against exact distances: an answer counts when it is no farther than the k-th true one.
fn recall(answers: &std::path::Path, data: &Data, metric: &str) -> f64 {
    let (k, ids, distances) = read_answers(answers);
    let truth = nearest(&data.base_rows, &data.query_rows, metric, k);
    let mut found = 0;
    for (i, (&id, &told)) in ids.iter().zip(&distances).enumerate() {
        let query = &data.query_rows[i / k];
        let exact = distance(metric, query, &data.base_rows[id as usize]);
        let scale = exact.abs().max(1.0);
        assert!((f64::from(told) - exact).abs() <= 2e-3 * scale, "{metric}: told {told}, exact {exact}");
        assert!(i % k == 0 || distances[i - 1] <= told, "answers are not sorted");
        found += usize::from(exact <= truth[i / k][k - 1].0 + 1e-6 * scale);
    }
    found as f64 / ids.len() as f64
}

fn every_metric(dtype: &str) {
    let data = Data::new(2000, 24, dtype);
    for metric in METRICS {
        let truth = data.truth(metric);
        assert!(recall(&truth, &data, metric) > 0.9999, "{dtype} {metric}: ground truth");
        let index = data.build(&format!("graph-{metric}"), &["--metric", metric]);
        let out = data.path("answers.ibin");
        let found = json(&[
            "search",
            arg(&index),
            arg(&data.queries),
            "--search-list",
            "80",
            "--groundtruth",
            arg(&truth),
            "-o",
            arg(&out),
            "--force",
        ]);
        let told = found["runs"][0]["recall"].as_f64().unwrap();
        let seen = recall(&out, &data, metric);
        assert!(told > 0.95 && seen > 0.95, "{dtype} {metric}: recall {told}, by distance {seen}");
        assert!((told - seen).abs() < 0.02, "{dtype} {metric}: told {told}, by distance {seen}");

        let flat = data.path(&format!("flat-{metric}"));
        json(&["build", arg(&data.base), "-o", arg(&flat), "--kind", "flat", "--metric", metric]);
        let found = json(&[
            "search",
            arg(&flat),
            arg(&data.queries),
            "--groundtruth",
            arg(&truth),
            "-o",
            arg(&out),
            "--force",
        ]);
        assert!(
            found["runs"][0]["recall"].as_f64().unwrap() > 0.998,
            "{dtype} {metric}: flat is exact but for ties"
        );
        assert!(recall(&out, &data, metric) > 0.9999, "{dtype} {metric}: flat");
    }
}

#[test]
fn f32_round_trip() {
    every_metric("f32");
}

#[test]
fn f16_round_trip() {
    every_metric("f16");
}

#[test]
fn u8_round_trip() {
    every_metric("u8");
}

#[test]
fn i8_round_trip() {
    every_metric("i8");
}

#[test]
fn recall_is_a_setting() {
    let data = Data::new(4000, 24, "f32");
    let index = data.build("graph", &["--calibration-queries", "200"]);
    let truth = data.truth("l2");
    let found = json(&[
        "search",
        arg(&index),
        arg(&data.queries),
        "--cache-budget",
        "0",
        "--recall",
        "0.8,0.95",
        "--groundtruth",
        arg(&truth),
    ]);
    let run = |i: usize| &found["runs"][i];
    assert_eq!(run(1)["params"]["recall"], 0.95);
    assert!(
        run(0)["recall"].as_f64().unwrap() > 0.7 && run(1)["recall"].as_f64().unwrap() > 0.9,
        "{found:#}"
    );
    assert!(run(0)["per_query"]["reads"].as_f64() <= run(1)["per_query"]["reads"].as_f64());
}

#[test]
fn an_exact_search_says_before_what_it_costs() {
    let data = Data::new(1500, 16, "f32");
    for kind in ["disk-graph", "hybrid-ivf", "flat"] {
        let index = data.path(kind);
        let build = ["build", arg(&data.base), "-o", arg(&index), "--kind", kind];
        json(&[&build[..], &calibrated(kind, "100")].concat());
        let asked = ["search", arg(&index), arg(&data.queries), "--cache-budget", "0", "--recall"];
        let searched = |recall: &str| run(&[&asked[..], &[recall, "--json"]].concat());
        let output = searched("1");
        // Too few to share a pass over lists.
        let queries = data.path("few.fbin");
        write(&queries, &data.query_rows[..5], "f32");
        let few =
            run(&["search", arg(&index), arg(&queries), "--cache-budget", "0", "--recall", "1", "--json"]);
        let run: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let counter = |name: &str| run["runs"][0]["per_query"][name].as_f64().unwrap();
        let text = stderr(&output);
        let note = text.lines().next().unwrap();
        let words = match kind {
            "hybrid-ivf" => "all queries together go through 1,500 vectors, ".into(),
            _ => format!("{} blocks, {:.1} KiB", counter("reads"), counter("bytes_read") / 1024.0),
        };
        assert!(note.starts_with("note: this search is exact") && note.contains(&words), "{words}: {text}");
        let text = stderr(&few);
        let note = text.lines().next().unwrap();
        let few: serde_json::Value = serde_json::from_slice(&few.stdout).unwrap();
        let lists = few["runs"][0]["per_query"]["lists"].as_f64().unwrap();
        let each = format!("each query goes through {lists} lists, ");
        assert_eq!(note.contains(&each) && note.contains("up to"), kind == "hybrid-ivf", "{each}: {text}");
        assert!(!stderr(&searched("0.8")).contains("is exact"), "{kind}");
    }
}

#[test]
fn floats_of_either_width_are_taken() {
    let wide = Data::new(1500, 16, "f32");
    let narrow = Data::new(1500, 16, "f16");
    let index = narrow.build("graph", &[]);
    let output = run(&[
        "search",
        arg(&index),
        arg(&wide.queries),
        "--search-list",
        "60",
        "-o",
        arg(&narrow.path("o")),
    ]);
    assert!(output.status.success());
    assert!(stderr(&output).contains("narrowed to f16"), "{}", stderr(&output));
    assert!(recall(&narrow.path("o"), &narrow, "l2") > 0.95);
    let index = wide.build("graph", &[]);
    json(&["search", arg(&index), arg(&narrow.queries), "--search-list", "60"]);
}

#[test]
fn own_ids_come_back_and_large_ones_are_refused_where_they_do_not_fit() {
    let data = Data::new(1500, 16, "f32");
    let write_ids = |name: &str, id: &dyn Fn(u64) -> u64| {
        let mut bytes = [1500u32.to_le_bytes(), 1u32.to_le_bytes()].concat();
        (0..1500u64).for_each(|row| bytes.extend(id(row).to_le_bytes()));
        std::fs::write(data.path(name), bytes).unwrap();
        data.path(name)
    };
    let small = write_ids("small.u64bin", &|row| 100_000 - row);
    let index = data.build("small", &["--ids", arg(&small)]);
    let out = data.path("out.ibin");
    json(&["search", arg(&index), arg(&data.queries), "-k", "5", "--search-list", "60", "-o", arg(&out)]);
    let truth = nearest(&data.base_rows, &data.query_rows, "l2", 1);
    let (k, ids, _) = read_answers(&out);
    let hits =
        ids.chunks(k).zip(&truth).filter(|(ids, t)| u64::from(ids[0]) == 100_000 - t[0].1 as u64).count();
    assert!(hits > 45, "{hits}");

    let large = write_ids("large.u64bin", &|row| (1 << 40) + row);
    let index = data.build("large", &["--ids", arg(&large)]);
    json(&["search", arg(&index), arg(&data.queries), "--search-list", "60"]);
    let error = refused(
        &["search", arg(&index), arg(&data.queries), "--search-list", "60", "-o", arg(&data.path("x"))],
        2,
    );
    assert!(error.contains("32 bits of .ibin") && error.contains("x.i64bin"), "{error}");
    assert!(!data.path("x").exists());
}

#[test]
fn a_budget_splits_the_queries_but_not_the_answers() {
    let data = Data::new(2000, 24, "f32");
    let index = data.build("graph", &[]);
    let many = data.path("many.fbin");
    write(&many, &rows(20_000, 24, "f32", 9), "f32");
    let common = [
        "search",
        arg(&index),
        arg(&many),
        "--search-list",
        "20",
        "--in-flight",
        "2",
        "--threads",
        "1",
        "--width",
        "1",
        "--cache-budget",
        "0",
    ];
    let (whole, parts) = (data.path("whole"), data.path("parts"));
    let free = json(&[&common[..], &["-o", arg(&whole)]].concat());
    let tight = json(&[&common[..], &["-o", arg(&parts), "--ram-budget", "17MiB"]].concat());
    assert_eq!(std::fs::read(&whole).unwrap(), std::fs::read(&parts).unwrap());
    assert_eq!(exact_counters(&free["runs"][0]), exact_counters(&tight["runs"][0]));
    let memory = |d: &serde_json::Value| d["runs"][0]["memory"]["total_bytes"].as_u64().unwrap();
    assert!(memory(&tight) <= 17 << 20 && memory(&free) > 17 << 20, "{} {}", memory(&tight), memory(&free));
}

#[test]
fn tuning_publishes_a_version_that_shares_the_data() {
    let data = Data::new(2000, 24, "f32");
    let index = data.build("graph", &["--calibration-queries", "0"]);
    let error = refused(&["search", arg(&index), arg(&data.queries)], 2);
    assert!(error.contains("stratann tune"), "{error}");
    let data_files = files(&index);
    let tuned = json(&["tune", arg(&index), "--recall", "0.9", "-k", "10", "--sample", "200"]);
    assert_eq!(
        (&tuned["version"], &tuned["source"], &tuned["fitted_on"]),
        (&2.into(), &"mixture".into(), &100.into())
    );
    assert!(tuned["checks"][0]["measured"].as_f64().unwrap() > 0.8, "{tuned:#}");
    for (name, bytes) in data_files {
        assert_eq!(files(&index).get(&name), Some(&bytes), "{name}");
    }
    json(&["search", arg(&index), arg(&data.queries), "--recall", "0.9"]);
    let truth = data.truth("l2");
    let tuned = json(&[
        "tune",
        arg(&index),
        "--queries",
        arg(&data.queries),
        "--groundtruth",
        arg(&truth),
        "-k",
        "10,20",
    ]);
    assert_eq!((&tuned["version"], &tuned["source"]), (&3.into(), &"queries".into()));
    assert_eq!(json(&["verify", arg(&index)])["violations_found"], 0);
}
