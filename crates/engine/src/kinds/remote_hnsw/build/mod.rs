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

use crate::dataset::Scan;
use crate::kinds::remote_hnsw::facts::RemoteSection;
use crate::kinds::section::Section;
use crate::manifest::Manifest;
use crate::stages::build::Build;
use crate::stages::publish;
use crate::stages::stage::{self, Stage};
use stratann_params::build::RemoteOptions;

/// Builds the graph of each cluster.
const SUB_HNSWS: Stage = Stage::named("sub-hnsws");

/// The cluster of every row, u32; `u32::MAX` for rows that are left out.
const CLUSTERS: &str = "clusters.tmp";
/// The row that represents each cluster, u32.
const REPRESENTATIVES: &str = "representatives.tmp";

/// Runs all stages but the calibration; returns the manifest of the finished files.
pub(crate) fn run(build: &mut Build<'_>, own: &RemoteOptions, scan: &Scan) -> Result<Manifest> {
    let space = build.space(scan, true)?;
    let count: u32 = build.stage(stage::CLUSTERS, |b| representatives::run(b, own, &space, scan))?;
    let written: region::Written = build.stage(SUB_HNSWS, |b| region::run(b, own, &space, scan, count))?;
    build.fact("clusters", count);
    build.fact("gini", written.facts.sizes.gini);
    let mut manifest = publish::manifest(build, scan.rows, written.blocks, 0.0)?;
    manifest.section = Section::RemoteHnsw(Box::new(RemoteSection { facts: written.facts }));
    manifest.build_id = manifest.content_id();
    build.partial.finish(publish::FILES, &manifest.files)?;
    Ok(manifest)
}
