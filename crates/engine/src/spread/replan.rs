//! Another plan for a partitioned `grid-ivf` whose servers are running, by the lists that their queries visit.

use std::path::Path;
use std::time::Instant;

use serde::Serialize;
use stratann_storage::{Error, Progress, Result};

use super::options::PartitionOptions;
use super::shard::read_placement;
use super::{Job, PARTIAL, PartitionReport, Plan, pool};
use crate::kinds::division::Candidate;
use crate::kinds::{self, Adapted};
use crate::manifest::Manifest;
use crate::stages::folder::claim_folder;

/// Figures that change a plan.
#[derive(Clone, Debug)]
pub struct ReplanOptions {
    /// Prices, memory and threads, as of a partition. Servers and replicas are those of the folder.
    pub partition: PartitionOptions,
    /// The lists that each of some recent queries visited.
    pub visits: Vec<Vec<u32>>,
    /// Share by which a query must cost less for a plan to be changed.
    pub margin: f64,
}

/// Report of [`replan`]. Costs are of all queries that were seen.
#[derive(Clone, Debug, Serialize)]
pub struct ReplanReport {
    /// Queries that were seen.
    pub queries: usize,
    /// Costs now.
    pub current: Candidate,
    /// Costs after a step that moves some lists; `None` where no list is better moved.
    pub step: Option<Candidate>,
    /// The cheapest plan of all. It may have other slices, and then everything moves.
    pub best: Candidate,
    /// Bytes that each server loads for the step, about.
    pub loaded_bytes: Vec<u64>,
    /// Whether the step was published in the folder.
    pub is_published: bool,
    /// Report of the published partition.
    pub partition: Option<PartitionReport>,
    /// Seconds in all.
    pub seconds: f64,
}

/// Plans a partition in `folder` of the index `index` again, and publishes the next version of it there when its
/// queries cost less by the margin. One step moves a quarter of what a server holds at most.
///
/// # Errors
/// A folder that is no partition of this index, or in use by another change; too few queries; and those of
/// [`partition`](super::partition). What the folder held before is never harmed.
pub fn replan(
    index: &Path,
    folder: &Path,
    options: &ReplanOptions,
    progress: &dyn Progress,
) -> Result<ReplanReport> {
    let started = Instant::now();
    let (source, manifest) = Manifest::read(index)?;
    let (_, spread_manifest) = Manifest::read(folder)?;
    let Some(spread) = spread_manifest.spread.as_ref().filter(|spread| spread.source == manifest.build_id)
    else {
        return Err(Error::bad_input(format!(
            "{} is not a partition of {}; name the index that it was made from",
            folder.display(),
            index.display()
        )));
    };
    let partition = PartitionOptions {
        servers: spread.servers,
        replicas: spread.replicas,
        force: true,
        ..options.partition.clone()
    };
    partition.check(index, &manifest)?;
    let plan = Plan::new(&manifest, &partition)?;
    if !matches!(plan, Plan::Slices(_)) {
        return Err(Error::bad_input(format!(
            "{} is of the kind {}; only a partitioned grid-ivf is planned again",
            index.display(),
            manifest.kind
        )));
    }
    let placement = read_placement(folder, &spread_manifest, spread)?;
    let (seen, over) = ((&spread_manifest, &placement), partition.over());
    let pool = pool(&partition)?;
    let (adapted, divided) =
        pool.install(|| kinds::adapt(index, (source, &manifest), seen, (&options.visits, over), progress))?;
    let Adapted { current, best, step, loaded_bytes } = adapted;
    let after = step.as_ref().and_then(|plan| plan.candidates.first().cloned());
    let is_worth =
        after.as_ref().is_some_and(|after| after.cost_ms <= (1.0 - options.margin) * current.cost_ms);
    let mut report = ReplanReport {
        queries: options.visits.len(),
        current,
        step: after,
        best,
        loaded_bytes,
        is_published: false,
        partition: None,
        seconds: 0.0,
    };
    if let Some(divided) = divided.filter(|_| is_worth) {
        let (number, lock) = claim_folder(folder, true)?;
        let ready = Some(divided);
        let stages = Default::default();
        let mut job =
            Job { index, source, out: folder, number, options: &partition, progress, stages, ready };
        let done = pool.install(|| job.run(manifest, plan));
        let _ = std::fs::remove_dir_all(folder.join(PARTIAL));
        drop(lock);
        report.partition = Some(done?);
        report.is_published = true;
    }
    report.seconds = started.elapsed().as_secs_f64();
    Ok(report)
}
