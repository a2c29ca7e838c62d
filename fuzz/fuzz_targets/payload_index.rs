//! `payload-G.index`: which rows of a segment have which values.
#![no_main]

use libfuzzer_sys::fuzz_target;
use stratann_fuzz::payloads;

fuzz_target!(|data: &[u8]| payloads::payload_index(data));
