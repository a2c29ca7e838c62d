//! Writes down what the queries of a [`crate::world::World`] do.

use std::collections::BTreeMap;

use stratann_core::peer::message::QueryId;

use crate::trace::{Draft, Task, TaskId, Trace, Work};

/// One query on its way.
#[derive(Default)]
struct Open {
    draft: Draft,
    // What the thread that holds the query has done since the last task.
    work: Work,
    // What the next task waits for.
    tail: Vec<TaskId>,
    // Word of results that the answer waits for.
    heard: Vec<TaskId>,
    // Servers that are told to forget the query, and the bytes of the word.
    releases: Vec<(u8, u32)>,
    answered: Option<TaskId>,
}

impl Open {
    fn think(&mut self, server: u8) -> TaskId {
        let work = std::mem::take(&mut self.work);
        self.draft.add(server, Task::Think(work), &self.tail)
    }
}

/// What kind of message was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sent {
    /// The query goes on, or comes home, with it.
    Carries,
    /// Its origin is told of results.
    Tells,
    /// It is to be forgotten.
    Releases,
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

    /// A client's query number `q` is known to the servers as `query`.
    pub(crate) fn asked(&mut self, query: QueryId, q: usize) {
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
        if kind == Sent::Releases {
            return open.releases.push((to, bytes));
        }
        open.work.messages += 1;
        let thought = open.think(from);
        if kind == Sent::Tells {
            let sent = open.draft.add(from, Task::Send { bytes }, &[thought]);
            open.heard.push(open.draft.add(to, Task::Think(Work::messages(1)), &[sent]));
            open.tail = vec![thought];
            return;
        }
        open.tail = vec![open.draft.add(from, Task::Send { bytes }, &[thought])];
        open.work.messages += 1;
    }

    /// The client of query `q` has its answer from `server`. Others are told to forget the query when that is done.
    pub(crate) fn told(&mut self, q: usize, server: u8) {
        let Some(open) = self.open.get_mut(q).filter(|o| o.answered.is_none()) else { return };
        open.tail.append(&mut open.heard);
        let answered = open.think(server);
        open.answered = Some(answered);
        let releases = std::mem::take(&mut open.releases);
        if releases.is_empty() {
            return;
        }
        let spoken = Task::Think(Work::messages(releases.len() as u32));
        let spoken = open.draft.add(server, spoken, &[answered]);
        for (to, bytes) in releases {
            let sent = open.draft.add(server, Task::Send { bytes }, &[spoken]);
            open.draft.add(to, Task::Think(Work::messages(1)), &[sent]);
        }
    }

    /// The traces of the queries that were answered, in the order in which they were asked.
    pub(crate) fn finish(self) -> Vec<Trace> {
        self.open.into_iter().filter_map(|o| Some(o.draft.finish(o.answered?))).collect()
    }
}
