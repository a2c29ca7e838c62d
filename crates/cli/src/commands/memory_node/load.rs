//! `stratann memory-node load`: copies an index into memory nodes.

use std::path::{Path, PathBuf};

use serde::Serialize;
use stratann_cluster::memory::found;
use stratann_cluster::store::is_store;
use stratann_engine::budget::size;
use stratann_engine::kinds::remote_hnsw::live::load::load;
use stratann_engine::{Error, Result};

use crate::Verdict;
use crate::memory_nodes::KeyArgs;
use crate::output::Output;
use crate::progress::ProgressPrinter;

mod fetched;
use fetched::Fetched;

/// Copy a published version of an index into memory nodes
///
/// The index is a remote-hnsw. Its groups are divided over the nodes by their bytes. What the nodes held before is
/// overwritten. The folder or the store stays as it is, and is not needed by compute nodes. Of a store, the newest
/// version is fetched first; region, endpoint and credentials are read from the usual AWS_… variables of the
/// environment.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The folder of the index; or where `stratann cluster publish` put it: s3://BUCKET/PREFIX, or a folder
    #[arg(value_name = "INDEX")]
    index: PathBuf,
    /// Keep what is fetched from a store in this folder; the next load fetches only what is new. Without it, files are
    /// fetched into a temporary folder (below TMPDIR) and removed
    #[arg(long, value_name = "FOLDER")]
    data: Option<PathBuf>,
    /// Addresses of the memory nodes: HOST:PORT, shm:NAME or ucx:HOST:PORT of each; or etcd:CLUSTER@URL, where etcd has
    /// them
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
    /// Number of the version in the store.
    #[serde(skip_serializing_if = "Option::is_none")]
    version: Option<u64>,
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
    let nodes = found(&args.nodes)?;
    let printer = ProgressPrinter::new(output);
    let fetched = match args.index.to_str() {
        Some(place) if is_store(place) => Some(Fetched::new(place, args.data.as_deref(), &printer)?),
        _ if args.data.is_some() => return Err(not_a_store(&args.index)),
        _ => None,
    };
    let folder = fetched.as_ref().map_or(&args.index, |fetched| &fetched.folder);
    let loaded = load(folder, &nodes, &credentials, args.mirror, &printer)?;
    printer.finish();
    fetched
        .iter()
        .filter_map(|own| own.warning.as_ref())
        .for_each(|why| output.note(&format!("warning: {why}")));
    let nodes = loaded.nodes.iter().enumerate();
    let document = Document {
        build_id: loaded.build_id.clone(),
        version: fetched.as_ref().map(|fetched| fetched.version),
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

fn not_a_store(place: &Path) -> Error {
    Error::bad_input(format!(
        "--data is for what is fetched from a store, and {} is none; publish an index there with `stratann cluster \
         publish`, or leave out --data",
        place.display()
    ))
}
