//! The content of points as one number, whatever segment they are in.

use xxhash_rust::xxh3::{Xxh3, xxh3_64};

/// Sum over points of a hash of id, sequence number, vector and payload. Points can be in any order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Content(u128);

impl Content {
    /// Hash of the components of a vector.
    pub(crate) fn of_vector(vector: &[u8]) -> u64 {
        xxh3_64(vector)
    }

    /// Hash of a payload as compact JSON.
    pub(crate) fn of_payload(json: &[u8]) -> u64 {
        xxh3_64(json)
    }

    /// Adds a point, with the hashes of its vector and of its payload if it has one.
    pub(crate) fn add(&mut self, id: &[u8], seq: u64, (vector, payload): (u64, Option<u64>)) {
        let mut hash = Xxh3::new();
        hash.update(id);
        hash.update(&seq.to_le_bytes());
        hash.update(&vector.to_le_bytes());
        // A point without a payload has the hash that it had before there were payloads.
        payload.iter().for_each(|payload| hash.update(&payload.to_le_bytes()));
        self.0 = self.0.wrapping_add(hash.digest128());
    }

    /// 32 hexadecimal digits.
    pub(crate) fn to_text(self) -> String {
        format!("{:032x}", self.0)
    }
}
