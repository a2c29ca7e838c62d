//! Constants of a `flat`.

use crate::kinds::facts::{EffortUnit, KindFacts};

/// Constants of the kind.
pub(crate) const FACTS: KindFacts = KindFacts {
    has_curve: false,
    effort: EffortUnit::Beam,
    recall_options: "nothing: every search is exact",
    is_built_in_tasks: true,
    ..KindFacts::USUAL
};
