//! Simulated servers: the ways to divide the lists, under even and skewed loads, with techniques switched off.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::Path;
use stratann_params::search::GridSwitches;

use serde::Serialize;
use stratann_capacity::calibrate::Measured;
use stratann_capacity::costs::{Given, Prices};
use stratann_capacity::passes::Entry;
use stratann_capacity::passes::{Pass, Passes};
use stratann_capacity::servers::{IN_FLIGHT_EACH, QUERIES_CLOSED, ROUNDS_CLOSED, cpu_us};
use stratann_core::query::wire::{Carry, Results};
use stratann_engine::kinds::division::{GridPartition, Mode};
use stratann_engine::search::Latency;
use stratann_engine::spread::{self, PartitionOptions, Placed};
use stratann_sim::{Costs, Load as Rate, Task, Timing, Trace, replay};
use stratann_storage::{Error, Progress, Result};

use super::Bench;
use super::loads::{Load, Skew};
use super::one::ALL;

const SEED: u64 = 1;
/// The load whose lists are visited by Zipf's law.
const ZIPF: &str = "zipf";
/// Queries that are replayed one after another.
const LONE_QUERIES: usize = 1000;
/// Amount by which a share may be less than asked for.
const SHARE_TOLERANCE: f64 = 0.005;
/// Ways to divide the lists.
pub(super) const MODES: [Mode; 4] = [Mode::Vector, Mode::Dimension, Mode::Striped, Mode::Harmony];

/// A way to divide the lists over servers.
#[derive(Clone, Debug)]
struct Way {
    name: String,
    mode: Mode,
    /// Number of slices that the planner has to take.
    slices: Option<usize>,
}

impl Way {
    /// All modes, and all numbers of slices that are not a mode of their own.
    fn all(servers: usize) -> Vec<Way> {
        let modes = MODES.map(|mode| Way { name: mode.name().into(), mode, slices: None });
        let between = (2..servers).filter(|slices| servers.is_multiple_of(*slices));
        let sliced =
            |slices| Way { name: format!("{slices} slices"), mode: Mode::Harmony, slices: Some(slices) };
        modes.into_iter().chain(between.map(sliced)).collect()
    }
}

/// A load on simulated servers.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Simulated {
    /// `even`, or the skew that was asked for.
    pub(super) load: String,
    /// The mode, or what is switched off.
    pub(super) name: String,
    pub(super) servers: usize,
    pub(super) nprobe: u32,
    /// The recall that these lists reach with the given queries.
    pub(super) recall: f64,
    /// Rows and slices of the plan.
    pub(super) rows: usize,
    pub(super) slices: usize,
    pub(super) qps: f64,
    /// QPS where as many queries are in flight as there are threads.
    pub(super) blocking_qps: f64,
    /// QPS over that of one server under the same load, and of one that does not prune.
    pub(super) speed_up: f64,
    pub(super) speed_up_unpruned: f64,
    /// Components of each query.
    pub(super) components: f64,
    pub(super) messages: f64,
    pub(super) bytes: f64,
    /// Processor time of a query on all servers.
    pub(super) computing_us: f64,
    pub(super) messages_us: f64,
    /// Time of all threads for each query in which they do neither, with many queries in flight and with few.
    pub(super) idle_us: f64,
    pub(super) blocking_idle_us: f64,
    /// Time of a query besides computing and messages when it is alone: its messages on their way.
    pub(super) waiting_us: f64,
    /// The standard deviation of the servers' computing for a query: I in the paper.
    pub(super) imbalance_us: f64,
    /// The largest computing of a server over the mean, and over all.
    pub(super) largest_over_mean: f64,
    pub(super) largest_share: f64,
}

impl Simulated {
    /// The same with as many queries in flight as there are threads.
    fn blocking(self) -> Simulated {
        let slower = self.blocking_qps / self.qps.max(f64::MIN_POSITIVE);
        Simulated {
            name: "blocking".into(),
            qps: self.blocking_qps,
            speed_up: slower * self.speed_up,
            speed_up_unpruned: slower * self.speed_up_unpruned,
            idle_us: self.blocking_idle_us,
            ..self
        }
    }
}

