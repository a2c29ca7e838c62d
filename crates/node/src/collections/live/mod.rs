//! An open collection: whose turn it is to change it, groups of changes, checkpoints and merges.

mod chosen;
mod jobs;
mod making;
pub(super) mod opening;
mod pace;
mod payloads;
mod publish;
mod schema;
mod sequencer;
mod slot;
mod vectors;

pub use jobs::JobFacts;
pub(super) use jobs::{Job, Jobs};
pub(super) use slot::{Live, Shared, Slot};
