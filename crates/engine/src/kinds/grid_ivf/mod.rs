//! `grid-ivf`: inverted lists in memory, scanned group of components by group.

pub(crate) mod account;
pub(crate) mod build;
pub(crate) mod calibration;
mod digits;
pub mod divide;
pub(crate) mod explain;
pub mod facts;
mod held;
pub(crate) mod members;
pub(crate) mod open;
pub mod options;
pub(crate) mod stripes;
pub(crate) mod units;
pub(crate) mod verify;
