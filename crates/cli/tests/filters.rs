//! `stratann search --only` and `--without`, and ground truth among the rows that match.
#![allow(missing_docs)]

mod common;

use std::path::PathBuf;

use common::*;
use serde_json::Value;

const KINDS: [&str; 6] = ["disk-graph", "flat", "hybrid-ivf", "grid-ivf", "gpu-ivf", "remote-hnsw"];

/// Every third row.
fn thirds() -> Vec<u64> {
    (0..1500).filter(|id| id % 3 == 1).collect()
}

/// Writes ids in the format of the suffix.
fn ids(data: &Data, name: &str, ids: &[u64]) -> PathBuf {
    let path = data.path(name);
    let bytes = || ids.iter().flat_map(|id| id.to_le_bytes());
    let content = match path.extension().and_then(|suffix| suffix.to_str()) {
        Some("txt") => ids.iter().map(|id| format!("{id}\n")).collect::<String>().into_bytes(),
        Some("u64bin") => {
            [ids.len() as u32, 1].into_iter().flat_map(u32::to_le_bytes).chain(bytes()).collect()
        }
        _ => npy("<u8", &format!("({},)", ids.len()), ids),
    };
    std::fs::write(&path, content).unwrap();
    path
}

/// An array of NumPy.
fn npy(descr: &str, shape: &str, ids: &[u64]) -> Vec<u8> {
    let header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}");
    let header = format!("{header:<117}\n");
    let bytes = ids.iter().flat_map(|id| id.to_le_bytes());
    b"\x93NUMPY\x01\x00".iter().copied().chain([118, 0]).chain(header.bytes()).chain(bytes).collect()
}

/// A file with a line of ids for each query.
fn lines(data: &Data, name: &str, lists: &[Vec<u64>]) -> PathBuf {
    let line = |ids: &Vec<u64>| ids.iter().map(u64::to_string).collect::<Vec<_>>().join(", ") + "\n";
    std::fs::write(data.path(name), lists.iter().map(line).collect::<String>()).unwrap();
    data.path(name)
}

/// Rows of their own for each of 50 queries: the first has none, the second one, the third two; the others every so
/// manyth.
fn own_rows() -> Vec<Vec<u64>> {
    let rows = |query: u64| match query {
        0 => vec![],
        1 => vec![77],
        2 => vec![1499, 3],
        _ => (0..1500).filter(|id| id % (query % 9 + 2) == 1).collect(),
    };
    (0..50).map(rows).collect()
}

/// An index of a kind. A flat one has no options of calibration.
fn build_kind(data: &Data, kind: &str) -> PathBuf {
    if kind != "flat" {
        return data.build(kind, &["--kind", kind]);
    }
    let index = data.path(kind);
    json(&["build", arg(&data.base), "-o", arg(&index), "--kind", kind]);
    index
}

/// The exact nearest of some rows, as a file.
fn truth(data: &Data, filter: [&str; 2], name: &str) -> PathBuf {
    let path = data.path(name);
    let args = ["groundtruth", arg(&data.base), arg(&data.queries), "-k", "10", "-o", arg(&path), "--force"];
    json(&[&args[..], &filter].concat());
    path
}

#[test]
fn only_rows_that_match_are_found_in_every_kind() {
    let data = Data::new(1500, 16, "f32");
    let (only, out) = (ids(&data, "only.u64bin", &thirds()), data.path("out"));
    let truth = truth(&data, ["--only", arg(&only)], "truth.ibin");
    for kind in KINDS {
        let index = build_kind(&data, kind);
        let args =
            ["search", arg(&index), arg(&data.queries), "-k", "10", "--recall", "0.95", "-o", arg(&out)];
        let filter = ["--force", "--only", arg(&only), "--groundtruth", arg(&truth)];
        let run = json(&[&args[..], &filter].concat())["runs"][0].clone();
        let (_, found, _) = read_answers(&out);
        assert!(found.iter().all(|id| id % 3 == 1), "{kind}");
        assert!(run["recall"].as_f64().unwrap() >= 0.93, "{kind}: {}", run["recall"]);
        assert_eq!(run["filter"]["matches"], 500, "{kind}");
        assert_eq!((&run["filter"]["unknown_ids"], &run["filter"]["repeated_ids"]), (&0.into(), &0.into()));
        // The exact answer is exact.
        let exact = ["search", arg(&index), arg(&data.queries), "-k", "10", "--recall", "1"];
        let run = json(&[&exact[..], &filter[1..]].concat())["runs"][0].clone();
        assert_eq!((&run["recall"], &run["filter"]["way"]), (&1.0.into(), &"exact".into()), "{kind}");
    }
}

