//! Adjacency lists: decoded, and encoded again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use stratann_core::format::adjacency::{IDS, NEIGHBOURS, RANKS};
use stratann_fuzz::edits;

fuzz_target!(|data: &[u8]| {
    let (choice, bytes) = edits::first(data);
    let coding = [NEIGHBOURS, RANKS, IDS][usize::from(choice % 3)];
    let mut ids = Vec::new();
    if coding.decode(bytes, &mut ids).is_none() {
        return;
    }
    assert!(ids.len() <= 65_535 && ids.is_sorted_by(|a, b| a < b));
    let (mut own, mut again) = (Vec::new(), Vec::new());
    assert!(coding.encoded_len(&ids) <= bytes.len());
    coding.encode(&ids, &mut own);
    assert_eq!(own.len(), coding.encoded_len(&ids));
    assert_eq!(coding.decode(&own, &mut again), Some(()));
    assert_eq!(again, ids);
});
