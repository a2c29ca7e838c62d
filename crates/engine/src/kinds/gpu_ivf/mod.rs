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
use stratann_storage::Result;

pub(crate) use self::open::GpuIndex as Index;
use crate::curve::Point;
use crate::findings::Verification;
use crate::kinds::answers::PlannedQuery;
use crate::kinds::blocks;
use crate::kinds::options::Switches;
use crate::kinds::questions::Kind;
use crate::manifest::Manifest;

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
        account::reads_at_once(switches.own::<options::Switches>().batch_size)
    }

    fn resident_bytes_max(&self, manifest: &Manifest) -> Option<u64> {
        blocks::rows_bytes_max(manifest)
    }

    fn verify(&self, check: &mut Verification<'_>) -> Result<()> {
        verify::check(check)
    }
}
