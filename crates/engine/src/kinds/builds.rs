//! The build of an index, by the options of its kind.

use super::options::KindOptions;
use super::questions::BuildsKind;
use crate::dataset::{Reader, Scan};
use crate::manifest::Manifest;
use crate::stages::build::Build;
use crate::stages::options::BuildOptions;
use crate::stages::plan::BuildPlan;
use stratann_storage::Result;

/// Makes the sum of builds.
macro_rules! builds {
    ($($variant:ident $room:ident,)*) => {
        /// The options of a kind, which build an index.
        fn own(options: &KindOptions) -> &dyn BuildsKind {
            match options { $(KindOptions::$variant(own) => own,)* }
        }
    };
}

with_kinds!(builds);

/// Plans the memory and the disk of a build.
///
/// # Errors
/// As [`BuildsKind::plan`].
pub(crate) fn plan(base: &Reader, options: &BuildOptions) -> Result<BuildPlan> {
    own(&options.kind).plan(base, options)
}

/// As [`plan`], after a check of the options.
pub(crate) fn checked_plan(base: &Reader, options: &BuildOptions) -> Result<BuildPlan> {
    options.check(base)?;
    plan(base, options)
}

/// Runs the stages of a build but the calibration; returns the manifest of the finished files.
pub(crate) fn build(build: &mut Build<'_>, scan: &Scan) -> Result<Manifest> {
    let options = build.options;
    own(&options.kind).run(build, scan)
}
