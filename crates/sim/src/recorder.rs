//! Records the traces of the queries of a [`crate::world::World`].

use std::collections::BTreeMap;

use stratann_core::peer::message::QueryId;
use stratann_core::peer::{Action, JobId, Run};
use stratann_core::query::Extent;

use crate::trace::{Draft, Task, TaskId, Trace, Work};

/// A state as it goes from task to task: the query, or one of its jobs.
#[derive(Default)]
struct Strand {
    // Work since the last task.
    work: Work,
    // The last task of a thread.
    thought: Option<TaskId>,
    // Tasks that the next one waits for.
    tail: Vec<TaskId>,
}

impl Strand {
    fn think(&mut self, draft: &mut Draft, server: u8) -> TaskId {
        let work = std::mem::take(&mut self.work);
        let thought = draft.think(server, work, &self.tail);
        self.thought = Some(thought);
        thought
    }
}

/// The trace of one query, as it grows.
#[derive(Default)]
struct Open {
    draft: Draft,
    own: Strand,
    jobs: BTreeMap<JobId, Strand>,
    // Received reports that the answer waits for.
    reports: Vec<TaskId>,
    // Servers that are released, and the bytes of the messages.
    releases: Vec<(u8, u32)>,
    answered: Option<TaskId>,
}

impl Open {
    /// The strand of a run, and the draft of all.
    fn strand(&mut self, run: &Run) -> (&mut Strand, &mut Draft) {
        let strand = match run.job {
            None => &mut self.own,
            Some(id) => self.jobs.entry(id).or_default(),
        };
        (strand, &mut self.draft)
    }
}

/// Type of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sent {
    /// A baton or an answer.
    State,
    /// Partial results.
    Report,
    /// A job of the query.
    Job,
    /// The scores of a job.
    Scores,
    /// A threshold for jobs.
    Threshold,
}

/// The traces of all queries, as they grow.
pub(crate) struct Recorder {
    numbers: BTreeMap<QueryId, usize>,
    open: Vec<Open>,
}

impl Recorder {
    pub(crate) fn new(queries: usize) -> Recorder {
        Recorder { numbers: BTreeMap::new(), open: (0..queries).map(|_| Open::default()).collect() }
    }

    /// Query `q` of the run has the id `query`.
    pub(crate) fn submitted(&mut self, query: QueryId, q: usize) {
        self.numbers.insert(query, q);
        if let Some(open) = self.open.get_mut(q) {
            open.own.work.requests += 1;
        }
    }

    fn of(&mut self, query: &QueryId) -> Option<&mut Open> {
        self.open.get_mut(*self.numbers.get(query)?)
    }

    pub(crate) fn worked(&mut self, run: &Run, work: &Work) {
        if let Some(open) = self.of(&run.query) {
            open.strand(run).0.work.add(work);
        }
    }

    /// The state has computed, and asks for reads.
    pub(crate) fn reads(&mut self, run: &Run, server: u8, reads: &[Extent]) {
        if let Some(open) = self.of(&run.query) {
            let (strand, draft) = open.strand(run);
            let thought = strand.think(draft, server);
            strand.tail = reads.iter().map(|at| draft.add(server, Task::read(at), &[thought])).collect();
        }
    }

    /// A query is to be released on a server.
    pub(crate) fn released(&mut self, query: &QueryId, to: u8, bytes: usize) {
        if let Some(open) = self.of(query) {
            open.releases.push((to, bytes as u32));
        }
    }

    pub(crate) fn sent(&mut self, run: &Run, from: u8, to: u8, kind: Sent, bytes: usize) {
        let Some(open) = self.of(&run.query) else { return };
        let bytes = bytes as u32;
        let (task, message) = (Task::Send { bytes }, Work::messages(1, bytes));
        if kind == Sent::Job || kind == Sent::Threshold {
            // The state has computed, and waits: for its reads, and for the scores.
            let after: Vec<TaskId> = open.own.thought.into_iter().collect();
            // The job leaves when it is encoded; what comes back waits for its reads and scores.
            let encoded = open.draft.add(from, Task::Think(message), &after);
            let sent = open.draft.add(from, task, &[encoded]);
            if kind == Sent::Threshold {
                // Nothing waits for it.
                open.draft.add(to, Task::Think(message), &[sent]);
                return;
            }
            let (job, _) = open.strand(run);
            job.tail = vec![sent];
            job.work.add(&message);
            return;
        }
        let (strand, draft) = open.strand(run);
        strand.work.add(&message);
        let thought = strand.think(draft, from);
        let sent = draft.add(from, task, &[thought]);
        match kind {
            Sent::Report => {
                let received = draft.add(to, Task::Think(message), &[sent]);
                strand.tail = vec![thought];
                open.reports.push(received);
            }
            Sent::Scores => {
                open.own.tail.push(sent);
                open.own.work.add(&message);
            }
            Sent::State | Sent::Job | Sent::Threshold => {
                strand.tail = vec![sent];
                strand.work.add(&message);
            }
        }
    }

    /// A run has left its server. Of a job that ends where its query is nothing is sent; the query waits for it.
    pub(crate) fn departed(&mut self, run: &Run, server: u8, actions: &[Action]) {
        let is_scored_here = actions.iter().any(|action| matches!(action, Action::Scored { .. }));
        if run.job.is_none() || !is_scored_here {
            return;
        }
        let Some(open) = self.of(&run.query) else { return };
        let (strand, draft) = open.strand(run);
        let thought = strand.think(draft, server);
        open.own.tail.push(thought);
    }

    /// The client of query `q` has its answer from `server`. The other servers are released after that.
    pub(crate) fn answered(&mut self, q: usize, server: u8) {
        let Some(open) = self.open.get_mut(q).filter(|o| o.answered.is_none()) else { return };
        open.own.tail.append(&mut open.reports);
        let answered = open.own.think(&mut open.draft, server);
        open.answered = Some(answered);
        let releases = std::mem::take(&mut open.releases);
        if releases.is_empty() {
            return;
        }
        let all_bytes = releases.iter().map(|release| release.1).sum();
        let released = Task::Think(Work::messages(releases.len() as u32, all_bytes));
        let released = open.draft.add(server, released, &[answered]);
        for (to, bytes) in releases {
            let sent = open.draft.add(server, Task::Send { bytes }, &[released]);
            open.draft.add(to, Task::Think(Work::messages(1, bytes)), &[sent]);
        }
    }

    /// The traces of the answered queries, in order of submission.
    pub(crate) fn finish(self) -> Vec<Trace> {
        self.open.into_iter().filter_map(|o| Some(o.draft.finish(o.answered?))).collect()
    }
}
