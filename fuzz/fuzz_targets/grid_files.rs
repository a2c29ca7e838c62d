//! The files of a `grid-ivf`: lists, their sizes, axes, centroids. One is changed, the index is opened, searched and
//! checked.
#![no_main]

use libfuzzer_sys::fuzz_target;
use stratann_fuzz::place::{Which, place};
use stratann_fuzz::run;

fuzz_target!(|data: &[u8]| {
    place(Which::Grid).with_changed_file(data, |index, _, _| {
        run::search(&index.view(), &[]);
    });
});
