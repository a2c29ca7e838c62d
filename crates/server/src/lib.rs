//! The HTTP front: it passes requests to the engine and returns the answers. It takes no decision about a search.
//!
//! [`paths`] are the served ones; `docs/book/serve.md` describes them for users.

mod activity;
pub mod callers;
mod connections;
mod limits;
mod named_ids;
mod patient;
mod request;
mod routes;
mod signals;
pub mod wire;

pub use connections::{Front, FrontOptions, Log};
pub use limits::Limits;
pub use routes::paths;
pub use signals::{Signal, watch_signals};
