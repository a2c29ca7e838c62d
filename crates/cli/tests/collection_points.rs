//! Points with payloads on the command line: written, filtered, read, counted, indexed and deleted.
#![allow(missing_docs)]

mod common;

use std::path::PathBuf;

use common::*;
use serde_json::{Value, json as value};

const DIM: usize = 4;
const ROWS: usize = 300;
const UUID: &str = "f47ac10b-58cc-4372-a567-0e02b2c3d479";

/// A data folder with a collection `c` of points whose payloads follow from their row.
struct Shop {
    folder: TempDir,
}

impl Shop {
    fn new() -> Shop {
        let shop = Shop { folder: folder() };
        shop.json(&["create", "c", "--dim", "4"]);
        let payloads: Vec<String> = (0..ROWS).map(|row| shop.payload(row).to_string()).collect();
        let (vectors, payloads) =
            (shop.vectors(), shop.file("payloads.jsonl", &(payloads.join("\n") + "\n")));
        let written = shop.json(&["upsert", "c", arg(&vectors), "--payload", arg(&payloads)]);
        assert_eq!(written["new"], ROWS);
        shop
    }

    fn payload(&self, row: usize) -> Value {
        match row % 10 {
            9 => Value::Null,
            _ => {
                value!({ "price": row, "brand": (if row.is_multiple_of(2) { "x" } else { "y" }), "title": format!("thing {row}"), "tags": [row % 3, null] })
            }
        }
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    fn vectors(&self) -> PathBuf {
        let path = self.folder.path().join("base.fbin");
        let rows: Vec<Vec<f64>> = (0..ROWS).map(|row| vec![row as f64; DIM]).collect();
        write(&path, &rows, "f32");
        path
    }

    fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    fn run(&self, args: &[&str]) -> std::process::Output {
        let data = self.data();
        run(&[&["collection", args[0], "--data", arg(&data)], &args[1..]].concat())
    }

    fn json(&self, args: &[&str]) -> Value {
        let data = self.data();
        json(&[&["collection", args[0], "--data", arg(&data)], &args[1..]].concat())
    }

    fn refused(&self, args: &[&str]) -> String {
        let data = self.data();
        refused(&[&["collection", args[0], "--data", arg(&data)], &args[1..]].concat(), 2)
    }

    fn search(&self, more: &[&str]) -> std::process::Output {
        let (data, query) = (self.data(), self.folder.path().join("one.fbin"));
        write(&query, &[vec![0.0; DIM]], "f32");
        run(&[&["search", "--data", arg(&data), "c", arg(&query)], more].concat())
    }

    fn found(&self, more: &[&str]) -> Value {
        let output = self.search(&[more, &["--json"]].concat());
        assert!(output.status.success(), "{}", stderr(&output));
        serde_json::from_slice(&output.stdout).unwrap()
    }

    fn matching(&self, price_max: usize) -> Vec<usize> {
        (0..ROWS).filter(|row| row % 10 != 9 && *row < price_max && row % 2 == 0).collect()
    }
}

fn stdout(output: &std::process::Output) -> String {
    assert!(output.status.success(), "{}", stderr(output));
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn lines(output: &std::process::Output) -> Vec<Value> {
    stdout(output).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

const JSON: &str =
    r#"{"must": [{"key": "price", "range": {"lt": 50}}, {"key": "brand", "match": {"value": "x"}}]}"#;
const TEXT: &str = "price < 50 and brand = 'x'";

#[test]
fn both_forms_of_a_filter_find_the_same_points_with_and_without_indexes() {
    let shop = Shop::new();
    let wanted = shop.matching(50);
    // Points in memory are decided without an index; those of segments have one, or their payloads are read.
    shop.json(&["compact", "c"]);
    for is_indexed in [false, true] {
        for filter in [["--filter", JSON], ["--where", TEXT]] {
            let found = shop.found(&[&filter[..], &["-k", "100", "--recall", "1"]].concat());
            let ids: Vec<usize> = serde_json::from_value(found["answers"][0]["ids"].clone()).unwrap();
            assert_eq!(ids, wanted);
            assert_eq!(found["unindexed"].as_array().unwrap().is_empty(), is_indexed, "{found}");
            let counted = shop.json(&[&["count", "c"], &filter[..]].concat());
            assert_eq!(counted["count"], wanted.len());
            let about = shop.json(&[&["count", "c", "--estimate"], &filter[..]].concat());
            assert!((&about["least"], &about["most"]) == (&about["count"], &about["count"]) || !is_indexed);
            assert!(about["count"].as_u64().unwrap().abs_diff(wanted.len() as u64) <= 20, "{about}");
            let page = lines(&shop.run(&[&["scroll", "c"], &filter[..]].concat()));
            assert_eq!(
                page.iter().map(|point| point["id"].as_u64().unwrap() as usize).collect::<Vec<_>>(),
                wanted
            );
        }
        shop.json(&["schema", "c", "--set", "price=float", "--set", "brand=keyword"]);
        shop.json(&["compact", "c"]);
    }
    let note = stderr(&shop.run(&["count", "c", "--where", "title = 'thing 3'"]));
    assert!(note.contains("note: payloads were read") && note.contains("title (create an index"), "{note}");
    assert_eq!(shop.json(&["count", "c"])["count"], ROWS);
}

#[test]
fn results_have_fields_and_payloads() {
    let shop = Shop::new();
    let text = stdout(&shop.search(&["-k", "3", "--text-field", "title"]));
    assert!(text.contains("\n    0 (0.0000)  thing 0\n    1 (4.0000)  thing 1\n"), "{text}");
    let found = shop.found(&["-k", "3", "--text-field", "tags[0]", "--with-payload"]);
    let answer = &found["answers"][0];
    assert_eq!((&answer["ids"], &answer["texts"]), (&value!([0, 1, 2]), &value!(["0", "1", "2"])));
    assert_eq!(answer["payloads"][2], shop.payload(2));
    let out = shop.folder.path().join("out.jsonl");
    stdout(&shop.search(&["-k", "10", "--with-payload", "-o", arg(&out)]));
    let line: Value = serde_json::from_str(&std::fs::read_to_string(&out).unwrap()).unwrap();
    assert_eq!(line["payloads"], (0..10).map(|row| shop.payload(row)).collect::<Value>());
    let out = shop.folder.path().join("out.csv");
    stdout(&shop.search(&["-k", "1", "--text-field", "title", "--with-payload", "-o", arg(&out)]));
    let csv = std::fs::read_to_string(&out).unwrap();
    assert!(
        csv.starts_with("query,rank,id,distance,text,payload\n0,0,0,0,thing 0,\"{\"\"brand\"\""),
        "{csv}"
    );
    assert_eq!(shop.found(&["--show", "0"])["answers"], value!([]));
}

#[test]
fn a_dash_is_stdout() {
    let shop = Shop::new();
    let output = shop.search(&["-k", "2", "-o", "-"]);
    assert_eq!(lines(&output), [value!({ "query": 0, "ids": [0, 1], "distances": [0.0, 4.0] })]);
    assert!(stderr(&output).contains("queries/s"), "the report is beside the results");
    let error = stderr(&shop.search(&["-o", "-", "--json"]));
    assert!(error.contains("both print on stdout"), "{error}");
}

#[test]
fn points_are_read_by_ids_and_in_their_order() {
    let shop = Shop::new();
    let vectors = shop.folder.path().join("two.fbin");
    write(&vectors, &[vec![1.5; DIM], vec![2.5; DIM]], "f32");
    let ids = shop.file("ids.txt", &format!("{UUID}\nname\n"));
    shop.json(&["upsert", "c", arg(&vectors), "--ids", arg(&ids)]);
    let output = shop.run(&["get", "c", "--id", &format!("7,name,{UUID},missing"), "--with-vectors"]);
    let wanted = [
        value!({ "id": 7, "vector": [7.0, 7.0, 7.0, 7.0], "payload": shop.payload(7) }),
        value!({ "id": "name", "vector": [2.5, 2.5, 2.5, 2.5], "payload": null }),
        value!({ "id": UUID, "vector": [1.5, 1.5, 1.5, 1.5], "payload": null }),
    ];
    assert_eq!(lines(&output), wanted);
    assert!(stderr(&output).contains("1 ids have no point"));
    let document = shop.json(&["get", "c", arg(&ids)]);
    assert_eq!(document["points"][1], value!({ "id": "name", "payload": null }));

    let first = shop.json(&["scroll", "c", "--limit", "2"]);
    assert_eq!((&first["points"][1]["id"], &first["next"]), (&1.into(), &1.into()));
    let rest = shop.run(&["scroll", "c", "--after", "298", "--limit", "2"]);
    assert_eq!(lines(&rest).iter().map(|point| point["id"].clone()).collect::<Value>(), value!([299, UUID]));
    assert!(stderr(&rest).contains(&format!("--after {UUID}")));
    let last = shop.json(&["scroll", "c", "--after", UUID]);
    assert_eq!((&last["points"][0]["id"], &last["next"]), (&"name".into(), &Value::Null));
}

#[test]
fn points_are_read_in_the_order_of_a_field() {
    let shop = Shop::new();
    let error = shop.refused(&["scroll", "c", "--order-by", "price"]);
    assert!(error.contains("stratann collection schema --set price=float"), "{error}");
    shop.json(&["schema", "c", "--set", "price=float"]);
    shop.json(&["compact", "c"]);
    // The price of a row is its number.
    let expected: Vec<usize> = (0..ROWS).rev().filter(|row| row % 10 != 9).collect();
    let scroll = ["scroll", "c", "--order-by", "price", "--descending", "--limit", "100"];
    let ids =
        |page: &[Value]| page.iter().map(|own| own["id"].as_u64().unwrap() as usize).collect::<Vec<_>>();
    let first = shop.run(&scroll);
    assert_eq!(ids(&lines(&first)), expected[..100]);
    let note = stderr(&first);
    let next = note.split("--after ").nth(1).unwrap().trim().to_string();
    let rest = shop.json(&[&scroll[..], &["--after", &next]].concat());
    assert_eq!(ids(rest["points"].as_array().unwrap()), expected[100..200]);
    let filtered = shop.run(&[&scroll[..], &["--where", TEXT]].concat());
    let matching = shop.matching(50);
    let mut wanted: Vec<usize> = expected.into_iter().filter(|row| matching.contains(row)).collect();
    wanted.truncate(100);
    assert_eq!(ids(&lines(&filtered)), wanted);
    for (args, why) in [
        (vec!["scroll", "c", "--descending"], "--order-by"),
        (vec!["scroll", "c", "--order-by", "price", "--after", &*next], "is of another order"),
        (vec!["count", "c", "--where", TEXT, "--indexed-only"], "brand (create an index of kind keyword)"),
        (vec!["count", "c", "--indexed-only"], "--indexed-only has no use without a filter"),
    ] {
        let error = shop.refused(&args);
        assert!(error.contains(why), "{error}");
    }
    assert_eq!(
        shop.json(&["count", "c", "--where", "price < 50", "--indexed-only"])["unindexed"],
        value!([])
    );
}

#[test]
fn a_condition_leaves_points_as_they_are() {
    let shop = Shop::new();
    let vectors = shop.folder.path().join("more.fbin");
    write(&vectors, &[vec![1.5; DIM], vec![2.5; DIM], vec![3.5; DIM]], "f32");
    let seq = shop.json(&["info", "c"])["seq"].as_u64().unwrap();
    let last = (ROWS - 1).to_string();
    let upsert = ["upsert", "c", arg(&vectors), "--first-id", &last];
    let done = shop.json(&[&upsert[..], &["--if-absent"]].concat());
    assert_eq!(
        (&done["new"], &done["replaced"], &done["skipped"]),
        (&2.into(), &0.into(), &value!([ROWS - 1]))
    );
    let since = seq.to_string();
    let done = shop.json(&[&upsert[..], &["--if-unchanged-since", &since]].concat());
    assert_eq!((&done["replaced"], &done["skipped"]), (&1.into(), &value!([ROWS, ROWS + 1])));
    let text = stdout(&shop.run(&[&upsert[..], &["--if-absent"]].concat()));
    assert!(text.contains("3 points were left as they were"), "{text}");
    let error = shop.refused(&[&upsert[..], &["--if-absent", "--if-unchanged-since", "1"]].concat());
    assert!(error.contains("cannot be used with"), "{error}");
}

#[test]
fn points_that_match_are_deleted() {
    let shop = Shop::new();
    let matching = shop.matching(50).len();
    let deleted = shop.json(&["delete", "c", "--where", TEXT]);
    assert_eq!((&deleted["deleted"], &deleted["changed"]), (&matching.into(), &0.into()));
    assert_eq!(shop.json(&["count", "c"])["count"], ROWS - matching);
    assert_eq!(shop.json(&["delete", "c", "--filter", JSON])["deleted"], 0);
}

#[test]
fn indexed_fields_are_shown_and_changed() {
    let shop = Shop::new();
    assert_eq!(stdout(&shop.run(&["schema", "c"])), "c: no field has an index\n");
    let made = shop.json(&["schema", "c", "--set", "title=keyword,text", "--set", "\"a.b\".c=bool"]);
    assert_eq!(made["schema"], value!({ "title": ["keyword", "text"], "\"a.b\".c": ["bool"] }));
    let made = shop.json(&["schema", "c", "--set", "title=text", "--remove", "\"a.b\".c"]);
    assert_eq!(
        (&made["schema"], &shop.json(&["schema", "c"])["schema"]),
        (&value!({ "title": ["text"] }), &made["schema"])
    );
    for (more, why) in [
        (&["--set", "title"][..], "write FIELD=KIND"),
        (&["--set", "title=geo"], "no kind \"geo\" of index; use keyword"),
        (&["--set", "a..b=text"], "column 3"),
        (&["--remove", "price"], "the field price has no index"),
        (&["--set", "price=float", "--remove", "price"], "given with --set and --remove"),
    ] {
        let error = shop.refused(&[&["schema", "c"], more].concat());
        assert!(error.contains(why), "{error}");
    }
}

#[test]
fn mistakes_are_refused_and_change_nothing() {
    let shop = Shop::new();
    let seq = shop.json(&["info", "c"])["seq"].clone();
    let vectors = shop.vectors();
    let few = shop.file("few.jsonl", "{}\n{}\n");
    let odd = shop.file("odd.jsonl", &"{}\n".repeat(ROWS).replacen("{}\n{}", "{}\n{\"a\": NaN}", 1));
    let upsert = ["upsert", "c", arg(&vectors), "--payload"];
    for (args, why) in [
        ([&upsert[..], &[arg(&few)]].concat(), "has 2 lines for 300 vectors"),
        ([&upsert[..], &[arg(&odd)]].concat(), "line 2: the payload is not JSON"),
        (vec!["delete", "c", "--id", "3", "--where", TEXT], "ids and --where are both given"),
        (vec!["delete", "c", "--filter", JSON, "--where", TEXT], "--filter and --where are both given"),
        (vec!["delete", "c", "--where", "price <"], "--where: the where text is wrong at column"),
        (vec!["count", "c", "--filter", "{\"most\": []}"], "--filter: "),
        (vec!["get", "c"], "no ids are given"),
        (vec!["scroll", "d"], "there is no collection \"d\""),
        (vec!["scroll", "c", "--limit", "0"], "--limit"),
    ] {
        let error = shop.refused(&args);
        assert!(error.contains(why), "{args:?}: {error}");
    }
    assert_eq!(shop.json(&["info", "c"])["seq"], seq);
    let npy = shop.folder.path().join("out.npy");
    for (more, why) in [
        (&["--filter", JSON, "--where", TEXT][..], "give one of them"),
        (&["--text-field", "a..b"], "--text-field: the path"),
        (&["--with-payload", "-o", arg(&npy)], "holds numbers alone"),
    ] {
        let output = shop.search(more);
        assert_eq!(output.status.code(), Some(2));
        assert!(stderr(&output).contains(why), "{}", stderr(&output));
    }
}
