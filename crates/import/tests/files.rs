//! Files of columns, lines and arrays, as other programs write them.
#![allow(missing_docs)]

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow_array::builder::*;
use arrow_array::types::*;
use arrow_array::*;
use arrow_ipc::writer::{FileWriter, StreamWriter};
use arrow_schema::{DataType, Field};
use parquet::arrow::ArrowWriter;
use parquet::basic::{BrotliLevel, Compression, GzipLevel, ZstdLevel};
use parquet::file::properties::WriterProperties;
use serde_json::{Value, json};
use stratann_import::export::{IdKinds, ParquetWriter, Points, VectorShape};
use stratann_import::{Columns, PayloadColumns, Rows, VectorColumn, Wanted, open, shapes_of};
use stratann_kernel::{DType, Metric};
use stratann_payload::IdValue;
use stratann_storage::Result;
use tempfile::TempDir;

const ROWS: usize = 10_000;

fn named(name: &str, dim: usize, dtype: DType) -> Wanted {
    Wanted { name: name.into(), dim, dtype, metric: Metric::L2 }
}

fn wanted(dim: usize, dtype: DType) -> Wanted {
    named("", dim, dtype)
}

fn shape_of(path: &Path, columns: &Columns) -> Result<(usize, DType)> {
    Ok(shapes_of(path, columns, &[""])?[0])
}

fn columns(ids: Option<&str>, vectors: Option<&str>, payload: &[&str]) -> Columns {
    let payload = match payload {
        ["all"] => PayloadColumns::All,
        [] => PayloadColumns::Nothing,
        these => PayloadColumns::These(these.iter().map(|name| name.to_string()).collect()),
    };
    let vectors = vectors.into_iter().map(|column| (String::new(), column.into())).collect();
    Columns { ids: ids.map(String::from), vectors, payload }
}

/// All rows of a file as one.
fn read(path: &Path, columns: &Columns, wanted: &Wanted) -> Result<Rows> {
    read_named(path, columns, std::slice::from_ref(wanted)).map(|(rows, _)| rows)
}

/// All rows of a file as one, and names of vectors that none of them has.
fn read_named(path: &Path, columns: &Columns, wanted: &[Wanted]) -> Result<(Rows, Vec<String>)> {
    let mut file = open(path, columns, wanted)?;
    let column = |own: &Wanted| VectorColumn { name: own.name.clone(), ..VectorColumn::default() };
    let mut all = Rows { vectors: wanted.iter().map(column).collect(), ..Rows::default() };
    while let Some(rows) = file.next_rows()? {
        assert_eq!(rows.first, all.count as u64);
        let bytes: usize = rows.vectors.iter().map(|own| own.vectors.len()).sum();
        assert!(bytes <= 4 << 20 && rows.count > 0);
        all.count += rows.count;
        if let Some(ids) = rows.ids {
            all.ids.get_or_insert_default().extend(ids);
        }
        for (own, of_batch) in all.vectors.iter_mut().zip(rows.vectors) {
            own.vectors.extend(of_batch.vectors);
            own.has.extend(of_batch.has);
        }
        all.payloads.extend(rows.payloads);
    }
    assert!(all.vectors.iter().all(|own| own.has.len() == all.count));
    Ok((all, file.names_without()))
}

fn refused(path: &Path, columns: &Columns, wanted: &Wanted, why: &str) {
    let error = read(path, columns, wanted).unwrap_err();
    assert!(error.message.contains(why), "{error}");
    assert!(error.message.contains(path.file_name().unwrap().to_str().unwrap()), "{error}");
}

fn floats(rows: &[[f32; 2]]) -> ArrayRef {
    let rows = rows.iter().map(|row| Some(row.iter().copied().map(Some).collect::<Vec<_>>()));
    Arc::new(ListArray::from_iter_primitive::<Float32Type, _, _>(rows))
}

fn batch(columns: Vec<(&str, ArrayRef)>) -> RecordBatch {
    RecordBatch::try_from_iter(columns).unwrap()
}

fn write_parquet(folder: &TempDir, name: &str, batch: &RecordBatch, compression: Compression) -> PathBuf {
    let path = folder.path().join(name);
    let properties = WriterProperties::builder()
        .set_compression(compression)
        .set_max_row_group_row_count(Some(3000))
        .set_data_page_size_limit(10_000);
    let file = File::create(&path).unwrap();
    let mut writer = ArrowWriter::try_new(file, batch.schema(), Some(properties.build())).unwrap();
    writer.write(batch).unwrap();
    writer.close().unwrap();
    path
}

fn parquet(folder: &TempDir, batch: &RecordBatch) -> PathBuf {
    write_parquet(folder, "a.parquet", batch, Compression::SNAPPY)
}

fn payload(rows: &Rows, row: usize) -> Value {
    let own = rows.payloads.get(row).and_then(Option::as_ref);
    own.map_or(Value::Null, |json| serde_json::from_slice(json).unwrap())
}

/// Many rows with ids and a column with a dot in its name.
fn many() -> RecordBatch {
    let ids: ArrayRef = Arc::new(UInt64Array::from_iter_values((0..ROWS as u64).map(|id| id * 3)));
    let vectors: Vec<[f32; 2]> = (0..ROWS).map(|row| [row as f32, 0.1]).collect();
    let texts: ArrayRef = Arc::new(StringArray::from_iter_values((0..ROWS).map(|row| format!("text {row}"))));
    batch(vec![("id", ids), ("a.vector", floats(&vectors)), ("a.b", texts)])
}

