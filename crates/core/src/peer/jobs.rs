//! Jobs: parts of a query that other servers score, for a state that waits here.
//!
//! The asker sends a job as a baton of its own, and again when no reply comes in time or the scorer did not have the
//! vector. A scorer runs a job once at a time and keeps nothing of it when it has replied, so a job can be repeated. The
//! first reply counts. When none comes, or the scorer is down, the state learns that its scores are lost, and asks a
//! replica or does without.

use alloc::boxed::Box;
use alloc::collections::btree_map::{BTreeMap, Entry};
use alloc::vec::Vec;

use super::frames::AskedJob;
use super::host::{AcceptedJob, HostedQuery, left_us};
use super::message::{Message, NoScores, QueryId};
use super::{Action, BufferPool, JobId, Peer, Run};
use crate::place::bit;
use crate::query::{Loss, QueryState, Tag};

/// Most jobs of one query that a server accepts.
const JOBS_MAX: usize = 4096;

/// A job that was sent.
struct SentJob {
    to: u8,
    sends: u8,
    give_up_at_us: u64,
    state: Vec<u8>,
}

/// The query, the attempt and the tag of a job.
type Key = (QueryId, u8, u32);

/// Jobs that states of this server wait for.
#[derive(Default)]
pub(super) struct Jobs(BTreeMap<Key, SentJob>);

impl Jobs {
    /// Whether an attempt waits for jobs.
    pub(super) fn is_asking(&self, query: &QueryId, attempt: u8) -> bool {
        self.0.range((*query, attempt, 0)..=(*query, attempt, u32::MAX)).next().is_some()
    }

    /// Forgets the jobs of all attempts of a query.
    pub(super) fn forget_query(&mut self, query: &QueryId, pool: &mut BufferPool) {
        self.forget((*query, 0, 0), (*query, u8::MAX, u32::MAX), pool);
    }

    fn forget(&mut self, first: Key, last: Key, pool: &mut BufferPool) {
        while let Some((&key, _)) = self.0.range(first..=last).next() {
            if let Some(job) = self.0.remove(&key) {
                pool.recycle_buffer(job.state);
            }
        }
    }
}

impl Peer {
    /// The state of a run waits for this job. The reply comes as [`Action::Scored`].
    pub fn ask(&mut self, now_us: u64, job: AskedJob, out: &mut Vec<Action>) {
        let AskedJob { run, tag, to, state } = job;
        if self.live & bit(to) == 0 || to == self.server || !self.hosted.contains_key(&run.query) {
            self.pool.recycle_buffer(state);
            out.push(Action::Scored { run, tag: Tag(tag), scores: Err(Loss::Failed) });
            return;
        }
        let key = (run.query, run.attempt, tag);
        self.jobs.0.insert(key, SentJob { to, sends: 0, give_up_at_us: u64::MAX, state });
        self.send_job(now_us, key, false, out);
    }

    /// Sends a job, with the vector where the scorer may not have it.
    fn send_job(&mut self, now_us: u64, key: Key, with_vector: bool, out: &mut Vec<Action>) {
        let (query, attempt, tag) = key;
        let (Some(job), Some(hosted)) = (self.jobs.0.get_mut(&key), self.hosted.get_mut(&query)) else {
            return;
        };
        // Replies take as long as the attempts of a query may, and as often.
        let patience_us = self.limits.patience_us.saturating_mul(1 << job.sends.min(16));
        job.give_up_at_us = now_us.saturating_add(patience_us);
        let to = job.to;
        let has_vector = hosted.visited & bit(to) != 0 && !with_vector;
        hosted.visited |= bit(to);
        let vector = if has_vector { Vec::new() } else { self.pool.copy(&hosted.vector) };
        let id = JobId { asker: self.server, tag, sends: job.sends };
        let message = Message::Baton {
            run: Run { query, attempt, job: Some(id) },
            visited: hosted.visited,
            left_us: left_us(now_us, hosted.expires_at_us),
            vector,
            state: self.pool.copy(&job.state),
        };
        self.send(to, message, out);
    }

    /// Sends a job once more, with the vector. After as many times as a query has attempts its scores are lost.
    fn send_again(&mut self, now_us: u64, key: Key, out: &mut Vec<Action>) {
        let Some(job) = self.jobs.0.get_mut(&key) else { return };
        job.sends += 1;
        if job.sends >= self.limits.attempts {
            return self.lose_job(key, Loss::Expired, out);
        }
        self.send_job(now_us, key, true, out);
    }

