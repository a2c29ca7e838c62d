//! Options of a `gpu-ivf`.

use stratann_core::kinds::gpu_ivf::Rule;
use stratann_params::Group;
pub use stratann_params::build::GpuOptions as Options;
use stratann_params::choices::{CodeKind, RuleName};
pub use stratann_params::search::GpuSwitches as Switches;

#[cfg(feature = "lab")]
use super::baseline::Baseline;

use crate::codebook::check_code_bytes;
use crate::record::{Record, Recorded, recorded};
use stratann_storage::{Error, Result};

impl Recorded for Options {
    fn check(&self, dim: usize) -> Result<()> {
        self.check_ranges()?;
        if self.baselines && !cfg!(feature = "lab") {
            return Err(Error::laboratory("--baselines", "build"));
        }
        check_code_bytes(self.code_bytes, dim, CodeKind::Bits)
    }

    fn record(&self, dim: usize) -> Record {
        let mut all = recorded(self);
        all.insert("code_bytes", self.code_bytes(dim).into());
        // Readers of reports expect it.
        all.insert("code_kind", "bits".into());
        all
    }
}

/// The families of recall curves among which a search with these switches takes the cheapest; `None` is the usual one.
/// Without a switch of one rule, the rule is left to the curves.
pub(crate) fn families(switches: &Switches) -> Vec<Option<&'static str>> {
    let names_rule = switches.margin.is_some() || switches.epsilon_stop.is_some() || switches.beta.is_some();
    #[cfg(feature = "lab")]
    if let Some(baseline) = switches.baseline {
        return vec![Some(Baseline::from(baseline).family())];
    }
    match switches.rule {
        Some(RuleName::Margin) => vec![None],
        Some(rule) => vec![Some(rule.name())],
        None if names_rule => vec![None],
        None => vec![None, Some(Rule::Changes.name())],
    }
}

/// The core's name of a rule.
pub(crate) fn rule(name: RuleName) -> Rule {
    match name {
        RuleName::Static => Rule::Static,
        RuleName::Changes => Rule::Changes,
        RuleName::Margin => Rule::Margin,
    }
}
