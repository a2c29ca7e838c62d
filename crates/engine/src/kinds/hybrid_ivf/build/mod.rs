//! The stages of `hybrid-ivf` (OrchANN §5): clusters, what local index each becomes, lists, the navigation graph.
//!
//! | stage | reads | leaves in `partial/` |
//! |---|---|---|
//! | clusters | a sample, then all rows | `centroids.bin`, `clusters.tmp`: the cluster of each row |
//! | plan | sizes of the clusters | `plan.tmp`: lists of each cluster; `list-of-row.tmp` |
//! | codebook | a sample | `codebook.bin` |
//! | lists | all rows; of graphs again what was written | `lists.bin`, `directory.bin`, `ids.tmp` |
//! | navigation | a sample | `nav.bin` |

pub(crate) mod clusters;
pub(crate) mod divide;
pub(crate) mod forecast;
pub(crate) mod graphs;
pub(crate) mod lists;
pub(crate) mod local_costs;
pub(crate) mod memory;
mod nav;
pub(crate) mod plan;
mod residuals;

use serde::{Deserialize, Serialize};
use stratann_core::format::inverted_list::ListLayout;
use stratann_kernel::element::narrow_f16;
use stratann_kernel::{DType, Metric};
use stratann_params::build::ListOptions;
use stratann_storage::Result;
use stratann_storage::profile::Profile;

use crate::dataset::{Reader, Scan};
use crate::files;
use crate::kinds::hybrid_ivf::facts::{ListFacts, ListSection};
use crate::kinds::hybrid_ivf::options::code_bytes;
use crate::kinds::questions::BuildsKind;
use crate::manifest::Manifest;
use crate::stages::build::{Build, IDS};
use crate::stages::options::BuildOptions;
use crate::stages::plan::BuildPlan;
use crate::stages::stage::{CLUSTERS, CODEBOOK, LISTS, NAVIGATION, Stage};
use crate::stages::tables::read_table;

/// Measures the disk and the processor.
const PROFILE: Stage = Stage::named("profile");
/// Chooses the local index of each cluster, and divides large ones.
const PLAN: Stage = Stage::named("plan").in_parts();

/// Lengths of reads, by what the disk of a profile asks for a read and for each of its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ReadSizes {
    /// Bytes of one read at most: its bytes cost four times what the read itself does.
    pub(crate) most: u32,
    /// Unwanted bytes that are read rather than splitting a read in two: they cost half of a second read.
    pub(crate) gap: u32,
}

impl ReadSizes {
    fn of(profile: &Profile) -> ReadSizes {
        let page = stratann_core::PAGE as f64;
        let loaded = &profile.disk.loaded;
        // A disk that asks nothing for bytes is read in the largest pieces.
        let even = 1000.0 * loaded.fixed_us / loaded.ns_per_byte.max(f64::MIN_POSITIVE);
        let pages = |bytes: f64, low: f64, high: f64| (bytes / page).round().clamp(low, high) as u32;
        let page = stratann_core::PAGE as u32;
        // With those that a read takes to whole pages, 4 to 64 pages.
        ReadSizes {
            most: (pages(4.0 * even, 4.0, 64.0) - 1) * page,
            gap: pages(0.5 * even, 1.0, 16.0) * page,
        }
    }
}

impl BuildsKind for ListOptions {
    fn plan(&self, base: &Reader, options: &BuildOptions) -> Result<BuildPlan> {
        memory::plan(base, options, self)
    }

    fn run(&self, build: &mut Build<'_>, scan: &Scan) -> Result<Manifest> {
        let space = build.space(scan, false)?;
        build.stage(CLUSTERS, |b| clusters::run(b, self, &space, scan))?;
        let profile: Profile = build.stage(PROFILE, |b| plan::profile(b))?;
        let plan: divide::Plan = build.stage(PLAN, |b| divide::run(b, self, &space, scan, &profile))?;
        build.stage(CODEBOOK, |b| residuals::make_coder(b, self, &space, scan))?;
        let layout: lists::ListFacts = build.stage(LISTS, |b| lists::run(b, self, &space, scan))?;
        let id_of_row: Vec<u32> = read_table(&build.partial.path(IDS))?;
        let nav_nodes: u32 = build.stage(NAVIGATION, |b| nav::run(b, self, &space, scan, &id_of_row))?;
        let sizes = layout.sizes;
        let facts = ListFacts {
            lists: layout.lists,
            kinds: layout.kinds,
            sizes,
            nav_nodes,
            code_bytes: list_layout(build, self)?.code_bytes,
            read_max: plan.reads.most,
            gap_max: plan.reads.gap,
        };
        build.fact("clusters", sizes.count);
        build.fact("lists", layout.lists);
        build.fact("gini", sizes.gini);
        build.manifest(scan, layout.blocks, 0.0, ListSection { facts, plan: Some(plan.report) }.into())
    }
}

/// Layout of all lists of this index, without the seed of their checksums.
pub(crate) fn list_layout(build: &Build<'_>, own: &ListOptions) -> Result<ListLayout> {
    let shape = build.base.shape();
    Ok(ListLayout {
        dim: shape.dim,
        vector_bytes: shape.dim * shape.dtype.size(),
        id_bytes: build.id_bytes(),
        norms: build.options.metric == Metric::Cosine,
        code_bytes: code_bytes(own, &shape),
        checksum_seed: 0,
    })
}

/// A centroid as f16. One that lies beyond their range is merely far from its members.
fn to_halves(centroid: &[f32]) -> Vec<u8> {
    narrow_f16(centroid).collect()
}

/// The f16 of centroids as bytes, and the same as floats: what codes are measured from.
fn read_centroids(build: &Build<'_>, dim: usize) -> Result<(Vec<u8>, Vec<f32>)> {
    let halves: Vec<u8> = read_table(&build.file(files::CENTROIDS))?;
    let mut floats = vec![0f32; halves.len() / 2];
    for (row, out) in halves.chunks_exact(2 * dim).zip(floats.chunks_exact_mut(dim)) {
        stratann_kernel::element::widen(DType::F16, row, out);
    }
    Ok((halves, floats))
}
