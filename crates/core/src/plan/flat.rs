//! `flat`: every vector is read and scored. Exact; for small sets, and the truth for all other kinds.
//!
//! route = none · access = [`crate::access::scan`] · verify = [`crate::verify`]

use super::{IndexView, take_in};
use crate::access::scan;
use crate::query::{Arrival, QueryState, Scratch};
use crate::verify;

pub(super) fn step(
    state: &mut QueryState,
    view: &IndexView<'_>,
    scratch: &mut Scratch,
    arrived: &[Arrival<'_>],
) {
    state.started = true;
    take_in(state, view, scratch, arrived, |state, scratch, block| {
        verify::score_block(state, scratch, block);
        Some(())
    });
    scan::choose(state, view);
}
