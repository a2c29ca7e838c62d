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

use stratann_core::query::Params;
use stratann_params::build::GpuOptions;
use stratann_storage::Result;

use crate::curve::Point;
use crate::dataset::{Reader, Scan};
use crate::findings::Verification;
use crate::kinds::answers::PlannedQuery;
use crate::kinds::options::Switches;
use crate::kinds::questions::{BuildsKind, Kind};
use crate::manifest::Manifest;
use crate::stages::build::Build;
use crate::stages::options::BuildOptions;
use crate::stages::plan::BuildPlan;

/// Answers about an index that is not open.
pub(crate) struct GpuIvf;

impl Kind for GpuIvf {
    fn params(&self, k: u32, nprobe: u32, _: (Option<f32>, Option<f32>)) -> Params {
        Params::gpu_ivf(k, nprobe)
    }

    fn params_at(&self, k: u32, point: &Point, variant: Option<&str>) -> Params {
        calibration::params(k, point, variant)
    }

    fn planned_query(&self, manifest: &Manifest, _: bool) -> Option<PlannedQuery> {
        let section = manifest.section.gpu()?;
        Some(account::planned_query(manifest, &section.facts))
    }

    fn planned_reads_at_once(&self, switches: &Switches) -> u32 {
        account::reads_at_once(switches.gpu().batch_size)
    }

    fn verify(&self, check: &mut Verification<'_>) -> Result<()> {
        verify::check(check)
    }
}

impl BuildsKind for GpuOptions {
    fn plan(&self, base: &Reader, options: &BuildOptions) -> Result<BuildPlan> {
        build::memory::plan(base, options, self)
    }

    fn run(&self, build: &mut Build<'_>, scan: &Scan) -> Result<Manifest> {
        build::run(build, self, scan)
    }
}
