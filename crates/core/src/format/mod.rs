//! Byte layouts of an index's files. Each has a table in its doc comment.

pub mod adjacency;
pub mod block;
pub mod block_map;
pub mod directory;
pub mod edges;
pub mod inverted_list;

/// Returns the checksum of a unit of data: xxh3, 64 bits.
pub fn checksum(bytes: &[u8]) -> u64 {
    xxhash_rust::xxh3::xxh3_64(bytes)
}
