//! Options of a partition.

use std::path::{Path, PathBuf};

use stratann_core::place::SERVERS_MAX;
use stratann_params::Given;
use stratann_params::choices::MethodName;
use stratann_params::partition::{PartitionSettings, PlacementSettings, TrafficSettings};
use stratann_storage::{Error, Result};

use crate::base::shape;
use crate::kinds::Over;
use crate::kinds::division::{GridPartition, Mode};
use crate::kinds::known::facts;
use crate::manifest::Manifest;
use crate::parallel;
use stratann_params::IndexKind;

/// Method by which first replicas are chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Method {
    /// A cut through a graph of many small cells, then refinement block by block.
    #[default]
    Cells,
    /// Balanced k-means with one centre for each server.
    Kmeans,
    /// A hash, to compare.
    Random,
}

impl Method {
    /// Name on the command line and in manifests.
    pub fn name(self) -> &'static str {
        match self {
            Method::Cells => "cells",
            Method::Kmeans => "kmeans",
            Method::Random => "random",
        }
    }
}

impl From<MethodName> for Method {
    fn from(name: MethodName) -> Method {
        match name {
            MethodName::Cells => Method::Cells,
            MethodName::Kmeans => Method::Kmeans,
            MethodName::Random => Method::Random,
        }
    }
}

/// Options of a partition.
#[derive(Clone, Debug)]
pub struct PartitionOptions {
    /// Number of servers: 1 to 64.
    pub servers: usize,
    /// Servers that hold each block or list.
    pub replicas: usize,
    /// Share of the blocks that are copied to one server more, 0 to 1; with one replica alone, and not of lists.
    pub overlap: f64,
    /// Capacities of the servers, in proportion: each gets its share of the blocks. Empty where all are equal.
    pub capacities: Vec<f64>,
    /// Method by which first replicas are chosen.
    pub method: Method,
    /// Figures for the planner of a `grid-ivf`.
    pub grid: GridPartition,
    /// Whether lists are dealt by what queries have visited, where the index has learnt that.
    pub traffic: bool,
    /// Folders of partitions of the same index, whose servers have learnt what queries visit.
    pub traffic_from: Vec<PathBuf>,
    /// Everything that this may take, in bytes; `None` for no limit.
    pub ram_budget: Option<u64>,
    /// Seed of all choices.
    pub seed: u64,
    /// Threads; they do not change the result.
    pub threads: usize,
    /// Replace an index that is there.
    pub force: bool,
}

impl PartitionOptions {
    /// One copy of each block on `servers` servers, by cells.
    pub fn new(servers: usize) -> PartitionOptions {
        PartitionOptions {
            servers,
            replicas: 1,
            overlap: 0.0,
            capacities: Vec::new(),
            method: Method::Cells,
            grid: GridPartition::default(),
            traffic: true,
            traffic_from: Vec::new(),
            ram_budget: None,
            seed: 1,
            threads: parallel::cores(),
            force: false,
        }
    }

    /// Reads what a user gave, but for the prices of a plan.
    pub fn read(given: &Given, servers: usize) -> PartitionOptions {
        let (every, placement): (PartitionSettings, PlacementSettings) = (given.read(), given.read());
        let traffic: TrafficSettings = given.read();
        let usual = PartitionOptions::new(servers);
        PartitionOptions {
            replicas: every.replicas,
            overlap: placement.overlap,
            capacities: every.capacities,
            method: placement.method.into(),
            grid: GridPartition::read(&given.read()),
            traffic: traffic.traffic,
            traffic_from: traffic.traffic_from,
            ram_budget: every.ram_budget,
            seed: every.seed,
            threads: every.threads.unwrap_or(usual.threads),
            force: every.force,
            ..usual
        }
    }

