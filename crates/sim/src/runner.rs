//! The simulator's way to run a state of any kind: prepare it, step it, and read for it.
//!
//! This is the only place of the simulator that knows how a state asks for bytes.

use stratann_core::peer::is_answer;
use stratann_core::plan::IndexView;
use stratann_core::query::{
    Arrival, Arrived, Loss, Outcome, QueryState, QueryStats, Scratch, Step, Tag, Want,
};

use crate::baselines::Partition;
use crate::trace::Work;
use crate::{Blocks, SubmittedQuery};

/// A read that a state waits for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Read {
    pub(crate) tag: Tag,
    /// First block.
    pub(crate) block: u32,
    /// Number of blocks.
    pub(crate) count: u32,
}

impl Read {
    pub(crate) fn blocks(&self) -> core::ops::Range<u32> {
        self.block..self.block.saturating_add(self.count)
    }
}

/// A state with its scratch, and the reads that have completed for it.
pub(crate) struct Runner {
    pub(crate) state: Box<QueryState>,
    scratch: Scratch,
    // The read, and whether it succeeded.
    completed: Vec<(Read, bool)>,
}

impl Runner {
    /// Prepares a state for `view`.
    pub(crate) fn new(state: Box<QueryState>, view: &IndexView<'_>, vector: &[u8]) -> Runner {
        let mut scratch = Scratch::default();
        scratch.prepare(view, vector);
        Runner { state, scratch, completed: Vec::new() }
    }

    /// Notes a completed read. Returns whether the state can be stepped.
    pub(crate) fn complete(&mut self, read: Read, is_read: bool) -> bool {
        self.completed.push((read, is_read));
        self.state.is_ready(self.completed.len())
    }

    /// Steps the state with the completed reads.
    pub(crate) fn step(&mut self, view: &IndexView<'_>, blocks: &dyn Blocks) -> (Step, Work) {
        let held: Vec<(Tag, Option<Vec<u8>>)> = self
            .completed
            .drain(..)
            .map(|(read, is_read)| (read.tag, is_read.then(|| bytes(blocks, read)).flatten()))
            .collect();
        let arrivals: Vec<Arrival<'_>> = held
            .iter()
            .map(|(tag, bytes)| Arrival {
                tag: *tag,
                what: bytes.as_deref().map_or(Arrived::Lost(Loss::Failed), Arrived::Bytes),
            })
            .collect();
        let before = *self.state.stats();
        let step = self.state.step(view, &mut self.scratch, &arrivals);
        (step, Work::step(&before, self.state.stats(), arrivals.len()))
    }

    /// The reads that the last step asked for.
    pub(crate) fn wanted(&self) -> Vec<Read> {
        let read = |&Want::Fetch { tag, block, count }: &Want| Read { tag, block, count };
        self.state.wants().iter().map(read).collect()
    }
}

/// The bytes of a read; `None` when one of its blocks cannot be read.
fn bytes(blocks: &dyn Blocks, read: Read) -> Option<Vec<u8>> {
    let (mut all, mut one) = (Vec::new(), Vec::new());
    for block in read.blocks() {
        if !blocks.read(block, &mut one) {
            return None;
        }
        all.extend_from_slice(&one);
    }
    Some(all)
}

/// Runs a state to its end where all blocks are local. After each step `round` receives the work of the step, and the first blocks of the
/// reads that it asked for.
pub(crate) fn run_steps(
    part: &Partition<'_>,
    query: &SubmittedQuery<'_>,
    mut round: impl FnMut(Work, &[u32]),
) -> QueryState {
    let state = Box::new(QueryState::new(query.params, query.budget));
    let mut runner = Runner::new(state, &part.view, query.vector);
    loop {
        let is_first = *runner.state.stats() == QueryStats::default();
        let (step, mut work) = runner.step(&part.view, part.blocks);
        work.prepared = u32::from(is_first);
        let wanted = runner.wanted();
        let blocks: Vec<u32> = wanted.iter().map(|read| read.block).collect();
        round(work, &blocks);
        if step != Step::Wait || wanted.is_empty() {
            return *runner.state;
        }
        for read in wanted {
            runner.complete(read, true);
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
