use std::path::PathBuf;

use serde_json::{Value, json};

use super::*;

/// Payloads of many lengths; every third row has none, and one is longer than a block.
fn payloads(rows: u32) -> Vec<Payload> {
    let value = |row: u32| match row {
        77 => json!({"long": (0..60_000u64).map(|at| at * at % 1000).collect::<Value>()}),
        row if row % 3 == 0 => json!({}),
        row => {
            let hash = u64::from(row).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            json!({"row": row, "text": "word ".repeat(row as usize % 90), "hash": hash})
        }
    };
    (0..rows).map(|row| Payload::from_value(value(row)).unwrap()).collect()
}

fn written(folder: &FilePath, payloads: &[Payload]) -> PathBuf {
    let path = folder.join("payload-1.rows");
    let mut writer = RowsWriter::create(&path, payloads.len() as u32).unwrap();
    (0..).zip(payloads).for_each(|(row, payload)| writer.push(row, payload).unwrap());
    assert_eq!(writer.finish().unwrap(), std::fs::metadata(&path).unwrap().len());
    path
}

#[test]
fn payloads_come_back() {
    let place = tempfile::tempdir().unwrap();
    let payloads = payloads(3000);
    let file = PayloadRows::open(&written(place.path(), &payloads)).unwrap();
    assert_eq!((file.rows(), file.count()), (3000, 2000));
    for row in [0, 1, 2, 76, 77, 78, 79, 1000, 2999, 3000, u32::MAX] {
        let expected = payloads.get(row as usize).cloned().unwrap_or_default();
        assert_eq!(file.get(row).unwrap(), expected, "{row}");
    }
    for step in [1, 2, 7, 500] {
        let rows: RoaringBitmap = (0..4000).step_by(step).collect();
        let before = file.reads();
        let mut found = vec![Payload::new(); 3000];
        file.for_rows(&rows, |row, payload| {
            found[row as usize] = payload;
            Ok(())
        })
        .unwrap();
        for (row, (found, payload)) in (0..).zip(found.iter().zip(&payloads)) {
            assert_eq!(*found, if rows.contains(row) { payload.clone() } else { Payload::new() });
        }
        assert!(file.reads() - before <= rows.len().min(file.blocks.len() as u64));
    }
    let mut all = Vec::new();
    file.for_all(|row, json| {
        all.push((row, json.to_vec()));
        Ok(())
    })
    .unwrap();
    let expected = (0..).zip(&payloads).filter(|(_, payload)| !payload.is_empty());
    assert!(all.into_iter().eq(expected.map(|(row, payload)| (row, payload.to_bytes()))));
    file.verify().unwrap();
    assert!(file.blocks.len() > 10);
}

#[test]
fn rows_without_payload_cost_nothing() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("payload-1.rows");
    let bytes = RowsWriter::create(&path, u32::MAX).unwrap().finish().unwrap();
    assert!(bytes < 64);
    let file = PayloadRows::open(&path).unwrap();
    assert_eq!(file.get(5).unwrap(), Payload::new());
    let mut writer = RowsWriter::create(&path, 10).unwrap();
    writer.push(3, &Payload::new()).unwrap();
    for row in [3, 0, 10] {
        assert!(writer.push(row, &Payload::new()).unwrap_err().message.contains("in their order"));
    }
    assert!(writer.push_json(4, &vec![b' '; value::BYTES_MAX + 1]).unwrap_err().message.contains("at most"));
}

#[test]
fn damage_is_named_and_never_read() {
    let place = tempfile::tempdir().unwrap();
    let payloads = payloads(1000);
    let path = written(place.path(), &payloads);
    let whole = std::fs::read(&path).unwrap();
    let step = whole.len() / 400;
    for at in (0..whole.len()).step_by(step).chain(whole.len() - 80..whole.len()) {
        let mut bytes = whole.clone();
        bytes[at] ^= 1 << (at % 8);
        std::fs::write(&path, &bytes).unwrap();
        let read = PayloadRows::open(&path).and_then(|file| {
            for row in (0..1000).step_by(97) {
                if let Ok(payload) = file.get(row) {
                    assert_eq!(payload, payloads[row as usize]);
                }
            }
            file.verify()
        });
        let error = read.expect_err(&format!("byte {at}"));
        assert_eq!(error.kind, stratann_storage::ErrorKind::Corrupt, "{error}");
        assert!(error.message.contains("payload-1.rows is damaged"), "{error}");
        std::fs::write(&path, &whole[..at]).unwrap();
        assert!(PayloadRows::open(&path).is_err(), "cut at {at}");
    }
    std::fs::write(&path, [&whole[..], b"x"].concat()).unwrap();
    assert!(PayloadRows::open(&path).is_err());
    assert!(PayloadRows::open(&place.path().join("none")).is_err());
    assert!(PayloadRows::open(place.path()).is_err());
}
