//! Every format: round trips, and everything that must be refused, with the words that tell a person why.

use std::path::{Path, PathBuf};
use stratann_params::choices::OnBadRow;

use super::*;
use stratann_kernel::Metric;
use stratann_storage::output::OutputPath;
use stratann_storage::{ErrorKind, Quiet};

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().expect("a temporary folder")
}

/// Distinct bytes that are finite, non-zero floats of every type.
fn some_rows(rows: u64, dim: usize, dtype: DType) -> Vec<u8> {
    let count = rows as usize * dim;
    let value = |i: usize| ((i * 37 + 11) % 101) as f32 - 50.5;
    match dtype {
        DType::F32 => (0..count).flat_map(|i| value(i).to_le_bytes()).collect(),
        DType::F16 => (0..count).flat_map(|i| half::f16::from_f32(value(i)).to_le_bytes()).collect(),
        DType::U8 | DType::I8 => (0..count).map(|i| (i * 37 + 11) as u8).collect(),
    }
}

/// A path that may be written over.
fn to(path: &Path) -> OutputPath {
    OutputPath::check(path, true, &[]).expect("an output path")
}

fn suffix_for(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 => "fbin",
        DType::F16 => "f16bin",
        DType::U8 => "u8bin",
        DType::I8 => "i8bin",
    }
}

fn npy_bytes(version: u8, dict: &str, data: &[u8]) -> Vec<u8> {
    let mut bytes = b"\x93NUMPY".to_vec();
    bytes.extend([version, 0]);
    let fixed = if version == 1 { 10 } else { 12 };
    let mut text = dict.as_bytes().to_vec();
    while !(fixed + text.len() + 1).is_multiple_of(64) {
        text.push(b' ');
    }
    text.push(b'\n');
    match version {
        1 => bytes.extend((text.len() as u16).to_le_bytes()),
        _ => bytes.extend((text.len() as u32).to_le_bytes()),
    }
    bytes.extend(text);
    bytes.extend_from_slice(data);
    bytes
}

fn npy_dict(descr: &str, shape: &str) -> String {
    format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}")
}

fn vecs_bytes(rows: u64, dim: usize, size: usize, data: &[u8]) -> Vec<u8> {
    let row = |r: usize| {
        let mut bytes = (dim as i32).to_le_bytes().to_vec();
        bytes.extend_from_slice(&data[r * dim * size..(r + 1) * dim * size]);
        bytes
    };
    (0..rows as usize).flat_map(row).collect()
}

fn put(folder: &Path, name: &str, bytes: &[u8]) -> PathBuf {
    let path = folder.join(name);
    std::fs::write(&path, bytes).expect("a file");
    path
}

/// Opening (or else reading all rows) must end with bad input that says all of `words`.
#[track_caller]
fn refused(path: &Path, words: &[&str]) {
    let result = Reader::open(path).and_then(|r| r.read_rows(0, r.shape().rows as usize, &mut Vec::new()));
    let error = result.expect_err("must be refused");
    assert_eq!(error.kind, ErrorKind::BadInput, "{error}");
    for word in words {
        assert!(error.message.contains(word), "{:?} lacks {word:?}", error.message);
    }
    assert!(!error.message.contains('\n'));
}

/// Reads in blocks of every size and compares with the whole.
fn check_blocks(reader: &Reader, shape: Shape, data: &[u8]) {
    assert_eq!(reader.shape(), shape);
    let width = shape.row_bytes();
    let mut out = vec![7; 3];
    for first in 0..shape.rows {
        for count in 0..=shape.rows - first {
            reader.read_rows(first, count as usize, &mut out).expect("rows");
            let start = first as usize * width;
            assert_eq!(out, data[start..start + count as usize * width]);
        }
    }
    for (first, count) in [(shape.rows, 1), (0, shape.rows as usize + 1), (u64::MAX, 1)] {
        let error = reader.read_rows(first, count, &mut out).expect_err("outside");
        assert!(error.message.contains("outside"), "{error}");
    }
}

#[test]
fn bin_files_come_back_as_written() {
    let folder = folder();
    for dtype in DType::ALL {
        let shape = Shape { rows: 5, dim: 3, dtype };
        let data = some_rows(5, 3, dtype);
        let path = folder.path().join(format!("a.{}", suffix_for(dtype)));
        write_bin(&to(&path), shape, data.chunks(2 * shape.row_bytes()).map(Ok)).expect("written");
        check_blocks(&Reader::open(&path).expect("opened"), shape, &data);
        check_blocks(&Reader::from_memory(shape, data.clone()).expect("memory"), shape, &data);
    }
    assert_eq!(std::fs::read_dir(folder.path()).expect("listing").count(), 4, "no temporary file is left");
}

