//! Two other ways to search on several servers, to compare with handing states over: an index for each server of which all are asked
//! (scatter-gather, BatANN §3.1), and a state that stays where it is and has blocks sent to it.

use stratann_core::build::hash;
use stratann_core::peer::message::{HEADER, Message, QueryId};
use stratann_core::place::{Here, SERVERS_MAX};
use stratann_core::plan::IndexView;
use stratann_core::query::{Hit, Outcome, QueryState, QueryStats, Scratch, Step, Tag, Want, wire};

use crate::trace::{Draft, Task, TaskId, Trace, Work};
use crate::world::arrivals;
use crate::{Asked, Blocks, Cluster};

/// An index over one server's share of the rows.
#[derive(Clone, Copy)]
pub struct Partition<'a> {
    /// Its part in RAM.
    pub view: IndexView<'a>,
    /// The bytes of its blocks.
    pub blocks: &'a dyn Blocks,
}

/// What a query came to, and how.
#[derive(Clone, Debug)]
pub struct Answered {
    /// Closest first, at most k.
    pub results: Vec<Hit>,
    /// How it ended: of several parts, the first that did not end well.
    pub outcome: Outcome,
    /// Sum over all parts.
    pub stats: QueryStats,
    /// Reads, by server.
    pub reads: Vec<u64>,
    /// Messages between servers.
    pub messages: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Blocks that came from other servers.
    pub fetched: u64,
    /// For [`crate::replay()`].
    pub trace: Trace,
}

/// Bytes of a request for a block, and of what comes before the block in the reply: a frame's header, a query's name, a tag and a number.
const REQUEST_BYTES: usize = HEADER + 8 + 1 + 13 + 4 + 4;

/// Runs a state to its end where all blocks are at hand. After each step `round` is given what the step took, and the blocks that are
/// wanted next.
fn alone(part: &Partition<'_>, asked: &Asked<'_>, mut round: impl FnMut(Work, &[u32])) -> QueryState {
    let mut state = QueryState::new(asked.params, asked.budget);
    let mut scratch = Scratch::default();
    scratch.prepare(&part.view, asked.vector);
    let mut held: Vec<(Tag, Option<Vec<u8>>)> = Vec::new();
    loop {
        let arrivals = arrivals(&held);
        let before = *state.stats();
        let step = state.step(&part.view, &mut scratch, &arrivals);
        let mut work = Work::step(&before, state.stats(), arrivals.len());
        work.prepared = u32::from(before == QueryStats::default());
        let wanted: Vec<u32> = state.wants().iter().map(|&Want::Fetch { block, .. }| block).collect();
        round(work, &wanted);
        if step != Step::Wait || wanted.is_empty() {
            return state;
        }
        held = state
            .wants()
            .iter()
            .map(|&Want::Fetch { tag, block, .. }| {
                let mut bytes = Vec::new();
                let is_read = part.blocks.read(block, &mut bytes);
                (tag, is_read.then_some(bytes))
            })
            .collect();
    }
}

fn is_good(outcome: Outcome) -> bool {
    stratann_core::peer::is_answer(outcome)
}

