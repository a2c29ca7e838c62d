//! The files of a `hybrid-ivf`: lists with records and edges, codebook, directory, centroids, sub-lists, navigation
//! graph. One is changed, the index is opened, searched and checked.
#![no_main]

use libfuzzer_sys::fuzz_target;
use stratann_engine::index::{Index, OpenOptions};
use stratann_engine::verify::verify;
use stratann_fuzz::place::{Which, place};
use stratann_fuzz::{edits, run, seal};
use stratann_storage::Quiet;

fuzz_target!(|data: &[u8]| {
    let (choice, data) = edits::first(data);
    let place = place([Which::Scanned, Which::Graphs, Which::Divided][usize::from(choice % 3)]);
    let at = usize::from(choice / 3) % place.files.len();
    let (name, valid) = place.files.iter().nth(at).expect("a data file");
    let mut content = edits::bytes(valid, data);
    let is_lists = name.ends_with("-lists.bin");
    if is_lists {
        seal::lists(place.index().view().kind.hybrid_ivf().expect("lists"), &mut content);
    }
    let _lock = place.replace(name, &content);
    // Not every time, because it takes as long as everything else.
    if choice % 4 == 0 {
        verify(place.path(), &Quiet).expect("a report");
    }
    let lists = if is_lists { &content } else { place.data() };
    let head_budget = (choice & 64 == 0).then_some(0);
    let options = OpenOptions { head_budget, ..OpenOptions::default() };
    let Ok(index) = Index::open(place.path(), options) else { return };
    run::search(&index.view(), lists);
    let _ = index.account();
});
