//! `disk-graph`: a graph on disk, searched by codes in RAM.

pub(crate) mod account;
pub mod build;
pub(crate) mod calibration;
pub(crate) mod open;
pub mod options;
