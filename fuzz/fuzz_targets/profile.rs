//! The profile of a machine: parsed, and written again.
#![no_main]

use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;
use serde_json::Value;
use stratann_fuzz::{edits, place, seal};
use stratann_storage::profile::Profile;
use tempfile::TempDir;

fuzz_target!(|data: &[u8]| {
    static FOLDER: OnceLock<(TempDir, Value)> = OnceLock::new();
    let (folder, valid) = FOLDER.get_or_init(|| {
        let folder = place::folder();
        let path = folder.path().join("valid.json");
        place::profile().write(&place::output(&path)).expect("a profile");
        let text = std::fs::read(&path).expect("the profile");
        (folder, serde_json::from_slice(&text).expect("JSON"))
    });
    let Some(mut document) = edits::json(valid, data) else { return };
    seal::json(&mut document);
    let path = folder.path().join("profile.json");
    std::fs::write(&path, document.to_string()).expect("a file in the scratch folder");
    let Ok(profile) = Profile::read(&path) else { return };
    let again = folder.path().join("again.json");
    profile.write(&place::output(&again)).expect("a profile that was read");
    assert_eq!(Profile::read(&again).expect("a profile that was written"), profile);
    let _ = (profile.disk.read_us(4096, 1), profile.disk.read_us(1 << 20, 32));
    let _ = profile.differs_from_here(folder.path());
});
