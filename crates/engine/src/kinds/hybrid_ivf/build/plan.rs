//! The plan: which local index each cluster gets, under the RAM that searches will have (OrchANN §5.1, Global
//! Optimization).

use stratann_core::build::costs::{LOCAL_INDEXES, LocalIndex, VisitCostModel};
use stratann_core::build::knapsack::{self, Assignment, Classes, Item};
use stratann_core::format::directory::LocalKind;
use stratann_core::format::inverted_list::ListLayout;
use stratann_params::build::ListOptions;
use stratann_storage::budget::{PROGRAM_BYTES, THREAD_BYTES, size};
use stratann_storage::profile::{LocalCosts, Profile};
use stratann_storage::{Error, Result};

use super::{ReadSizes, graphs, list_layout, local_costs};
use crate::codebook;
use crate::dataset::Scan;
use crate::kinds::hybrid_ivf::account::IN_FLIGHT_LOW_MEMORY;
use crate::kinds::hybrid_ivf::facts::{PlanProfile, PlanReport, WayReport};
use crate::kinds::hybrid_ivf::options::LocalPlan;
use crate::kinds::hybrid_ivf::tables::cost_sizes;
use crate::stages::build::Build;
use crate::stages::space::Space;

/// The profile that was given, or that of the disk of the index.
pub(crate) fn profile(build: &Build<'_>) -> Result<Profile> {
    match &build.options.profile {
        Some(profile) => {
            if let Some(differs) = profile.differs_from_here(build.partial.folder()) {
                build.progress.note(&format!(
                    "warning: the profile is not of this machine and disk ({differs}); the plan may suit another \
                     better; leave --profile out to use that of this disk, or measure with `stratann profile`"
                ));
            }
            Ok(profile.clone())
        }
        None => Profile::of_disk(build.partial.folder(), build.progress),
    }
}

/// Chooses for clusters of these sizes.
pub(crate) fn run(
    build: &Build<'_>,
    own: &ListOptions,
    space: &Space,
    scan: &Scan,
    profile: &Profile,
    members: &[u64],
) -> Result<(Vec<LocalKind>, PlanReport)> {
    let local = match profile.local {
        Some(fitted) => fitted,
        None => local_costs::fit(build, own, space, scan, profile)?,
    };
    let shape = list_layout(build, own)?;
    let model = VisitCostModel {
        unit_costs: local_costs::unit_costs(profile, &local, build.base.shape()),
        sizes: cost_sizes(&shape, ReadSizes::of(profile).most),
    };
    let clusters = members.len() as u64;
    let search_budget = own.search_budget;
    let left = |budget| code_budget(budget, &shape, clusters, own.nav_samples, scan.rows);
    let budget = search_budget.map(left).transpose()?;
    let total: f64 = members.iter().sum::<u64>() as f64;
    let weights: Vec<f64> = members.iter().map(|&n| n as f64 / total.max(1.0)).collect();
    let graph_members = build.options.ram_budget.map_or(u64::MAX, |_| graphs::members_max(build, space));
    let planner = Planner { model, members, weights: &weights, budget, search_budget, graph_members };
    let (kinds, report) = planner.choose(own.plan.into(), local, false)?;
    Ok((kinds, PlanReport { profile: Some(PlanProfile::of(profile)), ..report }))
}

/// Bytes that the budget of searches leaves for codes, once everything else has its place.
///
/// # Errors
/// A budget that does not suffice for the rest; what would is named.
pub(crate) fn code_budget(
    budget: u64,
    shape: &ListLayout,
    clusters: u64,
    nav_samples: f64,
    rows: u64,
) -> Result<u64> {
    let (dim, code) = (shape.dim as u64, shape.code_bytes as u64);
    let nodes = (clusters as f64 * (1.0 + nav_samples)) as u64;
    // The navigation graph as it was built, its newest version, and one that is being made.
    let nav = 3 * nodes * (84 + code);
    let tables = clusters * (2 * dim + 32) + dim * dim * 4 + dim * 1024;
    let query = codebook::bit_query_bytes(dim) + dim * 16 + (160 << 10) + 2 * (128 << 10);
    let threads = 2 * (THREAD_BYTES + IN_FLIGHT_LOW_MEMORY as u64 * query);
    let fixed = PROGRAM_BYTES + nav + tables + threads;
    if budget < fixed {
        return Err(Error::budget(format!(
            "--search-budget {} is too small for {} vectors in {clusters} clusters: what searches need in any case \
             takes {}; give {}MiB or more",
            size(budget),
            rows,
            size(fixed),
            fixed.div_ceil(1 << 20)
        )));
    }
    Ok(budget - fixed)
}

/// Chooses the local indexes of clusters with so many members each, that are visited in proportion to their weights.
pub(crate) struct Planner<'a> {
    pub(crate) model: VisitCostModel,
    pub(crate) members: &'a [u64],
    /// Together 1.
    pub(crate) weights: &'a [f64],
    /// RAM for codes, bytes.
    pub(crate) budget: Option<u64>,
    /// Budget of searches in all.
    pub(crate) search_budget: Option<u64>,
    /// Members of the largest cluster whose graph can be built.
    pub(crate) graph_members: u64,
}

