//! The questions about the parameters of a search.

use stratann_core::kinds::KindParams;
use stratann_core::query::QueryStats;
use stratann_storage::Result;

use crate::kinds::answers::Setting;
use crate::kinds::options::Switches;

/// Parameters of a search, as each kind's own say more of them. Those of a kind without a technique have an answer here
/// already.
pub(crate) trait SearchParams {
    /// Returns the setting that these parameters are.
    fn setting(&self, k: u32) -> Setting;

    /// Returns the parameters with the values of a setting and these for the others; `None` where defaults are to stand
    /// for them.
    fn with_setting(&self, _setting: &Setting) -> Option<KindParams> {
        None
    }

    /// Changes what was chosen for a recall to that of one of several indexes that are searched as one.
    fn search_part(&mut self) {}

    /// Returns the parameters that a report shows besides the setting, by their names in JSON.
    fn reported(&self) -> Vec<(&'static str, serde_json::Value)> {
        Vec::new()
    }

    /// Applies the switches of the kind. `variant` is the one that calibration chose.
    ///
    /// # Errors
    /// A value out of range.
    fn apply_switches(&mut self, _k: u32, _switches: &Switches, _variant: Option<&str>) -> Result<()> {
        Ok(())
    }

    /// Returns the bytes that state and scratch of a query take by these parameters, besides its results and its
    /// tables.
    fn state_bytes(&self, _k: u64) -> u64 {
        0
    }

    /// Whether a query searches everything, of a kind that need not.
    fn is_exact(&self) -> bool {
        false
    }

    /// Returns the queries of one call from which on they score every vector together; `None` where their results are
    /// not those of such a scan.
    fn least_scanned(&self) -> Option<usize> {
        None
    }

    /// Adds the counters of its own that a query has which scores every vector, to those of its reads.
    fn count_scan(&self, _stats: &mut QueryStats) {}

    /// Lengthens what must not be shorter than the answer, after k has grown.
    fn fit_to_k(&mut self, _k: u32) {}

    /// Returns the reads of a query that are under way at once whatever its width: those of a mini-batch.
    fn reads_at_once(&self) -> u32 {
        0
    }

    /// Returns the concurrent reads of a query for which no width was asked.
    fn usual_width(&self) -> u32 {
        1
    }

    /// Returns the candidates of codes that were enough for every query of a search with these parameters and largest
    /// counters; `None` where their number is fixed, and of a kind without.
    fn needed_candidates(&self, _largest: &QueryStats) -> Option<u32> {
        None
    }
}

/// The most that a list of `count` entries takes while it grows: it doubles, and is copied once more as it does.
pub(crate) fn grown(count: u64, entry_bytes: u64) -> u64 {
    count.next_power_of_two() * entry_bytes * 3 / 2
}