/// The planner's choice beside all ways to divide.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Choice {
    pub(super) load: String,
    pub(super) servers: usize,
    pub(super) recall: f64,
    pub(super) rows: usize,
    pub(super) slices: usize,
    pub(super) best_way: String,
    /// Slices of the fastest way.
    pub(super) best_slices: usize,
    /// QPS of the choice over that of the fastest way, itself included.
    pub(super) over_best: f64,
}

/// QPS of one server under a load, and of one that does not prune.
#[derive(Clone, Copy)]
struct OneServer {
    pruned: f64,
    unpruned: f64,
}

/// Way in which lists are divided, and in which they are searched.
#[derive(Clone, Copy)]
struct Setting<'s> {
    name: &'s str,
    servers: usize,
    mode: Mode,
    // Number of slices that the planner has to take.
    slices: Option<usize>,
    // Queries that the planner sees.
    sample: &'s Path,
    alpha: Option<f64>,
    switches: GridSwitches,
    // Lists, and the recall that they reach.
    probes: (u32, f64),
}

/// Simulations at measured costs.
pub(super) struct Simulation<'a> {
    bench: &'a Bench<'a>,
    pub(super) prices: Prices,
    pub(super) usual: u32,
    even: Load,
    // By load and lists.
    one_server: RefCell<BTreeMap<(String, u32), OneServer>>,
}

/// Measurements under skewed loads.
#[derive(Default)]
pub(super) struct Skewed {
    pub(super) loads: Vec<Skew>,
    pub(super) modes: Vec<Simulated>,
    pub(super) techniques: Vec<Simulated>,
}

