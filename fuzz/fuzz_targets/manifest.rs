//! The manifest: parsed, written again, and opened with the data files that it was made for.
#![no_main]

use std::path::Path;

use libfuzzer_sys::fuzz_target;
use serde_json::Value;
use stratann_engine::index::{Index, OpenOptions};
use stratann_engine::manifest::Manifest;
use stratann_engine::search::{Effort, SearchOptions};
use stratann_engine::spread::Shard;
use stratann_engine::verify::verify;
use stratann_fuzz::place::{WHOLE, Which, place};
use stratann_fuzz::{edits, run, seal};
use stratann_storage::Quiet;

fuzz_target!(|data: &[u8]| {
    let (choice, data) = edits::first(data);
    let which = WHOLE.into_iter().chain([Which::Spread]).nth(usize::from(choice % 10)).expect("an index");
    let place = place(which);
    let text = place.manifest.to_text().expect("a manifest");
    let valid: Value = serde_json::from_str(&text).expect("JSON");
    let Some(mut document) = edits::json(&valid, data) else { return };
    seal::json(&mut document);
    let text = document.to_string() + "\n";
    let Ok(manifest) = Manifest::from_text(&text, Path::new("manifest")) else { return };
    let again = manifest.to_text().expect("a manifest that was read");
    let read = Manifest::from_text(&again, Path::new("manifest")).expect("a manifest that was written");
    assert_eq!(read, manifest);
    let _ = (manifest.content_id(), manifest.seed(), manifest.planned_account(1 << 20));
    let _ = (manifest.needed_by(None).is_ok(), manifest.needed_by(Some(1)).is_ok());

    place.replace_manifest(&text);
    if choice % 4 == 0 {
        verify(place.path(), &Quiet).expect("a report");
    }
    if let Ok(shard) = Shard::open(place.path(), 0, OpenOptions::default()) {
        let _ = shard.account();
    }
    let Ok(index) = Index::open(place.path(), OpenOptions::default()) else { return };
    run_query(&index, place.data());
});

/// Runs a query, and looks up the parameters for several recalls.
fn run_query(index: &Index, data: &[u8]) {
    let _ = index.account();
    for recall in [0.5, 0.95, 1.0] {
        let options = SearchOptions { effort: Effort::Recall(recall), ..SearchOptions::default() };
        let _ = index.params(&options);
    }
    if index.row_bytes() == run::query().len() {
        run::search(&index.view(), data);
    }
}
