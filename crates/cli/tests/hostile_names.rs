//! A store whose manifests name builds and files by paths writes nothing outside of the folder for data.
#![allow(missing_docs)]

mod common;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use common::*;
use serde_json::Value;
use stratann_core::hash::checksum;

const KINDS: [&str; 6] = ["flat", "disk-graph", "hybrid-ivf", "grid-ivf", "gpu-ivf", "remote-hnsw"];

/// The manifest of a store with a change, and the checksum that belongs to it.
fn forged(good: &str, change: impl FnOnce(&mut Value)) -> String {
    let mut document: Value = serde_json::from_str(good).unwrap();
    document.as_object_mut().unwrap().remove("checksum");
    change(&mut document);
    let sum = checksum(document.to_string().as_bytes());
    document["checksum"] = format!("{sum:016x}").into();
    document.to_string() + "\n"
}

/// Gives the first data file another name.
fn rename(document: &mut Value, to: &str) {
    let files = document["files"].as_object_mut().unwrap();
    let first = files.keys().next().unwrap().clone();
    let entry = files.remove(&first).unwrap();
    files.insert(to.into(), entry);
}

/// All files and folders below a folder.
fn below(folder: &Path) -> BTreeMap<PathBuf, u64> {
    let mut all = BTreeMap::new();
    for entry in std::fs::read_dir(folder).unwrap().map(Result::unwrap) {
        let facts = entry.metadata().unwrap();
        if facts.is_dir() {
            all.extend(below(&entry.path()));
        }
        all.insert(entry.path(), if facts.is_dir() { 0 } else { facts.len() });
    }
    all
}

/// Runs both programs that fetch from the store. Each must fail with one line that names the manifest.
fn both_refuse(data: &Data, store: &Path, config: &Path, key: &Path) {
    let nobody = nobody();
    let load = ["memory-node", "load", arg(store), "--nodes", &nobody, "--key-file", arg(key)];
    let here = data.path("deep/er/load");
    for args in [
        &["serve", "--config", arg(config), "--until-eof"][..],
        &[&load[..], &["--data", arg(&here)]].concat(),
    ] {
        let output = command(&[args, &["--quiet"]].concat()).stdin(Stdio::null()).output().unwrap();
        let said = stderr(&output);
        assert!(!output.status.success() && said.contains("manifest-1.json is damaged"), "{args:?}: {said}");
    }
}

#[test]
fn names_in_a_manifest_are_no_paths() {
    let data = Data::new(400, 16, "f32");
    let (config, key) = (data.path("server.toml"), data.path("key"));
    std::fs::write(&key, "0123456789abcdef".repeat(4) + "\n").unwrap();
    for kind in KINDS {
        let (index, store) = (data.path(kind), data.path(&format!("store-{kind}")));
        let build = ["build", arg(&data.base), "-o", arg(&index), "--kind", kind];
        json(&[&build[..], &calibrated(kind, "0")].concat());
        json(&["cluster", "publish", arg(&index), arg(&store)]);
        let text = format!("store = {:?}\ndata = \"deep/er/serve\"\nhttp = \"127.0.0.1:0\"\n", arg(&store));
        std::fs::write(&config, text).unwrap();
        let manifest = store.join("manifest-1.json");
        let good = std::fs::read_to_string(&manifest).unwrap();
        let outside = data.path("outside");
        let (up, absolute) = ("../../../outside", arg(&outside));
        let before = below(data.folder.path());
        let forge = |change: &dyn Fn(&mut Value)| {
            std::fs::write(&manifest, forged(&good, change)).unwrap();
            both_refuse(&data, &store, &config, &key);
            std::fs::write(&manifest, &good).unwrap();
            assert_eq!(below(data.folder.path()), before);
        };
        for id in [up, absolute, "..", "", "0123456789abcdef"] {
            forge(&|document| document["build_id"] = id.into());
        }
        for end in ["-map.bin", "/v1-map.bin"] {
            forge(&|document| rename(document, &format!("{up}{end}")));
            forge(&|document| rename(document, &format!("{absolute}{end}")));
            forge(&|document| rename(document, &format!("v1-{up}{end}")));
        }
        forge(&|document| document["rows"] = 399.into());
    }
}
