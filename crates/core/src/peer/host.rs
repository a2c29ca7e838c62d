//! Queries on this server: their vectors and filters, their batons, and the states that run here.

use alloc::boxed::Box;
use alloc::collections::btree_map::Entry;
use alloc::vec::Vec;

use super::credits::Credits;
use super::filters::{self, FilterKey, Unkept};
use super::frames::{Departure, Leaves, Report};
use super::message::{Message, QueryId};
use super::{Action, JobId, Peer, Run, servers_in};
use crate::place::bit;
use crate::query::{QueryState, Threshold};

/// A query's vector, and the last baton of the query that this server accepted.
pub(super) struct HostedQuery {
    // Of its exact size and not from the pool, because it is kept for long. In the pool it would take the room of
    // states. In a frame the filter follows it, so no server has one without the other.
    pub(super) vector: Vec<u8>,
    pub(super) filter: Option<FilterKey>,
    // Of what has arrived: whether the filter behind the vector begins with its key.
    pub(super) is_keyed: bool,
    pub(super) expires_at_us: u64,
    // Servers that have the vector.
    pub(super) visited: u64,
    // (attempt, hand-overs) of the last accepted baton.
    pub(super) accepted: Option<(u8, u64)>,
    // Of the frame that brought it.
    pub(super) bytes: u64,
    // States of its attempts that run or wait here. An outdated attempt may wait for replies that never come.
    pub(super) here: u32,
    // Jobs of the query that this server accepted.
    pub(super) jobs: Vec<AcceptedJob>,
    // The lowest threshold of an attempt, for its jobs.
    pub(super) threshold: Option<(u8, Threshold)>,
}

/// A job that was accepted.
pub(super) struct AcceptedJob {
    pub(super) attempt: u8,
    pub(super) id: JobId,
    // Times that it was forwarded before it came here last.
    pub(super) forwards: u64,
    // What it takes of the credits of its asker while it is here.
    pub(super) bytes: u64,
    // Whether its state runs or waits here.
    pub(super) is_here: bool,
}

impl HostedQuery {
    pub(super) fn new(vector: Vec<u8>, expires_at_us: u64, visited: u64) -> HostedQuery {
        HostedQuery {
            vector,
            filter: None,
            is_keyed: false,
            expires_at_us,
            visited,
            accepted: None,
            bytes: 0,
            here: 0,
            jobs: Vec::new(),
            threshold: None,
        }
    }

    /// Keeps the lowest threshold of the newest attempt.
    pub(super) fn lower_threshold(&mut self, attempt: u8, to: Threshold) {
        match &mut self.threshold {
            Some((known, lowest)) if *known == attempt => *lowest = to.min(*lowest),
            Some((known, _)) if *known > attempt => {}
            threshold => *threshold = Some((attempt, to)),
        }
    }

    /// The accepted job of a run.
    pub(super) fn job(&mut self, attempt: u8, id: &JobId) -> Option<&mut AcceptedJob> {
        self.jobs.iter_mut().find(|j| j.attempt == attempt && j.id.asker == id.asker && j.id.tag == id.tag)
    }

    /// Whether it has neither a vector nor jobs.
    pub(super) fn is_unused(&self) -> bool {
        self.vector.is_empty() && self.jobs.is_empty()
    }

    /// Whether a state of an attempt runs or waits here.
    pub(super) fn is_here(&self) -> bool {
        self.here > 0
    }

    /// Ends the jobs of a query: they take no more of the credits of their askers.
    pub(super) fn end_jobs(&self, credits: &mut Credits) {
        let here = self.jobs.iter().filter(|job| job.is_here);
        here.for_each(|job| credits.end(job.id.asker, job.bytes));
    }

    /// The number of its states and jobs that run or wait here.
    pub(super) fn states_here(&self) -> u64 {
        u64::from(self.here) + self.jobs.iter().filter(|job| job.is_here).count() as u64
    }
}

/// A run that has a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Begun<'a> {
    /// The query's vector.
    pub vector: &'a [u8],
    /// The rows that the query may return, for [`Sieve::decode`](crate::sieve::Sieve::decode); empty without a filter.
    pub filter: &'a [u8],
    /// The digest of the filter, where it came with one.
    pub filter_key: Option<FilterKey>,
    /// The query's deadline.
    pub expires_at_us: u64,
    /// Distance that results of a job need not exceed, where the asker knows it by now.
    pub threshold: Option<Threshold>,
}

