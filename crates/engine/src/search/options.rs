//! Options of a search.

use stratann_core::query::Mode;
use stratann_params::Given;
use stratann_params::choices::{ModeName, PartsName};
use stratann_params::search::{BatchSettings, SearchSettings};
use stratann_storage::Result;
use stratann_storage::tier::IoChoice;

use crate::exec::{Admission, BatchOptions, Width};
use crate::kinds::effort::Effort;
use crate::kinds::options::Switches;
use crate::parallel;
use stratann_params::IndexKind;

/// Options of a search.
#[derive(Clone, Copy, Debug)]
pub struct SearchOptions {
    /// Results wanted per query.
    pub k: usize,
    /// Effort of each query.
    pub effort: Effort,
    /// Time at which arrivals are used.
    pub mode: Mode,
    /// Reads in one round.
    pub width: Width,
    /// Queries in flight per thread; `None` picks.
    pub in_flight: Option<usize>,
    /// Time at which the next query is admitted.
    pub admission: Admission,
    /// Threads.
    pub threads: usize,
    /// Way to read blocks.
    pub io: IoChoice,
    /// Make equal reads under way once.
    pub merge: bool,
    /// Options of the loads of a batch, of a kind whose queries share their reads.
    pub batch_options: BatchOptions,
    /// How several indexes are searched as one.
    pub parts: PartsName,
    /// The share of all rows that this index has, of those that are searched as one: the effort for a recall is that of
    /// the results to be expected among them.
    pub share: f64,
    /// Techniques of the kind that may be switched.
    pub switches: Switches,
}

/// The core's name of a mode.
pub fn mode_of(name: ModeName) -> Mode {
    match name {
        ModeName::Barrier => Mode::Barrier,
        ModeName::Eager => Mode::Eager,
    }
}

impl SearchOptions {
    /// The recall that is asked for; `None` where an effort is.
    pub(crate) fn recall(&self) -> Option<f64> {
        if let Effort::Recall(recall) = self.effort { Some(recall) } else { None }
    }

    /// Reads what a user gave for one run in an index of this kind.
    ///
    /// # Errors
    /// A baseline, which only the laboratory has.
    pub fn read(given: &Given, kind: IndexKind) -> Result<SearchOptions> {
        #[cfg(not(feature = "lab"))]
        if let Some(name) = given.values("baseline").next() {
            return Err(stratann_storage::Error::laboratory(&format!("--baseline {name}"), "search"));
        }
        let settings: SearchSettings = given.read();
        Ok(SearchOptions {
            k: settings.k,
            effort: Effort::read(&settings),
            mode: mode_of(settings.mode),
            width: settings.width.into(),
            in_flight: settings.in_flight,
            admission: settings.admission.into(),
            threads: settings.threads.unwrap_or_else(parallel::cores),
            io: settings.io.into(),
            merge: settings.merge,
            batch_options: given.read::<BatchSettings>().into(),
            parts: settings.parts,
            share: 1.0,
            switches: Switches::read(given, kind),
        })
    }
}

impl Default for SearchOptions {
    fn default() -> Self {
        SearchOptions {
            k: 10,
            effort: Effort::Recall(0.95),
            mode: Mode::Barrier,
            width: Width::Usual,
            in_flight: None,
            admission: Admission::Fixed,
            threads: 1,
            io: IoChoice::Auto,
            merge: true,
            batch_options: BatchOptions::default(),
            parts: PartsName::Whole,
            share: 1.0,
            switches: Switches::Default,
        }
    }
}
