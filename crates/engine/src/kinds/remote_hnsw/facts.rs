//! Facts of a `remote-hnsw` in the manifest besides those of every index.

use crate::files;
use crate::kinds::facts::KindFacts;
use serde::{Deserialize, Serialize};
use stratann_core::format::region::{CONTROL_BYTES, GROUP_WORDS_BYTES};

/// Constants of the kind.
pub(crate) const FACTS: KindFacts = KindFacts {
    recall_options: "more --ef-construction, or fewer --partitions",
    unit_names: ("cluster", "clusters"),
    group_name: "clusters",
    shares_reads: true,
    // Whole clusters are missed, and questions have neighbours in twice as many clusters as rows with noise.
    misses_aimed: Some(0.45),
    compares_vectors: true,
    data_role: files::REGION,
    has_nodes_in_blocks: false,
    ..KindFacts::USUAL
};

pub use crate::clusterings::sizes::SizeStats;

/// The section of a `remote-hnsw` in the manifest.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RemoteSection {
    /// Clusters and groups.
    #[serde(rename = "remote")]
    pub facts: RemoteFacts,
}

/// Clusters and groups of a `remote-hnsw`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RemoteFacts {
    /// Members of the clusters.
    pub sizes: SizeStats,
    /// Groups of two clusters each.
    pub groups: u32,
    /// Neighbours on upper layers, half of those on the bottom layer.
    pub m: u32,
    /// Bytes of the sub-HNSW of the largest cluster.
    pub cluster_bytes_max: u64,
    /// Bytes of all sub-HNSWs.
    pub cluster_bytes: u64,
    /// Fresh records that a group has room for.
    pub capacity: u32,
    /// Bytes of a fresh record.
    pub record_bytes: u64,
    /// Tombstones that there is room for.
    pub tombstones: u64,
    /// Bytes of the meta-HNSW.
    pub meta_bytes: u64,
    /// Largest squared norm, under inner product: inserts find their clusters by it, as the build did. Otherwise 0.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub squared_norm_max: f64,
}

fn is_zero(number: &f64) -> bool {
    *number == 0.0
}

impl RemoteFacts {
    /// Clusters of vectors.
    pub fn clusters(&self) -> u32 {
        self.sizes.count as u32
    }

    /// Room for fresh records in each group, bytes.
    pub fn overflow_bytes(&self) -> u64 {
        u64::from(self.capacity) * self.record_bytes
    }

    /// Bytes of the headers that each batch reads from memory nodes.
    pub fn headers_bytes(&self) -> u64 {
        CONTROL_BYTES + u64::from(self.groups) * GROUP_WORDS_BYTES
    }

    /// Bytes in RAM of where the clusters are.
    pub(crate) fn table_bytes(&self) -> u64 {
        let located = size_of::<stratann_core::kinds::remote_hnsw::Located>() as u64;
        u64::from(self.clusters()) * (located + 4)
    }
}
