//! List codes and records of an inverted list: verified, opened, and every part of them read.
#![no_main]

use libfuzzer_sys::fuzz_target;
use stratann_core::format::inverted_list::{ListCodes, ListLayout, Record, reseal_list_codes, write_record};
use stratann_fuzz::{edits, seal};

fuzz_target!(|data: &[u8]| {
    let (choice, content) = edits::first(data);
    let (norms, id_bytes) = (choice & 1 == 1, if choice & 2 == 0 { 4 } else { 8 });
    let layout = ListLayout { dim: 3, vector_bytes: 6, id_bytes, norms, code_bytes: 2, checksum_seed: 0 };
    codes(&layout, content);
    record(&layout, content);
});

fn codes(layout: &ListLayout, content: &[u8]) {
    let mut bytes = [&[0; 8], &5u32.to_le_bytes()[..], content].concat();
    seal::content(0, &mut bytes);
    let Some(codes) = ListCodes::verify(layout, 5, &bytes) else { return };
    let members = codes.count();
    assert_eq!(bytes.len(), layout.list_codes_bytes(members));
    assert_eq!((codes.terms().count(), codes.radii().count()), (members, members));
    assert_eq!(codes.centroid_distances().count(), members);
    assert_eq!((codes.centroid().len(), codes.codes().len()), (6, 2 * members));
    let _ = (codes.first_id(), codes.radius_max());
    assert!((0..members).all(|slot| codes.member(slot).is_some()) && codes.member(members).is_none());
    reseal_list_codes(layout, 6, &mut bytes);
    assert!(ListCodes::verify(layout, 6, &bytes).is_some());
}

fn record(layout: &ListLayout, content: &[u8]) {
    let mut bytes = [content, &[0; 4]].concat();
    seal::record(0, 9, &mut bytes);
    let Some(record) = Record::verify(layout, 9, &bytes) else { return };
    let mut again = Vec::new();
    write_record(layout, 9, record.vector(), record.inverse_norm(), record.external_id(), &mut again);
    let read = Record::verify(layout, 9, &again).expect("a written record");
    assert_eq!((read.vector(), read.external_id()), (record.vector(), record.external_id()));
    assert_eq!(read.inverse_norm().to_bits(), record.inverse_norm().to_bits());
}
