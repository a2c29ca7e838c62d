//! Filters as JSON: read, compiled, and written again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use stratann_fuzz::payloads;

fuzz_target!(|data: &[u8]| payloads::filter_json(data));
