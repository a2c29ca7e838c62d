//! The options of the kinds.

pub use super::hybrid_ivf::learning::options::{Learn, LearnOptions};
pub use super::hybrid_ivf::options::LocalPlan;
pub(crate) use super::hybrid_ivf::options::default_code_bytes;
