//! The content of points as one number, whatever segment they are in.

use xxhash_rust::xxh3::{Xxh3, xxh3_64, xxh3_64_with_seed};

/// Sum over points of a hash of id, sequence number, vectors and payload. Points can be in any order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Content(u128);

impl Content {
    /// Hash of the components of a vector.
    pub(crate) fn of_vector(vector: &[u8]) -> u64 {
        xxh3_64(vector)
    }

    /// What a vector of a name adds to that of its point, by its hash. One without a name is that of its point.
    pub(crate) fn of_named(name: &str, vector: u64) -> u64 {
        if name.is_empty() { vector } else { xxh3_64_with_seed(name.as_bytes(), vector) }
    }

    /// Hash of a payload as compact JSON.
    pub(crate) fn of_payload(json: &[u8]) -> u64 {
        xxh3_64(json)
    }

    /// Adds a point, with the sum of its vectors and the hash of its payload if it has one.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vector_counts_under_its_name() {
        let (one, two) = (Content::of_vector(&[1, 2]), Content::of_vector(&[3]));
        assert_eq!(Content::of_named("", one), one, "as it was before there were names");
        let sum = |a, b| Content::of_named("a", a).wrapping_add(Content::of_named("b", b));
        assert_ne!(sum(one, two), sum(two, one));
        assert_ne!(Content::of_named("a", one), sum(one, two));
    }
}
