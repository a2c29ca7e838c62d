//! Recall: what it costs on an index, and the parameters that reach it.

pub mod calibrate;
pub mod known;
pub(crate) mod made_filters;
pub(crate) mod mixture;
pub mod tune;
pub(crate) mod widen;
