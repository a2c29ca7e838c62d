//! `stratann memory-node load`: copies an index into memory nodes.

use std::path::PathBuf;

use serde::Serialize;
use stratann_engine::Result;
use stratann_engine::budget::size;
use stratann_engine::kinds::remote_hnsw::live::load::load;

use crate::Verdict;
use crate::memory_nodes::KeyArgs;
use crate::output::Output;
use crate::progress::ProgressPrinter;

/// Copy a published version of an index into memory nodes
///
/// The index is a remote-hnsw. Its groups are divided over the nodes by their bytes. What the nodes held before is
/// overwritten. The folder stays as it is, and is not needed by compute nodes.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The folder of the index
    #[arg(value_name = "INDEX")]
    index: PathBuf,
    /// Addresses of the memory nodes: HOST:PORT, shm:NAME or ucx:HOST:PORT of each
    #[arg(long, value_name = "ADDRESS", value_delimiter = ',', required = true)]
    nodes: Vec<String>,
    #[command(flatten)]
    key: KeyArgs,
    /// Load everything twice: of 2 n nodes, node n + i mirrors node i
    #[arg(long)]
    mirror: bool,
}

#[derive(Serialize)]
struct Document {
    build_id: String,
    groups: u32,
    nodes: Vec<NodeDocument>,
}

#[derive(Serialize)]
struct NodeDocument {
    node: usize,
    used_bytes: u64,
    region_bytes: u64,
}

/// Runs `stratann memory-node load`.
pub(crate) fn run(args: &Args, output: Output) -> Result<Verdict> {
    let credentials = args.key.credentials(output)?;
    let printer = ProgressPrinter::new(output);
    let loaded = load(&args.index, &args.nodes, &credentials, args.mirror, &printer)?;
    printer.finish();
    let nodes = loaded.nodes.iter().enumerate();
    let document = Document {
        build_id: loaded.build_id.clone(),
        groups: loaded.groups,
        nodes: nodes
            .map(|(node, &(used_bytes, region_bytes))| NodeDocument { node, used_bytes, region_bytes })
            .collect(),
    };
    output.result(&document, || {
        let nodes = document.nodes.iter().map(|own| {
            format!("  node {}: {} of {}\n", own.node, size(own.used_bytes), size(own.region_bytes))
        });
        format!(
            "loaded {} groups of build {}\n{}",
            document.groups,
            document.build_id,
            nodes.collect::<String>()
        )
    })?;
    Ok(Verdict::Fine)
}
