//! The byte layouts, as law: each has a table in its doc comment.

pub mod block;
pub mod block_map;
pub mod directory;
pub mod edges;
pub mod list;
pub mod posting;

pub use crate::hash::checksum;