fn check_many(path: &Path) {
    let own = columns(None, Some("a.vector"), &["all"]);
    let rows = read(path, &own, &wanted(2, DType::F32)).unwrap();
    assert_eq!((rows.count, rows.ids.as_ref().unwrap()[777].clone()), (ROWS, IdValue::Number(2331)));
    assert_eq!(rows.vectors[0].vectors[777 * 8..778 * 8], [777f32, 0.1].map(f32::to_le_bytes).concat());
    assert_eq!(payload(&rows, ROWS - 1), json!({ "a.b": "text 9999" }));
    assert_eq!(shape_of(path, &own).unwrap(), (2, DType::F32));
    let mut file = open(path, &own, &[wanted(2, DType::F32)]).unwrap();
    assert_eq!(file.skip(6001).unwrap(), 6001);
    let rest = file.next_rows().unwrap().unwrap();
    assert_eq!((rest.first, rest.ids.unwrap()[0].clone()), (6001, IdValue::Number(18_003)));
    assert_eq!(file.skip(u64::MAX).unwrap(), (ROWS - 6001 - rest.count) as u64);
}

#[test]
fn parquet_of_every_compression() {
    let folder = tempfile::tempdir().unwrap();
    for compression in [
        Compression::UNCOMPRESSED,
        Compression::SNAPPY,
        Compression::ZSTD(ZstdLevel::default()),
        Compression::GZIP(GzipLevel::default()),
        Compression::LZ4_RAW,
        Compression::BROTLI(BrotliLevel::default()),
    ] {
        check_many(&write_parquet(&folder, "many.parquet", &many(), compression));
    }
}

#[test]
fn arrow_files_and_streams() {
    let folder = tempfile::tempdir().unwrap();
    let (all, path) = (many(), folder.path().join("many.arrow"));
    let mut writer = FileWriter::try_new(File::create(&path).unwrap(), &all.schema()).unwrap();
    for first in (0..ROWS).step_by(2500) {
        writer.write(&all.slice(first, 2500)).unwrap();
    }
    writer.finish().unwrap();
    check_many(&path);
    let path = folder.path().join("many.arrows");
    let mut writer = StreamWriter::try_new(File::create(&path).unwrap(), &all.schema()).unwrap();
    writer.write(&all).unwrap();
    writer.finish().unwrap();
    check_many(&path);
}

#[test]
fn vectors_of_every_type_and_their_limits() {
    let folder = tempfile::tempdir().unwrap();
    fn fixed<T: ArrowPrimitiveType>(values: Vec<T::Native>) -> ArrayRef {
        let item = Arc::new(Field::new("item", T::DATA_TYPE, true));
        let values = PrimitiveArray::<T>::from_iter_values(values);
        Arc::new(FixedSizeListArray::try_new(item, 2, Arc::new(values), None).unwrap())
    }
    let half = half::f16::from_f32;
    let f32s = |a: f32, b: f32| [a, b].map(f32::to_le_bytes).concat();
    for (column, dtype, result) in [
        (fixed::<Float32Type>(vec![0.1, -0.0]), DType::F32, Ok(f32s(0.1, -0.0))),
        (fixed::<Float64Type>(vec![0.1, 1e-300]), DType::F32, Ok(f32s(0.1, 0.0))),
        (fixed::<Float16Type>(vec![half(0.5), half(2.0)]), DType::F32, Ok(f32s(0.5, 2.0))),
        (
            fixed::<Float16Type>(vec![half(0.5), half(2.0)]),
            DType::F16,
            Ok([half(0.5), half(2.0)].map(half::f16::to_le_bytes).concat()),
        ),
        (fixed::<Int8Type>(vec![-1, 127]), DType::I8, Ok(vec![255, 127])),
        (fixed::<UInt8Type>(vec![0, 255]), DType::U8, Ok(vec![0, 255])),
        (fixed::<Int64Type>(vec![3, 255]), DType::U8, Ok(vec![3, 255])),
        (fixed::<Int32Type>(vec![3, -4]), DType::F32, Ok(f32s(3.0, -4.0))),
        (
            fixed::<Float64Type>(vec![0.0, 1e39]),
            DType::F32,
            Err("component 1 is 1000000000000000000000000000000000000000, which f32 does not reach"),
        ),
        (fixed::<Float32Type>(vec![f32::NAN, 0.0]), DType::F32, Err("component 0 is NaN")),
        (fixed::<Float32Type>(vec![0.0, f32::INFINITY]), DType::F32, Err("component 1 is infinite")),
        (fixed::<Float32Type>(vec![70_000.0, 0.0]), DType::F16, Err("f16 does not reach")),
        (fixed::<Float32Type>(vec![0.5, 0.0]), DType::U8, Err("u8 does not have exactly")),
        (fixed::<Int64Type>(vec![256, 0]), DType::U8, Err("256, which u8 does not have exactly")),
        (fixed::<Int64Type>(vec![-129, 0]), DType::I8, Err("i8 does not have")),
        (fixed::<UInt64Type>(vec![u64::MAX, 0]), DType::F32, Err("f32 does not have")),
        (fixed::<Int32Type>(vec![16_777_217, 0]), DType::F32, Err("f32 does not have")),
    ] {
        let path = parquet(&folder, &batch(vec![("v", column)]));
        let read = read(&path, &Columns::default(), &wanted(2, dtype));
        match (result, read) {
            (Ok(wanted), read) => assert_eq!(read.unwrap().vectors[0].vectors, wanted),
            (Err(why), read) => {
                let error = read.unwrap_err();
                assert!(
                    error.message.contains(why)
                        && error.message.contains("row 0 of")
                        && error.message.contains("column \"v\""),
                    "{error}"
                );
            }
        }
    }
}

