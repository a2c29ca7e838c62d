//! Why the clusters of a `hybrid-ivf` have the local indexes that they have, and what visits cost beside what the
//! plan expected.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use stratann_core::PAGE;
use stratann_core::build::costs::{ListSizes, LocalIndex, UnitCosts, VisitCostModel};
use stratann_core::format::directory::LocalKind;
use stratann_core::query::Params;
use stratann_storage::{Error, Progress, Result};

use super::explain;
use crate::base::{Base, draw};
pub use crate::kinds::hybrid_ivf::facts::PlanReport;
use crate::kinds::hybrid_ivf::open::ListIndex;
use crate::kinds::hybrid_ivf::tables::ListTables;
use crate::kinds::questions::Members;
use crate::trace::{Trace, Visit, Visits};

/// Measurements of visits to clusters that are held in one way.
#[derive(Clone, Debug, Default, Serialize)]
pub struct WayMeasured {
    /// `flat`, `graph` or `ivf`.
    pub kind: &'static str,
    /// Whether all codes that were looked at lay in RAM.
    pub in_ram: bool,
    /// Visits.
    pub visits: u64,
    /// Different clusters visited.
    pub clusters: u64,
    /// Reads a visit.
    pub reads: f64,
    /// KiB a visit.
    pub kib: f64,
    /// Cost of the reads of these very visits by the plan's model, microseconds a visit.
    pub predicted_us: f64,
    /// The reads and KiB counted, at the plan's unit_costs, microseconds a visit.
    pub measured_us: f64,
}

/// Measurements of some queries. Comparisons, which the plan's costs hold as well, are left out on both sides.
#[derive(Clone, Debug, Serialize)]
pub struct Measured {
    /// Queries.
    pub queries: usize,
    /// `rows` of the index, each hidden from its own search, or `queries` that were given.
    pub source: &'static str,
    /// Results wanted of each.
    pub k: u32,
    /// Clusters that each may visit.
    pub nprobe: u32,
    /// Clusters that each visited.
    pub visits: f64,
    /// Measurements by the way in which clusters are held.
    pub ways: Vec<WayMeasured>,
    /// Reads of codes for all of it, microseconds a query: predicted, and measured.
    pub predicted_us: f64,
    /// See `predicted_us`.
    pub measured_us: f64,
    /// Reads of vectors that no bound discarded, a query: whichever index finds them they are read, so no plan
    /// reckons with them.
    #[serde(rename = "survivor_reads")]
    pub candidate_reads: f64,
    /// KiB of them.
    #[serde(rename = "survivor_kib")]
    pub candidate_kib: f64,
}

/// Queries to measure with.
pub enum MeasuredQueries<'a> {
    /// Members of the index: so many, drawn with a seed.
    Rows {
        /// Most members.
        sample: usize,
        /// Draws them.
        seed: u64,
    },
    /// Rows of the index' element type that are given.
    Queries(&'a [u8]),
}

/// The plan that the manifest keeps.
///
/// # Errors
/// An index without clusters, or of before plans were kept.
pub(crate) fn report(base: &Base) -> Result<&PlanReport> {
    let plan = base.manifest.section.lists().and_then(|section| section.plan.as_ref());
    plan.ok_or_else(|| {
        Error::bad_input(format!(
            "{} is a {} without a plan; --plan is for hybrid-ivf",
            base.folder.display(),
            base.manifest.kind
        ))
    })
}

