//! The HTTP front: it passes requests to the engine and returns the answers. It takes no decision about a search.
//!
//! `POST /v1/search`, `GET /v1/health` and `GET /v1/status`; `docs/book/serve.md` describes them for users.

mod activity;
mod connections;
mod limits;
mod patient;
mod request;
mod routes;
mod signals;
pub mod wire;

pub use connections::{Front, FrontOptions, Log};
pub use limits::Limits;
pub use signals::{Signal, watch_signals};
