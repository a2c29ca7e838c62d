//! `stratann memory-node load`: copies an index into memory nodes.

use std::path::{Path, PathBuf};

use serde::Serialize;
use stratann_cluster::node_registry::found;
use stratann_cluster::store::is_store;
use stratann_engine::manifest::Manifest;
use stratann_engine::memory_nodes::{LoadOptions, LoadedNode, load_with};
use stratann_engine::search::TrafficOptions;
use stratann_storage::budget::size;
use stratann_storage::names::BuildId;
use stratann_storage::{Error, Result};

use crate::Verdict;
use crate::memory_nodes::KeyArgs;
use crate::output::Output;
use crate::progress::ProgressPrinter;
use crate::queries::Queries;

mod fetched;
use fetched::Fetched;

/// Copy a published version of an index into memory nodes
///
/// The index is a remote-hnsw. Its groups are divided over the nodes so that none has many more bytes or gets much more
/// traffic than the others. What the nodes held before is overwritten. The folder or the store stays as it is, and is
/// not needed by compute nodes. Of a store, the newest version is fetched first; region, endpoint and credentials are
/// read from the usual AWS_… variables of the environment.
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
    #[arg(long, hide = true, num_args = 0..=1)]
    file: Option<Option<PathBuf>>,
    #[arg(long, hide = true)]
    mirror: bool,
    /// What groups are divided by: traffic, with an eighth more bytes than its share for a node at most, or bytes alone
    #[arg(long, value_enum, value_name = "WHAT", default_value = "traffic")]
    placement: Placement,
    /// Queries like those to come, by which traffic is expected [default: the vectors of the index stand for them]
    #[arg(long, value_name = "QUERIES")]
    traffic: Option<PathBuf>,
    /// Clusters that a query is expected to search [default: those of a search with --recall 0.95, 16 without a curve]
    #[arg(long, value_name = "N")]
    nprobe: Option<u32>,
    /// Queries of a batch, which loads a cluster once [default: 2000]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    batch: Option<u32>,
}

/// Weights by which groups are divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
enum Placement {
    /// By traffic and by bytes.
    Traffic,
    /// By bytes alone.
    Bytes,
}

#[derive(Serialize)]
struct Document {
    /// Number of the load, which errors of those name that had opened another one.
    load: String,
    build_id: BuildId,
    /// Number of the version in the store.
    #[serde(skip_serializing_if = "Option::is_none")]
    version: Option<u64>,
    groups: u32,
    placement: Placement,
    traffic: TrafficDocument,
    nodes: Vec<NodeDocument>,
}

/// Source of the expected traffic.
#[derive(Serialize)]
struct TrafficDocument {
    /// Queries that were counted; 0 where the vectors of the index stood for them.
    queries: usize,
    nprobe: u32,
    batch: usize,
}

#[derive(Serialize)]
struct NodeDocument {
    node: usize,
    used_bytes: u64,
    region_bytes: u64,
    /// Bytes that a batch is expected to read of it.
    traffic_bytes: u64,
}

/// Runs `stratann memory-node load`.
pub(crate) fn run(args: &Args, output: Output) -> Result<Verdict> {
    super::refuse_durable(args.file.is_some() || args.mirror)?;
    let credentials = args.key.credentials(output)?;
    let nodes = found(&args.nodes)?;
    let printer = ProgressPrinter::new(output);
    let fetched = match args.index.to_str() {
        Some(place) if is_store(place) => Some(Fetched::new(place, args.data.as_deref(), &printer)?),
        _ if args.data.is_some() => return Err(not_a_store(&args.index)),
        _ => None,
    };
    let folder = fetched.as_ref().map_or(&args.index, |fetched| &fetched.folder);
    let traffic = args.traffic.as_ref().map(|path| read_queries(path, folder, output)).transpose()?;
    let options = LoadOptions {
        by_bytes: args.placement == Placement::Bytes,
        traffic: TrafficOptions {
            queries: traffic.as_deref(),
            nprobe: args.nprobe,
            batch: args.batch.map(|batch| batch as usize),
        },
    };
    let loaded = load_with(folder, &nodes, &credentials, &options, &printer)?;
    printer.finish();
    fetched
        .iter()
        .filter_map(|own| own.warning.as_ref())
        .for_each(|why| output.note(&format!("warning: {why}")));
    let node = |(node, own): (usize, &LoadedNode)| NodeDocument {
        node,
        used_bytes: own.used_bytes,
        region_bytes: own.region_bytes,
        traffic_bytes: own.traffic_bytes,
    };
    let document = Document {
        load: format!("{:016x}", loaded.load),
        build_id: loaded.build_id,
        version: fetched.as_ref().map(|fetched| fetched.version),
        groups: loaded.groups,
        placement: args.placement,
        traffic: TrafficDocument {
            queries: loaded.traffic.queries,
            nprobe: loaded.traffic.nprobe,
            batch: loaded.traffic.batch,
        },
        nodes: loaded.nodes.iter().enumerate().map(node).collect(),
    };
    output.result(&document, || text(&document))?;
    Ok(Verdict::Fine)
}

fn text(document: &Document) -> String {
    let mut out = format!(
        "loaded {} groups of build {} as load {}\n",
        document.groups, document.build_id, document.load
    );
    for own in &document.nodes {
        out += &format!(
            "  node {}: {} of {}, expected traffic {}\n",
            own.node,
            size(own.used_bytes),
            size(own.region_bytes),
            size(own.traffic_bytes)
        );
    }
    let TrafficDocument { queries, nprobe, batch } = document.traffic;
    let by = if queries > 0 { format!("{queries} queries") } else { "the vectors of the index".into() };
    out + &format!(
        "expected traffic: what a batch of {batch} queries reads, with {nprobe} clusters a query and without a cache, \
         by {by}\n"
    )
}

/// The queries that tell the traffic.
fn read_queries(path: &Path, folder: &Path, output: Output) -> Result<Vec<u8>> {
    let (_, manifest) = Manifest::read(folder)?;
    let queries = Queries::open(path, &manifest, output)?;
    let mut rows = Vec::new();
    queries.read(0, queries.count(), &mut rows)?;
    Ok(rows)
}

fn not_a_store(place: &Path) -> Error {
    Error::bad_input(format!(
        "--data is for what is fetched from a store, and {} is none; publish an index there with `stratann cluster \
         publish`, or leave out --data",
        place.display()
    ))
}
