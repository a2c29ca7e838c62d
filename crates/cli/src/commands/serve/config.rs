//! The file of options of `stratann serve`.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use stratann_engine::index::CacheBudget;
use stratann_storage::{Error, Result, input};

use super::caps::CapKeys;
use super::memory::MemoryKeys;
use super::sources::Sources;
use super::{USUAL_POLL_S, in_range};
use crate::options;
use crate::scorer::ScorerKeys;

/// The file of options, if there is one, and the folder that its paths are relative to.
pub(super) fn config_of(path: Option<&Path>) -> Result<(Config, &Path)> {
    match path {
        Some(path) => Ok((read_config(path)?, path.parent().unwrap_or(Path::new("")))),
        None => Ok((Config::default(), Path::new(""))),
    }
}

/// Queries in flight per thread, where they are given.
pub(super) fn in_flight(given: Option<usize>, key: Option<usize>) -> Result<Option<usize>> {
    let in_flight = given.or(key);
    in_range("in_flight", in_flight.unwrap_or(1), 1, 4096)?;
    Ok(in_flight)
}

/// File of options.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Config {
    pub(super) index: Option<PathBuf>,
    pub(super) server: Option<u8>,
    pub(super) listen: Option<String>,
    #[serde(default)]
    pub(super) peers: Vec<String>,
    pub(super) http: Option<String>,
    #[serde(default)]
    pub(super) host_name: Vec<String>,
    #[serde(default)]
    pub(super) allow_origin: Vec<String>,
    pub(super) secret_file: Option<PathBuf>,
    pub(super) threads: Option<usize>,
    pub(super) in_flight: Option<usize>,
    pub(super) io: Option<String>,
    pub(super) ram_budget: Option<SizeText>,
    pub(super) cache_budget: Option<SizeText>,
    pub(super) queue: Option<usize>,
    pub(super) max_k: Option<usize>,
    pub(super) max_list: Option<usize>,
    pub(super) max_nprobe: Option<usize>,
    pub(super) max_batch: Option<usize>,
    pub(super) max_timeout_ms: Option<u64>,
    pub(super) http_memory: Option<SizeText>,
    pub(super) connections_per_address: Option<usize>,
    pub(super) header_time_s: Option<u64>,
    pub(super) idle_time_s: Option<u64>,
    pub(super) carry: Option<String>,
    pub(super) results: Option<String>,
    pub(super) remote: Option<String>,
    pub(super) scorer: Option<String>,
    pub(super) device: Option<u32>,
    pub(super) gpu_budget: Option<String>,
    pub(super) spill: Option<bool>,
    pub(super) early_tables: Option<bool>,
    pub(super) learning: Option<String>,
    pub(super) epoch_queries: Option<u32>,
    pub(super) tls_certificate: Option<PathBuf>,
    pub(super) tls_key: Option<PathBuf>,
    pub(super) tls_authority: Option<PathBuf>,
    pub(super) store: Option<String>,
    pub(super) data: Option<PathBuf>,
    pub(super) poll_s: Option<u64>,
    #[serde(default)]
    pub(super) etcd: Vec<String>,
    pub(super) cluster: Option<String>,
    pub(super) advertise: Option<String>,
    #[serde(default)]
    pub(super) memory: Vec<String>,
    pub(super) key_file: Option<PathBuf>,
    pub(super) memory_certificate: Option<PathBuf>,
    pub(super) memory_certificate_key: Option<PathBuf>,
    pub(super) memory_authority: Option<PathBuf>,
    pub(super) batch: Option<usize>,
    pub(super) doorbell: Option<usize>,
}

impl Config {
    pub(super) fn caps(&mut self) -> CapKeys {
        CapKeys {
            max_k: self.max_k,
            max_list: self.max_list,
            max_nprobe: self.max_nprobe,
            max_batch: self.max_batch,
            max_timeout_ms: self.max_timeout_ms,
            http_memory: self.http_memory.take(),
            connections_per_address: self.connections_per_address,
            header_time_s: self.header_time_s,
            idle_time_s: self.idle_time_s,
        }
    }

    /// Keys of the scorer of codes.
    pub(super) fn scorer(&mut self) -> ScorerKeys {
        ScorerKeys {
            scorer: self.scorer.take(),
            device: self.device,
            gpu_budget: self.gpu_budget.take(),
            spill: self.spill,
            early_tables: self.early_tables,
        }
    }

    /// Keys of memory nodes.
    pub(super) fn memory(&mut self) -> MemoryKeys {
        MemoryKeys {
            memory: std::mem::take(&mut self.memory),
            key_file: self.key_file.take(),
            certificate: self.memory_certificate.take(),
            certificate_key: self.memory_certificate_key.take(),
            authority: self.memory_authority.take(),
            batch: self.batch,
            doorbell: self.doorbell,
        }
    }

    /// Keys of the index's source and the other servers. Serde cannot refuse unknown keys and flatten these.
    pub(super) fn sources(&mut self) -> Sources {
        Sources {
            store: self.store.take(),
            data: self.data.take(),
            poll_s: self.poll_s.unwrap_or(USUAL_POLL_S),
            etcd: std::mem::take(&mut self.etcd),
            cluster: self.cluster.take(),
            advertise: self.advertise.take(),
        }
    }
}

/// A size: `"512MiB"`, or a number of bytes.
#[derive(Deserialize)]
#[serde(untagged, expecting = "a size is a number of bytes, or a text such as \"512MiB\"")]
pub(super) enum SizeText {
    Bytes(u64),
    Text(String),
}

fn read_config(path: &Path) -> Result<Config> {
    let text = input::read_text(path)?;
    toml::from_str(&text).map_err(|e| {
        let before = e.span().and_then(|s| text.get(..s.start)).unwrap_or("");
        let line = before.matches('\n').count() + 1;
        let message = e.message().lines().collect::<Vec<_>>().join(" ");
        Error::bad_input(format!("{}, line {line}: {message}", path.display()))
    })
}

impl SizeText {
    pub(super) fn cache_budget(self) -> Result<CacheBudget> {
        match self {
            SizeText::Bytes(bytes) => Ok(CacheBudget::Bytes(bytes)),
            SizeText::Text(text) => {
                options::cache_budget(&text).map_err(|e| Error::bad_input(format!("cache_budget: {e}")))
            }
        }
    }

    pub(super) fn bytes(self, name: &str) -> Result<u64> {
        match self {
            SizeText::Bytes(bytes) => Ok(bytes),
            SizeText::Text(text) => {
                options::size(&text).map_err(|e| Error::bad_input(format!("{name}: {e}")))
            }
        }
    }
}
