//! Indexes that keep ids and payloads: what `build --payload` makes, what filters find, and mistakes.
#![allow(missing_docs)]

mod common;

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use common::*;
use serde_json::{Value, json as value};

const ROWS: usize = 900;
const DIM: usize = 8;
/// Kinds whose files and searches differ most.
const KINDS: [&str; 2] = ["disk-graph", "hybrid-ivf"];

/// Points in a file of JSON lines, and queries.
struct Shop {
    data: Data,
    points: PathBuf,
}

/// Forms of ids.
#[derive(Clone, Copy)]
enum Ids {
    RowNumbers,
    Numbers,
    Strings,
    Uuids,
}

impl Ids {
    fn of(self, row: usize) -> Option<Value> {
        match self {
            Ids::RowNumbers => None,
            // In another order than rows.
            Ids::Numbers => Some(value!(7_000_000_000u64 + (row as u64 * 367) % ROWS as u64)),
            Ids::Strings => Some(value!(format!("item {}", (row * 367) % ROWS))),
            Ids::Uuids => Some(value!(format!("f47ac10b-58cc-4372-a567-{:012x}", (row * 367) % ROWS))),
        }
    }

    /// The id as results have it.
    fn shown(self, row: usize) -> Value {
        self.of(row).unwrap_or_else(|| value!(row))
    }
}

fn price(row: usize) -> f64 {
    (row * 31 % 100) as f64 / 2.0
}

fn brand(row: usize) -> &'static str {
    ["acme", "globex", "initech"][row % 3]
}

/// Every tenth row has no payload.
fn payload(row: usize) -> Option<Value> {
    (row % 10 != 9).then(|| {
        value!({ "title": format!("thing, \"{row}\""), "price": price(row), "brand": brand(row), "tag": [row % 7] })
    })
}

impl Shop {
    fn new(ids: Ids) -> Shop {
        let data = Data::new(ROWS, DIM, "f32");
        let line = |(row, vector): (usize, &Vec<f64>)| {
            let mut line = value!({ "vector": vector });
            ids.of(row).into_iter().for_each(|id| line["id"] = id);
            payload(row).into_iter().for_each(|payload| line["payload"] = payload);
            line.to_string() + "\n"
        };
        let lines: String = data.base_rows.iter().enumerate().map(line).collect();
        let points = data.path("points.jsonl");
        std::fs::write(&points, lines).unwrap();
        Shop { data, points }
    }

    fn args<'a>(&'a self, index: &'a Path, kind: &'a str, more: &[&'a str]) -> Vec<&'a str> {
        let base = ["build", arg(&self.points), "-o", arg(index), "--kind", kind, "--payload"];
        let of_plan = if kind == "hybrid-ivf" { vec!["--profile", profile()] } else { Vec::new() };
        [&base[..], &calibrated(kind, "60"), &of_plan, more].concat()
    }

    fn build(&self, name: &str, kind: &str, more: &[&str]) -> PathBuf {
        let index = self.data.path(name);
        json(&self.args(&index, kind, more));
        index
    }

    fn search<'a>(&'a self, index: &'a Path, more: &[&'a str]) -> Vec<&'a str> {
        let base =
            ["search", arg(index), arg(&self.data.queries), "-k", "5", "--recall", "1", "--show", "50"];
        [&base[..], more].concat()
    }

    /// The nearest rows of a query that match, by a plain computation.
    fn nearest(&self, query: usize, matches: impl Fn(usize) -> bool) -> Vec<(f64, usize)> {
        let query = &self.data.query_rows[query];
        let rows = self.data.base_rows.iter().enumerate().filter(|(row, _)| matches(*row));
        let mut all: Vec<_> = rows.map(|(row, own)| (distance("l2", own, query), row)).collect();
        all.sort_by(|a, b| a.partial_cmp(b).unwrap());
        all.truncate(5);
        all
    }

    /// Compares all answers of a search with a plain computation.
    fn check(&self, found: &Value, ids: Ids, matches: impl Fn(usize) -> bool) {
        let answers = found["answers"].as_array().expect("answers");
        assert_eq!(answers.len(), 50);
        for (query, answer) in answers.iter().enumerate() {
            let wanted = self.nearest(query, &matches);
            let wanted_ids: Vec<Value> = wanted.iter().map(|(_, row)| ids.shown(*row)).collect();
            assert_eq!(answer["ids"], value!(wanted_ids), "query {query}");
            for (own, (distance, _)) in answer["distances"].as_array().unwrap().iter().zip(&wanted) {
                assert!((own.as_f64().unwrap() - distance).abs() <= 1e-4 * distance.max(1.0));
            }
        }
    }
}

