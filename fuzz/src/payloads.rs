//! Filters, payloads, and the files of a segment that have them.
//!
//! The tests of `crates/payload` replay the seeds of these targets by the same code.

use std::path::PathBuf;
use std::sync::OnceLock;

use roaring::RoaringBitmap;
use stratann_core::hash::seeded_checksum;
use stratann_payload::filter::random::Random;
use stratann_payload::index::{Evaluated, IndexBuilder, PayloadIndex, RowFacts, SortField, sieve_of};
use stratann_payload::rows::{PayloadRows, RowsWriter};
use stratann_payload::value::Update;
use stratann_payload::{Filter, IdValue, IndexKind, Path, Payload, PointFacts, Predicate, Schema};
use stratann_storage::Result;
use tempfile::TempDir;

use crate::edits;

/// Rows of the segment of the files.
const ROWS: u32 = 60;
/// Payloads and filters that others are tried with.
const SAMPLES: usize = 12;
/// Bytes before the content of a part of a file: its length and its checksum.
const PART_HEAD: usize = 12;
/// Bytes of the end of a file.
const FILE_END: usize = 32;

/// A point with an id and one vector; a segment whose row n has the id n.
struct Facts;

impl PointFacts for Facts {
    fn has_id(&self, id: &IdValue) -> bool {
        *id == IdValue::Number(7)
    }

    fn has_vector(&self, name: &str) -> bool {
        name == "image"
    }
}

impl RowFacts for Facts {
    fn row_of(&self, id: &IdValue) -> Result<Option<u32>> {
        Ok(match id {
            IdValue::Number(row) if *row < ROWS.into() => Some(*row as u32),
            _ => None,
        })
    }

    fn rows_with_vector(&self, _: &str) -> Result<RoaringBitmap> {
        Ok((0..ROWS / 2).collect())
    }
}

/// What filters and files are tried with.
struct Samples {
    folder: TempDir,
    payloads: Vec<Payload>,
    filters: Vec<Predicate>,
    /// Valid files.
    index: Vec<u8>,
    rows: Vec<u8>,
}

impl Samples {
    /// A file for this thread alone: tests run side by side.
    fn changed(&self, extension: &str) -> PathBuf {
        self.folder.path().join(format!("changed-{:?}.{extension}", std::thread::current().id()))
    }
}

fn samples() -> &'static Samples {
    static SAMPLES_MADE: OnceLock<Samples> = OnceLock::new();
    SAMPLES_MADE.get_or_init(|| {
        let folder = tempfile::tempdir().expect("a scratch folder");
        let mut random = Random(5);
        let payloads: Vec<Payload> = (0..ROWS).map(|_| random.payload()).collect();
        let filters = (0..SAMPLES).map(|_| random.filter().compile()).collect();
        let mut schema = Schema::new();
        for (path, kinds) in [
            ("a", &IndexKind::ALL[..]),
            ("b[]", &[IndexKind::Keyword, IndexKind::Float]),
            ("a.x", &[IndexKind::Text]),
        ] {
            let path = Path::parse(path).expect("a path");
            for kind in kinds {
                schema.add(path.clone(), *kind).expect("few fields");
            }
        }
        let (index, rows) = (folder.path().join("valid.index"), folder.path().join("valid.rows"));
        let mut of_index = IndexBuilder::new(&index, &schema, ROWS);
        let mut of_rows = RowsWriter::create(&rows, ROWS).expect("a file");
        for (row, payload) in (0..).zip(&payloads) {
            of_index.push(row, payload).expect("a row");
            of_rows.push(row, payload).expect("a row");
        }
        of_index.finish().expect("an index");
        of_rows.finish().expect("payloads");
        let read = |path: &PathBuf| std::fs::read(path).expect("a file that was written");
        let (index, rows) = (read(&index), read(&rows));
        Samples { folder, payloads, filters, index, rows }
    })
}

/// A filter as JSON: it comes back, and its forms have the same answers.
pub fn filter_json(data: &[u8]) {
    if let Ok(filter) = Filter::from_json(data) {
        check(&filter);
    }
}

/// A filter as a line of text.
pub fn filter_where(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Ok(filter) = Filter::from_where(text) {
        check(&filter);
    }
}

fn check(filter: &Filter) {
    let (value, predicate) = (filter.to_value(), filter.compile());
    let again = Filter::from_value(&value).expect("a filter that was written").compile();
    assert_eq!((again.key(), &again), (predicate.key(), &predicate), "{value}");
    let samples = samples();
    for payload in samples.payloads.iter().take(SAMPLES) {
        assert_eq!(
            filter.matches(payload, &Facts),
            predicate.matches(payload, &Facts),
            "{value} of {payload}"
        );
    }
    assert!(predicate.bytes() > 0);
    let found = Evaluated::without_payloads(ROWS, &predicate, &Facts).expect("facts that do not fail");
    assert!(found.superset().max().is_none_or(|row| row < ROWS));
}