#[test]
fn a_filter_is_the_same_in_every_format_and_said_either_way() {
    let data = Data::new(1500, 16, "f32");
    let index = data.build("graph", &[]);
    let others: Vec<u64> = (0..1500).filter(|id| id % 3 != 1).collect();
    let mut untidy: Vec<u64> = thirds().into_iter().rev().collect();
    untidy.extend([1, 1, u64::MAX, 1500]);
    let files = [
        ("--only", ids(&data, "a.npy", &thirds())),
        ("--only", ids(&data, "b.txt", &thirds())),
        ("--only", ids(&data, "c.u64bin", &untidy)),
        ("--without", ids(&data, "d.npy", &others)),
    ];
    let answers = files.map(|(way, file)| {
        let out = data.path("out");
        let args = ["search", arg(&index), arg(&data.queries), "-o", arg(&out), "--force", way, arg(&file)];
        let run = json(&args)["runs"][0].clone();
        (read_answers(&out).1, counters(&run), run["filter"]["unknown_ids"].clone())
    });
    assert!(answers.iter().all(|other| (&other.0, &other.1) == (&answers[0].0, &answers[0].1)));
    assert_eq!(answers.map(|answer| answer.2.as_u64().unwrap()), [0, 0, 2, 0]);
}

#[test]
fn nothing_that_matches_is_an_answer_without_results() {
    let data = Data::new(1500, 16, "f32");
    let (index, out) = (data.build("graph", &[]), data.path("out.csv"));
    let none = ids(&data, "none.txt", &[]);
    let search =
        ["search", arg(&index), arg(&data.queries), "-o", arg(&out), "--force", "--only", arg(&none)];
    let run = json(&search)["runs"][0].clone();
    assert_eq!((&run["filter"]["matches"], &run["failed_queries"]), (&0.into(), &0.into()));
    assert_eq!(std::fs::read_to_string(&out).unwrap().lines().count(), 1, "a heading alone");
    let some = ids(&data, "some.txt", &[3, 4]);
    let search =
        ["search", arg(&index), arg(&data.queries), "-o", arg(&out), "--force", "--only", arg(&some)];
    json(&search);
    assert_eq!(std::fs::read_to_string(&out).unwrap().lines().count(), 1 + 2 * 50);
}

#[test]
fn bad_filters_are_refused_before_anything_is_searched() {
    let data = Data::new(1500, 16, "f32");
    let index = data.build("graph", &[]);
    let search = ["search", arg(&index), arg(&data.queries)];
    let refuse = |more: &[&str], code: i32, named: &str| {
        let why = refused(&[&search[..], more].concat(), code);
        assert!(why.contains(named), "{more:?}: {why}");
    };
    let file = |name: &str, text: &str| {
        std::fs::write(data.path(name), text).unwrap();
        data.path(name)
    };
    refuse(&["--only", arg(&file("negative.txt", "1\n-2\n"))], 2, "line 2");
    refuse(&["--only", arg(&file("words.txt", "1\n\nshop\n"))], 2, "line 3");
    refuse(&["--only", arg(&file("large.txt", "18446744073709551616\n"))], 2, "line 1");
    refuse(&["--only", arg(&file("ids.json", "[1]"))], 2, ".u64bin");
    refuse(&["--only", arg(&data.path("missing.txt"))], 2, "missing.txt");
    let some = ids(&data, "some.npy", &thirds());
    let both = run(&[&search[..], &["--only", arg(&some), "--without", arg(&some)]].concat());
    assert_eq!(both.status.code(), Some(2));
    assert!(stderr(&both).contains("--without"), "{}", stderr(&both));
    // Ground truth of all rows is not that of the rows that match, and one of too few is no measure.
    let of_all = data.truth("l2");
    refuse(&["--only", arg(&some), "--groundtruth", arg(&of_all)], 2, "does not match");
    let few = truth(&data, ["--only", arg(&ids(&data, "few.txt", &[1, 2, 3]))], "few.ibin");
    refuse(&["--only", arg(&some), "--groundtruth", arg(&few)], 2, "groundtruth --only");
}