#[test]
fn npy_files_of_every_version_and_type() {
    let folder = folder();
    for (dtype, descr) in DType::ALL.into_iter().zip(["<f4", "<f2", "|u1", "|i1"]) {
        for version in 1..=3 {
            let data = some_rows(4, 3, dtype);
            let path = put(folder.path(), "a.npy", &npy_bytes(version, &npy_dict(descr, "(4, 3)"), &data));
            check_blocks(&Reader::open(&path).expect("opened"), Shape { rows: 4, dim: 3, dtype }, &data);
        }
    }
    let spaced = r#"{ "shape":(4L , 3L),"fortran_order" :False, "descr": "|u1"}"#;
    let path = put(folder.path(), "b.NPY", &npy_bytes(1, spaced, &[1; 12]));
    assert_eq!(Reader::open(&path).expect("opened").shape().rows, 4);
}

#[test]
fn npy_files_of_any_order_have_the_same_rows() {
    let folder = folder();
    let (rows, dim) = (5usize, 3usize);
    let value = |row: usize, column: usize| (row * 10 + column) as f32 - 7.5;
    let stored = |descr: &str, value: f32| match descr {
        "<f4" => value.to_le_bytes().to_vec(),
        ">f4" => value.to_be_bytes().to_vec(),
        "<f8" => f64::from(value).to_le_bytes().to_vec(),
        ">f8" => f64::from(value).to_be_bytes().to_vec(),
        "<f2" => half::f16::from_f32(value).to_le_bytes().to_vec(),
        _ => half::f16::from_f32(value).to_be_bytes().to_vec(),
    };
    for descr in ["<f4", ">f4", "<f8", ">f8", "<f2", ">f2"] {
        let dtype = if descr.ends_with('2') { DType::F16 } else { DType::F32 };
        let wanted: Vec<u8> = (0..rows * dim)
            .flat_map(|at| {
                let value = value(at / dim, at % dim);
                if dtype == DType::F16 { stored("<f2", value) } else { stored("<f4", value) }
            })
            .collect();
        for is_fortran in [false, true] {
            let place = |at: usize| if is_fortran { (at % rows, at / rows) } else { (at / dim, at % dim) };
            let data: Vec<u8> = (0..rows * dim)
                .flat_map(|at| {
                    let (row, column) = place(at);
                    stored(descr, value(row, column))
                })
                .collect();
            let dict = npy_dict(descr, "(5, 3)");
            let dict = if is_fortran { dict.replace("False", "True") } else { dict };
            let path = put(folder.path(), "a.npy", &npy_bytes(1, &dict, &data));
            let shape = Shape { rows: rows as u64, dim, dtype };
            check_blocks(&Reader::open(&path).expect("opened"), shape, &wanted);
        }
    }
    let wide = [1e300f64, 1.0].map(f64::to_le_bytes).concat();
    let path = put(folder.path(), "a.npy", &npy_bytes(1, &npy_dict("<f8", "(1, 2)"), &wide));
    let mut row = Vec::new();
    Reader::open(&path).expect("opened").read_rows(0, 1, &mut row).expect("read");
    let bad = check_row(DType::F32, Metric::L2, &row);
    assert_eq!(bad, Some(BadRow::NotFinite { component: 0, nan: false }), "what overflows is refused");
}

