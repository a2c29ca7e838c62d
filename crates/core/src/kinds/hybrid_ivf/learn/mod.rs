//! Learning from traffic: which members are hot, and a navigation graph that holds them (OrchANN §5.2).

mod hot_spot;
mod refresh;
mod sketch;
mod traffic;

pub use hot_spot::{EXCESS_MIN, Finding, HotRoom, HotSet, HotSpots, MISSES_MAX};
pub use refresh::{Newcomer, Places, refresh, refresh_bytes};
pub use sketch::Sketch;
pub use traffic::{Counting, Half, RESULT_WEIGHT, RESULTS_MAX, Traffic};
