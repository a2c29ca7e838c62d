//! Calls of the protocol, and the actions that result from them.
//!
//! Frames are decoded and states are encoded before the lock of [`Peer`] is taken; frames are assembled and sent after
//! it is released.

use std::cell::Cell;
use std::sync::atomic::Ordering;

use stratann_core::kinds::IndexView;
use stratann_core::peer::message::Refused;
use stratann_core::peer::{Action, BufferPool, Failure, FrameCodec, KeyedFilter, Peer, Run};
use stratann_core::query::{Budget, Loss, Outcome, Params, QueryState, Step, Tag, Threshold};
use stratann_storage::ledger::Part;
use stratann_storage::link::Link;

use super::inbox::{Job, Place, Size};
use super::question::{Answer, Unanswered, named};
use super::scores::Scored;
use super::state::{Client, ServerState};
use super::{QueryFilter, lock};

/// Bytes that a byte of a frame becomes at most, once decoded: an entry of a candidate queue.
const DECODED_PER_BYTE: u64 = 12;
/// Most bytes of a decoded state: its counts are checked against their limits.
const DECODED_MAX: u64 = 2 << 20;
/// Units whose failed reads are logged in one line.
const UNREADABLE_RANGE: u32 = 1024;

fn describe(loss: Loss) -> &'static str {
    match loss {
        Loss::Failed => "the read failed",
        Loss::Short => "the file is cut short",
        Loss::Damaged => "it is damaged",
        Loss::Expired => "it took too long",
    }
}

/// Memory of one thread for calls of the protocol, empty between them.
#[derive(Default)]
struct ThreadMemory {
    actions: Vec<Action>,
    pool: BufferPool,
}

thread_local! {
    static MEMORY: Cell<ThreadMemory> = Cell::default();
    // Whether the thread sends its frames at the end of a round.
    static SENDS_BY_ROUND: Cell<bool> = const { Cell::new(false) };
}

/// The thread sends its frames at the end of each round of turns as long as this lives, those to one server together.
pub(super) struct SendingByRound;

impl SendingByRound {
    pub(super) fn begin() -> SendingByRound {
        SENDS_BY_ROUND.set(true);
        SendingByRound
    }
}

impl Drop for SendingByRound {
    fn drop(&mut self) {
        SENDS_BY_ROUND.set(false);
    }
}

impl ServerState {
    /// Calls the protocol, then performs the actions that result.
    pub(super) fn with_peer(&self, call: impl FnOnce(&mut Peer, u64, &mut Vec<Action>)) {
        self.with_codec(|_, _| Some(()), |peer, now_us, (), out| call(peer, now_us, out));
    }

    /// Prepares a call of the protocol without its lock, makes the call, and performs the actions that result. There is
    /// no call when `prepare` returns `None`.
    fn with_codec<T>(
        &self,
        prepare: impl FnOnce(&FrameCodec, &mut BufferPool) -> Option<T>,
        call: impl FnOnce(&mut Peer, u64, T, &mut Vec<Action>),
    ) {
        // Taken, not borrowed: an answer may make its client submit the next query at once. That call begins with empty
        // memory.
        let mut memory = MEMORY.take();
        let codec = self.codec.writing(self.states_version.load(Ordering::Relaxed));
        if let Some(prepared) = prepare(&codec, &mut memory.pool) {
            let mut peer = self.lock_peer();
            peer.exchange(&mut memory.pool);
            peer.set_load(self.running.load(Ordering::Relaxed) + self.inbox.len());
            // The clock is read under the lock, so that time never decreases for the protocol.
            call(&mut peer, self.now_us(), prepared, &mut memory.actions);
            self.states_version.store(peer.states_version(), Ordering::Relaxed);
            self.abandoned.store(peer.abandoned(), Ordering::Relaxed);
            *self.lock_known() = peer.known();
            drop(peer);
            let ThreadMemory { actions, pool } = &mut memory;
            actions.drain(..).for_each(|action| self.perform(action, pool));
            if !SENDS_BY_ROUND.get() {
                self.send_queued();
            }
        }
        MEMORY.set(memory);
    }

    /// Sends the frames that are queued.
    pub(super) fn send_queued(&self) {
        self.link.get().into_iter().for_each(Link::write_now);
    }

    /// A client submits a query.
    pub(super) fn submit(
        &self,
        client: u64,
        what: (Params, Budget),
        vector: (&[u8], Option<KeyedFilter>),
        time_us: u64,
    ) {
        self.with_codec(
            |codec, _| Some(codec.new_query(client, what, vector, time_us)),
            |peer, now_us, query, out| peer.submit(now_us, query, out),
        );
    }

