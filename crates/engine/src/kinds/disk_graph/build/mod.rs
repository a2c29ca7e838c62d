//! The stages of a `disk-graph` (DiskANN, BatANN): coder, graph, blocks, codes, head graph.

pub(crate) mod cells;
pub(crate) mod divide;
pub(crate) mod forecast;
pub(crate) mod graph_stage;
mod grow;
pub(crate) mod head;
pub(crate) mod layout_stage;
pub(crate) mod merge;
pub(crate) mod packing;

use std::path::PathBuf;
use stratann_params::build::GraphOptions;
use stratann_params::choices::CodePlace;

use stratann_core::PAGE;
use stratann_storage::Result;

use crate::dataset::{Reader, Scan};
use crate::files;
use crate::kinds::blocks;
use crate::kinds::questions::BuildsKind;
use crate::kinds::section::Section;
use crate::manifest::Manifest;
use crate::stages::blocks::code_file;
use crate::stages::blocks::layout::LayoutFacts;
use crate::stages::build::{Build, IDS};
use crate::stages::codes;
use crate::stages::options::BuildOptions;
use crate::stages::plan::BuildPlan;
use crate::stages::space::Space;
use crate::stages::stage::{CODEBOOK, CODES, LAYOUT, Stage};
use crate::stages::tables::{read_at, read_table, write_table};
use graph_stage::GraphFacts;
use layout_stage::Layout;

/// Builds the graph.
pub(crate) const GRAPH: Stage = Stage::named("graph");
/// Divides the rows into cells, where the graph is not built as a whole.
pub(crate) const DIVIDE: Stage = Stage::named("divide");
/// Gives ids, where blocks carry codes. Builds that several processes share have given it its name.
pub(crate) const NUMBERED: Stage = Stage::named("numbered").reported_as("packing");
/// Builds the head graph.
pub(crate) const HEAD: Stage = Stage::named("head");

impl BuildsKind for GraphOptions {
    fn plan(&self, base: &Reader, options: &BuildOptions) -> Result<BuildPlan> {
        let stages = forecast::stages(&base.shape(), options, self);
        blocks::plan::plan(base, options, (self, true), &stages)
    }

    fn run(&self, build: &mut Build<'_>, scan: &Scan) -> Result<Manifest> {
        let space = build.space(scan, self.exact_points)?;
        build.stage(CODEBOOK, |b| codes::make_coder(b, code_bytes(b, self), &space, scan))?;
        let graph: GraphFacts = build.stage(GRAPH, |b| graph_stage::run(b, self, &space, scan))?;
        merge::remove_lists(build, graph.cells.len());
        let (layout, code_error) = match self.codes {
            CodePlace::Ram => {
                let layout: LayoutFacts =
                    build.stage(LAYOUT, |b| Layout { build: b, own: self, scan, graph: &graph }.run())?;
                (layout, build.stage(CODES, |b| encode(b, self, &space, scan))?)
            }
            CodePlace::Disk => {
                build.stage(NUMBERED, |b| {
                    Layout { build: b, own: self, scan, graph: &graph }.place().map(|_| ())
                })?;
                let code_error = build.stage(CODES, |b| encode(b, self, &space, scan))?;
                (
                    build.stage(LAYOUT, |b| Layout { build: b, own: self, scan, graph: &graph }.write())?,
                    code_error,
                )
            }
        };
        report_layout(build, &space, &graph, &layout);
        let nodes = head_nodes(build, self, &space, scan);
        if nodes < head::head_count(scan.rows as usize, self.head_share) {
            build.fact("head_nodes", nodes);
        }
        build.stage(HEAD, |b| write_head_graph(b, self, &space, scan))?;
        build.manifest(scan, layout.blocks, code_error, Section::None {})
    }
}

fn encode(build: &Build<'_>, own: &GraphOptions, space: &Space, scan: &Scan) -> Result<f32> {
    let target = codes_target(build, own.codes);
    codes::run(build, &target, space, scan, &read_table::<u32>(&build.partial.path(IDS))?)
}

/// Adds what the layout decided to the report.
pub(crate) fn report_layout(build: &mut Build<'_>, space: &Space, graph: &GraphFacts, layout: &LayoutFacts) {
    build.fact("points", serde_json::to_value(space.precision).unwrap_or_default());
    build.fact("cells", graph.cells_in_use());
    build.fact("nodes_per_block", layout.nodes_per_block);
    if layout.blocks.bytes > PAGE {
        build.fact("pages_per_block", layout.blocks.bytes / PAGE);
    }
    build.fact("mean_list", layout.mean_list);
    if graph.taken_over > 0 {
        build.fact("taken_over", graph.taken_over);
    }
    build.fact("cut_share", layout.cut_share);
    build.fact("bits_per_neighbour", layout.bits_per_neighbour);
}

/// Returns the file of all codes: a file of the index, or an input of its blocks.
pub(crate) fn codes_target(build: &Build<'_>, place: CodePlace) -> PathBuf {
    match place {
        CodePlace::Ram => build.file(files::CODES),
        CodePlace::Disk => build.partial.path(code_file::NAME),
    }
}

/// Bytes of a code, at most.
pub(crate) fn code_bytes(build: &Build<'_>, own: &GraphOptions) -> usize {
    own.code_bytes(build.base.shape().dim)
}

/// Nodes of the head graph: the share of the options, or fewer where a budget has no room for so many.
fn head_nodes(build: &Build<'_>, own: &GraphOptions, space: &Space, scan: &Scan) -> usize {
    let wanted = head::head_count(scan.rows as usize, own.head_share);
    let each = head::node_bytes(space.point_bytes() as u64, code_bytes(build, own) as u64);
    let fits = build.options.ram_budget.map_or(u64::MAX, |_| build.plan.head_bytes / each);
    wanted.min(fits as usize)
}

/// Builds the head graph and writes it, with its codes where blocks carry codes.
pub(crate) fn write_head_graph(
    build: &Build<'_>,
    own: &GraphOptions,
    space: &Space,
    scan: &Scan,
) -> Result<()> {
    let live = (build.each_live_row(scan), head_nodes(build, own, space, scan));
    let ids_of = |rows: &[u32]| read_at(&build.partial.path(IDS), rows);
    let graph = head::build(build.base, space, live, ids_of, build.options.seed, build.progress)?;
    write_table(&build.file(files::HEAD), &files::encode_head(&graph))?;
    match layout_stage::code_file(build, own)? {
        Some(codes) => {
            write_table(&build.file(files::HEAD_CODES), &codes.read(graph.ids.clone())?.of(&graph.ids))
        }
        None => Ok(()),
    }
}