#[test]
fn npy_files_that_hold_something_else_say_what_to_convert() {
    let folder = folder();
    let cases = [
        (npy_dict("<f16", "(1, 2)"), vec!["\"<f16\"", "astype(\"float32\")"]),
        (npy_dict(">i4", "(1, 2)"), vec!["\">i4\"", "astype"]),
        (npy_dict("<f8", "(1, 2)"), vec!["2 components of 8 bytes", "copy it again"]),
        (npy_dict("|b1", "(1, 2)"), vec!["\"|b1\""]),
        (npy_dict("<f4", "(2,)"), vec!["1 dimensions of array", "reshape"]),
        (npy_dict("<f4", "()"), vec!["0 dimensions of array"]),
        (npy_dict("<f4", "(1, 1, 2)"), vec!["3 dimensions of array"]),
        (npy_dict("<f4", "(0, 2)"), vec!["0 rows"]),
        (npy_dict("<f4", "(2, 0)"), vec!["0 dimensions"]),
        (npy_dict("<f4", "(1, 70000)"), vec!["70000 dimensions", "65536"]),
        (npy_dict("<f4", "(9223372036854775807, 3)"), vec!["truncated"]),
        ("{'descr': [('x', '<f4')], 'fortran_order': False, 'shape': (1, 2)}".into(), vec!["[('x', '<f4')]"]),
        ("{'descr': '<f4', 'shape': (1, 2)}".into(), vec!["header cannot be read"]),
        ("{'descr': '<f4', 'fortran_order': False, 'shape': (1, -2)}".into(), vec!["header cannot be read"]),
        ("{'descr': '<f4'".into(), vec!["header cannot be read"]),
        (npy_dict("<f4", "(1, 2)") + " x", vec!["header cannot be read"]),
    ];
    for (dict, words) in cases {
        refused(&put(folder.path(), "a.npy", &npy_bytes(1, &dict, &[0; 8])), &words);
    }
    let mut bytes = npy_bytes(1, &npy_dict("<f4", "(1, 2)"), &[0; 8]);
    bytes[6] = 9;
    refused(&put(folder.path(), "a.npy", &bytes), &["version 9"]);
    refused(&put(folder.path(), "a.npy", b"PK\x03\x04 and more bytes"), &["not an .npy file"]);
}

#[test]
fn vecs_files_come_back_and_ragged_rows_are_named() {
    let folder = folder();
    for (name, dtype) in [("a.fvecs", DType::F32), ("a.bvecs", DType::U8)] {
        let data = some_rows(4, 3, dtype);
        let mut bytes = vecs_bytes(4, 3, dtype.size(), &data);
        let path = put(folder.path(), name, &bytes);
        check_blocks(&Reader::open(&path).expect("opened"), Shape { rows: 4, dim: 3, dtype }, &data);
        bytes[2 * (4 + 3 * dtype.size())] = 2;
        refused(&put(folder.path(), name, &bytes), &["row 2", "2 dimensions", "has 3"]);
        bytes[..4].copy_from_slice(&(-3i32).to_le_bytes());
        refused(&put(folder.path(), name, &bytes), &["row 0", "-3"]);
        bytes[..4].copy_from_slice(&0i32.to_le_bytes());
        refused(&put(folder.path(), name, &bytes), &["row 0", "0 dimensions"]);
        bytes[..4].copy_from_slice(&i32::MAX.to_le_bytes());
        refused(&put(folder.path(), name, &bytes), &["truncated", "no row is complete"]);
    }
}

#[test]
fn every_truncation_is_refused_and_says_how_much_is_there() {
    let folder = folder();
    let data = some_rows(3, 4, DType::F32);
    let mut bin = vec![3, 0, 0, 0, 4, 0, 0, 0];
    bin.extend_from_slice(&data);
    let npy = npy_bytes(1, &npy_dict("<f4", "(3, 4)"), &data);
    for (name, whole) in [("a.fbin", bin.clone()), ("a.npy", npy)] {
        for cut in 0..whole.len() {
            let path = put(folder.path(), name, &whole[..cut]);
            let actual = format!("it has {cut}");
            let word = if cut == 0 && name == "a.npy" { "truncated" } else { &actual };
            refused(&path, &["truncated", word]);
        }
        let mut long = whole.clone();
        long.push(0);
        refused(&put(folder.path(), name, &long), &["too long", &format!("it has {}", long.len())]);
        assert!(Reader::open(&put(folder.path(), name, &whole)).is_ok());
    }
    refused(
        &put(folder.path(), "a.fbin", &bin[..8 + 2 * 16 + 5]),
        &["56 bytes", "45", "last complete row is 1"],
    );
    refused(&put(folder.path(), "a.fbin", &bin[..8 + 15]), &["no row is complete"]);
    let vecs = vecs_bytes(3, 4, 4, &data);
    for cut in (1..vecs.len()).filter(|cut| cut % 20 > 0) {
        refused(&put(folder.path(), "a.fvecs", &vecs[..cut]), &["truncated", &format!("it has {cut}")]);
    }
}

