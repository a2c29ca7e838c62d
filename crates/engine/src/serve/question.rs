//! What clients ask, and what they are told.

use std::time::Duration;

use stratann_core::query::{Params, QueryStats};

/// A query of a client.
#[derive(Clone, Copy, Debug)]
pub struct Question<'a> {
    /// `dim` components of the index' element type, as bytes.
    pub vector: &'a [u8],
    /// What is asked: see [`super::Server::params`].
    pub params: Params,
    /// How long the client waits.
    pub timeout: Duration,
    /// Whether an answer without the parts that no live server holds will do.
    pub partial: bool,
}

/// What a client gets.
#[derive(Clone, Debug)]
pub struct Answer {
    /// External ids, closest first.
    pub ids: Vec<u64>,
    /// Distances, ascending.
    pub distances: Vec<f32>,
    /// Whether parts of the index could not be reached.
    pub is_partial: bool,
    /// What the query cost, on all servers.
    pub stats: QueryStats,
    /// Microseconds from question to answer.
    pub latency_us: u64,
}

/// Why a client gets no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unanswered {
    /// Too many queries wait already.
    Overloaded,
    /// The time that the client waits is up.
    Expired,
    /// No live server holds a part of the index that the query wanted.
    Unreachable,
    /// Something broke; why, in words.
    Failed(String),
}

impl std::fmt::Display for Unanswered {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Unanswered::Overloaded => {
                write!(f, "the server holds as many queries as it may; ask again later, or another server")
            }
            Unanswered::Expired => write!(
                f,
                "the query took longer than its client waits; allow more time, or ask for a lower recall"
            ),
            Unanswered::Unreachable => write!(
                f,
                "no server that answers holds a part of the index that the query wanted; start the missing servers, or accept a \
                 partial answer"
            ),
            Unanswered::Failed(why) => write!(f, "{why}"),
        }
    }
}

impl std::error::Error for Unanswered {}

/// Is told how a question ended; called once.
pub type Reply = Box<dyn FnOnce(std::result::Result<Answer, Unanswered>) + Send>;
