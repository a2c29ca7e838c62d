//! The questions about a build.

use stratann_storage::Result;

use crate::dataset::{Reader, Scan, Shape};
use crate::manifest::Manifest;
use crate::stages::build::Build;
use crate::stages::forecast::Forecast;
use crate::stages::options::BuildOptions;
use crate::stages::plan::BuildPlan;

/// A build by the options of a kind.
pub(crate) trait BuildsKind {
    /// Plans the memory and the disk of a build.
    ///
    /// # Errors
    /// `ErrorKind::Budget` when no plan fits; the error names the smallest budget that works.
    fn plan(&self, base: &Reader, options: &BuildOptions) -> Result<BuildPlan>;

    /// Returns the time that the stages of a build are expected to take.
    fn forecast(&self, shape: &Shape, options: &BuildOptions, plan: &BuildPlan) -> Forecast;

    /// Runs the stages of a build but the calibration; returns the manifest of the finished files.
    ///
    /// # Errors
    /// An input or a disk that fails, an interruption.
    fn run(&self, build: &mut Build<'_>, scan: &Scan) -> Result<Manifest>;
}
