//! `stratann collection` and `search --data`: what is written is found, and mistakes.
#![allow(missing_docs)]

mod common;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use common::*;
use serde_json::{Value, json as value};

const DIM: usize = 8;
const UUID: &str = "f47ac10b-58cc-4372-a567-0e02b2c3d479";

/// A data folder with an empty collection `c`, beside vectors.
struct Place {
    vectors: Data,
    data: PathBuf,
}

impl Place {
    fn new(dtype: &str, metric: &str) -> Place {
        let vectors = Data::new(600, DIM, dtype);
        let place = Place { data: vectors.path("data"), vectors };
        let made = place.json(&["create"], &["c", "--dim", "8", "--dtype", dtype, "--metric", metric]);
        assert_eq!(made, value!({ "name": "c", "dim": 8, "metric": metric, "dtype": dtype, "kind": "auto" }));
        place
    }

    fn args<'a>(&'a self, command: &[&'a str], more: &[&'a str]) -> Vec<&'a str> {
        [&["collection"], command, &["--data", arg(&self.data)], more].concat()
    }

    fn json(&self, command: &[&str], more: &[&str]) -> Value {
        json(&self.args(command, more))
    }

    fn refused(&self, command: &[&str], more: &[&str]) -> String {
        refused(&self.args(command, more), 2)
    }

    fn upsert(&self, vectors: &Path, more: &[&str]) -> Value {
        self.json(&["upsert"], &[&["c", arg(vectors)], more].concat())
    }

    fn search<'a>(&'a self, more: &[&'a str]) -> Vec<&'a str> {
        [&["search", "--data", arg(&self.data), "c", arg(&self.vectors.queries)], more].concat()
    }

    fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.vectors.path(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    /// Writes vectors that are no part of the set.
    fn vectors(&self, name: &str, rows: &[Vec<f64>]) -> PathBuf {
        let path = self.vectors.path(name);
        write(&path, rows, "f32");
        path
    }
}

#[test]
fn what_is_written_is_found_also_after_a_restart() {
    for (dtype, metric) in [("f32", "l2"), ("u8", "l2"), ("f16", "cosine"), ("i8", "ip")] {
        let place = Place::new(dtype, metric);
        let written = place.upsert(&place.vectors.base, &[]);
        assert_eq!(
            (&written["rows"], &written["new"], &written["replaced"], &written["repeated"]),
            (&600.into(), &600.into(), &0.into(), &0.into())
        );
        let truth = place.vectors.truth(metric);
        let out = place.vectors.path("out.ibin");
        let asked = ["--recall", "0.9,1", "-k", "7", "--groundtruth", arg(&truth)];
        let found = json(&place.search(&asked));
        assert_eq!(found["runs"].as_array().unwrap().len(), 2);
        assert_eq!(found["runs"][1]["recall"], 1.0, "{dtype} {metric}: {found}");
        assert_eq!(found["runs"][1]["params"], value!({ "k": 7, "recall": 1.0 }));
        json(&place.search(&["--recall", "1", "-k", "7", "-o", arg(&out)]));
        let (k, ids, distances) = read_answers(&out);
        let wanted = nearest(&place.vectors.base_rows, &place.vectors.query_rows, metric, 7);
        assert_eq!((k, ids.len()), (7, 350));
        for (at, (wanted, _)) in wanted.iter().flatten().enumerate() {
            let found = f64::from(distances[at]);
            assert!(
                (found - wanted).abs() <= 1e-3 * wanted.abs().max(1.0),
                "{dtype} {metric}: {found} {wanted}"
            );
        }
        let sound = place.json(&["verify"], &["c"]);
        assert_eq!((&sound["points"], &sound["seq"]), (&600.into(), &written["seq"]));
    }
}

#[test]
fn ids_are_numbers_uuids_and_strings() {
    let place = Place::new("f32", "l2");
    let rows: Vec<Vec<f64>> = (0..6).map(|row| vec![f64::from(row); DIM]).collect();
    let (vectors, query) = (place.vectors("six.fbin", &rows), place.vectors("one.fbin", &rows[..1]));
    let long = "x".repeat(255);
    let text =
        format!("9007199254740993\n18446744073709551615\n{}\na, \"b\"\n{long}\n7\n", UUID.to_uppercase());
    let ids = place.file("ids.txt", &text);
    assert_eq!(place.upsert(&vectors, &["--ids", arg(&ids)])["new"], 6);
    let found = |out: &str| {
        let out = place.vectors.path(out);
        let search =
            ["search", "--data", arg(&place.data), "c", arg(&query), "-k", "6", "-o", arg(&out), "--force"];
        json(&search);
        std::fs::read_to_string(&out).unwrap()
    };
    let line: Value = serde_json::from_str(&found("out.jsonl")).unwrap();
    let wanted = value!([9_007_199_254_740_993_u64, u64::MAX, UUID, "a, \"b\"", long, 7]);
    assert_eq!(line["ids"], wanted);
    assert!(found("out.csv").contains("\n0,3,\"a, \"\"b\"\"\","));
    let out = place.vectors.path("out.npy");
    let error = refused(&["search", "--data", arg(&place.data), "c", arg(&query), "-o", arg(&out)], 2);
    assert!(error.contains("is no number") && error.contains(".jsonl"), "{error}");
    let text =
        String::from_utf8(run(&["search", "--data", arg(&place.data), "c", arg(&query)]).stdout).unwrap();
    assert!(text.contains("9007199254740993 (0.0000)") && text.contains("change 1"), "{text}");

    let deleted = place.json(&["delete"], &["c", "--id", &format!("7,{UUID},missing")]);
    assert_eq!(
        (&deleted["deleted"], &deleted["unknown"], &deleted["ids"]),
        (&2.into(), &1.into(), &3.into())
    );
    let line: Value = serde_json::from_str(&found("out.jsonl")).unwrap();
    assert_eq!(line["ids"], value!([9_007_199_254_740_993_u64, u64::MAX, "a, \"b\"", long]));
    assert_eq!(place.json(&["delete"], &["c", arg(&ids)])["deleted"], 4);
    assert_eq!(place.json(&["info"], &["c"])["points"], 0);
    json(&place.search(&[]));
}

#[test]
fn the_last_of_equal_ids_counts_and_is_said() {
    let place = Place::new("f32", "l2");
    let rows: Vec<Vec<f64>> = (0..4).map(|row| vec![f64::from(row); DIM]).collect();
    let (vectors, query) = (place.vectors("four.fbin", &rows), place.vectors("one.fbin", &rows[2..3]));
    let ids = place.file("ids.txt", "5\n6\n5\n7\n");
    let args = place.args(&["upsert"], &["c", arg(&vectors), "--ids", arg(&ids)]);
    let text = String::from_utf8(run(&args).stdout).unwrap();
    assert!(text.contains("3 new points, 0 replaced") && text.contains("1 rows have an id"), "{text}");
    let again = place.upsert(&vectors, &["--first-id", "5"]);
    assert_eq!((&again["new"], &again["replaced"]), (&1.into(), &3.into()));
    let out = place.vectors.path("out.csv");
    json(&["search", "--data", arg(&place.data), "c", arg(&query), "-k", "1", "-o", arg(&out)]);
    assert_eq!(std::fs::read_to_string(out).unwrap(), "query,rank,id,distance\n0,0,7,0\n");
}

#[test]
fn collections_are_listed_and_dropped() {
    let place = Place::new("f32", "l2");
    let more = ["wide", "--dim", "4096", "--dtype", "u8", "--kind", "hybrid-ivf"];
    assert_eq!(place.json(&["create"], &more)["kind"], "hybrid-ivf");
    let names = |place: &Place| -> BTreeSet<String> {
        let listed = place.json(&["list"], &[]);
        let all = listed["collections"].as_array().unwrap();
        all.iter().map(|one| one["name"].as_str().unwrap().into()).collect()
    };
    assert_eq!(names(&place), BTreeSet::from(["c".into(), "wide".into()]));
    place.upsert(&place.vectors.base, &[]);
    let info = place.json(&["info"], &["c"]);
    let keys: BTreeSet<&str> = info.as_object().unwrap().keys().map(String::as_str).collect();
    let wanted = [
        "name",
        "dim",
        "metric",
        "dtype",
        "kind",
        "points",
        "seq",
        "delta_points",
        "delta_bytes",
        "segments",
        "indexes_built",
        "payloads_folded",
        "rows_taken_over",
        "trouble",
        "jobs",
        "memory_bytes",
        "memory_quota_bytes",
        "memory_minimum_bytes",
    ];
    assert_eq!(keys, BTreeSet::from(wanted));
    let error = place.refused(&["create"], &["c", "--dim", "8"]);
    assert!(error.contains("there is a collection \"c\" already"), "{error}");
    place.json(&["drop"], &["c"]);
    assert_eq!(names(&place), BTreeSet::from(["wide".into()]));
    let error = place.refused(&["drop"], &["c"]);
    assert!(error.contains("there is no collection \"c\""), "{error}");
    let again = place.json(&["create"], &["c", "--dim", "3"]);
    assert_eq!((&again["dim"], &place.json(&["info"], &["c"])["points"]), (&3.into(), &0.into()));
}

#[test]
fn memory_limits_are_set_changed_and_shown() {
    let place = Place::new("f32", "l2");
    place.json(&["create"], &["d", "--dim", "8", "--memory-quota", "1GiB", "--memory-minimum", "64MiB"]);
    let limits = || {
        let info = place.json(&["info"], &["d"]);
        (info["memory_quota_bytes"].clone(), info["memory_minimum_bytes"].clone())
    };
    assert_eq!(limits(), ((1_u64 << 30).into(), (64 << 20).into()));
    let changed = place.json(&["limit"], &["d", "--memory-quota", "none"]);
    assert_eq!(
        changed,
        value!({ "name": "d", "memory_quota_bytes": null, "memory_minimum_bytes": 64 << 20 })
    );
    place.json(&["limit"], &["d", "--memory-minimum", "0"]);
    assert_eq!(limits(), (Value::Null, 0.into()));
    let text = |args: &[&str]| String::from_utf8(run(args).stdout).unwrap();
    let changed = text(&place.args(&["limit"], &["d", "--memory-quota", "2MiB"]));
    assert_eq!(changed, "d: memory quota 2.0 MiB, minimum 0 B\n");
    let info = text(&place.args(&["info"], &["d"]));
    assert!(info.contains(": quota 2.0 MiB, minimum 0 B"), "{info}");
}

#[test]
fn mistakes_are_refused_and_change_nothing() {
    let place = Place::new("f32", "cosine");
    place.upsert(&place.vectors.base, &[]);
    let mut rows = rows(3, DIM, "f32", 5);
    let narrow = place.vectors("narrow.fbin", &[vec![1.0; 7]]);
    rows[1] = vec![0.0; DIM];
    let zero = place.vectors("zero.fbin", &rows);
    rows[1][3] = f64::NAN;
    let nan = place.vectors("nan.fbin", &rows);
    let whole = place.vectors.path("whole.u8bin");
    write(&whole, &[vec![1.0; DIM]], "u8");
    let (few, empty) = (place.file("few.txt", "1\n2\n"), place.file("empty.txt", "\n"));
    let long = place.file("long.txt", &format!("1\n2\n{}\n", "x".repeat(256)));
    let large = place.file("large.txt", "1\n18446744073709551616\n3\n");
    let fine = place.vectors("fine.fbin", &common::rows(3, DIM, "f32", 6));
    let (fine, nan, none) = (arg(&fine), arg(&nan), place.vectors.path("none.fbin"));
    for (command, more, why) in [
        ("upsert", &["c", arg(&narrow)][..], "has 7 dimensions, the collection has 8"),
        ("upsert", &["c", arg(&whole)], "holds u8, the collection holds f32"),
        ("upsert", &["c", nan], "NaN"),
        ("upsert", &["c", arg(&zero)], "zero"),
        ("upsert", &["c", fine, "--ids", arg(&few)], "has 2 ids for 3 rows"),
        ("upsert", &["c", fine, "--ids", arg(&long)], "line 3: an id has 256 bytes"),
        ("upsert", &["c", fine, "--ids", arg(&large)], "line 2: the id 18446744073709551616 is larger"),
        ("upsert", &["c", fine, "--first-id", "18446744073709551614"], "beyond 2^64 - 1"),
        ("upsert", &["c", fine, "--ids", arg(&few), "--first-id", "3"], "both given"),
        ("upsert", &["d", fine], "there is no collection \"d\""),
        ("upsert", &["c", arg(&none)], "none.fbin"),
        ("delete", &["c"], "no ids are given"),
        ("delete", &["c", arg(&empty), "--id", "3"], "leave one of them out"),
        ("delete", &["d", "--id", "3"], "there is no collection \"d\""),
        ("info", &["d"], "there is no collection \"d\""),
        ("verify", &["d"], "there is no collection \"d\""),
        ("create", &["", "--dim", "8"], "is empty"),
        ("create", &["a/b", "--dim", "8"], "has a slash"),
        ("create", &["x", "--dim", "0"], "use 1 to 4096"),
        ("create", &["x", "--dim", "4097"], "use 1 to 4096"),
        ("create", &["x"], "--dim"),
        ("create", &["x", "--dim", "8", "--memory-quota", "5 parsecs"], "--memory-quota"),
        ("limit", &["c"], "no limit is given"),
        ("limit", &["d", "--memory-minimum", "1"], "there is no collection \"d\""),
        ("limit", &["c", "--memory-quota", "1", "--memory-minimum", "2"], "more than the quota"),
        ("create", &["x", "--dim", "8", "--metric", "l3"], "l3"),
        ("create", &["x", "--dim", "8", "--kind", "tree"], "tree"),
        ("list", &["--dim", "8"], "no option --dim"),
    ] {
        let error = place.refused(&[command], more);
        assert!(error.contains(why), "{command} {more:?}: {error}");
    }
    assert_eq!(place.json(&["delete"], &["c", arg(&empty)])["deleted"], 0);
    assert_eq!(place.json(&["info"], &["c"])["seq"], 1);
    assert_eq!(place.json(&["list"], &[])["collections"].as_array().unwrap().len(), 1);
    let none = place.vectors.path("none");
    for args in [&["list"][..], &["info", "c"], &["upsert", "c", fine]] {
        let error = refused(&[&["collection"], args, &["--data", arg(&none)]].concat(), 2);
        assert!(error.contains("there is no data folder") && !none.exists(), "{error}");
    }
}

#[test]
fn searches_of_collections_refuse_what_they_do_not_have() {
    let place = Place::new("f32", "l2");
    place.upsert(&place.vectors.base, &[]);
    let (ids, narrow) = (place.file("ids.txt", "1\n"), place.vectors("narrow.fbin", &[vec![1.0; 7]]));
    let data = arg(&place.data);
    for (args, why) in [
        (place.search(&["--search-list", "9"]), "--search-list cannot be used with --data"),
        (place.search(&["--cache-budget", "0"]), "--cache-budget cannot be used with --data"),
        (place.search(&["--only", arg(&ids)]), "are filtered by --filter and --where"),
        (place.search(&["--partial"]), "--partial"),
        (place.search(&["--connect", "127.0.0.1:9"]), "--connect"),
        (place.search(&["--recall", "1.5"]), "--recall is 1.5"),
        (place.search(&["-k", "0"]), "-k"),
        (vec!["search", "--data", data, "c"], "--data needs two arguments"),
        (vec!["search", "--data", data, "d", arg(&place.vectors.queries)], "no collection \"d\""),
        (vec!["search", "--data", data, "c", arg(&narrow)], "has 7 dimensions, the collection has 8"),
    ] {
        let error = refused(&args, 2);
        assert!(error.contains(why), "{args:?}: {error}");
    }
}

#[test]
fn one_process_has_a_data_folder() {
    let place = Place::new("f32", "l2");
    let server =
        Running::start(&["serve", "--data", arg(&place.data), "--http", "127.0.0.1:0", "--until-eof"]);
    let error = place.refused(&["list"], &[]);
    let process = format!("process {}", server.child.id());
    assert!(error.contains(&process) && error.contains("open"), "{error}");
    drop(server);
    place.json(&["list"], &[]);
    let other = place.vectors.path("other");
    std::fs::create_dir(&other).unwrap();
    std::fs::write(other.join("thesis"), "years of work").unwrap();
    let error = refused(&["collection", "create", "--data", arg(&other), "c", "--dim", "3"], 2);
    assert!(error.contains("is no data folder") && error.contains("thesis"), "{error}");
}

#[test]
fn points_of_a_compact_collection_are_found_and_change() {
    for kind in ["auto", "hybrid-ivf"] {
        let place = Place::new("f32", "l2");
        place.json(&["create"], &["big", "--dim", "8", "--kind", kind]);
        let name = "big";
        place.json(&["upsert"], &[name, arg(&place.vectors.base)]);
        let made = place.json(&["compact"], &[name]);
        let segments = made["segments"].as_array().unwrap();
        assert!(segments.len() == 1 && segments[0]["rows"] == 600, "{made}");
        assert_eq!(
            (&made["delta_points"], &made["points"], &made["trouble"]),
            (&0.into(), &600.into(), &Value::Null)
        );
        place.json(&["delete"], &[name, "--id", "0,1,2"]);
        place.json(&["upsert"], &[name, arg(&place.vectors.base), "--first-id", "590"]);
        let info = place.json(&["info"], &[name]);
        assert_eq!((&info["points"], &info["segments"][0]["dead"]), (&1187.into(), &13.into()), "{info}");
        assert_eq!(place.json(&["verify"], &[name])["points"], 1187);
        let truth = place.vectors.truth("l2");
        let (data, queries) = (arg(&place.data), arg(&place.vectors.queries));
        let found =
            json(&["search", "--data", data, name, queries, "--recall", "1", "--groundtruth", arg(&truth)]);
        assert!(
            found["runs"][0]["recall"].as_f64().unwrap() > 0.4,
            "half of the results have other ids: {found}"
        );
    }
}

#[test]
fn a_budget_that_is_too_small_names_one_that_works() {
    let place = Place::new("f32", "l2");
    let error = place.refused(&["list"], &["--ram-budget", "64MiB"]);
    let least = error.rsplit("--ram-budget ").next().unwrap();
    place.json(&["list"], &["--ram-budget", least]);
}

#[test]
fn a_folder_that_cannot_be_written_is_named() {
    // Nobody makes folders there, not even the administrator.
    let folder = "/sys/stratann-data";
    let error = refused(&["collection", "create", "--data", folder, "c", "--dim", "3"], 1);
    assert!(error.contains("cannot be written") && error.contains(folder), "{error}");
}

#[test]
fn an_upsert_that_is_killed_leaves_whole_batches() {
    let place = Place::new("f32", "l2");
    let rows: Vec<Vec<f64>> = (0..15_000).map(|row| vec![f64::from(row); DIM]).collect();
    let vectors = place.vectors("many.fbin", &rows);
    for wait_ms in [5, 25, 60, 120] {
        let args = place.args(&["upsert"], &["c", arg(&vectors), "--quiet"]);
        let mut child: std::process::Child = quiet(command(&args)).spawn().unwrap();
        std::thread::sleep(std::time::Duration::from_millis(wait_ms));
        let _ = child.kill();
        child.wait().unwrap();
        let sound = place.json(&["verify"], &["c"]);
        assert_eq!(sound["points"], place.json(&["info"], &["c"])["points"]);
    }
    place.upsert(&vectors, &[]);
    assert_eq!(place.json(&["verify"], &["c"])["points"], 15_000);
}

fn quiet(mut command: Command) -> Command {
    command.stdout(Stdio::null()).stderr(Stdio::null());
    command
}

#[test]
fn vectors_have_names() {
    let place = Place::new("f32", "l2");
    let made =
        place.json(&["create"], &["n", "--vectors", "title=8,cosine", "--vectors", "image=1,ip,u8,flat"]);
    assert_eq!(made["vectors"]["image"], value!({ "dim": 1, "metric": "ip", "dtype": "u8", "kind": "flat" }));
    assert_eq!((&made["vectors"]["title"]["metric"], &made["dim"]), (&"cosine".into(), &Value::Null));
    let image = place.vectors.path("image.u8bin");
    let rows: Vec<Vec<f64>> = (0..600).map(|row| vec![f64::from(row % 200)]).collect();
    write(&image, &rows, "u8");
    let (title, image) = (format!("title={}", arg(&place.vectors.base)), format!("image={}", arg(&image)));
    let written = place.json(&["upsert"], &["n", "--vectors", &title, "--vectors", &image]);
    assert_eq!((&written["new"], &written["rows"]), (&600.into(), &600.into()));
    let truth = place.vectors.truth("cosine");
    let search = |more: &[&str]| {
        let own = ["search", "--data", arg(&place.data), "n", arg(&place.vectors.queries)];
        [own.map(String::from).to_vec(), more.iter().map(|one| (*one).to_string()).collect()].concat()
    };
    let found = |more: &[&str]| json(&search(more).iter().map(String::as_str).collect::<Vec<_>>());
    let asked = ["--vector-name", "title", "--recall", "1", "-k", "7", "--groundtruth", arg(&truth)];
    assert_eq!(found(&asked)["runs"][0]["recall"], 1.0);
    place.json(&["compact"], &["n"]);
    assert_eq!(found(&asked)["runs"][0]["recall"], 1.0);
    // An upsert replaces points as wholes, an update does not.
    place.json(&["upsert"], &["n", "--vectors", &image, "--update"]);
    let count = |text: &str| place.json(&["count"], &["n", "--where", text])["count"].clone();
    assert_eq!((count("has_vector('title')"), count("has_vector('image')")), (600.into(), 600.into()));
    let some = place.vectors("some.fbin", &place.vectors.base_rows[..100]);
    place.json(&["upsert"], &["n", "--vectors", &format!("title={}", arg(&some))]);
    assert_eq!((count("has_vector('title')"), count("has_vector('image')")), (600.into(), 500.into()));
    let got = place.json(&["get"], &["n", "--id", "1,400", "--with-vectors"]);
    assert!(got["points"][0]["vectors"].get("image").is_none(), "{got}");
    assert_eq!(got["points"][1]["vectors"]["image"], value!([0]), "{got}");
    let info = place.json(&["compact"], &["n"]);
    let [segment] = &info["segments"].as_array().unwrap()[..] else { panic!("{info}") };
    assert_eq!(segment["indexes"][0]["vector_name"], "image", "{info}");
    let lines = place.vectors.path("n.jsonl");
    assert_eq!(place.json(&["export"], &["n", "-o", arg(&lines)])["points"], 600);
    let first: Value =
        serde_json::from_str(std::fs::read_to_string(&lines).unwrap().lines().next().unwrap()).unwrap();
    assert_eq!(first["vectors"]["title"].as_array().unwrap().len(), DIM);
    for (command, more, why) in [
        ("create", &["x"][..], "give --dim 384, or --vectors"),
        ("create", &["x", "--dim", "2", "--vectors", "a=2"], "both given"),
        ("create", &["x", "--vectors", "a=2,l3"], "is none of"),
        ("create", &["x", "--vectors", "a"], "there is no ="),
        ("upsert", &["n", arg(&some)], "have names"),
        ("upsert", &["n", "--vectors", "titel=x.fbin"], "unknown vector name \"titel\""),
        (
            "upsert",
            &["n", "--vectors", &title, "--vectors", &format!("image={}", arg(&some))],
            "has 8 dimensions",
        ),
        ("upsert", &["n"], "no vectors are given"),
        ("import", &["n", arg(&some)], "upsert --vectors NAME=FILE"),
        ("import", &["n", arg(&lines), "--vectors", "title"], "give NAME=COLUMN"),
    ] {
        let error = place.refused(&[command], more);
        assert!(error.contains(why), "{command} {more:?}: {error}");
    }
    let all = search(&[]);
    let error = refused(&all.iter().map(String::as_str).collect::<Vec<_>>(), 2);
    assert!(error.contains("have names: \"image\", \"title\""), "{error}");
}