impl<'a> Simulation<'a> {
    /// Measures costs, on as many servers as are simulated first.
    pub(super) fn new(bench: &'a Bench<'a>, usual: u32, servers: usize) -> Result<Simulation<'a>> {
        let even = bench.even_load()?;
        let prices = match &bench.args.costs {
            Some(path) => Prices::read(path)?,
            None => {
                let (params, search) = (
                    bench.params(usual, GridSwitches::default())?,
                    bench.options(usual, GridSwitches::default()),
                );
                let place =
                    |servers| spread::place(&bench.index, &PartitionOptions::new(servers), bench.printer);
                let placements = [place(1)?, place(servers)?];
                let (passes, rows) = (passes(bench, &even), bench.sample()?);
                let measured =
                    Measured { passes: &passes, rows: &rows, params, search, placements: &placements };
                // Lists are in memory: no disk is measured, and no read is priced.
                let no_disk = Given {
                    disk_iops: Some(1e6),
                    disk_latency_us: Some(0.0),
                    disk_mb_per_s: Some(1e6),
                    ..Given::default()
                };
                measured.prices(&no_disk, bench.printer)?
            }
        };
        Ok(Simulation { bench, prices, usual, even, one_server: RefCell::default() })
    }

    /// All modes: at all recalls on the first number of servers, at the last one on the others.
    pub(super) fn even(&self, servers: &[usize], probes: &[(f64, u32)]) -> Result<Vec<Simulated>> {
        let mut found = Vec::new();
        for (at, &servers) in servers.iter().enumerate() {
            let from = if at == 0 { 0 } else { probes.len().saturating_sub(1) };
            for &(recall, nprobe) in &probes[from..] {
                for way in Way::all(servers) {
                    let probes = (nprobe, recall);
                    let setting = Setting { servers, probes, ..self.of_way(&way, &self.even) };
                    found.extend(self.run(&self.even, &setting)?);
                }
            }
        }
        Ok(found)
    }

    /// Skewed loads, and techniques switched off under the last of them, on the first number of servers; the last one
    /// and a Zipf load on the others.
    pub(super) fn skewed(&self, servers: &[usize], skews: &[f64], probes: &[(f64, u32)]) -> Result<Skewed> {
        let mut found = Skewed::default();
        for (at, &servers) in servers.iter().enumerate() {
            let from = if at == 0 { 0 } else { skews.len().saturating_sub(1) };
            for (number, &asked) in skews.iter().enumerate().skip(from) {
                let (load, skew) = self.skewed_load(servers, asked, probes)?;
                self.under(&load, skew.probes(), servers, &mut found)?;
                if at == 0 && number + 1 == skews.len() {
                    found.techniques = self.techniques(servers, &load, skew.probes())?;
                }
                found.loads.push(skew);
            }
            let (load, skew) = self.zipf_load(servers, probes)?;
            self.under(&load, skew.probes(), servers, &mut found)?;
            found.loads.push(skew);
        }
        Ok(found)
    }

    /// All ways to divide under a load of which only the planner knows.
    fn under(&self, load: &Load, probes: (u32, f64), servers: usize, found: &mut Skewed) -> Result<()> {
        for way in Way::all(servers) {
            let known = if way.mode == Mode::Harmony { load } else { &self.even };
            let setting = Setting { servers, probes, ..self.of_way(&way, known) };
            found.modes.extend(self.run(load, &setting)?);
        }
        Ok(())
    }

    /// Queries whose nearest lists are visited by Zipf's law, at the highest recall.
    fn zipf_load(&self, servers: usize, probes: &[(f64, u32)]) -> Result<(Load, Skew)> {
        let Some(&(recall, nprobe)) = probes.last() else {
            return Err(Error::bad_input("--recall is empty; give one recall or more"));
        };
        let weights = self.bench.zipf(nprobe)?;
        let (load, distinct_queries) = self.bench.drawn_load(ZIPF, &weights)?;
        let skew = Skew {
            load: ZIPF.into(),
            servers,
            asked: None,
            expected: None,
            nprobe,
            recall,
            distinct_queries,
        };
        Ok((load, skew))
    }

    /// A load in which one server of whole lists has this share of the work, at the highest recall that allows it: the
    /// more lists a query visits, the more servers hold some of them.
    fn skewed_load(&self, servers: usize, asked: f64, probes: &[(f64, u32)]) -> Result<(Load, Skew)> {
        let name = format!("skew-{asked}");
        for (at, &(recall, nprobe)) in probes.iter().enumerate().rev() {
            let setting =
                Setting { servers, probes: (nprobe, recall), ..self.setting(Mode::Vector, &self.even) };
            let row_of_list = self.place(&setting)?.plan.map(|plan| plan.row_of_list).unwrap_or_default();
            let (weights, expected) = self.bench.visits(nprobe, &row_of_list)?.skewed(asked);
            if expected < asked - SHARE_TOLERANCE && at > 0 {
                continue;
            }
            let (load, distinct_queries) = self.bench.drawn_load(&name, &weights)?;
            let (asked, expected) = (Some(asked), Some(expected));
            let skew = Skew { load: name, servers, asked, expected, nprobe, recall, distinct_queries };
            return Ok((load, skew));
        }
        Err(Error::bad_input("--recall is empty; give one recall or more"))
    }

    /// Techniques switched off, one by one.
    fn techniques(&self, servers: usize, load: &Load, probes: (u32, f64)) -> Result<Vec<Simulated>> {
        let on = GridSwitches::default();
        let all = Setting { name: ALL, servers, probes, ..self.setting(Mode::Harmony, load) };
        // Neither the plan nor the order of slices knows of the load.
        let unbalanced = Setting {
            name: "no balance",
            alpha: Some(0.0),
            switches: GridSwitches { balance: false, ..on },
            sample: &self.even.sample,
            ..all
        };
        let Some(planned) = self.run(load, &all)? else { return Ok(Vec::new()) };
        let mut settings = vec![unbalanced];
        // A plan of whole lists has no slices to score at once, and slices are not chained.
        let (name, switches) = match planned.slices {
            1 => ("no chain", GridSwitches { chain: false, ..on }),
            _ => ("no pipeline", GridSwitches { pipeline: false, ..on }),
        };
        settings.push(Setting { name, switches, ..all });
        let off = self.bench.variants().into_iter().skip(1);
        settings.extend(off.map(|(name, switches)| Setting { name, switches, ..all }));
        let mut found = vec![planned.clone(), planned.blocking()];
        for setting in &settings {
            found.extend(self.run(load, setting)?);
        }
        Ok(found)
    }

    /// Options of a partition in a mode, planned with the given queries.
    pub(super) fn partition_options(&self, mode: Mode, servers: usize) -> PartitionOptions {
        self.options(&Setting { servers, ..self.setting(mode, &self.even) })
    }

    /// Notes a mode that cannot use so many servers.
    pub(super) fn unless_refused<T>(&self, mode: Mode, servers: usize, done: Result<T>) -> Result<Option<T>> {
        match done {
            Ok(done) => Ok(Some(done)),
            Err(e) if e.kind == stratann_storage::ErrorKind::BadInput => {
                self.bench.printer.note(&format!(
                    "note: {} on {servers} servers: {}",
                    mode.name(),
                    e.message
                ));
                Ok(None)
            }
            Err(e) => Err(e),
        }
    }

    fn setting<'s>(&self, mode: Mode, known: &'s Load) -> Setting<'s> {
        let recall = self.bench.args.recall.last().copied().unwrap_or(0.0);
        Setting {
            name: mode.name(),
            servers: 1,
            mode,
            slices: None,
            sample: &known.sample,
            alpha: None,
            switches: GridSwitches::default(),
            probes: (self.usual, recall),
        }
    }

    fn of_way<'s>(&self, way: &'s Way, known: &'s Load) -> Setting<'s> {
        Setting { name: &way.name, slices: way.slices, ..self.setting(way.mode, known) }
    }

    fn options(&self, setting: &Setting<'_>) -> PartitionOptions {
        // Both servers handle a message.
        let grid = GridPartition {
            mode: setting.mode,
            slices: setting.slices,
            queries: Some(setting.sample.to_path_buf()),
            nprobe: Some(setting.probes.0),
            alpha: setting.alpha,
            ..self.prices.of_plan()
        };
        PartitionOptions { grid, seed: SEED, ..PartitionOptions::new(setting.servers) }
    }

    fn place(&self, setting: &Setting<'_>) -> Result<Placed> {
        spread::place(&self.bench.index, &self.options(setting), self.bench.printer)
    }

    fn pass(&self, load: &Load, placed: &Placed, setting: &Setting<'_>) -> Result<Pass> {
        let params = self.bench.params(setting.probes.0, setting.switches)?;
        let pass = passes(self.bench, load).baton(placed, params)?;
        if pass.failed > 0 {
            return Err(Error::corrupt("some simulated queries failed; run `stratann verify`"));
        }
        Ok(pass)
    }

    /// One server under a load; with pruning and without.
    fn alone(&self, load: &Load, setting: &Setting<'_>) -> Result<OneServer> {
        let key = (load.name.clone(), setting.probes.0);
        if let Some(known) = self.one_server.borrow().get(&key) {
            return Ok(*known);
        }
        let one = |switches| -> Result<f64> {
            let alone =
                Setting { name: "", servers: 1, mode: Mode::Vector, slices: None, switches, ..*setting };
            let pass = self.pass(load, &self.place(&alone)?, &alone)?;
            Ok(self.most(&pass.traces, 1, IN_FLIGHT_EACH).qps)
        };
        let off = GridSwitches { prune_vector: false, prune_dimension: false, ..GridSwitches::default() };
        let found = OneServer { pruned: one(GridSwitches::default())?, unpruned: one(off)? };
        self.one_server.borrow_mut().insert(key, found);
        Ok(found)
    }

    /// Runs a load on servers; `None` where lists cannot be divided so.
    fn run(&self, load: &Load, setting: &Setting<'_>) -> Result<Option<Simulated>> {
        let placed = self.unless_refused(setting.mode, setting.servers, self.place(setting))?;
        let Some(placed) = placed else { return Ok(None) };
        let pass = self.pass(load, &placed, setting)?;
        let one = self.alone(load, setting)?;
        let (servers, costs) = (setting.servers, self.prices.costs());
        let computing = Costs { message_ns: 0, message_byte_ps: 0, request_ns: 0, ..costs };
        let spread = Spread::of(&loads(&pass.traces, servers, &computing));
        let qps = self.most(&pass.traces, servers, IN_FLIGHT_EACH).qps;
        let blocking_qps = self.most(&pass.traces, servers, 1).qps;
        let lone = replay(&pass.traces, servers, &costs, Rate::Closed { in_flight: 1 }, LONE_QUERIES, SEED);
        let computing_us = cpu_us(&pass.traces, &computing);
        let all_us = cpu_us(&pass.traces, &costs);
        let threads_us = (costs.threads * servers) as f64 * 1e6;
        let idle_us = |qps: f64| (threads_us / qps.max(f64::MIN_POSITIVE) - all_us).max(0.0);
        let each = |sum: u64| sum as f64 / pass.queries.max(1) as f64;
        let shape = placed.plan.as_ref().map_or((1, 1), |plan| (plan.rows, plan.slices.len() - 1));
        Ok(Some(Simulated {
            load: load.name.clone(),
            name: setting.name.into(),
            servers,
            nprobe: setting.probes.0,
            recall: setting.probes.1,
            rows: shape.0,
            slices: shape.1,
            qps,
            blocking_qps,
            speed_up: qps / one.pruned,
            speed_up_unpruned: qps / one.unpruned,
            components: each(pass.stats.components),
            messages: each(pass.messages),
            bytes: each(pass.bytes),
            computing_us,
            messages_us: all_us - computing_us,
            idle_us: idle_us(qps),
            blocking_idle_us: idle_us(blocking_qps),
            waiting_us: (Latency::of(&lone.latency_ns).mean - all_us).max(0.0),
            imbalance_us: spread.deviation,
            largest_over_mean: spread.largest / spread.mean.max(f64::MIN_POSITIVE),
            largest_share: spread.largest / (spread.mean * servers as f64).max(f64::MIN_POSITIVE),
        }))
    }

    /// The highest throughput with so many queries in flight for each thread.
    fn most(&self, traces: &[Trace], servers: usize, each: usize) -> Timing {
        let costs = self.prices.costs();
        let in_flight = each * costs.threads * servers;
        let queries = (ROUNDS_CLOSED * in_flight).max(QUERIES_CLOSED);
        replay(traces, servers, &costs, Rate::Closed { in_flight }, queries, SEED)
    }
}

