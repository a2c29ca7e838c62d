use std::ops::ControlFlow;
use std::path::PathBuf;
use std::time::Instant;

use roaring::RoaringBitmap;
use serde_json::{Value, json};
use stratann_core::sieve::Sieve;
use stratann_storage::ErrorKind;

use super::*;
use crate::filter::Filter;
use crate::filter::random::Random;
use crate::number::NumberKey;
use crate::rows::{PayloadRows, RowsWriter};
use crate::value::Payload;
use crate::{IdValue, PointFacts};

/// Every even row has a number, every odd one a text; one in three has the vector `v`.
struct Segment(u32);

fn id_of(row: u32) -> IdValue {
    if row.is_multiple_of(2) { IdValue::Number(row.into()) } else { IdValue::Text(format!("id{row}")) }
}

impl RowFacts for Segment {
    fn row_of(&self, id: &IdValue) -> Result<Option<u32>> {
        Ok((0..self.0).find(|row| id_of(*row) == *id))
    }

    fn rows_with_vector(&self, name: &str) -> Result<RoaringBitmap> {
        Ok((0..self.0).filter(|row| Row(*row).has_vector(name)).collect())
    }
}

struct Row(u32);

impl PointFacts for Row {
    fn has_id(&self, id: &IdValue) -> bool {
        id_of(self.0) == *id
    }

    fn has_vector(&self, name: &str) -> bool {
        name == "v" && self.0.is_multiple_of(3)
    }
}

struct Files {
    payloads: Vec<Payload>,
    index: PayloadIndex,
    rows: PayloadRows,
    path: PathBuf,
    _place: tempfile::TempDir,
}

fn written(payloads: Vec<Payload>, schema: &Schema) -> Files {
    let place = tempfile::tempdir().unwrap();
    let (path, rows) = (place.path().join("payload-1.index"), payloads.len() as u32);
    let mut index = IndexBuilder::new(&path, schema, rows);
    let mut writer = RowsWriter::create(&place.path().join("payload-1.rows"), rows).unwrap();
    for (row, payload) in (0..).zip(&payloads) {
        index.push(row, payload).unwrap();
        writer.push(row, payload).unwrap();
    }
    writer.finish().unwrap();
    assert_eq!(index.finish().unwrap(), std::fs::metadata(&path).unwrap().len());
    let index = PayloadIndex::open(&path).unwrap();
    assert_eq!(index.schema(), *schema);
    let rows = PayloadRows::open(&place.path().join("payload-1.rows")).unwrap();
    Files { payloads, index, rows, path, _place: place }
}

fn schema(value: Value) -> Schema {
    serde_json::from_value(value).unwrap()
}

fn filter(value: Value) -> Filter {
    Filter::from_value(&value).unwrap()
}

/// Compares the index with the plain definition; returns how many filters needed no payload.
fn compare(seed: u64, filters: usize) -> usize {
    let mut random = Random(seed);
    let rows = 30 + random.below(40) as u32;
    let schema = random.schema();
    let files = written((0..rows).map(|_| random.payload()).collect(), &schema);
    files.index.verify().unwrap();
    let mut exact = 0;
    for _ in 0..filters {
        let filter = random.filter();
        let predicate = filter.compile();
        let expected: RoaringBitmap = (0..)
            .zip(&files.payloads)
            .filter(|(row, payload)| {
                let holds = filter.matches(payload, &Row(*row));
                assert_eq!(predicate.matches(payload, &Row(*row)), holds, "{payload}: {}", filter.to_value());
                holds
            })
            .map(|(row, _)| row)
            .collect();
        let found = files.index.evaluate(&predicate, &Segment(rows)).unwrap();
        let shown = || format!("seed {seed}, {}: {schema:?}", filter.to_value());
        assert!(found.sure.is_subset(&expected), "{}", shown());
        assert!(expected.is_subset(&found.superset()), "{}", shown());
        assert!(found.sure.is_disjoint(&found.open));
        assert!(found.unindexed.is_subset(&predicate.unindexed(&schema)), "{}", shown());
        exact += usize::from(found.is_exact());
        compare_overlaid(&mut random, &files, &filter, &found, &expected);
        assert_eq!(found.decide(&predicate, &files.rows).unwrap(), expected, "{}", shown());
    }
    exact
}