/// A payload, a path and an update, which lines divide.
pub fn payload_json(data: &[u8]) {
    let mut lines = data.splitn(3, |byte| *byte == b'\n');
    let payload = Payload::parse(lines.next().unwrap_or_default());
    let path = lines.next().and_then(|text| std::str::from_utf8(text).ok()).map(Path::parse);
    let fields = Payload::parse(lines.next().unwrap_or_default());
    if let Some(Ok(path)) = &path {
        assert_eq!(&Path::parse(&path.to_string()).expect("a path that was written"), path);
    }
    let Ok(payload) = payload else { return };
    same(&payload);
    assert!(payload.memory_bytes() > 0);
    let Some(Ok(path)) = path else { return };
    let reached = path.reached(payload.as_map()).len();
    let mut without = payload.clone();
    if without.update(&Update::DeleteKeys(vec![path.clone()])).expect("a smaller payload") {
        assert!(reached > 0);
        same(&without);
    }
    let Ok(fields) = fields else { return };
    let mut changed = payload.clone();
    match changed.update(&Update::Set { payload: fields, key: Some(path) }) {
        Ok(is_changed) => assert_eq!(is_changed, changed != payload),
        Err(_) => assert_eq!(changed, payload),
    }
    same(&changed);
}

/// A payload comes back as it was.
fn same(payload: &Payload) {
    let json = payload.to_bytes();
    assert_eq!(&Payload::parse(&json).expect("a payload that was written"), payload);
    assert_eq!(Payload::from_stored(&json).as_ref(), Ok(payload));
}

/// The payloads of a segment: a changed file, or one whose only block has any content.
pub fn payload_rows(data: &[u8]) {
    let samples = samples();
    let (choice, data) = edits::first(data);
    let content = match choice & 1 {
        0 => block_file(data),
        _ => sealed(edits::bytes(&samples.rows, data)),
    };
    let path = samples.changed("rows");
    std::fs::write(&path, content).expect("a file in the scratch folder");
    let Ok(rows) = PayloadRows::open(&path) else { return };
    let is_whole = rows.verify().is_ok();
    let (mut count, mut next) = (0, 0);
    let all = rows.for_all(|row, _| {
        assert!(row < rows.rows());
        (count, next) = (count + 1, row);
        Ok(())
    });
    assert!(!is_whole || (all.is_ok() && count == rows.count()));
    for row in [0, next, rows.rows()] {
        assert!(rows.get(row).is_ok() || !is_whole);
    }
    assert!(rows.memory_bytes() > 0 && (rows.raw_bytes() > 0 || count == 0));
}

/// A file of payloads with one block of this content.
fn block_file(raw: &[u8]) -> Vec<u8> {
    let block = zstd::bulk::compress(raw, 1).expect("a block");
    let numbers = [block.len() as u32, raw.len() as u32, 0].map(u32::to_le_bytes).concat();
    let directory = [&[ROWS, 1].map(u32::to_le_bytes).concat()[..], &0u64.to_le_bytes(), &numbers].concat();
    let mut file = part(0, &block);
    let place = file.len() as u64;
    file.extend(part(place, &directory));
    let end = [place, file.len() as u64].map(u64::to_le_bytes).concat();
    let sum = seeded_checksum(0, &end).to_le_bytes();
    [&file[..], &end, &sum, b"SANNPRW1"].concat()
}

fn part(place: u64, content: &[u8]) -> Vec<u8> {
    let length = (content.len() as u32).to_le_bytes();
    [&length[..], &seeded_checksum(place, content).to_le_bytes(), content].concat()
}

/// The index of a segment, changed.
pub fn payload_index(data: &[u8]) {
    let samples = samples();
    let path = samples.changed("index");
    let content = sealed(edits::bytes(&samples.index, data));
    std::fs::write(&path, content).expect("a file in the scratch folder");
    let Ok(index) = PayloadIndex::open(&path) else { return };
    // A segment compares the rows with its own before it asks.
    if index.rows() != ROWS {
        return;
    }
    let is_whole = index.verify().is_ok();
    for predicate in &samples.filters {
        let Ok(found) = index.evaluate(predicate, &Facts) else {
            assert!(!is_whole);
            continue;
        };
        assert!(found.superset().max().is_none_or(|row| row < ROWS), "{predicate:?}");
        assert!(sieve_of(ROWS, &found.superset()).is_some());
    }
    order(&index, is_whole);
    assert!(index.memory_bytes() > 0);
}

