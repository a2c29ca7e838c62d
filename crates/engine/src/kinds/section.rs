//! What a kind adds to the manifest.

use serde::{Deserialize, Serialize};

pub use super::gpu_ivf::facts::GpuSection;
pub use super::grid_ivf::facts::GridSection;
pub use super::hybrid_ivf::facts::ListSection;
pub use super::remote_hnsw::facts::RemoteSection;

/// The section of a kind in the manifest. Its keys stand beside those of every index.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Section {
    /// Of a `hybrid-ivf`.
    HybridIvf(Box<ListSection>),
    /// Of a `grid-ivf`.
    GridIvf(Box<GridSection>),
    /// Of a `gpu-ivf`.
    GpuIvf(Box<GpuSection>),
    /// Of a `remote-hnsw`.
    RemoteHnsw(Box<RemoteSection>),
    /// Of a kind that adds nothing.
    None {},
}

impl Section {
    /// The section of a `hybrid-ivf`; `None` of another kind.
    pub fn lists(&self) -> Option<&ListSection> {
        if let Section::HybridIvf(section) = self { Some(section) } else { None }
    }

    /// Share of the lists that a plan holds resident; `None` without a plan.
    pub(crate) fn planned_resident_share(&self) -> Option<f64> {
        self.lists()?.plan.as_ref().map(|plan| plan.resident_share())
    }

    /// The section of a `grid-ivf`; `None` of another kind.
    pub fn grid(&self) -> Option<&GridSection> {
        if let Section::GridIvf(section) = self { Some(section) } else { None }
    }

    /// The section of a `gpu-ivf`; `None` of another kind.
    pub fn gpu(&self) -> Option<&GpuSection> {
        if let Section::GpuIvf(section) = self { Some(section) } else { None }
    }

    /// The section of a `remote-hnsw`; `None` of another kind.
    pub fn remote(&self) -> Option<&RemoteSection> {
        if let Section::RemoteHnsw(section) = self { Some(section) } else { None }
    }

    /// Adds what the content of the index depends on.
    pub(crate) fn identify(&self, parts: &mut serde_json::Value) {
        match self {
            Section::HybridIvf(section) => parts["clusters"] = serde_json::json!(section.facts),
            Section::GridIvf(section) => parts["grid"] = serde_json::json!(section.facts),
            Section::GpuIvf(section) => parts["gpu"] = serde_json::json!(section.facts),
            Section::RemoteHnsw(section) => parts["remote"] = serde_json::json!(section.facts),
            Section::None {} => {}
        }
    }
}
