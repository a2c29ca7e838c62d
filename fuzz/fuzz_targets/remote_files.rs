//! The files of a `remote-hnsw`: the image of a region, and the meta-HNSW. One is changed, the index is opened, searched
//! and checked.
#![no_main]

use libfuzzer_sys::fuzz_target;
use stratann_fuzz::place::{Which, place};
use stratann_fuzz::run;

fuzz_target!(|data: &[u8]| {
    let place = place(Which::Remote);
    place.with_changed_file(data, |index, name, content| {
        let region = if name.ends_with("-region.bin") { content } else { place.data() };
        run::search(&index.view(), region);
    });
});
