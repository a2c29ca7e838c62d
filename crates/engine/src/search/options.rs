//! What a search can be asked for.

use stratann_core::plan::hybrid_ivf::Order;
use stratann_core::query::Mode;
use stratann_core::verify::Bounds;

use crate::driver::{Admission, Width};
use crate::tier::IoChoice;

/// How hard to look.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Effort {
    /// Mean recall@k wanted; the index' curve picks the parameters.
    Recall(f64),
    /// Length of the beam, and the slack of the adaptive stop (`None` turns it off).
    List(u32, Option<f32>),
    /// Clusters visited at most (nprobe), the slack of bounds (`None` for bounds that hold), and the share of
    /// fruitless clusters in a row that end the visits (`None` for all).
    Clusters(u32, Option<f32>, Option<f32>),
}

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
    /// Begin at the head graph's best, or at the medoid.
    pub head: bool,
    /// Use all nodes of a block, or those asked for only.
    pub whole_blocks: bool,
    /// Make equal reads under way once.
    pub merge: bool,
    /// Stop after so many reads in a row that changed nothing; `None` leaves it to the effort, 0 turns it off.
    pub patience: Option<u32>,
    /// Techniques of `hybrid-ivf` that may be switched off.
    pub probe: ProbeSwitches,
}

/// What `hybrid-ivf` does unless told otherwise (OrchANN §5.3).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ProbeSwitches {
    /// Which clusters are visited first; `None` for what the index was calibrated with.
    pub order: Option<Order>,
    /// Stop when clusters bring nothing more.
    pub early_stop: bool,
    /// Weigh what fruitless clusters tell by what was to be expected of them.
    pub weighed: bool,
    /// Bounds that discard vectors before they are read.
    pub bounds: Bounds,
    /// Lists that are scanned of a divided cluster; `None` for as many as its plan says.
    pub local_lists: Option<u32>,
    /// Length of the beam in a cluster that is a graph.
    pub local_list: Option<u32>,
    /// Members found by the navigation that speak for their clusters.
    pub votes: Option<u32>,
}

impl Default for ProbeSwitches {
    fn default() -> Self {
        ProbeSwitches {
            order: None,
            weighed: true,
            early_stop: true,
            bounds: Bounds::Both,
            local_lists: None,
            local_list: None,
            votes: None,
        }
    }
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
            head: true,
            whole_blocks: true,
            merge: true,
            patience: None,
            probe: ProbeSwitches::default(),
        }
    }
}
