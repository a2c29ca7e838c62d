//! Frames between bytes and [`Peer`](super::Peer): everything that is costly about a message, outside of the peer's
//! lock.
//!
//! A frame is decoded before [`Peer::received`](super::Peer::received), a state is encoded before
//! [`Peer::stepped`](super::Peer::stepped), and a frame is assembled and sealed after the call that produced the
//! message.

use alloc::boxed::Box;
use alloc::vec::Vec;

use super::filters::{self, KEY_BYTES, KeyedFilter};
use super::message::{self, Message, Refused};
use super::{BufferPool, FILTER_BYTES_MAX, Run, Served};
use crate::kinds::IndexView;
use crate::query::wire::{self, Results};
use crate::query::{Budget, Hit, Params, QueryState, Step, Tag};

/// Encodes and decodes the frames of one server. Every thread has a copy.
#[derive(Clone, Copy, Debug)]
pub struct FrameCodec {
    server: u8,
    served: Served,
    // The version of states that is written, and the newest that is read.
    writes: u32,
    reads: u32,
}

/// A decoded frame that fits the index of this server.
#[derive(Clone, Debug)]
pub struct Received {
    pub(super) load: u8,
    // Of the frame.
    pub(super) bytes: u64,
    // Of a baton: whether the filter behind its vector begins with a key.
    pub(super) is_keyed: bool,
    pub(super) message: Message<Vec<u8>, Box<QueryState>, Vec<Hit>>,
}

/// A message to another server, not yet a frame.
#[derive(Clone, Debug)]
pub struct Outgoing {
    pub(super) load: u8,
    pub(super) message: Message<Vec<u8>>,
}

impl Outgoing {
    /// Whether nobody waits for it: a query that has ended may be forgotten some milliseconds later.
    pub fn may_be_late(&self) -> bool {
        matches!(self.message, Message::Release { .. })
    }
}

/// A query of a client, prepared for [`Peer::submit`](super::Peer::submit).
#[derive(Clone, Debug)]
pub struct NewQuery {
    pub(super) number: u64,
    pub(super) time_us: u64,
    pub(super) vector: Vec<u8>,
    pub(super) filter: Option<KeyedFilter>,
    pub(super) state: Box<QueryState>,
}

/// A state that has ended or goes on at another server, encoded for [`Peer::stepped`](super::Peer::stepped).
#[derive(Clone, Debug)]
pub struct Departure {
    pub(super) run: Run,
    pub(super) leaves: Leaves,
}

#[derive(Clone, Debug)]
pub(super) enum Leaves {
    /// The state goes on at another server. The report, if any, reaches the origin separately.
    HandOver { to: u8, state: Vec<u8>, report: Option<Report> },
    /// The state has ended at its origin.
    Answer(Box<QueryState>),
    /// The state has ended at a host.
    SendAnswer(Vec<u8>),
    /// The state was a job, which has ended.
    SendScores(Vec<u8>),
}

/// A job for another server, encoded for [`Peer::ask`](super::Peer::ask).
#[derive(Clone, Debug)]
pub struct AskedJob {
    pub(super) run: Run,
    pub(super) tag: u32,
    pub(super) to: u8,
    pub(super) is_forwarded: bool,
    pub(super) state: Vec<u8>,
}

/// Partial results for the origin.
#[derive(Clone, Debug)]
pub(super) enum Report {
    /// The origin is this server.
    Local { sequence: u32, k: u32, hits: Vec<Hit> },
    /// The origin is another server.
    Remote { sequence: u32, hits: Vec<u8> },
}

impl FrameCodec {
    pub(super) fn new(server: u8, served: Served, (writes, reads): (u32, u32)) -> FrameCodec {
        FrameCodec { server, served, writes, reads }
    }

    /// As this one, but writes states of another version.
    pub fn writing(self, version: u32) -> FrameCodec {
        FrameCodec { writes: version.clamp(wire::OLDEST_VERSION, wire::VERSION), ..self }
    }

