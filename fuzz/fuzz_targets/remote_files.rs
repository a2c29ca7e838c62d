//! The files of a `remote-hnsw`: the image of a region, and the meta-HNSW. One is changed, the index is opened, searched
//! and checked.
#![no_main]

use libfuzzer_sys::fuzz_target;
use stratann_engine::Quiet;
use stratann_engine::index::{Index, OpenOptions};
use stratann_engine::verify::verify;
use stratann_fuzz::place::{Which, place};
use stratann_fuzz::{edits, run};

fuzz_target!(|data: &[u8]| {
    let (choice, data) = edits::first(data);
    let place = place(Which::Remote);
    let at = usize::from(choice) % place.files.len();
    let (name, valid) = place.files.iter().nth(at).expect("a data file");
    let content = edits::bytes(valid, data);
    let _lock = place.replace(name, &content);
    // Not every time, because it takes as long as everything else.
    if choice % 4 == 0 {
        verify(place.path(), &Quiet).expect("a report");
    }
    let Ok(index) = Index::open(place.path(), OpenOptions::default()) else { return };
    let region = if name.ends_with("-region.bin") { &content } else { place.data() };
    run::search(&index.view(), region);
    let _ = index.account();
});