#[test]
fn a_budget_has_room_for_the_filter_or_says_how_much_it_takes() {
    let data = Data::new(1500, 16, "f32");
    let (index, some) = (data.build("graph", &[]), ids(&data, "some.npy", &thirds()));
    let search = ["search", arg(&index), arg(&data.queries), "--only", arg(&some), "--ram-budget"];
    let found = json(&[&search[..], &["64MiB"]].concat())["runs"][0].clone();
    assert!(found["memory"]["total_bytes"].as_u64().unwrap() <= 64 << 20);
    assert!(found["memory"]["filter_bytes"].as_u64().unwrap() > 0, "{}", found["memory"]);
    let small = run(&[&search[..], &["1MiB"]].concat());
    assert_eq!(small.status.code(), Some(2));
    assert!(stderr(&small).contains("--ram-budget"), "{}", stderr(&small));
}

#[test]
fn each_query_has_rows_of_its_own() {
    let data = Data::new(1500, 16, "f32");
    let (rows, out, gt) = (own_rows(), data.path("out"), data.path("own.ibin"));
    let lists = lines(&data, "lists.txt", &rows);
    let truth = ["groundtruth", arg(&data.base), arg(&data.queries), "-k", "10", "-o", arg(&gt)];
    json(&[&truth[..], &["--only-per-query", arg(&lists)]].concat());
    // Against a naive search of the rows of each query.
    let (k, ids, distances) = read_answers(&gt);
    let all = nearest(&data.base_rows, &data.query_rows, "l2", 1500);
    for (query, own) in rows.iter().enumerate() {
        let near = all[query].iter().filter(|(_, row)| own.contains(&(*row as u64)));
        let near: Vec<u32> = near.take(10).map(|&(_, row)| row as u32).collect();
        let found = &ids[query * k..(query + 1) * k];
        assert_eq!(found[..near.len()], near, "query {query}");
        let rest = query * k + near.len()..(query + 1) * k;
        assert!(ids[rest.clone()].iter().all(|&id| id == u32::MAX));
        assert!(distances[rest].iter().all(|&distance| distance == f32::INFINITY));
    }
    for kind in KINDS {
        let index = build_kind(&data, kind);
        let search = ["search", arg(&index), arg(&data.queries), "-k", "10", "-o", arg(&out), "--force"];
        let with = ["--only-per-query", arg(&lists), "--groundtruth", arg(&gt), "--recall"];
        let run = json(&[&search[..], &with, &["0.95"]].concat())["runs"][0].clone();
        assert!(run["recall"].as_f64().unwrap() >= 0.93, "{kind}: {}", run["recall"]);
        let (_, found, _) = read_answers(&out);
        for (own, found) in rows.iter().zip(found.chunks(10)) {
            let found: Vec<u64> = found.iter().filter(|&&id| id != u32::MAX).map(|&id| id.into()).collect();
            assert!(found.len() == own.len().min(10) && found.iter().all(|id| own.contains(id)), "{kind}");
        }
        let filter = &run["filter"];
        let most = rows.iter().map(Vec::len).max().unwrap();
        assert_eq!((&filter["matches"]["least"], &filter["matches"]["most"]), (&0.into(), &most.into()));
        let ways: u64 = filter["ways"].as_object().unwrap().values().map(|n| n.as_u64().unwrap()).sum();
        assert_eq!(ways, 50, "{filter}");
        let run = json(&[&search[..], &with, &["1"]].concat())["runs"][0].clone();
        assert_eq!(run["recall"], 1.0, "{kind}");
    }
}