    /// The number of this server.
    pub fn server(&self) -> u8 {
        self.server
    }

    /// The number in the whole cluster of a server that a state names: in a state the first of its part is 0.
    pub fn in_cluster(&self, server: u8) -> u8 {
        let parts = &self.served.parts;
        server.saturating_add(parts.first(parts.of(self.server)))
    }

    /// Prepares a client's query, which may return the rows of a filter alone. `number` differs from those of all other
    /// queries of this incarnation.
    pub fn new_query(
        &self,
        number: u64,
        (params, budget): (Params, Budget),
        (vector, filter): (&[u8], Option<KeyedFilter>),
        time_us: u64,
    ) -> NewQuery {
        // It may wait for long, so it takes no more memory than it needs: that of its slot is used when it begins.
        let state = Box::new(QueryState::new(params, budget));
        NewQuery { number, time_us, vector: vector.to_vec(), filter, state }
    }

    /// Encodes a state that can go no further here. `None` while it only waits.
    pub fn departure(
        &self,
        run: Run,
        step: Step,
        state: &QueryState,
        pool: &mut BufferPool,
    ) -> Option<Departure> {
        let leaves = match step {
            Step::Wait => return None,
            Step::HandOver(to) => self.hand_over(&run, self.in_cluster(to), state, pool),
            Step::Done if run.job.is_some() => {
                let mut scores = pool.buffer();
                wire::write_scores(state, self.writes, &mut scores);
                Leaves::SendScores(scores)
            }
            Step::Done => {
                let mut answer = pool.state();
                answer.become_answer_of(state);
                if run.query.origin == self.server {
                    Leaves::Answer(answer)
                } else {
                    let mut bytes = pool.buffer();
                    pool.encoder.encode(&answer, wire::Carry::Ids, self.writes, &mut bytes);
                    pool.recycle_state(answer);
                    Leaves::SendAnswer(bytes)
                }
            }
        };
        Some(Departure { run, leaves })
    }

