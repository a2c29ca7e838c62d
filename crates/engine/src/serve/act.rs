//! What the protocol decides, carried out.

use std::cell::Cell;
use std::sync::atomic::Ordering;

use stratann_core::peer::{Action, Failure, Peer};
use stratann_core::query::{Loss, Outcome, QueryState};

use super::held::Held;
use super::inbox::Job;
use super::question::{Answer, Unanswered};
use super::{Client, Shared, lock};

/// Blocks of which together one line says that some cannot be read.
const UNREADABLE_RANGE: u32 = 1024;

fn words(loss: Loss) -> &'static str {
    match loss {
        Loss::Failed => "the read failed",
        Loss::Short => "the file is cut short",
        Loss::Damaged => "it is damaged",
        Loss::Expired => "it took too long",
    }
}

/// What a thread has used of the protocol's memory, on its way back there.
#[derive(Default)]
struct Hands {
    actions: Vec<Action>,
    frames: Vec<Vec<u8>>,
    #[expect(clippy::vec_box, reason = "they come and go in their boxes")]
    states: Vec<Box<QueryState>>,
}

thread_local! {
    static HANDS: Cell<Hands> = Cell::default();
}

/// An action that was carried out, as far as memory is left of it.
enum Done {
    Sent(Vec<u8>),
    Answered(Box<QueryState>),
}

impl Shared {
    /// Lets the protocol decide, then does what it decided.
    pub(super) fn with_peer(&self, decide: impl FnOnce(&mut Peer, u64, &mut Vec<Action>)) {
        // Taken away, since an answer may make its client ask at once: that call begins with empty hands.
        let mut hands = HANDS.take();
        let mut peer = self.lock_peer();
        hands.frames.drain(..).for_each(|frame| peer.keep_frame(frame));
        hands.states.drain(..).for_each(|state| peer.keep_state(state));
        peer.set_load(self.running.load(Ordering::Relaxed) + self.inbox.len());
        // The clock is read under the lock, so that the protocol never sees it go back.
        decide(&mut peer, self.now_us(), &mut hands.actions);
        self.live.store(peer.live(), Ordering::Relaxed);
        *self.lock_loads() = peer.loads();
        drop(peer);
        for action in hands.actions.drain(..) {
            match self.perform(action) {
                Some(Done::Sent(frame)) => hands.frames.push(frame),
                Some(Done::Answered(state)) => hands.states.push(state),
                None => {}
            }
        }
        HANDS.set(hands);
    }

    fn perform(&self, action: Action) -> Option<Done> {
        match action {
            Action::Send { to, frame } => {
                // What is dropped here its origin asks for again.
                let _ = self.link.get().is_some_and(|link| link.send(to, &frame));
                return Some(Done::Sent(frame));
            }
            Action::Start { run, state } => {
                if state.stats().hand_overs > 0 {
                    self.counters.hand_overs_in.fetch_add(1, Ordering::Relaxed);
                }
                self.inbox.push(Job { run, state });
            }
            Action::Answer { client, state } => {
                self.answer(client, &state);
                return Some(Done::Answered(state));
            }
            Action::Fail { client, why } => self.refuse(
                client,
                match why {
                    Failure::Overloaded => Unanswered::Overloaded,
                    Failure::Expired => Unanswered::Expired,
                },
            ),
        }
        None
    }

    fn answer(&self, client: u64, state: &QueryState) {
        let Some(Client { reply, asked, partial }) = lock(&self.clients).remove(&client) else { return };
        let verdict = match state.outcome() {
            Outcome::Complete => Ok(()),
            Outcome::Partial if partial => Ok(()),
            Outcome::Partial => Err(match state.unreadable() {
                Some((block, loss)) => Unanswered::Failed(format!(
                    "block {block} could not be read on any server that holds it and answers ({}); run `stratann verify` there",
                    words(loss)
                )),
                None => Unanswered::Unreachable,
            }),
            Outcome::OutOfBudget => Err(Unanswered::Failed(
                "the query ran out of its allowance of reads; ask for a lower recall".into(),
            )),
            Outcome::Lost { block, loss } => Err(Unanswered::Failed(format!(
                "block {block} could not be used ({}); run `stratann verify` on the servers that hold it",
                words(loss)
            ))),
            Outcome::Running => {
                Err(Unanswered::Failed("the query came back unfinished; please report it".into()))
            }
        };
        let counter = if verdict.is_ok() { &self.counters.answered } else { &self.counters.refused };
        counter.fetch_add(1, Ordering::Relaxed);
        reply(verdict.map(|()| Answer {
            ids: state.results().iter().map(|h| h.external_id).collect(),
            distances: state.results().iter().map(|h| h.distance).collect(),
            is_partial: state.outcome() == Outcome::Partial,
            stats: *state.stats(),
            latency_us: asked.elapsed().as_micros() as u64,
        }));
    }

    /// A read brought nothing: counted, and told once for a range of blocks, for a disk that fails does so again and again.
    pub(super) fn note_lost(&self, block: u32, loss: Loss) {
        self.counters.lost_reads.fetch_add(1, Ordering::Relaxed);
        let range = block / UNREADABLE_RANGE;
        if !lock(&self.unreadable).insert(range) {
            return;
        }
        let first = range * UNREADABLE_RANGE;
        let next = match self.held {
            Held::Whole(_) => "queries that need it fail",
            Held::Part(_) => "queries go on at another server that holds it",
            Held::Apart(..) => "answers lack what this server has",
        };
        (self.options.log)(&format!(
            "block {block} (of {first} to {}) of {} cannot be read: {}; {next}; run `stratann verify`, then restore the file",
            first.saturating_add(UNREADABLE_RANGE - 1),
            self.held.index().base.blocks_path.display(),
            words(loss)
        ));
    }

    fn refuse(&self, client: u64, why: Unanswered) {
        let Some(waiting) = lock(&self.clients).remove(&client) else { return };
        self.counters.refused.fetch_add(1, Ordering::Relaxed);
        (waiting.reply)(Err(why));
    }
}