#[test]
fn lists_for_each_query_are_the_same_in_every_format() {
    let data = Data::new(1500, 16, "f32");
    let index = data.build("graph", &[]);
    let own: Vec<Vec<u64>> =
        (0..50).map(|query| (0..40).map(|i| (i * 37 + query) % 1500).collect()).collect();
    let others = |own: &Vec<u64>| (0..1500).filter(|id| !own.contains(id)).collect();
    let npy_of = |name: &str, descr: &str| {
        std::fs::write(data.path(name), npy(descr, "(50, 40)", &own.concat())).unwrap();
        data.path(name)
    };
    let spaced: String = own.iter().map(|ids| format!("{ids:?}\n").replace(['[', ']', ','], " ")).collect();
    std::fs::write(data.path("spaced.txt"), spaced).unwrap();
    let files = [
        ("--only-per-query", lines(&data, "commas.txt", &own)),
        ("--only-per-query", data.path("spaced.txt")),
        ("--only-per-query", npy_of("unsigned.npy", "<u8")),
        ("--only-per-query", npy_of("signed.npy", "<i8")),
        ("--without-per-query", lines(&data, "others.txt", &own.iter().map(others).collect::<Vec<_>>())),
    ];
    let answers = files.map(|(way, file)| {
        let out = data.path("out");
        let args = ["search", arg(&index), arg(&data.queries), "-o", arg(&out), "--force", way, arg(&file)];
        let run = json(&args)["runs"][0].clone();
        (read_answers(&out), counters(&run), run["filter"].clone())
    });
    assert!(answers.iter().all(|other| *other == answers[0]), "{answers:?}");
    assert_eq!(answers[0].2["matches"]["mean"], 40.0);
}

#[test]
fn bad_lists_for_queries_are_refused() {
    let data = Data::new(1500, 16, "f32");
    let (index, gt) = (data.build("graph", &[]), data.path("own.ibin"));
    let search = ["search", arg(&index), arg(&data.queries)];
    let truth = ["groundtruth", arg(&data.base), arg(&data.queries), "-k", "10", "-o", arg(&gt), "--force"];
    let refuse = |command: &[&str], more: &[&str], said: &[&str]| {
        let why = refused(&[command, more].concat(), 2);
        assert!(said.iter().all(|said| why.contains(said)), "{more:?}: {why}");
    };
    let file = |name: &str, content: &[u8]| {
        std::fs::write(data.path(name), content).unwrap();
        data.path(name)
    };
    let few = lines(&data, "few.txt", &own_rows()[..49]);
    for command in [&search[..], &truth] {
        for option in ["--only-per-query", "--without-per-query"] {
            refuse(command, &[option, arg(&few)], &["49 lists", "50 queries"]);
        }
        refuse(command, &["--only-per-query", arg(&file("none.txt", b""))], &["0 lists", "50 queries"]);
        let negative = file("negative.txt", b"1 2\n3, -4\n");
        refuse(command, &["--only-per-query", arg(&negative)], &["line 2", "-4"]);
        refuse(command, &["--only-per-query", arg(&file("real.txt", b"1 2.5\n"))], &["line 1", "2.5"]);
        let large = file("large.txt", b"18446744073709551616\n");
        refuse(command, &["--only-per-query", arg(&large)], &["line 1"]);
        let signed = file("signed.npy", &npy("<i8", "(50, 1)", &[vec![1; 49], vec![u64::MAX]].concat()));
        refuse(command, &["--only-per-query", arg(&signed)], &["negative id -1"]);
        refuse(
            command,
            &["--only-per-query", arg(&file("flat.npy", &npy("<u8", "(50,)", &[7; 50])))],
            &["shape"],
        );
        refuse(
            command,
            &["--only-per-query", arg(&file("void.npy", &npy("<u8", "(50, 0)", &[])))],
            &["shape"],
        );
        refuse(command, &["--only-per-query", arg(&file("ids.u64bin", b""))], &["u64bin"]);
        let lists = lines(&data, "lists.txt", &own_rows());
        for other in ["--only", "--without", "--without-per-query"] {
            let both = run(&[command, &["--only-per-query", arg(&lists), other, arg(&lists)]].concat());
            assert_eq!(both.status.code(), Some(2));
            assert!(stderr(&both).contains("cannot be used with"), "{}", stderr(&both));
        }
    }
    // Of a query whose rows all match another one's filter, and of one with fewer neighbours than rows that match.
    let rows = own_rows();
    let right = lines(&data, "right.txt", &rows);
    json(&[&truth[..], &["--only-per-query", arg(&right)]].concat());
    let mut other = rows.clone();
    other.swap(10, 11);
    let (other, more) = (lines(&data, "other.txt", &other), {
        let mut more = rows.clone();
        more[1].push(78);
        lines(&data, "more.txt", &more)
    });
    let with = |lists| ["--only-per-query", arg(lists), "--groundtruth", arg(&gt)];
    refuse(&search, &with(&other), &["query 1", "does not match", "groundtruth --only-per-query"]);
    refuse(&search, &with(&more), &["1 neighbours of query 1", "2 of the rows"]);
    // And without a filter: the first query has no neighbours there.
    refuse(
        &search,
        &["--groundtruth", arg(&gt)],
        &["query 0 has 0 neighbours", "groundtruth --only-per-query"],
    );
}