impl Peer {
    /// A started run has a slot now. `None` when its answer can no longer be used: the run is dropped. The origin's
    /// patience with an attempt counts from here, so that an attempt that waits in a long queue is not started again
    /// and again.
    pub fn begin(&mut self, now_us: u64, run: &Run) -> Option<Begun<'_>> {
        if !self.may_begin(now_us, run) {
            self.set_here(run, false);
            return None;
        }
        let patience = self.limits.patience(now_us, run.attempt);
        let hosted = self.hosted.get(&run.query)?;
        let is_own = run.query.origin == self.server && run.job.is_none();
        let origin = self.origins.get_mut(&run.query.number).filter(|origin| is_own && !origin.has_begun);
        if let Some(origin) = origin {
            origin.has_begun = true;
            origin.give_up_at_us = patience.min(origin.expires_at_us);
        }
        let of_attempt = hosted.threshold.filter(|known| run.job.is_some() && known.0 == run.attempt);
        let threshold = of_attempt.map(|known| known.1);
        let known = hosted.filter.map(|key| self.filters.get(&key));
        let (filter, filter_key) = known.unwrap_or((&[], None));
        let (vector, expires_at_us) = (&hosted.vector[..], hosted.expires_at_us);
        Some(Begun { vector, filter, filter_key, expires_at_us, threshold })
    }

    fn may_begin(&self, now_us: u64, run: &Run) -> bool {
        let Some(hosted) = self.hosted.get(&run.query).filter(|hosted| now_us < hosted.expires_at_us) else {
            return false;
        };
        if run.job.is_some() {
            return true;
        }
        if run.query.origin != self.server {
            return hosted.accepted.is_none_or(|accepted| accepted.0 <= run.attempt);
        }
        let own = self.served.parts.of(self.server);
        self.origins.get(&run.query.number).is_some_and(|origin| match &origin.parts {
            Some(parts) => parts.is_current(own, run.attempt),
            None => origin.attempt == run.attempt,
        })
    }

    /// The state of a run can go no further here.
    pub fn stepped(&mut self, now_us: u64, departure: Departure, out: &mut Vec<Action>) {
        let Departure { run, leaves } = departure;
        self.set_here(&run, false);
        self.forget_jobs(&run);
        match leaves {
            Leaves::HandOver { to, state, report } => {
                if let Some(report) = report {
                    self.report(run, report, out);
                }
                self.hand_over(now_us, run, to, state, out);
            }
            Leaves::Answer(state) => self.end((now_us, self.server), run, 0, state, out),
            Leaves::SendAnswer(state) => self.send_answer(run, state, out),
            Leaves::SendScores(scores) => self.send_scores(run, scores, out),
        }
        self.send_waiting_jobs(now_us, out);
    }

    /// The driver dropped a run because [`Peer::is_wanted`] no longer holds. A client whose deadline has passed gets a
    /// reply.
    pub fn dropped(&mut self, now_us: u64, run: &Run, out: &mut Vec<Action>) {
        self.set_here(run, false);
        self.forget_jobs(run);
        if run.job.is_some() {
            return;
        }
        if self.own(&run.query).is_some_and(|origin| now_us >= origin.expires_at_us) {
            self.expire(run.query.number, out);
        }
    }

    pub(super) fn set_here(&mut self, run: &Run, is_here: bool) {
        let Some(hosted) = self.hosted.get_mut(&run.query) else { return };
        match &run.job {
            None if is_here => hosted.here += 1,
            None => hosted.here = hosted.here.saturating_sub(1),
            Some(id) => {
                let Some(job) = hosted.job(run.attempt, id) else { return };
                if core::mem::replace(&mut job.is_here, is_here) && !is_here {
                    self.jobs.credits.end(id.asker, job.bytes);
                }
            }
        }
    }

    fn send_answer(&mut self, run: Run, state: Vec<u8>, out: &mut Vec<Action>) {
        let visited = self.hosted.get(&run.query).map_or(0, |hosted| hosted.visited);
        self.send(self.toward(run.query.origin), Message::Answer { run, visited, state }, out);
        if self.own_servers() == bit(self.server) {
            // No server hands it over to here again.
            self.forget(&run.query);
        }
    }

    fn report(&mut self, run: Run, report: Report, out: &mut Vec<Action>) {
        match report {
            Report::Local { sequence, k, hits } => {
                let part = self.served.parts.of(self.server);
                if let Some(results) = self.own(&run.query).and_then(|origin| origin.partial_results(part)) {
                    results.merge(run.attempt, sequence, &hits, k);
                }
                self.pool.recycle_hits(hits);
            }
            Report::Remote { sequence, hits } => {
                self.send(
                    self.toward(run.query.origin),
                    Message::PartialResults { run, sequence, hits },
                    out,
                );
            }
        }
    }

    /// The server to send what is for `origin` to. Where the link to it is down that is another one that reaches it, of
    /// the same part, since the sender of an answer tells the part.
    pub(super) fn toward(&self, origin: u8) -> u8 {
        if self.live & bit(origin) != 0 {
            return origin;
        }
        let reaches = |server: u8| self.statuses[usize::from(server)].map(|s| s.live & bit(origin) != 0);
        let others = servers_in(self.live & self.own_servers() & !bit(self.server));
        let known = others.filter(|&server| reaches(server) != Some(false));
        known.max_by_key(|&server| reaches(server)).unwrap_or(origin)
    }

    /// Whether what arrived here is for another server and is passed on to it: its sender could not reach that one.
    /// It is passed on once, so that it cannot loop.
    pub(super) fn relays(&self, run: &Run) -> bool {
        let to = self.target(run);
        to != self.server && self.live & bit(to) != 0
    }

    /// The server that waits for the end of a run: the asker of a job, else the origin.
    pub(super) fn target(&self, run: &Run) -> u8 {
        run.job.map_or(run.query.origin, |id| id.asker)
    }

    fn hand_over(&mut self, now_us: u64, run: Run, to: u8, state: Vec<u8>, out: &mut Vec<Action>) {
        // The query may have been released or have expired meanwhile.
        let Some(hosted) = self.hosted.get_mut(&run.query) else {
            return self.pool.recycle_buffer(state);
        };
        let is_complete = run.job.is_some() && self.served.jobs_have_queries;
        let has_vector = is_complete || hosted.visited & bit(to) != 0;
        hosted.visited |= bit(to);
        let visited = hosted.visited;
        let left_us = left_us(now_us, hosted.expires_at_us);
        let always = run.attempt > 0 || run.job.is_some_and(|id| id.sends > 0);
        let vector = if has_vector { Vec::new() } else { self.vector_for(&run.query, to, &state, always) };
        self.send(to, Message::Baton { run, visited, left_us, vector, state }, out);
    }

    /// Keeps the filter that came with a vector, unless the query has its filter here. Returns its key; `None` without
    /// one.
    pub(super) fn keep_filter_of(
        &mut self,
        query: &QueryId,
        vector: &[u8],
        is_keyed: bool,
    ) -> Result<Option<FilterKey>, Unkept> {
        let is_known = self.hosted.get(query).is_some_and(|hosted| !hosted.vector.is_empty());
        let (_, arrived) = filters::split(vector, self.served.vector_bytes, is_keyed);
        match arrived.filter(|_| !is_known) {
            Some(arrived) => {
                self.filters.keep_arrived(&arrived, self.limits.filter_bytes)?;
                Ok(Some(arrived.key))
            }
            None => Ok(None),
        }
    }

    /// The vector without what follows it, in no more memory than it needs.
    pub(super) fn without_filter(&self, mut vector: Vec<u8>) -> Vec<u8> {
        if vector.len() > self.served.vector_bytes {
            vector.truncate(self.served.vector_bytes);
            vector.shrink_to_fit();
        }
        vector
    }

    /// Drops a query's vector. Returns the servers that have it.
    pub(super) fn forget(&mut self, query: &QueryId) -> u64 {
        let Some(hosted) = self.hosted.remove(query) else { return 0 };
        hosted.filter.iter().for_each(|key| self.filters.leave(key));
        self.abandoned += hosted.states_here();
        hosted.end_jobs(&mut self.jobs.credits);
        self.jobs.forget_query(query, &mut self.pool);
        hosted.visited
    }

    /// Accepts a baton of server `from` once: its number grows with every hand-over of an attempt, and with every
    /// attempt.
    pub(super) fn accept(
        &mut self,
        (from, run): (u8, Run),
        state: Box<QueryState>,
        arrived: HostedQuery,
        out: &mut Vec<Action>,
    ) {
        let number = (run.attempt, state.stats().hand_overs);
        let HostedQuery { vector, expires_at_us, visited, is_keyed, .. } = arrived;
        let is_own = run.query.origin == self.server;
        let is_known = self.hosted.contains_key(&run.query);
        // Answered long ago, or the frame with the vector is lost. The origin starts another attempt if it still waits.
        let is_full = self.hosted.len() >= self.limits.hosted.saturating_add(self.limits.origins);
        if !is_known && (is_own || is_full || vector.is_empty()) {
            return self.pool.recycle_state(state);
        }
        let key = match self.keep_filter_of(&run.query, &vector, is_keyed) {
            Ok(key) => key,
            Err(why) => {
                if why == Unkept::Missing {
                    self.send(from, Message::NoFilter { run }, out);
                }
                return self.pool.recycle_state(state);
            }
        };
        let vector = self.without_filter(vector);
        let hosted = match self.hosted.entry(run.query) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => entry.insert(HostedQuery::new(Vec::new(), expires_at_us, visited)),
        };
        if !vector.is_empty() && hosted.vector.is_empty() {
            (hosted.vector, hosted.filter) = (vector, key);
        }
        if hosted.vector.is_empty() || hosted.accepted.is_some_and(|accepted| number <= accepted) {
            return self.pool.recycle_state(state);
        }
        // An attempt is started after a loss, perhaps of a frame with the vector: older knowledge of the servers that
        // have it does not count.
        let is_new = hosted.accepted.is_none_or(|accepted| accepted.0 < run.attempt);
        hosted.visited = if is_new { visited } else { hosted.visited | visited };
        hosted.accepted = Some(number);
        hosted.here += 1;
        out.push(Action::Start { run, state });
    }
}

/// Microseconds until a deadline, as a frame carries them.
pub(super) fn left_us(now_us: u64, expires_at_us: u64) -> u32 {
    expires_at_us.saturating_sub(now_us).min(u64::from(u32::MAX)) as u32
}
