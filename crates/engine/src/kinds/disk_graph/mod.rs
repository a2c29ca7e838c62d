//! `disk-graph`: a graph on disk, searched by codes in RAM.

pub(crate) mod account;
pub mod build;
pub(crate) mod calibration;
pub(crate) mod facts;
pub(crate) mod open;
pub mod options;

use stratann_core::query::Params;
use stratann_params::build::GraphOptions;
use stratann_storage::Result;

use self::open::GraphTables;
use crate::curve::Point;
use crate::dataset::{Reader, Scan};
use crate::findings::Verification;
use crate::kinds::blocks;
use crate::kinds::questions::{BuildsKind, Kind, OpenKind};
use crate::manifest::Manifest;
use crate::stages::build::Build;
use crate::stages::options::BuildOptions;
use crate::stages::plan::BuildPlan;

/// Answers about an index that is not open.
pub(crate) struct DiskGraph;

impl Kind for DiskGraph {
    fn params(&self, k: u32, list: u32, (slack, _): (Option<f32>, Option<f32>)) -> Params {
        calibration::beam_params(k, list, slack)
    }

    fn usual_params(&self, k: u32, list: u32) -> Params {
        Params::disk_graph(k, list)
    }

    fn params_at(&self, k: u32, point: &Point, _: Option<&str>) -> Params {
        calibration::params(k, point)
    }

    fn verify(&self, check: &mut Verification<'_>) -> Result<()> {
        blocks::verify::check(check, GraphTables::open, |tables, base| tables.checked(base))
    }
}

impl BuildsKind for GraphOptions {
    fn plan(&self, base: &Reader, options: &BuildOptions) -> Result<BuildPlan> {
        let stages = build::forecast::stages(&base.shape(), options, self);
        blocks::plan::plan(base, options, (self, true), &stages)
    }

    fn run(&self, build: &mut Build<'_>, scan: &Scan) -> Result<Manifest> {
        build::run(build, self, scan)
    }
}
