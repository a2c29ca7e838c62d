//! The questions that the engine asks of a kind. Each kind answers in its folder; a kind without a capability has no
//! line for it.

mod builds_kind;
mod kind;
mod members;
mod open_kind;
mod search_params;

pub(crate) use builds_kind::BuildsKind;
pub(crate) use kind::Kind;
pub(crate) use members::Members;
pub(crate) use open_kind::{MovesIntoMemory, OpenKind, RanksCodes};
pub(crate) use search_params::{SearchParams, grown};
