//! The builds of the kinds.

use super::options::KindOptions;
use super::{blocks, disk_graph, flat, gpu_ivf, grid_ivf, hybrid_ivf, remote_hnsw};
use crate::dataset::{Reader, Scan, Shape};
use crate::manifest::Manifest;
use crate::stages::build::Build;
use crate::stages::forecast::Forecast;
use crate::stages::options::BuildOptions;
use crate::stages::plan::BuildPlan;
use stratann_params::build::GraphOptions;
use stratann_storage::Result;

/// Plans the memory and the disk of a build.
///
/// # Errors
/// `ErrorKind::Budget` when no plan fits; the error names the smallest budget that works.
pub(crate) fn plan(base: &Reader, options: &BuildOptions) -> Result<BuildPlan> {
    match &options.kind {
        KindOptions::Flat => blocks::plan::plan(base, options, &GraphOptions::default(), false),
        KindOptions::DiskGraph(own) => blocks::plan::plan(base, options, own, true),
        KindOptions::HybridIvf(own) => hybrid_ivf::build::memory::plan(base, options, own),
        KindOptions::GridIvf(own) => grid_ivf::build::memory::plan(base, options, own),
        KindOptions::GpuIvf(own) => gpu_ivf::build::memory::plan(base, options, own),
        KindOptions::RemoteHnsw(own) => remote_hnsw::build::memory::plan(base, options, own),
    }
}

/// As [`plan`], after a check of the options.
pub(crate) fn checked_plan(base: &Reader, options: &BuildOptions) -> Result<BuildPlan> {
    options.check(base)?;
    plan(base, options)
}

/// What the stages of a build are expected to take.
pub(crate) fn forecast(shape: &Shape, options: &BuildOptions, plan: &BuildPlan) -> Forecast {
    match &options.kind {
        KindOptions::Flat => flat::build::forecast(shape, plan),
        KindOptions::DiskGraph(own) => disk_graph::build::forecast::forecast(shape, options, own, plan),
        KindOptions::HybridIvf(own) => hybrid_ivf::build::forecast::forecast(shape, options, own, plan),
        KindOptions::GridIvf(own) => grid_ivf::build::memory::forecast(shape, options, own, plan),
        KindOptions::GpuIvf(own) => gpu_ivf::build::memory::forecast(shape, options, own, plan),
        KindOptions::RemoteHnsw(own) => remote_hnsw::build::memory::forecast(shape, options, own, plan),
    }
}

/// Runs the stages of a build but the calibration; returns the manifest of the finished files.
pub(crate) fn build(build: &mut Build<'_>, scan: &Scan) -> Result<Manifest> {
    match &build.options.kind {
        KindOptions::DiskGraph(own) => disk_graph::build::run(build, own, scan),
        KindOptions::HybridIvf(own) => hybrid_ivf::build::run(build, own, scan),
        KindOptions::GridIvf(own) => grid_ivf::build::run(build, own, scan),
        KindOptions::GpuIvf(own) => gpu_ivf::build::run(build, own, scan),
        KindOptions::RemoteHnsw(own) => remote_hnsw::build::run(build, own, scan),
        KindOptions::Flat => flat::build::run(build, scan),
    }
}
