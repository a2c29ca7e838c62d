//! Answers over HTTP, as a client reads them.
#![no_main]

use libfuzzer_sys::fuzz_target;
use stratann_server::wire::{Refusal, Reply};

fuzz_target!(|data: &[u8]| {
    if let Ok(refusal) = serde_json::from_slice::<Refusal>(data) {
        let text = serde_json::to_string(&refusal).expect("JSON");
        assert_eq!(serde_json::from_str::<Refusal>(&text).expect("a refusal").error, refusal.error);
    }
    let Ok(reply) = serde_json::from_slice::<Reply>(data) else { return };
    let _ = reply.params.params();
    let text = serde_json::to_string(&reply).expect("JSON");
    let again: Reply = serde_json::from_str(&text).expect("a reply that was written");
    assert_eq!(again.answers, reply.answers);
    assert_eq!(serde_json::to_string(&again).expect("JSON"), text);
});