#[test]
fn rows_without_whole_vectors_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let lists = |rows: Vec<Option<Vec<Option<f32>>>>| -> ArrayRef {
        Arc::new(ListArray::from_iter_primitive::<Float32Type, _, _>(rows))
    };
    let whole = || Some(vec![Some(1.0), Some(2.0)]);
    for (rows, why) in [
        (vec![whole(), None], "row 1 of"),
        (vec![whole(), None], "the vector is null"),
        (vec![whole(), Some(vec![Some(1.0), None])], "component 1 is null"),
        (vec![whole(), Some(vec![Some(1.0)])], "the vector has 1 dimensions, the collection has 2"),
        (vec![whole(), Some(vec![])], "the vector has 0 dimensions"),
    ] {
        let path = parquet(&folder, &batch(vec![("v", lists(rows))]));
        refused(&path, &Columns::default(), &wanted(2, DType::F32), why);
    }
    let path = parquet(&folder, &batch(vec![("v", floats(&[[1.0, 0.0], [0.0, 0.0]]))]));
    let cosine = Wanted { metric: Metric::Cosine, ..wanted(2, DType::F32) };
    refused(&path, &Columns::default(), &cosine, "row 1 of");
}

#[test]
fn ids_are_numbers_uuids_and_texts() {
    let folder = tempfile::tempdir().unwrap();
    let uuid = "f47ac10b-58cc-4372-a567-0e02b2c3d479";
    let three = || floats(&[[0.0, 0.0], [1.0, 0.0], [2.0, 0.0]]);
    let ids = |column: ArrayRef| {
        let path = parquet(&folder, &batch(vec![("id", column), ("v", three())]));
        read(&path, &Columns::default(), &wanted(2, DType::F32))
            .map(|rows| rows.ids.unwrap().iter().map(IdValue::to_json).collect::<Vec<_>>())
    };
    assert_eq!(ids(Arc::new(Int32Array::from(vec![3, 0, 7]))).unwrap(), [json!(3), json!(0), json!(7)]);
    assert_eq!(
        ids(Arc::new(UInt64Array::from(vec![u64::MAX, 0, 7]))).unwrap(),
        [json!(u64::MAX), json!(0), json!(7)]
    );
    let texts = [uuid, "7", "é"];
    assert_eq!(ids(Arc::new(StringArray::from(texts.to_vec()))).unwrap(), texts);
    let dictionary: DictionaryArray<Int8Type> = texts.into_iter().collect();
    assert_eq!(ids(Arc::new(dictionary)).unwrap(), texts);
    let bytes = FixedSizeBinaryArray::try_from_iter([[0u8; 16], [1; 16], [255; 16]].into_iter()).unwrap();
    assert_eq!(ids(Arc::new(bytes)).unwrap()[0], "00000000-0000-0000-0000-000000000000");
    let long = "x".repeat(256);
    for (column, why) in [
        (Arc::new(Int32Array::from(vec![3, -1, 7])) as ArrayRef, "row 1 of"),
        (Arc::new(Int32Array::from(vec![3, -1, 7])), "the id is negative"),
        (Arc::new(Int32Array::from(vec![Some(3), None, Some(7)])), "the id is null"),
        (Arc::new(StringArray::from(vec!["a", "", "c"])), "the id has 0 bytes"),
        (Arc::new(StringArray::from(vec!["a", "b", &long])), "the id has 256 bytes"),
        (Arc::new(Float64Array::from(vec![1.0, 2.0, 3.0])), "has no ids"),
    ] {
        let error = ids(column).unwrap_err();
        assert!(error.message.contains(why) && error.message.contains("column \"id\""), "{error}");
    }
}

