//! Options of costs and capacities.

use std::path::PathBuf;

use stratann_capacity::costs::Given;

use crate::options;

/// Options of costs and capacities of every server.
#[derive(Default, clap::Args)]
#[command(next_help_heading = "Times (measured on this machine, unless given)")]
pub(super) struct CostArgs {
    /// Read costs from FILE: a "costs" object, or a whole document of an earlier `simulate --json`
    #[arg(long, value_name = "FILE", conflicts_with = "calibrate")]
    pub(super) costs: Option<PathBuf>,
    /// Compare the model with this machine: also search for real, and report the error of one simulated server
    #[arg(long)]
    pub(super) calibrate: bool,
    /// Count only: no measurements and no times
    #[arg(long, conflicts_with_all = ["costs", "calibrate", "rate"])]
    pub(super) no_times: bool,
    /// Threads of each server [default: the cores of this machine]
    #[arg(long, value_parser = options::threads)]
    pub(super) threads: Option<usize>,
    /// Reads per second of each server's disk [default: measured on this disk]
    #[arg(long, value_name = "N")]
    pub(super) disk_iops: Option<f64>,
    /// Latency of a single read, microseconds [default: measured on this disk]
    #[arg(long, value_name = "US")]
    pub(super) disk_latency_us: Option<f64>,
    /// Megabytes per second of each server's disk, beyond the first page of a read [default: measured on this disk]
    #[arg(long, value_name = "MB")]
    pub(super) disk_mb_per_s: Option<f64>,
    /// Take latency and bandwidth between servers from FILE: what `doctor --link --json` printed
    #[arg(long, value_name = "FILE")]
    pub(super) link: Option<PathBuf>,
    /// Latency between servers, one way, microseconds [default: 20, assumed]
    #[arg(long, value_name = "US")]
    pub(super) network_latency_us: Option<f64>,
    /// Bandwidth of each server's link, Gbit/s [default: 25, assumed]
    #[arg(long, value_name = "GBPS")]
    pub(super) network_gbps: Option<f64>,
    /// Processor time of a client's request on the server that receives it, microseconds [default: 0]
    #[arg(long, value_name = "US")]
    pub(super) request_us: Option<f64>,
    /// Servers on each host, which share its cores and its disk [default: 1]
    #[arg(long, value_name = "N")]
    pub(super) servers_per_host: Option<usize>,
    /// Cores of each host [default: as many as its servers have threads]
    #[arg(long, value_name = "N")]
    pub(super) cores_per_host: Option<usize>,
}

impl CostArgs {
    /// The figures that are given.
    pub(super) fn given(&self) -> Given {
        Given {
            threads: self.threads,
            disk_iops: self.disk_iops,
            disk_latency_us: self.disk_latency_us,
            disk_mb_per_s: self.disk_mb_per_s,
            link: self.link.clone(),
            network_latency_us: self.network_latency_us,
            network_gbps: self.network_gbps,
            request_us: self.request_us,
            servers_per_host: self.servers_per_host,
            cores_per_host: self.cores_per_host,
        }
    }
}
