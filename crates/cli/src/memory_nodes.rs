//! Options that name memory nodes.

use std::path::PathBuf;

use stratann_engine::index::{Index, OpenOptions};
use stratann_engine::link::Tls;
use stratann_engine::remote_memory::{Credentials, read_key};
use stratann_engine::{Error, Result as Checked};

use crate::output::Output;

/// What a compute node shows to memory nodes.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct KeyArgs {
    /// File with the key of the memory nodes: 64 hexadecimal digits
    #[arg(long, value_name = "FILE")]
    pub(crate) key_file: Option<PathBuf>,
    /// PEM file of the certificate for encrypted connections to memory nodes
    #[arg(long, value_name = "FILE")]
    pub(crate) memory_certificate: Option<PathBuf>,
    /// PEM file of the key of --memory-certificate
    #[arg(long, value_name = "FILE")]
    pub(crate) memory_certificate_key: Option<PathBuf>,
    /// PEM file of the authority whose memory nodes are trusted
    #[arg(long, value_name = "FILE")]
    pub(crate) memory_authority: Option<PathBuf>,
}

/// An index that memory nodes hold.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct MemoryArgs {
    /// Addresses of the memory nodes that hold the index: HOST:PORT, shm:NAME or ucx:HOST:PORT of each
    #[arg(long, value_name = "ADDRESS", value_delimiter = ',', required = true)]
    memory: Vec<String>,
    #[command(flatten)]
    key: KeyArgs,
}

impl MemoryArgs {
    /// Opens the index, without a cache.
    ///
    /// # Errors
    /// Without a key; nodes that do not answer or hold no index.
    pub(crate) fn open(&self, output: Output) -> Checked<Index> {
        Index::open_memory(&self.memory, &self.key.credentials(output)?, OpenOptions::default())
    }
}

impl KeyArgs {
    /// Reads the files.
    ///
    /// # Errors
    /// Without a key; with a part of what TLS needs; files that cannot be read.
    pub(crate) fn credentials(&self, output: Output) -> Checked<Credentials> {
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
        Ok(Credentials { secret, tls })
    }
}