#[test]
fn files_that_cannot_be_sets_are_refused() {
    let folder = folder();
    refused(&put(folder.path(), "a.txt", b"x"), &["unknown vector format \"txt\"", ".fbin"]);
    refused(&put(folder.path(), "a", b"x"), &["unknown vector format"]);
    refused(&put(folder.path(), "a.ivecs", b"x"), &["ground truth"]);
    refused(&put(folder.path(), "a.ibin", b"x"), &["ground truth"]);
    refused(&put(folder.path(), "a.fbin", &[0, 0, 0, 0, 4, 0, 0, 0]), &["0 rows"]);
    refused(&put(folder.path(), "a.fbin", &[4, 0, 0, 0, 0, 0, 0, 0]), &["0 dimensions"]);
    refused(&put(folder.path(), "a.fbin", &[255; 8]), &["4294967295 dimensions"]);
    refused(&put(folder.path(), "a.fvecs", b""), &["0 rows"]);
    refused(&folder.path().join("missing.fbin"), &["missing.fbin"]);
    refused(&folder.path().join("a.fbin#column"), &["only a .parquet file"]);
    std::fs::create_dir(folder.path().join("dir.fbin")).expect("a folder");
    refused(&folder.path().join("dir.fbin"), &["not a regular file"]);
    let shape = Shape { rows: 2, dim: 2, dtype: DType::U8 };
    let error = Reader::from_memory(shape, vec![0; 3]).err().expect("too short");
    assert!(error.message.contains("truncated"), "{error}");
    assert!(Reader::from_memory(Shape { rows: 0, ..shape }, vec![]).is_err());
}

#[test]
fn a_file_that_shrinks_while_open_is_an_error() {
    let folder = folder();
    let shape = Shape { rows: 3, dim: 4, dtype: DType::U8 };
    let path = folder.path().join("a.u8bin");
    write_bin(&to(&path), shape, [Ok([1u8; 12])]).expect("written");
    let reader = Reader::open(&path).expect("opened");
    std::fs::OpenOptions::new().write(true).open(&path).and_then(|f| f.set_len(10)).expect("cut");
    let mut out = Vec::new();
    assert!(reader.read_rows(2, 1, &mut out).is_err());
}

#[test]
fn writing_is_all_or_nothing() {
    let folder = folder();
    let path = folder.path().join("a.u8bin");
    let shape = Shape { rows: 2, dim: 2, dtype: DType::U8 };
    std::fs::write(&path, b"before").expect("a file");
    let failed = [
        write_bin(&to(&path), shape, [Ok([1u8, 2])]),
        write_bin(&to(&path), shape, [Ok([1u8; 5])]),
        write_bin(&to(&path), shape, [Ok([1u8, 2]), Err(Error::interrupted())]),
        write_bin(&to(&path), Shape { rows: 1 << 32, ..shape }, [Ok([1u8; 2])]),
        write_bin(&to(&path), Shape { dtype: DType::F32, ..shape }, [Ok([1u8; 16])]),
    ];
    assert!(failed.iter().all(Result::is_err), "{failed:?}");
    assert_eq!(std::fs::read(&path).expect("still there"), b"before");
    assert_eq!(std::fs::read_dir(folder.path()).expect("listing").count(), 1);
    write_bin(&to(&path), shape, [Ok([1u8; 4])]).expect("written over");
    assert_eq!(Reader::open(&path).expect("opened").shape(), shape);
}

#[test]
fn lists_of_ids_have_a_line_or_a_row_for_each_query() {
    let folder = folder();
    let read = |name: &str, bytes: &[u8]| read_id_lists(&put(folder.path(), name, bytes));
    let lists = |lists: &IdLists| lists.iter().map(<[u64]>::to_vec).collect::<Vec<_>>();
    let most = u64::MAX;
    let text = read("l.txt", format!("1 2,3,  4\n\n\t{most}\r\n7,7").as_bytes()).expect("lists");
    assert_eq!(lists(&text), [vec![1, 2, 3, 4], vec![], vec![most], vec![7, 7]]);
    assert_eq!((text.count(), read("e.txt", b"").expect("none").count()), (4, 0));
    assert_eq!(lists(&read("n.txt", b"\n\n").expect("two")), [[0u64; 0], [0; 0]]);
    let data: Vec<u8> = [1, 2, 3, 4, 5, most].iter().flat_map(|id: &u64| id.to_le_bytes()).collect();
    let npy = |descr: &str, shape: &str| read("l.npy", &npy_bytes(1, &npy_dict(descr, shape), &data));
    assert_eq!(lists(&npy("<u8", "(2, 3)").expect("lists")), [[1, 2, 3], [4, 5, most]]);
    let huge = format!("({}, {})", 1u64 << 60, 1u64 << 60);
    for (found, said) in [
        (npy("<u8", "(6,)"), "shape [6]"),
        (npy("<u8", "(6, 0)"), "shape [6, 0]"),
        (npy("<u8", &huge), "shape"),
        (npy("<u8", "(2, 4)"), "copy it again"),
        (npy("<i8", "(2, 3)"), "negative id -1"),
        (npy("<f8", "(2, 3)"), "uint64"),
        (read("w.txt", b"1\n2 x\n"), "line 2 has \"x\""),
        (read("w.txt", b"1\n-2\n"), "line 2 has \"-2\""),
        (read("w.txt", b"18446744073709551616"), "line 1"),
        (read("w.u64bin", b""), "u64bin"),
    ] {
        let error = found.expect_err("refused");
        assert!(error.kind == ErrorKind::BadInput && error.message.contains(said), "{said}: {error}");
    }
}

