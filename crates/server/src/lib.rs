//! The HTTP front: it passes requests to the engine, or to the collections of a data folder, and returns the answers.
//! It takes no decision about a search.
//!
//! [`paths`] and [`collection_paths`] are the served ones; `docs/book/serve.md` and `docs/book/collections.md` describe
//! them for users.

mod activity;
pub mod callers;
mod collections;
mod connections;
mod limits;
mod named_ids;
mod patient;
pub mod problem;
mod request;
mod routes;
mod shared;
mod signals;
mod vectors;
pub mod wire;

pub use collections::{ServedCollections, paths as collection_paths};
pub use connections::{Front, FrontOptions, Log};
pub use limits::Limits;
pub use routes::paths;
pub use signals::{Signal, watch_signals};