/// Runs queries one after another and compares the reads of their visits with what the plan expected of these clusters.
///
/// # Errors
/// As [`super::explain`]; a query that fails; an interruption.
pub(crate) fn measure(
    base: &Base,
    lists: &ListIndex,
    (asked, params): (&MeasuredQueries<'_>, Params),
    progress: &dyn Progress,
) -> Result<Measured> {
    let report = report(base)?;
    let mut sum =
        Sum { model: model(report, &lists.tables), report, ways: BTreeMap::new(), candidates: (0, 0) };
    let (queries, source) = match asked {
        MeasuredQueries::Rows { sample, seed } => {
            let drawn = draw(base.manifest.rows as u32, *sample, *seed);
            progress.stage("visits of rows", drawn.len() as u64, "queries");
            for &id in &drawn {
                let vector = lists.vector(base, id)?;
                sum.add(&explain((base, None), lists, &vector, Params { exclude: id, ..params }))?;
                tick(progress)?;
            }
            (drawn.len(), "rows")
        }
        MeasuredQueries::Queries(rows) => {
            let rows = rows.chunks_exact(base.row_bytes());
            let count = rows.len();
            progress.stage("visits of queries", count as u64, "queries");
            for row in rows {
                sum.add(&explain((base, None), lists, row, params))?;
                tick(progress)?;
            }
            (count, "queries")
        }
    };
    Ok(sum.into_measured(queries, source, (params.k, params.kind.hybrid_ivf().map_or(0, |p| p.nprobe))))
}

fn tick(progress: &dyn Progress) -> Result<()> {
    progress.advance(1);
    progress.check_interrupted()
}

/// The plan's model with reads alone: distances cost nothing.
fn model(report: &PlanReport, tables: &ListTables) -> VisitCostModel {
    let shape = &tables.shape;
    let local = &report.local;
    VisitCostModel {
        unit_costs: UnitCosts {
            read_us: report.read_us,
            byte_us: report.kib_us / 1024.0,
            distance_us: 0.0,
            alpha_flat: 0.0,
            beta_scan: local.beta_scan,
            hops: (local.hops_a, local.hops_b),
            lists: (local.lists_a, local.lists_b),
        },
        sizes: ListSizes {
            member_bytes: shape.member_bytes() as f64,
            overhead_bytes: shape.list_codes_bytes(0) as f64,
            read_max: f64::from(tables.facts.read_max),
            degree: 0.0,
        },
    }
}

/// Visits of one way.
#[derive(Default)]
struct Tally {
    visits: u64,
    clusters: BTreeSet<u32>,
    reads: u64,
    pages: u64,
    predicted_us: f64,
}

struct Sum<'a> {
    model: VisitCostModel,
    report: &'a PlanReport,
    // By kind, and whether in RAM.
    ways: BTreeMap<(u8, bool), Tally>,
    candidates: (u64, u64),
}

impl Sum<'_> {
    fn add(&mut self, trace: &Trace) -> Result<()> {
        if !trace.complete {
            return Err(Error::corrupt(trace.failure.clone()));
        }
        if let Some(Visits { visits, candidate_reads, .. }) = trace.event() {
            visits.iter().for_each(|visit| self.add_visit(visit));
            self.candidates.0 += candidate_reads.reads;
            self.candidates.1 += candidate_reads.pages;
        }
        Ok(())
    }

    fn add_visit(&mut self, visit: &Visit) {
        let kind = LocalKind::ALL.into_iter().find(|k| k.name() == visit.kind).unwrap_or_default();
        // The codes of a local graph are resident; its lists are read nevertheless.
        let is_in_ram = visit.lists_scanned > 0 && visit.lists_in_ram == visit.lists_scanned;
        let way = LocalIndex { kind, in_ram: kind == LocalKind::Graph || is_in_ram };
        let tally = self.ways.entry((way.kind as u8, way.in_ram)).or_default();
        tally.visits += 1;
        tally.clusters.insert(visit.cluster);
        tally.reads += visit.reads;
        tally.pages += visit.pages;
        tally.predicted_us += self.model.visit_us(way, visit.members);
    }

    fn into_measured(self, queries: usize, source: &'static str, (k, nprobe): (u32, u32)) -> Measured {
        let each = |x: f64| x / queries.max(1) as f64;
        let kib = |pages: u64| (pages * (PAGE as u64 >> 10)) as f64;
        let cost = |t: &Tally| t.reads as f64 * self.report.read_us + kib(t.pages) * self.report.kib_us;
        let way = |(&(kind, in_ram), tally): (&(u8, bool), &Tally)| {
            let visits = tally.visits.max(1) as f64;
            WayMeasured {
                kind: LocalKind::ALL[usize::from(kind)].name(),
                in_ram,
                visits: tally.visits,
                clusters: tally.clusters.len() as u64,
                reads: tally.reads as f64 / visits,
                kib: kib(tally.pages) / visits,
                predicted_us: tally.predicted_us / visits,
                measured_us: cost(tally) / visits,
            }
        };
        Measured {
            queries,
            source,
            k,
            nprobe,
            visits: each(self.ways.values().map(|t| t.visits as f64).sum()),
            ways: self.ways.iter().map(way).collect(),
            predicted_us: each(self.ways.values().map(|t| t.predicted_us).sum()),
            measured_us: each(self.ways.values().map(cost).sum()),
            candidate_reads: each(self.candidates.0 as f64),
            candidate_kib: each(kib(self.candidates.1)),
        }
    }
}