#[test]
fn fewer_results_than_k_are_said() {
    let data = Data::new(1500, 16, "f32");
    let index = data.build("graph", &[]);
    let said = |option: &str, file: &PathBuf| {
        let output =
            run(&["search", arg(&index), arg(&data.queries), "-k", "5", "--json", option, arg(file)]);
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        (stderr(&output), report["runs"][0]["filter"]["matches"].clone())
    };
    let (note, matches) = said("--only", &ids(&data, "one.txt", &[3, 3, 1500]));
    assert!(note.contains("1 rows match the filter") && matches == 1, "{note}");
    let (note, matches) = said("--without", &ids(&data, "all.npy", &(0..1500).collect::<Vec<_>>()));
    assert!(note.contains("no row matches the filter") && matches == 0, "{note}");
    let (note, _) = said("--only-per-query", &lines(&data, "lists.txt", &own_rows()));
    assert!(note.contains("fewer than 5 rows match the filters of 3 queries"), "{note}");
    let (note, matches) = said("--only", &ids(&data, "enough.txt", &[1, 2, 3, 4, 5]));
    assert!(!note.contains("match") && matches == 5, "{note}");
}

#[test]
fn ids_beyond_2_to_the_53_are_exact() {
    let data = Data::new(1500, 16, "f32");
    // Neighbours of a number that floats of 64 bits have are not among them.
    let first = (1u64 << 53) + 1;
    let own: Vec<u64> = (0..1500).map(|row| first + row).collect();
    let (index, out) = (data.path("own"), data.path("out.csv"));
    let own_ids = ids(&data, "own.u64bin", &own);
    json(&[&data.build_args(&index)[..], &["--ids", arg(&own_ids)]].concat());
    let named = [first + 6, first + 7, u64::MAX, first - 1];
    let signed = data.path("signed.npy");
    std::fs::write(&signed, npy("<i8", "(3,)", &[first + 6, first + 7, first - 1])).unwrap();
    for (file, unknown) in [
        (ids(&data, "named.txt", &named), 2),
        (ids(&data, "named.npy", &named), 2),
        (ids(&data, "named.u64bin", &named), 2),
        (signed, 1),
    ] {
        let search =
            ["search", arg(&index), arg(&data.queries), "-o", arg(&out), "--force", "--only", arg(&file)];
        let filter = json(&search)["runs"][0]["filter"].clone();
        assert_eq!((&filter["matches"], &filter["unknown_ids"]), (&2.into(), &unknown.into()), "{file:?}");
        let text = std::fs::read_to_string(&out).unwrap();
        let found = text.lines().skip(1).map(|line| line.split(',').nth(2).unwrap().parse::<u64>().unwrap());
        let mut found: Vec<u64> = found.collect();
        found.sort_unstable();
        found.dedup();
        assert_eq!(found, [first + 6, first + 7], "{file:?}");
    }
}

