//! Vector files and files of ids: opened, read, checked, and written again.
#![no_main]

use std::path::Path;
use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;
use stratann_engine::dataset::{OnBadRow, Reader, read_id_lists, read_ids, scan, write_bin};
use stratann_engine::{DType, Metric};
use stratann_fuzz::{edits, place};
use stratann_storage::Quiet;
use tempfile::TempDir;

const SUFFIXES: [&str; 11] =
    ["fbin", "f16bin", "u8bin", "i8bin", "fvecs", "bvecs", "npy", "u64bin", "npy", "txt", "hdf5"];

fuzz_target!(|data: &[u8]| {
    static FOLDER: OnceLock<TempDir> = OnceLock::new();
    let folder = FOLDER.get_or_init(place::folder).path();
    let (choice, content) = edits::first(data);
    let choice = usize::from(choice) % SUFFIXES.len();
    let path = folder.join("file").with_extension(SUFFIXES[choice]);
    std::fs::write(&path, content).expect("a file in the scratch folder");
    if (7..10).contains(&choice) {
        // The last 8 bytes of each row are an id; what comes before is the header.
        for rows in 0..4u64 {
            if let Ok(ids) = read_ids(&path, rows) {
                assert_eq!(ids.len() as u64, rows);
            }
        }
        if let Ok(lists) = read_id_lists(&path) {
            assert!(lists.iter().map(<[u64]>::len).sum::<usize>() <= content.len());
        }
        return;
    }
    let Ok(reader) = Reader::open(&path) else { return };
    let shape = reader.shape();
    let bytes = shape.rows.saturating_mul(shape.row_bytes() as u64);
    if choice == 10 {
        // Chunks may be compressed, so that a short file has many rows.
        if bytes > 1 << 20 {
            return;
        }
    } else {
        assert!(bytes <= content.len() as u64);
    }
    let mut rows = Vec::new();
    for metric in [Metric::L2, Metric::Cosine] {
        let _ = scan(&reader, metric, OnBadRow::Skip, &Quiet);
    }
    if reader.read_rows(0, shape.rows as usize, &mut rows).is_ok() {
        assert_eq!(rows.len(), shape.rows as usize * shape.row_bytes());
        write_again(folder, &reader, &rows);
    }
    assert!(reader.read_rows(shape.rows, 1, &mut rows).is_err());
});

/// Writes the rows and reads them back.
fn write_again(folder: &Path, reader: &Reader, rows: &[u8]) {
    let suffix = match reader.shape().dtype {
        DType::F32 => "fbin",
        DType::F16 => "f16bin",
        DType::U8 => "u8bin",
        DType::I8 => "i8bin",
    };
    let path = folder.join("again").with_extension(suffix);
    write_bin(&place::output(&path), reader.shape(), [Ok(rows)]).expect("rows that were read");
    let again = Reader::open(&path).expect("rows that were written");
    assert_eq!(again.shape(), reader.shape());
    let mut read = Vec::new();
    again.read_rows(0, again.shape().rows as usize, &mut read).expect("rows that were written");
    assert_eq!(read, rows);
}
