//! Out of core.
use super::graph_stage::GraphFacts;
use super::space::Space;
use super::stages::Build;
use crate::{Error, Result};

pub(super) fn run(_build: &mut Build<'_>, _space: &Space, _live: &[u32]) -> Result<GraphFacts> {
    Err(Error::bad_input("out of core is being written"))
}
