//! `hybrid-ivf`: inverted lists on disk, each with a local index of its own.

pub mod build;
pub mod explain;
pub mod learning;
pub(crate) mod lists;
pub(crate) mod members;
pub mod replan;
pub(crate) mod residency;
pub(crate) mod residual;
pub mod snapshot;
pub(crate) mod verify;