#[test]
fn explain_names_the_plan_of_a_filter() {
    let data = Data::new(1500, 16, "f32");
    let out = data.path("out");
    for kind in KINDS {
        let index = build_kind(&data, kind);
        for (every, name) in [(2, "half.npy"), (100, "few.npy")] {
            let rows: Vec<u64> = (0..1500).filter(|id| id % every == 1).collect();
            let named = ids(&data, name, &rows);
            let with = ["--recall", "0.95", "--only", arg(&named)];
            let search = [
                "search",
                arg(&index),
                arg(&data.queries),
                "--cache-budget",
                "0",
                "-o",
                arg(&out),
                "--force",
            ];
            let run = json(&[&search[..], &with].concat())["runs"][0].clone();
            let explain = ["explain", arg(&index), arg(&data.queries), "--query", "7"];
            let trace = json(&[&explain[..], &with].concat());
            let (k, found, _) = read_answers(&out);
            let found: Vec<u64> = found[7 * k..8 * k].iter().map(|&id| id.into()).collect();
            let traced: Vec<u64> = match trace["ids"].as_array() {
                Some(ids) => ids.iter().map(|id| id.as_u64().unwrap()).collect(),
                None => {
                    trace["results"].as_array().unwrap().iter().map(|r| r["id"].as_u64().unwrap()).collect()
                }
            };
            assert_eq!(traced, found, "{kind}: explain runs the same search");
            let filter = &trace["filter"];
            for key in ["matches", "way", "prices", "unknown_ids", "repeated_ids"] {
                assert_eq!(filter[key], run["filter"][key], "{kind}: {key}");
            }
            assert_eq!(filter["matches"], rows.len(), "{kind}");
            assert!(filter["gave_way"].is_boolean() && filter["vain_blocks"].is_u64(), "{filter}");
            let unit = if kind == "disk-graph" { "us" } else { "lists" };
            let prices = &filter["prices"];
            if kind == "flat" {
                assert!(prices.is_null(), "one way");
            } else {
                assert_eq!(prices["unit"], unit, "{kind}");
                assert!(prices["search"].as_f64().unwrap() > 0.0, "{kind}: {prices}");
            }
            if kind == "disk-graph" {
                let way = filter["way"].as_str().unwrap();
                let least = ["exact", "codes", "search"].map(|way| prices[way].as_f64().unwrap());
                let least = least.into_iter().fold(f64::INFINITY, f64::min);
                assert_eq!(prices[way].as_f64(), Some(least), "the cheapest: {filter}");
            }
            let text = run_text(&[&explain[..], &with].concat());
            let said = format!("filter: {} rows match", rows.len());
            assert!(text.contains(&said) && (kind == "flat") != text.contains("prices: "), "{kind}: {text}");
        }
    }
}

