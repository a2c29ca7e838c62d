//! Jobs: parts of a query that other servers score, for a state that waits here.
//!
//! The asker sends a job as a baton of its own, and again when no reply comes in time or the scorer did not have the
//! vector. A scorer runs a job once at a time and keeps nothing of it when it has replied, so a job can be repeated.
//! A job may be forwarded: it goes from scorer to scorer, as a baton does, and the last one replies. The first reply
//! counts. Jobs beyond the byte credits of a scorer wait here. When no reply comes, or the scorer is down, the state
//! learns that its scores are lost, and asks a replica or does without.

use alloc::boxed::Box;
use alloc::collections::btree_map::{BTreeMap, Entry};
use alloc::collections::btree_set::BTreeSet;
use alloc::vec::Vec;

use super::credits::{Credits, FRAME_BYTES};
use super::filters::Unkept;
use super::frames::AskedJob;
use super::host::{AcceptedJob, HostedQuery, left_us};
use super::message::{Message, NoScores, QueryId};
use super::{Action, BufferPool, JobId, Peer, Run};
use crate::place::bit;
use crate::query::wire::THRESHOLDS_VERSION;
use crate::query::{Loss, QueryState, Tag, Threshold};

/// Most jobs of one query that a server accepts.
const JOBS_MAX: usize = 4096;

/// A job that was sent.
struct SentJob {
    to: u8,
    sends: u8,
    // Whether other servers may have it now.
    is_forwarded: bool,
    give_up_at_us: u64,
    // Of its frame with the vector; 0 while it waits for credits.
    bytes: u64,
    state: Vec<u8>,
}

/// A job, by its query, the attempt at it, and the tag of the want.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    query: QueryId,
    attempt: u8,
    tag: u32,
}

/// The least key.
const FIRST: Key = Key { query: QueryId { origin: 0, incarnation: 0, number: 0 }, attempt: 0, tag: 0 };

/// Jobs that states of this server wait for.
pub(super) struct Jobs {
    sent: BTreeMap<Key, SentJob>,
    // Those that wait for credits, by scorer.
    waiting: BTreeSet<(u8, Key)>,
    pub(super) credits: Credits,
    // Jobs that had to wait.
    delayed: u64,
}

impl Jobs {
    /// `bytes` are the credits of each server.
    pub(super) fn new(bytes: u64) -> Jobs {
        let credits = Credits::new(bytes);
        Jobs { sent: BTreeMap::new(), waiting: BTreeSet::new(), credits, delayed: 0 }
    }

    /// Whether an attempt waits for jobs.
    pub(super) fn is_asking(&self, query: &QueryId, attempt: u8) -> bool {
        let key = |tag| Key { query: *query, attempt, tag };
        self.sent.range(key(0)..=key(u32::MAX)).next().is_some()
    }

    /// Forgets the jobs of all attempts of a query.
    pub(super) fn forget_query(&mut self, query: &QueryId, pool: &mut BufferPool) {
        let key = |attempt, tag| Key { query: *query, attempt, tag };
        self.forget(key(0, 0), key(u8::MAX, u32::MAX), pool);
    }

    fn forget(&mut self, first: Key, last: Key, pool: &mut BufferPool) {
        while let Some((&key, _)) = self.sent.range(first..=last).next() {
            if let Some(job) = self.remove(&key) {
                pool.recycle_buffer(job.state);
            }
        }
    }

    fn has_waiting(&self, to: u8) -> bool {
        self.waiting.range((to, FIRST)..).next().is_some_and(|waiting| waiting.0 == to)
    }

    fn remove(&mut self, key: &Key) -> Option<SentJob> {
        let job = self.sent.remove(key)?;
        self.credits.regain(job.to, job.bytes);
        self.waiting.remove(&(job.to, *key));
        Some(job)
    }
}

impl Peer {
    /// The state of a run waits for this job. The reply comes as [`Action::Scored`].
    pub fn ask(&mut self, now_us: u64, job: AskedJob, out: &mut Vec<Action>) {
        let AskedJob { run, tag, to, is_forwarded, state } = job;
        if self.live & bit(to) == 0 || to == self.server || !self.hosted.contains_key(&run.query) {
            self.pool.recycle_buffer(state);
            out.push(Action::Scored { run, tag: Tag(tag), scores: Err(Loss::Failed) });
            return;
        }
        let key = Key { query: run.query, attempt: run.attempt, tag };
        let job = SentJob { to, sends: 0, is_forwarded, give_up_at_us: u64::MAX, bytes: 0, state };
        self.jobs.sent.insert(key, job);
        // Those that wait already go first: otherwise small jobs keep a large one waiting.
        if self.jobs.has_waiting(to) || !self.send_with_credits(now_us, key, out) {
            self.jobs.waiting.insert((to, key));
            self.jobs.delayed += 1;
        }
    }

