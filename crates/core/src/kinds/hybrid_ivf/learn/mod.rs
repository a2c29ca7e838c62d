//! Learning from traffic: which members are hot, and a navigation graph that holds them (OrchANN §5.2).

mod refresh;
mod sketch;
mod traffic;

pub use refresh::{Newcomer, Places, refresh, refresh_bytes};
pub use sketch::Sketch;
pub use traffic::{RESULT_WEIGHT, RESULTS_MAX, Traffic};