/// Goes through the rows of an index in the order of each field that keeps one.
fn order(index: &PayloadIndex, is_whole: bool) {
    let schema = index.schema();
    for (path, _) in schema.fields() {
        let Some(field) = SortField::of_schema(&schema, path) else { continue };
        for is_descending in [false, true] {
            let ended = index.in_order(&field, is_descending, None, |_, row| {
                assert!(row < ROWS);
                Ok(std::ops::ControlFlow::Continue(()))
            });
            assert!(ended.is_ok() || !is_whole);
        }
        assert!(index.several(&field).is_ok() || !is_whole);
    }
}

/// Recomputes the checksums of all parts of a file that lie one behind another, and of its end.
fn sealed(mut file: Vec<u8>) -> Vec<u8> {
    let Some(end) = file.len().checked_sub(FILE_END) else { return file };
    let mut at = 0;
    while at + PART_HEAD <= end {
        let length = file[at..].first_chunk::<4>().map_or(0, |bytes| u32::from_le_bytes(*bytes) as usize);
        let Some(content) =
            file.get(at + PART_HEAD..at + PART_HEAD + length).filter(|_| at + PART_HEAD + length <= end)
        else {
            break;
        };
        let sum = seeded_checksum(at as u64, content).to_le_bytes();
        file[at + 4..at + PART_HEAD].copy_from_slice(&sum);
        at += PART_HEAD + length;
    }
    file[end + 8..end + 16].copy_from_slice(&(end as u64).to_le_bytes());
    let sum = seeded_checksum(0, &file[end..end + 16]).to_le_bytes();
    file[end + 16..end + 24].copy_from_slice(&sum);
    file
}

/// Seeds of the targets: target, name, content.
pub fn seeds() -> Vec<(&'static str, String, Vec<u8>)> {
    let mut seeds = Vec::new();
    let mut random = Random(9);
    for at in 0..6 {
        let filter = random.filter().to_value().to_string();
        seeds.push(("filter_json", format!("filter-{at}"), filter.into_bytes()));
    }
    let texts = [
        "price < 50 and brand = 'x'",
        "not (a in (1, 'x', null)) or b between date '2024-05-01' and date '2024-05-02'",
        "`first name`.`a.b`[0].c[] like '%x\\_%' and count(a) >= 2",
        "nested(a, b = 1 and c != 2) and at_least(2, a match any 'x y', exists(b), is_null(c))",
        "has_id(7, 'f47ac10b-58cc-4372-a567-0e02b2c3d479') and has_vector('image') and a phrase \"x \"\"y\"",
    ];
    seeds.extend((0..).zip(texts).map(|(at, text)| ("filter_where", format!("text-{at}"), text.into())));
    for (at, rest) in
        ["a[].x\n{\"x\":1}", "b[0].x\n{}", "`a.b`.c\n{\"y\":[null,1e300]}"].into_iter().enumerate()
    {
        let json = [r#"{"a":[{"x":1},{"x":[2,"\u0000"]}],"b":[0.1],"a.b":{"c":18446744073709551615}}"#, rest]
            .join("\n");
        seeds.push(("payload_json", format!("update-{at}"), json.into_bytes()));
    }
    let raw =
        [&2u32.to_le_bytes()[..], &[1u32, 9, 2, 7].map(u32::to_le_bytes).concat(), br#"{}{"a":1}"#].concat();
    seeds.push(("payload_rows", "block".into(), [&[0], &raw[..]].concat()));
    for (target, place) in [("payload_rows", 1..2), ("payload_index", 0..0)] {
        for number in 0..8u8 {
            let change = |i: u8| [i % 8, i.wrapping_mul(37), i.wrapping_mul(11), 0, 1, i, number];
            let changes = [change(number), change(number.wrapping_add(5))].concat();
            let choice = vec![1; place.len()];
            seeds.push((target, format!("change-{number}"), [&choice[..], &[1], &changes].concat()));
        }
        seeds.push((target, "valid".into(), [&vec![1; place.len()][..], &[1]].concat()));
    }
    // A map of terms that has another byte.
    seeds.push(("payload_index", "terms".into(), vec![1, 3, 111, 104, 6, 222, 66, 0, 37, 1]));
    seeds
}

/// Runs a target.
///
/// # Panics
/// For a target that is none of this module.
pub fn run(target: &str, data: &[u8]) {
    match target {
        "filter_json" => filter_json(data),
        "filter_where" => filter_where(data),
        "payload_json" => payload_json(data),
        "payload_rows" => payload_rows(data),
        "payload_index" => payload_index(data),
        other => panic!("no target {other}"),
    }
}
