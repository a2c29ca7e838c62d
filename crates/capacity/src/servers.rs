//! Servers that hold parts of an index: the same queries on several numbers of servers, in several modes, under loads.

use std::path::{Path, PathBuf};

use stratann_core::query::{MAX_SEARCH_LIST, Params, ScoringMode};
use stratann_engine::index::Index;
use stratann_engine::kinds;
use stratann_engine::search::{IN_FLIGHT, Latency, SearchOptions};
use stratann_engine::spread::{self, PartitionOptions, scatter};
use stratann_sim::{Costs, Load, Timing, Trace, replay};
use stratann_storage::{Error, Progress, Result};

use crate::calibrate::{self, Comparison, Measured, OneServer};
use crate::costs::{Given, Prices};
use crate::passes::{Pass, Passes};

/// Largest loss of a matched recall.
const RECALL_TOLERANCE: f64 = 0.002;
/// Least share of processor or disk that a search uses when nothing else runs.
const BUSY_SHARE: f64 = 0.6;
/// Queries in flight per thread for the highest throughput: enough to keep all servers busy, and few enough that the
/// queue of the busiest server soon reaches its final length.
pub const IN_FLIGHT_EACH: usize = 16;
/// Queries that are replayed: with random arrivals, and at least with a constant number in flight, there this many
/// times that number.
const QUERIES_OPEN: usize = 10_000;
pub const QUERIES_CLOSED: usize = 4_000;
pub const ROUNDS_CLOSED: usize = 64;

/// A way to search on several servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// One index; a query is handed over to the server that holds its next blocks.
    Baton,
    /// One index; lists and vectors of other servers are scored there, those of all servers at once (hybrid-ivf).
    Score,
    /// As score, but one job visits the servers one after another, and the last replies (hybrid-ivf).
    Forward,
    /// One index per server; a query is sent to all, and the origin merges their results.
    ScatterGather,
    /// One index; a query stays on one server and fetches remote blocks.
    Fetch,
}

impl Mode {
    /// The name on the command line and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Baton => "baton",
            Mode::Score => "score",
            Mode::Forward => "forward",
            Mode::ScatterGather => "scatter-gather",
            Mode::Fetch => "fetch",
        }
    }

    /// Use of lists and vectors of other servers.
    fn remote(self) -> ScoringMode {
        match self {
            Mode::Score => ScoringMode::Score,
            Mode::Forward => ScoringMode::Forward,
            Mode::Baton | Mode::ScatterGather | Mode::Fetch => ScoringMode::HandOver,
        }
    }
}

/// Separate indexes, one for each server.
#[derive(Clone, Debug, Default)]
pub struct Scatter {
    /// Folder of the partitions; built in the folder for temporary files where there is none.
    pub partitions: Option<PathBuf>,
    /// Length of the beam on each server; that of the single index where none is given.
    pub search_list: Option<u32>,
    /// Whether the shortest beam is sought whose merged results have the recall of hand-overs.
    pub matches_recall: bool,
}

/// Search that is simulated.
pub struct Simulation<'a> {
    /// Folder of the index.
    pub folder: &'a Path,
    pub params: Params,
    pub passes: Passes<'a>,
    /// The same search on this machine.
    pub search: SearchOptions,
    pub modes: &'a [Mode],
    /// Options of one server; the number of servers is replaced.
    pub partition: PartitionOptions,
    pub scatter: Scatter,
    /// Arrival rates, queries per second; where there are none, the highest throughput is sought.
    pub rates: &'a [f64],
    /// Queries in flight for the highest throughput.
    pub in_flight: Option<usize>,
}

/// One mode on some servers.
pub struct Outcome {
    pub mode: Mode,
    pub pass: Pass,
    /// Times under each load; empty without prices.
    pub loads: Vec<Replayed>,
}

/// One load.
pub struct Replayed {
    /// Queries per second; `None` for the highest throughput.
    pub rate: Option<f64>,
    pub timing: Timing,
    /// Processor time of all servers per query.
    pub cpu_us: f64,
}