    /// Sends the jobs of a run on another server a lower threshold. Those that wait there for a slot begin with it. A
    /// server that reads an older version of states does not know the message.
    pub fn tell(&mut self, run: &Run, (to, threshold): (u8, Threshold), out: &mut Vec<Action>) {
        if to == self.server {
            return self.lower_threshold(run, threshold);
        }
        let knows = self.agreed.get(usize::from(to)).is_some_and(|&version| version >= THRESHOLDS_VERSION);
        if knows && self.live & bit(to) != 0 {
            self.send(to, Message::Threshold { run: Run::of_query(run.query, run.attempt), threshold }, out);
        }
    }

    /// A query that this server does not know has no jobs here.
    pub(super) fn lower_threshold(&mut self, run: &Run, threshold: Threshold) {
        if let Some(hosted) = self.hosted.get_mut(&run.query) {
            hosted.lower_threshold(run.attempt, threshold);
        }
    }

    /// The number of jobs that had to wait for credits.
    pub fn delayed_jobs(&self) -> u64 {
        self.jobs.delayed
    }

    /// Sends a job for the first time. Returns false where its scorer has too many already.
    fn send_with_credits(&mut self, now_us: u64, key: Key, out: &mut Vec<Action>) -> bool {
        let filter = self.filter_bytes_of(&key.query);
        let (Some(job), Some(hosted)) = (self.jobs.sent.get_mut(&key), self.hosted.get(&key.query)) else {
            return true;
        };
        let vector_bytes =
            if self.served.jobs_have_queries { 0 } else { hosted.vector.len() as u64 + filter };
        let bytes = FRAME_BYTES + vector_bytes + job.state.len() as u64;
        if !self.jobs.credits.spend(job.to, bytes) {
            return false;
        }
        job.bytes = bytes;
        self.send_job(now_us, key, false, out);
        true
    }

    /// Sends the jobs that have waited for credits, as far as there are some now: those of the oldest queries first.
    pub(super) fn send_waiting_jobs(&mut self, now_us: u64, out: &mut Vec<Action>) {
        let mut next = self.jobs.waiting.first().copied();
        while let Some((to, key)) = next {
            let is_sent = self.send_with_credits(now_us, key, out);
            if is_sent {
                self.jobs.waiting.remove(&(to, key));
            }
            let from = if is_sent { (to, key) } else { (to.saturating_add(1), FIRST) };
            next = self.jobs.waiting.range(from..).next().copied();
        }
    }

    /// Sends a job, with the vector where the scorer may not have it.
    fn send_job(&mut self, now_us: u64, key: Key, with_vector: bool, out: &mut Vec<Action>) {
        let Key { query, attempt, tag } = key;
        let (Some(job), Some(hosted)) = (self.jobs.sent.get_mut(&key), self.hosted.get_mut(&query)) else {
            return;
        };
        // Replies take as long as the attempts of a query may, and as often.
        let patience_us = self.limits.patience_us.saturating_mul(1 << job.sends.min(16));
        job.give_up_at_us = now_us.saturating_add(patience_us);
        let to = job.to;
        let is_needed = !self.served.jobs_have_queries && (with_vector || hosted.visited & bit(to) == 0);
        hosted.visited |= bit(to);
        let id = JobId { asker: self.server, tag, sends: job.sends };
        // A job is sent again after a loss, perhaps of a frame with the vector, which then is sent along its whole way.
        let is_first = job.sends == 0;
        let visited = if is_first { hosted.visited } else { bit(self.server) | bit(to) };
        let left_us = left_us(now_us, hosted.expires_at_us);
        let state = self.pool.copy(&job.state);
        let always = attempt > 0 || !is_first;
        let vector = if is_needed { self.vector_for(&query, to, &state, always) } else { Vec::new() };
        let run = Run { query, attempt, job: Some(id) };
        let message = Message::Baton { run, visited, left_us, vector, state };
        self.send(to, message, out);
    }