#[test]
fn columns_become_fields() {
    let folder = tempfile::tempdir().unwrap();
    let mut map = MapBuilder::new(None, StringBuilder::new(), Int32Builder::new());
    map.keys().append_value("k");
    map.values().append_value(5);
    map.append(true).unwrap();
    map.append(true).unwrap();
    let list = ListArray::from_iter_primitive::<Int64Type, _, _>([Some(vec![Some(1), None]), None]);
    let inner: ArrayRef = Arc::new(list.clone());
    let object = StructArray::from(vec![
        (
            Arc::new(Field::new("x", DataType::Boolean, true)),
            Arc::new(BooleanArray::from(vec![Some(true), None])) as ArrayRef,
        ),
        (Arc::new(Field::new("deep", inner.data_type().clone(), true)), inner),
    ]);
    let dictionary: DictionaryArray<Int32Type> = [Some("red"), None].into_iter().collect();
    let decimal = Decimal128Array::from(vec![1250, -5]).with_precision_and_scale(10, 2).unwrap();
    let moment = 1_714_564_800_123_456i64;
    let all = batch(vec![
        ("v", floats(&[[0.0, 0.0], [1.0, 1.0]])),
        ("text", Arc::new(LargeStringArray::from(vec![Some("é\0"), None]))),
        ("view", Arc::new(StringViewArray::from(vec!["a long text beyond twelve bytes", ""]))),
        ("u64", Arc::new(UInt64Array::from(vec![u64::MAX, 0]))),
        ("i64", Arc::new(Int64Array::from(vec![i64::MIN, 0]))),
        ("f32", Arc::new(Float32Array::from(vec![0.1, 1.0]))),
        ("f64", Arc::new(Float64Array::from(vec![0.1, 1e300]))),
        ("decimal", Arc::new(decimal)),
        ("day", Arc::new(Date32Array::from(vec![19_844, 0]))),
        ("utc", Arc::new(TimestampMicrosecondArray::from(vec![moment, 0]).with_timezone("Europe/Berlin"))),
        ("local", Arc::new(TimestampMillisecondArray::from(vec![moment / 1000, 0]))),
        ("time", Arc::new(Time64MicrosecondArray::from(vec![45_000_000_000, 1]))),
        ("list", Arc::new(list)),
        ("object", Arc::new(object)),
        ("map", Arc::new(map.finish())),
        ("dictionary", Arc::new(dictionary)),
    ]);
    let path = parquet(&folder, &all);
    let rows = read(&path, &columns(None, Some("v"), &["all"]), &wanted(2, DType::F32)).unwrap();
    let first = json!({
        "text": "é\0", "view": "a long text beyond twelve bytes", "u64": u64::MAX, "i64": i64::MIN, "f32": 0.1, "f64": 0.1,
        "decimal": 12.5, "day": "2024-05-01", "utc": "2024-05-01T12:00:00.123456Z", "local": "2024-05-01T12:00:00.123",
        "time": "12:30:00", "list": [1, null], "object": { "x": true, "deep": [1, null] }, "map": { "k": 5 },
        "dictionary": "red",
    });
    assert_eq!(payload(&rows, 0), first);
    let second = payload(&rows, 1);
    assert_eq!(
        (&second["text"], &second["list"], &second["map"], &second["dictionary"]),
        (&Value::Null, &Value::Null, &json!({}), &Value::Null)
    );
    assert_eq!((&second["decimal"], &second["object"]), (&json!(-0.05), &json!({ "x": null, "deep": null })));
    let two = read(&path, &columns(None, Some("v"), &["day", "list"]), &wanted(2, DType::F32)).unwrap();
    assert_eq!(payload(&two, 0), json!({ "day": "2024-05-01", "list": [1, null] }));
    assert!(read(&path, &columns(None, Some("v"), &[]), &wanted(2, DType::F32)).unwrap().payloads.is_empty());
    refused(&path, &Columns::default(), &wanted(2, DType::F32), "choose one with --vectors: \"v\", \"list\"");
}

#[test]
fn what_has_no_json_names_its_column() {
    let folder = tempfile::tempdir().unwrap();
    let one = || floats(&[[0.0, 1.0]]);
    let decimal =
        Decimal128Array::from(vec![12_345_678_901_234_567_890]).with_precision_and_scale(30, 2).unwrap();
    for (column, why) in [
        (
            Arc::new(BinaryArray::from(vec![b"x".as_slice()])) as ArrayRef,
            "the column \"odd\" has values of type Binary",
        ),
        (Arc::new(BinaryArray::from(vec![b"x".as_slice()])), "or with --payload none"),
        (Arc::new(DurationSecondArray::from(vec![1])), "the column \"odd\" has values of type Duration"),
        (Arc::new(Float64Array::from(vec![f64::NAN])), "row 0 of"),
        (Arc::new(Float64Array::from(vec![f64::NAN])), "column \"odd\": NaN has no form in JSON"),
        (Arc::new(decimal), "has more than 15 digits"),
        (Arc::new(Date32Array::from(vec![i32::MAX])), "a date is out of range"),
        (Arc::new(StringArray::from(vec!["x".repeat(2 << 20)])), "the payload has"),
    ] {
        let all = batch(vec![("v", one()), ("odd", column)]);
        let path = folder.path().join("odd.arrows");
        let mut writer = StreamWriter::try_new(File::create(&path).unwrap(), &all.schema()).unwrap();
        writer.write(&all).unwrap();
        writer.finish().unwrap();
        refused(&path, &Columns::default(), &wanted(2, DType::F32), why);
        let without = columns(None, None, &[]);
        assert_eq!(read(&path, &without, &wanted(2, DType::F32)).unwrap().count, 1);
    }
}

#[test]
fn a_column_of_objects_named_payload_is_the_payload() {
    let folder = tempfile::tempdir().unwrap();
    let object = StructArray::from(vec![(
        Arc::new(Field::new("a", DataType::Int32, true)),
        Arc::new(Int32Array::from(vec![1, 2])) as ArrayRef,
    )]);
    let all = batch(vec![
        ("v", floats(&[[0.0, 0.0], [1.0, 1.0]])),
        ("payload", Arc::new(object.clone())),
        ("b", Arc::new(Int32Array::from(vec![3, 4]))),
    ]);
    let rows = read(&parquet(&folder, &all), &Columns::default(), &wanted(2, DType::F32)).unwrap();
    assert_eq!(payload(&rows, 1), json!({ "a": 2, "b": 4 }));
    let twice = batch(vec![
        ("v", floats(&[[0.0, 0.0], [1.0, 1.0]])),
        ("payload", Arc::new(object)),
        ("a", Arc::new(Int32Array::from(vec![3, 4]))),
    ]);
    refused(
        &parquet(&folder, &twice),
        &Columns::default(),
        &wanted(2, DType::F32),
        "the field \"a\" is in two columns",
    );
    // A text is a field.
    let text =
        batch(vec![("v", floats(&[[0.0, 0.0]])), ("payload", Arc::new(StringArray::from(vec!["{}"])))]);
    let rows = read(&parquet(&folder, &text), &Columns::default(), &wanted(2, DType::F32)).unwrap();
    assert_eq!(payload(&rows, 0), json!({ "payload": "{}" }));
}

