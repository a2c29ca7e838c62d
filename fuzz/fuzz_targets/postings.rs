//! Members of inverted lists in RAM: gaps of ids as a bit stream, and the lists that consist of them.
#![no_main]

use libfuzzer_sys::fuzz_target;
use stratann_core::format::gaps;
use stratann_core::format::posting_lists::PostingLists;
use stratann_fuzz::edits;

fuzz_target!(|data: &[u8]| {
    let (own, data) = edits::first(data);
    let (nodes, data) = edits::first(data);
    let (cut, content) = edits::first(data);
    decode(content);
    let cut = u64::from(cut).min(content.len() as u64);
    let lists = PostingLists {
        first: vec![0, own.into(), u32::from(nodes) * 64],
        starts: vec![0, cut, content.len() as u64],
        replicas: content.to_vec(),
    };
    read(&lists, u32::from(nodes) * 64);
});

/// Valid gaps ascend, and come back when they are written again.
fn decode(content: &[u8]) {
    let mut ids = Vec::new();
    if gaps::decode(content, &mut ids).is_none() {
        return;
    }
    assert!(ids.is_sorted_by(|a, b| a < b));
    let (mut again, mut read) = (Vec::new(), Vec::new());
    gaps::encode(&ids, &mut again);
    assert_eq!(gaps::decode(&again, &mut read), Some(()));
    assert_eq!(read, ids);
}

/// Lists are read whatever they hold; those that are consistent have no id beyond the last.
fn read(lists: &PostingLists, nodes: u32) {
    let is_consistent = lists.is_consistent(nodes);
    let mut ids = Vec::new();
    for list in 0..=lists.count() {
        ids.clear();
        let (first, count) = lists.own(list);
        let is_read = lists.replicas_of(list, &mut ids).is_some();
        if is_consistent && list < lists.count() {
            assert!(is_read && ids.iter().all(|&id| id < nodes) && first + count <= nodes);
        }
    }
}
