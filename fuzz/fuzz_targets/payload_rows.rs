//! `payload-G.rows`: the payloads of a segment, in compressed blocks.
#![no_main]

use libfuzzer_sys::fuzz_target;
use stratann_fuzz::payloads;

fuzz_target!(|data: &[u8]| payloads::payload_rows(data));
