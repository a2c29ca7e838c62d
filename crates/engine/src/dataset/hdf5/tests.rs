//! Files that the HDF5 library wrote (`files/make.py`), whole and damaged.

use std::path::{Path, PathBuf};

use half::f16;
use stratann_kernel::DType;

use crate::dataset::Reader;

const ROWS: u64 = 20;
const DIM: usize = 3;
const TYPES: [&str; 15] =
    ["<f4", ">f4", "<f8", ">f8", "<f2", ">f2", "|u1", "|i1", "<i2", ">i2", "<u2", "<i4", "<u4", "<i8", ">u8"];

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src/dataset/hdf5/files").join(name)
}

fn dataset(name: &str, dataset: &str) -> PathBuf {
    PathBuf::from(format!("{}#{dataset}", file(name).display()))
}

/// The component at a place of the datasets, in the type of a reader.
fn component(at: usize, is_signed: bool, dtype: DType) -> Vec<u8> {
    let value = at as f32 - if is_signed { 20.0 } else { 0.0 };
    match dtype {
        DType::F32 => value.to_le_bytes().to_vec(),
        DType::F16 => f16::from_f32(value).to_le_bytes().to_vec(),
        DType::U8 => vec![value as u8],
        DType::I8 => vec![value as i8 as u8],
    }
}

fn check(reader: &Reader, is_signed: bool) {
    let shape = reader.shape();
    assert_eq!((shape.rows, shape.dim), (ROWS, DIM));
    let mut rows = Vec::new();
    for (first, count) in [(0, 20), (0, 1), (6, 2), (19, 1), (5, 15), (3, 0)] {
        reader.read_rows(first, count, &mut rows).unwrap();
        let from = first as usize * DIM;
        let wanted: Vec<u8> =
            (from..from + count * DIM).flat_map(|at| component(at, is_signed, shape.dtype)).collect();
        assert_eq!(rows, wanted, "{} {first} {count}", reader.path().display());
    }
    assert!(reader.read_rows(19, 2, &mut rows).is_err());
}

#[test]
fn numbers_of_every_type_contiguous_and_in_chunks() {
    for name in ["types.hdf5", "chunks.hdf5"] {
        for kind in TYPES {
            let reader = Reader::open(&dataset(name, kind)).unwrap();
            let dtype = match kind {
                "<f2" | ">f2" => DType::F16,
                "|u1" => DType::U8,
                "|i1" => DType::I8,
                _ => DType::F32,
            };
            assert_eq!(reader.shape().dtype, dtype, "{kind}");
            check(&reader, kind.contains(['f', 'i']));
        }
    }
}

#[test]
fn files_of_every_form() {
    for (name, own) in [
        ("plain.hdf5", "train"),
        ("chunks.hdf5", "raw"),
        ("chunks.hdf5", "sums"),
        ("chunks.hdf5", "large"),
        ("latest.hdf5", "train"),
        ("block.h5", "train"),
    ] {
        check(&Reader::open(&dataset(name, own)).unwrap(), true);
    }
    // The only dataset with rows needs no name.
    check(&Reader::open(&file("block.h5")).unwrap(), true);
    check(&Reader::open(&file("latest.hdf5")).unwrap(), true);
    assert_eq!(Reader::open(&dataset("plain.hdf5", "test")).unwrap().shape().rows, 5);
}

#[test]
fn what_is_not_read_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let text = folder.path().join("text.hdf5");
    std::fs::write(&text, "no HDF5").unwrap();
    for (path, why) in [
        (
            file("plain.hdf5"),
            "several datasets of rows (\"distances\", \"neighbors\", \"test\", \"train\"); choose one",
        ),
        (
            dataset("plain.hdf5", "training"),
            "no dataset \"training\"; there are \"distances\", \"neighbors\"",
        ),
        (dataset("others.hdf5", "chunks"), "chunks of the newer form"),
        (dataset("others.hdf5", "text"), "dimensions"),
        (dataset("others.hdf5", "cube"), "has 3 dimensions of array"),
        (dataset("others.hdf5", "bools"), "no floats or whole numbers"),
        (dataset("others.hdf5", "nothing"), "none were written"),
        (dataset("others.hdf5", "group"), "has no dimensions"),
        (dataset("holes.hdf5", "holes"), "some of the chunks of the dataset were never written"),
        (dataset("holes.hdf5", "lzf"), "other filters than gzip, shuffle and fletcher32"),
        (text, "is not an HDF5 file"),
    ] {
        let error = Reader::open(&path).err().unwrap();
        assert!(error.message.contains(why), "{error}");
    }
    let wide = Reader::open(&dataset("others.hdf5", "wide")).unwrap();
    let mut rows = Vec::new();
    wide.read_rows(0, 1, &mut rows).unwrap();
    assert_eq!(rows, [1.0f32, 16_777_216.0].map(f32::to_le_bytes).concat());
    let error = wide.read_rows(0, 2, &mut rows).unwrap_err();
    assert!(
        error.message.contains("row 1 of") && error.message.contains("component 1 is 16777217"),
        "{error}"
    );
}

#[test]
fn damaged_files_are_bad_input() {
    let folder = tempfile::tempdir().unwrap();
    let mut refused = 0;
    for (name, own) in [
        ("plain.hdf5", "train"),
        ("chunks.hdf5", "<i2"),
        ("chunks.hdf5", "sums"),
        ("latest.hdf5", "train"),
        ("block.h5", "train"),
    ] {
        let bytes = std::fs::read(file(name)).unwrap();
        let damaged = folder.path().join(name);
        let chosen = PathBuf::from(format!("{}#{own}", damaged.display()));
        let step = (bytes.len() / 300).max(1);
        for at in (0..bytes.len()).step_by(step) {
            for change in 0..3 {
                let mut wrong = bytes.clone();
                match change {
                    0 => wrong.truncate(at),
                    1 => wrong[at] ^= 0xff,
                    _ => wrong[at] = wrong[at].wrapping_add(1),
                }
                std::fs::write(&damaged, &wrong).unwrap();
                // Not all bytes are covered by checks; what matters is that nothing panics, and that work is bounded.
                let read = |path: &Path| {
                    let reader = Reader::open(path)?;
                    let rows = reader.shape().rows.min(100) as usize;
                    reader.read_rows(0, rows, &mut Vec::new())
                };
                refused += usize::from(read(&chosen).is_err());
                let _ = read(&damaged);
            }
        }
    }
    assert!(refused > 500, "{refused}");
}
