//! Flipped bits and missing files: `verify` names them, a search never answers from them.
#![allow(missing_docs)]

mod common;
use std::path::Path;

use common::*;

fn flip(path: &Path, at: usize) {
    let mut bytes = std::fs::read(path).unwrap();
    bytes[at] ^= 0x10;
    std::fs::write(path, bytes).unwrap();
}

/// Runs `verify`, which must find something; gives its document.
fn found(index: &Path) -> serde_json::Value {
    let output = run(&["verify", arg(index), "--json"]);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn verify_names_every_flipped_bit() {
    let data = Data::new(1500, 16, "f32");
    let index = data.build("graph", &[]);
    assert!(run(&["verify", arg(&index)]).status.success());
    let mut noise = Noise(5);
    for role in ["blocks.bin", "codes.bin", "codebook.bin", "map.bin", "head.bin", "manifest-1.json"] {
        let path = file_of(&index, role);
        let good = std::fs::read(&path).unwrap();
        for _ in 0..4 {
            let at = noise.bits() as usize % good.len();
            flip(&path, at);
            let report = found(&index);
            let named = report["violations"]
                .as_array()
                .unwrap()
                .iter()
                .find(|f| f["file"] == path.file_name().unwrap().to_str().unwrap());
            assert!(named.is_some(), "{role} at {at}: {report:#}");
            if role == "blocks.bin" {
                let block = report["violations"].as_array().unwrap().iter().find(|f| f["block"] == at / 4096);
                assert_eq!(block.unwrap()["offset"], at / 4096 * 4096, "{report:#}");
            } else {
                let code = if role == "manifest-1.json" { None } else { Some(1) };
                let output = run(&["search", arg(&index), arg(&data.queries), "--search-list", "20"]);
                assert!(
                    !output.status.success() && code.is_none_or(|c| output.status.code() == Some(c)),
                    "{role} at {at}"
                );
            }
            std::fs::write(&path, &good).unwrap();
        }
        // Two bytes: the last one of a manifest is a line end, which nobody misses.
        std::fs::write(&path, &good[..good.len() - 2]).unwrap();
        found(&index);
        if role != "manifest-1.json" {
            std::fs::remove_file(&path).unwrap();
            found(&index);
            assert!(
                !run(&["search", arg(&index), arg(&data.queries), "--search-list", "20"]).status.success()
            );
        }
        std::fs::write(&path, &good).unwrap();
    }
    assert!(run(&["verify", arg(&index)]).status.success());
}

#[test]
fn a_damaged_block_fails_its_queries_and_no_others() {
    let data = Data::new(1500, 16, "f32");
    let index = data.build("graph", &[]);
    let search = |out: &Path| {
        let asked = ["--search-list", "20", "--rerank", "0"];
        run(&[&["search", arg(&index), arg(&data.queries), "-o", arg(out), "--json"], &asked[..]].concat())
    };
    assert!(search(&data.path("good")).status.success());
    let (k, good, _) = read_answers(&data.path("good"));
    // The block that the first query reads first.
    let trace = json(&["explain", arg(&index), arg(&data.queries), "--search-list", "20"]);
    let offset = trace["rounds"][0]["reads"][0]["offset"].as_u64().unwrap();
    flip(&file_of(&index, "blocks.bin"), offset as usize + 99);

    let output = search(&data.path("bad"));
    assert_eq!(output.status.code(), Some(1));
    let text = stderr(&output);
    assert!(
        text.contains("query 0 failed")
            && text.contains("stays on disk")
            && text.contains(&format!("offset {offset}"))
            && text.contains("stratann verify"),
        "{text}"
    );
    let document: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let failed = document["runs"][0]["failed_queries"].as_u64().unwrap() as usize;
    let (_, bad, distances) = read_answers(&data.path("bad"));
    let mut lost = 0;
    for q in 0..50 {
        let row = q * k..(q + 1) * k;
        if bad[row.clone()].iter().all(|&id| id == u32::MAX) {
            assert!(distances[row].iter().all(|d| d.is_infinite()));
            lost += 1;
        } else {
            assert_eq!(bad[row.clone()], good[row], "query {q} is answered as before");
        }
    }
    assert!(lost == failed && (1..50).contains(&lost), "{lost} {failed}");
    let output = run(&["explain", arg(&index), arg(&data.queries), "--search-list", "20"]);
    assert_eq!(output.status.code(), Some(1));
}
