//! Options of a `gpu-ivf`.

use stratann_core::plan::gpu_ivf::Rule;
use stratann_params::Group;
use stratann_params::build::GpuOptions;
use stratann_params::choices::RuleName;
#[cfg(feature = "lab")]
use stratann_params::choices::{BaselineFiles, BaselineName};
use stratann_params::open::ScorerSettings;
use stratann_params::search::GpuSwitches;

#[cfg(feature = "lab")]
use super::baseline::{Baseline, OpenBaselines};
use crate::codebook::check_code_bytes;
use crate::exec::scorer::ScorerOptions;
use crate::record::{Record, recorded};
use stratann_storage::{Error, Result};

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

/// The families of recall curves among which a search with these switches takes the cheapest; `None` is the usual one.
/// Without a switch of one rule, the rule is left to the curves.
pub(crate) fn families(switches: &GpuSwitches) -> Vec<Option<&'static str>> {
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

#[cfg(feature = "lab")]
impl From<BaselineName> for Baseline {
    fn from(name: BaselineName) -> Baseline {
        match name {
            BaselineName::Spann => Baseline::Spann,
            BaselineName::HiPq => Baseline::ListsOfCodes,
            BaselineName::HiGpu => Baseline::SpannOnGpu,
            BaselineName::HiPqGpu => Baseline::ListsOfCodesOnGpu,
            BaselineName::RummyLike => Baseline::Rummy,
            BaselineName::MiCpu => Baseline::MultiTierOnCpu,
            BaselineName::MiGpu => Baseline::MultiTierOnGpu,
            BaselineName::StaticN => Baseline::StaticCandidates,
            BaselineName::NoDedup => Baseline::NoDeduplication,
            BaselineName::NoLayout => Baseline::NoLayout,
        }
    }
}

#[cfg(feature = "lab")]
impl From<Baseline> for BaselineName {
    fn from(baseline: Baseline) -> BaselineName {
        match baseline {
            Baseline::Spann => BaselineName::Spann,
            Baseline::ListsOfCodes => BaselineName::HiPq,
            Baseline::SpannOnGpu => BaselineName::HiGpu,
            Baseline::ListsOfCodesOnGpu => BaselineName::HiPqGpu,
            Baseline::Rummy => BaselineName::RummyLike,
            Baseline::MultiTierOnCpu => BaselineName::MiCpu,
            Baseline::MultiTierOnGpu => BaselineName::MiGpu,
            Baseline::StaticCandidates => BaselineName::StaticN,
            Baseline::NoDeduplication => BaselineName::NoDedup,
            Baseline::NoLayout => BaselineName::NoLayout,
        }
    }
}

/// The files that searches with these switches need.
#[cfg(feature = "lab")]
pub(crate) fn baseline_files(settings: BaselineFiles, switches: &GpuSwitches) -> OpenBaselines {
    match (settings, switches.baseline.map(Baseline::from)) {
        (BaselineFiles::Ram, _) => OpenBaselines::Resident,
        (_, Some(baseline)) if baseline.is_resident() => OpenBaselines::Resident,
        (BaselineFiles::Disk, _) => OpenBaselines::OnDisk,
        (_, Some(baseline)) if baseline.needs_files() => OpenBaselines::OnDisk,
        (BaselineFiles::None, _) => OpenBaselines::No,
    }
}

/// What ranks codes. A baseline may want the processor, whatever GPU there is.
///
/// # Errors
/// Options of a GPU for a scorer without.
pub(crate) fn scorer(settings: &ScorerSettings, switches: &GpuSwitches) -> Result<ScorerOptions> {
    let options = ScorerOptions::read(settings)?;
    #[cfg(not(feature = "lab"))]
    let wants_processor = switches.baseline.is_some();
    #[cfg(feature = "lab")]
    let wants_processor = switches.baseline.is_some_and(|name| !Baseline::from(name).uses_scorer());
    Ok(if wants_processor { ScorerOptions::default() } else { options })
}
