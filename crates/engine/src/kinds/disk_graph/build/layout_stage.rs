//! The stage that gives every row its place and writes the blocks: first cell by cell which rows share a block, then
//! ids over all cells, then the blocks.

use std::io::Read;
use stratann_params::build::GraphOptions;
use stratann_params::choices::CodePlace;

use stratann_core::PAGE;
use stratann_storage::data_file::FileEntry;
use stratann_storage::output::AtomicFile;
use stratann_storage::{Error, Result, budget, data_file, input};

use super::graph_stage::GraphFacts;
use super::packing::{Density, Packing, pack_cell};
use crate::dataset::Scan;
use crate::files;
use crate::stages::blocks::code_file::CodeFile;
use crate::stages::blocks::coded::{CodedDensity, most_nodes};
use crate::stages::blocks::graph_file::{self, Cell, GraphReader};
use crate::stages::blocks::layout::{Design, LayoutFacts, ORDER, job, shape};
use crate::stages::blocks::placement::{Packed, Placement};
use crate::stages::blocks::write::{BlockJob, Written};
use crate::stages::build::{Build, IDS};
use crate::stages::stage::CODEBOOK;
use crate::stages::state::facts;
use crate::stages::tables::{read_entries, read_table, write_table};

/// Share of the mean list that a block must have room for; the rest of the longest lists is cut from the far end.
const LIST_KEEP: f64 = 0.9;

/// The layout of an index with a graph, once the graph is built.
#[derive(Clone, Copy)]
pub(crate) struct Layout<'a> {
    pub(crate) build: &'a Build<'a>,
    pub(crate) own: &'a GraphOptions,
    pub(crate) scan: &'a Scan,
    pub(crate) graph: &'a GraphFacts,
}

impl Layout<'_> {
    /// Lays out an index with a graph.
    pub(crate) fn run(&self) -> Result<LayoutFacts> {
        let placement = self.place()?;
        // Packing leaves its memory in pieces, which writing could not use.
        budget::release_freed();
        self.write_all(&placement)
    }

    /// Gives every row its place, and writes which.
    pub(crate) fn place(&self) -> Result<Placement> {
        let Layout { build, scan, graph, .. } = *self;
        let design = self.design()?;
        build.progress.stage("packing", scan.rows, "nodes");
        let mut placement = Placement::new(build.base.shape().rows as usize);
        for (cell, range) in graph.cells.iter().enumerate() {
            placement.append(&self.pack(&design, cell, range)?);
            build.progress.advance(u64::from(range.end - range.start));
        }
        write_places(build, &placement)?;
        Ok(placement)
    }

    /// Writes the blocks, after all rows have places, and codes where blocks carry them.
    pub(crate) fn write(&self) -> Result<LayoutFacts> {
        self.write_all(&read_places(self.build)?)
    }

    fn write_all(&self, placement: &Placement) -> Result<LayoutFacts> {
        let Layout { build, own, scan, graph } = *self;
        let design = self.sealed()?;
        build.progress.stage("writing blocks", scan.rows, "nodes");
        let reader = GraphReader::new(build.partial.folder(), own.degree);
        let (order, codes) = (build.partial.path(ORDER), code_file(build, own)?);
        let (spill, codes) = (Some(build.partial.folder()), codes.as_ref());
        let job = BlockJob {
            graph: Some(&reader),
            spill,
            codes,
            ..job(build, &design, placement, &order, &graph.cells)
        };
        let written = job.write(0..graph.cells.len(), &build.file(files::BLOCKS), build.progress)?;
        Ok(design.facts(placement.counts.len(), scan.rows, &written))
    }

    /// Decides how large blocks are and how many nodes share one.
    pub(crate) fn design(&self) -> Result<Design> {
        let Layout { build, own, scan, graph } = *self;
        let (nodes, mean_list) = (scan.rows, graph.mean_list);
        let (shape, suited) = match own.codes {
            CodePlace::Ram => {
                let shape = |pages| shape(build, pages * PAGE, true, 0);
                let mut density = Density { nodes, mean_list, compressed: own.compress, keep: 1.0 };
                let pages = own.pages_per_block.unwrap_or_else(|| density.pages_per_block(&shape(1)));
                density.keep = LIST_KEEP;
                (shape(pages), density.nodes_per_block(&shape(pages)))
            }
            CodePlace::Disk => {
                let code_bytes: usize = facts(build.partial, CODEBOOK)?;
                let shape = |pages| shape(build, pages * PAGE, true, code_bytes);
                let density = CodedDensity { nodes, mean_list, shape };
                let pages = own.pages_per_block.unwrap_or_else(|| density.pages_per_block());
                (shape(pages), density.nodes_per_block(pages))
            }
        };
        let most = most_nodes(&shape);
        if most == 0 {
            return Err(Error::bad_input(format!(
                "--pages-per-block is {}; one node takes {} bytes and more, use {} or more",
                shape.block_bytes / PAGE,
                shape.node_bytes(),
                shape.block_bytes / PAGE + 1
            )));
        }
        let nodes_per_block = own.nodes_per_block.unwrap_or(suited.min(most));
        if nodes_per_block > most {
            return Err(Error::bad_input(format!(
                "--nodes-per-block is {nodes_per_block}; at most {most} fit in {} bytes",
                shape.block_bytes
            )));
        }
        Ok(Design { shape, nodes_per_block })
    }

    /// The design of the blocks that are written, after all rows have places.
    fn sealed(&self) -> Result<Design> {
        let build = self.build;
        let made_from = [build.file(files::CODEBOOK), build.file(files::MAP), build.partial.path(IDS)];
        Ok(self.design()?.sealed(build.checksum_seed(&made_from)?))
    }

    /// Decides which rows of a cell share a block.
    fn pack(&self, design: &Design, cell: usize, range: &Cell) -> Result<Packed> {
        let Layout { build, own, .. } = *self;
        build.progress.check_interrupted()?;
        let members: Vec<u32> =
            read_entries(&build.partial.path(ORDER), range.start.into(), range.end.into())?;
        let reader = GraphReader::new(build.partial.folder(), own.degree);
        let packing = Packing {
            nodes_per_block: design.nodes_per_block,
            packed: own.pack,
            make_reachable: own.codes == CodePlace::Disk,
            apart: &build.drawn,
        };
        pack_cell(&reader, (cell, range), &members, build.base.shape().rows as usize, &packing)
    }

    /// Packs one cell, and writes what was decided.
    pub(crate) fn pack_to_file(&self, cell: usize) -> Result<()> {
        let Layout { build, graph, .. } = *self;
        let packed = self.pack(&self.design()?, cell, &graph.cells[cell])?;
        write_table(&build.partial.path(&packed_name(cell)), &packed.to_words())
    }

    /// Writes the blocks of one cell, after all rows have ids.
    pub(crate) fn write_cell(&self, cell: usize) -> Result<Written> {
        let Layout { build, own, graph, .. } = *self;
        let design = self.sealed()?;
        let placement = read_places(build)?;
        let reader = GraphReader::new(build.partial.folder(), own.degree);
        let (order, codes) = (build.partial.path(ORDER), code_file(build, own)?);
        let codes = codes.as_ref();
        let job =
            BlockJob { graph: Some(&reader), codes, ..job(build, &design, &placement, &order, &graph.cells) };
        job.write(cell..cell + 1, &build.partial.path(&blocks_name(cell)), build.progress)
    }

    /// Puts the blocks of all cells into one file. Returns its length and checksum, too.
    pub(crate) fn join(&self, written: &Written) -> Result<(LayoutFacts, FileEntry)> {
        let Layout { build, scan, .. } = *self;
        let design = self.sealed()?;
        let blocks = std::fs::metadata(build.file(files::MAP)).map_or(0, |m| m.len() as usize / 2);
        let mut out = AtomicFile::create(&build.file(files::BLOCKS))?;
        let mut sum = data_file::Sum::default();
        let mut buffer = vec![0u8; 1 << 20];
        for cell in 0..self.graph.cells.len() {
            let path = build.partial.path(&blocks_name(cell));
            let failed = |e: std::io::Error| Error::io("reading", &path, &e);
            let mut file = input::open(&path)?;
            loop {
                let count = file.read(&mut buffer).map_err(failed)?;
                if count == 0 {
                    break;
                }
                build.progress.check_interrupted()?;
                sum.add(&buffer[..count]);
                out.write(&buffer[..count])?;
            }
        }
        let entry = sum.entry();
        if entry.bytes != (blocks * design.shape.block_bytes) as u64 {
            let folder = build.partial.folder().display();
            return Err(Error::corrupt(format!(
                "{folder} has lost a part of its blocks; start the build again"
            )));
        }
        out.commit()?;
        Ok((design.facts(blocks, scan.rows, written), entry))
    }
}

