//! Seeds of the fuzz targets for filters, payloads and their files, by the code of the targets.
#![allow(missing_docs, dead_code, unreachable_pub)]

#[path = "../../../fuzz/src/edits.rs"]
mod edits;
#[path = "../../../fuzz/src/payloads.rs"]
mod payloads;

use std::collections::BTreeMap;
use std::path::Path;

#[test]
fn seeds_of_fuzz_targets_are_fine() {
    let fuzz = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz");
    let mut targets: BTreeMap<&str, Vec<(String, Vec<u8>)>> = BTreeMap::new();
    for (target, name, content) in payloads::seeds() {
        targets.entry(target).or_default().push((name, content));
    }
    assert_eq!(targets.len(), 5);
    for (target, seeds) in targets {
        assert!(fuzz.join("fuzz_targets").join(target).with_extension("rs").is_file(), "{target}");
        let folder = fuzz.join("seeds").join(target);
        for (name, content) in &seeds {
            let stored = std::fs::read(folder.join(name));
            assert_eq!(
                stored.ok().as_ref(),
                Some(content),
                "{target}/{name}: write it with the example `seeds` of fuzz"
            );
        }
        // Those that were added by hand, too.
        for entry in std::fs::read_dir(&folder).unwrap() {
            payloads::run(target, &std::fs::read(entry.unwrap().path()).unwrap());
        }
    }
}

/// Bytes that mean something in filters, paths and JSON.
const MARKS: &[u8] = b"{}[]()\"'`\\.,:;%_-+09e \n";

/// Pseudo-random numbers (xorshift).
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % end.max(1) as u64) as usize
    }
}

/// Bytes in which some are changed, left out, repeated, or taken from another seed.
fn changed(numbers: &mut Numbers, seed: &[u8], other: &[u8]) -> Vec<u8> {
    let mut bytes = seed.to_vec();
    for _ in 0..=numbers.below(6) {
        let at = numbers.below(bytes.len() + 1);
        let until = (at + numbers.below(12)).min(bytes.len());
        match numbers.below(5) {
            0 if at < bytes.len() => bytes[at] = numbers.below(256) as u8,
            1 => drop(bytes.drain(at..until)),
            2 => bytes.extend_from_within(at..until),
            3 if !other.is_empty() => {
                let from = numbers.below(other.len());
                let own = other[from..(from + numbers.below(20)).min(other.len())].to_vec();
                drop(bytes.splice(at..until, own));
            }
            _ => bytes.insert(at, MARKS[numbers.below(MARKS.len())]),
        }
    }
    bytes
}

#[test]
fn changed_seeds_do_not_panic() {
    // More of them: STRATANN_FUZZ_CASES=100000.
    let cases = std::env::var("STRATANN_FUZZ_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(300);
    let all = payloads::seeds();
    let mut numbers = Numbers(0x5eed);
    for target in ["filter_json", "filter_where", "payload_json", "payload_rows", "payload_index"] {
        let seeds: Vec<&[u8]> =
            all.iter().filter(|(own, ..)| *own == target).map(|(.., content)| content.as_slice()).collect();
        for _ in 0..cases {
            let (seed, other) = (seeds[numbers.below(seeds.len())], seeds[numbers.below(seeds.len())]);
            let content = changed(&mut numbers, seed, other);
            let done = std::panic::catch_unwind(|| payloads::run(target, &content));
            assert!(done.is_ok(), "{target}: {content:?}");
        }
    }
}
