//! Graphs over samples in RAM: where a search begins.

mod head_graph;
mod nav_graph;
mod sieved;
mod walk;

pub use head_graph::HeadGraph;
pub use nav_graph::{NONE, NavGraph};
pub(crate) use sieved::{lists_to_visit, visits};
pub(crate) use walk::{to_centroid, walk};
