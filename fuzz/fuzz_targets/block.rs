//! Blocks: verified, opened, and every part of them read.
#![no_main]

use libfuzzer_sys::fuzz_target;
use stratann_core::format::block::{Block, BlockLayout, verify};
use stratann_fuzz::{edits, seal};

const PLAIN: BlockLayout = BlockLayout {
    block_bytes: 4096,
    vector_bytes: 8,
    id_bytes: 4,
    norms: false,
    adjacency: true,
    code_bytes: 0,
    checksum_seed: 0,
};

fuzz_target!(|data: &[u8]| {
    let (choice, content) = edits::first(data);
    let layout = match choice & 3 {
        0 => PLAIN,
        1 => BlockLayout { norms: true, id_bytes: 8, ..PLAIN },
        2 => BlockLayout { code_bytes: 3, ..PLAIN },
        _ => BlockLayout { norms: true, adjacency: false, ..PLAIN },
    };
    let mut bytes = vec![0; 8];
    bytes.extend_from_slice(&7u32.to_le_bytes());
    bytes.extend_from_slice(content);
    bytes.resize(layout.block_bytes, choice);
    seal::content(0, &mut bytes);
    if verify(&layout, 7, &bytes).is_err() {
        return;
    }
    let block = Block::open(&layout, &bytes).expect("a verified block");
    let (mut ids, mut list) = (Vec::new(), Vec::new());
    assert_eq!(block.vectors().len(), block.count() * layout.vector_bytes);
    for slot in 0..block.count() {
        let _ = (block.vector(slot), block.inverse_norm(slot), block.external_id(slot));
    }
    // A node beyond the last is refused or read within the bytes.
    for slot in 0..=block.count() {
        list.clear();
        if layout.adjacency && block.neighbours(slot, &mut list).is_some() {
            assert!(list.len() <= 255);
        }
    }
    if layout.code_bytes > 0 && block.coded_ids(&mut ids).is_some() {
        assert_eq!(ids.len() * layout.code_bytes, block.codes().len());
        assert!(ids.is_sorted_by(|a, b| a < b));
        assert_eq!(block.own_codes(&mut ids).map(<[u8]>::len), Some(block.count() * layout.code_bytes));
        for slot in 0..block.count() {
            list.clear();
            if block.ranks(slot, &mut list).is_some() {
                assert!(list.iter().all(|&rank| (rank as usize) < ids.len()));
            }
        }
    }
});