/// What a command prints for a person.
fn run_text(args: &[&str]) -> String {
    let output = run(args);
    assert!(output.status.success(), "{}", stderr(&output));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn explain_says_when_a_search_gave_way() {
    let data = Data::new(1500, 16, "f32");
    let index = data.build("graph", &[]);
    // All rows but those where the query looks first.
    let near = nearest(&data.base_rows, &data.query_rows[..1], "l2", 300);
    let near: Vec<u64> = near[0].iter().map(|&(_, row)| row as u64).collect();
    let named = ids(&data, "near.npy", &near);
    let explain = ["explain", arg(&index), arg(&data.queries), "--recall", "0.9", "--without", arg(&named)];
    let trace = json(&explain);
    let filter = &trace["filter"];
    assert_eq!((&filter["way"], &filter["gave_way"]), (&"search".into(), &true.into()), "{filter}");
    assert!(filter["vain_blocks"].as_u64().unwrap() > 0, "{filter}");
    assert!(trace["stop"].as_str().unwrap().contains("rows that match"), "{}", trace["stop"]);
    let text = run_text(&explain);
    assert!(text.contains("gave way to it") && text.contains("had no row that matches"), "{text}");
}

#[test]
fn explain_refuses_filters_where_there_are_none() {
    let data = Data::new(1500, 16, "f32");
    let (index, some) = (data.build("lists", &["--kind", "hybrid-ivf"]), ids(&data, "some.npy", &[1, 2]));
    let explain = ["explain", arg(&index), arg(&data.queries), "--only", arg(&some)];
    assert!(refused(&[&explain[..], &["--plan"]].concat(), 2).contains("some.npy"));
    let both = run(&[&explain[..], &["--without", arg(&some)]].concat());
    assert!(both.status.code() == Some(2) && stderr(&both).contains("cannot be used with"));
    let remote = data.build("remote", &["--kind", "remote-hnsw"]);
    let trace = json(&["explain", arg(&remote), arg(&data.queries), "--only", arg(&some)]);
    assert_eq!(trace["filter"]["matches"], 2);
    let found: Vec<u64> =
        trace["results"].as_array().unwrap().iter().map(|hit| hit["id"].as_u64().unwrap()).collect();
    assert!(found.len() == 2 && found.iter().all(|id| *id < 3), "{found:?}");
}

/// The answers of a search, its counters, and what it says of its filter.
fn searched(data: &Data, place: &[&str], more: &[&str]) -> ((usize, Vec<u32>, Vec<f32>), Value, Value) {
    let out = data.path("out");
    let common = [arg(&data.queries), "-k", "10", "--width", "1", "-o", arg(&out), "--force"];
    let run = json(&[&["search"][..], place, &common[..], more].concat())["runs"][0].clone();
    (read_answers(&out), exact_counters(&run), run["filter"].clone())
}

#[test]
fn a_server_takes_filters_as_the_index_does() {
    let data = Data::new(1500, 16, "f32");
    let index = data.build("graph", &[]);
    let server = Running::serve(&index, &["--threads", "2"]);
    let others: Vec<u64> = (0..1500).filter(|id| id % 3 != 1).collect();
    let files = [
        ("--only", ids(&data, "only.u64bin", &thirds())),
        ("--without", ids(&data, "without.npy", &others)),
        ("--only", ids(&data, "none.txt", &[4000])),
        ("--only-per-query", lines(&data, "own.txt", &own_rows())),
        ("--without-per-query", lines(&data, "own.txt", &own_rows())),
    ];
    for (option, file) in &files {
        for more in [&["--recall", "0.95"][..], &["--recall", "1", "--in-flight", "3", "--threads", "2"]] {
            let more = [&[*option, arg(file)], more].concat();
            let here = searched(&data, &[arg(&index)], &[&more[..], &COUNTED].concat());
            let there = searched(&data, &["--connect", server.address()], &more);
            assert_eq!(here, there, "{more:?}");
            assert!(!here.2.is_null());
        }
    }
    let truth = truth(&data, ["--only", arg(&files[0].1)], "truth.ibin");
    let search = ["search", "--connect", server.address(), arg(&data.queries), "--groundtruth", arg(&truth)];
    let run =
        json(&[&search[..], &["--only", arg(&files[0].1), "--recall", "1"]].concat())["runs"][0].clone();
    assert_eq!(run["recall"], 1.0);
    let why = refused(&[&search[..], &["--without", arg(&files[0].1)]].concat(), 2);
    assert!(why.contains("does not match the filter"), "{why}");
    let few = ids(&data, "few.txt", &[1, 4]);
    let said = stderr(&run_of(&[&search[..4], &["--only", arg(&few)]].concat()));
    assert!(said.contains("2 rows match the filter") && !said.contains("longer --search-list"), "{said}");
}

fn run_of(args: &[&str]) -> std::process::Output {
    let output = run(args);
    assert!(output.status.success(), "{}", stderr(&output));
    output
}

#[test]
fn ids_beyond_2_to_the_53_are_exact_on_a_server() {
    let data = Data::new(1500, 16, "f32");
    let first = (1u64 << 53) + 1;
    let own = ids(&data, "ids.u64bin", &(0..1500).map(|row| first + row).collect::<Vec<u64>>());
    let index = data.build("graph", &["--ids", arg(&own)]);
    let server = Running::serve(&index, &[]);
    let (only, out) = (ids(&data, "only.u64bin", &[first + 6, first + 7]), data.path("out.csv"));
    let search = ["search", "--connect", server.address(), arg(&data.queries), "-o", arg(&out)];
    json(&[&search[..], &["--only", arg(&only)]].concat());
    let text = std::fs::read_to_string(&out).unwrap();
    let mut found: Vec<&str> = text.lines().skip(1).map(|line| line.split(',').nth(2).unwrap()).collect();
    found.sort_unstable();
    found.dedup();
    assert_eq!(found, [(first + 6).to_string(), (first + 7).to_string()], "{text}");
}

#[test]
fn a_filter_that_a_server_has_no_memory_for_is_refused_and_nothing_else_is_lost() {
    let data = Data::new(1500, 16, "f32");
    let index = data.build("graph", &[]);
    let server = Running::serve(&index, &["--http-memory", "64KiB"]);
    let place = ["--connect", server.address()];
    let many = ids(&data, "many.u64bin", &(0..20_000).map(|id| u64::MAX - id).collect::<Vec<u64>>());
    let search = ["search", place[0], place[1], arg(&data.queries), "--only", arg(&many)];
    let why = refused(&search, 2);
    assert!(why.contains("--http-memory"), "{why}");
    let only = ids(&data, "only.u64bin", &[1, 2, 3]);
    let (found, _, filter) = searched(&data, &place, &["--only", arg(&only)]);
    assert_eq!((filter["matches"].clone(), found.1.len()), (3.into(), 500));
}

#[test]
fn several_indexes_take_of_a_filter_what_each_holds() {
    let data = Data::new(1500, 16, "f32");
    let whole = data.build("graph", &[]);
    let apart = spread(&data, &whole, "apart", &["--servers", "3", "--scatter-gather"]);
    let parts: Vec<PathBuf> = (0..3).map(|part| apart.join(format!("server-{part:02}"))).collect();
    let place: Vec<&str> = vec![arg(&parts[0]), "--also", arg(&parts[1]), "--also", arg(&parts[2])];
    let others: Vec<u64> = (0..1500).filter(|id| id % 3 != 1).collect();
    let files = [
        ("--only", ids(&data, "only.u64bin", &thirds()), "--only"),
        ("--without", ids(&data, "without.npy", &others), "--only"),
        ("--only-per-query", lines(&data, "own.txt", &own_rows()), "--only-per-query"),
    ];
    for (option, file, of_truth) in &files {
        let gt = data.path("gt.ibin");
        let named = if *option == "--without" { &files[0].1 } else { file };
        let args =
            ["groundtruth", arg(&data.base), arg(&data.queries), "-k", "10", "-o", arg(&gt), "--force"];
        json(&[&args[..], &[*of_truth, arg(named)]].concat());
        let out = data.path("out");
        let search = [&["search"][..], &[place[0], arg(&data.queries)], &place[1..]].concat();
        let more =
            ["-o", arg(&out), "--force", "--recall", "1", "--groundtruth", arg(&gt), *option, arg(file)];
        let document = json(&[&search[..], &more].concat());
        let run = &document["runs"][0];
        assert_eq!(run["recall"], 1.0, "{option}");
        assert_eq!(run["filters"].as_array().unwrap().len(), 3);
        let (truth, found) = (read_answers(&gt), read_answers(&out));
        for (truth, found) in truth.1.chunks(truth.0).zip(found.1.chunks(found.0)) {
            assert_eq!(truth, &found[..truth.len()], "{option}");
        }
    }
    let gt = data.truth("l2");
    let search = [&["search"][..], &[place[0], arg(&data.queries)], &place[1..]].concat();
    let why = refused(&[&search[..], &["--groundtruth", arg(&gt), "--only", arg(&files[0].1)]].concat(), 2);
    assert!(why.contains("does not match"), "{why}");
}

/// Ids go to servers with an index each as they were named, up to a length.
#[test]
fn a_filter_that_is_too_long_to_be_sent_is_refused_and_nothing_else_is_lost() {
    let data = Data::new(1500, 16, "f32");
    let index = data.build("graph", &[]);
    let apart = spread(&data, &index, "apart", &["--servers", "2", "--scatter-gather"]);
    let files = configs(&data, "apart", 2, &|_| format!("index = {apart:?}"));
    let running: Vec<Running> = files.iter().map(|file| start(file)).collect();
    wait_for("all servers", || running.iter().all(|s| get(s.address(), "/v1/health").0 == 200));
    let address = running[0].address();
    let place = ["--connect", address];
    let many: Vec<u64> = (0..150_000).map(|n: u64| n.wrapping_mul(0x9E37_79B9_7F4A_7C15)).collect();
    let file = ids(&data, "many.u64bin", &many);
    let search = ["search", place[0], place[1], arg(&data.queries), "--search-list", "40"];
    let why = refused(&[&search[..], &["--only", arg(&file)]].concat(), 2);
    assert!(why.contains("a filter takes") && why.contains("goes to other servers up to"), "{why}");
    let numbers: Vec<String> = many.iter().map(u64::to_string).collect();
    let vector = format!("[{}]", vec!["0"; 16].join(","));
    let body = format!("{{\"queries\":[{vector}],\"search_list\":40,\"only\":[{}]}}", numbers.join(","));
    let (status, reply) = post_as(address, "/v1/search", ("application/json", body.as_bytes()));
    assert!(
        status == 400 && reply["error"].as_str().unwrap().contains("goes to other servers up to"),
        "{reply}"
    );
    let only = ids(&data, "only.u64bin", &thirds());
    let (found, _, filter) = searched(&data, &place, &["--recall", "1", "--only", arg(&only)]);
    let gt = truth(&data, ["--only", arg(&only)], "truth.ibin");
    assert_eq!((found.1, &filter["matches_exact"]), (read_answers(&gt).1, &false.into()));
}