    /// Sends a job once more, with the vector. After as many times as a query has attempts its scores are lost.
    fn send_again(&mut self, now_us: u64, key: Key, out: &mut Vec<Action>) {
        let Some(job) = self.jobs.sent.get_mut(&key) else { return };
        job.sends += 1;
        if job.sends >= self.limits.attempts {
            return self.lose_job(key, Loss::Expired, out);
        }
        self.send_job(now_us, key, true, out);
    }

    fn lose_job(&mut self, key: Key, loss: Loss, out: &mut Vec<Action>) {
        let Some(job) = self.jobs.remove(&key) else { return };
        self.pool.recycle_buffer(job.state);
        let Key { query, attempt, tag } = key;
        out.push(Action::Scored { run: Run::of_query(query, attempt), tag: Tag(tag), scores: Err(loss) });
    }

    /// Sends again the jobs whose replies are late.
    pub(super) fn send_late_jobs(&mut self, now_us: u64, out: &mut Vec<Action>) {
        let late = self.jobs.sent.iter().filter(|(_, job)| now_us >= job.give_up_at_us);
        let late: Vec<Key> = late.map(|(&key, _)| key).collect();
        late.into_iter().for_each(|key| self.send_again(now_us, key, out));
    }

    /// A server is down: what it was to score is lost. Jobs that may have been forwarded to it are sent again.
    pub(super) fn lose_jobs(&mut self, now_us: u64, server: u8, out: &mut Vec<Action>) {
        let forwarded = self.jobs.sent.values_mut().filter(|job| job.is_forwarded && job.bytes > 0);
        forwarded.for_each(|job| job.give_up_at_us = now_us);
        let lost: Vec<Key> =
            self.jobs.sent.iter().filter(|(_, job)| job.to == server).map(|(&key, _)| key).collect();
        lost.into_iter().for_each(|key| self.lose_job(key, Loss::Failed, out));
    }

    /// The state of a run no longer waits for jobs.
    pub(super) fn forget_jobs(&mut self, run: &Run) {
        if run.job.is_none() && !self.jobs.sent.is_empty() {
            let key = |tag| Key { query: run.query, attempt: run.attempt, tag };
            self.jobs.forget(key(0), key(u32::MAX), &mut self.pool);
        }
    }

    /// Scores have arrived; only the first for a job count.
    pub(super) fn scored(&mut self, run: Run, visited: u64, scores: Vec<u8>, out: &mut Vec<Action>) {
        let is_asker = run.job.filter(|id| id.asker == self.server);
        let key = |tag| Key { query: run.query, attempt: run.attempt, tag };
        let job = is_asker.and_then(|id| Some((id.tag, self.jobs.remove(&key(id.tag))?)));
        let Some((tag, job)) = job else { return self.pool.recycle_buffer(scores) };
        self.pool.recycle_buffer(job.state);
        if let Some(hosted) = self.hosted.get_mut(&run.query) {
            hosted.visited |= visited;
        }
        let run = Run::of_query(run.query, run.attempt);
        out.push(Action::Scored { run, tag: Tag(tag), scores: Ok(scores) });
    }

    /// A server does not do a job. It is sent again at once with the vector, or later.
    pub(super) fn not_scored(&mut self, now_us: u64, run: Run, why: NoScores, out: &mut Vec<Action>) {
        let Some(id) = run.job.filter(|id| id.asker == self.server) else { return };
        let key = Key { query: run.query, attempt: run.attempt, tag: id.tag };
        let Some(job) = self.jobs.sent.get_mut(&key).filter(|job| job.sends == id.sends) else { return };
        match why {
            // It is sent with all of the filter, too.
            NoScores::Missing => self.send_again(now_us, key, out),
            NoScores::Busy => {
                let soon_us = now_us.saturating_add(self.limits.patience_us / 4);
                job.give_up_at_us = job.give_up_at_us.min(soon_us);
            }
        }
    }

