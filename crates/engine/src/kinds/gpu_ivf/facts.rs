//! Facts of a `gpu-ivf` in the manifest besides those of every index.

use crate::kinds::facts::KindFacts;
use serde::{Deserialize, Serialize};

/// Constants of the kind.
pub(crate) const FACTS: KindFacts =
    KindFacts { recall_options: "more --code-bytes or --epsilon", has_scorer: true, ..KindFacts::USUAL };

pub use crate::clusterings::sizes::SizeStats;

/// The section of a `gpu-ivf` in the manifest.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GpuSection {
    /// Lists and blocks.
    #[serde(rename = "gpu")]
    pub facts: GpuFacts,
}

/// Lists and blocks of a `gpu-ivf`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GpuFacts {
    /// Members of the lists, replicas included.
    pub sizes: SizeStats,
    /// Lists that a vector is in, by the mean.
    pub replication: f64,
    /// Bytes of a replica in RAM, by the mean.
    pub replica_bytes: f64,
    /// Vectors that a block has room for.
    pub vectors_per_block: u32,
    /// Share of the room in blocks that vectors fill.
    pub filled: f64,
    /// Root mean square length of the vectors, by their codes.
    pub vector_norm: f32,
    /// Whether there are files for searches as other systems do them.
    pub baselines: bool,
}

impl GpuFacts {
    /// Inverted lists.
    pub fn lists(&self) -> u32 {
        self.sizes.count as u32
    }
}
