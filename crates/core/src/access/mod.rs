//! What to read next.

pub mod graph_walk;
pub mod scan;
