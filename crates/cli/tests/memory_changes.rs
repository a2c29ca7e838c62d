//! `stratann insert` and `stratann delete`, over a real memory node, and what searches find afterwards.
#![allow(missing_docs)]

mod common;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use common::*;
use serde_json::Value;

struct Place {
    data: Data,
    key: PathBuf,
    node: Running,
}

const ROWS: usize = 800;
const DIM: usize = 16;

impl Place {
    /// A memory node that holds an index.
    fn new(size: &str) -> Place {
        let data = Data::new(ROWS, DIM, "f32");
        let key = data.path("key");
        std::fs::write(&key, "0123456789abcdef".repeat(4) + "\n").unwrap();
        let index = data.path("remote.idx");
        let args = ["build", arg(&data.base), "-o", arg(&index), "--kind", "remote-hnsw", "--metric", "l2"];
        let kind = ["--partitions", "10", "-M", "8", "--ef-construction", "60", "--overflow", "4KiB"];
        json(&[&args[..], &kind].concat());
        let args = [
            "memory-node",
            "--size",
            size,
            "--listen",
            "127.0.0.1:0",
            "--key-file",
            arg(&key),
            "--until-eof",
        ];
        let node = Running::start(&args);
        let place = Place { data, key, node };
        json(&[
            "memory-node",
            "load",
            arg(&index),
            "--nodes",
            place.address(),
            "--key-file",
            arg(&place.key),
        ]);
        place
    }

    fn address(&self) -> &str {
        self.node.ready["listen"].as_str().unwrap()
    }

    fn args<'a>(&'a self, args: &[&'a str]) -> Vec<&'a str> {
        [args, &["--memory", self.address(), "--key-file", arg(&self.key)]].concat()
    }

    /// The ids that a search over all clusters finds, nearest first.
    fn found(&self, queries: &Path, k: usize) -> Vec<Vec<u32>> {
        let (out, k_text) = (self.data.path("found.ibin"), k.to_string());
        json(&self.args(&[
            "search",
            arg(queries),
            "-k",
            &k_text,
            "--nprobe",
            "10",
            "-o",
            arg(&out),
            "--force",
        ]));
        let (found_k, ids, _) = read_answers(&out);
        assert_eq!(found_k, k);
        for ids in ids.chunks(k) {
            assert_eq!(ids.iter().collect::<BTreeSet<_>>().len(), k, "none twice: {ids:?}");
        }
        ids.chunks(k).map(<[u32]>::to_vec).collect()
    }

    fn ids(&self, name: &str, ids: &[u64]) -> PathBuf {
        let path = self.data.path(name);
        let words: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
        std::fs::write(&path, [&(ids.len() as u32).to_le_bytes()[..], &1u32.to_le_bytes(), &words].concat())
            .unwrap();
        path
    }
}

#[test]
fn inserts_deletes_and_searches_go_round() {
    let place = Place::new("16MiB");
    let new = place.data.path("new.fbin");
    write(&new, &rows(300, DIM, "f32", 9), "f32");
    let ids: Vec<u64> = (5000..5300).collect();
    let file = place.ids("new.u64bin", &ids);
    let insert = place.args(&["insert", arg(&new), "--ids", arg(&file), "--new"]);
    let inserted = json(&insert);
    assert_eq!((&inserted["inserted"], &inserted["place"]), (&300.into(), &"memory".into()));
    assert!(inserted["groups_rebuilt"].as_u64().unwrap() > 0, "{inserted}");
    let first = |found: Vec<Vec<u32>>| found.into_iter().map(|ids| u64::from(ids[0])).collect::<Vec<_>>();
    assert_eq!(first(place.found(&new, 5)), ids);
    // Deleted, they are no answer; inserted again under row numbers they replace rows of the index.
    let old = place.ids("old.u64bin", &ids[100..]);
    let deleted: Value = json(&place.args(&["delete", arg(&old)]));
    assert_eq!((&deleted["deleted"], &deleted["place"]), (&200.into(), &"memory".into()));
    json(&place.args(&["delete", "--id", "5000,5001"]));
    let found = place.found(&new, 5);
    let is_gone = |id: u32| id >= 5100 || id == 5000 || id == 5001;
    assert!(found.iter().flatten().all(|&id| !is_gone(id)));
    assert_eq!(first(found)[2..100], ids[2..100]);
    let text = run(&place.args(&["insert", arg(&new)]));
    let said = String::from_utf8_lossy(&text.stdout).into_owned();
    assert!(said.contains("inserted 300 vectors") && said.contains("in memory"), "{said}");
    json(&place.args(&["delete", arg(&file)]));
    assert_eq!(first(place.found(&new, 5)), (0..300).collect::<Vec<u64>>());
}

#[test]
fn mistakes_are_refused_and_change_nothing() {
    let place = Place::new("16MiB");
    let new = place.data.path("new.fbin");
    let mut bad = rows(50, DIM, "f32", 9);
    write(&new, &bad, "f32");
    bad[40][3] = f64::NAN;
    let broken = place.data.path("bad.fbin");
    write(&broken, &bad, "f32");
    let error = refused(&place.args(&["insert", arg(&broken)]), 2);
    assert!(
        error.contains("row 40") && error.contains("NaN") && error.contains("correct the vector"),
        "{error}"
    );
    let narrow = place.data.path("narrow.fbin");
    write(&narrow, &rows(5, DIM - 1, "f32", 9), "f32");
    let error = refused(&place.args(&["insert", arg(&narrow)]), 2);
    assert!(error.contains("15 dimensions") && error.contains("16"), "{error}");
    let few = place.ids("few.u64bin", &[1, 2]);
    let error = refused(&place.args(&["insert", arg(&new), "--ids", arg(&few)]), 2);
    assert!(error.contains("2 ids for 50 rows"), "{error}");
    let error = refused(&place.args(&["delete"]), 2);
    assert!(error.contains("no ids are given"), "{error}");
    let error = refused(&["insert", arg(&new), "--memory", place.address()], 2);
    assert!(error.contains("--key-file"), "{error}");
    let (address, gone) = (nobody(), place.ids("gone.u64bin", &[3]));
    let error = refused(&["delete", arg(&gone), "--memory", &address, "--key-file", arg(&place.key)], 1);
    assert!(error.contains(&address), "{error}");
    let found = place.found(&place.data.base, 1);
    let first: Vec<u32> = found.into_iter().map(|ids| ids[0]).collect();
    assert_eq!(first, (0..ROWS as u32).collect::<Vec<_>>());
}

/// A region that is full says which rows are acknowledged; they are found.
#[test]
fn a_full_region_names_the_rows_that_are_acknowledged() {
    let place = Place::new("400KiB");
    let new = place.data.path("new.fbin");
    let own = rows(2000, DIM, "f32", 9);
    write(&new, &own, "f32");
    let ids: Vec<u64> = (5000..7000).collect();
    let file = place.ids("new.u64bin", &ids);
    let args = place.args(&["insert", arg(&new), "--ids", arg(&file), "--new", "--threads", "1"]);
    let error = refused(&args, 2);
    let (_, rest) = error.split_once("rows are acknowledged (0-").unwrap_or_else(|| panic!("{error}"));
    assert!(error.contains("--size"), "{error}");
    // Rows after the first range may be acknowledged too: some are inserted side by side.
    let last = rest.split(|c: char| !c.is_ascii_digit()).next().unwrap();
    let last: usize = last.parse().unwrap();
    write(&new, &own[..=last], "f32");
    let first: Vec<u64> = place.found(&new, 1).into_iter().map(|ids| u64::from(ids[0])).collect();
    assert_eq!(first, ids[..=last]);
}
