//! The stages of `gpu-ivf` (FusionANNS §4): lists, who is in them, blocks, codes.
//!
//! | stage | reads | leaves in `partial/` |
//! |---|---|---|
//! | clusters | all rows, twice where they exceed the memory | `list-centroids.tmp`: a point for each list |
//! | navigation | the centroids | `navigation.tmp`: the graph over them |
//! | members | all rows | `near.tmp`: the lists of each row, the nearest first |
//! | layout | all rows | `blocks.bin`, `map.bin`, `ids.tmp`, `postings.bin`, `centroids.bin`, `nav.bin` |
//! | codebook | a sample | `codebook.bin` |
//! | codes | all rows | `codes.bin` |
//! | baselines (the laboratory) | blocks and codes | `list-vectors.bin`, `list-codes.bin`, `row-blocks.bin`, `places.bin` |

mod clusters;
pub(super) mod layout;
mod members;
pub(crate) mod memory;
mod pack;

use std::os::unix::fs::FileExt;

use crate::codebook::root_mean_square_norm;
use crate::dataset::{Reader, Scan};
use crate::files;
use crate::kinds::gpu_ivf::facts::{GpuFacts, GpuSection};
use crate::kinds::questions::BuildsKind;
use crate::manifest::Manifest;
use crate::stages::build::{Build, IDS, read_coder};
use crate::stages::codes;
use crate::stages::options::BuildOptions;
use crate::stages::plan::BuildPlan;
use crate::stages::stage::{CLUSTERS, CODEBOOK, CODES, LAYOUT, NAVIGATION, Stage};
use crate::stages::tables::read_table;
use stratann_params::build::GpuOptions;
use stratann_params::choices::CodeKind;
use stratann_storage::{Result, input};

/// Finds the lists of each row.
const MEMBERS: Stage = Stage::named("members");
/// Writes the files of other systems.
const BASELINES: Stage = Stage::named("baselines");

impl BuildsKind for GpuOptions {
    fn plan(&self, base: &Reader, options: &BuildOptions) -> Result<BuildPlan> {
        memory::plan(base, options, self)
    }

    fn run(&self, build: &mut Build<'_>, scan: &Scan) -> Result<Manifest> {
        // Rows are compared with centroids as floats.
        let space = build.space(scan, true)?;
        let lists: u32 = build.stage(CLUSTERS, |b| clusters::run(b, self, &space, scan))?;
        build.stage(NAVIGATION, |b| members::connect(b, &space))?;
        build.stage(MEMBERS, |b| members::run(b, self, &space, scan))?;
        let layout: layout::Written = build.stage(LAYOUT, |b| layout::run(b, &space, scan, lists))?;
        let dim = build.base.shape().dim;
        let code = (self.code_bytes(dim), CodeKind::Bits);
        build.stage(CODEBOOK, |b| codes::make_coder(b, code, &space, scan))?;
        let code_error = build.stage(CODES, |b| {
            let id_of_row: Vec<u32> = read_table(&b.partial.path(IDS))?;
            codes::run(b, &b.file(files::CODES), &space, scan, &id_of_row)
        })?;
        #[cfg(feature = "lab")]
        if self.baselines {
            build.stage(BASELINES, |b| super::baseline::build::run(b, scan, &layout))?;
        }
        build.fact("lists", lists);
        build.fact("replication", layout.facts.replication);
        build.fact("replica_bytes", layout.facts.replica_bytes);
        build.fact("filled", layout.facts.filled);
        let vector_norm = vector_norm(build)?;
        let facts = GpuFacts { vector_norm, baselines: self.baselines, ..layout.facts };
        build.manifest(scan, layout.blocks, code_error, GpuSection { facts }.into())
    }
}

/// The root mean square length of the vectors, by the codes of some.
fn vector_norm(build: &Build<'_>) -> Result<f32> {
    const SAMPLE: u64 = 1024;
    let codebook = read_coder(&build.file(files::CODEBOOK))?;
    let path = build.file(files::CODES);
    let failed = |e: std::io::Error| stratann_storage::Error::io("reading", &path, &e);
    let file = input::open(&path)?;
    let size = codebook.code_bytes();
    let count = file.metadata().map_err(failed)?.len() / size as u64;
    let mut codes = Vec::new();
    for at in (0..count).step_by(count.div_ceil(SAMPLE).max(1) as usize) {
        let from = codes.len();
        codes.resize(from + size, 0);
        file.read_exact_at(&mut codes[from..], at * size as u64).map_err(failed)?;
    }
    Ok(root_mean_square_norm(&codebook, codes.chunks_exact(size)))
}
