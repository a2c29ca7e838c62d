//! Indexes that earlier programs wrote still open and give the same answers, and an index of a newer format is refused.
//! A change of the algorithm may change counters, never ids or distances; `STRATANN_BLESS=1` writes the counters of the
//! searches on one machine again, for the difference to be reviewed.
#![allow(missing_docs)]

mod common;

use std::fs;
use std::path::{Path, PathBuf};

use common::*;
use serde_json::Value;

/// Results of each recorded query.
const K: usize = 5;

/// Folders of recorded indexes, each with those of one format version.
const FORMATS: [&str; 2] = ["format-3", "format-4"];

/// A copy of one recorded index, and the folder with the queries and answers.
struct Old {
    data: PathBuf,
    copy: TempDir,
    format: String,
    name: String,
}

impl Old {
    fn new(format: &str, name: &str) -> Old {
        let data = place(format);
        let old = Old { data, copy: folder(), format: format.into(), name: name.into() };
        fs::create_dir(old.index()).unwrap();
        for (file, bytes) in files(&old.data.join(name)) {
            fs::write(old.index().join(file), bytes).unwrap();
        }
        old
    }

    fn index(&self) -> PathBuf {
        self.copy.path().join(&self.name)
    }

    /// Searches as recorded and compares ids and distances; returns the counters per query.
    fn demand_same(&self, run: &Value, place: &[&str]) -> Value {
        let name = format!("{} {}", self.name, run["options"]);
        let queries = self.data.join(run["queries"].as_str().unwrap());
        let out = self.copy.path().join("out");
        let options: Vec<&str> =
            run["options"].as_array().unwrap().iter().map(|o| o.as_str().unwrap()).collect();
        let k = K.to_string();
        let asked = [arg(&queries), "-k", &k, "-o", arg(&out), "--force"];
        // Servers have their own option for it.
        let counted = if place[0] == "--connect" { &[][..] } else { &COUNTED[..] };
        let found = json(&[&["search"], place, counted, &asked[..], &options[..]].concat());
        let (k, ids, distances) = read_answers(&out);
        assert_eq!(k, K);
        let recorded = |key: &str| {
            let rows = run[key].as_array().unwrap().iter();
            rows.flat_map(|row| row.as_array().unwrap().clone()).collect::<Vec<Value>>()
        };
        let recorded_ids: Vec<u32> =
            recorded("ids").iter().map(|id| id.as_u64().unwrap().try_into().unwrap()).collect();
        assert_eq!(ids, recorded_ids, "ids of {name}");
        let recorded_distances: Vec<f32> =
            recorded("distances").iter().map(|d| d.as_f64().unwrap() as f32).collect();
        assert_eq!(distances, recorded_distances, "distances of {name}");
        found["runs"][0]["per_query"].clone()
    }
}

fn place(format: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../cli/tests/data").join(format)
}

fn recorded(format: &str, file: &str) -> Value {
    serde_json::from_str(&fs::read_to_string(place(format).join(file)).unwrap()).unwrap()
}

fn answers(format: &str) -> Value {
    recorded(format, "answers.json")
}

/// The name of a search in `counters.json`: the index and the options.
fn search_name(run: &Value) -> String {
    let options = run["options"].as_array().unwrap().iter().map(|o| o.as_str().unwrap());
    [run["index"].as_str().unwrap()].into_iter().chain(options).collect::<Vec<_>>().join(" ")
}

/// Of `counters`, those that are recorded for a search. They must be equal, unless they are to be recorded again.
fn compare_counters(recorded: &mut Value, name: &str, counters: &Value) {
    let is_blessed = std::env::var_os("STRATANN_BLESS").is_some();
    let expected = recorded[name].as_object_mut().unwrap_or_else(|| panic!("no counters of {name}"));
    assert!(!expected.is_empty());
    for (key, count) in expected {
        if is_blessed {
            *count = counters[key].clone();
        }
        assert_eq!(&counters[key], count, "{key} of {name}");
    }
}

/// The recorded searches of one index, at least one; those with baselines are the laboratory's, which runs all of them.
fn runs(format: &str, name: &str) -> Vec<Value> {
    let answers = answers(format);
    let runs = answers["runs"].as_array().unwrap().iter().filter(|run| run["index"] == name);
    let runs: Vec<Value> = runs.cloned().collect();
    assert!(!runs.is_empty(), "no searches of {name} are recorded");
    let is_of_product =
        |run: &Value| run["options"].as_array().unwrap().iter().all(|option| option != "--baseline");
    runs.into_iter().filter(|run| LAB || is_of_product(run)).collect()
}

/// Names of the recorded indexes of a format version.
fn names(format: &str) -> Vec<String> {
    answers(format)["info"].as_object().unwrap().keys().cloned().collect()
}

