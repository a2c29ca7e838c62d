//! All blocks, in order.

use crate::plan::IndexView;
use crate::query::{Outcome, QueryState};

/// Keeps `width` reads under way until every block has been asked for.
pub(crate) fn choose(state: &mut QueryState, view: &IndexView<'_>) {
    if state.outcome != Outcome::Running {
        return;
    }
    while state.outstanding.len() < state.params.width as usize && state.next_block < view.blocks {
        if state.budget.hops == 0 || !state.fetch(view, state.next_block) {
            state.finish(Outcome::OutOfBudget);
            return;
        }
        state.next_block += 1;
    }
    if state.outstanding.is_empty() {
        state.finish(Outcome::Complete);
    } else if !state.wants.is_empty() {
        state.stats.hops += 1;
        state.budget.hops -= 1;
    }
}
