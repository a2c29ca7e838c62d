//! Ids and payloads of an index in a folder: what a build writes, what filters find, and what is refused.
#![allow(missing_docs)]

use std::path::Path;
use std::sync::Arc;

use stratann_engine::build::{BuildOptions, SourceIndex, build_points};
use stratann_engine::index::{Index, OpenOptions};
use stratann_engine::manifest::Manifest;
use stratann_engine::search::{Effort, Filters, SearchOptions};
use stratann_engine::{deletes, verify};
use stratann_kernel::{DType, Metric};
use stratann_node::collections::Hit;
use stratann_node::points::{Points, Spool, SpooledPoints};
use stratann_node::rows::ExternalId;
use stratann_params::IndexKind;
use stratann_payload::{Filter, IndexKind as FieldIndex, Path as Field, Predicate, Schema};
use stratann_storage::Quiet;

const ROWS: usize = 500;
const DIM: usize = 6;
const KINDS: [IndexKind; 3] = [IndexKind::DiskGraph, IndexKind::Flat, IndexKind::GridIvf];

fn component(row: usize, at: usize) -> f32 {
    let bits = (row as u64 * 31 + at as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (bits >> 40) as f32 / (1u32 << 24) as f32
}

fn vector(row: usize) -> Vec<u8> {
    (0..DIM).flat_map(|at| component(row, at).to_le_bytes()).collect()
}

fn price(row: usize) -> usize {
    row * 7 % 40
}

fn payload(row: usize) -> Option<Vec<u8>> {
    let brand = ["x", "y"][row % 2];
    (row % 5 != 4).then(|| format!(r#"{{"price": {}, "brand": "{brand}"}}"#, price(row)).into_bytes())
}

/// Ids in another order than rows.
fn id(row: usize, has_texts: bool) -> ExternalId {
    let number = 1000 + row * 77 % ROWS;
    if has_texts && !row.is_multiple_of(3) {
        ExternalId::Text(format!("t{number}"))
    } else {
        ExternalId::Number(number as u64)
    }
}

fn schema() -> Schema {
    let mut schema = Schema::new();
    schema.add(Field::parse("price").unwrap(), FieldIndex::Float).unwrap();
    schema
}

fn spooled(folder: &Path, rows: usize, schema: Schema, has_texts: bool) -> SpooledPoints {
    let mut spool =
        Spool::create(Path::new("shop.parquet"), folder, (DIM, DType::F32), schema, None).unwrap();
    for first in (0..rows).step_by(64) {
        let some = first..rows.min(first + 64);
        let ids: Vec<ExternalId> = some.clone().map(|row| id(row, has_texts)).collect();
        let vectors: Vec<u8> = some.clone().flat_map(vector).collect();
        let payloads: Vec<_> = some.map(payload).collect();
        spool.push(Some(&ids), &vectors, &payloads).unwrap();
    }
    spool.finish().unwrap()
}

fn build(folder: &Path, kind: IndexKind, (schema, has_texts): (Schema, bool)) {
    let points = spooled(folder, ROWS, schema, has_texts);
    let options = BuildOptions {
        ids: points.ids.clone(),
        calibration_queries: 20,
        threads: 1,
        ..BuildOptions::new(kind, Metric::L2)
    };
    build_points((&points.reader, &points), folder, &options.for_rows(points.reader.shape()), &Quiet)
        .unwrap();
}

fn predicate(text: &str) -> Arc<Predicate> {
    Arc::new(Filter::from_where(text).unwrap().compile())
}

/// An open index with its points.
struct Shop {
    index: Index,
    points: Points,
    has_texts: bool,
}

impl Shop {
    fn open(folder: &Path, has_texts: bool) -> Shop {
        let index = Index::open(folder, OpenOptions::default()).unwrap();
        let points = Points::open(folder, index.manifest()).unwrap().unwrap();
        Shop { index, points, has_texts }
    }

    fn search(&self, query: usize, filter: &Arc<Predicate>) -> Vec<Hit> {
        let options =
            SearchOptions { k: 4, effort: Effort::Recall(1.0), threads: 1, ..SearchOptions::default() };
        let matching = self.points.matching(filter).unwrap();
        let filter = self.index.filter_of_rows(&matching.rows, &options).unwrap();
        let query = vector(ROWS + query);
        let answers = self.index.search_filtered(&query, Filters::Shared(&filter), &options, &Quiet).unwrap();
        self.points.hits(answers.results(0), true).unwrap()
    }

    fn check(&self, text: &str, matches: impl Fn(usize) -> bool) {
        let filter = predicate(text);
        for query in 0..12 {
            let distance = |row: usize| -> f64 {
                let each = (0..DIM).map(|at| f64::from(component(row, at) - component(ROWS + query, at)));
                each.map(|difference| difference * difference).sum()
            };
            let mut wanted: Vec<usize> = (0..ROWS).filter(|row| matches(*row)).collect();
            wanted.sort_by(|one, two| distance(*one).total_cmp(&distance(*two)));
            wanted.truncate(4);
            let found = self.search(query, &filter);
            let ids: Vec<ExternalId> = wanted.iter().map(|row| id(*row, self.has_texts)).collect();
            assert_eq!(found.iter().map(|hit| hit.id.clone()).collect::<Vec<_>>(), ids, "{text} {query}");
            for (hit, row) in found.iter().zip(wanted) {
                let read = |json: &[u8]| serde_json::from_slice::<serde_json::Value>(json).unwrap();
                let (own, given) = (hit.payload.as_deref().map(read), payload(row).map(|json| read(&json)));
                assert_eq!(own, given);
            }
        }
    }
}

#[test]
fn filters_find_what_a_plain_computation_finds() {
    for (kind, has_texts) in KINDS.into_iter().flat_map(|kind| [(kind, false), (kind, true)]) {
        for schema in [Schema::new(), schema()] {
            let place = tempfile::tempdir().unwrap();
            let folder = place.path().join("i");
            build(&folder, kind, (schema, has_texts));
            let shop = Shop::open(&folder, has_texts);
            shop.check("price < 5", |row| row % 5 != 4 && price(row) < 5);
            shop.check("brand = 'x' and price >= 10", |row| {
                row % 10 % 5 != 4 && row % 2 == 0 && price(row) >= 10
            });
            shop.check("not price < 20", |row| row % 5 == 4 || price(row) >= 20);
            shop.check("price > 1000", |_| false);
            let named =
                Filter::from_json(br#"{"must": [{"has_id": [1000, "t1077", 5]}]}"#).unwrap().compile();
            let found = shop.points.matching(&Arc::new(named)).unwrap().rows.count();
            assert_eq!(found, if has_texts { 2 } else { 1 });
            let facts = shop.index.manifest().points.clone().unwrap();
            assert_eq!((facts.payloads, facts.fields["price"], facts.has_numbers()), (400, 400, !has_texts));
            assert_eq!(facts.memory_bytes + ROWS as u64 / 8, shop.points.memory_bytes());
            let report = verify::verify(&folder, &Quiet).unwrap();
            assert_eq!(report.violations_found, 0, "{:?}", report.violations);
            let left: Vec<_> = std::fs::read_dir(&folder).unwrap().flatten().map(|e| e.file_name()).collect();
            assert!(left.iter().all(|name| !name.to_string_lossy().starts_with('.')), "{left:?}");
        }
    }
}

#[test]
fn conditions_without_an_index_are_named() {
    let place = tempfile::tempdir().unwrap();
    build(place.path(), IndexKind::Flat, (schema(), true));
    let points = Shop::open(place.path(), true).points;
    points.check_indexed(&predicate("price < 5")).unwrap();
    let error = points.check_indexed(&predicate("price < 5 and brand = 'x'")).unwrap_err();
    assert!(error.message.contains("brand (create an index of kind keyword)"), "{error}");
    assert!(points.matching(&predicate("price < 5")).unwrap().unindexed.is_empty());
    let read = points.matching(&predicate("brand = 'x'")).unwrap();
    assert_eq!((read.unindexed.len(), read.payloads), (1, ROWS as u64));
}

#[test]
fn a_damaged_file_is_named() {
    let place = tempfile::tempdir().unwrap();
    build(place.path(), IndexKind::Flat, (schema(), true));
    for name in ["v1-point-ids.bin", "v1-payloads.bin", "v1-payload-index.bin"] {
        let path = place.path().join(name);
        let good = std::fs::read(&path).unwrap();
        for at in [good.len() / 4, good.len() - 20] {
            let mut bytes = good.clone();
            bytes[at] ^= 8;
            std::fs::write(&path, bytes).unwrap();
            let report = verify::verify(place.path(), &Quiet).unwrap();
            assert_eq!(report.violations[0].file, name);
        }
        let manifest = Manifest::read(place.path()).unwrap().1;
        let Err(error) = Points::open(place.path(), &manifest) else { panic!("{name} is damaged") };
        assert!(error.message.contains(name) && error.message.contains("build the index again"), "{error}");
        std::fs::write(&path, &good[..good.len() - 1]).unwrap();
        assert!(Points::open(place.path(), &manifest).is_err(), "{name} is cut");
        std::fs::write(&path, &good).unwrap();
    }
}

#[test]
fn deletes_keep_payloads_and_what_would_lose_them_is_refused() {
    let place = tempfile::tempdir().unwrap();
    let (numbers, texts) = (place.path().join("n"), place.path().join("t"));
    build(&numbers, IndexKind::DiskGraph, (schema(), false));
    build(&texts, IndexKind::Flat, (schema(), true));
    let number = |row: usize| match id(row, false) {
        ExternalId::Number(number) => number,
        other => panic!("{other} is no number"),
    };
    let gone: Vec<u64> = (0..ROWS).filter(|row| row % 2 == 0).map(number).collect();
    assert_eq!(deletes::delete(&numbers, &gone, None, &Quiet).unwrap().changed, 250);
    assert_eq!(Manifest::read(&numbers).unwrap().1.format_version, 6);
    let cheap = |row: usize| row % 5 != 4 && price(row) < 20;
    Shop::open(&numbers, false).check("price < 20", |row| row % 2 == 1 && cheap(row));
    deletes::undo(&numbers).unwrap();
    Shop::open(&numbers, false).check("price < 20", cheap);
    let error = deletes::delete(&texts, &[3], None, &Quiet).unwrap_err();
    assert!(error.message.contains("a delete knows numbers alone"), "{error}");
    let Err(error) = SourceIndex::open(&numbers, &place.path().join("o")) else {
        panic!("payloads are lost")
    };
    assert!(error.message.contains("a build from it would lose"), "{error}");
}

#[test]
fn an_id_that_two_rows_have_is_refused_and_leaves_nothing() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path().join("i");
    let mut spool =
        Spool::create(Path::new("f.jsonl"), &folder, (DIM, DType::F32), Schema::new(), None).unwrap();
    let ids = [1, 2, 1].map(ExternalId::Number);
    spool.push(Some(&ids), &(0..3).flat_map(vector).collect::<Vec<u8>>(), &[]).unwrap();
    let Err(error) = spool.finish() else { panic!("two rows have one id") };
    assert!(error.message.contains("rows 0 and 2 of f.jsonl have the same id 1"), "{error}");
    assert!(!folder.exists());
}
