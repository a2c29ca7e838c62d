//! What `ablation` measures: recall by the beam (figure 6), the representative index, doorbells, caches, room for fresh
//! records.

use serde_json::Value;
use stratann_storage::Result;

use super::super::chart::Chart;
use super::super::item::{Found, Row, one, range};
use super::super::sets::Set;
use super::super::study::{Study, number, over};
use super::{NAIVE, NO_DOORBELL, NPROBE, OWN, index};

const NONE: &str = "the paper has no such numbers";

/// The document of the index.
fn measured(study: &mut Study, set: &Set) -> Result<Value> {
    let index = index(study, set)?;
    let args = ["ablation", &index, &set.queries, "--groundtruth", &set.groundtruth, "--kind", "remote-hnsw"];
    study.run(&[&args[..], &["--nprobe", NPROBE, "--sample", "100"]].concat())
}

/// Rows of a part of the document.
fn rows_of<'a>(document: &'a Value, part: &str) -> impl Iterator<Item = &'a Value> {
    document.pointer(part).and_then(Value::as_array).into_iter().flatten()
}

/// Figure 6.
pub(super) fn by_beam(study: &mut Study, set: &Set) -> Result<Found> {
    const LINK: &str = "modelled link of 100 Gb/s, at recall of efSearch 48, top 10";
    const RECALL: &str = "another set, with clusters of fewer vectors";
    let document = measured(study, set)?;
    let of = |scheme: &str, k: u64, ef: u64, pointer: &str| {
        let own = |row: &&Value| row["scheme"] == scheme && row["k"] == k && row["ef"] == ef;
        rows_of(&document, "/curve").find(own).and_then(|row| number(row, pointer))
    };
    let model = |scheme: &str| {
        let row = rows_of(&document, "/model/schemes").find(|row| row["scheme"] == scheme)?;
        number(row, "/time_us")
    };
    let rows = vec![
        Row::new("time, naive over ours", "times", range(0.0, 117.0), over(model(NAIVE), model(OWN)), LINK),
        Row::new(
            "time, no-doorbell over ours",
            "times",
            range(0.0, 1.12),
            over(model(NO_DOORBELL), model(OWN)),
            LINK,
        ),
        Row::new("recall@10, efSearch 48", "", one(0.86), of(OWN, 10, 48, "/recall"), RECALL),
        Row::new("recall@1, efSearch 48", "", one(0.85), of(OWN, 1, 48, "/recall"), RECALL),
        Row::new("recall@10, efSearch 1", "", None, of(OWN, 10, 1, "/recall"), "a curve without numbers"),
    ];
    let line = |k: u64| {
        let own = rows_of(&document, "/curve").filter(move |row| row["scheme"] == OWN && row["k"] == k);
        own.filter_map(|row| Some((number(row, "/comparisons")?, number(row, "/recall")?))).collect()
    };
    let lines = [1, 10].map(|k| (format!("top {k}"), line(k))).to_vec();
    let chart = Chart { title: "efSearch 1 to 48".into(), x: "distances of a query", y: "recall", lines };
    Ok(Found { rows, charts: vec![chart] })
}

/// The representative index.
pub(super) fn meta(study: &mut Study, set: &Set) -> Result<Found> {
    const WHY: &str = "500 representatives of 128 floats in the paper: 746 bytes each with their vector";
    let document = measured(study, set)?;
    let bytes = number(&document, "/meta_bytes");
    let each = over(bytes, number(&document, "/clusters"));
    let neighbours = each.map(|each| each - set.row_bytes as f64);
    let rows = vec![
        Row::new("bytes of the representative index", "bytes", None, bytes, NONE),
        Row::new(
            "bytes of a representative without its vector",
            "bytes",
            one(746.0 - 512.0),
            neighbours,
            WHY,
        ),
    ];
    Ok(Found { rows, charts: Vec::new() })
}

/// Lengths of a doorbell.
pub(super) fn doorbells(study: &mut Study, set: &Set) -> Result<Found> {
    let document = measured(study, set)?;
    let mut rows = Vec::new();
    for at in rows_of(&document, "/doorbells/lengths") {
        let row = |what: &str, unit, pointer: &str| {
            Row::new(format!("{what}, {} ranges", at["doorbell"]), unit, None, number(at, pointer), NONE)
        };
        rows.push(row("round trips of a query", "", "/round_trips"));
        rows.push(row("memory of doorbells", "bytes", "/doorbell_bytes"));
    }
    Ok(Found { rows, charts: Vec::new() })
}

/// Caches.
pub(super) fn caches(study: &mut Study, set: &Set) -> Result<Found> {
    let document = measured(study, set)?;
    let mut rows = Vec::new();
    for at in rows_of(&document, "/caches") {
        let name = at["stream"].as_str().unwrap_or_default();
        for (what, pointer) in [
            ("without a cache", "/loads_without"),
            ("with the LRU of the paper", "/loads_lru"),
            ("with ours", "/loads"),
        ] {
            let what = format!("loads of a query {what}, {name} queries, batches of {}", at["batch"]);
            rows.push(Row::new(what, "", None, number(at, pointer), NONE));
        }
    }
    Ok(Found { rows, charts: Vec::new() })
}

/// Room for fresh records, and what they cost.
pub(super) fn overflow(study: &mut Study, set: &Set) -> Result<Found> {
    let document = measured(study, set)?;
    let mut rows = Vec::new();
    for at in rows_of(&document, "/overflow").filter(|at| at["is_own"] == true) {
        for (what, pointer) in [
            ("room of a group", "/overflow_bytes"),
            ("bytes of a query, the whole room read as in the paper", "/bytes_whole"),
            ("bytes of a query, an unused room", "/bytes_used_0"),
            ("bytes of a query, a full room", "/bytes_used_100"),
        ] {
            rows.push(Row::new(what, "bytes", None, number(at, pointer), "we read the part that is used"));
        }
    }
    for at in rows_of(&document, "/fresh/numbers") {
        let what = format!("queries of a load after which linking {} fresh records pays", at["fresh"]);
        rows.push(Row::new(what, "", None, number(at, "/pays_after_queries"), "we scan them"));
    }
    let served = number(&document, "/fresh/queries_per_load");
    rows.push(Row::new("queries that a load serves", "", None, served, NONE));
    Ok(Found { rows, charts: Vec::new() })
}