#[test]
fn ids_are_read_counted_and_unique() {
    let folder = folder();
    let data = |ids: &[u64]| -> Vec<u8> { ids.iter().flat_map(|id| id.to_le_bytes()).collect() };
    let bin = |ids: &[u64]| {
        let mut bytes = (ids.len() as u32).to_le_bytes().to_vec();
        bytes.extend(1u32.to_le_bytes());
        bytes.extend(data(ids));
        bytes
    };
    let ids = [7, u64::MAX, 0];
    let path = put(folder.path(), "ids.u64bin", &bin(&ids));
    assert_eq!(read_ids(&path, 3).expect("ids"), ids);
    for shape in ["(3,)", "(3, 1)"] {
        let path = put(folder.path(), "ids.npy", &npy_bytes(1, &npy_dict("<u8", shape), &data(&ids)));
        assert_eq!(read_ids(&path, 3).expect("ids"), ids);
    }
    let signed = put(folder.path(), "s.npy", &npy_bytes(1, &npy_dict("<i8", "(3,)"), &data(&ids)));
    let twice = put(folder.path(), "t.u64bin", &bin(&[5, 6, 7, 6, 5]));
    let floats = put(folder.path(), "f.npy", &npy_bytes(1, &npy_dict("<f8", "(3,)"), &data(&ids)));
    let wide = put(folder.path(), "w.npy", &npy_bytes(1, &npy_dict("<u8", "(1, 3)"), &data(&ids)));
    let short = put(folder.path(), "short.u64bin", &bin(&ids)[..31]);
    let other = put(folder.path(), "ids.txt", b"1 2 3");
    for (path, rows, words) in [
        (&path, 4, vec!["3 ids", "4 rows"]),
        (&signed, 3, vec!["row 1", "negative id -1"]),
        (&twice, 5, vec!["rows 0 and 4", "id 5"]),
        (&floats, 3, vec!["\"<f8\"", "uint64"]),
        (&wide, 3, vec!["ravel"]),
        (&short, 3, vec!["32 bytes", "31"]),
        (&other, 3, vec![".u64bin"]),
    ] {
        let error = read_ids(path, rows).expect_err("refused");
        assert!(words.iter().all(|word| error.message.contains(word)), "{error}");
    }
}

#[test]
fn ground_truth_comes_back_with_and_without_distances() {
    let folder = folder();
    let path = folder.path().join("gt.ibin");
    let full = GroundTruth { k: 2, ids: vec![4, 1, 0, 3], distances: vec![0.5, 1.0, -2.0, 8.0] };
    let bare = GroundTruth { distances: vec![], ..full.clone() };
    for truth in [&full, &bare] {
        truth.write(&to(&path)).expect("written");
        assert_eq!(&GroundTruth::read(&path).expect("read"), truth);
    }
    assert_eq!((full.queries(), full.ids_of(1)), (2, &[0, 3][..]));
    let whole = std::fs::read(&path).expect("bytes");
    for cut in 0..whole.len() {
        let error = GroundTruth::read(&put(folder.path(), "cut", &whole[..cut])).expect_err("cut");
        assert_eq!(error.kind, ErrorKind::BadInput, "{error}");
    }
    let ids: Vec<u8> = full.ids.iter().flat_map(|id| id.to_le_bytes()).collect();
    let path = put(folder.path(), "gt.ivecs", &vecs_bytes(2, 2, 4, &ids));
    assert_eq!(GroundTruth::read(&path).expect("ivecs"), bare);
    let negative = put(folder.path(), "n.ivecs", &vecs_bytes(2, 2, 4, &[255; 16]));
    assert!(GroundTruth::read(&negative).expect_err("negative").message.contains("-1"));
    assert!(full.check(&path, 2, 5).is_ok());
    assert!(full.check(&path, 2, 4).expect_err("ids").message.contains("neighbour 4"));
    assert!(full.check(&path, 3, 5).expect_err("count").message.contains("2 queries"));
    assert!(full.write(&to(&path)).is_err(), "ivecs has no distances");
}

