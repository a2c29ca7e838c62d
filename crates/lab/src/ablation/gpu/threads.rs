//! Throughput and latency by threads (figures 3 and 11): measured on this machine, and beyond its threads simulated.
//!
//! The traces of the queries are replayed, with a query on each thread. Without given costs, the processor time of a
//! query is that of a real search on one thread: ranking its codes takes what that takes alone, and the rest is spread
//! over its steps. The disk is measured. Vectors that a GPU would score are priced as the processor scores them.

use std::time::Instant;

use serde::Serialize;
use stratann_capacity::costs::{NETWORK_GBPS, NETWORK_LATENCY_US, Origin, Prices};
use stratann_capacity::passes::Entry;
use stratann_capacity::passes::Passes;
use stratann_capacity::servers::{QUERIES_CLOSED, ROUNDS_CLOSED};
use stratann_cli::options;
use stratann_core::query::wire::{Carry, Results};
use stratann_core::query::{Params, QueryState, Scratch};
use stratann_engine::doctor;
use stratann_engine::kinds::gpu_ivf::baseline::Baseline;
use stratann_engine::search::{Answers, Latency};
use stratann_sim::{Costs, Load, Trace, replay};
use stratann_storage::tier::IoChoice;
use stratann_storage::{Error, Progress, Result};

use super::settings::{Chosen, Family, Setting};
use super::timed::{Stages, blocking, median};
use super::ways::Way;
use super::{Bench, WIDTH};

const SEED: u64 = 1;
/// Numbers of simulated threads, as in the paper.
const SIMULATED: [usize; 7] = [1, 2, 4, 8, 16, 32, 64];
/// Runs of each setting; the median counts.
const ROUNDS: usize = 3;
/// Queries whose codes are ranked with a clock, and rounds; the fastest counts.
const RANKED: usize = 200;

/// A way with so many threads, a query on each.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Scaled {
    pub(super) name: &'static str,
    pub(super) asked: f64,
    pub(super) setting: Setting,
    pub(super) threads: usize,
    /// Whether the traces were replayed.
    pub(super) simulated: bool,
    pub(super) qps: f64,
    pub(super) latency_us: Latency,
    /// Absent in a simulation.
    pub(super) stage_us: Option<Stages>,
    /// The busiest resource of a simulation.
    pub(super) bottleneck: Option<&'static str>,
}

/// Ways that need no GPU.
fn ways() -> [Way; 3] {
    let [spann, cpu] = [Baseline::Spann, Baseline::MultiTierOnCpu].map(Way::of);
    [spann, Way::of_family(Family::Margin), cpu]
}

