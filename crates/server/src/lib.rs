//! The HTTP front: requests in, questions to the engine, answers out. It decides nothing about a search.
//!
//! `POST /v1/search`, `GET /v1/health` and `GET /v1/status`; `docs/book/serve.md` describes them for users.

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