    /// Encodes the job that a [`Want::Score`](crate::query::Want::Score) of a run's last step asks for.
    pub fn job(
        &self,
        run: Run,
        (tag, to): (Tag, u8),
        (view, state): (&IndexView<'_>, &QueryState),
        pool: &mut BufferPool,
    ) -> AskedJob {
        let mut job = pool.state();
        state.job(view, tag, &mut job);
        let mut bytes = pool.buffer();
        pool.encoder.encode(&job, self.served.carry, self.writes, &mut bytes);
        let is_forwarded = job.budget().hand_overs > 0;
        pool.recycle_state(job);
        AskedJob { run, tag: tag.0, to: self.in_cluster(to), is_forwarded, state: bytes }
    }

    fn hand_over(&self, run: &Run, to: u8, state: &QueryState, pool: &mut BufferPool) -> Leaves {
        let origin = run.query.origin;
        // Results travel with the state when it goes to its origin.
        let is_reported = self.served.results == Results::Origin && to != origin && run.job.is_none();
        let mut reports_sent = is_reported.then_some(state.q.top.reports_sent);
        let mut report = None;
        if is_reported && !state.q.top.hits.is_empty() {
            let sequence = state.q.top.reports_sent;
            reports_sent = Some(sequence.saturating_add(1));
            report = Some(if origin == self.server {
                let mut hits = pool.hits();
                hits.extend_from_slice(&state.q.top.hits);
                Report::Local { sequence, k: state.q.top.k, hits }
            } else {
                let mut hits = pool.buffer();
                wire::write_hits(&state.q.top.hits, &mut hits);
                Report::Remote { sequence, hits }
            });
        }
        let mut bytes = pool.buffer();
        pool.encoder.write(state, (self.served.carry, self.writes), reports_sent, &mut bytes);
        Leaves::HandOver { to, state: bytes, report }
    }

    /// The frame of a message. The message's memory is recycled.
    pub fn frame(&self, outgoing: Outgoing, pool: &mut BufferPool) -> Vec<u8> {
        let mut frame = pool.buffer();
        let Outgoing { load, message } = outgoing;
        message.encode(self.served.build, load, &mut frame);
        match message {
            Message::Baton { vector, state, .. } => {
                pool.recycle_buffer(vector);
                pool.recycle_buffer(state);
            }
            Message::Answer { state: bytes, .. } | Message::PartialResults { hits: bytes, .. } => {
                pool.recycle_buffer(bytes);
            }
            Message::Scores { scores, .. } => pool.recycle_buffer(scores),
            Message::Status(_)
            | Message::Release { .. }
            | Message::NoScores { .. }
            | Message::Threshold { .. }
            | Message::NoFilter { .. } => {}
        }
        frame
    }

    /// Decodes a frame from another server.
    ///
    /// # Errors
    /// A frame or state of another version, build or kind of index, and everything that is damaged or makes no sense
    /// here.
    pub fn decode(&self, frame: &[u8], pool: &mut BufferPool) -> Result<Received, Refused> {
        let (message, load) = message::decode(frame, self.served.build)?;
        let mut is_keyed = false;
        let message = match message {
            Message::Baton { run, visited, left_us, vector, state } => {
                is_keyed = filters::is_keyed(state);
                let key_bytes = if is_keyed { KEY_BYTES } else { 0 };
                let filter_bytes = vector.len().checked_sub(self.served.vector_bytes);
                let is_sane = match filter_bytes {
                    None => vector.is_empty(),
                    Some(0) => true,
                    Some(bytes) => (key_bytes..=key_bytes + FILTER_BYTES_MAX).contains(&bytes),
                };
                if !is_sane {
                    return Err(Refused::Content);
                }
                let state = self.baton(state, pool)?;
                if state.is_job() != run.job.is_some() {
                    pool.recycle_state(state);
                    return Err(Refused::Content);
                }
                Message::Baton { run, visited, left_us, vector: vector.to_vec(), state }
            }
            Message::Answer { run, visited, state } => {
                Message::Answer { run, visited, state: self.state(state, pool)? }
            }
            Message::PartialResults { run, sequence, hits: bytes } => {
                let mut hits = pool.hits();
                wire::read_hits(bytes, &mut hits)?;
                Message::PartialResults { run, sequence, hits }
            }
            Message::Scores { run, visited, scores } => {
                wire::read_scores(scores)?;
                Message::Scores { run, visited, scores: pool.copy(scores) }
            }
            Message::NoScores { run, why } => Message::NoScores { run, why },
            Message::Threshold { run, threshold } => Message::Threshold { run, threshold },
            Message::NoFilter { run } => Message::NoFilter { run },
            Message::Status(status) => Message::Status(status),
            Message::Release { query } => Message::Release { query },
        };
        Ok(Received { load, bytes: frame.len() as u64, is_keyed, message })
    }

    /// A state that can go on here.
    fn baton(&self, bytes: &[u8], pool: &mut BufferPool) -> Result<Box<QueryState>, Refused> {
        let state = self.state(bytes, pool)?;
        let is_scored = self.served.rescores || state.has_distances();
        if is_scored && state.is_baton(&self.served.size) {
            return Ok(state);
        }
        pool.recycle_state(state);
        Err(Refused::Content)
    }

    /// A state of this server's kind of index.
    fn state(&self, bytes: &[u8], pool: &mut BufferPool) -> Result<Box<QueryState>, Refused> {
        match bytes.first_chunk().map(|version| u32::from_le_bytes(*version)) {
            Some(version) if version > self.reads => return Err(Refused::Version(version)),
            _ => {}
        }
        let mut state = pool.state();
        let decoded =
            wire::decode_into(bytes, &mut state).and_then(|()| match state.params().kind.number() {
                kind if kind == self.served.kind => Ok(()),
                kind => Err(Refused::Kind(kind)),
            });
        match decoded {
            Ok(()) => Ok(state),
            Err(refused) => {
                pool.recycle_state(state);
                Err(refused)
            }
        }
    }
}
