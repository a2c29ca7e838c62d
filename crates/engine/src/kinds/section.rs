//! Part of a kind in the manifest.

use serde::{Deserialize, Serialize};

pub use super::gpu_ivf::facts::GpuSection;
pub use super::grid_ivf::facts::GridSection;
pub use super::hybrid_ivf::facts::ListSection;
pub use super::remote_hnsw::facts::RemoteSection;

/// Makes the sum of sections. A line is a kind with a section: its variant, how it is read, its type, and the key under
/// which its facts are in the manifest.
macro_rules! sections {
    ($($variant:ident $read:ident $own:ident $key:literal,)*) => {
        /// The section of a kind in the manifest. Its keys stand beside those of every index.
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        #[serde(untagged)]
        pub enum Section {
            $(#[doc = concat!("With the key `", $key, "`.")] $variant(Box<$own>),)*
            /// Of a kind that adds nothing.
            None {},
        }

        impl Section {
            $(
                #[doc = concat!("The section with the key `", $key, "`; `None` of another kind.")]
                pub fn $read(&self) -> Option<&$own> {
                    if let Section::$variant(own) = self { Some(own) } else { None }
                }
            )*

            /// Adds what the content of the index depends on.
            pub(crate) fn identify(&self, parts: &mut serde_json::Value) {
                match self {
                    $(Section::$variant(own) => parts[$key] = serde_json::json!(own.facts),)*
                    Section::None {} => {}
                }
            }
        }

        $(
            impl From<$own> for Section {
                fn from(own: $own) -> Section {
                    Section::$variant(Box::new(own))
                }
            }
        )*
    };
}

sections! {
    HybridIvf lists ListSection "clusters",
    GridIvf grid GridSection "grid",
    GpuIvf gpu GpuSection "gpu",
    RemoteHnsw remote RemoteSection "remote",
}

impl Section {
    /// Share of the lists that a plan holds resident; `None` without a plan.
    pub(crate) fn planned_resident_share(&self) -> Option<f64> {
        self.lists()?.plan.as_ref().map(|plan| plan.resident_share())
    }
}