    /// A frame has arrived from another server.
    ///
    /// A frame that there is no memory for is dropped: its query is lost here like one in a lost frame.
    pub(super) fn receive(&self, server: u8, frame: &[u8]) -> Result<(), Refused> {
        let mut decoded = Ok(());
        let bytes = frame.len() as u64;
        let needed = (bytes * DECODED_PER_BYTE).min(bytes + DECODED_MAX);
        let Some(_memory) = self.ledger.reserve(Part::Batons, needed) else {
            self.counters.refused_batons.fetch_add(1, Ordering::Relaxed);
            return Ok(());
        };
        self.with_codec(
            |codec, pool| codec.decode(frame, pool).map_err(|why| decoded = Err(why)).ok(),
            |peer, now_us, received, out| peer.received(now_us, server, received, out),
        );
        decoded
    }

    /// The state of a run has ended, or goes on at another server.
    pub(super) fn depart(&self, run: Run, step: Step, state: &QueryState) {
        self.with_codec(
            |codec, pool| codec.departure(run, step, state, pool),
            |peer, now_us, departure, out| peer.stepped(now_us, departure, out),
        );
    }

    /// The state of a run on this thread waits for a job.
    pub(super) fn ask_job(
        &self,
        (run, thread): (Run, usize),
        job: (Tag, u8),
        from: (&IndexView<'_>, &QueryState),
    ) {
        self.scores.ask(run, thread);
        self.counters.jobs_out.fetch_add(1, Ordering::Relaxed);
        self.with_codec(
            |codec, pool| Some(codec.job(run, job, from, pool)),
            |peer, now_us, asked, out| peer.ask(now_us, asked, out),
        );
    }

    /// Sends the jobs of a run on another server a lower threshold. `to` is its number in this part.
    pub(super) fn tell(&self, run: &Run, to: u8, threshold: Threshold) {
        let to = self.codec.in_cluster(to);
        self.with_peer(|peer, _, out| peer.tell(run, (to, threshold), out));
    }

    fn perform(&self, action: Action, pool: &mut BufferPool) {
        match action {
            Action::Send { to, message } => {
                let may_be_late = message.may_be_late();
                let frame = self.codec.frame(message, pool);
                // A dropped frame is a loss like any other: the origin starts another attempt.
                let _ = self.link.get().is_some_and(|link| match may_be_late {
                    true => link.queue_late(to, &frame),
                    false => link.queue(to, &frame),
                });
                pool.recycle_buffer(frame);
            }
            Action::Start { run, state } => {
                if state.stats().hand_overs > 0 && run.job.is_none() {
                    self.counters.hand_overs_in.fetch_add(1, Ordering::Relaxed);
                }
                if run.job.is_some() {
                    self.counters.jobs_in.fetch_add(1, Ordering::Relaxed);
                }
                self.start(run, state);
            }
            Action::Scored { run, tag, scores } => self.keep_scores(run, tag, scores),
            Action::Answer { number, state } => {
                self.answer(number, &state);
                pool.recycle_state(state);
            }
            Action::Fail { number, why: Failure::Overloaded } => self.refuse(number, Unanswered::Overloaded),
            Action::Fail { number, why: Failure::Expired } => self.refuse(number, Unanswered::Expired),
        }
    }

    /// Keeps scores for the thread that waits for them. Without memory for them they are lost.
    fn keep_scores(&self, run: Run, tag: Tag, scores: Result<Vec<u8>, Loss>) {
        let bytes = scores.as_ref().map_or(0, |bytes| bytes.capacity() as u64);
        let memory = if bytes > 0 { self.ledger.reserve(Part::Batons, bytes) } else { None };
        let scores = if bytes > 0 && memory.is_none() {
            self.counters.refused_batons.fetch_add(1, Ordering::Relaxed);
            Err(Loss::Failed)
        } else {
            scores
        };
        if let Some(thread) = self.scores.put(Scored { run, tag, scores, memory }) {
            self.inbox.wake(thread);
        }
    }

    /// Gives a query to the driver threads. A state from another server is dropped when there is no memory to keep it.
    fn start(&self, run: Run, state: Box<QueryState>) {
        let own = (run.query.origin == self.codec.server()).then(|| self.of_client(run.query.number));
        let (place, size, filter) = own
            .flatten()
            .unwrap_or_else(|| (Place::default(), self.size_of(state.params(), None, false), None));
        let own_bytes = if state.is_new() { 0 } else { state.memory_bytes() as u64 };
        let bytes = own_bytes + if run.job.is_some() { size.extra_bytes } else { 0 };
        let memory = if bytes > 0 { self.ledger.reserve(Part::Batons, bytes) } else { None };
        if bytes > 0 && memory.is_none() {
            self.counters.refused_batons.fetch_add(1, Ordering::Relaxed);
            return self.with_peer(|peer, now_us, out| peer.refused(now_us, &run, out));
        }
        self.inbox.push(Job { run, state, size, place, filter, memory, queued_us: self.now_us() });
    }

    /// What a client's query takes, and its filter.
    fn of_client(&self, number: u64) -> Option<(Place, Size, Option<QueryFilter>)> {
        let clients = lock(&self.clients);
        clients.get(&number).map(|client| (client.place, client.size, client.filter.clone()))
    }

    fn answer(&self, number: u64, state: &QueryState) {
        let Some(client) = lock(&self.clients).remove(&number) else { return };
        let Client { reply, asked, partial, .. } = client;
        let verdict = verdict(state, partial, self.index.index().base.facts().unit_names.0);
        let counter = if verdict.is_ok() { &self.counters.answered } else { &self.counters.refused };
        counter.fetch_add(1, Ordering::Relaxed);
        reply(verdict.map(|()| Answer {
            ids: state.results().iter().map(|h| h.external_id).collect(),
            distances: state.results().iter().map(|h| h.distance).collect(),
            is_partial: state.outcome() == Outcome::Partial,
            lost_parts: lost_parts(state),
            stats: *state.stats(),
            latency_us: asked.elapsed().as_micros() as u64,
        }));
    }

    /// Counts a failed read, and logs it once for a range of units: a disk that fails does so again and again.
    pub(super) fn note_lost(&self, unit: u32, loss: Loss) {
        self.counters.lost_reads.fetch_add(1, Ordering::Relaxed);
        let range = unit / UNREADABLE_RANGE;
        if !lock(&self.unreadable).insert(range) {
            return;
        }
        let first = range * UNREADABLE_RANGE;
        let (one, _) = self.index.index().base.facts().unit_names;
        let next = self.index.without_a_unit();
        (self.options.log)(&format!(
            "{one} {unit} (of {first} to {}) of {} cannot be read: {}; {next}; \
             run `stratann verify`, then restore the file",
            first.saturating_add(UNREADABLE_RANGE - 1),
            self.index.index().base.blocks_path.display(),
            describe(loss)
        ));
    }

    pub(super) fn refuse(&self, number: u64, why: Unanswered) {
        let Some(waiting) = lock(&self.clients).remove(&number) else { return };
        self.counters.refused.fetch_add(1, Ordering::Relaxed);
        (waiting.reply)(Err(why));
    }
}

/// The parts of the cluster that gave no answer.
fn lost_parts(state: &QueryState) -> Vec<u8> {
    (0..64).filter(|part| state.lost_parts() >> part & 1 == 1).collect()
}

/// Whether an ended query's results are an answer for its client. `partial` accepts an incomplete one; `one` is the
/// name of a unit.
fn verdict(state: &QueryState, partial: bool, one: &str) -> Result<(), Unanswered> {
    match state.outcome() {
        Outcome::Complete => Ok(()),
        Outcome::Partial if partial => Ok(()),
        Outcome::Partial => {
            let parts = lost_parts(state);
            Err(match state.unreadable() {
                Some((unit, loss)) => Unanswered::Failed(format!(
                    "{one} {unit}{} could not be read on any server that holds it and answers ({}); \
                     run `stratann verify` there",
                    if parts.is_empty() {
                        String::new()
                    } else {
                        format!(" of {} {}", named(&parts).0, named(&parts).1)
                    },
                    describe(loss)
                )),
                None => Unanswered::Unreachable(parts),
            })
        }
        Outcome::OutOfBudget => Err(Unanswered::Failed(
            "the query ran out of its allowance of reads; ask for a lower recall".into(),
        )),
        Outcome::Lost { unit, loss, .. } => Err(Unanswered::Failed(format!(
            "{one} {unit} could not be used ({}); run `stratann verify` on the servers that hold it",
            describe(loss)
        ))),
        Outcome::WrongKind => Err(Unanswered::Failed(
            "the query is of another kind than the index; give all servers the same index".into(),
        )),
        Outcome::Running => {
            Err(Unanswered::Failed("the query came back unfinished; please report it".into()))
        }
    }
}
