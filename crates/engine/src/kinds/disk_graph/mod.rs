//! `disk-graph`: a graph on disk, searched by codes in RAM.

pub(crate) mod account;
pub mod build;
pub(crate) mod calibration;
pub(crate) mod facts;
pub mod landmarks;
pub(crate) mod open;
pub mod options;
pub(crate) mod residency;
mod sieved;

use stratann_core::kinds::disk_graph::code_walk::RERANK_READS;
use stratann_core::query::Params;
use stratann_storage::Result;

pub(crate) use self::open::GraphTables as Index;
use crate::curve::{IN_MEMORY, Point};
use crate::findings::Verification;
use crate::kinds::blocks;
use crate::kinds::options::Switches as AllSwitches;
use crate::kinds::questions::{Kind, OpenKind};
use crate::manifest::Manifest;

/// Answers about an index that is not open.
pub(crate) struct DiskGraph;

impl Kind for DiskGraph {
    fn params(&self, k: u32, list: u32, (slack, _): (Option<f32>, Option<f32>)) -> Params {
        calibration::beam_params(k, list, slack)
    }

    fn usual_params(&self, k: u32, list: u32) -> Params {
        Params::disk_graph(k, list)
    }

    fn params_at(&self, k: u32, point: &Point, variant: Option<&str>) -> Params {
        match variant {
            Some(IN_MEMORY) => calibration::memory_params(k, point),
            _ => calibration::params(k, point),
        }
    }

    fn planned_reads_at_once(&self, switches: &AllSwitches) -> u32 {
        let switches: options::Switches = switches.own();
        if switches.rerank.is_some_and(|rerank| rerank > 0) { RERANK_READS as u32 } else { 0 }
    }

    fn usable_cache_bytes(&self, manifest: &Manifest) -> u64 {
        blocks::usable_cache_bytes(manifest).max(residency::bytes_max(manifest).unwrap_or(0))
    }

    fn resident_bytes_max(&self, manifest: &Manifest) -> Option<u64> {
        residency::bytes_max(manifest)
    }

    fn verify(&self, check: &mut Verification<'_>) -> Result<()> {
        blocks::verify::check(check, Index::open, |tables, base| tables.checked(base))
    }
}
