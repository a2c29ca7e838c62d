//! Where a search begins.

mod head_graph;

pub use head_graph::HeadGraph;
pub(crate) use head_graph::enter;
