//! Costs and capacities that are given.

use stratann_capacity::costs::Given;
use stratann_params::simulate::{RunSettings, ServerCosts};

/// The figures that are given: those of every simulation, and those of servers.
pub(super) fn given(run: &RunSettings, servers: &ServerCosts) -> Given {
    Given {
        threads: run.threads,
        disk_iops: servers.disk_iops,
        disk_latency_us: servers.disk_latency_us,
        disk_mb_per_s: servers.disk_mb_per_s,
        link: run.link.clone(),
        network_latency_us: run.network_latency_us,
        network_gbps: run.network_gbps,
        request_us: servers.request_us,
        servers_per_host: servers.servers_per_host,
        cores_per_host: servers.cores_per_host,
    }
}
