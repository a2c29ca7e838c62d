//! The query as data: its state, what it wants, what it is told, and what it counts.

mod beam;
mod params;
mod probing;
mod seen;
mod state;
mod stats;
mod trace;
pub mod wire;

pub use beam::{Beam, Candidate, Progress};
pub use params::{Budget, MAX_K, MAX_SEARCH_LIST, MAX_WIDTH, Mode, Params};
pub use probing::{Bounds, MAX_PROBES, Order, Probe};
pub(crate) use probing::{Probing, QueuedLists, Reading, Scored, Survivor, Visit, Walk};
pub use seen::bytes as seen_bytes;
pub(crate) use state::Unread;
pub use state::{Arrival, Arrived, Hit, Loss, Outcome, QueryState, Scratch, Step, Tag, Want};
pub use stats::QueryStats;
pub use trace::{Purpose, Ranked, ScannedList};
