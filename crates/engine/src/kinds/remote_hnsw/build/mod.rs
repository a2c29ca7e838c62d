//! The stages of `remote-hnsw` (d-HNSW §3.1, §3.2): representatives, then the sub-HNSW of each.
//!
//! | stage | reads | leaves in `partial/` |
//! |---|---|---|
//! | clusters | a sample, then all rows | `representatives.tmp`: a row for each cluster; `clusters.tmp`: the cluster of each row |
//! | sub-hnsws | all rows | `region.bin`, `meta.bin`, `ids.tmp` |

pub(crate) mod graph;
pub(crate) mod memory;
mod region;
mod representatives;

use stratann_storage::Result;

use crate::dataset::{Reader, Scan};
use crate::kinds::questions::BuildsKind;
use crate::kinds::remote_hnsw::facts::RemoteSection;
use crate::manifest::Manifest;
use crate::stages::build::Build;
use crate::stages::options::BuildOptions;
use crate::stages::plan::BuildPlan;
use crate::stages::stage::{self, Stage};
use stratann_params::build::RemoteOptions;

/// Builds the graph of each cluster.
const SUB_HNSWS: Stage = Stage::named("sub-hnsws");

/// The row that represents each cluster, u32.
const REPRESENTATIVES: &str = "representatives.tmp";

impl BuildsKind for RemoteOptions {
    fn plan(&self, base: &Reader, options: &BuildOptions) -> Result<BuildPlan> {
        memory::plan(base, options, self)
    }

    fn run(&self, build: &mut Build<'_>, scan: &Scan) -> Result<Manifest> {
        let space = build.space(scan, true)?;
        let count: u32 = build.stage(stage::CLUSTERS, |b| representatives::run(b, self, &space, scan))?;
        let written: region::Written =
            build.stage(SUB_HNSWS, |b| region::run(b, self, &space, scan, count))?;
        build.fact("clusters", count);
        build.fact("gini", written.facts.sizes.gini);
        build.manifest(scan, written.blocks, 0.0, RemoteSection { facts: written.facts }.into())
    }
}