#[test]
fn filters_find_what_a_plain_computation_finds() {
    let cheap = |row: usize| row % 10 != 9 && price(row) < 12.0 && brand(row) == "acme";
    let without = |row: usize| row % 10 == 9 || price(row) >= 40.0;
    for (kind, ids) in KINDS.into_iter().zip([Ids::Numbers, Ids::Strings]) {
        let shop = Shop::new(ids);
        for (name, set) in
            [("plain", &[][..]), ("indexed", &["--set", "price=float", "--set", "brand=keyword"])]
        {
            let index = shop.build(name, kind, set);
            let of_where = json(&shop.search(&index, &["--where", "price < 12 and brand = 'acme'"]));
            shop.check(&of_where, ids, cheap);
            let lacking = if set.is_empty() { 2 } else { 0 };
            assert_eq!(of_where["unindexed"].as_array().unwrap().len(), lacking, "{of_where:#}");
            assert_eq!(of_where["runs"][0]["filter"]["matches"], (0..ROWS).filter(|&r| cheap(r)).count());
            assert!(of_where["runs"][0]["memory"]["ids_and_payloads_bytes"].as_u64().unwrap() > 0);
            let filter = r#"{"must_not": [{"key": "price", "range": {"lt": 40}}]}"#;
            let of_json = json(&shop.search(&index, &["--filter", filter, "--with-payload"]));
            shop.check(&of_json, ids, without);
            let nearest = shop.nearest(0, without);
            let payloads: Vec<Value> =
                nearest.iter().map(|near| payload(near.1).unwrap_or_default()).collect();
            assert_eq!(of_json["answers"][0]["payloads"], value!(payloads));
            let named =
                value!({ "must": [{ "has_id": [ids.shown(3), ids.shown(700), "none"] }] }).to_string();
            shop.check(&json(&shop.search(&index, &["--filter", &named])), ids, |row| row == 3 || row == 700);
            let none = json(&shop.search(&index, &["--where", "price > 1000"]));
            assert_eq!(none["answers"][0]["ids"], value!([]));
            let only = shop.search(&index, &["--indexed-only", "--where", "price < 12"]);
            if set.is_empty() {
                let error = refused(&only, 2);
                assert!(error.contains("price") && error.contains("--set FIELD=KIND"), "{error}");
            } else {
                json(&only);
            }
        }
    }
}

#[test]
fn ids_of_every_form_come_back_as_text_and_in_files() {
    for ids in [Ids::RowNumbers, Ids::Numbers, Ids::Strings, Ids::Uuids] {
        let shop = Shop::new(ids);
        let index = shop.build("i", "flat", &[]);
        let found = json(&shop.search(&index, &["--text-field", "title"]));
        shop.check(&found, ids, |_| true);
        let near = shop.nearest(0, |_| true);
        let title = |row: usize| payload(row).map_or(Value::Null, |payload| payload["title"].clone());
        let titles: Vec<Value> = near.iter().map(|(_, row)| title(*row)).collect();
        assert_eq!(found["answers"][0]["texts"], value!(titles));
        let text = run(&shop.search(&index, &["--text-field", "price"]));
        let text = String::from_utf8(text.stdout).unwrap();
        let id = ids.shown(near[0].1);
        let id = id.as_str().map_or_else(|| id.to_string(), String::from);
        assert!(text.contains(&format!("    {id} (")), "{text}");
        let (lines, cells, numbers) =
            (shop.data.path("o.jsonl"), shop.data.path("o.csv"), shop.data.path("o.i64bin"));
        json(&shop.search(&index, &["-o", arg(&lines), "--with-payload"]));
        let first: Value =
            serde_json::from_str(std::fs::read_to_string(&lines).unwrap().lines().next().unwrap()).unwrap();
        assert_eq!(first["ids"][0], ids.shown(near[0].1));
        assert_eq!(first["payloads"][0], payload(near[0].1).unwrap_or_default());
        json(&shop.search(&index, &["-o", arg(&cells)]));
        assert!(std::fs::read_to_string(&cells).unwrap().contains(&format!("0,0,{id},")));
        let binary = shop.search(&index, &["-o", arg(&numbers)]);
        match ids {
            Ids::RowNumbers | Ids::Numbers => drop(json(&binary)),
            Ids::Strings | Ids::Uuids => {
                let error = refused(&binary, 2);
                assert!(error.contains("is no number; name the file .jsonl or .csv"), "{error}");
            }
        }
    }
}

