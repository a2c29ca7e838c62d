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
use crate::manifest::{Manifest, MessagePrices};
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
    /// Prices of messages as the servers measure them now; `None` where none does.
    pub measured: Option<MessagePrices>,
}

/// Origin of the prices of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum PricedBy {
    /// An option, or a file of prices.
    Given,
    /// The plan of the partition, since no server measures, or nearly the same.
    Plan,
    /// The servers, over the links between them.
    Servers,
    /// This machine, over its loopback interface.
    Loopback,
}

/// A price that was measured takes the place of the one before where it is larger or smaller by more than this factor.
/// Measurements of an idle machine and a busy one differ by up to 1.3.
const PRICE_HOLDS: f64 = 1.5;

/// The price to plan by, and whether it is the measured one.
fn held(before: f64, measured: f64) -> (f64, bool) {
    let is_near = measured <= before * PRICE_HOLDS && measured >= before / PRICE_HOLDS;
    if is_near { (before, false) } else { (measured, true) }
}

/// Prices of messages for a plan that follows one made by `before`; `None` where this machine is to measure.
fn prices(
    before: Option<MessagePrices>,
    measured: Option<MessagePrices>,
) -> Option<(MessagePrices, PricedBy)> {
    let Some(measured) = measured else { return before.map(|before| (before, PricedBy::Plan)) };
    let Some(before) = before else { return Some((measured, PricedBy::Servers)) };
    let (message_ns, is_message) = held(before.message_ns, measured.message_ns);
    let (byte_ns, is_byte) = held(before.byte_ns, measured.byte_ns);
    let by = if is_message || is_byte { PricedBy::Servers } else { PricedBy::Plan };
    Some((MessagePrices { message_ns, byte_ns }, by))
}

/// Report of [`replan`]. Costs are of all queries that were seen.
#[derive(Clone, Debug, Serialize)]
pub struct ReplanReport {
    /// Queries that were seen.
    pub queries: usize,
    /// Prices of messages that the plans are compared by.
    pub prices: MessagePrices,
    /// Where those of them that were not given are from.
    pub priced_by: PricedBy,
    /// Prices that the servers measure now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub measured: Option<MessagePrices>,
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

/// Sets the prices that are not given. Returns where they are from.
fn set_prices(partition: &mut PartitionOptions, found: Option<(MessagePrices, PricedBy)>) -> PricedBy {
    let grid = &mut partition.grid;
    if grid.message_ns.is_some() && grid.byte_ns.is_some() {
        return PricedBy::Given;
    }
    let Some((prices, by)) = found else { return PricedBy::Loopback };
    grid.message_ns = grid.message_ns.or(Some(prices.message_ns));
    grid.byte_ns = grid.byte_ns.or(Some(prices.byte_ns));
    by
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
    let mut partition = PartitionOptions {
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
    let priced_by = set_prices(&mut partition, prices(spread.prices, options.measured));
    let placement = read_placement(folder, &spread_manifest, spread)?;
    let (seen, over) = ((&spread_manifest, &placement), partition.over(&manifest));
    let pool = pool(&partition)?;
    let (adapted, divided) =
        pool.install(|| kinds::adapt(index, (source, &manifest), seen, (&options.visits, over), progress))?;
    let Adapted { current, best, step, loaded_bytes, prices } = adapted;
    let after = step.as_ref().and_then(|plan| plan.candidates.first().cloned());
    let is_worth =
        after.as_ref().is_some_and(|after| after.cost_ms <= (1.0 - options.margin) * current.cost_ms);
    let mut report = ReplanReport {
        queries: options.visits.len(),
        prices,
        priced_by,
        measured: options.measured,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prices_hold_until_they_differ_much() {
        let price = |message_ns, byte_ns| MessagePrices { message_ns, byte_ns };
        let before = price(3000.0, 0.4);
        for (measured, expected) in [
            (None, (before, PricedBy::Plan)),
            (Some(price(4400.0, 0.3)), (before, PricedBy::Plan)),
            (Some(price(2100.0, 0.5)), (before, PricedBy::Plan)),
            (Some(price(4600.0, 0.5)), (price(4600.0, 0.4), PricedBy::Servers)),
            (Some(price(1900.0, 0.4)), (price(1900.0, 0.4), PricedBy::Servers)),
            // A link that is ten times as slow.
            (Some(price(3100.0, 4.0)), (price(3000.0, 4.0), PricedBy::Servers)),
        ] {
            assert_eq!(prices(Some(before), measured), Some(expected), "{measured:?}");
            assert_eq!(prices(None, measured), measured.map(|own| (own, PricedBy::Servers)));
        }
    }
}