impl Planner<'_> {
    /// The kind of every cluster, and why.
    ///
    /// # Errors
    /// A plan that does not fit in the budget.
    pub(crate) fn choose(
        &self,
        asked: LocalPlan,
        local: LocalCosts,
        observed: bool,
    ) -> Result<(Vec<LocalKind>, PlanReport)> {
        let uniform_of = |kind: LocalKind, way: LocalIndex| {
            way.kind == kind && (self.budget.is_some() || !way.in_ram || kind == LocalKind::Graph)
        };
        let allowed = |_: usize, way: LocalIndex| match asked {
            LocalPlan::Auto => self.budget.is_some() || !way.in_ram,
            LocalPlan::Uniform(kind) => uniform_of(kind, way),
        };
        let chosen = self.solve(&allowed).ok_or_else(|| self.refusal(&allowed))?;
        let kinds = chosen.picks.iter().map(|&p| LOCAL_INDEXES[usize::from(p)].kind).collect();
        let uniform = |kind| self.solve(&|_, way| uniform_of(kind, way)).map(|a| a.cost);
        let unit_costs = &self.model.unit_costs;
        let report = PlanReport {
            budget_bytes: self.budget,
            ram_bytes: chosen.bytes,
            visit_us: chosen.cost,
            bound_us: chosen.bound,
            ways: self.ways(&chosen),
            uniform_us: LocalKind::ALL.map(uniform),
            observed,
            local,
            read_us: unit_costs.read_us,
            kib_us: unit_costs.byte_us * 1024.0,
            distance_us: unit_costs.distance_us,
            profile: None,
        };
        Ok((kinds, report))
    }

    /// Predicted cost of a visit when every cluster keeps the kind that it has, microseconds; `None` where that does
    /// not fit in the budget.
    pub(crate) fn cost_of(&self, kinds: &[LocalKind]) -> Option<f64> {
        let allowed = |cluster: usize, way: LocalIndex| {
            // A graph whose codes find no place in RAM is scanned.
            let scanned = kinds[cluster] == LocalKind::Graph && way.kind == LocalKind::Flat && !way.in_ram;
            way.kind == kinds[cluster] || scanned
        };
        self.solve(&allowed).map(|a| a.cost)
    }

    fn solve(&self, allowed: &dyn Fn(usize, LocalIndex) -> bool) -> Option<Assignment> {
        let mut classes = Classes::default();
        for (cluster, (&members, &weight)) in self.members.iter().zip(self.weights).enumerate() {
            let mut items: [Item; LOCAL_INDEXES.len()] = self.model.items(members, weight);
            for (item, &way) in items.iter_mut().zip(&LOCAL_INDEXES) {
                let is_too_large = way.kind == LocalKind::Graph && members > self.graph_members;
                if !allowed(cluster, way) || is_too_large {
                    item.cost = f64::INFINITY;
                }
            }
            classes.push(&items);
        }
        knapsack::solve(&classes, self.budget.unwrap_or(u64::MAX))
    }

    /// Why nothing fits, with what would.
    fn refusal(&self, allowed: &dyn Fn(usize, LocalIndex) -> bool) -> Error {
        let largest = self.members.iter().max().copied().unwrap_or(0);
        if largest > self.graph_members
            && LOCAL_INDEXES.iter().all(|&w| !allowed(0, w) || w.kind == LocalKind::Graph)
        {
            return Error::budget(format!(
                "a cluster has {largest} vectors, under this --ram-budget the graph of one can be built of {} at \
                 most; give a larger \
                 budget, more --clusters, or --plan auto",
                self.graph_members
            ));
        }
        let least = |(cluster, &members): (usize, &u64)| {
            let ways = LOCAL_INDEXES.iter().filter(|&&way| allowed(cluster, way));
            ways.map(|&way| self.model.ram_bytes(way, members)).min().unwrap_or(0)
        };
        let least: u64 = self.members.iter().enumerate().map(least).sum();
        let left = self.budget.unwrap_or(0);
        let enough = self.search_budget.unwrap_or(0) + least.saturating_sub(left);
        Error::budget(format!(
            "the plan asked for takes at least {} of RAM for codes, --search-budget leaves {}; give {}MiB or more, \
             or --plan auto",
            size(least),
            size(left),
            enough.div_ceil(1 << 20)
        ))
    }

    fn ways(&self, chosen: &Assignment) -> Vec<WayReport> {
        let of_way = |at: usize| {
            let own = || (0..self.members.len()).filter(move |&c| usize::from(chosen.picks[c]) == at);
            let way = LOCAL_INDEXES[at];
            let (members, weight) =
                (own().map(|c| self.members[c]).sum(), own().map(|c| self.weights[c]).sum::<f64>());
            let cost: f64 = own().map(|c| self.weights[c] * self.model.visit_us(way, self.members[c])).sum();
            let sizes = own().map(|c| self.members[c]);
            WayReport {
                kind: way.kind.name().into(),
                in_ram: way.in_ram,
                clusters: own().count() as u64,
                members,
                sizes: [sizes.clone().min().unwrap_or(0), sizes.max().unwrap_or(0)],
                visit_us: if weight > 0.0 { cost / weight } else { 0.0 },
                ram_bytes: own().map(|c| self.model.ram_bytes(way, self.members[c])).sum(),
            }
        };
        (0..LOCAL_INDEXES.len()).map(of_way).filter(|w| w.clusters > 0).collect()
    }
}
