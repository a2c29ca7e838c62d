//! Limits of what one client may ask, and for how long.

use std::time::Duration;

use stratann_engine::serve::Caps;
use stratann_params::serve::CapSettings;
use stratann_server::Limits;
use stratann_storage::{Error, Result};

/// Smallest memory for large requests, bytes.
const HTTP_MEMORY_MIN: usize = 64 << 10;

/// The largest query of a client.
pub(super) fn of_query(settings: &CapSettings) -> Caps {
    let CapSettings { max_k, max_list, max_nprobe, .. } = *settings;
    Caps { max_k, max_list, max_nprobe }
}

/// The limits of the HTTP front.
///
/// # Errors
/// Numbers beyond what the budget allows.
pub(super) fn limits(settings: &CapSettings, ram_budget: Option<u64>) -> Result<Limits> {
    let mut limits = Limits::within(ram_budget);
    let seconds = |given: Option<u64>, usual: Duration| given.map_or(usual, Duration::from_secs);
    limits.header_time = seconds(settings.header_time_s, limits.header_time);
    limits.idle_time = seconds(settings.idle_time_s, limits.idle_time);
    limits.queries = settings.max_batch;
    limits.timeout_ms = settings.max_timeout_ms;
    if let Some(connections) = settings.connections_per_address {
        in_range("connections_per_address", connections, 1, limits.connections)?;
        limits.connections_per_address = connections;
    }
    if let Some(bytes) = settings.http_memory {
        let most = ram_budget.unwrap_or(1 << 40);
        in_range("http_memory", bytes as usize, HTTP_MEMORY_MIN, most as usize)?;
        limits.set_large_bytes(bytes as usize);
    }
    Ok(limits)
}

fn in_range(name: &str, value: usize, low: usize, high: usize) -> Result<()> {
    if (low..=high).contains(&value) {
        return Ok(());
    }
    Err(Error::bad_input(format!("{name} is {value}; use {low} to {high}")))
}
