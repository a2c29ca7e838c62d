//! `stratann memory-node`: memory that compute nodes read and write.

use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::time::{Duration, SystemTime};

use stratann_cluster::membership::{EtcdOptions, Membership, MemoryMember};
use stratann_cluster::node_registry::etcd_options;
use stratann_storage::link::{Log, Tls};
use stratann_storage::remote_memory::{CONNECTIONS_MAX, Node, NodeId, NodeOptions, Place, read_key};
use stratann_storage::{Error, Result};

use super::serve::{Stop, socket_address, stops};
use crate::output::{Output, print, utc};
use crate::{Verdict, options};

mod load;

/// Give memory to compute nodes
///
/// Serves one region of bytes: compute nodes read it, write it and change words of it atomically. It has one thread,
/// knows no index and does not search. Runs until SIGTERM or Ctrl-C. The region is memory and ends with it: after that,
/// start it and load the index again.
#[derive(clap::Args)]
#[command(after_long_help = EXAMPLES, args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct Args {
    #[command(subcommand)]
    other: Option<Other>,
    #[command(flatten)]
    node: Option<NodeArgs>,
}

/// What else is done with memory nodes.
#[derive(clap::Subcommand)]
enum Other {
    Load(load::Args),
}

/// Options of a memory node.
#[derive(clap::Args)]
struct NodeArgs {
    /// Size of the region, such as 8GiB
    #[arg(long, value_name = "SIZE", value_parser = options::size)]
    size: u64,
    /// Address for compute nodes; port 0 takes a free one
    #[arg(long, value_name = "HOST:PORT")]
    listen: String,
    /// File with the key that compute nodes must have: 64 hexadecimal digits
    #[arg(long, value_name = "FILE")]
    key_file: PathBuf,
    #[arg(long, hide = true, num_args = 0..=1)]
    file: Option<Option<PathBuf>>,
    #[arg(long, hide = true)]
    mirror: bool,
    /// Share the region with compute nodes of this user on this host, which connect to shm:NAME with the key and need
    /// no thread of the memory node. /dev/shm/NAME says where it is
    #[arg(long, value_name = "NAME")]
    shm: Option<String>,
    /// Allocate the region with UCX: compute nodes connect to ucx:HOST:PORT, over RDMA where there is a device. UCX_TLS
    /// names the transports
    #[arg(long, conflicts_with = "shm")]
    ucx: bool,
    /// Number of this memory node: each has its own
    #[arg(long, value_name = "N", default_value_t = 0)]
    node_id: u8,
    /// Announce this node in etcd at these addresses: compute nodes find it by etcd:CLUSTER@URL. The key is not there
    #[arg(long, value_name = "URL,…", value_delimiter = ',', requires = "cluster")]
    etcd: Vec<String>,
    /// Name of the cluster in etcd
    #[arg(long, value_name = "NAME", requires = "etcd")]
    cluster: Option<String>,
    /// Address at which compute nodes reach this node, in any form that --memory takes [default: that of --listen]
    #[arg(long, value_name = "ADDRESS", requires = "etcd")]
    advertise: Option<String>,
    /// PEM file of this node's certificate; encrypts traffic with compute nodes
    #[arg(long, value_name = "FILE", requires = "tls_key", requires = "tls_authority")]
    tls_certificate: Option<PathBuf>,
    /// PEM file of the key of --tls-certificate
    #[arg(long, value_name = "FILE", requires = "tls_certificate")]
    tls_key: Option<PathBuf>,
    /// PEM file of the authority whose certificates are trusted
    #[arg(long, value_name = "FILE", requires = "tls_certificate")]
    tls_authority: Option<PathBuf>,
    /// Stop when standard input ends too, with the program that started the node
    #[arg(long)]
    until_eof: bool,
}

const EXAMPLES: &str = "\
Examples:
  openssl rand -hex 32 > key
  stratann memory-node --size 8GiB --listen 10.0.0.9:8900 --key-file key
  stratann memory-node --size 8GiB --listen 127.0.0.1:8900 --key-file key --shm region
  stratann memory-node --size 8GiB --listen 10.0.0.9:8900 --key-file key --etcd http://10.0.0.5:2379 --cluster products
  stratann memory-node load base.idx --nodes 10.0.0.9:8900 --key-file key
  stratann memory-node load s3://indexes/products --nodes etcd:products@http://10.0.0.5:2379 --key-file key
  stratann search --memory 10.0.0.9:8900 --key-file key query.fbin --recall 0.95

A node that was started again is empty and has another epoch, and compute nodes say so: load the index again. Requests
over TCP are executed by the node's thread; over --shm compute nodes access the memory themselves.";

