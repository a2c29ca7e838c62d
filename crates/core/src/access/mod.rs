//! What to read next.

pub mod graph_walk;
pub mod lists;
pub(crate) mod local_graph;
pub mod records;
pub mod scan;
