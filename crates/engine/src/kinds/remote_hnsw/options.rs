//! Options of a `remote-hnsw`.

use serde_json::Value;
use stratann_core::format::hnsw::M_MAX;
use stratann_core::plan::remote_hnsw::MAX_EF;

use super::limits::CLUSTER_BYTES_MAX;
use crate::budget::size;
use crate::{Error, Result};

/// How the vectors that represent clusters are chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Representatives {
    /// Drawn uniformly, as in d-HNSW §3.1.
    #[default]
    Sample,
    /// Those nearest to the centroids of k-means.
    Kmeans,
}

impl Representatives {
    /// The name used on the command line and in manifests.
    pub const fn name(self) -> &'static str {
        match self {
            Representatives::Sample => "sample",
            Representatives::Kmeans => "kmeans",
        }
    }

    /// The one of this name.
    pub fn from_name(name: &str) -> Option<Representatives> {
        [Representatives::Sample, Representatives::Kmeans].into_iter().find(|own| own.name() == name)
    }
}

/// Clusters of a set of any size, by default; small sets have fewer.
const CLUSTERS: u64 = 500;
/// Vectors of a cluster, at least by the mean.
const MEMBERS_LEAST: u64 = 64;

/// Options of the build of a `remote-hnsw`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteOptions {
    /// Clusters of vectors; `None` for 500, or fewer of small sets.
    pub partitions: Option<usize>,
    /// How the vectors that represent them are chosen.
    pub representatives: Representatives,
    /// Room for fresh records that two clusters share, bytes; `None` for an eighth of their own.
    pub overflow_bytes: Option<u64>,
    /// Neighbours on upper layers, half of those on the bottom layer.
    pub m: usize,
    /// Length of the beam that finds neighbours.
    pub ef_construction: usize,
}

impl Default for RemoteOptions {
    fn default() -> Self {
        let representatives = Representatives::default();
        RemoteOptions { partitions: None, representatives, overflow_bytes: None, m: 16, ef_construction: 200 }
    }
}

impl RemoteOptions {
    /// Clusters of an index of so many rows.
    pub(crate) fn count(&self, rows: u64) -> usize {
        let default = || CLUSTERS.min(rows / MEMBERS_LEAST) as usize;
        self.partitions.unwrap_or_else(default).clamp(1, rows.max(1) as usize)
    }

    /// Checks the values.
    pub(crate) fn check(&self) -> Result<()> {
        let bad = |text: String| Err(Error::bad_input(text));
        match self {
            RemoteOptions { partitions: Some(0), .. } => bad("--partitions is 0; use 1 or more".into()),
            RemoteOptions { partitions: Some(p), .. } if *p > 65_536 => {
                bad(format!("--partitions is {p}; use up to 65536"))
            }
            RemoteOptions { m, .. } if !(2..=M_MAX).contains(m) => {
                bad(format!("-M is {m}; use 2 to {M_MAX}"))
            }
            RemoteOptions { ef_construction: ef, .. } if !(1..=MAX_EF as usize).contains(ef) => {
                bad(format!("--ef-construction is {ef}; use 1 to {MAX_EF}"))
            }
            RemoteOptions { overflow_bytes: Some(bytes), .. } if *bytes > CLUSTER_BYTES_MAX => bad(format!(
                "--overflow is {bytes} bytes; two clusters can share up to {}, which is a read",
                size(CLUSTER_BYTES_MAX)
            )),
            _ => Ok(()),
        }
    }

    /// The options that the content of an index depends on, as its manifest records them.
    pub(crate) fn record(&self) -> Vec<(&'static str, Value)> {
        vec![
            ("partitions", self.partitions.into()),
            ("representatives", self.representatives.name().into()),
            ("overflow", self.overflow_bytes.into()),
            ("m", self.m.into()),
            ("ef_construction", self.ef_construction.into()),
        ]
    }
}

/// Numbers of a search in a `remote-hnsw` that may be set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RemoteSwitches {
    /// Length of the beam in each cluster; `None` for that of the curve, or the default.
    pub ef: Option<u32>,
}