    fn lose_job(&mut self, key: Key, loss: Loss, out: &mut Vec<Action>) {
        let Some(job) = self.jobs.0.remove(&key) else { return };
        self.pool.recycle_buffer(job.state);
        let (query, attempt, tag) = key;
        out.push(Action::Scored { run: Run::of_query(query, attempt), tag: Tag(tag), scores: Err(loss) });
    }

    /// Sends again the jobs whose replies are late.
    pub(super) fn send_late_jobs(&mut self, now_us: u64, out: &mut Vec<Action>) {
        let late = self.jobs.0.iter().filter(|(_, job)| now_us >= job.give_up_at_us);
        let late: Vec<Key> = late.map(|(&key, _)| key).collect();
        late.into_iter().for_each(|key| self.send_again(now_us, key, out));
    }

    /// A server is down: what it was to score is lost.
    pub(super) fn lose_jobs(&mut self, server: u8, out: &mut Vec<Action>) {
        let lost: Vec<Key> =
            self.jobs.0.iter().filter(|(_, job)| job.to == server).map(|(&key, _)| key).collect();
        lost.into_iter().for_each(|key| self.lose_job(key, Loss::Failed, out));
    }

    /// The state of a run no longer waits for jobs.
    pub(super) fn forget_jobs(&mut self, run: &Run) {
        if run.job.is_none() && !self.jobs.0.is_empty() {
            let key = |tag| (run.query, run.attempt, tag);
            self.jobs.forget(key(0), key(u32::MAX), &mut self.pool);
        }
    }

    /// Scores have arrived; only the first for a job count.
    pub(super) fn scored(&mut self, run: Run, visited: u64, scores: Vec<u8>, out: &mut Vec<Action>) {
        let is_asker = run.job.filter(|id| id.asker == self.server);
        let job =
            is_asker.and_then(|id| Some((id.tag, self.jobs.0.remove(&(run.query, run.attempt, id.tag))?)));
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
        let key = (run.query, run.attempt, id.tag);
        let Some(job) = self.jobs.0.get_mut(&key).filter(|job| job.sends == id.sends) else { return };
        match why {
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
        let HostedQuery { vector, expires_at_us, visited, .. } = arrived;
        let is_full = self.hosted.len() >= self.limits.hosted.saturating_add(self.limits.origins);
        let is_missing = vector.is_empty();
        let hosted = match self.hosted.entry(run.query) {
            Entry::Occupied(entry) => Ok(entry.into_mut()),
            Entry::Vacant(_) if is_missing => Err(NoScores::Missing),
            Entry::Vacant(_) if is_full => Err(NoScores::Busy),
            Entry::Vacant(entry) => Ok(entry.insert(HostedQuery::new(Vec::new(), expires_at_us, visited))),
        };
        let is_accepted =
            hosted.and_then(|hosted| hosted.accept_job(run.attempt, id).map(|new| (hosted, new)));
        match is_accepted {
            Ok((hosted, is_new)) => {
                hosted.visited |= visited;
                if hosted.vector.is_empty() {
                    hosted.vector = vector;
                } else {
                    self.pool.recycle_buffer(vector);
                }
                if is_new {
                    out.push(Action::Start { run, state });
                } else {
                    self.pool.recycle_state(state);
                }
            }
            Err(why) => {
                self.pool.recycle_buffer(vector);
                self.pool.recycle_state(state);
                if id.asker != self.server {
                    self.send(id.asker, Message::NoScores { run, why }, out);
                }
            }
        }
    }

    pub(super) fn send_scores(&mut self, run: Run, scores: Vec<u8>, out: &mut Vec<Action>) {
        let visited = self.hosted.get(&run.query).map_or(0, |hosted| hosted.visited);
        match run.job {
            Some(id) if id.asker != self.server => {
                self.send(id.asker, Message::Scores { run, visited, scores }, out);
            }
            _ => self.pool.recycle_buffer(scores),
        }
    }
}

impl HostedQuery {
    /// Notes a job. Returns whether it is to be run.
    fn accept_job(&mut self, attempt: u8, id: JobId) -> Result<bool, NoScores> {
        let is_full = self.jobs.len() >= JOBS_MAX;
        match self.job(attempt, &id) {
            Some(known) if known.is_here || known.id.sends >= id.sends => Ok(false),
            Some(known) => {
                (known.id, known.is_here) = (id, true);
                Ok(true)
            }
            None if is_full => Err(NoScores::Busy),
            None => {
                self.jobs.push(AcceptedJob { attempt, id, is_here: true });
                Ok(true)
            }
        }
    }
}
