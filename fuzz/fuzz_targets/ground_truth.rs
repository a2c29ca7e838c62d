//! Ground truth: read, checked, and written again.
#![no_main]

use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;
use stratann_engine::dataset::GroundTruth;
use stratann_fuzz::{edits, place};
use tempfile::TempDir;

fuzz_target!(|data: &[u8]| {
    static FOLDER: OnceLock<TempDir> = OnceLock::new();
    let folder = FOLDER.get_or_init(place::folder).path();
    let (choice, content) = edits::first(data);
    let path = folder.join(if choice & 1 == 0 { "truth.ibin" } else { "truth.ivecs" });
    std::fs::write(&path, content).expect("a file in the scratch folder");
    let Ok(truth) = GroundTruth::read(&path) else { return };
    assert_eq!(truth.queries() * truth.k, truth.ids.len());
    for query in 0..truth.queries() {
        assert_eq!(truth.ids_of(query).len(), truth.k);
    }
    let _ = truth.check(&path, truth.queries() as u64, 10);
    let again = folder.join("again.ibin");
    truth.write(&place::output(&again)).expect("ground truth that was read");
    let read = GroundTruth::read(&again).expect("ground truth that was written");
    let bits = |truth: &GroundTruth| truth.distances.iter().map(|d| d.to_bits()).collect::<Vec<_>>();
    assert_eq!((read.k, &read.ids, bits(&read)), (truth.k, &truth.ids, bits(&truth)));
});
