//! Jobs: parts of a query that other servers score, for a state that waits here.
//!
//! The asker sends a job as a baton of its own, and again when no reply comes in time or the scorer did not have the
//! vector. A scorer runs a job once at a time and keeps nothing of it when it has replied, so a job can be repeated.
//! A job may be forwarded: it goes from scorer to scorer, as a baton does, and the last one replies. The first reply
//! counts. When none comes, or the scorer is down, the state learns that its scores are lost, and asks
//! a replica or does without.

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
    // Whether other servers may have it now.
    is_forwarded: bool,
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
        let AskedJob { run, tag, to, is_forwarded, state } = job;
        if self.live & bit(to) == 0 || to == self.server || !self.hosted.contains_key(&run.query) {
            self.pool.recycle_buffer(state);
            out.push(Action::Scored { run, tag: Tag(tag), scores: Err(Loss::Failed) });
            return;
        }
        let key = (run.query, run.attempt, tag);
        self.jobs.0.insert(key, SentJob { to, sends: 0, is_forwarded, give_up_at_us: u64::MAX, state });
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
        // A job is sent again after a loss, perhaps of a frame with the vector, which then is sent along its whole way.
        let visited = if job.sends == 0 { hosted.visited } else { bit(self.server) | bit(to) };
        let message = Message::Baton {
            run: Run { query, attempt, job: Some(id) },
            visited,
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

    /// A server is down: what it was to score is lost. Jobs that may have been forwarded to it are sent again.
    pub(super) fn lose_jobs(&mut self, now_us: u64, server: u8, out: &mut Vec<Action>) {
        let forwarded = self.jobs.0.values_mut().filter(|job| job.is_forwarded);
        forwarded.for_each(|job| job.give_up_at_us = now_us);
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
        let forwards = state.stats().hand_overs;
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
            hosted.and_then(|hosted| hosted.accept_job(run.attempt, id, forwards).map(|new| (hosted, new)));
        match is_accepted {
            Ok((hosted, is_new)) => {
                let is_again = is_new && id.sends > 0;
                hosted.visited = if is_again { visited } else { hosted.visited | visited };
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
            _ => self.pool.recycle_buffer(scores),
        }
    }
}

impl HostedQuery {
    /// Notes a job. Returns whether it is to be run.
    fn accept_job(&mut self, attempt: u8, id: JobId, forwards: u64) -> Result<bool, NoScores> {
        let is_full = self.jobs.len() >= JOBS_MAX;
        match self.job(attempt, &id) {
            Some(known) => {
                // While it runs, a later send is answered by the reply that comes.
                let number = (known.id.sends, known.forwards);
                let is_new = !known.is_here && number < (id.sends, forwards);
                (known.id.sends, known.forwards) = number.max((id.sends, forwards));
                known.is_here |= is_new;
                Ok(is_new)
            }
            None if is_full => Err(NoScores::Busy),
            None => {
                self.jobs.push(AcceptedJob { attempt, id, forwards, is_here: true });
                Ok(true)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{VECTOR_BYTES, frames, receive, served};
    use super::super::{BufferPool, Limits, Served};
    use super::*;
    use crate::peer::message::Refused;
    use crate::plan::KindState;
    use crate::plan::hybrid_ivf::Job;
    use crate::query::wire::{self, Carry, Results};
    use crate::query::{Budget, IndexSize, Params, Step};
    use alloc::vec;

    const HYBRID_IVF: u8 = 2;

    fn peer(server: u8, hosted: usize) -> Peer {
        let size = IndexSize { nodes: 1000, units: 100, clusters: 10 };
        let served = Served { kind: HYBRID_IVF, size, ..served(Carry::Distances, Results::Along) };
        let limits = Limits { hosted, origins: 1, patience_us: 100, attempts: 3 };
        Peer::new(server, 1, served, 0b11, limits)
    }

    /// The state of a job for these lists.
    fn state(lists: &[u32]) -> Vec<u8> {
        let mut state = QueryState::new(Params::hybrid_ivf(3, 4), Budget::default());
        state.q.started = true;
        if let KindState::HybridIvf(own) = &mut state.own {
            own.batch.job = Job::Lists;
            own.batch.lists.extend_from_slice(lists);
        }
        let mut bytes = vec![];
        wire::encode(&state, Carry::Distances, &mut bytes);
        bytes
    }

    /// Server 0 with a query that runs.
    fn asker() -> (Peer, Run) {
        let (mut peer, mut out) = (peer(0, 10), vec![]);
        let what = (Params::hybrid_ivf(3, 4), Budget::default());
        let query = peer.codec().new_query(5, what, &[7; VECTOR_BYTES], 1_000_000);
        peer.submit(0, query, &mut out);
        let Some(Action::Start { run, .. }) = out.pop() else { panic!("it starts") };
        assert!(peer.begin(0, &run).is_some());
        (peer, run)
    }

    fn ask(peer: &mut Peer, run: Run, tag: u32, to: u8) -> Vec<Action> {
        let mut out = vec![];
        peer.ask(0, AskedJob { run, tag, to, is_forwarded: false, state: state(&[7, 99]) }, &mut out);
        out
    }

    /// The job that starts among the actions of a scorer.
    fn started(out: &[Action]) -> Option<Run> {
        out.iter().find_map(|action| match action {
            Action::Start { run, .. } => Some(*run),
            _ => None,
        })
    }

    /// Ends a job at a scorer. Returns the reply.
    fn reply(scorer: &mut Peer, run: Run) -> Vec<u8> {
        let (mut out, mut pool) = (vec![], BufferPool::default());
        let mut ended = QueryState::new(Params::hybrid_ivf(3, 4), Budget::default());
        ended.q.finish(crate::query::Outcome::Complete);
        let departure = scorer.codec().departure(run, Step::Done, &ended, &mut pool).expect("it has ended");
        scorer.stepped(0, departure, &mut out);
        frames(scorer, out).remove(0).1
    }

    /// The scored jobs among actions: the tag of each, and whether it has scores.
    fn scored_jobs(out: &[Action]) -> Vec<(u32, Result<(), Loss>)> {
        let scored_jobs = |action: &Action| match action {
            Action::Scored { tag, scores, .. } => Some((tag.0, scores.as_ref().map(|_| ()).map_err(|&l| l))),
            _ => None,
        };
        out.iter().filter_map(scored_jobs).collect()
    }

    #[test]
    fn a_job_runs_once_and_its_first_reply_counts() {
        let ((mut asker, run), mut scorer) = (asker(), peer(1, 10));
        let out = ask(&mut asker, run, 3, 1);
        let sent = frames(&asker, out);
        let job = started(&receive(&mut scorer, 0, &sent[0].1).unwrap()).expect("it runs");
        assert_eq!(job.job, Some(JobId { asker: 0, tag: 3, sends: 0 }));
        assert!(scorer.begin(0, &job).is_some() && scorer.is_wanted(0, &job));
        // Twice on its way, and sent again while it runs.
        assert_eq!(started(&receive(&mut scorer, 0, &sent[0].1).unwrap()), None);
        let mut out = vec![];
        asker.tick(100, &mut out);
        let again = frames(&asker, out);
        assert_eq!(started(&receive(&mut scorer, 0, &again[0].1).unwrap()), None);

        let first = reply(&mut scorer, job);
        // Its reply may be lost: only what was sent later runs again.
        assert_eq!(started(&receive(&mut scorer, 0, &sent[0].1).unwrap()), None);
        assert_eq!(started(&receive(&mut scorer, 0, &again[0].1).unwrap()), None, "it ran when this came");
        assert_eq!(scored_jobs(&receive(&mut asker, 1, &first).unwrap()), [(3, Ok(()))]);
        assert_eq!(scored_jobs(&receive(&mut asker, 1, &first).unwrap()), [], "twice");
        let mut other = Run { attempt: 1, ..job };
        let late = reply(&mut scorer, other);
        assert_eq!(scored_jobs(&receive(&mut asker, 1, &late).unwrap()), [], "of another attempt");
        other = Run { job: Some(JobId { asker: 1, tag: 3, sends: 0 }), ..job };
        let mut out = vec![];
        asker.scored(other, 0, vec![], &mut out);
        assert!(out.is_empty(), "another server asked");
    }

    #[test]
    fn a_scorer_without_the_vector_gets_it() {
        let ((mut asker, run), mut scorer) = (asker(), peer(1, 10));
        let first = ask(&mut asker, run, 0, 1);
        drop(first);
        // The frame with the vector is lost; the next job goes without.
        let out = ask(&mut asker, run, 1, 1);
        let sent = frames(&asker, out);
        let out = receive(&mut scorer, 0, &sent[0].1).unwrap();
        assert_eq!(started(&out), None);
        let missing = frames(&scorer, out);
        let out = receive(&mut asker, 1, &missing[0].1).unwrap();
        let sent = frames(&asker, out);
        let job = started(&receive(&mut scorer, 0, &sent[0].1).unwrap()).expect("it runs");
        assert_eq!(job.job, Some(JobId { asker: 0, tag: 1, sends: 1 }));
        assert_eq!(scorer.begin(0, &job).map(|begun| begun.vector.len()), Some(VECTOR_BYTES));
    }

    #[test]
    fn scores_that_never_come_are_lost() {
        let (mut asker, run) = asker();
        assert_eq!(scored_jobs(&ask(&mut asker, run, 0, 0)), [(0, Err(Loss::Failed))], "itself");
        drop(ask(&mut asker, run, 1, 1));
        let (mut out, mut sends) = (vec![], 0);
        for now_us in [99, 100, 299, 300, 699] {
            asker.tick(now_us, &mut out);
            assert_eq!(scored_jobs(&out), [], "{now_us}");
            sends += frames(&asker, core::mem::take(&mut out)).len();
        }
        assert_eq!(sends, 2);
        asker.tick(700, &mut out);
        assert_eq!(scored_jobs(&out), [(1, Err(Loss::Expired))]);
        drop(ask(&mut asker, run, 2, 1));
        out.clear();
        asker.down(700, 1, &mut out);
        assert_eq!(scored_jobs(&out), [(2, Err(Loss::Failed))]);
        assert_eq!(scored_jobs(&ask(&mut asker, run, 3, 1)), [(3, Err(Loss::Failed))], "it is down");
        // A query that has ended waits for nothing.
        asker.up(1, &mut out);
        drop(ask(&mut asker, run, 4, 1));
        asker.cancel(5, &mut out);
        out.clear();
        asker.tick(100_000, &mut out);
        assert!(out.is_empty() && asker.held() == (0, 0), "{out:?}");
    }

    #[test]
    fn a_scorer_that_is_full_is_asked_later() {
        let ((mut asker, run), mut scorer) = (asker(), peer(1, 0));
        let filler = JobId { asker: 0, tag: 0, sends: 0 };
        let other = Run { query: QueryId { number: 77, ..run.query }, attempt: 0, job: Some(filler) };
        let boxed = || Box::new(wire::decode(&state(&[1])).unwrap());
        let mut out = vec![];
        scorer.accept_job(other, boxed(), HostedQuery::new(vec![1; VECTOR_BYTES], 500, 1), &mut out);
        assert_eq!(started(&out), Some(other));
        let asked = ask(&mut asker, run, 1, 1);
        let sent = frames(&asker, asked);
        let busy = receive(&mut scorer, 0, &sent[0].1).unwrap();
        assert_eq!(started(&busy), None);
        let busy = frames(&scorer, busy);
        assert!(receive(&mut asker, 1, &busy[0].1).unwrap().is_empty());
        let mut out = vec![];
        asker.tick(25, &mut out);
        let sent = frames(&asker, out);
        let mut dropped = vec![];
        scorer.tick(500, &mut dropped);
        assert!(started(&receive(&mut scorer, 0, &sent[0].1).unwrap()).is_some(), "the other has expired");
    }

    #[test]
    fn jobs_that_cannot_be_are_refused() {
        let (_, run) = asker();
        let refused = |run: Run, state: &[u8]| {
            let mut frame = vec![];
            let vector = &[0; VECTOR_BYTES][..];
            Message::Baton { run, visited: 1, left_us: 9, vector, state }.encode(7, 0, &mut frame);
            receive(&mut peer(1, 10), 0, &frame).map(|out| started(&out).is_some())
        };
        let of_job = |asker| Run { job: Some(JobId { asker, tag: 0, sends: 0 }), ..run };
        assert_eq!(refused(of_job(0), &state(&[7, 99])), Ok(true));
        assert_eq!(refused(of_job(0), &state(&[100])), Err(Refused::Content), "no such list");
        assert_eq!(refused(of_job(64), &state(&[7])), Err(Refused::Content), "no such server");
        assert_eq!(refused(run, &state(&[7])), Err(Refused::Content), "a job as a query");
        let query = QueryState::new(Params::hybrid_ivf(3, 4), Budget::default());
        let mut bytes = vec![];
        wire::encode(&query, Carry::Distances, &mut bytes);
        assert_eq!(refused(of_job(0), &bytes), Err(Refused::Content), "a query as a job");
    }

    /// A server hands a job on that it runs. Returns the frame.
    fn forward(peer: &mut Peer, run: Run, forwards: u64, to: u8) -> Vec<u8> {
        let mut state = wire::decode(&state(&[7, 99])).unwrap();
        state.q.stats.hand_overs = forwards;
        let (mut out, mut pool) = (vec![], BufferPool::default());
        let departure =
            peer.codec().departure(run, Step::HandOver(to), &state, &mut pool).expect("it leaves");
        peer.stepped(0, departure, &mut out);
        let [(sent_to, frame)] = frames(peer, out).try_into().expect("one frame");
        assert_eq!(sent_to, to);
        frame
    }

    #[test]
    fn a_forwarded_job_runs_once_on_each_server_and_the_last_replies() {
        let ((mut asker, run), mut first, mut last) = (asker(), peer(1, 10), peer(2, 10));
        [&mut asker, &mut first, &mut last].into_iter().for_each(|peer| peer.live = 0b111);
        let mut out = vec![];
        let job = AskedJob { run, tag: 3, to: 1, is_forwarded: true, state: state(&[7, 99]) };
        asker.ask(0, job, &mut out);
        let sent = frames(&asker, out).remove(0).1;
        let job = started(&receive(&mut first, 0, &sent).unwrap()).expect("it runs");
        let onward = forward(&mut first, job, 1, 2);
        assert_eq!(started(&receive(&mut first, 0, &sent).unwrap()), None, "it was here");
        let at_last = started(&receive(&mut last, 1, &onward).unwrap()).expect("the vector came with it");
        assert_eq!(started(&receive(&mut last, 1, &onward).unwrap()), None, "twice on its way");

        // The last server loses its memory: the job is sent again, and its vector along the whole way.
        let mut last = peer(2, 10);
        last.live = 0b111;
        let mut out = vec![];
        asker.down(0, 2, &mut out);
        // A status goes first.
        let again = frames(&asker, out).into_iter().rfind(|sent| sent.0 == 1).expect("sent again").1;
        let job = started(&receive(&mut first, 0, &again).unwrap()).expect("it runs again");
        assert_eq!(job.job.map(|id| id.sends), Some(1));
        let onward = forward(&mut first, job, 1, 2);
        let run = started(&receive(&mut last, 1, &onward).unwrap()).expect("the vector came again");
        assert!(run.job != at_last.job);
        let scores = reply(&mut last, run);
        assert_eq!(scored_jobs(&receive(&mut asker, 2, &scores).unwrap()), [(3, Ok(()))]);
        // It may come back to a server, by another way than before.
        let back = forward(&mut last, run, 2, 1);
        assert!(started(&receive(&mut first, 2, &back).unwrap()).is_some());
        assert_eq!(started(&receive(&mut first, 1, &onward).unwrap()), None, "an older one");
    }
}
