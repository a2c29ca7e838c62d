//! Options that limit what one client may ask, and for how long.

use std::time::Duration;

use stratann_core::plan::hybrid_ivf::MAX_PROBES;
use stratann_core::query::{MAX_K, MAX_SEARCH_LIST};
use stratann_engine::serve::Caps;
use stratann_server::Limits;
use stratann_storage::Result;

use super::config::SizeText;
use super::in_range;
use crate::options;

/// Options of the command line.
#[derive(clap::Args)]
pub(super) struct CapArgs {
    /// Most results of a query [default: 2048]
    #[arg(long, value_name = "N")]
    max_k: Option<usize>,
    /// Longest candidate queue of a query [default: 8192]
    #[arg(long, value_name = "N")]
    max_list: Option<usize>,
    /// Most inverted lists of a query [default: 8192]
    #[arg(long, value_name = "N")]
    max_nprobe: Option<usize>,
    /// Most queries of a request [default: 1024]
    #[arg(long, value_name = "N")]
    max_batch: Option<usize>,
    /// Memory for bodies and answers of large requests; a body has up to a third of it [default: 3/64 of the RAM
    /// budget, at most 24MiB]
    #[arg(long, value_name = "SIZE", value_parser = options::size)]
    http_memory: Option<u64>,
}

/// Keys of the file of options.
#[derive(Default)]
pub(super) struct CapKeys {
    pub(super) max_k: Option<usize>,
    pub(super) max_list: Option<usize>,
    pub(super) max_nprobe: Option<usize>,
    pub(super) max_batch: Option<usize>,
    pub(super) max_timeout_ms: Option<u64>,
    pub(super) http_memory: Option<SizeText>,
    pub(super) connections_per_address: Option<usize>,
    pub(super) header_time_s: Option<u64>,
    pub(super) idle_time_s: Option<u64>,
}

/// Most queries of a request that an operator can allow.
const BATCH_MAX: usize = 1 << 20;
/// Longest times that an operator can allow.
const TIMEOUT_MS_MAX: usize = 24 * 3600 * 1000;
const SECONDS_MAX: usize = 24 * 3600;
/// Smallest memory for large requests, bytes.
const HTTP_MEMORY_MIN: u64 = 64 << 10;

impl CapArgs {
    /// The largest query of a client.
    pub(super) fn caps(&self, keys: &CapKeys) -> Result<Caps> {
        let usual = Caps::default();
        let of = |name, given: Option<usize>, key: Option<usize>, usual: usize, most: u32| {
            let value = given.or(key).unwrap_or(usual);
            in_range(name, value, 1, most as usize)
        };
        let max_list =
            of("max_list", self.max_list, keys.max_list, usual.max_list as usize, MAX_SEARCH_LIST)?;
        let nprobe = usual.max_nprobe as usize;
        let max_nprobe = of("max_nprobe", self.max_nprobe, keys.max_nprobe, nprobe, MAX_PROBES)?;
        Ok(Caps {
            max_k: of("max_k", self.max_k, keys.max_k, usual.max_k, MAX_K)?,
            max_list: max_list as u32,
            max_nprobe: max_nprobe as u32,
        })
    }

    /// The limits of the HTTP front.
    pub(super) fn limits(&self, keys: CapKeys, ram_budget: Option<u64>) -> Result<Limits> {
        let mut limits = Limits::within(ram_budget);
        let seconds = |name, value: Option<u64>, usual: Duration| {
            let value = value.unwrap_or(usual.as_secs());
            in_range(name, usize::try_from(value).unwrap_or(usize::MAX), 1, SECONDS_MAX)?;
            Ok::<_, stratann_storage::Error>(Duration::from_secs(value))
        };
        limits.header_time = seconds("header_time_s", keys.header_time_s, limits.header_time)?;
        limits.idle_time = seconds("idle_time_s", keys.idle_time_s, limits.idle_time)?;
        limits.queries = self.max_batch.or(keys.max_batch).unwrap_or(limits.queries);
        in_range("max_batch", limits.queries, 1, BATCH_MAX)?;
        limits.timeout_ms = keys.max_timeout_ms.unwrap_or(limits.timeout_ms);
        in_range("max_timeout_ms", limits.timeout_ms as usize, 1, TIMEOUT_MS_MAX)?;
        if let Some(connections) = keys.connections_per_address {
            in_range("connections_per_address", connections, 1, limits.connections)?;
            limits.connections_per_address = connections;
        }
        let configured = keys.http_memory.map(|size| size.bytes("http_memory")).transpose()?;
        if let Some(bytes) = self.http_memory.or(configured) {
            let most = ram_budget.unwrap_or(1 << 40);
            in_range("http_memory", bytes as usize, HTTP_MEMORY_MIN as usize, most as usize)?;
            limits.set_large_bytes(bytes as usize);
        }
        Ok(limits)
    }
}
