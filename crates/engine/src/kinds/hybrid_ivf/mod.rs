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

use std::path::Path;

use stratann_core::place::Placement;
use stratann_core::query::Params;
use stratann_storage::Result;

pub(crate) use self::open::ListIndex as Index;
use crate::curve::Point;
use crate::files;
use crate::findings::Verification;
use crate::kinds::answers::PlannedQuery;
use crate::kinds::questions::Kind;
use crate::manifest::Manifest;
use crate::units::UnitRanges;

/// Answers about an index that is not open.
pub(crate) struct HybridIvf;

impl Kind for HybridIvf {
    fn params(&self, k: u32, nprobe: u32, (slack, early_stop): (Option<f32>, Option<f32>)) -> Params {
        calibration::nprobe_params(k, nprobe, slack, early_stop)
    }

    fn usual_params(&self, k: u32, nprobe: u32) -> Params {
        Params::hybrid_ivf(k, nprobe)
    }

    fn params_at(&self, k: u32, point: &Point, variant: Option<&str>) -> Params {
        calibration::params(k, point, variant)
    }

    fn variants(&self) -> (&'static [&'static str], Point) {
        calibration::VARIANTS
    }

    fn planned_query(&self, manifest: &Manifest, low_memory: bool) -> Option<PlannedQuery> {
        let section = manifest.section.lists()?;
        Some(account::planned_query(manifest, &section.facts, low_memory))
    }

    fn usable_cache_bytes(&self, _: &Manifest) -> u64 {
        0
    }

    fn shared_roles(&self, _: &Manifest) -> Vec<&'static str> {
        vec![files::CODEBOOK, files::DIRECTORY, files::CENTROIDS, files::SUBLISTS, files::NAV]
    }

    fn unit_ranges(&self, folder: &Path, manifest: &Manifest) -> Result<UnitRanges> {
        tables::read_unit_ranges(folder, manifest)
    }

    fn verify(&self, check: &mut Verification<'_>) -> Result<()> {
        verify::check(check)
    }

    fn verify_parts(&self, check: &mut Verification<'_>, placement: &Placement) -> Result<bool> {
        verify::check_parts(check, placement).map(|()| true)
    }
}
