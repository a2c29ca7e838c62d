//! `build --from`: builds an index from the vectors and ids of another one, which may be of an older format.
#![allow(missing_docs)]

mod common;

use std::path::{Path, PathBuf};

use common::*;
use serde_json::Value;

/// Results of a query, and the effort that finds all of them in a small index.
const K: &str = "5";
const EFFORT: &str = "300";

/// A copy of an index that an older program wrote.
fn old(data: &TempDir, format: &str, name: &str) -> PathBuf {
    let recorded = recorded(format).join(name);
    let copy = data.path().join(name);
    std::fs::create_dir(&copy).unwrap();
    for (file, bytes) in files(&recorded) {
        std::fs::write(copy.join(file), bytes).unwrap();
    }
    copy
}

fn recorded(format: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../cli/tests/data").join(format)
}

fn info(index: &Path) -> Value {
    json(&["info", arg(index)])
}

/// Options of a build of this kind that calibrates nothing and measures no disk.
fn quick(kind: &str) -> Vec<&str> {
    let lists: &[&str] = if kind == "hybrid-ivf" { &["--profile", profile()] } else { &[] };
    [&calibrated(kind, "0")[..], lists].concat()
}

/// Ids and distances of a search that leaves nothing out.
fn answers(index: &Path, queries: &Path) -> (Vec<u32>, Vec<f32>) {
    let out = index.with_extension("ibin");
    let is_graph = ["disk-graph", "flat"].contains(&info(index)["kind"].as_str().unwrap());
    let effort = if is_graph { "--search-list" } else { "--nprobe" };
    json(&["search", arg(index), arg(queries), "-k", K, effort, EFFORT, "-o", arg(&out), "--force"]);
    let (_, ids, distances) = read_answers(&out);
    (ids, distances)
}

#[test]
fn old_indexes_get_the_codes_of_today_and_keep_their_answers() {
    for (format, name) in [
        ("format-3", "disk-graph"),
        ("format-3", "disk-graph-codes-on-disk"),
        ("format-3", "hybrid-ivf"),
        ("format-3", "hybrid-ivf-graphs"),
        ("format-3", "flat"),
        ("format-4", "gpu-ivf"),
    ] {
        let data = folder();
        let old = old(&data, format, name);
        let before = info(&old);
        let kind = before["kind"].as_str().unwrap();
        let [exact, new] = ["exact", "new"].map(|name| data.path().join(name));
        json(&["build", "--from", arg(&old), "-o", arg(&exact), "--kind", "flat"]);
        json(&[&["build", "--from", arg(&old), "-o", arg(&new)][..], &quick(kind)].concat());
        let after = info(&new);
        for key in ["kind", "metric", "dtype", "dim", "rows"] {
            assert_eq!(before[key], after[key], "{key} of {name}");
        }
        let coded = kind != "flat";
        assert_eq!(after["build"]["code_kind"], if coded { "bits".into() } else { Value::Null }, "{name}");
        let suffix = if before["dtype"] == "u8" { "u8bin" } else { "fbin" };
        let queries = recorded(format).join("query").with_extension(suffix);
        assert_eq!(answers(&new, &queries), answers(&exact, &queries), "{name}");
        assert!(run(&["verify", arg(&new)]).status.success(), "{name}");
        let left = std::fs::read_dir(&new)
            .unwrap()
            .filter(|entry| entry.as_ref().unwrap().file_name().to_string_lossy().starts_with('.'));
        assert_eq!(left.count(), 0, "{name}");
    }
}

#[test]
fn an_index_of_any_kind_is_read_in_the_order_of_its_ids() {
    let data = Data::new(900, 16, "f16");
    for kind in ["disk-graph", "hybrid-ivf", "grid-ivf", "gpu-ivf", "remote-hnsw", "flat"] {
        let [source, direct, again] =
            ["source", "direct", "again"].map(|name| data.path(&format!("{kind}-{name}")));
        json(&[&["build", arg(&data.base), "-o", arg(&source), "--kind", kind][..], &quick(kind)].concat());
        // Without ids of the user, rows are in the order of the file.
        json(&[
            "build",
            arg(&data.base),
            "-o",
            arg(&direct),
            "--kind",
            "disk-graph",
            "--calibration-queries",
            "0",
        ]);
        json(&[
            "build",
            "--from",
            arg(&source),
            "-o",
            arg(&again),
            "--kind",
            "disk-graph",
            "--calibration-queries",
            "0",
        ]);
        assert_same_files(&direct, &again);
    }
    let ids: Vec<u64> = (0..900u64).map(|row| (1 << 40) + (row * 7919) % 900).collect();
    let file = data.path("ids.u64bin");
    let header = [900u32.to_le_bytes(), 1u32.to_le_bytes()].concat();
    std::fs::write(&file, [header, ids.iter().flat_map(|id| id.to_le_bytes()).collect()].concat()).unwrap();
    let [named, again] = ["named", "named-again"].map(|name| data.path(name));
    json(&[
        "build",
        arg(&data.base),
        "-o",
        arg(&named),
        "--kind",
        "flat",
        "--metric",
        "ip",
        "--ids",
        arg(&file),
    ]);
    json(&["build", "--from", arg(&named), "-o", arg(&again)]);
    assert_eq!(info(&again)["metric"], "ip");
    let found = |index: &Path| {
        let out = data.path("out.i64bin");
        json(&["search", arg(index), arg(&data.queries), "-k", K, "-o", arg(&out), "--force"]);
        std::fs::read(&out).unwrap()
    };
    assert_eq!(found(&named), found(&again));
}

#[test]
fn what_cannot_be_read_is_refused_and_leaves_nothing() {
    let data = Data::new(500, 16, "u8");
    let index = data.build("index", &["--calibration-queries", "0"]);
    let none = data.path("none");
    let says = |args: &[&str], said: &str| {
        let error = refused(&[&["build"], args].concat(), 2);
        assert!(error.contains(said), "{error}");
        assert!(!none.exists(), "{args:?}");
    };
    let to = ["-o", arg(&none)];
    says(&[&["--from", arg(&data.base)][..], &to].concat(), arg(&data.base));
    says(&[&["--from", arg(&data.path("missing"))][..], &to].concat(), "missing");
    says(&[&["--from", arg(&index), arg(&data.base)][..], &to].concat(), "cannot be used with");
    says(&to, "BASE");
    says(
        &[&["--from", arg(&index), "--ids", "ids.npy"][..], &to].concat(),
        "--from keeps the ids of the index",
    );
    let before = files(&index);
    for same in [index.clone(), index.join("../index")] {
        let args = ["--from", arg(&index), "-o", arg(&same), "--force"];
        says(&args, "name another folder for the new index");
    }
    assert_eq!(files(&index), before);
    // A budget that the index does not open in, and one byte of a block.
    says(&[&["--from", arg(&index), "--ram-budget", "1MiB"][..], &to].concat(), "too small");
    let blocks = file_of(&index, "blocks.bin");
    let mut bytes = std::fs::read(&blocks).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&blocks, bytes).unwrap();
    says(&[&["--from", arg(&index)][..], &to].concat(), "blocks.bin");
}
