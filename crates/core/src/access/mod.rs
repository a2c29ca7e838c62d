//! What to read next.

pub mod graph_walk;
pub mod lists;
pub mod records;
pub mod scan;
