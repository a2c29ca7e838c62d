//! Description of a folder of separate indexes: its servers and its parts.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use stratann_core::place::{Parts, SERVERS_MAX};
use stratann_storage::durable::{seal, unseal};
use stratann_storage::names::BuildId;
use stratann_storage::{Error, Result};
use xxhash_rust::xxh3::xxh3_64;

/// The file that says what the folder is.
pub const DESCRIPTION: &str = "scatter-gather.json";

/// Description of a folder of separate indexes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Description {
    /// Number of servers.
    pub servers: usize,
    /// Number of separate indexes, each on as many servers; `None` for one on each server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parts: Option<usize>,
    /// Servers of a part that hold each of its blocks, at least; `None` for one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<usize>,
    /// Method of the division of the rows.
    pub method: String,
    /// Seed of that.
    pub seed: u64,
    /// `build_id` of the index that was divided.
    pub source: BuildId,
    /// Rows of each part.
    pub rows: Vec<u64>,
    /// `build_id` of each part's index.
    #[serde(default)]
    pub builds: Vec<BuildId>,
    /// Version of the folder in the store that it was fetched from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<u64>,
}

impl Description {
    /// Identifies all the indexes together, as the `build_id` of one index does.
    pub fn build_id(&self) -> BuildId {
        let content = Description { version: None, ..self.clone() };
        BuildId::of(xxh3_64(serde_json::json!(content).to_string().as_bytes()))
    }

    /// Number of separate indexes.
    pub fn count(&self) -> usize {
        self.parts.unwrap_or(self.servers)
    }

    /// Number of servers of each part.
    pub fn servers_each(&self) -> usize {
        self.servers / self.count().max(1)
    }

    /// The part that a server belongs to, and its number there.
    ///
    /// # Errors
    /// No such server; `origin` is where the description comes from.
    pub fn place(&self, server: usize, origin: &Path) -> Result<(usize, usize)> {
        if server >= self.servers {
            return Err(Error::bad_input(format!(
                "{} has servers 0 to {}, there is no server {server}",
                origin.display(),
                self.servers.saturating_sub(1)
            )));
        }
        Ok((server / self.servers_each(), server % self.servers_each()))
    }

    /// Sets of `servers` (a bit for each), the servers of a part whose placement is not known here: when each set has a
    /// server that answers, the part is whole.
    pub(crate) fn replica_sets(&self, servers: u64) -> Vec<u64> {
        let each = |bits: u64| (0..SERVERS_MAX as u32).map(|s| 1u64 << s).filter(move |s| bits & s != 0);
        match self.replicas.unwrap_or(1) {
            1 => each(servers).collect(),
            all if all >= self.servers_each() => vec![servers],
            // One server of the part may be missing. Where the missing ones have no block in common it is whole with
            // fewer, which its own servers know.
            _ => each(servers).flat_map(|a| each(servers & !(a | (a - 1))).map(move |b| a | b)).collect(),
        }
    }

    /// The folder of a part's index, within `folder`.
    pub fn folder(&self, folder: &Path, part: usize) -> PathBuf {
        match self.servers_each() {
            1 => server_folder(folder, part),
            _ => part_folder(folder, part),
        }
    }

    /// The parts of a cluster that serves it.
    pub fn cluster_parts(&self) -> Parts {
        Parts::new(vec![self.servers_each(); self.count()]).unwrap_or(Parts::ONE)
    }

    /// Whether text is a description, perhaps a damaged one, and not a manifest.
    pub fn is_one(text: &str) -> bool {
        text.contains("\"builds\"") && !text.contains("\"format_version\"")
    }

    /// Reads a description; `origin` is where it comes from, for errors.
    ///
    /// # Errors
    /// Text that is none, or is damaged.
    pub fn from_text(text: &str, origin: &Path) -> Result<Description> {
        let damaged = |e: String| {
            Error::corrupt(format!("{} is damaged ({e}); make the folder again", origin.display()))
        };
        let mut value: serde_json::Value = serde_json::from_str(text).map_err(|e| damaged(e.to_string()))?;
        // Folders of earlier versions of this program have no checksum.
        if value.get("checksum").is_some() && !unseal(&mut value) {
            return Err(damaged("its checksum does not match".into()));
        }
        let read: Description = serde_json::from_value(value).map_err(|e| damaged(e.to_string()))?;
        let is_sane = (1..=SERVERS_MAX).contains(&read.servers)
            && (1..=read.servers).contains(&read.count())
            && read.servers.is_multiple_of(read.count())
            && read.rows.len() == read.count();
        if is_sane { Ok(read) } else { Err(damaged("its numbers cannot be".into())) }
    }

    /// The description as it is stored, with its own checksum.
    ///
    /// # Errors
    /// When it holds what JSON cannot say.
    pub fn to_text(&self) -> Result<String> {
        let wrong = |e: serde_json::Error| Error::bad_input(format!("{DESCRIPTION}: {e}"));
        let mut value = serde_json::to_value(self).map_err(wrong)?;
        seal(&mut value);
        Ok(serde_json::to_string_pretty(&value).map_err(wrong)? + "\n")
    }
}

/// The folder of a server's index.
pub fn server_folder(folder: &Path, server: usize) -> PathBuf {
    folder.join(format!("server-{server:02}"))
}

pub(super) fn part_folder(folder: &Path, part: usize) -> PathBuf {
    folder.join(format!("part-{part:02}"))
}