#[test]
fn exported_points_come_back_bit_for_bit() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("points.parquet");
    let uuid = || IdValue::Uuid([7; 16]);
    let (number, text) = (|| IdValue::Number(u64::MAX), || IdValue::Text("7".into()));
    let payloads =
        [br#"{"a":[1,null,{"b":1e+300}],"u":18446744073709551615}"#.as_slice(), br#"{"t":"\u0000"}"#];
    for (kinds, ids) in [
        (IdKinds::Numbers, vec![IdValue::Number(0), number(), IdValue::Number(7)]),
        (IdKinds::Texts, vec![uuid(), text(), IdValue::Text("é".into())]),
        (IdKinds::Mixed, vec![IdValue::Number(7), uuid(), text()]),
    ] {
        for (dtype, vectors) in [
            (DType::F32, [0.1f32, -0.0, 1e-45, f32::MIN_POSITIVE, 3e18, -1.0].map(f32::to_le_bytes).concat()),
            (DType::F16, [0x0001u16, 0x8000, 0x7bff, 0x3c00, 0x0400, 0xc000].map(u16::to_le_bytes).concat()),
            (DType::U8, vec![0, 255, 1, 128, 127, 3]),
            (DType::I8, vec![0, 255, 1, 128, 127, 3]),
        ] {
            let shape = VectorShape { name: String::new(), dim: 2, dtype };
            let mut writer =
                ParquetWriter::new(File::create(&path).unwrap(), &path, &[shape], kinds).unwrap();
            let points = Points {
                ids: ids.clone(),
                vectors: vec![vectors.chunks(2 * dtype.size()).map(Some).collect()],
                payloads: vec![Some(payloads[0]), None, Some(payloads[1])],
            };
            writer.write(&points).unwrap();
            writer.finish().unwrap();
            let rows = read(&path, &Columns::default(), &wanted(2, dtype)).unwrap();
            assert_eq!((rows.ids.as_ref().unwrap(), &rows.vectors[0].vectors), (&ids, &vectors));
            let own: Vec<Option<&[u8]>> = rows.payloads.iter().map(Option::as_deref).collect();
            assert_eq!(own, points.payloads);
        }
    }
}

#[test]
fn damaged_files_are_bad_input() {
    let folder = tempfile::tempdir().unwrap();
    let all = many();
    let good =
        write_parquet(&folder, "good.parquet", &all.slice(0, 200), Compression::ZSTD(ZstdLevel::default()));
    let stream = folder.path().join("good.arrows");
    let mut writer = StreamWriter::try_new(File::create(&stream).unwrap(), &all.schema()).unwrap();
    writer.write(&all.slice(0, 200)).unwrap();
    writer.finish().unwrap();
    let own = columns(None, Some("a.vector"), &["all"]);
    let mut refused = 0;
    for (path, suffix) in [(good, "parquet"), (stream, "arrows")] {
        let bytes = std::fs::read(&path).unwrap();
        let damaged = folder.path().join(format!("damaged.{suffix}"));
        let step = (bytes.len() / 150).max(1);
        for at in (0..bytes.len()).step_by(step) {
            let mut cut = bytes.clone();
            cut.truncate(at);
            let mut flipped = bytes.clone();
            flipped[at] ^= 0xff;
            for wrong in [cut, flipped] {
                std::fs::write(&damaged, wrong).unwrap();
                // Not all bytes are covered by checks; what matters is that nothing panics.
                refused += usize::from(read(&damaged, &own, &wanted(2, DType::F32)).is_err());
            }
        }
    }
    assert!(refused > 300, "{refused}");
    let text = folder.path().join("text.parquet");
    std::fs::write(&text, "no parquet").unwrap();
    let error = read(&text, &own, &wanted(2, DType::F32)).unwrap_err();
    assert!(error.message.contains("cannot be read as Parquet"), "{error}");
}

