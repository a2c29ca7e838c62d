//! Counters of fixed searches over a fixed build: they depend on no machine. A change of the algorithm changes them, and then
//! `STRATANN_BLESS=1 cargo test -p stratann --test golden` writes them anew, for the difference to be reviewed.
#![allow(missing_docs)]

mod common;
use common::*;
use serde_json::{Map, Value, json as value};

fn counters(run: &Value) -> Value {
    value!({ "per_query": run["per_query"], "recall": run["recall"], "search_list": run["params"]["search_list"] })
}

#[test]
fn counters_are_those_of_the_golden_file() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/counters.json");
    let mut all = Map::new();
    for (dtype, metric) in [("f32", "l2"), ("u8", "l2"), ("f16", "cosine"), ("i8", "ip")] {
        let data = Data::new(2000, 24, dtype);
        let index = data.build("graph", &["--metric", metric]);
        let truth = data.truth(metric);
        let common = ["search", arg(&index), arg(&data.queries), "--groundtruth", arg(&truth)];
        for (name, more) in [
            ("list 20 and 60, width 1", &["--search-list", "20,60", "--width", "1"][..]),
            ("list 40, width 4", &["--search-list", "40", "--width", "4"]),
            ("recall 0.9, width 1", &["--recall", "0.9", "--width", "1"]),
            ("list 40, medoid", &["--search-list", "40", "--width", "1", "--no-head"]),
            ("list 40, single nodes", &["--search-list", "40", "--width", "1", "--no-whole-blocks"]),
        ] {
            let found = json(&[&common[..], more].concat());
            let runs: Vec<Value> = found["runs"].as_array().unwrap().iter().map(counters).collect();
            all.insert(format!("{dtype} {metric}: {name}"), runs.into());
        }
    }
    if std::env::var_os("STRATANN_BLESS").is_some() {
        std::fs::write(path, format!("{:#}\n", Value::Object(all))).unwrap();
        return;
    }
    let golden: Map<String, Value> = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    assert_eq!(golden.keys().collect::<Vec<_>>(), all.keys().collect::<Vec<_>>());
    for (name, runs) in &golden {
        assert_eq!(&all[name], runs, "{name}");
    }
}
