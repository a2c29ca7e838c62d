//! The simulator's way to run a state of any kind: prepare it, step it, and read for it.
//!
//! This is the only place of the simulator that knows how a state asks for bytes.

use stratann_core::kinds::IndexView;
use stratann_core::query::{
    Arrival, Arrived, Loss, QueryState, QueryStats, Read, Scratch, Step, Tag, outcome, wire,
};

use crate::baselines::Partition;
use crate::trace::Work;
use crate::{Stores, SubmittedQuery};

/// Nanoseconds since any fixed time.
pub(crate) type Clock<'a> = &'a (dyn Fn() -> u64 + 'a);

/// Result of `act`, and the time that it took; 0 without a clock.
pub(crate) fn timed<T>(clock: Option<Clock<'_>>, act: impl FnOnce() -> T) -> (T, u64) {
    let from = clock.map(|clock| clock());
    let done = act();
    (done, clock.zip(from).map_or(0, |(clock, from)| clock().saturating_sub(from)))
}

/// A read that a state waits for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pending {
    pub(crate) tag: Tag,
    pub(crate) read: Read,
}

/// A step of a state, and what it took.
pub(crate) struct Stepped {
    pub(crate) step: Step,
    pub(crate) work: Work,
    /// Time of the step, by the clock.
    pub(crate) taken_ns: u64,
}

/// A state with its scratch, and the reads that have completed for it.
pub(crate) struct Runner {
    pub(crate) state: Box<QueryState>,
    scratch: Scratch,
    // The read, and whether the disk returned it.
    completed: Vec<(Pending, bool)>,
    // Replies to jobs.
    scored: Vec<(Tag, Result<Vec<u8>, Loss>)>,
    // Whether the next step is the first one of a query.
    is_first: bool,
}

impl Runner {
    /// Prepares a state for `view`.
    pub(crate) fn new(state: Box<QueryState>, view: &IndexView<'_>, vector: &[u8]) -> Runner {
        let mut scratch = Scratch::default();
        scratch.prepare_for(view, vector, &state);
        let is_first = state.is_new();
        Runner { state, scratch, completed: Vec::new(), scored: Vec::new(), is_first }
    }

    /// Notes a completed read. Returns whether the state can be stepped.
    pub(crate) fn complete(&mut self, pending: Pending, is_read: bool) -> bool {
        self.completed.push((pending, is_read));
        self.is_ready()
    }

    /// Notes the reply to a job. Returns whether the state can be stepped.
    pub(crate) fn score(&mut self, tag: Tag, scores: Result<Vec<u8>, Loss>) -> bool {
        self.scored.push((tag, scores));
        self.is_ready()
    }

    fn is_ready(&self) -> bool {
        self.state.is_ready(self.completed.len() + self.scored.len())
    }

    /// Steps the state with the completed reads, whose bytes are verified.
    /// `clock` takes the time of the step itself.
    pub(crate) fn step(
        &mut self,
        view: &IndexView<'_>,
        stores: &dyn Stores,
        clock: Option<Clock<'_>>,
    ) -> Stepped {
        let read = |(pending, is_read): (Pending, bool)| {
            let mut bytes = Vec::new();
            let is_read = is_read && stores.read(pending.read.at, &mut bytes);
            let verified = if is_read { view.check_read(&pending.read, &bytes) } else { Err(Loss::Failed) };
            if verified.is_ok() {
                view.mask_unwritten(&pending.read, &mut bytes);
            }
            (pending.tag, verified.map(|()| bytes))
        };
        let held: Vec<(Tag, Result<Vec<u8>, Loss>)> = self.completed.drain(..).map(read).collect();
        let reads_count = held.len();
        let scored = std::mem::take(&mut self.scored);
        let scores = scored.iter().map(|(tag, scores)| Arrival { tag: *tag, what: arrived(scores) });
        let reads = held.iter().map(|(tag, read)| Arrival { tag: *tag, what: outcome(read) });
        let arrivals: Vec<Arrival<'_>> = reads.chain(scores).collect();
        // What scorers counted is their work.
        let mut before = *self.state.stats();
        for scores in scored.iter().filter_map(|(_, scores)| wire::read_scores(scores.as_ref().ok()?).ok()) {
            before.add(&scores.stats);
        }
        let (mut step, mut taken_ns) = timed(clock, || self.state.step(view, &mut self.scratch, &arrivals));
        let is_first = std::mem::take(&mut self.is_first);
        let mut work = Work::step(&before, self.state.stats(), (is_first, reads_count));
        // Codes are ranked at once; what that takes is the replay's to say.
        loop {
            let Some(tag) = self.state.code_wants().next() else { break };
            let ranking = self.scratch.rank_codes(view);
            let before = *self.state.stats();
            let arrivals = [Arrival { tag, what: Arrived::Ranked(ranking.ranked()) }];
            let (next, more_ns) = timed(clock, || self.state.step(view, &mut self.scratch, &arrivals));
            (step, taken_ns) = (next, taken_ns + more_ns);
            work.scored += ranking.distinct as u32;
            work.full_comparisons += (self.state.stats().full_comparisons - before.full_comparisons) as u32;
        }
        Stepped { step, work, taken_ns }
    }

    /// Encodes and decodes the state, as if it had moved. Wants do not travel: they were submitted before.
    pub(crate) fn reencode(&mut self) {
        let mut bytes = Vec::new();
        wire::encode(&self.state, wire::Carry::Distances, &mut bytes);
        *self.state = wire::decode(&bytes).expect("a state that was encoded can be decoded");
    }

    /// The reads that the last step asked for.
    pub(crate) fn wanted(&self) -> Vec<Pending> {
        let pending = |(tag, _)| Some(Pending { tag, read: self.state.read_of(tag)? });
        self.state.fetches().filter_map(pending).collect()
    }
}

/// The reply to a job as an arrival.
fn arrived(scores: &Result<Vec<u8>, Loss>) -> Arrived<'_> {
    match scores {
        Ok(bytes) => wire::read_scores(bytes).map_or(Arrived::Lost(Loss::Damaged), Arrived::Scores),
        Err(loss) => Arrived::Lost(*loss),
    }
}

/// Runs a state to its end where the whole index is local. After each step `round` receives the work of the step, and
/// the reads that it asked for.
pub(crate) fn run_steps(
    part: &Partition<'_>,
    query: &SubmittedQuery<'_>,
    mut round: impl FnMut(Work, &[Read]),
) -> QueryState {
    let state = Box::new(QueryState::new(query.params, query.budget));
    let mut runner = Runner::new(state, &part.view, query.vector);
    loop {
        let is_first = *runner.state.stats() == QueryStats::default();
        let Stepped { step, mut work, .. } = runner.step(&part.view, part.stores, None);
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
