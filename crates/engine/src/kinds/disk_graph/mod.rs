//! `disk-graph`: a graph on disk, searched by codes in RAM.

pub mod build;
