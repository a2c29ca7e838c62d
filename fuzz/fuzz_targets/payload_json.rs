//! Payloads as JSON, paths, and updates.
#![no_main]

use libfuzzer_sys::fuzz_target;
use stratann_fuzz::payloads;

fuzz_target!(|data: &[u8]| payloads::payload_json(data));