/// The codes that blocks carry, when they do.
pub(crate) fn code_file(build: &Build<'_>, own: &GraphOptions) -> Result<Option<CodeFile>> {
    let open = || CodeFile::open(build.partial.folder(), facts(build.partial, CODEBOOK)?);
    (own.codes == CodePlace::Disk).then(open).transpose()
}

fn write_places(build: &Build<'_>, placement: &Placement) -> Result<()> {
    write_table(&build.partial.path(IDS), &placement.id_of_row)?;
    write_table(&build.file(files::MAP), &files::encode_map(&placement.counts))
}

fn read_places(build: &Build<'_>) -> Result<Placement> {
    let counts: Vec<u16> = read_table(&build.file(files::MAP))?;
    Ok(Placement::of(read_table(&build.partial.path(IDS))?, counts))
}

fn packed_name(cell: usize) -> String {
    format!("packed-{cell}.tmp")
}

fn blocks_name(cell: usize) -> String {
    format!("blocks-{cell}.tmp")
}

/// Gives ids to all rows, after every cell is packed.
pub(crate) fn number(build: &Build<'_>, graph: &GraphFacts) -> Result<()> {
    let mut placement = Placement::new(build.base.shape().rows as usize);
    for cell in 0..graph.cells.len() {
        let path = build.partial.path(&packed_name(cell));
        let packed = Packed::from_words(&read_table::<u32>(&path)?);
        placement.append(&packed.ok_or_else(|| files::senseless(&path))?);
    }
    write_places(build, &placement)
}

/// Removes the parts of the file of blocks, and what they were made from.
pub(crate) fn remove_parts(build: &Build<'_>, cells: usize) {
    for cell in 0..cells {
        // What stays behind goes with the folder.
        for name in [blocks_name(cell), packed_name(cell), graph_file::name(cell)] {
            let _ = std::fs::remove_file(build.partial.path(&name));
        }
    }
}
