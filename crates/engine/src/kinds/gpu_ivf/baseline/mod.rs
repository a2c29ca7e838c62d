//! Searches as other systems do them, over the same lists and codes, to compare (FusionANNS §2.3 and §6).

pub(crate) mod build;
pub(crate) mod files;

use stratann_core::kinds::gpu_ivf::baseline::Source;
use stratann_core::kinds::gpu_ivf::{Params, Rule};
use stratann_params::choices::BaselineName;

use super::rule::set_rule;

/// Searches that are made instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Baseline {
    /// SPANN: lists of vectors on disk are read whole, and all members are scored.
    Spann,
    /// Lists of codes on disk are read whole; the nearest members are re-ranked, each by a read of its own.
    ListsOfCodes,
    /// As `Spann`, but vectors are copied to a GPU that scores them.
    SpannOnGpu,
    /// As `ListsOfCodes`, but codes are copied to a GPU that scores them.
    ListsOfCodesOnGpu,
    /// RUMMY: lists of vectors are in RAM and are copied to a GPU that scores them.
    Rummy,
    /// The index of this kind with a fixed number of candidates, each read by itself, and codes in RAM.
    MultiTierOnCpu,
    /// As `MultiTierOnCpu`, with codes on the GPU.
    MultiTierOnGpu,
    /// The smallest fixed number of candidates that reaches the recall; blocks are read once.
    StaticCandidates,
    /// Algorithm 1 with a read for each candidate.
    NoDeduplication,
    /// Algorithm 1 over vectors in the order of rows.
    NoLayout,
}

impl Baseline {
    /// All baselines.
    pub const ALL: [Baseline; 10] = [
        Baseline::Spann,
        Baseline::ListsOfCodes,
        Baseline::SpannOnGpu,
        Baseline::ListsOfCodesOnGpu,
        Baseline::Rummy,
        Baseline::MultiTierOnCpu,
        Baseline::MultiTierOnGpu,
        Baseline::StaticCandidates,
        Baseline::NoDeduplication,
        Baseline::NoLayout,
    ];

    /// The name used on the command line. HI is hierarchical indexing, PQ product quantisation, MI the multi-tiered
    /// index, as in the paper.
    pub const fn name(self) -> &'static str {
        match self {
            Baseline::Spann => "spann",
            Baseline::ListsOfCodes => "hi+pq",
            Baseline::SpannOnGpu => "hi+gpu",
            Baseline::ListsOfCodesOnGpu => "hi+pq+gpu",
            Baseline::Rummy => "rummy-like",
            Baseline::MultiTierOnCpu => "mi-cpu",
            Baseline::MultiTierOnGpu => "mi-gpu",
            Baseline::StaticCandidates => "static-n",
            Baseline::NoDeduplication => "no-dedup",
            Baseline::NoLayout => "no-layout",
        }
    }

    /// The baseline of this name.
    pub fn from_name(name: &str) -> Option<Baseline> {
        Baseline::ALL.into_iter().find(|baseline| baseline.name() == name)
    }

    /// The family of curves that tells its parameters. Baselines of a family give equal answers.
    pub(crate) const fn family(self) -> &'static str {
        match self {
            Baseline::Spann | Baseline::SpannOnGpu | Baseline::Rummy => "lists",
            Baseline::ListsOfCodes | Baseline::ListsOfCodesOnGpu => "code-lists",
            Baseline::MultiTierOnCpu | Baseline::MultiTierOnGpu | Baseline::StaticCandidates => {
                Rule::Static.name()
            }
            Baseline::NoDeduplication | Baseline::NoLayout => Rule::Changes.name(),
        }
    }

    /// Whether it reads files that only an index built with `--baselines` has.
    pub const fn needs_files(self) -> bool {
        match self {
            Baseline::Spann
            | Baseline::ListsOfCodes
            | Baseline::SpannOnGpu
            | Baseline::ListsOfCodesOnGpu
            | Baseline::Rummy
            | Baseline::NoLayout => true,
            Baseline::MultiTierOnCpu
            | Baseline::MultiTierOnGpu
            | Baseline::StaticCandidates
            | Baseline::NoDeduplication => false,
        }
    }

    /// Whether lists of vectors must be in RAM.
    pub const fn is_resident(self) -> bool {
        matches!(self, Baseline::Rummy)
    }

    /// Whether a GPU scores codes where there is one. The others are scored by this machine's processor.
    pub const fn uses_scorer(self) -> bool {
        !matches!(self, Baseline::MultiTierOnCpu | Baseline::Spann | Baseline::ListsOfCodes)
    }

    /// Changes the parameters of its family to those of the baseline.
    pub(crate) fn apply(self, own: &mut Params) {
        family(self.family(), own);
        match self {
            Baseline::Spann | Baseline::ListsOfCodes | Baseline::StaticCandidates => {}
            Baseline::SpannOnGpu | Baseline::ListsOfCodesOnGpu => own.compared.copies = true,
            Baseline::Rummy => (own.compared.source, own.compared.copies) = (Source::ResidentLists, true),
            Baseline::MultiTierOnCpu | Baseline::MultiTierOnGpu | Baseline::NoDeduplication => {
                (own.merge, own.reuse) = (false, false);
            }
            Baseline::NoLayout => own.compared.by_rows = true,
        }
    }
}

/// Which files for searches as other systems do them are opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OpenBaselines {
    /// None.
    #[default]
    No,
    /// All, on disk.
    OnDisk,
    /// All, and lists of vectors are read into RAM.
    Resident,
}

/// The families of curves besides the usual one, of an index with files of other systems.
pub(crate) const FAMILIES: [&str; 4] = [Rule::Static.name(), Rule::Changes.name(), "lists", "code-lists"];

/// Whether a query has candidates, which are re-ranked.
pub(crate) fn has_candidates(own: &Params) -> bool {
    matches!(own.compared.source, Source::Codes | Source::CodeLists)
}

/// Sets what all parameters of a family have in common. As in the paper, only candidates are scored.
pub(crate) fn family(name: &str, own: &mut Params) {
    own.whole_blocks = false;
    match name {
        "lists" => (own.compared.source, own.rule) = (Source::Lists, Rule::Static),
        // Each candidate has a read of its own: nothing there knows of blocks.
        "code-lists" => {
            (own.compared.source, own.rule) = (Source::CodeLists, Rule::Static);
            (own.merge, own.reuse) = (false, false);
        }
        name => set_rule(name, own),
    }
}

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
