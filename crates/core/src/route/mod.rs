//! Where a search begins.

mod head_graph;
mod nav_graph;
mod refresh;
mod sketch;
mod traffic;

pub use head_graph::HeadGraph;
pub(crate) use head_graph::enter;
pub use nav_graph::{NONE, NavGraph};
pub(crate) use nav_graph::{navigate, to_centroid};
pub use refresh::{Newcomer, Places, refresh, refresh_bytes};
pub use sketch::Sketch;
pub use traffic::{RESULT_WEIGHT, RESULTS_MAX, Traffic};