impl Bench<'_> {
    /// Three ways at the lowest recall.
    pub(super) fn threads(&self, chosen: &Chosen) -> Result<Vec<Scaled>> {
        let Some(&asked) = self.args.recall.first() else { return Ok(Vec::new()) };
        let given = self.args.costs.as_deref().map(Prices::read).transpose()?;
        let disk = match &given {
            Some(prices) => prices.clone(),
            None => self.disk()?,
        };
        let mut found = Vec::new();
        for way in ways() {
            let Some(choice) = chosen.all(way.family).find(|choice| choice.asked == asked) else { continue };
            let setting = choice.tried.setting;
            let row = Scaled {
                name: way.name,
                asked,
                setting,
                threads: 0,
                simulated: false,
                qps: 0.0,
                latency_us: Latency::default(),
                stage_us: None,
                bottleneck: None,
            };
            let one = self.measured(&way, &setting, 1)?;
            let counts = self.thread_counts();
            for threads in counts {
                let run = self.measured(&way, &setting, threads)?;
                let queries = run.latency_ns.len();
                found.push(Scaled {
                    threads,
                    qps: queries as f64 / run.seconds.max(1e-9),
                    latency_us: Latency::of(&run.latency_ns),
                    stage_us: Some(Stages::of(&run.times, queries)),
                    ..row.clone()
                });
            }
            let traces = self.traces(&way, &setting)?;
            let prices = match &given {
                Some(prices) => prices.clone(),
                None => self.prices(&disk, &way, &setting, &one, &traces)?,
            };
            found.extend(self.simulated(&row, &prices, &traces)?);
        }
        Ok(found)
    }

    fn measured(&self, way: &Way, setting: &Setting, threads: usize) -> Result<Answers> {
        let rows = self.timed_rows();
        let queries = ROUNDS * rows.len() / self.queries.row_bytes();
        self.printer.stage(&format!("{} on {threads} threads", way.name), queries as u64, "queries");
        let options = blocking(self.options(way, setting, threads));
        let runs = (0..ROUNDS).map(|_| self.run(rows, &options)).collect::<Result<Vec<_>>>()?;
        median(runs).ok_or_else(|| Error::bad_input("no query was given; give one or more"))
    }

    fn params(&self, way: &Way, setting: &Setting) -> Result<Params> {
        let params = self.index.params(&self.options(way, setting, 1))?;
        Ok(Params { approach_width: WIDTH, width: WIDTH, ..params })
    }

    /// Traces of all queries, task by task.
    fn traces(&self, way: &Way, setting: &Setting) -> Result<Vec<Trace>> {
        let passes = Passes {
            index: &self.index,
            queries: &self.queries,
            truth: None,
            entry: Entry::Any,
            seed: SEED,
            carry: Carry::Ids,
            results: Results::Along,
            progress: self.printer,
        };
        let pass = passes.scatter(&[&self.index], self.params(way, setting)?)?;
        if pass.failed > 0 {
            return Err(Error::corrupt("some simulated queries failed; run `stratann verify`"));
        }
        Ok(pass.traces)
    }

    fn simulated(&self, row: &Scaled, prices: &Prices, traces: &[Trace]) -> Result<Vec<Scaled>> {
        let prices = Prices {
            scorer_code_ps: self.args.scorer_code_ps.unwrap_or(prices.scorer_code_ps),
            scorer_job_us: self.args.scorer_job_us.unwrap_or(prices.scorer_job_us),
            ..prices.clone()
        };
        prices.check()?;
        let at = |threads: usize| {
            let costs = Costs { threads, ..prices.costs() };
            let queries = (ROUNDS_CLOSED * threads).max(QUERIES_CLOSED);
            let timing = replay(traces, 1, &costs, Load::Closed { in_flight: threads }, queries, SEED);
            Scaled {
                threads,
                simulated: true,
                qps: timing.qps,
                latency_us: Latency::of(&timing.latency_ns),
                bottleneck: Some(timing.busiest().bottleneck()),
                ..row.clone()
            }
        };
        Ok(SIMULATED.map(at).to_vec())
    }

    /// The measured disk, and work that is free.
    fn disk(&self) -> Result<Prices> {
        let disk = doctor::probe_disk(self.index.folder(), IoChoice::Auto)?;
        Ok(Prices {
            threads: options::all_cores(),
            prepare_ns: 0,
            step_ns: 0,
            read_ns: 0,
            route_comparison_ps: None,
            code_comparison_ps: 0,
            full_comparison_ps: 0,
            component_ps: 0,
            scorer_code_ps: 0,
            scorer_job_us: 0.0,
            message_ns: 0,
            message_byte_ps: 0,
            wake_ns: 0,
            request_us: 0.0,
            disk_iops: disk.iops.round().max(1.0),
            disk_latency_us: (10.0 * disk.latency_us).round() / 10.0,
            disk_mb_per_s: Some((disk.transfer_bytes_per_s() / 1e6).round().max(1.0)),
            network_latency_us: NETWORK_LATENCY_US,
            network_gbps: NETWORK_GBPS,
            network_latency_from: Origin::Assumed,
            network_gbps_from: Origin::Assumed,
            servers_per_host: None,
            cores_per_host: None,
        })
    }

    /// Adds what work takes on this machine.
    fn prices(
        &self,
        disk: &Prices,
        way: &Way,
        setting: &Setting,
        one: &Answers,
        traces: &[Trace],
    ) -> Result<Prices> {
        let code_ps = self.code_ps(way, setting)?;
        let works: Vec<_> = traces.iter().map(Trace::work).collect();
        let mean = |of: fn(&stratann_sim::Work) -> u32| {
            works.iter().map(|work| f64::from(of(work))).sum::<f64>() / works.len().max(1) as f64
        };
        let query_ns = 1000.0 * one.cpu_us as f64 / one.latency_ns.len().max(1) as f64;
        let codes = mean(|work| work.scored + work.code_comparisons);
        let others_ns = (query_ns - codes * code_ps / 1000.0).max(0.0);
        Ok(Prices {
            code_comparison_ps: code_ps.round() as u64,
            route_comparison_ps: Some(0),
            step_ns: (others_ns / mean(|work| work.steps).max(1.0)).round() as u64,
            ..disk.clone()
        })
    }

    /// Picoseconds of ranking a code on a thread, duplicates and the selection of the nearest included; 0 for a way
    /// that asks no scorer.
    fn code_ps(&self, way: &Way, setting: &Setting) -> Result<f64> {
        let (view, params) = (self.index.view(), self.params(way, setting)?);
        let mut scratch = Scratch::default();
        let mut least_ns = f64::INFINITY;
        let mut codes = 0u64;
        for _ in 0..ROUNDS {
            let mut ns = 0.0;
            codes = 0;
            for query in self.timed_rows().chunks_exact(self.queries.row_bytes()).take(RANKED) {
                let mut state = QueryState::new(params, self.index.query_budget());
                scratch.prepare(&view, query);
                state.step(&view, &mut scratch, &[]);
                if state.code_wants().next().is_none() {
                    return Ok(0.0);
                }
                let started = Instant::now();
                let ranking = scratch.rank_codes(&view);
                ns += started.elapsed().as_nanos() as f64;
                codes += ranking.distinct;
            }
            least_ns = least_ns.min(ns);
        }
        Ok(1000.0 * least_ns / codes.max(1) as f64)
    }
}
