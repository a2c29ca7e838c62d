//! `hybrid-ivf`: inverted lists on disk, each cluster of vectors with a local index of its own.

pub(crate) mod account;
pub mod build;
pub(crate) mod calibration;
pub mod explain;
pub mod facts;
pub mod learning;
pub(crate) mod lists;
pub(crate) mod members;
pub(crate) mod open;
pub mod options;
pub mod replan;
pub(crate) mod residency;
pub(crate) mod residual;
pub mod snapshot;
pub(crate) mod tables;
pub(crate) mod verify;
