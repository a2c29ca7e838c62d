//! The simulator's way to run a state of any kind: prepare it, step it, and read for it.
//!
//! This is the only place of the simulator that knows how a state asks for bytes.

use stratann_core::peer::is_answer;
use stratann_core::plan::IndexView;
use stratann_core::query::{
    Arrival, Loss, Outcome, QueryState, QueryStats, Read, Scratch, Step, Tag, Want, outcome,
};

use crate::baselines::Partition;
use crate::trace::Work;
use crate::{Stores, SubmittedQuery};

/// A read that a state waits for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pending {
    pub(crate) tag: Tag,
    pub(crate) read: Read,
}

/// A state with its scratch, and the reads that have completed for it.
pub(crate) struct Runner {
    pub(crate) state: Box<QueryState>,
    scratch: Scratch,
    // The read, and whether it succeeded.
    completed: Vec<(Pending, bool)>,
}

impl Runner {
    /// Prepares a state for `view`.
    pub(crate) fn new(state: Box<QueryState>, view: &IndexView<'_>, vector: &[u8]) -> Runner {
        let mut scratch = Scratch::default();
        scratch.prepare(view, vector);
        Runner { state, scratch, completed: Vec::new() }
    }

    /// Notes a completed read. Returns whether the state can be stepped.
    pub(crate) fn complete(&mut self, pending: Pending, is_read: bool) -> bool {
        self.completed.push((pending, is_read));
        self.state.is_ready(self.completed.len())
    }

    /// Steps the state with the completed reads.
    pub(crate) fn step(&mut self, view: &IndexView<'_>, stores: &dyn Stores) -> (Step, Work) {
        let read = |pending: Pending, is_read: bool| {
            let bytes = if is_read { bytes(view, stores, &pending.read) } else { Err(Loss::Failed) };
            (pending.tag, bytes)
        };
        let held: Vec<(Tag, Result<Vec<u8>, Loss>)> =
            self.completed.drain(..).map(|(pending, is_read)| read(pending, is_read)).collect();
        let arrivals: Vec<Arrival<'_>> =
            held.iter().map(|(tag, bytes)| Arrival { tag: *tag, what: outcome(bytes) }).collect();
        let before = *self.state.stats();
        let step = self.state.step(view, &mut self.scratch, &arrivals);
        (step, Work::step(&before, self.state.stats(), arrivals.len()))
    }

    /// The reads that the last step asked for.
    pub(crate) fn wanted(&self) -> Vec<Pending> {
        let pending = |&Want::Fetch { tag, .. }: &Want| Some(Pending { tag, read: self.state.read_of(tag)? });
        self.state.wants().iter().filter_map(pending).collect()
    }
}

/// The verified bytes of a read.
fn bytes(view: &IndexView<'_>, stores: &dyn Stores, read: &Read) -> Result<Vec<u8>, Loss> {
    let mut bytes = Vec::new();
    if !stores.read(read.at, &mut bytes) {
        return Err(Loss::Failed);
    }
    view.verify(read, &bytes).map(|()| bytes)
}

/// Runs a state to its end where everything is local. After each step `round` receives the work of the step, and the reads that it
/// asked for.
pub(crate) fn run_steps(
    part: &Partition<'_>,
    query: &SubmittedQuery<'_>,
    mut round: impl FnMut(Work, &[Read]),
) -> QueryState {
    let state = Box::new(QueryState::new(query.params, query.budget));
    let mut runner = Runner::new(state, &part.view, query.vector);
    loop {
        let is_first = *runner.state.stats() == QueryStats::default();
        let (step, mut work) = runner.step(&part.view, part.stores);
        work.prepared = u32::from(is_first);
        let wanted = runner.wanted();
        let reads: Vec<Read> = wanted.iter().map(|pending| pending.read).collect();
        round(work, &reads);
        if step != Step::Wait || wanted.is_empty() {
            return *runner.state;
        }
        for pending in wanted {
            runner.complete(pending, true);
        }
    }
}

/// Runs one query on one server with the whole index, of any kind, without faults. Returns the ended state.
pub fn run_local(part: &Partition<'_>, query: &SubmittedQuery<'_>) -> QueryState {
    run_steps(part, query, |_, _| {})
}

pub(crate) fn is_good(outcome: Outcome) -> bool {
    is_answer(outcome)
}
