//! Cost of dividing, content of servers, and their memory when they answer (figure 10, tables 4 and 5).

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use stratann_params::search::GridSwitches;

use super::Bench;
use super::servers::{MODES, Simulation};
use serde::Serialize;
use stratann_cli::commands::cluster::up;
use stratann_cli::http_client::{self, HttpClient};
use stratann_cli::output::Output;
use stratann_engine::kinds::division::Mode;
use stratann_engine::spread::{self, PartitionReport};
use stratann_storage::{Error, Result};

/// Queries of a request, and clients that send requests at a time.
const EACH: usize = 32;
const CLIENTS: usize = 4;
/// Milliseconds that a query may take.
const TIMEOUT_MS: u64 = 60_000;
/// Rounds in which processor time is measured.
const ROUNDS: usize = 3;

/// Cost of dividing, and content of servers.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Division {
    pub(super) mode: Mode,
    pub(super) servers: usize,
    pub(super) slices: usize,
    /// Seconds of reading, planning and writing.
    pub(super) seconds: f64,
    /// Bytes of the fullest server, what all servers hold included.
    pub(super) largest_bytes: u64,
    /// Bytes of all servers.
    pub(super) all_bytes: u64,
    /// Bytes over those of the vectors.
    pub(super) over_vectors: f64,
    /// The largest resident set of a server process that answered the queries; `None` where none was started.
    pub(super) peak_bytes: Option<u64>,
    /// Processor time of all server processes for a query, microseconds.
    pub(super) cpu_us: Option<f64>,
}

/// What server processes that answered the queries took.
struct Served {
    peak_bytes: u64,
    cpu_us: f64,
}

/// A folder that is removed on drop.
struct Temporary(PathBuf);

impl Drop for Temporary {
    fn drop(&mut self) {
        // A folder that cannot be removed is left.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Processor time of all servers, microseconds.
fn cpu_us(remote: &HttpClient) -> f64 {
    remote.statuses().into_iter().flatten().map(|status| status.cpu_us as f64).sum()
}

impl Bench<'_> {
    /// Partitions the index in all modes. With the first number of servers also starts them and asks them the queries.
    pub(super) fn divisions(
        &self,
        index: &Path,
        simulation: &Simulation<'_>,
        servers: &[usize],
    ) -> Result<Vec<Division>> {
        let mut found = Vec::new();
        for (at, &servers) in servers.iter().enumerate() {
            for mode in MODES {
                let name = format!("cluster-{}-{servers}-{}", mode.name(), std::process::id());
                let folder = Temporary(self.args.folder().join(name));
                let options = simulation.partition_options(mode, servers);
                let done = spread::partition(index, &folder.0, &options, self.printer);
                let Some(report) = simulation.unless_refused(mode, servers, done)? else { continue };
                let served = if at == 0 { Some(self.served(&folder.0, simulation.usual)?) } else { None };
                let peak_bytes = served.as_ref().map(|served| served.peak_bytes);
                let cpu_us = served.map(|served| served.cpu_us);
                found.push(Division { peak_bytes, cpu_us, ..self.division(mode, &report) });
            }
        }
        Ok(found)
    }

    fn division(&self, mode: Mode, report: &PartitionReport) -> Division {
        let manifest = self.index.manifest();
        let vectors = manifest.rows * self.queries.row_bytes() as u64;
        let largest = report.server_bytes.iter().copied().max().unwrap_or(0);
        let all = report.server_bytes.iter().sum::<u64>() + report.servers as u64 * report.shared_bytes;
        Division {
            mode,
            servers: report.servers,
            slices: report.plan.as_ref().map_or(1, |plan| plan.slices.len() - 1),
            seconds: report.seconds,
            largest_bytes: largest + report.shared_bytes,
            all_bytes: all,
            over_vectors: all as f64 / vectors.max(1) as f64,
            peak_bytes: None,
            cpu_us: None,
        }
    }

    /// Processor time of a query in this process, microseconds: the least of some rounds.
    pub(super) fn one_process_cpu_us(&self, nprobe: u32) -> Result<f64> {
        let (rows, options) = (self.sample()?, self.options(nprobe, GridSwitches::default()));
        let mut least = f64::INFINITY;
        for _ in 0..ROUNDS {
            let answers = self.index.search(&rows, &options, self.printer)?;
            least = least.min(answers.cpu_us as f64 / answers.latency_ns.len().max(1) as f64);
        }
        Ok(least)
    }

    /// Serves a partition and sends all queries of the sample, once and then in rounds of which the fastest counts.
    fn served(&self, folder: &Path, nprobe: u32) -> Result<Served> {
        let quiet = Output { json: self.output.json, quiet: true };
        let cluster = up::started(folder, self.threads(), quiet)?;
        let remote = HttpClient::connect(&cluster.addresses())?;
        let rows = self.sample()?;
        let parts: Vec<&[u8]> = rows.chunks(EACH * self.queries.row_bytes()).collect();
        let options = self.options(nprobe, GridSwitches::default());
        let parameters = http_client::parameters(&options, Some(TIMEOUT_MS), false);
        let ask_all = || {
            let next = AtomicUsize::new(0);
            http_client::run_clients(CLIENTS, || {
                loop {
                    let turn = next.fetch_add(1, Ordering::Relaxed);
                    let Some(rows) = parts.get(turn) else { return Ok(()) };
                    let replies = remote.ask(turn, rows, &parameters)?;
                    if replies.answers.iter().any(|answer| answer.is_err()) {
                        return Err(Error::corrupt("a server did not answer; run `stratann verify`"));
                    }
                }
            })
        };
        // The first round loads the program and connects.
        ask_all()?;
        let mut least_us = f64::INFINITY;
        for _ in 0..ROUNDS {
            let before = cpu_us(&remote);
            ask_all()?;
            least_us = least_us.min(cpu_us(&remote) - before);
        }
        let peaks = remote.statuses().into_iter().flatten().map(|status| status.peak_rss_bytes);
        let peak_bytes =
            peaks.max().ok_or_else(|| Error::corrupt("no server is left; run `stratann verify`"))?;
        let queries = (rows.len() / self.queries.row_bytes()).max(1);
        Ok(Served { peak_bytes, cpu_us: least_us / queries as f64 })
    }
}
