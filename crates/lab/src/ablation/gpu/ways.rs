//! Ways to search: by this kind, and as other systems do.

use stratann_core::kinds::gpu_ivf::Rule;
use stratann_engine::kinds::gpu_ivf::baseline::Baseline;
use stratann_params::choices::RuleName;
use stratann_params::search::GpuSwitches;

use super::settings::Family;

/// The name of what the kind does by default.
pub(super) const DEFAULT: &str = "default";

/// Baselines whose vectors or codes a GPU would score. None does here: their bytes are counted, and they are not timed.
const COUNTED_ONLY: [(Baseline, &str); 4] = [
    (Baseline::SpannOnGpu, "hi+gpu (bytes counted only)"),
    (Baseline::ListsOfCodesOnGpu, "hi+pq+gpu (bytes counted only)"),
    (Baseline::Rummy, "rummy-like (bytes counted only)"),
    (Baseline::MultiTierOnGpu, "mi-gpu (bytes counted only)"),
];

/// One way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Way {
    /// Its baseline's name. Where it is not timed, the name says so.
    pub(super) name: &'static str,
    /// Whether its times mean anything without a GPU.
    pub(super) is_timed: bool,
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
        let counted = COUNTED_ONLY.iter().find(|counted| counted.0 == baseline);
        Way {
            name: counted.map_or(baseline.name(), |counted| counted.1),
            is_timed: counted.is_none(),
            family: Family::of(baseline),
            rule: None,
            baseline: Some(baseline),
        }
    }

    /// The way that settings of a family are sought with. The others of the family give equal answers.
    pub(super) fn of_family(family: Family) -> Way {
        let named = |name, rule| Way { name, is_timed: true, family, rule, baseline: None };
        let own = |rule| named(family.name(), Some(rule));
        match family {
            Family::Margin => named(DEFAULT, None),
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