#[test]
fn info_and_verify_know_ids_and_payloads() {
    let shop = Shop::new(Ids::Uuids);
    let index = shop.build("i", "disk-graph", &["--set", "price=float,integer"]);
    let info = json(&["info", arg(&index)]);
    let payloads = (0..ROWS).filter(|row| payload(*row).is_some()).count();
    assert_eq!(info["format_version"], 6);
    assert_eq!(info["points"]["uuids"], ROWS);
    assert_eq!((&info["points"]["numbers"], &info["points"]["payloads"]), (&value!(0), &value!(payloads)));
    assert_eq!(info["points"]["fields"]["title"], payloads);
    assert_eq!(info["points"]["indexes"], value!({ "price": ["integer", "float"] }));
    let text = String::from_utf8(run(&["info", arg(&index)]).stdout).unwrap();
    assert!(text.contains("ids: 900 UUIDs; 810 payloads, with the fields brand (810)"), "{text}");
    assert!(text.contains("indexes: price=integer,float"), "{text}");
    assert_eq!(json(&["verify", arg(&index)])["violations_found"], 0);
    for role in ["point-ids.bin", "payloads.bin", "payload-index.bin"] {
        let path = file_of(&index, role);
        let good = std::fs::read(&path).unwrap();
        for at in [good.len() / 3, good.len() - 20] {
            let mut bytes = good.clone();
            bytes[at] ^= 4;
            std::fs::write(&path, bytes).unwrap();
            let report = run(&["verify", arg(&index), "--json"]);
            assert_eq!(report.status.code(), Some(1), "{role}");
            let report: Value = serde_json::from_slice(&report.stdout).unwrap();
            let name = path.file_name().unwrap().to_str().unwrap();
            assert_eq!(report["violations"][0]["file"], name, "{role} at {at}: {report:#}");
        }
        // Its end is read whenever it is opened.
        let error = refused(&shop.search(&index, &["--where", "price < 12", "--with-payload"]), 1);
        assert!(error.contains(role) && error.contains("build the index again"), "{error}");
        std::fs::remove_file(&path).unwrap();
        assert!(!run(&shop.search(&index, &["--where", "price < 12"])).status.success(), "{role}");
        std::fs::write(&path, &good).unwrap();
    }
    json(&shop.search(&index, &["--where", "price < 12"]));
}

#[test]
fn a_parquet_file_gives_the_same_index_as_lines_of_json() {
    let shop = Shop::new(Ids::Strings);
    let (data, parquet) = (shop.data.path("data"), shop.data.path("points.parquet"));
    json(&["collection", "import", "--data", arg(&data), "c", arg(&shop.points), "--create"]);
    json(&["collection", "export", "--data", arg(&data), "c", "-o", arg(&parquet)]);
    let index = shop.data.path("i");
    let build = ["build", arg(&parquet), "-o", arg(&index), "--kind", "flat", "--payload"];
    assert_eq!(json(&build)["facts"]["payloads"], 810);
    let cheap = |row: usize| row % 10 != 9 && price(row) < 12.0;
    shop.check(&json(&shop.search(&index, &["--where", "price < 12"])), Ids::Strings, cheap);
    // Ids alone.
    let ids = shop.data.path("ids");
    json(&["build", arg(&parquet), "-o", arg(&ids), "--kind", "flat", "--payload", "none"]);
    shop.check(&json(&shop.search(&ids, &[])), Ids::Strings, |_| true);
    assert_eq!(json(&shop.search(&ids, &["--where", "price < 12"]))["answers"][0]["ids"], value!([]));
    // As before: vectors alone.
    let vectors = shop.data.path("vectors");
    let column = format!("{}#vector", arg(&parquet));
    json(&["build", &column, "-o", arg(&vectors), "--kind", "flat"]);
    let plain = json(&shop.search(&vectors, &[]));
    assert!(plain.get("answers").is_none() && plain.get("unindexed").is_none(), "{plain:#}");
    assert_eq!(json(&["info", arg(&vectors)])["format_version"], 4);
}

