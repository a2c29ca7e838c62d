//! The content of points as one number, whatever segment they are in.

use xxhash_rust::xxh3::{Xxh3, xxh3_64};

/// Sum over points of a hash of id, sequence number and vector. Points can be in any order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Content(u128);

impl Content {
    /// Hash of the components of a vector.
    pub(crate) fn of_vector(vector: &[u8]) -> u64 {
        xxh3_64(vector)
    }

    /// Adds a point.
    pub(crate) fn add(&mut self, id: &[u8], seq: u64, vector: u64) {
        let mut hash = Xxh3::new();
        hash.update(id);
        hash.update(&seq.to_le_bytes());
        hash.update(&vector.to_le_bytes());
        self.0 = self.0.wrapping_add(hash.digest128());
    }

    /// 32 hexadecimal digits.
    pub(crate) fn to_text(self) -> String {
        format!("{:032x}", self.0)
    }
}
