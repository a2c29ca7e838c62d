//! Queries of clients, and their answers.

use std::time::Duration;

use stratann_core::query::{Params, QueryStats};

use super::QueryFilter;

/// A query of a client.
#[derive(Clone, Copy, Debug)]
pub struct Question<'a> {
    /// `dim` components of the index's element type, as bytes.
    pub vector: &'a [u8],
    /// Parameters: see [`super::Server::params`].
    pub params: Params,
    /// The rows that it may return; `None` for all.
    pub filter: Option<&'a QueryFilter>,
    /// Time until the deadline.
    pub timeout: Duration,
    /// Whether the client accepts an answer without the parts that no live server holds.
    pub partial: bool,
    /// The client who asks. Clients take turns, whatever the number of their requests.
    pub client: u64,
    /// The request that it belongs to. Requests of a client take turns, whatever the number of their queries.
    pub request: u64,
    /// Whether it is one of many: its steps come after those of other queries.
    pub is_batch: bool,
}

/// The answer to a query.
#[derive(Clone, Debug)]
pub struct Answer {
    /// External ids, closest first.
    pub ids: Vec<u64>,
    /// Distances, ascending.
    pub distances: Vec<f32>,
    /// Whether parts of the index could not be reached.
    pub is_partial: bool,
    /// Indexes of a cluster that gave no answer, by number.
    pub lost_parts: Vec<u8>,
    /// Counters of the query, summed over all servers.
    pub stats: QueryStats,
    /// Time from question to answer, microseconds.
    pub latency_us: u64,
}

/// Reason why a client gets no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unanswered {
    /// Too many queries wait already.
    Overloaded,
    /// The deadline has passed.
    Expired,
    /// No live server holds a part of the index that the query needs. Of a cluster with several indexes these are
    /// named, by number.
    Unreachable(Vec<u8>),
    /// Memory nodes do not give what the query needs; why.
    MemoryLost(String),
    /// Any other failure, in words.
    Failed(String),
}

impl std::fmt::Display for Unanswered {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Unanswered::Overloaded => {
                write!(f, "the server holds as many queries as it may; ask again later, or another server")
            }
            Unanswered::Expired => {
                write!(
                    f,
                    "the query took longer than its timeout; allow more time, or ask for a lower recall"
                )
            }
            Unanswered::Unreachable(parts) if !parts.is_empty() => {
                let (name, parts) = named(parts);
                write!(
                    f,
                    "no server that answers has {name} {parts} of the cluster; start the missing servers, or accept \
                     a partial answer"
                )
            }
            Unanswered::Unreachable(_) => write!(
                f,
                "no server that answers holds a part of the index that the query needs; \
                 start the missing servers, or accept a partial answer"
            ),
            Unanswered::MemoryLost(why) => {
                write!(f, "memory nodes are lost: {why}; ask again later, or another server")
            }
            Unanswered::Failed(why) => write!(f, "{why}"),
        }
    }
}

/// "part" or "parts", and their numbers.
pub(super) fn named(parts: &[u8]) -> (&'static str, String) {
    let numbers: Vec<String> = parts.iter().map(u8::to_string).collect();
    (if parts.len() == 1 { "part" } else { "parts" }, numbers.join(", "))
}

impl std::error::Error for Unanswered {}

/// Receives the result of a question; called once.
pub type Reply = Box<dyn FnOnce(std::result::Result<Answer, Unanswered>) + Send>;
