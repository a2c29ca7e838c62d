//! Computes the servers of an index's blocks, in memory only.

use std::collections::BTreeMap;
use std::time::Instant;

use stratann_core::place::{Placement, SERVERS_MAX};
use stratann_storage::{Error, Progress, Result, budget};

use super::divide::{self, Shares};
use super::plan::SpreadPlan;
use super::refine::{self, Division, Incoming};
use super::source::Source;
use super::{Method, PartitionOptions, cells, copies};

/// Placement with the time of each stage.
pub(super) struct Placing<'a> {
    options: &'a PartitionOptions,
    plan: SpreadPlan,
    progress: &'a dyn Progress,
    pub(super) stages: BTreeMap<String, f64>,
}

impl<'a> Placing<'a> {
    pub(super) fn new(
        options: &'a PartitionOptions,
        plan: SpreadPlan,
        progress: &'a dyn Progress,
    ) -> Placing<'a> {
        Placing { options, plan, progress, stages: BTreeMap::new() }
    }

    /// Runs a stage and records its time.
    pub(super) fn stage<T>(&mut self, name: &str, work: impl FnOnce(&Self) -> Result<T>) -> Result<T> {
        let started = Instant::now();
        let done = work(self)?;
        budget::release_freed();
        self.stages.insert(name.into(), started.elapsed().as_secs_f64());
        Ok(done)
    }

    /// Computes the servers of every block.
    pub(super) fn run(&mut self, source: &Source<'_>) -> Result<Placement> {
        let (servers, replicas) = (self.options.servers, self.options.replicas);
        let owner = self.stage("divide", |p| p.first_holders(source))?;
        let shares = self.shares();
        let mut division = Division::new(owner, shares.rooms(source.len() as u64));
        let refined = self.options.method == Method::Cells && servers > 1;
        // With as many replicas as servers every block is on all servers.
        let copied = self.options.overlap > 0.0 || (1 < replicas && replicas < servers);
        let mut incoming = None;
        if self.plan.counts_incoming && (refined || copied) {
            incoming = Some(self.stage("count", |_| Incoming::count(source, &division.owner, servers))?);
        }
        if refined {
            self.stage("refine", |p| refine::run(source, &mut division, incoming.as_mut(), p.progress))?;
        }
        let mut holders = copies::Holders::new(&division.owner, &shares);
        if replicas == servers {
            holders.of.fill(u64::MAX >> (SERVERS_MAX - servers));
        } else if copied {
            self.stage("copies", |p| {
                let wishes = copies::Wishes::find(source, &division.owner, incoming.as_ref())?;
                drop(incoming);
                match replicas {
                    1 => holders.overlap(&wishes, p.options.overlap),
                    _ => holders.replicate(&wishes, &division.owner, replicas),
                }
                Ok(())
            })?;
        }
        Placement::new(servers, holders.of)
            .ok_or_else(|| Error::bad_input("a block was left without a server; report this"))
    }

    fn shares(&self) -> Shares {
        Shares::new(&self.options.capacities, self.options.servers)
    }

    fn first_holders(&self, source: &Source<'_>) -> Result<Vec<u8>> {
        let (servers, seed, shares) = (self.options.servers, self.options.seed, self.shares());
        match self.options.method {
            _ if servers == 1 => Ok(vec![0; source.len()]),
            Method::Random => Ok(divide::random(source.len(), &shares, seed)),
            Method::Kmeans => divide::balanced_kmeans(source, servers, self.plan.sample, seed),
            Method::Cells => cells::divide(source, &shares, self.plan.cells, self.plan.sample, seed),
        }
    }
}
