//! `learnt.bin`: what an index learned from its queries.
#![no_main]

use libfuzzer_sys::fuzz_target;
use stratann_engine::index::{Index, OpenOptions};
use stratann_engine::kinds::hybrid_ivf::learning::describe;
use stratann_engine::kinds::options::{Learn, LearnOptions};
use stratann_fuzz::place::{Which, place};
use stratann_fuzz::{run, seal};

fuzz_target!(|data: &[u8]| {
    let place = place(Which::Graphs);
    let mut content = [&[0; 8], place.manifest.build_id.to_string().as_bytes(), data].concat();
    seal::content(0, &mut content);
    std::fs::write(place.path().join("learnt.bin"), &content).expect("a file in the scratch folder");
    let Ok(Some(facts)) = describe(place.path(), &place.manifest) else { return };
    assert_eq!(facts.bytes, content.len() as u64);
    let learning = LearnOptions { learn: Learn::Frozen, ..LearnOptions::default() };
    let index =
        Index::open(place.path(), OpenOptions { learning, ..OpenOptions::default() }).expect("an index");
    run::search(&index.view(), place.data());
});
