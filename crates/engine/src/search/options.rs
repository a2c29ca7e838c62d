//! What a search can be asked for.

use stratann_core::query::Mode;
use stratann_storage::tier::IoChoice;

use crate::exec::{Admission, GatherOptions, Width};
use crate::kinds::effort::Effort;
use crate::kinds::options::Switches;

/// Options of a search.
#[derive(Clone, Copy, Debug)]
pub struct SearchOptions {
    /// Results wanted per query.
    pub k: usize,
    /// How hard to look.
    pub effort: Effort,
    /// When what arrived is used.
    pub mode: Mode,
    /// Reads in one round.
    pub width: Width,
    /// Queries in flight per thread; `None` picks.
    pub in_flight: Option<usize>,
    /// When the next query is admitted.
    pub admission: Admission,
    /// Threads.
    pub threads: usize,
    /// How blocks are read.
    pub io: IoChoice,
    /// Make equal reads under way once.
    pub merge: bool,
    /// How a batch is loaded, of a kind whose queries share their reads.
    pub gather: GatherOptions,
    /// Techniques of the kind that may be switched.
    pub switches: Switches,
}

impl Default for SearchOptions {
    fn default() -> Self {
        SearchOptions {
            k: 10,
            effort: Effort::Recall(0.95),
            mode: Mode::Barrier,
            width: Width::Auto,
            in_flight: None,
            admission: Admission::Fixed,
            threads: 1,
            io: IoChoice::Auto,
            merge: true,
            gather: GatherOptions::default(),
            switches: Switches::Default,
        }
    }
}
