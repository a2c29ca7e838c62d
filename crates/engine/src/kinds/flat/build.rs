//! The build of `flat`: rows in their order, in blocks.

use stratann_params::build::GraphOptions;
use stratann_storage::Result;

use super::options::Options;
use crate::dataset::{Reader, Scan};
use crate::files;
use crate::kinds::blocks;
use crate::kinds::questions::BuildsKind;
use crate::kinds::section::Section;
use crate::manifest::Manifest;
use crate::stages::blocks::graph_file::Cell;
use crate::stages::blocks::layout::{Design, LayoutFacts, ORDER, job, shape};
use crate::stages::blocks::placement::{Packed, Placement};
use crate::stages::blocks::write::BlockJob;
use crate::stages::build::Build;
use crate::stages::forecast::Size;
use crate::stages::options::BuildOptions;
use crate::stages::plan::BuildPlan;
use crate::stages::stage::{LAYOUT, SCAN};
use crate::stages::tables::write_table;

/// Bytes of a block.
const BLOCK_BYTES: usize = 64 << 10;
/// Nanoseconds of a byte that is written.
const WRITE_NS: f64 = 2.0;

impl BuildsKind for Options {
    fn plan(&self, base: &Reader, options: &BuildOptions) -> Result<BuildPlan> {
        let stages = [SCAN.takes(Size::scan_s), LAYOUT.takes(|size| size.bytes * WRITE_NS * 1e-9)];
        blocks::plan::plan(base, options, (&GraphOptions::default(), false), &stages)
    }

    fn run(&self, build: &mut Build<'_>, scan: &Scan) -> Result<Manifest> {
        let layout: LayoutFacts = build.stage(LAYOUT, |b| write_blocks(b, scan))?;
        build.manifest(scan, layout.blocks, 0.0, Section::None {})
    }
}

/// Writes all rows into blocks.
pub(crate) fn write_blocks(build: &Build<'_>, scan: &Scan) -> Result<LayoutFacts> {
    let shape = shape(build, BLOCK_BYTES, false, 0);
    let nodes_per_block = (shape.payload_bytes() / shape.node_bytes()).min(usize::from(u16::MAX));
    let design = Design { shape, nodes_per_block }.sealed(build.checksum_seed(&[])?);
    let rows = build.live_rows(scan);
    let order = build.partial.path(ORDER);
    write_table(&order, &rows)?;
    let mut placement = Placement::new(build.base.shape().rows as usize);
    let counts = rows.chunks(nodes_per_block).map(|c| c.len() as u16).collect();
    placement.append(&Packed { counts, rows });
    build.progress.stage("writing blocks", scan.rows, "nodes");
    let cells = [Cell { start: 0, end: scan.rows as u32 }];
    let spill = Some(build.partial.folder());
    let job = BlockJob { spill, ..job(build, &design, &placement, &order, &cells) };
    let written = job.write(0..1, &build.file(files::BLOCKS), build.progress)?;
    Ok(design.facts(placement.counts.len(), scan.rows, &written))
}
