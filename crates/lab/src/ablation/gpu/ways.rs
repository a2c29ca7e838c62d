//! Ways to search: by this kind, and as other systems do.

use stratann_core::kinds::gpu_ivf::Rule;
use stratann_engine::kinds::gpu_ivf::baseline::Baseline;
use stratann_params::choices::RuleName;
use stratann_params::search::GpuSwitches;

use super::settings::Family;

/// The name of what the kind does by default.
pub(super) const DEFAULT: &str = "default";

/// One way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Way {
    pub(super) name: &'static str,
    pub(super) family: Family,
    pub(super) rule: Option<Rule>,
    pub(super) baseline: Option<Baseline>,
}

impl Way {
    /// All ways: the default, both other rules, and the baselines.
    pub(super) fn all() -> Vec<Way> {
        let own = [Family::Margin, Family::Changes, Family::Static].map(Way::of_family);
        own.into_iter().chain(Baseline::ALL.map(Way::of)).collect()
    }

    /// A baseline.
    pub(super) fn of(baseline: Baseline) -> Way {
        Way { name: baseline.name(), family: Family::of(baseline), rule: None, baseline: Some(baseline) }
    }

    /// The way that settings of a family are sought with. The others of the family give equal answers.
    pub(super) fn of_family(family: Family) -> Way {
        let own = |rule| Way { name: family.name(), family, rule: Some(rule), baseline: None };
        match family {
            Family::Margin => Way { name: DEFAULT, family, rule: None, baseline: None },
            Family::Changes => own(Rule::Changes),
            Family::Static => own(Rule::Static),
            Family::Lists => Way::of(Baseline::Spann),
            Family::CodeLists => Way::of(Baseline::ListsOfCodes),
        }
    }

    /// Switches of the way, without numbers.
    pub(super) fn switches(&self) -> GpuSwitches {
        let rule = self.rule.and_then(|rule| RuleName::parse(rule.name()));
        GpuSwitches { rule, baseline: self.baseline.map(Into::into), ..GpuSwitches::default() }
    }
}
