//! Reports that a reader of an older version reads: every key that was ever printed is still there. The list only
//! grows: `STRATANN_BLESS=1 cargo test -p stratann --locked --test older_readers` adds keys, and removes none.
#![allow(missing_docs)]

mod common;
use std::collections::BTreeSet;
use std::path::Path;

use common::*;
use serde_json::Value;
use stratann_params::IndexKind;

/// The places of all values of a document, with `[]` for the elements of a list.
fn places(value: &Value, at: &str, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => {
            fields.iter().for_each(|(name, value)| places(value, &format!("{at}.{name}"), found))
        }
        Value::Array(all) => all.iter().for_each(|value| places(value, &format!("{at}[]"), found)),
        _ => _ = found.insert(at.to_string()),
    }
}

#[test]
fn keys_of_older_reports_are_in_those_of_today() {
    let data = Data::new(1500, 16, "f32");
    let truth = data.truth("l2");
    let mut found = BTreeSet::new();
    for kind in IndexKind::ALL {
        let (name, folder) = (kind.name(), data.path(kind.name()));
        let plain = ["build", arg(&data.base), "-o", arg(&folder), "--kind", name];
        let effort = match kind {
            IndexKind::DiskGraph | IndexKind::Flat => "--search-list",
            _ => "--nprobe",
        };
        let search = ["search", arg(&folder), arg(&data.queries), effort, "8", "--groundtruth", arg(&truth)];
        for (command, report) in
            [("build", json(&plain)), ("search", json(&search)), ("info", json(&["info", arg(&folder)]))]
        {
            places(&report, &format!("{name} {command} "), &mut found);
        }
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/report_keys.txt");
    let recorded = std::fs::read_to_string(&path).unwrap_or_default();
    let recorded: BTreeSet<String> = recorded.lines().map(String::from).collect();
    if std::env::var_os("STRATANN_BLESS").is_some() {
        let all: Vec<&str> = recorded.union(&found).map(String::as_str).collect();
        std::fs::write(&path, all.join("\n") + "\n").unwrap();
        return;
    }
    let lost: Vec<&String> = recorded.difference(&found).collect();
    assert!(recorded.len() > 500, "only {} keys are recorded", recorded.len());
    assert!(lost.is_empty(), "keys that an older reader expects are gone: {lost:?}");
}
