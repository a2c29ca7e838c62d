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
pub(crate) mod pass;
pub(crate) mod stripes;
pub(crate) mod units;
pub(crate) mod verify;

use std::path::Path;

use stratann_core::place::Placement;
use stratann_core::query::Params;
use stratann_storage::Result;

pub(crate) use self::open::GridIndex as Index;
use crate::curve::Point;
use crate::files;
use crate::findings::Verification;
use crate::kinds::answers::PlannedQuery;
use crate::kinds::questions::Kind;
use crate::manifest::Manifest;
use crate::units::UnitRanges;

/// Answers about an index that is not open.
pub(crate) struct GridIvf;

impl Kind for GridIvf {
    fn params(&self, k: u32, nprobe: u32, _: (Option<f32>, Option<f32>)) -> Params {
        Params::grid_ivf(k, nprobe)
    }

    fn params_at(&self, k: u32, point: &Point, _: Option<&str>) -> Params {
        calibration::params(k, point)
    }

    fn planned_query(&self, manifest: &Manifest, _: bool) -> Option<PlannedQuery> {
        let section = manifest.section.grid()?;
        Some(account::planned_query(manifest, &section.facts))
    }

    fn usable_cache_bytes(&self, _: &Manifest) -> u64 {
        0
    }

    fn shared_roles(&self, _: &Manifest) -> Vec<&'static str> {
        vec![files::AXES, files::CENTROIDS, files::SIZES]
    }

    fn unit_ranges(&self, folder: &Path, manifest: &Manifest) -> Result<UnitRanges> {
        units::unit_ranges(folder, manifest)
    }

    fn verify(&self, check: &mut Verification<'_>) -> Result<()> {
        verify::check(check)
    }

    fn verify_parts(&self, check: &mut Verification<'_>, placement: &Placement) -> Result<bool> {
        verify::check_parts(check, placement).map(|()| true)
    }
}
