//! `stratann cluster publish`: publishes a version of an index for servers.

use std::path::PathBuf;
use std::sync::Arc;

use serde_json::json;
use stratann_cluster::membership::EtcdOptions;
use stratann_cluster::store::Store;
use stratann_storage::{Error, Result};

use crate::Verdict;
use crate::output::Output;
use crate::progress::ProgressPrinter;

/// Publish an index to an S3-compatible store, or to a folder that all servers can read
///
/// A version is published atomically: its files first, its manifest last, under a free number. Publishing the same
/// index again changes nothing; files of an interrupted upload are reused.
#[derive(clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(super) struct Publish {
    /// Folder from `stratann cluster partition`, with or without --scatter-gather, or of any index
    index: PathBuf,
    /// s3://BUCKET/PREFIX, or a folder
    store: String,
    /// Keep the newest N versions and delete older ones
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    keep: Option<u64>,
    /// Notify the servers of a cluster by etcd at these addresses
    #[arg(long, value_name = "URL,…", value_delimiter = ',', requires = "cluster")]
    etcd: Vec<String>,
    /// Name of the cluster in etcd
    #[arg(long, value_name = "NAME", requires = "etcd")]
    cluster: Option<String>,
}

const EXAMPLES: &str = "\
Examples:
  stratann cluster publish spread /mnt/shared/products
  AWS_ENDPOINT=https://s3.example.org stratann cluster publish spread s3://indexes/products --keep 2

Region, endpoint and credentials of a store are read from the usual AWS_… variables of the environment.";

pub(super) fn run(args: &Publish, output: Output) -> Result<Verdict> {
    let store = Store::open(&args.store)?;
    let before = store.versions()?;
    let printer = ProgressPrinter::new(output);
    let version = store.publish(&args.index, &printer)?;
    printer.finish();
    let is_new = !before.contains(&version);
    if let (Some(cluster), true) = (&args.cluster, is_new) {
        let quiet = Arc::new(|_: &str| {});
        EtcdOptions { endpoints: args.etcd.clone(), cluster: cluster.clone(), lease_s: 5, log: quiet }
            .announce_version(version)
            .map_err(|e| Error {
                message: format!("version {version} is published, but its servers were not notified: {e}"),
                ..e
            })?;
    }
    let dropped = match args.keep {
        Some(keep) => store.drop_old(usize::try_from(keep).unwrap_or(usize::MAX))?,
        None => Vec::new(),
    };
    let document = json!({ "store": args.store, "version": version, "is_new": is_new, "dropped": dropped });
    output.result(&document, || match is_new {
        true => format!("version {version} is published in {}\n", args.store),
        false => format!("{} has this index already, as version {version}\n", args.store),
    })?;
    Ok(Verdict::Fine)
}