/// Refuses options of earlier versions, which kept what memory nodes hold.
fn refuse_durable(is_asked: bool) -> Result<()> {
    match is_asked {
        false => Ok(()),
        true => Err(Error::bad_input(
            "durability is not here, so there is no --file and no --mirror: a memory node is memory, and what it holds \
             ends with it; leave the option out, and load the index again after a node was lost",
        )),
    }
}

/// Interval of checks whether the node still runs.
const LOOK: Duration = Duration::from_millis(200);

/// Runs `stratann memory-node`.
pub(crate) fn run(args: &Args, output: Output) -> Result<Verdict> {
    match (&args.other, &args.node) {
        (Some(Other::Load(load)), _) => load::run(load, output),
        (None, Some(node)) => serve(node, output),
        (None, None) => Err(Error::bad_input("--size, --listen and --key-file are required; see --help")),
    }
}

fn serve(args: &NodeArgs, output: Output) -> Result<Verdict> {
    refuse_durable(args.file.is_some() || args.mirror)?;
    let log: Log = Arc::new(move |line: &str| output.note(&format!("{} {line}", utc(SystemTime::now()))));
    let listen = socket_address("--listen", &args.listen)?;
    if listen.ip().is_unspecified() && args.cluster.is_some() && args.advertise.is_none() {
        return Err(Error::bad_input(format!(
            "{listen} is no address for other machines; say with --advertise HOST:PORT where they reach this node"
        )));
    }
    let stop = stops(args.until_eof)?;
    let node = Node::start(NodeOptions {
        node: NodeId(args.node_id),
        region_bytes: args.size,
        listen,
        secret: read_key(&args.key_file, &|line| output.note(&format!("note: {line}")))?,
        tls: tls(args)?,
        place: place(args),
        connections_max: CONNECTIONS_MAX,
        log: Arc::clone(&log),
    })?;
    tell_ready(args, &node, &log, output)?;
    let membership = announce(args, &node, &log)?;
    let why = loop {
        match stop.recv_timeout(LOOK) {
            Ok(why) => break why,
            Err(mpsc::RecvTimeoutError::Disconnected) => break Stop::Requested,
            Err(mpsc::RecvTimeoutError::Timeout) if node.has_ended() => break Stop::Requested,
            Err(mpsc::RecvTimeoutError::Timeout) => {}
        }
    };
    log("stopping");
    // First, compute nodes no longer find it.
    drop(membership);
    node.stop()?;
    log("stopped");
    Ok(if why == Stop::Interrupted { Verdict::Interrupted } else { Verdict::Fine })
}

/// Announces the node in etcd, when there is one, as long as the result lives.
fn announce(args: &NodeArgs, node: &Node, log: &Log) -> Result<Option<Membership>> {
    let Some(cluster) = &args.cluster else { return Ok(None) };
    let options = EtcdOptions { log: Arc::clone(log), ..etcd_options(args.etcd.clone(), cluster) };
    let own = node.address();
    let address = match &args.advertise {
        Some(address) => address.clone(),
        None if args.ucx => format!("ucx:{own}"),
        None => own.to_string(),
    };
    Membership::join_memory(options, args.node_id, &MemoryMember { address }).map(Some)
}

fn place(args: &NodeArgs) -> Place {
    match &args.shm {
        Some(name) => Place::Shared(name.clone()),
        None if args.ucx => Place::Ucx,
        None => Place::Memory,
    }
}

fn tls(args: &NodeArgs) -> Result<Option<Tls>> {
    match (&args.tls_certificate, &args.tls_key, &args.tls_authority) {
        (None, None, None) => Ok(None),
        (Some(certificate), Some(key), Some(authority)) => {
            Tls::read(Path::new(certificate), Path::new(key), Path::new(authority)).map(Some)
        }
        _ => Err(Error::bad_input(
            "--tls-certificate, --tls-key and --tls-authority go together; give all of them, or none",
        )),
    }
}

fn tell_ready(args: &NodeArgs, node: &Node, log: &Log, output: Output) -> Result<()> {
    let (address, facts) = (node.address(), node.facts());
    if output.json {
        let ready = serde_json::json!({
            "listen": address.to_string(),
            "shm": args.shm,
            "pid": std::process::id(),
            "node": facts.node.0,
            "region_bytes": facts.region_bytes,
            "epoch": format!("{:016x}", facts.epoch),
        });
        print(&format!("{ready}\n"))?;
    }
    let place = match place(args) {
        Place::Memory => "in memory".to_string(),
        Place::Ucx => format!("in memory for ucx:{address}"),
        Place::Shared(name) => format!("in memory as shm:{name}"),
    };
    log(&format!(
        "memory node {} has {}, {place}, on {address}; epoch {:016x}",
        facts.node.0,
        stratann_storage::budget::size(facts.region_bytes),
        facts.epoch
    ));
    Ok(())
}
