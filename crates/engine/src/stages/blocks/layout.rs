//! Layout of an index in blocks: its sizes, and the inputs of writing.

use serde::{Deserialize, Serialize};
use stratann_core::format::block::BlockLayout;
use stratann_kernel::Metric;

use super::graph_file::Cell;
use super::placement::Placement;
use super::write::{BlockJob, Written};
use crate::manifest::BlockShape;
use crate::stages::build::Build;

/// The rows in the order of their cells, as u32.
pub(crate) const ORDER: &str = "order.tmp";

/// Facts of the layout stage.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct LayoutFacts {
    pub(crate) blocks: BlockShape,
    pub(crate) nodes_per_block: usize,
    pub(crate) mean_list: f64,
    pub(crate) cut_share: f64,
    pub(crate) bits_per_neighbour: f64,
}

/// Layout of all blocks of an index.
#[derive(Clone, Copy)]
pub(crate) struct Design {
    pub(crate) shape: BlockLayout,
    pub(crate) nodes_per_block: usize,
}

impl Design {
    /// The design of the blocks of one build.
    pub(crate) fn sealed(self, checksum_seed: u64) -> Design {
        Design { shape: BlockLayout { checksum_seed, ..self.shape }, ..self }
    }

    pub(crate) fn facts(&self, blocks: usize, nodes: u64, written: &Written) -> LayoutFacts {
        let edges = written.edges.max(1) as f64;
        LayoutFacts {
            blocks: BlockShape {
                count: blocks as u32,
                bytes: self.shape.block_bytes,
                id_bytes: self.shape.id_bytes,
                code_bytes: self.shape.code_bytes,
                checksum_seed: self.shape.checksum_seed,
            },
            nodes_per_block: self.nodes_per_block,
            mean_list: written.edges as f64 / nodes as f64,
            cut_share: written.cut as f64 / (edges + written.cut as f64),
            bits_per_neighbour: written.list_bytes as f64 * 8.0 / edges,
        }
    }
}

/// Layout of all blocks of this index, without the seed of their checksums.
pub(crate) fn shape(build: &Build<'_>, block_bytes: usize, lists: bool, code_bytes: usize) -> BlockLayout {
    BlockLayout {
        block_bytes,
        vector_bytes: build.base.shape().row_bytes(),
        id_bytes: if build.largest_id < 1 << 32 { 4 } else { 8 },
        norms: build.options.metric == Metric::Cosine,
        adjacency: lists,
        code_bytes,
        checksum_seed: 0,
    }
}

/// Job that writes blocks without adjacency lists.
pub(crate) fn job<'a>(
    build: &'a Build<'_>,
    design: &Design,
    placement: &'a Placement,
    order: &'a std::path::Path,
    cells: &'a [Cell],
) -> BlockJob<'a> {
    BlockJob {
        reader: build.base,
        metric: build.options.metric,
        shape: design.shape,
        placement,
        order,
        cells,
        graph: None,
        codes: None,
        external: build.external.as_deref(),
        memory_bytes: build.plan.block_memory_bytes,
        spill: None,
    }
}
