//! Filters as lines of text.
#![no_main]

use libfuzzer_sys::fuzz_target;
use stratann_fuzz::payloads;

fuzz_target!(|data: &[u8]| payloads::filter_where(data));
