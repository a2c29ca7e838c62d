//! The query as data: its parameters, its state and one transition, the state as bytes, and the reference loop.

mod join;
mod params;
mod run;
mod state;
pub mod wire;

pub use join::{Join, join_hits};
pub use params::{MAX_K, MAX_WIDTH, Params};
pub use run::{outcome, run};
pub use state::{QueryState, Scratch, StepTables};

pub use crate::kinds::disk_graph::MAX_SEARCH_LIST;
pub use crate::search::{
    Arrival, Arrived, Beam, Budget, Candidate, Extent, FAR_MAX, Hit, IndexSize, Known, Loss, Mode, Outcome,
    Progress, QueryStats, Read, ScorerId, Scores, ScoringMode, Step, StoreId, Tag, Threshold, TopK, Want,
    visited_bytes,
};
