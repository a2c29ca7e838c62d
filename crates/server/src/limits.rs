//! Limits of the HTTP front.

use std::time::Duration;

use stratann_engine::budget::THREAD_BYTES;

/// Bytes of a connection: its state, and buffers for reads and writes.
pub(crate) const CONNECTION_BYTES: usize = 32 << 10;
/// Bytes of an answer for each result: id and distance, as numbers and as JSON.
const RESULT_BYTES: usize = 48;
/// Bytes of an answer without its results: counters as JSON, and the waiting request.
const ANSWER_BYTES: usize = 1024;
/// Memory of the front without a RAM budget, bytes.
const USUAL_BYTES: u64 = 64 << 20;
/// Smallest memory of the front, bytes.
const LEAST_BYTES: u64 = 2 << 20;

/// Limits of the front. Half of its memory is for connections, half for bodies and answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Connections at a time; more wait to be accepted.
    pub connections: usize,
    /// Bytes of the bodies and answers of all requests at a time; one request more is refused as overload.
    pub memory_bytes: usize,
    /// Bytes of the body of one request.
    pub body_bytes: usize,
    /// Queries of one request.
    pub queries: usize,
    /// Longest timeout of a request, milliseconds.
    pub timeout_ms: u64,
    /// Time for a client to send a body, and between two reads of an answer.
    pub patience: Duration,
}

impl Limits {
    /// Limits for a process with a budget of `ram_budget` bytes: an eighth of it, from 2 to 64 MiB.
    pub fn within(ram_budget: Option<u64>) -> Limits {
        let bytes = ram_budget.map_or(USUAL_BYTES, |b| (b / 8).clamp(LEAST_BYTES, USUAL_BYTES)) as usize;
        let memory_bytes = bytes / 2;
        Limits {
            connections: bytes / 2 / CONNECTION_BYTES,
            memory_bytes,
            body_bytes: memory_bytes / 4,
            queries: 1024,
            timeout_ms: 60_000,
            patience: Duration::from_secs(30),
        }
    }

    /// All memory of a front with these limits and `threads` threads, bytes.
    pub fn bytes(&self, threads: usize) -> u64 {
        (self.connections * CONNECTION_BYTES + self.memory_bytes) as u64 + threads as u64 * THREAD_BYTES
    }

    /// Bytes of the answers to `queries` queries.
    pub(crate) fn answer_bytes(queries: usize, k: usize) -> usize {
        queries.saturating_mul(k.saturating_mul(RESULT_BYTES).saturating_add(ANSWER_BYTES))
    }
}

impl Default for Limits {
    fn default() -> Self {
        Limits::within(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_front_takes_no_more_than_an_eighth() {
        assert_eq!(Limits::default(), Limits::within(Some(1 << 40)));
        assert_eq!(Limits::default().connections, 1024);
        for budget in [64 << 20, 256 << 20, 512 << 20] {
            let limits = Limits::within(Some(budget));
            assert_eq!(limits.bytes(0), budget / 8);
            assert!(
                limits.body_bytes * 3 <= limits.memory_bytes,
                "a body as JSON takes three times its length"
            );
        }
        assert_eq!(Limits::within(Some(1)).bytes(0), LEAST_BYTES);
    }
}
