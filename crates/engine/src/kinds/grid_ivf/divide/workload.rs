//! Visits of queries to a grid: the lists that they visit, and the number of vectors that are left after each group of
//! components.

use std::time::Instant;

use stratann_core::kinds::{IndexView, KindView};
use stratann_core::query::{Params, QueryState, Scratch, Step};
use stratann_kernel::element::widen;
use stratann_storage::{Error, Progress, Result};

use super::super::open::GridIndex;
use super::super::stripes::sizes_of;
use super::GridPartition;
use crate::base::Base;
use crate::dataset::Reader;
use crate::kinds::questions::Members;

/// Queries of a sample, at most.
const SAMPLE: usize = 1000;
/// Most of these queries that are searched for: the others are ranked. The survival curve is that of these.
const SEARCHED: usize = 128;
/// Times that a query is prepared and searched for; the fastest counts.
const TIMES: usize = 3;
/// Lists that are visited where neither the user nor a calibration says.
const NPROBE: u32 = 16;
/// The recall that queries are taken to ask for.
const RECALL: f64 = 0.95;
/// Results of a query.
const K: u32 = 10;

/// Visits of a sample of queries.
#[derive(Clone, Debug, Default)]
pub(super) struct Workload {
    /// Queries.
    pub(super) queries: usize,
    /// The lists that each query visits, one query after another, and where those of the next one begin.
    pub(super) lists: Vec<u32>,
    pub(super) ends: Vec<usize>,
    /// Members of each list.
    pub(super) members: Vec<u32>,
    /// Components of a member of each list over those of any, where queries of the sample visited it; 1 elsewhere. The
    /// threshold is lower for lists that come later.
    pub(super) weights: Vec<f64>,
    /// Share of the members of visited lists that is left before each group, and after the last.
    pub(super) alive: Vec<f64>,
    /// Components of pilots that are compared, and bytes of codes, for each member. A byte of a code takes about as
    /// long as a component.
    pub(super) pilot: f64,
    /// Nanoseconds of a component.
    pub(super) component_ns: f64,
    /// Nanoseconds that the origin takes to prepare a query.
    pub(super) prepare_ns: f64,
    /// Lists that a query visits.
    pub(super) nprobe: u32,
    /// Results of a query.
    pub(super) k: u32,
}

impl Workload {
    /// Runs a sample of queries and times it.
    ///
    /// # Errors
    /// Queries of another type or dimension, an interruption.
    pub(super) fn measure(
        base: &Base,
        grid: &GridIndex,
        options: &GridPartition,
        progress: &dyn Progress,
    ) -> Result<Workload> {
        let queries = sample(base, grid, options)?;
        let nprobe = match (options.nprobe, options.recall) {
            (Some(nprobe), _) => nprobe,
            (None, None) => calibrated(base, RECALL).unwrap_or(NPROBE),
            (None, Some(recall)) => calibrated(base, recall).ok_or_else(|| not_calibrated(recall))?,
        };
        let view = IndexView { base: base.view(), kind: KindView::GridIvf(grid.view()) };
        let layout = &grid.layout;
        let members = grid.places().first.windows(2).map(|w| w[1] - w[0]).collect();
        let mut found = Workload { members, nprobe, k: K, queries: queries.len(), ..Workload::default() };
        let mut left = vec![0u64; layout.groups() + 1];
        let (mut visited, mut components) = (0u64, 0u64);
        let (mut prepare, mut scan) = (0.0, 0.0);
        let mut of_lists = vec![(0u64, 0u64); grid.places().first.len().saturating_sub(1)];
        progress.stage("measuring queries", queries.len() as u64, "queries");
        let params = Params::grid_ivf(K, nprobe);
        // Some are searched for, evenly drawn; of the others it is known what they visit.
        let every = queries.len().div_ceil(SEARCHED).max(1);
        for (number, query) in queries.iter().enumerate() {
            progress.check_interrupted()?;
            let mut scratch = Scratch::default();
            prepare += least_ns(|| scratch.prepare(&view, query));
            progress.advance(1);
            if !number.is_multiple_of(every) {
                scratch.rank_lists(&view, &params);
                found.lists.extend(scratch.ranked_lists().iter().map(|list| list.1));
                found.ends.push(found.lists.len());
                continue;
            }
            let mut state = QueryState::new(params, view.budget());
            scan += least_ns(|| {
                scratch.trace_lists();
                state = QueryState::new(params, view.budget());
                while state.step(&view, &mut scratch, &[]) != Step::Done {}
            });
            found.lists.extend(scratch.ranked_lists().iter().map(|list| list.1));
            found.ends.push(found.lists.len());
            let Some(trace) = scratch.grid_ivf().and_then(|own| own.scanned()) else { continue };
            let code_bytes = layout.code.map_or(0, |code| code.code_bytes()) as u64;
            components += state.stats().components + trace.codes * code_bytes;
            left[0] += trace.after_pilot;
            left[1..].iter_mut().zip(&trace.after_group).for_each(|(sum, left)| *sum += left);
            visited += trace.lists.iter().map(|list| u64::from(list.members)).sum::<u64>();
            for list in &trace.lists {
                let sums = &mut of_lists[list.list as usize];
                *sums = (sums.0 + list.components, sums.1 + u64::from(list.members));
            }
        }
        let all = visited.max(1) as f64;
        found.alive = left.iter().map(|&left| left as f64 / all).collect();
        let widths = (0..layout.groups()).map(|group| layout.components(group).len() as f64);
        let groups: f64 = widths.zip(&found.alive).map(|(width, alive)| width * alive).sum();
        found.pilot = (components as f64 / all - groups).max(0.0);
        found.weights = weights(&of_lists);
        found.component_ns = options.component_ns.unwrap_or(scan / components.max(1) as f64);
        found.prepare_ns = options.prepare_ns.unwrap_or(prepare / queries.len().max(1) as f64);
        Ok(found)
    }