/// Compares rows of which some have newer payloads.
fn compare_overlaid(
    random: &mut Random,
    files: &Files,
    filter: &Filter,
    found: &Evaluated,
    expected: &RoaringBitmap,
) {
    let (predicate, rows) = (filter.compile(), files.payloads.len());
    let newer: BTreeMap<u32, Payload> =
        (0..random.below(6)).map(|_| (random.below(rows) as u32, random.payload())).collect();
    let mut expected = expected.clone();
    for (row, payload) in &newer {
        expected.remove(*row);
        expected.extend(filter.matches(payload, &Row(*row)).then_some(*row));
    }
    let found = found.clone().overlaid(&predicate, newer.iter().map(|(row, payload)| (*row, payload)));
    assert_eq!(found.decide(&predicate, &files.rows).unwrap(), expected, "{}", filter.to_value());
}

#[test]
fn random_filters_have_the_rows_of_their_twin() {
    let exact: usize = (0..100).map(|seed| compare(seed, 100)).sum();
    assert!(exact > 2000, "{exact} of 10000 filters needed no payload");
}

#[test]
#[ignore = "minutes: a hundred thousand filters"]
fn a_hundred_thousand_filters_have_the_rows_of_their_twin() {
    (1000..2000).for_each(|seed| _ = compare(seed, 100));
}

#[test]
fn indexed_conditions_need_no_payload() {
    let payloads = (0..20_000i64).map(|row| {
        let value = json!({
            "color": (["red", "green", "blue"][row as usize % 3]), "stock": row % 7, "price": row as f64 / 8.0,
            "sold": row % 2 == 0, "day": format!("2024-{:02}-{:02}T00:00:00Z", row % 12 + 1, row % 28 + 1),
            "uuid": format!("{row:08x}-0000-4000-8000-000000000000"), "title": format!("item number {row}"),
        });
        Payload::from_value(value).unwrap()
    });
    let fields =
        schema(json!({"color": ["keyword"], "stock": ["integer"], "price": ["float"], "sold": ["bool"],
        "day": ["datetime"], "uuid": ["uuid"], "title": ["text"]}));
    let files = written(payloads.collect(), &fields);
    let field = |key: &str, name: &str, value: Value| json!({"key": key, name: value});
    for (condition, count, reads_max) in [
        (field("color", "match", json!({"value": "red"})), 6667, 2),
        (field("color", "match", json!({"except": ["red"]})), 13_333, 6),
        (field("color", "match", json!({"prefix": "b"})), 6666, 2),
        (field("color", "match", json!({"substring": "re"})), 13_334, 3),
        (field("stock", "match", json!({"any": [1, 2.0]})), 2857 + 2857, 3),
        (field("price", "range", json!({"gte": 100, "lt": 2000})), 15_200, 6),
        (field("price", "match", json!({"value": 100})), 1, 2),
        (field("sold", "match", json!({"value": false})), 10_000, 2),
        (field("day", "range", json!({"gte": "2024-02-01", "lt": "2024-03-01"})), 1667, 6),
        (field("uuid", "match", json!({"value": "0000002a-0000-4000-8000-000000000000"})), 1, 2),
        (field("title", "match", json!({"text_any": "42 43"})), 2, 4),
        (field("title", "match", json!({"text": "ITEM 42"})), 1, 7),
        (field("title", "values_count", json!({"gte": 1})), 20_000, 2),
        (json!({"exists": {"key": "price"}}), 20_000, 1),
        (json!({"is_empty": {"key": "price"}}), 0, 1),
        (json!({"is_null": {"key": "price"}}), 0, 0),
        (field("color", "range", json!({"gte": 1})), 0, 0),
    ] {
        let predicate = filter(json!({"must": condition})).compile();
        let before = files.index.reads();
        let found = files.index.evaluate(&predicate, &Segment(0)).unwrap();
        assert!(found.is_exact() && found.unindexed.is_empty(), "{condition}");
        assert_eq!(found.sure.len(), count, "{condition}");
        let reads = files.index.reads() - before;
        assert!(reads <= reads_max, "{condition}: {reads} reads");
        let expected =
            (0..).zip(&files.payloads).filter(|(row, payload)| predicate.matches(payload, &Row(*row)));
        assert!(found.sure.iter().eq(expected.map(|(row, _)| row)), "{condition}");
    }
    assert!(files.index.memory_bytes() < 1 << 20, "{}", files.index.memory_bytes());
    files.index.verify().unwrap();
}