/// Asks all partitions and merges what they find. Partition s is on server s; the query comes to `asked.origin`, which asks the others.
/// Time does not matter: `asked.at_us` and `asked.time_us` are not looked at.
pub fn scatter_gather(partitions: &[Partition<'_>], asked: &Asked<'_>) -> Answered {
    let (mut draft, origin) = (Draft::default(), asked.origin);
    let others = partitions.len().saturating_sub(1);
    let scattered = draft.add(origin, Task::Think(Work::messages(others as u32)), &[]);
    let mut sum = Answered {
        results: Vec::new(),
        outcome: Outcome::Complete,
        stats: QueryStats::default(),
        reads: vec![0; partitions.len()],
        messages: 2 * others as u64,
        bytes: 0,
        fetched: 0,
        trace: Draft::default().finish(0),
    };
    let mut gathered = Vec::new();
    for (server, part) in (0u8..).zip(partitions) {
        let is_far = server != origin;
        let mut tail = vec![scattered];
        if is_far {
            let bytes = question_bytes(asked);
            sum.bytes += u64::from(bytes);
            tail = vec![draft.add(origin, Task::Send { bytes }, &tail)];
        }
        let mut first = Work::messages(u32::from(is_far));
        let state = alone(part, asked, |mut work, wanted| {
            work.add(&std::mem::take(&mut first));
            work.messages += u32::from(is_far && wanted.is_empty());
            let thought = draft.add(server, Task::Think(work), &tail);
            tail = wanted.iter().map(|_| draft.add(server, Task::Read, &[thought])).collect();
            if wanted.is_empty() {
                tail = vec![thought];
            }
        });
        if is_far {
            let bytes = answer_bytes(&state);
            sum.bytes += u64::from(bytes);
            let sent = draft.add(server, Task::Send { bytes }, &tail);
            tail = vec![draft.add(origin, Task::Think(Work::messages(1)), &[sent])];
        }
        gathered.extend(tail);
        sum.take(&state, usize::from(server));
    }
    sum.results.sort_by(|a, b| a.distance.total_cmp(&b.distance).then(a.external_id.cmp(&b.external_id)));
    sum.results.truncate(asked.params.k as usize);
    let merged = draft.add(origin, Task::Think(Work::default()), &gathered);
    sum.trace = draft.finish(merged);
    sum
}

impl Answered {
    fn take(&mut self, state: &QueryState, server: usize) {
        self.results.extend_from_slice(state.results());
        self.stats.add(state.stats());
        self.reads[server] += state.stats().reads;
        if is_good(self.outcome) && !is_good(state.outcome()) {
            self.outcome = state.outcome();
        }
    }
}

/// A query as it is sent to a server: as long as a state that has not begun, with its vector.
fn question_bytes(asked: &Asked<'_>) -> u32 {
    let mut state = Vec::new();
    wire::encode(&QueryState::new(asked.params, asked.budget), wire::Carry::Ids, &mut state);
    let message = Message::Baton {
        query: QueryId { origin: asked.origin, incarnation: 0, number: 0 },
        attempt: 0,
        visited: 0,
        left_us: 0,
        vector: asked.vector,
        state: &state,
    };
    let mut frame = Vec::new();
    message.encode(0, 0, &mut frame);
    frame.len() as u32
}

fn answer_bytes(state: &QueryState) -> u32 {
    let mut bytes = Vec::new();
    wire::encode(&state.without_beam(), wire::Carry::Ids, &mut bytes);
    let query = QueryId { origin: 0, incarnation: 0, number: 0 };
    let mut frame = Vec::new();
    Message::Answer { query, attempt: 0, visited: 0, state: &bytes }.encode(0, 0, &mut frame);
    frame.len() as u32
}

/// Searches one index spread over servers without handing over: the state stays on `asked.origin`, and a block that is not there is asked of
/// one of its homes, which reads and sends it. Two messages for each such block, where a hand-over is one for all blocks until the next.
/// Time does not matter, as in [`scatter_gather`].
pub fn fetch(cluster: &Cluster<'_>, asked: &Asked<'_>) -> Answered {
    let (mut draft, origin) = (Draft::default(), asked.origin);
    let here = Here { placement: cluster.placement, server: origin, live: u64::MAX, loads: [0; SERVERS_MAX] };
    let part = Partition { view: IndexView { here: None, ..cluster.view }, blocks: cluster.blocks };
    let mut reads = vec![0u64; cluster.placement.servers()];
    let block_bytes = cluster.view.block.block_bytes;
    let (mut fetched, mut came, mut last) = (0u64, 0u32, 0);
    let mut tail: Vec<TaskId> = Vec::new();
    let state = alone(&part, asked, |mut work, wanted| {
        let far = wanted.iter().filter(|&&block| !here.holds(block)).count() as u32;
        work.messages += came + far;
        came = far;
        fetched += u64::from(far);
        let thought = draft.add(origin, Task::Think(work), &tail);
        last = thought;
        let mut bring = |block: u32| {
            let home = if here.holds(block) { origin } else { a_home(&here, block) };
            reads[usize::from(home)] += 1;
            if home == origin {
                return draft.add(origin, Task::Read, &[thought]);
            }
            let request = Task::Send { bytes: REQUEST_BYTES as u32 };
            let asked = draft.add(origin, request, &[thought]);
            let heard = draft.add(home, Task::Think(Work::messages(1)), &[asked]);
            let read = draft.add(home, Task::Read, &[heard]);
            let reply = Work { reads: 1, messages: 1, ..Work::default() };
            let told = draft.add(home, Task::Think(reply), &[read]);
            draft.add(home, Task::Send { bytes: (REQUEST_BYTES + block_bytes) as u32 }, &[told])
        };
        tail = wanted.iter().map(|&block| bring(block)).collect();
    });
    Answered {
        results: state.results().to_vec(),
        outcome: state.outcome(),
        stats: *state.stats(),
        reads,
        messages: 2 * fetched,
        bytes: fetched * (2 * REQUEST_BYTES + block_bytes) as u64,
        fetched,
        trace: draft.finish(last),
    }
}

/// One of a block's homes; copies share the load.
fn a_home(here: &Here<'_>, block: u32) -> u8 {
    let homes = here.placement.homes(block);
    let turn = (hash(0, 21, u64::from(block)) % SERVERS_MAX as u64) as u32;
    ((homes.rotate_right(turn).trailing_zeros() + turn) % SERVERS_MAX as u32) as u8
}
