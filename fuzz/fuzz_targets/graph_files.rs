//! The files of a `flat` and a `disk-graph`: blocks, codes, codebook, block map, head graph. One is changed, the index
//! is opened, searched and checked.
#![no_main]

use libfuzzer_sys::fuzz_target;
use stratann_engine::index::{Index, OpenOptions};
use stratann_engine::verify::verify;
use stratann_fuzz::place::{Which, place};
use stratann_fuzz::{edits, run, seal};
use stratann_storage::Quiet;

fuzz_target!(|data: &[u8]| {
    let (choice, data) = edits::first(data);
    let place = place([Which::Flat, Which::Graph, Which::CodedGraph][usize::from(choice % 3)]);
    let at = usize::from(choice / 3) % place.files.len();
    let (name, valid) = place.files.iter().nth(at).expect("a data file");
    let mut content = edits::bytes(valid, data);
    let is_blocks = name.ends_with("-blocks.bin");
    if is_blocks {
        seal::blocks(&place.manifest.blocks, &mut content);
    }
    let _lock = place.replace(name, &content);
    // Not every time, because it takes as long as everything else.
    if choice % 4 == 0 {
        verify(place.path(), &Quiet).expect("a report");
    }
    let Ok(index) = Index::open(place.path(), OpenOptions::default()) else { return };
    let blocks = if is_blocks { &content } else { place.data() };
    run::search(&index.view(), blocks);
    let _ = index.account();
});