#[test]
fn bad_rows_are_found_wherever_they_are() {
    let f16 = |x: f32| half::f16::from_f32(x).to_le_bytes();
    for dim in [1, 3, 16, 17, 100] {
        for component in [0, dim / 2, dim - 1] {
            for (value, nan) in [(f32::NAN, true), (f32::INFINITY, false), (f32::NEG_INFINITY, false)] {
                let expected = Some(BadRow::NotFinite { component, nan });
                let at = |i| if i == component { value } else { 1.0 };
                let wide: Vec<u8> = (0..dim).flat_map(|i| at(i).to_le_bytes()).collect();
                let half: Vec<u8> = (0..dim).flat_map(|i| f16(at(i))).collect();
                for metric in Metric::ALL {
                    assert_eq!(check_row(DType::F32, metric, &wide), expected);
                    assert_eq!(check_row(DType::F16, metric, &half), expected);
                }
            }
            let large: Vec<u8> =
                (0..dim).flat_map(|i| if i == component { 1e19f32 } else { 0.0 }.to_le_bytes()).collect();
            assert_eq!(check_row(DType::F32, Metric::L2, &large), Some(BadRow::TooLarge));
        }
        for dtype in DType::ALL {
            let mut row = vec![0; dim * dtype.size()];
            assert_eq!(check_row(dtype, Metric::L2, &row), None);
            assert_eq!(check_row(dtype, Metric::Ip, &row), None);
            assert_eq!(check_row(dtype, Metric::Cosine, &row), Some(BadRow::ZeroVector));
            // The highest byte of the last component: an ordinary number in every type.
            row[dim * dtype.size() - 1] = 1;
            // In f32 it is 2^-126: its square is 0, but it has a direction.
            assert_eq!(check_row(dtype, Metric::Cosine, &row), None);
        }
    }
    let minus_zero: Vec<u8> = (0..4).flat_map(|_| f16(-0.0)).collect();
    assert_eq!(check_row(DType::F16, Metric::Cosine, &minus_zero), Some(BadRow::ZeroVector));
}

/// 3,000 rows of f32: several chunks of a scan.
fn walk() -> (Shape, Vec<f32>) {
    let shape = Shape { rows: 3000, dim: 5, dtype: DType::F32 };
    let value = |i: usize| 100.0 * (i % 5) as f32 + ((i as f32) * 0.37).sin() * 3.0;
    (shape, (0..15_000).map(value).collect())
}

#[test]
fn a_scan_gives_the_same_statistics_for_any_number_of_threads() {
    let (shape, values) = walk();
    let reader = Reader::from_memory(shape, bytemuck::cast_slice::<f32, u8>(&values).to_vec()).expect("set");
    let scans: Vec<Scan> = [1, 2, 3]
        .into_iter()
        .map(|threads| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("a pool");
            pool.install(|| scan(&reader, Metric::L2, OnBadRow::Fail, &Quiet)).expect("scanned")
        })
        .collect();
    assert!(scans.windows(2).all(|pair| pair[0] == pair[1]));
    let scan = &scans[0];
    assert_eq!((scan.rows, scan.skipped.len()), (3000, 0));
    for d in 0..5 {
        let column: Vec<f64> = values.iter().skip(d).step_by(5).map(|&x| f64::from(x)).collect();
        let mean = column.iter().sum::<f64>() / 3000.0;
        let variance = column.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / 3000.0;
        assert!((scan.mean[d] - mean).abs() < 1e-4, "{} {mean}", scan.mean[d]);
        assert!((scan.variance[d] - variance).abs() < 1e-4 * variance, "{} {variance}", scan.variance[d]);
        assert_eq!(f64::from(scan.min[d]), column.iter().copied().fold(f64::MAX, f64::min));
        assert_eq!(f64::from(scan.max[d]), column.iter().copied().fold(f64::MIN, f64::max));
    }
    let norms: Vec<f64> =
        values.chunks(5).map(|row| row.iter().map(|&x| f64::from(x).powi(2)).sum()).collect();
    assert!((scan.mean_squared_norm / (norms.iter().sum::<f64>() / 3000.0) - 1.0).abs() < 1e-6);
    assert!((scan.max_squared_norm / norms.iter().copied().fold(0.0, f64::max) - 1.0).abs() < 1e-6);
}

