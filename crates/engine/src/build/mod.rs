//! Builds an index: parallel, in RAM or out of core, in stages that a killed build resumes from.
//!
//! | stage | reads | leaves in `partial/` |
//! |---|---|---|
//! | scan | all rows | `scan.json`: which rows can be indexed, statistics |
//! | codebook | a sample | `codebook.bin` |
//! | divide | all rows, when the graph does not fit | `order.tmp`, `members.tmp`: the rows of each cell |
//! | graph | rows, as points | `graph-C.tmp`, `order.tmp`: neighbours of each row, cell by cell |
//! | layout | graph, all rows | `blocks.bin`, `map.bin`, `ids.tmp`: where each row went |
//! | codes | all rows | `codes.bin`; `codes.tmp` where blocks carry codes, then before the blocks |
//! | head | a sample | `head.bin`, `head-codes.bin` |
//! | calibrate | the index so far | `curves.json` |
//! | points | ids of the index so far, ids and payloads | with payloads: `point-ids.bin`, `payloads.bin`, `payload-index.bin` |
//!
//! Several processes can share the work over one folder: [`tasks`] are its pieces, and
//! [`split`](crate::kinds::split) knows their order.
//!
//! Each stage depends on the files before it and the options alone. The last step moves the data files up and creates
//! the manifest.

pub(crate) mod calibrate;
mod point_files;
mod source_index;

use std::path::Path;

use stratann_storage::{Error, Progress, Result, budget};

pub use crate::kinds::choice::{Choice, choose};
pub use crate::kinds::options::{KindOptions, LocalPlan, OptionsByKind};
pub use crate::stages::folder::check_folder;
pub use crate::stages::older_graph::{GrowFrom, OlderGraph};
pub use crate::stages::options::{BuildOptions, metric_of};
pub use crate::stages::plan::BuildPlan;
pub use crate::stages::report::BuildReport;
pub use point_files::{PointFiles, PointPaths};
pub use source_index::{SourceIndex, SourceRows};
pub use stratann_params::IndexKind;

use crate::dataset::{self, Reader};
use crate::kinds;
use crate::kinds::known::facts;
use crate::kinds::split::tasks::{self, Done, Job, Task};
use crate::manifest::PARTIAL;
use crate::stages::build::{Build, made_with};
use crate::stages::folder::claim_folder;
use crate::stages::plan::check_disk;
use crate::stages::stage::CALIBRATE;
use crate::stages::state::{self, Partial};
use crate::stages::{pool, publish};

/// Plan of a build: memory, disk, cells. Reads the header of `base` alone.
///
/// # Errors
/// As [`build`], as far as it can be known beforehand.
pub fn plan(base: &Reader, options: &BuildOptions) -> Result<BuildPlan> {
    kinds::checked_plan(base, options)
}

/// Builds an index of `base` in the folder `out`.
///
/// # Errors
/// Bad rows or options, a folder that holds an index already (unless `force`) or other files, a budget that cannot
/// work (the smallest that does is named), a disk that is full, an interruption. What `out` held before is never
/// harmed.
pub fn build(
    base: &Reader,
    out: &Path,
    options: &BuildOptions,
    progress: &dyn Progress,
) -> Result<BuildReport> {
    build_with((base, None), out, options, progress)
}

/// As [`build`], of points: the index has their ids and payloads.
///
/// # Errors
/// As [`build`]; rows that cannot be indexed, whatever the options; what writing the files of points meets.
pub fn build_points(
    (base, points): (&Reader, &dyn PointFiles),
    out: &Path,
    options: &BuildOptions,
    progress: &dyn Progress,
) -> Result<BuildReport> {
    build_with((base, Some(points)), out, options, progress)
}

fn build_with(
    (base, points): (&Reader, Option<&dyn PointFiles>),
    out: &Path,
    options: &BuildOptions,
    progress: &dyn Progress,
) -> Result<BuildReport> {
    let plan = plan(base, options)?;
    let (number, lock) = claim_folder(out, options.force)?;
    let pool = pool(plan.threads)?;
    let started = std::time::Instant::now();
    let mut made_with = made_with(base, number, options);
    if let Some(points) = points {
        made_with.insert("payload".into(), points.content().into());
    }
    let begun = check_disk(out, plan.disk_bytes).and_then(|()| Partial::open(out, made_with, options.resume));
    let mut partial = match begun {
        Ok(partial) => partial,
        Err(e) => {
            // What an earlier build left stays.
            drop(lock);
            let _ = std::fs::remove_dir(out);
            return Err(e);
        }
    };
    let report = pool.install(|| run((base, points, out), number, (options, &plan), &mut partial, progress));
    match report {
        Ok(mut report) => {
            report.seconds = started.elapsed().as_secs_f64();
            report.peak_rss_bytes = budget::process().peak_rss_bytes;
            Ok(report)
        }
        Err(e) => {
            if e.kind == stratann_storage::ErrorKind::Interrupted || e.kind == stratann_storage::ErrorKind::Io
            {
                // Kept for --resume.
                let hint = format!(
                    "; run the same command with --resume to go on, or delete {}",
                    out.join(PARTIAL).display()
                );
                return Err(Error { message: e.message + &hint, ..e });
            }
            state::abandon(out);
            drop(lock);
            // An empty folder was made by this build.
            let _ = std::fs::remove_dir(out);
            Err(e)
        }
    }
}

/// Does one task of a build that several processes share, in the folder `out`. `base` and `options` are those that the
/// build was begun with; threads may differ.
///
/// # Errors
/// A folder that cannot be seen from here, another base or other options than the build was begun with; what the task
/// itself meets. A task that fails leaves nothing that counts.
pub fn run_task(
    base: &Reader,
    out: &Path,
    options: &BuildOptions,
    (job, task): (Job, Task),
    progress: &dyn Progress,
) -> Result<Done> {
    tasks::run(base, out, options, job, task, calibrate::run, progress)
}

/// Runs the stages. One that an earlier, unfinished build has finished is skipped.
fn run(
    (base, points, out): (&Reader, Option<&dyn PointFiles>, &Path),
    number: u64,
    (options, plan): (&BuildOptions, &BuildPlan),
    partial: &mut Partial,
    progress: &dyn Progress,
) -> Result<BuildReport> {
    let external = options.ids.as_ref().map(|path| dataset::read_ids(path, base.shape().rows)).transpose()?;
    let mut build = Build::new(base, options, plan, partial, number, progress);
    build.external = external;
    let scan = build.scan()?;
    let mut manifest = kinds::build(&mut build, &scan)?;
    if facts(options.kind()).has_curve {
        manifest.curves = build.stage(CALIBRATE, |b| calibrate::run(b, &manifest, &scan))?;
    }
    if let Some(points) = points {
        point_files::add(&mut build, &mut manifest, points)?;
    }
    publish::publish(build, out, &manifest)
}
