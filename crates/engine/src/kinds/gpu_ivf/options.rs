//! Options of a `gpu-ivf`.

use serde_json::Value;
use stratann_core::plan::gpu_ivf::{MAX_BATCH, MAX_CANDIDATES, Rule};

use super::baseline::Baseline;
use crate::build::codebook::{CodeKind, check_code_bytes};
use crate::{Error, Result};

/// Options of the build of a `gpu-ivf`.
#[derive(Clone, Debug)]
pub struct GpuOptions {
    /// Inverted lists, as a share of the vectors. 0.1 in FusionANNS §4.1.
    pub list_share: f64,
    /// A vector is also in lists whose centroids are farther than the nearest one by this share of the distance at most
    /// (ε of FusionANNS, equation 2).
    pub epsilon: f32,
    /// Bytes of a code; `None` for max(32, dim / 4).
    pub code_bytes: Option<usize>,
    /// Compression of the codes.
    pub code_kind: CodeKind,
    /// Write the files that searches as other systems do them need, and measure their recall.
    pub baselines: bool,
}

impl Default for GpuOptions {
    fn default() -> Self {
        GpuOptions {
            list_share: 0.1,
            epsilon: 0.15,
            code_bytes: None,
            code_kind: CodeKind::ResidualOpq,
            baselines: false,
        }
    }
}

impl GpuOptions {
    /// Bytes of a code for vectors of `dim` components.
    pub fn code_bytes(&self, dim: usize) -> usize {
        self.code_bytes.unwrap_or((dim / 4).max(32)).min(dim)
    }

    /// Lists of an index of so many rows.
    pub(crate) fn lists(&self, rows: u64) -> usize {
        ((rows as f64 * self.list_share).round() as usize).clamp(1, rows.max(1) as usize)
    }

    /// Checks the values for vectors of `dim` components.
    pub(crate) fn check(&self, dim: usize) -> Result<()> {
        let bad = |text: String| Err(Error::bad_input(text));
        if !(self.list_share > 0.0 && self.list_share <= 1.0) {
            return bad(format!("--list-share is {}; give a share above 0 and up to 1", self.list_share));
        }
        if !(0.0..=10.0).contains(&self.epsilon) {
            return bad(format!("--epsilon is {}; give a share from 0 to 10", self.epsilon));
        }
        check_code_bytes(self.code_bytes, dim)
    }

    /// The options that the content of an index depends on, as its manifest records them.
    pub(crate) fn record(&self, dim: usize) -> Vec<(&'static str, Value)> {
        vec![
            ("list_share", self.list_share.into()),
            ("epsilon", f64::from(self.epsilon).into()),
            ("code_bytes", self.code_bytes(dim).into()),
            ("code_kind", format!("{:?}", self.code_kind).to_lowercase().into()),
            ("baselines", self.baselines.into()),
        ]
    }
}

/// Techniques of a `gpu-ivf` that may be switched. `None` leaves a number to the curve, or to its default.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct GpuSwitches {
    /// Search as another system, or without a technique.
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
        match (self.baseline, self.rule) {
            (Some(baseline), _) => vec![Some(baseline.family())],
            (None, Some(Rule::Margin)) => vec![None],
            (None, Some(rule)) => vec![Some(rule.name())],
            (None, None) if names_rule => vec![None],
            (None, None) => vec![None, Some(Rule::Changes.name())],
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