#[test]
fn a_scan_fails_at_the_first_bad_row_or_skips_all() {
    let (shape, mut values) = walk();
    values[3] = f32::NAN;
    values[17 * 5..18 * 5].fill(0.0);
    values[2999 * 5 + 4] = f32::INFINITY;
    let reader = Reader::from_memory(shape, bytemuck::cast_slice::<f32, u8>(&values).to_vec()).expect("set");
    let error = scan(&reader, Metric::Cosine, OnBadRow::Fail, &Quiet).expect_err("row 0");
    let expected = "row 0 of <memory>: component 3 is NaN; correct it or pass --on-bad-row skip";
    assert_eq!((error.kind, error.message.as_str()), (ErrorKind::BadInput, expected));
    let skipping = scan(&reader, Metric::Cosine, OnBadRow::Skip, &Quiet).expect("scanned");
    assert_eq!((skipping.rows, skipping.skipped), (2997, vec![0, 17, 2999]));
    assert!(skipping.mean.iter().chain(&skipping.variance).all(|x| x.is_finite()));
    let l2 = scan(&reader, Metric::L2, OnBadRow::Skip, &Quiet).expect("scanned");
    assert_eq!((l2.rows, l2.skipped), (2998, vec![0, 2999]));
    let shape = Shape { rows: 2, dim: 1, dtype: DType::U8 };
    let zeros = Reader::from_memory(shape, vec![0; 2]).expect("set");
    assert!(scan(&zeros, Metric::Cosine, OnBadRow::Skip, &Quiet).is_err());
}

#[cfg(feature = "parquet")]
mod parquet_files {
    use std::sync::Arc;

    use ::parquet::data_type::{DataType, DoubleType, FloatType, Int32Type};
    use ::parquet::file::properties::WriterProperties;
    use ::parquet::file::writer::SerializedFileWriter;
    use ::parquet::schema::parser::parse_message_type;

    use super::*;

    /// Values, definition and repetition levels.
    type Group<V> = (Vec<V>, Vec<i16>, Vec<i16>);

    /// Writes the same groups to every column.
    fn write<T: DataType>(path: &Path, schema: &str, groups: &[Group<T::T>]) {
        let schema = Arc::new(parse_message_type(schema).expect("a schema"));
        let properties = WriterProperties::builder().set_data_page_row_count_limit(7).set_write_batch_size(7);
        let file = std::fs::File::create(path).expect("a file");
        let mut writer =
            SerializedFileWriter::new(file, schema, Arc::new(properties.build())).expect("a writer");
        for (values, defs, reps) in groups {
            let mut rows = writer.next_row_group().expect("a group");
            while let Some(mut column) = rows.next_column().expect("a column") {
                column.typed::<T>().write_batch(values, Some(defs), Some(reps)).expect("values");
                column.close().expect("closed");
            }
            rows.close().expect("closed");
        }
        writer.close().expect("closed");
    }

    fn lists(leaf: &str, columns: &[&str]) -> String {
        let column = |name: &&str| {
            format!("optional group {name} (LIST) {{ repeated group list {{ optional {leaf} element; }} }} ")
        };
        format!("message m {{ {} }}", columns.iter().map(column).collect::<String>())
    }

    fn levels(rows: usize, dim: usize) -> (Vec<i16>, Vec<i16>) {
        (vec![3; rows * dim], (0..rows * dim).map(|i| i16::from(i % dim > 0)).collect())
    }

    fn group<V>(rows: usize, dim: usize, value: impl Fn(usize) -> V) -> Group<V> {
        let (defs, reps) = levels(rows, dim);
        ((0..rows * dim).map(value).collect(), defs, reps)
    }