#[test]
fn words_of_several_strings_of_a_row_are_told_apart() {
    let values =
        [json!(["red", "fox"]), json!(["red fox"]), json!("fox, red"), json!(["x", "red fox"]), json!("red")];
    let payloads = values.map(|value| Payload::from_value(json!({ "a": value })).unwrap()).to_vec();
    let files = written(payloads, &schema(json!({"a": ["text"]})));
    let predicate = filter(json!({"must": {"key": "a", "match": {"text": "red fox"}}})).compile();
    let found = files.index.evaluate(&predicate, &Segment(5)).unwrap();
    assert!(found.sure.iter().eq([1, 2]) && found.open.iter().eq([0, 3]) && found.unindexed.is_empty());
    assert!(found.decide(&predicate, &files.rows).unwrap().iter().eq([1, 2, 3]));
}

#[test]
fn prefixes_of_uuids_are_those_of_strings() {
    let uuid = |row: u64| {
        let hash = row.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let text = format!("{:08x}-{:04x}-4000-8000-{row:012x}", hash >> 32, hash & 0xffff);
        if row.is_multiple_of(5) { text.to_uppercase() } else { text }
    };
    let texts: Vec<String> = (0..500).map(uuid).collect();
    let payloads = texts.iter().map(|text| Payload::from_value(json!({ "a": text })).unwrap());
    let files = written(payloads.collect(), &schema(json!({"a": ["uuid"]})));
    for text in texts.iter().step_by(7) {
        for prefix in (0..=36).map(|end| text[..end].to_string()).chain([format!("{}x", &text[..9])]) {
            let predicate = filter(json!({"must": {"key": "a", "match": {"prefix": prefix}}})).compile();
            let found = files.index.evaluate(&predicate, &Segment(500)).unwrap();
            let expected = (0..500u32).filter(|row| texts[*row as usize].starts_with(&prefix));
            assert!(found.is_exact() && found.sure.iter().eq(expected), "{prefix}");
        }
    }
}

#[test]
fn fields_without_an_index_are_named() {
    let payloads: Vec<Payload> =
        (0..100).map(|row| Payload::from_value(json!({"a": row, "b": format!("w{row}")})).unwrap()).collect();
    let files = written(payloads, &schema(json!({"a": ["integer"], "b": ["keyword"]})));
    let both = json!({"must": [{"key": "a", "range": {"lt": 10}}, {"key": "c", "match": {"value": 1}},
        {"key": "b", "match": {"text": "w5"}}]});
    let predicate = filter(both).compile();
    let found = files.index.evaluate(&predicate, &Segment(100)).unwrap();
    let named = |field: &str, kind| Unindexed { field: field.parse().unwrap(), kind: Some(kind) };
    let expected = [named("c", IndexKind::Integer), named("b", IndexKind::Text)];
    assert_eq!(found.unindexed, expected.into());
    // Only rows that the indexed condition leaves are read.
    assert_eq!((found.sure.len(), found.open.len()), (0, 10));
    assert!(found.decide(&predicate, &files.rows).unwrap().is_empty());
}

