//! The stages of a `disk-graph` (DiskANN, BatANN): codebook, graph, blocks, codes, head graph.

pub(crate) mod cells;
pub(crate) mod codes;
pub(crate) mod divide;
pub(crate) mod forecast;
pub(crate) mod graph_stage;
pub(crate) mod head;
pub(crate) mod layout_stage;
pub(crate) mod merge;
pub(crate) mod packing;

use stratann_core::PAGE;
use stratann_kernel::Metric;

use crate::build::blocks::layout::LayoutFacts;
use crate::build::codebook::{self, CodebookOptions};
use crate::build::plan::CODEBOOK_SAMPLE;
use crate::build::space::Space;
use crate::build::stages::{Build, IDS};
use crate::build::tables::{read_table, write_table};
use crate::dataset::Scan;
use crate::kinds::disk_graph::options::{CodePlace, GraphOptions};
use crate::manifest::Manifest;
use crate::{Result, files};
use graph_stage::GraphFacts;

/// Rounds of training of the codebook.
const ITERATIONS: usize = 12;

/// Runs all stages but the calibration; returns the manifest of the finished files.
pub(crate) fn run(build: &mut Build<'_>, own: &GraphOptions, scan: &Scan) -> Result<Manifest> {
    let space = build.space(scan, own.exact_points)?;
    build.stage("codebook", |b| train_codebook(b, own, &space, scan))?;
    let graph: GraphFacts = build.stage("graph", |b| graph_stage::run(b, own, &space, scan))?;
    merge::remove_lists(build, graph.cells.len());
    let (layout, code_error) = match own.codes {
        CodePlace::Ram => {
            let layout: LayoutFacts = build.stage("layout", |b| layout_stage::run(b, own, scan, &graph))?;
            (layout, build.stage("codes", |b| encode(b, own, &space, scan))?)
        }
        CodePlace::Disk => {
            // The name of this stage in a build that several processes share.
            build.stage("numbered", |b| layout_stage::place(b, own, scan, &graph).map(|_| ()))?;
            if let Some(seconds) = build.report.stages.remove("numbered") {
                build.report.stages.insert("packing".into(), seconds);
            }
            let code_error = build.stage("codes", |b| encode(b, own, &space, scan))?;
            (build.stage("layout", |b| layout_stage::write(b, own, scan, &graph))?, code_error)
        }
    };
    report_layout(build, &space, &graph, &layout);
    let id_of_row = read_table(&build.partial.path(IDS))?;
    build.stage("head", |b| write_head_graph(b, own, &space, scan, &id_of_row))?;
    build.manifest(scan, &layout, code_error)
}

fn encode(build: &Build<'_>, own: &GraphOptions, space: &Space, scan: &Scan) -> Result<f32> {
    codes::run(build, own.codes, space, scan, &read_table::<u32>(&build.partial.path(IDS))?)
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
    build.fact("cut_share", layout.cut_share);
    build.fact("bits_per_neighbour", layout.bits_per_neighbour);
}

/// Trains the codebook on a sample; returns the bytes of a code.
pub(crate) fn train_codebook(
    build: &Build<'_>,
    own: &GraphOptions,
    space: &Space,
    scan: &Scan,
) -> Result<usize> {
    let shape = build.base.shape();
    let wanted = build.plan.codebook_sample.min(CODEBOOK_SAMPLE);
    build.progress.stage("training the codebook", 100, "%");
    let sample = space.code_sample(build.base, scan, wanted, build.options.seed)?;
    let options = CodebookOptions {
        code_bytes: own.code_bytes(shape.dim),
        kind: own.code_kind,
        iterations: ITERATIONS,
        seed: build.options.seed,
    };
    let ip = build.options.metric == Metric::Ip;
    let trained = codebook::train(sample, shape.dim, ip, &options, build.progress)?;
    write_table(&build.file(files::CODEBOOK), &files::encode_codebook(&trained))?;
    Ok(trained.code_bytes())
}

/// Builds the head graph and writes it, with its codes where blocks carry codes.
pub(crate) fn write_head_graph(
    build: &Build<'_>,
    own: &GraphOptions,
    space: &Space,
    scan: &Scan,
    id_of_row: &[u32],
) -> Result<()> {
    let live = build.live_rows(scan);
    let count = head::head_count(live.len(), own.head_share);
    let graph = head::build(build.base, space, &live, id_of_row, count, build.options.seed, build.progress)?;
    write_table(&build.file(files::HEAD), &files::encode_head(&graph))?;
    match layout_stage::code_file(build, own)? {
        Some(codes) => {
            write_table(&build.file(files::HEAD_CODES), &codes.read(graph.ids.clone())?.of(&graph.ids))
        }
        None => Ok(()),
    }
}