    #[test]
    fn lists_come_back_from_any_row_on() {
        let folder = folder();
        let path = folder.path().join("a.parquet");
        let groups = [
            group(20, 3, |i| i as f32 + 0.5),
            group(1, 3, |i| 100.0 + i as f32),
            group(9, 3, |i| -(i as f32)),
        ];
        write::<FloatType>(&path, &lists("float", &["v"]), &groups);
        let data: Vec<u8> = groups.iter().flat_map(|g| &g.0).flat_map(|x| x.to_le_bytes()).collect();
        let shape = Shape { rows: 30, dim: 3, dtype: DType::F32 };
        check_blocks(&Reader::open(&path).expect("opened"), shape, &data);
        let reader = Reader::open(&folder.path().join("a.parquet#v")).expect("by name");
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| check_blocks(&reader, shape, &data));
            }
        });
        let scan = scan(&reader, Metric::L2, OnBadRow::Fail, &Quiet).expect("scanned");
        assert_eq!(scan.rows, 30);
    }

    #[test]
    fn doubles_are_narrowed_and_small_integers_keep_their_type() {
        let folder = folder();
        let path = folder.path().join("a.parquet");
        write::<DoubleType>(&path, &lists("double", &["v"]), &[group(2, 2, |i| i as f64 + 0.1)]);
        let narrowed: Vec<u8> = (0..4).flat_map(|i| ((i as f64 + 0.1) as f32).to_le_bytes()).collect();
        check_blocks(
            &Reader::open(&path).expect("opened"),
            Shape { rows: 2, dim: 2, dtype: DType::F32 },
            &narrowed,
        );
        for (leaf, dtype, value) in [("int8", DType::I8, -3i32), ("uint8", DType::U8, 200)] {
            let signed = dtype == DType::I8;
            let schema =
                lists("int32", &["v"]).replace("element", &format!("element (INTEGER(8, {signed}))"));
            write::<Int32Type>(&path, &schema, &[group(2, 2, |_| value)]);
            let shape = Shape { rows: 2, dim: 2, dtype };
            check_blocks(&Reader::open(&path).expect(leaf), shape, &[value as u8; 4]);
            write::<Int32Type>(&path, &schema, &[group(2, 2, |i| if i == 3 { 300 } else { 1 })]);
            refused(&path, &["row 1", "component 1", "does not fit"]);
        }
        write::<Int32Type>(&path, &lists("int32", &["v"]), &[group(1, 2, |i| i as i32 - 1)]);
        let floats: Vec<u8> = [-1f32, 0.0].iter().flat_map(|x| x.to_le_bytes()).collect();
        check_blocks(
            &Reader::open(&path).expect("int32"),
            Shape { rows: 1, dim: 2, dtype: DType::F32 },
            &floats,
        );
        write::<Int32Type>(&path, &lists("int32", &["v"]), &[group(1, 2, |_| 1 << 25)]);
        refused(&path, &["row 0", "does not fit f32"]);
    }

    #[test]
    fn nulls_ragged_rows_and_doubtful_columns_are_refused() {
        let folder = folder();
        let path = folder.path().join("a.parquet");
        let schema = lists("float", &["v"]);
        let (defs, reps) = levels(3, 2);
        let mut null = defs.clone();
        null[3] = 2;
        write::<FloatType>(&path, &schema, &[(vec![1.0; 5], null, reps.clone())]);
        refused(&path, &["row 1", "component 1 is null"]);
        write::<FloatType>(&path, &schema, &[(vec![1.0; 4], vec![3, 3, 0, 3, 3], vec![0, 1, 0, 0, 1])]);
        refused(&path, &["row 1", "null"]);
        write::<FloatType>(&path, &schema, &[(vec![1.0; 4], vec![1, 3, 3, 3, 3], vec![0, 0, 1, 0, 1])]);
        refused(&path, &["row 0", "empty"]);
        write::<FloatType>(&path, &schema, &[(vec![1.0; 5], vec![3; 5], vec![0, 1, 0, 0, 1])]);
        refused(&path, &["row 1", "1 dimensions", "row 0 has 2"]);
        write::<FloatType>(&path, &schema, &[(vec![1.0; 5], vec![3; 5], vec![0, 1, 0, 1, 1])]);
        refused(&path, &["row 1", "3 dimensions"]);
        write::<FloatType>(&path, &schema, &[]);
        refused(&path, &["0 rows"]);
        write::<FloatType>(&path, &lists("float", &["v", "w"]), &[group(1, 2, |_| 1.0)]);
        refused(&path, &["v, w", "#COLUMN"]);
        refused(&folder.path().join("a.parquet#x"), &["no column \"x\""]);
        assert!(Reader::open(&folder.path().join("a.parquet#w")).is_ok());
        let whole = std::fs::read(&path).expect("bytes");
        for cut in (0..whole.len()).step_by(13) {
            refused(&put(folder.path(), "cut.parquet", &whole[..cut]), &["Parquet"]);
        }
    }

    #[test]
    fn flipped_bits_end_in_an_error_or_an_answer_never_in_a_panic() {
        let folder = folder();
        let path = folder.path().join("a.parquet");
        write::<FloatType>(
            &path,
            &lists("float", &["v"]),
            &[group(9, 2, |i| i as f32), group(5, 2, |_| 1.0)],
        );
        let whole = std::fs::read(&path).expect("bytes");
        let mut refused = 0;
        for bit in (0..8 * whole.len()).step_by(5) {
            let mut bytes = whole.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            let reader = Reader::open(&put(folder.path(), "flipped.parquet", &bytes));
            let result =
                reader.and_then(|r| r.read_rows(0, r.shape().rows.min(100) as usize, &mut Vec::new()));
            refused += usize::from(result.is_err_and(|e| e.kind == ErrorKind::BadInput));
        }
        assert!(refused > 100, "only {refused} were noticed");
    }
}