    /// Accepts a job, unless it runs here already or was done before.
    pub(super) fn accept_job(
        &mut self,
        run: Run,
        state: Box<QueryState>,
        arrived: HostedQuery,
        out: &mut Vec<Action>,
    ) {
        let Some(id) = run.job else { return };
        let forwards = state.stats().hand_overs;
        let HostedQuery { vector, expires_at_us, visited, bytes, is_keyed, .. } = arrived;
        let is_full = self.hosted.len() >= self.limits.hosted.saturating_add(self.limits.origins);
        let is_missing = vector.is_empty() && !self.served.jobs_have_queries;
        let kept = self.keep_filter_of(&run.query, &vector, is_keyed);
        let vector = self.without_filter(vector);
        let hosted = match (kept, self.hosted.entry(run.query)) {
            (Err(Unkept::Missing), _) => Err(NoScores::Missing),
            (Err(Unkept::Full), _) => Err(NoScores::Busy),
            (Ok(_), Entry::Occupied(entry)) => Ok(entry.into_mut()),
            (Ok(_), Entry::Vacant(_)) if is_missing => Err(NoScores::Missing),
            (Ok(_), Entry::Vacant(_)) if is_full => Err(NoScores::Busy),
            (Ok(_), Entry::Vacant(entry)) => {
                Ok(entry.insert(HostedQuery::new(Vec::new(), expires_at_us, visited)))
            }
        };
        let credits = &mut self.jobs.credits;
        let is_accepted = hosted.and_then(|hosted| {
            hosted.accept_job(run.attempt, id, (forwards, bytes), credits).map(|new| (hosted, new))
        });
        match is_accepted {
            Ok((hosted, is_new)) => {
                let is_again = is_new && id.sends > 0;
                hosted.visited = if is_again { visited } else { hosted.visited | visited };
                if hosted.vector.is_empty() {
                    hosted.vector = vector;
                }
                hosted.filter = hosted.filter.or(kept.unwrap_or(None));
                if is_new {
                    out.push(Action::Start { run, state });
                } else {
                    self.pool.recycle_state(state);
                }
            }
            Err(why) => {
                if let Ok(Some(key)) = kept {
                    self.filters.leave(&key);
                }
                if self.hosted.get(&run.query).is_some_and(HostedQuery::is_unused) {
                    self.hosted.remove(&run.query);
                }
                self.pool.recycle_state(state);
                if id.asker != self.server {
                    self.send(self.toward(id.asker), Message::NoScores { run, why }, out);
                }
            }
        }
    }

    /// The driver has no memory for a run. The server that asked for a job asks again later.
    pub fn refused(&mut self, now_us: u64, run: &Run, out: &mut Vec<Action>) {
        self.dropped(now_us, run, out);
        if let Some(id) = run.job.filter(|id| id.asker != self.server) {
            self.send(self.toward(id.asker), Message::NoScores { run: *run, why: NoScores::Busy }, out);
        }
    }

    pub(super) fn send_scores(&mut self, run: Run, scores: Vec<u8>, out: &mut Vec<Action>) {
        let visited = self.hosted.get(&run.query).map_or(0, |hosted| hosted.visited);
        match run.job {
            Some(id) if id.asker != self.server => {
                self.send(self.toward(id.asker), Message::Scores { run, visited, scores }, out);
            }
            // A job that was forwarded may end where it was asked.
            Some(_) => self.scored(run, visited, scores, out),
            None => self.pool.recycle_buffer(scores),
        }
    }
}

impl HostedQuery {
    /// Notes a job. Returns whether it is to be run.
    fn accept_job(
        &mut self,
        attempt: u8,
        id: JobId,
        (forwards, bytes): (u64, u64),
        credits: &mut Credits,
    ) -> Result<bool, NoScores> {
        let is_full = self.jobs.len() >= JOBS_MAX;
        let mut has_credits = || credits.accept(id.asker, bytes, forwards > 0);
        match self.job(attempt, &id) {
            Some(known) => {
                // While it runs, a later send is answered by the reply that comes.
                let number = (known.id.sends, known.forwards);
                let is_new = !known.is_here && number < (id.sends, forwards);
                if is_new && !has_credits() {
                    return Err(NoScores::Busy);
                }
                known.bytes = if is_new { bytes } else { known.bytes };
                (known.id.sends, known.forwards) = number.max((id.sends, forwards));
                known.is_here |= is_new;
                Ok(is_new)
            }
            None if is_full || !has_credits() => Err(NoScores::Busy),
            None => {
                self.jobs.push(AcceptedJob { attempt, id, forwards, bytes, is_here: true });
                Ok(true)
            }
        }
    }
}

#[cfg(test)]
mod tests;
