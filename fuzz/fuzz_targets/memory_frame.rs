//! Frames between compute nodes and memory nodes.
#![no_main]

use libfuzzer_sys::fuzz_target;
use stratann_fuzz::edits;
use stratann_storage::remote_memory::{check_frame, seal_frame};

fuzz_target!(|data: &[u8]| {
    let (choice, data) = edits::first(data);
    let _ = match choice % 2 {
        0 => check_frame(data),
        // Operations behind a header with their count and a valid checksum.
        _ => {
            let (count, body) = edits::first(data);
            check_frame(&seal_frame(count.into(), body))
        }
    };
});