#[test]
fn lines_of_json() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("points.jsonl");
    let write = |text: &str| std::fs::write(&path, text).unwrap();
    write(
        r#"{"id": 9007199254740993, "vector": [0.1, 1], "payload": {"a": 1}, "b": [2]}

{"vector": [3e-45, -0.0], "id": "x", "payload": null}
{"vector": [1, 2], "id": "00000000-0000-0000-0000-000000000000", "c": {"d": null}}"#,
    );
    let rows = read(&path, &Columns::default(), &wanted(2, DType::F32)).unwrap();
    let ids: Vec<Value> = rows.ids.as_ref().unwrap().iter().map(IdValue::to_json).collect();
    assert_eq!(
        ids,
        [json!(9_007_199_254_740_993u64), json!("x"), json!("00000000-0000-0000-0000-000000000000")]
    );
    assert!(matches!(rows.ids.as_ref().unwrap()[2], IdValue::Uuid(_)));
    let floats = [0.1f32, 1.0, 3e-45, -0.0, 1.0, 2.0].map(f32::to_le_bytes).concat();
    assert_eq!(rows.vectors[0].vectors, floats);
    assert_eq!((payload(&rows, 0), payload(&rows, 1)), (json!({ "a": 1, "b": [2] }), Value::Null));
    assert_eq!(payload(&rows, 2), json!({ "c": { "d": null } }));
    let mut file = open(&path, &Columns::default(), &[wanted(2, DType::F32)]).unwrap();
    assert_eq!(file.skip(2).unwrap(), 2);
    assert_eq!(file.next_rows().unwrap().unwrap().first, 2);
    assert_eq!(shape_of(&path, &Columns::default()).unwrap(), (2, DType::F32));

    let good = r#"{"id": 1, "vector": [1, 2]}"#;
    for (line, why) in [
        ("[1]", "line 2: it is no JSON object"),
        (r#"{"id": 1, "vector": [1, NaN]}"#, "line 2"),
        (
            r#"{"id": 1, "vector": [1, null]}"#,
            "line 2: the field \"vector\": it is no list of finite numbers",
        ),
        (r#"{"id": 1, "vector": [1, 1e39]}"#, "line 2: the field \"vector\""),
        (r#"{"id": 1, "vector": [1]}"#, "the vector has 1 dimensions, the collection has 2"),
        (r#"{"id": 1}"#, "the field \"vector\" is not there"),
        (r#"{"vector": [1, 2]}"#, "the field \"id\" is not there"),
        (r#"{"id": -1, "vector": [1, 2]}"#, "the field \"id\": the id is no id"),
        (r#"{"id": 1.5, "vector": [1, 2]}"#, "the id is no id"),
        (r#"{"id": 1, "vector": [1, 2], "payload": 3}"#, "the field \"payload\" is no object"),
        (
            r#"{"id": 1, "vector": [1, 2], "payload": {"a": 1}, "a": 2}"#,
            "the field \"a\" is there, and in \"payload\"",
        ),
    ] {
        write(&format!("{good}\n{line}\n"));
        refused(&path, &Columns::default(), &wanted(2, DType::F32), why);
    }
    write(&format!("{good}\n{}\n", "x".repeat(4 << 20)));
    refused(&path, &Columns::default(), &wanted(2, DType::F32), "line 2: it has more than");
    write("");
    assert_eq!(read(&path, &Columns::default(), &wanted(2, DType::F32)).unwrap().count, 0);
    assert!(shape_of(&path, &Columns::default()).unwrap_err().message.contains("has no rows"));
}

#[test]
fn arrays_have_vectors_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.fbin");
    let header = [2u32, 2].map(u32::to_le_bytes).concat();
    std::fs::write(&path, [header.clone(), [1.0f32, 2.0, 3.0, 4.0].map(f32::to_le_bytes).concat()].concat())
        .unwrap();
    let rows = read(&path, &Columns::default(), &wanted(2, DType::U8)).unwrap();
    assert_eq!((rows.ids, &rows.vectors[0].vectors[..], rows.payloads.len()), (None, &[1, 2, 3, 4][..], 0));
    refused(&path, &Columns::default(), &wanted(3, DType::F32), "has 2 dimensions, the collection has 3");
    refused(&path, &columns(Some("id"), None, &[]), &wanted(2, DType::F32), "leave --ids out");
    std::fs::write(&path, [header, [1.0f32, 2.0, f32::NAN, 4.0].map(f32::to_le_bytes).concat()].concat())
        .unwrap();
    refused(&path, &Columns::default(), &wanted(2, DType::F32), "row 1 of");
    refused(
        &folder.path().join("a.txt"),
        &Columns::default(),
        &wanted(2, DType::F32),
        "unknown vector format",
    );
}

/// Vectors of two names, by row.
fn two_names() -> [Wanted; 2] {
    [named("image", 2, DType::U8), named("title", 2, DType::F32)]
}

fn check_two_names(path: &Path, columns: &Columns, payloads: &[Value]) {
    let (rows, without) = read_named(path, columns, &two_names()).unwrap();
    let [image, title] = &rows.vectors[..] else { panic!("two names") };
    assert_eq!((&image.vectors[..], &image.has[..]), (&[1, 2, 5, 6][..], &[true, false, true, false][..]));
    let floats = [0.5f32, 1.0, 2.0, 3.0].map(f32::to_le_bytes).concat();
    assert_eq!((&title.vectors, &title.has[..]), (&floats, &[true, true, false, false][..]));
    assert_eq!((0..4).map(|row| payload(&rows, row)).collect::<Vec<_>>(), payloads);
    assert!(without.is_empty());
    let shapes = shapes_of(path, columns, &["image", "title"]).unwrap();
    assert_eq!(shapes.iter().map(|shape| shape.0).collect::<Vec<_>>(), [2, 2]);
}

/// A column of lists some of which are null.
fn lists<T: ArrowPrimitiveType>(rows: &[Option<[T::Native; 2]>]) -> ArrayRef {
    let row = |row: &Option<[T::Native; 2]>| row.map(|row| row.into_iter().map(Some).collect::<Vec<_>>());
    Arc::new(ListArray::from_iter_primitive::<T, _, _>(rows.iter().map(row)))
}

#[test]
fn vectors_by_name_are_columns_that_may_be_null() {
    let folder = tempfile::tempdir().unwrap();
    let image = lists::<UInt8Type>(&[Some([1, 2]), None, Some([5, 6]), None]);
    let title = lists::<Float32Type>(&[Some([0.5, 1.0]), Some([2.0, 3.0]), None, None]);
    let ids: ArrayRef = Arc::new(UInt64Array::from(vec![1, 2, 3, 4]));
    let path = parquet(
        &folder,
        &batch(vec![("id", ids.clone()), ("image", image.clone()), ("title", title.clone())]),
    );
    check_two_names(&path, &Columns::default(), &[Value::Null, Value::Null, Value::Null, Value::Null]);
    let texts: ArrayRef = Arc::new(StringArray::from(vec!["a", "b", "c", "d"]));
    let all =
        batch(vec![("id", ids.clone()), ("i", image.clone()), ("title", title.clone()), ("image", texts)]);
    let path = parquet(&folder, &all);
    let chosen = Columns { vectors: vec![("image".into(), "i".into())], ..Columns::default() };
    check_two_names(&path, &chosen, &["a", "b", "c", "d"].map(|text| json!({ "image": text })));
    // Without a choice there is no column for the name, which the file says, and its text is of the payload.
    let none = Columns { payload: PayloadColumns::Nothing, ..Columns::default() };
    let (rows, without) = read_named(&path, &none, &two_names()).unwrap();
    assert_eq!((without, &rows.vectors[0].has[..]), (vec!["image".to_string()], &[false; 4][..]));
    assert!(
        shapes_of(&path, &none, &["image"])
            .unwrap_err()
            .message
            .contains("no column of lists of numbers for")
    );
    let refused = |columns: &Columns, names: &[Wanted], why: &str| {
        let error = read_named(&path, columns, names).unwrap_err();
        assert!(error.message.contains(why), "{error}");
    };
    refused(
        &none,
        &[named("x", 2, DType::F32), named("y", 2, DType::F32)],
        "for the vectors \"x\", \"y\" among",
    );
    let three = [named("title", 3, DType::F32), named("x", 1, DType::F32)];
    refused(&none, &three, "row 0 of");
    refused(&none, &three, "column \"title\": the vector has 2 dimensions");
    let bytes = [named("title", 2, DType::U8), named("x", 1, DType::F32)];
    refused(&none, &bytes, "column \"title\": component 0 is 0.5, which u8 does not have exactly");
    // One vector without a name is never absent.
    let title_only = columns(None, Some("title"), &[]);
    refused(&title_only, &[wanted(2, DType::F32)], "row 2 of");
    let empty = parquet(&folder, &batch(vec![("id", ids), ("title", lists::<Float32Type>(&[None; 4]))]));
    let error = shapes_of(&empty, &none, &["title"]).unwrap_err();
    assert!(error.message.contains("no row with a vector of \"title\""), "{error}");
}

#[test]
fn vectors_by_name_are_fields_of_lines() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("points.jsonl");
    let write = |lines: &[&str]| std::fs::write(&path, lines.join("\n")).unwrap();
    let nothing = [Value::Null, Value::Null, Value::Null, Value::Null];
    write(&[
        r#"{"id": 1, "vectors": {"image": [1, 2], "title": [0.5, 1]}, "payload": null}"#,
        r#"{"id": 2, "vectors": {"title": [2, 3], "image": null}}"#,
        r#"{"id": 3, "vectors": {"image": [5, 6]}}"#,
        r#"{"id": 4, "vectors": {}}"#,
    ]);
    check_two_names(&path, &Columns::default(), &nothing);
    write(&[
        r#"{"id": 1, "image": [1, 2], "title": [0.5, 1]}"#,
        r#"{"id": 2, "title": [2, 3], "image": null}"#,
        r#"{"id": 3, "image": [5, 6]}"#,
        r#"{"id": 4}"#,
    ]);
    check_two_names(&path, &Columns::default(), &nothing);
    // Fields with the names of vectors are of the payload where vectors are in an object, or fields are chosen.
    write(&[
        r#"{"id": 1, "vectors": {"image": [1, 2], "title": [0.5, 1]}, "title": ["a"]}"#,
        r#"{"id": 2, "title": null, "vectors": {"title": [2, 3]}}"#,
        r#"{"id": 3, "title": "c", "vectors": {"image": [5, 6]}}"#,
        r#"{"id": 4, "title": "d"}"#,
    ]);
    let texts = [
        json!({ "title": ["a"] }),
        json!({ "title": null }),
        json!({ "title": "c" }),
        json!({ "title": "d" }),
    ];
    check_two_names(&path, &Columns::default(), &texts);
    write(&[
        r#"{"id": 1, "t": [0.5, 1], "image": [1, 2]}"#,
        r#"{"id": 2, "t": [2, 3], "title": "b"}"#,
        r#"{"id": 3, "t": null, "image": [5, 6]}"#,
        r#"{"id": 4}"#,
    ]);
    let chosen = Columns { vectors: vec![("title".into(), "t".into())], ..Columns::default() };
    check_two_names(&path, &chosen, &[Value::Null, json!({ "title": "b" }), Value::Null, Value::Null]);
    for (line, why) in [
        (
            r#"{"vectors": {"titel": [1, 2]}}"#,
            "unknown vector name \"titel\" in \"vectors\"; there are \"image\", \"title\"",
        ),
        (r#"{"vectors": {"title": [1]}}"#, "the field \"title\" in \"vectors\": the vector has 1 dimensions"),
        (r#"{"vectors": {"image": [1, 2.5]}}"#, "the field \"image\" in \"vectors\": component 1 is 2.5"),
        (r#"{"title": ["a"]}"#, "the field \"title\": it is no list of finite numbers"),
    ] {
        write(&[r#"{"vectors": {}}"#, line]);
        let error = read_named(&path, &Columns::default(), &two_names()).unwrap_err();
        assert!(error.message.contains(why) && error.message.contains("points.jsonl, line 2"), "{error}");
    }
    write(&[r#"{"vectors": {"image": [1, 2]}}"#, r#"{"vectors": {}}"#]);
    let (rows, without) = read_named(&path, &Columns::default(), &two_names()).unwrap();
    assert_eq!((rows.count, without), (2, vec!["title".to_string()]));
}

#[test]
fn exported_vectors_by_name_come_back() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("points.parquet");
    let names =
        [("id", DType::U8), ("payload", DType::F16), ("title", DType::F32), ("vectors.id", DType::I8)];
    let vectors: Vec<Vec<u8>> = names.iter().map(|(_, dtype)| vec![7; 2 * dtype.size()]).collect();
    let shape = |&(name, dtype): &(&str, DType)| VectorShape { name: name.into(), dim: 2, dtype };
    let shapes: Vec<VectorShape> = names.iter().map(shape).collect();
    let mut writer =
        ParquetWriter::new(File::create(&path).unwrap(), &path, &shapes, IdKinds::Numbers).unwrap();
    // Bit n of a row says whether it has a vector of the n-th name.
    let has = |row: usize, name: usize| row >> name & 1 == 1;
    let column = |name: usize| (0..16).map(|row| has(row, name).then_some(&vectors[name][..])).collect();
    let points = Points {
        ids: (0..16).map(IdValue::Number).collect(),
        vectors: (0..4).map(column).collect(),
        payloads: vec![None; 16],
    };
    writer.write(&points).unwrap();
    writer.finish().unwrap();
    let wanted: Vec<Wanted> = names.iter().map(|(name, dtype)| named(name, 2, *dtype)).collect();
    let (rows, without) = read_named(&path, &Columns::default(), &wanted).unwrap();
    assert!(without.is_empty() && rows.payloads.iter().all(Option::is_none));
    for (name, own) in rows.vectors.iter().enumerate() {
        assert_eq!(own.has, (0..16).map(|row| has(row, name)).collect::<Vec<_>>());
        assert_eq!(own.vectors, vectors[name].repeat(8));
    }
}

#[test]
fn batches_have_a_limit_of_bytes() {
    const MIB: usize = 1 << 20;
    const ROWS: usize = 120;
    let folder = tempfile::tempdir().unwrap();
    // Nearly a MiB in two rows of three, so that the mean says little of the rest.
    let long = "x".repeat(MIB - 100);
    let text = |row: usize| if row.is_multiple_of(3) { "short" } else { long.as_str() };
    let part = |from: usize| {
        let rows = from..from + 10;
        let ids: ArrayRef = Arc::new(UInt64Array::from_iter_values(rows.clone().map(|row| row as u64)));
        let texts: ArrayRef = Arc::new(StringArray::from_iter_values(rows.map(text)));
        batch(vec![("id", ids), ("vector", floats(&[[1.0, 2.0]; 10])), ("text", texts)])
    };
    let path = |name: &str| folder.path().join(name);
    let (columns, stream, lines) = (path("a.parquet"), path("a.arrows"), path("a.jsonl"));
    // Pages of about a MiB in one row group.
    let properties = WriterProperties::builder()
        .set_compression(Compression::SNAPPY)
        .set_dictionary_enabled(false)
        .set_write_batch_size(1)
        .build();
    let schema = part(0).schema();
    let file = File::create(&columns).unwrap();
    let mut of_columns = ArrowWriter::try_new(file, schema.clone(), Some(properties)).unwrap();
    let mut of_stream = StreamWriter::try_new(File::create(&stream).unwrap(), &schema).unwrap();
    for from in (0..ROWS).step_by(10) {
        of_columns.write(&part(from)).unwrap();
        of_stream.write(&part(from)).unwrap();
    }
    of_columns.close().unwrap();
    of_stream.finish().unwrap();
    let line = |row: usize| json!({ "id": row, "vector": [1, 2], "text": text(row) }).to_string();
    std::fs::write(&lines, (0..ROWS).map(line).collect::<Vec<_>>().join("\n")).unwrap();
    for (path, beyond) in [(columns, 8 * MIB), (stream, 8 * MIB), (lines, MIB)] {
        let (mut batches, mut rows) = (0, 0);
        let counters = allocation_counter::measure(|| {
            let mut file = open(&path, &Columns::default(), &[wanted(2, DType::F32)]).unwrap();
            while let Some(own) = file.next_rows().unwrap() {
                assert!(own.bytes() <= 4 * MIB + beyond, "{} bytes", own.bytes());
                batches += 1;
                rows += own.count;
            }
        });
        assert!(rows == ROWS && batches >= 7, "{batches} batches");
        // All of it has 80 MiB; a batch, what is decoded at once, a record batch of the stream, and copies of a row.
        let path = path.display();
        assert!(counters.bytes_max < 40 * MIB as u64, "{path}: {} MiB", counters.bytes_max >> 20);
    }
}