#[test]
fn columns_and_fields_are_chosen() {
    let data = Data::new(50, DIM, "f32");
    let line = |(row, vector): (usize, &Vec<f64>)| {
        value!({ "sku": format!("s{row}"), "embedding": vector, "title": "t", "cost": row, "more": true })
            .to_string()
            + "\n"
    };
    let points = data.path("points.jsonl");
    std::fs::write(&points, data.base_rows.iter().enumerate().map(line).collect::<String>()).unwrap();
    let index = data.path("i");
    let build = ["build", arg(&points), "-o", arg(&index), "--kind", "flat"];
    let chosen = ["--ids", "sku", "--vectors", "embedding", "--payload", "cost,title"];
    json(&[&build[..], &chosen].concat());
    let info = json(&["info", arg(&index)]);
    assert_eq!(info["points"]["fields"], value!({ "cost": 50, "title": 50 }));
    assert_eq!(info["points"]["strings"], 50);
    let found = json(&["search", arg(&index), arg(&data.queries), "--where", "cost = 7", "--show", "1"]);
    assert_eq!(found["answers"][0]["ids"], value!(["s7"]));
    let force = ["--force", "--payload"];
    for (more, why) in [
        (&["--ids", "none"][..], "no column \"none\" for --ids"),
        (&["--vectors", "title"], "has no lists of numbers"),
        (&["--set", "cost"], "no kind is given"),
        (&["--set", "cost=number"], "there is no kind \"number\" of index"),
    ] {
        let error = refused(&[&build[..], &force, more].concat(), 2);
        assert!(error.contains(why), "{error}");
    }
    assert_eq!(json(&["info", arg(&index)])["version"], 1, "what was there stays");
}

#[test]
fn mistakes_are_named() {
    let shop = Shop::new(Ids::Strings);
    let index = shop.build("i", "disk-graph", &[]);
    let plain = shop.data.build("plain", &[]);
    let (ids, out) = (shop.data.path("ids.txt"), shop.data.path("out"));
    std::fs::write(&ids, "1\n2\n").unwrap();
    let truth = shop.data.truth("l2");
    for (args, why) in [
        (shop.search(&plain, &["--where", "price < 12"]), "--payload"),
        (shop.search(&plain, &["--text-field", "title"]), "--text-field asks for payloads"),
        (shop.search(&index, &["--where", "price <"]), "--where: the where text is wrong at column"),
        (shop.search(&index, &["--filter", "{"]), "--filter: "),
        (shop.search(&index, &["--filter", "{}", "--where", "a = 1"]), "give one of them"),
        (shop.search(&index, &["--text-field", "a..b"]), "--text-field: "),
        (shop.search(&index, &["--vector-name", "v"]), "--vector-name is for collections"),
        (shop.search(&index, &["--only", arg(&ids)]), "has_id"),
        (shop.search(&index, &["--only", arg(&ids), "--where", "price < 12"]), "give one of them"),
        (shop.search(&index, &["--groundtruth", arg(&truth)]), "ground truth has numbers"),
        (shop.search(&index, &["--also", arg(&plain)]), "a search of several indexes knows numbers alone"),
        (shop.search(&index, &["--with-payload", "-o", "o.npy"]), "leave --with-payload out"),
        (vec!["delete", arg(&index), "--id", "3"], "a delete knows numbers alone"),
        (vec!["explain", arg(&index), arg(&shop.data.queries)], "a trace knows numbers alone"),
        (vec!["build", "--from", arg(&index), "-o", arg(&out)], "a build from it would lose"),
        (
            vec!["cluster", "partition", arg(&index), "-o", arg(&out), "--servers", "2"],
            "a partition over servers would lose",
        ),
        (vec!["build", arg(&shop.points), "-o", arg(&out)], "give --payload"),
        (vec!["build", arg(&shop.data.base), "-o", arg(&out), "--set", "a=bool"], "--payload"),
        (shop.args(&out, "remote-hnsw", &[]), "memory nodes, which keep no payloads"),
    ] {
        let output = run(&[&args[..], &["--quiet"]].concat());
        let error = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {error}");
        assert!(error.contains(why), "{args:?}: {error}");
    }
    assert!(!out.exists());
}