/// All recorded indexes.
fn all() -> Vec<Old> {
    let old = |format| names(format).into_iter().map(move |name| Old::new(format, &name));
    FORMATS.into_iter().flat_map(old).collect()
}

#[test]
fn indexes_on_one_machine_give_the_same_answers() {
    for (format, count) in FORMATS.into_iter().zip([6, 2]) {
        let names = names(format);
        assert!(names.len() == count, "{names:?}");
        let mut expected = recorded(format, "counters.json");
        for name in names.iter().filter(|name| *name != "spread") {
            for run in runs(format, name) {
                // A copy for each: a search writes what it learnt.
                let old = Old::new(format, name);
                let counters = old.demand_same(&run, &[arg(&old.index())]);
                compare_counters(&mut expected, &search_name(&run), &counters);
            }
        }
        if std::env::var_os("STRATANN_BLESS").is_some() {
            fs::write(place(format).join("counters.json"), format!("{expected:#}\n")).unwrap();
        }
    }
}

#[test]
fn a_spread_index_gives_the_same_answers() {
    let old = Old::new("format-3", "spread");
    let up = Running::start(&["cluster", "up", arg(&old.index()), "--threads", "1"]);
    let servers = addresses(&up).join(",");
    let mut expected = recorded("format-3", "counters.json");
    for run in runs("format-3", "spread") {
        let counters = old.demand_same(&run, &["--connect", &servers]);
        compare_counters(&mut expected, &search_name(&run), &counters);
    }
}

#[test]
fn info_and_verify_know_them() {
    for old in all() {
        let facts = answers(&old.format)["info"][&old.name].clone();
        let info = json(&["info", arg(&old.index())]);
        for (key, fact) in facts.as_object().unwrap() {
            assert_eq!(&info[key], fact, "{key} of {}", old.name);
        }
        let verified = run(&["verify", arg(&old.index())]);
        assert!(verified.status.success(), "{}: {}", old.name, stderr(&verified));
    }
    let learnt = &json(&["info", arg(&Old::new("format-3", "hybrid-ivf").index())])["learnt"];
    assert_eq!((&learnt["queries"], &learnt["epochs"]), (&12.into(), &4.into()), "{learnt}");
}

/// Earlier programs rotated vectors that lie in groups far from each other, and lost what tells neighbours apart.
#[test]
fn a_grid_that_lost_the_digits_of_its_vectors_must_be_built_again() {
    let old = Old::new("format-4", "grid-ivf-islands");
    let index = old.index();
    let out = old.copy.path().join("out");
    let queries = old.copy.path().join("query.fbin");
    fs::write(&queries, [&[1, 0, 0, 0, 24, 0, 0, 0][..], &[0; 4 * 24]].concat()).unwrap();
    for asked in
        [&["search", arg(&index), arg(&queries), "-k", "5", "-o", arg(&out)][..], &["verify", arg(&index)]]
    {
        let refused = run(asked);
        assert_eq!(refused.status.code(), Some(1), "{asked:?}: {}", stderr(&refused));
        let said = format!("{}{}", stderr(&refused), String::from_utf8_lossy(&refused.stdout));
        assert!(said.contains("build the index again"), "{asked:?}: {said}");
    }
    assert!(!out.exists());
}

#[test]
fn damage_is_found_in_them() {
    for old in all() {
        let blocks =
            files(&old.index()).into_keys().find(|f| f.contains("blocks") || f.contains("lists.bin"));
        let path = old.index().join(blocks.unwrap());
        let mut bytes = fs::read(&path).unwrap();
        bytes[100] ^= 1;
        fs::write(&path, bytes).unwrap();
        let verified = run(&["verify", arg(&old.index())]);
        assert_eq!(verified.status.code(), Some(1), "{}: {}", old.name, stderr(&verified));
    }
}

#[test]
fn a_newer_format_is_refused_in_one_line() {
    for old in all() {
        let index = old.index();
        let manifest = index.join("manifest-1.json");
        let mut document: Value = serde_json::from_str(&fs::read_to_string(&manifest).unwrap()).unwrap();
        document["format_version"] = 99.into();
        fs::write(&manifest, document.to_string()).unwrap();
        let queries = old.data.join("query.u8bin");
        let (index, out) = (arg(&index), old.copy.path().join("out"));
        for asked in [
            &["info", index][..],
            &["verify", index],
            &["search", index, arg(&queries)],
            &["explain", index, arg(&queries), "--query", "0"],
            &["tune", index],
            &["replan", index, "--search-budget", "64MiB"],
            &["simulate", index, arg(&queries), "--servers", "1"],
            &["serve", "--index", index, "--http", "127.0.0.1:0"],
            &["cluster", "partition", index, "-o", arg(&out), "--servers", "2"],
        ] {
            let line = refused(asked, 2);
            assert!(line.contains("format version 99") && line.contains("use a newer stratann"), "{line}");
        }
    }
}