impl Simulation<'_> {
    fn spread(&self, servers: usize) -> PartitionOptions {
        PartitionOptions {
            servers,
            replicas: self.partition.replicas.min(servers.max(1)),
            overlap: if servers > 1 { self.partition.overlap } else { 0.0 },
            ..self.partition.clone()
        }
    }

    /// Refuses numbers of servers that the index cannot be divided over.
    ///
    /// # Errors
    /// The first of them.
    pub fn check(&self, servers: &[usize]) -> Result<()> {
        servers.iter().try_for_each(|&n| spread::check_place(self.passes.index, &self.spread(n)))
    }

    /// Measures costs on this machine, with `most` servers.
    ///
    /// # Errors
    /// A search or a read that fails; an interruption.
    pub fn measure(&self, most: usize, given: &Given) -> Result<Prices> {
        let sample = self.sample()?;
        let [one, all] =
            [1, most].map(|n| spread::place(self.passes.index, &self.spread(n), self.progress()));
        let scores = self.modes.iter().map(|mode| mode.remote()).find(|&r| r != ScoringMode::HandOver);
        let params = scores.map_or(self.params, |remote| kinds::with_remote(self.params, remote));
        let placements = [one?, all?];
        let measured = Measured {
            passes: &self.passes,
            rows: &sample,
            params,
            search: self.search,
            placements: &placements,
        };
        measured.prices(given, self.progress())
    }

    fn progress(&self) -> &dyn Progress {
        self.passes.progress
    }

    /// The first queries.
    fn sample(&self) -> Result<Vec<u8>> {
        let mut rows = Vec::new();
        let queries = self.passes.queries;
        queries.read(0, queries.count().min(1000), &mut rows)?;
        Ok(rows)
    }

    /// Compares one simulated server with a real search.
    ///
    /// # Errors
    /// A search that fails; an interruption.
    pub fn compare(&self, prices: &Prices) -> Result<Comparison> {
        let threads = prices.threads.min(crate::all_cores());
        let options = SearchOptions { threads, ..self.search };
        let real = calibrate::search(self.passes.index, &self.sample()?, &options, self.progress())?;
        let here = spread::place(self.passes.index, &self.spread(1), self.progress())?;
        let pass = self.passes.baton(&here, self.params)?;
        // This process has no clients, and the machine for itself.
        let alone = Prices {
            threads,
            request_us: 0.0,
            servers_per_host: None,
            cores_per_host: None,
            ..prices.clone()
        };
        let costs = alone.costs();
        let timing = self.most(&pass.traces, &costs, IN_FLIGHT * threads, 1);
        let simulated = OneServer {
            qps: timing.qps,
            latency_us: Latency::of(&timing.latency_ns),
            cpu_us: cpu_us(&pass.traces, &costs) + timing.wakes_ns / 1000.0,
        };
        // Otherwise other programs used the processor or the disk during the real search.
        let threads_used = real.qps * real.cpu_us / 1e6 / threads as f64;
        let disk_used = real.qps * pass.stats.reads as f64 / pass.queries.max(1) as f64 / prices.disk_iops;
        if threads_used.max(disk_used) < BUSY_SHARE {
            self.progress()
                .note("note: this machine was busy with other work; compare the CPU times, not the rates");
        }
        Ok(Comparison { qps_error: simulated.qps / real.qps - 1.0, real, simulated })
    }

    /// Runs all modes and loads on so many servers.
    ///
    /// # Errors
    /// A search that fails; separate indexes of another number of servers; an interruption.
    pub fn run(&self, servers: usize, prices: Option<&Prices>) -> Result<Vec<Outcome>> {
        let (modes, matches) = (self.modes, self.scatter.matches_recall);
        let needs_placement = matches || modes.iter().any(|&m| m != Mode::ScatterGather);
        let placement = needs_placement
            .then(|| spread::place(self.passes.index, &self.spread(servers), self.progress()))
            .transpose()?;
        let mut handed_over = None;
        if let Some(placement) = placement.as_ref().filter(|_| matches || modes.contains(&Mode::Baton)) {
            handed_over = Some(self.passes.baton(placement, self.params)?);
        }
        let mut outcomes = Vec::new();
        for &mode in modes {
            let pass = match mode {
                Mode::Baton => handed_over.clone(),
                Mode::Score | Mode::Forward => {
                    let params = kinds::with_remote(self.params, mode.remote());
                    placement.as_ref().map(|p| self.passes.baton(p, params)).transpose()?
                }
                Mode::ScatterGather => Some(self.scatter(servers, handed_over.as_ref())?),
                Mode::Fetch => placement.as_ref().map(|p| self.passes.fetch(p, self.params)).transpose()?,
            };
            if let Some(pass) = pass {
                let loads = prices.map_or(Vec::new(), |prices| self.loads(&pass, servers, &prices.costs()));
                outcomes.push(Outcome { mode, pass, loads });
            }
        }
        Ok(outcomes)
    }

    fn loads(&self, pass: &Pass, servers: usize, costs: &Costs) -> Vec<Replayed> {
        let mut rates: Vec<Option<f64>> = self.rates.iter().copied().map(Some).collect();
        if rates.is_empty() {
            rates.push(None);
        }
        let cpu_us = cpu_us(&pass.traces, costs);
        let replayed = |rate: Option<f64>| {
            let timing = self.replay(&pass.traces, servers, costs, rate);
            Replayed { rate, cpu_us: cpu_us + timing.wakes_ns / 1000.0, timing }
        };
        rates.into_iter().map(replayed).collect()
    }

    fn replay(&self, traces: &[Trace], servers: usize, costs: &Costs, rate: Option<f64>) -> Timing {
        match rate {
            Some(per_second) => {
                replay(traces, servers, costs, Load::Open { per_second }, QUERIES_OPEN, self.passes.seed)
            }
            None => {
                let in_flight = self.in_flight.unwrap_or(IN_FLIGHT_EACH * costs.threads * servers);
                self.most(traces, costs, in_flight, servers)
            }
        }
    }

    /// Runs at the highest throughput.
    fn most(&self, traces: &[Trace], costs: &Costs, in_flight: usize, servers: usize) -> Timing {
        let queries = (ROUNDS_CLOSED * in_flight).max(QUERIES_CLOSED);
        replay(traces, servers, costs, Load::Closed { in_flight }, queries, self.passes.seed)
    }

    fn scatter(&self, servers: usize, handed_over: Option<&Pass>) -> Result<Pass> {
        if servers == 1 {
            return self.scattered(&[self.passes.index], handed_over);
        }
        let built;
        let folder = match &self.scatter.partitions {
            Some(folder) => folder.as_path(),
            None => {
                built = Temporary::new(servers);
                let options = PartitionOptions { replicas: 1, overlap: 0.0, ..self.spread(servers) };
                scatter::scatter(self.folder, &built.0, (&options, servers), self.progress())?;
                built.0.as_path()
            }
        };
        let (description, indexes) = scatter::open(folder, self.passes.index.manifest())?;
        if description.servers != servers {
            return Err(Error::bad_input(format!(
                "{} is for {} servers; give --servers {}",
                folder.display(),
                description.servers,
                description.servers
            )));
        }
        let indexes: Vec<&Index> = indexes.iter().collect();
        self.scattered(&indexes, handed_over)
    }

    fn scattered(&self, indexes: &[&Index], handed_over: Option<&Pass>) -> Result<Pass> {
        let pass = |list: u32| self.passes.scatter(indexes, self.with_list(list));
        let longest = kinds::setting(&self.params).search_list;
        let Some(target) = handed_over.filter(|_| self.scatter.matches_recall).map(Pass::recall) else {
            return pass(self.scatter.search_list.unwrap_or(longest));
        };
        let is_enough = |pass: &Pass| pass.recall() >= target - RECALL_TOLERANCE;
        let (mut low, mut best) = (self.params.k, pass(longest)?);
        while !is_enough(&best) && best.search_list < MAX_SEARCH_LIST {
            low = best.search_list + 1;
            best = pass(best.search_list.saturating_mul(2).min(MAX_SEARCH_LIST))?;
        }
        // The shortest sufficient list is between `low` and that of `best`.
        while low < best.search_list && is_enough(&best) {
            let tried = pass(low + (best.search_list - low) / 2)?;
            if is_enough(&tried) {
                best = tried;
            } else {
                low = tried.search_list + 1;
            }
        }
        Ok(best)
    }

    /// Returns the same search with another beam; patience is a share of it.
    fn with_list(&self, list: u32) -> Params {
        let list = list.clamp(self.params.k, MAX_SEARCH_LIST);
        let used = kinds::setting(&self.params);
        let patience = u64::from(used.patience) * u64::from(list);
        let patience = patience.div_ceil(u64::from(used.search_list.max(1))) as u32;
        let longer = kinds::Setting { effort: list, search_list: list, patience, ..used };
        Params { kind: kinds::with_setting(&self.params, &longer), ..self.params }
    }
}

/// Mean processor time of a query on all servers, microseconds.
pub fn cpu_us(traces: &[Trace], costs: &Costs) -> f64 {
    let all_ns: u64 = traces.iter().map(|trace| costs.work_ns(&trace.work())).sum();
    all_ns as f64 / 1000.0 / traces.len().max(1) as f64
}

/// A folder that is removed on drop.
struct Temporary(PathBuf);

impl Temporary {
    fn new(servers: usize) -> Temporary {
        Temporary(std::env::temp_dir().join(format!("stratann-scatter-{servers}-{}", std::process::id())))
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        // A folder that cannot be removed is left.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
