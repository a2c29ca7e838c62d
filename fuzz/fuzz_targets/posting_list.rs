//! Inverted lists on disk with copies of vectors or of codes: verified, opened, and every part of them read.
#![no_main]

use libfuzzer_sys::fuzz_target;
use stratann_core::format::posting_file::{PostingLayout, PostingList, PostingMember, write};
use stratann_fuzz::{edits, seal};

const LIST: u32 = 5;

fuzz_target!(|data: &[u8]| {
    let (choice, content) = edits::first(data);
    let id_bytes = [4, 8, 0, 4][usize::from(choice & 3)];
    let layout = PostingLayout { entry_bytes: 6, id_bytes, norms: choice & 3 == 3, checksum_seed: 0 };
    let mut bytes = [&[0; 8], &LIST.to_le_bytes()[..], content].concat();
    if let Some(list) = PostingList::open(&layout, &bytes) {
        read(&list);
    }
    // The checksum covers whole pages of a written list.
    bytes.resize(bytes.len().next_multiple_of(stratann_core::PAGE), 0);
    seal::content(0, &mut bytes);
    let Some(list) = PostingList::verify(&layout, LIST, &bytes) else { return };
    read(&list);
    let members: Vec<PostingMember<'_>> = (0..list.count())
        .map(|at| PostingMember {
            id: list.id(at),
            entry: &list.entries()[6 * at..6 * at + 6],
            inverse_norm: list.inverse_norm(at),
            external_id: list.external_id(at),
        })
        .collect();
    let mut again = Vec::new();
    write(&layout, LIST, &members, &mut again);
    assert_eq!(again.len(), layout.list_bytes(members.len()));
    if members.is_empty() {
        return;
    }
    let same = PostingList::verify(&layout, LIST, &again).expect("a written list");
    assert_eq!((same.count(), same.entries()), (list.count(), list.entries()));
    for at in 0..list.count() {
        assert_eq!((same.id(at), same.external_id(at)), (list.id(at), list.external_id(at)));
        assert_eq!(same.inverse_norm(at).to_bits(), list.inverse_norm(at).to_bits());
    }
});

/// Reads every member, and one that does not exist.
fn read(list: &PostingList<'_>) {
    assert_eq!(list.entries().len(), 6 * list.count());
    for at in 0..=list.count() {
        let _ = (list.id(at), list.inverse_norm(at), list.external_id(at));
    }
}
