//! Rules that end re-ranking, by name.

use stratann_core::kinds::gpu_ivf::{Params, Rule};

/// Sets the rule that a family is named after. As in the paper, only candidates are scored.
pub(crate) fn set_rule(name: &str, own: &mut Params) {
    own.whole_blocks = false;
    own.rule = Rule::from_name(name).unwrap_or_default();
}
