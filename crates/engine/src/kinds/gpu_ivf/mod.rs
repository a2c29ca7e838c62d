//! `gpu-ivf`: codes with a scorer, on a GPU or in RAM; vectors on disk.

pub(crate) mod account;
#[cfg(feature = "lab")]
pub mod baseline;
pub(crate) mod build;
pub(crate) mod calibration;
pub(crate) mod explain;
pub mod facts;
pub(crate) mod open;
pub mod options;
pub(crate) mod rule;
pub(crate) mod verify;
