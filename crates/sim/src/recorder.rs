//! Records the traces of the queries of a [`crate::world::World`].

use std::collections::BTreeMap;

use stratann_core::peer::message::QueryId;

use crate::trace::{Draft, Task, TaskId, Trace, Work};

/// The trace of one query, as it grows.
#[derive(Default)]
struct Open {
    draft: Draft,
    // Work on the query since its last task.
    work: Work,
    // Tasks that the next one waits for.
    tail: Vec<TaskId>,
    // Received reports that the answer waits for.
    reports: Vec<TaskId>,
    // Servers that are released, and the bytes of the messages.
    releases: Vec<(u8, u32)>,
    answered: Option<TaskId>,
}

impl Open {
    fn think(&mut self, server: u8) -> TaskId {
        let work = std::mem::take(&mut self.work);
        self.draft.add(server, Task::Think(work), &self.tail)
    }
}

/// Type of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sent {
    /// A baton or an answer.
    State,
    /// Partial results.
    Report,
    /// The release of a query.
    Release,
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
    }

    fn of(&mut self, query: &QueryId) -> Option<&mut Open> {
        self.open.get_mut(*self.numbers.get(query)?)
    }

    pub(crate) fn worked(&mut self, query: &QueryId, work: &Work) {
        if let Some(open) = self.of(query) {
            open.work.add(work);
        }
    }

    pub(crate) fn reads(&mut self, query: &QueryId, server: u8, count: usize) {
        if let Some(open) = self.of(query) {
            let thought = open.think(server);
            open.tail = (0..count).map(|_| open.draft.add(server, Task::Read, &[thought])).collect();
        }
    }

    pub(crate) fn sent(&mut self, query: &QueryId, from: u8, to: u8, kind: Sent, bytes: usize) {
        let Some(open) = self.of(query) else { return };
        let bytes = bytes as u32;
        if kind == Sent::Release {
            return open.releases.push((to, bytes));
        }
        open.work.messages += 1;
        let thought = open.think(from);
        if kind == Sent::Report {
            let sent = open.draft.add(from, Task::Send { bytes }, &[thought]);
            open.reports.push(open.draft.add(to, Task::Think(Work::messages(1)), &[sent]));
            open.tail = vec![thought];
            return;
        }
        open.tail = vec![open.draft.add(from, Task::Send { bytes }, &[thought])];
        open.work.messages += 1;
    }

    /// The client of query `q` has its answer from `server`. The other servers are released after that.
    pub(crate) fn answered(&mut self, q: usize, server: u8) {
        let Some(open) = self.open.get_mut(q).filter(|o| o.answered.is_none()) else { return };
        open.tail.append(&mut open.reports);
        let answered = open.think(server);
        open.answered = Some(answered);
        let releases = std::mem::take(&mut open.releases);
        if releases.is_empty() {
            return;
        }
        let released = Task::Think(Work::messages(releases.len() as u32));
        let released = open.draft.add(server, released, &[answered]);
        for (to, bytes) in releases {
            let sent = open.draft.add(server, Task::Send { bytes }, &[released]);
            open.draft.add(to, Task::Think(Work::messages(1)), &[sent]);
        }
    }

    /// The traces of the answered queries, in order of submission.
    pub(crate) fn finish(self) -> Vec<Trace> {
        self.open.into_iter().filter_map(|o| Some(o.draft.finish(o.answered?))).collect()
    }
}
