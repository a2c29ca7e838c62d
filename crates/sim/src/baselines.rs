//! Two other ways to search on several servers, for comparison with hand-overs: one index for each server, all of which
//! are asked (scatter-gather, BatANN §3.1), and a state that stays at its origin and fetches remote blocks.

use stratann_core::hash::hash;
use stratann_core::kinds::IndexView;
use stratann_core::peer::message::{HEADER, Message, QueryId};
use stratann_core::peer::{Run, is_answer};
use stratann_core::place::{LocalShard, Others, SERVERS_MAX};
use stratann_core::query::{Hit, Outcome, QueryState, QueryStats, Read, wire};

use crate::runner::run_steps;
use crate::trace::{Draft, Task, TaskId, Trace, Work};
use crate::{Cluster, Stores, SubmittedQuery};

/// An index over one server's share of the rows.
#[derive(Clone, Copy)]
pub struct Partition<'a> {
    /// The part of the index in RAM.
    pub view: IndexView<'a>,
    /// Data of the part.
    pub stores: &'a dyn Stores,
}

/// Result of a query, and its costs.
#[derive(Clone, Debug)]
pub struct BaselineResult {
    /// Closest first, at most k.
    pub results: Vec<Hit>,
    /// Outcome; of several parts, the first that failed.
    pub outcome: Outcome,
    /// Sum over all parts.
    pub stats: QueryStats,
    /// Reads, by server.
    pub reads: Vec<u64>,
    /// Messages between servers.
    pub messages: u64,
    /// Bytes of these messages.
    pub bytes: u64,
    /// Remote blocks that were fetched.
    pub fetched: u64,
    /// For [`crate::replay()`].
    pub trace: Trace,
}

/// Bytes of a request for a block, and of the part of the reply before the block: a frame's header, a query id, a tag
/// and a number.
const REQUEST_BYTES: usize = HEADER + 8 + 1 + 13 + 4 + 4;

/// Asks all partitions and merges their results. Partition s is on server s; the query is submitted to `query.origin`,
/// which asks the others. `query.at_us` and `query.time_us` are not used.
pub fn scatter_gather(partitions: &[Partition<'_>], query: &SubmittedQuery<'_>) -> BaselineResult {
    let (mut draft, origin) = (Draft::default(), query.origin);
    let others = partitions.len().saturating_sub(1);
    let question_bytes = question_bytes(query);
    let asked = Work::messages(others as u32, question_bytes.saturating_mul(others as u32));
    let scattered = draft.add(origin, Task::Think(Work { requests: 1, ..asked }), &[]);
    let mut sum = BaselineResult {
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
            sum.bytes += u64::from(question_bytes);
            tail = vec![draft.add(origin, Task::Send { bytes: question_bytes }, &tail)];
        }
        let mut first = if is_far { Work::messages(1, question_bytes) } else { Work::default() };
        let state = run_steps(part, query, |mut work, wanted| {
            work.add(&std::mem::take(&mut first));
            let thought = draft.think(server, work, &tail);
            tail = wanted.iter().map(|read| draft.add(server, Task::read(&read.at), &[thought])).collect();
            if wanted.is_empty() {
                tail = vec![thought];
            }
        });
        if is_far {
            let bytes = answer_bytes(&state);
            sum.bytes += u64::from(bytes);
            let message = Task::Think(Work::messages(1, bytes));
            let encoded = draft.add(server, message, &tail);
            let sent = draft.add(server, Task::Send { bytes }, &[encoded]);
            tail = vec![draft.add(origin, message, &[sent])];
        }
        gathered.extend(tail);
        sum.take(&state, usize::from(server));
    }
    sum.results.sort_by(|a, b| a.distance.total_cmp(&b.distance).then(a.external_id.cmp(&b.external_id)));
    sum.results.truncate(query.params.k as usize);
    let merged = draft.add(origin, Task::Think(Work::default()), &gathered);
    sum.trace = draft.finish(merged);
    sum
}

impl BaselineResult {
    fn take(&mut self, state: &QueryState, server: usize) {
        self.results.extend_from_slice(state.results());
        self.stats.add(state.stats());
        self.reads[server] += state.stats().reads;
        if is_answer(self.outcome) && !is_answer(state.outcome()) {
            self.outcome = state.outcome();
        }
    }
}

