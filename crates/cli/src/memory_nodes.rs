//! Options that name memory nodes.

use std::path::{Path, PathBuf};

use stratann_cluster::node_registry::found;
use stratann_engine::index::{Index, OpenOptions};
use stratann_storage::link::Tls;
use stratann_storage::remote_memory::{Credentials, read_key};
use stratann_storage::{Error, Result as Checked};

use crate::output::Output;

/// What a compute node shows to memory nodes.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct KeyArgs {
    /// File with the key of the memory nodes: 64 hexadecimal digits
    #[arg(long, value_name = "FILE")]
    pub key_file: Option<PathBuf>,
    /// PEM file of the certificate for encrypted connections to memory nodes
    #[arg(long, value_name = "FILE")]
    pub memory_certificate: Option<PathBuf>,
    /// PEM file of the key of --memory-certificate
    #[arg(long, value_name = "FILE")]
    pub memory_certificate_key: Option<PathBuf>,
    /// PEM file of the authority whose memory nodes are trusted
    #[arg(long, value_name = "FILE")]
    pub memory_authority: Option<PathBuf>,
}

/// An index that memory nodes hold.
#[derive(Clone, Debug, clap::Args)]
pub struct MemoryArgs {
    /// Addresses of the memory nodes that hold the index: HOST:PORT, shm:NAME or ucx:HOST:PORT of each; or
    /// etcd:CLUSTER@URL, where etcd has them
    #[arg(long, value_name = "ADDRESS", value_delimiter = ',', required = true)]
    memory: Vec<String>,
    #[command(flatten)]
    key: KeyArgs,
}

/// An index in a folder, or in memory nodes.
#[derive(Clone, Debug, clap::Args)]
pub struct PlaceArgs {
    /// Folder of the index; not given with --memory
    #[arg(value_name = "INDEX", required_unless_present = "memory", conflicts_with = "memory")]
    index: Option<PathBuf>,
    /// Look at the index that memory nodes hold, instead of a folder: HOST:PORT, shm:NAME or ucx:HOST:PORT of each, or
    /// etcd:CLUSTER@URL, with --key-file
    #[arg(long, value_name = "ADDRESS", value_delimiter = ',')]
    memory: Vec<String>,
    #[command(flatten)]
    key: KeyArgs,
}

/// Place of an index.
pub enum IndexPlace<'a> {
    /// In a folder.
    Folder(&'a Path),
    /// In memory nodes; its name, and the open index.
    Memory(String, Box<Index>),
}

impl PlaceArgs {
    /// Place of the index. One in memory nodes is opened.
    ///
    /// # Errors
    /// As [`MemoryArgs::open`].
    pub fn place(&self, output: Output) -> Checked<IndexPlace<'_>> {
        if let Some(folder) = &self.index {
            return Ok(IndexPlace::Folder(folder));
        }
        let index = open(&self.memory, &self.key, output)?;
        Ok(IndexPlace::Memory(self.memory.join(","), Box::new(index)))
    }
}

/// Opens what memory nodes hold, without a cache.
///
/// # Errors
/// As [`MemoryArgs::open`].
pub fn open(addresses: &[String], key: &KeyArgs, output: Output) -> Checked<Index> {
    Index::open_memory(&found(addresses)?, &key.credentials(output)?, OpenOptions::default())
}

impl MemoryArgs {
    /// Opens the index, without a cache.
    ///
    /// # Errors
    /// Without a key; nodes that do not answer or hold no index.
    pub fn open(&self, output: Output) -> Checked<Index> {
        open(&self.memory, &self.key, output)
    }
}

impl KeyArgs {
    /// Whether a file is named.
    pub(crate) fn is_given(&self) -> bool {
        let files =
            [&self.key_file, &self.memory_certificate, &self.memory_certificate_key, &self.memory_authority];
        files.iter().any(|file| file.is_some())
    }

    /// Reads the files.
    ///
    /// # Errors
    /// Without a key; with a part of what TLS needs; files that cannot be read.
    pub fn credentials(&self, output: Output) -> Checked<Credentials> {
        let path = self.key_file.as_deref().ok_or_else(|| {
            Error::bad_input("memory nodes need a key; give --key-file the file that they were started with")
        })?;
        let secret = read_key(path, &|line| output.note(&format!("note: {line}")))?;
        let tls = match (&self.memory_certificate, &self.memory_certificate_key, &self.memory_authority) {
            (None, None, None) => None,
            (Some(certificate), Some(key), Some(authority)) => Some(Tls::read(certificate, key, authority)?),
            _ => {
                return Err(Error::bad_input(
                    "--memory-certificate, --memory-certificate-key and --memory-authority go together; give all of \
                     them, or none",
                ));
            }
        };
        Ok(Credentials::new(secret, tls))
    }
}