    /// Workload of the same index with the lists that queries were seen to visit. A list that does not exist is left
    /// out.
    pub(super) fn observed(self, visits: &[Vec<u32>]) -> Workload {
        let lists = self.members.len() as u32;
        let (mut all, mut ends) = (Vec::new(), Vec::new());
        for query in visits {
            all.extend(query.iter().copied().filter(|&list| list < lists));
            ends.push(all.len());
        }
        let nprobe = all.len().div_ceil(visits.len().max(1)) as u32;
        Workload { queries: visits.len(), lists: all, ends, nprobe, ..self }
    }

    /// Workload of the same queries, where the members of each list are dealt over several.
    pub(super) fn striped(&self, stripes: u32) -> Workload {
        let of_list = |&list: &u32| (0..stripes).map(move |stripe| list * stripes + stripe);
        Workload {
            lists: self.lists.iter().flat_map(of_list).collect(),
            ends: self.ends.iter().map(|end| end * stripes as usize).collect(),
            members: self.members.iter().flat_map(|&members| sizes_of(members, stripes)).collect(),
            weights: self.weights.iter().flat_map(|&w| std::iter::repeat_n(w, stripes as usize)).collect(),
            ..self.clone()
        }
    }

    /// Members of a list, weighed by what they take.
    pub(super) fn work(&self, list: usize) -> f64 {
        f64::from(self.members[list]) * self.weights.get(list).copied().unwrap_or(1.0)
    }

    /// The lists of each query.
    pub(super) fn each(&self) -> impl Iterator<Item = &[u32]> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts.zip(&self.ends).map(|(start, &end)| &self.lists[start..end])
    }

    /// Number of queries that visit each list.
    pub(super) fn visits(&self) -> Vec<u32> {
        let mut visits = vec![0; self.members.len()];
        self.lists.iter().for_each(|&list| visits[list as usize] += 1);
        visits
    }
}

/// Nanoseconds of some work, the least of a few times: other programs make it longer.
fn least_ns(mut work: impl FnMut()) -> f64 {
    let once = |_| {
        let started = Instant::now();
        work();
        started.elapsed().as_nanos() as f64
    };
    (0..TIMES).map(once).fold(f64::INFINITY, f64::min)
}

/// Components of a member of each list over those of any. `sums` are components and members of all visits of a list.
fn weights(sums: &[(u64, u64)]) -> Vec<f64> {
    let all = sums.iter().fold((0, 0), |all, own| (all.0 + own.0, all.1 + own.1));
    let mean = all.0 as f64 / all.1.max(1) as f64;
    let of = |&(components, members): &(u64, u64)| match members {
        0 => 1.0,
        _ => components as f64 / members as f64 / mean.max(f64::MIN_POSITIVE),
    };
    sums.iter().map(of).collect()
}

fn not_calibrated(recall: f64) -> Error {
    Error::bad_input(format!(
        "no number of lists was calibrated for recall {recall}; run `stratann tune`, or give --nprobe"
    ))
}

/// The lists that a query visits for a recall, where that was calibrated.
fn calibrated(base: &Base, recall: f64) -> Option<u32> {
    let curve = base.manifest.curves.iter().find(|curve| curve.k == K)?;
    curve.setting(recall).map(|point| point.effort)
}

/// The queries of a file, or vectors of the index, evenly drawn.
fn sample(base: &Base, grid: &GridIndex, options: &GridPartition) -> Result<Vec<Vec<u8>>> {
    let Some(path) = &options.queries else {
        let rows = base.manifest.rows;
        let count = rows.min(SAMPLE as u64);
        return (0..count).map(|i| grid.vector(base, (i * rows / count) as u32)).collect();
    };
    let reader = Reader::open(path)?;
    let shape = reader.shape();
    if shape.dim != base.manifest.dim || shape.dtype != base.dtype || shape.rows == 0 {
        return Err(Error::bad_input(format!(
            "{} has {} rows of {} {}; the queries of this index are rows of {} {}",
            path.display(),
            shape.rows,
            shape.dim,
            shape.dtype.name(),
            base.manifest.dim,
            base.dtype.name()
        )));
    }
    let count = shape.rows.min(SAMPLE as u64);
    let rows: Vec<u32> = (0..count).map(|i| (i * shape.rows / count) as u32).collect();
    let mut queries = Vec::with_capacity(rows.len());
    reader.for_each(&rows, |row| queries.push(row.to_vec()))?;
    let mut floats = vec![0f32; shape.dim];
    queries.retain(|query| {
        widen(shape.dtype, query, &mut floats);
        floats.iter().all(|x| x.is_finite())
    });
    Ok(queries)
}