/// Bytes of a query as it is sent to a server: a state that has not begun, with its vector.
fn question_bytes(query: &SubmittedQuery<'_>) -> u32 {
    let mut state = Vec::new();
    wire::encode(&QueryState::new(query.params, query.budget), wire::Carry::Ids, &mut state);
    let message = Message::Baton {
        run: Run {
            query: QueryId { origin: query.origin, incarnation: 0, number: 0 },
            attempt: 0,
            job: None,
        },
        visited: 0,
        left_us: 0,
        vector: query.vector,
        state: &state[..],
    };
    let mut frame = Vec::new();
    message.encode(0, 0, &mut frame);
    frame.len() as u32
}

fn answer_bytes(state: &QueryState) -> u32 {
    let mut bytes = Vec::new();
    wire::encode(&state.answer(), wire::Carry::Ids, &mut bytes);
    let run = Run { query: QueryId { origin: 0, incarnation: 0, number: 0 }, attempt: 0, job: None };
    let mut frame = Vec::new();
    Message::Answer { run, visited: 0, state: bytes }.encode(0, 0, &mut frame);
    frame.len() as u32
}

/// Searches one index partitioned over servers without hand-overs: the state stays on `query.origin`, and a remote
/// block is requested from one of its replicas, which reads and sends it. Each remote block takes two messages, where a
/// hand-over takes one for all blocks until the next. `query.at_us` and `query.time_us` are not used.
pub fn fetch(cluster: &Cluster<'_>, query: &SubmittedQuery<'_>) -> BaselineResult {
    let (mut draft, origin) = (Draft::default(), query.origin);
    let others = Others::live(u64::MAX);
    let shard = LocalShard { placement: cluster.placement, server: origin, others };
    let part = Partition { view: cluster.view, stores: cluster.stores };
    let mut reads = vec![0u64; cluster.placement.servers()];
    let (mut fetched, mut bytes, mut last) = (0u64, 0u64, 0);
    let mut came = Work { requests: 1, ..Work::default() };
    let mut tail: Vec<TaskId> = Vec::new();
    let state = run_steps(&part, query, |mut work, wanted| {
        let far = wanted.iter().filter(|read| !shard.holds(read.unit()));
        let (far, far_bytes) = far.fold((0, 0), |(n, bytes), read| (n + 1, bytes + read.at.bytes));
        let request_bytes = far * REQUEST_BYTES as u32;
        work.add(&std::mem::replace(&mut came, Work::messages(far, request_bytes + far_bytes)));
        work.add(&Work::messages(far, request_bytes));
        fetched += u64::from(far);
        let thought = draft.think(origin, work, &tail);
        last = thought;
        let add_read = |read: &Read| {
            let unit = read.unit();
            let replica = if shard.holds(unit) { origin } else { a_replica(&shard, unit) };
            reads[usize::from(replica)] += 1;
            if replica == origin {
                return draft.add(origin, Task::read(&read.at), &[thought]);
            }
            let (request_bytes, reply_bytes) = (REQUEST_BYTES as u32, REQUEST_BYTES as u32 + read.at.bytes);
            let requested = draft.add(origin, Task::Send { bytes: request_bytes }, &[thought]);
            let received = Task::Think(Work::messages(1, request_bytes));
            let received = draft.add(replica, received, &[requested]);
            let completed = draft.add(replica, Task::read(&read.at), &[received]);
            let work = Work { reads: 1, ..Work::messages(1, reply_bytes) };
            let prepared = draft.add(replica, Task::Think(work), &[completed]);
            bytes += u64::from(reply_bytes) + REQUEST_BYTES as u64;
            draft.add(replica, Task::Send { bytes: reply_bytes }, &[prepared])
        };
        tail = wanted.iter().map(add_read).collect();
    });
    BaselineResult {
        results: state.results().to_vec(),
        outcome: state.outcome(),
        stats: *state.stats(),
        reads,
        messages: 2 * fetched,
        bytes,
        fetched,
        trace: draft.finish(last),
    }
}

/// One of a unit's replicas, drawn by the unit so that replicas share the load.
fn a_replica(shard: &LocalShard<'_>, unit: u32) -> u8 {
    let replicas = shard.placement.replicas(unit);
    let turn = (hash(0, 21, u64::from(unit)) % SERVERS_MAX as u64) as u32;
    ((replicas.rotate_right(turn).trailing_zeros() + turn) % SERVERS_MAX as u32) as u8
}