    /// Servers and figures for the planner of a `grid-ivf`.
    pub(super) fn over(&self, manifest: &Manifest) -> Over<'_> {
        // The budget of a mode that may choose does not count lists twice. Members that are dealt over lists get other
        // ids, by which rows are deleted.
        let may_stripe = self.grid.mode == Mode::Striped || self.ram_budget.is_none();
        let may_stripe = may_stripe && manifest.deletes.is_none();
        Over { servers: self.servers, replicas: self.replicas, grid: &self.grid, may_stripe }
    }

    pub(super) fn check(&self, folder: &Path, manifest: &Manifest) -> Result<()> {
        let wrong = |what: String| Err(Error::bad_input(what));
        self.check_numbers()?;
        manifest.check_without_points(folder, "a partition over servers")?;
        if let Some(spread) = &manifest.spread {
            return wrong(format!(
                "{} is partitioned over {} servers already; give the index that it was made from",
                folder.display(),
                spread.servers
            ));
        }
        let Some(kind) = manifest.kind().filter(|&kind| facts(kind).is_spreadable) else {
            let kinds: Vec<&str> = IndexKind::ALL
                .into_iter()
                .filter(|&kind| facts(kind).is_spreadable)
                .map(IndexKind::name)
                .collect();
            return wrong(format!(
                "{} is of kind {}; these can be partitioned over servers: {}",
                folder.display(),
                manifest.kind,
                kinds.join(", ")
            ));
        };
        if !facts(kind).is_sliced && self.grid != GridPartition::default() {
            let sliced: Vec<&str> = IndexKind::ALL
                .into_iter()
                .filter(|&kind| facts(kind).is_sliced)
                .map(IndexKind::name)
                .collect();
            return wrong(format!(
                "{} is of kind {}; a mode, queries and prices are for the planner of {}",
                folder.display(),
                kind.name(),
                sliced.join(" and ")
            ));
        }
        if self.grid.mode == Mode::Striped && manifest.deletes.is_some() {
            return wrong(format!(
                "{} has deleted rows, and members of lists are not dealt over servers then; use another mode",
                folder.display()
            ));
        }
        if self.overlap > 0.0 && !facts(kind).has_adjacency_in_blocks {
            return wrong(OVERLAP_OF_LISTS.into());
        }
        // What is planned depends on numbers of the manifest, which must be possible.
        shape(folder, manifest)?;
        // A planner has other ways to divide than by whole groups, and refuses what it cannot.
        if !facts(kind).is_sliced && (manifest.groups() as usize) < self.servers {
            return wrong(format!(
                "{} has {} {}, fewer than {} servers; use fewer",
                folder.display(),
                manifest.groups(),
                facts(kind).group_name,
                self.servers
            ));
        }
        Ok(())
    }

    pub(super) fn check_numbers(&self) -> Result<()> {
        let wrong = |what: String| Err(Error::bad_input(what));
        if !(1..=SERVERS_MAX).contains(&self.servers) {
            return wrong(format!("servers is {}; use 1 to {SERVERS_MAX}", self.servers));
        }
        if !(1..=self.servers).contains(&self.replicas) {
            return wrong(format!(
                "replicas is {}; use 1 to the number of servers, {}",
                self.replicas, self.servers
            ));
        }
        if !(0.0..=1.0).contains(&self.overlap) {
            return wrong(format!("overlap is {}; use a share of the blocks, 0 to 1", self.overlap));
        }
        if self.overlap > 0.0 && (self.replicas > 1 || self.servers == 1) {
            return wrong(
                "overlap copies blocks that one of several servers has; give it without --replicas, and with two \
                 servers or more"
                    .into(),
            );
        }
        if self.threads == 0 {
            return wrong("threads is 0; use 1 or more".into());
        }
        self.check_capacities()
    }

    fn check_capacities(&self) -> Result<()> {
        let wrong = |what: String| Err(Error::bad_input(what));
        let capacities = &self.capacities;
        if capacities.is_empty() {
            return Ok(());
        }
        if capacities.len() != self.servers {
            return wrong(format!(
                "there are {} capacities for {} servers; give one for each",
                capacities.len(),
                self.servers
            ));
        }
        if let Some(&bad) = capacities.iter().find(|c| !(c.is_finite() && **c > 0.0)) {
            return wrong(format!("a capacity is {bad}; use numbers above 0, such as 2,2,1"));
        }
        let total: f64 = capacities.iter().sum();
        let copies = self.replicas as f64;
        if let Some(server) = capacities.iter().position(|c| c / total * copies > 1.0 + 1e-9) {
            return wrong(format!(
                "server {server} has {:.0} % of the capacity: with {} replicas it would hold blocks twice; use fewer \
                 replicas or more servers",
                100.0 * capacities[server] / total,
                self.replicas
            ));
        }
        if self.method == Method::Kmeans && capacities.windows(2).any(|pair| pair[0] != pair[1]) {
            return wrong(
                "balanced k-means makes equal parts; use --method cells with unequal capacities".into(),
            );
        }
        Ok(())
    }
}

/// Why lists have no overlap.
pub(super) const OVERLAP_OF_LISTS: &str = "overlap is for blocks; give --replicas for inverted lists";
