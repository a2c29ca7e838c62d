//! Byte layouts of an index's files. Each has a table in its doc comment.

pub mod adjacency;
pub mod block;
pub mod block_map;
pub mod directory;
pub mod edges;
pub mod fresh;
pub mod gaps;
pub mod grid;
pub mod hnsw;
pub mod inverted_list;
pub mod posting_file;
pub mod posting_lists;
pub mod region;
pub mod words;

pub use crate::hash::{checksum, seeded_checksum};
