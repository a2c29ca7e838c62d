//! A manifest with a valid checksum and any number in any place is refused, or opened without harm.

mod common;

use std::path::Path;
use stratann_params::choices::CodePlace;

use common::{Set, clustered, graph_options, list_options, quick};
use serde_json::{Value, json};
use stratann_core::hash::checksum;
use stratann_engine::build::{BuildOptions, IndexKind, KindOptions, build};
use stratann_engine::index::{Index, OpenOptions};
use stratann_engine::manifest::Manifest;
use stratann_engine::search::{Effort, SearchOptions};
use stratann_engine::spread::{Method, PartitionOptions, Shard, partition};
use stratann_engine::{DType, Metric, verify};
use stratann_storage::Quiet;
use stratann_storage::durable::hex;
use tempfile::TempDir;

fn built(options: &BuildOptions) -> TempDir {
    let set = Set::new(DType::F32, 8, &clustered(300, 8, 6, 1));
    let dir = tempfile::tempdir().unwrap();
    let mut options = BuildOptions { calibration_queries: 20, ..options.clone() };
    if let KindOptions::DiskGraph(own) = &mut options.kind {
        (own.degree, own.build_list) = (12, 24);
    }
    build(&set.reader(), dir.path(), &options, &Quiet).unwrap();
    dir
}

/// The manifest of a folder, with two of its measured points.
fn document(folder: &Path) -> Value {
    let (_, mut manifest) = Manifest::read(folder).unwrap();
    manifest.curves.truncate(1);
    manifest.curves.iter_mut().for_each(|curve| curve.points.truncate(2));
    serde_json::from_str(&manifest.to_text().unwrap()).unwrap()
}

/// With the id of its content, where it can be read, and its checksum.
fn sealed(document: &Value) -> String {
    let mut document = document.clone();
    document.as_object_mut().unwrap().remove("checksum");
    if let Ok(manifest) = serde_json::from_value::<Manifest>(document.clone()) {
        document["build_id"] = manifest.content_id().to_string().into();
    }
    document["checksum"] = hex(checksum(document.to_string().as_bytes())).into();
    document.to_string() + "\n"
}

/// Pointers to all numbers.
fn numbers(value: &Value, pointer: String, out: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            fields.iter().for_each(|(name, value)| numbers(value, format!("{pointer}/{name}"), out));
        }
        Value::Array(items) => {
            items.iter().enumerate().for_each(|(i, value)| numbers(value, format!("{pointer}/{i}"), out));
        }
        Value::Number(_) => out.push(pointer),
        _ => {}
    }
}

/// Does with the folder all that its manifest decides. Returns whether it was opened.
fn is_opened(folder: &Path) -> bool {
    let Ok((_, manifest)) = Manifest::read(folder) else { return false };
    let text = manifest.to_text().unwrap();
    assert_eq!(Manifest::from_text(&text, folder).unwrap(), manifest, "{text}");
    let _ = (manifest.content_id(), manifest.planned_account(1 << 20).check(Some(1 << 30), "open it"));
    verify::verify(folder, &Quiet).unwrap();
    if manifest.spread.is_some() {
        return Shard::open(folder, 0, OpenOptions::default()).is_ok();
    }
    let options = OpenOptions { ram_budget: Some(1 << 30), ..OpenOptions::default() };
    let Ok(index) = Index::open(folder, options) else { return false };
    let _ = index.account().total();
    for recall in [0.5, 1.0] {
        let _ = index.params(&SearchOptions { effort: Effort::Recall(recall), ..SearchOptions::default() });
    }
    true
}

fn try_all_numbers(folder: &Path) {
    let document = document(folder);
    let mut places = Vec::new();
    numbers(&document, String::new(), &mut places);
    let mut opened = 0;
    for place in &places {
        let values = [json!(u64::MAX), json!(1u64 << 62), json!(u32::MAX), json!(0), json!(-1), json!(1e300)];
        for value in values {
            let mut changed = document.clone();
            *changed.pointer_mut(place).unwrap() = value.clone();
            std::fs::write(folder.join("manifest-1.json"), sealed(&changed)).unwrap();
            eprintln!("{place} = {value}");
            opened += usize::from(is_opened(folder));
        }
    }
    std::fs::write(folder.join("manifest-1.json"), sealed(&document)).unwrap();
    assert!(is_opened(folder) && places.len() > 8, "{places:?}");
    assert!(opened < places.len() * 4, "{opened} of {}", places.len() * 6);
}

#[test]
fn numbers_of_a_flat_and_a_graph() {
    try_all_numbers(built(&quick(IndexKind::Flat, Metric::Cosine)).path());
    let graph = quick(IndexKind::DiskGraph, Metric::L2);
    try_all_numbers(built(&graph).path());
    try_all_numbers(built(&graph_options(graph, |own| own.codes = CodePlace::Disk)).path());
}

#[test]
fn numbers_of_lists() {
    let options = list_options(quick(IndexKind::HybridIvf, Metric::L2), |own| own.clusters = Some(5));
    try_all_numbers(built(&options).path());
}

#[test]
fn numbers_of_a_partitioned_index() {
    let whole = built(&quick(IndexKind::DiskGraph, Metric::L2));
    let dir = tempfile::tempdir().unwrap();
    let options =
        PartitionOptions { method: Method::Random, replicas: 2, threads: 1, ..PartitionOptions::new(3) };
    partition(whole.path(), dir.path(), &options, &Quiet).unwrap();
    try_all_numbers(dir.path());
}

#[test]
fn a_manifest_that_lost_its_end_is_refused() {
    let dir = built(&quick(IndexKind::Flat, Metric::L2));
    let path = dir.path().join("manifest-1.json");
    let text = std::fs::read_to_string(&path).unwrap();
    for kept in [text.len() - 1, text.len() - 2, text.len() / 2, 1, 0] {
        std::fs::write(&path, &text[..kept]).unwrap();
        let error = Manifest::read(dir.path()).unwrap_err();
        assert!(error.message.contains("is damaged") && error.message.contains("restore it"), "{error}");
        assert!(verify::verify(dir.path(), &Quiet).unwrap().violations_found > 0);
    }
    std::fs::write(&path, text).unwrap();
    assert!(is_opened(dir.path()));
}
