//! The byte layouts, as law: each has a table in its doc comment.

pub mod block;
pub mod block_map;
pub mod directory;
pub mod edges;
pub mod list;
pub mod posting;

/// The checksum of every unit of data: xxh3, 64 bits.
pub fn checksum(bytes: &[u8]) -> u64 {
    xxhash_rust::xxh3::xxh3_64(bytes)
}
