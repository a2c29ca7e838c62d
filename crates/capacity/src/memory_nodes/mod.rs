//! Compute nodes and memory nodes of a `remote-hnsw`: recorded batches, replayed at the prices of a link.

pub mod prices;
pub mod recorded;
pub mod rows;
