//! Options of a `gpu-ivf`.

use stratann_core::plan::gpu_ivf::{MAX_BATCH, MAX_CANDIDATES, Rule};
use stratann_params::Group;
use stratann_params::build::GpuOptions;
use stratann_storage::{Error, Result};

#[cfg(feature = "lab")]
use super::baseline::Baseline;
use crate::codebook::check_code_bytes;
use crate::record::{Record, recorded};

/// Checks the values for vectors of `dim` components.
pub(crate) fn check(own: &GpuOptions, dim: usize) -> Result<()> {
    own.check_ranges()?;
    if own.baselines && !cfg!(feature = "lab") {
        return Err(Error::laboratory("--baselines", "build"));
    }
    check_code_bytes(own.code_bytes, dim)
}

/// The options that the content of an index depends on, as its manifest records them.
pub(crate) fn record(own: &GpuOptions, dim: usize) -> Record {
    let mut all = recorded(own);
    all.insert("code_bytes", own.code_bytes(dim).into());
    all.insert("code_kind", format!("{:?}", own.code_kind).to_lowercase().into());
    all
}

/// Techniques of a `gpu-ivf` that may be switched. `None` leaves a number to the curve, or to its default.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct GpuSwitches {
    /// Search as another system, or without a technique.
    #[cfg(feature = "lab")]
    pub baseline: Option<Baseline>,
    /// What ends re-ranking.
    pub rule: Option<Rule>,
    /// Candidates that may be re-ranked (n).
    pub candidates: Option<u32>,
    /// Candidates of a mini-batch.
    pub batch: Option<u32>,
    /// Share of the results that a mini-batch without effect changes at most (ε).
    pub epsilon_stop: Option<f32>,
    /// Mini-batches without effect in a row that end re-ranking (β).
    pub beta: Option<u32>,
    /// Share of the distance to the k-th result by which the next candidate must be farther by its code.
    pub margin: Option<f32>,
    /// Score only the candidates of a block that was read.
    pub no_whole_blocks: bool,
}

impl GpuSwitches {
    /// The families of recall curves among which a search with these switches takes the cheapest; `None` is the usual
    /// one. Without a switch of one rule, the rule is left to the curves.
    pub(crate) fn families(&self) -> Vec<Option<&'static str>> {
        let names_rule = self.margin.is_some() || self.epsilon_stop.is_some() || self.beta.is_some();
        #[cfg(feature = "lab")]
        if let Some(baseline) = self.baseline {
            return vec![Some(baseline.family())];
        }
        match self.rule {
            Some(Rule::Margin) => vec![None],
            Some(rule) => vec![Some(rule.name())],
            None if names_rule => vec![None],
            None => vec![None, Some(Rule::Changes.name())],
        }
    }

    /// Refuses numbers out of range.
    pub(crate) fn check(&self) -> Result<()> {
        let bad = |text: String| Err(Error::bad_input(text));
        if let Some(n) = self.candidates.filter(|n| !(1..=MAX_CANDIDATES).contains(n)) {
            return bad(format!("--candidates is {n}; use 1 to {MAX_CANDIDATES}"));
        }
        if let Some(n) = self.batch.filter(|n| !(1..=MAX_BATCH).contains(n)) {
            return bad(format!("--batch-size is {n}; use 1 to {MAX_BATCH}"));
        }
        if let Some(share) = self.epsilon_stop.filter(|share| !(0.0..=1.0).contains(share)) {
            return bad(format!("--epsilon-stop is {share}; give a share from 0 to 1"));
        }
        if let Some(margin) = self.margin.filter(|margin| margin.is_nan() || *margin < -1.0) {
            return bad(format!("--margin is {margin}; give a share from -1 up"));
        }
        Ok(())
    }
}