#[test]
fn rows_are_in_the_order_of_a_field() {
    let mut random = Random(11);
    let payloads: Vec<Payload> = (0..9000).map(|_| random.payload()).collect();
    let fields = schema(json!({"a": ["integer", "datetime"], "b": ["float"], "c": ["keyword"]}));
    let files = written(payloads, &fields);
    for (field, kind) in [("a", IndexKind::Integer), ("b", IndexKind::Float), ("a", IndexKind::Datetime)] {
        let field = SortField::new(field.parse().unwrap(), kind).unwrap();
        let pairs = (0..)
            .zip(&files.payloads)
            .flat_map(|(row, payload)| field.keys(payload).into_iter().map(move |key| (key, row)));
        let mut all: Vec<(NumberKey, u32)> = pairs.collect();
        all.sort_unstable();
        assert!(all.len() > 300, "{}", all.len());
        for is_descending in [false, true] {
            let froms = [None, Some(all[0].0), Some(all[all.len() / 2].0), Some(all[all.len() - 1].0)];
            for (from, most) in froms.into_iter().flat_map(|from| [(from, 7), (from, usize::MAX)]) {
                let mut expected = all.clone();
                if is_descending {
                    expected.reverse();
                }
                let is_before = |key: NumberKey| {
                    from.is_some_and(|from| if is_descending { key > from } else { key < from })
                };
                expected.retain(|(key, _)| !is_before(*key));
                expected.truncate(most);
                let mut found = Vec::new();
                let each = |key, row| {
                    found.push((key, row));
                    Ok(if found.len() == most { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
                };
                files.index.in_order(&field, is_descending, from, each).unwrap();
                assert_eq!(found, expected);
            }
        }
    }
    let keyword = SortField::new("c".parse().unwrap(), IndexKind::Keyword);
    assert!(keyword.unwrap_err().message.contains("integer, float or datetime"));
    let unindexed = SortField::new("c".parse().unwrap(), IndexKind::Float).unwrap();
    let each = |_, _| Ok(ControlFlow::Continue(()));
    let error = files.index.in_order(&unindexed, false, None, each).unwrap_err();
    assert!(error.message.contains("an integer or float index"));
}

#[test]
fn equal_payloads_give_equal_files() {
    let fields =
        schema(json!({"a": ["keyword", "integer", "text", "bool"], "b": ["float", "datetime", "uuid"]}));
    let bytes = |seed: u64| {
        let mut random = Random(seed);
        let files = written((0..500).map(|_| random.payload()).collect(), &fields);
        let rows = files.path.with_extension("rows");
        (std::fs::read(&files.path).unwrap(), std::fs::read(rows).unwrap())
    };
    assert!(bytes(5) == bytes(5));
    assert!(bytes(5).0 != bytes(6).0);
}

#[test]
fn rows_become_a_sieve() {
    for (rows, matching) in [
        (0, vec![]),
        (10, vec![]),
        (10, (0..10).collect()),
        (100_000, vec![5]),
        (100_000, (0..100_000).step_by(3).collect()),
        (70_000, (0..70_000).collect::<Vec<u32>>()),
    ] {
        let sieve = sieve_of(rows, &matching.iter().copied().collect()).unwrap();
        assert_eq!(sieve, Sieve::from_sorted(rows, &matching).unwrap());
    }
    assert_eq!(sieve_of(10, &[10].into_iter().collect()), None);
}

#[test]
fn rows_are_given_in_their_order() {
    let mut builder = IndexBuilder::new(FilePath::new("none"), &Schema::new(), 10);
    builder.push(3, &Payload::new()).unwrap();
    for row in [3, 2, 10] {
        assert!(builder.push(row, &Payload::new()).unwrap_err().message.contains("in their order"));
    }
}

#[test]
fn an_index_within_little_memory_is_the_same() {
    let mut random = Random(5);
    let fields =
        schema(json!({"a": ["keyword", "integer", "text", "bool"], "b": ["float", "datetime", "uuid"],
        "c": ["keyword", "float"]}));
    let payloads: Vec<Payload> = (0..3000).map(|_| random.payload()).collect();
    let place = tempfile::tempdir().unwrap();
    let build = |bytes_max| {
        let path = place.path().join("one.index");
        let mut builder = IndexBuilder::new(&path, &fields, 3000).within(bytes_max);
        (0..).zip(&payloads).for_each(|(row, payload)| builder.push(row, payload).unwrap());
        let spilled = builder.spilled();
        builder.finish().unwrap();
        (std::fs::read(&path).unwrap(), spilled)
    };
    let (whole, spilled) = build(None);
    assert_eq!(spilled, 0);
    for bytes_max in [20_000, 200_000] {
        let (bytes, spilled) = build(Some(bytes_max));
        assert!(spilled > 0, "{bytes_max}");
        assert!(bytes == whole, "{bytes_max}: the bytes differ after {spilled} runs");
    }
    assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 1, "nothing is left beside it");
}

#[test]
fn damage_is_named_and_never_answered() {
    let mut random = Random(9);
    let fields =
        schema(json!({"a": ["keyword", "integer", "text", "bool"], "b": ["float", "datetime", "uuid"],
        "c": ["keyword", "float"]}));
    let files = written((0..2000).map(|_| random.payload()).collect(), &fields);
    let whole = std::fs::read(&files.path).unwrap();
    let filters: Vec<_> = (0..20).map(|_| random.filter().compile()).collect();
    let expected: Vec<_> =
        filters.iter().map(|predicate| files.index.evaluate(predicate, &Segment(60)).unwrap()).collect();
    let step = whole.len() / 300;
    for at in (0..whole.len()).step_by(step).chain(whole.len() - 100..whole.len()) {
        let mut bytes = whole.clone();
        bytes[at] ^= 1 << (at % 8);
        std::fs::write(&files.path, &bytes).unwrap();
        let read = PayloadIndex::open(&files.path).and_then(|index| {
            for (predicate, expected) in filters.iter().zip(&expected) {
                match index.evaluate(predicate, &Segment(60)) {
                    Ok(found) => assert_eq!(found, *expected),
                    Err(error) => assert_eq!(error.kind, ErrorKind::Corrupt),
                }
            }
            index.verify()
        });
        let error = read.expect_err(&format!("byte {at}"));
        assert_eq!(error.kind, ErrorKind::Corrupt, "{error}");
        assert!(error.message.contains("payload-1.index is damaged"), "{error}");
        std::fs::write(&files.path, &whole[..at]).unwrap();
        assert!(PayloadIndex::open(&files.path).is_err(), "cut at {at}");
    }
}

#[test]
fn large_filters_are_evaluated_quickly() {
    let payloads: Vec<Payload> =
        (0..5000).map(|row| Payload::from_value(json!({"a": row, "b": row % 10})).unwrap()).collect();
    let files = written(payloads, &schema(json!({"a": ["float"], "b": ["integer"]})));
    let start = Instant::now();
    let many: Vec<Value> =
        (0..10_000).map(|at| json!({"key": "a", "range": {"gte": at, "lt": at + 2}})).collect();
    let values: Vec<Value> = (0..10_000).map(|at| (at * 2).into()).collect();
    let any = filter(json!({"must": {"key": "a", "match": {"any": values}}})).compile();
    let before = files.index.reads();
    let found = files.index.evaluate(&any, &Segment(0)).unwrap();
    assert_eq!((found.sure.len(), found.is_exact()), (2500, true));
    assert!(files.index.reads() - before <= 5000 / 8, "each part is read once");
    for (name, count) in [("should", 5000), ("must_not", 0)] {
        let predicate = filter(json!({name: many})).compile();
        let found = files.index.evaluate(&predicate, &Segment(0)).unwrap();
        assert_eq!((found.sure.len(), found.is_exact()), (count, true));
    }
    let least = json!({"min_should": {"conditions": many, "min_count": 2}});
    let found = files.index.evaluate(&filter(least).compile(), &Segment(0)).unwrap();
    assert_eq!(found.sure.len(), 4999);
    assert!(start.elapsed().as_secs() < 30, "{:?}", start.elapsed());
}