/// The first of the queries as a request, and more fields.
fn request(shop: &Shop, queries: usize, more: &Value) -> Value {
    let mut body = value!({ "queries": shop.data.query_rows[..queries], "k": 5, "recall": 1 });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

#[test]
fn a_server_answers_filters_with_ids_of_every_form_and_payloads() {
    let cheap = |row: usize| row % 10 != 9 && price(row) < 12.0;
    let both = r#"{"must": [{"key": "price", "range": {"lt": 12}}]}"#;
    for (ids, kind) in
        [Ids::Numbers, Ids::Strings, Ids::Uuids].into_iter().zip(["disk-graph", "flat", "hybrid-ivf"])
    {
        let shop = Shop::new(ids);
        let index = shop.build("i", kind, &["--set", "brand=keyword"]);
        let server = Running::serve(&index, &["--ram-budget", "128MiB"]);
        let shown = |row: usize| match ids {
            // As of any index with such ids.
            Ids::Numbers => value!(ids.shown(row).to_string()),
            _ => ids.shown(row),
        };
        let ask = |more: &Value| {
            let body = request(&shop, 20, more).to_string();
            post_as(server.address(), "/v1/search", ("application/json", body.as_bytes()))
        };
        let filter: Value = serde_json::from_str(both).unwrap();
        for more in [
            value!({ "where": "price < 12", "with_payload": true }),
            value!({ "filter": filter, "with_payload": true, "where": null }),
        ] {
            let (status, reply) = ask(&more);
            assert_eq!(status, 200, "{reply:#}");
            for (query, answer) in reply["answers"].as_array().unwrap().iter().enumerate() {
                let near = shop.nearest(query, cheap);
                let wanted: Vec<Value> = near.iter().map(|(_, row)| shown(*row)).collect();
                assert_eq!(answer["ids"], value!(wanted), "query {query}");
                let payloads: Vec<Value> = near.iter().map(|(_, row)| payload(*row).unwrap()).collect();
                assert_eq!(answer["payloads"], value!(payloads));
            }
            assert_eq!(reply["filter"]["matches"], (0..ROWS).filter(|row| cheap(*row)).count());
            assert_eq!(reply["unindexed"].as_array().unwrap().len(), 1, "{reply:#}");
            assert_eq!(reply.get("any_ids").is_some(), !matches!(ids, Ids::Numbers));
        }
        // As parameters of a URL, and without a filter.
        let rows: Vec<u8> = shop.data.query_rows[0].iter().flat_map(|x| (*x as f32).to_le_bytes()).collect();
        for (more, matches) in [
            ("&where=brand+%3D+%27acme%27&indexed_only=true&with_payload=true", true),
            (
                "&filter=%7B%22must%22:[%7B%22key%22:%22brand%22,%22match%22:%7B%22value%22:%22acme%22%7D%7D]%7D",
                true,
            ),
            ("", false),
        ] {
            let (status, reply) = post(server.address(), &format!("/v1/search?k=5&recall=1{more}"), &rows);
            assert_eq!(status, 200, "{reply:#}");
            let near = shop.nearest(0, |row| !matches || row % 10 != 9 && brand(row) == "acme");
            let wanted: Vec<Value> = near.iter().map(|(_, row)| shown(*row)).collect();
            assert_eq!(reply["answers"][0]["ids"], value!(wanted));
            assert_eq!(reply["answers"][0].get("payloads").is_some(), more.contains("with_payload"));
            assert_eq!(reply.get("unindexed"), matches.then(|| value!([])).as_ref());
        }
        let (_, status) = get(server.address(), "/v1/status");
        assert!(status["memory"]["ids_and_payloads_bytes"].as_u64() > Some(0), "{status:#}");
        for (more, why) in [
            (value!({ "where": "price <" }), "where text is wrong at column"),
            (value!({ "where": 5 }), "use text"),
            (value!({ "filter": { "most": [] } }), "most"),
            (value!({ "filter": filter, "where": "a = 1" }), "both filter and where"),
            (value!({ "indexed_only": true }), "no use without a filter"),
            (value!({ "where": "price < 12", "indexed_only": true }), "--set FIELD=KIND"),
            (value!({ "where": "price < 12", "only": [1] }), "has_id"),
            (value!({ "wher": "price < 12" }), "use where"),
            (value!({ "with_payload": 1 }), "use true or false"),
        ] {
            let (status, reply) = ask(&more);
            assert_eq!((status, &reply["code"]), (400, &value!("bad_input")), "{more}: {reply:#}");
            assert!(reply["detail"].as_str().unwrap().contains(why), "{more}: {reply:#}");
        }
        let command = run(&["search", "--connect", server.address(), arg(&shop.data.queries)]);
        match ids {
            Ids::Numbers => assert!(command.status.success(), "{}", stderr(&command)),
            _ => assert!(stderr(&command).contains("reads numbers alone"), "{}", stderr(&command)),
        }
        let (status, reply) = ask(&value!({ "without": [1] }));
        assert_eq!(status, if matches!(ids, Ids::Numbers) { 200 } else { 400 }, "{reply:#}");
    }
}

#[test]
fn a_server_of_vectors_alone_and_one_without_room_say_so() {
    let shop = Shop::new(Ids::Strings);
    let (index, plain) = (shop.build("i", "flat", &[]), shop.data.build("plain", &[]));
    let server = Running::serve(&plain, &[]);
    for more in [value!({ "where": "price < 12" }), value!({ "with_payload": true })] {
        let body = request(&shop, 1, &more).to_string();
        let (status, reply) = post_as(server.address(), "/v1/search", ("application/json", body.as_bytes()));
        assert!(status == 400 && reply["error"].as_str().unwrap().contains("no payloads"), "{reply:#}");
    }
    let small = Running::serve(&index, &["--http-memory", "64KiB"]);
    let body = request(&shop, 1, &value!({ "k": 600, "with_payload": true })).to_string();
    let (status, reply) = post_as(small.address(), "/v1/search", ("application/json", body.as_bytes()));
    assert_eq!((status, &reply["code"]), (400, &value!("reply_too_long")), "{reply:#}");
    let path = file_of(&index, "payloads.bin");
    std::fs::remove_file(&path).unwrap();
    let error = refused(&["serve", "--index", arg(&index), "--http", "127.0.0.1:0", "--until-eof"], 1);
    assert!(error.contains("payloads.bin"), "{error}");
}

#[test]
fn an_id_that_two_rows_have_is_refused_and_nothing_stays() {
    let shop = Shop::new(Ids::Numbers);
    let lines = std::fs::read_to_string(&shop.points).unwrap();
    let first = lines.lines().next().unwrap().to_string();
    std::fs::write(&shop.points, lines + &first + "\n").unwrap();
    let out = shop.data.path("out");
    let error = refused(&shop.args(&out, "flat", &[]), 2);
    assert!(error.contains("rows 0 and 900") && error.contains("have the same id 7000000000"), "{error}");
    assert!(!out.exists());
}

#[test]
fn deleted_rows_do_not_match_and_come_back() {
    let shop = Shop::new(Ids::Numbers);
    let index = shop.build("i", "hybrid-ivf", &[]);
    let gone: Vec<usize> = (0..ROWS).filter(|row| row % 2 == 0).collect();
    let ids: String = gone.iter().map(|row| format!("{}\n", Ids::Numbers.shown(*row))).collect();
    let file = shop.data.path("gone.txt");
    std::fs::write(&file, ids).unwrap();
    assert_eq!(json(&["delete", arg(&index), arg(&file)])["changed"], gone.len());
    assert_eq!(json(&["info", arg(&index)])["format_version"], 6);
    let args = shop.search(&index, &["--where", "price < 12"]);
    let cheap = |row: usize| row % 10 != 9 && price(row) < 12.0;
    shop.check(&json(&args), Ids::Numbers, |row| row % 2 == 1 && cheap(row));
    json(&["delete", arg(&index), "--undo"]);
    shop.check(&json(&args), Ids::Numbers, cheap);
    assert_eq!(json(&["verify", arg(&index)])["violations_found"], 0);
}

#[test]
fn recall_of_a_filter_is_measured_against_ground_truth_of_the_rows_that_match() {
    let shop = Shop::new(Ids::RowNumbers);
    let index = shop.build("i", "disk-graph", &["--set", "brand=keyword"]);
    let rows: String =
        (0..ROWS).filter(|row| row % 10 != 9 && row % 3 == 0).map(|row| format!("{row}\n")).collect();
    let (only, truth) = (shop.data.path("only.txt"), shop.data.path("truth.ibin"));
    std::fs::write(&only, rows).unwrap();
    let base = ["groundtruth", arg(&shop.data.base), arg(&shop.data.queries), "-k", "5", "-o", arg(&truth)];
    json(&[&base[..], &["--only", arg(&only)]].concat());
    let more = ["--where", "brand = 'acme'", "--groundtruth", arg(&truth)];
    assert_eq!(json(&shop.search(&index, &more))["runs"][0]["recall"], 1.0);
    let other = ["--where", "brand = 'globex'", "--groundtruth", arg(&truth)];
    let error = refused(&shop.search(&index, &other), 2);
    assert!(error.contains("does not match the filter"), "{error}");
}

#[test]
fn a_killed_build_leaves_nothing_that_opens_and_resumes() {
    let shop = Shop::new(Ids::Strings);
    let (whole, index) = (shop.build("whole", "disk-graph", &[]), shop.data.path("killed"));
    let args = shop.args(&index, "disk-graph", &[]);
    let resume = [&args[..], &["--resume"]].concat();
    let mut noise = Noise(std::process::id().into());
    let seed = noise.0;
    for _ in 0..3 {
        let mut child = command(&args).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        // Killed at one of its stages, or before the first.
        let stage = ["scan", "layout", "calibrate", "points"][noise.bits() as usize % 4];
        let state = index.join("partial/state.json");
        while child.try_wait().unwrap().is_none()
            && !std::fs::read_to_string(&state).is_ok_and(|text| text.contains(&format!("\"{stage}\"")))
        {
            std::thread::sleep(Duration::from_millis(1));
        }
        let _ = child.kill();
        child.wait().unwrap();
        if !index.join("manifest-1.json").exists() {
            refused(&shop.search(&index, &[]), 2);
            json(&resume);
        }
        assert_same_files(&whole, &index);
        assert!(!index.join("partial").exists(), "seed {seed}");
        std::fs::remove_dir_all(&index).unwrap();
    }
    // Other payloads with the same vectors are another build.
    let mut child = command(&args).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    while child.try_wait().unwrap().is_none() && !index.join("partial/state.json").exists() {
        std::thread::sleep(Duration::from_millis(1));
    }
    let _ = child.kill();
    child.wait().unwrap();
    if index.join("partial/state.json").exists() {
        let lines = std::fs::read_to_string(&shop.points).unwrap();
        std::fs::write(&shop.points, lines.replace("acme", "apex")).unwrap();
        let error = refused(&resume, 2);
        assert!(error.contains("another payload"), "{error}");
    }
}

#[test]
fn a_search_without_room_for_ids_and_payloads_is_refused() {
    let shop = Shop::new(Ids::Strings);
    let index = shop.build("i", "flat", &[]);
    let error = refused(&shop.search(&index, &["--where", "price < 12", "--ram-budget", "1MiB"]), 2);
    assert!(error.contains("a RAM budget of 1.0 MiB is too small"), "{error}");
    let error = refused(&shop.args(&shop.data.path("j"), "flat", &["--ram-budget", "20KiB"]), 2);
    assert!(error.contains("RAM budget") || error.contains("budget"), "{error}");
}
