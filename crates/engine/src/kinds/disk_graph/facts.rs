//! Constants of a `disk-graph`.

use crate::kinds::facts::{EffortUnit, KindFacts};

/// Constants of the kind.
pub(crate) const FACTS: KindFacts = KindFacts {
    effort: EffortUnit::Beam,
    recall_options: "more --code-bytes or --degree",
    is_spreadable: true,
    is_built_in_tasks: true,
    has_adjacency_in_blocks: true,
    ..KindFacts::USUAL
};