fn passes<'p>(bench: &'p Bench<'_>, load: &'p Load) -> Passes<'p> {
    Passes {
        index: &bench.index,
        queries: &load.queries,
        truth: None,
        entry: Entry::Any,
        seed: SEED,
        carry: Carry::Distances,
        results: Results::default(),
        progress: bench.printer,
    }
}

/// Differences between the loads of servers.
struct Spread {
    mean: f64,
    deviation: f64,
    largest: f64,
}

impl Spread {
    fn of(loads: &[f64]) -> Spread {
        let count = loads.len().max(1) as f64;
        let mean = loads.iter().sum::<f64>() / count;
        let variance = loads.iter().map(|load| (load - mean).powi(2)).sum::<f64>() / count;
        Spread { mean, deviation: variance.sqrt(), largest: loads.iter().copied().fold(0.0, f64::max) }
    }
}

/// The planner's choices beside the fastest way, for each load.
pub(super) fn choices(rows: &[Simulated]) -> Vec<Choice> {
    let same = |a: &Simulated, b: &Simulated| {
        (&a.load, a.servers, a.nprobe, a.recall) == (&b.load, b.servers, b.nprobe, b.recall)
    };
    let chosen = rows.iter().filter(|row| row.name == Mode::Harmony.name());
    let choice = |chosen: &Simulated| {
        let best = rows.iter().filter(|row| same(row, chosen)).max_by(|a, b| a.qps.total_cmp(&b.qps))?;
        Some(Choice {
            load: chosen.load.clone(),
            servers: chosen.servers,
            recall: chosen.recall,
            rows: chosen.rows,
            slices: chosen.slices,
            best_way: best.name.clone(),
            best_slices: best.slices,
            over_best: chosen.qps / best.qps.max(f64::MIN_POSITIVE),
        })
    };
    chosen.filter_map(choice).collect()
}

/// Microseconds of each server's work for a query.
fn loads(traces: &[Trace], servers: usize, costs: &Costs) -> Vec<f64> {
    let mut by_server: BTreeMap<u8, u64> = BTreeMap::new();
    for (server, task) in traces.iter().flat_map(Trace::tasks) {
        if let Task::Think(work) = task {
            *by_server.entry(*server).or_default() += costs.work_ns(work);
        }
    }
    let of = |server| by_server.get(&(server as u8)).copied().unwrap_or(0) as f64;
    (0..servers).map(|server| of(server) / 1000.0 / traces.len().max(1) as f64).collect()
}
