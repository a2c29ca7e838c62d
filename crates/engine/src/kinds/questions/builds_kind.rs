//! The questions about a build.

use stratann_storage::Result;

use crate::dataset::{Reader, Scan};
use crate::manifest::Manifest;
use crate::stages::build::Build;
use crate::stages::options::BuildOptions;
use crate::stages::plan::BuildPlan;

/// A build by the options of a kind.
pub(crate) trait BuildsKind {
    /// Plans the memory, the disk and the stages of a build.
    ///
    /// # Errors
    /// `ErrorKind::Budget` when no plan fits; the error names the smallest budget that works.
    fn plan(&self, base: &Reader, options: &BuildOptions) -> Result<BuildPlan>;

    /// Runs the stages of a build but the calibration; returns the manifest of the finished files.
    ///
    /// # Errors
    /// An input or a disk that fails, an interruption.
    fn run(&self, build: &mut Build<'_>, scan: &Scan) -> Result<Manifest>;
}
