//! The kinds of index: a closed sum, with one match for each question that the engine asks of a kind.

pub mod disk_graph;
pub mod flat;
pub mod hybrid_ivf;
pub mod snapshot;

use crate::Result;
use crate::build::Kind;
use crate::build::stages::Build;
use crate::dataset::Scan;
use crate::manifest::Manifest;

/// Runs the stages of a build but the calibration; returns the manifest of the finished files.
pub(crate) fn build(build: &mut Build<'_>, scan: &Scan) -> Result<Manifest> {
    match build.options.kind {
        Kind::DiskGraph => disk_graph::build::run(build, scan),
        Kind::HybridIvf => hybrid_ivf::build::run(build, scan),
        Kind::Flat => flat::build::run(build, scan),
    }
}
