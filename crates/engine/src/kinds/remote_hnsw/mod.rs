//! `remote-hnsw`: clusters of vectors, each with a graph of its own, laid out as memory nodes hold them.

pub(crate) mod account;
pub mod affinity;
#[cfg(feature = "lab")]
pub mod baseline;
mod batch_options;
pub(crate) mod build;
pub(crate) mod calibration;
pub(crate) mod explain;
pub mod facts;
pub(crate) mod limits;
pub mod linking;
pub mod live;
pub(crate) mod loads;
pub(crate) mod members;
pub(crate) mod open;
pub mod options;
pub mod router;
pub(crate) mod sieved;
pub(crate) mod traffic;
pub(crate) mod verify;

use stratann_core::query::Params;
use stratann_storage::Result;

pub(crate) use self::open::RemoteIndex as Index;
use crate::curve::Point;
use crate::exec::BatchOptions;
use crate::files;
use crate::findings::Verification;
use crate::kinds::answers::PlannedQuery;
use crate::kinds::questions::Kind;
use crate::manifest::Manifest;

/// Answers about an index that is not open.
pub(crate) struct RemoteHnsw;

impl Kind for RemoteHnsw {
    fn params(&self, k: u32, nprobe: u32, _: (Option<f32>, Option<f32>)) -> Params {
        Params::remote_hnsw(k, nprobe)
    }

    fn params_at(&self, k: u32, point: &Point, _: Option<&str>) -> Params {
        calibration::params(k, point)
    }

    fn planned_query(&self, manifest: &Manifest, _: bool) -> Option<PlannedQuery> {
        let section = manifest.section.remote()?;
        Some(account::planned_query(manifest, &section.facts))
    }

    fn planned_doorbells_bytes(&self, manifest: &Manifest, options: &BatchOptions) -> u64 {
        let section = manifest.section.remote();
        section.map_or(0, |section| account::planned_doorbells_bytes(&section.facts, options))
    }

    fn usable_cache_bytes(&self, manifest: &Manifest) -> u64 {
        manifest.section.remote().map_or(0, |section| account::usual_cache_bytes(&section.facts))
    }

    fn shared_roles(&self, _: &Manifest) -> Vec<&'static str> {
        vec![files::META]
    }

    fn verify(&self, check: &mut Verification<'_>) -> Result<()> {
        verify::check(check)
    }
}
